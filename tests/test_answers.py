"The code of the page of questions and answers: each block runs and does what its answer says."

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT
from notebooks import joined
from torch import nn

from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.runs.folder import load_run
from annotated_transformer.translating.load import load


def code_with(words: str) -> str:
    cells = json.loads((ROOT / "nbs/answers.ipynb").read_text(encoding="utf-8"))
    text = "\n".join(joined(cell["source"]) for cell in cells["cells"])
    (found,) = [
        code
        for code in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
        if words in code
    ]
    return found


def test_cached_attention():
    "Token by token with the cache: what PyTorch's module gives under the causal mask."
    space = {"torch": torch, "nn": nn, "F": F}
    exec(code_with("cached_attention"), space)
    torch.manual_seed(0)
    attn = nn.MultiheadAttention(16, 4, batch_first=True)
    nn.init.normal_(attn.in_proj_bias)
    x, cache = torch.randn(2, 6, 16), {}
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected, _ = attn(x, x, x, attn_mask=later, need_weights=False)
    steps = [space["cached_attention"](attn, x[:, [t]], cache) for t in range(6)]
    assert torch.allclose(torch.cat(steps, dim=1), expected, atol=1e-5)
    assert cache["k"].shape == (2, 4, 6, 4)


def test_greedy_search_with_two_sessions():
    "With sessions that compute as the model does: the sentences of greedy search."
    run = load_run(Path("demo"))
    model, vocab = run.model, run.vocab

    class Session:
        def __init__(self, compute):
            self.compute = compute

        def run(self, _, feeds):
            with torch.no_grad():
                found = self.compute(**{k: torch.tensor(v) for k, v in feeds.items()})
            return [t.numpy() for t in found]

    def decode(tgt_in, memory, src_mask):
        hidden = model.decode(tgt_in, memory, src_mask)[:, -1]
        return [model.embedding.logits(hidden).log_softmax(dim=-1)]

    lines = ["The dog is tired.", "The animal didn't cross the street."]
    found = []
    for line in lines:
        src = np.array([[*vocab.encode(line), vocab.eos_id]])
        space = {
            "np": np,
            "src": src,
            "bos_id": vocab.bos_id,
            "eos_id": vocab.eos_id,
            "max_len": src.size + 50,
            "encoder": Session(model.encode),
            "decoder": Session(decode),
        }
        exec(code_with("encoder.run"), space)
        found.append(vocab.decode(space["ids"][1:]))
    assert found == load("demo", search=search_with(1)).translate(lines)


def tiny(name: str):
    "A tokeniser of letters, a tiny random model, a language and one that is new."
    transformers = pytest.importorskip("transformers")
    letters = ["<s>", "<pad>", "</s>", "<unk>", *"▁abcdefghijklmnopqrstuvwxyz"]
    sizes = {
        f"{side}_{what}": n
        for side in ("encoder", "decoder")
        for what, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
    } | {"d_model": 16, "decoder_start_token_id": 2}
    if name == "NLLB":
        tokenizer = transformers.NllbTokenizer(
            vocab={token: i for i, token in enumerate(letters)}, merges=[]
        )
        config = transformers.M2M100Config(vocab_size=len(tokenizer), **sizes)
        model = transformers.M2M100ForConditionalGeneration(config)
        return tokenizer, model, "fra_Latn", "xyz_Latn"
    tokenizer = transformers.MBart50Tokenizer(
        vocab=[(token, -1.0) for token in letters]
    )
    config = transformers.MBartConfig(vocab_size=len(tokenizer), **sizes)
    model = transformers.MBartForConditionalGeneration(config)
    return tokenizer, model, "fr_XX", "xy_XX"


@pytest.mark.parametrize("name", ["NLLB", "mBART-50"])
def test_new_language(name, tmp_path):
    "The new code begins as its relative, is in the labels, is forced, and is saved."
    torch.manual_seed(0)
    tokenizer, model, related, new = tiny(name)
    known, before = tokenizer.src_lang, len(tokenizer)
    space = {
        "torch": torch,
        "tokenizer": tokenizer,
        "model": model.eval(),
        "related": related,
        "new": new,
        "sources": ["abc de", "fgh"],
        "targets": ["xyz", "uv wxy"],
    }
    exec(code_with("add_tokens"), space)
    new_id, rows = space["new_id"], model.get_input_embeddings().weight
    assert new_id == before and len(rows) == len(tokenizer) == before + 1
    assert torch.equal(rows[new_id], rows[space["related_id"]])
    assert torch.equal(model.get_output_embeddings().weight, rows)
    labels = space["batch"]["labels"]
    assert (labels[:, 0] == new_id).all() and (labels == -100).any()
    assert space["loss"].isfinite()
    assert (space["ids"][:, 1] == new_id).all()
    tokenizer.src_lang = new
    assert new_id in tokenizer("abc")["input_ids"]
    tokenizer.src_lang = tokenizer.tgt_lang = known
    tokenizer.save_pretrained(tmp_path)
    again = type(tokenizer).from_pretrained(tmp_path)
    assert again.convert_tokens_to_ids(new) == new_id


SCRIPT = """
import os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(int(os.environ["RANK"]))  # other weights on each rank, at first
model, n_epochs, seen = nn.Linear(2, 1), 2, []
dataset = TensorDataset(torch.arange(400.0).view(200, 2))

def train_epoch(model, loader, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    for (x,) in loader:
        seen.append(x)
        optimizer.zero_grad()
        model(x.to(device)).square().mean().backward()
        optimizer.step()

CODE
found = model.module.weight.detach().cpu(), torch.cat(seen), len(seen[0])
torch.save(found, f"{sys.argv[1]}/{os.environ['RANK']}.pt")
"""


def test_data_parallel(tmp_path):
    "Two processes: the same weights, each sentence of an epoch on one of them, 64 each."
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("CODE", code_with("init_process_group")))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", str(script), str(tmp_path)]
    quiet = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (first, of_first, n), (second, of_second, _) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)
    )
    assert torch.equal(first, second) and n == 64
    half = len(of_first) // 2  # an epoch
    in_epoch = torch.cat([of_first[:half], of_second[:half]])[:, 0].sort().values
    assert torch.equal(in_epoch, torch.arange(0.0, 400, 2))
    assert not torch.equal(of_first[:half], of_first[half:])  # another order
