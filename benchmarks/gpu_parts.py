#!/usr/bin/env python
"""The parts of gpu.py, each in a process of its own; those that run the training loop start this file again, once for each device.

python benchmarks/gpu_parts.py PART --device cuda --found FILE --seconds 60
"""

import argparse
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import decode as decoding
import numpy as np
import torch
import torch.distributed as dist
from measuring import in_turn, matmul_rate, middle, seconds, write
from torch import nn
from train import (
    PAD,
    PEERS,
    Ours,
    batches,
    contender,
    random_lengths,
    train_on,
    useful_flops,
)

from annotated_transformer.cli.main import limit_kernels
from annotated_transformer.data.batch import (
    EncodedPairs,
    RaggedArray,
    Step,
    training_steps,
)
from annotated_transformer.engines.choose import FAST
from annotated_transformer.model.config import (
    RECIPES,
    ModelConfig,
    Recipe,
    TrainConfig,
)
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import Run
from annotated_transformer.runs.recipe import build_training, precision_context
from annotated_transformer.training.distributed import (
    pick_device,
    process_group,
    rank,
    world_size,
)
from annotated_transformer.training.train import StepRecord
from annotated_transformer.training.train import train as run_loop

HERE = Path(__file__).resolve().parent


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
        tiny: bool,
        seed: int,
        found: Path,
        seconds: float,  # the part's time limit
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
            return 200
        if not self.on_cuda:
            return 4096
        gigabytes = torch.cuda.get_device_properties(0).total_memory / 1e9
        return 25_000 if gigabytes > 38 else 8192 if gigabytes > 14 else 4096

    @property
    def n_vocab(self) -> int:
        return 300 if self.tiny else 37_000  # §5.1

    def sizes(self) -> dict[str, ModelConfig]:
        if self.tiny:
            tiny = ModelConfig(n_layers=1, d_model=32, d_ff=128, n_heads=4)
            return {"base": tiny, "big": tiny}
        return {name: RECIPES[name].model for name in ("base", "big")}

    def note(self, name: str, value: object) -> None:
        "Keep a result: in the file at once, and on the terminal."
        self.results[name] = value
        write(self.found, self.results)
        print(f"  {name}: {json.dumps(value)}", flush=True)

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


def first_line(error: BaseException) -> str:
    "Its kind and the first line of its message."
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


def compile_module(module: nn.Module, tiny: bool) -> None:
    "As the setting compile=true does; a tiny one is only traced, without a compiler."
    module.compile(dynamic=True, backend="eager" if tiny else "inductor")


def model_rate(kit: Kit, m: ModelConfig) -> float:
    "FLOP/s at the shape of the first feed-forward layer: what shares refer to."
    return matmul_rate(kit.step_tokens, m.d_model, m.d_ff, kit.dtype, kit.device)


def forget_compiled() -> None:
    "Drop what torch.compile has made, if it was used."
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()


# ---- matrix products


KINDS = {"ours": Ours} | {
    name: kind for name, kind in PEERS.items() if name != "the same, eager"
}
COMPILED = ", compiled"


def shapes(kit: Kit, m: ModelConfig) -> dict[str, tuple[int, int, int]]:
    "The matrix products of a step, (n, k) times (k, m)."
    n, d = kit.step_tokens, m.d_model
    rows = max(256, 2**26 // kit.n_vocab)  # of a chunk of the loss on a GPU
    return {
        "queries, keys and values": (n, d, 3 * d),
        "output of attention": (n, d, d),
        "feed-forward, first": (n, d, m.d_ff),
        "feed-forward, second": (n, m.d_ff, d),
        "gradient of the first": (d, n, m.d_ff),
        "logits": (min(n, rows), d, kit.n_vocab),
    }


def matmul(kit: Kit) -> None:
    "The measured rate of matrix products, at the model's shapes and at a large one."
    kit.note("precision", kit.precision)
    large = 256 if kit.tiny else 8192
    groups = {name: shapes(kit, m) for name, m in kit.sizes().items()}
    groups["largest"] = {"square": (large, large, large)}
    rates: dict[str, dict] = {}
    for size, some in groups.items():
        rates[size] = {}
        for name, shape in some.items():
            rate = matmul_rate(*shape, kit.dtype, kit.device)
            rates[size][name] = {"shape": shape, "gflops": round(rate / 1e9, 1)}
    kit.note("rates", rates)


# ---- training compared with peers


class Contender:
    "A module that is trained, with its optimiser, and what its first steps took."

    def __init__(self, kit: Kit, name: str, m: ModelConfig, some: list):
        kind = KINDS[name.removesuffix(COMPILED)]
        kit.forget_peak()
        before, began = kit.megabytes(), time.perf_counter()
        self.autocast = precision_context(kit.precision, kit.device)
        device = str(kit.device)
        self.module, self.optimizer = contender(kind, m, kit.n_vocab, device)
        if name.endswith(COMPILED):
            # ours as the recipe does; a peer with its loss
            inner = self.module.model if kind is Ours else self.module
            compile_module(inner, kit.tiny)
        self.seconds(some)
        first = time.perf_counter() - began
        kit.forget_peak()  # a compiler tries several kernels
        self.seconds(some)
        self.facts = {
            "first_steps_s": round(first, 2),
            "peak_mb": round(kit.peak_mb() - before) if kit.on_cuda else None,
        }

    def seconds(self, some: list) -> float:
        return train_on(self.module, self.optimizer, some, self.autocast)


def prepare(
    kit: Kit, m: ModelConfig, some: list, compiled: list[str]
) -> dict[str, Contender]:
    "Every contender that can be had; then some compiled, while there is time."
    made: dict[str, Contender] = {}
    for name in [*KINDS, *(name + COMPILED for name in compiled)]:
        if name.endswith(COMPILED) and kit.seconds_left() < 90:
            print(f"  {name} is left out: no time to compile it")
            continue
        try:
            made[name] = Contender(kit, name, m, some)
        except Exception as e:  # not installed, no memory, a compiler that fails
            print(f"  {name} is left out: {first_line(e)}", flush=True)
    if "ours" not in made:
        raise RuntimeError("our model cannot be trained here")
    return made


def one_round(
    kit: Kit, made: dict[str, Contender], m: ModelConfig, some: list, turn: int
) -> dict:
    "All contenders in turn on the same batches, and the matmul rate."
    n_tokens = sum(int((batch[2] != PAD).sum()) for batch in some)
    flops = sum(useful_flops(batch, m, kit.n_vocab) for batch in some)
    placed = [tuple(t.to(kit.device) for t in batch) for batch in some]
    rate = model_rate(kit, m)
    taken = {name: made[name].seconds(placed) for name in in_turn(made, turn)}
    return {"n_tokens": n_tokens, "flops": flops, "rate": rate, "seconds": taken}


def trained(done: list[dict], made: dict[str, Contender]) -> dict:
    "Medians of what each round gave."
    found, peers = {}, [name for name in made if not name.startswith("ours")]
    for name, one in made.items():
        rates = [(r, r["seconds"][name]) for r in done]
        found[name] = {
            "tokens_per_s": round(middle(r["n_tokens"] / s for r, s in rates)),
            "of_matmul": middle(r["flops"] / s / r["rate"] for r, s in rates),
            "ours_is_faster_by": middle(s / r["seconds"]["ours"] for r, s in rates),
            **one.facts,
        }
    result = {
        "rounds": len(done),
        "matmul_gflops": round(middle(r["rate"] for r in done) / 1e9, 1),
        "contenders": found,
    }
    if peers:
        result["ours_over_the_fastest_peer"] = middle(
            min(r["seconds"][p] for p in peers)
            / min(s for name, s in r["seconds"].items() if name not in peers)
            for r in done
        )
    return result


def compare(kit: Kit, size: str, m: ModelConfig) -> None:
    "Rounds of all contenders; each round has batches of its own, as training has."
    n_rounds, n = (2, 2) if kit.tiny else (5, 8)
    some = batches(2 + n_rounds * n, kit.step_tokens, kit.n_vocab, kit.seed)
    warm = [tuple(t.to(kit.device) for t in batch) for batch in some[:2]]
    compiled = list(KINDS) if size == "base" else ["ours"]
    if kit.tiny:
        compiled = ["ours"] if size == "base" else []
    made = prepare(kit, m, warm, compiled)
    done: list[dict] = []
    for turn in range(n_rounds):
        begin = 2 + turn * n
        done.append(one_round(kit, made, m, some[begin : begin + n], turn))
        kit.note(size, trained(done, made))


def train(kit: Kit) -> None:
    "Tokens per second and the share of the rate of matrix products, compared with peers."
    kit.note("precision", kit.precision)
    kit.note("tokens_per_step", kit.step_tokens)
    for size, m in kit.sizes().items():
        compare(kit, size, m)
        forget_compiled()


# ---- translating, compared with Hugging Face's generate


class HuggingFaceBf16(decoding.HuggingFace):
    precision = "bf16"


TRANSLATORS = {
    "fp32": {
        "ours": decoding.Ours,
        "Hugging Face": decoding.HuggingFace,
        "the same, eager": decoding.HuggingFaceEager,
    },
    "bf16": {"ours": decoding.OursBf16, "Hugging Face": HuggingFaceBf16},
}


def untrained(kit: Kit, m: ModelConfig) -> Run:
    """A model that never predicts EOS: its logit is 0, others are positive.

    Every sentence therefore gets as many tokens as it may have, from every contender.
    """
    torch.manual_seed(kit.seed)
    model = build_transformer(m, kit.n_vocab, 0, attention=FAST.attention).eval()
    with torch.no_grad():
        model.embedding.weight[Ids.eos_id] = 0
    return Run(model, Ids(kit.n_vocab), Recipe(m, TrainConfig()), {})


def sentences(kit: Kit) -> list[list[int]]:
    "Random ids, all equally many: then a batch has one limit for all of them."
    rng = random.Random(kit.seed)
    n, length = (4, 3) if kit.tiny else (256, 25)
    return [[rng.randrange(4, kit.n_vocab) for _ in range(length)] for _ in range(n)]


def translators(kit: Kit, precision: str, m: ModelConfig) -> tuple[dict, dict]:
    "The contenders that can be had, and the memory of their weights."
    made, megabytes = {}, {}
    options = argparse.Namespace(device=str(kit.device), threads=1, run=None)
    for name, kind in TRANSLATORS[precision].items():
        if kit.tiny and kind is decoding.HuggingFaceEager:
            continue
        kit.forget_peak()
        before = kit.megabytes()
        try:
            made[name] = kind(untrained(kit, m), options)
        except Exception as e:
            print(f"  {name} is left out: {first_line(e)}", flush=True)
            continue
        megabytes[name] = kit.megabytes() - before
    return made, megabytes


def timed(kit: Kit, one, batches: list, beam: int) -> dict:
    "Seconds for all batches, the ids, and the most memory beyond the weights, in MB."
    prepared, found = [one.prepare(rows) for rows in batches], []
    kit.forget_peak()
    before = kit.megabytes()

    def translate() -> None:
        found.extend(one.decode(batch, beam) for batch in prepared)
        kit.wait()

    kit.wait()
    taken = seconds(translate)
    ids = [ids for some in found for ids in one.ids(some)]
    return {"seconds": taken, "ids": ids, "peak": kit.peak_mb() - before}


def rounds_of(kit: Kit, made: dict, batches: list, beam: int) -> dict[str, list]:
    "What `timed` found of each contender in each round."
    for one in made.values():
        timed(kit, one, batches[:1], beam)  # warms up
    done: dict[str, list] = {name: [] for name in made}
    for turn in range(1 if kit.tiny else 3):
        for name in in_turn(made, turn):
            done[name].append(timed(kit, made[name], batches, beam))
    return done


def translated(kit: Kit, done: dict[str, list], megabytes: dict) -> dict:
    "Medians over rounds; equal outputs can be expected in fp32 only."
    result, ours = {}, done["ours"]
    for name, rounds in done.items():
        ids, taken = rounds[-1]["ids"], [r["seconds"] for r in rounds]
        n_tokens, peak = sum(map(len, ids)), megabytes[name] + rounds[-1]["peak"]
        same = sum(map(list.__eq__, ids, ours[-1]["ids"])) / len(ids)
        result[name] = {
            "sentences_per_s": middle(len(ids) / s for s in taken),
            "tokens_per_s": middle(n_tokens / s for s in taken),
            "ours_is_faster_by": middle(s / o["seconds"] for s, o in zip(taken, ours)),
            "tokens": n_tokens,
            "same_as_ours": round(same, 4),
            "peak_mb": round(peak) if kit.on_cuda else None,
        }
    return result


def compare_translators(kit: Kit, size: str, precision: str, m: ModelConfig) -> None:
    "All settings: greedy and beam 4, 64 sentences at a time and one by one."
    made, megabytes = translators(kit, precision, m)
    if "ours" not in made:
        raise RuntimeError(f"our model of size {size} cannot translate here")
    rows, found = sentences(kit), {}
    for setting, (beam, n) in decoding.SETTINGS.items():
        groups = decoding.batches_of(rows, n, 1 if kit.tiny else 8)
        batches = [[rows[i] for i in group] for group in groups]
        done = rounds_of(kit, made, batches, beam)
        found[setting] = translated(kit, done, megabytes)
        kit.note(f"{size}, {precision}", found)


def decode(kit: Kit) -> None:
    "Greedy and beam search, each beside Hugging Face's generate, with equal work."
    sizes = kit.sizes()
    kit.note("weights", "untrained, never EOS")
    kit.note("tokens_beyond_the_source", decoding.MORE)
    compare_translators(kit, "base", "fp32", sizes["base"])
    if kit.precision == "bf16":
        compare_translators(kit, "base", "bf16", sizes["base"])
    if not kit.tiny:
        compare_translators(kit, "big", kit.precision, sizes["big"])


# ---- the training loop, on one device and on all

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
    "Steps before the clock starts, and timed ones; multiples of `sync_every` on CUDA."
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
        run_loop(
            self.parallel,
            steps_of(self.kit, self.case, self.pairs),
            self.optimizer,
            self.schedule,
            n,
            [records.append],
            sync_every=10 if self.kit.on_cuda else 1,
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
                write(found, results)


# ---- the parts


def run_ranks(kit: Kit, n: int, cases: list[Case]) -> dict[str, dict]:
    "What so many processes found of each case; RuntimeError if one failed."
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, *([*TORCHRUN, str(n)] if n > 1 else [])]
        command += [__file__, "loop", "--device", kit.device.type]
        command += ["--found", str(found), "--seed", str(kit.seed)]
        command += ["--cases", json.dumps(cases)]
        status = subprocess.run(command + ["--tiny"] * kit.tiny).returncode
        results = json.loads(found.read_text()) if found.exists() else {}
    if status:
        kit.note(f"{n} devices", results)
        raise RuntimeError(f"{n} processes ended with status {status}")
    return results


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
    for name, r in run_ranks(kit, 1, cases).items():
        kit.note(name, r)


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
        one = one or found[cases[0].name]["tokens_per_s"]
        for r in found.values():
            r["efficiency"] = round(r["tokens_per_s"] / one / n, 3)
        kit.note(f"{n} devices", found)


def sharding(kit: Kit) -> None:
    "DDP and FSDP for the big model: time, memory, and building it slice by slice."
    n = kit.n_devices
    tokens = n * kit.step_tokens // (1 if kit.tiny else 2)
    cases = [
        Case("whole on each device", "big", tokens),
        Case("sharded", "big", tokens, sharded=True),
    ]
    kit.note("precision", kit.precision)
    kit.note("devices", n)
    kit.note("tokens_per_step", tokens)
    for name, r in run_ranks(kit, n, cases).items():
        kit.note(name, r)


# ---- killed and resumed


def resume(kit: Kit) -> None:
    "What exactness.py asks, over NCCL: equal bits where two runs left alone have them."
    n = 1 if kit.tiny else min(2, kit.n_devices)
    parts = ["resume"] if kit.tiny else ["alone", "resume", "kills", "gradients"]
    steps = 20 if kit.tiny else 200
    order = ["--only", *parts, "--kills", 3, "--steps", steps, "--seed", kit.seed]
    order += ["--device", kit.device.type, "--processes", n, "--out", kit.found]
    command = [sys.executable, HERE / "exactness.py", *order]
    status = subprocess.run(list(map(str, command))).returncode
    kit.results = json.loads(kit.found.read_text(encoding="utf-8"))
    kit.note("processes", n)
    if status:
        raise RuntimeError("not all facts hold")


# ---- the process of a part


PARTS = {
    part.__name__: part
    for part in (matmul, train, loop, decode, scaling, sharding, resume)
}


def run_part(part: Callable[[Kit], None], kit: Kit) -> int:
    "Its exit status; how it ended is noted."
    try:
        part(kit)
    except Skipped as e:
        kit.note("skipped", str(e))
    except Exception as e:
        kit.note("error", first_line(e))
        return 1
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("part", choices=PARTS)
    add("--device", required=True)
    add("--tiny", action="store_true")
    add("--seed", type=int, default=0)
    add("--found", type=Path, required=True)
    add("--seconds", type=int, default=600)
    add("--cases", type=json.loads)  # for each process of the training loop
    args = parser.parse_args()
    limit_kernels()  # as on the command line
    if args.device == "cpu":
        torch.set_num_threads(1)
    kit = Kit(args.device, args.tiny, args.seed, args.found, args.seconds)
    if not args.cases:
        sys.exit(run_part(PARTS[args.part], kit))
    kit.device = pick_device(args.device)
    worker(kit, [Case(*case) for case in args.cases], args.found)


if __name__ == "__main__":
    main()
