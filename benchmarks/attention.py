#!/usr/bin/env python
"""PyTorch's fused attention beside equation 1 written out, forward and backward, at several lengths.

    python benchmarks/attention.py --out attention.json

About 4,096 tokens at each length, heads of 64. A round times both, one after the other; ratios are taken within a round, and the
median over rounds is printed: above 1 the written-out one is faster. `fused_attention` of notebook 90b chooses by this table.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from annotated_transformer.model.attention import attention


def fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def seconds(
    attend: Callable[..., Tensor], inputs: list[Tensor], mask: Tensor, backward: bool
) -> float:
    "One forward pass, with its backward pass if wanted."
    began = time.perf_counter()
    with torch.set_grad_enabled(backward):
        out = attend(*inputs, mask)
        if backward:
            torch.autograd.grad(out, inputs, torch.ones_like(out))
    return time.perf_counter() - began


def compare(
    dtype: torch.dtype, n: int, backward: bool, args: argparse.Namespace
) -> float:
    "How much faster the written-out one is."
    torch.manual_seed(0)
    shape = (max(1, args.tokens // n), args.heads, n, 64)
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
    mask = torch.ones(shape[0], 1, 1, n, dtype=torch.bool)
    mask[:, :, :, -1] = n == 1  # the last position is padding
    for attend in (attention, fused):
        seconds(attend, inputs, mask, backward)  # warm
    ratios = []
    for i in range(args.rounds):
        # in turn the first, since the first of two may be slower
        both = (attention, fused) if i % 2 else (fused, attention)
        took = {attend: seconds(attend, inputs, mask, backward) for attend in both}
        ratios.append(took[fused] / took[attention])
    return round(statistics.median(ratios), 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--lengths",
        type=int,
        nargs="+",
        default=[8, 16, 32, 40, 48, 56, 64, 128, 256, 512],
    )
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch, about")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kinds = [
        (str(dtype).removeprefix("torch."), backward)
        for dtype in (torch.float32, torch.bfloat16)
        for backward in (False, True)
    ]
    names = [
        f"{dtype}, {'forward and backward' if backward else 'forward'}"
        for dtype, backward in kinds
    ]
    print(f"{'length':>8}" + "".join(f"{name:>32}" for name in names))
    result = {}
    for n in args.lengths:
        result[n] = {
            name: compare(getattr(torch, dtype), n, backward, args)
            for name, (dtype, backward) in zip(names, kinds)
        }
        print(
            f"{n:>8}" + "".join(f"{ratio:>32.2f}" for ratio in result[n].values()),
            flush=True,
        )
    if args.out:
        with open(args.out, "w") as f:
            json.dump(
                {
                    "threads": args.threads,
                    "tokens": args.tokens,
                    "written_out_is_faster_by": result,
                },
                f,
                indent=1,
            )


if __name__ == "__main__":
    main()
