"The part of gpu.py that kills runs: what exactness.py asks, on GPUs and over NCCL."

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import exactness
import torch
from exactness import Fact, Runs
from gpu_kit import Kit, say

OTHERS = ("other bits", "others")  # what exactness.same finds in runs that differ


def control(runs: Runs, args: argparse.Namespace) -> Iterator[Fact]:
    "Two runs that nobody disturbs: are they equal to the bit on this machine?"
    settings = exactness.resume_settings(args.steps)
    one, other = (runs.straight(name, settings) for name in ("straight", "again"))
    for fact in exactness.same(other, one):
        yield fact._replace(holds=None)


def resume(kit: Kit) -> None:
    "Killed and resumed runs equal undisturbed ones; one gradient for all splits."
    n = 1 if kit.tiny else min(2, kit.n_devices)
    kit.note("processes", n)
    args = argparse.Namespace(steps=20 if kit.tiny else 200, kills=3, seed=kit.seed)
    parts = {"two runs left alone": control, "resume": exactness.resume}
    if kit.tiny:
        parts.pop("two runs left alone")  # on a CPU they are equal
    else:
        parts["kills"] = exactness.kills
    parts["gradients"] = exactness.gradients
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder), kit.device.type, n)
        try:
            n_wrong = sum(
                facts_of(kit, name, parts[name](runs, args)) for name in parts
            )
        finally:
            runs.stop()
    if n_wrong:
        raise RuntimeError(f"{n_wrong} facts do not hold")


def facts_of(kit: Kit, name: str, facts: Iterator[Fact]) -> int:
    """Note the facts of one part; how many do not hold.

    Equal bits are not asked for where two runs left alone are not equal either.
    """
    say(f"  {name}")
    noted: list[dict] = []
    left_alone = kit.results.get("two runs left alone", [])
    unequal = any(fact["found"] in OTHERS for fact in left_alone)
    for fact in facts:
        if unequal and fact.found in OTHERS:
            fact = fact._replace(holds=None)
        noted.append(fact._asdict())
        kit.note(name, noted)
        found = f"{fact.found:.1e}" if isinstance(fact.found, float) else fact.found
        wrong = "   DOES NOT HOLD" if fact.holds is False else ""
        say(f"    {fact.what:72}{found}{wrong}")
    return sum(fact["holds"] is False for fact in noted)
