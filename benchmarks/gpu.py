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
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import torch
from gpu_kit import Kit, Skipped, first_line, say
from processes import kill_all

HERE = Path(__file__).resolve().parent


class Part(NamedTuple):
    target: str  # module:function, which is given a Kit
    seconds: int  # time limit


PARTS = {
    "matmul": Part("gpu_train:matmul", 60),
    "train": Part("gpu_train:train", 360),
    "loop": Part("gpu_ranks:loop", 180),
    "decode": Part("gpu_decode:decode", 180),
    "scaling": Part("gpu_ranks:scaling", 180),
    "sharding": Part("gpu_ranks:sharding", 120),
    "resume": Part("gpu_resume:resume", 300),
}
SKIPPED = "skipped"


# ---- in the process of a part


def run_target(target: str, kit: Kit) -> int:
    "Run one part; its exit status."
    module, _, function = target.partition(":")
    try:
        getattr(importlib.import_module(module), function)(kit)
    except Skipped as e:
        say(f"  skipped: {e}")
        kit.note(SKIPPED, str(e))
    except Exception as e:
        kit.note("error", first_line(e))
        say(f"  failed: {first_line(e)}")
        return 1
    return 0


# ---- in the process that starts them


def run_part(name: str, args: argparse.Namespace) -> tuple[dict, str]:
    "What a part found, and how it ended."
    part = PARTS[name]
    limit = args.seconds or part.seconds
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, __file__, "--target", part.target]
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
    limit = args.seconds or PARTS[name].seconds
    say(f"\n{name} (at most {limit} s)")
    began, cpu = time.monotonic(), cpu_seconds()
    results, ended = run_part(name, args)
    if SKIPPED in results:
        return f"{SKIPPED}: {results[SKIPPED]}"
    seconds = {
        "seconds": round(time.monotonic() - began, 1),
        "cpu_seconds": round(cpu_seconds() - cpu, 1),
    }
    say(f"  {name}: {ended}; {seconds['seconds']:.0f} s", end="")
    say(f", {seconds['cpu_seconds']:.0f} s of processor time")
    if results:
        write_record(name, args, {"ended": ended, **seconds, "found": results})
    return ended


def write_record(name: str, args: argparse.Namespace, found: dict) -> None:
    "results/gpu_NAME.json, in the form of tools/record.py."
    sys.path.append(str(HERE.parent / "tools"))
    from record import about, write

    command = ["python benchmarks/gpu.py --only", name, "--device", args.device]
    begin = about(" ".join(command + ["--tiny"] * args.tiny), args.seed)
    if args.device == "cuda":
        begin["versions"]["cuda"] = torch.version.cuda
    write(args.out / f"gpu_{name}.json", begin | {"tiny": args.tiny} | found)


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
    parser.add_argument("--target", help=argparse.SUPPRESS)  # of a part's own process
    parser.add_argument("--found", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    if args.target:
        kit = Kit(
            args.device,
            tiny=args.tiny,
            seed=args.seed,
            found=args.found,
            seconds=args.seconds,
        )
        sys.exit(run_target(args.target, kit))
    check_device(args)
    args.out = args.out or HERE.parent / ("runs/gpu_tiny" if args.tiny else "results")
    ends = {name: record(name, args) for name in args.only}
    say()
    for name, ended in ends.items():
        say(f"{name:10}{ended}")
    say(f"records: gpu_*.json in {args.out}")
    fine = ("complete", SKIPPED)
    if again := [name for name, ended in ends.items() if not ended.startswith(fine)]:
        say(f'to repeat what is not complete: make bench-gpu ONLY="{" ".join(again)}"')
        sys.exit(1)


if __name__ == "__main__":
    main()
