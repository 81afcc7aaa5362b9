#!/usr/bin/env python
"""What one to eight GPUs do with this code: one command, some ten minutes.

    make bench-gpu                                       or, with its options:
    python benchmarks/gpu.py --only train decode         some parts: to repeat those that failed, say
    python benchmarks/gpu.py --device cpu --tiny         tries the kit without a GPU, in one to two minutes

matmul: the rate of matrix products at the model's shapes, which shares refer to.
train: tokens per second and peak memory of the paper's base and big model, eager and compiled, beside torch.nn.Transformer and Hugging
Face's Marian in one interleaved run.
loop: the same with the whole training loop, and how often the host waits for the GPU.
decode: greedy and beam search, 64 sentences at a time and one by one, beside Hugging Face's generate with the same weights and equal work.
scaling: DDP over 1, 2, 4 and 8 devices.
sharding: FSDP, built slice by slice, compared with DDP.
resume: killed and resumed runs compared with undisturbed ones, and gradients over processes (exactness.py, over NCCL).

Each part runs in a process of its own, with a time limit, and writes results/gpu_PART.json. A part that fails or reaches its limit
keeps what it had measured, and the others go on. A part that needs what is not there is skipped, with a line. With --tiny the records
are in runs/gpu_tiny.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from measuring import ROOT, kill_all

sys.path.append(str(ROOT / "tools"))
from record import about, write  # noqa: E402

PARTS = {  # and their time limits in seconds
    "matmul": 60,
    "train": 360,
    "loop": 180,
    "decode": 180,
    "scaling": 180,
    "sharding": 120,
    "resume": 300,
}
SKIPPED = "skipped"


def run_part(name: str, args: argparse.Namespace) -> tuple[dict, str]:
    "What a part found in its own process, and how it ended."
    limit = args.seconds or PARTS[name]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, str(ROOT / "benchmarks/gpu_parts.py"), name]
        command += ["--found", str(found), "--seconds", str(limit)]
        command += ["--device", args.device, "--seed", str(args.seed)]
        env = os.environ | {"TMPDIR": folder}
        process = subprocess.Popen(command + ["--tiny"] * args.tiny, env=env)
        try:
            status = process.wait(timeout=limit)
            ended = "complete" if status == 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            ended = f"stopped at its limit of {limit} s"
        finally:
            if process.poll() is None:
                kill_all(process)
                process.wait()
        results = json.loads(found.read_text("utf-8")) if found.exists() else {}
    error = results.pop("error", None)
    return results, f"failed: {error}" if error else ended


def cpu_seconds() -> float:
    "Processor time of all processes that have ended."
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def record(name: str, args: argparse.Namespace) -> str:
    "Run a part and write its record, unless it found nothing; how it ended."
    print(f"\n{name} (at most {args.seconds or PARTS[name]} s)", flush=True)
    began, cpu = time.monotonic(), cpu_seconds()
    found, ended = run_part(name, args)
    if SKIPPED in found:
        return f"{SKIPPED}: {found[SKIPPED]}"
    if found:
        command = ["python benchmarks/gpu.py --only", name, "--device", args.device]
        result = about(" ".join(command + ["--tiny"] * args.tiny), args.seed)
        if args.device == "cuda":
            result["versions"]["cuda"] = torch.version.cuda
        result |= {
            "tiny": args.tiny,
            "ended": ended,
            "seconds": round(time.monotonic() - began, 1),
            "cpu_seconds": round(cpu_seconds() - cpu, 1),
            "found": found,
        }
        write(args.out / f"gpu_{name}.json", result)
    return ended


def check_device(args: argparse.Namespace) -> None:
    "End with a line if the device cannot be used."
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "PyTorch finds no CUDA device here. To try the kit without one:  "
            "make bench-gpu DEVICE=cpu TINY=1"
        )
    if args.device == "cpu" and not args.tiny:
        raise SystemExit("on a CPU only --tiny: the models are too large for it")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="tiny models, few steps")
    parser.add_argument("--seconds", type=int, help="time limit of every part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of the records")
    args = parser.parse_args()
    check_device(args)
    args.out = args.out or ROOT / ("runs/gpu_tiny" if args.tiny else "results")
    ends = {name: record(name, args) for name in args.only}
    print()
    for name, ended in ends.items():
        print(f"{name:10}{ended}")
    print(f"records: gpu_*.json in {args.out}")
    fine = ("complete", SKIPPED)
    if again := [name for name, ended in ends.items() if not ended.startswith(fine)]:
        print(
            f'to repeat what is not complete: make bench-gpu ONLY="{" ".join(again)}"'
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
