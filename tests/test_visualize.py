"Pictures: sweeps over models, bytes that repeat, colours measured."

import subprocess
import sys
from functools import partial

import pytest
import torch

from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.show.visualize import (
    COLOURS,
    attention_lines,
    attention_maps,
    attention_modules,
)
from annotated_transformer.training.attention_dropout import AttentionDropout


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


# --- captions ---------------------------------------------------------------------------------------------------------------

CAPTIONED = """
import sys
from annotated_transformer.show.visualize import show_captions
show_captions()  # nothing without IPython
print([name for name in ("IPython", "matplotlib", "altair", "vl_convert") if name in sys.modules])
import matplotlib
from execnb.shell import CaptureShell
shell = CaptureShell()
shell.run("from annotated_transformer.show.visualize import lines, show_captions; show_captions(); show_captions()")
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


# --- maps -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_heads": 1},
        {"n_heads": 4, "norm": "pre"},
        {"n_heads": 2, "d_k": 3, "d_v": 5, "position": "learned"},
    ],
    ids=str,
)
def test_maps_explain_every_output(sizes):
    torch.manual_seed(0)
    config = ModelConfig(n_layers=3, d_model=16, d_ff=32, **sizes)
    attention = partial(MultiHeadAttention, attend=AttentionDropout(0.3))
    model = build_transformer(
        config, n_vocab=30, pad_id=0, dropout=0.3, attention=attention
    ).train()
    src, tgt_in = torch.randint(1, 30, (3, 7)), torch.randint(1, 30, (3, 5))
    src[1, 4:], tgt_in[2, 3:] = 0, 0
    seen = {}
    record = lambda module, args, output: seen.update({module: (args, output)})
    parts = [module for module in model.modules() if hasattr(module, "w_o")]
    hooks = [module.register_forward_hook(record) for module in parts]
    maps = attention_maps(model, src, tgt_in)
    for hook in hooks:
        hook.remove()
    for kind, parts in attention_modules(model).items():
        for weights, attn in zip(maps[kind], parts, strict=True):
            (query, key, value, mask), output = seen[attn]
            heads = weights @ attn.keys_values(key, value)[1]
            # two orders of summation in fp32
            torch.testing.assert_close(
                attn.w_o(heads.transpose(1, 2).flatten(2)), output, atol=1e-5, rtol=1e-4
            )
            assert not weights.masked_select(~mask.expand_as(weights)).any()
        assert not maps[kind].requires_grad
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


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
