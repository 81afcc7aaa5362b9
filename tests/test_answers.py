"The code of the page of questions and answers: each block runs and does what its answer says."

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cells import joined
from conftest import ROOT
from torch import nn


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
    exec(code_with("def cached_attention"), space)
    torch.manual_seed(0)
    attn = nn.MultiheadAttention(16, 4, batch_first=True)
    nn.init.normal_(attn.in_proj_bias)
    x, cache = torch.randn(2, 6, 16), {}
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected, _ = attn(x, x, x, attn_mask=later, need_weights=False)
    steps = [space["cached_attention"](attn, x[:, [t]], cache) for t in range(6)]
    assert torch.allclose(torch.cat(steps, dim=1), expected, atol=1e-5)
    assert cache["k"].shape == (2, 4, 6, 4)


def test_decode_step():
    "Token by token: what nn.TransformerDecoder gives for the whole prefix."
    space = {"torch": torch, "nn": nn, "F": F}
    exec(code_with("def cached_attention"), space)
    exec(code_with("def decode_step"), space)
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
    for norm in (None, nn.LayerNorm(16)):
        decoder = nn.TransformerDecoder(layer, 3, norm).eval()
        for weight in decoder.parameters():
            nn.init.normal_(weight, std=0.3)
        x, memory = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        masks = {"tgt_mask": later, "memory_key_padding_mask": padding}
        expected, caches = decoder(x, memory, **masks), [{} for _ in decoder.layers]
        steps = [
            space["decode_step"](decoder, x[:, [i]], memory, padding, caches)
            for i in range(6)
        ]
        assert torch.allclose(torch.stack(steps, dim=1), expected, atol=1e-4)


def test_shifted_target():
    "Each position is scored on the token after its input, padding not at all."
    space = {"F": F, "src": None, "pad_id": 0}
    space["tgt"] = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
    right = F.one_hot(torch.tensor([[5, 6, 2], [7, 2, 3]]), 8) * 100.0
    space["model"] = lambda src, tgt_in: right
    exec(code_with("tgt[:, 1:]"), space)
    assert space["tgt_in"].tolist() == [[1, 5, 6], [1, 7, 2]]
    assert space["loss"] < 1e-6
    space["model"] = lambda src, tgt_in: right.roll(1, dims=1)
    exec(code_with("tgt[:, 1:]"), space)
    assert space["loss"] > 10


def test_two_vocabularies(tmp_path, monkeypatch):
    "Padding has an id of its own, and a character without a token becomes bytes."
    monkeypatch.chdir(tmp_path)
    Path("train.zh").write_text("我们去北京。\n他们在北京。\n" * 50, encoding="utf-8")
    Path("train.en").write_text("We go to Beijing.\n" * 50, encoding="utf-8")
    code, space = code_with("SentencePieceTrainer"), {}
    exec(code.replace("16_000", "290, hard_vocab_limit=False"), space)
    source = space["source"]
    assert [source.unk_id(), source.bos_id(), source.eos_id(), source.pad_id()] == [
        *range(4)
    ]
    assert space["ids"][-1] == 2 and source.decode(space["ids"]) == "我们去北京。"
    assert source.decode(source.encode("龘")) == "龘"


SCRIPT = """
import os, sys
import pytest
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


@pytest.mark.slow
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
