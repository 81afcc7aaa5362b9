"Run folders: what a crash leaves behind, and every kind of damage."
import json
import os
import random
import resource
import shutil
import signal
import struct
import threading
import time
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.checkpoint import (
    check_new_run, create_run, load_run, load_weights, read_config, replacing, save_weights, write_atomically, write_config)
from annotated_transformer.config import ModelConfig, Recipe, TrainConfig, get_recipe
from annotated_transformer.transformer import build_transformer
from annotated_transformer.vocab import learn_bpe

SIZES = ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2)
RECIPE = Recipe(SIZES, TrainConfig(n_pieces=300))


@pytest.fixture(scope="module")
def vocab(): return learn_bpe(["the dog sleeps", "der Hund schläft", "a cat drinks milk"], 300)


@pytest.fixture(scope="module")
def model(vocab):
    torch.manual_seed(0)
    return build_transformer(SIZES, len(vocab), vocab.pad_id).eval()


@pytest.fixture()
def run(tmp_path, vocab, model):
    create_run(tmp_path / "run", RECIPE, vocab, {"data": "test", "src_lang": "en", "tgt_lang": "de"})
    save_weights(model, tmp_path / "run/model.safetensors")
    return tmp_path / "run"


def child(work) -> int:
    "A process that does `work`, by its id."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: the child only writes files
        pid = os.fork()
    if pid: return pid
    try: work()
    finally: os._exit(1)  # work() leaves by os._exit(0), or it failed


def same(a, b): return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


# crashes

def test_killed_while_saving(tmp_path, vocab, model):
    "SIGKILL at random moments of a process that saves two models in turn: always one of the two is there, whole."
    other = build_transformer(SIZES, len(vocab), vocab.pad_id).eval()
    path, found = tmp_path / "model.safetensors", build_transformer(SIZES, len(vocab), vocab.pad_id)
    save_weights(model, path)
    rng = random.Random(0)

    def forever():
        while True: save_weights(other, path); save_weights(model, path)
    for _ in range(20):
        pid = child(forever)
        time.sleep(rng.uniform(0.002, 0.04))
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        load_weights(found, path)
        assert same(found, model) or same(found, other)


def test_reader_sees_old_or_new(tmp_path):
    path, old, new, bad = tmp_path / "f", b"o" * 200_000, b"n" * 300_000, []
    write_atomically(path, old)
    done = threading.Event()

    def read():
        while not done.is_set():
            if path.read_bytes() not in (old, new): bad.append(1)
    reader = threading.Thread(target=read)
    reader.start()
    for i in range(30): write_atomically(path, (new, old)[i % 2])
    done.set(); reader.join()
    assert not bad


@pytest.mark.parametrize("save", [lambda path, model: save_weights(model, path), lambda path, model: write_atomically(path, b"n" * 100_000)],
                         ids=["weights", "bytes"])
def test_full_disk(tmp_path, model, save):
    "No file may grow beyond a few bytes, as on a full disk: an OSError, the old file as it was, nothing beside it."
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"old")

    def work():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try: save(path, model)
        except OSError: os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child(work), 0)[1]) == 0
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_run_that_cannot_be_made_leaves_nothing(tmp_path, vocab, monkeypatch):
    for at in (1, 2, 3, 4):  # each fsync of vocab.model and config.json, files and folders
        calls = []

        def fails(handle, at=at, calls=calls):
            calls.append(1)
            if len(calls) == at: raise OSError("No space left on device")
        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(OSError, match="No space"): create_run(tmp_path / "run", RECIPE, vocab, {})
        assert list(tmp_path.iterdir()) == []


def test_replacing_keeps_links_and_other_files(tmp_path):
    (tmp_path / "real").write_text("old"); (tmp_path / "link").symlink_to("real"); (tmp_path / ".real.1.part").touch()  # of another process
    write_atomically(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new" and (tmp_path / ".real.1.part").exists()


def test_replacing_without_writing(tmp_path):
    with pytest.raises(FileNotFoundError):
        with replacing(tmp_path / "f"): pass
    assert list(tmp_path.iterdir()) == []


# round trip

@pytest.mark.parametrize("sizes", [SIZES, ModelConfig(n_layers=2, d_model=16, d_ff=8, n_heads=4, d_k=3, d_v=5, norm="pre"),
                                   ModelConfig(n_layers=1, d_model=8, d_ff=8, n_heads=1, position="learned", n_positions=20)],
                         ids=["post", "pre", "learned"])
def test_round_trip_to_the_bit(tmp_path, vocab, sizes):
    model = build_transformer(sizes, len(vocab), vocab.pad_id, dropout=0.1).eval()
    with torch.no_grad():  # numbers that are easily lost
        for i, p in enumerate(model.parameters()): p.view(-1)[0] = (0.0, -0.0, 1e-40, float("inf"))[i % 4]
    create_run(tmp_path / "a/b/run", Recipe(sizes, TrainConfig()), vocab, {"data": "ä\u2028ß", "n": 1, "none": None})
    save_weights(model, tmp_path / "a/b/run/model.safetensors")
    found = load_run(tmp_path / "a/b/run")
    for name, weight in model.state_dict().items():
        assert weight.numpy().tobytes() == found.model.state_dict()[name].numpy().tobytes(), name
    assert not found.model.training and found.recipe == Recipe(sizes, TrainConfig()) and found.vocab.model == vocab.model
    assert {k: v for k, v in found.about.items() if k != "vocab_sha256"} == {"data": "ä\u2028ß", "n": 1, "none": None}


def test_config_is_rewritten_with_what_became_known(run):
    recipe, about = read_config(run)
    write_config(run, recipe, {**about, "steps": 7})
    assert read_config(run) == (recipe, {**about, "steps": 7}) and load_run(run).about["steps"] == 7


def test_recipes_survive(tmp_path, vocab):
    for name in ("tiny", "small", "base", "big"):
        create_run(tmp_path / name, get_recipe(name), vocab, {})
        assert read_config(tmp_path / name)[0] == get_recipe(name)


def test_weights_on_the_way_are_detached(tmp_path, model):
    save_weights(model, tmp_path / "w.safetensors")
    assert all(p.requires_grad for p in model.parameters())


# damage

def bytes_of(path, edit): path.write_bytes(edit(path.read_bytes()))


@pytest.mark.parametrize("text, says", [
    ("", "cannot be read"), ("{", "cannot be read"), ("[" * 100_000, "cannot be read"),
    ("[]", "not of format 1"), ("1", "not of format 1"), ("null", "not of format 1"),
    ('{"format": 2}', "not of format 1"), ('{"format": "1"}', "not of format 1"), ('{"format": 1}', "not the settings of a recipe"),
    ('{"format": 1, "model": 3, "train": {}}', "not the settings of a recipe"), ('{"format": 1, "model": {"n_heads": 0}, "train": {}}', "n_heads=0"),
    ('{"format": 1, "model": {}, "train": {"dropout": "0.1"}}', "dropout='0.1'")])
def test_damaged_config(run, text, says):
    (run / "config.json").write_text(text)
    with pytest.raises(ValueError, match=says): load_run(run)


def test_config_that_is_no_text(run):
    (run / "config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match="config.json cannot be read"): load_run(run)


def test_sizes_that_fit_no_machine(run):
    bytes_of(run / "config.json", lambda data: data.replace(b'"d_ff": 32', b'"d_ff": 32000000000000000'))
    with pytest.raises(ValueError, match="a model of these sizes cannot be built"): load_run(run)


@pytest.mark.parametrize("name, says", [("config.json", "is not a run folder: it has no config.json"), ("vocab.model", "vocab.model"),
                                        ("model.safetensors", "has no model.safetensors")])
def test_missing_file(run, name, says):
    (run / name).unlink()
    with pytest.raises(ValueError, match=says): load_run(run)


def test_not_a_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match="is not a run folder"): load_run(place)


def test_a_folder_in_the_place_of_a_file(run):
    for name in ("config.json", "vocab.model", "model.safetensors"):
        broken = run.with_name(f"broken-{name}")
        shutil.copytree(run, broken)
        (broken / name).unlink(); (broken / name).mkdir()
        with pytest.raises(ValueError, match=name): load_run(broken)


def test_vocabulary_of_the_same_size_but_another(run, vocab):
    other = learn_bpe(["xyz xyz qqq", "jjj kkk www", "vvv uuu zzz yyy"], 300)
    bytes_of(run / "vocab.model", lambda data: other.model)
    with pytest.raises(ValueError, match="is not the vocabulary that this run was trained with"): load_run(run)


def test_flipped_bits_in_the_vocabulary(run):
    good = (run / "vocab.model").read_bytes()
    for at in random.Random(0).sample(range(len(good)), 40):
        (run / "vocab.model").write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1:])
        with pytest.raises(ValueError, match="vocab.model"): load_run(run)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_weights(model, path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def target(vocab): return build_transformer(SIZES, len(vocab), vocab.pad_id)


@given(data=st.data())
def test_weights_cut_short_or_random(data, saved, target, tmp_path_factory):
    "Never a half-loaded model, never anything but a ValueError."
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    short, longer = st.integers(0, len(saved) - 1).map(lambda n: saved[:n]), st.binary(min_size=1, max_size=20).map(lambda b: saved + b)
    bad = data.draw(st.one_of(short, longer, st.binary(max_size=200)))
    path.write_bytes(bad)
    before = [w.clone() for w in target.state_dict().values()]
    with pytest.raises(ValueError, match="damaged.safetensors is not a readable safetensors file"): load_weights(target, path)
    assert all(map(torch.equal, before, target.state_dict().values()))


def with_header(saved, edit):
    n = struct.unpack("<Q", saved[:8])[0]
    header = json.loads(saved[8:8 + n])
    edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + saved[8 + n:]


def swap_shape(header): header["embedding.weight"]["shape"].reverse()
def rename(header): header["stranger"] = header.pop("embedding.weight")


@pytest.mark.parametrize("edit, says", [(swap_shape, "has shape"), (rename, "lacks the weight embedding.weight")])
def test_wrong_weights_change_nothing(saved, target, tmp_path, edit, says):
    path = tmp_path / "w.safetensors"
    path.write_bytes(with_header(saved, edit))
    before = [w.clone() for w in target.state_dict().values()]
    with pytest.raises(ValueError, match=says): load_weights(target, path)
    assert all(map(torch.equal, before, target.state_dict().values()))


def test_more_weights_than_the_model_has(tmp_path, vocab, target):
    save_weights(build_transformer(ModelConfig(n_layers=2, d_model=16, d_ff=32, n_heads=2), len(vocab), vocab.pad_id), tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match="has a weight .*layers.1.*, which this model has not"): load_weights(target, tmp_path / "w.safetensors")


# places for a new run

def test_places(tmp_path, run):
    (tmp_path / "empty").mkdir(); (tmp_path / "full").mkdir(); (tmp_path / "full/x").touch(); (tmp_path / "file").touch()
    check_new_run(tmp_path / "empty"); check_new_run(tmp_path / "new/deep/er")
    refused = {run: "already holds a run",
               tmp_path / "full": "is not empty", tmp_path / "file": "file is a file", tmp_path / "file/run": "file is a file"}
    for place, says in refused.items():
        with pytest.raises(ValueError, match=says): check_new_run(place)


def test_refused_place_is_left_alone(run, vocab):
    before = {p: p.read_bytes() for p in run.iterdir() if p.is_file()}
    with pytest.raises(ValueError, match="already holds a run"): create_run(run, RECIPE, vocab, {})
    assert {p: p.read_bytes() for p in run.iterdir() if p.is_file()} == before
