#!/usr/bin/env python
"""A long text through `annotated-transformer translate`: how fast, in how much memory, and what an interruption leaves.

    benchmarks/million.py runs/demo --lines 1000000 --json million.json

The built-in text, 10,000 sentences again and again, is fed by a pipe. The answers of its first round are kept, and each later round must say the
same, line by line: so number and order are checked without keeping a million answers. A second run is stopped by SIGINT in its middle: what it
leaves on standard output must be whole lines, the first run's beginning. Memory is read from /proc, so this is for Linux. A record
for `results/` is made by `tools/record.py`.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import BinaryIO

N_DIFFERENT = 10_000  # sentences, then they come again
LOOKS = (0.01, 0.1, 0.5, 1.0)


def memory_mb(pid: int) -> tuple[float, float]:
    "What a process holds, and the most that it ever held."
    said = Path(f"/proc/{pid}/status").read_text()
    return tuple(
        int(re.search(rf"{name}:\s+(\d+) kB", said)[1]) / 1024
        for name in ("VmRSS", "VmHWM")
    )


def feed(lines: Iterator[bytes], pipe: BinaryIO, measured: threading.Event) -> None:
    "Write lines into a pipe, some hundred at a time; it is closed, and the reader ends, when all is measured."
    try:
        with pipe:
            while some := list(islice(lines, 500)):
                pipe.writelines(some)
            pipe.flush()
            measured.wait()
    except BrokenPipeError:
        pass  # the reader is gone


def start(
    run: Path, beam_size: int, lines: Iterator[bytes]
) -> tuple[subprocess.Popen, threading.Event]:
    "A `translate` that is being fed, and what lets it end."
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job ignores it, and so would what it starts
    words, measured = (
        ["translate", str(run), "--beam-size", str(beam_size), "--quiet"],
        threading.Event(),
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "annotated_transformer", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    threading.Thread(
        target=feed, args=(lines, process.stdin, measured), daemon=True
    ).start()
    return process, measured


def translate_all(
    run: Path, beam_size: int, text: list[bytes], n_lines: int, every: float
) -> tuple[dict, list[bytes]]:
    "Translate all lines: what was measured, and the answers of the first round."
    process, measured = start(run, beam_size, islice(cycle(text), n_lines))
    began, looks, samples, first, differ, n = time.perf_counter(), {}, [], [], 0, 0
    wanted, first_line, next_sample = (
        {max(1, int(share * n_lines)): f"{share:.0%}" for share in LOOKS},
        None,
        0.0,
    )
    for answer in process.stdout:
        if n < len(text):
            first.append(answer)
        else:
            differ += answer != first[n % len(text)]
        n, now = n + 1, time.perf_counter() - began
        first_line = first_line or now
        if now >= next_sample:
            samples.append(
                {"seconds": now, "lines": n, "mb": memory_mb(process.pid)[0]}
            )
            next_sample = now + every
        if n in wanted:
            held, most = memory_mb(process.pid)
            looks[wanted[n]] = {"lines": n, "seconds": now, "mb": held, "most_mb": most}
            print(
                f"{wanted[n]:>5} {n:>10,} lines {now:>9.1f} s {n / now:>9.1f} lines/s {held:>7.1f} MB, at most {most:.1f}",
                flush=True,
            )
        if n == n_lines:
            measured.set()
    found = {
        "status": process.wait(),
        "lines_out": n,
        "differ_from_first_round": differ,
        "seconds": now,
        "lines_per_second": n / now,
        "first_line_seconds": first_line,
        "memory": looks,
        "samples": samples,
    }
    return found, first


def interrupt(
    run: Path, beam_size: int, text: list[bytes], first: list[bytes], n_lines: int
) -> dict:
    "Read half of the answers, send SIGINT, read what is left, and compare with those of the first run."
    process, measured = start(run, beam_size, islice(cycle(text), n_lines))
    n, differ, answer, sent = 0, 0, b"", 0.0
    for answer in process.stdout:
        differ += answer != first[n % len(first)]
        n += 1
        if n == max(1, n_lines // 2):
            process.send_signal(signal.SIGINT)
            sent = time.perf_counter()
    status, seconds = process.wait(), time.perf_counter() - sent
    measured.set()
    return {
        "status": status,
        "lines_before": max(1, n_lines // 2),
        "lines_out": n,
        "differ_from_first_run": differ,
        "last_line_is_whole": answer.endswith(b"\n"),
        "seconds_to_leave": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--beam-size", type=int, default=1, help="1 is greedy search")
    parser.add_argument(
        "--every",
        type=float,
        default=5.0,
        help="seconds between two looks at the memory",
    )
    parser.add_argument(
        "--cores", type=int, help="how many to use; without it, all (Linux only)"
    )
    parser.add_argument(
        "--out", "--json", dest="out", type=Path, help="file to write the figures to"
    )
    args = parser.parse_args()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    from annotated_transformer.data.grammar import builtin

    text = [
        s.en.encode() + b"\n"
        for s in builtin(min(N_DIFFERENT, max(1, args.lines // 2)), seed=1)
    ]
    found, first = translate_all(args.run, args.beam_size, text, args.lines, args.every)
    print(
        f"{found['lines_out']:,} of {args.lines:,} lines, {found['lines_per_second']:.1f} lines/s, {found['differ_from_first_round']} differ from "
        f"the first round, exit status {found['status']}"
    )
    stopped = interrupt(args.run, args.beam_size, text, first, args.lines)
    print(
        f"interrupted after {stopped['lines_before']:,}: {stopped['lines_out']:,} lines out, {stopped['differ_from_first_run']} differ, the last "
        f"one {'whole' if stopped['last_line_is_whole'] else 'torn'}, exit status {stopped['status']} after {stopped['seconds_to_leave']:.2f} s"
    )
    ok = (found["status"], found["lines_out"], found["differ_from_first_round"]) == (
        0,
        args.lines,
        0,
    )
    ok = (
        ok
        and stopped["status"] == 130
        and stopped["differ_from_first_run"] == 0
        and stopped["last_line_is_whole"]
    )
    if args.out:
        values = {
            "lines": args.lines,
            "different_lines": len(text),
            "beam_size": args.beam_size,
            "cores": args.cores or os.cpu_count(),
            "first_round_sha256": hashlib.sha256(b"".join(first)).hexdigest(),
            "ok": ok,
            "all": found,
            "interrupted": stopped,
        }
        args.out.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if ok else "the output is not what it should be")


if __name__ == "__main__":
    main()
