#!/usr/bin/env python
"""Parsing (§6.3): train on trees, parse held-out sentences with the paper's search settings, count brackets as EVALB does.

    python benchmarks/parsing.py --data builtin --out builtin.json
    python benchmarks/parsing.py --data builtin --mark tag --out builtin_tag.json
    python benchmarks/parsing.py --data treebank --data-dir DATA --out treebank.json
    tools/record.py results/parsing.json --command "…" --seed 0 \\
        --json builtin=builtin.json --json builtin_tag=builtin_tag.json --json treebank=treebank.json

DATA holds treebank/treebank.zip, the sample of the Penn Treebank that NLTK distributes for non-commercial use. No sentence or tree of it
is written to --out; the run folder, whose vocabulary and encoded text are made of it, is removed unless --run names one. Beam, α and the
longest output are read from reference/paper_tables.json. Seconds are CPU time of this process: with one thread they hold beside other work.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from annotated_transformer.data.corpus import Corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.engines.packed import ready_to_translate
from annotated_transformer.experiments.parsing import (
    BracketScore,
    LinearisationErrors,
    Tree,
    bracket_score,
    read_trees,
)
from annotated_transformer.experiments.parsing_results import (
    ParsingResult,
    load_treebank,
    parse,
    parsing_experiment,
)
from annotated_transformer.model.config import Recipe, get_recipe, override
from annotated_transformer.runs.folder import load_run
from annotated_transformer.runs.train_run import RunOptions, train_run
from annotated_transformer.translating.translate import Translator

PAPER = json.loads(
    (
        Path(__file__).resolve().parent.parent / "reference" / "paper_tables.json"
    ).read_text(encoding="utf-8")
)["setup"]["parsing"]
MORE = int(PAPER["max_length"].rpartition(" ")[2])  # "input length + 300"
SETTINGS = {  # what differs from the recipe "tiny", which is 128 wide
    "builtin": [
        "n_pieces=1500",
        "batch_tokens=300",
        "max_steps=2000",
        "warmup_steps=200",
        "valid_every=500",
        "save_every=2000",
    ],
    "treebank": [
        "n_pieces=1500",
        "batch_tokens=1000",
        "max_steps=6000",
        "warmup_steps=500",
        "peak_lr=2e-3",
        "dropout=0.2",
        "precision=auto",
        "max_len=400",
        "valid_every=250",
        "save_every=1000",
    ],
}
BOTH = [
    "norm=pre",
    "peak_lr=3e-3",
]  # post-norm, with tags as leaves, made no use of the source within 3,000 steps
SIZES = {"train": 12_000, "valid": 300, "test": 500}  # built-in trees
LENGTHS = (
    10,
    20,
    30,
    40,
    10_000,
)  # words: upper ends of the groups that F1 is told for


def load_trees(data: str, data_dir: str | None, split: str) -> list[Tree]:
    if data == "treebank":
        return load_treebank(data_dir, split)
    return [read_trees(s.tree)[0] for s in builtin(SIZES[split], split=split)]


def by_length(result: ParsingResult, n_words: list[int]) -> list[dict]:
    "F1 of the sentences of up to 10 words, up to 20, …; the last group's name is the longest sentence."
    found, last = [], 0
    for upper in LENGTHS:
        here = [i for i, n in enumerate(n_words) if last < n <= upper]
        if here:
            found.append(
                {
                    "words": min(upper, max(n_words)),
                    "n": len(here),
                    "f1": round(
                        BracketScore.total([result.scores[i] for i in here]).f1, 2
                    ),
                }
            )
        last = upper
    return found


def translator(run: Path, beam_size: int, alpha: float) -> Translator:
    model, vocab, *_ = load_run(run)
    return Translator(
        ready_to_translate(model),
        vocab,
        batch_tokens=1000,
        max_tokens=1000,
        search=search_with(beam_size, alpha),
        extra_tokens=MORE,
    )


def train_with(
    recipe: Recipe, args: argparse.Namespace, run: Path, noted: dict[str, float]
) -> Callable:
    "The function that the experiment is given: pairs to a parser. It notes seconds and sizes."

    def train(train_pairs, valid_pairs):
        began = time.process_time()
        train_run(
            Corpus(f"trees-{args.data}", "en", "tree", train_pairs, valid_pairs, []),
            recipe,
            run,
            RunOptions(args.device, minutes=args.minutes),
        )
        noted["train_cpu_seconds"] = round(time.process_time() - began, 1)
        model, vocab, *_ = load_run(run)
        noted.update(
            n_parameters=sum(p.numel() for p in model.parameters()), n_pieces=len(vocab)
        )
        return translator(run, args.beam_size, args.alpha).translate

    return train


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=SETTINGS, default="builtin")
    parser.add_argument(
        "--data-dir",
        default=os.environ.get("ANNOTATED_TRANSFORMER_DATA"),
        help="holds treebank/treebank.zip",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="stop training after this wall-clock time; without it at max_steps",
    )
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="settings of the recipe to change",
    )
    parser.add_argument(
        "--mark",
        choices=["word", "tag", "XX"],
        default="word",
        help="the token of a word in a linearised tree",
    )
    parser.add_argument("--beam-size", type=int, default=PAPER["beam"])
    parser.add_argument(
        "--alpha", type=float, default=PAPER["alpha"], help="of the length penalty"
    )
    parser.add_argument(
        "--device", default="cpu", help="to train on; the search is on the CPU"
    )
    parser.add_argument("--run", type=Path, help="keep the run folder here")
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    if args.data == "treebank" and not args.data_dir:
        parser.error("--data treebank needs --data-dir, or ANNOTATED_TRANSFORMER_DATA")
    recipe = override(
        get_recipe("tiny"),
        [f"n_layers={PAPER['layers']}", *BOTH, *SETTINGS[args.data], *args.set],
    )
    splits = {split: load_trees(args.data, args.data_dir, split) for split in SIZES}
    noted: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        began, run = time.process_time(), args.run or Path(scratch) / "run"
        result = parsing_experiment(
            *splits.values(), train_with(recipe, args, run, noted), args.mark
        )
        noted["search_cpu_seconds"] = round(
            time.process_time() - began - noted["train_cpu_seconds"], 1
        )
        greedy = parse(
            [tree.words() for tree in splits["test"]], translator(run, 1, 0).translate
        )
        about = json.loads((run / "config.json").read_text(encoding="utf-8"))
    score = BracketScore.total(result.scores)
    found = {
        "f1": round(score.f1, 2),
        "precision": round(score.precision, 2),
        "recall": round(score.recall, 2),
        "exact": round(score.exact, 2),
        "f1_greedy": round(
            BracketScore.total(
                [
                    bracket_score(gold, tree)
                    for gold, (tree, _) in zip(splits["test"], greedy)
                ]
            ).f1,
            2,
        ),
        "n_errors": score.n_errors,
        "n_skipped": score.n_skipped,
        "n_repaired": sum(map(any, result.errors)),
        "repairs": dict(
            zip(LinearisationErrors._fields, map(sum, zip(*result.errors)))
        ),
        "by_length": by_length(result, [len(tree.words()) for tree in splits["test"]]),
        **{f"n_{split}": len(trees) for split, trees in splits.items()},
        "mark": args.mark,
        "norm": recipe.model.norm,
        "beam_size": args.beam_size,
        "alpha": args.alpha,
        "more": MORE,
        "n_layers": recipe.model.n_layers,
        "d_model": recipe.model.d_model,
        "d_ff": recipe.model.d_ff,
        "dropout": recipe.train.dropout,
        "steps": about["steps"],
        "weights": about["weights"],
        **noted,
    }
    print(score, json.dumps(found, indent=1), sep="\n")
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
