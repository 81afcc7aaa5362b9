"tools/notebooks.py: what it runs, what it leaves alone, what README.md becomes."

import nbformat
import pytest
from cells import FOLDED
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
