"Adam as printed, and the two schedules (53)."

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.training.optimizer import (
    adam,
    inverse_sqrt_schedule,
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


def test_the_papers_constants():
    (group,) = adam([nn.Parameter(torch.zeros(1))]).param_groups
    assert (
        group["betas"],
        group["eps"],
        group["lr"],
        group["weight_decay"],
        group["amsgrad"],
    ) == ((0.9, 0.98), 1e-9, 0, 0, False)
