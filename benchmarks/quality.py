#!/usr/bin/env python
"""The BLEU of a run on Multi30k's test_2016, in both flavours that are published.

    python benchmarks/quality.py runs/multi30k --data-dir DATA --out quality.json

cased      the text as it is, sacreBLEU with its 13a rules: what this project reports
tokenised  lowercased and split by Moses' rules (sacremoses), then counted word by word: what papers on Multi30k report
"""
import argparse
import json
import time
from pathlib import Path

from sacrebleu.metrics import BLEU
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from annotated_transformer import load
from annotated_transformer.corpus import load_corpus

TOKENS = {"en": 12_968, "de": 12_103}  # of test_2016 as the authors of Multi30k published it, tokenised


def moses(lines: list[str], language: str) -> list[str]:
    "Punctuation normalised, lowercased, tokenised."
    normal, split = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)
    return [split.tokenize(normal.normalize(line).lower(), return_str=True, escape=False) for line in lines]


def scores(hypotheses: list[str], references: list[str]) -> dict:
    "Both flavours, with sacreBLEU's signatures."
    found = {}
    for name, metric, prepare in (("cased", BLEU(), list), ("tokenised", BLEU(tokenize="none", force=True), lambda lines: moses(lines, "de"))):
        score = metric.corpus_score(prepare(hypotheses), [prepare(references)]).score
        found[name] = {"bleu": round(score, 2), "signature": str(metric.get_signature())}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", help="holds multi30k/; without it the text is downloaded")
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    sources, references = map(list, zip(*load_corpus("multi30k", args.data_dir).test))
    for language, lines in (("en", sources), ("de", references)):
        n = sum(len(line.split()) for line in moses(lines, language))
        if n != TOKENS[language]:
            raise SystemExit(f"{n} tokens of {language} instead of {TOKENS[language]}: not the published test set, or not its tokeniser")
    translator, began = load(args.run), time.perf_counter()
    found = {"search": "greedy", **scores(translator.translate(sources), references), "seconds": round(time.perf_counter() - began, 1)}
    print(json.dumps(found, indent=1))
    if args.out: Path(args.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__": main()
