"The programs of results/ on tiny models: each makes all that its record holds, and goes on where it was interrupted."

import json
import sys

import pytest
import torch
from conftest import ROOT, program

from annotated_transformer.data.corpus import load_corpus

pytestmark = pytest.mark.slow

TINY = """n_layers=1 d_model=32 d_ff=64 n_heads=2 vocab_size=500 max_steps=4 warmup_steps=2
batch_tokens=400 valid_every=2 save_every=2 precision=fp32""".split()
SCORING = """--d-k 4 16 --d-model 16 --d-ff 16 --n-layers 1 --steps 2 --rates 1e-3 2e-3
--seeds 0 --n-train 200 --n-test 4 --vocab-size 400 --batch-tokens 200 --n 4 8
--cost-d-k 4 --rounds 1"""
GPT = """--d-model 16 --d-ff 32 --steps 2 --rates 1e-3 2e-3 --seeds 0 1 --n-train 200
--n-test 4 --vocab-size 400 --batch-tokens 200 --valid-every 1"""
BACKGROUND = "--steps 2 --rates 1e-3 2e-3 --seeds 0 1 --n-train 200"
DEMO = str(ROOT / "annotated_transformer/pretrained/demo")
OPTIONS = {
    "recall": "--distances 2 --rates 0.01 --seeds 0 1 --updates 25".split(),
    "heads": [DEMO, "--n", "4"],
    "structure": [DEMO, "--n", "60", "--translate", "2"],
    "scoring": SCORING.split(),
    "gpt": GPT.split(),
    "background": BACKGROUND.split(),
    "workbook": ["--steps", "2"],
    "teaching": ["--names", "workbook"],
    "divergence": ["--rows", "post-norm", "--set", *TINY, "max_steps=50"],
    "ingredients": ["--runs", "runs", "--rows", "tiny, pre-norm", "--set", *TINY],
}
GO_ON = ("background", "scoring", "gpt", "ingredients")  # where they were interrupted


@pytest.fixture
def corpus(monkeypatch):
    "A small synthetic corpus in place of Multi30k."
    corpus = load_corpus("builtin", n_train=300, n_valid=10, n_test=10)
    load = "annotated_transformer.data.corpus.load_corpus"
    small = lambda name, *_, **sizes: (
        corpus if name == "multi30k" else load_corpus(name, **sizes)
    )
    monkeypatch.setattr(load, small)


def keys(found: dict | list) -> set[str]:
    "All names but those of options, as numbers and names of rows are."
    if isinstance(found, list):
        return set().union(*map(keys, found))
    if not isinstance(found, dict):
        return set()
    return {k for k in found if k[0].isalpha()}.union(*map(keys, found.values()))


@pytest.mark.parametrize("name", OPTIONS)
def test_a_program_makes_what_its_record_holds(name, corpus, monkeypatch, tmp_path):
    "Every key of the record is there, at the same depth; nothing is trained twice, or its times would differ."
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name, *OPTIONS[name], "--out", "found.json"])
    record = json.loads((ROOT / f"results/{name}.json").read_text("utf-8"))
    record = record["steps" if name == "background" else name]
    n_threads, before = torch.get_num_threads(), None
    for _ in range(1 + (name in GO_ON)):
        program(f"results/{name}.py", "__main__")
        torch.set_num_threads(n_threads)
        found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
        assert keys(found) == keys(record) and before in (None, found)
        before = found
