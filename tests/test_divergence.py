"benchmarks/divergence.py: its measures against values computed by hand, and its rows."

import json
from types import SimpleNamespace

import pytest
import torch
from conftest import benchmark
from test_ingredients import SETTINGS

from annotated_transformer.data.batch import Batch
from annotated_transformer.data.corpus import load_corpus


@pytest.fixture(scope="module")
def bench() -> SimpleNamespace:
    return benchmark("divergence")


def test_similarity_is_the_mean_over_pairs_of_positions(bench):
    "Three vectors have three pairs: two equal ones, and one at right angles to both."
    memory = torch.tensor([[[2.0, 0.0], [5.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    real = torch.tensor([[1.0, 1.0, 1.0, 0.0]])  # the last is padding
    assert bench.similarity(memory, real) == pytest.approx(1 / 3)
    assert bench.similarity(memory[:, :2], real[:, :2]) == pytest.approx(1)


def test_other_sources_leave_the_targets(bench):
    src, tgt = torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.ones(3, 2).long()
    batch = bench.with_other_sources(Batch(src, tgt, tgt + 1, 6))
    assert batch.src.tolist() == [[5, 6], [1, 2], [3, 4]]
    assert batch.tgt_out.equal(tgt + 1)


def test_rows_differ_in_one_thing(bench):
    recipes = {row: bench.recipe_of(row, 0, []) for row in bench.ROWS}
    assert len(set(map(str, recipes.values()))) == len(recipes)
    for row, recipe in recipes.items():
        assert (recipe.model.norm == "pre") == (row == "pre-norm")
        assert recipe.train.peak_lr == (1e-3 if "1e-3" in row else 4e-3)


def test_from_text_to_record(bench, tmp_path, monkeypatch, capsys):
    "Two rows of some steps; smaller initial weights give another loss at step 1."
    corpus = load_corpus("builtin", n_train=300, n_valid=10, n_test=10)
    main, out = bench.main, tmp_path / "found.json"
    monkeypatch.setitem(main.__globals__, "load_corpus", lambda *_: corpus)
    rows = ["post-norm", "half of the initial weights"]
    main(["--out", str(out), "--rows", *rows, "--set", *SETTINGS, "max_steps=50"])
    found = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [each["row"] for each in found] == rows
    for each in found:
        assert [point["step"] for point in each["curve"]] == [1, 50]
        assert each["curve"][1]["loss"] < each["curve"][0]["loss"]
    assert found[0]["curve"][0] != found[1]["curve"][0]
