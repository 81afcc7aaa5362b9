"The shape of the house: a notebook for each module, arrows that point back in the paper's order, layers."

import ast
import json
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from cells import CAPTION, code_of, directives, joined, options
from conftest import ROOT
from publish import sidebar

LIB, NBS = ROOT / "annotated_transformer", ROOT / "nbs"
# The rooms, from the ground up: a room may import those before it. Parts import little; only the assemblies (model.transformer,
# runs.recipe) and the command line gather many.
ROOMS = {
    "io": "files, read what is safe to read, write atomically",
    "model": "the paper's model (§3), and its search",
    "data": "text to batches of ids (§5.1)",
    "training": "the loop, the optimiser, losses, processes (§5)",
    "engines": "fast twins of lessons",
    "runs": "a run: its settings, its folder, its checkpoints, its recipe",
    "export": "other programs' weights and folders, in and out",
    "translating": "a trained model translates, and is scored (§6.1)",
    "show": "figures and pages",
    "experiments": "what the paper compares with (§2, §4, §6)",
    "cli": "the command line",
}


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


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_notebook_exports_one_module_at_most(path):
    assert len(exported(path)) <= 1


def test_every_module_has_its_notebook():
    assert sorted(m for p in notebooks() for m in exported(p)) == sorted(modules())


@pytest.mark.parametrize("module", sorted(modules()))
def test_arrows_between_rooms_go_down(module):
    rooms, room = list(ROOMS), module.split(".")[0]
    assert room in rooms, f"{room} is new: give it its place in ROOMS"
    allowed = rooms[: rooms.index(room) + 1]
    assert [m for m in imports(module) if m.split(".")[0] not in allowed] == []


def test_no_circle_between_modules():
    arrows, done = {m: imports(m) for m in modules()}, set()
    while ready := {m for m in arrows.keys() - done if arrows[m] <= done}:
        done |= ready
    assert done == modules()


# `replace`, `remove` … are also what texts and lists do: these only of os or shutil.


@pytest.mark.parametrize(
    "path", [p for p in notebooks() if exported(p)], ids=lambda p: p.stem
)
def test_title_cell(path):
    "The first cell is the page's front matter: nbdev takes its title and sentence and drops whatever else stands in it."
    first = joined(cells(path)[0]["source"])
    assert re.fullmatch(r"# [^\n]+\n+> [^\n]+\n?", first), first


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_import_cells_hold_only_imports(path):
    "Making the pages executes every cell that imports something: such a cell must do nothing else."
    for cell in cells(path):
        source = joined(cell["source"])
        is_shell = re.search(r"^\s*[%!]", source, re.M)
        if cell["cell_type"] != "code" or is_shell:
            continue
        nodes = ast.parse(code_of(source)).body
        top = [isinstance(n, ast.Import | ast.ImportFrom) for n in nodes]
        if directives(source).get("eval") != "false":
            assert all(top) or not any(top), source


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_figures_say_what_they_show(path):
    "A drawn picture has a label, a caption and a text for those who cannot see it; other readers see its caption too."
    for i, cell in enumerate(cells(path)):
        source, outputs = joined(cell["source"]), cell.get("outputs", [])
        kinds = [kind for out in outputs for kind in out.get("data", {})]
        if any(kind.startswith("image/") for kind in kinds):
            found = directives(source)
            assert found.get("label", "").startswith("fig-"), source
            assert found.get("fig-cap") and found.get("fig-alt"), source
        if cell["cell_type"] == "code" and "fig-cap" in directives(source):
            shown = [
                joined(out.get("data", {}).get("text/markdown", "")) for out in outputs
            ]
            assert shown[-1] == CAPTION + options(source, f"{i}")["fig-cap"], source


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_text_can_be_read_everywhere(path):
    "In JupyterLab, Colab and on GitHub too: nothing that only Quarto understands, and links say where they lead."
    for cell in cells(path):
        source = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            assert not re.search(r"\{#fig-|^:::|@fig-", source, re.M), source
            assert not re.search(r"\[\d+[a-z]*\]\((?!http)", source), source


@pytest.mark.parametrize("path", notebooks(), ids=lambda p: p.stem)
def test_outputs_name_no_machine(path):
    "A stored output means the same to every reader: no folder of whoever ran it, no error."
    for cell in cells(path):
        for out in cell.get("outputs", []):
            assert out["output_type"] != "error", joined(cell["source"])
            assert not re.search(
                r"site-packages|/home/|/Users/|/root/", json.dumps(out)
            ), joined(cell["source"])


def test_sidebar_lists_every_notebook_in_order():
    "All that a new notebook needs besides its file; the map and llms.txt are made from it."
    listed = [entry.path.name for entry in sidebar() if entry.path]
    names = [path.name for path in notebooks()]
    assert listed[0] == "index.ipynb" and sorted(listed) == sorted(names)
    # those to start with come first, as a reader needs them; then the paper's order
    of_sections = [name for name in names if re.match(r"[1-9]", name)]
    assert [name for name in listed if re.match(r"[1-9]", name)] == of_sections


def test_tools_do_not_import_each_other_in_circles():
    "Inside functions too; and cells, which all may import, imports none."
    paths = {path.stem: path for path in (ROOT / "tools").glob("*.py")}
    arrows = {
        stem: {
            name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            for name in (
                [node.module]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
            if name in paths
        }
        for stem, path in paths.items()
    }
    assert [*TopologicalSorter(arrows).static_order()] and not arrows["cells"]
    assert "translate" in arrows["notebooks"] and "pages" in arrows["publish"]
