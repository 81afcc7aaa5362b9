"Sweeps over the parts of §3.3, §3.4 and §3.5, and over their sizes."

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from annotated_transformer.model.config import get_recipe, override
from annotated_transformer.model.embedding import Embedding
from annotated_transformer.model.feed_forward import FeedForward
from annotated_transformer.model.position import (
    LearnedPosition,
    SinusoidalPosition,
    positional_encoding,
)
from annotated_transformer.model.transformer import build_transformer


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# feed-forward


@pytest.mark.parametrize("shape, d_ff", [((1, 1, 2), 1), ((2, 7, 8), 32)])
@pytest.mark.parametrize("activation, function", [(nn.ReLU, F.relu), (nn.SiLU, F.silu)])
def test_feed_forward_is_two_convolutions(shape, d_ff, activation, function):
    ff = FeedForward(shape[-1], d_ff, activation()).double()
    x = torch.randn(shape).double()
    inner = function(F.conv1d(x.transpose(1, 2), ff.w_1.weight[..., None], ff.w_1.bias))
    outer = F.conv1d(inner, ff.w_2.weight[..., None], ff.w_2.bias).transpose(1, 2)
    torch.testing.assert_close(ff(x), outer)


@pytest.mark.parametrize("i", [0, 3])
def test_feed_forward_sees_one_position(i):
    ff, x = FeedForward(8, 32), torch.randn(2, 6, 8, requires_grad=True)
    ff(x)[:, i].sum().backward()
    assert (x.grad.abs().amax(dim=(0, 2)) > 0).tolist() == [j == i for j in range(6)]


def test_feed_forward_takes_any_leading_dimensions():
    ff, x = FeedForward(8, 32), torch.randn(2, 3, 4, 8)
    torch.testing.assert_close(ff(x), ff(x.flatten(0, 2)).view(x.shape))


# embedding


@pytest.mark.parametrize("d_model", [2, 64, 512])
def test_embedding_starts_with_words_and_logits_of_variance_one(d_model):
    embedding = Embedding(4000, d_model)
    words = embedding(torch.arange(4000)[None])
    logits = embedding.logits(F.layer_norm(torch.randn(100, d_model), (d_model,)))
    # 8,000 draws at the narrowest: four standard errors are 0.06
    assert words.var().item() == pytest.approx(1, abs=0.1)
    assert logits.var().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("d_model", [2, 16, 512])
def test_embedding_scales_the_lookup_and_not_the_logits(d_model):
    embedding = Embedding(30, d_model)
    torch.testing.assert_close(
        embedding(torch.arange(30)[None])[0], embedding.weight * math.sqrt(d_model)
    )
    torch.testing.assert_close(embedding.logits(torch.eye(d_model)), embedding.weight.T)


# positions


@pytest.mark.parametrize("d_model", [2, 64, 512])
def test_encoding_is_the_printed_formula(d_model):
    table = positional_encoding(300, d_model)
    assert table.shape == (300, d_model) and table.dtype == torch.float32
    features = {0, 1, d_model // 2, d_model - 2, d_model - 1}
    for pos, feature in product((0, 1, 7, 299), features):
        angle = pos / 10000 ** (feature // 2 * 2 / d_model)
        right = math.cos(angle) if feature % 2 else math.sin(angle)
        # float32 holds seven digits
        assert table[pos, feature].item() == pytest.approx(right, abs=1e-7)


@pytest.mark.parametrize("k", [-7, 1, 1000])
def test_a_step_is_one_rotation_at_every_place(k, d_model=64):
    table = positional_encoding(2000, d_model).double()
    turns = k * 10000.0 ** (-torch.arange(0, d_model, 2).double() / d_model)
    rows = (turns.cos(), turns.sin()), (-turns.sin(), turns.cos())
    blocks = torch.stack([torch.stack(row, -1) for row in rows], -2)
    M = torch.block_diag(*blocks)
    here, there = (table[:-k], table[k:]) if k > 0 else (table[-k:], table[:k])
    # two float32 roundings of numbers up to 1
    torch.testing.assert_close(here @ M.T, there, atol=3e-7, rtol=0)


# A learned table is the same numbers. Sinusoids are computed again as their table grows, and sines of more
# numbers at once may differ in the last digit of float32, which is 5e-7 for sums up to 8.
@pytest.mark.parametrize(
    "make, atol",
    [
        (lambda: SinusoidalPosition(16, n_start=4), 5e-7),
        (lambda: LearnedPosition(16, 40), 0),
    ],
    ids=["sinusoidal", "learned"],
)
@pytest.mark.parametrize("n", [1, 5, 40])
def test_one_by_one_is_all_at_once(make, atol, n):
    position, x = make(), torch.randn(3, n, 16)
    one_by_one = torch.cat([position(x[:, [i]], start=i) for i in range(n)], dim=1)
    torch.testing.assert_close(one_by_one, position(x), atol=atol, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_grown_table_is_as_good_as_one_made_long(dtype):
    grown, long = (SinusoidalPosition(16, n_start=n).to(dtype) for n in (2, 500))
    x = torch.zeros(1, 400, 16, dtype=dtype)
    assert grown(x).dtype == dtype
    # sines up to 1, held in float32 at most: tables of other sizes may be one rounding apart
    rounding = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    torch.testing.assert_close(grown(x), long(x), atol=rounding, rtol=0)


def test_a_table_that_grew_while_translating_can_be_trained_with():
    position, x = SinusoidalPosition(16, n_start=2), torch.randn(1, 9, 16)
    with torch.inference_mode():
        position(torch.zeros(1, 9, 16))
    position(x.requires_grad_()).square().sum().backward()
    assert x.grad.norm() > 0
    # nor does it change what is saved
    SinusoidalPosition(16).load_state_dict(position.state_dict(), strict=True)


@pytest.mark.parametrize("n, start", [(9, 0), (1, 8)])
def test_learned_positions_end(n, start):
    with pytest.raises(ValueError, match="n_positions=8"):
        LearnedPosition(16, 8)(torch.zeros(1, n, 16), start=start)


def test_odd_widths_are_refused():
    for make in (lambda: positional_encoding(4, 7), lambda: SinusoidalPosition(7)):
        with pytest.raises(ValueError, match="d_model=7 must be even"):
            make()


# sizes

SIZES = [
    [],
    ["d_k=16"],
    ["d_model=256", "d_k=32", "d_v=32"],
    ["d_ff=4096", "n_heads=32"],
    ["norm=pre"],
    ["position=learned"],
]


@pytest.mark.parametrize("settings", SIZES, ids=str)
def test_counting_by_hand_is_counting_the_model(settings):
    "The formula of notebook 00; `n_parameters` is without building it."
    m, n_pieces = override(get_recipe("base"), settings).model, 37_000
    d_k, d_v = m.d_k or m.d_model // m.n_heads, m.d_v or m.d_model // m.n_heads
    attention = 2 * m.d_model * m.n_heads * (d_k + d_v)
    feed_forward = 2 * m.d_model * m.d_ff + m.d_ff + m.d_model
    by_hand = n_pieces * m.d_model + m.n_layers * (3 * attention + 2 * feed_forward)
    by_hand += (5 * m.n_layers + 2 * (m.norm == "pre")) * 2 * m.d_model
    by_hand += (m.position == "learned") * m.n_positions * m.d_model
    with torch.device("meta"):
        model = build_transformer(m, n_pieces, pad_id=0)
    assert sum(p.numel() for p in model.parameters()) == by_hand
    assert m.n_parameters(n_pieces) == by_hand
