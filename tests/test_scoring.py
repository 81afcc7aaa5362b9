"Three scoring functions: their formulas, what is measured of them, and that what notebook 321a says follows from the record."

import json
import math
import runpy
import sys

import pytest
import torch
from conftest import ROOT
from torch import nn

from annotated_transformer.attention import attention
from annotated_transformer.background import AdditiveAttention

TINY = """--d-k 4 16 --d-model 16 --d-ff 16 --n-layers 1 --steps 3 --rates 1e-3 2e-3 --seeds 0 1
--n-train 300 --n-test 12 --n-pieces 400 --batch-tokens 200 --n 4 8 --cost-d-k 4 --rounds 1""".split()


@pytest.fixture(scope="module")
def bench() -> dict:
    "The names of benchmarks/scoring.py."
    return runpy.run_path(str(ROOT / "benchmarks/scoring.py"), run_name="bench")


@pytest.fixture(scope="module")
def record() -> dict:
    return json.loads((ROOT / "results/scoring.json").read_text(encoding="utf-8"))


def random_inputs(b: int = 2, h: int = 3, d_k: int = 8):
    "Query, key, value and mask; one query of one sentence is fully masked."
    torch.manual_seed(0)
    q, k, v = (torch.randn(b, h, n, d_k, dtype=torch.float64) for n in (5, 7, 7))
    mask = torch.rand(b, 1, 5, 7) > 0.4
    mask[0, 0, 1] = False
    return q, k, v, mask


def test_scores_are_their_formulas(bench):
    q, k, v, mask = random_inputs()
    scaled, unscaled, additive = (
        bench["Attend"](bench[name](3, 8)).double()
        for name in ("Scaled", "Unscaled", "Additive")
    )
    torch.testing.assert_close(scaled(q, k, v, mask), attention(q, k, v, mask))
    wider = attention(q * math.sqrt(8), k, v, mask)
    torch.testing.assert_close(unscaled(q, k, v, mask), wider)
    oracle = AdditiveAttention(8, 8).double()
    oracle.w_q = oracle.w_k = nn.Identity()  # the projections of the head are outside
    for head in range(3):
        oracle.v.weight.data = additive.score.v[head].T
        torch.testing.assert_close(
            additive(q, k, v, mask)[:, head],
            oracle(q[:, head], k[:, head], v[:, head], mask[:, 0]),
        )
    for attend in (scaled, unscaled, additive):
        everything = torch.ones_like(mask)
        torch.testing.assert_close(attend(q, k, v), attend(q, k, v, everything))


def test_of_queries_is_plain_loops(bench):
    q, k, _, mask = random_inputs()
    scores = (q @ k.mT).requires_grad_()
    scores.grad = torch.randn_like(scores)
    wanted = []
    for b in range(2):
        for head in range(3):
            for i in range(5):
                allowed = scores[b, head, i][mask[b, 0, i]].detach()
                if len(allowed) > 1:
                    weights = allowed.softmax(dim=-1)
                    entropy = -(weights * weights.log()).sum() / math.log(len(allowed))
                    std = allowed.std(correction=0)
                    wanted.append(
                        torch.stack([std, entropy, scores.grad[b, head, i].norm()])
                    )
    found = bench["of_queries"](scores, mask)
    torch.testing.assert_close(found, torch.stack(wanted, dim=1))


def test_peak_bytes_counts_what_is_held_at_once(bench):
    def one_after_the_other():
        for _ in range(3):
            torch.ones(1000)

    def together():
        return [torch.ones(1000) for _ in range(3)]

    assert bench["peak_bytes"](one_after_the_other) == 4_000
    assert bench["peak_bytes"](together) == 12_000


def test_a_smaller_start_has_the_scaled_scores(bench, monkeypatch, tmp_path):
    "Apart from the score, models of one seed start from the same weights."
    monkeypatch.setattr(sys, "argv", ["scoring.py", *TINY])
    args = bench["parse_args"]()
    data = bench["load_data"](args)
    batch = data.valid[0]

    def hidden(name):
        torch.manual_seed(3)
        model = bench["build"](name, 16, data, args).eval()
        with torch.no_grad():
            return model(batch.src, batch.tgt_in)

    torch.testing.assert_close(
        hidden(bench["SMALLER"]), hidden("scaled"), atol=1e-5, rtol=1e-5
    )
    torch.manual_seed(3)
    additive = bench["build"]("additive", 16, data, args).state_dict()
    torch.manual_seed(3)
    for name, p in bench["build"]("unscaled", 16, data, args).state_dict().items():
        assert torch.equal(p, additive[name]), name


def test_benchmark_trains_and_measures(monkeypatch, tmp_path, capsys):
    "All that the notebook reads is there, at any size; started again, nothing is trained twice."
    out = tmp_path / "scoring.json"
    monkeypatch.setattr(sys, "argv", ["scoring.py", *TINY, "--out", str(out)])
    path = str(ROOT / "benchmarks/scoring.py")
    runpy.run_path(path, run_name="__main__")
    text = out.read_text(encoding="utf-8")
    found = json.loads(text)
    names = {"additive", "scaled", "unscaled"}
    assert set(found["models"]["4"]) == names == set(found["cost"]["seconds"])
    assert set(found["models"]["16"]) == names | {"unscaled, smaller start"}
    for of_width in found["models"].values():
        for model in of_width.values():
            assert set(model["tries"]) == {"0.001", "0.002"}
            assert [run["seed"] for run in model["runs"]] == [0, 1]
            for run in model["runs"]:
                assert [step for step, _ in run["curve"]] == [0, 1, 2, 3]
                assert run["curve"][-1][1] == run["valid_loss"]
    longer = {
        (d_k, name): model["longer"]["curve"][-1][0]
        for d_k, of_width in found["models"].items()
        for name, model in of_width.items()
        if "longer" in model
    }
    assert longer == {("4", name): 6 for name in names} | {("16", "unscaled"): 6}
    for sizes in found["cost"]["peak_bytes"].values():
        assert len(sizes) == 2 and 0 < sizes[0] < sizes[1]
    capsys.readouterr()
    runpy.run_path(path, run_name="__main__")
    assert out.read_text(encoding="utf-8") == text and not capsys.readouterr().out
    monkeypatch.setattr(
        sys, "argv", ["scoring.py", *TINY, "--steps", "4", "--out", str(out)]
    )
    with pytest.raises(SystemExit, match="has other settings"):
        runpy.run_path(path, run_name="__main__")
