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
from notebooks import export, write_clean


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
EDITED = {  # what is appended to a file, and what the gate says
    f"{LIB}/__init__.py": ("\nfrom .toy import twice\n", None),  # by hand
    f"{LIB}/show/pages/toy.css": ("p { margin: 0; }\n", None),
    f"{LIB}/toy.py": ("\nmore = 1\n", "not what its notebook exports"),
    f"{LIB}/stray.py": ("x = 1\n", STRAY),
    f"{LIB}/show/pages/stray.py": ("x = 1\n", STRAY),
    "README.md": ("\nBy hand.\n", "not what nbs/index.ipynb makes"),
    NOTEBOOK: (" ", "not clean (execution counts or metadata)"),
}


def test_drift(toy):
    for file, (appended, _) in EDITED.items():
        (toy / file).parent.mkdir(parents=True, exist_ok=True)
        with (toy / file).open("a", encoding="utf-8") as f:
            f.write(appended)
    found, wrong = drift(toy), {k: x for k, (_, x) in EDITED.items() if x}
    assert len(found) == len(wrong)
    for file, says in wrong.items():
        assert any(line.startswith(f"{file}: {says}") for line in found), file


def test_missing_module_and_unclean_notebooks(toy):
    "An execution count; a cell that its page folds, and JupyterLab does not; another version."
    edit(toy / "settings.ini", "\nversion = ", "\nversion = 9.")
    (toy / LIB / "toy.py").unlink()
    nb = json.loads((toy / NOTEBOOK).read_text())
    nb["cells"][-1]["execution_count"] = 7
    (toy / NOTEBOOK).write_text(json.dumps(nb, indent=1, sort_keys=True) + "\n")
    index = toy / "nbs/index.ipynb"
    nb = json.loads(index.read_text())
    write_clean(
        nb | {"cells": [*nb["cells"], cell("#| code-fold: true\nx = 1")]}, index
    )
    nb = json.loads(index.read_text())
    assert nb["cells"][-1].pop("metadata")
    nb["cells"][-1]["metadata"] = {}
    index.write_text(json.dumps(nb, indent=1, sort_keys=True) + "\n")
    files = {line.partition(": ")[0]: line for line in drift(toy)}
    assert "missing; a notebook exports it" in files[f"{LIB}/toy.py"]
    assert "not what settings.ini says" in files[f"{LIB}/__init__.py"]
    assert "not clean" in files[NOTEBOOK] and "not clean" in files["nbs/index.ipynb"]


@pytest.mark.parametrize(
    "lines, says",
    [
        ("#| code-fold: true\n#| echo: false\n#| code-fold: true", "is there twice"),
        ("#| label: a\n\n#| export\n#|label: b", "is there twice"),
        ("#| fig-cap: One: two", "mapping values are not allowed"),
        (r'#| fig-cap: "of \d"', "unknown escape character"),
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


@pytest.mark.parametrize("kind", ["code", "markdown"])
def test_conflict_markers(toy, kind):
    "Of a merge, in a cell as nbdev's driver writes them, or in the file."
    ours = cell("`<<<<<<< HEAD`\n1 < 2" if kind == "markdown" else "<<<<<<< HEAD", kind)
    notebook(toy / NOTEBOOK, cell("# Toy\n> Twice", "markdown"), ours)
    assert refused(toy) == ["11_toy.ipynb, cell 1: has conflict markers of a merge"]
    with pytest.raises(SystemExit, match="11_toy.ipynb, cell 1: has conflict"):
        export(toy)
    (toy / NOTEBOOK).write_text("{\n<<<<<<< HEAD\n")
    [line] = refused(toy)
    assert line.startswith("11_toy.ipynb: not JSON")


def test_exit_status(toy):
    "A stray module is named once no cell is refused; the site's settings are read too."
    command = [sys.executable, ROOT / "tools/gate.py", toy]
    run = lambda: subprocess.run(command, capture_output=True, text=True)
    (toy / LIB / "stray.py").touch()
    (toy / "_quarto.yml").write_text("title: a\ntitle: b\n")
    done = run()
    assert done.returncode == 1 and "the key 'title' is there twice" in done.stdout
    (toy / "_quarto.yml").unlink()
    done = run()
    assert done.returncode == 1 and "stray.py" in done.stdout
    (toy / LIB / "stray.py").unlink()
    assert run().returncode == 0
