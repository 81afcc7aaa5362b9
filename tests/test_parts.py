"Sweeps over the parts of §3.3, §3.4 and §3.5, and over their sizes."

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from annotated_transformer.model.config import RECIPES, get_recipe, override
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


@pytest.mark.parametrize(
    "b, n, d_model, d_ff", [(1, 1, 2, 1), (2, 7, 8, 32), (3, 1, 6, 5), (1, 40, 64, 256)]
)
@pytest.mark.parametrize("activation, function", [(nn.ReLU, F.relu), (nn.SiLU, F.silu)])
def test_feed_forward_is_two_convolutions(b, n, d_model, d_ff, activation, function):
    ff, x = (
        FeedForward(d_model, d_ff, activation()).double(),
        torch.randn(b, n, d_model).double(),
    )
    inner = function(F.conv1d(x.transpose(1, 2), ff.w_1.weight[..., None], ff.w_1.bias))
    outer = F.conv1d(inner, ff.w_2.weight[..., None], ff.w_2.bias).transpose(1, 2)
    torch.testing.assert_close(ff(x), outer)


@pytest.mark.parametrize("i", range(6))
def test_feed_forward_sees_one_position(i):
    ff, x = FeedForward(8, 32), torch.randn(2, 6, 8, requires_grad=True)
    ff(x)[:, i].sum().backward()
    assert (x.grad.abs().amax(dim=(0, 2)) > 0).tolist() == [j == i for j in range(6)]


def test_feed_forward_takes_any_leading_dimensions():
    ff, x = FeedForward(8, 32), torch.randn(2, 3, 4, 8)
    torch.testing.assert_close(ff(x), ff(x.flatten(0, 2)).view(x.shape))


def test_state_dict_keys():
    assert list(FeedForward(4, 8).state_dict()) == [
        "w_1.weight",
        "w_1.bias",
        "w_2.weight",
        "w_2.bias",
    ]
    assert list(Embedding(4, 8).state_dict()) == ["weight"]
    assert list(SinusoidalPosition(4).state_dict()) == []
    assert list(LearnedPosition(4, 8).state_dict()) == ["table"]


# embedding


@pytest.mark.parametrize("d_model", [2, 64, 512])
def test_embedding_starts_with_words_and_logits_of_variance_one(d_model):
    embedding = Embedding(4000, d_model)
    words = embedding(torch.arange(4000)[None])
    logits = embedding.logits(F.layer_norm(torch.randn(100, d_model), (d_model,)))
    assert words.var().item() == pytest.approx(
        1, abs=0.1
    )  # 8,000 draws at the narrowest: four standard errors are 0.06
    assert logits.var().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("d_model", [2, 16, 512])
def test_embedding_scales_the_lookup_and_not_the_logits(d_model):
    embedding = Embedding(30, d_model)
    torch.testing.assert_close(
        embedding(torch.arange(30)[None])[0], embedding.weight * math.sqrt(d_model)
    )
    torch.testing.assert_close(embedding.logits(torch.eye(d_model)), embedding.weight.T)


def test_the_model_has_one_matrix_in_three_places():
    model = build_transformer(
        override(get_recipe("tiny"), ["d_model=16", "d_ff=32"]).model,
        n_vocab=30,
        pad_id=0,
    )
    assert [name for name, p in model.named_parameters() if 30 in p.shape] == [
        "embedding.weight"
    ]


def test_gradient_is_the_sum_over_the_places():
    "In the whole model: the matrix as used by source, target and logits, each with the others' share cut off."
    model = build_transformer(
        override(get_recipe("tiny"), ["d_model=16", "d_ff=32"]).model,
        n_vocab=30,
        pad_id=0,
    ).double()
    src, tgt = torch.randint(1, 30, (2, 5)), torch.randint(1, 30, (2, 6))

    def gradient(learning: set[str]) -> torch.Tensor:
        one = copy.deepcopy(model)
        cut = {
            place: (lambda w: w) if place in learning else torch.detach
            for place in ("source", "target", "logits")
        }
        embedding = lambda ids, place: one.position(
            F.embedding(ids, cut[place](one.embedding.weight)) * one.embedding.scale
        )
        src_mask = torch.ones(1, 1, 1, 5, dtype=torch.bool)
        tgt_mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
        hidden = one.decoder(
            embedding(tgt[:, :-1], "target"),
            one.encoder(embedding(src, "source"), src_mask),
            tgt_mask,
            src_mask,
        )
        F.cross_entropy(
            F.linear(hidden, cut["logits"](one.embedding.weight)).flatten(0, 1),
            tgt[:, 1:].flatten(),
        ).backward()
        return one.embedding.weight.grad

    F.cross_entropy(
        model.embedding.logits(model(src, tgt[:, :-1])).flatten(0, 1),
        tgt[:, 1:].flatten(),
    ).backward()
    parts = [gradient({place}) for place in ("source", "target", "logits")]
    assert all(part.norm() > 0 for part in parts)
    torch.testing.assert_close(sum(parts), model.embedding.weight.grad)


# positions


@pytest.mark.parametrize("d_model", [2, 4, 64, 512, 1024])
def test_encoding_is_the_printed_formula(d_model):
    table = positional_encoding(300, d_model)
    assert table.shape == (300, d_model) and table.dtype == torch.float32
    for pos in (0, 1, 7, 299):
        for feature in {0, 1, d_model // 2, d_model - 2, d_model - 1}:
            angle = pos / 10000 ** (feature // 2 * 2 / d_model)
            right = math.cos(angle) if feature % 2 else math.sin(angle)
            assert table[pos, feature].item() == pytest.approx(
                right, abs=1e-7
            )  # float32 holds seven digits


@pytest.mark.parametrize("k", [-7, -1, 1, 3, 64, 1000])
@pytest.mark.parametrize("d_model", [2, 64, 512])
def test_a_step_is_one_rotation_at_every_place(k, d_model):
    table = positional_encoding(2000, d_model).double()
    turns = k * 10000.0 ** (-torch.arange(0, d_model, 2).double() / d_model)
    blocks = torch.stack(
        [
            torch.stack([turns.cos(), turns.sin()], -1),
            torch.stack([-turns.sin(), turns.cos()], -1),
        ],
        -2,
    )
    M = torch.block_diag(*blocks)
    here, there = (table[:-k], table[k:]) if k > 0 else (table[-k:], table[:k])
    torch.testing.assert_close(
        here @ M.T, there, atol=3e-7, rtol=0
    )  # two float32 roundings of numbers up to 1
    torch.testing.assert_close(M @ M.T, torch.eye(d_model).double())


def test_no_two_places_are_alike():
    table = positional_encoding(5000, 128)
    gaps = torch.cdist(table, table).fill_diagonal_(9)
    assert gaps.min() > 0.5


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
@pytest.mark.parametrize("n", [1, 2, 4, 5, 33, 40])
def test_one_by_one_is_all_at_once(make, atol, n):
    position, x = make(), torch.randn(3, n, 16)
    one_by_one = torch.cat([position(x[:, [i]], start=i) for i in range(n)], dim=1)
    torch.testing.assert_close(one_by_one, position(x), atol=atol, rtol=0)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16]
)
def test_a_grown_table_is_as_good_as_one_made_long(dtype):
    grown, long = (
        SinusoidalPosition(16, n_start=2).to(dtype),
        SinusoidalPosition(16, n_start=500).to(dtype),
    )
    x = torch.zeros(1, 400, 16, dtype=dtype)
    assert grown(x).dtype == dtype
    # Sines up to 1, computed in float64 and held in float32 at most: tables of other sizes may be one rounding apart.
    rounding = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    torch.testing.assert_close(grown(x), long(x), atol=rounding, rtol=0)


def test_a_table_that_grew_while_translating_can_be_trained_with():
    position, x = (
        SinusoidalPosition(16, n_start=2),
        torch.randn(1, 9, 16, requires_grad=True),
    )
    with torch.inference_mode():
        position(torch.zeros(1, 9, 16))
    position(x).square().sum().backward()
    assert x.grad.norm() > 0


def test_a_grown_table_does_not_change_what_is_saved():
    position = SinusoidalPosition(16, n_start=2)
    position(torch.zeros(1, 9, 16))
    SinusoidalPosition(16).load_state_dict(position.state_dict(), strict=True)


@pytest.mark.parametrize("n, start", [(9, 0), (1, 8), (3, 6), (1, 1000)])
def test_learned_positions_end(n, start):
    with pytest.raises(ValueError, match="n_positions=8"):
        LearnedPosition(16, 8)(torch.zeros(1, n, 16), start=start)


@pytest.mark.parametrize("d_model", [1, 7, 511])
def test_odd_widths_are_refused(d_model):
    for make in (
        lambda: positional_encoding(4, d_model),
        lambda: SinusoidalPosition(d_model),
    ):
        with pytest.raises(ValueError, match=f"d_model={d_model} must be even"):
            make()


# sizes

SIZES = [
    [],
    ["d_k=16"],
    ["d_k=32"],
    ["n_heads=1"],
    ["n_heads=32"],
    ["n_layers=2"],
    ["d_model=256", "d_k=32", "d_v=32"],
    ["d_ff=4096"],
    ["norm=pre"],
    ["position=learned"],
]


@pytest.mark.parametrize(
    "name, settings",
    [(name, []) for name in RECIPES] + [("base", s) for s in SIZES[1:]],
)
def test_counting_by_hand_is_counting_the_model(name, settings):
    "The formula of notebook 00, as far as it speaks of; pre-norm has two norms more, learned positions one matrix more."
    recipe = override(get_recipe(name), settings)
    m, n_pieces = recipe.model, recipe.train.n_pieces
    d_k, d_v = m.d_k or m.d_model // m.n_heads, m.d_v or m.d_model // m.n_heads
    by_hand = n_pieces * m.d_model + 3 * m.n_layers * 2 * m.d_model * m.n_heads * (
        d_k + d_v
    )
    by_hand += (
        2 * m.n_layers * (2 * m.d_model * m.d_ff + m.d_ff + m.d_model)
        + 5 * m.n_layers * 2 * m.d_model
    )
    by_hand += (m.norm == "pre") * 2 * 2 * m.d_model + (
        m.position == "learned"
    ) * m.n_positions * m.d_model
    with torch.device("meta"):
        model = build_transformer(m, n_pieces, pad_id=0)
    assert sum(p.numel() for p in model.parameters()) == by_hand
