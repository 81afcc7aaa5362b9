#!/usr/bin/env python
"""The layers that §4 compares: CPU time and memory over lengths and widths.

    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 OMP_NUM_THREADS=1 python benchmarks/complexity.py --out complexity.json
    python tools/record.py results/complexity.json --command "…" --seed 0 --json complexity=complexity.json

The settings before the command make glibc keep freed memory. Without them it returns every array of more than 32 MB to the system and has
the next one cleared page by page: times jump where the n × n scores reach that size, and a fit over such lengths measures the jump.

Forward passes on one thread. The whole grid is gone through `--sweeps` times; in each sweep the layers take turns at each length, and the
least time of all is kept. Bytes are counted and do not depend on the machine. Notebook 40a fits and draws.
"""

import argparse
import json
import math
import time
from functools import partial

import torch
from torch import nn

from annotated_transformer.experiments.complexity import SelfAttention, table_1_layers
from annotated_transformer.experiments.layer_costs import (
    activation_bytes,
    cpu_seconds,
    flash_attention,
)
from annotated_transformer.model.attention import attention
from annotated_transformer.model.multi_head import MultiHeadAttention


def layers(d: int, args: argparse.Namespace) -> dict[str, nn.Module]:
    "Those of Table 1, and attention in two more forms."
    more = {
        "self-attention (fused)": SelfAttention(flash_attention),
        "self-attention, projected": SelfAttention(
            MultiHeadAttention(d, n_heads=1, attend=attention)
        ),
    }
    return table_1_layers(d, args.k, args.r) | more


def sweep(
    contenders: dict[int, dict[str, nn.Module]], args: argparse.Namespace, seconds: dict
) -> None:
    "Time everything once over, and keep what was faster than before."
    for d, of_width in contenders.items():
        for i, n in enumerate(args.n):
            x = torch.randn(args.batch, n, d)
            took = cpu_seconds(
                {name: partial(layer, x) for name, layer in of_width.items()},
                args.rounds,
            )
            for name, value in took.items():
                seconds[name][d][i] = min(seconds[name][d][i], value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--n",
        type=int,
        nargs="+",
        default=[16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096],
        help="lengths, rising",
    )
    parser.add_argument(
        "--d",
        type=int,
        nargs="+",
        default=[64, 128, 256, 512, 1024],
        help="widths, rising",
    )
    parser.add_argument("--k", type=int, default=3, help="positions under a kernel")
    parser.add_argument(
        "--r", type=int, default=65, help="positions of a neighbourhood"
    )
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="within a sweep")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    began = time.process_time()
    contenders = {d: layers(d, args) for d in args.d}
    seconds = {
        name: {d: [math.inf] * len(args.n) for d in args.d}
        for name in contenders[args.d[0]]
    }
    with torch.no_grad():
        for i in range(args.sweeps):
            sweep(contenders, args, seconds)
            print(
                f"sweep {i + 1} of {args.sweeps}: {time.process_time() - began:.0f} CPU seconds",
                flush=True,
            )
    middle = args.d[len(args.d) // 2]
    result = {
        "threads": 1,
        "batch": args.batch,
        "k": args.k,
        "r": args.r,
        "sweeps": args.sweeps,
        "rounds": args.rounds,
        "n": args.n,
        "d": args.d,
        "seconds": {
            name: {d: [round(s, 9) for s in times] for d, times in by_d.items()}
            for name, by_d in seconds.items()
        },
        "bytes": {
            name: {
                middle: [
                    activation_bytes(layer, torch.randn(args.batch, n, middle))
                    for n in args.n
                ]
            }
            for name, layer in contenders[middle].items()
        },
    }
    print(f"all: {time.process_time() - began:.0f} CPU seconds")
    for name, by_d in seconds.items():
        print(
            f"{name:30}"
            + "".join(f"{1e3 * times[-1]:>12.1f} ms" for times in by_d.values())
        )
    if args.out:
        with open(args.out, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
