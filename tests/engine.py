"The engine of the live page in a browser, on a blank page; and what it is compared with."

import base64
import json
import random
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from browser import Browser
from torch import Tensor

from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import Vocab
from annotated_transformer.model.transformer import Transformer, build_transformer
from annotated_transformer.runs.folder import Run

PAGES = Path(__file__).resolve().parent.parent / "annotated_transformer/show/pages"
FILES = ("weights.js", "tokenizer.js", "sentences.js", "transformer.js")

# Tensors leave the page in base64: as JSON they would be four times as long.
HELPERS = """
const models = {};

function plain({shape, data}) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 4096) {
    text += String.fromCharCode(...bytes.subarray(i, i + 4096));
  }
  return {shape, data: btoa(text)};
}

function logitsOf(model, [src, tgt], switches) {
  return plain(decode(model, tgt, encode(model, src, switches), switches));
}

// The logits of each position, one decodeStep after the other.
function stepsOf(model, [src, tgt], switches) {
  const cache = startCache(model, encode(model, src, switches), switches);
  const rows = tgt.map(id => decodeStep(model, id, cache, switches).data);
  const data = new Float32Array(rows.flatMap(row => [...row]));
  return plain({shape: [rows.length, rows[0].length], data});
}

function traceOf(model, [src, tgt], switches) {
  const trace = new Map();
  decode(model, tgt, encode(model, src, switches, trace), switches, trace);
  return Object.fromEntries([...trace].map(([path, x]) => [path, plain(x)]));
}
"""

NOTHING: Mapping = MappingProxyType({})
Pair = tuple[list[int], list[int]]  # source ids with EOS, target ids with BOS


def tensor_of(plain: dict) -> Tensor:
    data = bytearray(base64.b64decode(plain["data"]))
    return torch.frombuffer(data, dtype=torch.float32).view(plain["shape"])


class Engine:
    "A blank page with the engine; its models are known by name."

    def __init__(self, browser: Browser, folder: Path):
        self.browser = browser
        read = lambda name: (PAGES / name).read_text("utf-8")
        script = "\n".join(['"use strict";', *map(read, FILES), HELPERS])
        page = folder / "engine.html"
        page.write_text(
            f'<!doctype html><meta charset="utf-8"><script>{script}</script>',
            encoding="utf-8",
        )
        browser.open(page.as_uri())

    def ask(self, function: str, *args):
        "Call a function of the page with plain values; `@NAME` stands for a model."
        called = ", ".join(
            f"models.{arg[1:]}"
            if isinstance(arg, str) and arg[:1] == "@"
            else json.dumps(arg)
            for arg in args
        )
        return self.browser.ask(f"({function})({called})")

    def add(self, name: str, packed: dict) -> None:
        self.browser.ask(
            f"models.{name} = readModel({json.dumps(packed)}); models.{name}.config"
        )

    def ids(self, model: str, texts: list[str]) -> list[list[int]]:
        each = "(model, texts) => texts.map(text => model.vocab.encode(text))"
        return self.ask(each, f"@{model}", texts)

    def texts(self, model: str, rows: list[list[int]]) -> list[str]:
        each = "(model, rows) => rows.map(ids => model.vocab.decode(ids))"
        return self.ask(each, f"@{model}", rows)

    def logits(
        self,
        model: str,
        pairs: list[Pair],
        switches: Mapping = NOTHING,
        by: str = "logitsOf",
    ) -> list[Tensor]:
        "The logits (t, n_vocab) of each pair; `switches` that are not given are on."
        each = f"""(model, pairs, switches) => pairs.map(
            pair => {by}(model, pair, {{...SWITCHES, ...switches}}))"""
        found = self.ask(each, f"@{model}", pairs, dict(switches))
        return [tensor_of(plain) for plain in found]

    def trace(
        self, model: str, pair: Pair, switches: Mapping = NOTHING
    ) -> dict[str, Tensor]:
        each = """(model, pair, switches) =>
            traceOf(model, pair, {...SWITCHES, ...switches})"""
        found = self.ask(each, f"@{model}", pair, dict(switches))
        return {path: tensor_of(plain) for path, plain in found.items()}

    def search(self, model: str, rows: list[list[int]], options: dict) -> list[dict]:
        "What `beamSearch` finds for each row of source ids."
        each = """(model, rows, options) => rows.map(
            ids => beamSearch(model, ids, options))"""
        return self.ask(each, f"@{model}", rows, options)


# --- what it is compared with

HELD_OUT = builtin(500, seed=1, split="test")


def plain_model(run: Run, weights: dict[str, Tensor] | None = None) -> Transformer:
    "The model with the plain parts of the lessons, in which each part can be exchanged."
    model = build_transformer(run.recipe.model, len(run.vocab), run.vocab.pad_id)
    model.load_state_dict(weights or run.model.state_dict())
    return model.eval().requires_grad_(False)


def pairs_of(vocab: Vocab, n: int) -> list[Pair]:
    return [
        ([*vocab.encode(s.en), vocab.eos_id], [vocab.bos_id, *vocab.encode(s.de)])
        for s in HELD_OUT[:n]
    ]


def logits_of(model: Transformer, pair: Pair) -> Tensor:
    src, tgt_in = (torch.tensor([ids]) for ids in pair)
    return model.embedding.logits(model(src, tgt_in))[0]


RANGES = (
    (0x20, 0x7E), (0x61, 0x7A), (0xC0, 0x24F), (0x2581, 0x2581), (0x20, 0x20), (0x0, 0x1F),
    (0x300, 0x36F), (0x4E00, 0x4FFF), (0x1F600, 0x1F64F), (0xFB00, 0xFB06),
    (0x2000, 0x206F), (0xE000, 0xE0FF), (0xFFF0, 0xFFFF), (0x10FFF0, 0x10FFFF),
)  # fmt: skip


def rude_lines(n: int, seed: int = 0) -> list[str]:
    "Lines of all kinds of characters, some of them between words of the grammar."
    rng, lines = random.Random(seed), []
    words = [word for s in HELD_OUT[:50] for word in (s.en + " " + s.de).split()]
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(0, 12)):
            first, last = rng.choice(RANGES)
            sign = chr(rng.randint(first, last))
            repeated = sign * rng.randint(
                2, 7
            )  # of equal pairs, which is merged first?
            parts.append(rng.choice([sign, repeated, rng.choice(words), " "]))
        lines.append("".join(parts))
    return lines


def lines_of(n: int) -> list[str]:
    "n lines: a half of the grammar, in both languages, a half of rude ones."
    pairs = builtin(n // 4, seed=2, split="test")
    return [*(s.en for s in pairs), *(s.de for s in pairs), *rude_lines(n - n // 4 * 2)]
