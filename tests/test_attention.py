"Sweeps over attention, multi-head attention and masks: shapes, dtypes, masks, gradients, other libraries."

from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.engines.fused_attention import (
    FusedMultiHeadAttention,
    fused_attention,
)
from annotated_transformer.experiments.background import AdditiveAttention
from annotated_transformer.model.attention import (
    attention,
    attention_weights,
)
from annotated_transformer.model.masking import causal_mask, padding_mask, target_mask
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.training.attention_dropout import AttentionDropout

# Both sides round each score, weight and sum once or so: a few units in the last place of numbers near 1, summed over at most 9 keys.
# Half precision has 11 bits and bfloat16 8, so their last place near 1 is about 1e-3 and 8e-3; gradients add up over queries as well.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 1.5e-1,
}

sizes = st.integers(1, 9)
sweep = settings(max_examples=40, deadline=None, derandomize=True)


def close(a, b, eps=2e-5):
    torch.testing.assert_close(a, b, rtol=eps, atol=eps)


def draw_mask(kind, n_q, n_k, seed):
    "A mask of each shape in use, broadcastable to (2, 3, n_q, n_k); some rows of some of them are empty."
    rng = torch.Generator().manual_seed(seed)
    if kind == "none":
        return None
    if kind == "nothing":
        return torch.zeros(n_q, n_k, dtype=torch.bool)
    shape = {
        "padding": (2, 1, 1, n_k),
        "per head": (2, 3, n_q, n_k),
        "per sentence": (2, 1, n_q, n_k),
        "plain": (n_q, n_k),
    }[kind]
    return torch.rand(shape, generator=rng) < 0.5


masks = st.sampled_from(
    ["none", "nothing", "padding", "per head", "per sentence", "plain"]
)


def out_and_grads(attend, *inputs, mask):
    "The output, and the gradients of a random reading of it at every input."
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = attend(*inputs, mask)
    reading = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(
        out.dtype
    )
    return [out.detach(), *torch.autograd.grad((out * reading).sum(), inputs)]


@sweep
@given(
    n_q=sizes,
    n_k=sizes,
    d_k=sizes,
    d_v=sizes,
    kind=masks,
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 999),
)
def test_readable_attention_is_the_fused_kernel(n_q, n_k, d_k, d_v, kind, dtype, seed):
    torch.manual_seed(seed)
    inputs = [
        torch.randn(2, 3, n, d).to(dtype)
        for n, d in ((n_q, d_k), (n_k, d_k), (n_k, d_v))
    ]
    mask = draw_mask(kind, n_q, n_k, seed)
    readable, fused = (
        out_and_grads(attention, *inputs, mask=mask),
        out_and_grads(fused_attention, *inputs, mask=mask),
    )
    for a, b in zip(readable, fused):
        assert a.dtype == dtype and a.isfinite().all()
        close(a, b, TOLERANCE[dtype])


@sweep
@given(n_q=sizes, n_k=sizes, kind=masks, seed=st.integers(0, 999))
def test_weights_are_shares_and_nothing_hidden_is_seen(n_q, n_k, kind, seed):
    torch.manual_seed(seed)
    mask = draw_mask(kind, n_q, n_k, seed)
    weights = attention_weights(
        torch.randn(2, 3, n_q, 4) * 10, torch.randn(2, 3, n_k, 4) * 10, mask
    )
    may = (
        torch.ones_like(weights, dtype=torch.bool)
        if mask is None
        else mask.expand_as(weights)
    )
    assert (
        weights.shape == (2, 3, n_q, n_k)
        and (weights >= 0).all()
        and not weights[~may].any()
    )
    close(weights.sum(-1), may.any(-1).float())


@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (2, 3, 2)])
def test_leading_dimensions_ride_along(shape):
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(*shape, 5, 6),
        torch.randn(*shape, 7, 6),
        torch.randn(*shape, 7, 3),
    )
    rows = [
        attention(a, b, c)
        for a, b, c in zip(
            q.reshape(-1, 5, 6), k.reshape(-1, 7, 6), v.reshape(-1, 7, 3)
        )
    ]
    close(attention(q, k, v), torch.stack(rows).reshape(*shape, 5, 3))


def test_scores_of_any_size_stay_finite():
    q, k, v = torch.randn(3, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    out, *grads = out_and_grads(attention, q * 1e4, k * 1e4, v, mask=causal_mask(4)[0])
    assert out.isfinite().all() and all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize(
    "n_k, dtype, training, is_fused",
    [
        (63, torch.float32, True, False),
        (64, torch.float32, True, True),
        (200, torch.bfloat16, True, False),
        (8, torch.float32, False, True),
        (8, torch.bfloat16, False, True),
    ],
)
def test_the_faster_kernel_is_chosen_on_a_cpu(n_k, dtype, training, is_fused):
    "As `benchmarks/operators.py attention` measures them."
    q, k = torch.randn(1, 1, 5, 8, dtype=dtype), torch.randn(1, 1, n_k, 8, dtype=dtype)
    kernel = mock.Mock(side_effect=F.scaled_dot_product_attention)
    with (
        mock.patch.object(F, "scaled_dot_product_attention", kernel),
        torch.set_grad_enabled(training),
    ):
        fused_attention(q, k, k)
    assert kernel.called == is_fused


@pytest.mark.parametrize(
    "attend",
    [attention, fused_attention, AttentionDropout(0.5), AdditiveAttention(8, 5)],
    ids=["readable", "fused", "dropout", "additive"],
)
def test_a_row_that_may_look_nowhere_is_zero_and_harmless(attend):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[0] = False  # a whole sentence
    mask[1, :, 2] = False  # one query of the other
    out, *grads = out_and_grads(attend, q, k, v, mask=mask)
    assert not out[0].any() and not out[1, :, 2].any() and out[1, :, [0, 1, 3]].any()
    assert all(g.isfinite().all() and not g[0].any() for g in grads)


def test_additive_attention_is_its_formula():
    torch.manual_seed(0)
    part, q, k, v = (
        AdditiveAttention(6, 4),
        torch.randn(2, 5, 6),
        torch.randn(2, 7, 6),
        torch.randn(2, 7, 3),
    )
    one = torch.zeros(2, 5, 7)
    for b in range(2):
        for i in range(5):
            for j in range(7):
                one[b, i, j] = part.v.weight[0] @ torch.tanh(
                    part.w_q.weight @ q[b, i] + part.w_k.weight @ k[b, j]
                )
    close(part.scores(q, k), one)
    close(part(q, k, v), one.softmax(-1) @ v)
    mask = torch.ones(5, 7, dtype=torch.bool).tril()
    close(part(q, k, v, mask), one.masked_fill(~mask, -torch.inf).softmax(-1) @ v)


# Multi-head


def one_head_after_another(module, query, key, value, mask):
    "§3.2.2 as printed, in a loop, from the module's own matrices."
    w_q, w_k, w_v = (
        w.weight.chunk(module.n_heads) for w in (module.w_q, module.w_k, module.w_v)
    )
    outs = [
        attention(
            query @ q.T,
            key @ k.T,
            value @ v.T,
            None if mask is None else mask.expand(2, module.n_heads, -1, -1)[:, i],
        )
        for i, (q, k, v) in enumerate(zip(w_q, w_k, w_v))
    ]
    return torch.cat(outs, dim=-1) @ module.w_o.weight.T


@sweep
@given(
    n_q=sizes,
    n_k=sizes,
    d_k=st.none() | sizes,
    d_v=st.none() | sizes,
    kind=masks,
    seed=st.integers(0, 999),
)
def test_multi_head_is_one_head_after_another(n_q, n_k, d_k, d_v, kind, seed):
    torch.manual_seed(seed)
    module = MultiHeadAttention(12, 3, d_k, d_v)
    query, key, value = (
        torch.randn(2, n_q, 12),
        torch.randn(2, n_k, 12),
        torch.randn(2, n_k, 12),
    )
    mask = draw_mask(kind, n_q, n_k, seed)
    fast = out_and_grads(module, query, key, value, mask=mask)
    slow = out_and_grads(
        lambda *x: one_head_after_another(module, *x), query, key, value, mask=mask
    )
    for a, b in zip(fast, slow):
        close(a, b)
    k, v = module.keys_values(key, value)
    assert (
        k.shape == (2, 3, n_k, d_k or 4)
        and v.shape == (2, 3, n_k, d_v or 4)
        and fast[0].shape == (2, n_q, 12)
    )
    assert torch.equal(module.output(module.queries(query), k, v, mask), fast[0])


@pytest.mark.parametrize("n_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("causal", [False, True])
def test_multi_head_is_torchs_module(n_heads, causal):
    torch.manual_seed(n_heads)
    ours, theirs = (
        MultiHeadAttention(16, n_heads),
        nn.MultiheadAttention(16, n_heads, bias=False, batch_first=True),
    )
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight])
        )
        theirs.out_proj.weight.copy_(ours.w_o.weight)
    query = torch.randn(3, 6, 16)
    memory = query if causal else torch.randn(3, 4, 16)
    ids = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0]])[
        :, : memory.size(1)
    ]
    mask = target_mask(ids, 0) if causal else padding_mask(ids, 0)
    ignore = {
        "key_padding_mask": ids == 0,
        "attn_mask": ~causal_mask(6)[0, 0] if causal else None,
    }  # there, True = may not look
    a = out_and_grads(lambda q, m, mask: ours(q, m, m, mask), query, memory, mask=mask)
    b = out_and_grads(
        lambda q, m, mask: theirs(q, m, m, need_weights=False, **ignore)[0],
        query,
        memory,
        mask=mask,
    )
    for x, y in zip(a, b):
        close(x, y)


def test_two_heads_by_hand():
    module = MultiHeadAttention(4, 2)
    columns = {  # row by row, (d_model, h · d_k): the first two columns are head 1, the others head 2
        "w_q": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
        "w_k": [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 1], [0, 0, 1, 0]],
        "w_v": [[1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1], [1, 0, 0, 1]],
        "w_o": torch.eye(4).tolist(),
    }
    module.load_state_dict(
        {f"{name}.weight": torch.tensor(w).float().T for name, w in columns.items()}
    )
    x = torch.tensor(
        [[[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]]]
    )
    z = torch.tensor(
        [[[1.00, 1.28, 1.25, 0.75], [1.00, 1.40, 1.25, 0.75], [1.00, 1.40, 1.33, 0.67]]]
    )
    assert (module(x, x, x, None) - z).abs().max() < 0.005  # printed to two places


def test_parameters_do_not_depend_on_the_heads_and_keep_their_names():
    for n_heads in (1, 2, 8):
        shapes = {
            name: tuple(p.shape)
            for name, p in MultiHeadAttention(32, n_heads).state_dict().items()
        }
        assert shapes == {
            f"{name}.weight": (32, 32) for name in ("w_q", "w_k", "w_v", "w_o")
        }


def test_a_step_at_a_time_is_all_at_once():
    torch.manual_seed(0)
    module, x, ks, vs, outs = (
        MultiHeadAttention(16, 4),
        torch.randn(2, 7, 16),
        [],
        [],
        [],
    )
    for i in range(7):
        new = x[:, i : i + 1]
        k, v = module.keys_values(new, new)
        ks.append(k)
        vs.append(v)
        outs.append(
            module.output(
                module.queries(new), torch.cat(ks, dim=2), torch.cat(vs, dim=2)
            )
        )
    close(torch.cat(outs, dim=1), module(x, x, x, causal_mask(7)))


def test_dropout_on_weights_is_a_part_and_only_while_training():
    torch.manual_seed(0)
    module = MultiHeadAttention(16, 4, attend=AttentionDropout(0.3))
    plain, x = MultiHeadAttention(16, 4), torch.randn(2, 7, 16)
    plain.load_state_dict(module.state_dict())
    assert not torch.equal(module(x, x, x, None), module(x, x, x, None))
    close(module.eval()(x, x, x, None), plain(x, x, x, None))
    assert torch.equal(plain(x, x, x, None), plain(x, x, x, None))
    drop = AttentionDropout(0.3)
    q, k, v = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 3)
    mean = drop(
        q.expand(20000, -1, -1, -1),
        k.expand(20000, -1, -1, -1),
        v.expand(20000, -1, -1, -1),
        None,
    ).mean(0, keepdim=True)
    close(
        mean, fused_attention(q, k, v, None), 0.03
    )  # 20,000 draws of a spread near 1: 0.007, four times over


# Masks


@sweep
@given(
    rows=st.lists(
        st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=3
    ),
    pad_id=st.integers(0, 3),
)
def test_masks_say_who_may_look_where(rows, pad_id):
    ids = torch.tensor(rows)
    pad, target = padding_mask(ids, pad_id), target_mask(ids, pad_id)
    assert (
        pad.dtype == target.dtype == torch.bool
        and pad.shape == (len(rows), 1, 1, 4)
        and target.shape == (len(rows), 1, 4, 4)
    )
    for b, row in enumerate(rows):
        for i in range(4):
            for j in range(4):
                assert pad[b, 0, 0, j] == (row[j] != pad_id)
                assert target[b, 0, i, j] == (row[j] != pad_id and j <= i)


def test_the_future_is_dark_by_output_and_by_gradient():
    torch.manual_seed(0)
    module, x = MultiHeadAttention(8, 2), torch.randn(1, 6, 8, requires_grad=True)
    out = module(x, x, x, causal_mask(6))
    for i in range(6):
        changed = x.detach().clone()
        changed[:, i] += 1
        assert torch.equal(
            module(changed, changed, changed, causal_mask(6))[:, :i], out[:, :i]
        )
        (slope,) = torch.autograd.grad(out[:, i].sum(), x, retain_graph=True)
        assert not slope[:, i + 1 :].any() and slope[:, : i + 1].any(-1).all()


@pytest.mark.parametrize("before,after", [(0, 1), (0, 5), (2, 0), (3, 4)])
def test_any_padding_on_either_side_changes_nothing(before, after):
    torch.manual_seed(0)
    module, table = MultiHeadAttention(8, 2), torch.randn(5, 8)
    ids = torch.tensor([[1, 2, 3, 4]])
    padded = F.pad(ids, (before, after))
    for make in (padding_mask, target_mask):
        a, b = (module(table[i], table[i], table[i], make(i, 0)) for i in (ids, padded))
        close(b[:, before : before + 4], a)


# The fused projections


@sweep
@given(
    sizes,
    sizes,
    sizes,
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.integers(0, 99),
)
def test_fused_projections_are_the_separate_ones(d_model, d_k, d_v, biases, seed):
    "Outputs and gradients, of the input and of every weight and bias, whichever of the maps have a bias."
    torch.manual_seed(seed)
    module = FusedMultiHeadAttention(d_model, 2, d_k, d_v)
    for name, width, bias in zip(("w_q", "w_k", "w_v"), (d_k, d_k, d_v), biases):
        setattr(module, name, nn.Linear(d_model, 2 * width, bias))
    maps = module.w_q, module.w_k, module.w_v
    x = torch.randn(2, 3, d_model, requires_grad=True)
    weights = [x, *(p for linear in maps for p in linear.parameters())]
    together = module.self_projections(x)
    apart = module.queries(x), *module.keys_values(x, x)
    ones = [torch.randn_like(y) for y in apart]
    for a, b in zip(together, apart, strict=True):
        close(a, b)
    for a, b in zip(
        torch.autograd.grad(together, weights, ones),
        torch.autograd.grad(apart, weights, ones),
        strict=True,
    ):
        close(a, b)


@pytest.mark.parametrize(
    "which",
    [("w_q",), ("w_k",), ("w_v",), ("w_q", "w_v"), ("w_q", "w_k", "w_v", "w_o")],
    ids="+".join,
)
def test_self_attention_adds_every_bias(which):
    "As attention to another tensor with the same numbers does, where each map is called by itself."
    torch.manual_seed(0)
    module, x = MultiHeadAttention(12, 3, d_k=5, d_v=2), torch.randn(2, 4, 12)
    before = module(x, x, x, None)
    for name in which:
        plain = getattr(module, name)
        setattr(module, name, nn.Linear(plain.in_features, plain.out_features))
        with torch.no_grad():
            getattr(module, name).weight.copy_(plain.weight)
    found = module(x, x, x, None)
    close(found, module(x, x.clone(), x.clone(), None))
    if which != ("w_k",):
        assert (
            found - before
        ).abs().max() > 1e-3  # a bias on the keys cancels in the softmax


def test_a_map_that_is_not_a_plain_linear_is_called():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 3 * super().forward(x)

    module, x = MultiHeadAttention(8, 2), torch.randn(2, 3, 8)
    module.w_v = Scaled(8, 8, bias=False)
    found = module(x, x, x, None)
    plain = nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        plain.weight.copy_(3 * module.w_v.weight)
    module.w_v = plain
    close(found, module(x, x, x, None))


# Errors


def test_errors_name_the_value_and_what_would_be_right(unchecked):
    x, mask = torch.randn(2, 3, 8), torch.ones(3, 3)
    fused = FusedMultiHeadAttention(8, 2)
    for call, message in [
        (
            lambda: MultiHeadAttention(10, 4),
            "d_model=10 does not split into n_heads=4 equal heads: take a multiple of 4",
        ),
        (
            lambda: MultiHeadAttention(10, 4, d_k=3),
            "d_model=10 does not split into n_heads=4 equal heads: take a multiple of 4",
        ),
        (lambda: MultiHeadAttention(8, 0), "n_heads=0 must be 1 or more"),
        (lambda: MultiHeadAttention(8, 2, d_k=0), "d_k=0 must be 1 or more"),
        (lambda: MultiHeadAttention(8, 2, d_v=-1), "d_v=-1 must be 1 or more"),
        (
            lambda: AttentionDropout(1.0),
            "dropout=1.0 must be at least 0 and less than 1",
        ),
        (
            lambda: AttentionDropout(-0.1),
            "dropout=-0.1 must be at least 0 and less than 1",
        ),
        (
            lambda: fused(x, x, x, mask),
            "mask has dtype torch.float32: give torch.bool, True = attend",
        ),
        (
            lambda: fused(x, x, x[:, :2], None),
            "key has 3 positions and value has 2: each key needs one value",
        ),
        (
            lambda: padding_mask(torch.tensor([1, 2]), 0),
            "ids has shape (2,): give a batch (b, n), one sentence as ids[None]",
        ),
        (
            lambda: target_mask(torch.tensor([1, 2]), 0),
            "ids has shape (2,): give a batch (b, n), one sentence as ids[None]",
        ),
    ]:
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value) == message
    MultiHeadAttention(10, 4, d_k=3, d_v=3)  # widths given: no need to split


def test_masks_are_made_where_they_are_used():
    assert (
        target_mask(torch.ones(1, 3, dtype=torch.long, device="meta"), 0).device.type
        == "meta"
    )
    assert causal_mask(3, torch.device("meta")).device.type == "meta"
