"""Training end to end, on the built-in corpus, in seconds."""

import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from small_runs import small_vocab
from torch.torch_version import TorchVersion

from annotated_transformer import UserError
from annotated_transformer.data.batch import Batch, encode_pairs
from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.engines.choose import FAST, PLAIN
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import load_run, read_config, read_metrics
from annotated_transformer.runs.recipe import (
    BatchLoss,
    build_training,
    choose_precision,
    validation_loss,
)
from annotated_transformer.runs.settings import get_recipe, override
from annotated_transformer.runs.train_run import RunOptions, resume_run, train_run
from annotated_transformer.training.distributed import pick_device
from annotated_transformer.training.r_drop import RDrop
from annotated_transformer.translating.evaluate import validation_scores
from annotated_transformer.translating.translate import Translator

SMALL = """n_layers=1 d_model=32 d_ff=64 n_heads=2 vocab_size=500 max_steps=6
batch_tokens=400 valid_every=4 save_every=3 average_last=0 precision=fp32""".split()


@pytest.fixture(scope="module")
def train(corpus):
    "Start a small run."

    def start(out: Path, *settings: str, **options) -> Path:
        recipe = override(get_recipe("tiny"), [*SMALL, *settings])
        options = {"quiet": True} | options
        return train_run(corpus, recipe, out, RunOptions("cpu", **options))

    return start


def test_validation_is_visible(train, tmp_path, capsys, monkeypatch):
    "A line above the bar for each pass, the same numbers for TensorBoard, and in metrics.jsonl."
    curves = []

    class Writer:
        def __init__(self, folder, purge_step):
            assert (folder, purge_step) == (tmp_path / "run/tensorboard", 1)

        def add_scalar(self, name, value, step):
            curves.append((name, step, value))

        close = lambda self: curves.append("closed")

    fake = mock.Mock(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "tensorboard", fake)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    score = lambda *given: {"valid_bleu": 12.345, "bleu_signature": "tok:13a"}
    train(tmp_path / "run", quiet=False, tensorboard=True, score=score)
    passes = [r for r in read_metrics(tmp_path / "run") if "valid_loss" in r]
    shown = capsys.readouterr().err.replace("\r", "\n").split("\n")
    for record in passes:
        loss, ppl = record["valid_loss"], record["valid_ppl"]
        numbers = f"validation loss {loss:.2f}, perplexity {ppl:.2f}, BLEU 12.35"
        assert shown.count(f"step {record['step']}: {numbers}") == 1
        assert ("validation loss", record["step"], loss) in curves
        assert ("BLEU", record["step"], 12.345) in curves
    assert len(passes) == 1 and curves[-1] == "closed"
    about = read_config(tmp_path / "run")[1]
    best, other = about["validation"]
    gap = other["valid_loss"] - best["valid_loss"]
    line = f"final weights: {best['weights']}, validation loss {best['valid_loss']:.4f}"
    assert f"{line}, {gap:.4f} below that of {other['weights']}" in shown
    train(tmp_path / "quiet", score=score)
    assert capsys.readouterr().err == ""


def test_held_out_sentences_beyond_max_len(corpus, tmp_path, capsys):
    "They are left out of the validation loss and of BLEU, and one line says so; the run is that without them."
    long = [("the dog was tired. " * 60, "kurz"), ("short", "Hund" * 20_000)]
    settings = "valid_every=2 max_len=70 position=learned n_positions=71".split()
    recipe, losses = override(get_recipe("tiny"), [*SMALL, *settings]), []
    why = "validation leaves out 2 of 42 pairs: they have more than max_len=70 tokens\n"
    for name, more, said in (("with", long, why), ("without", [], "")):
        text = corpus._replace(valid=[*more, *corpus.valid])
        options = RunOptions("cpu", score=validation_scores, quiet=True)
        run = train_run(text, recipe, tmp_path / name, options)
        losses.append([r["valid_loss"] for r in read_metrics(run) if "valid_loss" in r])
        assert capsys.readouterr().err == said
    assert len(losses[0]) == 3 and losses[0] == losses[1]
    only = corpus._replace(valid=long[:1])
    why = "no validation pair of 1 is left: all are longer than max_len=70 tokens"
    with pytest.raises(UserError, match=why):
        train_run(only, recipe, tmp_path / "run", RunOptions("cpu", quiet=True))
    assert not (tmp_path / "run/config.json").exists()


def test_validation_divides_no_source():
    "It is translated as it was trained on, however long it is; `translate` divides it at 256 tokens."
    model, vocab, *_ = load_run("demo")
    source = "The dog sleeps because it is tired, " * 40
    greedy = search_with(beam_size=1)
    whole = Translator(model, vocab, search=greedy, max_tokens=1000).translate(source)
    assert whole != Translator(model, vocab, search=greedy).translate(source)
    valid = encode_pairs([(source, whole)], vocab)
    assert valid.lengths()[0, 0] > 256
    assert validation_scores(model, vocab, valid)["valid_bleu"] > 99.9


def test_nothing_is_made_when_something_is_wrong(corpus, train, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for what, settings, options in (
        ("longest sentence", ["batch_tokens=2"], {}),
        ("max_len=1", ["max_len=1"], {}),
        ("minutes=-1", [], {"minutes": -1}),
        ("exclude each other", [], {"sharded": True, "score": validation_scores}),
        ("pip install tensorboard", [], {"tensorboard": True}),
    ):
        with pytest.raises(UserError, match=what):
            train(tmp_path / "run", *settings, **options)
        assert not (tmp_path / "run/config.json").exists()
    with pytest.raises(UserError, match="toaster"):
        train_run(corpus, get_recipe("tiny"), tmp_path / "run", RunOptions("toaster"))
    with pytest.raises(UserError, match="minutes=0 must be positive and below"):
        resume_run(tmp_path, RunOptions("cpu", minutes=0))


@pytest.mark.parametrize("capability, expected", [((8, 9), "bf16"), ((7, 5), "fp32")])
def test_auto_is_bf16_only_where_the_gpu_multiplies_it(
    monkeypatch, capability, expected
):
    "Of the device itself, which need not be the current one."
    gpu = torch.device("cuda", 1)
    of = lambda device: capability if device == gpu else (1, 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", of)
    assert choose_precision("auto", gpu) == expected
    assert choose_precision("bf16", gpu) == "bf16"
    assert choose_precision("fp32", gpu) == "fp32"
    assert choose_precision("auto", torch.device("mps")) == "fp32"


@pytest.mark.parametrize("training", [True, False])
def test_validation_loss_is_that_of_all_batches(training, monkeypatch):
    "Each batch counts once, also over ranks, without dropout, R-Drop and gradient; the model stays in its mode."
    torch.manual_seed(0)
    config = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
    model, given = build_transformer(config, 20, 0, dropout=0.5), []
    objective = BatchLoss(model, 0.1, r_drop=RDrop(5.0)).train(training)
    model.register_forward_hook(
        lambda _, args, hidden: given.append((len(args[0]), hidden.requires_grad))
    )
    ids = [torch.randint(4, 20, (2, n)) for n in (3, 7, 4)]
    batches = [Batch(x, x, x, x.numel()) for x in ids]
    found = validation_loss(objective, batches)
    assert objective.training == model.training == training
    assert given == [(2, False)] * 3
    nats = sum(objective.eval()(batch).item() for batch in batches)
    assert found == pytest.approx(nats / 28, rel=1e-6)
    totals, of = [], "annotated_transformer.runs.recipe."
    monkeypatch.setattr(of + "world_size", lambda: 2)
    monkeypatch.setattr(of + "sum_over_ranks", lambda x: totals.append(x.clone()) or x)
    for i in range(2):
        monkeypatch.setattr(of + "rank", lambda i=i: i)
        validation_loss(objective, batches)
    assert sum(totals).tolist() == pytest.approx([nats, 28], rel=1e-6)


def test_the_fast_engines_build_their_own_modules():
    "Twins compute the same, so that results do not show which one was built."
    recipe = override(get_recipe("tiny"), [*SMALL, "attention_dropout=0.1"])
    vocab, kinds = load_run(Path("demo")).vocab, []
    for engines in (PLAIN, FAST):
        objective, *_ = build_training(
            recipe, vocab, torch.device("cpu"), engines=engines
        )
        kinds.append({type(module).__name__ for module in objective.modules()})
    assert kinds[0] - kinds[1] == {"MultiHeadAttention", "AttentionDropout"}
    assert kinds[1] - kinds[0] == {
        "FusedMultiHeadAttention",
        "FusedAttentionDropout",
    }


def test_auto_where_pytorch_does_not_report_what_a_cpu_can(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert choose_precision("auto", torch.device("cpu")) == "fp32"
    assert choose_precision("bf16", torch.device("cpu")) == "bf16"


@pytest.mark.parametrize("version, chosen", [("2.8.0", "cpu"), ("2.12.1", "mps")])
def test_apple_gpus_need_a_pytorch_whose_attention_is_right(
    monkeypatch, version, chosen
):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    tried = []

    def ones(n, device):
        tried.append(device)
        return torch.zeros(n)

    monkeypatch.setattr(torch, "ones", ones)
    pick_device()
    assert tried == [chosen]
    if chosen == "cpu":
        with pytest.raises(UserError, match="'mps' needs PyTorch 2.12 .* not 2.8.0"):
            pick_device("mps")


def test_muon_has_whole_matrices(monkeypatch):
    "Its steps of slices are wrong (tried), and PyTorch has it since 2.9."
    recipe = override(get_recipe("tiny"), ["optimizer=muon"])
    vocab, cpu = small_vocab(), torch.device("cpu")
    with pytest.raises(UserError, match="^optimizer=muon needs whole matrices"):
        build_training(recipe, vocab, cpu, sharded=True)
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(UserError, match="has no Muon: use 2.9 or later"):
        build_training(recipe, vocab, cpu)
