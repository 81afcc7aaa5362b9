"""The command line under nonsense: one line on standard error, exit status 2, nothing half-written, no hang, no flood of memory.

What is given to it stands in `tests/fuzz/`, a case a line; what is longer is made here from a seed. A case that shall succeed says so.
"""

import gzip
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import sentencepiece as spm
import torch
import typer.main
from safetensors.torch import load_file, save, save_file

from annotated_transformer.cli.main import _app, main
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.io.files import sha256
from annotated_transformer.translating.marian import (
    MarianConfig,
    build_marian,
    marian_names,
)
from annotated_transformer.translating.marian_import import import_marian

FUZZ = Path(__file__).parent / "fuzz"
SIZES = [
    "n_layers=1",
    "d_model=16",
    "d_ff=32",
    "n_heads=2",
    "n_pieces=320",
    "max_steps=4",
    "batch_tokens=400",
    "valid_every=2",
    "save_every=2",
    "average_last=0",
    "max_len=120",
]
TRAIN = ["train", "--src", "en", "--tgt", "de", "--config", "tiny"]
RESUME = ["train", "--resume", "run", "--device", "cpu", "--quiet"]
IMPORT = ["import-marian", "marian", "new"]
SECONDS = 20  # that one case may take; the slowest takes one or two. On a slow or busy machine more: see `slowness`
MEGABYTES = 400  # that one case may add to what the process holds; more where a good call needs more: see `good`
QUIET_SECONDS = (
    0.1  # that `reference` took where SECONDS was chosen, on a core of its own
)
QUIET_MEGABYTES = 60  # that the good call of `good` added where MEGABYTES was chosen


more_memory = 0  # MB that a good call adds beyond QUIET_MEGABYTES: allocators and numbers of threads differ


class Late(BaseException):
    "Not one of the errors that a program handles."


# one call


def memory() -> tuple[int, int]:
    "What the process holds now and what it held at most since the last `forget_peak`, in MB; zeros where nobody tells."
    if not Path("/proc/self/status").exists():
        return 0, 0
    said = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
    )
    return tuple(int(said[name].split()[0]) // 1024 for name in ("VmRSS", "VmHWM"))


def reference() -> None:
    "A fixed amount of work."
    x = torch.ones(256, 256)
    for _ in range(60):
        x = (x @ x).clamp(max=1)
        sorted(range(20_000), key=lambda i: -i)


def slowness() -> float:
    "How many times longer the machine takes now than where SECONDS was chosen; 1 at least."
    began = time.monotonic()
    reference()
    return max(1.0, (time.monotonic() - began) / QUIET_SECONDS)


@contextmanager
def watched():
    "Neither hours nor the machine's memory: a case that wants either fails, and does not take others with it."
    began = time.monotonic()

    def late(*_):  # how slow the machine is matters now, not when the tests began
        allowed, spent = SECONDS * slowness(), time.monotonic() - began
        if spent >= allowed:
            raise Late(
                f"still busy after {spent:.0f} seconds, {allowed:.0f} were allowed"
            )
        signal.setitimer(signal.ITIMER_REAL, allowed - spent)

    has_alarm, has_limit, limits = (
        hasattr(signal, "SIGALRM"),
        sys.platform == "linux",
        None,
    )
    if has_limit:
        import resource

        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pass
        limits, now = (
            resource.getrlimit(resource.RLIMIT_DATA),
            int(Path("/proc/self/statm").read_text().split()[5])
            * resource.getpagesize(),
        )
        resource.setrlimit(resource.RLIMIT_DATA, (now + 4 * 2**30, limits[1]))
    before = memory()[0]
    if has_alarm:
        old = signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
    found = {}
    try:
        yield found
    finally:
        if has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        if has_limit:
            resource.setrlimit(resource.RLIMIT_DATA, limits)
    found["added"] = memory()[1] - before
    assert found["added"] < MEGABYTES + more_memory, (
        f"it swallowed memory: {found['added']} MB"
    )


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no alarm here")
def test_a_hang_is_ended_and_a_busy_machine_gets_more_time(monkeypatch):
    monkeypatch.setitem(globals(), "SECONDS", 0.05)
    monkeypatch.setitem(globals(), "slowness", lambda: 1.0)
    with pytest.raises(Late, match="still busy"), watched():
        while True:
            pass
    monkeypatch.setitem(globals(), "slowness", lambda: 1e6)
    with watched():
        time.sleep(0.2)
    monkeypatch.undo()
    assert slowness() >= 1


@pytest.mark.skipif(not memory()[1], reason="nobody tells how much memory was held")
def test_much_memory_fails_and_a_greedy_allocator_gets_more(monkeypatch):
    monkeypatch.setitem(globals(), "MEGABYTES", 20)
    with pytest.raises(AssertionError, match="it swallowed memory"), watched():
        b"x" * 100 * 2**20
    monkeypatch.setitem(globals(), "more_memory", 300)
    with watched():
        b"x" * 100 * 2**20


def snapshot(folder: Path) -> dict[str, bytes | None]:
    "Every file and folder below, with its bytes."
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def call(capfd, *args: str) -> tuple[int, str, str]:
    "Exit status, standard output and standard error of one call in this process, what C++ prints included."
    capfd.readouterr()
    with watched(), pytest.raises(SystemExit) as left:
        main(list(args))
    said = capfd.readouterr()
    return left.value.code, said.out, said.err


def refused(capfd, work: Path, *args: str, out: bool = False) -> str:
    "The line that a wrong call ends with; the folder stays what it was. `out`: lines before the wrong one may have been answered."
    before = snapshot(work)
    status, said, err = call(capfd, *args)
    assert status == 2, (status, said, err)
    assert (
        err.startswith("annotated-transformer: ")
        and err.count("\n") == 1
        and err.endswith("\n")
        and len(err) > 30
    ), err
    assert said == "" or out and said.endswith("\n"), said
    after = snapshot(work)
    assert before.keys() == after.keys() and before == after, (
        before.keys() ^ after.keys()
    )
    return err


# what there is to work with


@pytest.fixture(scope="session")
def good(tmp_path_factory) -> tuple[Path, dict]:  # and what is in it
    "A folder with two texts, a run of four steps, a Marian checkpoint and its import, a file, an empty folder and a full one."
    global more_memory
    folder, text = tmp_path_factory.mktemp("fuzz"), builtin(300, seed=3)
    for name, lines in {
        "en": [s.en for s in text],
        "de": [s.de for s in text],
        "one": ["a dog."],
        "file": [],
    }.items():
        (folder / name).write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8", newline=""
        )
    (folder / "folder").mkdir()
    (folder / "full").mkdir()
    (folder / "full/mine").write_text("keep me")
    marian_checkpoint(folder / "marian")
    import_marian(folder / "marian", folder / "imported")
    with pytest.raises(SystemExit) as left:
        main(
            [
                "train",
                "--src",
                str(folder / "en"),
                "--tgt",
                str(folder / "de"),
                "--config",
                "tiny",
                "--out",
                str(folder / "run"),
                "--device",
                "cpu",
                "--quiet",
                *SIZES,
            ]
        )
    assert left.value.code == 0
    shutil.copytree(folder / "run/checkpoints/step-0000004", folder / "checkpoint")
    was = snapshot(folder)
    with (
        watched() as found,
        pytest.raises(SystemExit),
    ):  # the second call, whose imports are done
        main(
            [
                "train",
                "--src",
                str(folder / "en"),
                "--tgt",
                str(folder / "de"),
                "--config",
                "tiny",
                "--out",
                str(folder / "new"),
                "--device",
                "cpu",
                "--quiet",
                *SIZES,
            ]
        )
    shutil.rmtree(folder / "new")
    more_memory = max(0, found["added"] - QUIET_MEGABYTES)
    return folder, was


def marian_checkpoint(folder: Path) -> None:
    "A checkpoint like those that Hugging Face publishes, with random weights."
    folder.mkdir()
    pieces = set()
    for name, lines in (
        ("source.spm", [s.en for s in builtin(300)]),
        ("target.spm", [s.de for s in builtin(300)]),
    ):
        out = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=out,
            vocab_size=100,
            model_type="bpe",
            num_threads=1,
            minloglevel=2,
        )
        (folder / name).write_bytes(out.getvalue())
        model = spm.SentencePieceProcessor(model_proto=out.getvalue())
        pieces |= {model.id_to_piece(i) for i in range(3, len(model))}
    ids = {
        piece: i for i, piece in enumerate(["</s>", "<unk>", *sorted(pieces), "<pad>"])
    }
    sizes = {
        "vocab_size": len(ids),
        "d_model": 16,
        "max_position_embeddings": 300,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 32,
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": len(ids) - 1,
        "decoder_start_token_id": len(ids) - 1,
        "eos_token_id": 0,
    }
    config = MarianConfig(**sizes, ban_pad=False)
    torch.manual_seed(0)
    weights = build_marian(config).state_dict()
    save_file(
        {theirs: weights[ours] for theirs, ours in marian_names(config).items()},
        folder / "model.safetensors",
    )
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "config.json").write_text(json.dumps({"model_type": "marian", **sizes}))


PARSER = typer.main.get_command(
    _app
)  # which each call of `main` would make anew: a third of a case's time


@pytest.fixture
def work(good, monkeypatch) -> Path:
    "That folder, where one case may do what it likes: afterwards it is made again what it was."
    folder, was = good
    monkeypatch.setattr("typer.main.get_command", lambda _: PARSER)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_DATA", raising=False)
    yield folder
    restore(folder, was)


def restore(folder: Path, was: dict[str, bytes | None]) -> None:
    "Remove what is new in a folder, and write what is missing or changed."
    now = snapshot(folder)
    other_kind = {
        name
        for name in now.keys() & was.keys()
        if (now[name] is None) != (was[name] is None)
    }
    for name in sorted(now.keys() - was.keys() | other_kind, reverse=True):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name, data in was.items():
        if data is None:
            (folder / name).mkdir(exist_ok=True)
        elif now.get(name) != data:
            (folder / name).write_bytes(data)


each_case = pytest.mark.parametrize


def lines_of(name: str) -> list:
    "The cases of one file of the corpus, each with its number for a name."
    lines = (FUZZ / name).read_text(encoding="utf-8").split("\n")[:-1]
    values = lines if name.endswith(".txt") else map(json.loads, lines)
    return [
        pytest.param(value, id=f"{name}:{i}") for i, value in enumerate(values, start=1)
    ]


def changed(path: Path, changes: dict) -> None:
    "Replace values of a JSON file, or all of its text."
    if "text" in changes:
        return path.write_text(changes["text"], encoding="utf-8")
    values = json.loads(path.read_text(encoding="utf-8"))
    for name, value in changes.items():
        *steps, last = name.split(".")
        place = values
        for step in steps:
            place = place[step]
        place[last] = value
    path.write_text(json.dumps(values))


READERS = [
    ["translate", "run", "one"],
    ["score", "run", "--src", "one", "--ref", "one"],
    ["attention", "run", "a dog", "--out", "a.html"],
    ["export-ct2", "run", "new"],
    ["export-hf", "run", "new"],
    ["live", "run", "--out", "l.html"],
]


def reader(case: object) -> list[str]:
    "One of the verbs that load a run, by turns."
    return READERS[sum(str(case).encode()) % len(READERS)]


# options and settings


@each_case("words", lines_of("commands.jsonl"))
def test_commands(words, work, good, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a dog.\n")))
    if isinstance(words, list):
        refused(capfd, work, *words, out="--perplexity" in words)
    else:
        status, _, err = call(capfd, *words["ok"])
        assert status == 0 and "Traceback" not in err, err


@each_case("setting", lines_of("settings.txt"))
def test_settings(setting, work, good, capfd):
    refused(
        capfd,
        work,
        *TRAIN,
        "--out",
        "new",
        "--device",
        "cpu",
        "--quiet",
        *SIZES,
        setting,
    )


# settings files

CONFIGS = {  # cases of tests/fuzz, to the file that they change, and who reads it
    "config": ("run/config.json", reader),
    "resume": ("run/config.json", lambda case: RESUME),
    "marian": ("marian/config.json", lambda case: IMPORT),
    "imported": ("imported/config.json", lambda case: ["translate", "imported", "one"]),
}


@each_case(
    "cases, changes",
    [
        pytest.param(name, *case.values, id=case.id)
        for name in CONFIGS
        for case in lines_of(f"{name}.jsonl")
    ],
)
def test_config(cases, changes, work, good, capfd):
    file, command = CONFIGS[cases]
    changed(work / file, changes)
    refused(capfd, work, *command(changes))


@each_case("changes", lines_of("state.jsonl"))
def test_state(changes, work, good, capfd):
    changed(work / "run/checkpoints/step-0000004/state.json", changes)
    assert "step-0000004" in refused(capfd, work, *RESUME)
    assert (
        "state.json" in refused(capfd, work, "average", "run", "--last", "2")
        or "sha256" in changes
    )


@each_case("text", lines_of("metrics.jsonl"))
def test_metrics(text, work, good, capfd):
    "A log with lines that are none: they are passed over, as one torn by a crash is."
    with open(work / "run/metrics.jsonl", "ab") as log:
        log.write(text.encode(errors="surrogatepass"))
    changed(work / "run/config.json", {"train.max_steps": 5, "stopped": None})
    status, _, err = call(capfd, *RESUME)
    assert status == 0, err
    assert err.count("\n") == 1
    assert len((work / "run/metrics.jsonl").read_text().split("\n")) >= 5


def random_json(rng: random.Random, depth: int = 0) -> object:
    "Any value, nested."
    kind = rng.randrange(9 if depth < 4 else 6)
    if kind < 6:
        return rng.choice(
            [
                None,
                True,
                rng.randint(-9, 9),
                rng.randint(-(10**30), 10**30),
                rng.uniform(-1e300, 1e300),
                float("nan"),
                -float("inf"),
                "",
                "ü\u2028\x00",
                "tiny",
            ]
        )
    some = range(rng.randrange(5))
    if kind == 6:
        return [random_json(rng, depth + 1) for _ in some]
    return {
        rng.choice(
            [
                "format",
                "model",
                "train",
                "kind",
                "n_layers",
                "d_model",
                "sha256",
                "x",
                "",
            ]
        ): random_json(rng, depth + 1)
        for _ in some
    }


@each_case("seed", range(24))
def test_random_json(seed, work, good, capfd):
    rng = random.Random(seed)
    state = "run/checkpoints/step-0000004/state.json"
    file, verb = [
        ("run/config.json", READERS[seed % 4]),
        ("run/config.json", RESUME),
        (state, ["average", "run", "--last", "1"]),
        ("marian/config.json", IMPORT),
        ("marian/vocab.json", IMPORT),
        ("imported/config.json", ["translate", "imported", "one"]),
    ][seed % 6]
    values = {
        name: random_json(rng)
        for name in json.loads((work / file).read_text(encoding="utf-8"))
    }
    if seed >= 12:
        values["format"] = 1
    (work / file).write_text(json.dumps(values))
    refused(capfd, work, *verb)


JSON_FILES = {
    "run/config.json": ["translate", "run", "one"],
    "run/checkpoints/step-0000004/state.json": RESUME,
    "run/data/about.json": RESUME,
    "marian/config.json": IMPORT,
    "marian/vocab.json": IMPORT,
}
DEEP = {
    "[": "[" * 100_000,
    "{": '{"format": ' * 5000 + "1" + "}" * 5000,
    "10^5000": '{"format": 1' + "0" * 5000 + "}",
}


@each_case("file", JSON_FILES)
@each_case("kind", DEEP)
def test_deep_and_long_json(file, kind, work, good, capfd):
    "Neither the parser's stack nor the reader's patience."
    if "about" in file:
        changed(
            work / "run/config.json", {"source": {}}
        )  # from which it would be made again
    (work / file).write_text(DEEP[kind])
    assert len(refused(capfd, work, *JSON_FILES[file])) < 1000


# bytes


def noise(whole: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.randrange(1, 3000))


def zeros(whole: bytes, rng: random.Random) -> bytes:
    return bytes(rng.randrange(1, 3000))


def empty(whole: bytes, rng: random.Random) -> bytes:
    return b""


def cut(whole: bytes, rng: random.Random) -> bytes:
    return whole[: rng.randrange(1, len(whole))]


def cut_early(whole: bytes, rng: random.Random) -> bytes:
    return whole[: rng.randrange(1, 12)]


def cut_late(whole: bytes, rng: random.Random) -> bytes:
    return whole[: -rng.randrange(1, 12)]


def without_middle(whole: bytes, rng: random.Random) -> bytes:
    return whole[: len(whole) // 3] + whole[-(len(whole) // 3) :]


def text(whole: bytes, rng: random.Random) -> bytes:
    return b"ein alter Hund\n" * 50


def pickled(whole: bytes, rng: random.Random) -> bytes:
    return b"\x80\x04cos\nsystem\n(S'exit 1'\ntR."


def flip(whole: bytes, i: int) -> bytes:
    "One bit of the i-th byte."
    return whole[:i] + bytes([whole[i] ^ (1 << i % 8)]) + whole[i + 1 :]


FILES = {  # where a file belongs, and which verbs read it
    "run/config.json": ["translate", "run", "one"],
    "run/vocab.model": ["translate", "run", "one"],
    "run/model.safetensors": ["export-ct2", "run", "new"],
    "run/checkpoints/step-0000004/model.safetensors": ["average", "run", "--last", "2"],
    "run/checkpoints/step-0000004/optimizer.safetensors": RESUME,
    "run/checkpoints/step-0000002/state.json": ["average", "run", "--last", "2"],
    "marian/config.json": IMPORT,
    "marian/source.spm": IMPORT,
    "marian/vocab.json": IMPORT,
    "marian/model.safetensors": IMPORT,
    "imported/target.spm": ["translate", "imported", "one"],
    "imported/model.safetensors": ["translate", "imported", "one"],
}


@each_case(
    "damage",
    [noise, zeros, empty, cut, cut_early, cut_late, without_middle, text, pickled],
    ids=lambda damage: damage.__name__,
)
@each_case("file", FILES)
def test_damaged_files(file, damage, work, good, capfd):
    if damage is cut_late and file.endswith("json"):
        return  # a line break, and blanks, are all that it may cut
    whole = (work / file).read_bytes()
    (work / file).write_bytes(damage(whole, random.Random(f"{file} {damage.__name__}")))
    refused(capfd, work, *FILES[file])


@each_case("file", FILES)
def test_folders_in_the_place_of_files(file, work, good, capfd):
    (work / file).unlink()
    (work / file).mkdir()
    refused(capfd, work, *FILES[file])


@each_case("i", [0, 1, 3, 7, 8, 9, 20, 60, 100, 200, 300, 500, 700, 1000])
@each_case("file", ["run/model.safetensors", "marian/model.safetensors"])
def test_a_flipped_bit_in_the_header_of_the_weights(file, i, work, good, capfd):
    "Whatever it says then, it is not what the model needs."
    (work / file).write_bytes(flip((work / file).read_bytes(), i))
    refused(capfd, work, *FILES[file])


@each_case("seed", range(16))
def test_flipped_bits_where_a_fingerprint_is_kept(seed, work, good, capfd):
    "Anywhere in a checkpoint, a vocabulary or what was imported."
    rng = random.Random(seed)
    file = [
        "run/checkpoints/step-0000004/model.safetensors",
        "run/checkpoints/step-0000004/optimizer.safetensors",
        "run/vocab.model",
        "imported/source.spm",
    ][seed % 4]
    whole = (work / file).read_bytes()
    (work / file).write_bytes(flip(whole, rng.randrange(len(whole))))
    verbs = {
        "model.safetensors": ["average", "run", "--last", "1"],
        "source.spm": ["translate", "imported", "one"],
        "vocab.model": ["translate", "run", "one"],
        "optimizer.safetensors": RESUME,
    }
    refused(capfd, work, *verbs[Path(file).name])


HOLES = {  # a file, and who reads it
    "run/config.json": ["live", "run", "--out", "l.html"],
    "run/vocab.model": ["translate", "run", "one"],
    "run/metrics.jsonl": ["export-hf", "run", "new"],
    "run/model.safetensors": ["score", "run", "--src", "one", "--ref", "one"],
    "run/data/vocab.model": RESUME,
    "run/data/train.tgt.ids": RESUME,
    "run/data/valid.src.starts": RESUME,
    "run/checkpoints/step-0000004/state.json": RESUME,
    "run/checkpoints/step-0000004/optimizer.safetensors": RESUME,
    "imported/vocab.json": ["translate", "imported", "one"],
    "imported/source.spm": ["translate", "imported", "one"],
}


@each_case("file", HOLES)
def test_files_with_holes(file, work, good, capfd):
    "64 GB that take no room on the disk: nobody reads them, or asks for their memory."
    was = (work / file).read_bytes()
    os.truncate(work / file, 2**36)
    try:
        status, said, err = call(capfd, *HOLES[file])
    finally:  # before the folder is compared with what it was
        (work / file).write_bytes(was)
    assert (status, said, err.count("\n")) == (2, "", 1) and file in err, err


def test_weights_that_claim_a_hole(work, good, capfd):
    "The header is right for the file, which has room for 2³⁴ numbers, and none of them."
    for run in ("run", "imported"):
        file = work / run / "model.safetensors"
        was = file.read_bytes()
        n = int.from_bytes(was[:8], "little")
        header = json.loads(was[8 : 8 + n])
        end = max(
            about["data_offsets"][1] for about in header.values() if "dtype" in about
        )
        header["hole"] = {
            "dtype": "F32",
            "shape": [2**34],
            "data_offsets": [end, end + 2**36],
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        file.write_bytes(len(text).to_bytes(8, "little") + text + was[8 + n :])
        os.truncate(file, 8 + len(text) + end + 2**36)
        status, said, err = call(capfd, "translate", run, "one")
        file.write_bytes(was)
        assert (status, said, err.count("\n")) == (2, "", 1), err
        assert f"{run}/model.safetensors has 68,7" in err and "too many" in err, err


REPORT = {"n_sentences": 10, "bleu": 30.5, "exact_match": 0.5}


@each_case(
    "name, value",
    [
        ("n_sentences", "<script>"),
        ("n_sentences", 1.5),
        ("n_sentences", "\ud800"),
        ("bleu", 10**400),
        ("bleu", -1),
        ("bleu", True),
        ("exact_match", "0.9"),
        ("exact_match", float("inf")),
        ("exact_match", [1]),
    ],
)
def test_report(name, value, work, good, capfd):
    "What a demo says of itself comes into the model card, so it must be numbers."
    report = REPORT | {"weights_sha256": sha256(work / "run/model.safetensors")}
    (work / "run/report.json").write_text(json.dumps(report | {name: value}))
    err = refused(capfd, work, "export-hf", "run", "new")
    assert "run/report.json" in err and (name in err or "Infinity" in err), err


@each_case("which", [3, None, "a\nb", "\ud800", "w" * 501])
def test_header_of_the_weights(which, work, good, capfd):
    "Which weights they are is a text; it comes into config.json and the model card."
    file = work / "run/model.safetensors"
    save_file(load_file(file), file, {"about": json.dumps({"weights": which})})
    for verb in READERS:
        assert "header is damaged" in refused(capfd, work, *verb)


# tensors


def header(length: int, values: object) -> Callable[[dict, str], bytes]:
    "A safetensors file with this header; `length` is added to what the header's length is said to be."
    said = json.dumps(values).encode()
    return lambda w, big: (
        max(0, len(said) + length).to_bytes(8, "little") + said + bytes(64)
    )


def replaced(change: Callable) -> Callable[[dict, str], bytes]:
    return lambda w, big: save(w | {big: change(w[big]).contiguous()})


def entry(**values: object) -> dict:
    return {
        "embedding.weight": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
        | values
    }


TENSORS = {
    "no tensor": lambda w, big: save({}),
    "one too few": lambda w, big: save(
        {name: t for name, t in w.items() if name != big}
    ),
    "one too many": lambda w, big: save(w | {"more": torch.zeros(3)}),
    "a name that is empty": lambda w, big: save(w | {"": torch.zeros(1)}),
    "a name with a line break": lambda w, big: save(
        w | {"a\nb\u2028c": torch.zeros(1)}
    ),
    "10,000 too many": lambda w, big: save(
        w | {f"more.{i}": torch.zeros(1) for i in range(10_000)}
    ),
    "turned": replaced(lambda t: t.T),
    "flat": replaced(lambda t: t.flatten()),
    "a dimension more": replaced(lambda t: t[None]),
    "empty": replaced(lambda t: t[:0]),
    "one row more": replaced(lambda t: torch.cat([t, t[:1]])),
    "a number": replaced(lambda t: torch.tensor(1.0)),
    "not a number": replaced(lambda t: t.clone().fill_(torch.nan)),
    "one infinity": replaced(
        lambda t: t.clone().index_fill(0, torch.tensor(5), torch.inf)
    ),
    "int64": replaced(lambda t: t.long()),
    "uint8": replaced(lambda t: t.to(torch.uint8)),
    "bool": replaced(lambda t: t > 0),
    "complex": replaced(lambda t: t.to(torch.complex64)),
    "float8": replaced(lambda t: t.to(torch.float8_e4m3fn)),
    "too large for float32": replaced(lambda t: t.double() * 1e300),
    "a header of 2^63 bytes": lambda w, big: (2**63 - 1).to_bytes(8, "little") + b"{}",
    "a header of 99 MB": lambda w, big: (
        (99 * 2**20).to_bytes(8, "little") + b"{}" * 100
    ),
    "a header too long": header(1, {}),
    "a header too short": header(-1, entry()),
    "a header that is a list": header(0, [1, 2]),
    "a header that is deep": lambda w, big: (
        (100_000).to_bytes(8, "little") + b"[" * 100_000
    ),
    "an unknown type": header(0, entry(dtype="F31")),
    "a negative shape": header(0, entry(shape=[-4])),
    "a huge shape": header(0, entry(shape=[2**40, 2**40])),
    "offsets turned": header(0, entry(data_offsets=[16, 0])),
    "offsets beyond the end": header(0, entry(data_offsets=[0, 2**50], shape=[2**48])),
    "offsets that are text": header(0, entry(data_offsets=["a", "b"])),
    "not UTF-8": lambda w, big: (4).to_bytes(8, "little") + b"\xff\xfe\xff\xfe",
}
FLOATS = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@each_case("kind", TENSORS)
def test_tensors_of_a_run(kind, work, good, capfd):
    (work / "run/model.safetensors").write_bytes(
        TENSORS[kind](load_file(work / "run/model.safetensors"), "embedding.weight")
    )
    assert "model.safetensors" in refused(capfd, work, *reader(kind))


@each_case("kind", TENSORS)
def test_tensors_of_a_marian_checkpoint(kind, work, good, capfd):
    (work / "marian/model.safetensors").write_bytes(
        TENSORS[kind](
            load_file(work / "marian/model.safetensors"), "model.shared.weight"
        )
    )
    assert "model.safetensors" in refused(capfd, work, *IMPORT)


@each_case("kind", FLOATS)
def test_other_floats_are_taken(kind, work, good, capfd):
    "Half precision, and double, are how others keep weights: they are read and become float32."
    for file in ("run/model.safetensors", "marian/model.safetensors"):
        save_file(
            {
                name: tensor.to(FLOATS[kind])
                for name, tensor in load_file(work / file).items()
            },
            work / file,
        )
    assert call(capfd, "translate", "run", "one")[0] == 0
    assert call(capfd, "import-marian", "marian", "new")[0] == 0


def test_copies_of_two_kinds(work, capfd):
    "The shared matrix once as float32 and once as float16."
    weights = load_file(work / "marian/model.safetensors")
    save_file(
        weights | {"lm_head.weight": weights["model.shared.weight"].half()},
        work / "marian/model.safetensors",
    )
    assert "differ" in refused(capfd, work, *IMPORT)


def test_tables_of_odd_numbers(work, capfd):
    weights = load_file(work / "marian/model.safetensors")
    for i, table in enumerate(
        [
            torch.zeros(80, 16, dtype=torch.bool),
            torch.full((80, 16), torch.nan),
            torch.zeros(80, 16, dtype=torch.complex64),
        ]
    ):
        save_file(
            weights | {"model.encoder.embed_positions.weight": table},
            work / "marian/model.safetensors",
        )
        assert "embed_positions" in refused(
            capfd, work, "import-marian", "marian", f"new{i}"
        )


# vocabularies


def test_a_vocabulary_of_another_run(work, capfd):
    learn_bpe(["another text altogether", "ein ganz anderer"] * 3, 310).save(
        work / "run/vocab.model"
    )
    for verb in READERS:
        assert "is not the vocabulary" in refused(capfd, work, *verb)
    assert "vocabulary" in refused(capfd, work, *RESUME)


@each_case("kind", ["unigram", "char", "word"])
def test_a_vocabulary_that_loses_text(kind, work, good, capfd):
    "A model of SentencePiece's, but not one of ours."
    out, lines = io.BytesIO(), (work / "en").read_text(encoding="utf-8").split("\n")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=out,
        vocab_size=60,
        model_type=kind,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    (work / "run/vocab.model").write_bytes(out.getvalue())
    assert "vocab.model" in refused(capfd, work, "translate", "run", "one")


VOCABS = {
    "empty": lambda v: {},
    "a list": lambda v: [*v],
    "one short": lambda v: dict([*v.items()][:-1]),
    "twice": lambda v: dict.fromkeys(v, 0),
    "floats": lambda v: {p: float(i) for p, i in v.items()},
    "texts": lambda v: {p: str(i) for p, i in v.items()},
    "lists": lambda v: {p: [i] for p, i in v.items()},
    "bools": lambda v: v | {"</s>": False, "<unk>": True},
    "negative": lambda v: {p: -i for p, i in v.items()},
    "shifted": lambda v: {p: i + 1 for p, i in v.items()},
    "huge": lambda v: v | {"</s>": 10**400},
    "no <unk>": lambda v: {p.replace("<unk>", "unk"): i for p, i in v.items()},
    "no </s>": lambda v: {p.replace("</s>", "s"): i for p, i in v.items()},
    "an empty token": lambda v: {p if i != 9 else "": i for p, i in v.items()},
    "half a pair": lambda v: {p if i != 9 else "a\ud800": i for p, i in v.items()},
}


@each_case("kind", VOCABS)
def test_lists_of_pieces(kind, work, good, capfd):
    (work / "marian/vocab.json").write_text(
        json.dumps(VOCABS[kind](json.loads((work / "marian/vocab.json").read_text())))
    )
    assert "vocab.json" in refused(capfd, work, *IMPORT)


# text

RNG = random.Random(0)
WRONG_TEXT = {
    "noise": RNG.randbytes(2000),
    "one wrong byte": b"a dog\n" * 99 + b"a \xff dog\n",
    "half a character": "eine Tür".encode()[:7],
    "UTF-16": "a dog\n".encode("utf-16"),
    "UTF-32": "a dog\n".encode("utf-32"),
    "Latin-1": "schläft\n".encode("latin-1"),
    "half of a surrogate pair": b"a \xed\xa0\x80 dog\n",
    "both halves": b"\xed\xa0\xbd\xed\xb8\x80\n",
    "overlong": b"\xc0\xaf\n",
    "beyond Unicode": b"\xf5\x80\x80\x80\n",
    "gzip without its name": gzip.compress(b"a dog\n", mtime=0),
    "a long wrong line": b"a" * 100_000 + b"\xff\n",
    "wrong after a mark": b"\xef\xbb\xbf\xfe\n",
}
WRONG_GZ = {
    "no gzip": b"a dog\n",
    "cut short": gzip.compress(b"a dog\n" * 99, mtime=0)[:-9],
    "header alone": gzip.compress(b"a dog\n", mtime=0)[:10],
    "a flipped bit": flip(gzip.compress(RNG.randbytes(300), mtime=0), 100),
    "noise behind": gzip.compress(b"a dog\n", mtime=0) + b"more",
    "one byte": b"\x1f",
}
EMPTY = {
    "nothing": b"",
    "an empty line": b"\n",
    "many": b"\n" * 500,
    "carriage returns": b"\r\n\r\n",
    "a mark alone": b"\xef\xbb\xbf",
}
NEW = ["--config", "tiny", "--out", "new", "--quiet", *SIZES]
READING = {  # FILE and OTHER = as many lines
    "translate": ["translate", "run", "FILE"],
    "train": ["train", "--src", "OTHER", "--tgt", "FILE", *NEW],
    "prepare": [
        "prepare",
        "--src",
        "en",
        "--tgt",
        "de",
        "--valid-src",
        "FILE",
        "--valid-tgt",
        "OTHER",
        *NEW,
    ],
    "score from": ["score", "run", "--src", "FILE", "--ref", "OTHER"],
    "score": ["score", "OTHER", "--ref", "FILE"],
}


def reading(verb: str, file: str, other: str) -> list[str]:
    return [{"FILE": file, "OTHER": other}.get(word, word) for word in READING[verb]]


@each_case("kind", WRONG_TEXT)
@each_case("verb", READING)
def test_text_that_is_none(verb, kind, work, good, capfd):
    data = WRONG_TEXT[kind]
    (work / "bad").write_bytes(data)
    (work / "other").write_bytes(
        b"a cat\n" * (data.count(b"\n") + (data[-1:] != b"\n"))
    )
    said = refused(capfd, work, *reading(verb, "bad", "other"), out=verb == "translate")
    assert "is not UTF-8" in said and len(said) < 300


@each_case("kind", WRONG_GZ)
@each_case("verb", [verb for verb in READING if verb != "translate"])
def test_gzip_that_is_none(verb, kind, work, good, capfd):
    (work / "bad.gz").write_bytes(WRONG_GZ[kind])
    (work / "other").write_bytes(b"a cat\n")
    assert "bad.gz" in refused(capfd, work, *reading(verb, "bad.gz", "other"))


@each_case("kind", EMPTY)
@each_case("verb", READING)
def test_text_without_text(verb, kind, work, good, capfd):
    (work / "bad").write_bytes(EMPTY[kind])
    (work / "other").write_bytes(b"a cat\n" * max(1, EMPTY[kind].count(b"\n")))
    if verb != "translate":
        assert "bad" in refused(capfd, work, *reading(verb, "bad", "other"))
    else:
        assert call(capfd, "translate", "run", "bad") == (
            0,
            "\n" * max(EMPTY[kind].count(b"\n"), kind == "a mark alone"),
            "",
        )


ODD_TEXT = {  # unusual, and right: its lines
    "no line break at the end": (b"a dog\na cat", 2),
    "zeros": (b"a\0dog\n\0\n\0\0\0\n", 3),
    "marks": (b"\xef\xbb\xbfa dog\n\xef\xbb\xbfa cat\n", 2),
    "CRLF": (b"a dog\r\na cat\r\n", 2),
    "CR": (b"a dog\ra cat\r\n", 1),
    "other line breaks": ("a\u2028b\u0085c\x0b\x0c\x1c\u2029d\n".encode(), 1),
    "blanks alone": (b" \t \n\xc2\xa0\n", 2),
    "emoji and accents": ("👩‍👩‍👧‍👦 é̂̂̂̂̂ ﷽\n".encode(), 1),
    "sign of a space": ("▁▁a▁\n▁\n".encode(), 2),
    "special pieces": (b"<s> </s> <pad> <unk> <0x0A> <0xFF>\n", 1),
    "controls": (bytes(range(1, 10)) + b"\x1b[2J\x7f\n", 1),
    "noncharacters": ("\uffff\ufffe\U0010ffff\n".encode(), 1),
    "private use": ("\ue000\U000f0000\n".encode(), 1),
    "right to left": ("\u202eabc\u202c שלום\n".encode(), 1),
}


@each_case("kind", ODD_TEXT)
def test_odd_text_is_text(kind, work, good, capfd):
    "As many lines out as in, and nothing else on standard error."
    data, n_lines = ODD_TEXT[kind]
    (work / "odd").write_bytes(data)
    for run in ("run", "imported"):
        status, out, err = call(capfd, "translate", run, "odd")
        assert (status, out.count("\n"), err) == (0, n_lines, "")
    status, out, err = call(capfd, "score", "odd", "--ref", "odd", "--chrf")
    assert status == 0 and out.count("\n") == 2 and err == ""


@each_case("kind", ODD_TEXT)
def test_odd_text_is_prepared(kind, work, good, capfd):
    (work / "odd").write_bytes(ODD_TEXT[kind][0])
    words = [
        "prepare",
        "--src",
        "en",
        "--tgt",
        "de",
        "--valid-src",
        "odd",
        "--valid-tgt",
        "odd",
        *NEW,
    ]
    if kind == "blanks alone":
        assert "no line with text" in refused(capfd, work, *words)
    else:
        assert call(capfd, *words)[0] == 0 and (work / "new/data/about.json").exists()


LONG = {
    "100,000 characters": ("the dog and " * 8334)[:100_000],
    "no blank": "ab" * 50_000,
    "1 MB of a": "a" * 2**20,
    "300,000 blanks": " " * 300_000,
    "one character of many marks": "e" + "\u0301" * 20_000,
}


@each_case("kind", LONG)
def test_long_lines(kind, work, good, capfd):
    "In parts, in bounded time; the end symbol made likely, since a model that has learned nothing never stops."
    weights = load_file(work / "run/model.safetensors")
    weights["decoder.layers.0.residuals.2.norm.bias"] += (
        100 * weights["embedding.weight"][3]
    )
    save_file(weights, work / "run/model.safetensors")
    (work / "long").write_text(f"a dog\n{LONG[kind]}\na cat\n", encoding="utf-8")
    status, out, err = call(
        capfd, "translate", "run", "long", "--batch-tokens", "60000", "--beam-size", "1"
    )
    assert status == 0 and out.count("\n") == 3
    assert (
        err.startswith("line 2 is longer than 120 tokens: translated in ")
        and err.count("\n") == 1
        or err == ""
        and not LONG[kind].strip()
    )


@each_case("kind", LONG)
def test_long_lines_are_scored(kind, work, good, capfd):
    (work / "long").write_text(
        f"a dog\n{LONG[kind]}\nwhere is the cat now\n", encoding="utf-8"
    )
    status, out, _ = call(capfd, "score", "long", "--ref", "long")
    assert status == 0 and out.startswith("BLEU = 100.00") and out.count("\n") == 1


@each_case(
    "verb, unit",
    [
        (["attention", "run", LONG["no blank"], "--out", "a.html"], "tokens"),
        (["score", "run", "--src", "one", "--ref", "long", "--perplexity"], "tokens"),
    ],
    ids=["attention", "perplexity"],
)
def test_long_lines_that_are_looked_at_as_a_whole(verb, unit, work, good, capfd):
    "Attention over 100,000 pieces at once would need 40 GB a head."
    (work / "long").write_text(LONG["no blank"] + "\n")
    assert unit in refused(capfd, work, *verb, out=True)


def test_a_long_line_to_learn_from(work, capfd):
    "It is left out of training, as max_len says; where nothing else is there, the message says so."
    (work / "long").write_text(LONG["no blank"] + "\n" + "a dog\n" * 50)
    words = [
        "train",
        "--src",
        "long",
        "--tgt",
        "long",
        "--valid-src",
        "en",
        "--valid-tgt",
        "de",
        "--device",
        "cpu",
        *NEW,
    ]
    assert call(capfd, *words)[0] == 0
    shutil.rmtree(work / "new")
    (work / "long").write_text(3 * ("the dog and " * 4000 + "\n"))
    assert "max_len" in refused(capfd, work, *words)


# permissions, and what others find in the way


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0,
    reason="nobody forbids root anything",
)
@each_case(
    "verb",
    [
        [*TRAIN, "--out", "locked/new"],
        ["export-ct2", "run", "locked/new"],
        ["export-hf", "run", "locked/new"],
        ["import-marian", "marian", "locked/new"],
        ["attention", "run", "a dog", "--out", "locked/a.html"],
        ["translate", "run", "secret"],
        ["translate", "hidden"],
    ],
)
def test_permissions(verb, work, good, capfd):
    (work / "locked").mkdir(mode=0o500)
    (work / "secret").touch(mode=0)
    (work / "hidden").mkdir(mode=0)
    status, out, err = call(capfd, *verb)
    assert status == 2 and out == "" and err.count("\n") == 1
    for name in ("locked", "hidden"):
        (work / name).chmod(0o700)


@each_case(
    "verb",
    [
        ["translate", "loop"],
        ["translate", "run", "loop"],
        ["score", "loop", "--ref", "de"],
        ["score", "de", "--ref", "loop"],
        [*TRAIN, "--out", "loop"],
        ["export-ct2", "run", "loop"],
        ["export-hf", "run", "loop"],
        ["import-marian", "marian", "loop"],
        ["attention", "run", "a dog", "--out", "loop/a.html"],
        ["average", "loop", "--last", "1"],
    ],
)
def test_links_that_lead_nowhere(verb, work, good, capfd):
    (work / "loop").symlink_to("loop")
    status, out, err = call(capfd, *verb)
    assert (
        status == 2
        and out == ""
        and err.count("\n") == 1
        and err.startswith("annotated-transformer: ")
    ), err
    assert (work / "loop").is_symlink()


@each_case(
    "verb",
    [
        ["translate", "NAME"],
        ["translate", "run", "NAME"],
        [*TRAIN, "--out", "NAME"],
        ["import-marian", "marian", "NAME"],
        ["export-ct2", "run", "NAME"],
        ["export-hf", "run", "NAME"],
        ["attention", "run", "a dog", "--out", "NAME"],
        ["score", "NAME", "--ref", "de"],
        ["average", "NAME", "--last", "1"],
    ],
)
def test_names_longer_than_a_disk_takes(verb, work, good, capfd):
    refused(capfd, work, *["n" * 5000 if word == "NAME" else word for word in verb])


# from a shell

SHELL = {
    "no verb": (["dream"], b""),
    "no option": (["translate", "run", "--colour"], b""),
    "no number": (["average", "run", "--last", "x"], b""),
    "no value": (["translate", "run", "--alpha"], b""),
    "nothing named": (["import-marian"], b""),
    "one too many": (["average", "run", "run"], b""),
    "an option missing": (["score", "run"], b""),
    "bytes as an option": (["translate", "run", b"--\xff"], b""),
    "bytes as a number": (["average", "run", "--last", b"\xff"], b""),
    "noise to translate": (["translate", "run"], WRONG_TEXT["noise"]),
    "noise as weights": (["export-ct2", "noisy", "new"], b""),
    "noise as pieces": (["import-marian", "bad", "new"], b""),
}


@each_case("kind", SHELL)
def test_from_a_shell(kind, work, good):
    "The same, as a process of its own."
    args, given = SHELL[kind]
    shutil.copytree("run", "noisy")
    (work / "noisy/model.safetensors").write_bytes(random.Random(kind).randbytes(5000))
    shutil.copytree("marian", "bad")
    (work / "bad/target.spm").write_bytes(random.Random(kind).randbytes(5000))
    before, environment = snapshot(work), os.environ | {"OMP_NUM_THREADS": "1"}
    left = subprocess.run(
        [sys.executable, "-m", "annotated_transformer", *args],
        input=given,
        capture_output=True,
        timeout=60,
        env=environment,
    )
    assert (
        left.returncode == 2
        and left.stdout == b""
        and left.stderr.startswith(b"annotated-transformer: ")
    ), left
    assert left.stderr.count(b"\n") == 1 and snapshot(work) == before
