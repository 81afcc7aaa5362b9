"The smoothed loss, plain and in chunks, equals PyTorch's in value and gradient; padding never counts (54, 90c)."

import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer.engines.chunked_loss import chunked_loss
from annotated_transformer.engines.chunked_r_drop import ChunkedRDrop
from annotated_transformer.training.label_smoothing import smoothed_loss


def chunked_loss_of_a_gpu(*args, **named):
    "Padding is set to zero instead of being left out."
    with mock.patch("annotated_transformer.engines.chunked_loss._SELECT_ON", ()):
        return chunked_loss(*args, **named)


# `test_twins.py` compares one with the other
LOSSES = [smoothed_loss, chunked_loss, chunked_loss_of_a_gpu]
every = pytest.mark.parametrize("loss_of", LOSSES, ids=lambda f: f.__name__)
both = pytest.mark.parametrize("loss_of", LOSSES[:2], ids=lambda f: f.__name__)


def example(seed: int, b: int, t: int, d_model: int, n_vocab: int, pad_id: int):
    "Hidden states, output matrix and targets; about a third of the places are padding."
    rng = torch.Generator().manual_seed(seed)
    hidden = (
        torch.randn(b, t, d_model, generator=rng) * d_model**-0.5
    ).requires_grad_()  # logits of size about 1
    weight = torch.randn(n_vocab, d_model, generator=rng).requires_grad_()
    tgt_out = torch.randint(n_vocab, (b, t), generator=rng).masked_fill(
        torch.rand(b, t, generator=rng) < 1 / 3, pad_id
    )
    return hidden, weight, tgt_out


def theirs(hidden, weight, tgt_out, pad_id, eps):
    logits = F.linear(hidden, weight).flatten(0, 1)
    return F.cross_entropy(
        logits,
        tgt_out.flatten(),
        ignore_index=pad_id,
        label_smoothing=eps,
        reduction="sum",
    )


@every
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(2, 40),
    st.sampled_from([0.0, 0.1, 0.3, 0.9]),
)
def test_equals_cross_entropy(loss_of, seed, b, t, n_vocab, eps):
    pad_id = seed % n_vocab
    hidden, weight, tgt_out = example(seed, b, t, 16, n_vocab, pad_id)
    ours, other = (f(hidden, weight, tgt_out, pad_id, eps) for f in (loss_of, theirs))
    assert torch.allclose(
        ours, other, rtol=1e-6, atol=1e-5
    )  # float32, summed in another order
    for a, c in zip(
        *(torch.autograd.grad(loss, (hidden, weight)) for loss in (ours, other)),
        strict=True,
    ):
        assert (a - c).norm() <= 1e-6 * (
            c.norm() + hidden.norm() + weight.norm()
        )  # where p is nearly q the difference keeps few digits


@every
def test_the_right_word_gets_its_share(loss_of):
    "Read from the gradient, p − q: the right word's target is (1 − ε) + ε/V, any other's ε/V."
    logits = torch.zeros(1, 1, 20, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        loss_of(
            logits, torch.eye(20), torch.tensor([[4]]), pad_id=-1, label_smoothing=0.1
        ),
        logits,
    )
    q = 1 / 20 - gradient[0, 0]
    assert torch.allclose(
        q,
        torch.full((20,), 0.1 / 20).index_fill(0, torch.tensor([4]), 0.9 + 0.1 / 20),
        atol=1e-7,
    )


@both
def test_padding_never_counts(loss_of):
    hidden, weight, tgt_out = example(0, 3, 7, 8, 30, pad_id=0)
    loss = loss_of(hidden, weight, tgt_out, 0, 0.1)
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert (gradient[tgt_out == 0] == 0).all() and (gradient[tgt_out != 0] != 0).any()
    for value in (1e9, math.inf, math.nan):
        spoilt = hidden.detach().clone()
        spoilt[tgt_out == 0] = value
        assert loss_of(spoilt, weight, tgt_out, 0, 0.1) == loss
    longer, more = (
        F.pad(hidden, (0, 0, 0, 5), value=3.0),
        F.pad(tgt_out, (0, 5), value=0),
    )
    assert loss_of(longer, weight, more, 0, 0.1) == loss


@pytest.mark.parametrize("eps", [0.0, 0.1])
@every
def test_all_padding(loss_of, eps):
    hidden, weight, tgt_out = example(0, 2, 3, 8, 30, pad_id=0)
    loss = loss_of(hidden, weight, torch.zeros_like(tgt_out), 0, eps)
    assert loss == 0 and loss.dtype == torch.float32
    for gradient in torch.autograd.grad(loss, (hidden, weight)):
        assert (gradient == 0).all()


@every
def test_sums_add_up(loss_of):
    hidden, weight, tgt_out = example(1, 6, 9, 8, 30, pad_id=0)
    whole, (a, c) = (
        loss_of(hidden, weight, tgt_out, 0, 0.1),
        (
            loss_of(hidden[i : i + 3], weight, tgt_out[i : i + 3], 0, 0.1)
            for i in (0, 3)
        ),
    )
    assert torch.allclose(whole, a + c, rtol=1e-6)


@every
def test_large_logits_and_bf16(loss_of):
    hidden, weight, tgt_out = example(2, 2, 5, 8, 30, pad_id=0)
    assert loss_of(hidden * 1e4, weight, tgt_out, 0, 0.1).isfinite()
    with torch.autocast("cpu", torch.bfloat16):
        mixed = loss_of(hidden, weight, tgt_out, 0, 0.1)
    assert mixed.dtype == torch.float32
    assert torch.allclose(
        mixed, loss_of(hidden, weight, tgt_out, 0, 0.1), rtol=0.02
    )  # bf16 keeps 8 bits


@every
def test_never_below_the_entropy(loss_of):
    n_vocab, eps = 50, 0.1
    q = torch.full((n_vocab,), eps / n_vocab, dtype=torch.float64)
    q[3] += 1 - eps
    entropy = -(q * q.log()).sum().item()
    rng = torch.Generator().manual_seed(0)
    for scale in (0.1, 1.0, 10.0):
        logits = torch.randn(200, 1, n_vocab, generator=rng) * scale
        assert (
            min(
                loss_of(row[None], torch.eye(n_vocab), torch.tensor([[3]]), -1, eps)
                for row in logits
            )
            > entropy
        )
    assert math.isclose(
        loss_of(
            q.log().float()[None, None],
            torch.eye(n_vocab),
            torch.tensor([[3]]),
            -1,
            eps,
        ).item(),
        entropy,
        rel_tol=1e-5,
    )


@every
def test_errors(loss_of):
    hidden, weight, tgt_out = example(0, 1, 2, 8, 30, pad_id=0)
    for eps in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"label_smoothing=.* must be in \[0, 1\)"):
            loss_of(hidden, weight, tgt_out, 0, eps)


@pytest.mark.parametrize(
    "dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-13)]
)
@every
def test_many_chunks_are_one(loss_of, dtype, tolerance):
    "With 8,192 tokens a chunk has 256 positions. 1,000, a third of them padding, are three."
    hidden, weight, tgt_out = (
        x.detach() for x in example(3, 4, 250, 16, 8192, pad_id=-1)
    )
    hidden, weight = (
        (hidden.to(dtype) / 4).requires_grad_(),
        weight.to(dtype).requires_grad_(),
    )
    ours, other = (f(hidden, weight, tgt_out, -1, 0.1) for f in (loss_of, theirs))
    assert ours.dtype == dtype and abs(ours - other) <= tolerance * other
    for a, c in zip(
        *(torch.autograd.grad(loss, (hidden, weight)) for loss in (ours, other)),
        strict=True,
    ):
        assert (a - c).norm() <= tolerance * c.norm()


@every
def test_bf16_is_near_and_keeps_the_matrix_gradient_in_fp32(loss_of):
    hidden, weight, tgt_out = example(4, 4, 20, 32, 500, pad_id=0)
    with torch.autocast("cpu", torch.bfloat16):
        ours = loss_of(hidden, weight, tgt_out, 0, 0.1)
    other = theirs(hidden, weight, tgt_out, 0, 0.1)
    assert (
        ours.dtype == torch.float32 and abs(ours - other) < 2e-3 * other
    )  # bf16 has 8 significant bits, errors of single places cancel
    for a, c in zip(
        *(torch.autograd.grad(loss, (hidden, weight)) for loss in (ours, other)),
        strict=True,
    ):
        assert a.dtype == torch.float32 and (a - c).norm() < 2**-7 * c.norm()


@every
def test_without_gradients_the_loss_is_the_same(loss_of):
    hidden, weight, tgt_out = example(5, 2, 6, 8, 40, pad_id=0)
    with torch.no_grad():
        quiet = loss_of(hidden, weight, tgt_out, 0, 0.1)
    assert quiet == loss_of(hidden, weight, tgt_out, 0, 0.1) and not quiet.requires_grad
    (twice,) = torch.autograd.grad(2 * loss_of(hidden, weight, tgt_out, 0, 0.1), weight)
    (once,) = torch.autograd.grad(loss_of(hidden, weight, tgt_out, 0, 0.1), weight)
    assert torch.equal(twice, 2 * once)


@pytest.mark.parametrize(
    "loss_of, part",
    [
        (chunked_loss, "engines.chunked_loss._grad_of_chunk"),
        (chunked_loss, "engines.chunked_loss.add_product"),
        (ChunkedRDrop(5.0), "engines.chunked_r_drop.add_product"),
    ],
)
def test_without_gradients_none_is_computed(loss_of, part):
    hidden, weight, tgt_out = example(5, 2, 6, 8, 40, pad_id=0)
    tgt_out[1] = tgt_out[0]  # as R-Drop needs it
    failing = mock.Mock(side_effect=AssertionError("a gradient was computed"))
    with mock.patch(f"annotated_transformer.{part}", failing):
        with torch.no_grad():
            found = loss_of(hidden, weight, tgt_out, 0, 0.1)
        loss_of(hidden.detach(), weight.detach(), tgt_out, 0, 0.1)
        for inputs in ((hidden.detach(), weight), (hidden, weight.detach())):
            with pytest.raises(AssertionError, match="a gradient was computed"):
                loss_of(*inputs, tgt_out, 0, 0.1)
    assert torch.equal(found, loss_of(hidden, weight, tgt_out, 0, 0.1).detach())


def made_up(seed: int, certainty: float, n_vocab: int):
    "Places of a model that knows nothing (0) to one that is sure of the right word (20)."
    rng = torch.Generator().manual_seed(seed)
    weight, words = (
        torch.randn(n_vocab, 64, generator=rng),
        torch.randint(n_vocab, (1, 200), generator=rng),
    )
    hidden = torch.randn(1, 200, 64, generator=rng) / 8 + certainty / 64 * weight[words]
    return hidden.requires_grad_(), weight.requires_grad_(), words


def value_and_gradients(loss, *leaves) -> list[torch.Tensor]:
    "In float64, of a loss and its leaves."
    return [x.detach().double() for x in (loss, *torch.autograd.grad(loss, leaves))]


def off(found, right) -> list[float]:
    "Relative errors of the value and of both gradients, in norm."
    return [
        ((a - c).norm() / c.norm()).item() for a, c in zip(found, right, strict=True)
    ]


def in_float64(hidden, weight, words) -> list[torch.Tensor]:
    "PyTorch's loss in double precision: the oracle of shorter types."
    h, w = (
        hidden.detach().double().requires_grad_(),
        weight.detach().double().requires_grad_(),
    )
    return value_and_gradients(theirs(h, w, words, -1, 0.1), h, w)


@pytest.mark.parametrize("certainty", [0, 4, 8, 12])
@pytest.mark.parametrize(("seed", "n_vocab"), [(0, 8000), (1, 7919), (2, 300)])
def test_float32_is_exact(seed, n_vocab, certainty):
    hidden, weight, words = made_up(seed, certainty, n_vocab)
    value, *gradients = off(
        value_and_gradients(
            chunked_loss(hidden, weight, words, -1, 0.1), hidden, weight
        ),
        in_float64(hidden, weight, words),
    )
    assert value < 1e-6
    assert max(gradients) < (
        1e-6 if certainty < 12 else 1e-5
    )  # float32; p − q loses digits when p is near q


@pytest.mark.parametrize("certainty", [0, 4, 8, 12, 14])
@pytest.mark.parametrize(("seed", "n_vocab"), [(0, 8000), (1, 7919), (2, 8192)])
@every
def test_bf16_is_near(loss_of, seed, n_vocab, certainty):
    hidden, weight, words = made_up(seed, certainty, n_vocab)
    right = in_float64(hidden, weight, words)
    with torch.autocast("cpu", torch.bfloat16):
        ours = loss_of(hidden, weight, words, -1, 0.1)
        logits = F.linear(hidden, weight)
    copied = F.cross_entropy(
        logits.float().flatten(0, 1),
        words.flatten(),
        label_smoothing=0.1,
        reduction="sum",
    )  # float32 after the product
    value, *gradients = off(value_and_gradients(ours, hidden, weight), right)
    assert value < 2e-3  # half a unit of 8 bits is 2^-9; errors of single places cancel
    assert max(gradients) < 2**-5
    for a, c in zip(
        gradients,
        off(value_and_gradients(copied, hidden, weight), right)[1:],
        strict=True,
    ):
        assert a < 2 * c  # the rounding of p adds at most as much again
    if (
        certainty == 0
    ):  # p is far from q: the rounding of the inputs, and of their gradients on the way back, is most of what one sees
        rounded = theirs(
            hidden.bfloat16().double(), weight.bfloat16().double(), words, -1, 0.1
        )
        for a, c in zip(
            gradients,
            off(value_and_gradients(rounded, hidden, weight), right)[1:],
            strict=True,
        ):
            assert a < 1.5 * c


@pytest.mark.parametrize("gap", [20.0, 200.0, 2000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@every
def test_an_unlikely_word_underflows_nowhere(loss_of, dtype, gap):
    "Under autocast only the product is in bf16: with logits that bf16 can write, the loss is exact."
    logits = torch.tensor([[[gap, 0.0, 0.0]]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        for eps in (0.0, 0.1):
            loss = loss_of(logits, torch.eye(3), torch.tensor([[1]]), -1, eps)
            assert math.isclose(
                loss.item(), gap - eps * gap / 3, rel_tol=1e-6
            )  # float32
            assert torch.autograd.grad(loss, logits)[0].isfinite().all()


class NoWaiting(TorchDispatchMode):
    "An operator for which a GPU would have to be waited for is an error."

    WAITS = (
        torch.ops.aten.nonzero.default,
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.masked_select.default,
    )

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        assert op not in self.WAITS
        if op is torch.ops.aten.index.Tensor:
            assert all(i is None or i.dtype != torch.bool for i in args[1])
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_gpu_no_size_depends_on_a_value(dtype):
    "Forward and backward; on a CPU padding is left out, which does."
    hidden, weight, tgt_out = example(6, 3, 5, 8, 40, pad_id=0)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        with NoWaiting():
            chunked_loss_of_a_gpu(hidden, weight, tgt_out, 0, 0.1).backward()
        with pytest.raises(AssertionError), NoWaiting():
            chunked_loss(hidden, weight, tgt_out, 0, 0.1)
    assert hidden.grad[tgt_out == 0].eq(0).all() and hidden.grad.isfinite().all()


def test_on_a_gpu_padding_never_counts():
    "Its values change nothing, bit for bit; more of it only the order of the sums."
    hidden, weight, tgt_out = example(0, 3, 7, 8, 30, pad_id=0)
    loss = chunked_loss_of_a_gpu(hidden, weight, tgt_out, 0, 0.1)
    right = torch.autograd.grad(loss, (hidden, weight))
    for value in (1e9, math.inf, math.nan):
        spoilt = hidden.detach().clone()
        spoilt[tgt_out == 0] = value
        spoilt.requires_grad_()
        same = chunked_loss_of_a_gpu(spoilt, weight, tgt_out, 0, 0.1)
        assert same == loss
        for a, c in zip(torch.autograd.grad(same, (spoilt, weight)), right):
            assert torch.equal(a, c)
    longer = F.pad(hidden, (0, 0, 0, 5), value=3.0)
    more = F.pad(tgt_out, (0, 5), value=0)
    again = chunked_loss_of_a_gpu(longer, weight, more, 0, 0.1)
    assert abs(again - loss) <= 1e-6 * loss
