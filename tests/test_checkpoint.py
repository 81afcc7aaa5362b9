"Weights and checkpoints: what is read back, every kind of damage, and going on to the bit."

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import save_file

from annotated_transformer import UserError
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.io.files import write_file
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.checkpoint import (
    Progress,
    _optimizer_state,
    checkpoints,
    copy_tensors,
    latest,
    load_checkpoint,
    load_weights,
    prune,
    save_weights,
    weights_metadata,
    write_checkpoint,
)
from annotated_transformer.runs.folder import (
    RunFolder,
    load_run,
    read_config,
    write_config,
)
from annotated_transformer.runs.settings import Recipe, TrainConfig
from annotated_transformer.training.optimizer import adam

SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
RECIPE = Recipe(SIZES, TrainConfig(n_pieces=300))
ABOUT = {"data": "ä\u2028ß", "src_lang": "en", "tgt_lang": "de"}
MODEL, ADAM, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
EMBEDDING = "embedding.weight"


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
    return path


# a run folder, and what may be wrong with it


def test_what_is_saved_is_loaded(run, model, vocab):
    found = load_run(run)
    for name, weight in model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], weight), name
    assert not found.model.training and found.recipe == RECIPE
    assert found.vocab.model == vocab.model and found.about.items() >= ABOUT.items()


def edited(part, **values):
    "Change values of config.json."

    def edit(run):
        found = json.loads((run / "config.json").read_text())
        (found[part] if part else found).update(values)
        (run / "config.json").write_text(json.dumps(found))

    return edit


def written(name, data):
    return lambda run: (run / name).write_bytes(data)


def removed(name):
    return lambda run: (run / name).unlink()


OTHER_SIZES = "has weights of other sizes than config.json names"
WRONG_RUNS = [
    *((removed(name), name) for name in ("config.json", "vocab.model", MODEL)),
    (written("config.json", b"\xff\xfe{}"), "cannot be read"),
    (edited(None, model=3), "not the settings of a recipe"),
    (edited("model", n_heads=4), OTHER_SIZES),  # which shapes do not show
    (edited(None, kind="marian"), "was imported from Marian"),
]


@pytest.mark.parametrize("damage, says", WRONG_RUNS)
def test_a_run_that_is_refused(run, damage, says):
    "In one line, before a lock is made."
    damage(run)
    with pytest.raises(UserError, match=says):
        load_run(run)
    if says not in ("vocab.model", MODEL, OTHER_SIZES):
        with pytest.raises(UserError, match=says), RunFolder.open(run):
            pass
        assert not (run / ".lock").exists()


def test_the_weights_know_which_they_are(run, model):
    "config.json is written at the start and at the end of training, and the weights whenever they are better."
    recipe, about = read_config(run)
    write_config(run, recipe, about | {"weights": "average of 5 checkpoints"})
    assert load_run(run).about["weights"] == "best on validation, step 1"


def test_wrong_weights(model, vocab, tmp_path, unchecked):
    tensors, path = dict(model.state_dict()), tmp_path / "w.safetensors"
    del tensors[EMBEDDING]
    save_file(tensors, path)
    says = "w.safetensors cannot be used: .*Missing key.*embedding.weight"
    with pytest.raises(UserError, match=says) as error:
        load_weights(build_transformer(SIZES, len(vocab), vocab.pad_id), path)
    assert "\n" not in str(error.value)


# checkpoints: a small training whose steps depend on their numbers alone


def save_checkpoint(folder, model, optimizer, progress):
    return write_checkpoint(folder, copy_tensors(model, optimizer), progress)


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


def bits(model, optimizer):
    tensors = {**model.state_dict(), **_optimizer_state(model, optimizer)}
    return {name: tensor.detach().numpy().tobytes() for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def trained():
    training = new_training(0)
    steps(*training, 1, 3)
    return training


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture
def third(folder, trained):
    return save_checkpoint(folder, *trained, Progress(3, i_batch=3))


def test_six_steps_are_three_and_three(folder):
    "With dropout. What goes on is made of fresh objects; losses, weights and the optimiser's state are equal to the bit."
    whole, first, second = map(new_training, (0, 0, 1))
    losses = steps(*whole, 1, 6)
    assert steps(*first, 1, 3) == losses[:3]
    progress = Progress(3, 1, 2, 0.1 + 0.2, 1 / 3, 2, 1)
    path = save_checkpoint(folder, *first, progress)
    assert path == folder / "step-0000003"
    assert {p.name for p in path.iterdir()} == {MODEL, ADAM, STATE}
    assert load_checkpoint(path, *second) == progress
    assert steps(*second, 4, 6) == losses[3:]
    assert bits(*second) == bits(*whole)


# damaged checkpoints


def state(**changed):
    def damage(path):
        values = json.loads((path / STATE).read_text()) | changed
        (path / STATE).write_text(json.dumps(values))

    return damage


def cut(name):
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:-1])


DAMAGE = [
    *((removed(name), name, "no such file") for name in (MODEL, ADAM, STATE)),
    *((cut(name), name, "cannot be used: ") for name in (MODEL, ADAM)),
    (written(STATE, b'{"format": 1, "step"'), STATE, "cannot be read"),
    (state(format=2), STATE, "not of format 1"),
    (state(seconds=None), STATE, "seconds=None"),
]


@pytest.mark.parametrize("damage, name, says", DAMAGE)
def test_damaged_checkpoint(third, damage, name, says):
    "One line that names the file."
    damage(third)
    with pytest.raises(UserError, match=says) as error:
        load_checkpoint(third, *new_training(1))
    assert str(third / name) in str(error.value) and "\n" not in str(error.value)


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
    path = save_checkpoint(folder, *trained, Progress(8))
    assert path.name == "step-0000008" and latest(folder) == path


@pytest.mark.parametrize("keep_last", [1, 2, 3, 5])
def test_prune(folder, trained, keep_last):
    "A step that is saved again replaces the first; Adam's state stays in the newest two."
    saved = [save_checkpoint(folder, *trained, Progress(step)) for step in (1, 2, 3, 4)]
    again = save_checkpoint(folder, *trained, Progress(3, seconds=1.0))
    assert again == saved[2]
    assert load_checkpoint(again, *trained).seconds == 1.0
    prune(folder, keep_last)
    kept = [saved[0], saved[1], again, saved[3]][-keep_last:]
    assert checkpoints(folder) == kept and set(folder.iterdir()) == set(kept)
    assert [path for path in kept if (path / ADAM).exists()] == kept[-2:]
    assert all((path / MODEL).exists() for path in kept)
    (saved[3] / ADAM).unlink()
    assert latest(folder) == (again if keep_last > 1 else None)


def test_killed_while_pruning(folder, trained, monkeypatch):
    "Removing a folder stops half-way: what is left of it is no checkpoint."
    old, new = (save_checkpoint(folder, *trained, Progress(step)) for step in (1, 2))

    def half(left, *args, **more):
        next(left.rglob(MODEL)).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(KeyboardInterrupt):
        prune(folder, 1)
    assert checkpoints(folder) == [new] and not old.exists()


# crashes and full disks


@pytest.mark.parametrize("name", [EMBEDDING, "exp_avg_sq." + EMBEDDING])
def test_numbers_that_are_not_finite(folder, name):
    training = new_training(0)
    steps(*training, 1, 1)
    with torch.no_grad():
        {**training[0].state_dict(), **_optimizer_state(*training)}[name][3, 3] = (
            math.nan
        )
    with pytest.raises(UserError, match="embedding.weight is not finite"):
        save_checkpoint(folder, *training, Progress(1))
    assert list(folder.iterdir()) == []
