"Run folders: what may be made where, what is read back, and what a killed process leaves."

import threading
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file

from annotated_transformer import UserError
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.prepared import prepare
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.io.files import MARKER, remove
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs import checkpoint
from annotated_transformer.runs.checkpoint import Progress, checkpoints, save_weights
from annotated_transformer.runs.folder import (
    RunFolder,
    read_metrics,
    text_sha256,
    write_config,
)
from annotated_transformer.runs.hooks import append_json
from annotated_transformer.runs.settings import Recipe, TrainConfig, get_recipe
from annotated_transformer.runs.train_run import _choose_weights
from annotated_transformer.training.optimizer import adam
from annotated_transformer.training.train import OutOfMemory, Stop

SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
LINES = ["the dog sleeps", "der Hund schläft", "the old cat drinks milk"]


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(LINES, n_pieces=310)


@pytest.fixture
def run(tmp_path, vocab):
    "A run of ours, with random weights."
    path, recipe = tmp_path / "run", Recipe(SIZES, TrainConfig(n_pieces=310))
    (path / "checkpoints").mkdir(parents=True)
    vocab.save(path / "vocab.model")
    write_config(path, recipe, {})
    torch.manual_seed(0)
    model = build_transformer(SIZES, len(vocab), vocab.pad_id)
    save_weights(model, path / "model.safetensors")
    return path


@pytest.fixture
def training():
    model = build_transformer(SIZES, 20, 0)
    return model, adam(model.parameters())


def test_a_new_run_that_fails_is_removed(tmp_path):
    "But not one that has made a step."
    path, recipe = tmp_path / "new", Recipe(SIZES, TrainConfig(n_pieces=310))
    for n_steps in (0, 1):
        with pytest.raises(OSError), RunFolder.create(path, recipe) as run:
            for step in range(n_steps):
                run.note(text_sha256="of its text")
                append_json(run.path / "metrics.jsonl", {"step": step + 1})
            raise OSError
        assert (path / "config.json").exists() == (n_steps > 0)


def test_text_is_read_only_if_a_run_can_be_made(tmp_path):
    recipe = Recipe(SIZES, TrainConfig(n_pieces=400))
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run", recipe, {})
    text = lambda: pytest.fail("the text was read")
    with pytest.raises(UserError, match="already holds a run"):
        with RunFolder.create(tmp_path / "run", recipe, text):
            pass
    with pytest.raises(UserError, match="is not a run folder"):
        with RunFolder.open(tmp_path, text):
            pass


@pytest.mark.parametrize(
    "error, stays", [(UserError, False), (RuntimeError, True), (OutOfMemory, True)]
)
def test_encoded_text_outlives_a_fault_before_the_first_step(
    corpus, tmp_path, error, stays
):
    "It took minutes, perhaps; but a wrong setting leaves nothing, since it cannot be resumed."
    recipe = Recipe(SIZES, TrainConfig(n_pieces=400))
    with (
        pytest.raises(error),
        RunFolder.create(tmp_path / "run", recipe, corpus) as run,
    ):
        run.encoded(quiet=True)
        raise error("out of memory")
    assert (tmp_path / "run").exists() == stays
    if stays:
        with RunFolder.open(tmp_path / "run") as run:
            assert run.encoded(quiet=True).text_sha256 == run.about["text_sha256"]


def test_a_start_that_was_killed_is_made_again(corpus, tmp_path):
    "While it encodes its text a run has a lock and no settings."
    recipe, path = Recipe(SIZES, TrainConfig(n_pieces=400)), tmp_path / "run"
    other = load_corpus("builtin", n_train=200, n_valid=40, n_test=1)
    made_of = other.train, other.valid, text_sha256(other)
    prepare(path / "data", *made_of, n_pieces=400, quiet=True)
    (path / "vocab.model").write_bytes(b"of the other text")
    (path / ".annotated_transformer-12345678.part/data").mkdir(parents=True)
    (path / MARKER).touch()
    with RunFolder.create(path, recipe, corpus) as run:
        assert run.encoded(quiet=True).text_sha256 == text_sha256(corpus)
    names = {MARKER, "checkpoints", "config.json", "data", "vocab.model"}
    assert {file.name for file in path.iterdir()} == names


def test_a_damaged_newest_checkpoint_leaves_the_one_before(run, training):
    model, optimizer = training
    with RunFolder.open(run) as folder:
        for step in (1500, 3000):
            folder.progress = folder.progress._replace(step=step)
            folder.save_checkpoint(model, optimizer)
            folder.wait_written()
        older, newest = checkpoints(folder.checkpoint_folder)
        (newest / "model.safetensors").write_bytes(b"cut")
        says = f"cannot be used: .*; remove {newest} to continue from the one before"
        with pytest.raises(UserError, match=says):
            folder.load_latest(model, optimizer)
        remove(newest)
        folder.load_latest(model, optimizer)
        assert folder.progress.step == 1500
        (older / "model.safetensors").write_bytes(b"cut")
        with pytest.raises(UserError) as only:
            folder.load_latest(model, optimizer)
    assert "remove" not in str(only.value)


@pytest.mark.parametrize(
    "killed_after, chosen", [(2, "best on validation, step 1"), (3, "last, step 2")]
)
def test_best_weights_are_those_that_the_run_has_seen(
    run, training, killed_after, chosen
):
    "After a kill, the file of the best may be of a pass that is still to be made again; the metrics of later steps are removed."
    model, optimizer = training
    with RunFolder.open(run) as folder:
        for step, loss in ((1, 2.0), (2, 3.0), (3, 1.0))[:killed_after]:
            folder.progress = folder.progress._replace(step=step, i_batch=step)
            folder.count_validation(loss, model)
            append_json(run / "metrics.jsonl", {"step": step, "valid_loss": loss})
            if step < 3:
                folder.save_checkpoint(model, optimizer)
    with RunFolder.open(run) as again:
        again.load_latest(model, optimizer)
        assert again.progress == Progress(2, 0, 2, 0.0, 2.0, 1, 1)
        assert _choose_weights(again, Stop("SIGINT"), False)[1] == chosen
    assert [record["step"] for record in read_metrics(run)] == [1, 2]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    "The file holds the weights of its step; an error in writing it ends the run."
    may_write, plain = threading.Event(), checkpoint.save_tensors

    def slow(*args) -> None:
        assert may_write.wait(60), "training waits until the checkpoint is written"
        plain(*args)

    monkeypatch.setattr(checkpoint, "save_tensors", slow)
    sizes = get_recipe("tiny").model
    model = build_transformer(sizes, 20, 0)
    before = model.embedding.weight.detach().clone()
    with RunFolder.create(tmp_path / "run", get_recipe("tiny")) as run:
        run.save_checkpoint(model, adam(model.parameters()))
        with torch.no_grad():
            model.embedding.weight.zero_()
        assert checkpoints(run.checkpoint_folder) == []
        may_write.set()
        run.wait_written()
        (saved,) = checkpoints(run.checkpoint_folder)
        found = load_file(saved / "model.safetensors")["embedding.weight"]
        assert torch.equal(found, before)
        full_disk = mock.Mock(side_effect=OSError("No space left on device"))
        monkeypatch.setattr(checkpoint, "save_tensors", full_disk)
        run.save_checkpoint(model, adam(model.parameters()))
        with pytest.raises(OSError, match="No space left"):
            run.wait_written()


def test_a_folder_of_the_users_stays_as_it_is(tmp_path):
    "Also if it has the name of one of ours."
    (tmp_path / "data").mkdir()
    (tmp_path / "data/text.en").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        with RunFolder.create(tmp_path, Recipe(SIZES, TrainConfig(n_pieces=310))):
            pass
    assert [*tmp_path.rglob("*.*")] == [tmp_path / "data/text.en"]


def test_a_run_made_meanwhile_is_not_overwritten(tmp_path):
    "Another process makes it while this one reads its text."
    recipe, path = Recipe(SIZES, TrainConfig(n_pieces=310)), tmp_path / "run"

    def text():
        path.mkdir()
        write_config(path, recipe, {})

    with pytest.raises(UserError, match="already holds a run"):
        with RunFolder.create(path, recipe, text):
            pass
    assert (path / "config.json").exists()
