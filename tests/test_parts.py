"Sweeps over the parts of §3.3, §3.4 and §3.5, and over their sizes."

import math
from itertools import product

import pytest
import torch

from annotated_transformer.model.config import get_recipe, override
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


# embedding


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
