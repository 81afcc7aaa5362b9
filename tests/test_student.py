"tools/student.py: copies without solutions whose checks, links and cells work."

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import links
import nbformat
import pytest
import student
from cells import code_of, joined, settings
from conftest import ROOT
from notebooks import execute
from test_gate import cell

from annotated_transformer.experiments.workbook import TASKS
from annotated_transformer.io.files import read_record

SOURCES = {
    path.stem: json.loads(path.read_text("utf-8"))["cells"]
    for path in sorted((ROOT / "nbs").glob("[!_.]*.ipynb"))
}
COPIED = {n: cells for n, cells in SOURCES.items() if n not in student.FOR_TEACHERS}
ANSWER = r"<summary>Answers?</summary>(.*?)</details>"


def is_secret(c: dict) -> bool:
    "A solution, by the two ways in which notebooks mark one."
    tagged = "solution" in c["metadata"].get("tags", [])
    return tagged or '#| code-summary: "Solution"' in joined(c["source"])


TO_WRITE = [n for n, cells in COPIED.items() if any(map(is_secret, cells))]


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("class") / "nbs"
    student.write_copies(folder)
    return folder


def of(cells: list[dict]) -> str:
    "All texts of cells and of their outputs."
    texts = [joined(c["source"]) for c in cells]
    for out in (out for c in cells for out in c.get("outputs") or []):
        data = out.get("data", {})
        found = [out.get("text", ""), *map(data.get, ("text/plain", "text/markdown"))]
        texts += map(joined, filter(None, found))
    return "\n".join(texts)


def phrases(text: str) -> set[str]:
    "The long lines and sentences of a text."
    found = {part.strip() for part in re.split(r"\n|(?<=[.:?]) ", text)}
    return {part for part in found if len(part) >= 30}


def test_no_solution_in_any_copy(copies):
    "Nothing that only solutions and their outputs have, and no sentence of an answer."
    solutions, others, answers = set(), set(), set()
    for cells in COPIED.values():
        for c in cells:
            text = of([c])
            answers |= phrases("\n".join(re.findall(ANSWER, text, re.DOTALL)))
            text = re.sub(ANSWER, "", text, flags=re.DOTALL)
            (solutions if is_secret(c) else others).update(phrases(text))
    secret = (solutions - others) | answers
    assert len(secret & solutions) > 500 and len(secret & answers) > 300
    for path in copies.glob("*.ipynb"):
        text = of(json.loads(path.read_text("utf-8"))["cells"])
        assert phrases(text) & secret == set(), path.name
        assert not re.search(r"\w_solution\b|\wSolution\b", text)
        assert {*re.findall(r"<summary>(\w+)", text)} <= {"Hint"}, path.name
    assert {path.stem for path in copies.glob("*.ipynb")} == COPIED.keys()


def test_each_exercise_keeps_its_check(copies):
    "In a cell of its own that may fail, below what is to be written; all else is as it was."
    assert len(TO_WRITE) > 40
    for name in TO_WRITE:
        copy = nbformat.read(copies / f"{name}.ipynb", 4)
        nbformat.validate(copy)
        tagged = [
            c for c in copy.cells if c.metadata.get("tags") == ["raises-exception"]
        ]
        codes = [of([c]) for c in COPIED[name] if c["cell_type"] == "code"]
        expected = re.findall(r"^# (check_\w+\(\w+\))$", "\n".join(codes), re.MULTILINE)
        assert expected == [c.source.split("\n")[-1] for c in tagged], name
        assert not any(c.outputs for c in tagged)
        notes = [c for c in copy.cells if student.NOTE in c.source]
        assert [copy.cells[0]] == notes
    for name in ("evening", "workbook", "serving"):
        assert student.NOTE not in (copies / f"{name}.ipynb").read_text("utf-8")


def test_links_of_copies(copies):
    "Lead to another copy, to a drawing, or to a file of the repository that exists."
    broken, _ = links.check(None, copies.parent)
    home = f"{settings()['git_url']}/blob/{settings()['branch']}/"
    inside = [re.search(rf"{re.escape(home)}([^ #]+)", line) for line in broken]
    assert [x for x, found in zip(broken, inside) if not found] == []
    lost = {found[1] for found in inside if not (ROOT / found[1]).exists()}
    assert lost == set() and len(inside) > 20
    drawn = {path.name for path in (copies / "images").iterdir()}
    assert "transformer.svg" in drawn and "transformer.zh.svg" not in drawn


def test_a_page_made_of_the_repository_is_text(copies):
    for name in ("map", "reading", "reference"):
        cells = json.loads((copies / f"{name}.ipynb").read_text("utf-8"))["cells"]
        assert {c["cell_type"] for c in cells} == {"markdown"}
        assert sum(len(c["source"]) for c in cells) > 10_000


def test_a_folder_with_other_files_is_refused(tmp_path):
    "In one line, from any working folder; an empty folder is filled."
    program = [sys.executable, ROOT / "tools/student.py"]
    folder = tmp_path / "a class"
    folder.mkdir()

    def run():
        return subprocess.run(
            [*program, folder.name], cwd=tmp_path, capture_output=True, text=True
        )

    assert run().returncode == 0 and (folder / "index.ipynb").exists()
    (folder / "index.ipynb").write_text("of a student")
    done = run()
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "a class is not empty" in done.stderr
    assert (folder / "index.ipynb").read_text() == "of a student"


# ---- the page for teachers


def texts_of(name: str) -> str:
    cells = [c for c in SOURCES[name] if c["cell_type"] == "markdown"]
    return "\n\n".join(joined(c["source"]) for c in cells)


def n_words(name: str) -> int:
    "Of a lesson's text, without exercises and answers."
    text = re.sub(r"<details>.*?</details>", "", texts_of(name), flags=re.DOTALL)
    return len(text.partition("## Exercises")[0].split())


def n_exercises(name: str) -> int:
    return len(re.findall(r"\*(?:Easy|Medium|Hard)\.\*", texts_of(name)))


def test_minutes_and_functions_of_the_sessions():
    "As the page says: 120 words a minute, up to the next five; all functions, in order."
    (code,) = [c for c in map(of_cell, SOURCES["teaching"]) if "SESSIONS =" in c]
    rows = re.findall(r"^\d .+ \| (\d+) \| (.+) \| (.+)$", code, re.MULTILINE)
    assert [name for *_, names in rows for name in names.split()] == [*TASKS]
    for minutes, stems, _ in rows:
        words = sum(map(n_words, stems.split()))
        assert abs(int(minutes) - words / 120) < 4, (stems, words)
    record = read_record("results/teaching")["teaching"]
    assert {*record} == {stem for _, stems, _ in rows for stem in stems.split()} | {
        "workbook"
    }
    lessons = re.findall(r"^\d+\. .*?\((\w+)\.ipynb", texts_of("evening"), re.MULTILINE)
    assert abs(sum(map(n_words, lessons)) / 120 - 120) < 12
    assert f"its {sum(map(n_exercises, lessons))} exercises" in texts_of("teaching")


def of_cell(c: dict) -> str:
    return joined(c["source"])


def test_each_question_of_the_exam_has_an_answer():
    exam = texts_of("teaching").partition("## An exam")[2]
    questions = re.findall(r"^(\d+)\. ", exam, re.MULTILINE)
    answers = re.findall(
        r"^\*\*(\d+)\.\*\*", texts_of("teaching_answers"), re.MULTILINE
    )
    assert questions == answers == [str(n) for n in range(1, 13)]


# ---- they run


def run_copy(cells: list[dict], folder: Path) -> list[tuple[str, str]]:
    "The last line of each cell that ends in an error, and the error."
    nb = nbformat.v4.new_notebook()
    nb.cells = [nbformat.from_dict(c) for c in cells]
    flags = set(settings()["tst_flags"].split())
    tags = [c.metadata.get("tags") for c in nb.cells]
    execute(nb, folder, flags)
    found = []
    for c, tag in zip(nb.cells, tags, strict=True):
        errors = [o for o in c.get("outputs", []) if o.output_type == "error"]
        assert not errors or tag == ["raises-exception"]
        found += [(c.source.split("\n")[-1], o.ename) for o in errors]
    return found


STUB = """def twice(x):
    ...


def check_twice(candidate):
    assert candidate(2) == 4


# check_twice(twice)"""
SOLUTION = """#| code-summary: "Solution"
def twice_solution(x):
    return 2 * x


check_twice(twice_solution)"""
LATER = "print(twice_solution(3))"


def test_cells_after_a_check_that_fails(tmp_path):
    "They run, and use what the student wrote."
    title = cell("# Toy\n> Twice", "markdown")
    copy = student.without_solutions([title, *map(cell, (STUB, SOLUTION, LATER))])
    assert [of([c]).count("2 * x") for c in copy] == [0] * 4
    assert run_copy(copy, tmp_path) == [("check_twice(twice)", "AssertionError")]
    copy[1]["source"] = copy[1]["source"].replace("...", "return x + x")
    assert run_copy(copy, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", TO_WRITE)
def test_a_copy_runs_to_its_end(name, copies):
    "Each check fails as long as nothing is written, and nothing else does."
    cells = json.loads((copies / f"{name}.ipynb").read_text("utf-8"))["cells"]
    checks = [c["source"].split("\n")[-1] for c in cells if may_fail(c)]
    assert [line for line, _ in run_copy(cells, copies)] == checks


def may_fail(c: dict) -> bool:
    return c["metadata"] == student.MAY_FAIL


def solved(name: str, copies: Path) -> list[dict]:
    "A copy with each solution before its check, under the name that the check uses."
    cells = json.loads((copies / f"{name}.ipynb").read_text("utf-8"))["cells"]
    codes = {c["id"]: code_of(joined(c["source"])) for c in SOURCES[name]}
    for c in filter(may_fail, cells):
        body = ast.parse(codes[c["id"]]).body
        kept = [ast.unparse(x) for x in body if "check_" not in ast.unparse(x)]
        check = c["source"].split("\n")[-1]
        start, written = re.fullmatch(r"(\w+\()(\w+)\)", check).groups()
        given = re.search(rf"^{re.escape(start)}(\w+)\)", codes[c["id"]], re.MULTILINE)
        c["source"] = "\n".join([*kept, f"{written} = {given[1]}", check])
    return cells


@pytest.mark.slow
@pytest.mark.parametrize("name", ["36a_bug_hunt", "52_train", "71b_rotary"])
def test_a_solved_copy_passes_its_checks(name, copies):
    "Also those of 52 and 71b that use what an earlier exercise has written."
    assert run_copy(solved(name, copies), copies) == []
