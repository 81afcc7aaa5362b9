"What the page of costs says follows from its record, and the benchmark that makes the record runs."

import gc
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

from annotated_transformer.model.config import get_recipe

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
    "Which also holds what the allocator kept: at most 1.7 times the count here."
    for check in page()["found"]["resident"]:
        assert 1 / 1.7 < check["resident_mb"] / check["mb"] < 1.7, check


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
        if hasattr(module, "_packed"):
            module._packed = None
    with FlopCounterMode(display=False) as counter:
        model.action(what, z)()
    count = 2 * page()["translating_count"](z._asdict(), what)
    assert counter.get_total_flops() == pytest.approx(
        count, rel=0.1 if what == "beam" else 1e-6
    )


# ---- exponents


def test_exponents_of_known_powers():
    "Of a power at any size; of a sum, the powers weighted by their shares."
    n = [8, 16, 32, 64, 128, 256]
    power = page()["exponent"]
    first = page()["first_exponent"]
    for p in (0, 1, 2.5):
        one = {"values": n, "costs": [3 * x**p for x in n]}
        assert power(one, one["costs"]) == pytest.approx(p, abs=1e-9)
        assert first(one, one["costs"]) == pytest.approx(p, abs=1e-9)
    bent = [100 if x <= 64 else 100 * (x / 64) ** 2 for x in n]
    assert first({"values": n}, bent) == pytest.approx(0, abs=1e-9)
    # 2 · n + n² / 50: at n = 100 the second term is half of the cost
    close = [99.9, 100, 100.1, 100.2]
    found = power({"values": close}, [2 * x + x * x / 50 for x in close])
    assert found == pytest.approx(0.5 * 1 + 0.5 * 2, abs=1e-3)


def test_table_has_every_size_once():
    "A row for each kind of work and size, with its figures from the record."
    what = {(c["what"], c["axis"]) for c in page()["found"]["curves"]}
    rows = [page()["exponents_of"](*one) for one in what]
    assert len(set(rows)) == len(what) == 17
    one = page()["curve"]("training", "n_vocab")
    cells = page()["exponents_of"]("training", "n_vocab").split(" | ")
    assert cells[3] == f"{page()['exponent'](one, one['seconds']):.2f}"


# ---- the estimate


def test_estimate_by_arithmetic():
    "The steps of the table from the records and from the counts, worked out again."
    at = page()["found"]["base_step"]
    speed = json.loads((ROOT / "results/bench_train_base.json").read_text())["speed"]
    rows = {machine: seconds for machine, _, seconds in page()["machines"]}
    for precision in ("fp32", "bf16"):
        one = at[precision]
        step = 25_000 * one["seconds_per_token"] + one["adam_seconds"]
        assert rows[f"1 core, {precision}"] == pytest.approx(step)
        both = 25_000 / speed[precision]["ours"]["tokens_per_s"]
        assert rows[f"2 cores, {precision}"] == pytest.approx(both)
    m = get_recipe("base").model
    assert (m.d_ff, m.n_heads * 64) == (4 * m.d_model, m.d_model)  # as counted
    weights = m.n_layers * 28 * m.d_model**2 + 37_000 * m.d_model
    products = weights + m.n_layers * 6 * 28 * m.d_model
    flops = 6 * 25_000 * products
    assert page()["share"] == pytest.approx(flops / (0.4 * 8 * 9.5e12))
    step = 0.4 * 8 * 9.5e12 / 989e12  # at an equal share the count cancels
    assert rows["1 × H100"] == pytest.approx(step)
    assert rows["8 × H100"] == pytest.approx(step / 8)
    assert rows["8 × P100"] == 0.4  # §5.2
    assert page()["n_steps"] == 100_000


def test_memory_of_a_step_is_a_line():
    "Through both measurements, with the 12 bytes of a parameter that are always there."
    n = page()["found"]["base_step"]["n_parameters"]
    found = page()["step_gb"]({"mb": 100, "mb_of_twice": 110}, n_tokens=500)
    assert found == pytest.approx((12 * n + 1e6 * (90 + 10 * 25_000 / 500)) / 1e9)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(600, "10 minutes"), (9000, "2.5 hours"), (2e5, "2.3 days"), (9e7, "1,042 days")],
)
def test_durations(seconds, shown):
    assert page()["duration"](seconds) == shown


def test_rates_of_a_gpu_record():
    rates = page()["rates"]
    made = {"ours": 5, "ours, compiled": 7, "torch.nn.Transformer": 3}
    contenders = {name: {"tokens_per_s": rate} for name, rate in made.items()}
    base, big = {"contenders": contenders}, {"contenders": {"ours": {}}}
    inside = {"precision": "bf16", "base": base, "big": big}
    assert rates({"date": "", "found": {"train": inside}}) == [5, 7]
    assert rates({"found": {"ddp": {"big": big}}}) == []


# ---- the benchmark


def test_benchmark_runs(tmp_path, monkeypatch):
    "At its smallest sizes: every curve, both memories, a step."
    out = tmp_path / "cost.json"
    arguments = ["cost.py", "--tiny", "--sweeps", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    n_threads = torch.get_num_threads()
    runpy.run_path(str(ROOT / "benchmarks/cost.py"), run_name="__main__")
    torch.set_num_threads(n_threads)
    gc.unfreeze()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert {(c["what"], c["axis"]) for c in found["curves"]} == {
        (c.what, c.axis) for c in bench()["curves"]()
    }
    assert all(min(c["seconds"]) > 0 and min(c["mb"]) > 0 for c in found["curves"])
    assert found["base_step"]["bf16"]["mb_of_twice"] > found["base_step"]["bf16"]["mb"]
    assert found["base_step"]["bf16"]["mb"] > 0 and found["resident"][0]["mb"] > 0
