#!/usr/bin/env python
"""What one to eight GPUs do with this code: one command, some ten minutes.

    make bench-gpu                                       or, with its options:
    python benchmarks/gpu.py --only train decode         some parts: to repeat those that failed, say
    python benchmarks/gpu.py --device cpu                tries the kit without a GPU, with tiny models in two minutes

matmul: the rate of matrix products at the model's shapes.
train: the paper's models, eager and compiled, beside torch.nn.Transformer and Hugging Face's Marian, in one interleaved run.
loop: the loop that `annotated-transformer train` runs, how often the host waits in it, and which attention kernels it calls.
decode: greedy and beam search beside Hugging Face's generate with the same weights and equal work.
scaling: DDP over 1, 2, 4 and 8 devices. sharding: FSDP beside DDP, and what is in memory while the model is built.
resume: a run that is interrupted and resumed over NCCL beside runs that nothing disturbs, with deterministic algorithms.
systems: the time of a training step by length, for the Transformer and the systems of §2 at equal parameters (notebook 20b).

Each part runs in a process of its own, with a time limit, and writes results/gpu_PART.json (cpu: in runs/gpu_tiny). One that fails or
reaches its limit keeps what it had measured, and the others go on. `make smoke-gpu` comes first: are the results right?
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import decode as decoding
import measuring
import numpy as np
import systems as compared
import torch
import train as training
from measuring import Ids
from safetensors.torch import load_file

from annotated_transformer.cli.main import limit_kernels
from annotated_transformer.data.batch import training_steps
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.engines.choose import FAST
from annotated_transformer.engines.prefetch import prefetch
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import Run, read_config
from annotated_transformer.runs.recipe import build_training, precision_context
from annotated_transformer.runs.settings import (
    RECIPES,
    Recipe,
    get_recipe,
    override,
)
from annotated_transformer.runs.train_run import RunOptions, prepare_run, resume_run
from annotated_transformer.training import distributed
from annotated_transformer.training.train import train as loop_of_a_run

sys.path.append(str(measuring.ROOT / "tools"))
import record  # noqa: E402


class Kit:
    "The setting of one part, and its results, which are written down one by one."

    def __init__(self, device: torch.device, found: Path):
        self.device, self.found, self.tiny = device, found, device.type == "cpu"
        self.results: dict[str, object] = {}
        if self.tiny:
            small = ModelConfig(n_layers=1, d_model=32, d_ff=128, n_heads=4)
            self.sizes = {"base": small, "big": small}
            self.n_devices, self.precision = 2, "fp32"  # processes stand for GPUs
            self.step_tokens, self.n_vocab = 200, 300
            return
        self.sizes = {name: RECIPES[name].model for name in ("base", "big")}
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        self.n_devices = torch.cuda.device_count()
        self.precision = "bf16" if native else "fp32"
        # of a step on one device: the paper's, or less where memory is small
        memory = torch.cuda.get_device_properties(device).total_memory / 1e9
        self.step_tokens = 25_000 if memory > 38 else 8192 if memory > 14 else 4096
        self.n_vocab = 37_000  # §5.1

    def note(self, name: str, value: object) -> None:
        "Keep a result: in the file at once, and on the terminal."
        self.results[name] = value
        measuring.write(self.found, self.results)
        print(f"  {name}: {json.dumps(value)}", flush=True)

    def megabytes(self) -> float:
        "What tensors have now, after freeing what is not used; 0 on a CPU."
        gc.collect()
        if self.tiny:
            return 0.0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20

    def peak_mb(self, before: float = 0.0) -> int:
        "The most since `megabytes`, beyond what there was before; 0 on a CPU."
        peak = 0 if self.tiny else torch.cuda.max_memory_allocated()
        return round(peak / 2**20 - before)


def matmul(kit: Kit) -> None:
    "The measured rate of matrix products, at the model's shapes and at a large one."
    n, chunk = kit.step_tokens, 2**26 // kit.n_vocab  # rows of the logits at a time
    shapes = {"square": 3 * (256 if kit.tiny else 8192,)}
    for size, m in kit.sizes.items():
        shapes[f"{size}, projections"] = n, m.d_model, 3 * m.d_model
        shapes[f"{size}, feed-forward"] = n, m.d_model, m.d_ff
        shapes[f"{size}, logits"] = min(n, chunk), m.d_model, kit.n_vocab
    for name, shape in shapes.items():
        rate = measuring.matmul_rate(*shape, training.DTYPES[kit.precision], kit.device)
        kit.note(name, {"shape": shape, "gflops": round(rate / 1e9, 1)})


# ---- training compared with peers

KINDS = {"ours": training.Ours} | {
    name: kind for name, kind in training.PEERS.items() if name != "the same, eager"
}
COMPILED = ", compiled"


def trained(kit: Kit, name: str, m: ModelConfig, some: list) -> tuple:
    "A contender that has done its first steps, its optimiser, and what they took."
    kind, before = KINDS[name.removesuffix(COMPILED)], kit.megabytes()
    autocast = precision_context(kit.precision, kit.device)
    module, optimizer = training.contender(kind, m, kit.n_vocab, str(kit.device))
    if name.endswith(COMPILED):
        # ours as the recipe does; a peer with its loss
        (module.model if kind is training.Ours else module).compile(dynamic=True)
    first = training.train_on(module, optimizer, some, autocast)
    kit.megabytes()  # a compiler tries several kernels
    training.train_on(module, optimizer, some, autocast)
    facts = {"first_steps_s": round(first, 2), "peak_mb": kit.peak_mb(before)}
    return module, optimizer, facts


def train(kit: Kit) -> None:
    "Tokens per second and the share of the rate of matrix products, compared with peers."
    autocast = precision_context(kit.precision, kit.device)
    for size, m in kit.sizes.items():
        some = training.batches(2 if kit.tiny else 8, kit.step_tokens, kit.n_vocab)
        some = [tuple(t.to(kit.device) for t in batch) for batch in some]
        compiled = KINDS if size == "base" else ["ours"]
        names = [*KINDS, *(name + COMPILED for name in compiled)]
        made = measuring.made_of(
            {n: partial(trained, kit, n, m, some[:2]) for n in names}
        )
        pairs = {name: (module, adam) for name, (module, adam, _) in made.items()}
        shape = kit.step_tokens, m.d_model, m.d_ff  # the first feed-forward layer's
        mm = partial(
            measuring.matmul_rate, *shape, training.DTYPES[kit.precision], kit.device
        )
        n_rounds = 2 if kit.tiny else 5
        found = training.race(pairs, some, autocast, m, kit.n_vocab, mm, n_rounds)
        contenders = {name: found.pop(name) | made[name][2] for name in made}
        kit.note(size, {"contenders": contenders, **found})
        del made, pairs
        torch._dynamo.reset()


# ---- translating, compared with Hugging Face's generate


def untrained(kit: Kit, m: ModelConfig) -> Run:
    """A model that never predicts EOS or padding: their logits are 0, others positive.

    Every sentence therefore gets as many tokens as it may have, from every contender.
    """
    torch.manual_seed(0)
    model = build_transformer(m, kit.n_vocab, 0, attention=FAST.attention).eval()
    with torch.no_grad():
        model.embedding.weight[[Ids.pad_id, Ids.eos_id]] = 0
    return Run(model, Ids(kit.n_vocab), Recipe(m, RECIPES["base"].train), {})


def translate(kit: Kit, made: dict, batches: list, beam: int) -> dict:
    "Medians over measuring.rounds; equal translations can be expected in fp32 only."
    prepared = {name: list(map(one.prepare, batches)) for name, one in made.items()}
    ids: dict[str, list] = {}

    def decode_all(name: str) -> None:
        found = [made[name].decode(batch, beam) for batch in prepared[name]]
        ids[name] = [row for some in found for row in made[name].ids(some)]

    actions = {name: partial(decode_all, name) for name in made}
    taken = measuring.rounds(actions, 2 if kit.tiny else 4)[1:]  # the first warms up
    n = len(ids["ours"])
    return {
        name: {
            "sentences_per_s": measuring.middle(n / r[name] for r in taken),
            "ours_is_faster_by": measuring.middle(r[name] / r["ours"] for r in taken),
            "same_as_ours": sum(map(list.__eq__, ids[name], ids["ours"])) / n,
        }
        for name in made
    }


def decode(kit: Kit) -> None:
    "Greedy and beam search, each beside Hugging Face's generate, with equal work."
    # equally long, so that a batch has one limit for all of its sentences
    n, length = (4, 3) if kit.tiny else (256, 25)
    rng = np.random.default_rng(0)
    rows = rng.integers(4, kit.n_vocab, (n, length)).tolist()
    kinds = {"ours": decoding.Ours, "Hugging Face": decoding.HuggingFace}
    options = argparse.Namespace(device=str(kit.device), threads=1, run=None)
    cases = [("base", "fp32"), ("base", "bf16"), ("big", kit.precision)]
    for size, precision in cases:
        makers, found = {}, {}
        for name, kind in kinds.items():
            of_precision = type(name, (kind,), {"precision": precision})
            run = untrained(kit, kit.sizes[size])  # becomes the contender's own
            makers[name] = partial(of_precision, run, options)
        made = measuring.made_of(makers)
        for setting, (beam, together) in decoding.SETTINGS.items():
            groups = decoding.batches_of(rows, together, 1 if kit.tiny else 8)
            batches = [[rows[i] for i in group] for group in groups]
            found[setting] = translate(kit, made, batches, beam)
        kit.note(f"{size}, {precision}", found)


# ---- the training loop, on one device and on all

WARM = 10  # steps before the clock starts: a multiple of 10, when steps are reported


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


def measure(
    kit: Kit,
    size: str,  # "base" or "big"
    tokens: int,  # of a step, over all devices
    sharded: bool = False,
    compiled: bool = False,
) -> dict:
    "Speed and memory of a training, as `annotated-transformer train` runs it."
    more = {"precision": kit.precision, "compile": compiled}
    recipe = Recipe(kit.sizes[size], replace(RECIPES[size].train, **more))
    n = 2000 if kit.tiny else 200_000
    lengths = training.random_lengths(np.random.default_rng(0), n)
    pairs = measuring.random_pairs(lengths, kit.n_vocab)
    vocab = Ids(kit.n_vocab)
    kit.megabytes()
    _, parallel, optimizer, schedule = build_training(
        recipe, vocab, kit.device, sharded=sharded
    )
    built = kit.peak_mb()
    place = {"rank": distributed.rank(), "world_size": distributed.world_size()}
    steps = lambda: training_steps(pairs, vocab, tokens, seed=0, **place)

    def run(n: int) -> dict[int, float]:
        "So many steps, from the first on: when each was reported."
        at, seconds = {}, 0.0
        ahead = prefetch(steps(), kit.device)
        more = {"clip_norm": recipe.train.clip_norm, "report_every": 10}
        for done in loop_of_a_run(parallel, ahead, optimizer, schedule, n, **more):
            seconds += done.seconds
            at[done.step] = seconds
        return at

    run(WARM)
    kit.megabytes()
    n = 10 if kit.tiny else 30
    at, timed = run(WARM + n), islice(steps(), WARM, WARM + n)
    taken = at[WARM + n] - at[WARM]
    found = {
        "step_ms": round(1e3 * taken / n, 2),
        "tokens_per_s": round(sum(step.n_tokens for step in timed) / taken),
        "peak_mb": kit.peak_mb(),
        "peak_while_built_mb": built,
    }
    if not kit.tiny:
        found["host_waits_in_20_steps"] = host_waits(partial(run, 20))
    if distributed.world_size() == 1:
        found["attention_in_2_steps"] = attention_kernels(partial(run, 2))
    return found


def measure_all(kit: Kit, cases: dict[str, dict]) -> None:
    "In each process of `run_ranks`; rank 0 writes down what it found after each case."
    results: dict[str, dict] = {}
    with distributed.process_group(kit.device):
        for name, case in cases.items():
            results[name] = measure(kit, **case)
            if distributed.is_main():
                measuring.write(kit.found, results)


def run_ranks(kit: Kit, n: int, cases: dict[str, dict]) -> dict[str, dict]:
    "What so many processes found of each case; noted."
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        command = [*measuring.TORCHRUN, str(n)] if n > 1 else [sys.executable]
        command += [__file__, "--found", str(found), "--device", kit.device.type]
        command += ["--cases", json.dumps(cases)]
        status = subprocess.run(command).returncode
        results = json.loads(found.read_text()) if found.exists() else {}
    kit.note(f"{n} devices" if n > 1 else "1 device", results)
    if status:
        raise SystemExit(f"{n} processes ended with status {status}")
    return results


def loop(kit: Kit) -> None:
    "The whole training loop on one device: prefetching, the gradient norm, reports."
    base = {"size": "base", "tokens": kit.step_tokens}
    run_ranks(kit, 1, {"base": base, "compiled": base | {"compiled": True}})


def scaling(kit: Kit) -> None:
    "DDP: weak scaling (equal work on each device), strong scaling (one step divided)."
    one, efficiency = 0.0, {}
    for n in (n for n in (1, 2, 4, 8) if n <= kit.n_devices):
        cases = {"weak scaling": {"size": "base", "tokens": n * kit.step_tokens}}
        if n > 1:
            cases["strong scaling"] = {"size": "base", "tokens": kit.step_tokens}
        for name, r in run_ranks(kit, n, cases).items():
            one = one or r["tokens_per_s"]
            efficiency[f"{name}, {n}"] = round(r["tokens_per_s"] / one / n, 3)
    kit.note("efficiency", efficiency)


def sharding(kit: Kit) -> None:
    "DDP and FSDP for the big model: time, memory, and building it slice by slice."
    tokens = kit.n_devices * kit.step_tokens // (1 if kit.tiny else 2)
    whole = {"size": "big", "tokens": tokens}
    cases = {"whole on each device": whole, "sharded": whole | {"sharded": True}}
    run_ranks(kit, kit.n_devices, cases)


def resume(kit: Kit) -> None:
    "An interrupted run that is resumed, beside two that nothing disturbs: no further off than these are."
    n, every = 20 if kit.tiny else 200, 5 if kit.tiny else 50
    small = f"vocab_size=500 dropout=0.1 max_steps={n} save_every={every} valid_every={every}"
    recipe = override(get_recipe("tiny"), small.split())
    corpus = load_corpus("builtin", n_train=1000, n_valid=100, n_test=1)
    with tempfile.TemporaryDirectory() as folder:
        names = "first", "again", "resumed"
        first, again, resumed = (Path(folder) / name for name in names)
        for run in (first, again, resumed):
            prepare_run(corpus, recipe, run, quiet=True)
        for run, stop in ((first, 0), (again, 0), (resumed, n // 2 + 1), (resumed, 0)):
            order = [*measuring.TORCHRUN, str(min(2, kit.n_devices)), __file__]
            order += ["--device", kit.device.type, "--found", str(kit.found)]
            order += ["--until", str(run), str(stop)]
            env = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
            subprocess.run(order, check=True, env=env)
            kit.note(f"{run.name}, ended", read_config(run)[1]["stopped"])
        off = {run.name: difference(run, first) for run in (again, resumed)}
    kit.note("largest relative difference of a weight", off)
    if not off[resumed.name] <= 10 * off[again.name]:
        raise SystemExit("the resumed run is not what the undisturbed one is")


def train_until(run: str, stop: str, device: str) -> None:
    "In each process of `resume`: train, and end at step `stop`, if it is not 0."
    torch.use_deterministic_algorithms(True, warn_only=True)
    reason = lambda done: "interrupted" if done.step == int(stop) else None
    options = RunOptions(device, on_record=reason, quiet=True, report_every=1)
    resume_run(Path(run), options)


def difference(run: Path, other: Path) -> float:
    "The largest ‖a − b‖ / ‖b‖ of their weights."
    ours, theirs = (load_file(path / "model.safetensors") for path in (run, other))
    return max(((ours[k] - w).norm() / w.norm()).item() for k, w in theirs.items())


def systems(kit: Kit) -> None:
    "The time of a training step by length, for the systems of §2 and the Transformer."
    lengths = compared.LENGTHS[: 2 if kit.tiny else None]
    kit.note("lengths", lengths)
    kit.note("chains", compared.chains(lengths))
    ms = compared.milliseconds(lengths, 2 if kit.tiny else 9, kit.device)
    kit.note(f"ms, {kit.device.type}", ms)


# ---- each part in a process of its own

ALL = matmul, train, loop, decode, scaling, sharding, resume, systems
PARTS = {part.__name__: part for part in ALL}
LIMIT = 400  # seconds of a part


def run_part(name: str, args: argparse.Namespace) -> str:
    "Run a part and write its record, unless it found nothing; how it ended."
    print(f"\n{name} (at most {LIMIT} s)", flush=True)
    order = ["--only", name, "--device", args.device]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found.json"
        process = subprocess.Popen([sys.executable, __file__, *order, "--found", found])
        try:
            status = process.wait(LIMIT)
            ended = "complete" if status == 0 else f"exit status {status}"
        except subprocess.TimeoutExpired:
            ended = f"stopped at its limit of {LIMIT} s"
        finally:
            if process.poll() is None:
                measuring.kill_all(process)
                process.wait()
        results = json.loads(found.read_text("utf-8")) if found.exists() else {}
    if results:
        about = record.about(f"python benchmarks/gpu.py {' '.join(order)}", seed=0)
        about["versions"]["cuda"] = torch.version.cuda
        about |= {"tiny": args.device == "cpu", "ended": ended, "found": results}
        record.write(args.out / f"gpu_{name}.json", about)
    return ended


def in_process(args: argparse.Namespace) -> None:
    "What a process of a part does: the part, or its cases of training."
    limit_kernels()  # as on the command line
    if args.device == "cpu":
        torch.set_num_threads(1)
        os.environ["TORCH_COMPILE_DISABLE"] = "1"  # compiling takes minutes
    if args.until:
        return train_until(*args.until, args.device)
    kit = Kit(distributed.pick_device(args.device), args.found)
    if args.cases:
        return measure_all(kit, args.cases)
    kit.note("precision", kit.precision)
    kit.note("tokens_per_step_and_device", kit.step_tokens)
    PARTS[args.only[0]](kit)


def main() -> None:
    parser = measuring.options(__doc__)
    add = parser.add_argument
    add("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    add("--device", default="cuda", choices=["cuda", "cpu"])
    add("--found", type=Path, help=argparse.SUPPRESS)  # of the process of a part
    add("--cases", type=json.loads, help=argparse.SUPPRESS)  # and of each device
    add("--until", nargs=2, help=argparse.SUPPRESS)  # of each process of `resume`
    args = parser.parse_args()
    if args.found:
        return in_process(args)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA here; to try the kit: make bench-gpu DEVICE=cpu")
    folder = "results" if args.device == "cuda" else "runs/gpu_tiny"
    args.out = args.out or measuring.ROOT / folder
    ends = {name: run_part(name, args) for name in args.only}
    print(*(f"\n{name:10}{ended}" for name, ended in ends.items()), sep="")
    print(f"records: gpu_*.json in {args.out}")
    if again := [name for name, ended in ends.items() if ended != "complete"]:
        raise SystemExit(f'to repeat them: make bench-gpu ONLY="{" ".join(again)}"')


if __name__ == "__main__":
    main()
