"Run folders: what may be made where, what is read back, and what a killed process leaves."

import threading
from dataclasses import replace
from typing import get_args

import pytest
import torch

from annotated_transformer import UserError
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.prepared import prepare
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.io.files import MARKER, remove
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.checkpoint import (
    TrainState,
    Writer,
    checkpoints,
    copy_tensors,
    load_checkpoint,
    save_weights,
    write_checkpoint,
)
from annotated_transformer.runs.folder import (
    change_settings,
    create_run,
    encode_text,
    load_latest,
    open_run,
    text_sha256,
    write_config,
)
from annotated_transformer.runs.monitor import append_json
from annotated_transformer.runs.settings import (
    Recipe,
    TrainConfig,
    get_recipe,
    override,
)
from annotated_transformer.runs.train_run import RunOptions, train_run
from annotated_transformer.training import train as train_module
from annotated_transformer.training.optimizer import adam
from annotated_transformer.training.train import NotFinite, OutOfMemory

SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
LINES = ["the dog sleeps", "der Hund schläft", "the old cat drinks milk"]


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(LINES, vocab_size=310)


@pytest.fixture
def run(tmp_path, vocab):
    "A run of ours, with random weights."
    path, recipe = (
        tmp_path / "run",
        Recipe(SIZES, replace(get_recipe("base").train, vocab_size=310)),
    )
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


@pytest.mark.parametrize("steps, stays", [([], False), ([0], False), ([0, 1], True)])
def test_a_new_run_that_fails_is_removed(steps, stays, tmp_path):
    "But not one that has made a step; a validation pass before the first is none."
    path, recipe = (
        tmp_path / "new",
        Recipe(SIZES, replace(get_recipe("base").train, vocab_size=310)),
    )
    with pytest.raises(OSError), create_run(path, recipe) as run:
        run.note(text_sha256="of its text")
        for step in steps:
            append_json(run.metrics, {"step": step})
        raise OSError
    assert (path / "config.json").exists() == path.exists() == stays


def test_text_is_read_only_if_a_run_can_be_made(tmp_path):
    recipe = Recipe(SIZES, replace(get_recipe("base").train, vocab_size=400))
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run", recipe, {})
    text = lambda: pytest.fail("the text was read")
    with pytest.raises(UserError, match="already holds a run"):
        with create_run(tmp_path / "run", recipe, text):
            pass
    with pytest.raises(UserError, match="is not a run folder"):
        with open_run(tmp_path, text):
            pass


@pytest.mark.parametrize("error", [UserError, RuntimeError, OutOfMemory])
def test_encoded_text_outlives_a_fault_before_the_first_step(error, corpus, tmp_path):
    "It took hours, perhaps. The run itself stays only if it can go on with smaller batches."
    recipe, path = (
        Recipe(SIZES, replace(get_recipe("base").train, vocab_size=400)),
        tmp_path / "run",
    )
    with pytest.raises(error), create_run(path, recipe, corpus) as run:
        encode_text(run, quiet=True)
        raise error("out of memory")
    ids = path / "data/train.src.ids"
    before = ids.stat().st_mtime_ns
    assert (path / "config.json").exists() == (error is OutOfMemory)
    again = open_run(path) if error is OutOfMemory else create_run(path, recipe, corpus)
    with again as run:
        assert encode_text(run, quiet=True).text_sha256 == run.about["text_sha256"]
    assert ids.stat().st_mtime_ns == before


def test_a_start_that_was_killed_is_made_again(corpus, tmp_path):
    "While it encodes its text a run has a lock and no settings."
    recipe, path = (
        Recipe(SIZES, replace(get_recipe("base").train, vocab_size=400)),
        tmp_path / "run",
    )
    other = load_corpus("builtin", n_train=200, n_valid=40, n_test=1)
    made_of = other.train, other.valid, text_sha256(other)
    prepare(path / "data", *made_of, vocab_size=400, quiet=True)
    (path / "vocab.model").write_bytes(b"of the other text")
    (path / ".annotated_transformer-12345678.part/data").mkdir(parents=True)
    (path / MARKER).touch()
    with create_run(path, recipe, corpus) as run:
        assert encode_text(run, quiet=True).text_sha256 == text_sha256(corpus)
    names = {MARKER, "checkpoints", "config.json", "data", "vocab.model"}
    assert {file.name for file in path.iterdir()} == names


def test_a_damaged_newest_checkpoint_leaves_the_one_before(run, training):
    model, optimizer = training
    with open_run(run) as folder:
        for step in (1500, 3000):
            tensors = copy_tensors(model, optimizer)
            write_checkpoint(folder.checkpoints, tensors, TrainState(step))
        older, newest = checkpoints(folder.checkpoints)
        (newest / "model.safetensors").write_bytes(b"cut")
        says = f"cannot be used: .*; remove {newest} to continue from the one before"
        with pytest.raises(UserError, match=says):
            load_latest(folder, model, optimizer)
        remove(newest)
        assert load_latest(folder, model, optimizer).step == 1500
        (older / "model.safetensors").write_bytes(b"cut")
        with pytest.raises(UserError) as only:
            load_latest(folder, model, optimizer)
    assert "remove" not in str(only.value)


def test_training_goes_on_while_a_file_is_written(tmp_path):
    "An error in writing it ends the run; an error of the run lets it be written."
    may_write, written = threading.Event(), []

    def slow() -> None:
        assert may_write.wait(60), "training waits until the checkpoint is written"
        written.append(1)

    with pytest.raises(KeyError), Writer() as write:
        write(slow)
        assert written == []
        may_write.set()
        write(lambda: written.append(2))
        assert 1 in written
        raise KeyError
    assert written == [1, 2]

    def full_disk() -> None:
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space left"), Writer() as write:
        write(full_disk)


def test_a_folder_of_the_users_stays_as_it_is(tmp_path):
    "Also if it has the name of one of ours."
    (tmp_path / "data").mkdir()
    (tmp_path / "data/text.en").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        with create_run(
            tmp_path, Recipe(SIZES, replace(get_recipe("base").train, vocab_size=310))
        ):
            pass
    assert [*tmp_path.rglob("*.*")] == [tmp_path / "data/text.en"]


def test_a_run_made_meanwhile_is_not_overwritten(tmp_path):
    "Another process makes it while this one reads its text."
    recipe, path = (
        Recipe(SIZES, replace(get_recipe("base").train, vocab_size=310)),
        tmp_path / "run",
    )

    def text():
        path.mkdir()
        write_config(path, recipe, {})

    with pytest.raises(UserError, match="already holds a run"):
        with create_run(path, recipe, text):
            pass
    assert (path / "config.json").exists()


SCHEDULES = get_args(TrainConfig.__annotations__["schedule"])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_advice_about_a_rate_follows_the_schedule(
    schedule, tmp_path, corpus, monkeypatch
):
    "A peak that is chosen is lowered; that of the paper falls with a longer warm-up."
    nan = lambda *args: torch.full((2,), float("nan"))
    monkeypatch.setattr(train_module, "compute_gradient", nan)
    wanted = "warmup_steps=400" if schedule == "paper" else "peak_lr=0.001"
    recipe = override(get_recipe("tiny"), [f"schedule={schedule}", "vocab_size=500"])
    with pytest.raises(NotFinite, match=f"; train it again with {wanted}$"):
        train_run(corpus, recipe, tmp_path / "new", RunOptions("cpu", quiet=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_steps_change_a_schedule_that_falls_to_0(schedule, run, training, capsys):
    write_checkpoint(run / "checkpoints", copy_tensors(*training), TrainState(3))
    with open_run(run) as opened:
        opened.recipe = override(opened.recipe, [f"schedule={schedule}"])
        change_settings(opened, ["max_steps=7000000"])
    said = capsys.readouterr().err
    assert (f"the {schedule} schedule falls to 0 there" in said) == (
        schedule in ("linear", "cosine")
    )


def test_state_that_an_optimiser_lacks(run, training):
    "Of each weight there is some, or the checkpoint is of another model."
    model, optimizer = training
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    weights, adam_state = copy_tensors(model, optimizer)
    name = next(iter(weights))
    rest = {k: v for k, v in adam_state.items() if not k.endswith(f".{name}")}
    path = write_checkpoint(run / "checkpoints", (weights, rest), TrainState(1))
    with pytest.raises(UserError, match=f"^the optimiser's state of {name} is miss"):
        load_checkpoint(path, model, optimizer)
