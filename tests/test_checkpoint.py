"Run folders and checkpoints: what a crash leaves behind, every kind of damage, and going on to the bit."

import json
import math
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import warnings
from itertools import count

import pytest
import torch
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from annotated_transformer.data.batch import RunPosition
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.io.files import copy_file, replace_file, sha256, write_file
from annotated_transformer.model.config import (
    ModelConfig,
    Recipe,
    TrainConfig,
    get_recipe,
    recipe_to_dict,
)
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.checkpoint import (
    Progress,
    _expected_state,
    _matched_state,
    _optimizer_state,
    _prune,
    average_weights,
    checkpoints,
    latest,
    load_checkpoint,
    save_checkpoint,
    use_average,
)
from annotated_transformer.runs.folder import (
    check_new_run,
    create_run,
    foreign_entries,
    load_run,
    read_config,
    write_config,
)
from annotated_transformer.runs.weights import (
    load_weights,
    read_metadata,
    save_weights,
    weights_metadata,
)
from annotated_transformer.training.optimizer import adam

SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
RECIPE = Recipe(SIZES, TrainConfig(n_pieces=300))


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(["the dog sleeps", "der Hund schläft", "a cat drinks milk"], 300)


@pytest.fixture(scope="module")
def model(vocab):
    torch.manual_seed(0)
    return build_transformer(SIZES, len(vocab), vocab.pad_id).eval()


def new_run(path, recipe, vocab, about):
    create_run(path, recipe, about)
    write_file(path / "vocab.model", vocab.model)
    write_config(path, recipe, about)


@pytest.fixture()
def run(tmp_path, vocab, model):
    new_run(
        tmp_path / "run",
        RECIPE,
        vocab,
        {"data": "test", "src_lang": "en", "tgt_lang": "de"},
    )
    save_weights(
        model,
        tmp_path / "run/model.safetensors",
        weights_metadata(SIZES, "best on validation, step 1"),
    )
    return tmp_path / "run"


def child(work) -> int:
    "A process that does `work`, by its id."
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # forking with threads: the child only writes files
        pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(1)  # work() leaves by os._exit(0), or it failed


def same(a, b):
    return all(
        torch.equal(x, y)
        for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


# crashes


def test_killed_while_saving(tmp_path, vocab, model):
    "SIGKILL at random moments of a process that saves two models in turn: always one of the two is there, whole."
    other = build_transformer(SIZES, len(vocab), vocab.pad_id).eval()
    path, found = (
        tmp_path / "model.safetensors",
        build_transformer(SIZES, len(vocab), vocab.pad_id),
    )
    save_weights(model, path)
    rng = random.Random(0)

    def forever():
        while True:
            save_weights(other, path)
            save_weights(model, path)

    for _ in range(20):
        pid = child(forever)
        time.sleep(rng.uniform(0.002, 0.04))
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        load_weights(found, path)
        assert same(found, model) or same(found, other)


def test_reader_sees_old_or_new(tmp_path):
    path, old, new, bad = tmp_path / "f", b"o" * 200_000, b"n" * 300_000, []
    write_file(path, old)
    done = threading.Event()

    def read():
        while not done.is_set():
            if path.read_bytes() not in (old, new):
                bad.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(30):
        write_file(path, (new, old)[i % 2])
    done.set()
    reader.join()
    assert not bad


@pytest.mark.parametrize(
    "save",
    [
        lambda path, model: save_weights(model, path),
        lambda path, model: write_file(path, b"n" * 100_000),
    ],
    ids=["weights", "bytes"],
)
def test_full_disk(tmp_path, model, save):
    "No file may grow beyond a few bytes, as on a full disk: an OSError, the old file as it was, nothing beside it."
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            save(path, model)
        except OSError:
            os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(child(work), 0)[1]) == 0
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == [
        "model.safetensors"
    ]


def test_a_run_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    for at in count(
        1
    ):  # the fsync of config.json, of its folder, and of all that becomes the run
        calls = []

        def fails(handle, at=at, calls=calls):
            calls.append(1)
            if len(calls) == at:
                raise OSError("No space left on device")

        monkeypatch.setattr(os, "fsync", fails)
        try:
            create_run(tmp_path / "run", RECIPE, {})
        except OSError as e:
            assert (
                "run cannot be written: No space left on device" in str(e)
                and list(tmp_path.iterdir()) == []
            )
        else:
            break
    assert at > 4


def test_replacing_follows_links_and_leaves_other_files(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / ".real.1.part").touch()  # of somebody else
    write_file(tmp_path / "link", b"new")
    assert (
        (tmp_path / "link").is_symlink()
        and (tmp_path / "real").read_text() == "new"
        and (tmp_path / ".real.1.part").exists()
    )


def test_replacing_without_writing(tmp_path):
    with pytest.raises(FileNotFoundError):
        with replace_file(tmp_path / "f"):
            pass
    assert list(tmp_path.iterdir()) == []


# round trip


@pytest.mark.parametrize(
    "sizes",
    [
        SIZES,
        ModelConfig(
            n_layers=2, d_model=16, d_ff=8, n_heads=4, d_k=3, d_v=5, norm="pre"
        ),
        ModelConfig(
            n_layers=1, d_model=8, d_ff=8, n_heads=1, position="learned", n_positions=20
        ),
    ],
    ids=["post", "pre", "learned"],
)
def test_round_trip_to_the_bit(tmp_path, vocab, sizes):
    model = build_transformer(sizes, len(vocab), vocab.pad_id, dropout=0.1).eval()
    with torch.no_grad():  # numbers that are easily lost
        for i, p in enumerate(model.parameters()):
            p.view(-1)[0] = (0.0, -0.0, 1e-40, 3.4e38)[i % 4]
    recipe = Recipe(sizes, TrainConfig(max_len=19))
    new_run(
        tmp_path / "a/b/run", recipe, vocab, {"data": "ä\u2028ß", "n": 1, "none": None}
    )
    save_weights(model, tmp_path / "a/b/run/model.safetensors")
    found = load_run(tmp_path / "a/b/run")
    for name, weight in model.state_dict().items():
        assert (
            weight.numpy().tobytes() == found.model.state_dict()[name].numpy().tobytes()
        ), name
    assert (
        not found.model.training
        and found.recipe == recipe
        and found.vocab.model == vocab.model
    )
    assert {k: v for k, v in found.about.items() if k != "vocab_sha256"} == {
        "data": "ä\u2028ß",
        "n": 1,
        "none": None,
    }


def test_config_is_rewritten_with_what_became_known(run):
    recipe, about = read_config(run)
    write_config(run, recipe, {**about, "steps": 7})
    assert (
        read_config(run) == (recipe, {**about, "steps": 7})
        and load_run(run).about["steps"] == 7
    )


def test_recipes_survive(tmp_path):
    for name in ("tiny", "small", "base", "big"):
        create_run(tmp_path / name, get_recipe(name), {})
        assert read_config(tmp_path / name)[0] == get_recipe(name)


def test_weights_on_the_way_are_detached(tmp_path, model):
    save_weights(model, tmp_path / "w.safetensors")
    assert all(p.requires_grad for p in model.parameters())


# damage


def bytes_of(path, edit):
    path.write_bytes(edit(path.read_bytes()))


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("[]", "holds no JSON object"),
        ("1", "holds no JSON object"),
        ("null", "holds no JSON object"),
        ('{"format": 2}', "not of format 1"),
        ('{"format": "1"}', "not of format 1"),
        ('{"format": 1}', "not the settings of a recipe"),
        ('{"format": 1, "model": 3, "train": {}}', "not the settings of a recipe"),
        ('{"format": 1, "model": {}, "train": {}}', "is missing"),
    ],
)
def test_damaged_config(run, text, says):
    (run / "config.json").write_text(text)
    with pytest.raises(ValueError, match=says):
        load_run(run)


def rewritten(run, change):
    "Change the values of config.json."
    values = json.loads((run / "config.json").read_text())
    change(values)
    (run / "config.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    "part, name, value",
    [
        ("model", "n_heads", 0),
        ("train", "dropout", "0.1"),
        ("train", "seed", 1.5),
        ("model", "norm", "none"),
    ],
)
def test_wrong_settings(run, part, name, value):
    rewritten(run, lambda values: values[part].update({name: value}))
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        load_run(run)


# with an older run they had no effect
ADDED_LATER = {"bpe_dropout": 0, "init_gain": 1, "r_drop": 0}


def test_settings_that_an_older_version_did_not_have(run):
    def older(values):
        for name in ADDED_LATER:
            del values["train"][name]

    rewritten(run, older)
    train = load_run(run).recipe.train
    assert {name: getattr(train, name) for name in ADDED_LATER} == ADDED_LATER


@pytest.mark.parametrize(
    "part, name",
    [
        (part, name)
        for part, names in recipe_to_dict(RECIPE).items()
        for name in names
        if name not in ADDED_LATER
    ],
)
def test_missing_settings_are_refused(run, part, name):
    "A default could be another number than the one that the weights were trained with."
    rewritten(run, lambda values: values[part].pop(name))
    with pytest.raises(ValueError, match=f"{part}.{name} is missing"):
        load_run(run)


@pytest.mark.parametrize(
    "name, value", [("n_heads", 4), ("norm", "pre"), ("n_positions", 77), ("d_k", 8)]
)
def test_sizes_that_the_shapes_do_not_show(run, model, name, value):
    "The weights say which sizes they were trained with; those of older versions do not, and load as before."
    rewritten(run, lambda values: values["model"].update({name: value}))
    if name == "norm":  # for the same shapes, a final norm has to be there
        with pytest.raises(
            ValueError, match="norm='post', but config.json says norm='pre'"
        ):
            load_run(run)
        return
    with pytest.raises(
        ValueError,
        match=f"was trained with {name}=.*, but config.json says {name}={value!r}",
    ):
        load_run(run)
    save_weights(model, run / "model.safetensors")
    assert load_run(run).recipe.model.n_heads in (2, 4)


@pytest.mark.parametrize(
    "about",
    ["{", "[1]", "3", '{"model": 3}', '{"model": {"n_heads": [2]}}', "[" * 100_000],
)
def test_a_header_that_says_nonsense(run, model, about):
    save_file(model.state_dict(), run / "model.safetensors", {"about": about})
    try:
        load_run(run)
    except ValueError as e:
        assert "model.safetensors" in str(e)


def test_foreign_entries(run):
    "What a run holds, and what it does not, at any depth."
    path = save_checkpoint(
        run / "checkpoints", *new_training(0), Progress(RunPosition(3))
    )
    (run / "checkpoints/best.safetensors").touch()
    (run / "data").mkdir()
    (run / "data/train.src.ids").touch()
    (run / "tensorboard").mkdir()
    (run / "tensorboard/events.out.tfevents.1").touch()
    assert foreign_entries(run) == []
    more = [
        "checkpoints/notes.txt",
        f"checkpoints/{path.name}/extra",
        "data/mine",
        "data/mine/thesis.txt",
        "data/train.src.ids.bak",
        "diary.txt",
    ]
    (run / "data/mine").mkdir()
    for name in more:
        if not (run / name).exists():
            (run / name).touch()
    assert foreign_entries(run) == sorted(more)


def test_the_weights_know_better_than_config(run, model):
    "Two files cannot be replaced in one step: after a crash between them, what the weights say counts."
    recipe, about = read_config(run)
    write_config(run, recipe, about | {"weights": "average of 5 checkpoints"})
    assert load_run(run).about["weights"] == "best on validation, step 1"
    save_weights(model, run / "model.safetensors")
    assert load_run(run).about["weights"] == "average of 5 checkpoints"


def test_an_average_says_that_it_is_one(run, model):
    save_checkpoint(
        run / "checkpoints", model, adam(model.parameters()), Progress(RunPosition(3))
    )
    which = use_average(run, 1)
    assert (
        which
        == "average of 1 checkpoints, step-0000003 to step-0000003"
        == read_metadata(run / "model.safetensors")["weights"]
    )
    assert (
        read_config(run)[1]["weights"] == which
        and load_run(run).about["weights"] == which
    )


def test_config_that_is_no_text(run):
    (run / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match="config.json cannot be read"):
        load_run(run)


def test_sizes_that_fit_no_machine(run):
    bytes_of(
        run / "config.json",
        lambda data: data.replace(b'"d_ff": 32', b'"d_ff": 32000000000000000'),
    )
    with pytest.raises(
        ValueError, match="d_ff=32000000000000000 must be at least 1 and below"
    ):
        load_run(run)


def test_sizes_that_are_not_the_weights(run):
    "Refused before a model of that size is built: this one would take hundreds of gigabytes."
    bytes_of(
        run / "config.json",
        lambda data: data.replace(b'"d_ff": 32', b'"d_ff": 2000000000'),
    )
    with pytest.raises(
        ValueError,
        match="was trained with d_ff=32, but config.json says d_ff=2000000000",
    ):
        load_run(run)
    save_file(
        load_file(run / "model.safetensors"), run / "model.safetensors"
    )  # as the first edition wrote it, without its sizes
    with pytest.raises(
        ValueError,
        match=r"w_1.weight has shape \(32, 16\), this model needs \(2000000000, 16\)",
    ):
        load_run(run)


@pytest.mark.parametrize(
    "name, says",
    [
        ("config.json", "is not a run folder: it has no config.json"),
        ("vocab.model", "vocab.model"),
        ("model.safetensors", "has no model.safetensors"),
    ],
)
def test_missing_file(run, name, says):
    (run / name).unlink()
    with pytest.raises(ValueError, match=says):
        load_run(run)


def test_not_a_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="is not a run folder"):
            load_run(place)


def test_a_folder_in_the_place_of_a_file(run):
    for name in ("config.json", "vocab.model", "model.safetensors"):
        broken = run.with_name(f"broken-{name}")
        shutil.copytree(run, broken)
        (broken / name).unlink()
        (broken / name).mkdir()
        with pytest.raises(ValueError, match=name):
            load_run(broken)


def test_vocabulary_of_the_same_size_but_another(run, vocab):
    other = learn_bpe(["xyz xyz qqq", "jjj kkk www", "vvv uuu zzz yyy"], 300)
    bytes_of(run / "vocab.model", lambda data: other.model)
    with pytest.raises(
        ValueError, match="is not the vocabulary that this run was trained with"
    ):
        load_run(run)


def test_flipped_bits_in_the_vocabulary(run):
    good = (run / "vocab.model").read_bytes()
    for at in random.Random(0).sample(range(len(good)), 40):
        (run / "vocab.model").write_bytes(
            good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        )
        with pytest.raises(ValueError, match="vocab.model"):
            load_run(run)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_weights(model, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def target(vocab):
    return build_transformer(SIZES, len(vocab), vocab.pad_id)


@given(data=st.data())
def test_weights_cut_short_or_random(data, saved, target, tmp_path_factory):
    "Never a half-loaded model, never anything but a ValueError."
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    short, longer = (
        st.integers(0, len(saved) - 1).map(lambda n: saved[:n]),
        st.binary(min_size=1, max_size=20).map(lambda b: saved + b),
    )
    bad = data.draw(st.one_of(short, longer, st.binary(max_size=200)))
    path.write_bytes(bad)
    before = [w.clone() for w in target.state_dict().values()]
    with pytest.raises(
        ValueError, match="damaged.safetensors is not a readable safetensors file"
    ):
        load_weights(target, path)
    assert all(map(torch.equal, before, target.state_dict().values()))


def with_header(saved, edit):
    n = struct.unpack("<Q", saved[:8])[0]
    header = json.loads(saved[8 : 8 + n])
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + saved[8 + n :]


def swap_shape(header):
    header["embedding.weight"]["shape"].reverse()


def rename(header):
    header["stranger"] = header.pop("embedding.weight")


@pytest.mark.parametrize(
    "edit, says",
    [(swap_shape, "has shape"), (rename, "lacks the weight embedding.weight")],
)
def test_wrong_weights_change_nothing(saved, target, tmp_path, edit, says):
    path = tmp_path / "w.safetensors"
    path.write_bytes(with_header(saved, edit))
    before = [w.clone() for w in target.state_dict().values()]
    with pytest.raises(ValueError, match=says):
        load_weights(target, path)
    assert all(map(torch.equal, before, target.state_dict().values()))


def test_more_weights_than_the_model_has(tmp_path, vocab, target):
    save_weights(
        build_transformer(
            ModelConfig(n_layers=2, d_model=16, d_ff=32, n_heads=2),
            len(vocab),
            vocab.pad_id,
        ),
        tmp_path / "w.safetensors",
    )
    with pytest.raises(
        ValueError, match="has a weight .*layers.1.*, which this model has not"
    ):
        load_weights(target, tmp_path / "w.safetensors")


# places for a new run


def test_places(tmp_path, run):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    (tmp_path / "file").touch()
    check_new_run(tmp_path / "empty")
    check_new_run(tmp_path / "new/deep/er")
    refused = {
        run: "already holds a run",
        tmp_path / "full": "is not empty",
        tmp_path / "file": "file is a file",
        tmp_path / "file/run": "file is a file",
    }
    for place, says in refused.items():
        with pytest.raises(ValueError, match=says):
            check_new_run(place)


def test_refused_place_is_left_alone(run):
    before = {p: p.read_bytes() for p in run.iterdir() if p.is_file()}
    with pytest.raises(ValueError, match="already holds a run"):
        create_run(run, RECIPE, {})
    assert {p: p.read_bytes() for p in run.iterdir() if p.is_file()} == before


def test_a_run_begins_with_its_settings(tmp_path, vocab, model):
    create_run(tmp_path / "run", RECIPE, {"data": "test"})
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "checkpoints",
        "config.json",
    ]
    assert read_config(tmp_path / "run") == (RECIPE, {"data": "test"})
    with pytest.raises(ValueError, match="its training has not saved a model yet"):
        load_run(tmp_path / "run")
    write_file(tmp_path / "run/vocab.model", vocab.model)
    save_weights(model, tmp_path / "run/model.safetensors")
    with pytest.raises(
        ValueError, match="is not the vocabulary that this run was trained with"
    ):
        load_run(tmp_path / "run")
    write_config(tmp_path / "run", RECIPE, {"data": "test"})
    assert load_run(tmp_path / "run").about == {
        "data": "test",
        "vocab_sha256": sha256(tmp_path / "run/vocab.model"),
    }


# checkpoints: a small training whose steps depend on their numbers alone


def new_training(seed, n_layers=1, d_model=16, fused=True):
    torch.manual_seed(seed)
    model = build_transformer(
        ModelConfig(n_layers=n_layers, d_model=d_model, d_ff=32, n_heads=2),
        20,
        pad_id=0,
        dropout=0.3,
    )
    optimizer = (
        adam(model.parameters())
        if fused
        else torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
    )
    return model.train(), optimizer


class Objective(nn.Module):
    "The loss in one module, as the training loop has it: what is sliced over ranks must be made whole around all of it."

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, src, tgt):
        return (
            self.model.embedding.logits(self.model(src, tgt[:, :-1]))
            .log_softmax(-1)
            .gather(-1, tgt[:, 1:, None])
            .neg()
            .mean()
        )


def steps(model, optimizer, first, last, objective=None):
    objective, losses = objective or Objective(model), []
    for step in range(first, last + 1):
        torch.manual_seed(step)
        src, tgt = torch.randint(4, 20, (2, 4, 6))
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / step
        optimizer.zero_grad()
        loss = objective(src, tgt)
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


@pytest.fixture()
def folder(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture()
def third(folder, trained):
    return save_checkpoint(folder, *trained, Progress(RunPosition(3, i_batch=3)))


@pytest.mark.parametrize(
    "progress",
    [
        Progress(),
        Progress(RunPosition(3, 1, 2), 0.1 + 0.2, 1 / 3, 2, 1),
        Progress(RunPosition(10**7, 10**6, 10**9), 1e9, 5e-324, 10, 7),
    ],
)
def test_progress_survives(folder, trained, progress):
    path = save_checkpoint(folder, *trained, progress)
    assert (
        load_checkpoint(path, *trained) == progress
        and path.parent == folder
        and path.name == f"step-{progress.step:07d}"
    )
    assert sorted(p.name for p in path.iterdir()) == [
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert (
        "Infinity" not in (path / "state.json").read_text()
    )  # not JSON, though Python would read it


def test_state_json_of_the_first_edition(folder, trained):
    "Its numbers are flat, in this order, and `i_batch` is the next batch."
    progress = Progress(RunPosition(3, 1, 2), 0.5, 0.25, 2, 1)
    path = save_checkpoint(folder, *trained, progress)
    values = json.loads((path / "state.json").read_text())
    assert list(values.pop("sha256")) == ["model.safetensors", "optimizer.safetensors"]
    assert json.dumps(values) == (
        '{"format": 1, "step": 3, "epoch": 1, "i_batch": 2, "seconds": 0.5, '
        '"best_loss": 0.25, "best_step": 2, "n_worse": 1}'
    )


def test_checkpoint_round_trip_to_the_bit(folder):
    saved, found = new_training(0), new_training(1)
    steps(*saved, 1, 2)
    with torch.no_grad():  # numbers that are easily lost
        for i, tensor in enumerate(
            [
                *saved[0].parameters(),
                *(v for v in _optimizer_state(*saved).values() if v.dim()),
            ]
        ):
            tensor.view(-1)[0] = (0.0, -0.0, 1e-40, 3.4e38)[i % 4]
    load_checkpoint(save_checkpoint(folder, *saved, Progress(RunPosition(2))), *found)
    assert bits(*found) == bits(*saved)


@pytest.mark.parametrize("fused", [True, False])
def test_six_steps_are_three_and_three(folder, fused):
    "With dropout. What goes on is made of fresh objects; losses, weights and Adam's state are equal to the bit."
    whole, first, second = (new_training(seed, fused=fused) for seed in (0, 0, 1))
    losses = steps(*whole, 1, 6)
    assert steps(*first, 1, 3) == losses[:3]
    path = save_checkpoint(folder, *first, Progress(RunPosition(3)))
    assert steps(*second, load_checkpoint(path, *second).step + 1, 6) == losses[3:]
    assert bits(*second) == bits(*whole)


def test_from_the_very_beginning(folder):
    "A checkpoint of no steps at all: Adam remembers nothing, and that is remembered."
    whole, first, second = new_training(0), new_training(0), new_training(1)
    steps(*second, 1, 2)  # what it remembered is to be forgotten
    load_checkpoint(save_checkpoint(folder, *first, Progress()), *second)
    assert steps(*second, 1, 3) == steps(*whole, 1, 3) and bits(*second) == bits(*whole)


def test_two_that_load_share_nothing(third, trained):
    one, two, before = (
        new_training(1),
        new_training(2),
        sha256(third / "optimizer.safetensors"),
    )
    load_checkpoint(third, *one)
    load_checkpoint(third, *two)
    steps(*one, 4, 5)
    assert (
        bits(*two) == bits(*trained) != bits(*one)
        and sha256(third / "optimizer.safetensors") == before
    )


def test_what_is_given_is_not_kept(trained, tmp_path):
    "Two that are given one and the same state, where `Optimizer.load_state_dict` by itself would keep the tensors."
    given, one, two = _optimizer_state(*trained), new_training(1), new_training(2)
    for model, optimizer in (one, two):
        optimizer.load_state_dict(
            optimizer.state_dict()
            | {"state": _matched_state(tmp_path, given, 3, model, optimizer)}
        )
    steps(*one, 4, 5)
    for others in (two, trained):
        assert all(map(torch.equal, given.values(), _optimizer_state(*others).values()))
    assert not any(
        one_has is of_given
        for one_has, of_given in zip(
            _optimizer_state(*one).values(), given.values(), strict=True
        )
    )


def test_frozen_weights(folder):
    "Weights that the optimiser does not move are saved with the model, and Adam remembers nothing of them."

    def training(seed):
        model, _ = new_training(seed)
        return model, adam(
            p for name, p in model.named_parameters() if name != "embedding.weight"
        )

    saved, found = training(0), training(1)
    steps(*saved, 1, 2)
    path = save_checkpoint(folder, *saved, Progress(RunPosition(2)))
    assert not any("embedding" in name for name in load_file(path / ADAM))
    load_checkpoint(path, *found)
    assert bits(*found) == bits(*saved)
    all_of_it = new_training(1)  # one that moves the embedding too, from now on
    load_checkpoint(path, *all_of_it)
    assert (
        bits(*all_of_it) == bits(*saved)
        and all_of_it[0].embedding.weight not in all_of_it[1].state
    )
    steps(*all_of_it, 3, 3)
    with pytest.raises(ValueError, match=r"has a weight \w+.embedding.weight, which"):
        load_checkpoint(
            save_checkpoint(folder, *all_of_it, Progress(RunPosition(3))), *found
        )
    with pytest.raises(
        ValueError, match="the optimizer moves weights that the model has not"
    ):
        save_checkpoint(folder, saved[0], found[1], Progress(RunPosition(3)))


def test_order_of_the_weights_does_not_matter(third):
    "Adam's state is kept by name: an optimiser that was given its weights in another order, and in two groups, gets the same."
    plain, other = new_training(1), new_training(1)
    last_first = list(other[0].parameters())[::-1]
    load_checkpoint(third, *plain)
    optimizer = torch.optim.Adam(
        [{"params": last_first[:5]}, {"params": last_first[5:]}],
        betas=(0.9, 0.98),
        eps=1e-9,
        fused=True,
    )
    load_checkpoint(third, other[0], optimizer)
    assert steps(*plain, 4, 5) == steps(other[0], optimizer, 4, 5) and bits(
        *plain
    ) == bits(other[0], optimizer)


# optimisers other than Adam


class CountsInPython(torch.optim.Optimizer):
    "Its state are Python numbers and a tensor of another shape than the weight."

    def __init__(self, params):
        super().__init__(params, {"lr": 0.0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state |= {
                        "n": 0,
                        "decayed": 1.0,
                        "even": True,
                        "nothing": None,
                        "lengths": torch.zeros(2),
                    }
                state["n"] += 1
                state["decayed"] /= 3
                state["even"] = not state["even"]
                state["lengths"] = 0.5 * state["lengths"] + torch.stack(
                    [p.norm(), p.grad.norm()]
                )
                p.sub_(
                    p.grad,
                    alpha=group["lr"]
                    * state["decayed"]
                    / state["n"]
                    * (1 + state["even"] + state["lengths"].sum().item()),
                )


OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params),
    "SGD, momentum": lambda params: torch.optim.SGD(
        params, momentum=0.9, dampening=0.5
    ),
    "SGD, momentum, fused": lambda params: torch.optim.SGD(
        params, momentum=0.9, nesterov=True, fused=True
    ),
    "AdamW": lambda params: torch.optim.AdamW(params),
    "AdamW, fused": lambda params: torch.optim.AdamW(params, fused=True),
    "Adam, amsgrad": lambda params: torch.optim.Adam(params, amsgrad=True),
    "RMSprop": lambda params: torch.optim.RMSprop(params, momentum=0.5, centered=True),
    "Adagrad": lambda params: torch.optim.Adagrad(params),
    "Adafactor": lambda params: torch.optim.Adafactor(params),
    "NAdam": lambda params: torch.optim.NAdam(params),
    "Rprop": lambda params: torch.optim.Rprop(params),
    "ASGD": lambda params: torch.optim.ASGD(params),
    "Python numbers": CountsInPython,
}


def other_training(seed, kind):
    model, _ = new_training(seed)
    return model, OPTIMIZERS[kind](model.parameters())


def numbers(optimizer):
    "The state's Python numbers, exactly, and the types of everything."
    return [
        {
            key: (type(value), None if isinstance(value, torch.Tensor) else value)
            for key, value in state.items()
            if value is not None
        }
        for state in optimizer.state_dict()["state"].values()
    ]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_any_optimiser_goes_on(folder, kind):
    "Three steps, a checkpoint, three steps of fresh objects: losses, weights and state of six steps, to the bit."
    whole, first, second = (other_training(seed, kind) for seed in (0, 0, 1))
    losses = steps(*whole, 1, 6)
    assert steps(*first, 1, 3) == losses[:3]
    path = save_checkpoint(folder, *first, Progress(RunPosition(3)))
    assert steps(*second, load_checkpoint(path, *second).step + 1, 6) == losses[3:]
    assert bits(*second) == bits(*whole) and numbers(second[1]) == numbers(whole[1])
    assert sha256(
        save_checkpoint(folder, *whole, Progress(RunPosition(6))) / ADAM
    ) == sha256(save_checkpoint(folder, *second, Progress(RunPosition(7))) / ADAM)


@pytest.mark.parametrize(
    "kind", [kind for kind in OPTIMIZERS if kind != "SGD, momentum, fused"]
)  # PyTorch's fused SGD cannot
def test_weights_without_a_gradient_yet(folder, kind):
    "Of weights that did not take part in the first three steps nothing is stored, and they begin at the fourth as if nothing had happened."

    def late(model, optimizer, first, last):
        model.decoder.requires_grad_(first > 3)
        return steps(model, optimizer, first, last)

    whole, first, second = (other_training(seed, kind) for seed in (0, 0, 1))
    losses = late(*whole, 1, 3) + late(*whole, 4, 6)
    assert late(*first, 1, 3) == losses[:3]
    path = save_checkpoint(folder, *first, Progress(RunPosition(3)))
    if kind != "Adagrad":
        assert not any(
            ".decoder." in name for name in load_file(path / ADAM)
        )  # its constructor makes the state
    load_checkpoint(path, *second)
    assert late(*second, 4, 6) == losses[3:] and bits(*second) == bits(*whole)


def first_edition_state(model, optimizer):
    "optimizer.safetensors as the first edition wrote it: Adam alone, zeros for weights without a gradient yet."
    tensors = {}
    for name, weight in model.named_parameters():
        zeros = {
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
            "step": torch.zeros(()),
        }
        mine = optimizer.state.get(weight) or zeros
        tensors |= {
            f"{key}.{name}": mine[key].detach()
            for key in ("exp_avg", "exp_avg_sq", "step")
        }
    return tensors


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("n_steps", [0, 3])
def test_checkpoints_of_the_first_edition(folder, n_steps, fused):
    "They load, and go on to the bit, and a new checkpoint of the same training has the same names."
    whole, first, second = (new_training(seed, fused=fused) for seed in (0, 0, 1))
    losses, state = steps(*whole, 1, 6), steps(*first, 1, n_steps)
    path = save_checkpoint(folder, *first, Progress(RunPosition(n_steps)))
    state = first_edition_state(*first)
    if n_steps:
        assert load_file(path / ADAM).keys() == state.keys()
    save_file(state, path / ADAM)
    sign_again(path)
    assert load_checkpoint(path, *second).step == n_steps
    assert steps(*second, n_steps + 1, 6) == losses[n_steps:] and bits(*second) == bits(
        *whole
    )


def test_settings_are_not_the_checkpoints(folder):
    "Learning rate, momentum and the like are those of the optimiser that is given."
    first = other_training(0, "SGD, momentum")
    steps(*first, 1, 2)
    path = save_checkpoint(folder, *first, Progress(RunPosition(2)))
    model, _ = new_training(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=7.0, momentum=0.3)
    load_checkpoint(path, model, optimizer)
    assert [
        (g["lr"], g["momentum"], g["dampening"]) for g in optimizer.param_groups
    ] == [(7.0, 0.3, 0)]


@pytest.mark.parametrize(
    "saved, loaded, says",
    [
        ("SGD", "AdamW", "lacks the weight step.encoder"),
        (
            "SGD, momentum",
            "SGD",
            "has a weight momentum_buffer.*, which this model has not",
        ),
        ("SGD, momentum", "RMSprop", "lacks the weight step.encoder"),
        ("AdamW", "Adam, amsgrad", "lacks the weight max_exp_avg_sq.encoder"),
        ("Adam, amsgrad", "AdamW", "has a weight max_exp_avg_sq"),
        ("Adafactor", "Adagrad", "has a weight|lacks the weight sum"),
        ("Adagrad", "Adafactor", "has a weight|lacks the weight row_var"),
    ],
)
def test_state_of_another_optimiser(folder, saved, loaded, says):
    "A ValueError, and neither the model nor the optimiser is changed: fresh ones, and ones that have made a step."
    first = other_training(0, saved)
    steps(*first, 1, 2)
    path = save_checkpoint(folder, *first, Progress(RunPosition(2)))
    for n_steps in (0, 1):
        second = other_training(1, loaded)
        steps(*second, 1, n_steps)
        before = bits(*second)
        with pytest.raises(ValueError, match=f"{ADAM} ({says})"):
            load_checkpoint(path, *second)
        assert bits(*second) == before


def test_misshapen_state_of_any_optimiser(folder):
    first, second = (other_training(seed, "Adafactor") for seed in (0, 1))
    steps(*first, 1, 1)
    path = save_checkpoint(folder, *first, Progress(RunPosition(1)))
    tensors_of(ADAM, lambda t: t.update({"row_var." + EMBEDDING: torch.ones(1, 20)}))(
        path
    )
    with pytest.raises(
        ValueError,
        match=r"row_var.embedding.weight has shape \(1, 20\), this model needs \(20, 1\)",
    ):
        load_checkpoint(path, *second)
    assert not second[1].state


def test_state_that_no_checkpoint_holds(folder):
    "L-BFGS keeps lists of earlier gradients: refused when it is saved, and nothing is written."
    model, _ = new_training(0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = Objective(model)(*torch.randint(4, 20, (2, 4, 6)))
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(
        ValueError,
        match="LBFGS keeps old_dirs as list: a checkpoint holds tensors and numbers of single weights only",
    ):
        save_checkpoint(folder, model, optimizer, Progress(RunPosition(1)))
    assert list(folder.iterdir()) == []
    model, optimizer = new_training(0)
    optimizer.state["of all weights"] = {"n": 1}
    with pytest.raises(
        ValueError,
        match="Adam keeps n as int: a checkpoint holds .* of single weights only",
    ):
        save_checkpoint(folder, model, optimizer, Progress(RunPosition(1)))
    with pytest.raises(
        ValueError,
        match="LBFGS cannot go on from a checkpoint, a step on zeros fails: .*closure",
    ):
        list(_expected_state(torch.optim.LBFGS(model.parameters())))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_expecting_changes_nothing(kind):
    "Weights, gradients, state and settings stay, also under a scheduler, which puts a step of its own in the place of the optimiser's."
    training = model, optimizer = other_training(0, kind)
    Objective(model)(*torch.randint(4, 20, (2, 4, 6))).backward()
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5)
    before, grads, groups = (
        bits(*training),
        [p.grad.clone() for p in model.parameters()],
        str(optimizer.state_dict()["param_groups"]),
    )
    numbers = torch.get_rng_state()
    expected = list(_expected_state(optimizer))
    assert bits(*training) == before and all(
        map(torch.equal, grads, (p.grad for p in model.parameters()))
    )
    assert str(optimizer.state_dict()["param_groups"]) == groups and torch.equal(
        torch.get_rng_state(), numbers
    )
    assert all(
        value.is_meta
        for state in expected
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )
    optimizer.step()
    schedule.step()

    def seen(states):
        return [
            {
                key: (type(value), getattr(value, "shape", None))
                for key, value in of.items()
                if value is not None
            }
            for of in states
        ]

    assert seen(expected) == seen(
        optimizer.state.get(p, {}) for p in model.parameters()
    )


# two processes, each with a slice of every tensor. The forks come before there are any threads.
SLICED = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.fsdp
torch.set_num_threads(1)
from annotated_transformer.data.batch import RunPosition
from annotated_transformer.runs.checkpoint import Progress, load_checkpoint, _optimizer_state, save_checkpoint
from annotated_transformer.runs.weights import gather_tensors, save_weights
from annotated_transformer.training.distributed import data_parallel, shard
from annotated_transformer.training.optimizer import adam
from safetensors.torch import load_file
from test_checkpoint import OPTIMIZERS, Objective, new_training, steps

folder = Path(sys.argv[1])

def sliced(seed, optimizer=adam, whole=False):
    model, _ = new_training(seed)
    objective = Objective(model)
    layers = [*model.encoder.layers, *model.decoder.layers]
    parallel = data_parallel(objective, torch.device("cpu")) if whole else shard(objective, layers)
    return (model, optimizer(model.parameters())), parallel

def everything(model, optimizer): return gather_tensors(model.state_dict()) | gather_tensors(_optimizer_state(model, optimizer))

def slices(model, optimizer):
    tensors = [*model.state_dict().values(), *_optimizer_state(model, optimizer).values()]
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]

def work(rank):
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=rank, world_size=2)
    (whole, objective), (first, its_objective), (second, other_objective) = sliced(0), sliced(0), sliced(1)
    load_checkpoint(folder / "step-0000003", *second)  # written by one process
    found = everything(*second)
    wanted = load_file(folder / "step-0000003/model.safetensors") | load_file(folder / "step-0000003/optimizer.safetensors")
    if rank == 0: assert found.keys() == wanted.keys() and all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    else: assert found == {}
    losses = steps(*whole, 1, 6, objective)
    assert steps(*first, 1, 3, its_objective) == losses[:3]
    path = save_checkpoint(folder, *first, Progress(RunPosition(10)))
    assert (path is None) == (rank == 1)
    save_weights(first[0], folder / "sliced.safetensors")
    dist.barrier()
    assert load_checkpoint(folder / "step-0000010", *second).step == 10
    assert steps(*second, 4, 6, other_objective) == losses[3:]
    assert all(map(torch.equal, slices(*whole), slices(*second)))
    others = ["SGD, momentum", "Adam, amsgrad", "NAdam", "Adagrad"]
    for i, (optimizer, whole) in enumerate([(adam, True), *((OPTIMIZERS[kind], False) for kind in others)]):
        straight, first, second = (sliced(seed, optimizer, whole) for seed in (0, 0, 1))
        losses = steps(*straight[0], 1, 6, straight[1])
        assert steps(*first[0], 1, 3, first[1]) == losses[:3]
        save_checkpoint(folder, *first[0], Progress(RunPosition(20 + i)))
        dist.barrier()
        load_checkpoint(folder / f"step-{20 + i:07d}", *second[0])
        assert steps(*second[0], 4, 6, second[1]) == losses[3:]
        assert all(map(torch.equal, slices(*straight[0]), slices(*second[0])))
    first, objective = sliced(0, OPTIMIZERS["Adafactor"])
    try: load_checkpoint(folder / "step-0000004", *first)
    except ValueError as e: assert "cannot be sharded like its weight" in str(e), e
    else: raise AssertionError("a factor of a state was sharded")
    assert not first[1].state
    dist.barrier()
    os._exit(0)

ranks = [os.fork() or work(rank) for rank in (0, 1)]
sys.exit(sum(os.waitpid(pid, 0)[1] for pid in ranks) and 1)
"""


def alone(program, folder) -> str:
    "What a program of its own process prints."
    done = subprocess.run(
        [sys.executable, "-c", program, folder],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_any_number_of_processes(folder, third, trained):
    "Saved by one, loaded by two that hold slices; three steps and three on two are six on two; saved by two, loaded by one, to the bit."
    factored = other_training(0, "Adafactor")
    steps(*factored, 1, 3)
    save_checkpoint(folder, *factored, Progress(RunPosition(4)))
    alone(SLICED, folder)
    training, path = new_training(1), folder / "step-0000010"
    load_checkpoint(path, *training)
    again = save_checkpoint(folder, *training, Progress(RunPosition(11)))
    for name in (MODEL, ADAM):
        assert sha256(again / name) == sha256(path / name)
    assert sha256(folder / "sliced.safetensors") == sha256(path / MODEL)


# damaged checkpoints


def sign_again(path):
    "Make the fingerprints fit the files, as somebody would who edits a checkpoint."
    values = json.loads((path / "state.json").read_text())
    values["sha256"] = {name: sha256(path / name) for name in values["sha256"]}
    (path / "state.json").write_text(json.dumps(values))


def tensors_of(name, edit):
    def damage(path):
        tensors = {
            key: tensor.clone() for key, tensor in load_file(path / name).items()
        }
        edit(tensors)
        save_file(tensors, path / name)
        sign_again(path)

    return damage


def swap(key, new):
    return lambda tensors: tensors.update({new: tensors.pop(key)})


def state(edit):
    return lambda path: (path / "state.json").write_text(
        json.dumps(edit(json.loads((path / "state.json").read_text())))
    )


def cut(name):
    return lambda path: bytes_of(path / name, lambda data: data[:-1])


def without(name):
    return lambda path: (path / name).unlink()


def text(data):
    return lambda path: (path / "state.json").write_text(data)


MODEL, ADAM, STATE, EMBEDDING = (
    "model.safetensors",
    "optimizer.safetensors",
    "state.json",
    "embedding.weight",
)
DAMAGE = {
    "weights missing": (without(MODEL), MODEL, "no such file"),
    "weights cut": (cut(MODEL), MODEL, "not a readable safetensors file"),
    "weights of another step": (
        lambda path: save_file(
            {k: v + 1 for k, v in load_file(path / MODEL).items()}, path / MODEL
        ),
        MODEL,
        "SHA-256",
    ),
    "a weight missing": (
        tensors_of(MODEL, lambda t: t.pop(EMBEDDING)),
        MODEL,
        "lacks the weight embedding.weight",
    ),
    "a weight too many": (
        tensors_of(MODEL, lambda t: t.update(more=torch.ones(1))),
        MODEL,
        "has a weight more",
    ),
    "a weight misshapen": (
        tensors_of(
            MODEL, lambda t: t.update({EMBEDDING: t[EMBEDDING].t().contiguous()})
        ),
        MODEL,
        r"has shape \(16, 20\)",
    ),
    "optimiser missing": (without(ADAM), ADAM, "no such file"),
    "optimiser cut": (cut(ADAM), ADAM, "not a readable safetensors file"),
    "optimiser empty": (
        tensors_of(ADAM, dict.clear),
        ADAM,
        "lacks the weight step.encoder",
    ),
    "a square missing": (
        tensors_of(ADAM, lambda t: t.pop("exp_avg_sq." + EMBEDDING)),
        ADAM,
        "lacks the weight exp_avg_sq.embedding.weight",
    ),
    "a count missing": (
        tensors_of(ADAM, lambda t: t.pop("step." + EMBEDDING)),
        ADAM,
        "lacks the weight step.embedding.weight",
    ),
    "a count for each number": (
        tensors_of(ADAM, lambda t: t.update({"step." + EMBEDDING: torch.ones(20, 16)})),
        ADAM,
        r"needs \(\)",
    ),
    "another name": (
        tensors_of(ADAM, swap("exp_avg." + EMBEDDING, "exp_avg.x")),
        ADAM,
        "lacks the weight exp_avg.embedding.weight",
    ),
    "an average misshapen": (
        tensors_of(
            ADAM, lambda t: t.update({"exp_avg." + EMBEDDING: torch.ones(16, 20)})
        ),
        ADAM,
        r"has shape \(16, 20\)",
    ),
    "state missing": (without(STATE), STATE, "no such file"),
    "state empty": (text(""), STATE, "cannot be read"),
    "state cut": (text('{"format": 1, "step"'), STATE, "cannot be read"),
    "state too deep": (text("[" * 100_000), STATE, "cannot be read"),
    "state a list": (text("[1]"), STATE, "holds no JSON object"),
    "state of another format": (
        state(lambda v: v | {"format": 2}),
        STATE,
        "not of format 1",
    ),
    "no step": (
        state(lambda v: {k: x for k, x in v.items() if k != "step"}),
        STATE,
        "step='nothing' must be a number",
    ),
    "step a text": (
        state(lambda v: v | {"step": "3"}),
        STATE,
        "step='3' must be a number",
    ),
    "step true": (
        state(lambda v: v | {"step": True}),
        STATE,
        "step=True must be a number",
    ),
    "step a fraction": (
        state(lambda v: v | {"step": 3.0}),
        STATE,
        "step=3.0 must be a number, 0 or more, without a fraction",
    ),
    "epoch negative": (
        state(lambda v: v | {"epoch": -1}),
        STATE,
        "epoch=-1 must be a number, 0 or more",
    ),
    "seconds no number": (
        state(lambda v: v | {"seconds": math.nan}),
        STATE,
        "cannot be read as JSON: NaN is no finite number",
    ),
    "seconds null": (
        state(lambda v: v | {"seconds": None}),
        STATE,
        "seconds=None must be a number",
    ),
    "no best loss": (
        state(lambda v: {k: x for k, x in v.items() if k != "best_loss"}),
        STATE,
        "best_loss='nothing' must be",
    ),
    "no fingerprints": (
        state(lambda v: v | {"sha256": 3}),
        STATE,
        "lacks the fingerprints",
    ),
    "one fingerprint": (
        state(lambda v: v | {"sha256": {MODEL: v["sha256"][MODEL]}}),
        ADAM,
        "SHA-256",
    ),
}


@pytest.mark.parametrize("damage, name, says", DAMAGE.values(), ids=DAMAGE)
def test_damaged_checkpoint(third, damage, name, says):
    "A ValueError that names the file; model and optimiser stay what they were."
    damage(third)
    training = new_training(1)
    steps(*training, 1, 1)
    before = bits(*training)
    with pytest.raises(ValueError, match=says) as error:
        load_checkpoint(third, *training)
    assert str(third / name) in str(error.value) and "\n" not in str(error.value)
    assert bits(*training) == before


def test_a_flipped_bit_is_found(third, trained):
    before, rng = bits(*trained), random.Random(0)
    for name in (MODEL, ADAM):
        good = (third / name).read_bytes()
        for at in rng.sample(range(len(good)), 20):
            (third / name).write_bytes(
                good[:at] + bytes([good[at] ^ 1 << rng.randrange(8)]) + good[at + 1 :]
            )
            with pytest.raises(ValueError, match=name):
                load_checkpoint(third, *trained)
        (third / name).write_bytes(good)
    assert bits(*trained) == before


def test_checkpoint_of_another_model(third):
    for sizes in ({"n_layers": 2}, {"d_model": 8}):
        training = new_training(0, **sizes)
        with pytest.raises(ValueError, match=f"{MODEL}.*this model needs"):
            load_checkpoint(third, *training)


def test_not_a_checkpoint(tmp_path, trained):
    for place in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="state.json: no such file"):
            load_checkpoint(place, *trained)


# which there are, which go


def test_names_that_are_no_checkpoints(folder, trained):
    (folder / ".step-0000004.77.part").mkdir()
    (folder / ".step-0000004.77.part/model.safetensors").write_bytes(b"half")
    (folder / ".best.safetensors.77.part").write_bytes(b"half")
    for name in ("step-5", "step-0000006.x", "step-0000006.part", "old-step-0000007"):
        (folder / name).mkdir()
    for name in ("step-0000008", "best.safetensors"):
        (folder / name).write_bytes(b"")
    assert checkpoints(folder) == [] and latest(folder) is None
    path = save_checkpoint(folder, *trained, Progress(RunPosition(3)))
    assert checkpoints(folder) == [path] and latest(folder) == path
    assert len(list(folder.glob(".*"))) == 2, "nothing shows that these are ours"
    assert (folder / "best.safetensors").exists() and (folder / "step-5").exists()


def test_order_is_that_of_the_numbers(folder):
    for name in (
        "step-10000000",
        "step-0000020",
        "step-9999999",
        "step-0000003.10",
        "step-0000003.2",
        "step-0000003",
    ):
        (folder / name).mkdir()
    assert [p.name for p in checkpoints(folder)] == [
        "step-0000003.10",
        "step-0000020",
        "step-9999999",
        "step-10000000",
    ]


def test_no_checkpoints_without_their_folder(tmp_path):
    assert checkpoints(tmp_path / "none") == [] and latest(tmp_path / "none") is None


@pytest.mark.parametrize("keep_last", [1, 2, 3, 5])
def test_prune(folder, trained, keep_last):
    saved = [
        save_checkpoint(folder, *trained, Progress(RunPosition(step)))
        for step in (1, 2, 3, 4)
    ]
    again = save_checkpoint(folder, *trained, Progress(RunPosition(3), seconds=1.0))
    _prune(folder, keep_last)
    kept = [saved[0], saved[1], again, saved[3]][-keep_last:]
    assert checkpoints(folder) == kept and set(folder.iterdir()) == set(kept)
    assert [path for path in kept if (path / ADAM).exists()] == kept[-2:] and all(
        (path / MODEL).exists() for path in kept
    )
    assert latest(folder) == saved[3]
    _prune(folder, keep_last)
    assert checkpoints(folder) == kept


def test_prune_keeps_at_least_one(folder, third):
    with pytest.raises(ValueError, match="keep_last=0 must be at least 1"):
        _prune(folder, 0)
    assert checkpoints(folder) == [third]


def test_killed_while_pruning(folder, trained, monkeypatch):
    "Removing a folder stops half-way: what is left of it is no checkpoint."
    old, new = (
        save_checkpoint(folder, *trained, Progress(RunPosition(step)))
        for step in (1, 2)
    )

    def half(left, ignore_errors):
        next(left.rglob(MODEL)).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", half)
    with pytest.raises(KeyboardInterrupt):
        _prune(folder, 1)
    assert checkpoints(folder) == [new] and not old.exists()


def test_the_newest_that_can_be_gone_on_from(folder, trained):
    first, second = (
        save_checkpoint(folder, *trained, Progress(RunPosition(step)))
        for step in (1, 2)
    )
    (second / ADAM).unlink()
    assert latest(folder) == first


def test_saved_twice_counts_the_second(folder, trained, third):
    again = save_checkpoint(folder, *trained, Progress(RunPosition(3), n_worse=1))
    assert (
        again.name == "step-0000003.1"
        and latest(folder) == again
        and load_checkpoint(again, *trained).n_worse == 1
    )
    assert load_checkpoint(third, *trained).n_worse == 0
    _prune(folder, 1)
    assert (
        save_checkpoint(folder, *trained, Progress(RunPosition(3))).name
        == "step-0000003.2"
    )


# averages and second names


def test_average_is_the_mean(folder):
    "In double precision, whatever the order: the same to the bit as PyTorch's mean of the stacked weights, rounded once."
    training, paths = new_training(0), []
    for step in range(1, 6):
        steps(*training, step, step)
        paths.append(
            save_checkpoint(folder, *training, Progress(RunPosition(step))) / MODEL
        )
    files = [load_file(path) for path in paths]
    for chosen in (paths, paths[::-1]):
        mean = average_weights(chosen)
        assert mean.keys() == training[0].state_dict().keys()
        for name, weight in mean.items():
            # adding doubles in another order may differ in the 53rd bit, and so in the 24th after rounding
            torch.testing.assert_close(
                weight,
                torch.stack([f[name].double() for f in files]).mean(0).float(),
                rtol=2**-23,
                atol=0,
            )
    _prune(folder, 5)
    assert all(
        map(torch.equal, average_weights(paths[:1]).values(), files[0].values())
    )  # without its optimiser, and of one: itself


def test_average_refuses(folder, trained, third):
    other = (
        save_checkpoint(folder, *new_training(0, n_layers=2), Progress(RunPosition(4)))
        / MODEL
    )
    with pytest.raises(
        ValueError, match="step-0000004/model.safetensors has a weight .*layers.1"
    ):
        average_weights([third / MODEL, other])
    with pytest.raises(ValueError, match="no checkpoints to average"):
        average_weights([])
    cut(MODEL)(third)
    with pytest.raises(
        ValueError, match="step-0000003/model.safetensors is not a readable"
    ):
        average_weights([other, third / MODEL])


def test_copy_file(tmp_path):
    "A copy, since others may write into either in place; and at once."
    source, target = tmp_path / "best", tmp_path / "model"
    source.write_bytes(b"best")
    target.write_bytes(b"older")
    copy_file(source, target)
    copy_file(source, target)
    assert target.read_bytes() == b"best" and not target.samefile(source)
    target.write_bytes(b"newer")
    assert source.read_bytes() == b"best" and sorted(
        p.name for p in tmp_path.iterdir()
    ) == ["best", "model"]
    with pytest.raises(OSError, match="model cannot be written"):
        copy_file(tmp_path / "none", target)
    assert target.read_bytes() == b"newer" and sorted(
        p.name for p in tmp_path.iterdir()
    ) == ["best", "model"]


# crashes and full disks


@pytest.mark.parametrize(
    "ruin",
    [
        lambda *both: both[0].embedding.weight,
        lambda *both: _optimizer_state(*both)["exp_avg_sq.embedding.weight"],
    ],
    ids=["weights", "optimiser"],
)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite(folder, ruin, value):
    training = new_training(0)
    steps(*training, 1, 1)
    with torch.no_grad():
        ruin(*training)[3, 3] = value
    with pytest.raises(
        ValueError, match="embedding.weight holds numbers that are not finite"
    ):
        save_checkpoint(folder, *training, Progress(RunPosition(1)))
    assert list(folder.iterdir()) == []


def test_every_flush_may_fail(folder, trained, third, monkeypatch):
    "Three files, their folder, the folder above it: an error in any leaves the older checkpoint, and the new one whole or not there."
    flushed = os.fsync

    def failing(at):
        calls = []

        def fsync(handle):
            calls.append(handle)
            if len(calls) == at:
                raise OSError(28, "No space left on device")
            flushed(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        with pytest.raises(
            OSError, match="step-0000004 cannot be written: .*No space left"
        ) as error:
            save_checkpoint(folder, *trained, Progress(RunPosition(4)))
        assert (
            "\n" not in str(error.value)
            and list(folder.glob(".*")) == []
            and len(calls) == at
        )
        return checkpoints(folder)

    for at in (1, 2, 3, 4):
        assert failing(at) == [third]
    for path in failing(5):
        load_checkpoint(
            path, *trained
        )  # the last: the new one has its name, and the disk may not have heard of it yet


def refused_or_whole(folder, training, step) -> str:
    "Save on a disk that may be full: what was said, or nothing. What was there before is there still, and loads."
    before = checkpoints(folder)
    try:
        save_checkpoint(folder, *training, Progress(RunPosition(step)))
    except OSError as e:
        said = str(e)
        assert checkpoints(folder) == before and list(folder.glob(".*")) == []
        assert str(folder / f"step-{step:07d}") in said and "\n" not in said
    else:
        said = ""
    for path in checkpoints(folder):
        load_checkpoint(path, *training)
    return said


def test_files_may_not_grow(folder, trained, third):
    "A limit on the size of files, in another process: for the weights, for Adam's state, for neither."
    sizes = {name: (third / name).stat().st_size for name in (MODEL, ADAM)}

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for limit, says in (
            (sizes[ADAM] - 1, True),
            (sizes[MODEL] - 1, True),
            (0, True),
        ):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            if not (says and "File too large" in refused_or_whole(folder, trained, 4)):
                os._exit(2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (sizes[ADAM], resource.RLIM_INFINITY))
        os._exit(3 if refused_or_whole(folder, trained, 4) else 0)

    assert os.waitstatus_to_exitcode(os.waitpid(child(work), 0)[1]) == 0
    assert [p.name for p in checkpoints(folder)] == ["step-0000003", "step-0000004"]


@pytest.fixture()
def small_disk(tmp_path):
    "A disk of one megabyte, in memory."
    if os.geteuid() != 0:
        pytest.skip(
            "needs root, to mount a small disk: test_files_may_not_grow stands in for it"
        )
    (tmp_path / "disk").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path / "disk"],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield tmp_path / "disk"
    subprocess.run(["umount", "-l", tmp_path / "disk"], check=True)


def test_full_disk_for_real(small_disk, trained):
    "With no room at all, with room for less than the weights, than Adam's state, than state.json; then with room."
    first = save_checkpoint(small_disk, *trained, Progress(RunPosition(1)))
    sizes = {name: (first / name).stat().st_size for name in (MODEL, ADAM)}
    filler, said = small_disk / "filler", []
    for room in (
        0,
        sizes[MODEL] // 2,
        sizes[MODEL] + sizes[ADAM] // 2,
        sizes[MODEL] + sizes[ADAM] - 4096,
        2 * (sizes[MODEL] + sizes[ADAM]),
    ):
        filler.write_bytes(b"")
        filler.write_bytes(bytes(shutil.disk_usage(small_disk).free - room))
        said.append(refused_or_whole(small_disk, trained, 2))
    assert (
        all("No space left on device" in text for text in said[:-1]) and said[-1] == ""
    )
    assert [p.name for p in checkpoints(small_disk)] == ["step-0000001", "step-0000002"]


# A process that trains, saves and prunes without a pause, is killed at random moments, and goes on from what it finds: in a process of
# its own, which makes no gradient before the last fork. PyTorch's threads would not survive a fork.
KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from annotated_transformer.data.batch import RunPosition
from annotated_transformer.runs.checkpoint import Progress, checkpoints, latest, load_checkpoint, _prune, save_checkpoint
from annotated_transformer.runs.weights import load_weights
from test_checkpoint import bits, new_training, steps

folder, rng, n_killed_while_saving, newest = Path(sys.argv[1]), random.Random(0), 0, 0
found = new_training(0)
for _ in range(2): began = time.perf_counter(); save_checkpoint(folder, *found, Progress(RunPosition(0))); pause = 2 * (time.perf_counter() - began)

def forever():
    training = new_training(0)
    done = load_checkpoint(latest(folder), *training).step
    while True:
        done += 1
        steps(*training, done, done)
        os.write(ready, b"1")
        save_checkpoint(folder, *training, Progress(RunPosition(done)))
        _prune(folder, 3)

for i in range(20):
    seen, ready = os.pipe()
    pid = os.fork()
    if not pid: forever()
    os.close(ready)
    for _ in range(1 + i % 2): os.read(seen, 1)  # it has made a step, and saves; every other time one save is whole by then
    time.sleep(rng.uniform(0.0, pause))
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    n_killed_while_saving += any(folder.glob(".*.part"))
    *older, last = checkpoints(folder)
    for path in older:
        if (path / "optimizer.safetensors").exists(): load_checkpoint(path, *found)
        else: load_weights(found[0], path / "model.safetensors")
    step = load_checkpoint(last, *found).step
    assert step >= newest, (step, newest)
    newest = step
whole = new_training(0)
steps(*whole, 1, newest)
assert newest >= 10, newest
assert bits(*found) == bits(*whole)
print(n_killed_while_saving, newest)
"""


def test_killed_again_and_again(folder):
    "Twenty times; after each, every checkpoint that is listed loads. The last one equals, to the bit, a training that was never killed."
    n_killed_while_saving, _ = map(int, alone(KILLED, folder).split())
    assert n_killed_while_saving >= 1
