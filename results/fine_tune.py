#!/usr/bin/env python
"""Fine-tuning against training from scratch, on little text of another kind (notebook 56).

    python results/fine_tune.py --data-dir DATA --work runs/fine_tune --out fine_tune.json
    tools/record.py results/fine_tune.json --command "…" --seed 0 --json fine_tune=fine_tune.json

DATA holds tatoeba/deu-eng.zip (everyday sentences) and multi30k/ (image captions). A model is trained on Tatoeba, English to German.
Then every row of `rows` is trained on some pairs of Multi30k: from that model, or from random weights with a vocabulary of its own.
BLEU of both test texts, beam 4. One thread, about an hour and a half; rows are kept in the folder `--work`, and the command goes on from there.
With `--only scratch` it needs no model of Tatoeba, so a second process can do these rows meanwhile.
"""

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from figures import Pairs, bleu_on, options, write

from annotated_transformer import load
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.runs.settings import Recipe, fine_tune, get_recipe
from annotated_transformer.runs.train_run import RunOptions, train_or_resume


class Row(NamedTuple):
    "What is trained: on how many pairs, from which seed, from which weights, at which peak rate."

    n_pairs: int
    seed: int
    scratch: bool
    peak_lr: float

    @property
    def name(self) -> str:
        start = "scratch" if self.scratch else "tuned"
        return f"{start}-{self.n_pairs}-{self.peak_lr:g}-{self.seed}"


def rows(args: argparse.Namespace) -> list[Row]:
    "Several seeds where the text is small; for one size also other rates."
    seeds = {n: args.seeds if n < 10_000 else args.seeds[:1] for n in args.sizes}
    plan = [
        Row(n, seed, scratch, 2e-3 if scratch else 5e-4)
        for n in args.sizes
        for seed in seeds[n]
        for scratch in (False, True)
    ]
    others = [Row(args.sizes[1], 0, False, rate) for rate in (1e-4, 2e-3, 8e-3)]
    chosen = [
        row for row in [*plan, *others] if args.only in (None, row.name.split("-")[0])
    ]
    return chosen


def base_recipe(args: argparse.Namespace) -> Recipe:
    recipe = get_recipe("multi30k-tiny")
    train = replace(
        recipe.train,
        batch_tokens=2048,
        max_steps=args.base_steps,
        peak_lr=2e-3,
        warmup_steps=min(500, args.base_steps),
        dropout=0.1,
        valid_every=500,
        save_every=500,
        average_last=0,
    )
    return replace(recipe, train=train)


def recipe_of(row: Row, base: Recipe, args: argparse.Namespace) -> Recipe:
    "Both kinds stop early by the same validation text; training from scratch may take longer."
    tuned = fine_tune(base)
    most = {1_000: 600, 5_000: 1_000}.get(row.n_pairs, 2_400)
    train = replace(
        tuned.train,
        batch_tokens=1024,
        max_steps=min(args.most_steps, most if row.scratch else most // 2),
        warmup_steps=min(args.most_steps, 200 if row.scratch else 50),
        peak_lr=row.peak_lr,
        dropout=0.3,
        valid_every=100,
        patience=6,
        seed=row.seed,
    )
    return replace(tuned, train=train)


def scores(run: Path, tests: dict[str, Pairs]) -> dict[str, float]:
    translator = load(run)
    return {name: round(bleu_on(translator, test), 2) for name, test in tests.items()}


def main() -> None:
    parser = options(__doc__, "fine_tune.json")
    add = parser.add_argument
    add("--data-dir", type=Path, required=True)
    add("--work", type=Path, default=Path("runs/fine_tune"))
    add("--only", choices=["scratch", "tuned"])
    add("--sizes", type=int, nargs="+", default=[1_000, 5_000, 29_000])
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--base-steps", type=int, default=1500)
    add("--most-steps", type=int, default=6000)
    add("--n-test", type=int, default=1000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.work.mkdir(parents=True, exist_ok=True)

    captions = load_corpus("multi30k", args.data_dir)
    pairs = list(captions.train)
    random.Random(0).shuffle(pairs)
    everyday = load_corpus("tatoeba", args.data_dir)
    tests = {
        name: list(text.test)[: args.n_test]
        for name, text in (("tatoeba", everyday), ("multi30k", captions))
    }
    base, base_run = base_recipe(args), args.work / "tatoeba"

    def measured(run: Path, corpus: Corpus, recipe: Recipe, start: Path | None) -> dict:
        file = run.with_name(f"{run.name}.json")
        if not file.exists():
            quiet = RunOptions("cpu", quiet=True)
            about = train_or_resume(corpus, recipe, run, quiet, start)
            found = {"steps": about["steps"], "weights": about["weights"]}
            write(file, found | {"bleu": scores(run, tests)})
            print(run.name, file.read_text(encoding="utf-8"), flush=True)
        return json.loads(file.read_text(encoding="utf-8"))

    before = None
    if args.only != "scratch":
        corpus = everyday._replace(valid=list(everyday.valid)[:500])
        before = measured(base_run, corpus, base, None)
    found = []
    for row in rows(args):
        some = Corpus(
            "multi30k", "en", "de", pairs[: row.n_pairs], captions.valid[:300], []
        )
        start = None if row.scratch else base_run
        about = measured(args.work / row.name, some, recipe_of(row, base, args), start)
        found.append({**row._asdict(), **about})
    if args.only is None:
        sizes = {
            "n_tatoeba": len(list(everyday.train)),
            "n_test": {k: len(v) for k, v in tests.items()},
        }
        write(args.out, {**sizes, "tatoeba": before, "rows": found})


if __name__ == "__main__":
    main()
