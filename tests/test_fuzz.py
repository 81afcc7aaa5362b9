"""The command line under nonsense: one line on standard error, exit status 2, and nothing half-written.

What is given to it is in `tests/fuzz/`, a case a line; what is longer is made here.
"""

import gzip
import io
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from annotated_transformer.cli.main import main
from annotated_transformer.data.grammar import builtin
from annotated_transformer.export.hugging_face import export_hf
from annotated_transformer.export.marian import import_marian

FUZZ = Path(__file__).parent / "fuzz"
SIZES = "n_layers=1 d_model=16 d_ff=32 n_heads=2 n_pieces=320 max_steps=4 max_len=120 "
SIZES += "batch_tokens=400 valid_every=2 save_every=2 average_last=0"
NEW = ["--config", "tiny", "--out", "new", "--quiet", *SIZES.split()]
TRAIN = ["train", "--src", "en", "--tgt", "de", "--device", "cpu", *NEW]
RESUME = ["train", "--resume", "run", "--device", "cpu", "--quiet"]
IMPORT = ["import-marian", "marian", "new"]
TRANSLATE = ["translate", "run", "one"]
AVERAGE = ["average", "run", "--last", "2"]
LAST = "run/checkpoints/step-0000004"


# one call


def snapshot(folder: Path) -> dict[str, bytes | None]:
    "Every file and folder below, with its bytes."
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def call(capfd, *args: str) -> tuple[int, str, str]:
    "Exit status, standard output and standard error of one call, what C++ prints included."
    capfd.readouterr()
    with pytest.raises(SystemExit) as left:
        main(list(args))
    said = capfd.readouterr()
    return left.value.code, said.out, said.err


def refused(capfd, work: Path, *args: str, out: bool = False) -> str:
    "The line that a wrong call ends with; the folder stays what it was. `out`: lines before the wrong one may have been answered."
    before = snapshot(work)
    status, said, err = call(capfd, *args)
    assert status == 2, (args, status, said, err)
    assert err.startswith("annotated-transformer: ") and len(err) > 30, err
    assert err.count("\n") == 1 and err.endswith("\n"), err
    assert said == "" or out and said.endswith("\n"), said
    after = snapshot(work)
    assert before == after, before.keys() ^ after.keys()
    return err


# what there is to work with


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> tuple[Path, dict]:  # and what is in it
    "A folder with two texts, a run of four steps, a Marian checkpoint and its import, a file, an empty folder and a full one."
    folder, text = tmp_path_factory.mktemp("fuzz"), builtin(300, seed=3)
    for name, lines in {
        "en": [s.en for s in text],
        "de": [s.de for s in text],
        "one": ["a dog."],
        "file": [],
    }.items():
        lines = "".join(f"{line}\n" for line in lines)
        (folder / name).write_text(lines, encoding="utf-8", newline="")
    (folder / "folder").mkdir()
    (folder / "full").mkdir()
    (folder / "full/mine").write_text("keep me")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.chdir(folder)
        main(["run" if word == "new" else word for word in TRAIN])
    assert left.value.code == 0
    export_hf(folder / "run", folder / "marian")
    for name in ("generation_config.json", "README.md", "tokenizer_config.json"):
        (folder / "marian" / name).unlink()  # an older checkpoint has none
    import_marian(folder / "marian", folder / "imported")
    return folder, snapshot(folder)


@pytest.fixture
def work(good, monkeypatch) -> Path:
    "That folder, where one case may do what it likes: afterwards it is made again what it was."
    folder, was = good
    monkeypatch.chdir(folder)
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_DATA", raising=False)
    yield folder
    restore(folder, was)


def restore(folder: Path, was: dict[str, bytes | None]) -> None:
    "Remove what is new in a folder, and write what is missing or changed."
    now = snapshot(folder)
    for name in sorted(now.keys() - was.keys(), reverse=True):
        path = folder / name
        path.rmdir() if path.is_dir() else path.unlink()
    for name, data in was.items():
        if data is None:
            (folder / name).mkdir(exist_ok=True)
        elif now.get(name) != data:
            (folder / name).write_bytes(data)


def lines_of(name: str) -> list:
    "The cases of one file of the corpus, each with its number for a name."
    lines = (FUZZ / name).read_text(encoding="utf-8").split("\n")[:-1]
    values = enumerate(map(json.loads, lines), start=1)
    return [pytest.param(x, id=f"{name}:{i}") for i, x in values]


def changed(path: Path, changes: dict) -> None:
    "Replace values of a JSON file, or all of its text."
    if "text" in changes:
        path.write_text(changes["text"], encoding="utf-8")
        return
    values = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        *steps, last = name.split(".")
        place = values
        for step in steps:
            place = place[step]
        place[last] = value
    path.write_text(json.dumps(values))


READERS = [
    TRANSLATE,
    ["score", "run", "--src", "one", "--ref", "one"],
    ["attention", "run", "a dog", "--out", "a.html"],
    ["export-ct2", "run", "new"],
    ["export-hf", "run", "new"],
    ["live", "run", "--out", "l.html"],
]


def reader(case: object) -> list[str]:
    "One of the commands that load a run, by turns."
    return READERS[sum(str(case).encode()) % len(READERS)]


# options, settings, and files of settings


@pytest.mark.parametrize("words", lines_of("commands.jsonl"))
def test_commands(words, work, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog.\n")))
    if isinstance(words, list):
        refused(capfd, work, *words, out="--perplexity" in words)
    else:
        status, _, err = call(capfd, *words["ok"])
        assert status == 0 and "Traceback" not in err, err


CONFIGS = {  # cases of tests/fuzz, to the file that they change, and who reads it
    "config": ("run/config.json", reader),
    "resume": ("run/config.json", lambda case: RESUME),
}


@pytest.mark.parametrize(
    "cases, changes",
    [
        pytest.param(name, *case.values, id=case.id)
        for name in CONFIGS
        for case in lines_of(f"{name}.jsonl")
    ],
)
def test_config(cases, changes, work, capfd):
    file, command = CONFIGS[cases]
    changed(work / file, changes)
    refused(capfd, work, *command(changes))


# bytes

FILES = {  # where a file belongs, and which command reads it
    "run/config.json": TRANSLATE,
    "run/vocab.model": TRANSLATE,
    "run/model.safetensors": ["export-ct2", "run", "new"],
    f"{LAST}/model.safetensors": AVERAGE,
    f"{LAST}/optimizer.safetensors": RESUME,
    f"{LAST}/state.json": AVERAGE,
    "marian/source.spm": IMPORT,
    "marian/target.spm": IMPORT,
    "marian/model.safetensors": IMPORT,
    "imported/target.spm": ["translate", "imported", "one"],
    "imported/model.safetensors": ["translate", "imported", "one"],
}


@pytest.mark.parametrize("file", FILES)
def test_damaged_files(file, work, capfd):
    whole = (work / file).read_bytes()
    damaged = [b"", bytes(99), whole[: len(whole) // 2]]
    damaged += [b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.", b"[" * 100_000]
    if file.endswith("json"):
        damaged.append(b'{"format": 1' + b"0" * 5000 + b"}")
    for data in damaged:
        (work / file).write_bytes(data)
        assert len(refused(capfd, work, *FILES[file])) < 1000
    (work / file).unlink()
    if not file.startswith(LAST):  # resuming a finished run does without
        refused(capfd, work, *FILES[file])
    (work / file).mkdir()
    refused(capfd, work, *FILES[file])
    (work / file).rmdir()


# tensors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_are_taken(dtype, work, capfd):
    "Half precision, and double, are how others keep weights: they are read and become float32."
    for file in ("run/model.safetensors", "marian/model.safetensors"):
        weights = {name: t.to(dtype) for name, t in load_file(work / file).items()}
        save_file(weights, work / file)
    assert call(capfd, *TRANSLATE)[0] == call(capfd, *IMPORT)[0] == 0


# text

NOISE = random.Random(0).randbytes(2000)
WRONG_TEXT = {
    "noise": (NOISE, "is not UTF-8"),
    "one wrong byte": (b"a dog\n" * 99 + b"a \xff dog\n", "is not UTF-8"),
    "no gzip": (b"a dog\n", "bad.gz"),
    "gzip cut short": (gzip.compress(b"a dog\n" * 99, mtime=0)[:-9], "bad.gz"),
    "noise behind gzip": (gzip.compress(b"a dog\n", mtime=0) + b"more", "bad.gz"),
    "nothing": (b"", "bad"),
    "a mark alone": (b"\xef\xbb\xbf", "bad"),
}
VALID = ["--valid-src", "FILE", "--valid-tgt", "OTHER"]
READING = {  # OTHER has as many lines as FILE
    "translate": ["translate", "run", "FILE"],
    "train": ["train", "--src", "OTHER", "--tgt", "FILE", *NEW],
    "prepare": ["prepare", "--src", "en", "--tgt", "de", *VALID, *NEW],
    "score a run": ["score", "run", "--src", "FILE", "--ref", "OTHER"],
    "score": ["score", "OTHER", "--ref", "FILE"],
}


@pytest.mark.parametrize("kind", WRONG_TEXT)
def test_text_that_is_none(kind, work, capfd):
    data, says = WRONG_TEXT[kind]
    file = "bad.gz" if says == "bad.gz" else "bad"
    (work / file).write_bytes(data)
    n_lines = data.count(b"\n") + (data[-1:] != b"\n")
    (work / "other").write_bytes(b"a cat\n" * n_lines)
    names = {"FILE": file, "OTHER": "other"}
    for command, words in READING.items():
        words = [names.get(word, word) for word in words]
        if command != "translate":
            err = refused(capfd, work, *words)
        elif says == "is not UTF-8":
            err = refused(capfd, work, *words, out=True)
        else:
            continue
        assert says in err and len(err) < 500


ODD_TEXT = {  # unusual, and right: its lines
    "zeros": (b"a\0dog\n\0\n\0\0\0\n", 3),
    "CRLF": (b"a dog\r\na\rcat\r\n", 2),
    "other line breaks": ("a\u2028b\u0085c\x0b\x0c\x1c\u2029d\n".encode(), 1),
    "blanks alone": (b" \t \n\xc2\xa0\n", 2),
    "emoji and accents": ("👩‍👩‍👧‍👦 é̂̂̂̂̂ ﷽\n".encode(), 1),
    "sign of a space": ("▁▁a▁\n▁\n".encode(), 2),
    "special pieces": (b"<s> </s> <pad> <unk> <0x0A> <0xFF>\n", 1),
    "controls": (bytes(range(1, 10)) + b"\x1b[2J\x7f\n", 1),
}


@pytest.mark.parametrize("kind", ODD_TEXT)
def test_odd_text_is_text(kind, work, capfd):
    "As many lines out as in, and nothing else on standard error."
    data, n_lines = ODD_TEXT[kind]
    (work / "odd").write_bytes(data)
    for run in ("run", "imported"):
        status, out, err = call(capfd, "translate", run, "odd")
        assert (status, out.count("\n"), err) == (0, n_lines, "")
    status, out, err = call(capfd, "score", "odd", "--ref", "odd", "--chrf")
    assert (status, out.count("\n"), err) == (0, 2, "")
    names = {"FILE": "odd", "OTHER": "odd"}
    words = [names.get(word, word) for word in READING["prepare"]]
    if kind == "blanks alone":
        assert "no line with text" in refused(capfd, work, *words)
    else:
        assert call(capfd, *words)[0] == 0
