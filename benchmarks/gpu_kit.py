"What the parts of gpu.py share: where they run, how large, and where their results go."

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from annotated_transformer.model.config import RECIPES, ModelConfig

N_VOCAB, STEP_TOKENS = 37_000, 25_000  # of the paper (§5.1)
TINY_VOCAB, TINY_TOKENS = 300, 200


class Skipped(Exception):
    "A part needs what this machine does not have."


class Ids:
    "A vocabulary without text, for weights that were not trained."

    pad_id, bos_id, eos_id = 0, 2, 3

    def __init__(self, n_vocab: int):
        self.n_vocab = n_vocab

    def __len__(self) -> int:
        return self.n_vocab


class Kit:
    "The setting of one part, and its results, which are written down one by one."

    def __init__(
        self,
        device: str,  # "cuda" or "cpu"
        *,
        tiny: bool = False,
        seed: int = 0,
        found: Path = Path(os.devnull),
        seconds: float = 1e6,  # the part's time limit
    ):
        self.device, self.tiny, self.seed = torch.device(device), tiny, seed
        self.found, self.results = found, {}
        self.ends = time.monotonic() + seconds

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def n_devices(self) -> int:
        "GPUs; on a CPU, processes that stand for them."
        return torch.cuda.device_count() if self.on_cuda else 2

    @property
    def precision(self) -> str:
        "bf16, or fp32 on a GPU that does not multiply bf16 numbers."
        cuda = torch.cuda
        if self.on_cuda and not cuda.is_bf16_supported(including_emulation=False):
            return "fp32"
        return "bf16"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    @property
    def step_tokens(self) -> int:
        "Of a step on one device: the paper's, or less where memory is small."
        if self.tiny:
            return TINY_TOKENS
        if not self.on_cuda:
            return 4096
        gigabytes = torch.cuda.get_device_properties(0).total_memory / 1e9
        return STEP_TOKENS if gigabytes > 38 else 8192 if gigabytes > 14 else 4096

    @property
    def n_vocab(self) -> int:
        return TINY_VOCAB if self.tiny else N_VOCAB

    def sizes(self) -> dict[str, ModelConfig]:
        if self.tiny:
            tiny = ModelConfig(n_layers=1, d_model=32, d_ff=128, n_heads=4)
            return {"base": tiny, "big": tiny}
        return {name: RECIPES[name].model for name in ("base", "big")}

    def note(self, name: str, value: object) -> None:
        "Keep a result: in the file at once."
        self.results[name] = value
        if self.found == Path(os.devnull):
            return
        new = self.found.with_suffix(".new")
        new.write_text(json.dumps(self.results), encoding="utf-8")
        new.replace(self.found)

    def seconds_left(self) -> float:
        return self.ends - time.monotonic()

    def wait(self) -> None:
        "Until the device has done all that it was given."
        if self.on_cuda:
            torch.cuda.synchronize()

    def megabytes(self) -> float:
        "Memory that tensors have on the device; 0 on a CPU, where it is not counted."
        return torch.cuda.memory_allocated() / 2**20 if self.on_cuda else 0.0

    def peak_mb(self) -> float:
        "The most since `forget_peak`; 0 on a CPU."
        return torch.cuda.max_memory_allocated() / 2**20 if self.on_cuda else 0.0

    def forget_peak(self) -> None:
        "Free what is no longer used, and count the peak of memory anew."
        gc.collect()
        if self.on_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def say(line: str = "", end: str = "\n") -> None:
    print(line, end=end, flush=True)


def first_line(error: BaseException) -> str:
    "Its kind and the first line of its message."
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


def compile_module(module: nn.Module, tiny: bool) -> None:
    "As the setting compile=true does; a tiny one is only traced, without a compiler."
    module.compile(dynamic=True, backend="eager" if tiny else "inductor")


def seconds_of(action: Callable[[], object], kit: Kit, repeats: int = 5) -> float:
    "For one call: the shortest of several loops, each of some tens of milliseconds."
    action()
    n, shortest = 1, float("inf")
    while repeats:
        kit.wait()
        began = time.perf_counter()
        for _ in range(n):
            action()
        kit.wait()
        taken = time.perf_counter() - began
        if taken < (0.002 if kit.tiny else 0.03):
            n *= 2
            continue
        shortest, repeats = min(shortest, taken / n), repeats - 1
    return shortest


def matmul_rate(kit: Kit, n: int, k: int, m: int) -> float:
    "FLOP/s of the product of an (n, k) and a (k, m) matrix in the kit's dtype."
    a = torch.randn(n, k, dtype=kit.dtype, device=kit.device)
    b = torch.randn(k, m, dtype=kit.dtype, device=kit.device)
    out = torch.empty(n, m, dtype=kit.dtype, device=kit.device)
    seconds = seconds_of(lambda: torch.mm(a, b, out=out), kit)
    return 2 * n * k * m / seconds


def model_rate(kit: Kit, m: ModelConfig) -> float:
    "FLOP/s at the shape of the first feed-forward layer: what shares refer to."
    return matmul_rate(kit, kit.step_tokens, m.d_model, m.d_ff)


def forget_compiled() -> None:
    "Drop what torch.compile has made, if it was used."
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
