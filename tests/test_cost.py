"What the page of costs says follows from its record, and its counts are those of PyTorch."

import json
import os
import re
from functools import cache

import matplotlib as mpl
import pytest
import torch
from conftest import ROOT, program
from notebooks import code_of, directives, joined
from torch.utils.flop_counter import FlopCounterMode

CELLS = json.loads((ROOT / "nbs/costs.ipynb").read_text(encoding="utf-8"))["cells"]
BENCH = program("benchmarks/cost.py")


@cache
def page() -> dict:
    "The names that the page's cells define."
    mpl.use("Agg")
    here, names = os.getcwd(), {}
    os.chdir(ROOT / "nbs")
    try:
        for cell in CELLS:
            if cell["cell_type"] == "code":
                exec(code_of(joined(cell["source"])), names)
    finally:
        os.chdir(here)
    return names


# Figure: the costs whose exponents its caption has, in this order.
WIDE = {"d_model": 256}
CAPTIONS = {
    "fig-length": [
        ("training", "length", {"d_model": d}, "seconds") for d in (64, 512)
    ],
    "fig-sizes": [
        ("training", axis, {}, "seconds")
        for axis in ("d_model", "n_layers", "n_vocab", "tokens")
    ],
    "fig-memory": [
        ("training", "length", WIDE, "mb"),
        ("training", "length", WIDE, "plain_mb"),
        ("training", "n_vocab", {}, "plain_mb"),
    ],
    "fig-translating": [
        (how, "length", {}, "seconds") for how in ("greedy", "beam", "no cache")
    ],
    "fig-lines": [
        (how, axis, {}, cost)
        for how, axis in (("greedy", "lines"), ("beam", "beam"))
        for cost in ("seconds", "mb")
    ],
}


def test_captions_have_the_records_exponents():
    "To one decimal; a new record may need new captions."
    abouts = [directives(joined(cell["source"])) for cell in CELLS]
    found = {
        about["label"]: re.findall(r"\d\.\d", about["fig-cap"])
        for about in abouts
        if "fig-cap" in about
    }
    right = {label: [] for label in CAPTIONS}
    for label, costs in CAPTIONS.items():
        for what, axis, fixed, cost in costs:
            one = page()["curve"](what, axis, **fixed)
            p = page()["exponent"](one, one[cost])
            right[label].append(f"{p:.1f}".replace("-0.0", "0.0"))
    assert found == right


@pytest.mark.parametrize("what", ["training", "greedy", "beam", "no cache"])
def test_counts_are_those_of_pytorch(what):
    "Every product is counted; in a beam search the first step has one hypothesis."
    z = BENCH.Sizes(64, 2, 50, 8, 16, 2, 2)
    torch.manual_seed(0)
    if what == "training":
        model = BENCH.build_plain(z)
        action, count = model.gradients, page()["training_count"](z._asdict())
        given = z.length, z.tokens
    else:
        model = BENCH.Translating(z.config(), z.n_vocab)
        for module in model.model.modules():  # packed products are not counted
            if hasattr(module, "_packed"):
                module._packed = None
        action, given = model.action(what, z), ()
        count = page()["translating_count"](z._asdict(), what)
    with FlopCounterMode(display=False) as counter:
        action(*given)
    tolerance = 0.1 if what == "beam" else 1e-6
    assert counter.get_total_flops() == pytest.approx(2 * count, rel=tolerance)
