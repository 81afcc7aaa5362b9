#!/usr/bin/env python
"""Draws nbs/images/it.svg, the picture of the home page: cross-attention when the translation of *it* is predicted.

The weights are those of the pretrained model in results/heads.json, of the head that gives the noun meant the most weight
compared with the other noun, over all sentences of that record. The style is that of the other drawings.
"""

import json
import re
from html import escape
from pathlib import Path

from annotated_transformer.show.heads import following_head

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "nbs" / "images"
OUT = IMAGES / "it.svg"
LETTER, GAP, HEIGHT = 8.6, 16, 122  # widths and heights in pixels


def weights_of(animal: dict, layer: int, head: int) -> list[float]:
    "The weights over the source tokens where the pronoun is predicted."
    row = animal["maps"]["cross"][layer][head][animal["writes"]]
    return [int(thousandths) / 1000 for thousandths in row.split()]


def middles(tokens: list[str]) -> list[float]:
    "The x of the middle of each token, in pixels."
    ends = [GAP]
    for token in tokens:
        ends.append(ends[-1] + LETTER * len(token) + GAP)
    return [(a + b) / 2 for a, b in zip(ends, ends[1:])]


def drawn(animal: dict, weights: list[float], top: float) -> str:
    "One sentence: lines from the predicted pronoun to its source tokens."
    tokens, xs = animal["src"], middles(animal["src"])
    start, low = xs[animal["it"]], top + 80
    pronoun = animal["tgt"][animal["writes"] + 1]
    parts = [f'<text class="name" x="{start:.0f}" y="{top + 16:.0f}">{pronoun}</text>']
    for i, (x, token, weight) in enumerate(zip(xs, tokens, weights)):
        bold = ' class="name"' if i == animal["it"] else ""
        parts.append(
            f'<line x1="{start:.0f}" y1="{top + 24:.0f}" x2="{x:.0f}" y2="{low - 16:.0f}"'
            f' stroke="var(--around)" stroke-width="{14 * weight:.1f}"/>'
        )
        parts.append(f'<text{bold} x="{x:.0f}" y="{low:.0f}">{escape(token)}</text>')
        if weight >= 0.1:
            parts.append(
                f'<text class="small" x="{x:.0f}" y="{low + 18:.0f}">{weight:.0%}</text>'
            )
    return "\n".join(parts)


def picture(heads: dict) -> str:
    "The drawing, as SVG."
    _, layer, head = following_head({"cross": heads["follow"]["cross"].values()})
    style = re.search(
        r"<style>.*?</style>", (IMAGES / "transformer.svg").read_text("utf-8"), re.S
    )[0]
    found = [(animal, weights_of(animal, layer, head)) for animal in heads["animals"]]
    width = max(middles(animal["src"])[-1] for animal, _ in found) + 40
    said = "; ".join(
        f"from “{animal['tgt'][animal['writes'] + 1]}” the widest line leads to "
        f"“{animal['src'][weights.index(max(weights))]}” with {max(weights):.0%}"
        for animal, weights in found
    )
    body = "\n".join(drawn(a, w, i * HEIGHT + 10) for i, (a, w) in enumerate(found))
    size = f'width="{width:.0f}" height="{2 * HEIGHT}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" class="at-drawing"
 viewBox="0 0 {width:.0f} {2 * HEIGHT}" {size} aria-labelledby="at-it-title at-it-desc">
<title id="at-it-title">Cross-attention when the translation of “it” is predicted</title>
<desc id="at-it-desc">Two English sentences, each with the German pronoun above it and lines
from the pronoun to the source tokens, as wide as their attention weight in layer {layer + 1},
head {head + 1}: {said}.</desc>
{style}
<rect class="card" {size}/>
{body}
</svg>
"""


def main() -> None:
    record = json.loads((ROOT / "results" / "heads.json").read_text(encoding="utf-8"))
    OUT.write_text(picture(record["heads"]), encoding="utf-8")
    print(OUT.relative_to(ROOT))


if __name__ == "__main__":
    main()
