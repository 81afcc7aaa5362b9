#!/usr/bin/env python
"""Run notebooks alone, each in an empty folder, with the package that is installed for the Python that runs this.

PYTHON tools/alone.py [NAME ...]    PYTHON has the wheel with its extra [notebooks], nbclient and ipykernel, and no checkout
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from cells import ROOT, settings
from nbclient.exceptions import CellExecutionError
from notebooks import execute

IN_A_CHECKOUT = {"map", "reading", "reference"}  # tables of the checkout's own files


def failure(path: Path) -> str:
    "The last line of a notebook's error, or nothing."
    nb, flags = nbformat.read(path, 4), set(settings()["tst_flags"].split())
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, folder)
        try:
            execute(nb, Path(folder), flags)
        except CellExecutionError as e:
            return str(e).strip().splitlines()[-1]
    return ""


def main() -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    paths = [ROOT / "nbs" / f"{name}.ipynb" for name in sys.argv[1:]]
    failed = 0
    for path in paths or sorted((ROOT / "nbs").glob("[!_.]*.ipynb")):
        if path.stem not in IN_A_CHECKOUT:
            started, why = time.perf_counter(), failure(path)
            seconds = time.perf_counter() - started
            print(f"{seconds:5.0f} s  {path.stem}  {why}", flush=True)
            failed += bool(why)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
