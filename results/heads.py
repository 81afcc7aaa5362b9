#!/usr/bin/env python
"""Which heads attend from "it" to its antecedent, and what is lost without each head, on held-out sentences of the grammar.

    python results/heads.py demo --out heads.json
    tools/record.py results/heads.json --command "…" --seed 0 --json heads=heads.json

RUN is a run on the built-in text, or `demo`, the pretrained model of the package. If there is none at RUN, `tiny` is trained first (some three
minutes of one core).
Measuring takes about half a minute. All maps of the two animal sentences go with it, a line of thousandths for each query.
"""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import torch
from figures import options, tiny_run, tokens_and_maps, without_each, write

from annotated_transformer.data.grammar import ANIMAL_TIRED, ANIMAL_WIDE, Sentence
from annotated_transformer.engines.batched_search import batched_greedy_search
from annotated_transformer.show.heads import (
    AntecedentAttention,
    WordPair,
    ablate_head,
    antecedent_attention,
    pronoun_scores,
    pronoun_sentences,
)
from annotated_transformer.show.visualize import attention_modules
from annotated_transformer.translating.translate import Translator


def without_two(
    translator: Translator,
    sentences: list[Sentence],
    kind: str,
    found: AntecedentAttention,
) -> dict:
    "The pronoun scores without the two heads that follow best, and without the two that follow least."
    order = (found.antecedent - found.other).flatten().argsort(descending=True).tolist()
    measured = {}
    for name, two in {"best": order[:2], "least": order[-2:]}.items():
        where = [divmod(i, found.other.size(1)) for i in two]
        with ExitStack() as ablated:
            for layer, head in where:
                ablated.enter_context(ablate_head(translator.model, kind, layer, head))
            measured[name] = {"heads": where} | pronoun_scores(
                translator, sentences
            )._asdict()
    return measured


def animal(translator: Translator, s: Sentence) -> dict:
    "The weights of every head in one sentence and its reference translation."
    model, vocab = translator.model, translator.vocab
    pair = WordPair.encode(vocab, s)
    return tokens_and_maps(model, vocab, pair.src, pair.tgt_in) | {
        "it": pair.src_words.index(s.pronoun.word),
        "writes": pair.predicts.index(s.pronoun.answer_word),
    }


def shares(found: AntecedentAttention) -> dict:
    return {
        "noun": found.antecedent.tolist(),
        "other": found.other.tolist(),
        "first": found.largest.tolist(),
    }


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("run", type=Path)
    add("--n", type=int, default=900, help="sentences drawn; a few are left out")
    add("--seed", type=int, default=1, help="of the sentences")
    args = parser.parse_args()
    run, sentences = tiny_run(args.run), pronoun_sentences(args.n, args.seed)
    began = time.process_time()
    translator = Translator(run.model, run.vocab, search=batched_greedy_search)
    with torch.inference_mode():
        attends = antecedent_attention(run.model, run.vocab, sentences)

    def pronouns() -> dict[str, float]:
        return pronoun_scores(translator, sentences)._asdict()

    kinds = attention_modules(run.model)
    without = {kind: without_each(run.model, kind, pronouns) for kind in kinds}
    two = {
        kind: without_two(translator, sentences, kind, f) for kind, f in attends.items()
    }
    found = {
        "n_sentences": len(sentences),
        "patterns": list(dict.fromkeys(s.pattern for s in sentences)),
        "sentence_seed": args.seed,
        "training": run.about["weights"],
        "follow": {kind: shares(f) for kind, f in attends.items()},
        "pronouns": {"whole": pronouns(), "without": without, "two": two},
        "cpu_seconds": round(time.process_time() - began, 1),
    }
    print(json.dumps(found, indent=1))
    animals = [animal(translator, s) for s in (ANIMAL_TIRED, ANIMAL_WIDE)]
    write(args.out, found | {"animals": animals})


if __name__ == "__main__":
    main()
