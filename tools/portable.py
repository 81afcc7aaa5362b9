#!/usr/bin/env python
"""Do the notebooks and the tests hold on other processors? Runs them under settings that choose other kernels, and prints a table.

    tools/portable.py                              every variant, all notebooks, all tests
    tools/portable.py --quick                      every variant, what computes with floats: minutes
    tools/portable.py --variants "default avx2"    some variants; "default+threads-2" is both at once
    tools/portable.py --names "31_stack test_model"   some notebooks and test files

What passed on the same files is not run again without --again. Logs are in .portable/.
"""

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

from gate import files_of
from notebooks import ROOT

FOLDER = ROOT / ".portable"
# What a variant changes. Everything else about it is as in `make test`: one thread.
VARIANTS = {
    "threads-1": {
        "OMP_NUM_THREADS": "1"
    },  # and what this processor chooses, oneDNN's kernels included
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "onednn-sse41": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "onednn-avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "mkl-compatible": {"MKL_CBWR": "COMPATIBLE"},
    "mkl-avx2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "threads-2": {
        "OMP_NUM_THREADS": "2",
        "MKL_DYNAMIC": "FALSE",
    },  # otherwise it takes no more than there are cores
    "threads-4": {"OMP_NUM_THREADS": "4", "MKL_DYNAMIC": "FALSE"},
    "hash-0": {"PYTHONHASHSEED": "0"},
    "hash-1": {"PYTHONHASHSEED": "1"},
    "lang-c": {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
}
# Those that compare floats; together about a minute a variant on two cores.
QUICK_NOTEBOOKS = """01_one_page
                     20_background 20a_convolutions 20b_systems_compared 31_stack 321_attention 322_multi_head 323_masking 33_feed_forward
                     34_embedding 35_position 36_transformer 53_optimizer 54_label_smoothing 61a_decode 61b_translate 61c_evaluate 61d_significance
                     90i_engines 90a_fast_dropout 90b_fused_attention 90c_chunked_loss 90e_kv_cache 90f_batched_search
                     90g_packed""".split()
QUICK_TESTS = """test_attention test_decode test_inference test_loss test_model test_one_page test_optimizer test_parts test_train
                 test_twins""".split()
KERNELS = """
import torch
print(torch.backends.cpu.get_cpu_capability().lower(), torch.get_num_threads())
"""


def here() -> dict[str, dict[str, str]]:
    "The variants that mean something on this machine."
    import torch

    x86 = platform.machine().lower() in ("x86_64", "amd64")
    missing = set() if x86 else {"avx2", "onednn-sse41", "onednn-avx2", "mkl-avx2"}
    if not torch.backends.mkl.is_available():
        missing |= {"mkl-compatible", "mkl-avx2"}
    if not torch.backends.mkldnn.is_available():
        missing |= {"onednn-sse41", "onednn-avx2"}
    return {name: found for name, found in VARIANTS.items() if name not in missing}


def environment(variant: str) -> dict[str, str]:
    "What the processes of a variant see; `a+b` is both."
    chosen = {"OMP_NUM_THREADS": "1"}
    for name in variant.split("+"):
        chosen |= VARIANTS[name]
    dropped = {"IN_TEST", *(key for found in VARIANTS.values() for key in found)} - {
        "LANG"
    }
    env = {
        key: value for key, value in os.environ.items() if key not in dropped
    } | chosen
    # Threads that wait would otherwise do so in a loop, and take the cores from those that work.
    if int(chosen["OMP_NUM_THREADS"]) > 1:
        env["OMP_WAIT_POLICY"] = "PASSIVE"
    env["PATH"] = os.pathsep.join(
        (str(Path(sys.executable).parent), env.get("PATH", ""))
    )  # where nbdev_test is
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), env.get("PYTHONPATH")))
    )
    return env


def n_workers(env: dict[str, str]) -> int:
    "Notebooks at a time: two at most, and no more threads than cores."
    return max(1, min(2, (os.cpu_count() or 1) // int(env["OMP_NUM_THREADS"])))


def logged(command: list[str], env: dict[str, str], log: Path) -> tuple[int, str]:
    "Exit status and all that a command printed, which the log keeps."
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    return done.returncode, done.stdout + done.stderr


def run_notebooks(names: list[str], env: dict[str, str], log: Path) -> dict:
    "How many notebooks ran, and which failed."
    only = "^(" + "|".join(map(re.escape, names)) + r")\.ipynb$"
    status, said = logged(
        ["nbdev_test", "--file_re", only, "--n_workers", str(n_workers(env))], env, log
    )
    failed = re.findall(r"^\t(\S+)\.ipynb$", said, re.M)
    if status and not failed:
        failed = ["nbdev_test itself"]
    return {"ran": len(names), "failed": failed}


def run_tests(names: list[str], env: dict[str, str], log: Path) -> dict:
    "What became of the tests of some files."
    report = log.with_suffix(".xml")
    report.unlink(missing_ok=True)
    paths = [f"tests/{name}.py" for name in names]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *paths,
    ]
    status, _ = logged(command, env, log)
    if not report.exists():
        return {"passed": 0, "skipped": 0, "failed": ["pytest itself"]}
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [
        case
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    names = sorted(
        {
            f"{case.get('classname')}::{case.get('name')}".removeprefix("tests.")
            for case in failed
        }
    )
    if status and not names:
        names = ["pytest itself"]
    return {
        "passed": len(cases) - len(failed) - skipped,
        "skipped": skipped,
        "failed": names,
    }


def fingerprint(variant: str, notebooks: list[str], tests: list[str]) -> str:
    "Of all that the result depends on: the files, what is run, the settings, the version of torch."
    import torch

    what = [variant, notebooks, tests, torch.__version__, sys.version]
    found = hashlib.sha256(json.dumps(what).encode())
    for name in files_of(ROOT):
        if not (ROOT / name).is_symlink():
            found.update(name.encode() + b"\0" + (ROOT / name).read_bytes())
    return found.hexdigest()


def one_variant(variant: str, notebooks: list[str], tests: list[str]) -> dict:
    "Run it all under one variant."
    env, began = environment(variant), time.monotonic()
    kernels, n_threads = subprocess.run(
        [sys.executable, "-c", KERNELS],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    row = {"variant": variant, "kernels": kernels, "threads": int(n_threads)}
    row["notebooks"] = (
        run_notebooks(notebooks, env, FOLDER / f"{variant}.notebooks.log")
        if notebooks
        else {"ran": 0, "failed": []}
    )
    row["tests"] = (
        run_tests(tests, env, FOLDER / f"{variant}.tests.log")
        if tests
        else {"passed": 0, "skipped": 0, "failed": []}
    )
    return row | {
        "seconds": round(time.monotonic() - began),
        "ok": not row["notebooks"]["failed"] and not row["tests"]["failed"],
    }


def line(row: dict) -> str:
    "A row of the table."
    books, tests = row["notebooks"], row["tests"]
    n_failed = len(books["failed"])
    told = (
        f"{books['ran'] - n_failed} ok, {n_failed} failed"
        if n_failed
        else f"{books['ran']} ok"
    )
    counts = f"{tests['passed']:>6}  {len(tests['failed']):>6}  {tests['skipped']:>7}"
    return f"{row['variant']:22}{row['kernels']:>8}  {row['threads']:>7}  {told:16}{counts}  {row['seconds']:>7}"


HEAD = f"{'variant':22}{'kernels':>8}  {'threads':>7}  {'notebooks':16}{'passed':>6}  {'failed':>6}  {'skipped':>7}  {'seconds':>7}"


def chosen(names: list[str], quick: bool) -> tuple[list[str], list[str]]:
    "Notebooks and test files, by their stems."
    notebooks = sorted(path.stem for path in (ROOT / "nbs").glob("[!_.]*.ipynb"))
    tests = sorted(path.stem for path in (ROOT / "tests").glob("test_*.py"))
    if names:
        names = [
            Path(name).name.removesuffix(".ipynb").removesuffix(".py") for name in names
        ]
        if unknown := set(names) - {*notebooks, *tests}:
            sys.exit(f"no such notebook or test file: {', '.join(sorted(unknown))}")
        return [name for name in notebooks if name in names], [
            name for name in tests if name in names
        ]
    return (QUICK_NOTEBOOKS, QUICK_TESTS) if quick else (notebooks, tests)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--variants",
        default="",
        help="by name, with blanks between; all that this machine has otherwise",
    )
    parser.add_argument(
        "--names",
        default="",
        help="notebooks and test files, by their stems: 31_stack test_model",
    )
    parser.add_argument(
        "--quick", action="store_true", help="only what computes with floats"
    )
    parser.add_argument(
        "--again", action="store_true", help="also what passed on these files before"
    )
    args = parser.parse_args()
    possible = here()
    variants = args.variants.split() or list(possible)
    if (
        unknown := {name for variant in variants for name in variant.split("+")}
        - possible.keys()
    ):
        sys.exit(
            f"no such variant on this machine: {', '.join(sorted(unknown))}; there are {', '.join(possible)}"
        )
    notebooks, tests = chosen(args.names.split(), args.quick)
    FOLDER.mkdir(exist_ok=True)
    results = FOLDER / "results.json"
    passed = json.loads(results.read_text()) if results.exists() else {}
    rows = []
    print(HEAD, flush=True)
    for variant in variants:
        key = fingerprint(variant, notebooks, tests)
        row = None if args.again else passed.get(key)
        if row is None:
            row = one_variant(variant, notebooks, tests)
            if row["ok"]:
                results.write_text(json.dumps(passed := passed | {key: row}))
        rows.append(row)
        print(line(row), flush=True)
    bad = [row for row in rows if not row["ok"]]
    for row in bad:
        for name in row["notebooks"]["failed"] + row["tests"]["failed"]:
            print(f"failed under {row['variant']}: {name}")
    if bad:
        print(f"logs are in {os.path.relpath(FOLDER)}/")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
