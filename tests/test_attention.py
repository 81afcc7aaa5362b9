"Sweeps over attention, multi-head attention and masks: shapes, dtypes, masks, gradients, other libraries."

from itertools import product
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.engines.fused_attention import (
    FusedAttentionDropout,
    FusedMultiHeadAttention,
    fused_attention,
)
from annotated_transformer.experiments.background import AdditiveAttention
from annotated_transformer.model.attention import (
    attention,
)
from annotated_transformer.model.masking import padding_mask, target_mask
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


MASKS = {
    "none": None,
    "nothing": None,
    "padding": (2, 1, 1, -1),
    "per head": (2, 3, 0, -1),
    "per sentence": (2, 1, 0, -1),
    "plain": (0, -1),
}


def draw_mask(kind, n_q, n_k, seed):
    "A mask broadcastable to (2, 3, n_q, n_k); some rows of some of them are empty."
    rng = torch.Generator().manual_seed(seed)
    if kind == "none":
        return None
    if kind == "nothing":
        return torch.zeros(n_q, n_k, dtype=torch.bool)
    shape = [{0: n_q, -1: n_k}.get(n, n) for n in MASKS[kind]]
    return torch.rand(shape, generator=rng) < 0.5


masks = st.sampled_from(list(MASKS))


def out_and_grads(attend, *inputs, mask):
    "The output, and the gradients of a random reading of it at every input."
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out, rng = attend(*inputs, mask), torch.Generator().manual_seed(1)
    reading = torch.randn(out.shape, generator=rng).to(out.dtype)
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
    shapes = (n_q, d_k), (n_k, d_k), (n_k, d_v)
    inputs = [torch.randn(2, 3, n, d).to(dtype) for n, d in shapes]
    mask = draw_mask(kind, n_q, n_k, seed)
    readable = out_and_grads(attention, *inputs, mask=mask)
    fused = out_and_grads(F.scaled_dot_product_attention, *inputs, mask=mask)
    for a, b in zip(readable, fused):
        assert a.dtype == dtype and a.isfinite().all()
        close(a, b, TOLERANCE[dtype])


@pytest.mark.parametrize(
    "attend",
    [
        attention,
        fused_attention,
        AttentionDropout(0.5),
        FusedAttentionDropout(0.5),
        AdditiveAttention(8, 5),
    ],
    ids=["readable", "fused", "dropout", "fast dropout", "additive"],
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


# Multi-head


class OnGPU(FusedAttentionDropout):
    "What it does there, tried here: PyTorch's kernel has a form for every device."

    def forward(self, query, key, value, mask=None):
        with mock.patch.object(torch.Tensor, "device", torch.device("cuda")):
            return super().forward(query, key, value, mask)


@pytest.mark.parametrize("dropped", [AttentionDropout, FusedAttentionDropout, OnGPU])
def test_dropout_on_weights_is_a_part_and_only_while_training(dropped):
    torch.manual_seed(0)
    module = MultiHeadAttention(16, 4, attend=dropped(0.3))
    plain, x = MultiHeadAttention(16, 4), torch.randn(2, 7, 16)
    plain.load_state_dict(module.state_dict())
    assert not torch.equal(module(x, x, x, None), module(x, x, x, None))
    close(module.eval()(x, x, x, None), plain(x, x, x, None))
    q, k, v = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 3)
    many = [t.expand(20000, -1, -1, -1) for t in (q, k, v)]
    found = dropped(0.3)(*many, None)
    mean = found.mean(0, keepdim=True)
    # 20,000 draws of a standard deviation near 1: 0.007, four times over
    close(mean, attention(q, k, v), 0.03)
    # with the identity as values, the output is the weights: kept or not, each by itself
    eye = torch.eye(5).expand(20000, 1, 5, 5)
    weights, whole = dropped(0.3)(*many[:2], eye), attention(q, k, eye[:1])
    kept = weights > 0
    assert abs(kept.float().mean() - 0.7) < 0.01
    assert abs((kept[..., 0] & kept[..., 1]).float().mean() - 0.49) < 0.02
    close(weights, torch.where(kept, whole / 0.7, 0.0), 1e-3)


@pytest.mark.parametrize("shape", [(6, 9), (3, 6, 9), (2, 3, 6, 9), (2, 1, 1, 9)])
def test_a_mask_of_fewer_axes_is_that_of_all_heads(shape):
    torch.manual_seed(0)
    module = MultiHeadAttention(24, 3, attend=AdditiveAttention(8, 10))
    query, memory, mask = (
        torch.randn(2, 6, 24),
        torch.randn(2, 9, 24),
        torch.rand(shape) > 0.4,
    )
    every = mask.expand(2, 3, 6, 9)
    close(module(query, memory, memory, mask), module(query, memory, memory, every))


# Masks


@sweep
@given(
    rows=st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1),
    pad_id=st.integers(0, 3),
)
def test_masks_say_who_may_look_where(rows, pad_id):
    ids, n = torch.tensor(rows), len(rows)
    pad, target = padding_mask(ids, pad_id), target_mask(ids, pad_id)
    assert pad.dtype == target.dtype == torch.bool
    assert pad.shape == (n, 1, 1, 4) and target.shape == (n, 1, 4, 4)
    for b, i, j in product(range(n), range(4), range(4)):
        assert pad[b, 0, 0, j] == (rows[b][j] != pad_id)
        assert target[b, 0, i, j] == (rows[b][j] != pad_id and j <= i)


# The fused projections


class Scaled(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


@pytest.mark.parametrize("change", ["map", "attend"])
def test_what_is_changed_is_used_in_self_attention(change):
    "As in attention to another tensor with the same numbers."
    torch.manual_seed(0)
    module, plain = FusedMultiHeadAttention(8, 2), FusedMultiHeadAttention(8, 2)
    if change == "map":
        module.w_v = Scaled(8, 8, bias=False)
    if change == "attend":
        module.attend = lambda *args: 2 * attention(*args)
    plain.load_state_dict(module.state_dict())
    x = torch.randn(2, 3, 8)
    found = module(x, x, x, None)
    close(found, module(x, x.clone(), x.clone(), None))
    assert (found - plain(x, x, x, None)).abs().max() > 1e-2
