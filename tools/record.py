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
import subprocess
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def hardware() -> str:
    "The processor, its cores, and the GPU if there is one."
    import torch

    info = Path("/proc/cpuinfo")
    found = (
        [
            line.split(":")[1].strip()
            for line in info.read_text().split("\n")
            if line.startswith("model name")
        ]
        if info.exists()
        else []
    )
    name = found[0] if found else platform.processor() or platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores of {name}{gpu}"


def commit() -> str:
    "The commit of this checkout, marked when it holds changes."
    git = lambda *args: subprocess.run(
        ["git", *args], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return git("rev-parse", "HEAD") + (
        "+changes"
        if git("status", "--porcelain", "--", "annotated_transformer", "settings.ini")
        else ""
    )


def value_of(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", type=Path)
    parser.add_argument("--command", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--commit",
        default=None,
        help="of the code that ran, if it is not this checkout's",
    )
    parser.add_argument("--json", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    record = {
        "command": args.command,
        "commit": args.commit or commit(),
        "date": datetime.date.today().isoformat(),
        "seed": args.seed,
        "hardware": hardware(),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }
    for pair in args.set:
        record[pair.partition("=")[0]] = value_of(pair.partition("=")[2])
    for pair in args.json:
        record[pair.partition("=")[0]] = json.loads(
            Path(pair.partition("=")[2]).read_text(encoding="utf-8")
        )
    args.record.parent.mkdir(exist_ok=True)
    args.record.write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
