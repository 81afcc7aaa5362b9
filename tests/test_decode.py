"Search: against looking at every sentence, against the readable search, over tables and over Transformers of several shapes."

import math
from functools import partial
from itertools import product
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from annotated_transformer.engines.batched_search import (
    _best_tokens,
    batched_beam_search,
    batched_greedy_search,
    eos_among_best,
    every_eos,
    search_with,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.model import decode
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import (
    PrefixDecoder,
    beam_search,
    greedy_search,
    length_penalty,
    sample,
)
from annotated_transformer.model.transformer import build_transformer

PAD, BOS, EOS, N_VOCAB = 0, 2, 3, 20
ALPHAS = (0.0, 0.6, 1.0)


class TableState(NamedTuple):
    "The words said so far and, for each sentence, some tables that take turns."

    per_hypothesis: list[Tensor]
    per_sentence: list[Tensor]


def table_step(last_ids, state):
    (said,), (tables,) = state
    log_probs = tables[
        torch.arange(len(tables))[:, None], said.size(-1) % tables.size(1), last_ids
    ]
    return log_probs, TableState(
        [torch.cat([said, last_ids[..., None]], dim=-1)], [tables]
    )


def table_start(tables):
    return TableState([torch.empty(len(tables), 1, 0, dtype=torch.long)], [tables])


def random_tables(b, n_tables, n_vocab, sharp):
    "Log-probabilities (b, n_tables, n_vocab, n_vocab) in float64; all words equally likely at sharp = 0."
    return (
        sharp * torch.randn(b, n_tables, n_vocab, n_vocab, dtype=torch.float64)
    ).log_softmax(dim=-1)


def look_up(tables):
    return lambda said: tables[len(said) % len(tables), [BOS, *said][-1]].tolist()


def search_tables(tables, limits, search=batched_greedy_search):
    return search(table_step, table_start(tables), BOS, EOS, limits)


# Greedy search


def one_by_hand(next_log_probs, max_len):
    "Greedy search for one sentence: the oracle."
    said, total = [], 0.0
    while len(said) < max_len:
        log_probs = next_log_probs(said)
        word = max(range(len(log_probs)), key=lambda i: log_probs[i])
        total += log_probs[word]
        if word == EOS:
            break
        said.append(word)
    return said, total


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    b=st.integers(1, 9),
    n_vocab=st.integers(4, 12),
    longest=st.integers(0, 12),
    sharp=st.sampled_from([0.0, 1.0, 9.0]),
)
def test_greedy_on_tables(seed, b, n_vocab, longest, sharp):
    "Ties (sharp = 0: all words equally likely), early ends and limits of 0, alone and together."
    torch.manual_seed(seed)
    tables, limits = (
        random_tables(b, 3, n_vocab, sharp),
        torch.randint(0, longest + 1, (b,)),
    )
    found = search_tables(tables, limits)
    for table, limit, (one,) in zip(tables, limits, found):
        said, total = one_by_hand(look_up(table), int(limit))
        assert one.ids == said and one.score == one.log_prob == pytest.approx(
            total, abs=1e-4
        )  # added up in float32
    assert [ids_of(f) for f in found] == [
        ids_of(search_tables(tables[i : i + 1], limits[i : i + 1])[0]) for i in range(b)
    ]
    order = torch.randperm(b)
    assert [ids_of(found[i]) for i in order] == [
        ids_of(f) for f in search_tables(tables[order], limits[order])
    ]


def ids_of(those):
    return [found.ids for found in those]


@pytest.mark.parametrize("search", [batched_greedy_search, batched_beam_search, sample])
def test_nothing_to_do(search):
    def never(last_ids, state):
        raise AssertionError("nothing was to be asked")

    empty = TableState([], [])
    assert search(never, empty, BOS, EOS, torch.tensor([], dtype=torch.long)) == []
    assert (
        search(never, empty, BOS, EOS, torch.tensor([0, -1])) == [[([], 0.0, 0.0)]] * 2
    )


@pytest.mark.parametrize("search", [batched_greedy_search, batched_beam_search, sample])
def test_no_gradient_is_recorded(search):
    weight = torch.zeros(N_VOCAB, requires_grad=True)
    seen = []

    def step(last_ids, state):
        log_probs = weight.log_softmax(0).repeat(*last_ids.shape, 1)
        seen.append(log_probs.requires_grad)
        return log_probs, state

    search(step, TableState([], []), BOS, EOS, torch.tensor([3]))
    assert seen and not any(seen)


# Beam search against every sentence there is


def every_sentence(tables, max_len, penalty):
    "The best score of all sentences of at most `max_len` words; and the score of each."
    words = [word for word in range(tables.size(-1)) if word != EOS]
    scores = {}
    for n in range(max_len + 1):
        for ids in product(words, repeat=n):
            total, said = 0.0, []
            for word in (*ids, EOS)[:max_len]:
                total += look_up(tables)(said)[word]
                said.append(word)
            scores[ids] = total / penalty(min(n + 1, max_len)) if max_len else 0.0
    return scores


@pytest.mark.parametrize("seed", range(600))
def test_exhaustive(seed):
    """A beam that can hold every sentence begun finds the best of all: 600 random cases. Every fourth is nothing but ties; ends are early
    in some and rare in others; limits are 0 to 4; α is 0, 0.6 and 1 in turn."""
    torch.manual_seed(seed)
    n_vocab, limit, alpha = (
        4 + seed % 2,
        int(torch.randint(0, 5 - seed % 2, ())),
        ALPHAS[seed % 3],
    )
    tables = random_tables(1, 4, n_vocab, sharp=[2.0, 1.0, 5.0, 0.0][seed % 4])
    if seed % 5 == 1:
        tables[..., EOS] += 3.0  # early ends
    if seed % 5 == 2:
        tables[..., EOS] -= 6.0  # hardly any
    tables, penalty = tables.log_softmax(dim=-1), partial(length_penalty, alpha=alpha)
    scores = every_sentence(tables[0], limit, penalty)
    best = max(scores.values())
    ((found,),) = search_tables(
        tables,
        torch.tensor([limit]),
        partial(batched_beam_search, beam_size=(n_vocab - 1) ** limit, penalty=penalty),
    )
    (plain,) = beam_search(
        look_up(tables[0]),
        EOS,
        limit,
        beam_size=(n_vocab - 1) ** limit,
        penalty=penalty,
    )
    for one in (found, plain):
        assert one.score == pytest.approx(best, abs=1e-9)  # as good as the best
        assert one.score == pytest.approx(
            scores[tuple(one.ids)], abs=1e-9
        )  # and it is what it says it is


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    beam_size=st.integers(1, 6),
    alpha=st.sampled_from(ALPHAS),
)
def test_a_narrow_beam_is_never_better_than_everything(seed, beam_size, alpha):
    torch.manual_seed(seed)
    tables, penalty = random_tables(1, 4, 5, 1.0), partial(length_penalty, alpha=alpha)
    scores = every_sentence(tables[0], 3, penalty)
    ((found,),) = search_tables(
        tables,
        torch.tensor([3]),
        partial(batched_beam_search, beam_size=beam_size, penalty=penalty),
    )
    assert found.score <= max(scores.values()) + 1e-9 and found.score == pytest.approx(
        scores[tuple(found.ids)], abs=1e-9
    )


# The fast beam against the readable one


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    b=st.integers(1, 20),
    n_vocab=st.sampled_from([4, 7, 16, 33, 64]),
    beam_size=st.integers(1, 6),
    n_best=st.integers(1, 6),
    longest=st.integers(0, 9),
    sharp=st.sampled_from([1.0, 3.0, 9.0]),
    alpha=st.sampled_from(ALPHAS),
)
def test_fast_is_readable(seed, b, n_vocab, beam_size, n_best, longest, sharp, alpha):
    "Batched, blocked, with sentences leaving at different times: the same n best with the same scores. Tables of their own for each step: no ties."
    torch.manual_seed(seed)
    n_best, tables, limits = (
        min(n_best, beam_size),
        random_tables(b, 10, n_vocab, sharp),
        torch.randint(0, longest + 1, (b,)),
    )
    options = dict(
        beam_size=beam_size, n_best=n_best, penalty=partial(length_penalty, alpha=alpha)
    )
    together = search_tables(tables, limits, partial(batched_beam_search, **options))
    for table, limit, those in zip(tables, limits, together):
        alone = beam_search(look_up(table), EOS, int(limit), **options)
        assert ids_of(those) == ids_of(alone)
        for a, b in zip(those, alone):
            assert (a.score, a.log_prob) == (
                pytest.approx(b.score, abs=1e-9),
                pytest.approx(b.log_prob, abs=1e-9),
            )


@settings(max_examples=40)
@given(seed=st.integers(0, 10**6), beam_size=st.integers(1, 5))
def test_order_and_neighbours_do_not_matter(seed, beam_size):
    torch.manual_seed(seed)
    tables, limits, search = (
        random_tables(9, 10, 8, 3.0),
        torch.randint(0, 9, (9,)),
        partial(batched_beam_search, beam_size=beam_size),
    )
    together, order = search_tables(tables, limits, search), torch.randperm(9)
    alone = [
        search_tables(tables[i : i + 1], limits[i : i + 1], search)[0] for i in range(9)
    ]
    shuffled = search_tables(tables[order], limits[order], search)
    for here, there in ((together, alone), ([together[i] for i in order], shuffled)):
        assert [ids_of(those) for those in here] == [ids_of(those) for those in there]
        # float64; the penalty of nine sentences at once may be rounded otherwise than that of one
        for those, others in zip(here, there, strict=True):
            assert [(one.score, one.log_prob) for one in those] == [
                (
                    pytest.approx(one.score, abs=1e-12),
                    pytest.approx(one.log_prob, abs=1e-12),
                )
                for one in others
            ]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    b=st.integers(1, 4),
    beam=st.integers(1, 4),
    n_vocab=st.sampled_from([3, 31, 96, 250, 257, 512, 1000]),
    n=st.integers(1, 9),
    coarse=st.booleans(),
)
def test_best_words(seed, b, beam, n_vocab, n, coarse):
    "Block by block = all at once; with coarse numbers there are ties, and the values must still be right."
    torch.manual_seed(seed)
    log_probs, scores = torch.randn(b, beam, n_vocab), torch.randn(b, beam)
    if coarse:
        log_probs, scores = log_probs.round(), scores.round()
    found, parents, words = _best_tokens(log_probs, scores, n)
    everything = (log_probs + scores[..., None]).flatten(1)
    assert torch.equal(found, everything.topk(min(n, beam * n_vocab)).values)
    place = parents * n_vocab + words
    assert torch.equal(everything.gather(1, place), found) and all(
        len(set(row)) == len(row) for row in place.tolist()
    )


# Rules


def test_a_word_that_cannot_come_never_comes():
    "−∞ for whole rows: hypotheses die, the search goes on with the others, or gives what there is."
    tables = torch.full((1, 1, 5, 5), -math.inf)
    tables[0, 0, BOS, 4], tables[0, 0, BOS, 0], tables[0, 0, 4, 4] = (
        math.log(0.5),
        math.log(0.5),
        0.0,
    )  # 0 leads nowhere
    ((found,),) = search_tables(tables, torch.tensor([3]), batched_beam_search)
    assert found.ids == [4, 4, 4] and found.log_prob == pytest.approx(math.log(0.5))
    ((found,),) = search_tables(
        torch.full_like(tables, -math.inf), torch.tensor([3]), batched_beam_search
    )
    assert found.score == -math.inf


def test_which_ends_count():
    "An end that is likely enough to win, but not among the two best of its step."
    tables = torch.full((1, 3, 6, 6), -math.inf)
    tables[0, 0, BOS, [0, 1, EOS]] = torch.tensor([0.4, 0.35, 0.25]).log()
    tables[0, 1, [0, 1], 4], tables[0, 1, [0, 1], 5] = math.log(0.5), math.log(0.5)
    tables[0, 2, :, EOS] = 0.0
    options = dict(beam_size=2, penalty=partial(length_penalty, alpha=0))
    ((lenient,),), ((strict,),) = (
        search_tables(
            tables,
            torch.tensor([5]),
            partial(batched_beam_search, may_end=rule, **options),
        )
        for rule in (every_eos, eos_among_best)
    )
    assert lenient.ids == [] and lenient.log_prob == pytest.approx(math.log(0.25))
    assert len(strict.ids) == 2 and strict.log_prob == pytest.approx(math.log(0.2))


def test_it_stops_as_soon_as_nothing_open_can_win():
    calls = []

    def step(last_ids, state):
        calls.append(1)
        return table_step(last_ids, state)

    sure = torch.full((1, 1, 5, 5), math.log(0.15))
    sure[..., EOS] = math.log(0.4)
    batched_beam_search(
        step,
        table_start(sure),
        BOS,
        EOS,
        torch.tensor([50]),
        penalty=partial(length_penalty, alpha=0),
    )
    assert (
        len(calls) == 1
    )  # 0.4 against 0.15 at most: with no penalty nothing can follow that
    calls.clear()
    batched_beam_search(
        step,
        table_start(sure),
        BOS,
        EOS,
        torch.tensor([50]),
        penalty=partial(length_penalty, alpha=1),
    )
    assert 1 < len(calls) < 50  # a longer one might have won for a while


def test_length_penalty():
    assert (
        length_penalty(1) == 1
        and length_penalty(7, alpha=1) == 2
        and length_penalty(99, alpha=0) == 1
    )
    assert torch.equal(
        length_penalty(torch.tensor([1, 7]), alpha=1), torch.tensor([1.0, 2.0])
    )


def test_settings():
    assert search_with(1) is batched_greedy_search
    tables, limits = random_tables(7, 10, 8, 3.0), torch.full((7,), 6)
    assert search_tables(tables, limits, search_with(3, 1.0, 2)) == search_tables(
        tables,
        limits,
        partial(
            batched_beam_search,
            beam_size=3,
            n_best=2,
            penalty=partial(length_penalty, alpha=1.0),
        ),
    )
    for wrong, what in (
        ({"beam_size": 0}, "beam_size=0"),
        ({"beam_size": 257}, "beam_size=257"),
        ({"n_best": 5}, "n_best=5 with beam_size=4"),
        ({"beam_size": 1, "n_best": 2}, "n_best=2"),
        ({"alpha": -0.1}, "alpha=-0.1"),
        ({"alpha": math.nan}, "alpha=nan"),
    ):
        with pytest.raises(ValueError, match=what):
            search_with(**wrong)
    with pytest.raises(ValueError, match="n_best=5 with beam_size=4"):
        search_tables(tables, limits, partial(batched_beam_search, n_best=5))


# Sampling


def test_samples_are_as_likely_as_the_model_says():
    torch.manual_seed(0)
    n, (tables,) = 4000, random_tables(1, 2, 5, 1.0)
    scores = every_sentence(tables, 2, lambda n: 1)
    drawn = [
        tuple(found.ids)
        for (found,) in search_tables(
            tables.expand(n, 2, 5, 5), torch.full((n,), 2), sample
        )
    ]
    for ids, log_prob in scores.items():
        p = math.exp(log_prob)
        assert (
            abs(drawn.count(ids) / n - p) < 5 * math.sqrt(p * (1 - p) / n) + 1e-9
        )  # five standard deviations, 21 sentences
    assert sum(map(math.exp, scores.values())) == pytest.approx(1)


def test_sampling_cold_narrow_and_seeded():
    tables, limits = random_tables(50, 10, 8, 2.0), torch.full((50,), 6)
    greedy = [ids_of(f) for f in search_tables(tables, limits)]
    for options in ({"temperature": 1e-4}, {"top_p": 1e-6}):
        assert [
            ids_of(f) for f in search_tables(tables, limits, partial(sample, **options))
        ] == greedy
    once, again, other = (
        search_tables(tables, limits, partial(sample, seed=seed)) for seed in (1, 1, 2)
    )
    assert once == again != other
    for (found,), table in zip(once, tables):
        said = [*found.ids, EOS][:6]
        assert found.log_prob == pytest.approx(
            sum(look_up(table)(said[:i])[word] for i, word in enumerate(said)), abs=1e-4
        )


def test_top_p_draws_from_the_likeliest_alone():
    probs = torch.tensor([0.4, 0.3, 0.2, 0.1, 0.0]).log().expand(500, 1, 5, 5)
    drawn = {
        ids
        for those in search_tables(
            probs, torch.full((500,), 1), partial(sample, top_p=0.65)
        )
        for ids in map(tuple, ids_of(those))
    }
    assert drawn == {
        (0,),
        (1,),
    }  # 0.4 and 0.3: with the first alone it would be 0.4 < 0.65


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.1},
    ],
    ids=str,
)
def test_sampling_refuses(wrong):
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name}={wrong[name]}"):
        search_tables(
            random_tables(1, 1, 5, 1.0), torch.tensor([3]), partial(sample, **wrong)
        )


# With the model


@pytest.mark.parametrize(
    "sizes",
    [
        dict(n_layers=1, n_heads=1),
        dict(n_layers=2, n_heads=4),
        dict(n_layers=2, n_heads=4, norm="pre"),
        dict(n_layers=1, n_heads=2, position="learned", n_positions=70),
        dict(n_layers=1, n_heads=2, d_k=5, d_v=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("beam_size", [0, 1, 3])
def test_transformer(sizes, beam_size):
    "start and step, in a batch with padding = forward over the whole prefix, one sentence at a time. In float64, so that ties cannot decide."
    torch.manual_seed(1)
    model = (
        build_transformer(ModelConfig(d_model=16, d_ff=32, **sizes), N_VOCAB, PAD)
        .double()
        .eval()
        .requires_grad_(False)
    )
    for layer in model.decoder.layers:
        for weight in layer.feed_forward.parameters():
            weight.mul_(4)  # otherwise it repeats one word
    src = torch.tensor(
        [
            [5, 6, 7, 8, EOS],
            [9, 4, EOS, PAD, PAD],
            [EOS, PAD, PAD, PAD, PAD],
            [11, 12, 13, EOS, PAD],
        ]
    )
    limits = (src != PAD).sum(dim=1) + 9

    search = (
        partial(batched_beam_search, beam_size=beam_size)
        if beam_size
        else batched_greedy_search
    )
    decoder = KVCache(model)
    together = search(decoder.step, decoder.start(src), BOS, EOS, limits)
    for row, limit, (found,) in zip(src, limits, together):

        def next_log_probs(said, row=row):
            hidden = model(row[row != PAD][None], torch.tensor([[BOS, *said]]))
            return decode.next_log_probs(model, hidden)[0, -1].tolist()

        if beam_size:
            assert (
                found.ids
                == beam_search(next_log_probs, EOS, int(limit), beam_size)[0].ids
            )
        else:
            assert found.ids == one_by_hand(next_log_probs, int(limit))[0]


def test_what_is_ruled_out_is_no_hypothesis():
    "Not even where the beam has room for every prefix."
    log_probs = [float("-inf"), *[math.log(0.25)] * 4]
    found = beam_search(lambda ids: log_probs, 4, 2, beam_size=30, n_best=30)
    assert len(found) == 1 + 3 + 9
    assert not any(0 in one.ids for one in found)


SEARCHES = {
    "greedy": greedy_search,
    "sampling": partial(sample, temperature=5.0),
    "batched greedy": batched_greedy_search,
    "batched beam": batched_beam_search,
}


@pytest.mark.parametrize("name, make", product(SEARCHES, [PrefixDecoder, KVCache]))
def test_no_search_generates_padding(name, make):
    "Not even from a model in which it is the most probable token by far."
    torch.manual_seed(0)
    sizes = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
    model = build_transformer(sizes, N_VOCAB, PAD).eval()
    logits, bonus = model.embedding.logits, 100 * F.one_hot(torch.tensor(PAD), N_VOCAB)
    model.embedding.logits = lambda hidden: logits(hidden) + bonus
    src = torch.tensor([[5, 6, 7, EOS], [9, EOS, PAD, PAD]])
    decoder, limits = make(model), torch.tensor([9, 12])
    with torch.no_grad():
        state = decoder.start(src)
    found = SEARCHES[name](decoder.step, state, BOS, EOS, limits)
    assert any(best.ids for best, *_ in found)
    assert not any(PAD in one.ids for of_row in found for one in of_row)
