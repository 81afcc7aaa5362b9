"The workbook's checks: the reference passes, each known mistake is diagnosed as itself, nothing else passes."

import contextlib
import inspect
import io
import json
import re
import subprocess
import sys
from itertools import combinations

import matplotlib
import pytest
import torch
from cells import code_of, joined, slug
from conftest import ROOT

from annotated_transformer import UserError
from annotated_transformer.experiments import workbook
from annotated_transformer.experiments.diagnosis import diagnose, outcome, same
from annotated_transformer.experiments.workbook import TASKS, by_hand, grade, verdict_on

every_task = pytest.mark.parametrize("name", TASKS)
MISTAKES = [(name, m.name) for name, task in TASKS.items() for m in task.mistakes]


@every_task
def test_reference_and_version_by_hand_are_right(name, unchecked):
    task = TASKS[name]
    for function in (task.reference, by_hand(name)):
        assert diagnose(task, function).state == "right"


@pytest.mark.parametrize("name, mistake", MISTAKES)
def test_each_mistake_is_diagnosed_as_itself(name, mistake, unchecked):
    found = diagnose(TASKS[name], TASKS[name].with_mistakes(mistake))
    assert (found.state, found.mistakes) == ("known", (mistake,)), found.text


@every_task
def test_mistakes_in_pairs_are_refused(name, unchecked):
    "By the numbers; which of two mistakes is named is decided by what they have in common."
    task = TASKS[name]
    cases = task.inputs(torch.Generator().manual_seed(0))
    expected = [outcome(task, task.reference, args) for args in cases]
    for one, two in combinations([m.name for m in task.mistakes], 2):
        function = task.with_mistakes(one, two)
        found = [outcome(task, function, args) for args in cases]
        equal = [same(a, b, task.tolerance) for a, b in zip(found, expected)]
        assert not all(equal), (one, two)


@every_task
def test_what_nobody_wrote_is_missing_and_nonsense_is_unknown(name, unchecked):
    task = TASKS[name]
    assert diagnose(task, None).state == "missing"
    assert diagnose(task, lambda *args: None).state == "missing"
    for nonsense in (lambda *args: "text", lambda *args: 1 / 0):
        assert diagnose(task, nonsense).state == "unknown"
    raised = diagnose(task, lambda *args: 1 / 0).text
    assert "ZeroDivisionError: division by zero" in raised


def test_two_mistakes_at_once_are_named(unchecked):
    function = TASKS["attention"].with_mistakes("no_scale", "over_queries")
    found = diagnose(TASKS["attention"], function)
    assert (found.state, found.mistakes) == ("pair", ("no_scale", "over_queries"))


def test_an_unknown_mistake_shows_the_smallest_input(unchecked):
    found = diagnose(TASKS["softmax"], lambda scores: 2 * scores.softmax(dim=-1))
    rows = found.text.split("\n")
    assert [row.split()[0] for row in rows[1:]] == ["scores", "expected", "found"]
    assert "shape (1, 3)" in rows[1]


def test_a_check_leaves_the_random_numbers_alone(unchecked):
    torch.manual_seed(0)
    first = torch.rand(1)
    torch.manual_seed(0)
    diagnose(TASKS["transformer"], TASKS["transformer"].reference)
    assert torch.equal(first, torch.rand(1))


def test_what_a_function_uses_is_repaired_first(unchecked):
    "A wrong attention inside of a right multi_head is not a mistake of multi_head."
    functions = {name: by_hand(name) for name in TASKS}
    functions["attention"] = lambda q, k, v, mask: v.mean(-2, keepdim=True).expand(
        *q.shape[:-1], -1
    )
    functions["multi_head"] = lambda *args: args[0] * 2
    assert verdict_on("multi_head", functions).text == "first repair attention"
    # nor is it if multi_head has a mistake of this effect
    functions["attention"] = TASKS["attention"].with_mistakes("no_mask")
    functions["multi_head"] = TASKS["multi_head"].with_mistakes("no_mask")
    assert verdict_on("multi_head", functions).text == "first repair attention"


# ---- links


def headings(stem: str) -> set[str]:
    path = ROOT / f"nbs/{stem}.ipynb"
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = [joined(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    found = [h for t in texts for h in re.findall(r"^#{2,4} +(.+)$", t, re.MULTILINE)]
    return {slug(heading) for heading in found}


def test_every_link_leads_to_a_heading():
    links = {m.link for task in TASKS.values() for m in task.mistakes}
    links |= {task.lesson for task in TASKS.values()}
    lost = []
    for link in sorted(links):
        stem, _, anchor = link.partition("#")
        if anchor not in headings(stem):
            lost.append(link)
    assert lost == []


def test_addresses():
    address = workbook.lesson_address("321_attention#why-a-softmax")
    assert address.endswith("attention.html#why-a-softmax") and "321" not in address
    assert workbook.lesson_address("misreadings#x").endswith("misreadings.html#x")


# ---- the notebook

PATH = ROOT / "nbs/workbook.ipynb"
NOTEBOOK = json.loads(PATH.read_text("utf-8"))
CODES = [
    code_of(joined(cell["source"]))
    for cell in NOTEBOOK["cells"]
    if cell["cell_type"] == "code"
]
STUBS = {
    name: code
    for code in CODES
    for name in re.findall(r"^def (\w+)\(", code, re.MULTILINE)
}


def filled(version: str = "reference", **mistakes: str) -> list[str]:
    "The code cells with the reference in each stub, another version, or a mistake."
    start = "from annotated_transformer.experiments.workbook import TASKS as _tasks\n"
    cells = []
    for code in CODES:
        for name, stub in STUBS.items():
            if code == stub:
                what = f"_tasks[{name!r}]"
                wrong = mistakes.get(name)
                of = (
                    f"{what}.with_mistakes({wrong!r})" if wrong else f"{what}.{version}"
                )
                code = f"{start}{name} = {of}\n{name} = (lambda f: lambda *a: f(*a))({name})"
                code += f"\n{name}.__name__ = {name!r}"
        cells.append(code)
    return cells


def run_cells(cells: list[str]) -> tuple[dict, str]:
    matplotlib.use("agg")
    space, said = {}, io.StringIO()
    with contextlib.redirect_stdout(said):
        for code in cells:
            exec(compile(code, "workbook", "exec"), space)
    return space, said.getvalue()


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
    "Without what other notebooks of this process have checked."
    monkeypatch.setattr(workbook, "_verdicts", {})
    monkeypatch.setattr(workbook, "_written", {})


def test_the_notebook_has_the_tasks_of_the_table():
    "In its order, each with a stub whose parameters are right, its check, and three hints."
    assert [*STUBS] == [*TASKS]
    checks = re.findall(r"^check\((\w+)\)$", "\n".join(CODES), re.MULTILINE)
    assert checks == [*TASKS]
    texts = [
        joined(c["source"]) for c in NOTEBOOK["cells"] if c["cell_type"] == "markdown"
    ]
    of_tasks = [text for text in texts if re.match(r"## \d+\. ", text)]
    for i, (text, (name, task)) in enumerate(zip(of_tasks, TASKS.items()), 1):
        assert text.startswith(f"## {i}. {task.title}\n")
        hints = re.findall(r"<details><summary>Hint (\d)</summary>", text)
        assert hints == ["1", "2", "3"] and "ipynb#" in text.split("Hint 3")[1]
        stub = STUBS[name]
        assert stub.rstrip().endswith("\n    ...")
        parameters = inspect.signature(task.written).parameters
        asked = re.findall(r"(\w+): ", stub.partition(") ->")[0].partition("(")[2])
        assert asked == [*parameters][1:]
    assert len(of_tasks) == len(TASKS)


def test_stubs_are_missing(unchecked):
    space, said = run_cells(CODES)
    assert said.count("not written yet") == len(TASKS)
    assert "0 of 19 tasks are right; next: softmax" in said and "✗" not in said
    assert not space["is_complete"] and "not yet" in said


def test_it_runs_to_the_end_with_the_references(unchecked):
    cells = [code.replace("[], 250", "[], 2") for code in filled()]
    assert cells != filled()
    space, said = run_cells(cells)
    assert said.count("✓") == 19 and "19 of 19 tasks are right\n" in said
    assert len(space["losses"]) == 2 and "too wide." in said


@pytest.mark.slow
def test_the_model_that_was_written_translates(unchecked):
    "Both sentences, as the notebook trains it; other processors round otherwise."
    # by hand, because the references build the package's modules for each call
    space, said = run_cells(filled("with_mistakes()"))
    assert space["losses"][-1] < 1.0
    assert "weil es zu müde war." in said and "weil sie zu breit war." in said


def notebook_of(codes: list[str]) -> dict:
    cells = [{"cell_type": "code", "source": code.splitlines(True)} for code in codes]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def file_of(tmp_path):
    def write(codes: list[str]):
        path = tmp_path / "of a student.ipynb"
        path.write_text(json.dumps(notebook_of(codes)), encoding="utf-8")
        return path

    return write


def test_the_command_scores_what_was_handed_in(file_of, tmp_path):
    "Also after a cell that raises; a mistake is named."
    codes = ["%matplotlib inline\n!ls\n1 / 0", *filled(attention="no_scale")]
    out = tmp_path / "score.json"
    program = [sys.executable, "-m", "annotated_transformer", "workbook"]
    done = subprocess.run(
        [*program, "--check", file_of(codes), "--json", out],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert "✗ attention: this is what comes out if the scores are not" in done.stdout
    assert done.stdout.endswith("18 of 19 tasks are right; next: attention\n")
    score = json.loads(out.read_text("utf-8"))
    assert (score["right"], score["tasks"]) == (18, 19)
    assert score["results"]["attention"]["mistakes"] == ["no_scale"]


def test_a_notebook_that_does_not_end(file_of):
    with pytest.raises(UserError, match="one of its loops does not end"):
        grade(file_of(["while True:\n    pass"]), timeout=2)


def test_a_search_that_does_not_end_is_stopped(unchecked):
    def endless(step, bos_id, eos_id, max_len):
        while True:
            step([bos_id])

    found = diagnose(TASKS["greedy_search"], endless)
    assert found.state == "unknown" and "does the search end?" in found.text


def test_checks_do_not_raise(capsys, unchecked):
    workbook.check(None)
    workbook.check(lambda: 0)
    assert capsys.readouterr().out.count("is not a task") == 2
