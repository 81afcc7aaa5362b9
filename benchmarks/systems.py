#!/usr/bin/env python
"""Faster because parallel? The longest chain of operations of each system of §2, and the time of a training step by length (notebook 20b).

    python benchmarks/systems.py --out systems.json
    tools/record.py results/bench_systems.json --command "…" --seed 0 --json systems=systems.json

A step is a forward and a backward pass over one pair of sentences of n tokens each, so that only work within a sentence can be parallel.
The systems have equal numbers of parameters, and take turns; medians over `--rounds`. `make bench-gpu ONLY=systems` measures a GPU.
"""

from collections.abc import Callable
from functools import partial

import measuring
import torch
from torch import Tensor, nn

from annotated_transformer.engines.choose import FAST, PLAIN, Engines
from annotated_transformer.experiments.compared import equal_systems, longest_chain
from annotated_transformer.runs.settings import get_recipe

LENGTHS = [16, 32, 64, 128, 256, 512]
N_VOCAB, PAD = 4000, 0


def step(model: nn.Module, src: Tensor, tgt: Tensor) -> None:
    "Forward and backward, to the end also on a GPU."
    model(src, tgt).sum().backward()
    model.zero_grad()
    if src.is_cuda:
        torch.cuda.synchronize()


def made(engines: Engines = FAST) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    sizes = get_recipe("tiny").model, N_VOCAB, PAD
    systems = equal_systems(*sizes, engines=engines)
    return {name: build() for name, (_, build) in systems.items()}


def chains(lengths: list[int]) -> dict[str, list[int]]:
    """By system and length: every operation counts as one.

    In float64, in which PyTorch records recurrent layers step by step, and with plain
    attention, which is not a single operation.
    """
    pairs = [torch.ones(2, 1, n, dtype=torch.long) for n in lengths]
    models = {name: model.double() for name, model in made(PLAIN).items()}
    return {
        name: [longest_chain(model(*pair)) for pair in pairs]
        for name, model in models.items()
    }


def milliseconds(
    lengths: list[int], n_rounds: int, device: str | torch.device
) -> dict[str, list[float]]:
    "Of a step, by system and length."
    models = {name: model.to(device) for name, model in made().items()}
    found: dict[str, list[float]] = {name: [] for name in models}
    for n in lengths:
        pair = torch.randint(1, N_VOCAB, (2, 1, n), device=device)
        steps: dict[str, Callable[[], object]] = {
            name: partial(step, model, *pair) for name, model in models.items()
        }
        taken = measuring.rounds(steps, n_rounds + 1)[1:]  # the first warms up
        for name, ms in found.items():
            ms.append(measuring.middle(1e3 * round[name] for round in taken))
    return found


def main() -> None:
    parser = measuring.options(__doc__)
    add = parser.add_argument
    add("--lengths", type=int, nargs="+", default=LENGTHS)
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--rounds", type=int, default=9)
    args = parser.parse_args()
    found = {"lengths": args.lengths, "chains": chains(args.lengths)}
    for n_threads in args.threads:
        torch.set_num_threads(n_threads)
        ms = milliseconds(args.lengths, args.rounds, "cpu")
        found[f"ms, {n_threads} thread{'s' * (n_threads > 1)}"] = ms
    print("lengths", found["lengths"])
    for kind, by_system in list(found.items())[1:]:
        print(kind)
        for name, values in by_system.items():
            print(f"  {name:20}", *(f"{value:9g}" for value in values))
    measuring.write(args.out, found)


if __name__ == "__main__":
    main()
