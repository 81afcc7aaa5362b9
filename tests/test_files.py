"Files: whole or not at all, only our own, and one process at a time."

import os
import shutil
import signal
import stat
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from annotated_transformer import UserError
from annotated_transformer.io import files
from annotated_transformer.io.files import (
    check_new_folder,
    lock_folder,
    new_folder,
    read_json,
    remove_known,
    replace_file,
    resolve,
    write_file,
    write_json,
)

NAMES = "import os, signal, sys, time; from annotated_transformer.io.files import *; "
NAMES += "from annotated_transformer.io.files import lock_folder, remove; "
NAMES += "from pathlib import Path; box = Path(sys.argv[1])\n"


def python(code: str, box: Path) -> subprocess.Popen:
    "A process of its own that has the names of the module, and the folder `box`."
    words = [sys.executable, "-c", NAMES + code, str(box)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def everything(folder: Path) -> dict[str, tuple]:
    "All entries below a folder, with their bytes or where they lead; links are not followed."
    found = {}
    for path in folder.rglob("*"):
        kind = stat.S_IFMT(path.lstat().st_mode)
        content = path.read_bytes() if kind == stat.S_IFREG else None
        content = os.readlink(path) if kind == stat.S_IFLNK else content
        found[path.relative_to(folder).as_posix()] = kind, content
    return found


# the lock


def test_one_process_at_a_time(tmp_path):
    "A killed process leaves its lock and what it was writing: the next one takes both away."
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".annotated_transformer-mine.part").touch()  # of somebody else
    code = """with lock_folder(box), new_folder(box / "checkpoints/step-1") as new:
    (new / "weights").touch(); print("held", flush=True); time.sleep(60)"""
    holder = python(code, tmp_path)
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


def test_an_error_under_the_lock_is_not_one_of_the_lock(tmp_path):
    (tmp_path / "inner").mkdir()
    with pytest.raises(UserError, match="inner is in use"), lock_folder(tmp_path):
        with lock_folder(tmp_path / "inner"), lock_folder(tmp_path / "inner"):
            pass
    with lock_folder(tmp_path), lock_folder(tmp_path / "inner"):
        pass


@pytest.mark.parametrize("kind", ["link", "folder", "special file", "text"])
def test_a_lock_that_is_none(tmp_path, kind):
    "Neither a user's file of this name nor what a link leads to is changed."
    lock, make = tmp_path / ".lock", {"folder": Path.mkdir, "special file": os.mkfifo}
    (tmp_path / "letter").write_text("Dear Ada")
    make["link"] = lambda path: path.symlink_to("letter")
    make["text"] = lambda path: path.write_text("notes")
    make[kind](lock)
    before = everything(tmp_path)
    if kind == "text":
        with lock_folder(tmp_path):
            pass
    else:
        with pytest.raises(UserError, match=f".lock is a {kind}, and no lock"):
            with lock_folder(tmp_path):
                pass
    assert everything(tmp_path) == before


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


def test_a_file_is_the_old_or_the_new_one(tmp_path):
    def work():
        with replace_file(tmp_path / "file") as new:
            new.write_text("ne")
            os.unlink(new)
            new.write_text("new")

    found = []
    for n in count():
        (tmp_path / "file").write_text("old")
        killed = killed_before_call(n, work)
        found.append((tmp_path / "file").read_text())
        if not killed:
            break
    # killed in the block, at the flushing, at the renaming, and when that is done
    assert found == ["old"] * 3 + ["new"] * 3


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_is_whole_or_missing(tmp_path, exists):
    "Between the two renamings of an exchange it has no name, but both are there."

    def work():
        with new_folder(tmp_path / "folder", lambda path: None) as new:
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
    assert found[:4] == [old] * 4 and found[-2:] == [["new"] * 2] * 2
    assert all(texts in (old, [], ["new"] * 2) for texts in found)


def test_a_failed_exchange_keeps_the_old_folder(tmp_path, monkeypatch):
    rename, calls = os.rename, count()

    def fails(*paths):
        if next(calls) == 1:
            raise OSError(5, "Input/output error")
        rename(*paths)

    (tmp_path / "run").mkdir()
    (tmp_path / "run/a").touch()
    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="run cannot be written: Input/output error"):
        with new_folder(tmp_path / "run", lambda path: None):
            pass
    assert [path.name for path in tmp_path.glob("*/*")] == ["a"]


def test_flushed_before_it_is_renamed(tmp_path, monkeypatch):
    "After a power failure too: contents first, then the name, then the list of names."
    calls = []
    for name in ("replace", "rename"):
        plain = getattr(os, name)
        late = lambda *paths, plain=plain: (calls.append("rename"), plain(*paths))
        monkeypatch.setattr(os, name, late)
    monkeypatch.setattr(files, "_fsync", lambda path: calls.append(path.name))
    monkeypatch.setattr(files, "_part_of", lambda target: target.parent / "part")
    write_file(tmp_path / "a", b"1")
    assert calls == ["part", "rename", tmp_path.name]
    calls.clear()
    with new_folder(tmp_path / "b") as new:
        (new / "c").mkdir()
        (new / "c" / "d").touch()
    assert calls == ["c", "d", "part", "rename", tmp_path.name]


# every function on every kind of path


def sandbox(box: Path) -> None:
    texts = {
        "ours/config.json": "{}",
        "ours/weights": "1",
        "home/letter": "Dear",
        "home/deep/poem": "roses",
        "file": "text",
        "../neighbour": "me",
    }
    for name, text in texts.items():
        (box / name).parent.mkdir(parents=True, exist_ok=True)
        (box / name).write_text(text)
    (box / "empty").mkdir()
    for name, target in {
        "ours/away": "../home",
        "ours/letter": "../home/letter",
        "ours/up": "..",
        "to_home": "home",
        "to_file": "file",
        "to_empty": "empty",
        "loop": "loop",
        "to_nothing": "none/at/all",
    }.items():
        (box / name).symlink_to(target)
    os.mkfifo(box / "pipe")


def only_ours(path: Path) -> None:
    if path.name != "ours":
        raise UserError(f"{path} is not ours")


def fill(context, fails: bool = False) -> None:
    with context as new:
        if new.is_dir():
            (new / "made").write_text("new")
        else:
            new.write_text("new")
        if fails:
            raise KeyError("broken off")


USES = {
    "a file": lambda path: fill(replace_file(path, lambda p: p.parent.name == "ours")),
    "a file, broken off": lambda path: fill(replace_file(path), fails=True),
    "a folder": lambda path: fill(new_folder(path)),
    "a folder, broken off": lambda path: fill(new_folder(path), fails=True),
    "our folder": lambda path: fill(new_folder(path, only_ours)),
    "our folder, broken off": lambda path: fill(new_folder(path, only_ours), True),
    "remove known": lambda path: (
        only_ours(resolve(path)),
        remove_known(path, {"weights", "away", "up"}),
    ),
}
PATHS = "ours home file empty to_home to_file to_empty loop to_nothing pipe none . .. "
PATHS += "ours/weights ours/config.json ours/away ours/away/letter ours/letter ours/up "
PATHS += (
    "ours/up/file ours/up/ours ours/none none/deep to_home/deep to_home/new file/x "
)
PATHS += "home/../ours empty/.. ours/away/deep/poem ours/.. loop/x ../neighbour"


@pytest.mark.parametrize("use", USES)
def test_nothing_else_changes(use, tmp_path, monkeypatch):
    "Whatever the path: what is there and not ours stays, byte for byte, and an error changes nothing at all."
    for path in PATHS.split(" "):
        outside = tmp_path / "outside"
        shutil.rmtree(outside, ignore_errors=True)
        sandbox(outside / "box")
        before, refused = everything(outside), None
        with monkeypatch.context() as patch:
            patch.chdir(outside / "box")
            try:
                USES[use](Path(path))
            except (UserError, OSError, KeyError) as e:
                refused = e
        after = everything(outside)
        new = after.keys() - before.keys()
        assert not refused or all(after[name][0] == stat.S_IFDIR for name in new)
        kept = {name for name in before if before[name] == after.get(name)}
        for name in before.keys() - kept:
            assert name.startswith("box/ours/") and not refused, (path, name)
        assert not any(".part" in name for name in after), path


@pytest.mark.parametrize(
    "path, says",
    [("a\0b", "is no path"), (".", "is the current folder"), ("file", "is a file")],
)
def test_no_new_folder_here(tmp_path, monkeypatch, path, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=says):
        check_new_folder(Path(path))


def test_what_changes_meanwhile_is_not_replaced(tmp_path):
    "What is there is looked at before the work, and again before it is replaced."
    with pytest.raises(UserError, match="did not make it"):
        with replace_file(tmp_path / "page", lambda path: False) as new:
            new.write_text("ours")
            (tmp_path / "page").write_text("theirs")
    for check in (None, only_ours):
        with pytest.raises(UserError, match="is not empty|is not ours"):
            with new_folder(tmp_path / "run", check):
                (tmp_path / "run").mkdir(exist_ok=True)
                (tmp_path / "run/theirs").touch()
        (tmp_path / "run/theirs").unlink()
    assert everything(tmp_path).keys() == {"page", "run"}
    assert (tmp_path / "page").read_text() == "theirs"


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


def test_json(tmp_path):
    bad = ["", "[1]", "nul", "\xff", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}"]
    for text in [*bad, '{"a": NaN}', '{"a": 1e999}', '{"a": -Infinity}']:
        (tmp_path / "x.json").write_text(text, encoding="latin-1")
        with pytest.raises(UserError, match="x.json (cannot be read as|holds no) JSON"):
            read_json(tmp_path / "x.json")
    values = {"a": "ü\u2028\udcff", "b": [1.5, None]}
    write_json(tmp_path / "x.json", values)
    assert read_json(tmp_path / "x.json") == values
    assert "ü" in (tmp_path / "x.json").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="is not of format 2"):
        read_json(tmp_path / "x.json", version=2)
