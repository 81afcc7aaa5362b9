"The gate and the notebook tests catch what they are for: each kind of drift fails once."

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from gate import drift, refused, remake
from notebooks import write_clean


def cell(source: str, kind: str = "code") -> dict:
    code = {"outputs": [], "execution_count": None} if kind == "code" else {}
    name = f"{abs(hash(source)) % 16**8:08x}"
    return {"cell_type": kind, "id": name, "metadata": {}, "source": source, **code}


def notebook(path: Path, *cells: dict) -> None:
    kernel = {"display_name": "python3", "language": "python", "name": "python3"}
    nb = {"cells": list(cells), "metadata": {"kernelspec": kernel}}
    write_clean(nb | {"nbformat": 4, "nbformat_minor": 5}, path)


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    "A project of one notebook and an index, all in order."
    root = tmp_path_factory.mktemp("toy")
    for name in ("settings.ini", "pyproject.toml", "annotated_transformer/__init__.py"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, root / name)
    (root / "nbs").mkdir()
    notebook(
        root / "nbs/index.ipynb",
        cell("# A toy\n\n[its notebook](11_toy.ipynb)", "markdown"),
    )
    notebook(
        root / "nbs/11_toy.ipynb",
        cell("# Toy\n> Twice · §0", "markdown"),
        cell("#| default_exp toy"),
        cell("#| export\ndef twice(x): return 2 * x"),
        cell("assert twice(2) == 4"),
    )
    remake(root)
    return root


@pytest.fixture
def toy(clean, tmp_path) -> Path:
    return shutil.copytree(clean, tmp_path / "toy")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


LIB, NOTEBOOK = "annotated_transformer", "nbs/11_toy.ipynb"
STRAY = "no notebook exports it"
NOT_CLEAN = f"{NOTEBOOK}: not clean (execution counts or metadata)"


@pytest.mark.parametrize(
    "file, appended, says",
    [
        ("README.md", "", None),
        (f"{LIB}/toy.py", "\nmore = 1\n", "not what its notebook exports"),
        (f"{LIB}/stray.py", "x = 1\n", STRAY),
        (f"{LIB}/show/pages/stray.py", "x = 1\n", STRAY),
        ("README.md", "\nBy hand.\n", "not what nbs/index.ipynb makes"),
        # what is written by hand: below the version line, and what modules read
        (f"{LIB}/__init__.py", "\nfrom .toy import twice\n", None),
        (f"{LIB}/show/pages/toy.css", "p { margin: 0; }\n", None),
    ],
)
def test_drift(toy, file, appended, says):
    (toy / file).parent.mkdir(parents=True, exist_ok=True)
    with (toy / file).open("a", encoding="utf-8") as f:
        f.write(appended)
    found = drift(toy)
    assert len(found) == bool(says)
    assert all(line.startswith(f"{file}: {says}") for line in found)
    assert "](nbs/11_toy.ipynb)" in (toy / "README.md").read_text()


def test_module_missing(toy):
    (toy / LIB / "toy.py").unlink()
    assert drift(toy) == [f"{LIB}/toy.py: missing; a notebook exports it"]


def test_unclean_notebook(toy):
    "An execution count; a cell that its page folds, and JupyterLab does not."
    path = toy / NOTEBOOK
    text, nb = path.read_text(), json.loads(path.read_text())
    nb["cells"][-1]["execution_count"] = 7
    path.write_text(json.dumps(nb))
    assert drift(toy) == [NOT_CLEAN]
    nb = json.loads(text)
    nb["cells"].append(cell("#| code-fold: true\nx = 1"))
    write_clean(nb, path)
    assert drift(toy) == []
    nb = json.loads(path.read_text())
    nb["cells"][-1]["metadata"] = {}
    path.write_text(json.dumps(nb, indent=1, sort_keys=True) + "\n")
    assert drift(toy) == [NOT_CLEAN]


def test_version_of_init(toy):
    edit(toy / "settings.ini", "\nversion = ", "\nversion = 9.")
    assert f"{LIB}/__init__.py: not what settings.ini says" in drift(toy)


@pytest.mark.parametrize(
    "lines, says",
    [
        ("#| code-fold: true\n#| echo: false\n#| code-fold: true", "is there twice"),
        ("#| label: a\n\n#| export\n#|label: b", "is there twice"),
        ("#| fig-cap: One: two", "mapping values are not allowed"),
        (r'#| fig-cap: "of \d"', "unknown escape character"),
        ("#| fig-cap: {a: 1, a: 2}", "is there twice"),
        ("#| fig-cap: *f*", "scanning an alias"),
        (
            '#| label: fig-a\n#| fig-cap: "One: two"\n#| export\nx: int = 1\nx: int = 2',
            "",
        ),
        ("x = 1\n#| label: a\n#| label: a", ""),
    ],
)
def test_cell_options_that_quarto_refuses(toy, lines, says):
    cells = cell("# Toy\n> Twice", "markdown"), cell(lines)
    notebook(toy / "nbs/11_toy.ipynb", *cells)
    found = refused(toy)
    assert bool(found) == bool(says), found
    if says:
        assert found[0].startswith("11_toy.ipynb, cell 1: Quarto cannot read")
        assert re.search(says, found[0])


@pytest.mark.parametrize("file", ["_quarto.yml", "nbs/a.qmd", "nbs/12_raw.ipynb"])
def test_yaml_that_quarto_refuses(toy, file):
    front = "---\ntitle: a\n{}: b\n---\n"
    for key, lines in {"about": 0, "title": 1}.items():
        text = front.format(key)
        if file.endswith(".ipynb"):
            notebook(toy / file, cell(text, "raw"))
        else:
            (toy / file).write_text(text.strip("-\n") if "yml" in file else text)
        assert len(refused(toy)) == lines


def test_exit_status(toy):
    gate = [sys.executable, ROOT / "tools/gate.py", toy]
    (toy / LIB / "stray.py").touch()
    edit(toy / NOTEBOOK, '"assert twice', '"#| a: 1\\n#| a: 1\\n", "assert twice')
    done = subprocess.run(gate, capture_output=True, text=True)
    assert done.returncode == 1
    assert "gate: change the notebook, then run `make export`" in done.stdout
    assert "stray.py" in done.stdout and "the key 'a' is there twice" in done.stdout
