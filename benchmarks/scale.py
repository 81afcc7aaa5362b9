#!/usr/bin/env python
"""How preparing and loading text grow with it: made-up text of several sizes, time and memory of each part.

    benchmarks/scale.py 45000 450000 4500000 --cores 1 --out scale.json

Each part is measured in a process of its own; where others use the machine too, CPU seconds say more than seconds. The text has the
lengths of WMT's sentences, about 25 words, and words as frequent as in real text (the r-th most frequent one in proportion to 1/r); it is
the same on each run. It is written to a temporary folder (about 330 bytes a pair, and half as much again for the ids) and removed
afterwards. A record for `results/` is made by `tools/record.py`.
"""

import argparse
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
from measuring import in_own_process, options, write

from annotated_transformer.data.batch import training_steps
from annotated_transformer.data.prepared import open_prepared, prepare
from annotated_transformer.io.text import TextPairs, fingerprint

N_WORDS, N_VALID = 200_000, 3_000
SPLITS = ("train", "valid")
N_PIECES, BATCH_TOKENS = 37_000, 25_000  # of the paper (§5.1)
MAX_LEN = 100  # the lengths that wmt14 recipes keep
N_STEPS = 300


@cache
def words(seed: int) -> np.ndarray:
    "Words of one to four syllables, the frequent ones short."
    rng, found = random.Random(seed), {}
    while len(found) < N_WORDS:
        n_syllables = 1 + rng.randrange(1 + min(3, len(found).bit_length() // 4))
        parts = ("bdfghklmnprstvwz", "aeiou", ["", "", *"nrst"])
        word = "".join(rng.choice(part) for _ in range(n_syllables) for part in parts)
        found[word] = None
    return np.array(list(found), dtype=object)


def sentences(
    words: np.ndarray, lengths: np.ndarray, rng: np.random.Generator
) -> Iterator[str]:
    "As many sentences as lengths; the word of rank r is drawn in proportion to 1/r."
    drawn = words[(len(words) ** rng.random(lengths.sum())).astype(int) - 1].tolist()
    return (
        " ".join(drawn[i:j]) + "\n"
        for i, j in pairwise([0, *np.cumsum(lengths).tolist()])
    )


def write_text(stem: Path, n_pairs: int, seed: int) -> None:
    "Two aligned files, stem.src and stem.tgt, written some thousand lines at a time."
    rng = np.random.default_rng(seed)
    with (
        open(f"{stem}.src", "w", encoding="utf-8") as src,
        open(f"{stem}.tgt", "w", encoding="utf-8") as tgt,
    ):
        for i in range(0, n_pairs, 10_000):
            drawn = rng.gamma(2.5, 10, min(10_000, n_pairs - i))  # mean 25
            n_src = np.clip(drawn, 1, 150).astype(int)
            drawn = n_src * rng.normal(1, 0.12, len(n_src)) + 0.5
            n_tgt = np.clip(drawn, 1, 150).astype(int)
            src.writelines(sentences(words(1), n_src, rng))
            tgt.writelines(sentences(words(2), n_tgt, rng))


def texts(folder: Path) -> tuple[TextPairs, TextPairs]:
    "Both splits, read line by line."
    sides = [[folder / f"{split}.{s}" for s in ("src", "tgt")] for split in SPLITS]
    train, valid = (TextPairs([tuple(side)]) for side in sides)
    return train, valid


def peak_gb() -> float:
    "The most memory this process, or one it started, ever held."
    unit = 1 if sys.platform == "darwin" else 1024
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(who).ru_maxrss for who in both) * unit / 1e9


def gigabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 1e9


def measure_generate(folder: Path, n_pairs: int) -> dict:
    start = time.perf_counter()
    write_text(folder / "valid", N_VALID, seed=0)
    write_text(folder / "train", n_pairs, seed=1)
    return {"seconds": time.perf_counter() - start, "text_gb": gigabytes(folder)}


def measure_prepare(folder: Path, n_pairs: int) -> dict:
    at_start, cpu, start = peak_gb(), time.process_time(), time.perf_counter()
    train, valid = texts(folder)
    sha256 = fingerprint(train)
    fingerprinted = time.perf_counter() - start
    data = prepare(folder / "data", train, valid, sha256, N_PIECES, quiet=True)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "fingerprint_seconds": fingerprinted,
        "peak_gb": peak_gb(),
        "peak_gb_after_imports": at_start,
        "n_vocab": len(data.vocab),
        "vocab_size": len(data.train.src.ids) + len(data.train.tgt.ids),
    }


def measure_load(folder: Path, n_pairs: int) -> dict:
    at_start, start = peak_gb(), time.perf_counter()
    data = open_prepared(folder / "data")
    opened = time.perf_counter() - start
    steps = training_steps(data.train, data.vocab, BATCH_TOKENS, 0, max_len=MAX_LEN)
    next(steps)
    first = time.perf_counter() - start
    begin = time.perf_counter()
    seen = [(s.n_tokens, s.epoch) for s in islice(steps, N_STEPS)]
    seconds = time.perf_counter() - begin
    return {
        "open_seconds": opened,
        "first_batch_seconds": first,
        "steps": N_STEPS,
        "epochs": seen[-1][1] + 1,
        "tokens_per_second": sum(n for n, _ in seen) / seconds,
        "peak_gb": peak_gb(),
        "peak_gb_after_imports": at_start,
    }


PARTS = {"generate": measure_generate, "prepare": measure_prepare, "load": measure_load}


def measure(n_pairs: int, where: Path | None) -> dict:
    "All parts for one size, one after the other, each in a process of its own."
    found: dict = {"n_pairs": n_pairs}
    with tempfile.TemporaryDirectory(dir=where) as folder:
        for part in PARTS:
            given = "--part", part, "--folder", folder
            found[part] = in_own_process(__file__, n_pairs, *given)
            print(f"{n_pairs:,} pairs, {part}: {found[part]}", flush=True)
        return found | {"disk_gb": gigabytes(Path(folder) / "data")}


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("n_pairs", type=int, nargs="*", default=[45_000, 450_000, 4_500_000])
    add("--cores", type=int, help="how many to use; without it, all (Linux only)")
    add("--folder", type=Path, help="where the temporary folder is made")
    add("--part", choices=PARTS, help=argparse.SUPPRESS)  # of the process of a part
    args = parser.parse_args()
    if args.part:
        return print(json.dumps(PARTS[args.part](args.folder, args.n_pairs[0])))
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    sizes = []
    for n in args.n_pairs:
        sizes.append(measure(n, args.folder))
        write(args.out, {"cores": args.cores or os.cpu_count(), "sizes": sizes})


if __name__ == "__main__":
    main()
