#!/usr/bin/env python
"""Does a long path make learning harder? A value recalled over a distance by five models of equal size (notebook 40b).

    nice python results/recall.py --out recall.json
    tools/record.py results/recall.json --command "…" --seed 0 --json recall=recall.json

Every model of `recall_models` is trained at each distance, at each learning rate, from each seed, for the same number of updates at most;
a run ends early when two tests in a row are 99 % right. About twenty minutes of one core in all, on one thread.
"""

import argparse
import time

import torch
from figures import n_parameters, options, write

from annotated_transformer.experiments.recall import learn_recall, recall_models


def measure(name: str, distance: int, args: argparse.Namespace) -> dict:
    "The accuracies of one model at one distance, after every 25 updates, by rate and seed."
    accuracies: dict[str, list[list[float]]] = {}
    began = time.process_time()
    for rate in args.rates:
        accuracies[f"{rate:g}"] = runs = []
        for seed in args.seeds:
            torch.manual_seed(seed)
            model = recall_models(distance)[name]()
            found = learn_recall(model, distance, args.updates, rate, seed)
            runs.append([round(accuracy, 4) for accuracy in found])
            print(
                f"{name:22} distance {distance:4} rate {rate:g} seed {seed}: "
                f"{25 * len(found):5} updates, accuracy {found[-1]:.2f}",
                flush=True,
            )
    return {
        "n_parameters": n_parameters(model),
        "cpu_seconds": round(time.process_time() - began, 1),
        "accuracies": accuracies,
    }


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("--distances", type=int, nargs="+", default=[10, 30, 100, 300])
    add("--rates", type=float, nargs="+", default=[1e-3, 3e-3])
    add("--seeds", type=int, nargs="+", default=[0, 1])
    add("--updates", type=int, default=1000, help="of a run, at most")
    args = parser.parse_args()
    torch.set_num_threads(1)
    models = {
        name: {distance: measure(name, distance, args) for distance in args.distances}
        for name in recall_models(args.distances[0])
    }
    seconds = sum(one["cpu_seconds"] for by in models.values() for one in by.values())
    found = {
        "updates": args.updates,
        "seeds": args.seeds,
        "distances": args.distances,
        "models": models,
        "cpu_seconds": round(seconds),
    }
    print(f"{found['cpu_seconds']} CPU seconds")
    write(args.out, found)


if __name__ == "__main__":
    main()
