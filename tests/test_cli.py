"""The command line: every verb on a small run, every mistake one clear line and exit status 2, nothing half-written."""
import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from annotated_transformer.cli import main
from annotated_transformer.grammar import builtin

TINY = ["n_layers=1", "d_model=32", "d_ff=64", "n_heads=2", "n_pieces=500", "max_steps=4", "batch_tokens=400", "valid_every=2", "save_every=2",
        "average_last=0"]


def run(capsys, *args) -> tuple[int, str, str]:
    "Exit status, standard output and standard error of one call, in this process."
    with pytest.raises(SystemExit) as left: main([str(a) for a in args])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8", newline="")
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> tuple[Path, Path]:
    "Two aligned files."
    folder = tmp_path_factory.mktemp("text")
    sentences = builtin(300, seed=3)
    return write(folder / "a.en", [s.en for s in sentences]), write(folder / "a.de", [s.de for s in sentences])


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory) -> Path:
    "A run of four steps."
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(SystemExit) as left:
        main(["train", "--src", str(text[0]), "--tgt", str(text[1]), "--config", "tiny", "--out", str(out), "--device", "cpu", "--quiet", *TINY])
    assert left.value.code == 0
    return out


def test_a_run_holds_what_it_should(trained):
    found = {p.name for p in trained.iterdir()} - {"tensorboard"}  # where TensorBoard is installed
    assert found == {"config.json", "vocab.model", "data", "model.safetensors", "metrics.jsonl", "curve.svg", "checkpoints"}
    config = json.loads((trained / "config.json").read_text(encoding="utf-8"))
    assert config["steps"] == 4 and config["model"]["d_model"] == 32 and "validation" in config["weights"]
    assert {p.name for p in (trained / "checkpoints").iterdir()} == {"step-0000002", "step-0000004", "best.safetensors"}
    assert not [p for p in trained.rglob(".*")], "no temporary file is left"


MISTAKES = {
    "unknown key": (["d_modl=64"], "did you mean d_model?"),
    "heads do not divide": (["d_model=30", "n_heads=4"], "d_model=30 does not split into n_heads=4 equal heads"),
    "not a number": (["dropout=much"], "dropout=much"),
    "no equals sign": (["dropout"], "key=value"),
    "out of range": (["label_smoothing=1.5"], "label_smoothing=1.5"),
    "unknown config": (["--config", "huge"], "huge"),
    "unknown device": (["--device", "toaster"], "toaster"),
    "no time": (["--minutes", "0"], "minutes"),
    "unknown option": (["--colour", "blue"], "--colour"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_settings(name, text, tmp_path, capsys):
    args, message = MISTAKES[name]
    status, _, err = run(capsys, "train", "--src", text[0], "--tgt", text[1], "--config", "tiny", "--out", tmp_path / "run", "--quiet", *args)
    assert status == 2 and message in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


def bad_text(kind: str, folder: Path) -> tuple[Path, Path, str]:
    "Two files with one thing wrong, and what the message must name."
    good = write(folder / "good", ["one", "two", "three"])
    bad = folder / "bad"
    if kind == "line counts": return good, write(bad, ["eins", "zwei"]), "3"
    if kind == "missing": return good, bad, "bad"
    if kind == "empty": bad.write_bytes(b""); return bad, bad, "empty"
    if kind == "utf-8": bad.write_bytes(b"eins\nzw\xffei\ndrei\n"); return good, bad, "line 2"
    if kind == "a folder": bad.mkdir(); return good, bad, "bad"
    bad = folder / "bad.gz"
    bad.write_bytes(gzip.compress(b"eins\nzwei\ndrei\n")[:-9])
    return good, bad, "bad.gz"


@pytest.mark.parametrize("kind", ["line counts", "missing", "empty", "utf-8", "a folder", "cut gzip"])
def test_wrong_text(kind, tmp_path, capsys):
    src, tgt, names = bad_text(kind, tmp_path)
    status, _, err = run(capsys, "train", "--src", src, "--tgt", tgt, "--config", "tiny", "--out", tmp_path / "run", "--quiet")
    assert status == 2 and names in err and err.count("\n") == 1, err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("args", [[], ["--data", "builtin", "--src", "x"], ["--src", "x"], ["--src", "x", "--tgt", "y", "--valid-src", "z"],
                                  ["--data", "wmt99"]])
def test_which_text(args, tmp_path, capsys):
    status, _, err = run(capsys, "train", *args, "--out", tmp_path / "run")
    assert status == 2 and err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_out_that_holds_a_run(trained, text, capsys):
    before = {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}
    status, _, err = run(capsys, "train", "--src", text[0], "--tgt", text[1], "--out", trained)
    assert status == 2 and "already holds a run" in err
    assert before == {p: p.read_bytes() for p in trained.rglob("*") if p.is_file()}


@pytest.mark.parametrize("verb", [["translate"], ["score", "--src", "a", "--ref", "b"], ["attention", "A dog.", "--out", "x.html"]])
def test_no_run(verb, tmp_path, capsys):
    status, _, err = run(capsys, verb[0], tmp_path, *verb[1:])
    assert status == 2 and "is not a run folder" in err and err.count("\n") == 1


@pytest.mark.parametrize("file", ["config.json", "vocab.model", "model.safetensors"])
@pytest.mark.parametrize("damage", ["gone", "cut", "noise"])
def test_a_damaged_run(file, damage, trained, tmp_path, capsys):
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    for p in trained.iterdir():
        if p.is_file(): (run_folder / p.name).write_bytes(p.read_bytes())
    whole = (run_folder / file).read_bytes()
    if damage == "gone": (run_folder / file).unlink()
    elif damage == "cut": (run_folder / file).write_bytes(whole[:len(whole) // 2])
    else: (run_folder / file).write_bytes(bytes(range(256)))
    status, out, err = run(capsys, "translate", run_folder, write(tmp_path / "in", ["A dog."]))
    assert status == 2 and out == "" and file in err and err.count("\n") == 1, err


def test_lines_in_lines_out(trained, tmp_path, capsys):
    lines = ["The dog was tired.", "", "   ", "\u2028odd\u0085spaces", "Where is the cat?"]
    status, out, _ = run(capsys, "translate", trained, write(tmp_path / "in", lines))
    answers = out.split("\n")[:-1]
    assert status == 0 and len(answers) == len(lines) and answers[1] == answers[2] == ""


def test_crlf_and_bom_do_no_harm(trained, tmp_path, capsys):
    plain, dos = tmp_path / "plain", tmp_path / "dos"
    plain.write_bytes(b"The dog was tired.\nWhere is the cat?\n")
    dos.write_bytes(b"\xef\xbb\xbfThe dog was tired.\r\nWhere is the cat?\r\n")
    assert run(capsys, "translate", trained, plain)[:2] == run(capsys, "translate", trained, dos)[:2]


def test_a_very_long_line_is_translated_and_reported(trained, tmp_path, capsys):
    status, out, err = run(capsys, "translate", trained, write(tmp_path / "in", ["A dog.", "the dog and " * 400, "A cat."]))
    assert status == 0 and len(out.split("\n")) == 4 and "line 2" in err


def test_bad_bytes_name_the_line(trained, tmp_path, capsys):
    (tmp_path / "in").write_bytes(b"A dog.\n\xff\xfe\n")
    status, _, err = run(capsys, "translate", trained, tmp_path / "in")
    assert status == 2 and "line 2" in err


def test_score_and_attention(trained, text, tmp_path, capsys):
    status, out, _ = run(capsys, "score", trained, "--src", text[0], "--ref", text[1])
    assert status == 0 and out.startswith("BLEU = ") and "tok:13a" in out
    status, _, err = run(capsys, "score", trained, "--src", text[0], "--ref", write(tmp_path / "ref", ["Nur eine."]))
    assert status == 2 and "300" in err
    assert run(capsys, "attention", trained, "The dog was tired.", "--out", tmp_path / "a.html")[0] == 0
    assert "http" not in (tmp_path / "a.html").read_text(encoding="utf-8").replace("http-equiv", "").replace("http://www.w3.org", "")
    status, _, err = run(capsys, "attention", trained, " ", "--out", tmp_path / "b.html")
    assert status == 2 and not (tmp_path / "b.html").exists()


def test_prepare_then_train(text, trained, tmp_path, capsys):
    "The two halves of train give the run that train gives."
    out = tmp_path / "run"
    status, _, err = run(capsys, "prepare", "--src", text[0], "--tgt", text[1], "--config", "tiny", "--out", out, "--quiet", *TINY)
    assert status == 0 and f"train --resume {out}" in err and not (out / "model.safetensors").exists()
    assert run(capsys, "train", "--resume", out, "--device", "cpu", "--quiet")[0] == 0
    assert (out / "model.safetensors").read_bytes() == (trained / "model.safetensors").read_bytes()


def test_average(trained, text, tmp_path, capsys):
    out = tmp_path / "run"
    run(capsys, "train", "--src", text[0], "--tgt", text[1], "--config", "tiny", "--out", out, "--device", "cpu", "--quiet", *TINY)
    status, _, err = run(capsys, "average", out, "--last", 2)
    assert status == 0 and "average of 2 checkpoints, step-0000002 to step-0000004" in err
    assert (out / "model.safetensors").read_bytes() != (trained / "model.safetensors").read_bytes()
    status, _, err = run(capsys, "average", out, "--last", 3)
    assert status == 2 and "has 2" in err


@pytest.mark.parametrize("args, message", [
    ([], "--out"), (["--out", "a", "--resume", "b"], "--resume"), (["--resume", "nowhere"], "is not a run folder"),
    (["--resume", "nowhere", "dropout=0.3"], "leave them out"), (["--resume", "nowhere", "--data", "builtin"], "leave them out"),
    (["--resume", "nowhere", "--tgt", "x"], "leave them out"), (["--resume", "nowhere", "--prepared", "x"], "leave them out"),
    (["--out", "a", "--data", "builtin", "--shard", "--bleu"], "--bleu"),
])
def test_what_to_begin_and_what_to_go_on_with(args, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "train", *args)
    assert status == 2 and message in err and err.count("\n") == 1 and not any(tmp_path.iterdir())


def test_bleu_while_training(text, tmp_path, capsys):
    status, _, _ = run(capsys, "train", "--src", text[0], "--tgt", text[1], "--config", "tiny", "--out", tmp_path / "run", "--bleu", "--quiet", *TINY)
    looks = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().split("\n") if "valid_loss" in line]
    assert status == 0 and [0 <= look["valid_bleu"] <= 100 for look in looks] == [True, True]


def test_resume_leaves_an_average_alone(trained, tmp_path, capsys):
    "A run at its end stays as it is: config.json once said `best` of weights that were the average."
    out = tmp_path / "run"
    shutil.copytree(trained, out)
    assert run(capsys, "average", out, "--last", 2)[0] == 0
    before = [(out / name).read_bytes() for name in ("model.safetensors", "config.json")]
    assert run(capsys, "train", "--resume", out, "--device", "cpu", "--quiet")[0] == 0
    assert before == [(out / name).read_bytes() for name in ("model.safetensors", "config.json")]


def test_demo_replaces_runs_only(tmp_path, capsys):
    "It once deleted whatever folder it was given."
    mine = write(tmp_path / "mine.txt", ["keep me"])
    for out in (tmp_path, mine):
        status, _, err = run(capsys, "demo", "--out", out)
        assert status == 2 and "choose another --out" in err and err.count("\n") == 1
    assert mine.read_text() == "keep me\n"


def test_a_line_break_in_a_name(tmp_path, capsys):
    status, _, err = run(capsys, "translate", tmp_path / "a\nb")
    assert status == 2 and err.count("\n") == 1


@pytest.mark.parametrize("verb", [[], ["train"], ["prepare"], ["average"], ["translate"], ["score"], ["attention"], ["demo"]])
def test_help_is_worth_reading(verb, capsys):
    status, out, _ = run(capsys, *verb, "--help")
    assert status == 0 and "Usage:" in out and max(map(len, out.split("\n"))) <= 100


def shell(*args, **more) -> subprocess.CompletedProcess:
    environment = {k: v for k, v in os.environ.items() if k != "IN_TEST"}
    return subprocess.run([sys.executable, "-m", "annotated_transformer", *map(str, args)], capture_output=True, env=environment, timeout=120, **more)


def test_from_a_shell(trained, tmp_path):
    answer = shell("translate", trained, input=b"The dog was tired.\n\nWhere is the cat?\n")
    assert answer.returncode == 0 and answer.stdout.count(b"\n") == 3, answer.stderr.decode()
    nothing = shell("translate", tmp_path)
    assert nothing.returncode == 2 and b"Traceback" not in nothing.stderr and nothing.stdout == b""


def test_a_closed_pipe_ends_quietly(trained, tmp_path):
    many = write(tmp_path / "in", ["The dog was tired."] * 3000)
    command = f"'{sys.executable}' -m annotated_transformer translate '{trained}' '{many}' | head -1"
    answer = subprocess.run(command, shell=True, capture_output=True, timeout=120)
    assert answer.stdout.count(b"\n") == 1 and b"Traceback" not in answer.stderr and b"BrokenPipe" not in answer.stderr
