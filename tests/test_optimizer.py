"Adam as printed, and the two schedules (53)."

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.training.optimizer import (
    adam,
    inverse_sqrt_schedule,
    linear_schedule,
)

steps = st.integers(1, 1_000_000)
warmups = st.integers(1, 50_000)


@given(steps, st.sampled_from([128, 512, 1024]), warmups)
def test_inverse_sqrt_schedule_is_equation_3(step, d_model, warmup_steps):
    expected = (
        step / warmup_steps**1.5 if step < warmup_steps else 1 / math.sqrt(step)
    ) / math.sqrt(d_model)
    assert math.isclose(
        inverse_sqrt_schedule(step, d_model, warmup_steps), expected, rel_tol=1e-12
    )


@given(steps, warmups)
def test_inverse_sqrt_schedule_peaks_at_the_end_of_the_warmup(step, warmup_steps):
    peak = inverse_sqrt_schedule(warmup_steps, 512, warmup_steps)
    assert math.isclose(peak, (512 * warmup_steps) ** -0.5, rel_tol=1e-12)
    assert 0 < inverse_sqrt_schedule(step, 512, warmup_steps) <= peak * (1 + 1e-12)


@given(steps, warmups, st.integers(1, 100_000))
def test_linear_schedule_stays_between_0_and_the_peak(step, warmup_steps, max_steps):
    rate = linear_schedule(step, 2e-3, warmup_steps, max_steps)
    assert 0 <= rate <= 2e-3
    if step >= max_steps:
        assert rate == 0


def test_linear_schedule_by_hand():
    assert [linear_schedule(s, 1.0, 4, 8) for s in range(1, 10)] == [
        0.25,
        0.5,
        0.75,
        1,
        0.75,
        0.5,
        0.25,
        0,
        0,
    ]


def test_errors():
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"step={wrong}"):
            inverse_sqrt_schedule(wrong, 512, 4000)
        with pytest.raises(ValueError, match=f"step={wrong}"):
            linear_schedule(wrong, 1e-3, 10, 100)
        with pytest.raises(ValueError, match=f"warmup_steps={wrong}"):
            inverse_sqrt_schedule(1, 512, wrong)
        with pytest.raises(ValueError, match=f"warmup_steps={wrong}"):
            linear_schedule(1, 1e-3, wrong, 100)


@pytest.mark.parametrize(("betas", "eps"), [((0.9, 0.98), 1e-9), ((0.8, 0.999), 1e-6)])
def test_adam_is_kingma_and_ba(betas, eps):
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(30, dtype=torch.float64))
    optimizer, w, m, v = adam([ours], betas, eps), ours.detach().clone(), 0, 0
    for step in range(1, 101):
        g, lr = (
            torch.randn(30, dtype=torch.float64) * 10.0 ** (step % 7 - 5),
            inverse_sqrt_schedule(step, 64, 20),
        )
        m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g**2
        w = w - lr * m / (1 - betas[0] ** step) / (
            (v / (1 - betas[1] ** step)).sqrt() + eps
        )
        ours.grad, optimizer.param_groups[0]["lr"] = g, lr
        optimizer.step()
    assert torch.allclose(ours.detach(), w, rtol=0, atol=1e-12)  # float64


def test_the_papers_constants():
    (group,) = adam([nn.Parameter(torch.zeros(1))]).param_groups
    assert (
        group["betas"],
        group["eps"],
        group["lr"],
        group["weight_decay"],
        group["amsgrad"],
    ) == ((0.9, 0.98), 1e-9, 0, 0, False)
