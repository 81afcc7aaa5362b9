#!/usr/bin/env python
"""Table 3 at a small size: a training run for each row and seed, which differs from base in the settings of its row alone (notebook 62).

    python results/variations.py --data multi30k --out runs/multi30k
    python tools/record.py results/variations_multi30k.json --command "…" --seed 0 --json table=runs/multi30k/table.json

A run takes five to twenty minutes of one core. It can be interrupted at any time: the same command continues it from its newest checkpoint.
When it ends, its measures are written to ROW-seedN.json, and table.json collects those of all runs so far. Two commands with different
rows or seeds can therefore fill one folder at the same time.
"""

import argparse
import json
from dataclasses import asdict
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from figures import n_parameters, options, write

from annotated_transformer import load
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.io.text import fingerprint
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.runs.folder import read_metrics
from annotated_transformer.runs.settings import Recipe, TrainConfig, override
from annotated_transformer.runs.train_run import RunOptions, train_or_resume
from annotated_transformer.translating.evaluate import bleu


class Row(NamedTuple):
    "What a row of the table changes."

    settings: str  # those that differ from base's
    paper: str | None  # the row of Table 3 that it scales down; None = our own
    times: int = 1  # the factor of base's steps


ROWS = {
    "base": Row("", "base"),
    "A h=1": Row("n_heads=1", "A h=1"),
    "A h=4": Row("n_heads=4", "A h=4"),
    "A h=16": Row("n_heads=16", "A h=16"),
    "A h=32": Row("n_heads=32", "A h=32"),
    "B d_k=4": Row("d_k=4", "B d_k=16"),
    "B d_k=8": Row("d_k=8", "B d_k=32"),
    "C N=1": Row("n_layers=1", "C N=2"),
    "C N=2": Row("n_layers=2", "C N=4"),
    "C N=4": Row("n_layers=4", "C N=8"),
    "C d_model=64": Row("d_model=64", "C d_model=256"),
    "C d_model=256": Row("d_model=256", "C d_model=1024"),
    "C d_ff=256": Row("d_ff=256", "C d_ff=1024"),
    "C d_ff=1024": Row("d_ff=1024", "C d_ff=4096"),
    "D dropout=0.0": Row("dropout=0.0", "D P_drop=0.0"),
    "D dropout=0.2": Row("dropout=0.2", "D P_drop=0.2"),
    "D eps=0.0": Row("label_smoothing=0.0", "D eps_ls=0.0"),
    "D eps=0.2": Row("label_smoothing=0.2", "D eps_ls=0.2"),
    "E": Row("position=learned", "E"),
    "big": Row("d_model=256 d_ff=1024 n_heads=16 dropout=0.3", "big", times=3),
    "pre-norm": Row("norm=pre", None),
    "attention dropout": Row("attention_dropout=0.1", None),
}
SIZES = ModelConfig(n_layers=3, d_model=128, d_ff=512, n_heads=8)
# many small steps reach a lower loss in a short time than a few large ones
SHARED = TrainConfig(schedule="linear", keep_last=1, average_last=1)
BASES = {
    "builtin": "n_pieces=2000 batch_tokens=250 max_steps=1600 peak_lr=1e-3 "
    "warmup_steps=200 precision=fp32 save_every=400",
    "multi30k": "n_pieces=4000 batch_tokens=1000 max_steps=3000 peak_lr=2e-3 "
    "warmup_steps=400 save_every=250",
}
BEAM, ALPHA = 4, 0.6  # §6.1


def recipe_of(row: Row, base: Recipe, seed: int) -> Recipe:
    "Base with the settings of a row, validated at its end alone."
    steps = base.train.max_steps * row.times
    run = [f"max_steps={steps}", f"valid_every={steps}", f"seed={seed}"]
    return override(base, [*row.settings.split(), *run])


def loss_curve(records: list[dict], n_parts: int = 20) -> list[float]:
    "Mean training loss of each twentieth of a run, in nats; [] if it has too few records."
    losses = [record["loss"] for record in records if "loss" in record]
    if len(losses) < n_parts:
        return []
    cuts = [i * len(losses) // n_parts for i in range(n_parts + 1)]
    return [fmean(losses[a:b]) for a, b in pairwise(cuts)]


def measured(run: Path, corpus: Corpus, device: str) -> dict:
    "A finished run on the validation set, by its last weights (§6.2)."
    records = read_metrics(run)
    last = [record for record in records if "valid_loss" in record][-1]
    sources, references = map(list, zip(*corpus.valid))
    translator = load(run, device, search_with(BEAM, ALPHA))
    return {
        "valid_loss": last["valid_loss"],  # nats per token, without smoothing
        "bleu": bleu(translator.translate(sources), references).value,
        "n_parameters": n_parameters(translator.model),
        "seconds": last["seconds"],  # of training, by the clock
        "curve": loss_curve(records),
    }


def table(shared: dict, out: Path) -> dict:
    "The measures of all runs so far: rows in the order of `ROWS`, their runs by seed."
    runs = [json.loads(file.read_text("utf-8")) for file in out.glob("*-seed*.json")]
    runs.sort(key=lambda run: (list(ROWS).index(run["row"]), run["seed"]))
    rows: dict[str, dict] = {}
    for run in runs:
        if run.pop("shared") != shared:
            raise SystemExit(f"{out} has runs of another base or text: choose another")
        about = {name: run.pop(name) for name in ("row", "paper", "changes", "steps")}
        rows.setdefault(about["row"], about | {"found": []})["found"].append(run)
    return {"format": 1, **shared, "rows": list(rows.values())}


def fill(args: argparse.Namespace) -> None:
    "Train and measure each run that has no measures yet, and write the table."
    base = override(Recipe(SIZES, SHARED), [*BASES[args.data].split(), *args.set])
    plan = [
        (name, seed, recipe_of(ROWS[name], base, seed))
        for seed, name in product(args.seeds, args.rows)
    ]
    corpus = load_corpus(args.data, args.data_dir)
    shared = {
        "data": args.data,
        "train_text": fingerprint(corpus.train)[:16],
        "valid_text": fingerprint(corpus.valid)[:16],
        "beam_size": BEAM,
        "alpha": ALPHA,
        **asdict(base),
    }
    table(shared, args.out)  # refuses a folder of another base
    for name, seed, recipe in plan:
        run = args.out / f"{name.replace(' ', '-')}-seed{seed}"
        file, steps = args.out / f"{run.name}.json", recipe.train.max_steps
        if file.exists():
            continue
        about = train_or_resume(corpus, recipe, run, RunOptions(args.device))
        if about["steps"] < steps:
            raise SystemExit(f"{run} is interrupted: the same command continues it")
        measures = {"seed": seed, **measured(run, corpus, args.device)}
        changes = ROWS[name].settings.split()
        row = {"row": name, "paper": ROWS[name].paper, "changes": changes}
        write(file, {"shared": shared, **row, "steps": steps, **measures})
        write(args.out / "table.json", table(shared, args.out))
        print(name, {k: v for k, v in measures.items() if k != "curve"}, flush=True)


def main() -> None:
    parser = options(__doc__, "runs/variations")
    add = parser.add_argument
    add("--data", choices=BASES, required=True)
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    add("--seeds", nargs="+", type=int, default=[0, 1])
    add("--device", default="cpu")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of base")
    fill(parser.parse_args())


if __name__ == "__main__":
    main()
