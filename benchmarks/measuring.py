"What the benchmarks share: options and figures, rounds of timing, memory, processes."

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch

from annotated_transformer.data.batch import EncodedPairs, RaggedArray

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "results"))
from figures import options, peak_bytes, write  # noqa: E402

__all__ = ["ROOT", "options", "peak_bytes", "write"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TORCHRUN.append("--nproc-per-node")


def seconds(action: Callable[[], object]) -> float:
    "Of one call, by the clock."
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def in_turn(names: Iterable[str], turn: int) -> list[str]:
    "All names, another one first in each turn: the first may be slower."
    names = list(names)
    first = turn % len(names)
    return names[first:] + names[:first]


def rounds(actions: dict[str, Callable[[], object]], n: int) -> list[dict[str, float]]:
    "The seconds of every action in each of n rounds."
    return [
        {name: seconds(actions[name]) for name in in_turn(actions, turn)}
        for turn in range(n)
    ]


def middle(values: Iterable[float]) -> float:
    return round(statistics.median(values), 3)


def made_of(
    makers: dict[str, Callable[[], object]], lacking: type[Exception] = Exception
) -> dict:
    "Every contender that can be had; a line for each that raises `lacking`."
    made = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except lacking as e:  # not installed, no memory, a compiler that fails
            why = f"{type(e).__name__}: {e}".partition("\n")[0]
            print(f"  {name} is left out: {why}", flush=True)
    return made


def matmul_rate(
    n: int, k: int, m: int, dtype: torch.dtype, device: str | torch.device
) -> float:
    "FLOP/s of an (n, k) times a (k, m) matrix: the best of several loops of 30 ms or more."
    a = torch.randn(n, k, dtype=dtype, device=device)
    b = torch.randn(k, m, dtype=dtype, device=device)
    out = torch.empty(n, m, dtype=dtype, device=device)

    def loop(n_calls: int) -> None:
        for _ in range(n_calls):
            torch.mm(a, b, out=out)
        if a.is_cuda:
            torch.cuda.synchronize()

    loop(1)
    n_calls = 1
    while seconds(partial(loop, n_calls)) < 0.03:
        n_calls *= 2
    shortest = min(seconds(partial(loop, n_calls)) for _ in range(5))
    return 2 * n * k * m * n_calls / shortest


class Ids:
    "A vocabulary without text, for models that are not trained on any."

    pad_id, bos_id, eos_id = 0, 2, 3

    def __init__(self, n_vocab: int):
        self.n_vocab = n_vocab

    def __len__(self) -> int:
        return self.n_vocab


def random_pairs(lengths: np.ndarray, n_ids: int) -> EncodedPairs:
    "Sentence pairs of these lengths, (n, 2), with ids from 4 to n_ids − 1."
    rng, sides = np.random.default_rng(0), []
    for side in lengths.T:
        starts = np.concatenate([[0], np.cumsum(side)])
        ids = rng.integers(4, n_ids, starts[-1]).astype(np.uint16)
        sides.append(RaggedArray(ids, starts))
    return EncodedPairs(*sides)


def in_own_process(file: str, *args: object):
    "The JSON that a program writes in a process of its own."
    command = [sys.executable, file, *map(str, args)]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    )


def kill_all(process: subprocess.Popen) -> None:
    "SIGKILL for it and all that it started (Linux): torchrun's processes would live on."
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found = [process.pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    process.kill()
    for pid in found[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
