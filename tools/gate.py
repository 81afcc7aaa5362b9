#!/usr/bin/env python
"""Is everything that is made from the notebooks what they make, are they clean, can Quarto read their options, are translations well formed?

Makes it all again in a copy and compares. The checkout itself is only read, and may hold uncommitted work.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cells import ROOT, conflicts, joined, options, settings, strict_yaml
from translate import of_gate

# nbdev keeps the version line of __init__.py, people keep the rest
BY_HAND = {"__init__.py", "__main__.py"}
REMAKE = "from pathlib import Path; from notebooks import export; export(Path.cwd())"


def made_files(root: Path) -> dict[str, bytes]:
    "What notebooks make, and they themselves: names and contents."
    lib = root / settings(root)["lib_path"]
    kinds = lib.rglob("*.py"), root.glob("nbs/[!_.]*.ipynb"), root.glob("README*")
    paths = [path for kind in kinds for path in kind]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def remake(root: Path) -> None:
    "Delete what is exported, and export it again."
    lib = root / settings(root)["lib_path"]
    for module in lib.rglob("*.py"):
        if module.parent != lib or module.name not in BY_HAND:
            module.unlink()
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent)}
    env.pop("IN_TEST", None)  # with it nbdev exports nothing
    command = [sys.executable, "-c", REMAKE]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"gate: the notebooks do not export:\n{done.stderr}")


def drift(root: Path) -> list[str]:
    "One line for each file that differs from what the notebooks make."
    here, lines, lib = made_files(root), [], settings(root)["lib_path"]
    left_behind = shutil.ignore_patterns(".*", "runs")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve()
        for path in root.glob("*"):
            if path.name in ("nbs", "translations", lib):
                ignored = left_behind if path.name == "nbs" else None
                shutil.copytree(path, copy / path.name, ignore=ignored)
            elif path.suffix in (".md", ".ini", ".toml"):
                shutil.copy2(path, copy)
        remake(copy)
        there = made_files(copy)
    for name in sorted(here.keys() | there.keys()):
        if name not in there:
            says = "no notebook exports it; delete it, or move it to a notebook"
        elif name not in here:
            says = "missing; a notebook exports it"
        elif here[name] == there[name]:
            continue
        elif name.endswith(".ipynb"):
            says = "not clean (execution counts or metadata)"
        elif name.startswith("README"):
            says = f"not what nbs/{settings(root)['readme_nb']} makes"
        elif Path(name).name in BY_HAND:
            says = "not what settings.ini says"
        else:
            says = "not what its notebook exports (edited by hand, or not exported yet)"
        lines.append(f"{name}: {says}")
    return lines


def wrong_cells(path: Path) -> list[str]:
    "One line for each cell that has options that Quarto would refuse."
    lines = []
    for i, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            try:
                options(joined(cell["source"]), f"{path.name}, cell {i}")
            except ValueError as e:
                lines.append(" ".join(str(e).split()))
    return lines


def refused(root: Path) -> list[str]:
    "What a merge left in notebooks, their wrong cells, and settings of the site that Quarto would refuse."
    lines, quarto = [], root / "_quarto.yml"
    if quarto.exists():
        try:
            strict_yaml(quarto.read_text(encoding="utf-8"), quarto.name)
        except ValueError as e:
            lines.append(" ".join(str(e).split()))
    for path in sorted(root.glob("nbs/[!_.]*.ipynb")):
        lines += conflicts(path) or wrong_cells(path)
    return lines


def main() -> int:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    lines, new = refused(root), []
    if not lines:
        wrong, new = of_gate(root)
        lines = drift(root) + wrong
    for line in lines + new:
        print(f"gate: {line}")
    if lines:
        print("gate: change the notebook or translation, then run `make export`")
    else:
        print("gate: package, notebooks and README agree, translations are well formed")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
