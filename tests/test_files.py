"Files: whole or not at all, only our own, and one process at a time."

import errno
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from annotated_transformer import UserError
from annotated_transformer.io import files
from annotated_transformer.io.files import (
    LOCK,
    MARKER,
    foreign_files,
    is_litter,
    lock_folder,
    mark_folder,
    new_folder,
    read_json,
    remove,
    replace_file,
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
    code = """with lock_folder(box), new_folder(box / "checkpoints/step-1") as new:
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
        assert (tmp_path / LOCK).exists()
    left = {"checkpoints", "checkpoints/step-1", ".annotated_transformer-mine.part"}
    assert everything(tmp_path).keys() == left


# file systems that lack something


def refuses(code: str) -> Callable:
    "A call of the system that fails with this error."

    def call(*_):
        number = getattr(errno, code)
        raise OSError(number, os.strerror(number))

    return call


def write_all(folder: Path) -> None:
    "A file, a new folder, a marked and locked one."
    write_file(folder / "file", b"new")
    fill(new_folder, folder / "new", "new")
    mark_folder(folder / "run")
    with lock_folder(folder / "run"):
        write_file(folder / "run/file", b"new")


UNSUPPORTED = ["EINVAL", "EBADF", "ENOTSUP", "ENOSYS", "ENOLCK"]


@pytest.mark.posix
@pytest.mark.parametrize("code", UNSUPPORTED)
def test_folders_that_cannot_be_flushed(code, tmp_path, monkeypatch):
    "CIFS, VirtualBox, some FUSE: the file is flushed, and the list of names is not."
    flushed = []

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            refuses(code)()
        flushed.append(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    write_all(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"new" and len(flushed) == 4


@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "EDQUOT"])
def test_an_error_of_the_disk_is_not_ignored(code, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", refuses(code))
    says = f"^{re.escape(str(tmp_path))}.file cannot be written: "
    with pytest.raises(OSError, match=says + os.strerror(getattr(errno, code))):
        write_file(tmp_path / "file", b"new")


@pytest.mark.posix
@pytest.mark.parametrize("code", UNSUPPORTED)
def test_file_systems_without_locks(code, tmp_path, monkeypatch):
    "The lock file itself keeps others out; what a killed process left is named."
    import fcntl

    monkeypatch.setattr(fcntl, "flock", refuses(code))
    write_all(tmp_path)
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {MARKER, "file"}
    with lock_folder(run), pytest.raises(UserError, match="is in use by another"):
        lock_folder(run).__enter__()
    (run / LOCK).touch()  # as left by filelock 3.13
    with pytest.raises(UserError, match="if there is none, remove (.*), which") as e:
        lock_folder(run).__enter__()
    Path(re.search("remove (.*),", str(e.value))[1]).unlink()
    with lock_folder(run):
        pass


@pytest.mark.posix
@pytest.mark.parametrize("code", ["EIO", "ENOMEM"])
def test_a_lock_that_fails_names_its_folder(code, tmp_path, monkeypatch):
    import fcntl

    monkeypatch.setattr(fcntl, "flock", refuses(code))
    says = f"^{re.escape(str(tmp_path))} cannot be written: "
    with pytest.raises(OSError, match=says + os.strerror(getattr(errno, code))):
        lock_folder(tmp_path).__enter__()


READ_ONLY = {
    "a file": lambda box: write_file(box / "file", b""),
    "a new folder": lambda box: fill(new_folder, box / "new", ""),
    "a new run": lambda box: mark_folder(box / "new"),
    "a run that goes on": lambda box: lock_folder(box).__enter__(),
}


@pytest.fixture
def read_only():
    "An empty folder that is read-only for us; root, who may write anywhere, is somebody else meanwhile."
    with TemporaryDirectory() as outer:
        (box := Path(outer, "box")).mkdir(mode=0o555)
        if is_root := os.geteuid() == 0:
            os.chmod(outer, 0o755)
            os.seteuid(65534)
        yield box
        if is_root:
            os.seteuid(0)


@pytest.mark.posix
@pytest.mark.parametrize("what", READ_ONLY)
def test_a_folder_that_is_read_only_is_named(what, read_only):
    "And nothing else is: no inner name, no number of an error."
    with pytest.raises(OSError) as e:
        READ_ONLY[what](read_only)
    says = r"(/file|/new)? cannot be written: Permission denied"
    assert re.fullmatch(re.escape(str(read_only)) + says, str(e.value))


# what systems, editors and programs that synchronise folders put into them

LITTER = [".DS_Store", "._model.safetensors", "desktop.ini", "Thumbs.db", ".directory"]
LITTER += [".nfs00000000016c2a0400000001", ".fuse_hidden0001", ".~lock.curve.svg#"]
THEIRS = ["model (conflicted copy 2024-05-01).safetensors", ".nfs", "nfs01", "DS_Store"]
THEIRS += ["config.sync-conflict-20240501-101010-ABCDEFG.json", "desktop.ini.txt"]


@pytest.mark.parametrize("name", LITTER)
def test_files_of_the_system_are_no_obstacle(name, tmp_path):
    "Before, and those that appear meanwhile; they stay."
    for use in ("new", "meanwhile"):
        folder = tmp_path / use
        folder.mkdir()
        if use == "new":
            (folder / name).touch()
        with new_folder(folder) as new:
            (new / "config.json").touch()
            (folder / name).touch()
        assert {path.name for path in folder.iterdir()} == {name, "config.json"}
    assert foreign_files(tmp_path, ["*/config.json"]) == []
    (old := tmp_path / "old").mkdir()
    (old / name).touch()
    mark_folder(old)


@pytest.mark.parametrize("name", THEIRS)
def test_copies_of_a_conflict_are_theirs(name, tmp_path):
    (tmp_path / name).touch()
    assert not is_litter(tmp_path / name)
    assert foreign_files(tmp_path, ["config.json", "model.safetensors"]) == [name]
    with pytest.raises(UserError, match=re.escape(f"is not empty ({name}): choose")):
        mark_folder(tmp_path)


def test_nfs_keeps_open_files(tmp_path, monkeypatch):
    "A folder that cannot be emptied is out of the way, and no error."
    (tmp_path / "step").mkdir()
    plain = os.rmdir

    def rmdir(path, **more):
        if ".part" in str(path):
            (Path(path) / ".nfs01").touch()
        plain(path, **more)

    monkeypatch.setattr(os, "rmdir", rmdir)
    remove(tmp_path / "step")
    assert not (tmp_path / "step").exists()
    fill(new_folder, tmp_path / "step", "new")


# killed at any moment


def killed_before_call(n: int, work, *args) -> bool:
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
        work(*args)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


@pytest.mark.posix
def test_a_file_is_the_old_or_the_new_one(tmp_path):
    found = []
    for n in count():
        (tmp_path / "file").write_text("old")
        killed = killed_before_call(n, write_file, tmp_path / "file", b"new")
        found.append((tmp_path / "file").read_text())
        if not killed:
            break
    # killed at the flushing, at the renaming, and when that is done
    assert found[:2] == ["old"] * 2 and set(found[2:]) == {"new"}


@pytest.mark.posix
def test_a_new_folder_is_finished_when_it_has_its_config(tmp_path):
    "Nothing is left beside it, and the command can be given again until files arrive."
    names = {"config.json", "a", "b"}
    for n in count():
        folder = tmp_path / str(n) / "folder"
        killed = killed_before_call(n, fill, new_folder, folder, "new", names)
        assert {path.name for path in folder.parent.iterdir()} <= {"folder"}
        arrived = {path.name for path in folder.glob("[!.]*")}
        if not arrived:
            fill(new_folder, folder, "new", names)
            assert everything(folder).keys() == names
        assert "config.json" not in arrived or arrived == names
        if not killed:
            break
    assert n > 5


def fill(use, folder: Path, text: str, names=("a", "b")) -> None:
    with use(folder) as new:
        for name in names:
            (new / name).write_text(text)


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
    monkeypatch.setattr(files, "check_new_folder", lambda path: None)
    with new_folder(tmp_path / "c", last="a") as new:
        for name in "ab":
            (new / name).touch()
    assert sorted(calls[:2]) == ["a", "b"] and calls[2:] == ["rename", "c"] * 2


# what is there and not ours


def ours(path: Path) -> bool:
    return path.read_text() == "ours"


CASES = [  # of a use: the path, and what is wrong with it (None: nothing)
    ("file", "ours.html", None),
    ("file", "new.html", None),
    ("file", "letter", "this program did not make it"),
    ("file", "to_letter", "this program did not make it"),
    ("file", "home", "is not a regular file"),
    ("file", "none/a.html", "none/a.html cannot be written: No such file"),
    ("folder", "new", None),
    ("folder", "new/and/deeper", None),
    ("folder", "empty", None),
    ("folder", "home", "home is not empty"),
    ("folder", "letter", "letter is a file, not a folder"),
    ("folder", ".", "is not empty"),
]


@pytest.mark.posix
@pytest.mark.parametrize("use, name, says", CASES)
def test_nothing_else_changes(use, name, says, tmp_path, monkeypatch):
    "Neither when it is refused, nor after an error in the middle."
    for path, text in (("ours.html", "ours"), ("letter", "Dear"), ("home/poem", "a")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "empty").mkdir()
    (tmp_path / "to_letter").symlink_to("letter")
    monkeypatch.chdir(tmp_path)
    files = lambda: {k: v for k, v in everything(tmp_path).items() if v is not None}
    before = files()

    def make(fails: bool) -> None:
        path = Path(name)
        with replace_file(path, ours) if use == "file" else new_folder(path) as new:
            (new / "made" if new.is_dir() else new).write_text("new")
            if fails:
                raise KeyError("broken off")

    with pytest.raises((UserError, OSError, KeyError), match=says or "broken off"):
        make(fails=True)
    assert files() == before
    if says is None:
        make(fails=False)
        assert {v for k, v in files().items() if before.get(k) != v} == {b"new"}


def test_an_empty_folder_of_the_user_stays(tmp_path):
    with pytest.raises(KeyError), new_folder(tmp_path):
        raise KeyError
    assert everything(tmp_path) == {} and tmp_path.exists()


def test_what_changes_meanwhile_is_not_replaced(tmp_path):
    with pytest.raises(UserError, match="is not empty"):
        with new_folder(tmp_path / "run"):
            (tmp_path / "run/theirs").touch()
    assert everything(tmp_path).keys() == {"run", "run/theirs"}


def test_json_keeps_letters_as_they_are(tmp_path):
    "Also those of a file name that is not UTF-8."
    path, values = tmp_path / "x.json", {"a": "ü\u2028\udcff", "b": [1.5, None]}
    write_json(path, values)
    assert read_json(path) == values and "ü" in path.read_text(encoding="utf-8")
