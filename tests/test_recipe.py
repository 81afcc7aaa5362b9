"""Training end to end, on the built-in corpus, in seconds."""

import json
import math
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest
import torch

from annotated_transformer import UserError
from annotated_transformer.data.batch import Batch
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.model.config import (
    ModelConfig,
    TrainConfig,
    get_recipe,
    override,
)
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import (
    BatchLoss,
    _learning_rate_schedule,
    precision_context,
)
from annotated_transformer.runs.train_run import (
    RunOptions,
    _sync_interval,
    resume_run,
    train_run,
)
from annotated_transformer.training.distributed import pick_device
from annotated_transformer.training.r_drop import RDrop
from annotated_transformer.training.train import Stop
from annotated_transformer.translating.evaluate import validation_bleu
from annotated_transformer.translating.load import load

SMALL = [
    "n_layers=1",
    "d_model=32",
    "d_ff=64",
    "n_heads=2",
    "n_pieces=500",
    "max_steps=6",
    "batch_tokens=400",
    "valid_every=4",
    "save_every=3",
    "average_last=0",
    "precision=fp32",
]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus("builtin", n_train=300, n_valid=40, n_test=10)


def metrics(run: Path) -> list[dict]:
    return [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    ]


def test_one_training_end_to_end(corpus, tmp_path):
    run = train_run(
        corpus,
        override(get_recipe("tiny"), SMALL),
        tmp_path / "run",
        RunOptions("cpu", quiet=True),
    )
    records = metrics(run)
    assert [r["step"] for r in records if "loss" in r] == [1, 2, 3, 4, 5, 6]
    assert [r["step"] for r in records if "valid_loss" in r] == [4, 6], (
        "and one pass at the end"
    )
    assert {p.name for p in (run / "checkpoints").iterdir()} == {
        "step-0000003",
        "step-0000006",
        "best.safetensors",
    }
    assert len(load(run).translate(["The dog was tired."])) == 1


def test_the_first_loss_is_that_of_a_guess(corpus, tmp_path):
    run = train_run(
        corpus,
        override(get_recipe("tiny"), [*SMALL, "max_steps=1"]),
        tmp_path / "run",
        RunOptions("cpu", quiet=True),
    )
    assert abs(metrics(run)[0]["loss"] - math.log(len(load(run).vocab))) < 1.0


@pytest.mark.parametrize(
    "change",
    [
        "norm=pre",
        "position=learned",
        "schedule=linear",
        "precision=bf16",
        "attention_dropout=0.1",
        "bpe_dropout=0.1",
        "r_drop=1",
    ],
)
def test_every_part_trains(change, corpus, tmp_path):
    recipe = override(
        get_recipe("tiny"),
        [*SMALL, "max_steps=20", "warmup_steps=5", "peak_lr=3e-3", change],
    )
    run = train_run(corpus, recipe, tmp_path / "run", RunOptions("cpu", quiet=True))
    losses = [r["loss"] for r in metrics(run) if "loss" in r]
    assert losses[-1] < losses[0]
    assert load(run).translate(["The dog was tired."])


LEARNED = ["position=learned", "n_positions=71"]


def with_valid(corpus, valid):
    return corpus._replace(valid=valid)


@pytest.mark.parametrize("position", [[], LEARNED], ids=["sinusoidal", "learned"])
def test_held_out_sentences_beyond_max_len(position, corpus, tmp_path, capsys):
    "They are left out of the validation loss and of BLEU, and one line says so; the run is that without them."
    long = [("the dog was tired. " * 60, "kurz"), ("short", "Hund" * 250_000)]
    settings = [*SMALL, "valid_every=2", "max_len=70", *position]
    recipe, losses = override(get_recipe("tiny"), settings), []
    for name, valid in (("with", [*long, *corpus.valid]), ("without", corpus.valid)):
        run = train_run(
            with_valid(corpus, valid),
            recipe,
            tmp_path / name,
            RunOptions("cpu", score=validation_bleu, quiet=True),
        )
        losses.append([r["valid_loss"] for r in metrics(run) if "valid_loss" in r])
        err = capsys.readouterr().err
        assert err == (
            "validation leaves out 2 of 42 pairs: they have more than max_len=70 tokens\n"
            if name == "with"
            else ""
        )
    assert len(losses[0]) == 3 and losses[0] == losses[1]


def test_every_held_out_sentence_is_too_long(corpus, tmp_path):
    only = with_valid(corpus, [("the dog was tired. " * 60, "kurz")])
    why = "no validation pair of 1 is left: all are longer than max_len=70 tokens"
    recipe = override(get_recipe("tiny"), [*SMALL, "max_len=70"])
    with pytest.raises(UserError, match=why):
        train_run(only, recipe, tmp_path / "run", RunOptions("cpu", quiet=True))
    assert not (tmp_path / "run").exists()


def test_the_same_seed_is_the_same_run(corpus, tmp_path):
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run = train_run(
            corpus,
            override(get_recipe("tiny"), [*SMALL, f"seed={seed}"]),
            tmp_path / name,
            RunOptions("cpu", quiet=True),
        )
        weights.append((run / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_a_hook_can_end_it_and_ctrl_c_keeps_the_weights(corpus, tmp_path):
    enough = lambda record: Stop("enough") if record.step == 2 else None
    stopped = train_run(
        corpus,
        override(get_recipe("tiny"), SMALL),
        tmp_path / "a",
        RunOptions("cpu", hooks=[enough], quiet=True),
    )
    assert json.loads((stopped / "config.json").read_text())["stopped"] == "enough"

    def interrupt(record):
        if record.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    averaging = override(get_recipe("tiny"), [*SMALL, "save_every=1", "average_last=2"])
    run = train_run(
        corpus,
        averaging,
        tmp_path / "b",
        RunOptions("cpu", hooks=[interrupt], quiet=True),
    )
    about = json.loads((run / "config.json").read_text())
    assert (
        about["stopped"] == "SIGINT" and about["weights"] == "last, step 3"
    )  # an average is made at the end
    assert load(run).translate(["The dog was tired."])


@pytest.mark.parametrize("at", [1, 5])
def test_an_error_after_the_first_step_leaves_the_run(at, corpus, tmp_path):
    "It goes on from its last checkpoint, or from the beginning, and ends as one without the error."

    def broken(record):
        if record.step == at:
            raise RuntimeError("a fault of ours")

    recipe, run = override(get_recipe("tiny"), SMALL), tmp_path / "run"
    with pytest.raises(RuntimeError, match="a fault of ours"):
        train_run(corpus, recipe, run, RunOptions("cpu", hooks=[broken], quiet=True))
    assert [r["step"] for r in metrics(run) if "loss" in r] == list(range(1, at + 1))
    resume_run(run, RunOptions("cpu", quiet=True))
    whole = train_run(corpus, recipe, tmp_path / "whole", RunOptions("cpu", quiet=True))
    assert (run / "model.safetensors").read_bytes() == (
        whole / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("at", [2, 5], ids=["between two steps", "after the last"])
def test_nothing_is_written_into_a_folder_that_was_replaced(at, corpus, tmp_path):
    "The run was moved away, and somebody else's folder has its name now."
    run = tmp_path / "run"

    def replaced(record):
        if record.step != at:
            return
        run.rename(tmp_path / "away")
        run.mkdir()
        (run / "letter").write_text("Dear")

    with pytest.raises(UserError, match="run was removed or replaced by someone else"):
        train_run(
            corpus,
            override(get_recipe("tiny"), [*SMALL, "max_steps=5"]),
            run,
            RunOptions("cpu", hooks=[replaced], quiet=True),
        )
    assert [path.name for path in run.iterdir()] == ["letter"]
    assert [r["step"] for r in metrics(tmp_path / "away") if "loss" in r] == list(
        range(1, at + 1)
    )


def test_minutes_stop_the_loop(corpus, tmp_path):
    run = train_run(
        corpus,
        override(get_recipe("tiny"), [*SMALL, "max_steps=100000"]),
        tmp_path / "run",
        RunOptions("cpu", minutes=1e-6, quiet=True),
    )
    assert [r["step"] for r in metrics(run) if "loss" in r] == [1]


def test_nothing_is_made_when_something_is_wrong(corpus, tmp_path):
    tiny = override(get_recipe("tiny"), SMALL)
    for what, recipe, more in (
        ("longest sentence", override(tiny, ["batch_tokens=2"]), {}),
        ("max_len=1", override(tiny, ["max_len=1"]), {}),
        ("toaster", tiny, {"device": "toaster"}),
        ("minutes=-1", tiny, {"minutes": -1}),
        ("minutes=inf", tiny, {"minutes": float("inf")}),
        ("minutes=nan", tiny, {"minutes": float("nan")}),
        ("sharded and score", tiny, {"sharded": True, "score": validation_bleu}),
    ):
        with pytest.raises(ValueError, match=what):
            train_run(corpus, recipe, tmp_path / "run", RunOptions(quiet=True, **more))
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "native, emulated, expected",
    [(True, True, True), (False, True, False), (False, False, False)],
    ids=["Ampere and later", "T4", "none"],
)
def test_auto_is_bf16_only_where_the_gpu_multiplies_it(
    monkeypatch, native, emulated, expected
):
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: native or including_emulation and emulated,
    )
    monkeypatch.setattr(torch, "autocast", lambda *settings: settings)
    found = precision_context("auto", torch.device("cuda"))
    assert (
        found == ("cuda", torch.bfloat16)
        if expected
        else isinstance(found, nullcontext)
    )
    assert precision_context("bf16", torch.device("cuda")) == (
        "cuda",
        torch.bfloat16,
    )  # asked for
    assert isinstance(precision_context("fp32", torch.device("cuda")), nullcontext)


def test_tensorboard_that_is_not_installed(corpus, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        train_run(
            corpus,
            override(get_recipe("tiny"), SMALL),
            tmp_path / "run",
            RunOptions("cpu", quiet=True, tensorboard=True),
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan")])
def test_resume_checks_the_minutes(wrong, tmp_path):
    with pytest.raises(
        UserError, match=f"minutes={wrong} must be positive and below 10,000,000"
    ):
        resume_run(tmp_path, RunOptions("cpu", minutes=wrong))


def test_steps_are_read_in_groups_on_cuda_alone():
    "Groups of at most ten, which end where a validation pass or a checkpoint is due."
    cuda, fused = torch.device("cuda", 0), [{"fused": True}]
    for valid_every in (*range(1, 40), 500, 2**31 - 1):
        for save_every in (1, 6, 7, 10, 22, 600, 1500):
            fits = [n for n in range(1, 11) if valid_every % n == save_every % n == 0]
            settings = TrainConfig(valid_every=valid_every, save_every=save_every)
            assert _sync_interval(settings, cuda, fused) == max(fits)
            assert _sync_interval(settings, cuda, [{"fused": False}]) == 1
            assert {
                _sync_interval(settings, torch.device(kind), fused)
                for kind in ("cpu", "mps", "xpu")
            } == {1}


COMPILED = """
import torch
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.engines.choose import FAST
from annotated_transformer.model.transformer import build_transformer

model = build_transformer(
    ModelConfig(n_layers=2, d_model=16, d_ff=32, n_heads=2), 20, 0, 0.1,
    attention=FAST.attention, make_dropout=FAST.make_dropout,
)
model.compile(dynamic=True, fullgraph=True, backend="eager")
for b, s, t in ((7, 5, 6), (4, 9, 8), (3, 11, 10)):
    hidden = model(torch.randint(1, 20, (b, s)), torch.randint(1, 20, (b, t)))
    hidden.sum().backward()
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


def test_a_compiled_model_is_one_graph():
    "For all shapes, with dropout: nothing in it breaks the graph of `torch.compile`."
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_device_precision_schedule():
    assert pick_device("cpu").type == "cpu"
    with precision_context("bf16", torch.device("cpu")):
        assert torch.nn.Linear(2, 2)(torch.zeros(1, 2)).dtype == torch.bfloat16
    settings = override(
        get_recipe("tiny"),
        ["schedule=linear", "peak_lr=0.5", "warmup_steps=10", "max_steps=20"],
    ).train
    assert [_learning_rate_schedule(settings, 8)(step) for step in (5, 10, 15, 20)] == [
        0.25,
        0.5,
        0.25,
        0.0,
    ]


@pytest.mark.parametrize("where", ["runs.recipe", "runs.folder"])
def test_a_model_that_does_not_fit_into_memory(corpus, tmp_path, monkeypatch, where):
    "One line for the user, in training and in loading; the cause is kept, and any other error is left as it is."
    run, recipe = tmp_path / "run", override(get_recipe("tiny"), SMALL)
    if where == "runs.folder":
        train_run(corpus, recipe, run, RunOptions("cpu", quiet=True))

    def train_or_load():
        if where == "runs.recipe":
            train_run(corpus, recipe, run, RunOptions("cpu", quiet=True))
        else:
            load(run)

    for error, expected, message in (
        (
            RuntimeError("not enough memory: 9 bytes\nand what C++ says"),
            UserError,
            "^a model of these sizes cannot be built: not enough memory: 9 bytes$",
        ),
        (
            RuntimeError("Storage size calculation overflowed with sizes=[9]"),
            UserError,
            "cannot be built: Storage size",
        ),
        (MemoryError(), UserError, "cannot be built: out of memory$"),
        (MemoryError("std::bad_alloc"), UserError, "cannot be built: std::bad_alloc"),
        (
            RuntimeError("my part: 3 and 4 differ"),
            RuntimeError,
            "^my part: 3 and 4 differ$",
        ),
    ):
        build = mock.Mock(side_effect=error)
        monkeypatch.setattr(f"annotated_transformer.{where}.build_transformer", build)
        with pytest.raises(expected, match=message) as found:
            train_or_load()
        assert error in (found.value, found.value.__cause__)
        assert run.exists() == (where == "runs.folder")


def test_validation_computes_each_batch_once():
    "R-Drop repeats a batch in training only; without dropout both losses are the same."
    config = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
    model, rows = build_transformer(config, 20, 0), []
    model.encoder.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    ids = torch.tensor([[5, 6, 3], [8, 3, 0]])
    batch = Batch(ids, torch.tensor([[2, 5, 6], [2, 8, 0]]), ids, 5)
    objective = BatchLoss(model, 0.0, r_drop=RDrop(5.0))
    losses = [objective.train(mode)(batch).item() for mode in (True, False)]
    assert rows == [4, 2] and losses[0] == pytest.approx(losses[1], rel=1e-5)
