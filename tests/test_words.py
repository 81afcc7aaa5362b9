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
import torch
from cells import code_of, directives, joined
from conftest import ROOT, text_of
from links import check

from annotated_transformer.data.grammar import ANIMAL_TIRED
from annotated_transformer.data.vocab import SPACE
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.runs.folder import load_run
from annotated_transformer.runs.settings import TrainConfig, get_recipe
from annotated_transformer.show.heads import following_head, opening_head
from annotated_transformer.show.visualize import attention_maps
from annotated_transformer.translating.load import load

NBS = ROOT / "nbs"
DRAWINGS = sorted((NBS / "images").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


@cache
def cells(name: str) -> list[dict]:
    return json.loads((NBS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


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
              position norm norm_kind activation n_kv_heads qk_norm bias tied
              optimizer weight_decay""".split()


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


def test_sizes_in_the_text_are_those_of_the_models():
    "Of the recipes on the results page, and of the pretrained models."
    size = r"(\d+) \+ (\d+) layers(?: of|, of)? width (\d+)"
    recipes = re.findall(rf"`([\w-]+)` has {size}", text_of("results"))
    assert len(recipes) == 2
    found = [(get_recipe(name).model, sizes) for name, *sizes in recipes]
    runs = re.findall(rf"`(demo|tatoeba)` [^`\n]*?{size}", text_of("97_run_folder"))
    assert "tatoeba" in [name for name, *_ in runs]
    found += [(load_run(Path(n)).recipe.model, sizes) for n, *sizes in runs]
    for model, sizes in found:
        expected = [model.n_layers, model.n_layers, model.d_model]
        assert [*map(int, sizes)] == expected


# ---- home


def test_home_says_what_the_records_say():
    for page, n_shown in (("index", 3), ("results", 7), ("map", 3), ("claims", 15)):
        found = shown(page)
        assert len(found) == n_shown
        for now, stored in found:
            assert now.strip() == stored.strip(), (
                f"the records or the sidebar changed: make notebooks NAMES={page}"
            )


def test_home_is_short():
    "No line is cut off in an editor or a terminal; the words of its text, code, addresses and alternative texts apart."
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [line for line in text.split("\n") if len(line) > 100] == []
    no_words = (
        r"<!--.*?-->|^```.*?^```|!\[[^\]]*\]|\]\([^)]*\)|\]\[\w+\]|^\[[\w-]+\]:\s\S+"
    )
    prose = re.sub(no_words, "]", text, flags=re.M | re.S)
    assert 300 < len(prose.split()) <= 700


def test_badges_say_what_there_is(cfg):
    "The workflow, the licence, and the versions of Python that it tests."
    address = r"^\[([\w-]+)\]:\s(\S+)$"
    badges = dict(re.findall(address, text_of("index"), re.M))
    workflow = Path(badges["tests"].removeprefix(f"{cfg['git_url']}/actions/"))
    versions = re.findall(
        r"\b3\.\d+", (ROOT / ".github" / workflow).read_text(encoding="utf-8")
    )
    oldest, newest = (f(versions, key=lambda v: int(v[2:])) for f in (min, max))
    assert badges["tests-badge"] == f"{badges['tests']}/badge.svg"
    assert badges["licence-badge"].endswith(f"/licence-{cfg['license']}-blue")
    assert badges["python-badge"].endswith(f"/python-{oldest}_to_{newest}-blue")
    assert oldest == cfg["min_python"]


# ---- drawings


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda p: p.stem)
def test_drawing_tells_what_it_shows_and_leads_on(path):
    at = ET.parse(path).getroot()
    assert at.find(f"{SVG}title").text and len(at.find(f"{SVG}desc").text) > 100
    links = list(at.iter(f"{SVG}a"))
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


def of_drawing(name: str) -> ET.Element:
    return ET.parse(NBS / f"images/{name}.svg").getroot()


def texts_of(drawing: ET.Element, kind: str) -> list[str]:
    return [e.text for e in drawing.iter(f"{SVG}text") if kind in e.get("class", "")]


def test_the_picture_of_the_live_page_has_the_numbers_of_its_model():
    "The tokens, their probabilities, and the weights of the head that the page opens with, at the pronoun."
    translator = load("tatoeba")
    model, vocab = translator.model, translator.vocab
    src = [*vocab.encode(ANIMAL_TIRED.en), vocab.eos_id]
    german = translator.translate(ANIMAL_TIRED.en)
    tgt = [vocab.bos_id, *vocab.encode(german), vocab.eos_id]
    rows = torch.tensor([src]), torch.tensor([tgt[:-1]])
    with torch.no_grad():
        logits = model.embedding.logits(model.eval()(*rows))[0]
    p, pronoun = logits.softmax(-1), tgt.index(*vocab.encode("es")) - 1
    opens = opening_head(model, vocab, ANIMAL_TIRED.en)
    maps = attention_maps(model, *rows)[opens["kind"]]
    weights = maps[opens["layer"], 0, opens["head"], pronoun].tolist()
    tokens, of_map = of_drawing("live"), of_drawing("live_map")
    named = lambda ids: [t.lstrip(SPACE) for t in vocab.tokens(ids)]
    drawn = [t for kind in ("right", "left") for t in texts_of(tokens, kind)]
    assert {*named(src[:-1]), *named(tgt[1:-1]), "EOS"} <= {*drawn}
    numbers = [
        float(t) for t in texts_of(tokens, "small right") if "." in t and t[0] == "0"
    ]
    expected = [p[i, id].item() for i, id in enumerate(tgt[1:])]
    assert numbers == pytest.approx(expected, abs=0.011)
    best = p[pronoun].topk(3)
    assert texts_of(of_map, "right")[::2] == named(best.indices.tolist())
    found = [float(t) for t in texts_of(of_map, "small right")]
    assert found == pytest.approx(best.values.tolist(), abs=0.011)
    widths = [float(e.get("stroke-width")) / 14 for e in tokens.iter(f"{SVG}line")]
    assert widths == pytest.approx(weights, abs=0.011)
    assert [float(t) for t in texts_of(tokens, "weight")] == pytest.approx(
        [w for w in weights if w > 0.1], abs=0.011
    )
    head = f"layer {opens['layer'] + 1}, head {opens['head'] + 1} attends to “animal”"
    assert any(head in text for text in texts_of(tokens, "small"))
