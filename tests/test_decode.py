"Search: against looking at every sentence, against the readable search, over tables and over Transformers of several shapes."

import math
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    constrain,
    sample_with,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.engines.packed import fast_decoder, prepare_for_inference
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
SCALAR = torch.ops.aten._local_scalar_dense.default


class TableState(NamedTuple):
    "The prefixes and, for each sentence, some tables that take turns."

    per_hypothesis: list[Tensor]
    per_sentence: list[Tensor]


def table_step(last_ids, state):
    (said,), (tables,) = state
    rows = torch.arange(len(tables))[:, None]
    log_probs = tables[rows, said.size(-1) % tables.size(1), last_ids]
    said = torch.cat([said, last_ids[..., None]], dim=-1)
    return log_probs, TableState([said], [tables])


def table_start(tables):
    return TableState([torch.empty(len(tables), 1, 0, dtype=torch.long)], [tables])


def random_tables(b, n_tables, n_vocab, sharp):
    "Log-probabilities in float64; all tokens are equally probable at sharp = 0."
    scores = torch.randn(b, n_tables, n_vocab, n_vocab, dtype=torch.float64)
    return (sharp * scores).log_softmax(dim=-1)


def look_up(tables):
    return lambda said: tables[len(said) % len(tables), [BOS, *said][-1]].tolist()


def search_tables(tables, limits, search=batched_greedy_search):
    return search(table_step, table_start(tables), BOS, EOS, limits)


def ids_of(those):
    return [found.ids for found in those]


# Beam search against every sentence there is


def every_sentence(tables, max_len, penalty):
    "The score of each sentence of at most `max_len` tokens."
    words = [word for word in range(tables.size(-1)) if word != EOS]
    scores, next_log_probs = {}, cache(lambda *said: look_up(tables)(said))
    for n in range(max_len + 1):
        for ids in product(words, repeat=n):
            said = (*ids, EOS)[:max_len]
            total = sum(next_log_probs(*said[:i])[word] for i, word in enumerate(said))
            scores[ids] = total / penalty(min(n + 1, max_len)) if max_len else 0.0
    return scores


def test_exhaustive():
    """A beam that can hold every prefix finds the best of all sentences.

    Every fourth table is nothing but ties, some end early and some hardly ever.
    """
    assert length_penalty(7, alpha=0.6) == pytest.approx(2**0.6)
    for seed in range(60):
        torch.manual_seed(seed)
        n_vocab, alpha = 4 + seed % 2, ALPHAS[seed % 3]
        limit = int(torch.randint(0, 5 - seed % 2, ()))
        tables = random_tables(1, 4, n_vocab, sharp=[2.0, 1.0, 5.0, 0.0][seed % 4])
        tables[..., EOS] += {1: 3.0, 2: -6.0}.get(seed % 5, 0.0)
        tables = tables.log_softmax(dim=-1)
        penalty, size = partial(length_penalty, alpha=alpha), (n_vocab - 1) ** limit
        scores = every_sentence(tables[0], limit, penalty)
        search = partial(batched_beam_search, beam_size=size, penalty=penalty)
        ((found,),) = search_tables(tables, torch.tensor([limit]), search)
        (plain,) = beam_search(look_up(tables[0]), EOS, limit, size, penalty=penalty)
        for one in (found, plain):
            assert one.score == pytest.approx(max(scores.values()), abs=1e-9), seed
            assert one.score == pytest.approx(scores[tuple(one.ids)], abs=1e-9), seed


# The fast beam against the readable one


@settings(max_examples=100)
@given(
    seed=st.integers(0, 10**6),
    b=st.integers(1, 12),
    n_vocab=st.sampled_from([4, 7, 16, 33, 64]),
    beam_size=st.integers(1, 6),
    n_best=st.integers(1, 6),
    longest=st.integers(0, 9),
    sharp=st.sampled_from([1.0, 3.0, 9.0]),
    alpha=st.sampled_from(ALPHAS),
)
def test_fast_is_readable(seed, b, n_vocab, beam_size, n_best, longest, sharp, alpha):
    "In a batch that sentences leave: the same n best. A table for each step: no ties."
    torch.manual_seed(seed)
    tables = random_tables(b, 10, n_vocab, sharp)
    limits = torch.randint(0, longest + 1, (b,))
    penalty = partial(length_penalty, alpha=alpha)
    options = dict(beam_size=beam_size, n_best=min(n_best, beam_size), penalty=penalty)
    together = search_tables(tables, limits, partial(batched_beam_search, **options))
    for table, limit, those in zip(tables, limits, together):
        assert_equal(those, beam_search(look_up(table), EOS, int(limit), **options))


def assert_equal(found, right):
    "The same tokens; scores in float64, which other batches round otherwise."
    assert ids_of(found) == ids_of(right)
    for a, b in zip(found, right):
        assert a.score == pytest.approx(b.score, abs=1e-9)
        assert a.log_prob == pytest.approx(b.log_prob, abs=1e-9)


# Rules


def test_a_word_that_cannot_come_never_comes():
    "−∞ for whole rows: hypotheses die, and the search goes on with the others."
    tables, limits = torch.full((1, 1, 5, 5), -math.inf), torch.tensor([3])
    ((found,),) = search_tables(tables.clone(), limits, batched_beam_search)
    assert found.score == -math.inf
    tables[0, 0, BOS, [0, 4]], tables[0, 0, 4, 4] = (
        math.log(0.5),
        0.0,
    )  # 0 leads nowhere
    ((found,),) = search_tables(tables, limits, batched_beam_search)
    assert found.ids == [4, 4, 4] and found.log_prob == pytest.approx(math.log(0.5))


def test_which_ends_count():
    "EOS is probable enough to win, but not among the two best of its step."
    tables = torch.full((1, 3, 6, 6), -math.inf)
    tables[0, 0, BOS, [0, 1, EOS]] = torch.tensor([0.4, 0.35, 0.25]).log()
    tables[0, 1, [0, 1], 4], tables[0, 1, [0, 1], 5] = math.log(0.5), math.log(0.5)
    tables[0, 2, :, EOS] = 0.0
    no_penalty = partial(length_penalty, alpha=0)
    search = partial(batched_beam_search, beam_size=2, penalty=no_penalty)
    ((found,),) = search_tables(tables, torch.tensor([5]), search)
    assert len(found.ids) == 2 and found.log_prob == pytest.approx(math.log(0.2))


@pytest.mark.parametrize("alpha", [0, 1])
def test_it_stops_as_soon_as_nothing_open_can_win(alpha):
    calls = []

    def step(last_ids, state):
        calls.append(1)
        return table_step(last_ids, state)

    sure = torch.full((1, 1, 5, 5), math.log(0.15))
    sure[..., EOS] = math.log(0.4)
    ends, penalty = torch.tensor([50]), partial(length_penalty, alpha=alpha)
    batched_beam_search(step, table_start(sure), BOS, EOS, ends, penalty=penalty)
    # 0.4 against 0.15 at most; with a penalty a longer one might have won for a while
    assert len(calls) == 1 if alpha == 0 else 1 < len(calls) < 50


# Sampling


def test_several_samples_of_each_sentence():
    "Each is drawn anew, from its own sentence's distribution, and scored by its log-probability."
    torch.manual_seed(0)
    tables, limits = random_tables(3, 4, 5, 1.0), torch.tensor([2, 1, 2])
    found = search_tables(tables, limits, sample_with(n_best=256))
    found = [[*one] for one in found]
    for _ in range(15):
        more = search_tables(
            tables, limits, sample_with(n_best=256, seed=len(found[0]))
        )
        found = [one + other for one, other in zip(found, more)]
    for table, limit, drawn in zip(tables, limits.tolist(), found):
        next_log_probs, n = look_up(table), len(drawn)
        for ids in [
            p for k in range(limit + 1) for p in product((0, 1, 2, 4), repeat=k)
        ]:
            tokens = [*ids, EOS][:limit]
            log_p = sum(next_log_probs([*ids[:i]])[t] for i, t in enumerate(tokens))
            same = [one for one in drawn if tuple(one.ids) == ids]
            spread = math.sqrt(math.exp(log_p) * (1 - math.exp(log_p)) / n)
            assert abs(len(same) / n - math.exp(log_p)) < 5 * spread, ids
            for one in same[:1]:
                assert one.score == one.log_prob == pytest.approx(log_p, abs=1e-4)


def test_samples_by_seed_and_temperature():
    tables, limits = random_tables(20, 10, 8, 2.0), torch.full((20,), 6)
    plain = [partial(sample, seed=seed) for seed in (1, 1, 2)]
    once, again, other = (search_tables(tables, limits, search) for search in plain)
    assert once == again != other
    drawing = [sample_with(seed=seed, n_best=2) for seed in (1, 1, 2)]
    once, again, other = (search_tables(tables, limits, search) for search in drawing)
    assert once == again != other
    # the second batch of a translator is not drawn with the numbers of the first
    assert search_tables(tables, limits, drawing[0]) != once
    cold = search_tables(tables, limits, sample_with(temperature=1e-3, n_best=2))
    greedy = search_tables(tables, limits)
    expected = [[one.ids] * 2 for (one,) in greedy]
    assert [ids_of(row) for row in cold] == expected


def test_top_p_may_leave_one_token():
    "No token's share is so small that the most probable one is left out."
    torch.manual_seed(0)
    tables, limits = random_tables(20, 10, 8, 2.0), torch.full((20,), 6)
    expected = ids_of(row[0] for row in search_tables(tables, limits))
    for search in (partial(sample, top_p=1e-6), sample_with(top_p=1e-6)):
        found = search_tables(tables, limits, search)
        assert ids_of(row[0] for row in found) == expected


# Greedy search of a batch


@pytest.mark.parametrize("sharp", [0.5, 3.0])
def test_greedy_search_of_a_batch(sharp):
    "That of each sentence alone, with its own limit; the longest determines the number of steps."
    torch.manual_seed(0)
    tables, limits, calls = random_tables(60, 3, 6, sharp), torch.arange(60) % 9, []

    def step(last_ids, state):
        calls.append(1)
        return table_step(last_ids, state)

    found = greedy_search(step, table_start(tables), BOS, EOS, limits)
    lengths = []
    for table, limit, (one,) in zip(tables, limits.tolist(), found):
        ids, log_prob = [], 0.0
        while len(ids) < limit and EOS not in ids:
            best = table[len(ids) % 3, [BOS, *ids][-1]].max(dim=-1)
            ids.append(int(best.indices))
            log_prob += float(best.values)
        lengths.append(len(ids))
        assert one.ids == [id for id in ids if id != EOS]
        assert one.score == one.log_prob == pytest.approx(log_prob, abs=1e-5)
    assert len(calls) == max(lengths)


def test_what_is_ruled_out_is_no_hypothesis():
    "Not even where the beam has room for every prefix."
    log_probs = [float("-inf"), *[math.log(0.25)] * 4]
    found = beam_search(lambda ids: log_probs, 4, 2, beam_size=30, n_best=30)
    assert len(found) == 1 + 3 + 9
    assert not any(0 in one.ids for one in found)


SEARCHES = {
    "greedy": greedy_search,
    "sampling": partial(sample, temperature=5.0),
    "several samples": sample_with(temperature=5.0, n_best=3),
    "batched greedy": batched_greedy_search,
    "batched beam": batched_beam_search,
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("make", [PrefixDecoder, KVCache])
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


@pytest.mark.parametrize("prefix, limit", [([2], 4), ([1, 2, 1], 4), ([], 2), ([2], 3)])
def test_a_given_beginning_and_a_limit(prefix, limit):
    "A beam that can hold every prefix finds the best sentence that begins so."
    for seed in range(20):
        torch.manual_seed(seed)
        tables = random_tables(1, 4, 4, sharp=2.0)
        scores = every_sentence(tables[0], limit, length_penalty)
        allowed = {x: s for x, s in scores.items() if [*x[: len(prefix)]] == prefix}
        wide = partial(batched_beam_search, beam_size=3**limit)
        how = constrain(wide, prefix, limit)
        ((found,),) = search_tables(tables, torch.tensor([9]), how)
        assert found.score == pytest.approx(max(allowed.values()), abs=1e-9), seed
        assert found.score == pytest.approx(allowed[tuple(found.ids)], abs=1e-9), seed
        for search in (batched_greedy_search, sample_with(n_best=3), greedy_search):
            how = constrain(search, prefix, limit)
            (several,) = search_tables(tables, torch.tensor([9]), how)
            assert all(ids[: len(prefix)] == prefix for ids in ids_of(several))
            assert max(map(len, ids_of(several))) <= limit


@pytest.mark.parametrize("name, n", [("batched greedy", 1), ("batched beam", 2)])
def test_how_often_a_step_waits(name, n, monkeypatch):
    "On a GPU each number that is read waits for the device; no sentence leaves here."
    torch.manual_seed(0)
    sizes = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
    model = prepare_for_inference(build_transformer(sizes, N_VOCAB, PAD))
    decoder, reads, before = fast_decoder(model), [], []
    plain, src = Tensor.tolist, torch.randint(EOS + 1, N_VOCAB, (9, 5))

    class Scalars(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function in (SCALAR, torch.ops.aten.nonzero.default):
                reads.append(function)
            return function(*args, **(kwargs or {}))

    def step(last_ids, state):
        before.append(len(reads))
        log_probs, state = decoder.step(last_ids, state)
        log_probs[..., EOS] = -math.inf
        return log_probs, state

    monkeypatch.setattr(Tensor, "tolist", lambda t: reads.append("tolist") or plain(t))
    monkeypatch.setattr(Tensor, "cpu", None)
    with torch.no_grad(), Scalars():
        state = decoder.start(src)
        SEARCHES[name](step, state, BOS, EOS, torch.full((9,), 12))
    # the first step has one hypothesis in a beam too
    assert [b - a for a, b in zip(before[1:], before[2:])] == [n] * 10
