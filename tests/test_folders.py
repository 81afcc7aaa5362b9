"Folders as people have them: what a command did not make is, byte by byte, what it was before."

import errno
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import random_run

from annotated_transformer.cli.main import main
from annotated_transformer.data.corpus import corpus_from_pairs
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.prepared import open_prepared, prepare
from annotated_transformer.io.files import LOCK, MARKER
from annotated_transformer.runs import checkpoint
from annotated_transformer.runs.folder import load_run
from annotated_transformer.show import demo

SMALL = "n_layers=1 d_model=16 d_ff=16 n_heads=2 vocab_size=400 batch_tokens=300 "
SMALL += "max_steps=2 valid_every=2 save_every=2 average_last=0"
TEXT = f"--pairs pairs --config tiny --quiet {SMALL}"
# a text from which no vocabulary of this size can be learned
POOR = f"--pairs poor --config tiny --quiet {SMALL} vocab_size=300"


def write(path: str, text: str = "mine") -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def thesis() -> None:
    "The folder that the review lost: a lock of another program, and names like ours."
    for name in ("x/.lock", "x/data/thesis.txt", "x/report.json", "x/checkpoints/a"):
        write(name)


def git_checkout() -> None:
    for name in ("x/.git/config", "x/data/train.src.ids", "x/config.json", "x/a.html"):
        write(name, "{}")


def another_program() -> None:
    write("x/config.json", '{"model_type": "marian"}')
    for name in ("model.safetensors", "vocab.model", "checkpoints/best.safetensors"):
        write(f"x/{name}")


def half_made() -> None:
    "A run of ours that was killed while it encoded its text, in which they put a file."
    for name in (MARKER, "data/thesis.txt", "data/train.src.ids"):
        write(f"x/{name}")


def link_to_a_run() -> None:
    Path("x").symlink_to("run", target_is_directory=True)


def link_to_a_thesis() -> None:
    write("theirs/data/thesis.txt")
    Path("x").symlink_to("theirs", target_is_directory=True)


def read_only() -> None:
    write("x/data/thesis.txt")
    for path in ("x/data", "x"):
        Path(path).chmod(0o555)


def a_file() -> None:
    write("x")


def changed_run() -> None:
    "A run of ours, in whose folders they keep files of their own."
    shutil.copytree("run", "x")
    for name in (MARKER, "data/thesis.txt", "checkpoints/step-0000002/notes"):
        write(f"x/{name}")


FOLDERS = (thesis, git_checkout, another_program, half_made, link_to_a_run)
FOLDERS += (link_to_a_thesis, read_only, a_file, changed_run)
# refused, but for a page with a new name, and for a run of ours, which goes on
COMMANDS = f"""
train {TEXT} --device cpu --out x
train {POOR} --device cpu --out x
prepare {TEXT} --out x
demo --out x
export run x --to ct2
export run x --to hf
live run --out x/a.html
attention run Hello. --out x/a.html
live run --out x
average x --last 1
train --resume x --device cpu --quiet max_steps=3
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    "A folder with a text, a run of ours, and nothing at x yet."
    monkeypatch.chdir(tmp_path)
    pairs = [f"{s.en}\t{s.de}\n" for s in builtin(150, seed=3)]
    write("pairs", "".join(pairs))
    write("poor", "a\tb\n" * 30)
    random_run(Path("run"))
    yield tmp_path
    for path in (tmp_path / "x/data", tmp_path / "x"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)


def everything() -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}


def run(line: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(shlex.split(line))
    return left.value.code


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_nothing_of_theirs_is_lost(make: Callable, here, capsys):
    make()
    kept = everything()
    for line in COMMANDS.strip().split("\n"):
        if "--resume" in line and make in (link_to_a_run, changed_run):
            kept = {p: kept[p] for p in kept if p.name in ("thesis.txt", "notes")}
        status, says = run(line), capsys.readouterr().err
        assert status == 2 and says.count("\n") == 1 or "a.html" in line, (line, says)
        assert kept.items() <= everything().items(), line


def test_a_half_made_run_of_ours_is_made_again(here):
    "And an empty folder is filled; a failing start leaves it empty again."
    for name in (MARKER, ".annotated_transformer-12345678.part/ids", "data/about.json"):
        write(f"x/{name}", "{}")
    Path("empty").mkdir()
    for out in ("x", "empty"):
        assert run(f"train {TEXT} --device cpu --out {out}") == 0
        assert Path(out, "model.safetensors").exists()
    assert run(f"train {POOR} --device cpu --out new") == 2
    assert not Path("new").exists()


# file systems that lack something


def cannot_map(*_, **__):
    raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))


@pytest.fixture
def no_mmap(monkeypatch):
    "As some shared folders of virtual machines, and FUSE with direct input and output."
    for place, name in (
        (np, "memmap"),
        (checkpoint, "load_file"),
        (checkpoint, "safe_open"),
    ):
        monkeypatch.setattr(place, name, cannot_map)


def test_weights_that_cannot_be_mapped_are_read(pretrained, no_mmap):
    read = load_run(Path("demo"))
    for name, weight in pretrained.model.state_dict().items():
        assert torch.equal(read.model.state_dict()[name], weight), name
    assert read.about == pretrained.about and "weights" in read.about


def test_ids_that_cannot_be_mapped_are_read(here, no_mmap):
    "And a file that was cut short, or that nobody may read, is still named."
    pairs = corpus_from_pairs("pairs").train
    made = prepare(Path("data"), pairs, pairs, "a1", 400, quiet=True)
    ids = Path("data/train.src.ids")
    assert made.train.src.ids.tobytes() == ids.read_bytes() != b""
    os.truncate(ids, 10)
    with pytest.raises(ValueError, match="data is incomplete: remove it"):
        open_prepared("data")
    ids.unlink()
    with pytest.raises(ValueError, match="data is incomplete: remove it"):
        open_prepared("data")


def test_ids_that_cannot_be_read_are_not_incomplete(here, monkeypatch):
    pairs = corpus_from_pairs("pairs").train
    prepare(Path("data"), pairs, pairs, "a1", 400, quiet=True)

    def broken(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("memmap", "fromfile"):
        monkeypatch.setattr(np, name, broken)
    with pytest.raises(ValueError, match="^data cannot be read: Input/output error$"):
        open_prepared("data")


# the demo takes the place of an earlier one


def test_a_demo_replaces_file_by_file(here, monkeypatch):
    "Not the lock that it holds, which Windows leaves in the new folder; Finder has looked into the old one."
    plain = os.replace

    def replace(old, new):
        assert Path(new).name not in (LOCK, MARKER), "it is open"
        plain(old, new)

    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, replace)
    monkeypatch.setattr(demo, "_check_demo", lambda path: None)
    for text in ("first", "second"):
        with demo._replacing(Path("x")) as new:
            for name in (LOCK, MARKER, "config.json", "checkpoints/step-1/state.json"):
                write(f"{new}/{name}", text)
        write("x/checkpoints/step-1/.DS_Store")
        assert {p.read_text() for p in Path("x").rglob("*.json")} == {text}
    names = {p.relative_to("x").as_posix() for p in Path("x").rglob("*") if p.is_file()}
    step = "checkpoints/step-1"
    assert names == {MARKER, "config.json", f"{step}/state.json", f"{step}/.DS_Store"}
