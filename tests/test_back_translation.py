"Back-translation: the tag, and the program that trains a row for each kind of added pairs."

import json
import sys

import pytest
from conftest import ROOT, program
from torch.optim.optimizer import register_optimizer_step_post_hook

from annotated_transformer.data import corpus
from annotated_transformer.data.bpe_dropout import sample_segmentation
from annotated_transformer.data.prepared import Prepared, open_prepared
from annotated_transformer.data.vocab import Vocab, learn_bpe
from annotated_transformer.experiments.back_translation import back_translate, with_tag
from annotated_transformer.translating.load import load

N_TRAIN, STEPS = 200, 8
TINY = f"""n_layers=1 d_model=32 d_ff=64 n_heads=2 vocab_size=500 max_steps={STEPS} warmup_steps=2
batch_tokens=200 save_every=8""".split()


def test_a_tag_is_one_token_that_changes_no_other(tmp_path):
    vocab = load("demo").vocab
    tagged, text = with_tag(vocab, "<bt>"), "The dog bt <b> sleeps 🐕."
    n, ids = len(vocab), vocab.encode(text)
    assert len(tagged) == n + 1 and tagged.encode(text) == ids
    assert tagged.encode(f"<bt> {text} <bt>") == [n, *ids, n]
    assert tagged.decode(ids) == vocab.decode(ids)
    for dropout in (0, 0.9):
        first, *rest = sample_segmentation([f"<bt> {text}"], tagged, dropout, 0)[0]
        assert first == n and (rest == ids) == (dropout == 0)
        assert tagged.decode(rest) == vocab.decode(ids)
    tagged.save(tmp_path / "vocab.model")
    two = with_tag(Vocab.load(tmp_path / "vocab.model"), "<2fr>")
    assert two.encode("<2fr> <bt> the") == [n + 1, n, *vocab.encode("the")]


@pytest.mark.parametrize("tag", ["", "the", "two words", "<bt>" * 40])
def test_a_tag_that_is_no_new_word_is_refused(tag):
    with pytest.raises(ValueError):
        with_tag(load("demo").vocab, tag)


def test_an_empty_source_is_left_out():
    pairs = back_translate(lambda targets: ["a", " ", "c"], ["x", "y", "z"])
    assert pairs == [("a", "x"), ("c", "z")]


@pytest.fixture
def text(monkeypatch, tmp_path):
    "A little synthetic corpus in place of Multi30k."
    found = corpus.load_corpus("builtin", n_train=260, n_valid=10, n_test=1)
    program("results/variations.py")  # where the program finds what it imports
    small = lambda *_: found
    monkeypatch.setattr(corpus, "load_corpus", small)
    monkeypatch.setattr("variations.load_corpus", small)
    monkeypatch.chdir(tmp_path)
    return found


def encoded(data: Prepared) -> list[list[list[int]]]:
    "The ids of both sides of each training pair."
    sides = data.train.src, data.train.tgt
    return [[src.tolist(), tgt.tolist()] for src, tgt in zip(*sides)]


def test_rows_differ_in_the_added_pairs_alone(text, monkeypatch, tmp_path):
    "And nothing is trained or translated twice."

    def fill(*rows: str) -> dict:
        line = f"back_translation --out out --seeds 0 --n-train {N_TRAIN} --set".split()
        monkeypatch.setattr(sys, "argv", [*line, *TINY, "--rows", *rows])
        program("results/back_translation.py", "__main__")
        return json.loads((tmp_path / "out/table.json").read_text("utf-8"))

    steps: list[None] = []
    handle = register_optimizer_step_post_hook(lambda *_: steps.append(None))
    fill("synthetic")
    made = (tmp_path / "out/synthetic.json").stat().st_mtime_ns
    table = fill("synthetic", "tagged", "all pairs")
    handle.remove()
    assert len(steps) == 4 * STEPS  # the reverse model and three rows
    assert (tmp_path / "out/synthetic.json").stat().st_mtime_ns == made

    pairs = json.loads((tmp_path / "out/synthetic.json").read_text("utf-8"))["pairs"]
    parallel, others = text.train[:N_TRAIN], text.train[N_TRAIN:]
    kept = {tgt for _, tgt in pairs}
    assert [tgt for _, tgt in pairs] == [tgt for _, tgt in others if tgt in kept]
    assert len(pairs) > 1
    vocab = learn_bpe((side for pair in parallel for side in pair), 500)
    ids = lambda pairs: [[*map(vocab.encode, pair)] for pair in pairs]
    expected = {
        "synthetic": ids(pairs),
        "tagged": [[[len(vocab), *src], tgt] for src, tgt in ids(pairs)],
        "all-pairs": ids(others),
    }
    for row, added in expected.items():
        data = open_prepared(tmp_path / f"out/{row}-seed0/data")
        assert encoded(data) == ids(parallel) + added, row
        assert len(data.vocab) == len(vocab) + (row == "tagged")
    reverse = encoded(open_prepared(tmp_path / "out/reverse-seed0/data"))
    assert reverse == [[tgt, src] for src, tgt in ids(parallel)]

    record = json.loads((ROOT / "results/back_translation.json").read_text("utf-8"))
    assert record["table"].keys() == table.keys()
    about = json.loads((tmp_path / "out/reverse.json").read_text("utf-8"))
    assert record["reverse"].keys() == about.keys()
    row = table["rows"][0]
    for recorded in record["table"]["rows"]:
        assert recorded.keys() == row.keys()
        assert all(one.keys() == row["found"][0].keys() for one in recorded["found"])


def test_the_record_has_the_base_of_since_2017():
    "Base is trained by that program, so text, settings and search must be equal."
    ours, base = (
        json.loads((ROOT / f"results/{name}.json").read_text("utf-8"))["table"]
        for name in ("back_translation", "since_2017")
    )
    for key in ("data", "train_text", "valid_text", "beam_size", "alpha"):
        assert ours[key] == base[key]
    for part in ("model", "train"):
        both = ours[part].keys() & base[part].keys()
        assert len(both) > 10 and all(ours[part][k] == base[part][k] for k in both)
    rows = {row["row"] for row in base["rows"]}
    assert "base" in rows and not rows & {row["row"] for row in ours["rows"]}
    for row in ours["rows"]:
        assert (row["n_parallel"], row["n_added"]) == (10_000, 19_000)
