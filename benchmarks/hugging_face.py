#!/usr/bin/env python
"""Does `transformers` translate as the run that was exported to it: the same sentences, the same token ids, the same weights after a round trip.

    python benchmarks/hugging_face.py runs/multi30k --data-dir DATA --out hugging_face.json
    tools/record.py results/hugging_face.json --command "…" --seed 0 --json found=hugging_face.json

Sentences are those of Multi30k's test_2016, the first 500. Each may have 50 tokens more than its source in both programs, so sentences of
one length are one batch. Token ids are those of Multi30k's lines and of lines of random characters.
"""

import argparse
import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    search_with,
)
from annotated_transformer.export.hugging_face import export_hf
from annotated_transformer.runs.weights import read_tensors
from annotated_transformer.translating.evaluate import bleu
from annotated_transformer.translating.load import load
from annotated_transformer.translating.marian_import import import_marian


def their_penalty(n: int | torch.Tensor, alpha: float):
    return n**alpha


def interleaved(weight: torch.Tensor) -> torch.Tensor:
    "The inverse of `in_halves`, along the last dimension."
    return weight.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


SEARCHES = (
    ("greedy", batched_greedy_search, {"num_beams": 1, "early_stopping": False}),
    *(
        (
            f"beam 4, their penalty with α = {alpha:g}",
            partial(batched_beam_search, penalty=partial(their_penalty, alpha=alpha)),
            {"length_penalty": alpha},
        )
        for alpha in (0.6, 1.0)
    ),
    ("beam 4, α = 0", search_with(4, 0.0), {}),
    ("beam 4, the paper's α = 0.6", search_with(4, 0.6), {"length_penalty": 0.0}),
    ("beam 4, the paper's α = 0.6", search_with(4, 0.6), {"length_penalty": 0.45}),
    ("beam 4, the paper's α = 0.6", search_with(4, 0.6), {"length_penalty": 0.6}),
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
        for i, text in zip(
            chosen, tokenizer.batch_decode(ids, skip_special_tokens=True)
        ):
            found[i] = text
    return found


def random_line(rng: random.Random) -> str:
    "Characters of several scripts, spaces, controls, and what looks like a token."
    parts = [
        "a",
        "é",
        "ß",
        "漢",
        "🐕",
        " ",
        "  ",
        "\t",
        "\u200b",
        "ﬁ",
        "„",
        "’",
        "</s>",
    ]
    parts += ["<pad>", "<unk>", "<s>", "<0xE2>", "\u00a0", "\ufeff", "e\u0301", "\x00"]
    pick: tuple[Callable[[], str], ...] = (
        lambda: rng.choice(parts),
        lambda: chr(rng.randrange(32, 127)),
        lambda: chr(rng.randrange(0xA0, 0x2600)),
        lambda: chr(rng.randrange(0x3000, 0xD800)),
        lambda: chr(rng.randrange(0x10000, 0x20000)),
    )
    line = "".join(rng.choice(pick)() for _ in range(rng.randrange(1, 60)))
    return line.replace("\u2581", "_")  # theirs reads it as a space


def same_ids(tokenizer, vocab, lines: list[str]) -> dict[str, int]:
    equal = sum(
        tokenizer(x).input_ids == [*vocab.encode(x), vocab.eos_id] for x in lines
    )
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument(
        "--data-dir", help="holds multi30k/; without it the text is downloaded"
    )
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    corpus, scratch = (
        load_corpus("multi30k", args.data_dir),
        tempfile.TemporaryDirectory(),
    )
    sentences, references = map(list, zip(*list(corpus.test)[:500]))
    out = export_hf(args.run, Path(scratch.name) / "exported")
    model = AutoModelForSeq2SeqLM.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    searches = []
    for name, search, settings in SEARCHES:
        ours = load(args.run, search=search).translate(sentences)
        theirs = generate(model, tokenizer, sentences, settings)
        row = {
            "ours": name,
            "theirs": ", ".join(f"{k}={v}" for k, v in settings.items())
            or "no options",
            "equal": sum(a == b for a, b in zip(ours, theirs, strict=True)),
            "bleu_ours": round(bleu(ours, references).value, 2),
            "bleu_theirs": round(bleu(theirs, references).value, 2),
        }
        searches.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    rng, vocab = random.Random(0), load(args.run).vocab
    real = [line for pair in list(corpus.train)[:5000] for line in pair]
    found = {
        "transformers": transformers.__version__,
        "n_sentences": len(sentences),
        "searches": searches,
        "ids": {
            "Multi30k": same_ids(tokenizer, vocab, real),
            "random characters": same_ids(
                tokenizer, vocab, [random_line(rng) for _ in range(10_000)]
            ),
        },
        "round_trip_exact": round_trip(args.run, out, Path(scratch.name) / "back"),
    }
    print(json.dumps(found, indent=1, ensure_ascii=False))
    if args.out:
        text = json.dumps(found, indent=1, ensure_ascii=False)
        Path(args.out).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
