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
from annotated_transformer.runs.settings import Recipe, get_recipe, override
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


def measured(run: Path, corpus: Corpus, device: str) -> dict:
    "A finished run on the validation set, by its last weights (§6.2)."
    looks = [record for record in read_metrics(run) if "valid_loss" in record]
    translator = load(run, device, search_with(BEAM, ALPHA))
    return {
        "valid_loss": looks[-1]["valid_loss"],  # nats per token, without smoothing
        "bleu": bleu_on(translator, corpus.valid),
        "n_parameters": n_parameters(translator.model),
        "seconds": looks[-1]["seconds"],  # of training, by the clock
        "curve": [[look["step"], look["valid_loss"]] for look in looks],
    }


def table(shared: dict, out: Path) -> dict:
    "The measures of all runs so far: rows in the order of `ROWS`, their runs by seed."
    runs = [json.loads(file.read_text("utf-8")) for file in out.glob("*-seed*.json")]
    runs.sort(key=lambda run: (list(ROWS).index(run["row"]), run["seed"]))
    rows: dict[str, dict] = {}
    for run in runs:
        if run.pop("shared") != shared:
            raise SystemExit(f"{out} has runs of another base or text: choose another")
        row = {key: run.pop(key) for key in ("row", "paper", "changes", "steps")}
        rows.setdefault(row["row"], row | {"found": []})["found"].append(run)
    return {"format": 2, **shared, "rows": list(rows.values())}


def run_name(row: str, seed: int) -> str:
    "What the folder of a run, and the file of its measures, are called."
    return f"{row.replace(' ', '-')}-seed{seed}"


def take(recorded: dict, shared: dict, out: Path) -> None:
    "The runs of an earlier table as files of a folder, as if they had been trained in it."
    out.mkdir(parents=True, exist_ok=True)
    for row in recorded["rows"]:
        about_row = {key: value for key, value in row.items() if key != "found"}
        for run in row["found"]:
            of_base = {key: recorded[key] for key in shared}
            file = out / f"{run_name(row['row'], run['seed'])}.json"
            write(file, {"shared": of_base, **about_row, **run})


def fill(args: argparse.Namespace) -> None:
    "Train and measure each run that has no measures yet, and write the table."
    base = override(BASE, args.set)
    every = base.train.max_steps // N_LOOKS
    base = override(base, [f"valid_every={every}"])
    plan = [
        (name, seed, recipe_of(ROWS[name], base, seed))
        for seed, name in product(args.seeds, args.rows)
    ]
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
    if args.record:
        take(json.loads(args.record.read_text("utf-8"))["table"], shared, args.out)
    so_far = table(shared, args.out)  # refuses a folder of another base
    if args.record:
        write(args.out / "table.json", so_far)
    for name, seed, recipe in plan:
        run = args.out / run_name(name, seed)
        file = args.out / f"{run.name}.json"
        if file.exists():
            continue
        try:
            train_or_resume(corpus, recipe, run, RunOptions(args.device))
        except KeyboardInterrupt:
            line = f"{run} is interrupted: the same command continues it"
            raise SystemExit(line) from None
        made = {key: about("", seed)[key] for key in ("commit", "date", "hardware")}
        measures = {"seed": seed, **made, **measured(run, corpus, args.device)}
        if name == "base":
            measures["decoding"] = decoding(run, corpus, args.device)
        changes = ROWS[name].settings.split()
        row = {"row": name, "paper": ROWS[name].paper, "changes": changes}
        write(
            file, {"shared": shared, **row, "steps": recipe.train.max_steps, **measures}
        )
        write(args.out / "table.json", table(shared, args.out))
        print(name, {k: v for k, v in measures.items() if k != "curve"}, flush=True)


def main() -> None:
    parser = options(__doc__, "runs/variations")
    add = parser.add_argument
    add("--data", choices=("multi30k", "builtin"), default="multi30k")
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    add("--n-train", type=int, default=10_000, help="pairs, the first of the text")
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--record", type=Path, help="take its runs, and train those that it lacks")
    add("--device", default="cpu")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of base")
    fill(parser.parse_args())


if __name__ == "__main__":
    main()
