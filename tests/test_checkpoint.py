"Which weights a run has, and its checkpoints: their order, which stay, and a kill while they are removed."

from dataclasses import replace

import pytest
import torch

from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.io.files import write_file
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs import checkpoint
from annotated_transformer.runs.checkpoint import (
    TrainState,
    checkpoints,
    copy_tensors,
    latest,
    load_checkpoint,
    prune,
    save_weights,
    weights_metadata,
    write_checkpoint,
)
from annotated_transformer.runs.folder import (
    load_run,
    read_config,
    write_config,
)
from annotated_transformer.runs.settings import Recipe, get_recipe
from annotated_transformer.training.optimizer import adam

SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
RECIPE = Recipe(SIZES, replace(get_recipe("base").train, vocab_size=300))
ABOUT = {"data": "ä\u2028ß", "src_lang": "en", "tgt_lang": "de"}
MODEL, ADAM, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(["the dog sleeps", "der Hund schläft", "a cat drinks milk"], 300)


@pytest.fixture(scope="module")
def model(vocab):
    torch.manual_seed(0)
    return build_transformer(SIZES, len(vocab), vocab.pad_id).eval()


@pytest.fixture
def run(tmp_path, vocab, model):
    path = tmp_path / "run"
    (path / "checkpoints").mkdir(parents=True)
    write_file(path / "vocab.model", vocab.model)
    write_config(path, RECIPE, ABOUT)
    about = weights_metadata(SIZES, "best on validation, step 1")
    save_weights(model, path / MODEL, about)
    (path / "other").touch()
    # as any other file, for who shares a disk with the user
    assert (path / MODEL).stat().st_mode == (path / "other").stat().st_mode
    return path


def test_the_weights_know_which_they_are(run, model):
    "config.json is written at the start and at the end of training, and the weights whenever they are better."
    recipe, about = read_config(run)
    write_config(run, recipe, about | {"weights": "average of 5 checkpoints"})
    assert load_run(run).about["weights"] == "best on validation, step 1"


# checkpoints: a small training whose steps depend on their numbers alone


def save_checkpoint(folder, model, optimizer, state, scheduled=True):
    tensors = copy_tensors(model, optimizer)
    return write_checkpoint(folder, tensors, state, scheduled=scheduled)


def new_training(seed):
    torch.manual_seed(seed)
    model = build_transformer(SIZES, 20, pad_id=0, dropout=0.3)
    return model.train(), adam(model.parameters())


def steps(model, optimizer, first, last):
    losses = []
    for step in range(first, last + 1):
        torch.manual_seed(step)
        src, tgt = torch.randint(4, 20, (2, 4, 6))
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / step
        optimizer.zero_grad()
        logits = model.embedding.logits(model(src, tgt[:, :-1]))
        loss = logits.log_softmax(-1).gather(-1, tgt[:, 1:, None]).neg().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def trained():
    training = new_training(0)
    steps(*training, 1, 3)
    return training


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def test_names_and_their_order(folder, trained):
    "Of complete checkpoints; one that was not finished is written again."
    names = ("step-10000000", "step-0000020", "step-9999999", "step-0000003")
    others = ("step-5", "step-0000006.x", "old-step-0000007")
    for name in (*names, *others):
        (folder / name).mkdir()
        (folder / name / STATE).touch()
    (folder / "step-0000008").mkdir()
    (folder / "step-0000008" / MODEL).touch()
    found = [p.name for p in checkpoints(folder)]
    assert found == [names[3], names[1], names[2], names[0]]
    assert latest(folder) is None and checkpoints(folder / "none") == []
    path = save_checkpoint(folder, *trained, TrainState(8))
    assert path.name == "step-0000008" and latest(folder) == path


@pytest.mark.parametrize("keep_last", [1, 2, 3, 5])
def test_prune(folder, trained, keep_last):
    "A step that is saved again replaces the first; Adam's state stays in the newest two."
    saved = [
        save_checkpoint(folder, *trained, TrainState(step)) for step in (1, 2, 3, 4)
    ]
    again = save_checkpoint(folder, *trained, TrainState(3, seconds=1.0))
    assert again == saved[2]
    assert load_checkpoint(again, *trained).seconds == 1.0
    prune(folder, keep_last)
    kept = [saved[0], saved[1], again, saved[3]][-keep_last:]
    assert checkpoints(folder) == kept and set(folder.iterdir()) == set(kept)
    assert [path for path in kept if (path / ADAM).exists()] == kept[-2:]
    assert all((path / MODEL).exists() for path in kept)
    (saved[3] / ADAM).unlink()
    assert latest(folder) == (again if keep_last > 1 else None)


def test_what_an_interruption_saved_is_needed_until_the_next(folder, trained):
    "The schedule may be changed: what was saved by the one before stays."
    steps = {2: True, 4: True, 5: False, 6: True, 7: False}
    for step, scheduled in steps.items():
        save_checkpoint(folder, *trained, TrainState(step), scheduled)
        prune(folder, 3)
        found = [int(path.name[-2:]) for path in checkpoints(folder)]
        right = {2: [2], 4: [2, 4], 5: [2, 4, 5], 6: [2, 4, 6], 7: [4, 6, 7]}
        assert found == right[step]


def test_killed_while_pruning(folder, trained, monkeypatch):
    "Removing a checkpoint stops half-way: what is left of it is no checkpoint; and a file of the user's stays."
    old, new = (save_checkpoint(folder, *trained, TrainState(step)) for step in (1, 2))
    (old / "notes").touch()
    plain, removed = checkpoint.remove_known, []

    def half(folder, names):
        plain(folder, names[:1])
        removed.extend(names[1:])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoint, "remove_known", half)
        prune(folder, 1)
    assert removed and checkpoints(folder) == [new] and (old / MODEL).exists()
    prune(folder, 1)
    assert [path.name for path in old.iterdir()] == ["notes"]
