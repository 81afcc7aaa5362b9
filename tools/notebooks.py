#!/usr/bin/env python
"""Export the notebooks, run them, make README.md from the index.

tools/notebooks.py export            notebooks → package, notebooks cleaned, README.md made; nothing is run
tools/notebooks.py setup             once in an environment: nbdev's own commands find what settings.ini names in tools/, and git merges
                                     notebooks by cells; JupyterLab lists files in the order of reading
tools/notebooks.py run [NAME ...]    all that, and the named notebooks (default: all) run top to bottom, their outputs stored
tools/notebooks.py alone [NAME ...]  each runs in an empty folder, every cell twice, with the package that is installed; nothing is exported
                                     or stored
"""

import argparse
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import nbformat
import plots
from cells import (
    FOLDED,
    INSTALLS,
    ROOT,
    conflicts,
    directives,
    install_cell,
    is_folded,
    is_hidden,
    readme,
    runs_alone,
    settings,
)
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from translate import begun, languages, site, translated

SKIP_TAG = "skip-execution"  # nbclient leaves such cells, and their outputs, alone

# JupyterLab lists the notebooks in the paper's order: 321 before 33, not after 97.
LAB = {"@jupyterlab/filebrowser-extension:browser": {"sortFileNamesNaturally": False}}

# GitHub shows figures as PNG alone; the site takes the SVG.
BOTH = [f"--InlineBackend.figure_formats={kind}" for kind in ("png", "svg")]


# ---- running


def is_run(source: str, flags: set[str]) -> bool:
    "Is this cell run without being asked for? Not those with one of `flags`, not `eval: false`."
    found = directives(source)
    return not flags & found.keys() and found.get("eval", "").lower() != "false"


def twice(cells: list) -> list:
    "Each cell two times in a row, as readers run one again after a change."
    return [again for cell in cells for again in (cell, cell)]


def execute(nb, folder: Path, flags: set[str]) -> None:
    "Run a notebook in a Jupyter kernel of its own, in a folder; cells that are not run get a tag."
    for cell in nb.cells:
        if cell.cell_type == "code" and not is_run(cell.source, flags):
            cell.metadata["tags"] = [SKIP_TAG]
    NotebookClient(
        nb,
        timeout=1800,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        skip_cells_with_tag=SKIP_TAG,
        extra_arguments=["--IPKernelApp.log_level=40", *BOTH],
        resources={"metadata": {"path": str(folder)}},
    ).execute()


def run(path: Path, flags: set[str], alone: bool = False) -> str:
    "Run one notebook and store its outputs, or `alone`, in an empty folder. Returns what went wrong, or nothing."
    nb = nbformat.read(path, 4)
    kept = [dict(cell.metadata) for cell in nb.cells]
    if alone:
        nb.cells = twice(nb.cells)
    with tempfile.TemporaryDirectory() as empty:
        try:
            execute(nb, Path(empty) if alone else path.parent, flags)
        except CellExecutionError as e:
            return re.sub(r"\x1b\[[0-9;]*m", "", str(e))
    if not alone:
        for cell, metadata in zip(nb.cells, kept, strict=True):
            cell.metadata = metadata
        for data in plots.stored_figures(nb):
            data["image/svg+xml"] = plots.stored(data["image/svg+xml"])
        write_clean(json.loads(nbformat.writes(nb)), path)
    return ""


def write_clean(nb: dict, path: Path) -> None:
    """Write a notebook as nbdev_clean leaves it, with what its page folds or hides folded in JupyterLab and Colab too.

    The cell that installs the package gets its text. A file that would not change is not touched.
    """
    from execnb.nbio import dict2nb, write_nb  # `alone` is where there is no nbdev
    from nbdev.clean import clean_nb

    nb = dict2nb(nb)
    clean_nb(nb, allowed_cell_metadata_keys=["tags"])
    for cell in nb["cells"]:
        if cell["id"] == INSTALLS:
            cell["source"] = install_cell()
        if is_folded(cell) or cell["cell_type"] == "code" and is_hidden(cell):
            cell["metadata"].update(FOLDED)
    write_nb(nb, path)


def run_all(names: list[str], workers: int, alone: bool, slow: bool) -> int:
    "Run notebooks, two at a time; returns how many failed."
    nbs, failed = ROOT / "nbs", 0
    every = sorted(nbs.glob("[!_.]*.ipynb"))
    if unknown := set(names) - {path.stem for path in every}:
        sys.exit(f"no such notebook in nbs/: {', '.join(sorted(unknown))}")
    names = names or [p.stem for p in every if not alone or runs_alone(p)]
    # One thread and one order of sets: the same figures on every machine, as far as that goes.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    os.environ["MATPLOTLIBRC"] = str(ROOT / "tools/matplotlibrc")
    flags = set(settings()["tst_flags"].split()) - ({"slow"} if slow else set())
    with ProcessPoolExecutor(workers) as pool:
        paths = [nbs / f"{name}.ipynb" for name in names]
        errors = pool.map(partial(run, flags=flags, alone=alone), paths)
        for name, error in zip(names, errors, strict=True):
            print(f"{name}: {error or 'ran'}", flush=True)
            failed += bool(error)
    return failed


# ---- exporting


def tidy_modules(lib: Path) -> None:
    "Imports from the package become relative, which nbdev does on one line only; lines end as in git, where nbdev writes CRLF on Windows."
    for path in lib.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        dots = "." * len(path.relative_to(lib).parts)
        own = rf"^( *from ){re.escape(dots + path.parent.name)}\."
        if path.parent != lib:
            text = re.sub(rf"^( *from ){lib.name}\b\.?", rf"\1{dots}", text, flags=re.M)
            text = re.sub(own, r"\1.", text, flags=re.M)
        if text.encode() != path.read_bytes():
            path.write_text(text, encoding="utf-8", newline="\n")


def export(root: Path = ROOT) -> None:
    "Notebooks → package, notebooks cleaned, README.md and translations of it made, in `root`, which is the current directory."
    from nbdev.doclinks import nbdev_export

    notebooks = sorted((root / "nbs").glob("[!_.]*.ipynb"))
    if lines := [line for path in notebooks for line in conflicts(path)]:
        sys.exit("\n".join(lines))
    nbdev_export()
    tidy_modules(root / settings(root)["lib_path"])
    for path in notebooks:
        write_clean(json.loads(path.read_text(encoding="utf-8")), path)
    index = root / "nbs" / settings(root)["readme_nb"]
    made = {}
    if index.exists():
        nb = json.loads(index.read_text(encoding="utf-8"))
        made["README.md"] = readme(nb, f"nbs/{index.name}")
    for folder in languages(root):
        if (path := folder / f"{index.stem}.md") in begun(folder):
            where = path.relative_to(root).as_posix()
            made[site(folder)["readme"]] = readme(translated(path, both=False), where)
    for name, text in made.items():
        (root / name).write_text(text, encoding="utf-8", newline="\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["setup", "export", "run", "alone"])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="notebooks, by their stem: 31_stack"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--slow", action="store_true", help="with cells of #| slow")
    args = parser.parse_intermixed_args()  # options between names, too
    os.chdir(ROOT)
    if args.command == "setup":
        to = Path(sysconfig.get_path("purelib"), "tools.pth")
        to.write_text(f"{ROOT / 'tools'}\n", encoding="utf-8")
        lab = Path(sysconfig.get_path("data"), "share/jupyter/lab/settings/overrides.d")
        lab.mkdir(parents=True, exist_ok=True)
        (lab / "order.json").write_text(json.dumps(LAB), encoding="utf-8")
        (ROOT / "README.md").touch()  # nbdev would make it anew from a newer index
        if (ROOT / ".git").exists():
            driver = Path(sysconfig.get_path("scripts"), "nbdev_merge")
            setting = ["merge.nbdev-merge.driver", f'"{driver}" %O %A %B %P']
            subprocess.run(["git", "config", *setting], check=True)
        return 0
    if args.command != "alone":
        export()
    if args.command == "export":
        return 0
    failed = run_all(args.names, args.workers, args.command == "alone", args.slow)
    if args.command == "run":
        export()  # README.md shows what the index printed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
