"benchmarks/ingredients.py, with two tiny rows of the synthetic corpus in place of Multi30k."

import json
from types import SimpleNamespace

import pytest
from conftest import benchmark
from safetensors.torch import load_file

from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.vocab import Vocab
from annotated_transformer.model.config import get_recipe, override

SETTINGS = [
    "n_layers=1",
    "d_model=32",
    "d_ff=64",
    "n_heads=2",
    "n_pieces=500",
    "max_steps=4",
    "warmup_steps=2",
    "batch_tokens=400",
    "valid_every=2",
    "save_every=2",
    "precision=fp32",
]


@pytest.fixture(scope="module")
def bench() -> SimpleNamespace:
    return benchmark("ingredients")


def test_rows_are_settings_of_a_recipe(bench):
    "Each row gives another recipe, with the settings that its name says."
    recipes = {row: bench.recipe_of(row, 0, []) for row in bench.ROWS}
    assert len(set(map(str, recipes.values()))) == len(recipes)
    assert recipes["small, post-norm"] == get_recipe("multi30k-small")
    assert recipes["tiny, half weights"] == get_recipe("multi30k-tiny")
    r_drop = recipes["tiny, half weights, dropout 0.2, R-Drop"]
    assert r_drop == get_recipe("multi30k-tiny-r-drop")
    assert (r_drop.train.dropout, r_drop.train.batch_tokens) == (0.2, 1024)
    without = recipes["tiny, half weights, dropout 0.2"]
    assert override(without, ["r_drop=3"]) == r_drop
    for row, recipe in recipes.items():
        assert (recipe.model.d_model == 128) == row.startswith("tiny")
        assert (recipe.model.norm == "pre") == ("pre-norm" in row)
        assert (recipe.train.r_drop > 0) == ("R-Drop" in row)
        assert (recipe.train.bpe_dropout > 0) == ("BPE-dropout" in row)
        assert (recipe.train.init_gain == 0.5) == ("half weights" in row)
        assert (recipe.train.attention_dropout > 0) == ("attention dropout" in row)
    assert bench.recipe_of("small, post-norm", 7, []).train.seed == 7


def test_from_text_to_record(bench, tmp_path, monkeypatch, capsys):
    "Two rows are trained and scored; a second call trains nothing and finds the same."
    corpus = load_corpus("builtin", n_train=300, n_valid=10, n_test=10)
    main, out = bench.main, tmp_path / "found.json"
    monkeypatch.setitem(main.__globals__, "load_corpus", lambda *_: corpus)
    rows = ["small, post-norm", "tiny, pre-norm"]
    order = ["--runs", str(tmp_path / "runs"), "--out", str(out), "--rows", *rows]
    records = []
    for _ in range(2):
        main([*order, "--set", *SETTINGS])
        records.append(json.loads(out.read_text(encoding="utf-8")))
    assert records[0] == records[1]
    assert [run["row"] for run in records[0]["runs"]] == rows
    vocab = Vocab.load(tmp_path / "runs" / "tiny_pre-norm_0" / "vocab.model")
    n_tokens = sum(len(vocab.encode(tgt)) + 1 for _, tgt in corpus.valid)
    for run in records[0]["runs"]:
        assert run["steps"] == 4 and [step for step, _ in run["curve"]] == [2, 4]
        tried = {each["alpha"]: each["bleu"] for each in run["validation"]}
        assert tried[run["alpha"]] == max(tried.values())
        assert {"greedy", "greedy_on_train", "last_checkpoint"} <= run.keys()
        assert "Moses, lower case" in run["test"]
        assert run["tokens_per_sentence"] == n_tokens / 10

    weights = []

    def read(_, folder, *__):
        weights.append(load_file(folder / "model.safetensors"))

    monkeypatch.setitem(main.__globals__, "bleu_on", read)
    run = tmp_path / "runs" / "tiny_pre-norm_0"
    bench.last_checkpoint_bleu(corpus.valid, run, "cpu", 1.0)
    read(corpus.valid, run)
    read(corpus.valid, run / "checkpoints" / "step-0000004")
    scored, average, newest = ({k: v.tolist() for k, v in w.items()} for w in weights)
    assert scored == newest != average

    asked = []

    def note(pairs, run, device, beam_size, alpha):
        asked.append((len(pairs), beam_size))
        return alpha

    monkeypatch.setitem(main.__globals__, "bleu_on", note)
    assert bench.scored(run, corpus, "cpu")["alpha"] == max(bench.ALPHAS)
    assert asked == [(10, 5)] * 3 + [(10, 1), (300, 1), (10, 5)]
