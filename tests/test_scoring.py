"Three scoring functions: their formulas, what is measured of them, and that what notebook 321a says follows from the record."

import json
import math
import runpy
import sys

import pytest
import torch
from conftest import ROOT
from torch import nn

from annotated_transformer.experiments.background import AdditiveAttention
from annotated_transformer.model.attention import attention

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


# what notebook 321a says of the record


def mean(model: dict, *keys: str) -> float:
    values = []
    for run in model["runs"]:
        for key in keys:
            run = run[key]
        values.append(run)
    return sum(values) / len(values)


def test_the_record_is_of_equal_models(record):
    found = record["scoring"]
    settings, models = found["settings"], found["models"]
    n_attentions = 3 * settings["n_layers"]
    plain = {
        model["n_parameters"]
        for of_width in models.values()
        for name, model in of_width.items()
        if name != "additive"
    }
    assert len(plain) == 1 and list(models) == ["8", "128"]
    for d_k, of_width in models.items():
        more = of_width["additive"]["n_parameters"] - plain.copy().pop()
        assert more == n_attentions * of_width["additive"]["n_heads"] * int(d_k)
        for model in of_width.values():
            assert [run["seed"] for run in model["runs"]] == settings["seeds"]
            assert {run["peak_lr"] for run in model["runs"]} == {model["peak_lr"]}
            assert model["runs"][0]["valid_loss"] == min(model["tries"].values())
            assert len(model["tries"]) == len(settings["rates"]) == 3


def test_the_record_says_that_the_scale_mends_wide_keys(record):
    models = record["scoring"]["models"]
    narrow, wide = (
        {name: mean(model, "valid_loss") for name, model in of_width.items()}
        for of_width in models.values()
    )
    # wide: unscaled far behind, at every rate; additive and scaled alike
    tries = models["128"]["unscaled"]["tries"].values()
    assert min(tries) > 4 * max(wide["additive"], wide["scaled"])
    assert mean(models["128"]["unscaled"], "exact_match") < 0.01
    assert wide["additive"] < 1.3 * wide["scaled"]
    # narrow: the scale matters much less, and additive is behind, but only at first
    assert narrow["scaled"] < narrow["unscaled"] < 1.5 * narrow["scaled"]
    assert narrow["unscaled"] < narrow["additive"] < 0.4
    for name in ("additive", "scaled", "unscaled"):
        assert models["8"][name]["longer"]["exact_match"] > 0.95
    assert models["128"]["unscaled"]["longer"]["exact_match"] < 0.1
    # about as good with one head as with 16
    assert abs(narrow["scaled"] - wide["scaled"]) < 0.02
    # a smaller start: learns, more slowly than with the scale
    smaller = wide["unscaled, smaller start"]
    assert 1.5 * wide["scaled"] < smaller < 0.4 * wide["unscaled"]


def test_the_record_says_why(record):
    narrow, wide = record["scoring"]["models"].values()
    first = {
        name: mean(model, "start", "entropy")
        for name, model in (narrow | {f"wide {n}": m for n, m in wide.items()}).items()
    }
    assert first.pop("wide unscaled") < 0.2 and min(first.values()) > 0.5
    growth = mean(wide["unscaled"], "start", "score_std") / mean(
        narrow["unscaled"], "start", "score_std"
    )
    assert growth == pytest.approx(math.sqrt(128 / 8), rel=0.1)
    assert mean(wide["unscaled"], "end", "gradient") < 1e-7
    assert mean(wide["scaled"], "end", "gradient") > 1e-4
    for when in ("start", "end"):  # of the scaled scores, exactly, before training
        a, b = (wide[n]["runs"][0][when] for n in ("scaled", "unscaled, smaller start"))
        assert (a == pytest.approx(b, rel=0.01)) == (when == "start")
    # narrow additive weights stay flat
    last = {name: mean(model, "end", "entropy") for name, model in narrow.items()}
    assert last["additive"] > 0.85 > 0.7 > last["scaled"]


def test_the_record_says_what_additive_attention_costs(record):
    cost = record["scoring"]["cost"]
    assert (cost["n"][0], cost["n"][-1]) == (16, 1024)
    for key, at_least in (("seconds", 30), ("peak_bytes", 60)):
        ratios = [
            a / s
            for a, s in zip(cost[key]["additive"], cost[key]["scaled"], strict=True)
        ]
        assert ratios == sorted(ratios) and ratios[-1] > at_least


def test_the_records_bytes_repeat(bench, record):
    "Bytes are counted, so they do not depend on the machine."
    cost = record["scoring"]["cost"]
    n, d_k = cost["n"][2], cost["d_k"]
    inputs = [torch.randn(1, 1, n, d_k, requires_grad=True) for _ in range(3)]
    for name, score in bench["SCORES"].items():
        attend = bench["Attend"](score(1, d_k))
        found = bench["peak_bytes"](
            lambda attend=attend: bench["both_passes"](
                attend, inputs, inputs[0].detach()
            )
        )
        assert found == pytest.approx(cost["peak_bytes"][name][2], rel=0.01)
