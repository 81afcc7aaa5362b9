#!/usr/bin/env python
"""Does `transformers` translate as the run that was exported to it: the same sentences, the same token ids, the same weights after a round trip.

    python benchmarks/hugging_face.py runs/multi30k --data-dir DATA --out hugging_face.json
    tools/record.py results/hugging_face.json --command "…" --seed 0 --json found=hugging_face.json

Sentences are those of Multi30k's test_2016, the first 500. Each may have 50 tokens more than its source in both programs, so sentences of
one length are one batch. Token ids are those of Multi30k's lines and of lines of random characters.
"""

import json
import random
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path

import torch
import transformers
from measuring import options, write
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    search_with,
)
from annotated_transformer.export.hugging_face import export_hf
from annotated_transformer.export.marian import import_marian
from annotated_transformer.runs.weights import read_tensors
from annotated_transformer.translating.evaluate import bleu
from annotated_transformer.translating.load import load


def interleaved(weight: torch.Tensor) -> torch.Tensor:
    "The inverse of `in_halves`, along the last dimension."
    return weight.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def theirs(alpha: float):
    "Beam search with their length penalty."
    return partial(batched_beam_search, penalty=lambda n: n**alpha)


PAPERS = "beam 4, the paper's α = 0.6"
SEARCHES = (
    ("greedy", batched_greedy_search, {"num_beams": 1, "early_stopping": False}),
    ("beam 4, their penalty with α = 0.6", theirs(0.6), {"length_penalty": 0.6}),
    ("beam 4, their penalty with α = 1", theirs(1.0), {"length_penalty": 1.0}),
    ("beam 4, α = 0", search_with(4, 0.0), {}),
    (PAPERS, search_with(4, 0.6), {"length_penalty": 0.0}),
    (PAPERS, search_with(4, 0.6), {"length_penalty": 0.45}),
    (PAPERS, search_with(4, 0.6), {"length_penalty": 0.6}),
)


def generate(model, tokenizer, sentences: list[str], settings: dict) -> list[str]:
    "The sentences of `transformers`, those of one length together."
    rows, found = defaultdict(list), [""] * len(sentences)
    for i, sentence in enumerate(sentences):
        rows[len(tokenizer(sentence).input_ids)].append(i)
    for n, chosen in rows.items():
        inputs = tokenizer([sentences[i] for i in chosen], return_tensors="pt")
        # n counts EOS, and max_length counts BOS: 50 more than the source has
        ids = model.generate(**inputs, max_length=n + 50, **settings)
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        for i, text in zip(chosen, texts):
            found[i] = text
    return found


ODD = "a é ß 漢 🐕 ﬁ „ ’ </s> <pad> <unk> <s> <0xE2> e\u0301".split()
ODD += [" ", "  ", "\t", "\u200b", "\u00a0", "\ufeff", "\x00"]
RANGES = ((32, 127), (0xA0, 0x2600), (0x3000, 0xD800), (0x10000, 0x20000))


def random_line(rng: random.Random) -> str:
    "Characters of several scripts, spaces, controls, and what looks like a token."
    line = ""
    for _ in range(rng.randrange(1, 60)):
        limits = rng.choice([None, *RANGES])
        line += chr(rng.randrange(*limits)) if limits else rng.choice(ODD)
    return line.replace("\u2581", "_")  # theirs reads it as a space


def same_ids(tokenizer, vocab, lines: list[str]) -> dict[str, int]:
    wanted = ([*vocab.encode(line), vocab.eos_id] for line in lines)
    equal = sum(tokenizer(line).input_ids == ids for line, ids in zip(lines, wanted))
    return {"lines": len(lines), "equal": equal}


def round_trip(run: Path, exported: Path, folder: Path) -> bool:
    "Are the weights bit for bit those of the run, after export and import?"
    import_marian(exported, folder)
    before = read_tensors(run / "model.safetensors")
    after = read_tensors(folder / "model.safetensors")
    reads = ("embedding.weight", "w_q.weight", "w_k.weight", "w_v.weight", "w_1.weight")
    for name, weight in after.items():
        if name not in before:
            if weight.any():
                return False
            continue
        if name.endswith(reads):
            weight = interleaved(weight)
        elif not name.endswith("w_1.bias"):
            weight = interleaved(weight.t()).t()
        if not torch.equal(weight, before[name]):
            return False
    return before.keys() <= after.keys()


def compare(run: Path, model, tokenizer, test: list[tuple[str, str]]) -> list[dict]:
    "Every search: equal sentences, and the BLEU of both."
    sentences, references = map(list, zip(*test))
    found = []
    for name, search, settings in SEARCHES:
        ours = load(run, search=search).translate(sentences)
        theirs = generate(model, tokenizer, sentences, settings)
        options = ", ".join(f"{k}={v}" for k, v in settings.items())
        row = {
            "ours": name,
            "theirs": options or "no options",
            "equal": sum(map(str.__eq__, ours, theirs)),
            "bleu_ours": round(bleu(ours, references).value, 2),
            "bleu_theirs": round(bleu(theirs, references).value, 2),
        }
        found.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("run", type=Path)
    text = "holds multi30k/; without it the text is downloaded"
    parser.add_argument("--data-dir", help=text)
    parser.add_argument("--sentences", type=int, default=500)
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    corpus, vocab = load_corpus("multi30k", args.data_dir), load(args.run).vocab
    test = list(corpus.test)[: args.sentences]
    real = [line for pair in list(corpus.train)[:5000] for line in pair]
    rng = random.Random(0)
    odd = [random_line(rng) for _ in range(10_000)]
    with tempfile.TemporaryDirectory() as scratch:
        out = export_hf(args.run, Path(scratch) / "exported")
        model = AutoModelForSeq2SeqLM.from_pretrained(out)
        tokenizer = AutoTokenizer.from_pretrained(out)
        found = {
            "transformers": transformers.__version__,
            "n_sentences": len(test),
            "searches": compare(args.run, model, tokenizer, test),
            "ids": {
                "Multi30k": same_ids(tokenizer, vocab, real),
                "random characters": same_ids(tokenizer, vocab, odd),
            },
            "round_trip_exact": round_trip(args.run, out, Path(scratch) / "back"),
        }
    print(json.dumps(found, indent=1, ensure_ascii=False))
    write(args.out, found)


if __name__ == "__main__":
    main()
