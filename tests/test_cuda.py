"""What a run does on a GPU, as far as a machine without one can show it.

Nothing here replaces a call that a test is about: tensors are fake ones on CUDA, or a
stand-in (claims_cuda.py) takes the driver's place, below what PyTorch checks itself.
"""

import json
import os
import shlex
from pathlib import Path

import pytest
import torch
from claims_cuda import claim
from processes import start
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from annotated_transformer import UserError
from annotated_transformer.cli.main import main
from annotated_transformer.data.batch import Batch
from annotated_transformer.engines.choose import FAST
from annotated_transformer.engines.fused_attention import fused_attention
from annotated_transformer.runs.folder import read_config, read_metrics
from annotated_transformer.runs.settings import get_recipe, override
from annotated_transformer.runs.train_run import RunOptions, resume_run, train_run
from annotated_transformer.training.distributed import pick_device

SETTINGS = (
    "n_layers=1 d_model=32 d_ff=64 n_heads=2 n_pieces=400 batch_tokens=400 "
    "max_steps=12 valid_every=6 save_every=3 precision=fp32 average_last=0"
).split()


def run_here(claims: bool, words: list) -> None:
    if claims:
        claim()
    main(list(map(str, words)))


def command(*words, folder: Path, claims: bool = False, env: dict | None = None):
    "Status of a command in a process of its own, and what it printed."
    said = folder / "said"
    process = start(run_here, claims, words, said=said, env=env)
    process.join(120)
    process.kill()
    process.join()
    return process.exitcode, said.read_text()


class Observe(TorchFunctionMode):
    "Note what `note` gives for each call of a function, and make the call."

    def __init__(self, function, note):
        super().__init__()
        self.function, self.note, self.found = function, note, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == self.function:
            self.found.append(self.note(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def text(corpus, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "pairs.tsv"
    lines = [f"{source}\t{target}\n" for source, target in corpus.train]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def test_a_gpu_has_its_index():
    "PyTorch refuses a device without one wherever it chooses between several."
    with FakeTensorMode():
        device = pick_device("cuda")
    assert device == torch.device("cuda", 0)
    assert torch.cuda._utils._get_device_index(device) == 0


def test_a_run_on_a_machine_that_claims_a_gpu(text, tmp_path):
    "The same run as on the CPU, by the loop and the prefetching of CUDA."
    words = ["train", "--pairs", text, "--config", "tiny", *SETTINGS, "--out"]
    status, said = command(*words, tmp_path / "claimed", folder=tmp_path, claims=True)
    assert status == 0, said
    assert said.count("training on cuda:0 (stand-in), fp32, 1 process\n") == 1
    cpu = ["--device", "cpu"]
    status, said = command(*words, tmp_path / "plain", *cpu, folder=tmp_path)
    assert "training on cpu (1 threads), fp32, 1 process\n" in said
    for name in ("loss", "valid_loss"):
        ours, theirs = (
            [r[name] for r in read_metrics(tmp_path / run) if name in r]
            for run in ("claimed", "plain")
        )
        assert len(ours) == len(theirs) > 0
        assert ours == pytest.approx(theirs, rel=1e-4)  # other dropout, fused Adam


@pytest.mark.posix
def test_a_driver_without_a_gpu_gets_a_remark(text, tmp_path):
    "An NVIDIA driver is installed, and PyTorch computes on the CPU."
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    words = ["train", "--pairs", text, "--config", "tiny", *SETTINGS, "max_steps=1"]
    words += ["--out", tmp_path / "run"]
    status, said = command(*words, folder=tmp_path, env=env)
    remark = "an NVIDIA driver is installed, but PyTorch"
    assert status == 0 and said.count(remark) == 1, said


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_on_cuda_never_uses_cudnn(dropout):
    "At the call, and the settings of the process stay."
    cuda = torch.backends.cuda
    kernels = lambda *args, **named: (
        cuda.cudnn_sdp_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
    )
    before = kernels()
    assert before[0], "PyTorch's own setting has changed"
    attend = FAST.attention_dropout(dropout) if dropout else fused_attention
    function = torch.nn.functional.scaled_dot_product_attention
    with FakeTensorMode(), Observe(function, kernels) as calls:
        q = torch.ones(2, 8, 5, 16, device="cuda")
        attend(q, q, q)
    assert calls.found == [(False, True, True, True)]
    assert kernels() == before


@pytest.mark.parametrize("device, expected", [("cuda:0", True), ("cpu", False)])
def test_copies_overlap_on_cuda_only(device, expected):
    "Elsewhere, memory that is freed too early would be copied."
    ids = torch.ones(2, 3, dtype=torch.long)
    noted = lambda *args, non_blocking=False, **named: non_blocking
    with FakeTensorMode() as fake, Observe(torch.Tensor.to, noted) as calls:
        ids = fake.from_tensor(ids)
        Batch(ids, ids, ids, 6).to(torch.device(device))
    assert calls.found == 3 * [expected]


# memory


def more_than_there_is(*args, **named):
    "A loss that asks PyTorch for more memory than any machine has."
    return torch.empty(2**50).sum()


def test_out_of_memory_names_the_remedy_and_keeps_the_run(corpus, tmp_path):
    "At the first step: the text stays encoded, and the run continues with smaller batches."
    run, recipe = tmp_path / "a run", override(get_recipe("tiny"), SETTINGS)
    failing = RunOptions(
        "cpu", quiet=True, engines=FAST._replace(loss=more_than_there_is)
    )
    with pytest.raises(UserError) as failed:
        train_run(corpus, recipe, run, failing)
    says = (
        "out of memory on cpu: continue with smaller micro-batches, which leave the step "
        f"as it is: annotated-transformer train --resume '{run}' accumulate=2"
    )
    assert str(failed.value) == says
    words = shlex.split(says.rpartition(": ")[2])
    assert words[0] == "annotated-transformer"
    status, said = command(*words[1:], "--quiet", folder=tmp_path)
    assert status == 0, said
    settings = read_config(run)[0].train
    assert settings.accumulate == 2
    straight = train_run(
        corpus, recipe, tmp_path / "straight", RunOptions("cpu", quiet=True)
    )
    tokens = [
        [r["n_tokens"] for r in read_metrics(path) if "loss" in r]
        for path in (run, straight)
    ]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 12


def test_settings_that_may_change_when_a_run_is_resumed(corpus, tmp_path):
    recipe = override(get_recipe("tiny"), SETTINGS)
    run = train_run(
        corpus, recipe, tmp_path / "run", RunOptions("cpu", minutes=1e-6, quiet=True)
    )
    before = (run / "config.json").read_bytes()
    with pytest.raises(UserError, match="dropout of a run cannot be changed"):
        resume_run(
            run, RunOptions("cpu", quiet=True), changes=["accumulate=2", "dropout=0.3"]
        )
    with pytest.raises(UserError, match="accumulate=0"):
        resume_run(run, RunOptions("cpu", quiet=True), changes=["accumulate=0"])
    assert (run / "config.json").read_bytes() == before
    changes = ["accumulate=2", "valid_every=4", "save_every=2"]
    resume_run(run, RunOptions("cpu", quiet=True), changes=changes)
    settings = json.loads((run / "config.json").read_text())["train"]
    assert [settings[x.split("=")[0]] for x in changes] == [2, 4, 2]
    assert [r["step"] for r in read_metrics(run) if "valid_loss" in r] == [1, 4, 8, 12]
