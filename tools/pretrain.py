#!/usr/bin/env python
"""Train the run that comes with the package, and replace it: annotated_transformer/pretrained/demo.

    make pretrained              trains, in about five minutes on two cores, and packs
    tools/pretrain.py --run RUN  packs a run that was trained already

The recipe is `tiny` on the synthetic corpus, trained for longer than by `make demo`, and also on copies of some sentences as people type them: no
capitals or all in capitals. Their translations are unchanged, in the usual German spelling. The weights are stored in 8 bits (52b).
"""

import argparse
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.model.config import get_recipe, override
from annotated_transformer.runs.folder import load_run, write_config
from annotated_transformer.runs.train_run import train_run
from annotated_transformer.runs.weights import (
    pack_weights,
    save_tensors,
    weights_metadata,
)
from annotated_transformer.show.heads import pronoun_sentences
from annotated_transformer.translating.evaluate import pronoun_accuracy
from annotated_transformer.translating.load import load

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "annotated_transformer/pretrained/demo"
SETTINGS = ["max_steps=4000"]


def first_lower(text: str) -> str:
    return text[0].lower() + text[1:]


# how people type a sentence, and the share of the training sentences copied so
CASES: tuple[tuple[Callable[[str], str], float], ...] = (
    (first_lower, 0.15),
    (str.lower, 0.1),
    (str.upper, 0.15),
)
TYPED: dict[str, Callable[[str], str]] = {
    "as in the corpus": str,
    "first letter in lower case": first_lower,
    "all in lower case": str.lower,
    "all in capitals": str.upper,
    "with ’ for the apostrophe": lambda text: text.replace("'", "’"),
}


def with_cases(pairs: list[tuple[str, str]], seed: int = 0) -> list[tuple[str, str]]:
    "The pairs, and after them the copies of `CASES`, with their German as it is."
    rng, copies = random.Random(seed), []
    for change, share in CASES:
        copies += [(change(src), tgt) for src, tgt in pairs if rng.random() < share]
    return [*pairs, *copies]


def pack_run(run: Path, out: Path) -> None:
    "A run folder without checkpoints, its weights in 8 bits."
    loaded = load_run(run)
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "vocab.model", out / "vocab.model")
    write_config(out, loaded.recipe, loaded.about | {"case_variants": True})
    weights = pack_weights(dict(loaded.model.state_dict()))
    about = weights_metadata(loaded.recipe.model, loaded.about["weights"])
    save_tensors(weights, out / "model.safetensors", about)
    (out / "model.safetensors").chmod(0o644)  # whoever installs the package reads it


def exact_as_typed(run: Path, n: int) -> dict[str, int]:
    "How many of n held-out sentences are translated exactly, typed in each way."
    translator, plain = load(run), builtin(n, seed=1, split="test")
    wanted, exact = [s.de for s in plain], {}
    for name, typed in TYPED.items():
        found = translator.translate([typed(s.en) for s in plain])
        exact[name] = sum(map(str.__eq__, found, wanted))
    return exact


def quality(run: Path, n: int = 1000) -> str:
    "Exact match and pronouns on held-out sentences."
    it = pronoun_sentences(n)
    found = load(run).translate([s.en for s in it])
    pronouns = pronoun_accuracy(found, [s.de for s in it])
    exact = (f"{m / n:.1%} {name}" for name, m in exact_as_typed(run, n).items())
    return f"exact match {', '.join(exact)}; pronouns {pronouns:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, help="a run of this recipe")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = args.run or Path(scratch) / "run"
        if not args.run:
            recipe = override(get_recipe("tiny"), SETTINGS)
            corpus = load_corpus("builtin")
            train_run(corpus._replace(train=with_cases(corpus.train)), recipe, run)
        pack_run(run, OUT)
        n_bytes = sum(file.stat().st_size for file in OUT.iterdir())
        print(f"as trained: {quality(run)}")
        print(f"{OUT.relative_to(ROOT)}, {n_bytes:,} bytes: {quality(OUT)}")


if __name__ == "__main__":
    main()
