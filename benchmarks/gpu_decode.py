"The part of gpu.py that translates: greedy and beam search beside Hugging Face's generate."

import argparse
import random
import statistics
import time

import torch
from decode import (
    MORE,
    SETTINGS,
    HuggingFace,
    HuggingFaceEager,
    Ours,
    OursBf16,
    batches_of,
)
from gpu_kit import Ids, Kit, first_line, say

from annotated_transformer.engines.choose import FAST
from annotated_transformer.model.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import Run


class HuggingFaceBf16(HuggingFace):
    precision = "bf16"


CONTENDERS = {
    "fp32": {
        "ours": Ours,
        "Hugging Face": HuggingFace,
        "the same, eager": HuggingFaceEager,
    },
    "bf16": {"ours": OursBf16, "Hugging Face": HuggingFaceBf16},
}


def untrained(kit: Kit, m: ModelConfig) -> Run:
    """A model that never predicts EOS: its logit is 0, others are positive.

    Every sentence therefore gets as many tokens as it may have, from every contender.
    """
    torch.manual_seed(kit.seed)
    model = build_transformer(m, kit.n_vocab, 0, attention=FAST.attention).eval()
    with torch.no_grad():
        model.embedding.weight[Ids.eos_id] = 0
    return Run(model, Ids(kit.n_vocab), Recipe(m, TrainConfig()), {})


def sentences(kit: Kit) -> list[list[int]]:
    "Random ids, all equally many: then a batch has one limit for all of them."
    rng = random.Random(kit.seed)
    n, length = (4, 3) if kit.tiny else (256, 25)
    return [[rng.randrange(4, kit.n_vocab) for _ in range(length)] for _ in range(n)]


def build(kit: Kit, precision: str, m: ModelConfig) -> tuple[dict, dict]:
    "The contenders that can be had, and the memory of their weights."
    made, megabytes = {}, {}
    options = argparse.Namespace(device=str(kit.device), threads=1, run=None)
    for name, kind in CONTENDERS[precision].items():
        if kit.tiny and kind is HuggingFaceEager:
            continue
        kit.forget_peak()
        before = kit.megabytes()
        try:
            made[name] = kind(untrained(kit, m), options)
        except Exception as e:
            say(f"  {name} is left out: {first_line(e)}")
            continue
        megabytes[name] = kit.megabytes() - before
    return made, megabytes


def timed(kit: Kit, contender, batches: list, beam: int) -> tuple[float, list, float]:
    "Seconds for all batches, the ids, and the most memory beyond the weights, in MB."
    prepared = [contender.prepare(rows) for rows in batches]
    kit.forget_peak()
    before = kit.megabytes()
    kit.wait()
    began = time.perf_counter()
    found = [contender.decode(batch, beam) for batch in prepared]
    kit.wait()
    seconds = time.perf_counter() - began
    peak = kit.peak_mb() - before
    return seconds, [ids for some in found for ids in contender.ids(some)], peak


def rounds_of(kit: Kit, made: dict, batches: list, beam: int, n: int) -> dict:
    "For each contender: its seconds in each round, what it found, its memory."
    facts: dict[str, dict] = {name: {"seconds": []} for name in made}
    for one in made.values():
        timed(kit, one, batches[:1], beam)  # warms up
    names = list(made)
    for turn in range(n):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds, ids, peak = timed(kit, made[name], batches, beam)
            facts[name] |= {"ids": ids, "peak": peak}
            facts[name]["seconds"].append(seconds)
    return facts


def middle(values) -> float:
    return round(statistics.median(values), 3)


def summary(kit: Kit, facts: dict, megabytes: dict) -> dict:
    "Medians over rounds; equal outputs can be expected in fp32 only."
    result, ours = {}, facts["ours"]
    for name, r in facts.items():
        n_tokens = sum(map(len, r["ids"]))
        same = sum(a == b for a, b in zip(r["ids"], ours["ids"])) / len(r["ids"])
        result[name] = {
            "sentences_per_s": middle(len(r["ids"]) / s for s in r["seconds"]),
            "tokens_per_s": middle(n_tokens / s for s in r["seconds"]),
            "ours_is_faster_by": middle(
                s / o for s, o in zip(r["seconds"], ours["seconds"])
            ),
            "tokens": n_tokens,
            "same_as_ours": round(same, 4),
            "peak_mb": round(megabytes[name] + r["peak"]) if kit.on_cuda else None,
        }
    return result


def show(result: dict) -> None:
    for name, r in result.items():
        say(
            f"    {name:20}{r['sentences_per_s']:>10,.1f} sentences/s"
            f"{r['ours_is_faster_by']:>8.2f}{r['same_as_ours']:>10.1%} as ours"
        )


def compare(kit: Kit, size: str, precision: str, m: ModelConfig) -> dict:
    "All settings: greedy and beam 4, 64 sentences at a time and one by one."
    made, megabytes = build(kit, precision, m)
    if "ours" not in made:
        raise RuntimeError(f"our model of size {size} cannot translate here")
    rows, found = sentences(kit), {}
    some = argparse.Namespace(one_by_one=1 if kit.tiny else 8)
    for setting, (beam, n) in SETTINGS.items():
        batches = [[rows[i] for i in group] for group in batches_of(rows, n, some)]
        facts = rounds_of(kit, made, batches, beam, 1 if kit.tiny else 3)
        found[setting] = summary(kit, facts, megabytes)
        say(f"\n  {size}, {precision}, {setting}, {sum(map(len, batches))} sentences")
        show(found[setting])
        kit.note(f"{size}, {precision}", found)
    return found


def decode(kit: Kit) -> None:
    "Greedy and beam search, each beside Hugging Face's generate, with equal work."
    sizes = kit.sizes()
    kit.note("weights", "untrained, never EOS")
    kit.note("tokens_beyond_the_source", MORE)
    compare(kit, "base", "fp32", sizes["base"])
    if kit.precision == "bf16":
        compare(kit, "base", "bf16", sizes["base"])
    if not kit.tiny:
        compare(kit, "big", kit.precision, sizes["big"])
