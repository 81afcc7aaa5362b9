"The engine of the live page in a browser: its files on a blank page, with what Python asks of it."

import base64
import json
from pathlib import Path

import torch
from browser import Browser
from conftest import ROOT
from torch import Tensor

PAGES = ROOT / "annotated_transformer/pages"
FILES = ("weights.js", "tokenizer.js", "transformer.js")

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

Pair = tuple[list[int], list[int]]  # source ids with EOS, target ids with BOS


def tensor_of(plain: dict) -> Tensor:
    data = bytearray(base64.b64decode(plain["data"]))
    return torch.frombuffer(data, dtype=torch.float32).view(plain["shape"])


class Engine:
    "A blank page with the engine; its models are known by name."

    def __init__(self, browser: Browser, folder: Path, sources: dict[str, str] = {}):
        "`sources` replaces files by other texts."
        self.browser = browser
        read = lambda name: sources.get(name) or (PAGES / name).read_text("utf-8")
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
        self, model: str, pairs: list[Pair], switches: dict = {}, by: str = "logitsOf"
    ) -> list[Tensor]:
        "The logits (t, n_vocab) of each pair; `switches` that are not given are on."
        each = f"""(model, pairs, switches) => pairs.map(
            pair => {by}(model, pair, {{...SWITCHES, ...switches}}))"""
        found = self.ask(each, f"@{model}", pairs, switches)
        return [tensor_of(plain) for plain in found]

    def trace(self, model: str, pair: Pair, switches: dict = {}) -> dict[str, Tensor]:
        each = """(model, pair, switches) =>
            traceOf(model, pair, {...SWITCHES, ...switches})"""
        found = self.ask(each, f"@{model}", pair, switches)
        return {path: tensor_of(plain) for path, plain in found.items()}

    def search(self, model: str, rows: list[list[int]], options: dict) -> list[dict]:
        "What `beamSearch` finds for each row of source ids."
        each = """(model, rows, options) => rows.map(
            ids => beamSearch(model, ids, options))"""
        return self.ask(each, f"@{model}", rows, options)
