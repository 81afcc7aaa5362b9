"What the programs in this folder share: options, data, measures, and the file of figures that tools/record.py makes a record of."

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from annotated_transformer.data.batch import (
    Batch,
    EncodedPairs,
    encode_pairs,
    epoch_batches,
    pad_ids,
)
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.vocab import Vocab, learn_bpe
from annotated_transformer.experiments.compared import n_parameters as n_parameters
from annotated_transformer.runs.folder import Run, load_run, pretrained_run
from annotated_transformer.runs.settings import get_recipe, override
from annotated_transformer.runs.train_run import train_run
from annotated_transformer.show.explorer import display_tokens
from annotated_transformer.show.heads import ablate_head
from annotated_transformer.show.visualize import attention_maps, attention_modules
from annotated_transformer.translating.evaluate import bleu
from annotated_transformer.translating.translate import Translator

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
from record import about as about  # noqa: E402


def options(doc: str, out: str | None = None) -> argparse.ArgumentParser:
    "A parser with --out."
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=out, help="write the figures as JSON"
    )
    return parser


def write(out: Path | None, found: dict) -> None:
    "All figures so far, in one piece, if a file is wanted."
    if out:
        new = out.with_name(f"{out.name}.{os.getpid()}")
        text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        new.write_text(text, encoding="utf-8")
        new.replace(out)


def earlier(out: Path, args: argparse.Namespace) -> dict:
    "The figures of an interrupted run with the same options; else only the options."
    settings = {name: value for name, value in vars(args).items() if name != "out"}
    if not out.exists():
        return {"settings": settings}
    found = json.loads(out.read_text(encoding="utf-8"))
    if found["settings"] != settings:
        raise SystemExit(f"{out} has other settings: {found['settings']}")
    return found


Pairs = list[tuple[str, str]]


class Data(NamedTuple):
    "What every model is trained and measured on."

    vocab: Vocab
    train: EncodedPairs
    valid: list[Batch]
    test: Pairs


def encoded(train: Pairs, valid: Pairs, test: Pairs, vocab_size: int) -> Data:
    "Text as ids, in a vocabulary learned from its training part."
    vocab = learn_bpe((side for pair in train for side in pair), vocab_size)
    held_out = epoch_batches(encode_pairs(valid, vocab), vocab, 4096, seed=0, epoch=0)
    return Data(vocab, encode_pairs(train, vocab), list(held_out), test)


def tiny_run(path: Path, seed: int = 0) -> Run:
    "A run on the built-in text; where there is none, `tiny` is trained first."
    if not (pretrained_run(path) or path / "model.safetensors").exists():
        recipe = override(get_recipe("tiny"), [f"seed={seed}"])
        train_run(load_corpus("builtin"), recipe, path)
    return load_run(path)


def bleu_on(translator: Translator, pairs: Pairs) -> float:
    "Cased BLEU of translations of the sources of `pairs`."
    sources, references = map(list, zip(*pairs))
    return bleu(translator.translate(sources), references).value


def peak_bytes(action: Callable[[], object]) -> int:
    "The most memory that PyTorch's allocator had handed out at once, above that before."
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = accumulate(change for _, change in sorted(changes, key=itemgetter(0)))
    return max(held, default=0)


def tokens_and_maps(
    model: nn.Module,
    vocab: Vocab,
    src: list[int],
    tgt_in: list[int],
    kinds: Sequence[str] = ("encoder", "decoder", "cross"),
) -> dict:
    "The tokens of a sentence and its translation, and the maps of all heads by kind."
    maps = attention_maps(
        model, *(pad_ids([ids], vocab.pad_id) for ids in (src, tgt_in))
    )
    return {
        "src": display_tokens(vocab.tokens(src)),
        "tgt": display_tokens(vocab.tokens(tgt_in)),
        "maps": {kind: thousandths(maps[kind][:, 0]) for kind in kinds},
    }


def thousandths(maps: Tensor) -> list:
    "Maps (n_layers, h, n_q, n_k), each row of each as one line of text."
    return [
        [[" ".join(map(str, row)) for row in head] for head in layer]
        for layer in (1000 * maps).round().int().tolist()
    ]


def without_each(model: nn.Module, kind: str, score: Callable) -> list[list]:
    "A score without each head of one kind in turn, by layer and head."

    def without(layer: int, head: int):
        with ablate_head(model, kind, layer, head):
            return score()

    return [
        [without(layer, head) for head in range(attn.n_heads)]
        for layer, attn in enumerate(attention_modules(model)[kind])
    ]
