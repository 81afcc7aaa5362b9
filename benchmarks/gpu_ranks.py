"""Parts of gpu.py that run the real training loop: on one device, on all with DDP, and sharded.

Each starts this file as a script, by torchrun if there are several processes. It trains the cases that it is given and writes down
what each took; the parts read that.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from gpu_kit import Ids, Kit, Skipped, compile_module, forget_compiled, model_rate, say
from train import random_lengths, useful_flops

from annotated_transformer.data.batch import (
    EncodedPairs,
    RaggedArray,
    Step,
    training_steps,
)
from annotated_transformer.engines.choose import FAST
from annotated_transformer.engines.prefetch import prefetch
from annotated_transformer.model.config import RECIPES, Recipe
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.training.distributed import (
    pick_device,
    process_group,
    rank,
    world_size,
)
from annotated_transformer.training.train import StepRecord

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


class Case(NamedTuple):
    "One training: what it trains, and how."

    name: str
    size: str  # "base" or "big"
    tokens: int  # of a step, over all devices
    sharded: bool = False
    compiled: bool = False
    cudnn: bool = False  # let PyTorch use cuDNN's attention, which we switch off
    watched: bool = False  # measure the share of the rate, and count synchronisations


# ---- what each process does


def random_pairs(kit: Kit) -> EncodedPairs:
    "Sentence pairs of random ids."
    rng = np.random.default_rng(kit.seed)
    lengths = random_lengths(rng, 2000 if kit.tiny else 200_000)
    sides = []
    for side in lengths.T:
        starts = np.concatenate([[0], np.cumsum(side)])
        ids = rng.integers(4, kit.n_vocab, starts[-1]).astype(np.uint16)
        sides.append(RaggedArray(ids, starts))
    return EncodedPairs(*sides)


def steps_of(kit: Kit, case: Case, pairs: EncodedPairs) -> Iterator[Step]:
    return training_steps(
        pairs,
        Ids(kit.n_vocab),
        case.tokens,
        kit.seed,
        rank=rank(),
        world_size=world_size(),
    )


def n_steps(kit: Kit) -> tuple[int, int]:
    "Steps before the clock starts, and timed ones; multiples of a group on CUDA."
    return (1, 3) if kit.tiny else (10, 30)


def recipe_of(kit: Kit, case: Case) -> Recipe:
    settings = replace(
        RECIPES[case.size].train,
        batch_tokens=case.tokens,
        precision=kit.precision,
        seed=kit.seed,
        compile=case.compiled and not kit.tiny,
    )
    return Recipe(kit.sizes()[case.size], settings)


def largest(kit: Kit, value: float) -> float:
    "The largest value of all ranks."
    if world_size() == 1:
        return value
    tensor = torch.tensor(value, device=kit.device)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.item()


def synchronisations(kit: Kit, go) -> dict | None:
    "How often the host waits for the GPU while `go` runs, and in which lines."
    if not kit.on_cuda:
        return None
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        go()
    torch.cuda.set_sync_debug_mode("default")
    lines = Counter(
        f"{Path(w.filename).name}:{w.lineno}"
        for w in caught
        if "synchronizing" in str(w.message)
    )
    return {"steps": 20, "n": sum(lines.values()), "lines": dict(lines)}


class Training:
    "A case as a process trains it."

    def __init__(self, kit: Kit, case: Case):
        self.kit, self.case = kit, case
        self.pairs = random_pairs(kit)
        kit.forget_peak()
        began = time.perf_counter()
        objective, self.parallel, self.optimizer, self.schedule = build_training(
            recipe_of(kit, case), Ids(kit.n_vocab), kit.device, sharded=case.sharded
        )
        torch.backends.cuda.enable_cudnn_sdp(case.cudnn)
        if case.compiled and kit.tiny:
            compile_module(objective.model, tiny=True)
        kit.wait()
        self.facts = {
            "n_parameters": sum(p.numel() for p in objective.parameters()),
            "built_s": round(time.perf_counter() - began, 2),
            "peak_while_built_mb": round(largest(kit, kit.peak_mb())),
        }

    def run(self, n: int) -> list[StepRecord]:
        "So many steps of the loop, from the first on."
        records: list[StepRecord] = []
        FAST.train(
            self.parallel,
            prefetch(steps_of(self.kit, self.case, self.pairs), self.kit.device),
            self.optimizer,
            self.schedule,
            n,
            [records.append],
        )
        return records

    def measure(self) -> dict:
        kit, (warm, n) = self.kit, n_steps(self.kit)
        began = time.perf_counter()
        self.run(warm)
        first = time.perf_counter() - began
        kit.forget_peak()
        # the records of a group of steps come together, after its last
        records = self.run(warm + n)
        seconds = records[-1].seconds - records[warm - 1].seconds
        peak = round(largest(kit, kit.peak_mb()))
        timed = records[warm:]
        found = self.facts | {
            "first_steps_s": round(first, 2),
            "step_ms": round(1e3 * seconds / n, 2),
            "tokens_per_s": round(sum(r.n_tokens for r in timed) / seconds),
            "peak_mb": peak,
            "loss": round(records[-1].loss, 4),
        }
        if self.case.watched:
            found |= {
                "of_matmul": self.share(seconds, warm, n),
                "synchronisations": synchronisations(kit, lambda: self.run(20)),
            }
        return found

    def share(self, seconds: float, warm: int, n: int) -> float:
        "Of the matmul rate that the timed steps reached, on one device."
        m = self.kit.sizes()[self.case.size]
        steps = islice(steps_of(self.kit, self.case, self.pairs), warm, warm + n)
        flops = sum(
            useful_flops(batch[:3], m, self.kit.n_vocab)
            for step in steps
            for batch in step.micro
        )
        return round(flops / seconds / model_rate(self.kit, m), 3)


def worker(kit: Kit, cases: list[Case], found: Path) -> None:
    "All cases, one after the other; rank 0 writes down what it found after each."
    results: dict[str, dict] = {}
    with process_group(kit.device):
        for case in cases:
            results[case.name] = Training(kit, case).measure()
            forget_compiled()
            if rank() == 0:
                new = found.with_suffix(".new")
                new.write_text(json.dumps(results), encoding="utf-8")
                new.replace(found)


# ---- the parts


def run_ranks(kit: Kit, n: int, cases: list[Case]) -> dict[str, dict]:
    "What so many processes found; a case that failed is missing, with a line."
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, *([*TORCHRUN, str(n)] if n > 1 else [])]
        command += [__file__, "--device", kit.device.type, "--found", str(found)]
        command += ["--seed", str(kit.seed), "--cases", json.dumps(cases)]
        done = subprocess.run(command + ["--tiny"] * kit.tiny)
        results = json.loads(found.read_text()) if found.exists() else {}
    for case in cases:
        if case.name not in results:
            say(f"  {case.name} on {n}: failed, with exit status {done.returncode}")
    return results


def check_all(results: dict, names: list[str]) -> None:
    "RuntimeError if one is missing, after the others were noted."
    if missing := [name for name in names if name not in results]:
        raise RuntimeError(f"no result: {', '.join(missing)}")


def loop(kit: Kit) -> None:
    "The whole training loop on one device: prefetching, the gradient norm, reports."
    cases = [
        Case("base", "base", kit.step_tokens, watched=True),
        Case("base, compiled", "base", kit.step_tokens, compiled=True, watched=True),
    ]
    if kit.on_cuda:
        cudnn = {"cudnn": True, "watched": True}
        cases.append(Case("base, cuDNN attention", "base", kit.step_tokens, **cudnn))
    kit.note("precision", kit.precision)
    kit.note("tokens_per_step", kit.step_tokens)
    found = run_ranks(kit, 1, cases)
    for name, r in found.items():
        kit.note(name, r)
        waits = r["synchronisations"]
        say(
            f"  {name:24}{r['tokens_per_s']:>10,} tokens/s{r['of_matmul']:>8.3f} of "
            f"matmul, first steps {r['first_steps_s']:.1f} s, "
            + (
                f"{waits['n']} synchronisations in {waits['steps']} steps"
                if waits
                else "synchronisations are counted on CUDA only"
            )
        )
    check_all(found, [case.name for case in cases])


def scaling(kit: Kit) -> None:
    "DDP: weak scaling (equal work on each device), strong scaling (one step divided)."
    counts = [n for n in (1, 2, 4, 8) if n <= kit.n_devices]
    if len(counts) == 1:
        raise Skipped("scaling needs two devices, and there is one")
    kit.note("precision", kit.precision)
    kit.note("tokens_per_device", kit.step_tokens)
    one = None
    for n in counts:
        cases = [Case("weak scaling", "base", n * kit.step_tokens)]
        if n > 1:
            cases.append(Case("strong scaling", "base", kit.step_tokens))
        found = run_ranks(kit, n, cases)
        check_all(found, [cases[0].name])
        one = one or found[cases[0].name]["tokens_per_s"]
        for r in found.values():
            r["efficiency"] = round(r["tokens_per_s"] / one / n, 3)
        kit.note(f"{n} devices", found)
        for name, r in found.items():
            say(
                f"  {n} devices, {name:20}{r['tokens_per_s']:>12,} tokens/s, "
                f"{r['step_ms']:.1f} ms a step, efficiency {r['efficiency']:.2f}"
            )


def sharding(kit: Kit) -> None:
    "DDP and FSDP for the big model: time, memory, and building it slice by slice."
    n = kit.n_devices
    tokens = n * kit.step_tokens // (1 if kit.tiny else 2)
    cases = [
        Case("whole on each device", "big", tokens),
        Case("sharded", "big", tokens, sharded=True),
    ]
    if n == 1:
        say("  one device: nothing to shard, only initialisation is deferred")
    kit.note("precision", kit.precision)
    kit.note("devices", n)
    kit.note("tokens_per_step", tokens)
    found = run_ranks(kit, n, cases)
    for name, r in found.items():
        kit.note(name, r)
        say(
            f"  {name:22}{r['step_ms']:>8.1f} ms a step, peak {r['peak_mb']:,} MB, "
            f"built in {r['built_s']:.1f} s with {r['peak_while_built_mb']:,} MB"
        )
    check_all(found, [case.name for case in cases])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cases", type=json.loads, required=True)
    parser.add_argument("--found", type=Path, required=True)
    args = parser.parse_args()
    if args.device == "cpu":
        torch.set_num_threads(1)
    kit = Kit(args.device, tiny=args.tiny, seed=args.seed)
    kit.device = pick_device(args.device)
    worker(kit, [Case(*case) for case in args.cases], args.found)


if __name__ == "__main__":
    main()
