#!/usr/bin/env python
"""What came after the paper, one setting at a time: a training run for each row and seed, from the base of Table 3's rows (notebook 71d).

    OMP_NUM_THREADS=1 python results/since_2017.py --data-dir DATA --out runs/since_2017
    python tools/record.py results/since_2017.json --command "…" --seed 0 --json table=runs/since_2017/table.json

Every row has as many parameters as base, to 1 %: `d_ff` is adjusted, or `d_model`. Its learning rate is the best of three on another seed,
after a quarter of the steps; a row that begins with "today" takes today's,
that of 1,500 steps base's. Then it is trained from each seed for all steps. A run takes about
eight minutes of one core. It can be interrupted at any time: the same command continues it. When it ends, its measures are written to
ROW-seedN.json, and table.json collects those of all runs so far. Two commands with different rows can therefore fill one folder at the
same time. `--speed` measures the finished runs of the first seed one after the other, several times round: nothing else should run then.
"""

import argparse
import json
import time
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from figures import about, bleu_on, options, write
from variations import ALPHA, BASE, BEAM, N_LOOKS, measured, run_name

from annotated_transformer.data.batch import encode_pairs, training_steps
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.engines.packed import prepare_for_inference
from annotated_transformer.experiments.variations import SHORTER
from annotated_transformer.io.text import fingerprint
from annotated_transformer.runs.folder import load_run
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.runs.settings import Recipe, override
from annotated_transformer.runs.train_run import RunOptions, train_or_resume
from annotated_transformer.training.train import train
from annotated_transformer.translating.translate import Translator


class Row(NamedTuple):
    "What a row changes, and which sizes keep its parameters those of base."

    settings: str = ""
    adjusted: str = ""


MAX_LEN = 16  # tokens of the training pairs of "short"; decoded up to twice as many
TODAY = {
    "pre-norm": "norm=pre",
    "RMSNorm": "norm_kind=rms",
    "rotary": "position=rotary",
    "SwiGLU": "activation=swiglu",
    "grouped queries": "n_kv_heads=2",
    "no biases": "bias=false",
    "QK norm": "qk_norm=true",
    "cosine": "schedule=cosine",
    "AdamW": "weight_decay=0.1",
}


def today(*without: str) -> Row:
    "What models of today have, without some of it."
    settings = " ".join(TODAY[name] for name in TODAY if name not in without)
    gated, shared = "SwiGLU" not in without, "grouped queries" not in without
    d_ff = {(1, 1): 236, (1, 0): 171, (0, 1): 354, (0, 0): 256}[gated, shared]
    return Row(settings, f"d_ff={d_ff}")


ROWS = {
    "base": Row(),
    "pre-norm": Row("norm=pre"),
    "rotary": Row("position=rotary"),
    "SwiGLU": Row("activation=swiglu", "d_ff=171"),
    "today": today(),
    SHORTER: Row("max_steps=1500"),  # has base converged?
    "RMSNorm": Row("norm_kind=rms"),
    "2 key heads": Row("n_kv_heads=2", "d_ff=352"),
    "1 key head": Row("n_kv_heads=1", "d_ff=400"),
    "QK norm": Row("qk_norm=true"),
    "Muon": Row("optimizer=muon"),
    "cosine": Row("schedule=cosine"),
    "inverse sqrt": Row("schedule=inverse_sqrt"),
    "AdamW": Row("weight_decay=0.1"),
    "no biases": Row("bias=false"),
    "GELU": Row("activation=gelu"),
    "two matrices": Row("tied=false", "d_model=108 d_ff=234"),
    "short": Row(f"max_len={MAX_LEN}"),
    "short, rotary": Row(f"max_len={MAX_LEN} position=rotary"),
    **{
        f"today without {name}".replace("without no", "with"): today(name)
        for name in TODAY
    },
}
RATES = (1.5e-3, 3e-3, 6e-3)
RATE_SEED = 3
BASE_RATE = BASE.train.peak_lr


def recipe_of(name: str, base: Recipe, *more: str) -> Recipe:
    "Base with the settings of a row."
    row = ROWS[name]
    return override(base, [*row.settings.split(), *row.adjusted.split(), *more])


def quarter(base: Recipe) -> list[str]:
    "The settings of a run of a quarter of the steps, in which rates are compared."
    steps, warmup = base.train.max_steps // 4, base.train.warmup_steps // 4
    return [f"max_steps={steps}", f"warmup_steps={warmup}", f"valid_every={steps}"]


def trained(corpus: Corpus, recipe: Recipe, run: Path, device: str) -> None:
    "Train, or go on; a line says how to if it is interrupted."
    try:
        train_or_resume(corpus, recipe, run, RunOptions(device))
    except KeyboardInterrupt:
        line = f"{run} is interrupted: the same command continues it"
        raise SystemExit(line) from None


def provenance(seed: int) -> dict:
    return {key: about("", seed)[key] for key in ("commit", "date", "hardware")}


def best_rate(name: str, base: Recipe, corpus: Corpus, args) -> dict:
    "The validation loss of a row at each rate, and the rate of the lowest."
    if name.startswith("today "):
        name = "today"
    name = "base" if name == SHORTER else name
    file = args.out / f"{run_name(name, RATE_SEED)}-rates.json"
    found: dict = {"losses": {}}
    if file.exists():
        found = json.loads(file.read_text("utf-8"))
    for rate in RATES:
        if str(rate) in found["losses"]:
            continue
        more = [f"peak_lr={rate}", f"seed={RATE_SEED}", *quarter(base)]
        run = args.out / f"{run_name(name, RATE_SEED)}-rate-{rate}"
        trained(corpus, recipe_of(name, base, *more), run, args.device)
        loss = measured(run, corpus._replace(valid=corpus.valid[:1]), args.device)
        found["losses"][str(rate)] = loss["valid_loss"]
        found |= {"seed": RATE_SEED, **provenance(RATE_SEED)}
        write(file, found)
        print(name, rate, loss["valid_loss"], flush=True)
    found["best"] = float(min(found["losses"], key=found["losses"].get))
    return found


def long_sentences(run: Path, corpus: Corpus, device: str) -> dict:
    "BLEU on held-out sources of up to `MAX_LEN` tokens, and of up to twice as many."
    model, vocab, *_ = load_run(run)
    prepare_for_inference(model.to(device))
    translator = Translator(
        model, vocab, search=search_with(BEAM, ALPHA), max_tokens=4 * MAX_LEN
    )
    found: dict[str, float] = {}
    for name, low, high in (
        ("within", 0, MAX_LEN),
        ("beyond", MAX_LEN, 2 * MAX_LEN),
    ):
        pairs = [
            pair for pair in corpus.valid if low < len(vocab.encode(pair[0])) <= high
        ]
        found |= {name: bleu_on(translator, pairs), f"n_{name}": len(pairs)}
    return found


def speed(names: list[str], corpus: Corpus, args) -> dict:
    """Tokens a second in training, sentences a second and bytes of cache in decoding.

    One thread, `n_rounds` rounds of all rows; base is among them. The decoder is the KV
    cache for every part; batches of 64 sentences, greedy.
    """
    cpu, n_steps = torch.device("cpu"), 12
    sources = [src for src, _ in corpus.valid[:256]]
    ready = {}
    for name in names:
        run = load_run(args.out / run_name(name, args.seeds[0]))
        objective, wrapped, optimizer, schedule = build_training(
            run.recipe, run.vocab, cpu
        )
        data = encode_pairs(corpus.train[:2000], run.vocab)
        prepare_for_inference(run.model)
        translator = Translator(
            run.model,
            run.vocab,
            search=search_with(1, 0.0),
            decoder=KVCache,
            batch_tokens=64 * 32,
        )
        ready[name] = run, data, wrapped, optimizer, schedule, translator
    found: dict = {name: {"train": [], "decode": []} for name in names}
    for _ in range(args.n_rounds):
        for name, (
            run,
            data,
            wrapped,
            optimizer,
            schedule,
            translator,
        ) in ready.items():
            steps = training_steps(
                data, run.vocab, run.recipe.train.batch_tokens, seed=0
            )
            start = time.perf_counter()
            records = train(wrapped, steps, optimizer, schedule, n_steps)
            n_tokens = sum(record.n_tokens for record in records)
            found[name]["train"].append(n_tokens / (time.perf_counter() - start))
            start = time.perf_counter()
            translator.translate(sources)
            n_a_second = len(sources) / (time.perf_counter() - start)
            found[name]["decode"].append(n_a_second)
    return found


def cache_bytes(run: Path) -> int:
    "Of keys and values of a hypothesis, per target token: all decoder layers."
    model, *_ = load_run(run)
    attns = [layer.self_attn for layer in model.decoder.layers]
    return sum(4 * (a.w_k.out_features + a.w_v.out_features) for a in attns)


def table(shared: dict, out: Path) -> dict:
    "The measures of all runs so far: rows in the order of `ROWS`, their runs by seed."
    runs = [json.loads(file.read_text("utf-8")) for file in out.glob("*-seed?.json")]
    runs.sort(key=lambda run: (list(ROWS).index(run["row"]), run["seed"]))
    rows: dict[str, dict] = {}
    for run in runs:
        if run.pop("shared") != shared:
            raise SystemExit(f"{out} has runs of another base or text: choose another")
        row = {key: run.pop(key) for key in ("row", "changes", "adjusted", "rates")}
        rows.setdefault(row["row"], row | {"found": []})["found"].append(run)
    return {"format": 1, **shared, "rows": list(rows.values())}


def take(recorded: dict, out: Path) -> None:
    "The runs of a record as files of a folder, as if they had been trained in it."
    for row in recorded["rows"]:
        of_row = {k: row[k] for k in ("row", "changes", "adjusted", "rates")}
        shared = {k: v for k, v in recorded.items() if k not in ("format", "rows")}
        for run in row["found"]:
            file = out / f"{run_name(row['row'], run['seed'])}.json"
            write(file, {"shared": shared, **of_row, **run})


def fill(args: argparse.Namespace) -> None:
    "Train and measure each run that has no measures yet, and write the table."
    base = override(BASE, args.set)
    base = override(base, [f"valid_every={base.train.max_steps // N_LOOKS}"])
    corpus = load_corpus(args.data, args.data_dir)
    corpus = corpus._replace(train=corpus.train[: args.n_train])
    shared = {
        "data": args.data,
        "train_text": fingerprint(corpus.train)[:16],
        "valid_text": fingerprint(corpus.valid)[:16],
        "beam_size": BEAM,
        "alpha": ALPHA,
        **json.loads(json.dumps(asdict(base))),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    if args.record:
        take(json.loads(args.record.read_text("utf-8"))["table"], args.out)
        write(args.out / "table.json", table(shared, args.out))
    if args.speed:
        write(args.out / "speed.json", speed(args.rows, corpus, args))
        return
    for name, seed in product(args.rows, args.seeds):
        run = args.out / run_name(name, seed)
        file = args.out / f"{run.name}.json"
        if file.exists():
            continue
        rates = best_rate(name, base, corpus, args)
        recipe = recipe_of(name, base, f"seed={seed}", f"peak_lr={rates['best']}")
        trained(corpus, recipe, run, args.device)
        measures = {"seed": seed, **provenance(seed)}
        measures |= measured(run, corpus, args.device)
        measures["cache_bytes"] = cache_bytes(run)
        if name.startswith("short"):
            measures |= long_sentences(run, corpus, args.device)
        row = {
            "row": name,
            "changes": ROWS[name].settings.split(),
            "adjusted": ROWS[name].adjusted.split(),
            "rates": rates,
        }
        write(file, {"shared": shared, **row, **measures})
        write(args.out / "table.json", table(shared, args.out))
        print(name, {k: v for k, v in measures.items() if k != "curve"}, flush=True)


def main() -> None:
    parser = options(__doc__, "runs/since_2017")
    add = parser.add_argument
    add("--data", choices=("multi30k", "builtin"), default="multi30k")
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    add("--n-train", type=int, default=10_000, help="pairs, the first of the text")
    add("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2])
    add("--record", type=Path, help="take its runs, and train those that it lacks")
    add("--device", default="cpu")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="settings of base")
    add("--speed", action="store_true", help="measure finished runs")
    add("--n-rounds", type=int, default=5, help="of --speed")
    fill(parser.parse_args())


if __name__ == "__main__":
    main()
