#!/usr/bin/env python
"""The layers that §4 compares: CPU time and memory over lengths and widths.

    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 OMP_NUM_THREADS=1 python results/complexity.py --out complexity.json
    python tools/record.py results/complexity.json --command "…" --seed 0 --json complexity=complexity.json

The settings before the command make glibc keep freed memory. Without them it returns every array of more than 32 MB to the system and has
the next one cleared page by page: times jump where the n × n scores reach that size, and a fit over such lengths measures the jump.

Forward passes on one thread. The whole grid is gone through `--sweeps` times; in each sweep the layers take turns at each length, and the
least time of all is kept. Bytes are counted and do not depend on the machine. Notebook 40a fits and draws.
"""

import argparse
import math
import time
from functools import partial

import torch
from figures import options, write
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
    parser = options(__doc__)
    add = parser.add_argument
    lengths = [16, 32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096]
    add("--n", type=int, nargs="+", default=lengths, help="lengths, rising")
    widths = [64, 128, 256, 512, 1024]
    add("--d", type=int, nargs="+", default=widths, help="widths, rising")
    add("--k", type=int, default=3, help="positions under a kernel")
    add("--r", type=int, default=65, help="positions of a neighbourhood")
    add("--batch", type=int, default=1)
    add("--sweeps", type=int, default=3)
    add("--rounds", type=int, default=2, help="within a sweep")
    add("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    contenders = {d: layers(d, args) for d in args.d}
    names = list(contenders[args.d[0]])
    seconds = {name: {d: [math.inf] * len(args.n) for d in args.d} for name in names}
    with torch.no_grad():
        for i in range(args.sweeps):
            sweep(contenders, args, seconds)
            spent = time.process_time()
            print(
                f"sweep {i + 1} of {args.sweeps}: {spent:.0f} CPU seconds", flush=True
            )
    middle = args.d[len(args.d) // 2]
    inputs = [torch.randn(args.batch, n, middle) for n in args.n]
    n_bytes = {
        name: {middle: [activation_bytes(layer, x) for x in inputs]}
        for name, layer in contenders[middle].items()
    }
    for name, by_d in seconds.items():
        last = (f"{1e3 * times[-1]:>12.1f} ms" for times in by_d.values())
        print(f"{name:30}" + "".join(last))
    sizes = {key: vars(args)[key] for key in "batch k r sweeps rounds n d".split()}
    rounded = {
        name: {d: [round(s, 9) for s in times] for d, times in by_d.items()}
        for name, by_d in seconds.items()
    }
    write(args.out, {"threads": 1, **sizes, "seconds": rounded, "bytes": n_bytes})


if __name__ == "__main__":
    main()
