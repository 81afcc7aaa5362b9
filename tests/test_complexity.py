"Table 1, swept: counts, chains, paths and bytes equal to what they should be by arithmetic; the layers equal to their oracles."

import json
import math

import pytest
import torch
from conftest import ROOT
from torch import nn

from annotated_transformer.experiments.complexity import (
    RestrictedAttention,
    SelfAttention,
    _Convolution,
    _longest_chain,
    _powers,
    _Recurrent,
    _SeparableConvolution,
    max_path_length,
    multiply_adds,
    table_1_layers,
)
from annotated_transformer.experiments.layer_costs import (
    activation_bytes,
    fit_exponent,
    flash_attention,
)
from annotated_transformer.model.attention import attention
from annotated_transformer.model.feed_forward import FeedForward
from annotated_transformer.model.multi_head import MultiHeadAttention


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def log_up(n: int, k: int) -> int:
    "⌈log_k n⌉ without rounding errors."
    return next(i for i in range(n + 1) if k**i >= n)


def back(n: int) -> torch.Tensor:
    return torch.ones(n, n).tril().bool()


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
    torch.testing.assert_close(SelfAttention(flash_attention)(x), SelfAttention()(x))
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


def test_recurrent_is_pytorchs():
    ours, theirs = _Recurrent(6).double(), nn.RNN(6, 6, batch_first=True).double()
    theirs.load_state_dict(
        {
            "weight_ih_l0": ours.w_x.weight,
            "weight_hh_l0": ours.w_h.weight,
            "bias_ih_l0": ours.w_x.bias,
            "bias_hh_l0": torch.zeros(6),
        }
    )
    x = torch.randn(3, 50, 6, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x)[0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RestrictedAttention(1),
        lambda: RestrictedAttention(6),
        lambda: _Convolution(4, 3, n_ahead=-1),
        lambda: _Convolution(4, 3, n_ahead=3),
        lambda: _Convolution(4, 0),
        lambda: _powers("O(n/r)"),
        lambda: _powers("n^2 d"),
        lambda: _powers("O()"),
        lambda: fit_exponent([3, 3], [1, 2]),
    ],
)
def test_refused(wrong):
    with pytest.raises(ValueError, match="take|give"):
        wrong()


# operations


def table_1() -> dict[str, dict]:
    rows = json.loads(
        (ROOT / "reference" / "paper_tables.json").read_text(encoding="utf-8")
    )["table1"]["rows"]
    return {row["layer"]: row for row in rows}


@pytest.mark.parametrize(
    "n, d, k, r", [(16, 8, 3, 5), (50, 12, 5, 9), (128, 16, 7, 33)]
)
def test_operations_by_arithmetic(n, d, k, r):
    x, w = torch.randn(2, n, d), r // 2
    expected = {
        "self-attention": 2 * n * n * d,
        "self-attention (restricted)": 2 * math.ceil(n / w) * w * 3 * w * d,
        "recurrent": 2 * n * d * d,
        "convolutional": k * n * d * d,
        "convolutional (dilated)": k * n * d * d,
        "convolutional (separable)": k * n * d + n * d * d,
    }
    assert {
        name: multiply_adds(layer, x) for name, layer in table_1_layers(d, k, r).items()
    } == {name: 2 * c for name, c in expected.items()}
    projected = SelfAttention(MultiHeadAttention(d, 2, attend=attention))
    assert multiply_adds(projected, x) == 2 * (2 * n * n * d + 4 * n * d * d)


def test_counted_exponents_are_those_of_the_paper():
    sizes = {"n": 128, "d": 16, "k": 3, "r": 9}
    for name, row in table_1().items():
        for letter, power in _powers(row["complexity"]).items():
            larger = sizes | {
                letter: 2 * sizes[letter] + (letter in "kr")
            }  # kernels and neighbourhoods stay odd: 7 and 19
            counts = [
                multiply_adds(
                    table_1_layers(s["d"], s["k"], s["r"])[name],
                    torch.randn(1, s["n"], s["d"]),
                )
                for s in (sizes, larger)
            ]
            if letter == "r":
                assert counts[1] / counts[0] == pytest.approx(
                    18 / 8, rel=0.15
                )  # w = 4 and 9; the last block is not full
            else:
                assert (
                    counts[1] / counts[0] == (larger[letter] / sizes[letter]) ** power
                )


# sequential operations and paths


@pytest.mark.parametrize("n", [1, 5, 33, 300])
def test_recurrence_is_one_long_chain(n):
    out = _Recurrent(4)(torch.randn(1, n, 4))
    assert _longest_chain(out, "Tanh") == n
    longer = _Recurrent(4)(torch.randn(1, n + 10, 4))
    assert _longest_chain(longer) - _longest_chain(out) == 30  # product, sum, tanh


def test_the_longest_of_two_ways_counts():
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    assert _longest_chain(y.sin().sin().sin() + y, "Sin") == 3
    assert _longest_chain(y + y.sin().sin().sin(), "Sin") == 3


@pytest.mark.parametrize("n", [2, 7, 16, 41])
def test_attention_path_is_one(n):
    assert max_path_length(lambda i: SelfAttention(), n, 4) == 1
    assert max_path_length(lambda i: SelfAttention(MultiHeadAttention(4, 2)), n, 4) == 1


@pytest.mark.parametrize("r", [3, 5, 9])
@pytest.mark.parametrize("n", [2, 16, 25])
def test_restricted_path(n, r):
    assert max_path_length(lambda i: RestrictedAttention(r), n, 2) == math.ceil(
        (n - 1) / ((r - 1) / 2)
    )


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("n", [2, 16, 27])
def test_convolution_paths(n, k):
    assert max_path_length(
        lambda i: _Convolution(2, k, n_ahead=0), n, 2, back(n)
    ) == math.ceil((n - 1) / (k - 1))
    assert max_path_length(
        lambda i: _Convolution(2, k, k**i, n_ahead=0), n, 2, back(n)
    ) == log_up(n, k)
    if k % 2:  # as far to one side as to the other
        assert max_path_length(lambda i: _Convolution(2, k), n, 2) == math.ceil(
            (n - 1) / (k // 2)
        )
        assert max_path_length(
            lambda i: _SeparableConvolution(2, k), n, 2
        ) == math.ceil((n - 1) / (k // 2))
        assert max_path_length(
            lambda i: _Convolution(2, k, (k // 2 + 1) ** i), n, 2
        ) == log_up(n, k // 2 + 1)


def test_layers_that_connect_nothing_are_refused():
    with pytest.raises(ValueError, match="4 layers do not connect n=4"):
        max_path_length(lambda i: FeedForward(2, 4), 4, 2)
    with pytest.raises(ValueError, match="do not connect"):
        max_path_length(lambda i: _Recurrent(2), 4, 2)  # nothing comes from the right


# memory


@pytest.mark.parametrize("n, d", [(16, 8), (50, 12), (128, 4)])
def test_bytes_by_arithmetic(n, d):
    x = torch.randn(1, n, d)
    assert activation_bytes(SelfAttention(), x) == 4 * (n * n + n * d)
    assert activation_bytes(SelfAttention(), x.double()) == 8 * (n * n + n * d)
    assert activation_bytes(_Recurrent(d), x) == 4 * (2 * n * d + d)
    assert activation_bytes(FeedForward(d, 3 * d), x) == 4 * (
        3 * n * d + n * d
    )  # the ReLU's output, and its own
    assert activation_bytes(SelfAttention(flash_attention), x) == 4 * (
        n * d + n
    )  # its output, and a normaliser for each query


# measuring


def test_fit_recovers_a_power():
    sizes = [16, 64, 100, 1000, 4096]
    for p in (0.5, 1, 2, 2.2):
        assert fit_exponent(sizes, [3e-7 * n**p for n in sizes]) == pytest.approx(p)


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
