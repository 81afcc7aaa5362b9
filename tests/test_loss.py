"The smoothed loss, plain and in chunks, equals PyTorch's in value and gradient; padding never counts (54, 90c)."

import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.engines.chunked_loss import chunked_loss
from annotated_transformer.training.label_smoothing import smoothed_loss


def chunked_loss_of_a_gpu(*args, **named):
    "Padding is set to zero instead of being left out."
    with mock.patch("annotated_transformer.engines.chunked_loss._SELECT_ON", ()):
        return chunked_loss(*args, **named)


# `test_twins.py` compares one with the other
LOSSES = [smoothed_loss, chunked_loss]
both = pytest.mark.parametrize("loss_of", LOSSES, ids=lambda f: f.__name__)


def example(seed: int, b: int, t: int, d_model: int, n_vocab: int, pad_id: int):
    "Hidden states, output matrix and targets; about a third of these are padding."
    rng = torch.Generator().manual_seed(seed)
    # logits of size about 1
    hidden = torch.randn(b, t, d_model, generator=rng) * d_model**-0.5
    weight = torch.randn(n_vocab, d_model, generator=rng)
    tgt_out = torch.randint(n_vocab, (b, t), generator=rng)
    tgt_out[torch.rand(b, t, generator=rng) < 1 / 3] = pad_id
    return hidden.requires_grad_(), weight.requires_grad_(), tgt_out


def theirs(hidden, weight, tgt_out, pad_id, eps):
    logits, options = F.linear(hidden, weight).flatten(0, 1), dict(reduction="sum")
    options |= dict(ignore_index=pad_id, label_smoothing=eps)
    return F.cross_entropy(logits, tgt_out.flatten(), **options)


@both
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
    losses = [f(hidden, weight, tgt_out, pad_id, eps) for f in (loss_of, theirs)]
    # float32, summed in another order
    assert torch.allclose(*losses, rtol=1e-6, atol=1e-5)
    grads = [torch.autograd.grad(loss, (hidden, weight)) for loss in losses]
    for a, c in zip(*grads, strict=True):
        # where p is nearly q the difference keeps few digits
        assert (a - c).norm() <= 1e-6 * (c.norm() + hidden.norm() + weight.norm())


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
    longer, more = F.pad(hidden, (0, 0, 0, 5), value=3.0), F.pad(tgt_out, (0, 5))
    assert loss_of(longer, weight, more, 0, 0.1) == loss
    nothing = loss_of(hidden, weight, torch.zeros_like(tgt_out), 0, 0.1)
    assert nothing == 0 and nothing.dtype == torch.float32
    for gradient in torch.autograd.grad(nothing, (hidden, weight)):
        assert (gradient == 0).all()


@pytest.mark.parametrize("gap", [20.0, 2000.0])
@pytest.mark.parametrize("autocast", [False, True])
@both
def test_an_unlikely_word_underflows_nowhere(loss_of, autocast, gap):
    "Only the product is in bf16: with logits that bf16 can represent, it is exact."
    logits = torch.tensor([[[gap, 0.0, 0.0]]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for eps in (0.0, 0.1):
            loss = loss_of(logits, torch.eye(3), torch.tensor([[1]]), -1, eps)
            # float32
            assert loss.item() == pytest.approx(gap - eps * gap / 3, rel=1e-6)
            assert torch.autograd.grad(loss, logits)[0].isfinite().all()


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
