"Kinds of run folders and their loaders. What a run of ours holds is tested in test_checkpoint.py."

import json
import subprocess
import sys

import pytest
import torch

from annotated_transformer import UserError, load
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.model.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs import folder as run_folder
from annotated_transformer.runs.folder import (
    create_run,
    load_run,
    read_config,
    run_kind,
    write_config,
)
from annotated_transformer.runs.weights import save_weights

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


def folder_of_kind(path, kind, **more):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"format": 1, "kind": kind} | more))
    return path


def test_a_run_that_was_trained_here_names_no_kind(run):
    assert "kind" not in json.loads((run / "config.json").read_text())
    assert run_kind(run) is run_kind(str(run)) is None


@pytest.mark.parametrize("kind", ["os", "cli", "..", "", None, 3, ["marian"], {}])
def test_unknown_kinds_are_refused(tmp_path, kind):
    "A kind is text from a stranger's file: it must never become the name of a module."
    path = folder_of_kind(tmp_path / "run", kind)
    for read in (run_kind, read_config, load_run, load):
        with pytest.raises(UserError, match="is no kind of run that can be loaded"):
            read(path)


def test_an_imported_run_only_translates(tmp_path):
    path = folder_of_kind(tmp_path / "run", "marian")
    assert run_kind(path) == "marian"
    for read in (read_config, load_run):
        with pytest.raises(UserError, match="imported from Marian: it translates, but"):
            read(path)


def test_links_and_other_formats_are_refused_whatever_the_kind(tmp_path):
    real = folder_of_kind(tmp_path / "real", "marian")
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "config.json").symlink_to(real / "config.json")
    with pytest.raises(UserError, match="config.json is a link"):
        load(linked)
    with pytest.raises(UserError, match="is not of format 1"):
        load(folder_of_kind(tmp_path / "run", "marian", format=2))


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
