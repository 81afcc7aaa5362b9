#!/usr/bin/env python
"""What one to eight GPUs do with this code: one command, some ten minutes.

    make bench-gpu                                       or, with its options:
    python benchmarks/gpu.py --only train decode         some parts: to repeat those that failed, say
    python benchmarks/gpu.py --device cpu --tiny         tries the kit without a GPU, in one to two minutes

matmul: the rate of matrix products at the model's shapes.
train: tokens per second and peak memory of the paper's base and big model, eager and compiled, beside torch.nn.Transformer and Hugging
Face's Marian in one interleaved run.
loop: the loop that `annotated-transformer train` runs, how often the host waits for the GPU in it, and which attention kernels it calls.
decode: greedy and beam search, 64 sentences at a time and one by one, beside Hugging Face's generate with the same weights and equal work.
scaling: DDP over 1, 2, 4 and 8 devices.
sharding: FSDP, built slice by slice, compared with DDP.
resume: killed and resumed runs compared with undisturbed ones, and gradients over processes (exactness.py, over NCCL).

Each part runs in a process of its own, with a time limit, and writes results/gpu_PART.json. A part that fails or reaches its limit
keeps what it had measured, and the others go on. With --tiny the records are in runs/gpu_tiny. `make smoke-gpu` comes first: it asks in two
minutes whether the results are right.
"""

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import decode as decoding
import numpy as np
import torch
import torch.nn.functional as F
from measuring import (
    ROOT,
    Ids,
    in_turn,
    kill_all,
    matmul_rate,
    middle,
    random_pairs,
    seconds,
    write,
)
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from train import (
    DTYPES,
    PEERS,
    Ours,
    batches,
    contender,
    race,
    random_lengths,
    train_on,
)

from annotated_transformer.cli.main import limit_kernels
from annotated_transformer.data.batch import Step, training_steps
from annotated_transformer.engines.choose import FAST
from annotated_transformer.engines.fused_attention import FusedMultiHeadAttention
from annotated_transformer.engines.prefetch import prefetch
from annotated_transformer.model.config import RECIPES, ModelConfig, Recipe, TrainConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import Run
from annotated_transformer.runs.recipe import build_training, precision_context
from annotated_transformer.training import distributed

sys.path.append(str(ROOT / "tools"))
import record  # noqa: E402


class Kit:
    "The setting of one part, and its results, which are written down one by one."

    def __init__(self, device: torch.device, tiny: bool, found: Path):
        self.device, self.tiny, self.found = device, tiny, found
        self.results: dict[str, object] = {}
        self.on_cuda = device.type == "cuda"
        cuda, native, memory = torch.cuda, True, 0.0
        if self.on_cuda:
            native = cuda.is_bf16_supported(including_emulation=False)
            memory = cuda.get_device_properties(device).total_memory / 1e9
        # on a CPU, processes stand for GPUs
        self.n_devices = cuda.device_count() if self.on_cuda else 2
        self.precision = "bf16" if native else "fp32"
        # of a step on one device: the paper's, or less where memory is small
        self.step_tokens = 25_000 if memory > 38 else 8192 if memory > 14 else 4096
        self.n_vocab = 37_000  # §5.1
        self.sizes = {name: RECIPES[name].model for name in ("base", "big")}
        if tiny:
            self.step_tokens, self.n_vocab = 200, 300
            small = ModelConfig(n_layers=1, d_model=32, d_ff=128, n_heads=4)
            self.sizes = dict.fromkeys(self.sizes, small)

    def note(self, name: str, value: object) -> None:
        "Keep a result: in the file at once, and on the terminal."
        self.results[name] = value
        write(self.found, self.results)
        print(f"  {name}: {json.dumps(value)}", flush=True)

    def megabytes(self) -> float:
        "What tensors have now, after freeing what is not used; 0 on a CPU."
        gc.collect()
        if not self.on_cuda:
            return 0.0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20

    def peak_mb(self, before: float = 0.0) -> int:
        "The most since `megabytes`, beyond what there was before; 0 on a CPU."
        peak = torch.cuda.max_memory_allocated() if self.on_cuda else 0
        return round(peak / 2**20 - before)


def made_of(makers: dict[str, Callable[[], object]]) -> dict:
    "Every contender that can be had; a line for each other."
    made = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except Exception as e:  # not installed, no memory, a compiler that fails
            why = f"{type(e).__name__}: {e}".partition("\n")[0]
            print(f"  {name} is left out: {why}", flush=True)
    return made


# ---- matrix products


def matmul(kit: Kit) -> None:
    "The measured rate of matrix products, at the model's shapes and at a large one."
    n, chunk = kit.step_tokens, 2**26 // kit.n_vocab  # rows of the logits at a time
    shapes = {"square": 3 * (256 if kit.tiny else 8192,)}
    for size, m in kit.sizes.items():
        d = m.d_model
        shapes |= {
            f"{size}, queries, keys and values": (n, d, 3 * d),
            f"{size}, output of attention": (n, d, d),
            f"{size}, feed-forward, first": (n, d, m.d_ff),
            f"{size}, feed-forward, second": (n, m.d_ff, d),
            f"{size}, gradient of the first": (d, n, m.d_ff),
            f"{size}, logits": (min(n, chunk), d, kit.n_vocab),
        }
    for name, shape in shapes.items():
        rate = matmul_rate(*shape, DTYPES[kit.precision], kit.device)
        kit.note(name, {"shape": shape, "gflops": round(rate / 1e9, 1)})


# ---- training compared with peers

KINDS = {"ours": Ours} | {
    name: kind for name, kind in PEERS.items() if name != "the same, eager"
}
COMPILED = ", compiled"


def trained(kit: Kit, name: str, m: ModelConfig, some: list) -> tuple:
    "A contender that has done its first steps, its optimiser, and what they took."
    kind, before = KINDS[name.removesuffix(COMPILED)], kit.megabytes()
    autocast = precision_context(kit.precision, kit.device)
    module, optimizer = contender(kind, m, kit.n_vocab, str(kit.device))
    if name.endswith(COMPILED):
        # ours as the recipe does; a peer with its loss
        (module.model if kind is Ours else module).compile(dynamic=True)
    first = train_on(module, optimizer, some, autocast)
    kit.megabytes()  # a compiler tries several kernels
    train_on(module, optimizer, some, autocast)
    facts = {"first_steps_s": round(first, 2), "peak_mb": kit.peak_mb(before)}
    return module, optimizer, facts


def train(kit: Kit) -> None:
    "Tokens per second and the share of the rate of matrix products, compared with peers."
    autocast = precision_context(kit.precision, kit.device)
    for size, m in kit.sizes.items():
        some = batches(2 if kit.tiny else 8, kit.step_tokens, kit.n_vocab)
        some = [tuple(t.to(kit.device) for t in batch) for batch in some]
        compiled = KINDS if size == "base" else ["ours"]
        names = [*KINDS, *(name + COMPILED for name in compiled)]
        made = made_of({n: partial(trained, kit, n, m, some[:2]) for n in names})
        pairs = {name: (module, adam) for name, (module, adam, _) in made.items()}
        shape = kit.step_tokens, m.d_model, m.d_ff  # the first feed-forward layer's
        mm = partial(matmul_rate, *shape, DTYPES[kit.precision], kit.device)
        n_rounds = 2 if kit.tiny else 5
        found = race(pairs, some, autocast, m, kit.n_vocab, mm, n_rounds)
        contenders = {name: found.pop(name) | made[name][2] for name in made}
        kit.note(size, {"contenders": contenders, **found})
        del made, pairs
        torch._dynamo.reset()


# ---- translating, compared with Hugging Face's generate


class HuggingFaceBf16(decoding.HuggingFace):
    precision = "bf16"


TRANSLATORS = {
    "fp32": {"ours": decoding.Ours, "Hugging Face": decoding.HuggingFace},
    "bf16": {"ours": decoding.OursBf16, "Hugging Face": HuggingFaceBf16},
}


def untrained(kit: Kit, m: ModelConfig) -> Run:
    """A model that never predicts EOS: its logit is 0, others are positive.

    Every sentence therefore gets as many tokens as it may have, from every contender.
    """
    torch.manual_seed(0)
    model = build_transformer(m, kit.n_vocab, 0, attention=FAST.attention).eval()
    with torch.no_grad():
        model.embedding.weight[Ids.eos_id] = 0
    return Run(model, Ids(kit.n_vocab), Recipe(m, TrainConfig()), {})


def translate(kit: Kit, made: dict, batches: list, beam: int) -> dict:
    "Medians over rounds; equal translations can be expected in fp32 only."
    prepared = {name: list(map(one.prepare, batches)) for name, one in made.items()}
    ids, taken = {}, []

    def decode_all(name: str) -> None:
        found = [made[name].decode(batch, beam) for batch in prepared[name]]
        ids[name] = [row for some in found for row in made[name].ids(some)]

    for name in made:
        decode_all(name)  # warms up
    for turn in range(1 if kit.tiny else 3):
        order = in_turn(made, turn)
        taken.append({name: seconds(partial(decode_all, name)) for name in order})
    n = len(ids["ours"])
    n_tokens = sum(map(len, ids["ours"]))
    return {
        name: {
            "sentences_per_s": middle(n / r[name] for r in taken),
            "tokens_per_s": middle(n_tokens / r[name] for r in taken),
            "ours_is_faster_by": middle(r[name] / r["ours"] for r in taken),
            "same_as_ours": sum(map(list.__eq__, ids[name], ids["ours"])) / n,
        }
        for name in made
    }


def decode(kit: Kit) -> None:
    "Greedy and beam search, each beside Hugging Face's generate, with equal work."
    rng = random.Random(0)
    # equally long, so that a batch has one limit for all of its sentences
    n, length = (4, 3) if kit.tiny else (256, 25)
    rows = [[rng.randrange(4, kit.n_vocab) for _ in range(length)] for _ in range(n)]
    options = argparse.Namespace(device=str(kit.device), threads=1, run=None)
    cases = [("base", "fp32"), ("base", kit.precision), ("big", kit.precision)]
    for size, precision in dict.fromkeys(cases):
        make = lambda kind, m=kit.sizes[size]: kind(untrained(kit, m), options)
        kinds, found = TRANSLATORS[precision], {}
        made = made_of({name: partial(make, kind) for name, kind in kinds.items()})
        for setting, (beam, together) in decoding.SETTINGS.items():
            groups = decoding.batches_of(rows, together, 1 if kit.tiny else 8)
            batches = [[rows[i] for i in group] for group in groups]
            found[setting] = translate(kit, made, batches, beam)
        kit.note(f"{size}, {precision}", found)


# ---- the training loop, on one device and on all

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
# steps before the clock starts, and timed ones; multiples of 10, as steps are reported
WARM, TIMED = 10, 30
KERNELS = "CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"
CUDNN_FIRST = [getattr(SDPBackend, name) for name in KERNELS]


def cudnn_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    "PyTorch's attention by cuDNN, which the package avoids, wherever cuDNN can."
    with sdpa_kernel(CUDNN_FIRST, set_priority=True):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


CUDNN = FAST._replace(
    attention=partial(FusedMultiHeadAttention, attend=cudnn_attention)
)


class Case(NamedTuple):
    "One training: what it trains, and how."

    name: str
    size: str  # "base" or "big"
    tokens: int  # of a step, over all devices
    sharded: bool = False
    compiled: bool = False
    cudnn: bool = False
    watched: bool = False  # count how often the host waits, and name the kernels


def host_waits(go: Callable[[], object]) -> dict[str, int]:
    "How often the host waits for the GPU while `go` runs, by line."
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        go()
    torch.cuda.set_sync_debug_mode("default")
    found = [w for w in caught if "synchronizing" in str(w.message)]
    return Counter(f"{Path(w.filename).name}:{w.lineno}" for w in found)


def attention_kernels(go: Callable[[], object]) -> dict[str, int]:
    "Which of PyTorch's fused kernels of attention `go` calls, and how often."
    with torch.profiler.profile() as watched:
        go()
    counts = {e.key.removeprefix("aten::"): e.count for e in watched.key_averages()}
    return {k: n for k, n in counts.items() if k.startswith("_scaled_dot_product")}


class Training:
    "A case as a process trains it."

    def __init__(self, kit: Kit, case: Case):
        self.kit, self.case, self.settings = kit, case, RECIPES[case.size].train
        n_pairs = 2000 if kit.tiny else 200_000
        lengths = random_lengths(np.random.default_rng(0), n_pairs)
        self.pairs = random_pairs(lengths, kit.n_vocab)
        more = {"precision": kit.precision, "compile": case.compiled}
        kit.megabytes()
        _, self.parallel, self.optimizer, self.schedule = build_training(
            Recipe(kit.sizes[case.size], replace(self.settings, **more)),
            Ids(kit.n_vocab),
            kit.device,
            sharded=case.sharded,
            engines=CUDNN if case.cudnn else FAST,
        )
        self.peak_while_built = kit.peak_mb()

    def steps(self) -> Iterator[Step]:
        return training_steps(
            self.pairs,
            Ids(self.kit.n_vocab),
            self.case.tokens,
            seed=0,
            rank=distributed.rank(),
            world_size=distributed.world_size(),
        )

    def run(self, n: int) -> dict[int, float]:
        "So many steps as `annotated-transformer train` does them: when each was reported."
        at: dict[int, float] = {}
        steps = prefetch(self.steps(), self.kit.device)
        note = lambda record: at.update({record.step: record.seconds})
        training = self.optimizer, self.schedule, n, [note], self.settings.clip_norm
        FAST.train(self.parallel, steps, *training)
        return at

    def measure(self) -> dict:
        self.run(WARM)
        self.kit.megabytes()
        at = self.run(WARM + TIMED)
        took = at[WARM + TIMED] - at[WARM]
        timed = islice(self.steps(), WARM, WARM + TIMED)
        found = {
            "step_ms": round(1e3 * took / TIMED, 2),
            "tokens_per_s": round(sum(step.n_tokens for step in timed) / took),
            "peak_mb": self.kit.peak_mb(),
            "peak_while_built_mb": self.peak_while_built,
        }
        if self.case.watched:
            found["attention_in_2_steps"] = attention_kernels(partial(self.run, 2))
            if self.kit.on_cuda:
                found["host_waits_in_20_steps"] = host_waits(partial(self.run, 20))
        return found


def worker(kit: Kit, cases: list[Case]) -> None:
    "All cases, one after the other; rank 0 writes down what it found after each."
    results: dict[str, dict] = {}
    with distributed.process_group(kit.device):
        for case in cases:
            results[case.name] = Training(kit, case).measure()
            torch._dynamo.reset()
            if distributed.is_main():
                write(kit.found, results)


def run_ranks(kit: Kit, n: int, cases: list[Case]) -> dict[str, dict]:
    "What so many processes found of each case; noted."
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [sys.executable, *([*TORCHRUN, str(n)] if n > 1 else []), __file__]
        command += ["--found", str(found), "--device", kit.device.type]
        command += ["--cases", json.dumps(cases)]
        status = subprocess.run(command + ["--tiny"] * kit.tiny).returncode
        results = json.loads(found.read_text()) if found.exists() else {}
    kit.note(f"{n} devices" if n > 1 else "1 device", results)
    if status:
        raise SystemExit(f"{n} processes ended with status {status}")
    return results


def loop(kit: Kit) -> None:
    "The whole training loop on one device: prefetching, the gradient norm, reports."
    case = Case("base", "base", kit.step_tokens, watched=True)
    compiled = case._replace(name="base, compiled", compiled=True)
    cudnn = case._replace(name="base, cuDNN attention", cudnn=True)
    run_ranks(kit, 1, [case, cudnn, compiled])


def scaling(kit: Kit) -> None:
    "DDP: weak scaling (equal work on each device), strong scaling (one step divided)."
    one, efficiency = 0.0, {}
    for n in (n for n in (1, 2, 4, 8) if n <= kit.n_devices):
        weak = Case("weak scaling", "base", n * kit.step_tokens)
        strong = Case("strong scaling", "base", kit.step_tokens)
        for name, r in run_ranks(kit, n, [weak, strong][:n]).items():
            one = one or r["tokens_per_s"]
            efficiency[f"{name}, {n}"] = round(r["tokens_per_s"] / one / n, 3)
    kit.note("efficiency", efficiency)


def sharding(kit: Kit) -> None:
    "DDP and FSDP for the big model: time, memory, and building it slice by slice."
    tokens = kit.n_devices * kit.step_tokens // (1 if kit.tiny else 2)
    whole = Case("whole on each device", "big", tokens)
    run_ranks(kit, kit.n_devices, [whole, Case("sharded", "big", tokens, sharded=True)])


# ---- killed and resumed


def resume(kit: Kit) -> None:
    "What exactness.py asks, over NCCL: equal bits where two runs left alone have them."
    n = 1 if kit.tiny else min(2, kit.n_devices)
    parts = ["resume"] if kit.tiny else ["alone", "resume", "kills", "gradients"]
    order = ["--only", *parts, "--kills", 3, "--steps", 20 if kit.tiny else 200]
    order += ["--device", kit.device.type, "--processes", n, "--out", kit.found]
    file = Path(__file__).with_name("exactness.py")
    status = subprocess.run([sys.executable, file, *map(str, order)]).returncode
    kit.results |= json.loads(kit.found.read_text(encoding="utf-8"))
    kit.note("processes", n)
    if status:
        raise SystemExit("not all facts hold")


# ---- each part in a process of its own

PARTS = {  # and their time limits in seconds
    "matmul": (matmul, 60),
    "train": (train, 480),
    "loop": (loop, 180),
    "decode": (decode, 180),
    "scaling": (scaling, 180),
    "sharding": (sharding, 120),
    "resume": (resume, 300),
}


def run_part(name: str, args: argparse.Namespace) -> str:
    "Run a part and write its record, unless it found nothing; how it ended."
    limit, began = PARTS[name][1], time.monotonic()
    print(f"\n{name} (at most {limit} s)", flush=True)
    order = ["--only", name, "--device", args.device] + ["--tiny"] * args.tiny
    with tempfile.TemporaryDirectory() as folder:
        found, env = Path(folder) / "found.json", os.environ | {"TMPDIR": folder}
        command = [sys.executable, __file__, *order, "--found", found]
        process = subprocess.Popen(command, env=env)
        try:
            status = process.wait(limit)
            ended = "complete" if status == 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            ended = f"stopped at its limit of {limit} s"
        finally:
            if process.poll() is None:
                kill_all(process)
                process.wait()
        results = json.loads(found.read_text("utf-8")) if found.exists() else {}
    if results:
        made = record.about(f"python benchmarks/gpu.py {' '.join(order)}", seed=0)
        made["versions"]["cuda"] = torch.version.cuda
        taken = round(time.monotonic() - began, 1)
        made |= {"tiny": args.tiny, "ended": ended, "seconds": taken}
        record.write(args.out / f"gpu_{name}.json", made | {"found": results})
    return ended


def in_process(args: argparse.Namespace) -> None:
    "What this process of a part does: the part, or its cases of training."
    limit_kernels()  # as on the command line
    if args.device == "cpu":
        torch.set_num_threads(1)
    if args.tiny:
        torch.compiler.set_stance("force_eager")  # it takes minutes to compile
    kit = Kit(distributed.pick_device(args.device), args.tiny, args.found)
    if args.cases:
        return worker(kit, [Case(*case) for case in args.cases])
    kit.note("precision", kit.precision)
    kit.note("tokens_per_step_and_device", kit.step_tokens)
    PARTS[args.only[0]][0](kit)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    add("--device", default="cuda", choices=["cuda", "cpu"])
    add("--tiny", action="store_true", help="tiny models, few steps")
    add("--out", type=Path, help="folder of the records")
    add("--found", type=Path, help=argparse.SUPPRESS)  # of the process of a part
    add("--cases", type=json.loads, help=argparse.SUPPRESS)  # and of each device
    args = parser.parse_args()
    if args.found:
        return in_process(args)
    if args.device == "cuda" and not torch.cuda.is_available():
        how = "To try the kit without one:  make bench-gpu DEVICE=cpu TINY=1"
        raise SystemExit(f"PyTorch finds no CUDA device here. {how}")
    if args.device == "cpu" and not args.tiny:
        raise SystemExit("on a CPU only --tiny: the models are too large for it")
    args.out = args.out or ROOT / ("runs/gpu_tiny" if args.tiny else "results")
    ends = {name: run_part(name, args) for name in args.only}
    print(*("\n" + f"{name:10}{ended}" for name, ended in ends.items()), sep="")
    print(f"records: gpu_*.json in {args.out}")
    if again := [name for name, ended in ends.items() if ended != "complete"]:
        raise SystemExit(f'to repeat them: make bench-gpu ONLY="{" ".join(again)}"')


if __name__ == "__main__":
    main()
