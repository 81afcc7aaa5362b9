#!/usr/bin/env python
"""Does a long path make learning harder? A value recalled over a distance by five models of equal size (notebook 40a).

    nice python benchmarks/recall.py --out recall.json
    tools/record.py results/recall.json --command "…" --seed 0 --json recall=recall.json

Every model of `recall_models` is trained at each distance, at each learning rate, from each seed, for the same number of updates at most;
a run ends early when two tests in a row are 99 % right. About twenty minutes of one core in all, on one thread.
"""

import argparse
import json
import time
from pathlib import Path

import torch

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
        "n_parameters": sum(p.numel() for p in model.parameters()),
        "cpu_seconds": round(time.process_time() - began, 1),
        "accuracies": accuracies,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--distances", type=int, nargs="+", default=[10, 30, 100, 300])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 3e-3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--updates", type=int, default=1000, help="of a run, at most")
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict = {
        "updates": args.updates,
        "seeds": args.seeds,
        "distances": args.distances,
        "models": {name: {} for name in recall_models(args.distances[0])},
    }
    for distance in args.distances:
        for name in found["models"]:
            found["models"][name][distance] = measure(name, distance, args)
    found["cpu_seconds"] = round(
        sum(
            one["cpu_seconds"] for by in found["models"].values() for one in by.values()
        )
    )
    print(f"{found['cpu_seconds']} CPU seconds")
    if args.out:
        Path(args.out).write_text(
            json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
