"What the programs in this folder share: options, and the file of figures that tools/record.py makes a record of."

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn

from annotated_transformer.experiments.compared import n_parameters as n_parameters
from annotated_transformer.show.heads import ablate_head
from annotated_transformer.show.visualize import attention_modules

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from record import about as about  # noqa: E402


def options(doc: str, out: str | None = None) -> argparse.ArgumentParser:
    "A parser with --out."
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=out, help="write the figures as JSON"
    )
    return parser


def write(out: Path | None, found: dict) -> None:
    "All figures so far, in one piece, if a file is wanted."
    if out:
        new = out.with_name(f"{out.name}.{os.getpid()}")
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        new.write_text(text, encoding="utf-8")
        new.replace(out)


def earlier(out: Path, args: argparse.Namespace) -> dict:
    "The figures of an interrupted run with the same options; else only the options."
    settings = {name: value for name, value in vars(args).items() if name != "out"}
    if not out.exists():
        return {"settings": settings}
    found = json.loads(out.read_text(encoding="utf-8"))
    if found["settings"] != settings:
        raise SystemExit(f"{out} has other settings: {found['settings']}")
    return found


def thousandths(maps: Tensor) -> list:
    "Maps (n_layers, h, n_q, n_k), each row of each as one line of text."
    return [
        [[" ".join(map(str, row)) for row in head] for head in layer]
        for layer in (1000 * maps).round().int().tolist()
    ]


def without_each(model: nn.Module, kind: str, score: Callable) -> list[list]:
    "A score without each head of one kind in turn, by layer and head."

    def without(layer: int, head: int):
        with ablate_head(model, kind, layer, head):
            return score()

    return [
        [without(layer, head) for head in range(attn.n_heads)]
        for layer, attn in enumerate(attention_modules(model)[kind])
    ]
