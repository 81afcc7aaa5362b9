"Lines in, lines out: order, length, bytes; and BLEU against sacreBLEU's own command."
import gzip
import io
import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.checkpoint import create_run, save_weights, write_config
from annotated_transformer.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.corpus import text_lines
from annotated_transformer.evaluate import Translator, bleu, cut, load, pronoun_accuracy, score_files, translate_stream
from annotated_transformer.transformer import build_transformer
from annotated_transformer.vocab import SPACE, learn_bpe

TEXT = ["the old dog sleeps under the bridge.", "der alte Hund schläft unter der Brücke.", "where is my cat?", "wo ist meine Katze?"]
SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
ONE_LINE = st.text(max_size=40).filter(lambda s: "\n" not in s and not s.startswith("\ufeff"))
LINES = st.lists(st.one_of(st.sampled_from(TEXT), ONE_LINE, st.just("")), max_size=12)


@pytest.fixture(scope="module")
def vocab(): return learn_bpe(TEXT * 3, 320)


@pytest.fixture(scope="module")
def translator(vocab):
    "Random weights, in float64: sums in another order cannot tip the balance between two words."
    torch.manual_seed(0)
    return Translator(build_transformer(SIZES, len(vocab), vocab.pad_id).double(), vocab, max_pieces=20)


class Echo(Translator):
    "Says what it reads: nothing can be lost or swapped unseen."
    def __init__(self, vocab, **sizes):
        super().__init__(torch.nn.Linear(1, 1), vocab, **sizes)
        self.batches = []

    def translate_ids(self, rows):
        self.batches.append([len(row) for row in rows])
        return [list(row[:-1]) for row in rows]


# cutting

@given(st.text(max_size=200), st.integers(4, 30))
def test_cut_loses_nothing_and_splits_no_character(vocab, text, max_pieces):
    pieces = vocab.words(vocab.encode(text))
    starts = cut(pieces, max_pieces)
    parts = [pieces[a:b] for a, b in zip(starts, [*starts[1:], None])]
    assert starts[0] == 0 and sum(parts, []) == pieces and all(0 < len(part) <= max_pieces for part in parts if pieces)
    assert "".join(vocab.decode(vocab.encode(text)[a:b]) if a == 0 or not pieces[a].startswith(SPACE)
                   else " " + vocab.decode(vocab.encode(text)[a:b]) for a, b in zip(starts, [*starts[1:], None])) == text


def test_cut_before_the_last_word_that_fits():
    assert cut([SPACE + "a", SPACE + "b", "c", SPACE + "d", "e", "f"], 4) == [0, 3]


def test_max_pieces(vocab):
    with pytest.raises(ValueError, match="max_pieces=3 must be at least 4"): Echo(vocab, max_pieces=3)


# translating

@settings(max_examples=30)
@given(LINES, st.integers(4, 12), st.integers(1, 60))
def test_what_goes_in_comes_out(vocab, lines, max_pieces, batch_tokens):
    "With a model that repeats its input, the lines come back: any Unicode, cut into parts or not, in any batches."
    echo = Echo(vocab, max_pieces=max_pieces, batch_tokens=batch_tokens)
    expected = [line.replace("\r", " ") if line.strip() else "" for line in lines]
    assert echo.translate(lines) == expected
    assert all(len(b) == 1 or sum(b) <= batch_tokens for b in echo.batches)


def test_batched_is_alone(translator):
    words = " ".join(TEXT).split()
    picks = torch.randint(len(words), (30, 9), generator=torch.Generator().manual_seed(0)).tolist()
    lines = [" ".join(words[j] for j in row[:i % 10]) for i, row in enumerate(picks)]
    together = translator.translate(lines)
    assert together == [translator.translate([line])[0] for line in lines]
    assert together[::-1] == translator.translate(lines[::-1])
    assert [line for line, out in zip(lines, together) if not line] and not any(out for line, out in zip(lines, together) if not line)


def test_a_line_break_said_is_no_line_break_written(vocab):
    class Breaks(Echo):
        def translate_ids(self, rows): return [self.vocab.encode("a\nb\r\nc")] * len(rows)
    assert Breaks(vocab).translate(["x", "y"]) == ["a b  c"] * 2


def test_lists_and_arrays_of_ids(translator):
    row = translator.vocab.encode(TEXT[0]) + [translator.vocab.eos_id]
    (found,) = translator.translate_ids([row])
    assert found == translator.translate_ids([torch.tensor(row).numpy()])[0] and len(found) <= len(row) - 1 + 50


# streams

ENDS = st.sampled_from([b"\n", b"\r\n"])


@given(LINES, st.data(), st.booleans(), st.integers(1, 5))
def test_stream(vocab, lines, data, bom, n_together):
    "Either line end, a mark at the beginning, a last line without end: one line out for each line in, in order."
    raw = b"\xef\xbb\xbf" * (bom and bool(lines)) + b"".join(line.removesuffix("\r").encode() + data.draw(ENDS) for line in lines)
    found = list(translate_stream(Echo(vocab), io.BytesIO(raw), n_together))
    assert found == [line.removesuffix("\r").replace("\r", " ") if line.strip() else "" for line in lines]


@pytest.mark.parametrize("raw, lines", [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n\nb", ["a", "", "b"]), (b"\xef\xbb\xbf", [""]),
                                        (b"a\xef\xbb\xbfb\n", ["a\ufeffb"]),
                                        ("a\u2028b\x0bc\x85d\n".encode(), ["a\u2028b\x0bc\x85d"])])
def test_text_lines(raw, lines): assert list(text_lines(io.BytesIO(raw))) == lines


@pytest.mark.parametrize("n_together", [1, 2, 3, 256])
def test_lines_before_a_broken_one_are_translated(vocab, n_together):
    stream, found = translate_stream(Echo(vocab), [b"one\n", b"two\n", b"thr\xe4e\n", b"four\n"], n_together), []
    with pytest.raises(ValueError, match="line 3: byte 4 is not UTF-8"):
        for line in stream: found.append(line)
    assert found == ["one", "two"]


def test_stream_reads_no_further_than_needed(vocab):
    read = []

    def endless():
        while True: read.append(1); yield b"a\n"
    stream = translate_stream(Echo(vocab), endless(), n_together=3)
    next(stream); next(stream); next(stream)
    assert len(read) == 3


def test_long_lines_are_reported(vocab, capsys):
    long = "a" * 3000
    assert list(translate_stream(Echo(vocab, max_pieces=8), [b"short\n", long.encode()])) == ["short", long]
    assert capsys.readouterr().err == f"line 2 is longer than 8 pieces: translated in {len(Echo(vocab, max_pieces=8).split(long))} parts\n"


# runs and files

@pytest.mark.parametrize("position, longest", [("sinusoidal", 200), ("learned", 40)])
def test_load(tmp_path, vocab, position, longest):
    "Lines are cut where training cut them, and earlier if the positions end earlier: then no line is too long for the model."
    sizes = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2, position=position, n_positions=90)
    recipe = Recipe(sizes, TrainConfig(max_len=200))
    create_run(tmp_path / "run", recipe, {})
    vocab.save(tmp_path / "run/vocab.model")
    write_config(tmp_path / "run", recipe, {})
    save_weights(build_transformer(sizes, len(vocab), vocab.pad_id), tmp_path / "run/model.safetensors")
    found = load(tmp_path / "run")
    assert found.max_pieces == longest and not found.model.training
    assert len(found.translate(["the dog " * 100, "x" * 300])) == 2
    with pytest.raises(ValueError, match="device 'nowhere' cannot be used here"): load(tmp_path / "run", "nowhere")


def test_score_files(tmp_path, vocab):
    (tmp_path / "src").write_bytes("\ufeff".encode() + "\r\n".join(TEXT).encode())
    with gzip.open(tmp_path / "ref.gz", "wt", encoding="utf-8", newline="\n") as f: f.write("\n".join(TEXT) + "\n")
    assert score_files(Echo(vocab), tmp_path / "src", tmp_path / "ref.gz")[0] == pytest.approx(100)
    (tmp_path / "ref").write_text("one line\n")
    with pytest.raises(ValueError, match="src has 4 lines, .*ref has 1"): score_files(Echo(vocab), tmp_path / "src", tmp_path / "ref")


# measures

def test_bleu_is_the_commands(tmp_path):
    "The same number and signature as sacreBLEU prints."
    outputs = ["der alte Hund schläft auf der Brücke.", "wo ist die Katze?", "Ein 24-jähriger Mann, der \"liest\"."]
    references = ["Der alte Hund schläft unter der Brücke.", "wo ist meine Katze?", "Ein 24-jähriger Mann, der \"schreibt\"."]
    (tmp_path / "out").write_text("\n".join(outputs) + "\n"); (tmp_path / "ref").write_text("\n".join(references) + "\n")
    done = subprocess.run([sys.executable, "-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "out", "-w", "10", "-f", "json"],
                          capture_output=True, text=True, timeout=60, check=True)
    theirs = json.loads(done.stdout)
    score, signature = bleu(outputs, references)
    assert score == pytest.approx(theirs["score"], abs=1e-9) and signature == theirs["signature"]
    assert "tok:13a" in signature and "case:mixed" in signature


def test_measures_refuse_what_does_not_match():
    for measure in (bleu, pronoun_accuracy):
        with pytest.raises(ValueError, match="2 hypotheses do not go with 1 references"): measure(["a", "b"], ["er"])
        with pytest.raises(ValueError): measure([], [])


@pytest.mark.parametrize("hypothesis, reference, right", [
    ("weil es müde war.", "weil es müde war", 1), ("weil sie müde war", "weil es müde war", 0), ("weil müde war", "weil es müde war", 0),
    ("Sie sieht es.", "sie sieht es", 1), ("es sieht sie", "sie sieht es", 0), ("weil es, es müde war", "weil es müde war", 0),
    ("Essen, siebzehn, erst. Es!", "es", 1)])
def test_pronouns(hypothesis, reference, right): assert pronoun_accuracy([hypothesis], [reference]) == right
