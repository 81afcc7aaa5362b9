#!/usr/bin/env python
"""The fast twins of single operators compared with the plain ones, forward and backward, on a CPU.

    python benchmarks/operators.py attention --out attention.json
    python benchmarks/operators.py dropout --out dropout.json
    python benchmarks/operators.py loss --threads 1 --out loss.json
    python benchmarks/operators.py r-drop --tokens 2048 --vocab 8000 --d_model 128 --threads 1

attention: PyTorch's fused attention and equation 1 written out, at several lengths, heads of 64. Above 1 the written-out one is faster;
`fused_attention` (notebook 90b) chooses by this table.
dropout: a training step with `FastDropout` and with `nn.Dropout`, P_drop 0.1, random tokens. Above 1 `FastDropout` is faster.
loss: `chunked_loss`, PyTorch's `F.cross_entropy` over all logits, and the formula written out over all logits.
r-drop: `ChunkedRDrop` and `RDrop`, for two passes of so many tokens.

A round times every contender once, one after the other; ratios are taken within a round, and the median over rounds is printed. The peak
memory of a loss is measured in a process of its own: what forward and backward add, the gradients included. Its value and gradients are
compared with the formula in float64, some positions at a time.
"""

import argparse
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from measuring import in_own_process, middle, options, peak_mb, rounds, write
from torch import Tensor, nn

from annotated_transformer.data.batch import Batch
from annotated_transformer.engines.chunked_loss import chunked_loss
from annotated_transformer.engines.chunked_r_drop import ChunkedRDrop
from annotated_transformer.engines.fast_dropout import FastDropout
from annotated_transformer.engines.fused_attention import FusedMultiHeadAttention
from annotated_transformer.model.attention import attention
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import BatchLoss, precision_context
from annotated_transformer.runs.settings import get_recipe
from annotated_transformer.training.r_drop import RDrop

# ---- attention


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attend(
    kind: Callable[..., Tensor], inputs: list[Tensor], mask: Tensor, backward: bool
) -> None:
    with torch.set_grad_enabled(backward):
        out = kind(*inputs, mask)
        if backward:
            torch.autograd.grad(out, inputs, torch.ones_like(out))


def compare_attention(
    n: int, dtype: torch.dtype, backward: bool, args: argparse.Namespace
) -> float:
    "How much faster the written-out one is."
    torch.manual_seed(0)
    shape = (max(1, args.tokens // n), args.heads, n, 64)
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
    mask = torch.ones(shape[0], 1, 1, n, dtype=torch.bool)
    mask[:, :, :, -1] = n == 1  # the last position is padding
    actions = {
        kind.__name__: partial(attend, kind, inputs, mask, backward)
        for kind in (attention, fused)
    }
    rounds(actions, 1)  # warm
    found = rounds(actions, args.rounds)
    return middle((r["fused"] / r["attention"] for r in found), 2)


def measure_attention(args: argparse.Namespace) -> dict:
    kinds = {
        f"{name}, {'forward and backward' if backward else 'forward'}": (
            dtype,
            backward,
        )
        for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
        for backward in (False, True)
    }
    print(f"{'length':>8}" + "".join(f"{name:>32}" for name in kinds))
    found = {}
    for n in args.lengths:
        found[n] = {
            name: compare_attention(n, *kind, args) for name, kind in kinds.items()
        }
        ratios = "".join(f"{ratio:>32.2f}" for ratio in found[n].values())
        print(f"{n:>8}{ratios}", flush=True)
    about = {"threads": args.threads, "tokens": args.tokens}
    return about | {"written_out_is_faster_by": found}


# ---- dropout


def step_of(
    make_dropout: Callable, precision: str, batch: Batch, args: argparse.Namespace
) -> Callable[[], None]:
    "Forward and backward pass of a model with that dropout."
    torch.manual_seed(0)
    model = build_transformer(
        get_recipe(args.recipe).model,
        8000,
        0,
        0.1,
        attention=FusedMultiHeadAttention,
        make_dropout=make_dropout,
    )
    autocast = precision_context(precision, torch.device("cpu"))
    objective = BatchLoss(model, 0.1, autocast).train()

    def step() -> None:
        objective.zero_grad()
        objective(batch).backward()

    return step


def measure_dropout(args: argparse.Namespace) -> dict:
    torch.manual_seed(0)
    n_rows, length, found = args.tokens // 25, 25, {}
    src, tgt = torch.randint(3, 8000, (2, n_rows, length + 1))
    batch = Batch(src[:, 1:], tgt[:, :-1], tgt[:, 1:], n_rows * length)
    for precision in ("fp32", "bf16"):
        steps = {
            kind.__name__: step_of(kind, precision, batch, args)
            for kind in (nn.Dropout, FastDropout)
        }
        rounds(steps, 1)  # warm
        ratios = [r["Dropout"] / r["FastDropout"] for r in rounds(steps, args.rounds)]
        low, _, high = statistics.quantiles(ratios, n=4)
        quartiles = [round(low, 3), round(high, 3)]
        found[precision] = {"ratio": middle(ratios), "quartiles": quartiles}
        print(f"{precision}: nn.Dropout takes {middle(ratios)} times as long")
    about = {"recipe": args.recipe, "threads": args.threads, "rounds": args.rounds}
    return about | {"step": found}


# ---- the losses: functions of hidden states, output matrix and target tokens

PAD, SMOOTHING = -1, 0.1  # no position is padding


def cross_entropy(hidden: Tensor, weight: Tensor, tgt_out: Tensor) -> Tensor:
    return F.cross_entropy(
        F.linear(hidden, weight).flatten(0, 1),
        tgt_out.flatten(),
        ignore_index=PAD,
        label_smoothing=SMOOTHING,
        reduction="sum",
    )


def written_out(hidden: Tensor, weight: Tensor, tgt_out: Tensor) -> Tensor:
    logits = F.linear(hidden, weight)
    right = (1 - SMOOTHING) * logits.gather(-1, tgt_out[..., None]).squeeze(-1)
    return (logits.logsumexp(-1) - right - SMOOTHING * logits.mean(-1)).sum()


def of_package(loss: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    return loss(*inputs, PAD, SMOOTHING)


LOSSES = {  # the last one of each is the oracle
    "loss": {
        "ours": partial(of_package, chunked_loss),
        "F.cross_entropy": cross_entropy,
        "written out": written_out,
    },
    "r-drop": {
        "ours": partial(of_package, ChunkedRDrop(5.0)),
        "plain": partial(of_package, RDrop(5.0)),
    },
}


def example(what: str, n: int, n_vocab: int, d_model: int) -> tuple[Tensor, ...]:
    "Hidden states as a layer norm leaves them, an output matrix that makes logits of size 1 of them, and tokens."
    rng, n_passes = torch.Generator().manual_seed(0), 2 if what == "r-drop" else 1
    hidden = torch.randn(n_passes, n, d_model, generator=rng).requires_grad_()
    weight = torch.randn(n_vocab, d_model, generator=rng) * d_model**-0.5
    tgt_out = torch.randint(n_vocab, (1, n), generator=rng).repeat(n_passes, 1)
    return hidden, weight.requires_grad_(), tgt_out


def forward_backward(
    loss: Callable[..., Tensor], inputs: tuple[Tensor, ...], precision: str
) -> tuple[Tensor, ...]:
    "Value, and the gradients at hidden states and matrix."
    bf16 = precision == "bf16"
    with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
        value = loss(*inputs)
    return value.detach(), *torch.autograd.grad(value, inputs[:2])


def added_mb(name: str, precision: str, args: argparse.Namespace) -> float:
    "What one forward and backward adds to what this process held at most."
    loss = LOSSES[args.what][name]
    forward_backward(loss, example(args.what, 64, 64, 64), precision)  # loads kernels
    inputs, before = sized(args), peak_mb()
    forward_backward(loss, inputs, precision)
    return peak_mb() - before


def sized(args: argparse.Namespace) -> tuple[Tensor, ...]:
    return example(args.what, args.tokens, args.vocab, args.d_model)


def exact(
    loss: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    "Value and gradients in float64; the loss is a sum over positions."
    hidden, weight = (t.detach().double().requires_grad_() for t in inputs[:2])
    parts = [
        forward_backward(loss, (h.detach().requires_grad_(), weight, tokens), "float64")
        for h, tokens in zip(hidden.split(256, dim=1), inputs[2].split(256, dim=1))
    ]
    values, at_hidden, at_weight = zip(*parts)
    return sum(values), torch.cat(at_hidden, dim=1), sum(at_weight)


def compare_losses(
    precision: str, memory: dict[str, float], args: argparse.Namespace
) -> dict:
    losses, inputs, found = LOSSES[args.what], sized(args), {}
    right = exact([*losses.values()][-1], inputs)
    names = ("value", "gradient at hidden", "gradient at matrix")
    for name, loss in losses.items():
        pairs = zip(forward_backward(loss, inputs, precision), right)  # warm as well
        off = [float((a.double() - b).norm() / b.norm()) for a, b in pairs]
        found[name] = {
            "peak_mb": round(memory[name]),
            "ours_takes_of_its_memory": round(memory["ours"] / memory[name], 3),
            "off": dict(zip(names, off)),
        }
    actions = {
        name: partial(forward_backward, loss, inputs, precision)
        for name, loss in losses.items()
    }
    timed = rounds(actions, args.rounds)
    print(f"\n{precision}: {args.tokens:,} × {args.vocab:,} × d_model {args.d_model}")
    for name, one in found.items():
        one["seconds"] = middle(r[name] for r in timed)
        one["ours_is_faster_by"] = middle(r[name] / r["ours"] for r in timed)
        off = "".join(f"{value:>11.1e}" for value in one["off"].values())
        print(
            f"{name:18}{one['peak_mb']:>9,} MB{one['seconds']:>9.2f} s, ours is faster "
            f"by {one['ours_is_faster_by']:.2f}; off by{off}",
            flush=True,
        )
    return found


def measure_losses(args: argparse.Namespace) -> dict:
    # First, while this process is small: on Linux another one inherits its peak.
    sizes = [
        f"--{n}={vars(args)[n]}" for n in ("tokens", "vocab", "d_model", "threads")
    ]
    memory = {
        kind: {
            name: in_own_process(
                __file__, args.what, *sizes, "--memory-of", name, "--precision", kind
            )
            for name in LOSSES[args.what]
        }
        for kind in args.precision
    }
    return {kind: compare_losses(kind, memory[kind], args) for kind in args.precision}


MEASURED = {"attention": measure_attention, "dropout": measure_dropout}
MEASURED |= dict.fromkeys(LOSSES, measure_losses)


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("what", choices=MEASURED)
    add("--tokens", type=int, default=4096, help="of a batch, about")
    add("--rounds", type=int, help="9 for attention, 15 for dropout, 7 for losses")
    add("--threads", type=int, default=torch.get_num_threads())
    lengths = [8, 16, 32, 40, 48, 56, 64, 128, 256, 512]
    add("--lengths", type=int, nargs="+", default=lengths, help="attention")
    add("--heads", type=int, default=4, help="attention")
    add("--recipe", default="small", help="dropout")
    precisions = ["fp32", "bf16"]
    add("--precision", nargs="+", default=precisions, choices=precisions, help="losses")
    add("--vocab", type=int, default=37_000, help="losses")
    add("--d_model", type=int, default=512, help="losses")
    add("--memory-of", help=argparse.SUPPRESS)  # of the process of one loss
    args = parser.parse_args()
    args.rounds = args.rounds or {"attention": 9, "dropout": 15}.get(args.what, 7)
    torch.set_num_threads(args.threads)
    if args.memory_of:
        return print(added_mb(args.memory_of, args.precision[0], args))
    write(args.out, MEASURED[args.what](args))


if __name__ == "__main__":
    main()
