"Files: whole or not at all, only our own, and one process at a time."

import os
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from annotated_transformer import UserError
from annotated_transformer.io import files
from annotated_transformer.io.files import (
    lock_folder,
    new_folder,
    read_file,
    read_json,
    remove_known,
    replace_file,
    replace_folder,
    write_file,
    write_json,
)

NAMES = "import sys, time; from annotated_transformer.io.files import *; "
NAMES += "from annotated_transformer.io.files import lock_folder; "
NAMES += "from pathlib import Path; box = Path(sys.argv[1])\n"


def everything(folder: Path) -> dict[str, bytes | None]:
    "All entries below a folder, with their bytes."
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        if path.is_file()
        else None
        for path in folder.rglob("*")
    }


# the lock


def test_one_process_at_a_time(tmp_path):
    "A killed process leaves its lock and what it was writing: the next one takes both away."
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".annotated_transformer-mine.part").touch()  # of somebody else
    code = """with lock_folder(box), replace_folder(box / "checkpoints/step-1") as new:
    (new / "weights").touch(); print("held", flush=True); time.sleep(60)"""
    words = [sys.executable, "-c", NAMES + code, str(tmp_path)]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="is in use by another process: wait, or"):
            with lock_folder(tmp_path):
                pass
        assert len([*tmp_path.rglob("weights")]) == 1, "somebody is writing it"
    finally:
        holder.kill()
    holder.communicate()
    with lock_folder(tmp_path):
        assert (tmp_path / ".lock").exists()
    left = {"checkpoints", ".annotated_transformer-mine.part"}
    assert everything(tmp_path).keys() == left


# killed at any moment


def killed_before_call(n: int, work) -> bool:
    "Run `work` in a process that is killed before its n-th call that changes names or waits for the disk; was it?"
    if (child := os.fork()) == 0:
        calls = count()

        def kill_late(call):
            def late(*words, **more):
                if next(calls) == n:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*words, **more)

            return late

        for name in ("fsync", "replace", "rename", "unlink"):
            setattr(os, name, kill_late(getattr(os, name)))
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


@pytest.mark.posix
def test_a_file_is_the_old_or_the_new_one(tmp_path):
    def work():
        with replace_file(tmp_path / "file") as new:
            new.write_text("new")

    found = []
    for n in count():
        (tmp_path / "file").write_text("old")
        killed = killed_before_call(n, work)
        found.append((tmp_path / "file").read_text())
        if not killed:
            break
    # killed at the flushing, at the renaming, and when that is done
    assert found[:2] == ["old"] * 2 and set(found[2:]) == {"new"}


@pytest.mark.posix
@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_is_whole_or_missing(tmp_path, exists):
    "Between the two renamings of an exchange it has no name, but both are there."

    def work():
        with replace_folder(tmp_path / "folder") as new:
            for name in "ab":
                (new / name).write_text("new")

    found = []
    for n in count():
        for path in tmp_path.iterdir():
            shutil.rmtree(path)
        if exists:
            (tmp_path / "folder").mkdir()
            for name in "ab":
                (tmp_path / "folder" / name).write_text("old")
        killed = killed_before_call(n, work)
        found.append([path.read_text() for path in tmp_path.glob("folder/*")])
        if exists and not found[-1]:
            texts = [path.read_text() for path in tmp_path.glob(".*/*")]
            assert sorted(texts) == ["new", "new", "old", "old"]
        if not killed:
            break
    old = ["old"] * 2 if exists else []
    assert found[:4] == [old] * 4 and found[-1] == ["new"] * 2
    assert all(texts in (old, [], ["new"] * 2) for texts in found)


@pytest.mark.posix
def test_a_new_folder_is_finished_when_it_has_its_config(tmp_path):
    "Nothing is left beside it, and the command can be given again until files arrive."
    target = tmp_path / "box/folder"

    def work():
        with new_folder(target) as new:
            for name in ("config.json", "a", "b"):
                (new / name).write_text("new")

    for n in count():
        shutil.rmtree(tmp_path / "box", ignore_errors=True)
        killed = killed_before_call(n, work)
        assert {path.name for path in (tmp_path / "box").iterdir()} <= {"folder"}
        names = {path.name for path in target.glob("[!.]*")}
        if "config.json" in names:
            assert names == {"config.json", "a", "b"}
        elif not names:
            work()
            assert everything(target).keys() == {"config.json", "a", "b"}
        if not killed:
            break
    assert n > 5


# an error in the middle


@pytest.mark.parametrize("number", [0, 1])
def test_a_failed_exchange_puts_the_old_folder_back(tmp_path, monkeypatch, number):
    rename, calls = os.rename, count()

    def fails(*paths):
        if next(calls) == number:
            raise PermissionError(13, "Permission denied")
        rename(*paths)

    (tmp_path / "run").mkdir()
    (tmp_path / "run/a").touch()
    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="run cannot be written: Permission denied"):
        with replace_folder(tmp_path / "run") as new:
            (new / "b").touch()
    assert everything(tmp_path).keys() == {"run", "run/a"}


def test_what_windows_does_not_remove_stays(tmp_path, monkeypatch):
    "Everything else goes."
    rename = os.rename

    def refuses(source, target):
        if Path(source).name == "open":
            raise PermissionError(13, "Permission denied", str(source))
        rename(source, target)

    for name in ("open", "other"):
        (tmp_path / name).touch()
    monkeypatch.setattr(os, "rename", refuses)
    remove_known(tmp_path, ["open", "missing", "other"])
    assert everything(tmp_path).keys() == {"open"}


def test_flushed_before_it_is_renamed(tmp_path, monkeypatch):
    "After a power failure too: contents first, then the name, then the list of names."
    calls = []
    for name in ("replace", "rename"):
        plain = getattr(os, name)
        late = lambda *paths, plain=plain: (calls.append("rename"), plain(*paths))
        monkeypatch.setattr(os, name, late)
    monkeypatch.setattr(files, "_fsync", lambda path: calls.append(path.name))
    monkeypatch.setattr(files, "_new_part", lambda folder: folder / "part")
    write_file(tmp_path / "a", b"1")
    assert calls == ["part", "rename", tmp_path.name]
    calls.clear()
    with replace_folder(tmp_path / "b") as new:
        (new / "d").touch()
    assert calls == ["d", "part", "rename", tmp_path.name]
    calls.clear()
    with new_folder(tmp_path / "c") as new:
        (new / "d").touch()
        monkeypatch.setattr(files, "check_new_folder", lambda path: None)
    assert calls == ["d", "rename", "c"]


# what is there and not ours


def fill(context, fails: bool = False) -> None:
    with context as new:
        (new / "made" if new.is_dir() else new).write_text("new")
        if fails:
            raise KeyError("broken off")


def ours(path: Path) -> bool:
    return path.read_text() == "ours"


CASES = [  # of a use: the path, and what is wrong with it (None: nothing)
    ("file", "ours.html", None),
    ("file", "new.html", None),
    ("file", "letter", "this program did not make it"),
    ("file", "to_letter", "this program did not make it"),
    ("file", "home", "is not a regular file"),
    ("file", "pipe", "is not a regular file"),
    ("file", "none/a.html", "none/a.html cannot be written: No such file"),
    ("folder", "new", None),
    ("folder", "new/and/deeper", None),
    ("folder", "empty", None),
    ("folder", "home", "home is not empty"),
    ("folder", "to_home", "to_home is not empty"),
    ("folder", "letter", "letter is a file, not a folder"),
    ("folder", "pipe", "pipe is a file, not a folder"),
    ("folder", ".", "is not empty"),
]


@pytest.mark.posix
@pytest.mark.parametrize("use, name, says", CASES)
def test_nothing_else_changes(use, name, says, tmp_path, monkeypatch):
    for path, text in (("ours.html", "ours"), ("letter", "Dear"), ("home/poem", "a")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "empty").mkdir()
    (tmp_path / "to_home").symlink_to("home")
    (tmp_path / "to_letter").symlink_to("letter")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    before, path = everything(tmp_path), Path(name)
    make = lambda: replace_file(path, ours) if use == "file" else new_folder(path)
    with pytest.raises((UserError, OSError, KeyError), match=says or "broken off"):
        fill(make(), fails=True)
    after = everything(tmp_path)
    assert {k: v for k, v in after.items() if v is not None or k in before} == before
    if says is None:
        fill(make())
        new = {k: v for k, v in everything(tmp_path).items() if before.get(k) != v}
        assert {v for v in new.values() if v is not None} == {b"new"}


def test_what_changes_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(UserError, match="is not empty"):
        with new_folder(tmp_path / "run"):
            (tmp_path / "run/theirs").touch()
    assert everything(tmp_path).keys() == {"run", "run/theirs"}


def test_a_folder_that_cannot_be_opened_is_not_flushed(tmp_path, monkeypatch):
    "As on Windows, and where it may be written but not read."
    opened = os.open

    def refused(path, flags, *more, **named):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refused)
    write_file(tmp_path / "new", b"one")
    with new_folder(tmp_path / "folder") as new:
        (new / "a").write_text("a")
    assert everything(tmp_path).keys() == {"folder", "folder/a", "new"}


# reading


def test_reading(tmp_path):
    with pytest.raises(UserError, match="none: no such file"):
        read_file(tmp_path / "none")
    for text in ("", "nul", "\xff", '{"a": 1'):
        (tmp_path / "x.json").write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match="x.json cannot be read as JSON"):
            read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(UserError, match="x.json does not contain a JSON object"):
        read_json(tmp_path / "x.json")
    values = {"a": "ü\u2028\udcff", "b": [1.5, None]}
    write_json(tmp_path / "x.json", values)
    assert read_json(tmp_path / "x.json") == values
    assert "ü" in (tmp_path / "x.json").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="is not of format 2"):
        read_json(tmp_path / "x.json", version=2)
