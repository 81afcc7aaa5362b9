"The smoothed loss, plain and in chunks: padding never counts, and nothing underflows (54, 90c)."

import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from annotated_transformer.engines.chunked_loss import chunked_loss
from annotated_transformer.training.label_smoothing import smoothed_loss


def chunked_loss_of_a_gpu(*args, **named):
    "Padding is set to zero instead of being left out."
    with mock.patch("annotated_transformer.engines.chunked_loss._SELECT_ON", ()):
        return chunked_loss(*args, **named)


# `test_twins.py` compares one with the other
LOSSES = [smoothed_loss, chunked_loss, chunked_loss_of_a_gpu]
each = pytest.mark.parametrize("loss_of", LOSSES, ids=lambda f: f.__name__)


@each
def test_padding_never_counts(loss_of):
    "Its values change nothing, bit for bit; more of it only the order of the sums."
    pad_id, rng = 5, torch.Generator().manual_seed(0)
    # logits of size about 1
    hidden = torch.randn(3, 7, 8, generator=rng) * 8**-0.5
    weight = torch.randn(30, 8, generator=rng)
    tgt_out = torch.randint(30, (3, 7), generator=rng)
    tgt_out[torch.rand(3, 7, generator=rng) < 1 / 3] = pad_id
    inputs = hidden.requires_grad_(), weight.requires_grad_()
    loss = loss_of(*inputs, tgt_out, pad_id, 0.1)
    right = torch.autograd.grad(loss, inputs)
    real = tgt_out != pad_id
    assert (right[0][~real] == 0).all() and (right[0][real] != 0).any()
    for value in (1e9, math.inf, math.nan):
        spoilt = hidden.detach().clone()
        spoilt[~real] = value
        same = loss_of(spoilt.requires_grad_(), weight, tgt_out, pad_id, 0.1)
        assert same == loss
        for a, b in zip(torch.autograd.grad(same, (spoilt, weight)), right):
            assert torch.equal(a, b)
    longer = F.pad(hidden, (0, 0, 0, 5), value=3.0)
    again = loss_of(longer, weight, F.pad(tgt_out, (0, 5), value=pad_id), pad_id, 0.1)
    assert abs(again - loss) <= 1e-6 * loss
    nothing = loss_of(*inputs, torch.full_like(tgt_out, pad_id), pad_id, 0.1)
    assert nothing == 0 and nothing.dtype == torch.float32
    for gradient in torch.autograd.grad(nothing, inputs):
        assert (gradient == 0).all()


@pytest.mark.parametrize("gap", [20.0, 2000.0])
@pytest.mark.parametrize("autocast", [False, True])
@each
def test_an_unlikely_word_underflows_nowhere(loss_of, autocast, gap):
    "Only the product is in bf16: with logits that bf16 can represent, it is exact."
    logits = torch.tensor([[[gap, 0.0, 0.0]]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        for eps in (0.0, 0.1):
            loss = loss_of(logits, torch.eye(3), torch.tensor([[1]]), -1, eps)
            # float32
            assert loss.item() == pytest.approx(gap - eps * gap / 3, rel=1e-6)
            assert torch.autograd.grad(loss, logits)[0].isfinite().all()
