#!/usr/bin/env python
"""The loss in chunks beside the plain one: memory, time and exactness of forward and backward, on a CPU.

    python benchmarks/loss.py --threads 1 --out loss.json
    python benchmarks/loss.py --precision bf16 --tokens 25000 --rounds 3
    python benchmarks/loss.py --r-drop --tokens 2048 --vocab 8000 --d_model 128 --threads 1

Contenders: `chunked_loss`; PyTorch's `F.cross_entropy` over all logits; the formula written out over all logits. With `--r-drop`:
`ChunkedRDrop` and `RDrop`, for two passes of so many tokens.
Each one's peak memory is measured in a process of its own: what forward and backward add, the gradients included. A round times every
contender once, one after the other; ratios are taken within a round, and the median over rounds is printed. Value and gradients are
compared with the formula in float64, some places at a time.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from annotated_transformer.engines.chunked_loss import chunked_loss
from annotated_transformer.engines.chunked_r_drop import ChunkedRDrop
from annotated_transformer.training.r_drop import RDrop

PAD, SMOOTHING = -1, 0.1  # no place is padding


def cross_entropy(hidden: Tensor, weight: Tensor, tgt_out: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    return F.cross_entropy(
        logits.flatten(0, 1),
        tgt_out.flatten(),
        ignore_index=PAD,
        label_smoothing=SMOOTHING,
        reduction="sum",
    )


def written_out(hidden: Tensor, weight: Tensor, tgt_out: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    right = logits.gather(-1, tgt_out[..., None]).squeeze(-1)
    return (
        logits.logsumexp(-1) - (1 - SMOOTHING) * right - SMOOTHING * logits.mean(-1)
    ).sum()


def ours(hidden: Tensor, weight: Tensor, tgt_out: Tensor) -> Tensor:
    return chunked_loss(hidden, weight, tgt_out, PAD, SMOOTHING)


CONTENDERS = {
    "ours": ours,
    "F.cross_entropy": cross_entropy,
    "written out": written_out,
}


def r_drop(hidden: Tensor, weight: Tensor, tgt_out: Tensor) -> Tensor:
    return RDrop(5.0)(hidden, weight, tgt_out, PAD, SMOOTHING)


def chunked_r_drop(hidden: Tensor, weight: Tensor, tgt_out: Tensor) -> Tensor:
    return ChunkedRDrop(5.0)(hidden, weight, tgt_out, PAD, SMOOTHING)


R_DROP = {"ours": chunked_r_drop, "plain": r_drop}


def contenders(args: argparse.Namespace) -> dict[str, Callable[..., Tensor]]:
    return R_DROP if args.r_drop else CONTENDERS


def example(args: argparse.Namespace, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    "Hidden states as a layer norm leaves them, an output matrix that makes logits of size 1 of them, and words."
    n_tokens, n_vocab, d_model = args.tokens, args.vocab, args.d_model
    n_passes = 2 if args.r_drop else 1
    rng = torch.Generator().manual_seed(seed)
    hidden, weight = (
        torch.randn(n_passes, n_tokens, d_model, generator=rng),
        torch.randn(n_vocab, d_model, generator=rng) * d_model**-0.5,
    )
    return (
        hidden.requires_grad_(),
        weight.requires_grad_(),
        torch.randint(n_vocab, (1, n_tokens), generator=rng).repeat(n_passes, 1),
    )


def forward_backward(
    loss: Callable[..., Tensor], inputs: tuple[Tensor, Tensor, Tensor], kind: str
) -> tuple[Tensor, ...]:
    "Value, and the gradients at hidden states and matrix."
    with torch.autocast("cpu", torch.bfloat16) if kind == "bf16" else nullcontext():
        value = loss(*inputs)
    return value.detach(), *torch.autograd.grad(value, inputs[:2])


def peak_mb() -> float:
    "The most memory this process ever held."
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
        2**20 if sys.platform == "darwin" else 1024
    )


def added_mb(name: str, kind: str, args: argparse.Namespace) -> float:
    "What one forward and backward adds to what this process held at most."
    loss = contenders(args)[name]
    small = argparse.Namespace(tokens=64, vocab=64, d_model=64, r_drop=args.r_drop)
    forward_backward(loss, example(small), kind)  # loads the kernels
    inputs, before = example(args), peak_mb()
    forward_backward(loss, inputs, kind)
    return peak_mb() - before


def in_own_process(name: str, kind: str, args: argparse.Namespace) -> float:
    sizes = [
        f"--{size}={getattr(args, size)}"
        for size in ("tokens", "vocab", "d_model", "threads")
    ]
    command = [
        sys.executable,
        __file__,
        "--memory-of",
        name,
        "--precision",
        kind,
        *sizes,
        *(["--r-drop"] if args.r_drop else []),
    ]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    )


def exact(
    inputs: tuple[Tensor, Tensor, Tensor], loss: Callable[..., Tensor]
) -> tuple[Tensor, ...]:
    "Value and gradients in float64; the loss is a sum over places."
    hidden, weight, tgt_out = inputs[0].double(), inputs[1].double(), inputs[2]
    parts = [
        forward_backward(loss, (h.detach().requires_grad_(), weight, words), "float64")
        for h, words in zip(hidden.split(256, dim=1), tgt_out.split(256, dim=1))
    ]
    values, at_hidden, at_weight = zip(*parts)
    return sum(values), torch.cat(at_hidden, dim=1), sum(at_weight)


def off(found: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> list[float]:
    "‖a − b‖ / ‖b‖ of value and gradients."
    return [float((a.double() - b).norm() / b.norm()) for a, b in zip(found, right)]


def compare(
    kind: str,
    memory: dict[str, float],
    right: tuple[Tensor, ...],
    args: argparse.Namespace,
) -> dict:
    "Rounds of all contenders in turn, beside their memory and how far off they are."
    inputs, names, rounds = (
        example(args),
        list(contenders(args)),
        [],
    )
    wrong = {
        name: off(forward_backward(loss, inputs, kind), right)
        for name, loss in contenders(args).items()
    }  # and warm
    for i in range(args.rounds):
        seconds = {}
        for name in names[i % len(names) :] + names[: i % len(names)]:
            began = time.perf_counter()
            forward_backward(contenders(args)[name], inputs, kind)
            seconds[name] = time.perf_counter() - began
        rounds.append(seconds)
    result = {
        name: {
            "peak_mb": round(memory[name]),
            "ours_takes_of_its_memory": round(memory["ours"] / memory[name], 3),
            "seconds": round(statistics.median(r[name] for r in rounds), 3),
            "ours_is_faster_by": round(
                statistics.median(r[name] / r["ours"] for r in rounds), 3
            ),
            "off": dict(
                zip(("value", "gradient at hidden", "gradient at matrix"), wrong[name])
            ),
        }
        for name in names
    }
    print(
        f"\n{kind}, {args.threads} threads, {args.rounds} rounds: {args.tokens:,} places × {args.vocab:,} words × d_model {args.d_model}"
    )
    print(
        f"{'':18}{'peak MB':>9}{'ours takes':>12}{'seconds':>9}{'ours is faster by':>19}{'value off':>11}{'at hidden':>11}{'at matrix':>11}"
    )
    for name, r in result.items():
        print(
            f"{name:18}{r['peak_mb']:>9,}{r['ours_takes_of_its_memory']:>12.2f}{r['seconds']:>9.2f}{r['ours_is_faster_by']:>19.2f}"
            + "".join(f"{value:>11.1e}" for value in r["off"].values()),
            flush=True,
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--precision", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"]
    )
    parser.add_argument(
        "--tokens", type=int, default=4096, help="places with a word to predict"
    )
    parser.add_argument("--vocab", type=int, default=37_000)
    parser.add_argument("--d_model", type=int, default=512)
    parser.add_argument(
        "--r-drop", action="store_true", help="compare the losses of R-Drop"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", help="write the figures as JSON")
    parser.add_argument(
        "--memory-of", choices=[*CONTENDERS, *R_DROP], help=argparse.SUPPRESS
    )  # what the process of one contender is started with
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_of:
        return print(added_mb(args.memory_of, args.precision[0], args))
    # First, while this process is small: on Linux another one inherits the peak of the one that starts it.
    memory = {
        kind: {name: in_own_process(name, kind, args) for name in contenders(args)}
        for kind in args.precision
    }
    right = exact(example(args), r_drop if args.r_drop else written_out)
    result = {kind: compare(kind, memory[kind], right, args) for kind in args.precision}
    if args.out:
        with open(args.out, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
