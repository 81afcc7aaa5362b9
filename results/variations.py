#!/usr/bin/env python
"""Table 3 at a small size: a training run for each row and seed, which differs from base in the settings of its row alone (notebook 62).

    OMP_NUM_THREADS=1 python results/variations.py --data-dir DATA --out runs/multi30k
    python tools/record.py results/variations_multi30k.json --command "…" --seed 0 --json table=runs/multi30k/table.json

A run takes about ten minutes of one core. It can be interrupted at any time: the same command continues it from its newest checkpoint.
When it ends, its measures are written to ROW-seedN.json, and table.json collects those of all runs so far. Two commands with different
rows or seeds can therefore fill one folder at the same time. `--record results/variations_multi30k.json` takes the runs of the record
into a new folder, so that rows can be added to it. `--data builtin` needs no download.
"""

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

from figures import about, bleu_on, n_parameters, options, write

from annotated_transformer import load
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.io.text import fingerprint
from annotated_transformer.runs.folder import read_metrics, use_average
from annotated_transformer.runs.settings import (
    Recipe,
    get_recipe,
    override,
    recipe_from_dict,
)
from annotated_transformer.runs.train_run import RunOptions, train_or_resume


class Row(NamedTuple):
    "What a row of the table changes."

    settings: str  # those that differ from base's
    paper: str | None  # the row of Table 3 that it scales down; None = our own


ROWS = {
    "base": Row("", "base"),
    "A h=1": Row("n_heads=1", "A h=1"),
    "A h=2": Row("n_heads=2", "A h=4"),
    "A h=8": Row("n_heads=8", "A h=16"),
    "B d_k=8": Row("d_k=8", "B d_k=16"),
    "B d_k=16": Row("d_k=16", "B d_k=32"),
    "C N=2": Row("n_layers=2", "C N=2"),
    "C N=6": Row("n_layers=6", "C N=8"),
    "C d_model=64": Row("d_model=64", "C d_model=256"),
    "C d_model=256": Row("d_model=256", "C d_model=1024"),
    "C d_ff=64": Row("d_ff=64", "C d_ff=1024"),
    "C d_ff=1024": Row("d_ff=1024", "C d_ff=4096"),
    "D dropout=0.0": Row("dropout=0.0", "D P_drop=0.0"),
    "D dropout=0.2": Row("dropout=0.2", "D P_drop=0.2"),
    "D eps=0.0": Row("label_smoothing=0.0", "D eps_ls=0.0"),
    "D eps=0.2": Row("label_smoothing=0.2", "D eps_ls=0.2"),
    "E": Row("position=learned", "E"),
    "attention dropout": Row("attention_dropout=0.1", None),
    "1,500 steps": Row("max_steps=1500", None),  # has base converged?
    # both orders of the norm, with and without warm-up, at two rates (§5.3)
    "post, no warm-up": Row("warmup_steps=1", None),
    "post, rate 0.006": Row("peak_lr=6e-3", None),
    "post, rate 0.006, no warm-up": Row("peak_lr=6e-3 warmup_steps=1", None),
    "pre": Row("norm=pre", None),
    "pre, no warm-up": Row("norm=pre warmup_steps=1", None),
    "pre, rate 0.006": Row("norm=pre peak_lr=6e-3", None),
    "pre, rate 0.006, no warm-up": Row("norm=pre peak_lr=6e-3 warmup_steps=1", None),
}
# with less dropout because it is shorter; many small steps reach a lower loss in a
# short time than a few large ones; fp32 is nearly the same on every processor
BASE = override(
    get_recipe("multi30k-tiny"),
    "vocab_size=4000 batch_tokens=1000 max_steps=2000 peak_lr=3e-3 warmup_steps=400 "
    "dropout=0.1 precision=fp32 keep_last=5 average_last=1".split(),
)
N_LOOKS = 8  # at the validation set, in a run
BEAM, ALPHA = 4, 0.6  # §6.1
SEARCHES = [(1, 0.0), *product((4, 10), (0.0, 0.6, 1.0))]


def recipe_of(row: Row, base: Recipe, seed: int) -> Recipe:
    "Base with the settings of a row."
    return override(base, [*row.settings.split(), f"seed={seed}"])


def decoding(run: Path, corpus: Corpus, device: str) -> list[dict]:
    "BLEU of a finished run by beam size, α and number of averaged checkpoints (§6.1)."
    found = []
    for n_averaged in (1, 5):
        use_average(run, n_averaged)
        for beam, alpha in SEARCHES:
            translator = load(run, device, search_with(beam, alpha))
            how = {"averaged": n_averaged, "beam_size": beam, "alpha": alpha}
            found.append({**how, "bleu": bleu_on(translator, corpus.valid)})
    use_average(run, 1)
    return found


def validation_passes(run: Path) -> list[dict]:
    return [record for record in read_metrics(run) if "valid_loss" in record]


def measured(run: Path, corpus: Corpus, device: str) -> dict:
    "A finished run on the validation set: the loss after its last step, BLEU with the weights that validate best (§6.2)."
    looks = validation_passes(run)
    translator = load(run, device, search_with(BEAM, ALPHA))
    return {
        "valid_loss": looks[-1]["valid_loss"],  # nats per token, without smoothing
        "bleu": bleu_on(translator, corpus.valid),
        "n_parameters": n_parameters(translator.model),
        "seconds": looks[-1]["seconds"],  # of training, by the clock
        "curve": [[look["step"], look["valid_loss"]] for look in looks],
    }


def run_name(row: str, seed: int) -> str:
    "What the folder of a run, and the file of its measures, are called."
    return f"{row.replace(' ', '-')}-seed{seed}"


class Runs:
    "The runs of a folder, which several commands can fill: a file for each that ended."

    def __init__(self, out: Path, shared: dict, rows: Iterable[str]):
        self.out, self.shared, self.rows = out, shared, list(rows)
        out.mkdir(parents=True, exist_ok=True)

    def file(self, row: str, seed: int) -> Path:
        return self.out / f"{run_name(row, seed)}.json"

    def train(self, corpus: Corpus, recipe: Recipe, run: Path, device: str) -> None:
        "Train, or go on; a line says how to if it is interrupted."
        try:
            train_or_resume(corpus, recipe, run, RunOptions(device))
        except KeyboardInterrupt:
            line = f"{run} is interrupted: the same command continues it"
            raise SystemExit(line) from None

    def add(self, row: dict, found: dict) -> None:
        "A run that ended: what its row is, and its measures."
        file = self.file(row["row"], found["seed"])
        write(file, {"shared": self.shared, **row, "found": found})
        self.write_table()
        shown = {key: value for key, value in found.items() if key != "curve"}
        print(row["row"], shown, flush=True)

    def take(self, recorded: dict) -> None:
        "The runs of an earlier table, as if they had been trained in this folder."
        of_base = {key: recorded[key] for key in self.shared}
        # settings that are later than the record have their defaults
        of_base |= asdict(recipe_from_dict(recorded))
        for row in recorded["rows"]:
            for found in row["found"]:
                file = self.file(row["row"], found["seed"])
                write(file, {"shared": of_base, **row, "found": found})

    def table(self) -> dict:
        "The measures of all runs so far, in the order of the rows, their runs by seed."
        files = self.out.glob("*-seed*.json")
        runs = [json.loads(file.read_text("utf-8")) for file in files]
        runs.sort(key=lambda run: (self.rows.index(run["row"]), run["found"]["seed"]))
        rows: dict[str, dict] = {}
        for run in runs:
            found = run.pop("found")
            if run.pop("shared") != self.shared:
                line = f"{self.out} has runs of another base or text: choose another"
                raise SystemExit(line)
            rows.setdefault(run["row"], run | {"found": []})["found"].append(found)
        return {"format": 2, **self.shared, "rows": list(rows.values())}

    def write_table(self) -> None:
        write(self.out / "table.json", self.table())


def provenance(seed: int) -> dict:
    made = about("", seed)
    return {key: made[key] for key in ("seed", "commit", "date", "hardware")}


def base_of(args: argparse.Namespace) -> Recipe:
    "Base with the settings of the command."
    base = override(BASE, args.set)
    return override(base, [f"valid_every={base.train.max_steps // N_LOOKS}"])


def start(
    args: argparse.Namespace, base: Recipe, rows: Iterable[str]
) -> tuple[Corpus, Runs]:
    "The text, and the folder of the runs, which is refused if its runs have another base."
    corpus = load_corpus(args.data, args.data_dir)
    corpus = corpus._replace(train=corpus.train[: args.n_train])
    shared = {
        "data": args.data,
        "train_text": fingerprint(corpus.train)[:16],
        "valid_text": fingerprint(corpus.valid)[:16],
        "beam_size": BEAM,
        "alpha": ALPHA,
        **asdict(base),
    }
    runs = Runs(args.out, shared, rows)
    if args.record:
        runs.take(json.loads(args.record.read_text("utf-8"))["table"])
        runs.write_table()
    runs.table()  # refuses a folder of another base
    return corpus, runs


def fill(args: argparse.Namespace) -> None:
    "Train and measure each run that has no measures yet, and write the table."
    base = base_of(args)
    plan = [
        (name, seed, recipe_of(ROWS[name], base, seed))
        for seed, name in product(args.seeds, args.rows)
    ]
    corpus, runs = start(args, base, ROWS)
    for name, seed, recipe in plan:
        run = args.out / run_name(name, seed)
        if runs.file(name, seed).exists():
            continue
        runs.train(corpus, recipe, run, args.device)
        found = {**provenance(seed), **measured(run, corpus, args.device)}
        if name == "base":
            found["decoding"] = decoding(run, corpus, args.device)
        changes = ROWS[name].settings.split()
        row = {"row": name, "paper": ROWS[name].paper, "changes": changes}
        runs.add({**row, "steps": recipe.train.max_steps}, found)


def arguments(doc: str, out: str, rows: Iterable[str]) -> argparse.ArgumentParser:
    "The options of a program that fills a folder with runs."
    parser = options(doc, out)
    add = parser.add_argument
    add("--data", choices=("multi30k", "builtin"), default="multi30k")
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    add("--n-train", type=int, default=10_000, help="pairs, the first of the text")
    add("--rows", nargs="+", choices=rows, default=list(rows), metavar="ROW")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--record", type=Path, help="take its runs, and train those that it lacks")
    add("--device", default="cpu")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of base")
    return parser


def main() -> None:
    fill(arguments(__doc__, "runs/variations", ROWS).parse_args())


if __name__ == "__main__":
    main()
