"What the page of costs says follows from its record, and its counts are those of PyTorch."

import json
import os
import re
from functools import cache

import matplotlib as mpl
import pytest
import torch
from cells import code_of, directives, joined
from conftest import ROOT
from torch.utils.flop_counter import FlopCounterMode

from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.engines.choose import FAST
from annotated_transformer.engines.packed import prepare_for_inference
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import PrefixDecoder
from annotated_transformer.model.transformer import Transformer, build_transformer
from annotated_transformer.training.label_smoothing import smoothed_loss

CELLS = json.loads((ROOT / "nbs/costs.ipynb").read_text(encoding="utf-8"))["cells"]


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


# One small point of the curves; a width has heads of 64.
POINT = {"d_model": 64, "n_layers": 2, "n_vocab": 50, "length": 8, "tokens": 16}
POINT |= {"lines": 2, "beam": 2}
PAD, BOS, EOS = 0, 1, 2


def search(model: Transformer, what: str) -> None:
    "Translate lines whose translations end at their limit."
    with torch.no_grad():
        model.embedding.weight[EOS] = 0  # half of the other logits are greater
    prepare_for_inference(model)
    decoder = (PrefixDecoder if what == "no cache" else FAST.decoder)(model)
    src = torch.randint(3, POINT["n_vocab"], (POINT["lines"], POINT["length"]))
    limits = torch.full((len(src),), POINT["length"])
    find = search_with(beam_size=POINT["beam"] if what == "beam" else 1)
    with torch.inference_mode():
        found = find(decoder.step, decoder.start(src), BOS, EOS, limits)
    assert all(len(best.ids) == POINT["length"] for best, *_ in found)


def train(model: Transformer) -> None:
    "Forward and backward pass of one batch."
    n_rows = POINT["tokens"] // POINT["length"]
    src, tgt = torch.randint(3, POINT["n_vocab"], (2, n_rows, POINT["length"]))
    smoothed_loss(model(src, tgt), model.embedding.weight, tgt, PAD, 0.1).backward()


@pytest.mark.parametrize("what", ["training", "greedy", "beam", "no cache"])
def test_counts_are_those_of_pytorch(what):
    "Every product is counted; in a beam search the first step has one hypothesis."
    torch.manual_seed(0)
    config = ModelConfig(n_layers=2, d_model=64, d_ff=256, n_heads=1)
    is_training = what == "training"
    model = build_transformer(config, POINT["n_vocab"], PAD, 0.1 * is_training)
    with FlopCounterMode(display=False) as counter:
        train(model) if is_training else search(model, what)
    names = page()
    count = (
        names["training_count"](POINT)
        if is_training
        else names["translating_count"](POINT, what)
    )
    tolerance = 0.1 if what == "beam" else 1e-6
    assert counter.get_total_flops() == pytest.approx(2 * count, rel=tolerance)


def table(lines: list[str]) -> list[list[str]]:
    "The cells of a table in Markdown, without the line below its titles."
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [rows[0], *rows[2:]]


def test_cards_of_the_page_on_gpus_are_those_of_the_arithmetic():
    "Its table of cards, and the shares of the peak that it expects."
    cells = json.loads((ROOT / "nbs/many_gpus.ipynb").read_text(encoding="utf-8"))
    text = "\n".join(joined(cell["source"]) for cell in cells["cells"])
    of_page = [
        line for line in text.split("\n") if re.match(r"\| (card|\d+ GB|-)", line)
    ]
    of_page.insert(1, "|---|")
    assert table(of_page) == table(page()["by_card"])
    shares = []
    for kept in (1.0, 0.5):
        card = page()["CARDS"]["H100 (SXM)"]
        times = page()["step_ms"]("base", card, kept)
        flops = page()["product_flops"]("base")
        shares += [f"{1e5 * flops / (ms * card[0]):.0f}" for ms in reversed(times)]
    low, high, low_compiled, high_compiled = shares
    assert f"expect {low} to {high} % of its" in text
    assert f"and {low_compiled} to {high_compiled} % with `compile=true`" in text


def test_saved_bytes_are_those_counted_by_hand():
    "Of a token pair in the base model: each tensor that its parts save."
    m, names = page()["get_recipe"]("base").model, page()
    d, f, h, n_layers = m.d_model, m.d_ff, m.n_heads, m.n_layers
    # bf16: inputs and outputs of the maps in 2 bytes; dropout's mask of a byte; the
    # norm's input in fp32, with a mean and a deviation
    norm = d + 4 * d + 8
    own = 2 * (d + 3 * d + d) + 4 * h + norm
    cross = 2 * (d + d + 2 * d + 2 * d + d) + 4 * h + norm
    feed_forward = 2 * (d + f) + norm
    layers = n_layers * (2 * own + cross + 2 * feed_forward)
    ends = 2 * d + 4 * d  # dropout of both embeddings, the gradient of a hidden state
    counted = names["of_step"]("base", "bf16")["saved"]
    assert counted == pytest.approx(layers + ends, rel=0.002)
