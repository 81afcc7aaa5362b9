"Home, the pages to look things up, the drawings: links lead somewhere, names exist, numbers are those of the records."

import ast
import contextlib
import io
import json
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
from cells import code_of, directives, joined
from conftest import ROOT
from links import check

from annotated_transformer.model.config import ModelConfig
from annotated_transformer.runs.settings import TrainConfig, get_recipe
from annotated_transformer.show.heads import following_head

NBS, BUTTON = ROOT / "nbs", "colab.svg"
DRAWINGS = sorted(p for p in (NBS / "images").glob("*.svg") if p.name != BUTTON)


@cache
def cells(name: str) -> list[dict]:
    return json.loads((NBS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


@cache
def text_of(name: str) -> str:
    "What a page says: its Markdown, and what its cells put out as Markdown."
    texts = [c["source"] for c in cells(name) if c["cell_type"] == "markdown"]
    outputs = [out.get("data", {}) for c in cells(name) for out in c.get("outputs", [])]
    texts += [data["text/markdown"] for data in outputs if "text/markdown" in data]
    return "\n\n".join(map(joined, texts))


def shown(name: str) -> list[tuple[str, str]]:
    "What a page's cells that show no code put out now, and what is stored."
    here, space, found = Path.cwd(), {}, []
    os.chdir(NBS)
    try:
        for cell in cells(name):
            source = joined(cell["source"])
            is_shown = not {"echo", "include"} & directives(source).keys()
            if cell["cell_type"] != "code" or is_shown:
                continue
            tree, value, printed = ast.parse(code_of(source)), None, io.StringIO()
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, name, "exec"), space)
                if last:
                    code = compile(ast.Expression(last.value), name, "eval")
                    value = eval(code, space)
            now = value.data if hasattr(value, "data") else printed.getvalue()
            stored = [
                o.get("text") or o["data"]["text/markdown"] for o in cell["outputs"]
            ]
            found.append((now, "".join(map(joined, stored))))
    finally:
        os.chdir(here)
    return found


# ---- links


def test_links_lead_somewhere():
    "Those of notebooks, drawings and the Markdown files at the top, to their headings, equations and definitions."
    assert check(None)[0] == []


# ---- symbols

# Settings that share a row, without values.
TOGETHER = """schedule peak_lr precision compile seed keep_last save_every valid_every
              position norm""".split()


def rows(name: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text_of(name).split("\n")
        if re.match(r"\|(?! ?-)", line)
    ]


def test_every_setting_has_its_row_and_its_values():
    table = {
        code: row for row in rows("symbols") for code in re.findall(r"`(\w+)`", row[1])
    }
    for part, kind in (("model", ModelConfig), ("train", TrainConfig)):
        for field in fields(kind):
            assert field.name in table, f"{field.name} is not among the symbols"
            if field.name in TOGETHER:
                continue
            for name, said in zip(("base", "big"), table[field.name][4:6], strict=True):
                recipe = get_recipe(name)
                value = getattr(getattr(recipe, part), field.name)
                if field.name in ("d_k", "d_v"):
                    value = recipe.model.d_model // recipe.model.n_heads
                said = None if said == "none" else float(said.replace(",", ""))
                assert said == value, f"{field.name} of {name}"


# ---- home


def test_home_says_what_the_records_say():
    for page, n_shown in (("index", 5), ("map", 9)):
        found = shown(page)
        assert len(found) == n_shown
        for now, stored in found:
            assert now.strip() == stored.strip(), (
                f"the records or the sidebar changed: make notebooks NAMES={page}"
            )


# ---- drawings


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda p: p.stem)
def test_drawing_tells_what_it_shows_and_leads_on(path):
    svg, at = "{http://www.w3.org/2000/svg}", ET.parse(path).getroot()
    assert at.find(f"{svg}title").text and len(at.find(f"{svg}desc").text) > 100
    links = list(at.iter(f"{svg}a"))
    assert all(a.get("aria-label") for a in links)
    assert not re.search(
        r"https?://(?!www\.w3\.org/2000/svg)", path.read_text(encoding="utf-8")
    ), "it loads something from elsewhere"


def test_the_picture_of_it_has_the_weights_of_the_record():
    "Of the head that follows a pronoun: a line for each, a text from 10 % on."
    heads = json.loads((ROOT / "results/heads.json").read_text("utf-8"))["heads"]
    _, layer, head = following_head({"cross": heads["follow"]["cross"].values()})
    rows = [
        [int(n) / 1000 for n in a["maps"]["cross"][layer][head][a["writes"]].split()]
        for a in heads["animals"]
    ]
    weights = [weight for row in rows for weight in row]
    drawn = (ROOT / "nbs/images/it.svg").read_text(encoding="utf-8")
    widths = re.findall(r'stroke-width="([\d.]+)"/>', drawn)
    assert widths == [f"{14 * weight:.1f}" for weight in weights]
    texts = re.findall(r'class="small"[^>]*>(\d+)%<', drawn)
    assert texts == [f"{100 * weight:.0f}" for weight in weights if weight >= 0.1]
    assert f"layer {layer + 1},\nhead {head + 1}:" in drawn
