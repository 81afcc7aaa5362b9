"""The command line: every verb on a small run, every mistake one clear line and exit status 2, nothing half-written."""

import gzip
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import sentencepiece as spm
import torch
import typer
from safetensors.torch import save_file

from annotated_transformer.cli.main import _app, main
from annotated_transformer.cli.train import _DEFAULT_RECIPE
from annotated_transformer.data import corpus
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.io.atomic import FolderLock, write_json
from annotated_transformer.io.files import sha256
from annotated_transformer.model.config import RECIPES, override, recipe_from_dict
from annotated_transformer.runs import train_run as runs
from annotated_transformer.training.train import Stop
from annotated_transformer.translating.marian import (
    MarianConfig,
    build_marian,
    marian_names,
)
from annotated_transformer.translating.marian_import import _FILES

TINY = [
    "n_layers=1",
    "d_model=32",
    "d_ff=64",
    "n_heads=2",
    "n_pieces=500",
    "max_steps=4",
    "batch_tokens=400",
    "valid_every=2",
    "save_every=2",
    "average_last=0",
]


def run(capsys, *args) -> tuple[int, str, str]:
    "Exit status, standard output and standard error of one call, in this process."
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in args])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


def write(path: Path, lines: list[str]) -> Path:
    path.write_text(
        "".join(line + "\n" for line in lines), encoding="utf-8", newline=""
    )
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> tuple[Path, Path]:
    "Two aligned files."
    folder = tmp_path_factory.mktemp("text")
    sentences = builtin(300, seed=3)
    return write(folder / "a.en", [s.en for s in sentences]), write(
        folder / "a.de", [s.de for s in sentences]
    )


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory) -> Path:
    "A run of four steps."
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(SystemExit) as left:
        main(
            [
                "train",
                "--src",
                str(text[0]),
                "--tgt",
                str(text[1]),
                "--config",
                "tiny",
                "--out",
                str(out),
                "--device",
                "cpu",
                "--quiet",
                *TINY,
            ]
        )
    assert left.value.code == 0
    return out


def test_a_run_holds_what_it_should(trained):
    found = {p.name for p in trained.iterdir()}
    assert found == {
        "config.json",
        "vocab.model",
        "data",
        "model.safetensors",
        "metrics.jsonl",
        "curve.svg",
        "checkpoints",
    }
    config = json.loads((trained / "config.json").read_text(encoding="utf-8"))
    assert (
        config["steps"] == 4
        and config["model"]["d_model"] == 32
        and "validation" in config["weights"]
    )
    assert {p.name for p in (trained / "checkpoints").iterdir()} == {
        "step-0000002",
        "step-0000004",
        "best.safetensors",
    }
    assert not [p for p in trained.rglob(".*")], "no temporary file is left"


@pytest.fixture
def fake_tensorboard(monkeypatch) -> list:
    "What was written for TensorBoard, by a module of its name."

    class SummaryWriter:
        def __init__(self, folder):
            notes.append(folder)

        def add_scalar(self, name, value, step):
            notes.append((name, step))

        def close(self):
            notes.append("closed")

    notes, fake = [], ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    return notes


def test_tensorboard_is_written_where_it_is_asked_for(
    text, fake_tensorboard, tmp_path, capsys
):
    "It once was wherever it was installed."
    words = [
        "train",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--device",
        "cpu",
        "--quiet",
        *TINY,
    ]
    assert (
        run(capsys, *words, "--out", tmp_path / "plain")[0] == 0
        and fake_tensorboard == []
    )
    assert (
        run(
            capsys,
            *words,
            "--out",
            tmp_path / "curves",
            "--tensorboard",
            "--minutes",
            "1e-6",
        )[0]
        == 0
    )
    names = ["loss", "learning rate", "tokens", "gradient"]
    sitting = [
        tmp_path / "curves/tensorboard",
        *((name, 1) for name in names),
        "closed",
    ]
    assert fake_tensorboard == sitting
    assert (
        run(
            capsys,
            "train",
            "--resume",
            tmp_path / "curves",
            "--device",
            "cpu",
            "--quiet",
            "--minutes",
            "1e-6",
            "--tensorboard",
        )[0]
        == 0
    )
    assert fake_tensorboard == sitting + [
        sitting[0],
        *((name, 2) for name in names),
        "closed",
    ]


def test_tensorboard_that_is_not_installed(
    text, trained, tmp_path, capsys, monkeypatch
):
    "Refused before anything is made, and before the text is read."
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    for words in (
        ["--src", tmp_path / "nowhere", "--tgt", text[1], "--out", tmp_path / "run"],
        ["--resume", trained],
    ):
        status, _, err = run(capsys, "train", *words, "--tensorboard")
        assert (status, err) == (
            2,
            "annotated-transformer: TensorBoard is not installed: pip install tensorboard\n",
        )
    assert (
        not list(tmp_path.iterdir())
        and {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before
    )
    assert (
        run(capsys, "train", "--resume", trained, "--device", "cpu", "--quiet")[0] == 0
    )  # without the option nothing is imported


MISTAKES = {
    "unknown key": (["d_modl=64"], "did you mean d_model?"),
    "heads do not divide": (
        ["d_model=30", "n_heads=4"],
        "d_model=30 does not split into n_heads=4 equal heads",
    ),
    "not a number": (["dropout=much"], "dropout=much"),
    "no equals sign": (["dropout"], "key=value"),
    "out of range": (["label_smoothing=1.5"], "label_smoothing=1.5"),
    "unknown config": (["--config", "huge"], "huge"),
    "empty config": (["--config", ""], "no recipe is called ''"),
    "unknown device": (["--device", "toaster"], "toaster"),
    "no time": (
        ["--minutes", "0"],
        "minutes=0.0 must be positive and below 10,000,000",
    ),
    "time without end": (
        ["--minutes", "inf"],
        "minutes=inf must be positive and below 10,000,000",
    ),
    "more time than a float holds": (
        ["--minutes", "1e400"],
        "minutes=inf must be positive and below 10,000,000",
    ),
    "no number of minutes": (
        ["--minutes", "nan"],
        "minutes=nan must be positive and below 10,000,000",
    ),
    "unknown option": (["--colour", "blue"], "--colour"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_settings(name, text, tmp_path, capsys):
    args, message = MISTAKES[name]
    status, _, err = run(
        capsys,
        "train",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        tmp_path / "run",
        "--quiet",
        *args,
    )
    assert status == 2 and message in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


def bad_text(kind: str, folder: Path) -> tuple[Path, Path, str]:
    "Two files with one thing wrong, and what the message must name."
    good = write(folder / "good", ["one", "two", "three"])
    bad = folder / "bad"
    if kind == "line counts":
        return good, write(bad, ["eins", "zwei"]), "3"
    if kind == "missing":
        return good, bad, "bad"
    if kind == "empty":
        bad.write_bytes(b"")
        return bad, bad, "empty"
    if kind == "utf-8":
        bad.write_bytes(b"eins\nzw\xffei\ndrei\n")
        return good, bad, "line 2"
    if kind == "a folder":
        bad.mkdir()
        return good, bad, "bad"
    bad = folder / "bad.gz"
    bad.write_bytes(gzip.compress(b"eins\nzwei\ndrei\n")[:-9])
    return good, bad, "bad.gz"


@pytest.mark.parametrize(
    "kind", ["line counts", "missing", "empty", "utf-8", "a folder", "cut gzip"]
)
def test_wrong_text(kind, tmp_path, capsys):
    src, tgt, names = bad_text(kind, tmp_path)
    status, _, err = run(
        capsys,
        "train",
        "--src",
        src,
        "--tgt",
        tgt,
        "--config",
        "tiny",
        "--out",
        tmp_path / "run",
        "--quiet",
    )
    assert status == 2 and names in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--data", "builtin", "--src", "x"],
        ["--src", "x"],
        ["--src", "x", "--tgt", "y", "--valid-src", "z"],
        ["--data", "wmt99"],
        ["--data", "builtin", "--tgt-lang", "de"],
    ],
)
def test_which_text(args, tmp_path, capsys):
    status, _, err = run(capsys, "train", *args, "--out", tmp_path / "run")
    assert status == 2 and err.count("\n") == 1 and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "given, kept",
    [
        ([], [None, None]),
        (["--src-lang", "en", "--tgt-lang", "pt-BR"], ["en", "pt-BR"]),
        (["--tgt-lang", "zh-Hans-SG"], [None, "zh-Hans-SG"]),
        (["--src-lang", "de-1996"], ["de-1996", None]),
        (["--src-lang", "english"], "src_lang='english' is no language code"),
        (["--tgt-lang", "pt_BR"], "tgt_lang='pt_BR' is no language code"),
        (["--src-lang", ""], "src_lang='' is no language code"),
        (["--src-lang", "en\n"], "is no language code"),
    ],
    ids=str,
)
def test_languages_of_own_text(given, kept, text, tmp_path, capsys):
    "config.json holds the codes that were given, and no code where none was."
    out = tmp_path / "run"
    words = ["--src", text[0], "--tgt", text[1], *given, "--out", out, "--quiet"]
    status, _, err = run(capsys, "prepare", *words, "n_pieces=500")
    if isinstance(kept, str):
        assert status == 2 and kept in err and err.count("\n") == 1, err
        assert not out.exists()
        return
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert status == 0 and [config["src_lang"], config["tgt_lang"]] == kept, err


def test_out_that_holds_a_run(trained, text, capsys):
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    status, _, err = run(
        capsys, "train", "--src", text[0], "--tgt", text[1], "--out", trained
    )
    assert status == 2 and "already holds a run" in err
    assert before == {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    "verb",
    [
        ["translate"],
        ["score", "--src", "a", "--ref", "b"],
        ["attention", "A dog.", "--out", "x.html"],
    ],
)
def test_no_run(verb, tmp_path, capsys):
    status, _, err = run(capsys, verb[0], tmp_path, *verb[1:])
    assert status == 2 and "is not a run folder" in err and err.count("\n") == 1


@pytest.mark.parametrize("file", ["config.json", "vocab.model", "model.safetensors"])
@pytest.mark.parametrize("damage", ["gone", "cut", "noise"])
def test_a_damaged_run(file, damage, trained, tmp_path, capsys):
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    for p in trained.iterdir():
        if p.is_file():
            (run_folder / p.name).write_bytes(p.read_bytes())
    whole = (run_folder / file).read_bytes()
    if damage == "gone":
        (run_folder / file).unlink()
    elif damage == "cut":
        (run_folder / file).write_bytes(whole[: len(whole) // 2])
    else:
        (run_folder / file).write_bytes(bytes(range(256)))
    status, out, err = run(
        capsys, "translate", run_folder, write(tmp_path / "in", ["A dog."])
    )
    assert status == 2 and out == "" and file in err and err.count("\n") == 1, err


def test_lines_in_lines_out(trained, tmp_path, capsys):
    lines = [
        "The dog was tired.",
        "",
        "   ",
        "\u2028odd\u0085spaces",
        "Where is the cat?",
    ]
    status, out, _ = run(capsys, "translate", trained, write(tmp_path / "in", lines))
    answers = out.split("\n")[:-1]
    assert status == 0 and len(answers) == len(lines) and answers[1] == answers[2] == ""


def test_crlf_and_bom_do_no_harm(trained, tmp_path, capsys):
    plain, dos = tmp_path / "plain", tmp_path / "dos"
    plain.write_bytes(b"The dog was tired.\nWhere is the cat?\n")
    dos.write_bytes(b"\xef\xbb\xbfThe dog was tired.\r\nWhere is the cat?\r\n")
    assert (
        run(capsys, "translate", trained, plain)[:2]
        == run(capsys, "translate", trained, dos)[:2]
    )


def test_a_very_long_line_is_translated_and_reported(trained, tmp_path, capsys):
    status, out, err = run(
        capsys,
        "translate",
        trained,
        write(tmp_path / "in", ["A dog.", "the dog and " * 400, "A cat."]),
    )
    assert status == 0 and len(out.split("\n")) == 4 and "line 2" in err


def test_bad_bytes_name_the_line(trained, tmp_path, capsys):
    (tmp_path / "in").write_bytes(b"A dog.\n\xff\xfe\n")
    status, _, err = run(capsys, "translate", trained, tmp_path / "in")
    assert status == 2 and "line 2" in err


def test_score_and_attention(trained, text, tmp_path, capsys):
    status, out, _ = run(capsys, "score", trained, "--src", text[0], "--ref", text[1])
    assert status == 0 and out.startswith("BLEU = ") and "tok:13a" in out
    status, _, err = run(
        capsys,
        "score",
        trained,
        "--src",
        text[0],
        "--ref",
        write(tmp_path / "ref", ["Nur eine."]),
    )
    assert status == 2 and "300" in err
    assert (
        run(
            capsys,
            "attention",
            trained,
            "The dog was tired.",
            "--out",
            tmp_path / "a.html",
        )[0]
        == 0
    )
    assert "http" not in (tmp_path / "a.html").read_text(encoding="utf-8").replace(
        "http-equiv", ""
    ).replace("http://www.w3.org", "")
    status, _, err = run(
        capsys, "attention", trained, " ", "--out", tmp_path / "b.html"
    )
    assert status == 2 and not (tmp_path / "b.html").exists()


@pytest.mark.parametrize("verb", [["attention", "A dog."], ["live"]], ids=" ".join)
@pytest.mark.parametrize("name", ["x/", "x.html/", "x.txt", "x", "html"])
def test_a_page_ends_in_html(verb, name, trained, tmp_path, capsys):
    "Also where a slash says that a folder is meant: it was written as a file."
    words = verb[0], trained, *verb[1:], "--out", f"{tmp_path}/{name}"
    status, _, err = run(capsys, *words)
    assert status == 2 and err.count("\n") == 1, err
    assert f"--out {tmp_path}/{name} does not end in .html" in err
    assert not list(tmp_path.iterdir())


# translate

ASKED = ["The dog was tired.", "", "Where is the cat?"]


def test_the_best_few(trained, tmp_path, capsys):
    "As many lines out for each line in, best first; --scores puts a number and a tab before each."
    path, how = (
        write(tmp_path / "in", ASKED),
        ("--beam-size", 5, "--alpha", 1, "--batch-tokens", 30),
    )
    status, best, _ = run(capsys, "translate", trained, path, *how)
    assert status == 0 and len(best.split("\n")[:-1]) == 3
    status, scored, _ = run(
        capsys, "translate", trained, path, *how, "--n-best", 3, "--scores"
    )
    rows = [line.split("\t") for line in scored.split("\n")[:-1]]
    assert (
        status == 0
        and len(rows) == 9
        and [text for _, text in rows[::3]] == best.split("\n")[:-1]
    )
    scores = [float(score) for score, _ in rows]
    assert (
        all(
            -100 < c <= b <= a <= 0
            for a, b, c in zip(scores[::3], scores[1::3], scores[2::3])
        )
        and scores[0] > scores[2]
    )
    assert (
        rows[3:6] == [["0.0000", ""]] * 3
    )  # a line without text has nothing to choose from
    status, plain, _ = run(capsys, "translate", trained, path, *how, "--n-best", 3)
    assert plain.split("\n")[:-1] == [text for _, text in rows]


def test_the_papers_search_is_the_default(trained, tmp_path, capsys):
    path = write(tmp_path / "in", [s.en for s in builtin(20, seed=5)])
    said = {
        how: run(capsys, "translate", trained, path, *how, "--scores")[1]
        for how in [(), ("--beam-size", 4, "--alpha", 0.6), ("--beam-size", 1)]
    }
    assert (
        said[()]
        == said["--beam-size", 4, "--alpha", 0.6]
        != said[
            "--beam-size",
            1,
        ]
    )


@pytest.mark.parametrize(
    "args, message",
    [
        (["--beam-size", 0], "beam_size=0: take 1 to 256"),
        (["--beam-size", 257], "beam_size=257"),
        (["--alpha", -1], "alpha=-1.0: take 0 to 10"),
        (["--alpha", "nan"], "alpha=nan"),
        (["--n-best", 0], "n_best=0"),
        (["--n-best", 5], "n_best=5 with beam_size=4"),
        (["--beam-size", 2, "--n-best", 3], "n_best=3 with beam_size=2"),
        (["--beam-size", "wide"], "--beam-size"),
        (["--batch-tokens", 0], "batch_tokens=0"),
        (["--precision", "fp33"], "precision='fp33'"),
    ],
)
def test_wrong_search(args, message, trained, tmp_path, capsys):
    status, out, err = run(
        capsys, "translate", trained, write(tmp_path / "in", ASKED), *args
    )
    assert status == 2 and out == "" and message in err and err.count("\n") == 1, err


class Terminal(io.BytesIO):
    "Somebody who types."

    def isatty(self):
        return True

    buffer = property(lambda self: self)


def test_typing(trained, tmp_path, capsys, monkeypatch):
    "A prompt for each line and one for the end, on standard error; the translations alone on standard output."
    said = run(capsys, "translate", trained, write(tmp_path / "in", ASKED))[1]
    monkeypatch.setattr(
        sys, "stdin", Terminal("".join(line + "\n" for line in ASKED).encode())
    )
    status, out, err = run(capsys, "translate", trained)
    assert (
        status == 0
        and out == said
        and err
        == "Type a sentence and press return; Ctrl-D leaves.\n" + "> " * 4 + "\n"
    )


# score


def test_every_score(trained, text, tmp_path, capsys):
    said = write(
        tmp_path / "said",
        run(capsys, "translate", trained, text[0])[1].split("\n")[:-1],
    )
    status, plain, _ = run(capsys, "score", trained, "--src", text[0], "--ref", text[1])
    assert (
        run(capsys, "score", said, "--ref", text[1])[1] == plain
    )  # translated before, or now
    options = ("--chrf", "--confidence", "--flavours", "de", "--perplexity")
    status, out, _ = run(
        capsys, "score", trained, "--src", text[0], "--ref", text[1], *options
    )
    lines = out.split("\n")[:-1]
    assert (
        status == 0
        and len(lines) == 8
        and [line.split(" =")[0] for line in lines[:3]] == ["BLEU", "chrF2", "13a"]
    )
    assert all(
        re.match(r"\w+ = \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)  \S+bs:1000\S+$", line)
        for line in lines[:2]
    ), lines
    assert lines[2].split("= ")[1].split(" ")[0] == plain.split("= ")[1].split(" ")[0]
    assert re.fullmatch(
        r"perplexity = \d+\.\d{3} per token \(\d+\), \d+\.\d{3} per word \(\d+\)",
        lines[-1],
    )


def test_systems_are_compared(trained, text, tmp_path, capsys):
    good = write(
        tmp_path / "good", [s.de for s in builtin(300, seed=3)[:299]] + ["Nein."]
    )
    status, out, _ = run(
        capsys,
        "score",
        good,
        trained,
        text[1],
        "--src",
        text[0],
        "--ref",
        text[1],
        "--beam-size",
        1,
        "--perplexity",
    )
    first, second, third, unsure = out.split("\n")[:-1]
    assert status == 0 and first.startswith(f"{good}: BLEU = 9") and "p =" not in first
    assert second.startswith(f"{trained}: BLEU = ") and second.endswith(
        "p = 0.0001, 300 sentences differ"
    )
    assert third.startswith(f"{text[1]}: BLEU = 100.00") and third.endswith(
        "p = 1.0000, 1 sentences differ"
    )
    assert unsure.startswith(f"{trained}: perplexity = ")


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "--src is missing"),
        (["--src", "short"], "3 lines"),
        (["--flavours", "xx"], None),
    ],
)
def test_what_score_needs(
    options, message, trained, text, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "short", ASKED)
    system = trained if message else text[1]
    status, out, err = run(capsys, "score", system, "--ref", text[1], *options)
    assert (
        (status, out, err.count("\n")) == (2, "", 1) and message in err
        if message
        else status == 0 and "Traceback" not in err
    )


def test_perplexity_needs_a_run(text, capsys):
    "It was once ignored for files of translations."
    status, out, err = run(capsys, "score", text[1], "--ref", text[1], "--perplexity")
    assert (status, out, err) == (
        2,
        "",
        "annotated-transformer: --perplexity needs a run, not a file of translations\n",
    )


@pytest.mark.parametrize("system", ["nowhere", "loop"])
def test_a_system_that_is_not_there(system, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    status, out, err = run(capsys, "score", system, "--ref", text[1])
    assert (status, out, err) == (
        2,
        "",
        f"annotated-transformer: {system}: no such file or run\n",
    )


@pytest.mark.parametrize("verb", ["translate", "score", "attention", "train", "resume"])
def test_a_device_without_a_name(verb, trained, marian, text, tmp_path, capsys):
    "Four of the verbs once took it for the CPU."
    out = tmp_path / "new"
    import_run = tmp_path / "imported"
    assert run(capsys, "import-marian", marian, import_run)[0] == 0
    for model in (trained, import_run):
        args = {
            "translate": ["translate", model, text[0]],
            "score": ["score", model, "--src", text[0], "--ref", text[1]],
            "attention": [
                "attention",
                model,
                "A dog.",
                "--out",
                out.with_suffix(".html"),
            ],
            "resume": ["train", "--resume", trained],
            "train": [
                "train",
                "--src",
                text[0],
                "--tgt",
                text[1],
                "--config",
                "tiny",
                "--out",
                out,
                *TINY,
            ],
        }[verb]
        status, said, err = run(capsys, *args, "--device", "")
        assert (
            status == 2
            and said == ""
            and err.startswith("annotated-transformer: device '' cannot be used here")
            and err.count("\n") == 1
        ), err
    assert not list(tmp_path.glob("new*"))


def test_prepare_then_train(text, trained, tmp_path, capsys):
    "The two halves of train give the run that train gives."
    out = tmp_path / "run"
    status, _, err = run(
        capsys,
        "prepare",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        out,
        "--quiet",
        *TINY,
    )
    assert (
        status == 0
        and f"train --resume {out}" in err
        and not (out / "model.safetensors").exists()
    )
    assert run(capsys, "train", "--resume", out, "--device", "cpu", "--quiet")[0] == 0
    assert (out / "model.safetensors").read_bytes() == (
        trained / "model.safetensors"
    ).read_bytes()


def test_prepare_then_train_with_shared_text(text, trained, tmp_path, capsys):
    "`prepare` says how to go on, and that is what works: the shared text is named again."
    out, shared = tmp_path / "run", tmp_path / "shared"
    status, _, err = run(
        capsys,
        "prepare",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        out,
        "--prepared",
        shared,
        "--quiet",
        *TINY,
    )
    assert status == 0 and err.endswith(
        f"annotated-transformer train --resume {out} --prepared {shared}\n"
    )
    resume = ["train", "--resume", out, "--device", "cpu", "--quiet"]
    status, _, err = run(capsys, *resume)
    assert status == 2 and f"name it, by --prepared '{shared}'" in err
    assert run(capsys, *resume, "--prepared", shared)[0] == 0
    assert (out / "model.safetensors").read_bytes() == (
        trained / "model.safetensors"
    ).read_bytes() and not (out / "data").exists()


def test_average(trained, text, tmp_path, capsys):
    out = tmp_path / "run"
    run(
        capsys,
        "train",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        out,
        "--device",
        "cpu",
        "--quiet",
        *TINY,
    )
    status, _, err = run(capsys, "average", out, "--last", 2)
    assert (
        status == 0 and "average of 2 checkpoints, step-0000002 to step-0000004" in err
    )
    assert (out / "model.safetensors").read_bytes() != (
        trained / "model.safetensors"
    ).read_bytes()
    status, _, err = run(capsys, "average", out, "--last", 3)
    assert status == 2 and "has 2" in err


@pytest.mark.parametrize(
    "args, message",
    [
        ([], "--out"),
        (["--out", "a", "--resume", "b"], "--resume"),
        (["--resume", "nowhere"], "is not a run folder"),
        (["--resume", "nowhere", "dropout=0.3"], "takes its settings from the run"),
        (["--resume", "nowhere", "--data", "builtin"], "is not a run"),
        (
            ["--resume", "nowhere", "--config", "tiny"],
            "takes its settings from the run",
        ),
        (["--resume", "nowhere", "--tgt", "x"], "--src"),
        (["--resume", "nowhere", "--prepared", "x"], "is not a run folder"),
        (["--out", "a", "--data", "builtin", "--shard", "--bleu"], "--bleu"),
    ],
)
def test_what_to_begin_and_what_to_go_on_with(
    args, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "train", *args)
    assert (
        status == 2
        and message in err
        and err.count("\n") == 1
        and not any(tmp_path.iterdir())
    )


def test_bleu_while_training(text, tmp_path, capsys):
    status, _, _ = run(
        capsys,
        "train",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        tmp_path / "run",
        "--bleu",
        "--quiet",
        *TINY,
    )
    looks = [
        json.loads(line)
        for line in (tmp_path / "run/metrics.jsonl").read_text().split("\n")
        if "valid_loss" in line
    ]
    assert status == 0 and [0 <= look["valid_bleu"] <= 100 for look in looks] == [
        True,
        True,
    ]


def test_resume_leaves_an_average_alone(trained, tmp_path, capsys):
    "A run at its end stays as it is: config.json once said `best` of weights that were the average."
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    assert run(capsys, "average", out, "--last", 2)[0] == 0
    before = [
        (out / name).read_bytes() for name in ("model.safetensors", "config.json")
    ]
    assert run(capsys, "train", "--resume", out, "--device", "cpu", "--quiet")[0] == 0
    assert before == [
        (out / name).read_bytes() for name in ("model.safetensors", "config.json")
    ]


def demo_from(trained, out) -> None:
    "A run folder as `demo` leaves it."
    shutil.copytree(trained, out)
    write_json(
        out / "report.json",
        {
            "format": 1,
            "kind": "demo",
            "weights_sha256": sha256(out / "model.safetensors"),
        },
    )


def no_longer_a_demo(out: Path) -> None:
    (out / "report.json").write_text('{"format": 1, "kind": "demo"}')


def trained_further(out: Path) -> None:
    shutil.copyfile(
        out / "checkpoints/step-0000002/model.safetensors", out / "model.safetensors"
    )


def with_a_note(out: Path) -> None:
    (out / "notes.txt").write_text("keep me")


def without_a_report(out: Path) -> None:
    (out / "report.json").unlink()


def of_the_first_edition(out: Path) -> None:
    (out / "report.json").write_text('{"exact_match": 0.97}')


@pytest.mark.parametrize(
    "change",
    [
        no_longer_a_demo,
        trained_further,
        with_a_note,
        without_a_report,
        of_the_first_edition,
    ],
    ids=lambda f: f.__name__,
)
def test_demo_replaces_demos_only(change, trained, tmp_path, capsys):
    "It once deleted whatever folder it was given, then whatever run."
    demo_from(trained, tmp_path / "demo")
    change(tmp_path / "demo")
    mine = write(tmp_path / "mine.txt", ["keep me"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for out in (tmp_path, mine, tmp_path / "demo", tmp_path / "demo/.."):
        status, _, err = run(capsys, "demo", "--out", out)
        assert status == 2 and ("choose another" in err) and err.count("\n") == 1, err
    assert {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    } == before


@pytest.mark.parametrize(
    "args",
    [
        ("demo", "--out"),
        ("average", "--last", 1),
        ("train", "--device", "cpu", "--quiet", "--resume"),
    ],
    ids=["demo", "average", "resume"],
)
def test_a_run_in_use_is_left_alone(args, trained, tmp_path, capsys):
    "Another process trains it further: it is neither replaced nor changed."
    demo_from(trained, tmp_path / "demo")
    with FolderLock(tmp_path / "demo"):
        before = {
            path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
        }
        status, _, err = run(capsys, *args, tmp_path / "demo")
        assert (
            status == 2 and "demo is in use by process" in err and err.count("\n") == 1
        ), err
        assert {
            path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
        } == before


@pytest.mark.parametrize("name, status", [("SIGINT", 130), ("SIGTERM", 143)])
def test_interrupted_demo(name, status, trained, tmp_path, capsys, monkeypatch):
    "It once went on with what was half trained, and put it in the place of the earlier demo."
    out, plain = tmp_path / "demo", runs.metrics_file
    demo_from(trained, out)
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}

    def harmed(path, *more):
        return lambda record: (
            plain(path, *more)(record)
            or record.step == 2
            and os.kill(os.getpid(), getattr(signal, name))
        )

    monkeypatch.setattr(runs, "metrics_file", harmed)
    found, _, err = run(capsys, "demo", "--out", out)
    assert found == status and f"interrupted by {name}: {out} is as it was" in err
    assert {
        path.name: path.read_bytes() for path in out.iterdir() if path.is_file()
    } == before
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


def with_notes_inside(out: Path) -> None:
    (out / "checkpoints/notes.txt").write_text("keep me")


def with_a_folder_inside(out: Path) -> None:
    (out / "data/mine").mkdir(parents=True)
    (out / "data/mine/thesis.txt").write_text("the only copy")


@pytest.mark.parametrize(
    "change", [with_notes_inside, with_a_folder_inside], ids=lambda f: f.__name__
)
def test_demo_keeps_what_is_inside(change, trained, tmp_path, capsys):
    demo_from(trained, tmp_path / "demo")
    change(tmp_path / "demo")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    status, _, err = run(capsys, "demo", "--out", tmp_path / "demo")
    assert status == 2 and "is not a demo, or was changed since" in err
    assert {
        path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
    } == before


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("RANK", "1", None),
        ("RANK", "x", None),
        ("TORCHELASTIC_RESTART_COUNT", "x", "is no number"),
    ],
)
def test_what_a_launcher_left_in_the_environment(
    name, value, message, text, tmp_path, capsys, monkeypatch
):
    "RANK alone is not torchrun: one process goes on as one."
    monkeypatch.setenv(name, value)
    out = tmp_path / "run"
    status, _, err = run(
        capsys,
        "train",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        out,
        "--device",
        "cpu",
        "--quiet",
        *TINY,
    )
    if message:
        assert (
            status == 2
            and f"{name}={value!r}" in err
            and message in err
            and not out.exists()
        )
    else:
        assert status == 0 and (out / "model.safetensors").exists(), err


def test_launched_with_a_wrong_rank(text, tmp_path, capsys, monkeypatch):
    for name, value in {
        "RANK": "x",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "0",
    }.items():
        monkeypatch.setenv(name, value)
    status, _, err = run(
        capsys,
        "train",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
        *TINY,
    )
    assert status == 2 and "RANK='x'" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "device", ["hpu", "privateuseone", "fpga", "opengl", "cuda:99"]
)
def test_devices_that_are_not_there(device, trained, capsys):
    status, _, err = run(capsys, "translate", trained, "--device", device)
    assert status == 2 and err.count("\n") == 1 and repr(device) in err


def test_text_to_train_on_from_a_pipe(text, tmp_path, capsys):
    "It is read several times: the second reading of a pipe would wait for ever."
    os.mkfifo(tmp_path / "pipe")
    status, _, err = run(
        capsys,
        "prepare",
        "--src",
        tmp_path / "pipe",
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        tmp_path / "run",
        *TINY,
    )
    assert (
        status == 2
        and "pipe is no ordinary file: text to train on is read several times" in err
        and not (tmp_path / "run").exists()
    )


def test_names_that_are_not_utf8(text, tmp_path, capsys):
    "A run cannot have one, since safetensors reads none; a text can."
    bad = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    status, _, err = run(
        capsys,
        "prepare",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        bad,
        "--quiet",
        *TINY,
    )
    assert status == 2 and "is not a name in UTF-8" in err
    shutil.copyfile(text[0], bad)
    status, _, err = run(
        capsys,
        "prepare",
        "--src",
        bad,
        "--tgt",
        text[1],
        "--config",
        "tiny",
        "--out",
        tmp_path / "run",
        "--quiet",
        *TINY,
    )
    assert status == 0, err
    assert json.loads((tmp_path / "run/config.json").read_text())["source"][
        "src"
    ] == str(bad)


def test_a_progress_bar_that_nobody_reads(text, tmp_path):
    "`train … 2>&1 | tee log`, and the reader dies: training goes on, and saves."
    out = tmp_path / "run"
    words = [
        "train",
        "--src",
        *map(str, text[:1]),
        "--tgt",
        str(text[1]),
        "--config",
        "tiny",
        "--out",
        str(out),
        "--device",
        "cpu",
        *TINY,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "annotated_transformer", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    process.stderr.close()
    assert process.wait(timeout=120) == 0 and (out / "model.safetensors").exists()
    assert json.loads((out / "config.json").read_text())["stopped"].startswith(
        "max_steps"
    )


def test_a_line_break_in_a_name(tmp_path, capsys):
    status, _, err = run(capsys, "translate", tmp_path / "a\nb")
    assert status == 2 and err.count("\n") == 1


# other people's models, other people's engines


@pytest.fixture(scope="module")
def marian(tmp_path_factory) -> Path:
    "A checkpoint with Marian's names, in the form that Hugging Face publishes; its weights are random."
    folder, ids = tmp_path_factory.mktemp("marian"), {"</s>": 0, "<unk>": 1}
    for name, lines in zip(
        _FILES,
        ([s.en for s in builtin(300, seed=3)], [s.de for s in builtin(300, seed=3)]),
    ):
        out = io.BytesIO()
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=out,
            vocab_size=90,
            num_threads=1,
            minloglevel=2,
        )
        (folder / name).write_bytes(out.getvalue())
        pieces = spm.SentencePieceProcessor(model_proto=out.getvalue())
        for i in range(3, len(pieces)):
            ids.setdefault(pieces.id_to_piece(i), len(ids))
    pad = ids["<pad>"] = len(ids)
    (folder / _FILES[2]).write_text(json.dumps(ids))
    sizes = {
        f"{side}_{part}": n
        for side in ("encoder", "decoder")
        for part, n in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 32))
    }
    sizes |= {
        "vocab_size": len(ids),
        "d_model": 16,
        "max_position_embeddings": 64,
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": pad,
        "decoder_start_token_id": pad,
        "eos_token_id": 0,
        "num_beams": 3,
    }
    (folder / "config.json").write_text(
        json.dumps({"model_type": "marian", "bad_words_ids": [[pad]], **sizes})
    )
    config = MarianConfig(**sizes, ban_pad=True)
    torch.manual_seed(0)
    ours = build_marian(config).state_dict()
    save_file(
        {
            theirs: torch.randn_like(ours[mine])
            for theirs, mine in marian_names(config).items()
        },
        folder / "model.safetensors",
    )
    return folder


def test_import_marian(marian, text, trained, tmp_path, capsys):
    "From a folder to a run for the other verbs; what it is not for is said."
    out = tmp_path / "new/run"
    status, _, err = run(capsys, "import-marian", marian, out)
    assert (
        status == 0
        and err == f"{out} is ready: annotated-transformer translate {out}\n"
    )
    status, said, _ = run(
        capsys,
        "translate",
        out,
        write(tmp_path / "in", ASKED),
        "--n-best",
        2,
        "--scores",
    )
    assert status == 0 and len(said.split("\n")) == 7
    asks_for = run(capsys, "translate", out, tmp_path / "in")[1]
    assert (
        asks_for != run(capsys, "translate", out, tmp_path / "in", "--beam-size", 1)[1]
    )
    assert (
        run(
            capsys,
            "score",
            out,
            trained,
            "--src",
            text[0],
            "--ref",
            text[1],
            "--beam-size",
            1,
        )[0]
        == 0
    )
    assert (
        run(
            capsys, "attention", out, "The dog was tired.", "--out", tmp_path / "a.html"
        )[0]
        == 0
    )
    for verb in (
        ["import-marian", marian, out],
        ["export-ct2", out, tmp_path / "ct2"],
        ["export-hf", out, tmp_path / "hf"],
        ["train", "--resume", out],
        ["average", out, "--last", 2],
    ):
        status, _, err = run(capsys, *verb)
        assert status == 2 and str(out) in err and err.count("\n") == 1, err
    assert not (tmp_path / "ct2").exists() and not (tmp_path / "hf").exists()
    for mine in (
        trained,
        out,
    ):  # its message once quoted the constructor of MarianConfig
        status, _, err = run(capsys, "import-marian", mine, tmp_path / "other")
        assert (status, err) == (
            2,
            f"annotated-transformer: {mine} is a run of annotated_transformer already, "
            "not a Marian checkpoint of Hugging Face\n",
        )
    assert not (tmp_path / "other").exists()


def test_a_model_too_large_for_the_machine(trained, tmp_path, capsys):
    "Said in one line before any text is read, also when a run is continued."
    sizes, out = ["n_layers=1000", "d_ff=100000000"], tmp_path / "run"
    missing = ["--src", tmp_path / "no text", "--tgt", tmp_path / "no text"]
    status, said, err = run(capsys, "train", "--out", out, *missing, *sizes)
    assert (status, said, err.count("\n")) == (2, "", 1)
    assert "n_layers=1000 d_model=256 d_ff=100000000 makes 102,600," in err
    assert not out.exists()
    shutil.copytree(trained, out)
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    config["model"]["d_ff"] = 2**31 - 1
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    status, said, err = run(capsys, "train", "--resume", out)
    assert (status, said, err.count("\n")) == (2, "", 1)
    assert "d_ff=2147483647 makes" in err and "Adam's state need" in err


def test_export_ct2(trained, tmp_path, capsys):
    "A folder that the engine opens; none for a wrong word, none over another."
    engine = pytest.importorskip("ctranslate2")
    for how in ("float32", "int8"):
        out = tmp_path / how
        status, _, err = run(capsys, "export-ct2", trained, out, "--quantization", how)
        assert (
            status == 0
            and err == f"{out} is ready: ctranslate2.Translator({str(out)!r})\n"
        )
        (found,) = engine.Translator(str(out), intra_threads=1).translate_batch(
            [["\u2581"]], beam_size=1, max_decoding_length=5
        )
        assert len(found.hypotheses[0]) <= 5
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    for args, message in (
        ([out], "is not empty"),
        ([tmp_path / "new", "--quantization", "int7"], "quantization='int7'"),
    ):
        status, _, err = run(capsys, "export-ct2", trained, *args)
        assert status == 2 and message in err and err.count("\n") == 1
    assert (
        before == {p.name: p.read_bytes() for p in out.iterdir()}
        and not (tmp_path / "new").exists()
    )


def test_export_hf(trained, tmp_path, capsys):
    "A folder that transformers opens, and none over another."
    transformers = pytest.importorskip("transformers")
    out = tmp_path / "out"
    status, printed, err = run(capsys, "export-hf", trained, out)
    call = f"transformers.AutoModelForSeq2SeqLM.from_pretrained({str(out)!r})"
    assert (status, printed, err) == (0, "", f"{out} is ready: {call}\n")
    transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
    capsys.readouterr()
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    status, _, err = run(capsys, "export-hf", trained, out)
    assert status == 2 and "is not empty" in err and err.count("\n") == 1
    assert before == {p.name: p.read_bytes() for p in out.iterdir()}


# Table 3


@pytest.fixture
def variations(monkeypatch):
    "The verb with tiny rows on 300 sentences, three steps each."
    monkeypatch.setattr(
        corpus,
        "load_corpus",
        lambda name, data_dir=None, **_: load_corpus(
            name, data_dir, n_train=300, n_valid=20, n_test=1
        ),
    )
    small = (
        "n_layers=1",
        "d_model=32",
        "d_ff=64",
        "n_pieces=500",
        "batch_tokens=400",
        "warmup_steps=1",
        "save_every=2",
    )
    return lambda capsys, *args: run(
        capsys,
        "variations",
        "--data",
        "builtin",
        "--device",
        "cpu",
        "--quiet",
        "--steps",
        3,
        *args,
        *small,
    )


def found_in(table: Path) -> list:
    "What a table says, without times."
    rows = json.loads((table / "table.json").read_text(encoding="utf-8"))["rows"]
    return [
        (row["row"], one["seed"], one["valid_loss"], one["bleu"], one["n_parameters"])
        for row in rows
        for one in row["found"]
    ]


def test_variations(variations, tmp_path, capsys, monkeypatch):
    "A table; and the same one from sittings that end after every step, and from one that is interrupted."
    rows = ("--rows", "base,A h=1", "--out")
    status, out, err = variations(capsys, *rows, tmp_path / "whole")
    assert status == 0 and [line.split("  ")[0] for line in out.split("\n")[1:-1]] == [
        "base",
        "A h=1",
    ], err
    assert err.count("\n") == 4 and "4 of 4: A h=1, seed 1: perplexity" in err
    whole = found_in(tmp_path / "whole")
    assert (
        len({loss for _, _, loss, *_ in whole}) == 4
        and len({n for *_, n in whole}) == 1
    )  # heads share one width
    assert {p.name for p in (tmp_path / "whole").iterdir()} == {
        "settings.json",
        "table.json",
        "rows",
        "data",
    }
    assert {p.name for p in (tmp_path / "whole/rows/base-seed0").iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "curve.svg",
    }
    with monkeypatch.context() as patch:
        patch.setattr(runs, "stop_after", lambda minutes: lambda record: Stop("time"))
        errors = [
            variations(
                capsys, *rows, tmp_path / "pieces", "--seeds", 1, "--minutes", 1
            )[2]
            for _ in range(6)
        ]
    assert ["the same command again" in err for err in errors] == [True] * 4 + [
        False
    ] * 2
    assert found_in(tmp_path / "pieces") == whole[::2]
    with monkeypatch.context() as patch:
        plain = runs.metrics_file

        def harmed(path, *more):
            return lambda record: (
                plain(path, *more)(record)
                or record.step == 2
                and os.kill(os.getpid(), signal.SIGINT)
            )

        patch.setattr(runs, "metrics_file", harmed)
        status, out, err = variations(capsys, *rows, tmp_path / "broken")
        assert (
            status == 130
            and out == ""
            and err.count("\n") == 1
            and "give the same command again" in err
        )
    assert (
        variations(capsys, *rows, tmp_path / "broken")[0] == 0
        and found_in(tmp_path / "broken") == whole
    )
    before = (tmp_path / "whole/table.json").read_bytes()
    status, _, err = variations(
        capsys, *rows, tmp_path / "whole", "label_smoothing=0.0"
    )
    assert (
        status == 2
        and "was started with label_smoothing=0.1, not 0.0: choose another --out" in err
        and err.count("\n") == 1
    )
    assert (tmp_path / "whole/table.json").read_bytes() == before


@pytest.mark.parametrize(
    "args, message",
    [
        (["--data", "wmt14"], "there is a base for builtin and for multi30k"),
        (["--rows", "A h=3"], "no row is called 'A h=3'"),
        (["--seeds", 0], "--seeds"),
        (["--minutes", 0], "minutes=0.0 must be positive"),
        (["--minutes", "inf"], "minutes=inf must be positive and below 10,000,000"),
        (["--minutes", "nan"], "minutes=nan must be positive and below"),
        (["--steps", 0], "max_steps=0"),
        (["d_modl=3"], "did you mean d_model?"),
        (["n_heads=3"], "does not split into n_heads=3"),
        (["--device", "toaster"], "toaster"),
    ],
)
def test_wrong_variations(args, message, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        corpus,
        "load_corpus",
        lambda name, data_dir=None, **_: load_corpus(
            name, data_dir, n_train=300, n_valid=20, n_test=1
        ),
    )
    status, _, err = run(
        capsys, "variations", "--data", "builtin", "--out", tmp_path / "t", *args
    )
    assert status == 2 and message in err and err.count("\n") == 1, err
    assert not list(tmp_path.glob("t/rows/*/config.json"))


# the frozen command line

FROZEN = {  # what scripts rely on: a new name gets a place here, an old one stays
    "train": "[KEY=VALUE] --out --resume --data --data-dir --src --tgt --valid-src --valid-tgt --src-lang --tgt-lang --prepared --config --minutes "
    "--device --bleu --shard --tensorboard --quiet",
    "prepare": "[KEY=VALUE] --out --data --data-dir --src --tgt --valid-src --valid-tgt --src-lang --tgt-lang --prepared "
    "--config --quiet",
    "average": "RUN --last",
    "translate": "RUN [FILE] --beam-size --alpha --n-best --scores --batch-tokens --precision --device --quiet",
    "score": "RUN… --ref --src --chrf --confidence --flavours --perplexity --beam-size --alpha --precision --device",
    "attention": "RUN SENTENCE --out --device",
    "live": "RUN --out",
    "import-marian": "DIR RUN",
    "export-ct2": "RUN DIR --quantization",
    "export-hf": "RUN DIR",
    "variations": "[KEY=VALUE] --data --data-dir --rows --seeds --minutes --steps --out --device --quiet",
    "demo": "--out",
}


def test_verbs_and_options():
    found = {}
    for verb, command in typer.main.get_command(_app).commands.items():
        names = [
            p.opts[0]
            if p.param_type_name == "option"
            else p.metavar
            if p.required
            else f"[{p.metavar}]"
            for p in command.params
        ]
        found[verb] = " ".join(name for name in names if name != "--help")
    assert {verb: sorted(names.split()) for verb, names in found.items()} == {
        verb: sorted(names.split()) for verb, names in FROZEN.items()
    }


@pytest.mark.parametrize("verb", [[], *([verb] for verb in FROZEN)])
def test_help_is_worth_reading(verb, capsys):
    status, out, _ = run(capsys, *verb, "--help")
    assert status == 0 and "Usage:" in out and max(map(len, out.split("\n"))) <= 100
    assert all(
        name.strip("[]") in out for name in " ".join(FROZEN[v] for v in verb).split()
    )


@pytest.mark.parametrize("verb", ["train", "prepare"])
def test_help_names_every_recipe_once(verb, capsys):
    _, out, _ = run(capsys, verb, "--help")
    # The help may break a line after a hyphen.
    words = re.findall(r"[\w-]+", re.sub(r"-\n\s+", "-", out))
    assert {name: words.count(name) for name in RECIPES} == dict.fromkeys(RECIPES, 1)
    assert f"{_DEFAULT_RECIPE} (the default)" in " ".join(out.split())


def test_the_default_recipe(text, tmp_path, capsys):
    out, settings = tmp_path / "run", ["n_pieces=500"]
    status, _, err = run(
        capsys,
        "prepare",
        "--src",
        text[0],
        "--tgt",
        text[1],
        "--out",
        out,
        "--quiet",
        *settings,
    )
    assert status == 0, err
    found = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert recipe_from_dict(found) == override(RECIPES[_DEFAULT_RECIPE], settings)


def shell(*args, **more) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k != "IN_TEST"}
    return subprocess.run(
        [sys.executable, "-m", "annotated_transformer", *map(str, args)],
        capture_output=True,
        env=environment,
        timeout=120,
        **more,
    )


def test_from_a_shell(trained, tmp_path):
    answer = shell(
        "translate", trained, input=b"The dog was tired.\n\nWhere is the cat?\n"
    )
    assert answer.returncode == 0 and answer.stdout.count(b"\n") == 3, (
        answer.stderr.decode()
    )
    nothing = shell("translate", tmp_path)
    assert (
        nothing.returncode == 2
        and b"Traceback" not in nothing.stderr
        and nothing.stdout == b""
    )


def test_a_closed_pipe_ends_quietly(trained, tmp_path):
    many = write(tmp_path / "in", ["The dog was tired."] * 3000)
    command = f"'{sys.executable}' -m annotated_transformer translate '{trained}' '{many}' | head -1"
    answer = subprocess.run(command, shell=True, capture_output=True, timeout=120)
    assert (
        answer.stdout.count(b"\n") == 1
        and b"Traceback" not in answer.stderr
        and b"BrokenPipe" not in answer.stderr
    )
