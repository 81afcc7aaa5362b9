#!/usr/bin/env python
"""How processor time and memory of training and translating grow with each size.

    OMP_NUM_THREADS=1 nice python benchmarks/cost.py --out cost.json
    python tools/record.py results/cost.json --command "…" --seed 0 --json cost=cost.json

A curve changes one size and leaves the others as they are. Training is one step: forward and backward pass and Adam. The batch has the
same number of tokens for every length of sentence, so longer sentences mean fewer sentences. Translating is a search with random weights
whose EOS is never among the best, so each translation has exactly the length that is asked for.

Time is the processor time of one thread. All points are measured once, and this is repeated `--sweeps` times; the least time of a point
is kept, since other programs only add time. Memory is the peak of what PyTorch's allocator hands out, from the events of its profiler:
the same in each run and on each machine, to the byte. It leaves out the weights and Adam's averages, which are there before (12 bytes a
parameter), and the buffers of the libraries that multiply matrices. `resident` compares it with the growth of a fresh process.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import NamedTuple

import measuring
import torch
from measuring import in_own_process, options, write

from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.engines.choose import FAST, PLAIN
from annotated_transformer.engines.packed import ready_to_translate
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import PrefixDecoder
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import precision_context
from annotated_transformer.runs.settings import get_recipe
from annotated_transformer.training.optimizer import adam

PAD, BOS, EOS, FIRST = 0, 1, 2, 3  # FIRST: the first id of a token
BATCH_TOKENS = 4096  # of a batch that is translated, as in `Translator`


class Sizes(NamedTuple):
    "One point of a curve; a width has heads of 64 and a feed-forward network of 4 times itself."

    d_model: int = 256
    n_layers: int = 3
    n_vocab: int = 2000
    length: int = 32  # tokens of a sentence, on either side
    tokens: int = 1024  # target tokens of a training step
    lines: int = 16  # lines to translate
    beam: int = 4

    def config(self) -> ModelConfig:
        return ModelConfig(
            n_layers=self.n_layers,
            d_model=self.d_model,
            d_ff=4 * self.d_model,
            n_heads=max(1, self.d_model // 64),
        )


class Curve(NamedTuple):
    "What is measured, and the size that changes."

    what: str  # "training", or how it is translated: "greedy", "beam", "no cache"
    axis: str  # a field of `Sizes`
    values: list[int]
    fixed: Sizes = Sizes()

    def points(self) -> list[Sizes]:
        return [self.fixed._replace(**{self.axis: value}) for value in self.values]


def powers(first: int, last: int) -> list[int]:
    "first, 2 · first, …, last."
    return [first << i for i in range((last // first).bit_length())]


def curves() -> list[Curve]:
    "The record's."
    few = Sizes(lines=4)
    found = [
        Curve("training", "length", powers(8, 1024), Sizes(d_model=width))
        for width in (64, 128, 256, 512)
    ]
    found += [
        Curve("training", "d_model", powers(64, 1024)),
        Curve("training", "n_layers", [1, 2, 3, 4, 6, 8]),
        Curve("training", "n_vocab", powers(1000, 64_000)),
        Curve("training", "tokens", powers(64, 8192)),
        Curve("no cache", "length", powers(8, 256), few),
        Curve("beam", "beam", powers(2, 32)),
    ]
    for how in ("greedy", "beam"):
        found += [
            Curve(how, "length", powers(8, 1024), few),
            Curve(how, "d_model", powers(64, 1024)),
            Curve(how, "n_layers", [1, 2, 3, 4, 6, 8]),
            Curve(how, "n_vocab", powers(1000, 64_000)),
            Curve(how, "lines", powers(1, 1024)),
        ]
    return found


def tiny_curves() -> list[Curve]:
    "The same axes at sizes of a test."
    tiny = Sizes(
        d_model=32, n_layers=1, n_vocab=50, length=4, tokens=32, lines=2, beam=2
    )
    wide = ("d_model", "n_vocab")
    first = {(of.what, of.axis): of for of in reversed(curves())}
    return [
        Curve(of.what, of.axis, [16, 32] if of.axis in wide else [2, 4], tiny)
        for of in first.values()
    ]


# ---- what is measured


class Training:
    "A model with its optimiser."

    def __init__(
        self,
        config: ModelConfig,
        n_vocab: int,
        dropout: float = 0.1,
        precision: str = "fp32",
        engines=FAST,
    ):
        torch.manual_seed(0)
        self.model = build_transformer(
            config,
            n_vocab,
            PAD,
            dropout,
            attention=engines.attention,
            make_dropout=engines.make_dropout,
        )
        self.n_vocab = n_vocab
        self.loss = engines.loss
        self.autocast = precision_context(precision, torch.device("cpu"))
        self.optimizer = adam(self.model.parameters())
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-4
        self.step(4, 8)  # makes Adam's averages

    def gradients(self, length: int, tokens: int) -> None:
        "Forward and backward pass over sentences that have `tokens` together."
        shape = (max(1, tokens // length), length)
        src, tgt = torch.randint(FIRST, self.n_vocab, (2, *shape))
        bos = torch.full((len(tgt), 1), BOS)
        tgt_in = torch.cat([bos, tgt[:, :-1]], dim=1)
        with self.autocast:
            hidden = self.model(src, tgt_in)
            loss = self.loss(hidden, self.model.embedding.weight, tgt, PAD, 0.1)
        (loss / tgt.numel()).backward()

    def update(self) -> None:
        "Adam, then no gradients."
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self, length: int, tokens: int) -> None:
        self.gradients(length, tokens)
        self.update()

    def action(self, what: str, sizes: Sizes) -> Callable[[], None]:
        return partial(self.step, sizes.length, sizes.tokens)


class Translating:
    "A model whose translations end at their limit."

    def __init__(self, config: ModelConfig, n_vocab: int):
        torch.manual_seed(0)
        model = build_transformer(config, n_vocab, PAD)
        with torch.no_grad():
            model.embedding.weight[EOS] = 0  # half of the other logits are greater
        self.model = ready_to_translate(model)
        self.n_vocab = n_vocab

    def search(self, decoder: Callable, sizes: Sizes, beam: int) -> None:
        "Translate all lines, in batches of source tokens."
        search, left = search_with(beam_size=beam), sizes.lines
        while left > 0:
            b = min(left, max(1, BATCH_TOKENS // sizes.length))
            left -= b
            src = torch.randint(FIRST, self.n_vocab, (b, sizes.length))
            with torch.inference_mode():
                made, limits = decoder(self.model), torch.full((b,), sizes.length)
                found = search(made.step, made.start(src), BOS, EOS, limits)
            if any(len(best.ids) != sizes.length for best, *_ in found):
                raise RuntimeError("a translation ended before its limit")

    def action(self, what: str, sizes: Sizes) -> Callable[[], None]:
        decoder = PrefixDecoder if what == "no cache" else FAST.decoder
        beam = sizes.beam if what == "beam" else 1
        return partial(self.search, decoder, sizes, beam)


def build(what: str, sizes: Sizes) -> Training | Translating:
    kind = Training if what == "training" else Translating
    return kind(sizes.config(), sizes.n_vocab)


def build_plain(sizes: Sizes) -> Training:
    "With the lessons' attention, dropout and loss."
    return Training(sizes.config(), sizes.n_vocab, engines=PLAIN)


# ---- how it is measured


def cpu_seconds(action: Callable[[], None], at_least: float = 0.1) -> float:
    "Processor time of a call; a short one is repeated."

    def taken(n_calls: int) -> float:
        started = time.process_time()
        for _ in range(n_calls):
            action()
        return (time.process_time() - started) / n_calls

    first = taken(1)
    if first >= at_least:
        return first
    return min(first, taken(min(20, int(at_least / max(first, 1e-4)) + 1)))


def peak_mb(action: Callable[[], None]) -> float:
    "The most memory that PyTorch's allocator had handed out at once, above that before."
    activities = [torch.profiler.ProfilerActivity.CPU]
    gc.collect()
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        action()
    events = profile.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = accumulate(change for _, change in sorted(changes, key=itemgetter(0)))
    return round(max(held, default=0) / 1e6, 3)


def by_model(found: list[Curve]) -> dict[tuple, list[tuple[int, int]]]:
    "Curves and points that one model serves."
    groups: dict[tuple, list[tuple[int, int]]] = {}
    for i, curve in enumerate(found):
        for j, sizes in enumerate(curve.points()):
            key = curve.what == "training", *sizes[:3]
            groups.setdefault(key, []).append((i, j))
    return groups


def measure(found: list[Curve], n_sweeps: int, at_least: float = 0.1) -> list[dict]:
    "Each curve with the least seconds of its points, and the memory."
    best = [[float("inf")] * len(curve.values) for curve in found]
    memory = [[0.0] * len(curve.values) for curve in found]
    started = time.process_time()
    for sweep in range(n_sweeps):
        for places in by_model(found).values():
            i, j = places[0]
            model = build(found[i].what, found[i].points()[j])
            for i, j in places:
                action = model.action(found[i].what, found[i].points()[j])
                best[i][j] = min(best[i][j], cpu_seconds(action, at_least))
                if sweep == n_sweeps - 1:
                    memory[i][j] = peak_mb(action)
        spent = time.process_time() - started
        print(f"sweep {sweep + 1} of {n_sweeps}: {spent:.0f} s in all", flush=True)
    return [
        {
            "what": curve.what,
            "axis": curve.axis,
            "fixed": curve.fixed._asdict(),
            "values": curve.values,
            "seconds": [round(value, 6) for value in best[i]],
            "mb": memory[i],
            **({"plain_mb": plain_memory(curve)} if has_plain(curve) else {}),
        }
        for i, curve in enumerate(found)
    ]


def has_plain(curve: Curve) -> bool:
    "Is the plain twin's memory of interest? It grows with the length and the vocabulary."
    return curve.what == "training" and curve.axis in ("length", "n_vocab")


def plain_memory(curve: Curve) -> list[float]:
    return [
        peak_mb(build_plain(sizes).action("training", sizes))
        for sizes in curve.points()
    ]


# ---- a step of the paper's base model


def measure_step(
    config: ModelConfig, n_vocab: int, n_sentences: int, n_sweeps: int
) -> dict:
    """Seconds of a token and of Adam, in both precisions.

    Memory is that of this step, and of one with twice as many sentences.
    """
    length = 28  # a sentence of WMT 2014, as in 55
    n_tokens, found = length * n_sentences, {}
    for precision in ("fp32", "bf16"):
        training = Training(config, n_vocab, precision=precision)
        of_tokens, of_adam = [], []
        for _ in range(n_sweeps):
            gradients = partial(training.gradients, length, n_tokens)
            of_tokens.append(cpu_seconds(gradients, at_least=0))
            of_adam.append(cpu_seconds(training.update, at_least=0))
        found[precision] = {
            "seconds_per_token": min(of_tokens) / n_tokens,
            "adam_seconds": min(of_adam),
            "mb": peak_mb(partial(training.step, length, n_tokens)),
            "mb_of_twice": peak_mb(partial(training.step, length, 2 * n_tokens)),
        }
        n_parameters = sum(p.numel() for p in training.model.parameters())
        del training
    sizes = {"length": length, "tokens": n_tokens, "n_vocab": n_vocab}
    return sizes | {"n_parameters": n_parameters} | found


def step_of_base(tiny: bool, n_sweeps: int) -> dict:
    "With the vocabulary of §5.1."
    if tiny:
        return measure_step(Sizes(d_model=32, n_layers=1).config(), 50, 1, 1)
    return measure_step(get_recipe("base").model, 37_000, 16, n_sweeps)


# ---- memory, measured in another way


def resident(what: str, sizes: Sizes) -> dict[str, float]:
    "What a call adds to the most memory that a fresh process held."
    model = build_plain(sizes) if what == "plain training" else build(what, sizes)
    small = sizes._replace(length=8, tokens=8, lines=1)
    model.action(what, small)()  # loads the kernels
    action, before = model.action(what, sizes), peak_resident_mb()
    action()
    grown = round(peak_resident_mb() - before, 3)
    return {"resident_mb": grown, "mb": peak_mb(action)}


def peak_resident_mb() -> float:
    "In millions of bytes, as `peak_mb`."
    return measuring.peak_mb() * 2**20 / 1e6


def resident_checks(tiny: bool) -> list[dict]:
    "Where much memory is used: long sentences, many tokens, many hypotheses."
    long, many = Sizes(length=1024), Sizes(tokens=8192)
    points = [
        ("training", long),
        ("plain training", long),
        ("training", many),
        ("beam", Sizes(lines=64, beam=8)),
    ]
    if tiny:
        points = [("training", Sizes(64, 1, 100, 8, 64))]
    return [
        {"what": what, "sizes": sizes._asdict(), **job("resident", what, sizes)}
        for what, sizes in points
    ]


def job(*given) -> dict:
    "What `do_job` returns in a fresh process, whose memory is free afterwards."
    return in_own_process(__file__, "--job", json.dumps(given))


def do_job(name: str, *given) -> dict:
    if name == "step":
        return step_of_base(*given)
    what, sizes = given
    return resident(what, Sizes(*sizes))


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("--sweeps", type=int, default=3)
    add("--seed", type=int, default=0)
    add("--tiny", action="store_true", help="smallest sizes: a test")
    add("--job", help=argparse.SUPPRESS)  # of a fresh process
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    gc.freeze()  # what is imported is not searched for garbage at every point
    if args.job:
        return print(json.dumps(do_job(*json.loads(args.job))))
    of_points, at_least = (tiny_curves(), 0) if args.tiny else (curves(), 0.1)
    result = {
        "threads": 1,
        "sweeps": args.sweeps,
        # first, while this process is small: on Linux a child inherits its parent's peak
        "resident": resident_checks(args.tiny),
        "base_step": job("step", args.tiny, args.sweeps),
        "curves": measure(of_points, args.sweeps, at_least),
    }
    write(args.out, result)


if __name__ == "__main__":
    main()
