#!/usr/bin/env python
"""Which engines save 15 % of time or memory in ordinary use? Each against its lesson, all else being the fast choice.

    python benchmarks/engines.py --out engines.json
    python tools/record.py results/engines.json --command "…" --seed 0 --json engines=engines.json
    python benchmarks/engines.py --quick                tiny models, one round: a test

A row is one engine in one setting: a training step (forward, backward, Adam) of a recipe's batch, or the translation of lines by beam
search. Lesson and engine take turns; the ratio is the engine's time over its lesson's, within a round, and the median over rounds counts.
Memory is that of weights and Adam's averages, and the peak of what PyTorch's allocator hands out in one call, from the events of its
profiler. Weights are random, and EOS is never among the best, so that all translations have the same length.
An engine stays if either ratio is at most 0.85 in one of its settings.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from measuring import Ids, middle, options, peak_bytes, rounds, write
from torch import Tensor, nn

from annotated_transformer.data.batch import Batch
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.engines.choose import FAST, PLAIN, Engines
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.engines.packed import can_int8, prepare_for_inference
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import Transformer, build_transformer
from annotated_transformer.runs.folder import load_run
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.runs.settings import Recipe, get_recipe

MOST = 0.85  # of its lesson's time or memory, for an engine that stays
LENGTH = 16  # tokens of a sentence, on either side
Action = Callable[[], object]


class Size(NamedTuple):
    recipe: Recipe
    n_vocab: int


class Row(NamedTuple):
    "An engine and its lesson in one setting: two calls, and the bytes that are held."

    engine: str
    setting: str
    calls: dict[str, Action]  # "lesson" and "engine"
    held: dict[str, int]


def sizes(quick: bool) -> dict[str, Size]:
    if quick:
        model = ModelConfig(n_layers=1, d_model=32, d_ff=64, n_heads=2)
        return {"quick": Size(Recipe(model, get_recipe("tiny").train), 320)}
    tatoeba = load_run(Path("tatoeba"))
    return {
        "small": Size(get_recipe("small"), 8000),
        "tatoeba": Size(tatoeba.recipe, len(tatoeba.vocab)),
    }


# ---- training

TRAINED = {  # engine: the field of `Engines`, and the settings that need it
    "fused attention": ("attention", {}),
    "dropout of attention weights": ("attention_dropout", {"attention_dropout": 0.1}),
    "chunked loss": ("loss", {}),
    "chunked R-Drop": ("r_drop", {"r_drop": 5.0}),
}


def training_step(size: Size, engines: Engines, settings: dict) -> tuple[Action, int]:
    "One step of a recipe on random tokens, and the bytes of weights and Adam."
    torch.manual_seed(0)
    train, vocab = replace(size.recipe.train, **settings), Ids(size.n_vocab)
    recipe, cpu = Recipe(size.recipe.model, train), torch.device("cpu")
    objective, _, optimizer, _ = build_training(recipe, vocab, cpu, engines=engines)
    n_rows = max(1, train.batch_tokens // LENGTH)
    src, tgt = torch.randint(4, size.n_vocab, (2, n_rows, LENGTH + 1))
    batch = Batch(src[:, 1:], tgt[:, :-1], tgt[:, 1:], n_rows * LENGTH)
    objective.train()

    def step() -> None:
        (objective(batch) / batch.n_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()  # makes Adam's averages
    return step, 12 * sum(p.numel() for p in objective.parameters())


def training_rows(size: Size) -> list[Row]:
    rows = []
    for name, (field, settings) in TRAINED.items():
        lesson = FAST._replace(**{field: getattr(PLAIN, field)})
        both = {"lesson": lesson, "engine": FAST}
        made = {kind: training_step(size, e, settings) for kind, e in both.items()}
        calls = {kind: step for kind, (step, _) in made.items()}
        held = {kind: n_bytes for kind, (_, n_bytes) in made.items()}
        rows.append(Row(name, f"step of {size.recipe.train.batch_tokens}", calls, held))
    return rows


# ---- translating


def ready(size: Size, precision: str = "fp32") -> Transformer:
    torch.manual_seed(0)
    m, n_vocab = size.recipe.model, size.n_vocab
    model = build_transformer(m, n_vocab, Ids.pad_id, attention=FAST.attention)
    with torch.no_grad():
        model.embedding.weight[[Ids.pad_id, Ids.eos_id]] = 0  # half of others are more
    return prepare_for_inference(model, precision)


def translate(model: Transformer, decoder: Callable, src: Tensor) -> list:
    "Beam search with four hypotheses."
    limits, search = torch.full((len(src),), LENGTH), search_with(beam_size=4)
    with torch.inference_mode():
        made = decoder(model)
        return search(made.step, made.start(src), Ids.bos_id, Ids.eos_id, limits)


def n_bytes(model: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in model.state_dict().values())


def translating_rows(size: Size, n_lines: int) -> list[Row]:
    src = torch.randint(4, size.n_vocab, (n_lines, LENGTH))
    model, setting = ready(size), f"beam 4, {n_lines} lines"
    fast = model, FAST.decoder, src
    pairs = {
        "cache of keys and values": ((model, PLAIN.decoder, src), fast),
        "step in few calls": ((model, KVCache, src), fast),
    }
    if can_int8():
        pairs["int8"] = fast, (ready(size, "int8"), FAST.decoder, src)
    rows = []
    for name, pair in pairs.items():
        both = dict(zip(("lesson", "engine"), pair))
        calls = {kind: partial(translate, *given) for kind, given in both.items()}
        held = {kind: n_bytes(given[0]) for kind, given in both.items()}
        rows.append(Row(name, setting, calls, held))
    return rows


# ---- measuring


def measure(row: Row, n_rounds: int) -> dict:
    "Both ratios, and what follows from them."
    rounds(row.calls, 1)  # warm
    timed = rounds(row.calls, n_rounds)
    peak = {kind: row.held[kind] + peak_bytes(row.calls[kind]) for kind in row.calls}
    time = middle(r["engine"] / r["lesson"] for r in timed)
    memory = round(peak["engine"] / peak["lesson"], 3)
    return {"time": time, "memory": memory, "saves": min(time, memory) <= MOST}


def main(args: list[str] | None = None) -> dict:
    parser = options(__doc__)
    add = parser.add_argument
    add("--rounds", type=int, default=9)
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--quick", action="store_true", help="a tiny model, one round, one thread")
    given = parser.parse_args(args)
    if given.quick:
        given.rounds, given.threads = 1, [1]
    warnings.filterwarnings("ignore", message=".*quantize.*")
    found: list[dict] = []
    for n_threads in given.threads:
        torch.set_num_threads(n_threads)
        for name, size in sizes(given.quick).items():
            rows = training_rows(size)
            for n_lines in (4 if given.quick else 64, 1):
                rows += translating_rows(size, n_lines)
            for row in rows:
                about = {"engine": row.engine, "size": name, "setting": row.setting}
                about |= {"threads": n_threads, **measure(row, given.rounds)}
                found.append(about)
                print(*about.values(), sep="\t", flush=True)
    stays = {row["engine"]: False for row in found}
    for row in found:
        stays[row["engine"]] |= row["saves"]
    result = {"rounds": given.rounds, "rows": found, "stays": stays}
    write(given.out, result)
    for name, saves in stays.items():
        print(f"{name}: {'stays' if saves else 'goes'}")
    return result


if __name__ == "__main__":
    main()
