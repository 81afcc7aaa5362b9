"Lines in, lines out: order, length, bytes; the best first, whatever the search."

import io
import os
import threading
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer import UserError
from annotated_transformer.data.vocab import SPACE, learn_bpe
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    search_with,
)
from annotated_transformer.io.text import MAX_LINE_BYTES, decode_lines
from annotated_transformer.model.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.model.decode import Hypothesis, sample
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import create_run, write_config
from annotated_transformer.runs.weights import save_weights
from annotated_transformer.translating.evaluate import perplexity
from annotated_transformer.translating.load import load
from annotated_transformer.translating.translate import (
    Translation,
    Translator,
    _join,
    line_groups,
    translate_stream,
)

TEXT = [
    "the old dog sleeps under the bridge.",
    "der alte Hund schläft unter der Brücke.",
    "where is my cat?",
    "wo ist meine Katze?",
]
SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
ONE_LINE = st.text(max_size=40).filter(
    lambda s: "\n" not in s and not s.startswith("\ufeff")
)
LINES = st.lists(st.one_of(st.sampled_from(TEXT), ONE_LINE, st.just("")), max_size=12)


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(TEXT * 3, 320)


@pytest.fixture(scope="module")
def translator(vocab):
    "Random weights, in float64: sums in another order cannot tip the balance between two words."
    torch.manual_seed(0)
    return Translator(
        build_transformer(SIZES, len(vocab), vocab.pad_id).double(),
        vocab,
        max_tokens=20,
    )


class Echo(Translator):
    "Says what it reads: nothing can be lost or swapped unseen."

    def __init__(self, vocab, **sizes):
        super().__init__(torch.nn.Linear(1, 1), vocab, **sizes)
        self.batches = []

    def search_ids(self, rows):
        self.batches.append([len(row) for row in rows])
        return [[Hypothesis(list(row[:-1]), 0.0, 0.0)] for row in rows]


# cutting


def starts_of(vocab, tokens, max_tokens):
    return Echo(vocab, max_tokens=max_tokens)._part_starts(tokens)


@given(st.text(max_size=200), st.integers(4, 30))
def test_cut_loses_nothing_and_splits_no_character(vocab, text, max_tokens):
    pieces = vocab.words(vocab.encode(text))
    starts = starts_of(vocab, pieces, max_tokens)
    parts = [pieces[a:b] for a, b in zip(starts, [*starts[1:], None])]
    assert (
        starts[0] == 0
        and sum(parts, []) == pieces
        and all(0 < len(part) <= max_tokens for part in parts if pieces)
    )
    assert (
        "".join(
            vocab.decode(vocab.encode(text)[a:b])
            if a == 0 or not pieces[a].startswith(SPACE)
            else " " + vocab.decode(vocab.encode(text)[a:b])
            for a, b in zip(starts, [*starts[1:], None])
        )
        == text
    )


def test_cut_before_the_last_word_that_fits(vocab):
    tokens = [SPACE + "a", SPACE + "b", "c", SPACE + "d", "e", "f"]
    assert starts_of(vocab, tokens, 4) == [0, 3]


def test_max_tokens(vocab):
    with pytest.raises(ValueError, match="max_tokens=3 must be at least 4"):
        Echo(vocab, max_tokens=3)


# translating


@settings(max_examples=30)
@given(LINES, st.integers(4, 12), st.integers(1, 60))
def test_what_goes_in_comes_out(vocab, lines, max_tokens, batch_tokens):
    "With a model that repeats its input, the lines come back: any Unicode, cut into parts or not, in any batches."
    echo = Echo(vocab, max_tokens=max_tokens, batch_tokens=batch_tokens)
    expected = [line.replace("\r", " ") if line.strip() else "" for line in lines]
    assert echo.translate(lines) == expected
    assert all(len(b) == 1 or sum(b) <= batch_tokens for b in echo.batches)


def some_lines(n):
    "Of no to nine words; the longest are cut into parts."
    words = " ".join(TEXT).split()
    picks = torch.randint(
        len(words), (n, 9), generator=torch.Generator().manual_seed(0)
    ).tolist()
    return [" ".join(words[j] for j in row[: i % 10]) for i, row in enumerate(picks)]


def searching(translator, search, batch_tokens=4096):
    "The same model under another search."
    return Translator(
        translator.model, translator.vocab, batch_tokens, translator.max_tokens, search
    )


SEARCHES = {
    "beam": batched_beam_search,
    "greedy": batched_greedy_search,
    "wide, three best": search_with(6, 1.0, 3),
}


@pytest.mark.parametrize("batch_tokens", [4096, 60])
@pytest.mark.parametrize("name", SEARCHES)
def test_batched_is_alone(translator, name, batch_tokens):
    lines, translator = (
        some_lines(20),
        searching(translator, SEARCHES[name], batch_tokens),
    )
    together = translator.n_best(lines)
    texts = [[found.text for found in those] for those in together]
    assert texts == [
        [found.text for found in translator.n_best([line])[0]] for line in lines
    ]
    assert texts[::-1] == [
        [found.text for found in those] for those in translator.n_best(lines[::-1])
    ]
    assert [best for best, *_ in texts] == translator.translate(lines) and len(
        {best for best, *_ in texts}
    ) > 15
    assert any(not line for line in lines) and all(
        those == [Translation("", 0.0)]
        for line, those in zip(lines, together)
        if not line
    )
    assert any(len(translator.split(line)) > 1 for line in lines)


def test_a_line_break_said_is_no_line_break_written(vocab):
    class Breaks(Echo):
        def search_ids(self, rows):
            return [[Hypothesis(self.vocab.encode("a\nb\r\nc"), 0.0, 0.0)]] * len(rows)

    assert Breaks(vocab).translate(["x", "y"]) == ["a b  c"] * 2


def test_lists_and_arrays_of_ids(translator):
    row = translator.vocab.encode(TEXT[0]) + [translator.vocab.eos_id]
    ((found,),) = translator.search_ids([row])
    assert [[found]] == translator.search_ids([torch.tensor(row).numpy()]) and len(
        found.ids
    ) <= len(row) - 1 + 50


# the best few


def test_best_first(translator):
    lines = some_lines(20)
    three, one = (
        searching(translator, search_with(4, 0.6, 3)),
        searching(translator, search_with(4, 0.6, 1)),
    )
    found = three.n_best(lines)
    assert [len(those) for those in found] == [3 if line else 1 for line in lines]
    assert all(a.score >= b.score for those in found for a, b in zip(those, those[1:]))
    assert [best for best, *_ in found] == [
        best for (best,) in one.n_best(lines)
    ]  # asking for more changes nothing at the top
    rows = [[*translator.vocab.encode(line), translator.vocab.eos_id] for line in TEXT]
    assert all(
        len({tuple(hypothesis.ids) for hypothesis in those}) == 3
        for those in three.search_ids(rows)
    )


def test_ranks_of_a_long_line(translator):
    "The k-th translation of a line is made of the k-th of each part; scores are added up."
    three, line = searching(translator, search_with(4, 0.6, 3)), " ".join(TEXT)
    parts = three.split(line)
    (found,) = three.n_best([line])
    each = three.search_ids([[*part, three.vocab.eos_id] for part in parts])
    assert len(parts) > 2 and [best.score for best in found] == pytest.approx(
        [sum(those[k].score for those in each) for k in range(3)]
    )
    expected: list[Translation] = []
    for part, those in zip(parts, each):
        expected = _join(expected, part, those, three.vocab)
    assert [best.text for best in found] == [best.text for best in expected] and len(
        {best.text for best in found}
    ) == 3


@pytest.mark.parametrize(
    "before, source, texts",
    [
        (["x", "y"], " b", ["x a", "y b"]),
        (["x", ""], " b", ["x a", "b"]),
        ([], " b", ["a", "b", "c"]),
        (["x", "y", "z", "w"], "🐕", ["xa", "yb", "zc"]),
    ],
)
def test_join(vocab, before, source, texts):
    "A space where the source has one, none before the first text; as many as the part with the fewest."
    those = [
        Hypothesis(vocab.encode(text), score, score)
        for text, score in (("a", -1.0), ("b", -2.0), ("c", -4.0))
    ]
    ids = vocab.encode("x" + source)[len(vocab.encode("x")) :]
    found = _join([Translation(text, -0.5) for text in before], ids, those, vocab)
    assert [t.text for t in found] == texts
    assert [t.score for t in found] == [h.score - 0.5 * bool(before) for h in those][
        : len(texts)
    ]


def test_any_search(translator):
    "Whatever is called like one: its hypotheses come out in the order that it gives them, and it is told the length limit of each row."
    said, limits, vocab = (
        translator.vocab.encode("wo ist meine Katze?"),
        [],
        translator.vocab,
    )

    def mine(step, state, bos_id, eos_id, max_lens):
        log_probs, _ = step(torch.full((len(max_lens), 1), bos_id), state)
        assert (
            log_probs.shape == (len(max_lens), 1, len(vocab)) and eos_id == vocab.eos_id
        )
        limits.extend(max_lens.tolist())
        return [[Hypothesis(said, -2.0, -3.0), Hypothesis([], -1.0, -1.0)]] * len(
            max_lens
        )

    found = searching(translator, mine).n_best(["a", "", "the dog"])
    two = [Translation("wo ist meine Katze?", -2.0), Translation("", -1.0)]
    assert found == [two, [Translation("", 0.0)], two]
    assert sorted(limits) == sorted(
        len(vocab.encode(line)) + 50 for line in ("a", "the dog")
    )
    drawn = searching(translator, partial(sample, seed=1))
    assert (
        drawn.translate(TEXT)
        == drawn.translate(TEXT)
        != searching(translator, partial(sample, seed=2)).translate(TEXT)
    )


def test_batch_tokens_below_one(vocab):
    with pytest.raises(ValueError, match="batch_tokens=0 must be at least 1"):
        Echo(vocab, batch_tokens=0)


# streams


class Pieces(io.BytesIO):
    "A stream that comes in pieces of sizes that turn."

    def __init__(self, raw, sizes):
        super().__init__(raw)
        self.sizes, self.n_reads = sizes, 0

    def read1(self, size=-1):
        self.n_reads += 1
        return super().read1(self.sizes[self.n_reads % len(self.sizes)])


SOME_BYTES = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"a", "ü".encode(), b"\xff", b"long " * 9, b"\0"]),
    max_size=40,
).map(b"".join)


@given(
    SOME_BYTES | st.binary(max_size=60),
    st.lists(st.integers(1, 70), min_size=1, max_size=5),
    st.integers(1, 5),
)
def test_line_groups(raw, sizes, n_most):
    "However the bytes arrive, the lines are those of the whole, and the last may lack its end."
    groups = list(line_groups(Pieces(raw, sizes), n_most))
    lines = raw.split(b"\n")
    assert [line for group in groups for line in group] == (
        lines if lines[-1] else lines[:-1]
    )
    assert all(1 <= len(group) <= n_most for group in groups)


def test_a_line_that_is_there_waits_for_none():
    "A pipe: the first line comes out before the second is written, half of the second does not."
    read, write = os.pipe()
    rescue = threading.Timer(20, os.close, [write])  # a test that fails must not hang
    rescue.start()
    with open(read, "rb") as stream:
        groups = line_groups(stream)
        os.write(write, b"one\ntw")
        assert next(groups) == [b"one"] and rescue.is_alive()
        os.write(write, b"o\nthree\nfo")
        assert next(groups) == [b"two", b"three"] and rescue.is_alive()
        rescue.cancel()
        os.close(write)
        assert list(groups) == [[b"fo"]]


ENDS = st.sampled_from([b"\n", b"\r\n"])


@given(
    LINES,
    st.data(),
    st.booleans(),
    st.integers(1, 5),
    st.lists(st.integers(1, 90), min_size=1, max_size=3),
)
def test_stream(vocab, lines, data, bom, n_most, sizes):
    "Either line end, a mark at the beginning, a last line without end: one line out for each line in, in order."
    raw = b"\xef\xbb\xbf" * (bom and bool(lines)) + b"".join(
        line.removesuffix("\r").encode() + data.draw(ENDS) for line in lines
    )
    found = [
        best.text
        for (best,) in translate_stream(
            Echo(vocab), line_groups(Pieces(raw, sizes), n_most)
        )
    ]
    assert found == [
        line.removesuffix("\r").replace("\r", " ") if line.strip() else ""
        for line in lines
    ]


@pytest.mark.parametrize(
    "raw, lines",
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"\xef\xbb\xbf", [""]),
        (b"a\xef\xbb\xbfb\n", ["a\ufeffb"]),
        ("a\u2028b\x0bc\x85d\n".encode(), ["a\u2028b\x0bc\x85d"]),
    ],
)
def test_text_lines(raw, lines):
    assert list(decode_lines(io.BytesIO(raw))) == lines


@pytest.mark.parametrize("n_most", [1, 2, 3, 256])
def test_lines_before_a_broken_one_are_translated(vocab, n_most):
    raw = io.BytesIO(b"one\ntwo\nthr\xe4e\nfour\n")
    stream, found = translate_stream(Echo(vocab), line_groups(raw, n_most)), []
    with pytest.raises(ValueError, match="line 3: byte 4 is not UTF-8"):
        for (best,) in stream:
            found.append(best.text)
    assert found == ["one", "two"]


class Endless(io.RawIOBase):
    "Some bytes, then the same one without an end; it counts what was read, and gives up far behind the limit."

    def __init__(self, raw, size):
        self.raw, self.size, self.n_read = raw, size, 0

    def read1(self, size=-1):
        found = self.raw[: self.size] or b"a" * min(size, self.size)
        self.raw, self.n_read = self.raw[self.size :], self.n_read + len(found)
        assert self.n_read < 3 * MAX_LINE_BYTES, "nothing stops it"
        return found


@pytest.mark.parametrize("size", [1000, 2**16])
@pytest.mark.parametrize("n_most", [1, 2, 256])
def test_lines_before_an_endless_one_are_translated(vocab, n_most, size):
    raw = Endless(b"one\n\ntwo\n", size)
    stream, found = (
        translate_stream(Echo(vocab), line_groups(raw, n_most), "some.txt, "),
        [],
    )
    with pytest.raises(UserError) as e:
        for (best,) in stream:
            found.append(best.text)
    assert (
        str(e.value)
        == f"some.txt, line 4 is longer than {MAX_LINE_BYTES} bytes: put each sentence on a line of its own"
    )
    assert found == ["one", "", "two"] and raw.n_read <= MAX_LINE_BYTES + 2**17


def test_a_line_as_long_as_may_be_in_a_stream():
    raw = b"a\n" + b"b" * MAX_LINE_BYTES
    for end in (b"", b"\n", b"\nc"):
        lines = [line for group in line_groups(io.BytesIO(raw + end)) for line in group]
        assert list(decode_lines(lines)) == [
            "a",
            "b" * MAX_LINE_BYTES,
            *(["c"] if end[1:] else []),
        ]


def test_each_line_is_encoded_once(vocab, monkeypatch):
    "Once to be translated and to count its parts; it was done twice."
    encoded, encode = [], vocab.encode
    monkeypatch.setattr(
        vocab, "encode", lambda line: encoded.append(line) or encode(line)
    )
    lines = ["one", "a" * 100, "", "two", "three"]
    groups = [
        [line.encode() for line in lines[:2]],
        [line.encode() for line in lines[2:]],
    ]
    found = [
        best.text for (best,) in translate_stream(Echo(vocab, max_tokens=8), groups)
    ]
    assert found == lines and encoded == [line for line in lines if line]


def test_stream_reads_no_further_than_needed(vocab):
    endless = Pieces(b"a\n" * 300, [6])
    stream = translate_stream(Echo(vocab), line_groups(endless))
    for n_lines in range(1, 7):
        next(stream)
        assert endless.n_reads == -(-n_lines // 3)  # three lines a piece


def test_long_lines_are_reported(vocab, capsys):
    long, echo = "a" * 3000, Echo(vocab, max_tokens=8)
    found = list(translate_stream(echo, [[b"short\n"], [b"\n", long.encode()]]))
    assert found == [[Translation(text, 0.0)] for text in ("short", "", long)]
    assert (
        capsys.readouterr().err
        == f"line 3 is longer than 8 tokens: translated in {len(echo.split(long))} parts\n"
    )


# learned positions


def learned_model(vocab, n_positions):
    torch.manual_seed(0)
    sizes = ModelConfig(
        n_layers=1,
        d_model=16,
        d_ff=32,
        n_heads=2,
        position="learned",
        n_positions=n_positions,
    )
    return build_transformer(sizes, len(vocab), vocab.pad_id)


def endless(step, state, bos_id, eos_id, max_lens):
    "Greedy search that never ends before the limit."

    def without_end(last_ids, state):
        log_probs, state = step(last_ids, state)
        log_probs[..., eos_id] = -torch.inf
        return log_probs, state

    return batched_greedy_search(without_end, state, bos_id, eos_id, max_lens)


@pytest.mark.parametrize("n_positions", [5, 6, 9, 10, 30, 53, 54, 60, 102, 400])
@pytest.mark.parametrize("more", [0, 3, 50, 1000])
def test_search_stays_within_learned_positions(vocab, n_positions, more):
    "The longest source with EOS, and BOS with the longest translation, have a position each; and no more room is given away than needed."
    model = learned_model(vocab, n_positions)
    translator = Translator(model, vocab, search=endless, extra_tokens=more)
    ids = vocab.encode("the dog" * 400)[: translator.max_tokens]
    assert len(ids) == translator.max_tokens
    ((found,),) = translator.search_ids([[*ids, vocab.eos_id]])
    assert (
        len(found.ids) == len(ids) + translator.extra_tokens
        and vocab.eos_id not in found.ids
    )
    model(
        torch.tensor([[*ids, vocab.eos_id]]), torch.tensor([[vocab.bos_id, *found.ids]])
    )  # as a picture of it is made
    assert (
        translator.max_tokens == 256
        or translator.extra_tokens == more
        or translator.max_tokens + translator.extra_tokens + 1 == n_positions
    )
    assert (
        translator.max_tokens >= min(256, max(4, (n_positions - 1) // 2))
        and translator.extra_tokens <= more
    )
    assert (
        len(translator.translate(["the dog " * 100, "x" * 300, "", "Ünï — 漢字"])) == 4
    )  # cut into parts of `max_tokens`


@pytest.mark.parametrize("n_positions", [1, 4])
def test_too_few_learned_positions_to_translate(vocab, n_positions):
    with pytest.raises(
        UserError, match=f"n_positions={n_positions} must be at least 5"
    ):
        Translator(learned_model(vocab, n_positions), vocab)


def test_limits_that_fit_are_left_alone(vocab):
    model = learned_model(vocab, 31)
    found = Translator(model, vocab, max_tokens=20, extra_tokens=10)
    assert (found.max_tokens, found.extra_tokens) == (20, 10)


def test_perplexity_within_learned_positions(vocab):
    model, line = learned_model(vocab, 20), "a" * 18  # the space before them is a piece
    assert len(vocab.encode(line)) == 19
    assert perplexity(Translator(model, vocab), [line], [line]).n_tokens == 20
    for pair in ((line + "a", "a"), ("a", line + "a")):
        with pytest.raises(
            UserError, match="a line of 20 tokens is too long: .*19 tokens at most"
        ):
            perplexity(Translator(model, vocab), pair[:1], pair[1:])


# runs and files


@pytest.mark.parametrize(
    "position, n_positions, longest",
    [
        ("sinusoidal", 90, 89),
        ("learned", 90, 44),
        ("learned", 30, 14),
        ("learned", 5, 4),
    ],
)
def test_load(tmp_path, vocab, position, n_positions, longest):
    "Lines are cut where training cut them, and earlier if the positions end earlier: then no line is too long for the model."
    sizes = ModelConfig(
        n_layers=1,
        d_model=16,
        d_ff=32,
        n_heads=2,
        position=position,
        n_positions=n_positions,
    )
    recipe = Recipe(sizes, TrainConfig(max_len=n_positions - 1))
    create_run(tmp_path / "run", recipe, {})
    vocab.save(tmp_path / "run/vocab.model")
    write_config(tmp_path / "run", recipe, {})
    save_weights(
        build_transformer(sizes, len(vocab), vocab.pad_id),
        tmp_path / "run/model.safetensors",
    )
    found = load(tmp_path / "run")
    assert (
        found.max_tokens == longest
        and not found.model.training
        and found.search is batched_beam_search
    )
    other = load(tmp_path / "run", search=batched_greedy_search, batch_tokens=7)
    assert (other.search, other.batch_tokens) == (batched_greedy_search, 7)
    assert len(found.translate(["the dog " * 100, "x" * 300])) == 2
    with pytest.raises(ValueError, match="device 'nowhere' cannot be used here"):
        load(tmp_path / "run", "nowhere")
