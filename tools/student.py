#!/usr/bin/env python
"""Copies of the notebooks for a class, without solutions.

tools/student.py FOLDER    a new or empty folder, which gets the notebooks and their drawings

Left out are cells with the summary "Solution" or the tag "solution", folded answers, and the notebooks for teachers. The check of a
function to write gets the solution's cell, where it runs. A link to what the folder lacks leads to the repository.
"""

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

from cells import ROOT, directives, joined, markdown_of, retarget, runs_alone, settings

sys.path.insert(0, str(ROOT))  # where only the repository is

from annotated_transformer import UserError
from annotated_transformer.io.files import new_folder

FOR_TEACHERS = ("98a_tasks", "teaching", "teaching_answers")
ANSWER = r"<details><summary>Answers?</summary>.*?</details>"
TO_WRITE = "*Your answer:*"
CHECK = (
    r"\n+# (check_\w+\(.*\))\s*$"  # the last line of a cell with a function to write
)
NOTE = (
    "*A copy for students, without solutions. Write your answers in this notebook. The cell below a function to write checks "
    "it, and ends in an error until the function is right; the cells after it run nevertheless. No solution is folded here, "
    "and no `#` has to be removed.*"
)
# JupyterLab and nbclient go on after an error in such a cell.
MAY_FAIL = {"tags": ["raises-exception"]}


def is_solution(cell: dict) -> bool:
    summary = directives(joined(cell["source"])).get("code-summary")
    return summary == "Solution" or "solution" in cell["metadata"].get("tags", [])


def without_solutions(cells: list[dict]) -> list[dict]:
    "The cells of a notebook with what students have to write left empty."
    kept = []
    for cell in cells:
        source = joined(cell["source"])
        if is_solution(cell):
            task = kept[-1] if kept else cell
            if check := re.search(CHECK, task["source"]):
                task["source"] = task["source"][: check.start()]
                source = f"# fails until the exercise above is solved\n{check[1]}"
                new = {"source": source, "outputs": [], "metadata": MAY_FAIL}
                kept.append(cell | new)
        else:  # a later check may use what an earlier exercise has written
            source = re.sub(ANSWER, TO_WRITE, source, flags=re.S)
            source = re.sub(r"\b(\w+?)(_solution|Solution)\b", r"\1", source)
            kept.append(cell | {"source": source})
    if [cell["source"] for cell in kept] != [joined(c["source"]) for c in cells]:
        kept[0]["source"] = kept[0]["source"].rstrip() + f"\n\n{NOTE}"
    return kept


def shown_alone(cells: list[dict]) -> list[dict]:
    "The texts of a page that is made of the repository's own files, without its code."
    return [
        {k: cell[k] for k in ("id", "metadata")}
        | {"cell_type": "markdown", "source": text}
        for cell in cells
        for _, kind, text in markdown_of(cell)
        if kind != "text/html"
    ]


def copy_for_students(path: Path, names: set[str]) -> dict:
    "A notebook for a folder that has the notebooks of these names."
    nb, cfg = json.loads(path.read_text(encoding="utf-8")), settings()

    def lead(target: str) -> str:
        file = (path.parent / target.partition("#")[0]).resolve()
        if file.name in names or file.parent.name == "images":
            return target
        inside = file.relative_to(ROOT).as_posix()
        anchor = target.partition("#")[1:]
        kind = "tree" if file.is_dir() else "blob"
        return f"{cfg['git_url']}/{kind}/{cfg['branch']}/{inside}{''.join(anchor)}"

    is_made = any(c["cell_type"] == "code" for c in nb["cells"]) and not runs_alone(
        path
    )
    nb["cells"] = (shown_alone if is_made else without_solutions)(nb["cells"])
    for cell in nb["cells"]:
        for where, kind, text in markdown_of(cell):
            where[kind] = retarget(text, lead)
    return nb


def write_copies(folder: Path) -> int:
    "All copies, in a new folder; returns how many."
    paths = sorted((ROOT / "nbs").glob("[!_.]*.ipynb"))
    paths = [path for path in paths if path.stem not in FOR_TEACHERS]
    names = {path.name for path in paths}
    with new_folder(folder, last="index.ipynb") as new:
        chinese = shutil.ignore_patterns("*.zh.svg")
        shutil.copytree(ROOT / "nbs/images", new / "images", ignore=chinese)
        for path in paths:
            nb = copy_for_students(path, names)
            text = json.dumps(nb, indent=1, ensure_ascii=False) + "\n"
            (new / path.name).write_text(text, encoding="utf-8", newline="\n")
    return len(paths)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder = parser.parse_args().folder
    try:
        n = write_copies(folder)
    except (UserError, OSError) as e:
        print(e, file=sys.stderr)
        return 2
    print(f"{n} notebooks without solutions: {folder}; begin with index.ipynb")
    return 0


if __name__ == "__main__":
    sys.exit(main())
