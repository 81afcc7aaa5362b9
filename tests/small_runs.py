"Small models and runs: untrained, with random weights in every shape, and one trained for some seconds."

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file

from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.vocab import Vocab, learn_bpe
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import Transformer, build_transformer
from annotated_transformer.runs.checkpoint import save_weights
from annotated_transformer.runs.folder import write_config
from annotated_transformer.runs.settings import (
    Recipe,
    get_recipe,
    override,
)
from annotated_transformer.runs.train_run import RunOptions, train_run

_CPU = Path("/proc/cpuinfo")
# without 8-bit dot products, the sums of CTranslate2's int8 saturate
HAS_VNNI = _CPU.exists() and "vnni" in _CPU.read_text()
# every part that came after the paper (71), but for rotary positions
LATER = dict(
    norm="pre",
    norm_kind="rms",
    activation="swiglu",
    n_kv_heads=2,
    qk_norm=True,
    bias=False,
    tied=False,
)
TIE = 1e-4  # nats: two sentences so close are ordered by rounding
TEXT = [
    "the old dog sleeps under the bridge.",
    "der alte Hund schläft unter der Brücke.",
    "where is my cat?",
    "Ünï — 漢字",
]


@cache
def small_vocab() -> Vocab:
    return learn_bpe(TEXT * 3, 320)


def untrained_model(vocab: Vocab, **sizes) -> Transformer:
    torch.manual_seed(0)
    small = {"n_layers": 2, "d_model": 16, "d_ff": 16, "n_heads": 4}
    return build_transformer(ModelConfig(**small | sizes), len(vocab), vocab.pad_id)


def random_run(path: Path, about: dict | None = None, **sizes) -> Path:
    "A run whose every weight is random, norms and biases too: none of them may be lost or swapped unseen."
    train = replace(get_recipe("base").train, max_len=sizes.pop("max_len", 40))
    small = {"n_layers": 2, "d_model": 32, "d_ff": 64, "n_heads": 2}
    recipe, vocab = Recipe(ModelConfig(**small | sizes), train), small_vocab()
    torch.manual_seed(1)
    model = build_transformer(recipe.model, len(vocab), vocab.pad_id)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            torch.nn.init.normal_(weight, mean=float("norm.weight" in name), std=0.3)
    path.mkdir(parents=True)
    vocab.save(path / "vocab.model")
    write_config(path, recipe, about or {})
    save_weights(model, path / "model.safetensors")
    return path


def distance(run: Path, weights: Path) -> float:
    "Largest ‖a − b‖ / ‖b‖ of a weight."
    ours, theirs = load_file(run / "model.safetensors"), load_file(weights)
    assert ours.keys() == theirs.keys()
    gaps = ((ours[k] - w).norm() / w.norm().clamp_min(1e-3) for k, w in theirs.items())
    return max(gap.item() for gap in gaps)


def trained_run(path: Path, *settings: str) -> list[str]:
    "A run of some seconds, which makes many mistakes; 200 sentences that it has not seen."
    small = "d_model=64 d_ff=128 vocab_size=600 batch_tokens=800 max_steps=120"
    small = f"{small} warmup_steps=40 peak_lr=5e-3".split()
    corpus = load_corpus("builtin", n_train=3000, n_valid=50, n_test=200)
    recipe = override(get_recipe("tiny"), [*small, *settings])
    train_run(corpus, recipe, path, RunOptions("cpu", quiet=True))
    return [source for source, _ in corpus.test]
