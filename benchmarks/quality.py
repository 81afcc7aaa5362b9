#!/usr/bin/env python
"""How good a run is on Multi30k's test_2016: the same translations in every way that published numbers were counted.

    python benchmarks/quality.py runs/multi30k --data-dir DATA --out quality.json
    tools/record.py results/quality.json --command "…" --seed 0 --json quality=quality.json

`--beam-size 1` is greedy search. Papers on Multi30k report "Moses, lower case".
"""

import json
import time
from pathlib import Path

from measuring import options, write

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

# of test_2016 as the authors of Multi30k published it, tokenised
TOKENS = {"en": 12_968, "de": 12_103}


def check_test_set(sides: dict[str, list[str]]) -> None:
    for language, lines in sides.items():
        tokenised = moses_tokenize(moses_lowercase(lines, language), language)
        n = sum(len(line.split()) for line in tokenised)
        if n != TOKENS[language]:
            raise SystemExit(
                f"{n} tokens of {language} instead of {TOKENS[language]}: "
                "not the published test set, or not its tokeniser"
            )


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("run", type=Path)
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    add("--beam-size", type=int, default=4)
    add("--alpha", type=float, default=0.6, help="of the length penalty")
    add("--device", help="cpu, cuda or mps; cpu without it")
    args = parser.parse_args()
    sources, references = map(list, zip(*load_corpus("multi30k", args.data_dir).test))
    check_test_set({"en": sources, "de": references})
    translator = load(args.run, args.device, search_with(args.beam_size, args.alpha))
    began = time.perf_counter()
    hypotheses = translator.translate(sources)
    seconds = time.perf_counter() - began
    scores = bleu(hypotheses, references, 1000), chrf(hypotheses, references, 1000)
    flavours = bleu_variants(hypotheses, references, "de")
    found = {
        "beam_size": args.beam_size,
        "alpha": args.alpha,
        "seconds": round(seconds, 1),
        "n_sentences": len(references),
        "hyphens": sum(line.count("-") for line in references),
        "scores": [score._asdict() for score in scores],
        "flavours": [score._asdict() for score in flavours],
        "perplexity": perplexity(translator, sources, references)._asdict(),
    }
    print(json.dumps(found, indent=1))
    write(args.out, found)


if __name__ == "__main__":
    main()
