#!/usr/bin/env python
"""What each ingredient gives on the 29,000 sentence pairs of Multi30k: one training run per row and seed, all scored alike.

    python results/ingredients.py --data-dir DATA --runs runs/ingredients --out ingredients.json
    python tools/record.py results/ingredients.json --command "…" --seed 0 --json ingredients=ingredients.json

A row is a recipe and a list of settings for it; `--rows` and `--seeds` choose some. A run takes one to three hours of one
core. It can be interrupted at any time: the same command continues it from its newest checkpoint, and a run that has ended is only
scored. The length penalty is chosen on the validation set, by BLEU; the test set is used once, with that choice.
"""

import argparse
import json
import shutil
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import Pairs, bleu_on, options, write

from annotated_transformer import load
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.data.prepared import open_prepared
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.runs.checkpoint import latest
from annotated_transformer.runs.folder import read_metrics
from annotated_transformer.runs.settings import Recipe, get_recipe, override
from annotated_transformer.runs.train_run import RunOptions, train_or_resume
from annotated_transformer.translating.evaluate import bleu_variants

SHORT = "max_steps=1600 valid_every=400 warmup_steps"
ROWS = {  # name: recipe, settings
    # four epochs: which norm placement and which peak rate learn fastest
    "short, post-norm, 1e-3": ("multi30k-small", f"{SHORT}=300 peak_lr=1e-3"),
    "short, post-norm, 2e-3": ("multi30k-small", f"{SHORT}=400 peak_lr=2e-3"),
    "short, pre-norm, 1e-3": ("multi30k-small", f"{SHORT}=300 peak_lr=1e-3 norm=pre"),
    "short, pre-norm, 2e-3": ("multi30k-small", f"{SHORT}=300 peak_lr=2e-3 norm=pre"),
    "short, pre-norm, 4e-3": ("multi30k-small", f"{SHORT}=300 peak_lr=4e-3 norm=pre"),
    "short, post-norm, half weights, 2e-3": (
        "multi30k-small",
        f"{SHORT}=300 peak_lr=2e-3 init_gain=0.5",
    ),
    # 25 epochs of a model of 7.6 million parameters
    "small, post-norm": ("multi30k-small", ""),
    "small, pre-norm, dropout 0.3": (
        "multi30k-small",
        "norm=pre peak_lr=2e-3 dropout=0.3",
    ),
    "small, pre-norm, dropout 0.3, R-Drop": (
        "multi30k-small",
        "norm=pre peak_lr=2e-3 dropout=0.3 r_drop=5 batch_tokens=750 max_steps=10000",
    ),
    # 2.3 million parameters (2.9 with 12,000 tokens), 43 to 71 epochs
    "tiny, pre-norm": ("multi30k-tiny", "norm=pre init_gain=1"),
    "tiny, half weights": ("multi30k-tiny", ""),
    "tiny, half weights, batches of 2,048": (
        "multi30k-tiny",
        "batch_tokens=2048 max_steps=16000 warmup_steps=2000 peak_lr=3e-3 "
        "valid_every=800 save_every=200",
    ),
    "tiny, half weights, BPE-dropout": ("multi30k-tiny", "bpe_dropout=0.1"),
    "tiny, half weights, vocabulary of 12,000": ("multi30k-tiny", "vocab_size=12000"),
    # the last row without R-Drop: as many updates and epochs, half of the computation
    "tiny, half weights, dropout 0.2": ("multi30k-tiny-r-drop", "r_drop=0"),
    "tiny, half weights, attention dropout": (
        "multi30k-tiny-r-drop",
        "r_drop=0 attention_dropout=0.1",
    ),
    "tiny, half weights, dropout 0.2, R-Drop": ("multi30k-tiny-r-drop", ""),
}
ALPHAS = (0.6, 1.0, 1.4)
BEAM = 5  # as Wu et al. 2021, with whom the result is compared


def recipe_of(row: str, seed: int, settings: list[str]) -> Recipe:
    "The recipe of a row; `settings` are for tests."
    name, own = ROWS[row]
    return override(get_recipe(name), [*own.split(), *settings, f"seed={seed}"])


def bleu_of(
    run: Path, pairs: Pairs, device: str, beam_size: int, alpha: float
) -> float:
    "Cased BLEU of a run's translations of `pairs`."
    return round(bleu_on(load(run, device, search_with(beam_size, alpha)), pairs), 2)


def last_checkpoint_bleu(pairs: Pairs, run: Path, device: str, alpha: float) -> float:
    "`bleu_of` for the newest checkpoint, in place of an average of some."
    with TemporaryDirectory() as folder:
        newest = latest(run / "checkpoints")
        for path in (
            run / "config.json",
            run / "vocab.model",
            newest / "model.safetensors",
        ):
            shutil.copy(path, folder)
        return bleu_of(Path(folder), pairs, device, BEAM, alpha)


def scored(run: Path, corpus: Corpus, device: str) -> dict:
    """BLEU on validation for each length penalty, and on the test set for the best.

    For comparison: greedy search on validation and on about 1,000 training pairs, and
    the newest checkpoint on validation.
    """
    train = list(corpus.train)
    train, valid = train[:: len(train) // 1000 or 1], list(corpus.valid)
    by_alpha = {a: bleu_of(run, valid, device, BEAM, a) for a in ALPHAS}
    alpha = max(by_alpha, key=lambda alpha: by_alpha[alpha])
    sources, references = map(list, zip(*corpus.test))
    translations = load(run, device, search_with(BEAM, alpha)).translate(sources)
    found = bleu_variants(translations, references, "de")
    return {
        "validation": [{"alpha": a, "bleu": b} for a, b in by_alpha.items()],
        "greedy": bleu_of(run, valid, device, 1, alpha),
        "greedy_on_train": bleu_of(run, train, device, 1, alpha),
        "last_checkpoint": last_checkpoint_bleu(valid, run, device, alpha),
        "alpha": alpha,
        "test": {score.name: round(score.value, 2) for score in found},
        "signature": found[0].signature,
    }


def measured(
    row: str, seed: int, corpus: Corpus, args: argparse.Namespace
) -> dict[str, object]:
    "Train a row to its end, or continue it, and score it."
    recipe = recipe_of(row, seed, args.set)
    run = args.runs / f"{row.replace(', ', '_').replace(' ', '-')}_{seed}"
    about = train_or_resume(corpus, recipe, run, RunOptions(args.device))
    _, tgt_lengths = open_prepared(run / "data").valid.lengths().T
    records = read_metrics(run)
    passes = [record for record in records if "valid_loss" in record]
    steps = [record for record in records if "loss" in record]
    return {
        "row": row,
        "seed": seed,
        "recipe": ROWS[row][0],
        "settings": ROWS[row][1],
        "steps": about["steps"],
        "epochs": steps[-1]["epoch"] + 1,
        "seconds": round(steps[-1]["seconds"]),
        "curve": [[r["step"], round(r["valid_loss"], 3)] for r in passes],
        "tokens_per_sentence": round(float(tgt_lengths.mean()), 3),  # of validation
        **scored(run, corpus, args.device),
    }


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    add("--runs", type=Path, default=Path("runs/ingredients"))
    add("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    add("--seeds", nargs="*", type=int, default=[0])
    add("--device", default="cpu")
    add("--set", nargs="*", default=[], help="settings for all rows")
    args = parser.parse_args()
    corpus = load_corpus("multi30k", args.data_dir)
    found = []
    for seed, row in product(args.seeds, args.rows):
        found.append(measured(row, seed, corpus, args))
        print(json.dumps({k: v for k, v in found[-1].items() if k != "curve"}))
        write(args.out, {"beam_size": BEAM, "runs": found})


if __name__ == "__main__":
    main()
