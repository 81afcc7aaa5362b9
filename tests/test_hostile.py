"""Nothing of a user's is ever destroyed: every verb on every kind of path, in a sandbox that is compared byte for byte.

A case may change what it was told to make, and nothing else: not what a link leads to, not a neighbour, not another person's folder.
"""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import annotated_transformer.data.corpus
import annotated_transformer.data.grammar
import annotated_transformer.show.heads
from annotated_transformer.cli.main import main
from annotated_transformer.data.grammar import builtin
from annotated_transformer.io.atomic import write_json
from annotated_transformer.io.files import sha256
from annotated_transformer.model.config import get_recipe, override
from annotated_transformer.runs.train_run import RunOptions, resume_run, train_run
from annotated_transformer.show.explorer import is_attention_page

SIZES = [
    "n_layers=1",
    "d_model=8",
    "d_ff=8",
    "n_heads=2",
    "n_pieces=320",
    "max_steps=2",
    "batch_tokens=400",
    "valid_every=1",
    "save_every=1",
    "average_last=0",
    "max_len=60",
]
TEXT = ["--src", "text/en", "--tgt", "text/de"]
NEW = [*TEXT, "--config", "tiny", "--quiet", *SIZES]


def entry(path: Path) -> tuple:
    "What a name is, with its bytes, or where it leads."
    mode = path.lstat().st_mode
    kind = stat.S_IFMT(mode)
    if stat.S_ISREG(mode):
        return kind, path.read_bytes()
    if stat.S_ISLNK(mode):
        return kind, os.readlink(path)
    return kind, None


def everything(folder: Path) -> dict[str, tuple]:
    "All entries below a folder; links are not followed."
    found = {}
    for above, folders, files in os.walk(folder):
        for name in folders + files:
            found[os.path.relpath(os.path.join(above, name), folder)] = entry(
                Path(above, name)
            )
    return found


@pytest.fixture(scope="module")
def pristine(tmp_path_factory) -> Path:
    "A user's folder: letters and pictures, runs of hers, a demo, prepared text, links, a pipe, and run folders that strangers sent."
    box = tmp_path_factory.mktemp("pristine") / "box"
    for name, text in {
        "letter.txt": "Dear Ada",
        "home/photos/step-0000001/model.safetensors": "a picture",
        "home/photos/best.safetensors": "another",
        "home/poem.html": "<!doctype html> roses",
        "home/report.json": "{}",
        "runs/demo.new/thesis.txt": "the only copy",
        "mine/vocab.model": "my own",
        "half/config.json": '{"format": 1}',
        "notes/about.json": '{"format": 1}',
    }.items():
        (box / name).parent.mkdir(parents=True, exist_ok=True)
        (box / name).write_text(text)
    (box / "home/empty").mkdir()
    for side in ("en", "de"):
        (box / "text").mkdir(exist_ok=True)
        (box / "text" / side).write_text(
            "".join(getattr(s, side) + "\n" for s in builtin(60, seed=3)),
            encoding="utf-8",
        )
    recipe = override(get_recipe("tiny"), SIZES)
    corpus = annotated_transformer.data.corpus.load_corpus(
        "builtin", n_train=60, n_valid=10, n_test=3
    )
    train_run(
        corpus,
        recipe,
        box / "runs/mine",
        RunOptions("cpu", prepared=box / "prepared", quiet=True),
    )
    train_run(
        corpus,
        override(recipe, ["max_steps=4"]),
        box / "runs/part",
        RunOptions("cpu", hooks=[Enough()], quiet=True),
    )
    shutil.copytree(box / "runs/part", box / "runs/demo")  # as `demo` leaves it
    resume_run(box / "runs/demo", RunOptions("cpu", quiet=True))
    write_json(
        box / "runs/demo/report.json",
        {
            "format": 1,
            "kind": "demo",
            "weights_sha256": sha256(box / "runs/demo/model.safetensors"),
        },
    )
    shutil.copytree(
        box / "runs/demo", box / "runs/grown"
    )  # a demo that its user has trained further
    shutil.copyfile(
        box / "runs/part/checkpoints/step-0000001/model.safetensors",
        box / "runs/grown/model.safetensors",
    )
    shutil.copytree(box / "runs/demo", box / "runs/annotated")
    (box / "runs/annotated/diary.txt").write_text("today")
    for name, target in {
        "to_letter": "letter.txt",
        "to_run": "runs/mine",
        "to_empty": "home/empty",
        "to_home": "home",
        "loop": "loop",
        "to_nothing": "nowhere/at/all",
        "page.html": "letter.txt",
    }.items():
        (box / name).symlink_to(target)
    os.mkfifo(box / "pipe")
    if os.geteuid() == 0:
        os.mknod(
            box / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3)
        )  # a copy of /dev/null
    strangers(box)
    return box


class Enough:
    "A hook that stops a run after one step."

    def __call__(self, record):
        from annotated_transformer.training.train import Stop

        return Stop("enough")


def strangers(box: Path) -> None:
    "Run folders from elsewhere, each with one thing in it that leads out."
    away = {
        "checkpoints": box / "home/photos",
        "data": box / "mine",
        "metrics.jsonl": box / "letter.txt",
        "curve.svg": box / "letter.txt",
        "model.safetensors": box / "runs/mine/model.safetensors",
        "vocab.model": box / "runs/mine/vocab.model",
        "config.json": box / "runs/mine/config.json",
        "tensorboard": box / "home",
        ".lock": box / "letter.txt",
    }
    for name, target in away.items():
        run = box / "strangers" / name.strip(".").split(".")[0]
        shutil.copytree(box / "runs/part", run)
        if (run / name).is_dir():
            shutil.rmtree(run / name)
        else:
            (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(target)
    deep = shutil.copytree(box / "runs/part", box / "strangers/deep")
    (deep / "checkpoints/step-0000009").symlink_to(box / "home/photos/step-0000001")
    for name, values in {
        "prepared": {"prepared": str(box / "prepared")},
        "source": {
            "source": {"src": str(box / "letter.txt"), "tgt": str(box / "letter.txt")}
        },
    }.items():
        run = shutil.copytree(box / "runs/part", box / "strangers" / name)
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(config | values))
        if name == "source":
            shutil.rmtree(run / "data")


PLACES = [
    "new",
    "letter.txt",
    "home",
    "home/empty",
    "home/photos",
    "home/poem.html",
    "runs",
    "runs/mine",
    "runs/part",
    "runs/demo",
    "runs/grown",
    "runs/annotated",
    "mine",
    "half",
    "notes",
    "prepared",
    "to_letter",
    "to_run",
    "to_empty",
    "to_home",
    "to_nothing",
    "loop",
    "page.html",
    "pipe",
    "device",
    "text",
    "text/en",
    "strangers/checkpoints",
    "strangers/data",
    "strangers/metrics",
    "strangers/curve",
    "strangers/model",
    "strangers/vocab",
    "strangers/config",
    "strangers/tensorboard",
    "strangers/lock",
    "strangers/deep",
    "strangers/prepared",
    "strangers/source",
]
ENDINGS = [
    "",
    "",
    "",
    "/",
    "/.",
    "/..",
    "/nope/..",
    "/deep/er",
    "/../home",
    "/../new",
    "/model.safetensors",
    "/config.json",
    "/checkpoints",
    "/data",
]
VERBS = {
    "train": ["train", "--out", "PLACE", "--device", "cpu", *NEW],
    "train shared": ["train", "--out", "new", "--prepared", "PLACE", *NEW],
    "train wrongly": ["train", "--out", "PLACE", *NEW, "batch_tokens=2"],
    "prepare": ["prepare", "--out", "PLACE", *NEW],
    "prepare shared": ["prepare", "--out", "new", "--prepared", "PLACE", *NEW],
    "resume": ["train", "--resume", "PLACE", "--device", "cpu", "--quiet"],
    "resume shared": [
        "train",
        "--resume",
        "runs/mine",
        "--prepared",
        "PLACE",
        "--device",
        "cpu",
        "--quiet",
    ],
    "resume other": ["train", "--resume", "PLACE", *TEXT, "--device", "cpu", "--quiet"],
    "average": ["average", "PLACE", "--last", "1"],
    "demo": ["demo", "--out", "PLACE"],
    "attention": ["attention", "runs/mine", "a dog.", "--out", "PLACE"],
    "attention of": ["attention", "PLACE", "a dog.", "--out", "new.html"],
    "export-ct2": ["export-ct2", "runs/mine", "PLACE"],
    "export-ct2 of": ["export-ct2", "PLACE", "new"],
    "export-hf": ["export-hf", "runs/mine", "PLACE"],
    "export-hf of": ["export-hf", "PLACE", "new"],
    "import-marian": ["import-marian", "PLACE", "new"],
    "variations": [
        "variations",
        "--data",
        "builtin",
        "--rows",
        "base",
        "--seeds",
        "1",
        "--device",
        "cpu",
        "--quiet",
        "--out",
        "PLACE",
        *SIZES,
    ],
    "translate": ["translate", "PLACE", "text/en", "--beam-size", "1"],
    "score": [
        "score",
        "PLACE",
        "--src",
        "text/en",
        "--ref",
        "text/de",
        "--beam-size",
        "1",
    ],
}


@pytest.fixture(scope="module")
def small():
    "A demo of seconds: the same code on less text."
    patch = pytest.MonkeyPatch()
    load, few, it = (
        annotated_transformer.data.corpus.load_corpus,
        annotated_transformer.data.grammar.builtin,
        annotated_transformer.show.heads.pronoun_sentences,
    )
    patch.setattr(
        "annotated_transformer.data.corpus.load_corpus",
        lambda name, *_, **__: load(name, n_train=60, n_valid=10, n_test=3),
    )
    patch.setattr(
        "annotated_transformer.data.grammar.builtin",
        lambda n, **more: few(min(n, 5), **more),
    )
    patch.setattr(
        "annotated_transformer.show.heads.pronoun_sentences",
        lambda n, **more: it(min(n, 20), **more)[:3],
    )
    patch.setattr(
        "annotated_transformer.model.config.get_recipe",
        lambda name: override(get_recipe(name), SIZES),
    )
    patch.delenv("ANNOTATED_TRANSFORMER_DATA", raising=False)
    yield
    patch.undo()


def targets(box: Path, verb: str, place: str) -> set[str]:
    "The entries that a call names as what it makes or changes, as the system resolves them."
    words, options = VERBS[verb], ("--out", "--prepared", "--resume")
    named = [word for i, word in enumerate(words) if words[i - 1] in options]
    named += {
        "export-ct2": words[2:],
        "export-ct2 of": words[2:],
        "export-hf": words[2:],
        "export-hf of": words[2:],
        "import-marian": words[2:],
        "average": words[1:2],
    }.get(verb, [])
    return {
        os.path.relpath(os.path.realpath(box / word.replace("PLACE", place)), box)
        for word in named
    }


def may_change(box: Path, verb: str, target: str, before: dict) -> bool:
    "May this verb replace what was there already, in its target or below?"
    if verb in (
        "resume",
        "resume shared",
        "resume other",
        "average",
    ) and target.startswith("runs/"):
        return target in {
            f"runs/{name}" for name in ("mine", "part", "demo", "grown", "annotated")
        }
    if verb == "average" and target.startswith("strangers/"):
        return True  # the user's by now, as far as nothing outside it changes
    if verb == "demo":
        return target == "runs/demo"
    return False


cases = st.tuples(
    st.sampled_from(sorted(VERBS)), st.sampled_from(PLACES), st.sampled_from(ENDINGS)
)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and links")
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases)
@example(case=("train wrongly", "new", "/.."))
@example(case=("demo", "new", "/nope/.."))
@example(case=("demo", "runs/mine", ""))
@example(case=("demo", "runs/demo", ""))
@example(case=("attention", "runs/mine/model.safetensors", ""))
@example(case=("attention", "device", ""))
@example(case=("resume", "strangers/checkpoints", ""))
@example(case=("resume", "strangers/prepared", ""))
@example(case=("resume", "strangers/source", ""))
@example(case=("prepare shared", "mine", ""))
@example(case=("train", "to_empty", ""))
@example(case=("train wrongly", "to_empty", ""))
@example(case=("train wrongly", "home/empty", ""))
@example(case=("export-ct2", "to_empty", ""))
@example(case=("export-hf", "to_empty", ""))
def test_nothing_of_others_changes(case, pristine, small, sandbox, capfd):
    verb, place, ending = case
    box, before = sandbox.box, sandbox.before
    was = Path.cwd()
    os.chdir(box)
    try:
        named = targets(box, verb, place + ending)
        with pytest.raises(SystemExit) as left:
            main([word.replace("PLACE", place + ending) for word in VERBS[verb]])
    finally:
        os.chdir(was)
    err, after = capfd.readouterr().err, everything(box)
    changed = {
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    }
    try:
        assert "Traceback" not in err, err
        assert not (left.value.code and changed), (changed, err)
        for name in changed:
            at = next(
                (
                    target
                    for target in named
                    if (name + "/").startswith(target + "/")
                    or (target + "/").startswith(name + "/")
                ),
                None,
            )
            assert at is not None, (name, "is not what was named", err)
            assert name not in before or may_change(box, verb, at, before), (
                name,
                "was there before",
                err,
            )
    finally:
        if changed & before.keys():
            renewed(pristine, box)
        else:
            removed(box, changed)


class Sandbox:
    "A copy of the user's folder that each case leaves as it was, and the entries in it."

    def __init__(self, pristine: Path, box: Path):
        renewed(pristine, box)
        self.box, self.before = box, everything(box)


@pytest.fixture(scope="module")
def sandbox(pristine, tmp_path_factory) -> Sandbox:
    return Sandbox(pristine, tmp_path_factory.mktemp("sandbox") / "box")


def removed(box: Path, names: set[str]) -> None:
    "Remove entries that a case has made, the deepest first."
    for name in sorted(names, reverse=True):
        path = box / name
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def renewed(pristine: Path, box: Path) -> None:
    shutil.rmtree(box, ignore_errors=True)
    copied(pristine, box)


def copied(source: Path, target: Path) -> None:
    "A copy of the sandbox in which links that led into the sandbox lead into the copy, and pipes and devices are made anew."
    shutil.copytree(
        source,
        target,
        symlinks=True,
        ignore=lambda folder, names: [
            name
            for name in names
            if not (
                Path(folder, name).is_symlink()
                or Path(folder, name).is_file()
                or Path(folder, name).is_dir()
            )
        ],
    )
    os.mkfifo(target / "pipe")
    if (source / "device").exists() and os.geteuid() == 0:
        os.mknod(target / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    for above, folders, files in os.walk(target):
        for path in (Path(above, name) for name in folders + files):
            if path.is_symlink() and os.readlink(path).startswith(str(source)):
                to = os.readlink(path).replace(str(source), str(target))
                path.unlink()
                path.symlink_to(to)
            elif path.name == "config.json" and str(source) in path.read_text(
                errors="replace"
            ):
                path.write_text(path.read_text().replace(str(source), str(target)))


def test_a_page_is_known(tmp_path):
    (tmp_path / "page.html").write_text('<!doctype html>\n<html lang="en">')
    assert not is_attention_page(tmp_path / "page.html")
