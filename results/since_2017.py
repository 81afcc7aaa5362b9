#!/usr/bin/env python
"""What came after the paper, one setting at a time: a training run for each row and seed, from the base of Table 3's rows (notebook 71d).

    OMP_NUM_THREADS=1 python results/since_2017.py --data-dir DATA --out runs/since_2017
    python tools/record.py results/since_2017.json --command "…" --seed 0 --json table=runs/since_2017/table.json

Every row has as many parameters as base, to 1 %: `d_ff` is adjusted, or `d_model`. Its learning rate is the best of three on another seed,
after a quarter of the steps; a row that begins with "today" takes today's, that of 1,500 steps base's. Then it is trained from each seed
for all steps. A run takes about ten minutes of one core. As with `variations.py`, the same command continues what was interrupted, and
two commands with different rows can fill one folder at the same time. `--speed` trains nothing: it times a
few steps and translations of all rows in turn. Nothing else should run then.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import chain, product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from figures import bleu_on, write
from variations import (
    ALPHA,
    BEAM,
    Runs,
    arguments,
    base_of,
    measured,
    provenance,
    run_name,
    start,
    validation_passes,
)

from annotated_transformer.data.batch import (
    EncodedPairs,
    encode_pairs,
    epoch_batches,
    training_steps,
)
from annotated_transformer.data.corpus import Corpus
from annotated_transformer.data.vocab import Vocab, learn_bpe
from annotated_transformer.engines.batched_search import (
    batched_greedy_search,
    search_with,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.engines.packed import prepare_for_inference
from annotated_transformer.experiments.variations import SHORTER
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import load_run
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.runs.settings import Recipe, override
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


def recipe_of(name: str, base: Recipe, *more: str) -> Recipe:
    "Base with the settings of a row."
    row = ROWS[name]
    return override(base, [*row.settings.split(), *row.adjusted.split(), *more])


def quarter(base: Recipe) -> list[str]:
    "The settings of a run of a quarter of the steps, in which rates are compared."
    steps, warmup = base.train.max_steps // 4, base.train.warmup_steps // 4
    return [f"max_steps={steps}", f"warmup_steps={warmup}", f"valid_every={steps}"]


def best_rate(name: str, base: Recipe, corpus: Corpus, runs: Runs, device: str) -> dict:
    "The validation loss of a row at each rate, and the rate of the lowest."
    name = "base" if name == SHORTER else name.partition(" with")[0]
    file = runs.out / f"rates-of-{name}.json"
    found: dict = {"losses": {}}
    if file.exists():
        found = json.loads(file.read_text("utf-8"))
    for rate in RATES:
        if str(rate) in found["losses"]:
            continue
        more = [f"peak_lr={rate}", f"seed={RATE_SEED}", *quarter(base)]
        run = runs.out / f"{run_name(name, RATE_SEED)}-rate-{rate}"
        runs.train(corpus, recipe_of(name, base, *more), run, device)
        loss = validation_passes(run)[-1]["valid_loss"]
        found["losses"][str(rate)] = loss
        found |= provenance(RATE_SEED)
        write(file, found)
        print(name, rate, loss, flush=True)
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
    for name, low in (("within", 0), ("beyond", MAX_LEN)):
        lengths = range(low + 1, low + MAX_LEN + 1)
        pairs = [p for p in corpus.valid if len(vocab.encode(p[0])) in lengths]
        found |= {name: bleu_on(translator, pairs), f"n_{name}": len(pairs)}
    return found


def cache_bytes(sizes: ModelConfig) -> int:
    "Of keys and values of a hypothesis in float32, for each target token."
    n_kv_heads = sizes.n_kv_heads or sizes.n_heads
    return 4 * sizes.n_layers * n_kv_heads * 2 * sizes.d_model // sizes.n_heads


N_DECODED = 20  # tokens of a timed translation, about as many as a caption has
NO_ID = -1  # that no token has, so none ends a translation


class Measured(NamedTuple):
    "A row to be timed."

    train: Callable[[], int]  # twelve steps; returns their tokens
    decode: Callable[[], int]  # 256 sentences; returns their number


def timed(recipe: Recipe, vocab: Vocab, data: EncodedPairs) -> Measured:
    """A model of a row with random weights: the time depends on sizes alone.

    It decodes greedily, and as many tokens of each sentence as all others.
    """
    _, wrapped, optimizer, schedule = build_training(recipe, vocab, torch.device("cpu"))
    new = build_transformer(recipe.model, len(vocab), vocab.pad_id)
    # for every part; some have no faster one
    decoder = KVCache(prepare_for_inference(new))
    some = data.take(np.arange(256))
    sources = [batch.src for batch in epoch_batches(some, vocab, 64 * 32, 0, 0)]

    def steps() -> int:
        tokens = recipe.train.batch_tokens
        batches = training_steps(data, vocab, tokens, seed=0)
        records = train(wrapped, batches, optimizer, schedule, 12)
        return sum(record.n_tokens for record in records)

    def translations() -> int:
        with torch.inference_mode():
            for src in sources:
                state, limits = decoder.start(src), torch.full((len(src),), N_DECODED)
                batched_greedy_search(decoder.step, state, vocab.bos_id, NO_ID, limits)
        return len(some)

    return Measured(steps, translations)


def speed(names: list[str], base: Recipe, corpus: Corpus, n_rounds: int) -> dict:
    "Tokens a second in training and sentences a second in decoding, one thread, all rows in turn."
    texts = chain.from_iterable(corpus.train)
    vocab = learn_bpe(texts, base.train.vocab_size)
    data = encode_pairs(corpus.train[:2000], vocab)
    rows = {name: timed(recipe_of(name, base), vocab, data) for name in names}
    found: dict = {name: {what: [] for what in Measured._fields} for name in names}
    for _, (name, row) in product(range(n_rounds), rows.items()):
        for what, work in row._asdict().items():
            began = time.perf_counter()
            n_done = work()
            found[name][what].append(n_done / (time.perf_counter() - began))
    return found


def fill(args: argparse.Namespace) -> None:
    "Train and measure each run that has no measures yet, and write the table."
    base = base_of(args)
    corpus, runs = start(args, base, ROWS)
    if args.speed:
        found = speed(args.rows, base, corpus, args.n_rounds)
        write(args.out / "speed.json", {**provenance(args.seeds[0]), "rows": found})
        return
    for name, seed in product(args.rows, args.seeds):
        run = args.out / run_name(name, seed)
        if runs.file(name, seed).exists():
            continue
        rates = best_rate(name, base, corpus, runs, args.device)
        recipe = recipe_of(name, base, f"seed={seed}", f"peak_lr={rates['best']}")
        runs.train(corpus, recipe, run, args.device)
        found = {**provenance(seed), **measured(run, corpus, args.device)}
        found["cache_bytes"] = cache_bytes(recipe.model)
        if name.startswith("short"):
            found |= long_sentences(run, corpus, args.device)
        settings, adjusted = (text.split() for text in ROWS[name])
        row = {"row": name, "changes": settings, "adjusted": adjusted}
        runs.add(row | {"rates": rates}, found)


def main() -> None:
    parser = arguments(__doc__, "runs/since_2017", ROWS)
    add = parser.add_argument
    add("--speed", action="store_true", help="of all rows, into speed.json")
    add("--n-rounds", type=int, default=5, help="of --speed")
    fill(parser.parse_args())


if __name__ == "__main__":
    main()
