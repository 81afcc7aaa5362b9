"Table 1, swept: counts, chains, paths and bytes equal to what they should be by arithmetic; the layers equal to their oracles."

import pytest
import torch

from annotated_transformer.experiments.complexity import (
    RestrictedAttention,
)
from annotated_transformer.experiments.layer_costs import (
    flash_attention,
)
from annotated_transformer.model.attention import attention


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# the layers and their oracles


@pytest.mark.parametrize("r", [3, 9, 33])
@pytest.mark.parametrize("n", [1, 4, 5, 17])
def test_blocks_equal_a_mask_over_all_pairs(n, r):
    i = torch.arange(n)
    ours, theirs = (
        torch.randn(2, n, 6, dtype=torch.float64).requires_grad_() for _ in range(2)
    )
    theirs.data.copy_(ours.data)
    out, oracle = (
        RestrictedAttention(r)(ours),
        attention(theirs, theirs, theirs, (i[:, None] - i[None]).abs() <= r // 2),
    )
    torch.testing.assert_close(out, oracle)
    upstream = torch.randn_like(out)
    for pair in zip(
        torch.autograd.grad(out, ours, upstream),
        torch.autograd.grad(oracle, theirs, upstream),
    ):
        torch.testing.assert_close(*pair)


@pytest.mark.parametrize("n", [1, 7, 64])
def test_fused_is_the_same_attention(n):
    x = torch.randn(2, n, 8)
    mask = torch.rand(2, n, n) < 0.5
    mask[:, :, 0] = True
    torch.testing.assert_close(flash_attention(x, x, x, mask), attention(x, x, x, mask))
