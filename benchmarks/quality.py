#!/usr/bin/env python
"""How good a run is on Multi30k's test_2016: the same translations in every way that published numbers were counted.

    python benchmarks/quality.py runs/multi30k --data-dir DATA --out quality.json
    tools/record.py results/quality.json --command "…" --seed 0 --json quality=quality.json

`--beam-size 1` is greedy search. Papers on Multi30k report "Moses, lower case".
"""

import argparse
import json
import time
from pathlib import Path

from annotated_transformer import load
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.translating.evaluate import (
    bleu,
    bleu_variants,
    chrf,
    moses_lowercase,
    moses_tokenize,
    perplexity,
)

TOKENS = {
    "en": 12_968,
    "de": 12_103,
}  # of test_2016 as the authors of Multi30k published it, tokenised


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument(
        "--data-dir", help="holds multi30k/; without it the text is downloaded"
    )
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument(
        "--alpha", type=float, default=0.6, help="of the length penalty"
    )
    parser.add_argument("--device", help="cpu, cuda or mps; cpu without it")
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    sources, references = map(list, zip(*load_corpus("multi30k", args.data_dir).test))
    for language, lines in (("en", sources), ("de", references)):
        n = sum(
            len(line.split())
            for line in moses_tokenize(moses_lowercase(lines, language), language)
        )
        if n != TOKENS[language]:
            raise SystemExit(
                f"{n} tokens of {language} instead of {TOKENS[language]}: not the published test set, or not its tokeniser"
            )
    translator = load(args.run, args.device, search_with(args.beam_size, args.alpha))
    began = time.perf_counter()
    hypotheses = translator.translate(sources)
    found = {
        "beam_size": args.beam_size,
        "alpha": args.alpha,
        "seconds": round(time.perf_counter() - began, 1),
        "n_sentences": len(references),
        "hyphens": sum(line.count("-") for line in references),
        "scores": [
            score._asdict()
            for score in (
                bleu(hypotheses, references, 1000),
                chrf(hypotheses, references, 1000),
            )
        ],
        "flavours": [
            score._asdict() for score in bleu_variants(hypotheses, references, "de")
        ],
        "perplexity": perplexity(translator, sources, references)._asdict(),
    }
    print(json.dumps(found, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
