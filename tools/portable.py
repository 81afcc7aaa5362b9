#!/usr/bin/env python
"""Do the notebooks and the tests hold on other processors? Runs them under settings that choose other kernels, one line each.

    tools/portable.py                              every variant, all notebooks, all tests
    tools/portable.py --quick                      every variant, what computes with floats: minutes
    tools/portable.py --variants "default avx2"    some variants; "default+threads-2" is both at once
    tools/portable.py --names "31_stack test_model"   some notebooks and test files

Logs are in .portable/.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from cells import ROOT

FOLDER = ROOT / ".portable"
# What a variant changes. Everything else about it is as in `make test`: one thread.
VARIANTS = {
    "threads-1": {"OMP_NUM_THREADS": "1"},  # and what this processor chooses
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "onednn-sse41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
    "mkl-avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    # MKL alone takes no more threads than there are cores
    "threads-2": {"OMP_NUM_THREADS": "2", "MKL_DYNAMIC": "FALSE"},
    "threads-4": {"OMP_NUM_THREADS": "4", "MKL_DYNAMIC": "FALSE"},
    "hash-0": {"PYTHONHASHSEED": "0"},
    "hash-1": {"PYTHONHASHSEED": "1"},
    "lang-c": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
}
X86 = {"avx2", "onednn-sse41", "onednn-avx2", "mkl-compatible", "mkl-avx2"}
# Those that compare floats; together about a minute a variant on two cores.
QUICK_NOTEBOOKS = r"(01|2|3|53|54_|61[a-d]|90)\w+"
QUICK_TESTS = r"test_(attention|decode|loss|model|train|twins)"
KERNELS = "import torch; print(torch.backends.cpu.get_cpu_capability().lower(), torch.get_num_threads())"


def possible() -> list[str]:
    "The variants that mean something on this machine."
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return [name for name in VARIANTS if is_x86 or name not in X86]


def environment(variant: str) -> dict[str, str]:
    "What the processes of a variant see; `a+b` is both. What the caller set for another variant is dropped."
    chosen = {"OMP_NUM_THREADS": "1"}
    for name in variant.split("+"):
        chosen |= VARIANTS[name]
    others = {key for found in VARIANTS.values() for key in found} - {"LANG"}
    env = {k: v for k, v in os.environ.items() if k not in {"IN_TEST", *others}}
    bin_folder = str(Path(sys.executable).parent)  # where nbdev_test is
    env["PATH"] = os.pathsep.join([bin_folder, env.get("PATH", "")])
    return env | chosen


def commands(names: list[str], quick: bool) -> dict[str, list[str]]:
    "What is run of notebooks and of tests; a name that neither has ends the program."
    books = sorted(path.stem for path in (ROOT / "nbs").glob("[!_.]*.ipynb"))
    tests = sorted(path.stem for path in (ROOT / "tests").glob("test_*.py"))
    if unknown := {*names} - {*books, *tests}:
        sys.exit(f"no such notebook or test file: {', '.join(sorted(unknown))}")
    if names:
        books, tests = ([x for x in found if x in names] for found in (books, tests))
    elif quick:
        books = [name for name in books if re.fullmatch(QUICK_NOTEBOOKS, name)]
        tests = [name for name in tests if re.fullmatch(QUICK_TESTS, name)]
    only = f"^({'|'.join(books)})\\.ipynb$"
    paths = [f"tests/{name}.py" for name in tests]
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    found = {"notebooks": ["nbdev_test", "--n_workers", "2", "--file_re", only]}
    found["tests"] = [*pytest, *paths]
    return {kind: found[kind] for kind, some in zip(found, (books, tests)) if some}


def holds(variant: str, kind: str, command: list[str]) -> bool:
    "Run a command under a variant, and say what became of it."
    env, log = environment(variant), FOLDER / f"{variant}.{kind}.log"
    asked = [sys.executable, "-c", KERNELS]
    kernels = subprocess.run(asked, env=env, capture_output=True, text=True).stdout
    with log.open("w", encoding="utf-8") as out:
        done = subprocess.run(
            command, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT
        )
    became = f"FAILED, see {log.relative_to(ROOT)}" if done.returncode else "ok"
    print(f"{variant:22}{kernels.strip():16}{kind:12}{became}", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", default="", help="names with blanks between")
    parser.add_argument("--names", default="", help="notebooks and test files")
    parser.add_argument(
        "--quick", action="store_true", help="what computes with floats"
    )
    args = parser.parse_args()
    variants = args.variants.split() or possible()
    chosen = {name for variant in variants for name in variant.split("+")}
    if unknown := chosen - set(possible()):
        sys.exit(
            f"no such variant on this machine: {', '.join(sorted(unknown))}; "
            f"there are {', '.join(possible())}"
        )
    found = commands(args.names.split(), args.quick)
    FOLDER.mkdir(exist_ok=True)
    good = [holds(v, kind, found[kind]) for v in variants for kind in found]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
