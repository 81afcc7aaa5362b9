"Kinds of run folders and their loaders. What a run of ours holds is tested in test_checkpoint.py."

import json
import subprocess
import sys

import pytest
import torch

from annotated_transformer import UserError, load
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.engines.batched_search import batched_greedy_search
from annotated_transformer.model.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs import folder as run_folder
from annotated_transformer.runs.folder import (
    Run,
    create_run,
    load_run,
    read_config,
    register_loader,
    run_kind,
    write_config,
)
from annotated_transformer.runs.weights import save_weights
from annotated_transformer.translating.translate import Translator

SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
LINES = ["the dog sleeps", "der Hund schläft", "the old cat drinks milk"]


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(LINES, n_pieces=310)


@pytest.fixture
def run(tmp_path, vocab):
    "A run of ours, with random weights."
    path, recipe = tmp_path / "run", Recipe(SIZES, TrainConfig(n_pieces=310))
    create_run(path, recipe, {})
    vocab.save(path / "vocab.model")
    write_config(path, recipe, {})
    torch.manual_seed(0)
    model = build_transformer(SIZES, len(vocab), vocab.pad_id)
    save_weights(model, path / "model.safetensors")
    return path


@pytest.fixture
def toy_loader(monkeypatch, vocab):
    "A kind of run that a user registers; its loader counts its calls."
    monkeypatch.setattr(run_folder, "_LOADERS", dict(run_folder._LOADERS))
    calls = []

    @register_loader("toy")
    def load_toy(path, about):
        calls.append((path, about))
        model = build_transformer(SIZES, len(vocab), vocab.pad_id)
        return Run(model, vocab, None, about, make_translator)

    def make_translator(model, vocab, batch_tokens, search):
        calls.append(search)
        return Translator(model, vocab, batch_tokens, 7)

    return calls


def folder_of_kind(path, kind, **more):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"format": 1, "kind": kind} | more))
    return path


def test_a_run_that_was_trained_here_names_no_kind(run):
    assert "kind" not in json.loads((run / "config.json").read_text())
    assert run_kind(run) is run_kind(str(run)) is None
    assert load_run(run).translator is None


@pytest.mark.parametrize("kind", ["os", "cli", "..", "", None, 3, ["marian"], {}])
def test_unknown_kinds_are_refused_and_nothing_is_imported(tmp_path, kind, monkeypatch):
    "A kind is text from a stranger's file: it must never become the name of a module."
    monkeypatch.setattr(run_folder, "import_module", lambda name: pytest.fail(name))
    path = folder_of_kind(tmp_path / "run", kind)
    for read in (run_kind, read_config, load_run, load):
        with pytest.raises(UserError, match="is no kind of run that can be loaded"):
            read(path)


def test_a_registered_loader_is_called_once_with_folder_and_settings(
    tmp_path, toy_loader
):
    path = folder_of_kind(tmp_path / "run", "toy", size=3)
    assert load_run(path).recipe is None
    assert toy_loader == [(path, {"format": 1, "kind": "toy", "size": 3})]
    with pytest.raises(UserError, match="cannot be trained further"):
        read_config(path)


def test_an_imported_run_makes_its_own_translator(tmp_path, toy_loader):
    path = folder_of_kind(tmp_path / "run", "toy")
    translator = load(path, search=batched_greedy_search)
    assert (translator.max_tokens, toy_loader[-1]) == (7, batched_greedy_search)
    load(path)
    assert toy_loader[-1] is None


def test_links_are_refused_whatever_the_kind(tmp_path, toy_loader):
    real = folder_of_kind(tmp_path / "real", "toy")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "config.json").symlink_to(real / "config.json")
    with pytest.raises(UserError, match="config.json is a link"):
        load_run(linked)
    assert toy_loader == []


def test_the_format_is_checked_whatever_the_kind(tmp_path, toy_loader):
    path = folder_of_kind(tmp_path / "run", "toy", format=2)
    with pytest.raises(UserError, match="is not of format 1"):
        load_run(path)
    assert toy_loader == []


def test_loading_a_run_of_ours_imports_no_other_kind(run):
    code = (
        "import sys; from annotated_transformer import load; load(sys.argv[1]); "
        "print(*(name for name in sys.modules if 'marian' in name))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, run], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == ""


def test_the_vocabulary_is_compared_with_the_bytes_that_were_loaded(run):
    values = json.loads((run / "config.json").read_text())
    values["vocab_sha256"] = values["vocab_sha256"][::-1]
    (run / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="is not the vocabulary that this run"):
        load_run(run)


def test_loading_imports_no_compiler(run):
    "A process that translates does not import what `torch.compile` needs: a second."
    code = (
        "import sys; from annotated_transformer import load; load(sys.argv[1])"
        ".translate(['the dog']); print({'sympy', 'torch._dynamo'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", code, str(run)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"


def test_the_embedding_is_checked_before_the_model_is_built(run, monkeypatch):
    "A wrong d_model would make a table of positions of any size."
    monkeypatch.setattr(run_folder, "build_transformer", pytest.fail)
    config = json.loads((run / "config.json").read_text())
    config["model"]["d_model"] = 2**20
    (run / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(run_folder, "check_sizes", lambda *_: None)
    with pytest.raises(UserError, match=r"embedding.weight has shape \(\d+, 16\)"):
        load_run(run)
