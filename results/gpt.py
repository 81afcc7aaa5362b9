#!/usr/bin/env python
"""Translation by an encoder–decoder and by one sequence "source, separator, target", at equal parameters and steps (notebook 72).

    nice -n 5 python results/gpt.py --out gpt.json
    tools/record.py results/gpt.json --command "…" --seed 0 --json gpt=gpt.json

Every row of `models` is trained from each seed on the same batches of the built-in corpus in the same order, and translates held-out
sentences by greedy search. From the first seed it is trained at each learning rate, from the others at the best one. One thread, about
ten minutes. FILE is written after each run; started again, the command goes on.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from figures import Data, earlier, encoded, n_parameters, options, write
from torch import nn

from annotated_transformer.data.batch import training_steps
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.engines.batched_search import batched_greedy_search
from annotated_transformer.experiments.gpt import (
    NextTokenLoss,
    PromptDecoder,
    build_gpt,
    join_pairs,
    prefix_mask,
)
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import PrefixDecoder
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import BatchLoss, validation_loss
from annotated_transformer.runs.settings import get_recipe
from annotated_transformer.training.label_smoothing import smoothed_loss
from annotated_transformer.training.optimizer import adam, linear_schedule
from annotated_transformer.training.train import train
from annotated_transformer.translating.evaluate import bleu
from annotated_transformer.translating.translate import Translator


class Row(NamedTuple):
    "A kind of model: its depth, what is trained, and how it decodes."

    n_layers: str
    objective: Callable[[], nn.Module]
    decoder: Callable


def models(data: Data, args: argparse.Namespace) -> dict[str, Row]:
    """The rows of the comparison.

    Twelve of thirty-six parts of the width squared are in an encoder layer, sixteen in a decoder layer: three of both are seven
    of the first. So all rows have one width, and parameters that differ in norms and biases alone.
    """
    n, pad_id, bos_id = len(data.vocab), data.vocab.pad_id, data.vocab.bos_id
    two = ModelConfig(args.n_layers, args.d_model, args.d_ff, args.n_heads, norm="pre")
    one = replace(two, n_layers=args.n_layers * 7 // 3)
    if args.today:
        two, one = (
            replace(sizes, **TODAY, d_ff=d_ff)
            for sizes, d_ff in ((two, 204), (one, 194))
        )
    rows = partial(join_pairs, pad_id=pad_id)
    prefix = partial(prefix_mask, pad_id=pad_id, bos_id=bos_id)

    def joined(mask) -> Row:
        return Row(
            f"{one.n_layers}",
            lambda: NextTokenLoss(build_gpt(one, n, pad_id, mask=mask), rows),
            PromptDecoder,
        )

    return {
        "encoder–decoder": Row(
            f"{two.n_layers} + {two.n_layers}",
            lambda: BatchLoss(
                build_transformer(two, n, pad_id), 0.0, loss=smoothed_loss
            ),
            PrefixDecoder,
        ),
        "one sequence": joined(None),
        "one sequence, prefix mask": joined(prefix),
    }


# what came after the paper (71); `d_ff` then keeps the parameters equal
PARTS = "norm_kind position activation n_kv_heads qk_norm bias".split()
SIZES = get_recipe("multi30k-tiny-today").model
TODAY: dict[str, Any] = {part: getattr(SIZES, part) for part in PARTS}


def load_data(args: argparse.Namespace) -> Data:
    sizes = {"n_train": args.n_train, "n_valid": 500, "n_test": args.n_test}
    corpus = load_corpus("builtin", **sizes)
    return encoded(corpus.train, corpus.valid, corpus.test, args.vocab_size)


def learn(
    row: Row, data: Data, rate: float, seed: int, args: argparse.Namespace
) -> tuple[nn.Module, dict]:
    "A model after all steps, and its figures; validation is not in the time."
    torch.manual_seed(seed)
    objective = row.objective()
    curve: list[list[float]] = []
    began, paused = time.process_time(), 0.0

    records = train(
        objective,
        training_steps(data.train, data.vocab, args.batch_tokens, seed),
        adam(objective.parameters()),
        partial(
            linear_schedule,
            peak_lr=rate,
            warmup_steps=max(1, args.steps // 10),
            max_steps=args.steps + 1,
        ),
        args.steps,
        clip_norm=1.0,
    )
    for record in records:
        if record.step % args.valid_every and record.step < args.steps:
            continue
        stopped = time.process_time()
        loss = validation_loss(objective, data.valid)
        curve.append([record.step, round(stopped - began - paused, 1), round(loss, 4)])
        paused += time.process_time() - stopped
    _, seconds, loss = curve[-1]
    return objective.model.eval(), {
        "n_parameters": n_parameters(objective),
        "cpu_seconds": seconds,
        "valid_loss": loss,
        "curve": curve,
    }


def translate(row: Row, model: nn.Module, data: Data) -> dict:
    "Exact match and BLEU of greedy translations of held-out sentences."
    translator = Translator(
        model, data.vocab, search=batched_greedy_search, decoder=row.decoder
    )
    sources, references = map(list, zip(*data.test))
    hypotheses = translator.translate(sources)
    exact = sum(a == b for a, b in zip(hypotheses, references))
    return {
        "exact_match": exact / len(references),
        "bleu": round(bleu(hypotheses, references).value, 2),
    }


def rates_to_run(entry: dict, seed: int, args: argparse.Namespace) -> list[float]:
    "All of them from the first seed, and from the others the one with the lowest validation loss there."
    if seed == args.seeds[0]:
        return args.rates
    tried = [run for run in entry["runs"] if run["seed"] == args.seeds[0]]
    return [min(tried, key=lambda run: run["valid_loss"])["rate"]]


def main() -> None:
    parser = options(__doc__, "gpt.json")
    add = parser.add_argument
    add("--n-layers", type=int, default=3, help="of each stack, a multiple of 3")
    add("--d-model", type=int, default=64)
    add("--d-ff", type=int, default=256)
    add("--n-heads", type=int, default=4)
    add("--steps", type=int, default=800)
    add("--rates", type=float, nargs="+", default=[4e-3, 8e-3, 16e-3])
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--batch-tokens", type=int, default=500)
    add("--n-train", type=int, default=20_000, help="sentence pairs")
    add("--n-test", type=int, default=500, help="sentences to translate")
    add("--vocab-size", type=int, default=1000)
    add("--valid-every", type=int, default=200, help="steps")
    add("--today", action="store_true", help="the parts of later models")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so that processor time compares the models
    found = {"rows": {}} | earlier(args.out, args)
    data = load_data(args)
    found |= {"n_vocab": len(data.vocab), "n_test": len(data.test)}
    rows = models(data, args)
    for (name, row), seed in product(rows.items(), args.seeds):
        entry = found["rows"].setdefault(name, {"n_layers": row.n_layers, "runs": []})
        for rate in rates_to_run(entry, seed, args):
            if any((run["rate"], run["seed"]) == (rate, seed) for run in entry["runs"]):
                continue
            model, about = learn(row, data, rate, seed, args)
            about = {"rate": rate, "seed": seed, **about, **translate(row, model, data)}
            entry["runs"].append(about)
            print(name, {k: v for k, v in about.items() if k != "curve"}, flush=True)
            write(args.out, found)


if __name__ == "__main__":
    main()
