#!/usr/bin/env python
"""What came before the Transformer, next to it: equal parameters, and equal steps or equal processor time (notebook 20b).

    OMP_NUM_THREADS=1 python results/background.py --data-dir DATA --steps 1200 --out steps.json
    OMP_NUM_THREADS=1 python results/background.py --data-dir DATA --minutes 2.4 --systems LSTM ConvS2S … --out minutes.json
    OMP_NUM_THREADS=1 python results/background.py --data-dir DATA --steps 900 --systems Transformer --out shorter.json
    tools/record.py results/background.json --command "…" --seed 0 --json steps=steps.json --json minutes=minutes.json --json shorter=shorter.json

Each system is built as wide as it must be to have the parameters of the Transformer. It learns at each of `--rates` for `--try-share` of
the run, and then at the best of them, judged by the validation loss, with each seed: for `--minutes` of processor time on one thread, or
for `--steps` of as many tokens. Validation is not counted. The learning rate goes up in the first fifth of the run, by the processor's
clock or by steps, and then down in a line to 0, so that every run ends with its schedule. FILE is written after each run; started again,
the command goes on with the next one.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from figures import Pairs, earlier, encoded, n_parameters, options, write
from torch import nn

from annotated_transformer.data.batch import Batch, EncodedPairs, training_steps
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.vocab import Vocab
from annotated_transformer.engines.choose import FAST
from annotated_transformer.experiments.compared import equal_systems
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.runs.recipe import BatchLoss, validation_loss
from annotated_transformer.runs.settings import Recipe, get_recipe, override
from annotated_transformer.training.optimizer import adam
from annotated_transformer.training.train import train
from annotated_transformer.translating.evaluate import bleu
from annotated_transformer.translating.translate import Translator

RECIPES = {
    "builtin": get_recipe("tiny"),
    "multi30k": override(
        get_recipe("tiny"), ["vocab_size=4000", "dropout=0.1", "init_gain=0.5"]
    ),
}
WARM_UP = 0.2  # of a run, as in results/variations.py
N_LOOKS = 10  # at the validation set, in a run


def decoder_of(model: nn.Module):
    "The systems of §2 decode by themselves, the Transformer with a cache."
    return FAST.decoder(model) if isinstance(model, Transformer) else model


class Clock:
    "Seconds of processor time since it was made, those spent in `paused` left out."

    def __init__(self):
        self.began = time.process_time()

    def seconds(self) -> float:
        return time.process_time() - self.began

    def paused(self, action: Callable):
        before = time.process_time()
        result = action()
        self.began += time.process_time() - before
        return result


class Data(NamedTuple):
    "What every system is trained and measured on."

    recipe: Recipe
    vocab: Vocab
    train: EncodedPairs
    valid: list[Batch]
    test: Pairs


def load_data(args: argparse.Namespace) -> Data:
    recipe = RECIPES[args.data]
    corpus = load_corpus(args.data, args.data_dir)
    text = corpus.train[: args.n_train], corpus.valid, corpus.test
    return Data(recipe, *encoded(*text, recipe.train.vocab_size))


def learn(
    build: Callable[[], nn.Module],
    data: Data,
    peak_lr: float,
    length: dict[str, float],  # "minutes" of processor time, or "steps"
    seed: int,
) -> tuple[nn.Module, dict]:
    "A model trained for so long, and its figures."
    torch.manual_seed(seed)
    settings = data.recipe.train
    objective = BatchLoss(build(), settings.label_smoothing)
    curve: list[list[float]] = []
    n_tokens = n_steps = 0
    clock = Clock()

    def share() -> float:  # of the run that is behind us
        if length["steps"]:
            return n_steps / length["steps"]
        return clock.seconds() / (60 * length["minutes"])

    def rate(step: int) -> float:
        return peak_lr * max(
            1e-3, min(share() / WARM_UP, (1 - share()) / (1 - WARM_UP))
        )

    steps = training_steps(data.train, data.vocab, settings.batch_tokens, seed)
    optimizer = adam(objective.parameters())
    for record in train(objective, steps, optimizer, rate, 10**9, clip_norm=1.0):
        n_tokens, n_steps = n_tokens + record.n_tokens, record.step
        if share() >= (len(curve) + 1) / N_LOOKS:
            seconds = clock.seconds()
            loss = clock.paused(lambda: validation_loss(objective, data.valid))
            curve.append([round(seconds, 1), round(math.exp(min(loss, 20)), 4)])
        if share() >= 1:
            break
    seconds = clock.seconds()
    return objective.model.eval(), {
        "steps": n_steps,
        "cpu_seconds": round(seconds, 1),
        "tokens_per_s": round(n_tokens / seconds),
        "valid_ppl": math.exp(validation_loss(objective, data.valid)),
        "curve": curve,
    }


def measure(model: nn.Module, data: Data) -> dict:
    "BLEU on the test set and the speed of translating it; beam search as in the paper."
    translator = Translator(model, data.vocab, decoder=decoder_of)
    sources, references = map(list, zip(*data.test))
    began = time.process_time()
    hypotheses = translator.translate(sources)
    seconds = time.process_time() - began
    return {
        "bleu": bleu(hypotheses, references).value,
        "translated_per_s": round(len(sources) / seconds, 1),
    }


def best_rate(
    name: str, build: Callable[[], nn.Module], data: Data, args: argparse.Namespace
) -> tuple[float, dict[str, float]]:
    "The rate with the lowest validation perplexity after a short run, and all of them."
    tries = {}
    length = {n: args.try_share * (getattr(args, n) or 0) for n in ("minutes", "steps")}
    for rate in args.rates if len(args.rates) > 1 else []:
        _, done = learn(build, data, rate, length, args.seeds[0])
        tries[f"{rate:g}"] = done["valid_ppl"]
        print(f"{name}, rate {rate:g}: perplexity {done['valid_ppl']:.3f}", flush=True)
    return float(min(tries, key=tries.get)) if tries else args.rates[0], tries


def main() -> None:
    parser = options(__doc__, "background.json")
    add = parser.add_argument
    add("--data", choices=RECIPES, default="multi30k")
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    until = parser.add_mutually_exclusive_group(required=True)
    until.add_argument("--minutes", type=float, help="of processor time for each run")
    until.add_argument("--steps", type=int, help="of each run")
    add("--systems", nargs="+", metavar="NAME", help="these alone")
    add("--rates", type=float, nargs="+", default=[2e-3, 4e-3, 8e-3])
    add("--try-share", type=float, default=0.25, help="of a run, for each rate")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--n-train", type=int, default=10_000, help="the first pairs")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so that processor time is the same for every system
    found = {"systems": {}} | earlier(args.out, args)
    data = load_data(args)
    found |= {"n_vocab": len(data.vocab), "n_test": len(data.test)}
    sizes = len(data.vocab), data.vocab.pad_id
    settings = data.recipe.train
    built = equal_systems(
        data.recipe.model, *sizes, settings.dropout, settings.init_gain
    )
    length = {"minutes": args.minutes, "steps": args.steps}
    if unknown := {*(args.systems or [])} - {*built}:
        parser.error(f"no system {', '.join(unknown)}; there are {', '.join(built)}")
    for name in args.systems or built:
        width, build = built[name]
        if name not in found["systems"]:
            peak_lr, tries = best_rate(name, build, data, args)
            found["systems"][name] = {
                "d_model": width,
                "n_parameters": n_parameters(build()),
                "peak_lr": peak_lr,
                "tries": tries,
                "runs": [],
            }
            write(args.out, found)
        system = found["systems"][name]
        for seed in args.seeds[len(system["runs"]) :]:
            model, done = learn(build, data, system["peak_lr"], length, seed)
            run = {"seed": seed, **done, **measure(model, data)}
            system["runs"].append(run)
            shown = {k: v for k, v in run.items() if k != "curve"}
            print(name, json.dumps(shown), flush=True)
            write(args.out, found)


if __name__ == "__main__":
    main()
