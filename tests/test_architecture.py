"The shape of the house: a notebook for each module, arrows that point back in the paper's order, layers."

import ast
import json
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from cells import CAPTION, code_of, directives, joined, options, page_name
from conftest import ROOT
from publish import every_page

LIB, NBS = ROOT / "annotated_transformer", ROOT / "nbs"
# from the ground up, as DESIGN.md has them: a room may import those above it
TABLE = (ROOT / "DESIGN.md").read_text("utf-8").split("\n## Rooms\n")[1]
ROOMS = re.findall(r"^\| `(\w+)` \|", TABLE.split("\n## ")[0], re.MULTILINE)


def notebooks() -> list[Path]:
    return sorted(NBS.glob("[!_.]*.ipynb"))


def modules() -> set[str]:
    return {f"{p.parent.name}.{p.stem}" for p in LIB.glob("*/*.py")} - {
        f"{room}.__init__" for room in ROOMS
    }


def exported(path: Path) -> list[str]:
    "The module that a notebook exports, if any."
    found = [directives(joined(c["source"])) for c in cells(path)]
    return [d["default_exp"] for d in found if "default_exp" in d]


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def imports(module: str) -> set[str]:
    "The modules of this package that a module imports, at its top or inside a function."
    found = set()
    tree = ast.parse(
        (LIB / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    )
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = [LIB.name, *module.split(".")][: -node.level] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            paths = [base, *(f"{base}.{a.name}" for a in node.names)]
        else:
            continue
        found |= {p.removeprefix(f"{LIB.name}.") for p in paths}
    return found & modules() - {module}


def test_arrows_between_rooms_go_down():
    assert len(ROOMS) > 9
    wrong = []
    for module in modules():
        room = module.split(".")[0]
        assert room in ROOMS, f"{room} is new: give it its place in DESIGN.md"
        below = ROOMS[ROOMS.index(room) + 1 :]
        wrong += [(module, m) for m in imports(module) if m.split(".")[0] in below]
    assert wrong == []


def test_no_circle_between_modules():
    arrows, done = {m: imports(m) for m in modules()}, set()
    while ready := {m for m in arrows.keys() - done if arrows[m] <= done}:
        done |= ready
    assert done == modules()


# ---- notebooks

every_notebook = pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)


@every_notebook
def test_code_cells(path):
    """Making the pages executes every cell that imports something: such a cell must do nothing else.

    A stored output means the same to every reader: no folder of whoever ran it, no
    error. A figure has a label, a caption and a text for those who cannot see it, and
    is also stored as SVG, in slow cells too, which an ordinary run leaves as they are.
    """
    for cell in cells(path):
        source, outputs = joined(cell["source"]), cell.get("outputs", [])
        if cell["cell_type"] != "code":
            continue
        found = directives(source)
        if not re.search(r"^\s*[%!]", source, re.M) and found.get("eval") != "false":
            nodes = ast.parse(code_of(source)).body
            top = [isinstance(n, ast.Import | ast.ImportFrom) for n in nodes]
            assert all(top) or not any(top), source
        assert not any(out["output_type"] == "error" for out in outputs), source
        machine = r"site-packages|/home/|/Users/|/root/"
        assert not re.search(machine, json.dumps(outputs)), source
        shown = [out.get("data", {}).keys() for out in outputs]
        images = [kinds for kinds in shown if any("image/" in kind for kind in kinds)]
        assert all("image/svg+xml" in kinds for kinds in images), source
        if images:
            assert found.get("label", "").startswith("fig-"), source
            assert found.get("fig-cap") and found.get("fig-alt"), source
        if "fig-cap" in found:
            last = joined(outputs[-1].get("data", {}).get("text/markdown", ""))
            assert last == CAPTION + options(source, path.stem)["fig-cap"], source


@every_notebook
def test_text_cells(path):
    "Nothing that only Quarto understands, links say where they lead; nbdev drops whatever else is in the title cell."
    texts = [joined(c["source"]) for c in cells(path) if c["cell_type"] == "markdown"]
    for text in texts:
        assert not re.search(r"\{#fig-|^:::|@fig-", text, re.M), text
        assert not re.search(r"\[\d+[a-z]*\]\((?!http)", text), text
        # in an element <code>, the site's Markdown can take * and _ for emphasis
        lost = r"<code>(?:[^<]*?\W)?(?:[*$]|_|\w+_\W)[^<]*</code>"
        assert not re.search(lost, text), text
    if exported(path):
        assert re.fullmatch(r"# [^\n]+\n+> [^\n]+\n?", texts[0]), texts[0]


def test_sidebar_lists_every_notebook_in_order():
    "All that a new notebook needs besides its file; the map and llms.txt are made from it."
    listed = [path.name for path in every_page()]
    names = [path.name for path in notebooks()]
    assert listed[0] == "index.ipynb" and sorted(listed) == sorted(names)
    # those to start with come first, as a reader needs them; then the paper's order
    of_sections = [name for name in names if re.match(r"[1-9]", name)]
    assert [name for name in listed if re.match(r"[1-9]", name)] == of_sections


def test_each_notebook_has_a_page_of_its_own():
    "Whose name is without the number."
    pages = [page_name(path) for path in notebooks()]
    assert len({*pages}) == len(pages), sorted(pages)


def test_tools_do_not_import_each_other_in_circles():
    paths = {path.stem: path for path in (ROOT / "tools").glob("*.py")}
    arrows = {
        stem: set(
            re.findall(r"^ *(?:from|import) (\w+)", path.read_text("utf-8"), re.M)
        )
        for stem, path in paths.items()
    }
    assert [
        *TopologicalSorter(
            {a: b & paths.keys() for a, b in arrows.items()}
        ).static_order()
    ]
    assert "translate" in arrows["notebooks"] and "pages" in arrows["publish"]
