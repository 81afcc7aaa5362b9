#!/usr/bin/env python
"""Back-translation: a reverse model makes the sources of text that exists in the target language alone (notebook 56a).

    OMP_NUM_THREADS=1 python results/back_translation.py --data-dir DATA --out runs/back_translation
    python tools/record.py results/back_translation.json --command "…" --seed 0 --json table=OUT/table.json --json reverse=OUT/reverse.json

The first `--n-train` pairs of the text are parallel text. Of the others, the German side is monolingual text. A model from German to
English, trained on the parallel text, translates it once, and every row adds other pairs to the parallel text. All rows have the settings,
the steps and the vocabulary of base, which is trained on the parallel text alone by `since_2017.py --rows base "1,500 steps"`. A run takes
about ten minutes of one core. The same command continues what was interrupted.
"""

import argparse
import json
import time
from itertools import product

from figures import Pairs, write
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
)

from annotated_transformer import load
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.data.vocab import Vocab, learn_bpe
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.experiments.back_translation import back_translate, with_tag
from annotated_transformer.io.text import fingerprint
from annotated_transformer.runs.settings import Recipe, override
from annotated_transformer.translating.evaluate import bleu

TAG = "<bt>"
ROWS = {  # what is added to the parallel text
    "synthetic": "pairs of a synthetic source and a real target",
    "tagged": f"the same, with {TAG} before each synthetic source",
    "all pairs": "the same targets with their real sources: the upper bound",
}
N_EXAMPLES = 5


def turned(pairs: Pairs) -> Pairs:
    return [(tgt, src) for src, tgt in pairs]


def synthetic(
    corpus: Corpus, others: Pairs, vocab: Vocab, base: Recipe, runs: Runs, device: str
) -> Pairs:
    "The targets of `others` with sources by a reverse model, which is trained first."
    file, about = runs.out / "synthetic.json", runs.out / "reverse.json"
    seed = base.train.seed
    if not (file.exists() and about.exists()):
        run = runs.out / run_name("reverse", seed)
        reverse = corpus._replace(
            src_lang=corpus.tgt_lang,
            tgt_lang=corpus.src_lang,
            train=turned(corpus.train),
            valid=turned(corpus.valid),
            vocab=vocab,
        )
        runs.train(reverse, base, run, device)
        found = {**provenance(seed), **measured(run, reverse, device)}
        began = time.process_time()
        translator = load(run, device, search_with(BEAM, ALPHA))
        pairs = back_translate(translator.translate, [tgt for _, tgt in others])
        found["translate_seconds"] = time.process_time() - began
        found["n_targets"], found["n_pairs"] = len(others), len(pairs)
        found["text"] = fingerprint(pairs)[:16]
        real = {tgt: src for src, tgt in others}
        sources = [src for src, _ in pairs], [real[tgt] for _, tgt in pairs]
        found["bleu_of_sources"] = bleu(*sources).value
        found["examples"] = [(tgt, src, real[tgt]) for src, tgt in pairs[:N_EXAMPLES]]
        write(file, {"pairs": pairs})
        write(about, found)
        print("reverse", found, flush=True)
    return [(src, tgt) for src, tgt in json.loads(file.read_text("utf-8"))["pairs"]]


def fill(args: argparse.Namespace) -> None:
    "Train and measure each run that has no measures yet, and write the table."
    base = base_of(args)
    corpus, runs = start(args, base, ROWS)
    others = list(load_corpus(args.data, args.data_dir).train)[args.n_train :]
    lines = (text for pair in corpus.train for text in pair)
    vocab = learn_bpe(lines, base.train.vocab_size)
    pairs = synthetic(corpus, others, vocab, base, runs, args.device)
    added = {
        "synthetic": pairs,
        "tagged": [(f"{TAG} {src}", tgt) for src, tgt in pairs],
        "all pairs": others,
    }
    for seed, name in product(args.seeds, args.rows):
        run = args.out / run_name(name, seed)
        if runs.file(name, seed).exists():
            continue
        text = corpus._replace(
            train=[*corpus.train, *added[name]],
            vocab=with_tag(vocab, TAG) if name == "tagged" else vocab,
        )
        runs.train(text, override(base, [f"seed={seed}"]), run, args.device)
        found = {**provenance(seed), **measured(run, corpus, args.device)}
        n_pairs = {"n_parallel": len(corpus.train), "n_added": len(added[name])}
        runs.add({"row": name, "added": ROWS[name], **n_pairs}, found)


def main() -> None:
    fill(arguments(__doc__, "runs/back_translation", ROWS).parse_args())


if __name__ == "__main__":
    main()
