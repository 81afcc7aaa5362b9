"Pictures: their captions, lines as opaque as the weights, maps that leave the model as it was."

import subprocess
import sys

import pytest
import torch

from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.show.visualize import (
    COLOURS,
    attention_lines,
    attention_maps,
    heatmap,
)


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


# --- captions ---------------------------------------------------------------------------------------------------------------

CAPTIONED = """
import sys
import annotated_transformer.show.visualize  # nothing without IPython
print([name for name in ("IPython", "matplotlib", "altair", "vl_convert") if name in sys.modules])
import matplotlib
from execnb.shell import CaptureShell
shell = CaptureShell()
shell.run("from importlib import reload; from annotated_transformer.show import visualize; reload(reload(visualize))")
shell.run("from annotated_transformer.show.visualize import lines")
for cap in ('"One \\\\"line\\\\", and *it*: two"', 'plain'):
    out = shell.run(f"#| label: fig-a\\n#| fig-cap: {cap}\\nax = lines({{'a': ([1, 2], [3, 4])}}, x='x', y='y')")
    print([sorted(o["data"]) for o in out], out[-1]["data"].get("text/markdown"))
print("markdown" in str(shell.run("#| fig-cap: none\\n1 / 0")), shell.run("x = 1"))
"""


def test_captions_below_figures():
    "Once below each figure, after it, whatever quotes and stars are in it; not after an error, and not without a caption."
    said = run_python(CAPTIONED).splitlines()
    assert said[0] == "[]"
    assert said[-3:] == [
        """[['image/png', 'text/plain'], ['text/markdown', 'text/plain']] ['**Figure.** One "line", and *it*: two']""",
        "[['image/png', 'text/plain'], ['text/markdown', 'text/plain']] ['**Figure.** plain']",
        "False []",
    ]


# --- figures ----------------------------------------------------------------------------------------------------------------


def test_lines_are_the_weights():
    "Each line stands at its two words, as opaque as its weight; of one word, only its own."
    from matplotlib.pyplot import close

    torch.manual_seed(0)
    weights = (3 * torch.randn(2, 4, 5)).softmax(-1)
    for query in (None, 2):
        ax = attention_lines(list("abcd"), list("vwxyz"), weights, query=query)
        drawn = [(x.get_color(), *x.get_ydata(), x.get_alpha()) for x in ax.lines]
        close(ax.figure)
        assert drawn == [
            (COLOURS[h], q, k, weights[h, q, k].double().item())
            for h in range(2)
            for q in range(4)
            for k in range(5)
            if weights[h, q, k] >= 0.01 and query in (None, q)
        ]


def test_a_heat_map_that_does_not_fit_is_refused():
    mask = torch.ones(4, 4)
    with pytest.raises(ValueError, match="2 names for 4 rows"):
        heatmap(mask, rows=["I", "love"])
    one_row = """
import torch
from annotated_transformer.show.visualize import heatmap
try:
    heatmap(torch.ones(4))
except ValueError as error:
    print(error)
"""  # in a process of its own, where jaxtyping checks no shape
    assert "(4,): it must be (n_rows, n_columns)" in run_python(one_row)


@pytest.mark.parametrize("shift", [0, 100])
def test_maps_leave_the_model_as_it_was(shift):
    "No hook stays, and each module is in its mode again, also if the forward pass fails."
    model = build_transformer(ModelConfig(1, 16, 32, 2), 20, pad_id=0, dropout=0.5)
    model.train()
    model.encoder.eval()
    src, tgt_in = torch.tensor([[4, 5, 6]]), torch.tensor([[1, 7]])
    if shift:
        with pytest.raises(IndexError):
            attention_maps(model, src, tgt_in + shift)
    else:
        attention_maps(model, src, tgt_in)
    assert not any(module._forward_hooks for module in model.modules())
    assert model.decoder.training and not model.encoder.training
