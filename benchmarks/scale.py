#!/usr/bin/env python
"""How preparing and loading text grow with it: made-up text of several sizes, time and memory of each part.

    benchmarks/scale.py 45000 450000 4500000 --cores 1 --json scale.json

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from itertools import islice, pairwise
from pathlib import Path

import numpy as np

N_WORDS, N_VALID = 200_000, 3_000
N_PIECES, BATCH_TOKENS, MAX_LEN = (
    37_000,
    25_000,
    100,
)  # the paper's vocabulary and batch (§5.1); the lengths that wmt14 recipes keep
N_STEPS = 300


@cache
def words(seed: int) -> np.ndarray:
    "Words of one to four syllables, the frequent ones short."
    rng, found = random.Random(seed), {}
    while len(found) < N_WORDS:
        n_syllables = 1 + rng.randrange(1 + min(3, len(found).bit_length() // 4))
        found[
            "".join(
                rng.choice("bdfghklmnprstvwz")
                + rng.choice("aeiou")
                + rng.choice(["", "", *"nrst"])
                for _ in range(n_syllables)
            )
        ] = None
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
    rng, both = np.random.default_rng(seed), (words(1), words(2))
    with (
        open(f"{stem}.src", "w", encoding="utf-8") as src,
        open(f"{stem}.tgt", "w", encoding="utf-8") as tgt,
    ):
        for i in range(0, n_pairs, 10_000):
            n_src = np.clip(
                rng.gamma(2.5, 10, min(10_000, n_pairs - i)), 1, 150
            ).astype(int)  # mean 25
            n_tgt = np.clip(
                n_src * rng.normal(1, 0.12, len(n_src)) + 0.5, 1, 150
            ).astype(int)
            for file, list_of_words, lengths in zip((src, tgt), both, (n_src, n_tgt)):
                file.writelines(sentences(list_of_words, lengths, rng))


def texts(folder: Path) -> tuple:
    "Both splits, read line by line."
    from annotated_transformer.io.text import TextPairs

    return tuple(
        TextPairs([(folder / f"{split}.src", folder / f"{split}.tgt")])
        for split in ("train", "valid")
    )


def peak_gb() -> float:
    "The most memory this process, or one it started, ever held."
    unit = 1 if sys.platform == "darwin" else 1024
    return (
        max(
            resource.getrusage(who).ru_maxrss
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        )
        * unit
        / 1e9
    )


def measure_generate(folder: Path, n_pairs: int) -> dict:
    start = time.perf_counter()
    for i, (split, n) in enumerate({"valid": N_VALID, "train": n_pairs}.items()):
        write_text(folder / split, n, seed=i)
    return {
        "seconds": time.perf_counter() - start,
        "text_gb": sum(path.stat().st_size for path in folder.iterdir()) / 1e9,
    }


def measure_prepare(folder: Path, n_pairs: int) -> dict:
    from annotated_transformer.data.prepared import prepare
    from annotated_transformer.io.text import fingerprint

    at_start, cpu, start = peak_gb(), time.process_time(), time.perf_counter()
    train, valid = texts(folder)
    text_sha256 = fingerprint(train)
    fingerprinted = time.perf_counter() - start
    data = prepare(
        folder / "data",
        train,
        valid,
        text_sha256,
        N_PIECES,
        quiet=not sys.stderr.isatty(),
    )
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "fingerprint_seconds": fingerprinted,
        "peak_gb": peak_gb(),
        "peak_gb_after_imports": at_start,
        "n_vocab": len(data.vocab),
        "n_pieces": len(data.train.src.ids) + len(data.train.tgt.ids),
    }


def measure_load(folder: Path, n_pairs: int) -> dict:
    from annotated_transformer.data.batch import training_steps
    from annotated_transformer.data.prepared import open_prepared

    at_start, start = peak_gb(), time.perf_counter()
    data = open_prepared(folder / "data")
    opened = time.perf_counter() - start
    steps = training_steps(
        data.train, data.vocab, BATCH_TOKENS, seed=0, max_len=MAX_LEN
    )
    next(steps)
    first = time.perf_counter() - start
    begin = time.perf_counter()
    seen = list(
        islice(((step.n_tokens, step.position.epoch) for step in steps), N_STEPS)
    )
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


def in_own_process(part: str, folder: Path, n_pairs: int) -> dict:
    "What a part measured of itself, in a fresh process."
    out = subprocess.run(
        [
            sys.executable,
            __file__,
            str(n_pairs),
            "--part",
            part,
            "--folder",
            str(folder),
        ],
        check=True,
        stdout=subprocess.PIPE,
    )
    return json.loads(out.stdout)


def measure(n_pairs: int, where: Path | None) -> dict:
    "All parts for one size, one after the other."
    with tempfile.TemporaryDirectory(dir=where) as name:
        folder = Path(name)
        found = {"n_pairs": n_pairs} | {
            part: in_own_process(part, folder, n_pairs) for part in PARTS
        }
        return found | {
            "disk_gb": sum(path.stat().st_size for path in (folder / "data").iterdir())
            / 1e9
        }


def table(sizes: list[dict]) -> str:
    "One line for each size."
    columns = {
        "pairs": (10, ",", lambda s: s["n_pairs"]),
        "text GB": (8, ".3f", lambda s: s["generate"]["text_gb"]),
        "prepared s": (11, ".1f", lambda s: s["prepare"]["seconds"]),
        "CPU s": (8, ".1f", lambda s: s["prepare"]["cpu_seconds"]),
        "peak GB": (8, ".2f", lambda s: s["prepare"]["peak_gb"]),
        "disk GB": (8, ".3f", lambda s: s["disk_gb"]),
        "first batch s": (14, ".2f", lambda s: s["load"]["first_batch_seconds"]),
        "tokens/s": (12, ",.0f", lambda s: s["load"]["tokens_per_second"]),
        "load GB": (8, ".2f", lambda s: s["load"]["peak_gb"]),
    }
    lines = ["".join(f"{name:>{width}}" for name, (width, _, _) in columns.items())]
    return "\n".join(
        lines
        + [
            "".join(
                f"{value(s):>{width}{form}}" for width, form, value in columns.values()
            )
            for s in sizes
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "n_pairs", type=int, nargs="*", default=[45_000, 450_000, 4_500_000]
    )
    parser.add_argument(
        "--cores", type=int, help="how many to use; without it, all (Linux only)"
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument(
        "--folder", type=Path, help="where the temporary folder is made"
    )
    parser.add_argument(
        "--part", choices=PARTS, help=argparse.SUPPRESS
    )  # what the process of one part is started with
    args = parser.parse_args()
    if args.part:
        return print(json.dumps(PARTS[args.part](args.folder, args.n_pairs[0])))
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    sizes = []
    for n in args.n_pairs:
        sizes.append(measure(n, args.folder))
        print(table(sizes[-1:]), flush=True)
        if args.json:
            args.json.write_text(
                json.dumps(
                    {"cores": args.cores or os.cpu_count(), "sizes": sizes}, indent=1
                )
                + "\n",
                encoding="utf-8",
            )
    if len(sizes) > 1:
        print("\n" + table(sizes))


if __name__ == "__main__":
    main()
