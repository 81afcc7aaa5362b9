"Table 1, swept: counts, chains, paths and bytes equal to what they should be by arithmetic; the layers equal to their oracles."

import json

import pytest
import torch
from conftest import ROOT

from annotated_transformer.experiments.complexity import (
    RestrictedAttention,
    _Convolution,
    table_1_layers,
)
from annotated_transformer.experiments.layer_costs import (
    activation_bytes,
    fit_exponent,
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


@pytest.mark.parametrize(
    "n, k, dilation, n_ahead",
    [
        (9, 3, 1, None),
        (9, 4, 1, None),
        (9, 3, 2, 0),
        (5, 3, 9, 1),
        (6, 2, 1, 1),
        (4, 1, 1, 0),
    ],
)
def test_convolution_by_hand(n, k, dilation, n_ahead):
    layer, x = (
        _Convolution(4, k, dilation, n_ahead).double(),
        torch.randn(2, n, 4, dtype=torch.float64),
    )
    ahead = k // 2 if n_ahead is None else n_ahead
    want = layer.conv.bias.repeat(2, n, 1)
    for i in range(n):
        for tap in range(k):
            j = i + dilation * (tap - (k - 1 - ahead))
            if 0 <= j < n:
                want[:, i] = want[:, i] + x[:, j] @ layer.conv.weight[:, :, tap].T
    torch.testing.assert_close(layer(x), want)


# the record


RECORD = json.loads((ROOT / "results/complexity.json").read_text("utf-8"))["complexity"]


def test_the_record_says_what_section_4_says():
    large = [i for i, n in enumerate(RECORD["n"]) if n >= 512]
    lengths = [RECORD["n"][i] for i in large]

    def slopes(name):
        return [
            fit_exponent(lengths, [times[i] for i in large])
            for times in RECORD["seconds"][name].values()
        ]

    assert len(large) >= 6
    assert all(1.7 <= slope <= 2.2 for slope in slopes("self-attention"))
    assert all(0.8 <= slope <= 1.2 for slope in slopes("recurrent"))


def test_the_records_bytes_repeat():
    for name, layer in table_1_layers(256, RECORD["k"], RECORD["r"]).items():
        sizes = dict(zip(RECORD["n"], RECORD["bytes"][name]["256"]))
        for n in (16, 128, 512):
            assert sizes[n] == activation_bytes(layer, torch.randn(1, n, 256))
