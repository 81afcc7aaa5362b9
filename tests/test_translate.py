"Lines in, lines out: order, length, bytes; the best first, whatever the search."

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import random_run

from annotated_transformer import UserError
from annotated_transformer.data.vocab import SPACE, learn_bpe
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    sample_with,
    search_with,
)
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import Hypothesis
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.translating.divide import _part_starts, divide
from annotated_transformer.translating.load import load
from annotated_transformer.translating.translate import (
    Translator,
)

TEXT = [
    "the old dog sleeps under the bridge.",
    "der alte Hund schläft unter der Brücke.",
    "where is my cat?",
    "wo ist meine Katze?",
]
SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
ONE_LINE = st.text(max_size=40).filter(
    lambda s: not {*"\r\n"} & {*s} and not s.startswith("\ufeff")
)
MIXED = st.one_of(st.sampled_from(TEXT), ONE_LINE, st.just(""))
LINES = st.lists(MIXED, max_size=12)


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(TEXT * 3, 320)


@pytest.fixture(scope="module")
def translator(vocab):
    "Random weights, in float64: sums in another order cannot decide a tie."
    torch.manual_seed(0)
    model = build_transformer(SIZES, len(vocab), vocab.pad_id).double()
    return Translator(model, vocab, max_tokens=20)


class Echo(Translator):
    "Says what it reads: nothing can be lost or swapped unseen."

    def __init__(self, vocab, **sizes):
        super().__init__(torch.nn.Linear(1, 1), vocab, **sizes)
        self.batches = []

    def search_ids(self, rows):
        self.batches.append([len(row) for row in rows])
        return [[Hypothesis(list(row[:-1]), 0.0, 0.0)] for row in rows]


def plain(vocab, line: str) -> str:
    "As it is if it has no letter."
    normalised = vocab.decode(vocab.encode(line))
    has_letter = any(map(str.isalpha, line)) or not vocab.encode(line.strip())
    return normalised if has_letter else line.strip()


# cutting


@settings(max_examples=50)
@given(st.text(max_size=200), st.integers(4, 30))
def test_cut_loses_nothing_and_splits_no_character(vocab, text, max_tokens):
    ids = vocab.encode(text)
    pieces = vocab.tokens(ids)
    starts = _part_starts(pieces, max_tokens)
    cuts = list(zip(starts, [*starts[1:], None]))
    parts = [pieces[a:b] for a, b in cuts]
    assert starts[0] == 0 and sum(parts, []) == pieces
    assert all(0 < len(part) <= max_tokens for part in parts if pieces)
    texts = [vocab.decode(ids[a:b]) for a, b in cuts]
    gaps = [a > 0 and pieces[a].startswith(SPACE) for a in starts]
    joined = "".join(" " * gap + part for gap, part in zip(gaps, texts))
    assert joined == vocab.decode(ids)


# translating


@settings(max_examples=30)
@given(LINES, st.integers(4, 12), st.integers(1, 60))
def test_what_goes_in_comes_out(vocab, lines, max_tokens, batch_tokens):
    "With a model that repeats its input, the lines come back: any Unicode, cut into parts or not, in any batches."
    echo = Echo(vocab, max_tokens=max_tokens, batch_tokens=batch_tokens)
    assert echo.translate(lines) == [plain(vocab, line) for line in lines]
    limit = max([batch_tokens, *map(max, echo.batches)])
    assert all(sum(batch) <= limit for batch in echo.batches)


def test_a_line_break_said_is_no_line_break_written(vocab):
    class Breaks(Echo):
        def search_ids(self, rows):
            ids = self.vocab.pieces.piece_to_id(["a", "<0x0A>", "<0x0D>", "b"])
            return [[Hypothesis(ids, 0.0, 0.0)]] * len(rows)

    assert Breaks(vocab).translate(["x", "y"]) == ["a  b"] * 2


SENTENCES = """
Good morning. How are you?  I am fine! | 3
Mr. Smith met Dr. No at 3.50 on 12. May. | 1
I met J. S. Bach. Did he say "No." then? Yes. | 3
"Go!" he said. "Why?" | 2
Es ist z. B. gut, d. h. usw. am 3. Mai. Ja… Nein. | 3
hello. how are you? i am fine. | 3
你好。你叫什么名字？我很好！ | 3
… | 0
 | 0
"""


def test_sentences(vocab):
    "Each is translated alone, and what stood between them stays."
    for row in SENTENCES.strip("\n").split("\n"):
        text, n = row.split(" | ")
        parts = divide(text, vocab, 256, split=True)
        assert len([ids for ids in parts if isinstance(ids, list)]) == int(n), text
        found = Echo(vocab).translate(text, split=True)
        same = [
            x.replace("…", "...").replace("  ", " ")
            for x in (found, plain(vocab, text))
        ]
        assert same[0] == same[1], text
    text = " Two lines. And\r\n\r\none more.\tThen\u00a0this! "
    parts = divide(text, vocab, 256, True)
    kept = [part for part in parts if isinstance(part, str)]
    assert kept == [" ", "\r\n\r\n", "\t"]
    assert Echo(vocab).translate(text) == "Two lines. And\r\n\r\none more. Then this!"


def test_one_text_or_several(vocab):
    echo = Echo(vocab)
    assert echo.translate("a\n") == "a" and echo.translate(iter("ab")) == ["a", "b"]
    for wrong, says in ((None, "NoneType"), (b"a", "bytes"), (["a", None], "text 1")):
        with pytest.raises(TypeError, match=says):
            echo.translate(wrong)
    with pytest.raises(TypeError, match="several texts"):
        echo.n_best("Hello.")  # not six letters


# the best few


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate")]
)
def test_out_of_memory_says_what_to_lower(vocab, error):
    def fails(*_):
        raise error

    decoder = lambda model: SimpleNamespace(start=fails, step=None)
    model = torch.nn.Linear(1, 1)
    small = Translator(model, vocab, batch_tokens=64, decoder=decoder)
    says = "^out of memory on cpu: lower batch_tokens=64 or the beam size$"
    with pytest.raises(UserError, match=says):
        small.translate("Hello.")


def test_the_best_few_of_a_long_line(translator):
    "The best sums of the scores of its parts, of all combinations."
    t, line = translator, " ".join(TEXT)
    search = search_with(4, 0.6, 3)
    three = Translator(t.model, t.vocab, search=search, max_tokens=t.max_tokens)
    parts = [part for part in divide(line, t.vocab, t.max_tokens) if part != " "]
    (found,) = three.n_best([line])
    each = three.search_ids([[*ids, three.vocab.eos_id] for ids in parts])
    combined = product(*[[one.score for one in those] for those in each])
    sums = sorted(map(sum, combined), reverse=True)
    ranks = [sum(those[k].score for those in each) for k in range(3)]
    assert len(parts) > 2 and sums[:3] != pytest.approx(ranks)
    assert [best.score for best in found] == pytest.approx(sums[:3])
    assert len({best.text for best in found}) == 3


def test_samples_of_a_line_best_first(translator):
    "Also of a long text, whose k-th draws are joined, so that they stay independent; it begins with what is kept."
    t, line = translator, "12\n" + " ".join(TEXT)
    make = lambda: Translator(
        t.model, t.vocab, search=sample_with(n_best=8), max_tokens=t.max_tokens
    )
    (found,) = make().n_best([line])
    parts = [
        part for part in divide(line, t.vocab, t.max_tokens) if isinstance(part, list)
    ]
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    each = make()._search_all(parts)  # the same draws
    sums = [sum(those[k].score for those in each) for k in range(8)]
    assert len(parts) > 2 and sorted(sums, reverse=True) == pytest.approx(scores)


# learned positions


def endless(step, state, bos_id, eos_id, max_lens):
    "Greedy search that never ends before the limit."

    def without_end(last_ids, state):
        log_probs, state = step(last_ids, state)
        log_probs[..., eos_id] = -torch.inf
        return log_probs, state

    return batched_greedy_search(without_end, state, bos_id, eos_id, max_lens)


@pytest.mark.parametrize("n_positions, more", [(5, 0), (54, 50), (400, 50)])
def test_search_stays_within_learned_positions(vocab, n_positions, more):
    "The longest source with EOS fits, and BOS with the longest translation; no more room is given away than needed."
    torch.manual_seed(0)
    sizes = replace(SIZES, position="learned", n_positions=n_positions)
    model = build_transformer(sizes, len(vocab), vocab.pad_id)
    translator = Translator(model, vocab, search=endless, extra_tokens=more)
    max_tokens, extra = translator.max_tokens, translator.extra_tokens
    row = [*vocab.encode("the dog" * 400)[:max_tokens], vocab.eos_id]
    ((found,),) = translator.search_ids([row])
    assert len(found.ids) == max_tokens + extra and vocab.eos_id not in found.ids
    # as a picture of it is made
    model(torch.tensor([row]), torch.tensor([[vocab.bos_id, *found.ids]]))
    assert max_tokens == 256 or extra == more or max_tokens + extra + 1 == n_positions
    assert max_tokens >= min(256, max(4, (n_positions - 1) // 2)) and extra <= more


# runs and files


@pytest.mark.parametrize("position, longest", [("sinusoidal", 89), ("learned", 44)])
def test_load(tmp_path, position, longest):
    "Lines are cut where training cut them, earlier if the positions end earlier."
    more = {"position": position, "n_positions": 90, "max_len": 89}
    run = random_run(tmp_path / "run", **more)
    found = load(run)
    assert found.max_tokens == longest and not found.model.training
    assert found.search.func is batched_beam_search
    assert len(found.translate(["the dog " * 30, "x" * 90])) == 2
    with pytest.raises(UserError, match="device 'nowhere' cannot be used here"):
        load(run, "nowhere")
