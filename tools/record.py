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


def gpus() -> str:
    "The GPUs by name and number, with a comma before them; empty without one."
    import torch

    names = [
        torch.cuda.get_device_name(i)
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ]
    kinds = {name: names.count(name) for name in names}
    return "".join(f", {n} × {name}" for name, n in kinds.items())


def hardware() -> str:
    "The processor, its cores, and the GPUs if there are any."

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
    return f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores of {name}{gpus()}"


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
    path.write_text(
        json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


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
    record = about(args.command, args.seed, args.commit)
    for pair in args.set:
        record[pair.partition("=")[0]] = value_of(pair.partition("=")[2])
    for pair in args.json:
        record[pair.partition("=")[0]] = json.loads(
            Path(pair.partition("=")[2]).read_text(encoding="utf-8")
        )
    write(args.record, record)


if __name__ == "__main__":
    main()
