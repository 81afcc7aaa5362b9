#!/usr/bin/env python
"""`translate --engine ctranslate2` against our own search: are the texts equal, and how long does each take?

    python benchmarks/engines.py tatoeba --data-dir DATA --out engines.json
    tools/record.py results/bench_engines.json --command "…" --seed 0 --json engines=engines.json

Both are what `load` makes, in fp32, with the paper's length penalty, from text to text. The sentences are those of Multi30k's test_2016.
Each engine has a process of its own, which sleeps while the other translates. They translate one share of the sentences after the other in
turns, either as a list, as `translate` does with the lines of a file, or one by one; ratios are taken within a share, and medians are printed.
"""

import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

import torch
from measuring import in_turn, middle, options, write

from annotated_transformer import load
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.translating.translate import Translation, Translator

ENGINES = ("pytorch", "ctranslate2")
WAYS = {"lists of 250": (250, 2), "one by one": (50, 1)}  # size of a share, passes
TRANSLATORS: dict[int, Translator] = {}  # of an engine's process, by beam size


def prepare(engine: str, run: Path, beams: list[int], threads: int) -> None:
    "In the process of an engine."
    torch.set_num_threads(threads)
    for beam in beams:
        search = search_with(beam_size=beam)
        TRANSLATORS[beam] = load(run, search=search, engine=engine)


def timed(groups: list[list[str]], beam: int) -> tuple[float, list[Translation]]:
    "Seconds for all groups of sentences, and the best translation of each sentence."
    began = time.perf_counter()
    found = [best for group in groups for best, *_ in TRANSLATORS[beam].n_best(group)]
    return time.perf_counter() - began, found


def compare(
    engines: dict[str, ProcessPoolExecutor], sentences: list[str], way: str, beam: int
) -> dict:
    "The engines in turn on every share: texts, scores and time."
    size, n_passes = WAYS[way]
    pairs: dict[int, tuple[Translation, Translation]] = {}
    rounds: list[dict[str, float]] = []  # milliseconds per sentence
    for start in [*range(0, len(sentences), size)] * n_passes:
        some = sentences[start : start + size]
        groups = [[line] for line in some] if way == "one by one" else [some]
        taken = {
            name: engines[name].submit(timed, groups, beam).result()
            for name in in_turn(ENGINES, len(rounds))
        }
        rounds.append({name: 1000 * taken[name][0] / len(some) for name in ENGINES})
        found = zip(*(taken[name][1] for name in ENGINES), strict=True)
        pairs |= dict(enumerate(found, start))
    others = [
        {"line": sentences[i], "pytorch": ours, "ctranslate2": theirs}
        for i, (ours, theirs) in pairs.items()
        if ours.text != theirs.text
    ]
    gaps = [abs(ours.score - theirs.score) for ours, theirs in pairs.values()]
    result = {
        "sentences": len(pairs),
        "equal": len(pairs) - len(others),
        "others": others,
        "largest_gap_of_scores": float(f"{max(gaps):.1e}"),
        "ctranslate2_is_faster_by": middle(
            r["pytorch"] / r["ctranslate2"] for r in rounds
        ),
        "ms_per_sentence": {
            name: middle((r[name] for r in rounds), 1) for name in ENGINES
        },
        "each_ms": [[round(r[name], 1) for name in ENGINES] for r in rounds],
    }
    shown = {key: value for key, value in result.items() if key != "each_ms"}
    print(f"beam {beam}, {way}: {json.dumps(shown, ensure_ascii=False)}", flush=True)
    return result


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("run", type=Path, help="a run folder, or the name of a pretrained model")
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    add("--sentences", type=int, help="only the first so many")
    add("--beams", type=int, nargs="+", default=[1, 4])
    add("--threads", type=int, default=1)
    args = parser.parse_args()
    test = load_corpus("multi30k", args.data_dir).test
    sentences = [source for source, _ in test][: args.sentences]
    spawn = multiprocessing.get_context("spawn")
    given = args.run, args.beams, args.threads
    engines = {
        name: ProcessPoolExecutor(1, spawn, prepare, (name, *given)) for name in ENGINES
    }
    for engine in engines.values():
        for beam in args.beams:
            engine.submit(timed, [sentences[:20]], beam).result()  # warm
    about = {"run": str(args.run), "threads": args.threads}
    found = {
        f"beam {beam}": {way: compare(engines, sentences, way, beam) for way in WAYS}
        for beam in args.beams
    }
    write(args.out, about | {"ctranslate2": version("ctranslate2")} | found)


if __name__ == "__main__":
    main()
