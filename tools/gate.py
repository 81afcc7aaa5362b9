#!/usr/bin/env python
"""Is everything that is made from the notebooks what they make, are they clean, can Quarto read their options, are translations in order?

Makes it all anew in a copy and compares. The checkout itself is only read, and may hold uncommitted work.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cells import ROOT, joined, options, settings, strict_yaml
from translate import of_gate

# nbdev keeps the version line of __init__.py, people keep the rest
BY_HAND = {"__init__.py", "__main__.py"}
REMAKE = "from pathlib import Path; from notebooks import export; export(Path.cwd())"


def files_of(root: Path) -> list[str]:
    "What git tracks or would track; where git knows nothing, all but what tools leave behind."
    found = ""  # stays empty where git fails or knows none of the files
    if shutil.which("git"):
        command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
        found = subprocess.run(command, cwd=root, capture_output=True, text=True).stdout
    if found:
        names = found.split("\0")
    else:
        left = re.compile(
            r"^runs/|(^|/)(\.|(_proc|_docs|__pycache__|build|dist)(/|$)|nbdev\.yml)"
        )
        names = [
            n
            for p in root.rglob("*")
            if not left.search(n := p.relative_to(root).as_posix())
        ]
    return sorted(
        n for n in set(names) if n and ((root / n).is_symlink() or (root / n).is_file())
    )


def copy(root: Path, to: Path, names: list[str]) -> None:
    for name in names:
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, to / name, follow_symlinks=False)


def remake(root: Path) -> None:
    "Delete what is exported, and export anew."
    lib = root / settings(root)["lib_path"]
    for module in lib.rglob("*.py"):  # not what the modules read, pages/*.css say
        if module.parent != lib or module.name not in BY_HAND:
            module.unlink()
    env = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parent)}
    env.pop("IN_TEST", None)  # with it nbdev exports nothing
    done = subprocess.run(
        [sys.executable, "-c", REMAKE],
        cwd=root,
        env=env,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"gate: the notebooks do not export:\n{done.stderr}")


def drift(root: Path) -> list[str]:
    "One line for each file that differs from what the notebooks make."
    cfg, names = settings(root), files_of(root)
    lib, nbs = cfg["lib_path"] + "/", cfg["nbs_path"] + "/"
    with tempfile.TemporaryDirectory() as tmp:
        made = Path(tmp).resolve()
        copy(root, made, names)
        remake(made)
        watched = [n for n in names if n.startswith((lib, nbs, "README"))]
        watched += [
            p.relative_to(made).as_posix()
            for p in [*(made / lib).rglob("*.py"), *made.glob("README*")]
        ]
        lines = []
        for name in sorted(set(watched)):
            here, there = root / name, made / name
            if not there.exists():
                lines.append(
                    f"{name}: no notebook exports it; delete it, or move it to a notebook"
                )
            elif not here.exists():
                lines.append(f"{name}: missing; a notebook exports it")
            elif here.read_bytes() == there.read_bytes():
                continue
            elif name.endswith(".ipynb"):
                lines.append(f"{name}: not clean (execution counts or metadata)")
            elif name.startswith("README"):
                lines.append(f"{name}: not what {nbs}{cfg['readme_nb']} makes")
            elif Path(name).name in BY_HAND:
                lines.append(f"{name}: not what settings.ini says")
            else:
                lines.append(
                    f"{name}: not what its notebook exports (edited by hand, or not exported yet)"
                )
    return lines


def yaml_of(root: Path) -> Iterator[tuple[Callable, str, str]]:
    "What Quarto reads as YAML: (how, text, where) of its settings, front matter and the options of cells."
    nbs = root / settings(root)["nbs_path"]
    if (quarto := root / "_quarto.yml").exists():
        yield strict_yaml, quarto.read_text(encoding="utf-8"), quarto.name
    texts = [(p.read_text(encoding="utf-8"), p.name) for p in nbs.glob("*.qmd")]
    for path in nbs.glob("[!_.]*.ipynb"):
        for i, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
            source, where = joined(cell["source"]), f"{path.name}, cell {i}"
            if cell["cell_type"] == "code":
                yield options, source, where
            elif cell["cell_type"] == "raw":
                texts.append((source, where))
    for text, where in texts:
        if m := re.match(r"---[ \t]*\n(.*?)^---[ \t]*$", text, re.M | re.S):
            yield strict_yaml, m[1], where


def refused(root: Path) -> list[str]:
    "One line for each YAML text that Quarto would refuse."
    lines = []
    for read, text, where in yaml_of(root):
        try:
            read(text, where)
        except ValueError as e:
            lines.append(" ".join(str(e).split()))
    return sorted(lines)


def main() -> int:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    lines, translations = drift(root) + refused(root), of_gate(root)
    for line in lines + translations:
        print(f"gate: {line}")
    if lines:
        print("gate: change the notebook, then run `make export`")
    elif not translations:
        print("gate: package, notebooks and README agree, translations are in order")
    return 1 if lines or translations else 0


if __name__ == "__main__":
    sys.exit(main())
