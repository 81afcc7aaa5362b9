"The programs of results/ on tiny models: each makes all that its record holds, and goes on where it was interrupted."

import json
import sys

import pytest
import torch
from conftest import ROOT, program
from safetensors.torch import load_file

from annotated_transformer.data.corpus import load_corpus

pytestmark = pytest.mark.slow

TINY = """n_layers=1 d_model=32 d_ff=64 n_heads=2 n_pieces=500 max_steps=4 warmup_steps=2
batch_tokens=400 valid_every=2 save_every=2 precision=fp32""".split()
SCORING = """--d-k 4 16 --d-model 16 --d-ff 16 --n-layers 1 --steps 2 --rates 1e-3 2e-3
--seeds 0 --n-train 200 --n-test 4 --n-pieces 400 --batch-tokens 200 --n 4 8
--cost-d-k 4 --rounds 1""".split()
GPT = """--d-model 16 --d-ff 32 --steps 2 --rates 1e-3 2e-3 --seeds 0 1 --n-train 200
--n-test 4 --n-pieces 400 --batch-tokens 200 --valid-every 1""".split()
RECALL = "--distances 2 --rates 0.01 --seeds 0 1 --updates 25".split()


@pytest.fixture
def corpus(monkeypatch):
    "A small synthetic corpus in place of Multi30k."
    corpus = load_corpus("builtin", n_train=300, n_valid=10, n_test=10)
    load = "annotated_transformer.data.corpus.load_corpus"
    monkeypatch.setattr(load, lambda *_: corpus)
    return corpus


def run(name: str, monkeypatch, folder, *options) -> dict:
    "What a program writes, which has every key of the record at the same depth."
    out = folder / f"{name}.json"
    monkeypatch.setattr(sys, "argv", [name, *map(str, options), "--out", str(out)])
    n_threads = torch.get_num_threads()
    program(f"results/{name}.py", "__main__")
    torch.set_num_threads(n_threads)
    found = json.loads(out.read_text(encoding="utf-8"))
    record = json.loads((ROOT / f"results/{name}.json").read_text("utf-8"))[name]
    assert keys(found) == keys(record)
    return found


def keys(found: dict | list) -> set[str]:
    "All names but those of options, as numbers and names of rows are."
    if isinstance(found, list):
        return set().union(*map(keys, found))
    if not isinstance(found, dict):
        return set()
    return {k for k in found if k[0].isalpha()}.union(*map(keys, found.values()))


def test_recall(monkeypatch, tmp_path):
    found = run("recall", monkeypatch, tmp_path, *RECALL)
    for of_distance in found["models"].values():
        assert [len(run) for run in of_distance["2"]["accuracies"]["0.01"]] == [1, 1]


def test_heads(monkeypatch, tmp_path):
    demo = ROOT / "annotated_transformer/pretrained/demo"
    found = run("heads", monkeypatch, tmp_path, demo, "--n", 4)
    assert [len(layers[0]) for layers in found["pronouns"]["without"].values()] == [
        4
    ] * 3


def test_structure(monkeypatch, tmp_path):
    demo = ROOT / "annotated_transformer/pretrained/demo"
    options = [demo, "--n", 60, "--translate", 2]
    found = run("structure", monkeypatch, tmp_path, *options)
    example = found["example"]
    for kind, tokens in (("encoder", example["src"]), ("decoder", example["tgt"])):
        for head in example["maps"][kind][0]:
            rows = [row.split() for row in head]
            assert {len(rows), *map(len, rows)} == {len(tokens)}


def test_scoring_goes_on(monkeypatch, tmp_path, capsys):
    found = run("scoring", monkeypatch, tmp_path, *SCORING)
    assert found["models"]["16"]["unscaled"]["longer"]["curve"][-1][0] == 4
    capsys.readouterr()
    again = run("scoring", monkeypatch, tmp_path, *SCORING)
    assert again == found and not capsys.readouterr().out
    with pytest.raises(SystemExit, match="has other settings"):
        run("scoring", monkeypatch, tmp_path, *SCORING, "--steps", 4)


def test_gpt_goes_on(monkeypatch, tmp_path, capsys):
    "Both rates from the first seed, one from the other; nothing is trained twice."
    found = run("gpt", monkeypatch, tmp_path, *GPT)
    for row in found["rows"].values():
        assert [one["seed"] for one in row["runs"]] == [0, 0, 1]
        assert [point[0] for point in row["runs"][0]["curve"]] == [1, 2]
    capsys.readouterr()
    assert run("gpt", monkeypatch, tmp_path, *GPT) == found
    assert not capsys.readouterr().out


def test_divergence(corpus, monkeypatch, tmp_path):
    "Smaller initial weights give another loss at step 1; both learn."
    rows = ["post-norm", "half of the initial weights"]
    options = ["--rows", *rows, "--set", *TINY, "max_steps=50"]
    one, other = run("divergence", monkeypatch, tmp_path, *options)["rows"]
    assert one["curve"][0]["loss"] != other["curve"][0]["loss"]
    for row in (one, other):
        assert [point["step"] for point in row["curve"]] == [1, 50]
        assert row["curve"][1]["loss"] < row["curve"][0]["loss"]


def test_ingredients_are_trained_once(corpus, monkeypatch, tmp_path):
    "The average of checkpoints is what is scored, the newest one for comparison."
    options = ["--runs", tmp_path, "--rows", "tiny, pre-norm", "--set", *TINY]
    [found] = run("ingredients", monkeypatch, tmp_path, *options)["runs"]
    folder = tmp_path / "tiny_pre-norm_0"
    before = load_file(folder / "model.safetensors")
    tried = {each["alpha"]: each["bleu"] for each in found["validation"]}
    assert tried[found["alpha"]] == max(tried.values()) and found["steps"] == 4
    monkeypatch.setattr("annotated_transformer.runs.train_run.train_run", None)
    assert run("ingredients", monkeypatch, tmp_path, *options)["runs"] == [found]
    after = load_file(folder / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
