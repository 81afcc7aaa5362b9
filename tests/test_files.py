"Files: whole or not at all, only our own, and one process at a time."

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_hostile import everything

from annotated_transformer import UserError
from annotated_transformer.io import atomic
from annotated_transformer.io.atomic import (
    FolderLock,
    check_new_folder,
    new_folder,
    remove,
    remove_known,
    remove_stale_staging,
    replace_file,
    write_file,
    write_json,
)
from annotated_transformer.io.files import (
    check_no_links,
    path_type,
    read_file,
    read_json,
    resolve,
)


def python(code: str, *args: object, **more) -> subprocess.Popen:
    "A process of its own that has the names of both modules."
    names = (
        "from annotated_transformer import UserError; from annotated_transformer.io.files import *; "
        "from annotated_transformer.io.atomic import *"
    )
    code = f"import os, signal, sys, time; from pathlib import Path; {names}\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


# the lock

HOLD = "with FolderLock(sys.argv[1]): print('held', flush=True); time.sleep(60)"


def test_one_process_at_a_time_and_who_it_is(tmp_path):
    holder = python(HOLD, tmp_path)
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(
            UserError,
            match=rf"is in use by process {holder.pid} on '.+' since 20\d\d-.*: wait, or stop it first",
        ):
            with FolderLock(tmp_path):
                pass
    finally:
        holder.kill()
    holder.communicate()
    assert (tmp_path / ".lock").exists(), "a killed process cannot clean up"
    with FolderLock(tmp_path) as lock:
        lock.check()
    assert list(tmp_path.iterdir()) == []


def test_many_want_it_and_one_has_it(tmp_path):
    "Four processes take turns at a counter, which would lose steps if two held the lock at once."
    code = """for _ in range(25):
    while True:
        try:
            with FolderLock(sys.argv[1]):
                path = Path(sys.argv[1]) / "count"
                n = int(path.read_text())
                time.sleep(0.0005)
                path.write_text(str(n + 1))
            break
        except UserError: time.sleep(0.001)"""
    (tmp_path / "count").write_text("0")
    processes = [python(code, tmp_path) for _ in range(4)]
    for process in processes:
        assert process.communicate(timeout=120)[1] == "" and process.returncode == 0
    assert (tmp_path / "count").read_text() == "100" and [
        p.name for p in tmp_path.iterdir()
    ] == ["count"]


def test_a_lock_that_was_removed_before_it_was_taken(tmp_path, monkeypatch):
    "Its last holder removes it: what is locked then has no name, and would keep nobody out."
    plain, handles = atomic._try_lock, []

    def late(handle):
        if not handles:
            (tmp_path / ".lock").unlink()
        handles.append(handle)
        return plain(handle)

    monkeypatch.setattr(atomic, "_try_lock", late)
    with FolderLock(tmp_path) as lock:
        lock.check()
        with pytest.raises(UserError, match="is in use by process"):
            with FolderLock(tmp_path):
                pass
    assert len(handles) == 3


def gone(folder):
    shutil.rmtree(folder)


def another(folder):
    shutil.rmtree(folder), folder.mkdir(), (folder / ".lock").touch()


def unlocked(folder):
    (folder / ".lock").unlink()


@pytest.mark.parametrize("change", [gone, another, unlocked], ids=lambda f: f.__name__)
def test_a_folder_that_was_removed_is_noticed(tmp_path, change):
    folder = tmp_path / "run"
    folder.mkdir()
    with FolderLock(folder) as lock:
        lock.check()
        change(folder)
        with pytest.raises(
            UserError, match="run was removed or replaced by someone else"
        ):
            lock.check()
    assert change is not another or (folder / ".lock").exists(), (
        "another process's lock is not removed"
    )


@pytest.mark.parametrize("kind", ["link", "folder", "special file"])
def test_a_lock_that_is_none(tmp_path, kind):
    (tmp_path / "letter").write_text("Dear Ada")
    lock = tmp_path / ".lock"
    {
        "link": lambda: lock.symlink_to("letter"),
        "folder": lock.mkdir,
        "special file": lambda: os.mkfifo(lock),
    }[kind]()
    with pytest.raises(UserError, match=f".lock is a {kind}"):
        with FolderLock(tmp_path):
            pass
    assert (tmp_path / "letter").read_text() == "Dear Ada"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', "\xff" * 2000]
)
def test_a_holder_that_says_nonsense(tmp_path, text):
    with FolderLock(tmp_path):
        (tmp_path / ".lock").write_text(text)
        with pytest.raises(UserError, match="is in use by another process"):
            with FolderLock(tmp_path):
                pass


def test_a_lock_of_somebody_else(tmp_path):
    "A file of the user's that happens to have this name, or that is a second name of one: neither is overwritten nor removed."
    for name in ("mine", "linked"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine/.lock").write_text("notes")
    (tmp_path / "precious").write_text("")
    os.link(tmp_path / "precious", tmp_path / "linked/.lock")
    for name in ("mine", "linked"):
        with pytest.raises(UserError, match="is not a lock of this program"):
            with FolderLock(tmp_path / name):
                pass
    assert (
        (tmp_path / "mine/.lock").read_text() == "notes"
        and (tmp_path / "precious").read_text() == ""
        and (tmp_path / "linked/.lock").exists()
    )


def test_a_lock_when_the_disk_is_full(tmp_path, monkeypatch):
    "The folder is named, and the lock is not held by whoever failed to take it."

    def full(*_):
        raise OSError(28, "No space left on device")

    with (
        monkeypatch.context() as patch,
        pytest.raises(OSError, match=".lock cannot be written: No space left"),
    ):
        patch.setattr(os, "pwrite", full)
        with FolderLock(tmp_path):
            pass
    with FolderLock(tmp_path) as lock:
        lock.check()


def test_a_forked_child_leaves_the_lock(tmp_path):
    with FolderLock(tmp_path) as lock:
        child = (
            python(
                "pid = os.fork() if (lock := FolderLock(sys.argv[1])).__enter__() else 0\n"
                "if pid == 0: lock.__exit__(); os._exit(0)\n"
                "os.waitpid(pid, 0); print(lock.is_held())",
                tmp_path / "inner",
            )
            if (tmp_path / "inner").mkdir() is None
            else None
        )
        assert child.communicate()[0] == "True\n"
        lock.check()


def test_killed_between_two_renamings(tmp_path):
    "Neither the old folder nor the new one is lost: the staging folder that holds both is left alone."
    code = """real, calls = os.rename, []
def rename(*paths):
    calls.append(1)
    if len(calls) == 2: os._exit(9)
    real(*paths)
os.rename = rename
with new_folder(sys.argv[1], lambda path: None) as new: (new / "x").write_text("new")"""
    (tmp_path / "c").mkdir()
    (tmp_path / "c/x").write_text("old")
    process = python(code, tmp_path / "c")
    process.communicate()
    assert process.returncode == 9 and not (tmp_path / "c").exists()
    remove_stale_staging(tmp_path)
    (part,) = tmp_path.iterdir()
    assert (part / "old/x").read_text() == "old" and (
        part / "new/x"
    ).read_text() == "new"


def test_without_locks(tmp_path, monkeypatch, capsys):
    "A disk that knows no locks: said once, and work goes on."
    import fcntl

    def refuses(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with FolderLock(tmp_path) as lock:
        lock.check()
    assert "cannot be locked" in capsys.readouterr().err
    write_file(tmp_path / "a", b"1")
    remove_stale_staging(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


# what killed processes leave


def test_staging_is_swept_when_nobody_holds_it(tmp_path):
    code = "with new_folder(sys.argv[1]) as new: (new / 'half').write_text('half'); print('held', flush=True); time.sleep(60)"
    holder = python(code, tmp_path / "run")
    try:
        assert holder.stdout.readline() == "held\n"
        remove_stale_staging(tmp_path)
        assert len(list(tmp_path.iterdir())) == 1, "somebody is writing in it"
    finally:
        holder.kill()
    holder.communicate()
    kept = {
        ".annotated_transformer-mine.part": None,
        ".annotated_transformer-x.part": "{}",
        ".annotated_transformer-y.part": '{"format": 2}',
    }
    for name, marker in kept.items():
        (tmp_path / name).mkdir()
        if marker:
            (tmp_path / name / "staging.json").write_text(marker)
    (tmp_path / ".annotated_transformer-file.part").touch()
    (tmp_path / "away").mkdir()
    (tmp_path / "away/staging.json").write_text('{"format": 1, "kind": "staging"}')
    (tmp_path / ".annotated_transformer-link.part").symlink_to("away")
    remove_stale_staging(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        *kept,
        ".annotated_transformer-file.part",
        "away",
        ".annotated_transformer-link.part",
    }


WORK = {
    "file": "write_file(box / 'a', b'n' * 10 ** 7)",
    "remove": "remove(box / 'b', box); (box / 'b').mkdir()",
    "folder": "with new_folder(box / 'c', lambda path: None) as new: (new / 'x').write_bytes(b'n' * 10 ** 6); (new / 'y').write_bytes(b'n')",
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_killed_at_any_moment(tmp_path, work):
    "What is there is the old or the new, whole; what is left over is swept away."
    code = f"box = Path(sys.argv[1]); print('go', flush=True)\nwhile True:\n    {work}"
    for i in range(8):
        for name in "bc":
            (tmp_path / name).mkdir(exist_ok=True)
        if not (tmp_path / "c/x").exists():
            (
                (tmp_path / "c/x").write_bytes(b"o" * 10**6),
                (tmp_path / "c/y").write_bytes(b"o"),
            )
        if not (tmp_path / "a").exists():
            write_file(tmp_path / "a", b"o" * 10**7)
        process = python(code, tmp_path)
        process.stdout.readline()
        time.sleep(0.003 * (i + 1))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert (tmp_path / "a").read_bytes() in (b"o" * 10**7, b"n" * 10**7)
        if (
            path_type(tmp_path / "c") == "folder"
        ):  # between its two renamings it has no name: then both are in the staging folder
            assert (
                (tmp_path / "c/x").read_bytes()[:1],
                (tmp_path / "c/y").read_bytes(),
            ) in ((b"o", b"o"), (b"n", b"n"))
        remove_stale_staging(tmp_path)
        for left in tmp_path.glob(
            ".*"
        ):  # killed before it had a marker, with nothing in it; or while it exchanged two folders
            if not (left / "old").exists():
                assert [path.stat().st_size for path in left.rglob("*")] in ([], [0])
            elif not (tmp_path / "c").exists():
                assert (
                    len(
                        {*(left / "old/x").read_bytes(), *(left / "old/y").read_bytes()}
                    )
                    == 1
                )
            shutil.rmtree(left)
        assert {p.name for p in tmp_path.iterdir()} <= set("abc")


# every function on every kind of path


def sandbox(box: Path) -> None:
    for name, text in {
        "ours/config.json": "{}",
        "ours/weights": "1",
        "home/letter": "Dear",
        "home/deep/poem": "roses",
        "file": "text",
    }.items():
        (box / name).parent.mkdir(parents=True, exist_ok=True)
        (box / name).write_text(text)
    (box / "empty").mkdir()
    for name, target in {
        "ours/away": "../home",
        "ours/letter": "../home/letter",
        "to_home": "home",
        "to_file": "file",
        "to_empty": "empty",
        "loop": "loop",
        "to_nothing": "none/at/all",
        "ours/up": "..",
    }.items():
        (box / name).symlink_to(target)
    os.mkfifo(box / "pipe")


class Foreign(UserError):
    "What `check` says of a folder that is not ours."


def only_ours(path: Path) -> None:
    if path.name != "ours":
        raise Foreign(f"{path} is not ours")


def make(context) -> None:
    with context as new:
        new.mkdir(exist_ok=True), (new / "made").write_text("new")


def fill(context) -> None:
    with context as new:
        new.write_text("new")


def break_off(context) -> None:
    with context as new:
        if new.is_dir():
            (new / "made").write_text("new")
        raise KeyError("broken off")


USES = {
    "a file if it is ours": lambda path: fill(
        replace_file(path, lambda path: path.parent.name == "ours")
    ),
    "a file, broken off": lambda path: break_off(replace_file(path)),
    "a new folder": lambda path: make(new_folder(path)),
    "a new folder, broken off": lambda path: break_off(new_folder(path)),
    "a folder if it is ours": lambda path: make(new_folder(path, only_ours)),
    "a folder, broken off": lambda path: break_off(new_folder(path, only_ours)),
    "remove": lambda path: remove(path, Path("ours")),
    "remove known": lambda path: (
        only_ours(resolve(path)),
        remove_known(path, {"weights", "away"}),
    ),
    "lock": lambda path: FolderLock(path).__enter__().__exit__(),
    "sweep": lambda path: remove_stale_staging(resolve(path)),
    "json": lambda path: (
        write_json(path, {"a": 1}) if resolve(path).parent.name == "ours" else None
    ),
}
PARTS = [
    "ours",
    "home",
    "deep",
    "file",
    "empty",
    "to_home",
    "to_file",
    "to_empty",
    "loop",
    "to_nothing",
    "pipe",
    "away",
    "up",
    "letter",
    "weights",
    "none",
    "..",
    ".",
    "config.json",
]


@settings(max_examples=600, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    use=st.sampled_from(sorted(USES)),
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=4),
)
def test_nothing_else_changes(use, parts, tmp_path_factory, monkeypatch):
    "Whatever the path: what is there and not ours stays, byte for byte, and an error changes nothing at all."
    outside = tmp_path_factory.getbasetemp() / "outside"
    shutil.rmtree(outside, ignore_errors=True)
    box = outside / "box"
    sandbox(box)
    (outside / "neighbour").write_text("me")
    monkeypatch.chdir(box)
    before, refused = everything(outside), None
    try:
        USES[use](Path(*parts))
    except (UserError, OSError, KeyError) as e:
        refused = e
    finally:
        monkeypatch.chdir("/")
    after = everything(outside)
    changed = {
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }
    if refused:
        assert not changed, refused
    for name in changed:
        if name in before and before[name][0] != stat.S_IFDIR:
            assert name.startswith("box/ours/"), name
        assert not name.startswith(
            ("box/home/letter", "box/home/deep/poem", "neighbour")
        ), name


def test_the_reader_of_a_pipe_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for read in (read_file, read_json):
        with pytest.raises(UserError, match="pipe is a special file"):
            read(tmp_path / "pipe")


@pytest.mark.parametrize(
    "path, says",
    [
        ("a\0b", "is no path"),
        ("new/..", "no folder"),
        ("file/..", "no folder"),
        ("file/../x", "no folder"),
    ],
)
def test_paths_that_are_none(tmp_path, monkeypatch, path, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=says):
        check_new_folder(Path(path))


def test_an_empty_folder_of_the_users_stays_the_same_folder(tmp_path):
    "Also when it is somebody's current folder, or a mounted one: it is filled, not replaced."
    (tmp_path / "empty").mkdir(mode=0o750)
    before = (tmp_path / "empty").stat()
    make(new_folder(tmp_path / "empty"))
    assert (tmp_path / "empty").stat().st_ino == before.st_ino and (
        tmp_path / "empty"
    ).stat().st_mode == before.st_mode
    assert [p.name for p in (tmp_path / "empty").iterdir()] == ["made"]


def test_a_name_taken_meanwhile_is_not_overwritten(tmp_path):
    with pytest.raises(FileExistsError, match="page cannot be written"):
        with replace_file(tmp_path / "page") as new:
            new.write_text("ours")
            (tmp_path / "page").write_text("theirs")
    assert (tmp_path / "page").read_text() == "theirs"
    with pytest.raises(OSError, match="run cannot be written"):
        with new_folder(tmp_path / "run") as new:
            (tmp_path / "run").mkdir()
            (tmp_path / "run/theirs").touch()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["theirs"] and len(
        list(tmp_path.iterdir())
    ) == 2


def test_a_folder_that_may_be_written_but_not_read(tmp_path, monkeypatch):
    "Its list of names cannot be opened to be flushed: all is made, and no error says that it could not be written."
    opened = os.open

    def refused(path, flags, *more, **named):
        if Path(path) == tmp_path:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refused)
    write_file(tmp_path / "new", b"one")
    write_file(tmp_path / "new", b"two")
    with new_folder(tmp_path / "folder") as new:
        (new / "a").write_text("a")
    monkeypatch.undo()
    assert (tmp_path / "new").read_bytes() == b"two"
    assert sorted(everything(tmp_path)) == ["folder", "folder/a", "new"]


def test_a_folder_that_changes_meanwhile_is_not_replaced(tmp_path):
    "What it holds is looked at before the work, and again before it is moved away."
    run = tmp_path / "run"
    run.mkdir()
    (run / "ours").touch()

    def only_ours(folder):
        if [path.name for path in folder.iterdir()] != ["ours"]:
            raise Foreign(f"{folder} is not ours alone")

    with pytest.raises(Foreign):
        with new_folder(run, only_ours) as new:
            (new / "ours").write_text("new")
            (run / "letter").write_text("Dear")
    assert (
        (run / "letter").read_text() == "Dear"
        and (run / "ours").read_text() == ""
        and list(tmp_path.iterdir()) == [run]
    )


def test_settings_come_last_into_an_empty_folder(tmp_path, monkeypatch):
    "Whoever finds them finds all else: a reader asks for them first."
    plain, found = atomic._move_new, []

    def moved(source, target):
        plain(source, target)
        found.append(
            {
                path.name
                for path in target.parent.iterdir()
                if not path.name.startswith(".")
            }
        )

    monkeypatch.setattr(atomic, "_move_new", moved)
    (tmp_path / "run").mkdir()
    with new_folder(tmp_path / "run") as new:
        for name in ("a", "config.json", "z"):
            (new / name).touch()
    assert (
        len(found) == 3
        and found[1] == {"a", "z"}
        and found[2] == {"a", "z", "config.json"}
    )


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", ["a", "a/b", "a/b/c"])
def test_a_folder_must_hold_its_files_itself(tmp_path, kind, name):
    (tmp_path / "run/a/b").mkdir(parents=True)
    path = tmp_path / "run" / name
    if path.is_dir():
        shutil.rmtree(path)
    if kind == "link":
        path.symlink_to(tmp_path)
    else:
        os.mkfifo(path)
    with pytest.raises(UserError, match=f"{path.name} is a (link|special file)"):
        check_no_links(tmp_path / "run", {"a", "missing"})
    check_no_links(tmp_path / "run", {"missing"})


def test_json_that_is_none(tmp_path):
    for text in ("", "[1]", "nul", "\xff", "[" * 100_000, '{"a": 1' + "0" * 5000 + "}"):
        (tmp_path / "x.json").write_text(text, encoding="latin-1")
        with pytest.raises(
            UserError, match="x.json (cannot be read as JSON|holds no JSON object)"
        ):
            read_json(tmp_path / "x.json")
    write_json(tmp_path / "x.json", {"a": "ü\u2028"})
    assert (
        read_json(tmp_path / "x.json")
        == {"a": "ü\u2028"}
        == json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize("marker", [None, b""], ids=["no marker", "empty marker"])
def test_staging_killed_before_its_marker_was_written(tmp_path, marker):
    "It may be another process's, unless a lock keeps others out; files stay."
    part, full = (tmp_path / f".annotated_transformer-{x}.part" for x in ("a", "b"))
    for folder in (part, full):
        folder.mkdir()
        if marker is not None:
            (folder / "staging.json").write_bytes(marker)
    (full / "precious").write_text("text", encoding="utf-8")
    remove_stale_staging(tmp_path)
    assert part.exists() and full.exists()
    remove_stale_staging(tmp_path, is_locked=True)
    assert not part.exists() and (full / "precious").exists()
