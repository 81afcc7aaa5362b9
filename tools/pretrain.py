#!/usr/bin/env python
"""Train the run that comes with the package, and replace it: annotated_transformer/pretrained/demo.

    make pretrained              trains, in about five minutes on two cores, and packs
    tools/pretrain.py --run RUN  packs a run that was trained already

The recipe is `tiny` on the synthetic corpus, trained for longer than by `make demo`. The weights are stored in 8 bits (52b).
"""

import argparse
import shutil
import tempfile
from pathlib import Path

from annotated_transformer.config import get_recipe, override
from annotated_transformer.corpus import load_corpus
from annotated_transformer.evaluate import pronoun_accuracy
from annotated_transformer.grammar import builtin
from annotated_transformer.heads import pronoun_sentences
from annotated_transformer.run_folder import load_run
from annotated_transformer.runs import train_run
from annotated_transformer.translate import load
from annotated_transformer.weights import pack_weights, save_tensors, weights_metadata

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "annotated_transformer/pretrained/demo"
SETTINGS = ["max_steps=4000"]


def pack_run(run: Path, out: Path) -> None:
    "A run folder without checkpoints, its weights in 8 bits."
    loaded = load_run(run)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "vocab.model"):
        shutil.copyfile(run / name, out / name)
    weights = pack_weights(dict(loaded.model.state_dict()))
    about = weights_metadata(loaded.recipe.model, loaded.about["weights"])
    save_tensors(weights, out / "model.safetensors", about)
    (out / "model.safetensors").chmod(0o644)  # whoever installs the package reads it


def quality(run: Path, n: int = 1000) -> str:
    "Exact match and pronouns on held-out sentences."
    translator = load(run)
    plain = builtin(n, seed=1, split="test")
    it = pronoun_sentences(n)
    n_exact = sum(
        hypothesis == sentence.de
        for hypothesis, sentence in zip(
            translator.translate([s.en for s in plain]), plain, strict=True
        )
    )
    pronouns = pronoun_accuracy(
        translator.translate([s.en for s in it]), [s.de for s in it]
    )
    return f"exact match {n_exact / n:.1%}, pronouns {pronouns:.1%}"


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
            train_run(load_corpus("builtin"), recipe, run)
        pack_run(run, OUT)
        n_bytes = sum(file.stat().st_size for file in OUT.iterdir())
        print(f"as trained: {quality(run)}")
        print(f"{OUT.relative_to(ROOT)}, {n_bytes:,} bytes: {quality(OUT)}")


if __name__ == "__main__":
    main()
