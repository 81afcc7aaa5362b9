"01_one_page, its code cells executed: with another seed it translates too, and its weights fit the model."

import contextlib
import io
import json
import re

import matplotlib
import pytest
import torch
from cells import code_of, joined
from conftest import ROOT

from annotated_transformer.data.grammar import ANIMAL_TIRED, ANIMAL_WIDE
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer

CELLS = [
    code_of(joined(cell["source"]))
    for cell in json.loads(
        (ROOT / "nbs/01_one_page.ipynb").read_text(encoding="utf-8")
    )["cells"]
    if cell["cell_type"] == "code"
]

# The page's name of a parameter → the package's. All others are the same.
NAMES = {
    r"^(encoder|decoder)\.": r"\1.layers.",
    r"\.norms\.(\d)\.": r".residuals.\1.norm.",
}


def run_page(n_steps: int) -> dict:
    "What its cells leave behind, run with another seed up to so many training steps."
    matplotlib.use("agg")
    (last,) = (i for i, cell in enumerate(CELLS) if "n_steps=400" in cell)
    source = "\n\n".join(CELLS if n_steps == 400 else CELLS[: last + 1])
    assert source.count("seed = 0\n") == 1
    source = source.replace("seed = 0\n", "seed = 1\n")
    source = source.replace("n_steps=400", f"n_steps={n_steps}")
    space: dict = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source, "01_one_page", "exec"), space)
    return space


@pytest.mark.slow
def test_another_seed_translates_both_animals():
    page = run_page(400)
    for sentence in (ANIMAL_TIRED, ANIMAL_WIDE):
        assert page["translate"](sentence.en) == sentence.de


def ours(name: str) -> str:
    for theirs, here in NAMES.items():
        name = re.sub(theirs, here, name)
    return name


def test_its_weights_give_the_packages_model_the_same_logits():
    page = run_page(10)
    model, pad = page["model"].eval(), page["PAD"]
    sizes = ModelConfig(n_layers=2, d_model=64, d_ff=256, n_heads=2)
    package = build_transformer(sizes, len(page["vocab"]), pad).eval()
    weights = {ours(name): w for name, w in model.state_dict().items()}
    package.load_state_dict(weights)  # strict: none is missing, none is left over
    src, tgt_in = page["src"][:20], page["tgt"][:20, :-1]
    assert (src == pad).any() and (tgt_in == pad).any()
    with torch.no_grad():
        theirs = model(src, tgt_in)
        here = package.embedding.logits(package(src, tgt_in))
    real = tgt_in != pad
    # float32: positions computed in another precision, sums in another order
    torch.testing.assert_close(here[real], theirs[real], rtol=1e-4, atol=1e-3)
