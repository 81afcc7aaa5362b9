"The shape of the house: a notebook for each module, arrows that point back in the paper's order, layers."

import ast
import importlib
import json
import re
from pathlib import Path

import yaml
from conftest import ROOT
from fold import each
from notebooks import code_of, directives, joined

LIB, NBS = ROOT / "annotated_transformer", ROOT / "nbs"
PROSE = {
    "index",
    "one_page",
    "introduction",
    "systems_compared",
    "scoring",
    "small_data",
    "answers",
    "command_line",
    "comparison",
    "costs",
    "many_gpus",
    "serving",
    "map",
    "misreadings",
    "reading",
    "reference",
    "symbols",
    "words",
    "conclusion",
}  # notebooks that export nothing
MADE_OR_BY_HAND = {"__init__", "__main__", "_modidx"}

# Which siblings a module may import. Parts import none: a layer is given its sub-layers, the loop its optimiser and loss.
# Only the assemblies (transformer, recipe) and the command line gather many.
ALLOWED = {
    # layer 0: parts
    "config": "",
    "stack": "",
    "attention": "",
    "multi_head": "attention",
    "attention_dropout": "attention",
    "masking": "",
    "feed_forward": "",
    "embedding": "",
    "position": "",
    "files": "",
    "grammar": "",
    "atomic": "files",
    "text": "files",
    "corpus": "atomic files grammar text",
    "vocab": "files",
    "distributed": "",
    "optimizer": "",
    "label_smoothing": "",
    "decode": "",
    "variations": "",
    # engines of parts
    "fast_dropout": "",
    "fused_attention": "attention multi_head",
    "chunked_loss": "label_smoothing",
    "batched_search": "decode",
    "inference": "fast_dropout feed_forward fused_attention stack",
    # layer 1: what holds parts together
    "transformer": "config stack multi_head masking feed_forward embedding position",
    "kv_cache": "decode fused_attention transformer",
    "chunked_r_drop": "chunked_loss label_smoothing r_drop",
    "engines": "chunked_loss chunked_r_drop decode fast_dropout fused_attention kv_cache label_smoothing multi_head r_drop",
    "background": "",
    "convolutions": "",
    "complexity": "attention",
    "layer_costs": "",
    "recall": "embedding feed_forward multi_head position stack",
    "batch": "vocab",
    "bpe_dropout": "batch vocab",
    "r_drop": "batch label_smoothing",
    "prepared": "atomic batch files vocab",
    "train": "batch distributed",
    "hooks": "train",
    "visualize": "attention",
    "explorer": "atomic batch visualize",
    # layer 2: the model and its run on disk
    "weights": "atomic config distributed files transformer",
    "run_folder": "atomic config distributed engines files transformer vocab weights",
    "checkpoint": "atomic batch distributed files run_folder weights",
    "parsing": "",
    "parsing_results": "parsing",
    "marian": "config embedding feed_forward fused_attention masking position stack transformer weights",
    # layer 3: a whole job
    "translate": "batch batched_search decode distributed engines inference run_folder text transformer vocab",
    "evaluate": "batch batched_search text transformer translate vocab",
    "significance": "evaluate",
    "heads": "batch evaluate grammar translate visualize vocab",
    "structure": "batch grammar heads parsing visualize vocab",
    "live": "atomic batch config corpus explorer grammar heads prepared run_folder vocab weights",
    "marian_import": "atomic batched_search files marian run_folder translate vocab weights",
    "recipe": "atomic attention_dropout batch checkpoint config corpus distributed engines files hooks inference "
    "optimizer prepared r_drop run_folder text train transformer vocab weights",
    "runs": "atomic batch bpe_dropout checkpoint config corpus distributed engines hooks prepared recipe run_folder "
    "train transformer visualize vocab weights",
    "ct2": "atomic attention attention_dropout config embedding fast_dropout feed_forward fused_attention multi_head "
    "position run_folder stack transformer vocab",
    "variation_runs": "atomic batched_search config corpus distributed evaluate files hooks run_folder text translate",
    "model_card": "config corpus evaluate files run_folder",
    "hugging_face": "atomic config ct2 marian model_card run_folder vocab",
    # layer 4: whole jobs put together
    "demo": "atomic config corpus evaluate explorer files grammar heads hooks live run_folder runs translate",
    # layer 5
    "cli_train": "config corpus demo distributed evaluate hooks run_folder runs variation_runs",
    "cli_use": "atomic batched_search checkpoint ct2 evaluate explorer heads hugging_face live marian_import run_folder "
    "significance text translate",
    "cli": "cli_train cli_use",
}
ENGINES = {
    "engines",
    "fast_dropout",
    "fused_attention",
    "chunked_loss",
    "chunked_r_drop",
    "kv_cache",
    "batched_search",
    "inference",
}
LESSONS = {
    "stack",
    "attention",
    "multi_head",
    "masking",
    "feed_forward",
    "embedding",
    "position",
    "transformer",
    "label_smoothing",
    "optimizer",
    "decode",
}


def notebooks() -> list[Path]:
    return sorted(NBS.glob("[!_.]*.ipynb"))


def stem_of(path: Path) -> str:
    return re.sub(r"^\d+[a-z]*_", "", path.stem)


def modules() -> set[str]:
    return {p.stem for p in LIB.glob("*.py")} - MADE_OR_BY_HAND


def cells(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def siblings(module: str) -> set[str]:
    "The modules of this package that a module imports, at its top or inside a function."
    names = modules() | {module}
    found = set()
    for node in ast.walk(ast.parse((LIB / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            paths = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (
                f"{LIB.name}.{node.module or ''}".rstrip(".")
                if node.level
                else node.module
            )
            paths = [base, *(f"{base}.{a.name}" for a in node.names)]
        else:
            continue
        found |= {p.split(".")[1] for p in paths if p.startswith(LIB.name + ".")}
    return found & names - {module}


@each("path", notebooks(), ids=lambda p: p.stem)
def test_notebook_exports_its_module(path):
    targets = [
        d["default_exp"]
        for c in cells(path)
        if c["cell_type"] == "code"
        and "default_exp" in (d := directives(joined(c["source"])))
    ]
    assert targets == ([] if stem_of(path) in PROSE else [stem_of(path)])


def test_every_module_has_its_notebook():
    assert modules() == {stem_of(p) for p in notebooks()} - PROSE


@each("module", sorted(modules()))
def test_layers(module):
    assert module in ALLOWED, (
        f"{module} is new: give it a line in ALLOWED, and a place in CONTRIBUTING.md"
    )
    assert siblings(module) <= set(ALLOWED[module].split())


FORWARD = {
    ("runs", "visualize"),  # a run draws its learning curve
    # what trains and translates chooses the engines
    ("recipe", "engines"),
    ("runs", "engines"),
    ("recipe", "inference"),
    ("run_folder", "engines"),
    ("translate", "batched_search"),
    ("translate", "engines"),
    ("translate", "inference"),
    ("evaluate", "batched_search"),
    ("variation_runs", "batched_search"),
}


def test_no_arrow_points_forward():
    place = {stem_of(p): i for i, p in enumerate(notebooks())}
    assert FORWARD == {
        (m, s) for m in modules() for s in siblings(m) if place[s] > place[m]
    }


CHANGES_NAMES = {
    "rmtree",
    "unlink",
    "rename",
    "replace",
    "renames",
    "remove",
    "removedirs",
    "rmdir",
    "move",
    "link",
    "symlink",
}


def changes_files(node: ast.AST) -> bool:
    "Is this a call that removes, replaces or renames a file? `replace` and `remove` only of os or shutil: texts and lists have theirs."
    if not isinstance(node, ast.Call):
        return False
    name = (
        node.func.attr
        if isinstance(node.func, ast.Attribute)
        else getattr(node.func, "id", "")
    )
    of = (
        getattr(node.func.value, "id", "")
        if isinstance(node.func, ast.Attribute)
        else ""
    )
    if name in {"replace", "remove", "move", "link", "symlink"}:
        return of in {"os", "shutil"}
    return name in CHANGES_NAMES


@each("module", sorted(modules() | {"__main__", "__init__"}))
def test_one_module_removes_and_renames(module):
    tree = ast.parse((LIB / f"{module}.py").read_text(encoding="utf-8"))
    found = [ast.unparse(node.func) for node in ast.walk(tree) if changes_files(node)]
    assert bool(found) == (module == "atomic"), found


def test_allowed_has_no_circle():
    done: set[str] = set()
    while ready := {
        m for m in ALLOWED.keys() - done if set(ALLOWED[m].split()) <= done
    }:
        done |= ready
    assert done == ALLOWED.keys()


@each("module", sorted(modules() - {"cli"}))
def test_package_shadows_no_module(module):
    package = importlib.import_module(LIB.name)
    assert importlib.import_module(f"{LIB.name}.{module}") is getattr(package, module)


@each("path", [p for p in notebooks() if stem_of(p) not in PROSE], ids=lambda p: p.stem)
def test_title_cell(path):
    "The first cell is the page's front matter: nbdev takes its title and sentence and drops whatever else stands in it."
    first = joined(cells(path)[0]["source"])
    assert re.fullmatch(r"# [^\n]+\n+> [^\n]+\n?", first), first


@each("path", notebooks(), ids=lambda p: p.stem)
def test_import_cells_hold_only_imports(path):
    "Making the pages executes every cell that imports something: such a cell must do nothing else."
    mixed = []
    for cell in cells(path):
        source = joined(cell["source"])
        if (
            cell["cell_type"] != "code"
            or directives(source).get("eval") == "false"
            or re.search(r"^\s*[%!]", source, re.M)
        ):
            continue
        nodes = ast.parse(code_of(source)).body
        top = [isinstance(n, ast.Import | ast.ImportFrom) for n in nodes]
        if any(top) and not all(top):
            mixed.append(source)
    assert mixed == []


@each("path", notebooks(), ids=lambda p: p.stem)
def test_figures_say_what_they_show(path):
    "A drawn picture has a label, a caption and a text for those who cannot see it."
    for cell in cells(path):
        if any(
            k.startswith("image/")
            for o in cell.get("outputs", [])
            for k in o.get("data", {})
        ):
            found = directives(joined(cell["source"]))
            assert (
                found.get("label", "").startswith("fig-")
                and found.get("fig-cap")
                and found.get("fig-alt")
            ), joined(cell["source"])


@each("path", notebooks(), ids=lambda p: p.stem)
def test_captions_are_shown_everywhere(path):
    "JupyterLab, Colab and GitHub show the caption below the figure, and no text that only Quarto understands."
    for cell in cells(path):
        source = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            assert not re.search(r"\{#fig-|^:::|@fig-", source, re.M), source
            assert not re.search(r"\[\d+[a-z]*\]\((?!http)", source), (
                f"a link says where it leads: {source}"
            )
        elif re.search(r"^#\| *fig-cap:", source, re.M):
            shown = [
                joined(out["data"].get("text/markdown", ""))
                for out in cell["outputs"]
                if "data" in out
            ]
            caption = yaml.safe_load(
                re.search(r"^#\| *fig-cap: *(.*)$", source, re.M)[1]
            )
            assert shown[-1] == f"**Figure.** {caption}", source


@each("path", notebooks(), ids=lambda p: p.stem)
def test_outputs_name_no_machine(path):
    "A stored output means the same to every reader: no folder of whoever ran it, no error."
    for cell in cells(path):
        for out in cell.get("outputs", []):
            assert out["output_type"] != "error", joined(cell["source"])
            assert not re.search(
                r"site-packages|/home/|/Users/|/root/", json.dumps(out)
            ), joined(cell["source"])


def test_no_lesson_imports_an_engine():
    assert {m: siblings(m) & ENGINES for m in LESSONS} == dict.fromkeys(LESSONS, set())


def test_sidebar_lists_every_notebook_in_order():
    listed = []

    def walk(items):
        for item in items:
            if isinstance(item, str):
                listed.append(item)
            elif "section" in item:
                walk(item["contents"])
            else:
                listed.append(item["href"])

    walk(
        yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))["website"][
            "sidebar"
        ]["contents"]
    )
    names = [p.name for p in notebooks()]
    assert listed[0] == "index.ipynb" and sorted(listed) == sorted(names)
    # those to start with come first, as a reader needs them; then the paper's order
    of_sections = [name for name in names if re.match(r"[1-9]", name)]
    assert [name for name in listed if re.match(r"[1-9]", name)] == of_sections


@each("path", notebooks(), ids=lambda p: p.stem)
def test_links_between_notebooks(path):
    text = "\n".join(
        joined(c["source"]) for c in cells(path) if c["cell_type"] == "markdown"
    )
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
    assert [] == [t for t in targets if not (NBS / t).exists()]
