#!/usr/bin/env python
"""A training step with `FastDropout` compared with one with `nn.Dropout`.

    python benchmarks/dropout.py --out dropout.json

The model of a recipe, P_drop 0.1, random tokens. A round times both models, one after the other; the ratio is taken within a round, and
the median over rounds is printed: above 1 `FastDropout` is faster. Notebook 90a shows the record.
"""

import argparse
import json
import statistics
import time

import torch
from torch import nn

from annotated_transformer.data.batch import Batch
from annotated_transformer.engines.fast_dropout import FastDropout
from annotated_transformer.engines.fused_attention import FusedMultiHeadAttention
from annotated_transformer.model.config import get_recipe
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import BatchLoss, precision_context

N_VOCAB, N_TOKENS = 8000, 25


def objective(
    make_dropout, name: str, precision: str, device: torch.device
) -> BatchLoss:
    torch.manual_seed(0)
    model = build_transformer(
        get_recipe(name).model,
        N_VOCAB,
        0,
        0.1,
        attention=FusedMultiHeadAttention,
        make_dropout=make_dropout,
    )
    return BatchLoss(model, 0.1, precision_context(precision, device)).train()


def seconds(loss: BatchLoss, batch: Batch) -> float:
    "Forward and backward pass."
    began = time.perf_counter()
    loss.zero_grad()
    loss(batch).backward()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="small")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch, about")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    n_rows, device = args.tokens // N_TOKENS, torch.device("cpu")
    torch.manual_seed(0)
    src, tgt = torch.randint(3, N_VOCAB, (2, n_rows, N_TOKENS + 1))
    n_tokens = n_rows * N_TOKENS
    batch = Batch(src[:, 1:], tgt[:, :-1], tgt[:, 1:], n_tokens)
    found = {}
    for precision in ("fp32", "bf16"):
        fast, plain = (
            objective(make, args.recipe, precision, device)
            for make in (FastDropout, nn.Dropout)
        )
        for loss in (fast, plain):
            seconds(loss, batch)  # warm
        ratios = []
        for _ in range(args.rounds):
            slow = seconds(plain, batch)
            ratios.append(slow / seconds(fast, batch))
        quartiles = statistics.quantiles(ratios, n=4)
        found[precision] = {
            "ratio": round(statistics.median(ratios), 3),
            "quartiles": [round(quartiles[0], 3), round(quartiles[2], 3)],
        }
        print(
            f"{precision}: nn.Dropout takes {found[precision]['ratio']} times as long"
        )
    report = {"recipe": args.recipe, "threads": args.threads, "rounds": args.rounds}
    if args.out:
        with open(args.out, "w") as file:
            json.dump(report | {"step": found}, file, indent=1)


if __name__ == "__main__":
    main()
