"Nothing of a user's is destroyed or read: commands on wrong paths, and on run folders that strangers sent."

import json
import os
import shutil
from pathlib import Path

import pytest
from test_files import everything

from annotated_transformer.cli.main import main
from annotated_transformer.data.grammar import builtin

SIZES = "n_layers=1 d_model=8 d_ff=8 n_heads=2 n_pieces=320 max_steps=2 max_len=60 "
SIZES += "batch_tokens=400 valid_every=1 save_every=1 average_last=0"
TEXT = ["--src", "text/en", "--tgt", "text/de"]
NEW = [*TEXT, "--config", "tiny", "--quiet", *SIZES.split()]
RESUME = ["--device", "cpu", "--quiet"]


def run_command(box: Path, words: list[str]) -> int:
    "The exit status of a command that is given in `box`."
    was = Path.cwd()
    os.chdir(box)
    try:
        with pytest.raises(SystemExit) as left:
            main(words)
    finally:
        os.chdir(was)
    return left.value.code


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    "A user's folder: letters, pictures, texts, and a run whose text is not in its folder."
    box = tmp_path_factory.mktemp("pristine")
    for name in ("letter.txt", "home/photos/step-0000001/model.safetensors"):
        (box / name).parent.mkdir(parents=True, exist_ok=True)
        (box / name).write_text(name)
    (box / "text").mkdir()
    (box / "empty").mkdir()
    for side in ("en", "de"):
        sentences = [getattr(s, side) + "\n" for s in builtin(60, seed=3)]
        (box / "text" / side).write_text("".join(sentences), encoding="utf-8")
    made = ["train", "--out", "mine", "--prepared", "prepared", *NEW]
    assert run_command(box, made) == 0
    (box / "to_letter").symlink_to("letter.txt")
    (box / "to_home").symlink_to("home")
    (box / "to_mine").symlink_to("mine")
    return box


@pytest.fixture
def box(pristine, tmp_path) -> Path:
    return shutil.copytree(pristine, tmp_path / "box", symlinks=True)


@pytest.mark.parametrize("place", ["new/deep", "empty"])
def test_only_what_is_named_is_made(box, place):
    before = everything(box)
    assert run_command(box, ["prepare", "--out", place, *NEW]) == 0
    after = everything(box)
    assert {name: after[name] for name in before} == before
    assert all(name.startswith(place.split("/")[0]) for name in after.keys() - before)


AWAY = {
    "checkpoints": "home/photos",
    "checkpoints/step-0000009": "home/photos/step-0000001",
    "metrics.jsonl": "letter.txt",
    "curve.svg": "letter.txt",
    "tensorboard": "home",
    "model.safetensors": "mine/model.safetensors",
    "vocab.model": "mine/vocab.model",
    "config.json": "mine/config.json",
    ".lock": "letter.txt",
}


def stranger(box: Path) -> Path:
    "A run folder from elsewhere."
    return shutil.copytree(box / "mine", box / "sent")


@pytest.mark.parametrize("name", AWAY)
def test_links_in_a_strangers_run_are_not_followed(name, box, capfd):
    path = stranger(box) / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(box / AWAY[name])
    before = everything(box)
    resume = ["train", "--resume", "sent", *RESUME, "--prepared", "prepared"]
    commands = [resume, ["average", "sent", "--last", "1"]]
    if name != ".lock":  # which only those that write need
        commands += [["translate", "sent", "text/en", "--beam-size", "1"]]
        commands += [["export-hf", "sent", "new"]]
    for words in commands:
        assert run_command(box, words) == 2
        assert "is a link" in capfd.readouterr().err
        assert everything(box) == before, words


@pytest.mark.parametrize("entry", ["prepared", "source"])
def test_paths_in_a_strangers_settings_are_not_read(entry, box, capfd):
    file = stranger(box) / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    letter = str(box / "letter.txt")
    values = {
        "prepared": {"prepared": str(box / "prepared")},
        "source": {"source": {"src": letter, "tgt": letter}, "prepared": None},
    }
    file.write_text(json.dumps(config | values[entry]), encoding="utf-8")
    before = everything(box)
    assert run_command(box, ["train", "--resume", "sent", *RESUME]) == 2
    assert "--prepared" in (err := capfd.readouterr().err) or "--src" in err
    assert everything(box) == before
