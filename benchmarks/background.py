#!/usr/bin/env python
"""What came before the Transformer, next to it: equal parameters, equal processor time, the built-in corpus (notebooks 20 and 20a).

    python benchmarks/background.py --minutes 10 --out background.json
    tools/record.py results/background.json --command "…" --seed 0 --json background=background.json

Each system is built as wide as it must be to have the parameters of the `tiny` Transformer. It learns at each of `--rates` for
`--try-share` of the time, and then at the best of them, judged by the validation loss, for `--minutes` of processor time on one thread.
Validation is not counted. The learning rate follows the processor's clock: up in the first twentieth, then down in a line to 0, so that
every run ends with its schedule. FILE is written after each system; started again, the command goes on with the next one.
"""

import argparse
import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from annotated_transformer.data.batch import (
    Batch,
    EncodedPairs,
    encode_pairs,
    epoch_batches,
    training_steps,
)
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.grammar import Sentence
from annotated_transformer.data.vocab import Vocab, learn_bpe
from annotated_transformer.engines.choose import FAST
from annotated_transformer.experiments.background import (
    AttentiveDecoder,
    BidirectionalEncoder,
    EncoderDecoder,
    RecurrentDecoder,
    RecurrentEncoder,
)
from annotated_transformer.experiments.convolutions import (
    ByteNetDecoder,
    ByteNetEncoder,
    ConvS2SDecoder,
    ConvS2SEncoder,
)
from annotated_transformer.io.files import write_file
from annotated_transformer.model.attention import attention
from annotated_transformer.model.config import get_recipe
from annotated_transformer.model.embedding import Embedding
from annotated_transformer.model.position import SinusoidalPosition
from annotated_transformer.model.transformer import Transformer, build_transformer
from annotated_transformer.runs.recipe import BatchLoss, validation_loss
from annotated_transformer.show.heads import pronoun_sentences
from annotated_transformer.training.optimizer import adam
from annotated_transformer.training.train import StepRecord, Stop, train
from annotated_transformer.translating.evaluate import bleu, pronouns
from annotated_transformer.translating.translate import Translator

TINY = get_recipe("tiny")
PATTERNS = ("it_because", "it_although", "it_fit", "it_bought")
N_LOOKS = 20  # at the validation set, in a run


def systems(n_vocab: int, pad_id: int) -> dict[str, Callable[[int], nn.Module]]:
    "A function from width to model for each system of the past; depths are those of notebook 20a."

    def translator(
        d: int, encoder: nn.Module, decoder: nn.Module, position: nn.Module | None
    ) -> nn.Module:
        return EncoderDecoder(
            encoder, decoder, Embedding(n_vocab, d), position, 0.0, pad_id
        )

    return {
        "LSTM": lambda d: translator(
            d, RecurrentEncoder(d, 2), RecurrentDecoder(d, 2), None
        ),
        "LSTM with attention": lambda d: translator(
            d,
            BidirectionalEncoder(d, 2),
            AttentiveDecoder(d, 2),
            None,
        ),
        "ConvS2S": lambda d: translator(
            d,
            ConvS2SEncoder(d, 4, 3),
            ConvS2SDecoder(d, 3, 3, attention),
            SinusoidalPosition(d),
        ),
        "ByteNet": lambda d: translator(
            d,
            ByteNetEncoder(d, 3, [1, 2, 4] * 2),
            ByteNetDecoder(d, 3, [1, 2, 4] * 2),
            None,
        ),
    }


def n_parameters(model: nn.Module) -> int:
    "Numbers that are learned; a matrix that is used in several places counts once."
    return sum(p.numel() for p in model.parameters())


def closest_width(
    build: Callable[[int], nn.Module], n_wanted: int, low: int = 16, high: int = 2048
) -> int:
    "The even width whose model has most nearly `n_wanted` parameters."
    with torch.device("meta"):  # where models hold no numbers

        def count(width: int) -> int:
            return n_parameters(build(width))

        widths = range(low, high + 1, 2)
        i = bisect_left(widths, n_wanted, key=count)
        return min(
            widths[max(0, i - 1) : i + 1],
            key=lambda width: abs(count(width) - n_wanted),
        )


def decoder_of(model: nn.Module):
    "The systems of §2 decode by themselves, the Transformer with a cache."
    return FAST.decoder(model) if isinstance(model, Transformer) else model


def builders(
    n_vocab: int, pad_id: int
) -> dict[str, tuple[int, Callable[[], nn.Module]]]:
    "Width and model of every system, the Transformer first; the others have its number of parameters, as nearly as an even width can."
    transformer = partial(
        build_transformer, TINY.model, n_vocab, pad_id, attention=FAST.attention
    )
    n_wanted, found = (
        n_parameters(transformer()),
        {"Transformer": (TINY.model.d_model, transformer)},
    )
    for name, build in systems(n_vocab, pad_id).items():
        width = closest_width(build, n_wanted)
        found[name] = width, partial(build, width)
    return found


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


def learn(
    build: Callable[[], nn.Module],
    data: EncodedPairs,
    valid: list[Batch],
    vocab: Vocab,
    peak_lr: float,
    minutes: float,
    seed: int,
) -> tuple:
    "A model trained for so many minutes of processor time, and what there is to say of it."
    torch.manual_seed(seed)
    objective, budget, n_tokens, curve = (
        BatchLoss(build(), TINY.train.label_smoothing),
        60 * minutes,
        0,
        [],
    )
    clock, n_steps = Clock(), 0

    def rate(step: int) -> float:
        share = clock.seconds() / budget
        return peak_lr * max(1e-3, min(share / 0.05, (1 - share) / 0.95))

    def look(record: StepRecord) -> Stop | None:
        nonlocal n_tokens, n_steps
        n_tokens, n_steps, seconds = (
            n_tokens + record.n_tokens,
            record.step,
            clock.seconds(),
        )
        if seconds >= budget * (len(curve) + 1) / N_LOOKS:
            loss = clock.paused(lambda: validation_loss(objective, valid))
            curve.append([round(seconds, 1), round(math.exp(min(loss, 20)), 4)])
        return Stop("time is up") if seconds >= budget else None

    steps = training_steps(data, vocab, TINY.train.batch_tokens, seed)
    train(
        objective,
        steps,
        adam(objective.parameters()),
        rate,
        10**9,
        [look],
        clip_norm=1.0,
    )
    seconds = clock.seconds()
    about = {
        "steps": n_steps,
        "cpu_seconds": round(seconds, 1),
        "tokens_per_s": round(n_tokens / seconds),
        "valid_ppl": math.exp(validation_loss(objective, valid)),
        "curve": curve,
    }
    return objective.model.eval(), about


def nearer(sentence: Sentence) -> bool:
    "Would the nearer of the two nouns have been the right guess?"
    p = sentence.pronoun
    return abs(p.word - p.antecedent) < abs(p.word - p.other)


def by_distance(sentences: list[Sentence], right: list[bool]) -> dict[str, list[int]]:
    "Of each distance between it and its noun, in words: how many were right, of how many."
    found: dict[str, list[int]] = {}
    for sentence, good in sorted(
        zip(sentences, right),
        key=lambda pair: pair[0].pronoun.word - pair[0].pronoun.antecedent,
    ):
        counts = found.setdefault(
            str(sentence.pronoun.word - sentence.pronoun.antecedent), [0, 0]
        )
        counts[0] += good
        counts[1] += 1
    return found


def measure(
    model: nn.Module, vocab: Vocab, test: list[tuple[str, str]], asked: list[Sentence]
) -> dict:
    "Exact match and BLEU on held-out text, and the pronouns by distance; beam search as in the paper."
    translator, (sources, references) = (
        Translator(model, vocab, decoder=decoder_of),
        map(list, zip(*test)),
    )
    began = time.process_time()
    hypotheses = translator.translate(sources)
    seconds = time.process_time() - began
    said = translator.translate([s.en for s in asked])
    right = [pronouns(line) == pronouns(s.de) for line, s in zip(said, asked)]
    return {
        "exact_match": sum(a == b for a, b in zip(hypotheses, references))
        / len(references),
        "bleu": bleu(hypotheses, references).value,
        "translated_per_s": round(len(sources) / seconds, 1),
        "pronoun_accuracy": sum(right) / len(right),
        "pronouns": by_distance(asked, right),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10,
        help="of processor time that each system learns",
    )
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        default=[1e-3, 2e-3, 4e-3],
        help="highest learning rates to choose from",
    )
    parser.add_argument(
        "--try-share",
        type=float,
        default=0.1,
        help="of the minutes, for each of the rates",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("background.json"),
        help="written after each system, and gone on with",
    )
    args = parser.parse_args()
    torch.set_num_threads(
        1
    )  # processor time of one thread is the same thing for every system
    settings = {
        "minutes": args.minutes,
        "rates": args.rates,
        "try_share": args.try_share,
        "seed": args.seed,
        "n_train": 40_000,
    }
    found = (
        json.loads(args.out.read_text(encoding="utf-8"))
        if args.out.exists()
        else {"settings": settings, "systems": {}}
    )
    if found["settings"] != settings:
        raise SystemExit(
            f"{args.out} was begun with other settings: {found['settings']}"
        )
    corpus = load_corpus("builtin", n_train=settings["n_train"])
    vocab = learn_bpe(
        (side for pair in corpus.train for side in pair), TINY.train.n_pieces
    )
    data, held_out = (
        encode_pairs(corpus.train, vocab),
        encode_pairs(corpus.valid, vocab),
    )
    valid = list(epoch_batches(held_out, vocab, 4096, seed=0, epoch=0))
    asked = pronoun_sentences(2000, patterns=PATTERNS)
    found |= {
        "n_vocab": len(vocab),
        "n_test": len(corpus.test),
        "n_asked": len(asked),
        "nearer_noun": by_distance(asked, list(map(nearer, asked))),
    }
    for name, (width, build) in builders(len(vocab), vocab.pad_id).items():
        if name in found["systems"]:
            continue
        tries = {}
        for peak_lr in args.rates if len(args.rates) > 1 else []:
            _, about = learn(
                build,
                data,
                valid,
                vocab,
                peak_lr,
                args.minutes * args.try_share,
                args.seed,
            )
            tries[f"{peak_lr:g}"] = about["valid_ppl"]
            print(
                f"{name}, {width} wide, rate {peak_lr:g}: perplexity {about['valid_ppl']:.3f} after {about['steps']} steps",
                flush=True,
            )
        peak_lr = float(min(tries, key=tries.get)) if tries else args.rates[0]
        model, about = learn(
            build, data, valid, vocab, peak_lr, args.minutes, args.seed
        )
        found["systems"][name] = {
            "d_model": width,
            "n_parameters": n_parameters(model),
            "peak_lr": peak_lr,
            "tries": tries,
            **about,
            **measure(model, vocab, corpus.test, asked),
        }
        print(
            name,
            json.dumps(
                {k: v for k, v in found["systems"][name].items() if k != "curve"}
            ),
            flush=True,
        )
        write_file(
            args.out, (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()
        )


if __name__ == "__main__":
    main()
