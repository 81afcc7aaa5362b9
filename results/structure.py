#!/usr/bin/env python
"""Which heads attend along the dependencies of held-out sentences of the grammar, near and far (notebook 80c).

    python results/structure.py runs/seed0 runs/seed1 --out structure.json
    tools/record.py results/structure.json --command "…" --seed 0 --json structure=structure.json

Each RUN is a run on the built-in text. Where there is none, `tiny` is trained, from seed 0 for the first, 1 for the second, …, in some
three minutes of one core each. Measuring takes about a minute a run. The first sentence that has every relation goes with it, with
the maps of all heads, a line of thousandths for each query.
"""

import json
import time
from collections import Counter
from pathlib import Path

import torch
from figures import options, tiny_run, tokens_and_maps, without_each, write
from torch import Tensor

from annotated_transformer.data.grammar import Sentence, builtin, separated_verb
from annotated_transformer.engines.batched_search import batched_greedy_search
from annotated_transformer.experiments.structure import (
    Followed,
    dependencies,
    dependency_attention,
    prefix_attention,
    prefixes_predicted,
)
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import Run
from annotated_transformer.runs.settings import get_recipe
from annotated_transformer.translating.translate import Translator

OBJECT_FIRST = ("wh", "relative_object")  # patterns with an object before its verb


def numbers(values: Tensor) -> list:
    "Nested lists of numbers with four decimals, None for nan."
    rounded = (1e4 * values.double()).round() / 1e4
    if values.dim():
        return [numbers(row) for row in rounded]
    return None if values.isnan() else rounded.item()


def shares(found: Followed) -> dict:
    "The means over all dependencies, and over those of each distance, by layer and head."
    by_distance = {}
    for distance in found.distance.unique().tolist():
        these = found.distance == distance
        by_distance[distance] = means(Followed(*(column[these] for column in found)))
    return means(found) | {"by_distance": by_distance}


def means(found: Followed) -> dict[str, list]:
    "By layer and head, without the dependencies that have no word to compare with."
    names = ("largest", "same_distance", "same_key")
    return {name: numbers(getattr(found, name).nanmean(0)) for name in names}


def untrained(run: Run, sentences: list[Sentence]) -> dict[str, float]:
    "The largest share of any head before training."
    torch.manual_seed(0)
    sizes = get_recipe("tiny").model
    model = build_transformer(sizes, len(run.vocab), run.vocab.pad_id)
    with torch.inference_mode():
        along = dependency_attention(model, run.vocab, sentences)
        along |= prefix_attention(model, run.vocab, sentences)
    return {name: numbers(f.largest.mean(0).max()) for name, f in along.items()}


def exact_match(run: Run, sentences: list[Sentence]) -> float:
    "The share of sentences that greedy search translates exactly."
    translator = Translator(run.model, run.vocab, search=batched_greedy_search)
    found = translator.translate([s.en for s in sentences])
    return sum(line == s.de for line, s in zip(found, sentences)) / len(sentences)


def measure(
    run: Run, sentences: list[Sentence], n_translated: int
) -> tuple[dict, dict]:
    "What the record holds about one run, and the counts of distances by relation."
    some = sentences[:n_translated]
    with torch.inference_mode():
        along = dependency_attention(run.model, run.vocab, sentences)
        to_verb = prefix_attention(run.model, run.vocab, sentences)
    right = prefixes_predicted(run.model, run.vocab, sentences).float()

    def prefixes() -> float:
        found = prefixes_predicted(run.model, run.vocab, sentences)
        return round(found.float().mean().item(), 4)

    def translations() -> float:
        return round(exact_match(run, some), 4)

    distance = to_verb["decoder"].distance
    found = {
        "training": run.about["weights"],
        "dependencies": {relation: shares(f) for relation, f in along.items()},
        "prefix": {kind: shares(f) for kind, f in to_verb.items()}
        | {
            "right": numbers(right.mean()),
            "right_by_distance": {
                d: numbers(right[distance == d].mean())
                for d in distance.unique().tolist()
            },
            "right_without": {
                kind: without_each(run.model, kind, prefixes)
                for kind in ("decoder", "cross")
            },
        },
        "exact_match": {
            "n": len(some),
            "whole": translations(),
            "without": without_each(run.model, "encoder", translations),
        },
    }
    counts = {relation: Counter(f.distance.tolist()) for relation, f in along.items()}
    return found, counts | {"prefix → verb": Counter(distance.tolist())}


def example(run: Run, s: Sentence) -> dict:
    "A sentence, its tokens, and the maps of all heads in its reference translation."
    vocab = run.vocab
    src = [*vocab.encode(s.en), vocab.eos_id]
    tgt_in = [vocab.bos_id, *vocab.encode(s.de)]
    verb, kinds = separated_verb(s), ("encoder", "decoder")
    return {
        "en": s.en,
        "de": s.de,
        "dependencies": [list(d) for d in dependencies(s)],
        "prefix": list(verb) if verb else None,
        **tokens_and_maps(run.model, vocab, src, tgt_in, kinds),
    }


def has_all(s: Sentence) -> bool:
    "Are there a determiner, an adjective, an object and a prefix five words or more after its verb?"
    wanted = {"determiner → noun", "adjective → noun", "verb → object"}
    verb = separated_verb(s)
    is_far = verb is not None and verb.prefix - verb.finite >= 5
    return is_far and wanted <= {d.relation for d in dependencies(s)}


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("runs", type=Path, nargs="+", metavar="RUN")
    add("--n", type=int, default=4000, help="sentences; a quarter more, object first")
    add("--translate", type=int, default=300, help="of these")
    add("--seed", type=int, default=1, help="of the sentences")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sentences = builtin(args.n, args.seed, "test")
    known = {s.en for s in sentences}
    more = builtin(args.n // 4, args.seed, "test", OBJECT_FIRST)
    sentences += [s for s in more if s.en not in known]
    runs = [tiny_run(path, seed) for seed, path in enumerate(args.runs)]
    measured = []
    for run in runs:
        began = time.process_time()
        figures, counts = measure(run, sentences, args.translate)
        seconds = round(time.process_time() - began, 1)
        measured.append(figures | {"cpu_seconds": seconds})
    found = {
        "n_sentences": len(sentences),
        "sentence_seed": args.seed,
        "runs": measured,
        "distances": {name: dict(sorted(by.items())) for name, by in counts.items()},
        "untrained": untrained(runs[0], sentences),
    }
    print(json.dumps(found, indent=1, ensure_ascii=False))
    shown = example(runs[0], next(filter(has_all, sentences)))
    write(args.out, found | {"example": shown})


if __name__ == "__main__":
    main()
