#!/usr/bin/env python
"""Do the notebooks and the tests hold on other processors? Runs them under settings that choose other kernels, one line each.

    tools/portable.py                              every variant, all notebooks, all tests
    tools/portable.py --quick                      every variant, what computes with floats: minutes
    tools/portable.py --variants "default avx2"    some variants
    tools/portable.py --names "31_stack test_model"   some notebooks and test files

Logs are in .portable/.
"""

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".portable"
# What a variant changes. Everything else about it is as in `make test`: one thread.
VARIANTS = {
    "threads-1": {},  # and what this processor chooses
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    # MKL alone takes no more threads than there are cores
    "threads-2": {"OMP_NUM_THREADS": "2", "MKL_DYNAMIC": "FALSE"},
    "threads-4": {"OMP_NUM_THREADS": "4", "MKL_DYNAMIC": "FALSE"},
    "hash-0": {"PYTHONHASHSEED": "0"},
    "hash-1": {"PYTHONHASHSEED": "1"},
    "lang-c": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
}
if platform.machine().lower() in ("x86_64", "amd64"):
    VARIANTS |= {
        "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
        "onednn-sse41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
        "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
        "mkl-avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    }
# Those that compare floats; together about a minute a variant on two cores.
QUICK_NOTEBOOKS = r"(01|2|3|53|54_|61[a-d]|90)\w+"
QUICK_TESTS = "attention decode loss model train twins"


def commands(names: list[str], quick: bool) -> dict[str, list[str]]:
    "What is run of notebooks and of tests."
    tests = [f"tests/{name}.py" for name in names if name.startswith("test_")]
    books = [name for name in names if not name.startswith("test_")]
    only = "|".join(books) if names else QUICK_NOTEBOOKS if quick else r"\w+"
    if quick and not names:
        tests = [f"tests/test_{name}.py" for name in QUICK_TESTS.split()]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    found = {}
    if only:
        order = ["nbdev_test", "--n_workers", "2", "--file_re", rf"^({only})\.ipynb$"]
        found["notebooks"] = order
    return found | ({"tests": pytest} if tests or not names else {})


def holds(variant: str, kind: str, command: list[str]) -> bool:
    "Run a command under a variant, and say what became of it."
    where = str(Path(sys.executable).parent)  # of nbdev_test
    path = os.pathsep.join([where, os.environ.get("PATH", "")])
    env = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | VARIANTS[variant]
    env.pop("IN_TEST", None)
    log = FOLDER / f"{variant}.{kind}.log"
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(command, cwd=ROOT, env=env, stdout=out, stderr=out)
    became = f"FAILED, see {log.relative_to(ROOT)}" if done.returncode else "ok"
    print(f"{variant:22}{kind:12}{became}", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--variants", default="", help=f"of {' '.join(VARIANTS)}")
    add("--names", default="", help="notebooks and test files, with blanks between")
    add("--quick", action="store_true", help="what computes with floats")
    args = parser.parse_args()
    variants = args.variants.split() or [*VARIANTS]
    if unknown := {*variants} - {*VARIANTS}:
        parser.error(f"no such variant on this machine: {', '.join(sorted(unknown))}")
    names = args.names.split()
    here = {path.stem for path in (*ROOT.glob("nbs/*.ipynb"), *ROOT.glob("tests/*.py"))}
    if unknown := {*names} - here:
        parser.error(f"no such notebook or test file: {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    found = commands(names, args.quick)
    return int(
        not all([holds(v, kind, found[kind]) for v in variants for kind in found])
    )


if __name__ == "__main__":
    sys.exit(main())
