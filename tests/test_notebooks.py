"tools/notebooks.py: what it runs, what it leaves alone, what README.md becomes."

import json
import os
import re
import subprocess
import sys
import venv

import nbformat
import pytest
from cells import FOLDED, INSTALLS, install_cell, runs_alone
from conftest import ROOT
from notebooks import is_run, run
from test_gate import cell, notebook

FLAGS = {"slow", "gpu", "network"}


@pytest.mark.parametrize(
    "source, runs",
    [
        ("x = 1", True),
        ("#| export\nx = 1", True),
        ("#| label: slow\nx = 1", True),
        ("x = 1\n#| slow", True),
        ("#| slow\nx = 1", False),
        ("#|gpu\nx = 1", False),
        ("# | network\nx = 1", False),
        ("#| eval: false\nx = 1", False),
    ],
)
def test_is_run(source, runs):
    assert is_run(source, FLAGS) == runs


def test_run_twice(tmp_path):
    "Outputs are stored, flagged cells keep theirs, and a second run writes the same bytes."
    path = tmp_path / "11_toy.ipynb"
    slow = cell("#| slow\n1 / 0") | {
        "outputs": [
            {"output_type": "stream", "name": "stdout", "text": "of a real run\n"}
        ]
    }
    notebook(path, cell("print('a'); print('b')\n{1: object()}"), slow)
    assert run(path, FLAGS) == ""
    first = path.read_text()
    assert (
        "of a real run" in first
        and "<object>" in first
        and '"execution_count": null' in first
    )
    assert run(path, FLAGS) == "" and path.read_text() == first


def test_what_a_page_folds_is_folded_in_jupyter(tmp_path):
    "Exactly that, also after a run; tags stay."
    path, tagged = tmp_path / "11_toy.ipynb", {"metadata": {"tags": ["fold"]}}
    folded = [
        cell("#| export\nimport os\nfrom re import sub"),
        cell("#| code-fold: true\nx = 1"),
        cell("#| export\nx = 2") | tagged,
        cell("#| echo: false\nx = 3"),
        cell("#| include: false\nx = 4"),
        cell("#| hide\nx = 5"),
        cell("#| slow\n#| code-fold: true\n1 / 0"),
    ]
    others = [
        cell("import os\nx = 6"),
        cell("#| code-fold: false\nimport os"),
        cell("#| default_exp toy"),
        cell("!ls"),
        cell("import os", "markdown") | tagged,
        cell("x = 7") | {"metadata": dict(FOLDED) | {"collapsed": True}},
    ]
    notebook(path, *folded, *others)
    assert run(path, FLAGS) == ""
    found = nbformat.read(path, 4)
    nbformat.validate(found)
    metadata = [dict(c.metadata) for c in found.cells]
    tags = [m.pop("tags", []) for m in metadata]
    assert metadata == [FOLDED] * len(folded) + [{}] * len(others)
    assert {i: t for i, t in enumerate(tags) if t} == {2: ["fold"], 11: ["fold"]}


# the first cell of code


@pytest.mark.parametrize(
    "status, said, line",
    [
        (0, "a warning\n", "done"),
        (1, "a warning\nERROR: no such host\n", "ERROR: no such host"),
    ],
)
@pytest.mark.parametrize("missing", ["annotated_transformer", "fastcore"])
def test_install_cell(status, said, line, missing, monkeypatch, capfd):
    "One line of what it did, with pip of the kernel's own Python; nothing where all is there."
    asked = []

    def pip(command, capture_output, text):
        asked.append(command)
        return subprocess.CompletedProcess(command, status, "", said)

    monkeypatch.setattr(subprocess, "run", pip)
    exec(install_cell(), {})
    assert asked == [] and capfd.readouterr() == ("", "")
    monkeypatch.setitem(sys.modules, missing, None)
    exec(install_cell(), {})
    [[*program, package]] = asked
    assert program == [sys.executable, "-m", "pip", "install"]
    assert re.fullmatch(r"annotated_transformer\[notebooks\]@https:\S+\.zip", package)
    assert capfd.readouterr() == (f'pip install "{package}": {line}\n', "")


def test_install_cell_in_a_kernel_without_the_package(tmp_path):
    "Nor pip, as uv makes its environments: no traceback."
    venv.create(tmp_path / "venv", symlinks=True)
    python = next((tmp_path / "venv").glob("[bS]*/python*"))
    (tmp_path / "cell.py").write_text(install_cell())
    env = {name: x for name, x in os.environ.items() if name != "PYTHONPATH"}
    words = [python, "-I", tmp_path / "cell.py"]
    done = subprocess.run(words, capture_output=True, text=True, env=env)
    assert "No module named pip" in done.stdout and done.stderr == ""
    assert done.stdout.count("\n") == 1 and done.returncode == 0


def test_every_page_that_runs_installs_the_package_first():
    "Those that do not are tables of the checkout's own files."
    without = set()
    for path in (ROOT / "nbs").glob("[!_.]*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        codes = [c["id"] for c in cells if c["cell_type"] == "code"]
        assert INSTALLS not in codes[1:], path.name
        assert runs_alone(path) == (codes[:1] == [INSTALLS])
        if codes and codes[0] != INSTALLS:
            without.add(path.stem)
    assert without == {"map", "reading", "reference"}


def test_every_numbered_notebook_says_its_deviations():
    "70 collects them."
    paths = (ROOT / "nbs").glob("[0-9]*.ipynb")
    without = {p.stem for p in paths if '"## Deviations' not in p.read_text("utf-8")}
    assert without == {"70_conclusion"}


def test_alone(tmp_path, monkeypatch):
    "In an empty folder, each cell twice; nothing is stored."
    path = tmp_path / "11_toy.ipynb"
    empty = cell("import os\nassert os.listdir() == []")
    once = cell("n = globals().get('n', 0) + 1\nassert n < 2, 'twice'")
    notebook(path, cell("# Toy", "markdown"), empty)
    before = path.read_bytes()
    assert run(path, FLAGS, alone=True) == "" and path.read_bytes() == before
    notebook(path, once)
    assert "twice" in run(path, FLAGS, alone=True) and run(path, FLAGS) == ""
