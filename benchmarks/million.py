#!/usr/bin/env python
"""A long text through `annotated-transformer translate`: how fast, in how much memory, and what an interruption leaves.

    benchmarks/million.py runs/demo --lines 1000000 --out million.json

The built-in text, 10,000 sentences again and again, is fed by a pipe. The answers of its first round are kept, and each later round must say the
same, line by line: so number and order are checked without keeping a million answers. A second run is stopped by SIGINT in its middle: what it
leaves on standard output must be whole lines, the first run's beginning. Memory is read from /proc, so this is for Linux. A record
for `results/` is made by `tools/record.py`.
"""

import hashlib
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

from measuring import options, write

from annotated_transformer.data.grammar import builtin

N_DIFFERENT = 10_000  # sentences, then they come again
LOOKS = (0.01, 0.1, 0.5, 1.0)


def memory_mb(pid: int) -> tuple[float, float]:
    "What a process holds, and the most that it ever held."
    said = Path(f"/proc/{pid}/status").read_text()
    held, most = (re.search(rf"{n}:\s+(\d+) kB", said)[1] for n in ("VmRSS", "VmHWM"))
    return int(held) / 1024, int(most) / 1024


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
    # a shell's background job ignores it, and so would what it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words = ["translate", str(run), "--beam-size", str(beam_size), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-m", "annotated_transformer", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    measured = threading.Event()
    given = lines, process.stdin, measured
    threading.Thread(target=feed, args=given, daemon=True).start()
    return process, measured


def translate_all(
    run: Path, beam_size: int, text: list[bytes], n_lines: int, every: float
) -> tuple[dict, list[bytes]]:
    "Translate all lines: what was measured, and the answers of the first round."
    process, measured = start(run, beam_size, islice(cycle(text), n_lines))
    wanted = {max(1, int(share * n_lines)): f"{share:.0%}" for share in LOOKS}
    first, looks, samples, differ = [], {}, [], 0
    began, first_line = time.perf_counter(), None
    for n, answer in enumerate(process.stdout, start=1):
        if n <= len(text):
            first.append(answer)
        else:
            differ += answer != first[(n - 1) % len(text)]
        now = time.perf_counter() - began
        first_line = first_line or now
        if not samples or now >= samples[-1]["seconds"] + every:
            held, _ = memory_mb(process.pid)
            samples.append({"seconds": now, "lines": n, "mb": held})
        if n in wanted:
            held, most = memory_mb(process.pid)
            looks[wanted[n]] = {"lines": n, "seconds": now, "mb": held, "most_mb": most}
            print(wanted[n], looks[wanted[n]], flush=True)
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
    half, differ, sent = max(1, n_lines // 2), 0, 0.0
    for n, answer in enumerate(process.stdout, start=1):
        differ += answer != first[(n - 1) % len(first)]
        if n == half:
            process.send_signal(signal.SIGINT)
            sent = time.perf_counter()
    status, seconds = process.wait(), time.perf_counter() - sent
    measured.set()
    return {
        "status": status,
        "lines_before": half,
        "lines_out": n,
        "differ_from_first_run": differ,
        "last_line_is_whole": answer.endswith(b"\n"),
        "seconds_to_leave": seconds,
    }


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("run", type=Path, help="a run folder")
    add("--lines", type=int, default=1_000_000)
    add("--beam-size", type=int, default=1, help="1 is greedy search")
    add("--every", type=float, default=5.0, help="seconds between samples of memory")
    args = parser.parse_args()
    sentences = builtin(min(N_DIFFERENT, max(1, args.lines // 2)), seed=1)
    text = [s.en.encode() + b"\n" for s in sentences]
    found, first = translate_all(args.run, args.beam_size, text, args.lines, args.every)
    stopped = interrupt(args.run, args.beam_size, text, first, args.lines)
    print(stopped)
    ends = found["status"], found["lines_out"], found["differ_from_first_round"]
    whole = stopped["last_line_is_whole"] and stopped["differ_from_first_run"] == 0
    ok = ends == (0, args.lines, 0) and stopped["status"] == 130 and whole
    values = {
        "lines": args.lines,
        "different_lines": len(text),
        "beam_size": args.beam_size,
        "cores": len(os.sched_getaffinity(0)),
        "first_round_sha256": hashlib.sha256(b"".join(first)).hexdigest(),
        "ok": ok,
        "all": found,
        "interrupted": stopped,
    }
    write(args.out, values)
    sys.exit(0 if ok else "the output is not what it should be")


if __name__ == "__main__":
    main()
