#!/usr/bin/env python
"""What must hold exactly, tried on real processes through the command line: on a CPU, one thread each, some four minutes.

    python benchmarks/exactness.py --out exactness.json
    python benchmarks/exactness.py --only kills --kills 100 --seed 1
    python benchmarks/exactness.py --only resume gradients --device cuda --processes 2        over NCCL, with deterministic algorithms

resume: a run that is killed half-way and gone on with has the very weights of a run that was left alone, and Adam the very memory.
kills: so has one that is killed at many random moments, every other time soon after it began to write; after each kill all checkpoints load.
gradients: one process, two processes and two halves one after the other give one gradient, but for rounding: ‖a − b‖ / ‖b‖ of the worst
tensor, at the sizes of `tiny`, after some steps of training, without dropout.
disk: no space is left during a save: one line is said, the checkpoints of before stay, and the run goes on when there is space (Linux, root).
The text is that of the built-in grammar, and all folders are temporary ones. The exit status is 1 if anything does not hold.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from processes import kill_all
from torch import Tensor

from annotated_transformer.data.batch import RunPosition, training_steps
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.prepared import open_prepared
from annotated_transformer.data.vocab import Vocab
from annotated_transformer.engines.choose import FAST
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.checkpoint import (
    average_weights,
    checkpoints,
    latest,
    load_checkpoint,
)
from annotated_transformer.runs.folder import load_run, read_config, read_metrics
from annotated_transformer.runs.recipe import BatchLoss, build_training
from annotated_transformer.runs.weights import load_weights
from annotated_transformer.training.distributed import (
    data_parallel,
    pick_device,
    process_group,
    rank,
    sync_gradients,
    world_size,
)

HERE, CPU = Path(__file__).resolve().parent, torch.device("cpu")
SMALL = ["n_layers=2", "d_model=64", "d_ff=256", "n_heads=4", "batch_tokens=400"]
SETTINGS = ["n_pieces=500", "dropout=0.1", "precision=fp32", "average_last=2"]
DTYPES = {
    "float32": (torch.float32, 1e-6),
    "float64": (torch.float64, 1e-13),
}  # and the most that rounding may make of it


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TORCHRUN.append("--nproc-per-node")


class Fact(NamedTuple):
    what: str
    found: str | int | float
    holds: bool | None = None  # None: nothing is asked of it


# ---- the command line, in processes of its own


class Runs:
    "A folder of runs, all on the same text."

    def __init__(self, folder: Path, device: str = "cpu", n_processes: int = 1):
        self.folder, self.device, self.n_processes = folder, device, n_processes
        self.started: list[subprocess.Popen] = []
        for side in ("en", "de"):
            (folder / side).write_text(
                "".join(getattr(s, side) + "\n" for s in builtin(1000, seed=3)),
                encoding="utf-8",
            )

    def start(self, *args: str | Path) -> subprocess.Popen:
        program = ["-m", "annotated_transformer"]
        if self.device != "cpu":
            program = [str(HERE / "deterministic.py")]
        self.started.append(
            subprocess.Popen(
                [*self.launcher(), *program, "train", "--device", self.device]
                + ["--quiet", *map(str, args)],
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        )
        return self.started[-1]

    def launcher(self) -> list[str]:
        "Python, and torchrun if there are several processes."
        if self.n_processes == 1:
            return [sys.executable]
        return [*TORCHRUN, str(self.n_processes)]

    def stop(self) -> None:
        "End what still runs."
        for process in self.started:
            if process.poll() is None:
                kill(process)

    def begin(self, run: Path, settings: list[str]) -> subprocess.Popen:
        return self.start(
            "--src",
            self.folder / "en",
            "--tgt",
            self.folder / "de",
            "--prepared",
            self.folder / "data",
            "--config",
            "tiny",
            "--out",
            run,
            *SETTINGS,
            *settings,
        )

    def go_on(self, run: Path) -> subprocess.Popen:
        return self.start("--resume", run, "--prepared", self.folder / "data")

    def straight(self, name: str, settings: list[str]) -> Path:
        "A run that is left alone."
        if not (self.folder / name).exists():
            finish(self.begin(self.folder / name, settings))
        return self.folder / name


def finish(process: subprocess.Popen) -> None:
    said = process.communicate()[1]
    if process.returncode:
        raise RuntimeError(f"exit status {process.returncode}: {said}")


def wait_until(done: Callable[[], bool], process: subprocess.Popen) -> None:
    while not done():
        if process.poll() is not None:
            raise RuntimeError(
                f"ended too early, with status {process.returncode}: {process.stderr.read()}"
            )
        time.sleep(0.002)


def kill(process: subprocess.Popen) -> None:
    kill_all(process)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def last_step(run: Path) -> int:
    return max((record["step"] for record in read_metrics(run)), default=0)


def same(run: Path, straight: Path) -> Iterator[Fact]:
    "Two runs at their ends, file by file and loss by loss."
    ends = [(latest(folder / "checkpoints"), folder) for folder in (run, straight)]
    for name, (a, b) in {
        "newest checkpoint's model.safetensors": [
            last / "model.safetensors" for last, _ in ends
        ],
        "newest checkpoint's optimizer.safetensors": [
            last / "optimizer.safetensors" for last, _ in ends
        ],
        "the run's model.safetensors": [
            folder / "model.safetensors" for _, folder in ends
        ],
    }.items():
        equal = a.read_bytes() == b.read_bytes()
        yield Fact(name, "the same bits" if equal else "other bits", equal)
    a, b = (
        [
            [r.get(name) for name in ("step", "loss", "valid_loss")]
            for r in read_metrics(folder)
        ]
        for folder in (run, straight)
    )
    yield Fact("losses in metrics.jsonl", "the same" if a == b else "others", a == b)


def load_all(run: Path) -> int:
    "Load whatever can be loaded, or raise ValueError; how many checkpoints there are."
    recipe, _ = read_config(run)
    objective, _, optimizer, _ = build_training(
        recipe, Vocab.load(run / "vocab.model"), CPU
    )
    found = checkpoints(run / "checkpoints")
    for path in found:
        if (path / "optimizer.safetensors").exists():
            load_checkpoint(path, objective.model, optimizer)
        else:
            average_weights([path / "model.safetensors"])
    best = run / "checkpoints" / "best.safetensors"
    if best.exists():
        load_weights(objective.model, best)
    if (run / "model.safetensors").exists():
        load_run(run)
    return len(found)


def half_written(run: Path) -> list[str]:
    "What a reader never takes for whole: its names begin with a dot."
    return sorted(
        str(path.relative_to(run))
        for pattern in (".annotated*", "checkpoints/.annotated*")
        for path in run.glob(pattern)
    )


# ---- what is tried


def resume_settings(n: int) -> list[str]:
    "Of a run of n steps with ten checkpoints and four validation passes."
    return [*SMALL, f"max_steps={n}", f"save_every={n // 10}", f"valid_every={n // 4}"]


def resume(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    n, settings = args.steps, resume_settings(args.steps)
    straight, run = runs.straight("straight", settings), runs.folder / "resumed"
    process = runs.begin(run, settings)
    wait_until(lambda: last_step(run) >= n // 2, process)
    kill(process)
    yield Fact("killed after step", last_step(run))
    yield Fact("gone on with from step", int(latest(run / "checkpoints").name[5:12]))
    finish(runs.go_on(run))
    yield from same(run, straight)


def kills(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    settings = [*SMALL, f"max_steps={8 * args.kills}", "save_every=1", "valid_every=2"]
    rng, run, in_a_save, loaded = random.Random(args.seed), runs.folder / "killed", 0, 0
    for i in range(args.kills):
        last, left, process = (
            latest(run / "checkpoints"),
            set(half_written(run)),
            runs.go_on(run) if i else runs.begin(run, settings),
        )
        wait_until(lambda last=last: latest(run / "checkpoints") != last, process)
        if i % 2:
            wait_until(
                lambda left=left: not left.issuperset(half_written(run)), process
            )  # it has begun to write
        time.sleep(
            rng.uniform(0, 0.015 if i % 2 else 0.2)
        )  # a save takes some 0.03 seconds, a step and its save 0.07
        kill(process)
        in_a_save += not left.issuperset(half_written(run))
        loaded += load_all(run)
    yield Fact("kills", args.kills)
    yield Fact(
        "of them in a save, with something half-written left", in_a_save, in_a_save > 0
    )
    yield Fact("checkpoints loaded after kills", loaded, loaded > 0)
    yield Fact("steps done when the last kill came", last_step(run))
    finish(runs.go_on(run))
    yield from same(run, runs.straight("undisturbed", settings))
    yield Fact(
        "half-written files left at the end",
        ", ".join(half_written(run)) or 0,
        not half_written(run),
    )


def each(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    "As many runs as kills, each killed once, at any moment from the start of its process on, and then gone on with to its end."
    settings = [*SMALL, "n_layers=1", "max_steps=12", "save_every=1", "valid_every=2"]
    straight, rng, equal, begun = (
        runs.straight("short", settings),
        random.Random(args.seed),
        0,
        0,
    )
    for i in range(args.kills):
        run = runs.folder / f"each-{i}"
        process = runs.begin(run, settings)
        if i % 5:
            wait_until(lambda run=run: (run / "config.json").exists(), process)
        time.sleep(rng.uniform(0, 3))
        kill(process) if process.poll() is None else process.communicate()
        begun += (run / "config.json").exists()
        finish(
            runs.go_on(run)
            if (run / "config.json").exists()
            else runs.begin(run, settings)
        )
        equal += all(fact.holds for fact in same(run, straight)) and not half_written(
            run
        )
        shutil.rmtree(run)
    yield Fact("runs killed once and gone on with", args.kills)
    yield Fact("of them with a run folder when the kill came", begun)
    yield Fact(
        "of them equal at the end to one that was left alone, byte for byte",
        equal,
        equal == args.kills,
    )


def gradient(
    run: Path, dtype: torch.dtype, device: torch.device, accumulate: int = 1
) -> dict[str, Tensor]:
    "Of the step that a run would do next, without dropout: this process does its rank's share."
    (recipe, about), last = read_config(run), latest(run / "checkpoints")
    data, settings = open_prepared(about["prepared"]), recipe.train
    state = json.loads((last / "state.json").read_text(encoding="utf-8"))
    done = RunPosition(*(state[name] for name in RunPosition._fields))
    model = build_transformer(
        recipe.model, len(data.vocab), data.vocab.pad_id, attention=FAST.attention
    )
    load_weights(model, last / "model.safetensors")
    objective = BatchLoss(model.to(device, dtype), settings.label_smoothing)
    parallel = data_parallel(objective, device)
    step = next(
        training_steps(
            data.train,
            data.vocab,
            settings.batch_tokens,
            settings.seed,
            start=done,
            rank=rank(),
            world_size=world_size(),
            accumulate=accumulate,
        )
    )
    for i, batch in enumerate(step.micro, start=1):
        with sync_gradients(parallel, last=i == len(step.micro)):
            (parallel(batch.to(device)) / step.n_tokens).backward()
    return {name: weight.grad.cpu() for name, weight in model.named_parameters()}


def one_of_two(run: Path, name: str) -> None:
    "What each of two processes computes on a device of that name; the first saves it."
    device = pick_device(name)
    with process_group(device):
        found = {
            name: gradient(run, dtype, device) for name, (dtype, _) in DTYPES.items()
        }
        if rank() == 0:
            torch.save(found, run / "two.pt")


def gradients_of_two(runs: Runs, run: Path) -> dict[str, dict[str, Tensor]]:
    "The gradient that two processes compute, in each dtype."
    subprocess.run(
        [*TORCHRUN, "2", __file__, "--rank-of", str(run), "--device", runs.device],
        check=True,
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return torch.load(run / "two.pt")


def gradients(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    n = args.steps // 4
    run = runs.straight("tiny", [f"max_steps={n}", f"save_every={n}"])
    device = pick_device(runs.device)
    two = {}
    if device.type == "cpu" or torch.cuda.device_count() > 1:
        two = gradients_of_two(runs, run)
    slack = 1 if device.type == "cpu" else 10  # other kernels for other shapes
    for kind, (dtype, most) in DTYPES.items():
        one = gradient(run, dtype, device)
        found = {"two processes": two[kind]} if two else {}
        found["two halves"] = gradient(run, dtype, device, accumulate=2)
        for name, other in found.items():
            off, worst = max(
                (((other[w] - one[w]).norm() / one[w].norm()).item(), w) for w in one
            )
            yield Fact(f"{name}, {kind}: worst is {worst}", off, off < most * slack)


@contextmanager
def small_disk(folder: Path, n_bytes: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={n_bytes}", "tmpfs", folder],
        check=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def disk(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    settings = [*SMALL, "max_steps=200", "save_every=20", "valid_every=50"]
    straight = runs.straight("straight", settings)
    size = sum(
        file.stat().st_size for file in latest(straight / "checkpoints").iterdir()
    )
    for room, left in {"half a checkpoint": size // 2, "nothing": 0}.items():
        try:
            yield from full_disk(runs, straight, settings, 20 * size, room, left)
        except subprocess.CalledProcessError as e:
            yield Fact("skipped: no small disk could be mounted", e.stderr.strip())
        except FileNotFoundError as e:
            yield Fact("skipped: no small disk could be mounted", str(e))


def full_disk(
    runs: Runs, straight: Path, settings: list[str], n_bytes: int, room: str, left: int
) -> Iterator[Fact]:
    with small_disk(runs.folder / f"disk with {room}", n_bytes) as folder:
        run, ballast = folder / "run", folder / "ballast"
        process = runs.begin(run, settings)
        wait_until(lambda: latest(run / "checkpoints") is not None, process)
        with open(ballast, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - left)
        before, said = checkpoints(run / "checkpoints"), process.communicate()[1]
        yield Fact(
            f"{room} left: exit status", process.returncode, process.returncode == 2
        )
        yield Fact(
            f"{room} left: said",
            said.strip().replace(str(folder), "…"),
            said.count("\n") == 1 and "No space left" in said,
        )
        kept = checkpoints(run / "checkpoints") == before and load_all(run) == len(
            before
        )
        yield Fact(
            f"{room} left: checkpoints of before", "whole" if kept else "damaged", kept
        )
        yield Fact(
            f"{room} left: half-written files",
            ", ".join(half_written(run)) or 0,
            not half_written(run),
        )
        ballast.unlink()
        finish(runs.go_on(run))
        equal = all(fact.holds for fact in same(run, straight))
        yield Fact(
            f"{room} left: gone on with after making space",
            "the same bits" if equal else "other bits",
            equal,
        )


TRIED = {
    "resume": resume,
    "kills": kills,
    "each": each,
    "gradients": gradients,
    "disk": disk,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(TRIED), choices=TRIED)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments of the kills"
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument(
        "--processes", type=int, default=1, help="of a run, started by torchrun"
    )
    parser.add_argument(
        "--steps", type=int, default=200, help="of the run that is resumed"
    )
    parser.add_argument("--out", help="write the findings as JSON")
    parser.add_argument(
        "--rank-of", type=Path, help=argparse.SUPPRESS
    )  # what torchrun starts two processes with
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.rank_of:
        return one_of_two(args.rank_of, args.device)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        runs = Runs(Path(name), args.device, args.processes)
        for part in args.only:
            print(f"\n{part}", flush=True)
            began, found[part] = time.perf_counter(), []
            for fact in TRIED[part](runs, args):
                found[part].append(fact._asdict())
                value = (
                    f"{fact.found:.1e}" if isinstance(fact.found, float) else fact.found
                )
                print(
                    f"  {fact.what:72}{value}{'' if fact.holds is not False else '   DOES NOT HOLD'}",
                    flush=True,
                )
            print(f"  {time.perf_counter() - began:.0f} s")
    if args.out:
        with open(args.out, "w") as f:
            json.dump(found, f, indent=1)
    sys.exit(any(fact["holds"] is False for facts in found.values() for fact in facts))


if __name__ == "__main__":
    main()
