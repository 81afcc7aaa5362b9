#!/usr/bin/env python
"""What must hold exactly, tried on real processes through the command line: on a CPU, one thread each, some three minutes.

    python benchmarks/exactness.py --out exactness.json
    python benchmarks/exactness.py --only kills --kills 100 --seed 1
    python benchmarks/exactness.py --only alone resume gradients --device cuda --processes 2    over NCCL, with deterministic algorithms

alone: two runs that nobody disturbs. Where their bits differ, as they may on a GPU, equal bits are not asked for afterwards.
resume: a run that is killed half-way and resumed has the weights of a run that was left alone, and Adam the same averages, to the bit.
kills: so has one that is killed at many random moments, every other time soon after it began to write; after each kill all checkpoints load.
gradients: one process, two processes and two halves one after the other give one gradient, but for rounding: ‖a − b‖ / ‖b‖ of the worst
tensor, at the sizes of `tiny`, after some steps of training, without dropout.
The text is that of the built-in grammar, and all folders are temporary ones. The exit status is 1 if anything does not hold.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from measuring import TORCHRUN, kill_all, options, write
from safetensors.torch import load_file, save_file
from torch import Tensor

from annotated_transformer.data.batch import training_steps
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.prepared import open_prepared
from annotated_transformer.runs.folder import load_run
from annotated_transformer.runs.recipe import BatchLoss
from annotated_transformer.training.distributed import (
    data_parallel,
    pick_device,
    process_group,
    rank,
    sync_gradients,
    world_size,
)

SMALL = ["n_layers=2", "d_model=64", "d_ff=256", "n_heads=4", "batch_tokens=400"]
SETTINGS = ["vocab_size=500", "dropout=0.1", "precision=fp32", "average_last=2"]
# and the most that rounding may make of it
DTYPES = {"float32": (torch.float32, 1e-6), "float64": (torch.float64, 1e-13)}
COMMAND = "command"  # the first argument of a process that is the command line


class Fact(NamedTuple):
    what: str
    found: str | int | float
    holds: bool | None = None  # None: nothing is asked of it


# ---- the command line, in processes of its own


def deterministic_command() -> None:
    "The command line with PyTorch's deterministic algorithms: on a GPU two equal runs are equal to the bit only with them."
    from annotated_transformer.cli.main import main

    del sys.argv[1]
    torch.use_deterministic_algorithms(True, warn_only=True)
    main()


class Runs:
    "A folder of runs, all on the same text."

    def __init__(self, folder: Path, device: str = "cpu", n_processes: int = 1):
        self.folder, self.device = folder, device
        self.launcher = [sys.executable]
        if n_processes > 1:
            self.launcher = [*TORCHRUN, str(n_processes)]
        self.repeatable = True  # have two runs left alone the same bits?
        self.started: list[subprocess.Popen] = []
        for side in ("en", "de"):
            lines = "".join(getattr(s, side) + "\n" for s in builtin(1000, seed=3))
            (folder / side).write_text(lines, encoding="utf-8")

    def start(self, *args: str | Path) -> subprocess.Popen:
        program = ["-m", "annotated_transformer"]
        if self.device != "cpu":
            program = [__file__, COMMAND]
        order = [*program, "train", "--device", self.device, "--quiet", *args]
        more = {"OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        process = subprocess.Popen(
            [*self.launcher, *map(str, order)],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | more,
        )
        self.started.append(process)
        return process

    def stop(self) -> None:
        "End what still runs."
        for process in self.started:
            if process.poll() is None:
                kill(process)

    def begin(self, run: Path, settings: list[str]) -> subprocess.Popen:
        text = ["--src", self.folder / "en", "--tgt", self.folder / "de"]
        return self.start(*text, "--config", "tiny", "--out", run, *SETTINGS, *settings)

    def resume(self, run: Path) -> subprocess.Popen:
        return self.start("--resume", run)

    def straight(self, name: str, settings: list[str]) -> Path:
        "A run that is left alone."
        if not (self.folder / name).exists():
            finish(self.begin(self.folder / name, settings))
        return self.folder / name


def finish(process: subprocess.Popen) -> None:
    printed = process.communicate()[1]
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}: {printed}")


def wait_until(done: Callable[[], bool], process: subprocess.Popen) -> None:
    while not done():
        if process.poll() is not None:
            raise RuntimeError(f"ended too early: {process.stderr.read()}")
        time.sleep(0.002)


def kill(process: subprocess.Popen) -> None:
    kill_all(process)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


# ---- what is in a run folder


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step-*"))


def n_steps(run: Path) -> int:
    "Of its newest checkpoint."
    return int(checkpoints(run)[-1].name[5:12]) if checkpoints(run) else 0


def losses(run: Path) -> list[list]:
    "Those of all steps and validation passes; a last line that was cut off is none."
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    names = ("step", "loss", "valid_loss")
    return [[json.loads(line).get(name) for name in names] for line in lines]


def last_step(run: Path) -> int:
    return max((step for step, *_ in losses(run)), default=0)


def same(run: Path, straight: Path, runs: Runs) -> Iterator[Fact]:
    "Two runs at their ends, file by file and loss by loss."
    pairs = [(run / "model.safetensors", straight / "model.safetensors")]
    ends = checkpoints(run)[-1], checkpoints(straight)[-1]
    for path in sorted(ends[1].glob("*.safetensors")):
        pairs.append((ends[0] / path.name, path))
    for i, (a, b) in enumerate(pairs):
        equal = a.read_bytes() == b.read_bytes()
        name = f"{'newest checkpoint' if i else 'the run'}'s {b.name}"
        found = "the same bits" if equal else "other bits"
        yield Fact(name, found, equal if runs.repeatable else None)
    equal = losses(run) == losses(straight)
    found = "the same" if equal else "others"
    yield Fact("losses in metrics.jsonl", found, equal if runs.repeatable else None)


def all_hold(facts: Iterator[Fact]) -> bool:
    return all(fact.holds is not False for fact in facts)


def load_all(run: Path) -> int:
    "Load all weights that are there, or raise; how many checkpoints there are."
    for path in run.rglob("*.safetensors"):
        if not any(part[0] == "." for part in path.relative_to(run).parts):
            load_file(path)
    return len(checkpoints(run))


def half_written(run: Path) -> set[str]:
    "What a reader never takes for whole: its name begins with a dot."
    return {
        path.name
        for folder in (run, run / "checkpoints")
        for path in folder.glob(".*")
        if not path.name.endswith("lock")
    }


# ---- what is tried


def resume_settings(n: int) -> list[str]:
    "Of a run of n steps with ten checkpoints and four validation passes."
    return [*SMALL, f"max_steps={n}", f"save_every={n // 10}", f"valid_every={n // 4}"]


def alone(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    settings = resume_settings(args.steps)
    facts = list(
        same(*(runs.straight(n, settings) for n in ("again", "straight")), runs)
    )
    runs.repeatable = all_hold(facts)
    yield from (fact._replace(holds=None) for fact in facts)


def resume(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    n, settings = args.steps, resume_settings(args.steps)
    straight, run = runs.straight("straight", settings), runs.folder / "resumed"
    process = runs.begin(run, settings)
    wait_until(lambda: last_step(run) >= n // 2, process)
    kill(process)
    yield Fact("killed after step", last_step(run))
    yield Fact("resumed from step", n_steps(run))
    finish(runs.resume(run))
    yield from same(run, straight, runs)


def kills(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    settings = [*SMALL, f"max_steps={8 * args.kills}", "save_every=1", "valid_every=2"]
    rng, run, in_a_save, loaded = random.Random(args.seed), runs.folder / "killed", 0, 0
    for i in range(args.kills):
        last, left = n_steps(run), half_written(run)
        process = runs.resume(run) if i else runs.begin(run, settings)
        wait_until(lambda last=last: n_steps(run) != last, process)
        if i % 2:  # soon after it has begun to write
            wait_until(lambda left=left: half_written(run) - left, process)
        # a save takes some 0.03 seconds, a step and its save 0.07
        time.sleep(rng.uniform(0, 0.015 if i % 2 else 0.2))
        kill(process)
        in_a_save += bool(half_written(run) - left)
        loaded += load_all(run)
    yield Fact("kills", args.kills)
    what = "of them in a save, with something half-written left"
    yield Fact(what, in_a_save, in_a_save > 0)
    yield Fact("checkpoints loaded after kills", loaded, loaded > 0)
    yield Fact("steps done when the last kill came", last_step(run))
    finish(runs.resume(run))
    yield from same(run, runs.straight("undisturbed", settings), runs)
    left = half_written(run)
    yield Fact("half-written files at the end", ", ".join(sorted(left)) or 0, not left)


def gradient(
    run: Path, dtype: torch.dtype, device: torch.device, grad_accum_steps: int = 1
) -> dict[str, Tensor]:
    "Of the first step's batch, without dropout: this process computes its rank's share."
    model, vocab, recipe, *_ = load_run(run)
    settings = recipe.train
    objective = BatchLoss(model.to(device, dtype), settings.label_smoothing)
    parallel = data_parallel(objective, device)
    steps = training_steps(
        open_prepared(run / "data").train,
        vocab,
        settings.batch_tokens,
        settings.seed,
        rank=rank(),
        world_size=world_size(),
        grad_accum_steps=grad_accum_steps,
    )
    step = next(steps)
    for i, batch in enumerate(step.micro_batches, start=1):
        with sync_gradients(parallel, last=i == len(step.micro_batches)):
            (parallel(batch.to(device)) / step.n_tokens).backward()
    return {name: weight.grad.cpu() for name, weight in model.named_parameters()}


def one_of_two(run: Path, name: str) -> None:
    "What each of two processes computes on a device of that name; the first saves it."
    device = pick_device(name)
    with process_group(device):
        for kind, (dtype, _) in DTYPES.items():
            found = gradient(run, dtype, device)
            if rank() == 0:
                save_file(found, run.parent / f"two-{kind}.safetensors")


def gradients(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    n = args.steps // 4
    run = runs.straight("tiny", [f"max_steps={n}", f"save_every={n}"])
    device = pick_device(runs.device)
    two = device.type == "cpu" or torch.cuda.device_count() > 1
    if two:
        order = [*TORCHRUN, "2", __file__, "--rank-of", run, "--device", runs.device]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(order, check=True, stderr=subprocess.PIPE, env=env)
    slack = 1 if device.type == "cpu" else 10  # other kernels for other shapes
    for kind, (dtype, most) in DTYPES.items():
        one = gradient(run, dtype, device)
        found = {"two halves": gradient(run, dtype, device, grad_accum_steps=2)}
        if two:
            found["two processes"] = load_file(run.parent / f"two-{kind}.safetensors")
        for name, other in found.items():
            off, worst = max(
                (((other[w] - one[w]).norm() / one[w].norm()).item(), w) for w in one
            )
            yield Fact(f"{name}, {kind}: worst is {worst}", off, off < most * slack)


TRIED = {
    "alone": alone,
    "resume": resume,
    "kills": kills,
    "gradients": gradients,
}


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    recorded = ["resume", "kills", "gradients"]
    add("--only", nargs="+", default=recorded, choices=TRIED)
    add("--kills", type=int, default=20)
    add("--seed", type=int, default=0, help="of the moments of the kills")
    add("--device", default="cpu", choices=["cpu", "cuda"])
    add("--processes", type=int, default=1, help="of a run, started by torchrun")
    add("--steps", type=int, default=200, help="of the run that is resumed")
    add("--rank-of", type=Path, help=argparse.SUPPRESS)  # of each of two processes
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.rank_of:
        return one_of_two(args.rank_of, args.device)
    found: dict[str, list[dict]] = {}
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(Path(name), args.device, args.processes)
        try:
            for part in args.only:
                print(f"\n{part}", flush=True)
                began, found[part] = time.perf_counter(), []
                for fact in TRIED[part](runs, args):
                    found[part].append(fact._asdict())
                    write(args.out, found)
                    shown = fact.found
                    if isinstance(shown, float):
                        shown = f"{shown:.1e}"
                    wrong = "   DOES NOT HOLD" if fact.holds is False else ""
                    print(f"  {fact.what:72}{shown}{wrong}", flush=True)
                print(f"  {time.perf_counter() - began:.0f} s")
        finally:
            runs.stop()
    sys.exit(any(fact["holds"] is False for facts in found.values() for fact in facts))


if __name__ == "__main__":
    deterministic_command() if sys.argv[1:2] == [COMMAND] else main()
