"What the page of costs says follows from its record, and the benchmark that makes the record runs."

import json
import os
import re
import runpy
import sys
from functools import cache

import pytest
import torch
from conftest import ROOT
from notebooks import code_of, directives, joined
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.config import get_recipe

CELLS = json.loads((ROOT / "nbs/costs.ipynb").read_text(encoding="utf-8"))["cells"]


@cache
def page() -> dict:
    "The names that the page's cells define."
    import matplotlib as mpl

    mpl.use("Agg")
    here, names = os.getcwd(), {}
    os.chdir(ROOT / "nbs")
    try:
        for cell in CELLS:
            if cell["cell_type"] == "code":
                exec(compile(code_of(joined(cell["source"])), "costs", "exec"), names)
    finally:
        os.chdir(here)
    return names


@cache
def bench() -> dict:
    "What the benchmark defines."
    return runpy.run_path(str(ROOT / "benchmarks/cost.py"))


def exponents(*curves: tuple) -> list[float]:
    "Of the costs, named by what, axis, fixed sizes and kind of cost."
    found = []
    for what, axis, fixed, cost in curves:
        one = page()["curve"](what, axis, **fixed)
        found.append(page()["exponent"](one, one[cost]))
    return found


# ---- the record


def test_the_record_has_every_curve():
    found = page()["found"]
    assert (found["threads"], found["sweeps"]) == (1, 3)
    wanted = [
        (c.what, c.axis, c.values, c.fixed._asdict()) for c in bench()["curves"]()
    ]
    assert wanted == [
        (c["what"], c["axis"], c["values"], c["fixed"]) for c in found["curves"]
    ]
    for one in found["curves"]:
        costs = [one["seconds"], one["mb"], one.get("plain_mb", one["mb"])]
        assert all(len(c) == len(one["values"]) and min(c) > 0 for c in costs)


def test_counted_memory_is_near_that_of_a_process():
    for check in page()["found"]["resident"]:
        assert check["resident_mb"] == pytest.approx(check["mb"], rel=0.35), check


# Figure: the costs whose exponents its caption has, in this order.
CAPTIONS = {
    "fig-length": [
        ("training", "length", {"d_model": 64}, "seconds"),
        ("training", "length", {"d_model": 512}, "seconds"),
    ],
    "fig-sizes": [
        ("training", axis, {}, "seconds")
        for axis in ("d_model", "n_layers", "n_vocab", "tokens")
    ],
    "fig-memory": [
        ("training", "length", {"d_model": 256}, "mb"),
        ("training", "length", {"d_model": 256}, "plain_mb"),
        ("training", "n_vocab", {}, "plain_mb"),
    ],
    "fig-translating": [
        ("greedy", "length", {}, "seconds"),
        ("beam", "length", {}, "seconds"),
        ("no cache", "length", {}, "seconds"),
    ],
    "fig-lines": [
        ("greedy", "lines", {}, "seconds"),
        ("greedy", "lines", {}, "mb"),
        ("beam", "beam", {}, "seconds"),
        ("beam", "beam", {}, "mb"),
    ],
}


def test_captions_have_the_records_exponents():
    "To one decimal; a new record may need new captions."
    found = {}
    for cell in CELLS:
        about = directives(joined(cell["source"]))
        if caption := about.get("fig-cap"):
            found[about["label"]] = re.findall(r"\d\.\d", caption)
    right = {
        label: [f"{p:.1f}".replace("-0.0", "0.0") for p in exponents(*curves)]
        for label, curves in CAPTIONS.items()
    }
    assert found == right


# ---- what the page counts


@pytest.mark.parametrize("what", ["training", "greedy", "beam", "no cache"])
def test_counts_are_those_of_pytorch(what):
    "Every product is counted; in a beam search the first step has one hypothesis."
    z = bench()["Sizes"](64, 2, 50, 8, 16, 2, 2)
    torch.manual_seed(0)
    if what == "training":
        model = bench()["build_plain"](z)
        with FlopCounterMode(display=False) as counter:
            model.gradients(z.length, z.tokens)
        count = 2 * page()["training_count"](z._asdict())
        assert counter.get_total_flops() == count
        return
    model = bench()["Translating"](z.config(), z.n_vocab)
    for module in model.model.modules():  # packed products are not counted
        if hasattr(module, "plain_rows"):
            module.plain_rows = 2**62
    with FlopCounterMode(display=False) as counter:
        model.action(what, z)()
    count = 2 * page()["translating_count"](z._asdict(), what)
    assert counter.get_total_flops() == pytest.approx(
        count, rel=0.1 if what == "beam" else 1e-6
    )


# ---- estimates


def test_estimates_by_arithmetic():
    "The steps of the table from the record and from the counts, worked out again."
    found, names = page()["found"]["steps"], ("base", "big")
    rows = {machine: seconds for machine, _, seconds in page()["machines"]}
    for i, name in enumerate(names):
        for precision in ("fp32", "bf16"):
            at = found[name][precision]
            step = (25_000 * at["seconds_per_token"] + at["adam_seconds"]) / 2
            assert rows[f"2 cores, {precision}"][i] == pytest.approx(step)
        m = get_recipe(name).model
        assert (m.d_ff, m.n_heads * 64) == (4 * m.d_model, m.d_model)  # as counted
        weights = m.n_layers * 28 * m.d_model**2 + 37_000 * m.d_model
        products = weights + m.n_layers * 6 * 28 * m.d_model
        step = 6 * 25_000 * products / (0.45 * 989e12)
        assert rows["1 × H100"][i] == pytest.approx(step)
        assert rows["8 × H100"][i] == pytest.approx(step / 8)
    assert page()["machines"][-1][2] == [0.4, 1.0]  # §5.2
    base = 100_000 * rows["1 × H100"][0]
    assert page()["duration"](base) in (
        f"{base / 60:.0f} minutes",
        f"{base / 3600:.1f} hours",
    )


def test_rates_of_a_gpu_record():
    rates = page()["rates"]
    made = {"ours": 5, "ours, compiled": 7, "torch.nn.Transformer": 3}
    contenders = {name: {"tokens_per_s": rate} for name, rate in made.items()}
    inside = {"precision": "bf16", "base": {"contenders": contenders}}
    assert rates({"date": "", "gpu": {"train": inside}}, "base") == [5, 7]
    assert rates({"gpu": {"train": inside}}, "big") == []


# ---- the benchmark


def test_benchmark_runs(tmp_path, monkeypatch):
    "At its smallest sizes: every curve, both memories, a step of both models."
    out = tmp_path / "cost.json"
    arguments = ["cost.py", "--tiny", "--sweeps", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    n_threads = torch.get_num_threads()
    runpy.run_path(str(ROOT / "benchmarks/cost.py"), run_name="__main__")
    torch.set_num_threads(n_threads)
    found = json.loads(out.read_text(encoding="utf-8"))
    assert {(c["what"], c["axis"]) for c in found["curves"]} == {
        (c.what, c.axis) for c in bench()["curves"]()
    }
    assert all(min(c["seconds"]) > 0 and min(c["mb"]) > 0 for c in found["curves"])
    assert found["steps"].keys() == {"base", "big"} and found["resident"][0]["mb"] > 0
