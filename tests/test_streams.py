"""The program as a process: streams that are closed, full, endless or in another encoding, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from annotated_transformer.cli.main import main
from annotated_transformer.data.grammar import builtin

pytestmark = pytest.mark.skipif(os.name == "nt", reason="streams of POSIX")
SIZES = (
    "n_layers=1 d_model=16 d_ff=32 n_heads=2 vocab_size=320 max_steps=2 save_every=2"
)
TRAIN = f"train --src en --tgt de --config tiny --device cpu {SIZES} batch_tokens=400"
TRANSLATE = "translate run two --beam-size 1"
UNSET = ("IN_TEST", "ANNOTATED_TRANSFORMER_DATA", "PYTHONUNBUFFERED")
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in UNSET}
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    "A folder with two texts and a run that was made of them."
    folder, here, text = tmp_path_factory.mktemp("work"), Path.cwd(), builtin(200)
    lines = {"en": [s.en for s in text], "de": [s.de for s in text]}
    lines["two"] = ["a dog.", "a cat."]
    for name in lines:
        (folder / name).write_text("\n".join(lines[name]) + "\n", encoding="utf-8")
    os.chdir(folder)
    try:
        with pytest.raises(SystemExit) as left:
            main(f"{TRAIN} --quiet --out run".split())
    finally:
        os.chdir(here)
    assert left.value.code == 0
    return folder


def shell(work: Path, line: str, redirected: str = "", **more: str) -> tuple:
    "Exit status, standard output and error of a command whose streams are redirected."
    program = f"'{sys.executable}' -m annotated_transformer"
    left = subprocess.run(
        ["sh", "-c", f"{program} {line} {redirected}"],
        cwd=work,
        env=ENVIRONMENT | more,
        input=b"",
        capture_output=True,
        timeout=120,
    )
    return left.returncode, left.stdout, left.stderr.decode()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line_and_status_2(work):
    status, out, err = shell(work, "score de --ref de", ">/dev/full")
    assert (status, out, err.count("\n")) == (2, b"", 1), err
    assert (
        err.startswith("annotated-transformer: ") and "No space left on device" in err
    )


def test_messages_may_be_lost(work):
    "With a closed standard error, results come as they do."
    status, out, err = shell(work, TRANSLATE, "2>&- <&-")
    assert (status, out.count(b"\n"), err) == (0, 2, "")


def test_readers_that_leave(work):
    "The program ends silently."
    (work / "many").write_text("the dog was tired.\n" * 3000)
    status, out, err = shell(work, "translate run many --beam-size 1", "| head -1")
    assert (status, out.count(b"\n"), err) == (0, 1, "")


def test_ctrl_c(work, tmp_path):
    "One line, while a library is imported and while a command waits for its input."
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt")
    interrupted = (130, b"", "annotated-transformer: interrupted\n")
    assert shell(work, TRANSLATE, PYTHONPATH=str(tmp_path)) == interrupted
    process = subprocess.Popen(
        [sys.executable, "-m", "annotated_transformer", "translate", "run"],
        cwd=work,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdin.write(b"a dog.\n")
    process.stdin.flush()
    assert process.stdout.readline().endswith(b"\n")  # it waits for the second line
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.decode()) == interrupted


def test_output_is_utf8_in_every_locale(work):
    "Results and names of files, which come out as the bytes that they are."
    odd = [b"Stra\xc3\x9fe", b"Stra\xdfe"]
    for name in odd:
        Path(os.fsdecode(os.fsencode(work) + b"/" + name)).write_bytes(
            (work / "de").read_bytes()
        )
    status, out, err = shell(work, "score Stra* --ref de", **ASCII)
    assert (status, err) == (0, "")
    assert [line.split(b": ")[0] for line in out.split(b"\n")] == [*odd, b""]
    assert "…" in shell(work, "score --help", **ASCII)[1].decode()
    status, out, err = shell(work, f"{TRANSLATE} --prefix Straße", **ASCII)
    assert (status, out.count("Straße".encode())) == (0, 2), err


def fed(pipe: Path, data: bytes) -> Path:
    "A named pipe that somebody writes into, once."
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True).start()
    return pipe


def test_score_reads_pipes(work, tmp_path, capsys, monkeypatch):
    "`score <(…)`: each is read once, also where it is named twice."
    monkeypatch.chdir(work)
    data = (work / "de").read_bytes()
    both, src = fed(tmp_path / "both", data), fed(tmp_path / "src", data)
    words = ["score", "de", both, both, "--ref", both, "--src", src]
    words += ["--metric", "bleu", "--metric", "chrf"]
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    out = capsys.readouterr().out
    assert left.value.code == 0 and out.count("= 100.00") == 4
