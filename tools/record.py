#!/usr/bin/env python
"""Write down a run: what it measured, and all that someone needs to repeat it.

    tools/record.py results/demo.json --command "make demo" --seed 0 --json report=runs/demo/report.json --set minutes=15

`--json NAME=FILE` copies a JSON file in, `--set NAME=VALUE` a single value (JSON, or else text). Commit, date, hardware and versions are
noted by the script. A commit is marked "+changes" where the checkout differed from it.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
from collections import Counter
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def hardware() -> str:
    "The processor, its cores, and the GPUs if there are any."
    import torch

    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*: *(.+?) *$", text, re.M)
    name = found[1] if found else platform.processor() or platform.machine()
    on_linux = hasattr(os, "sched_getaffinity")
    n_cores = len(os.sched_getaffinity(0)) if on_linux else os.cpu_count()
    n_gpus = torch.cuda.device_count()
    kinds = Counter(torch.cuda.get_device_name(i) for i in range(n_gpus))
    gpus = [f"{n} × {kind}" for kind, n in kinds.items()]
    return ", ".join([f"{n_cores} cores of {name}", *gpus])


def commit() -> str:
    "The commit of this checkout, marked when it holds changes."

    def git(*args: str) -> str:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip()

    paths = "annotated_transformer", "settings.ini", "results/*.py", "benchmarks/*.py"
    changed = git("status", "--porcelain", "--", *paths)
    return git("rev-parse", "HEAD") + ("+changes" if changed else "")


def about(command: str, seed: int, at: str | None = None) -> dict:
    "What every record begins with; `at` is the commit, if it is not this checkout's."
    return {
        "command": command,
        "commit": at or commit(),
        "date": datetime.date.today().isoformat(),
        "seed": seed,
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }


def value_of(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


def write(path: Path, record: dict) -> None:
    "A record as a file of results/."
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, ensure_ascii=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("record", type=Path)
    add("--command", required=True)
    add("--seed", type=int, required=True)
    add("--commit", help="of the code that ran, if it is not this checkout's")
    add("--json", action="append", default=[], metavar="NAME=FILE")
    add("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    record = about(args.command, args.seed, args.commit)
    for name, _, text in (pair.partition("=") for pair in args.set):
        record[name] = value_of(text)
    for name, _, file in (pair.partition("=") for pair in args.json):
        record[name] = json.loads(Path(file).read_text(encoding="utf-8"))
    write(args.record, record)


if __name__ == "__main__":
    main()
