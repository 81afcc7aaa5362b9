"`translate` between pipes: an answer to each line at once, in order, and whole."

import io
import os
import select
import subprocess
import sys

import pytest
from conftest import ROOT

from annotated_transformer.cli.main import main
from annotated_transformer.data.grammar import builtin
from annotated_transformer.engines.batched_search import batched_greedy_search
from annotated_transformer.translating.load import load

RUN = ROOT / "annotated_transformer/pretrained/demo"
GREEDY = ["--beam-size", "1"]
posix = pytest.mark.skipif(os.name == "nt", reason="signals and terminals of POSIX")


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return [" ".join(s.en.split()[:4]) for s in builtin(300, seed=7)] * 10


@pytest.fixture(scope="module")
def answers(lines) -> list[str]:
    "The translation of each line, found in this process."
    found = load(RUN, search=batched_greedy_search).translate(lines[:200])
    assert len(set(found)) > 50
    return found


def start(*args: str, **pipes) -> subprocess.Popen:
    "A `translate` that runs."
    environment = {k: v for k, v in os.environ.items() if k != "IN_TEST"}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | pipes
    command = [sys.executable, "-m", "annotated_transformer", "translate", str(RUN)]
    return subprocess.Popen([*command, *args], env=environment, **pipes)


def joined(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


@posix
def test_a_line_is_answered_before_the_next_one_is_there(lines, answers):
    with start(*GREEDY) as process:
        for line, answer in zip(lines[:3], answers):
            process.stdin.write(joined([line]))
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 120)[0], "no answer"
            assert process.stdout.readline() == joined([answer])
        process.stdin.write(lines[3].encode())  # the last line needs no line break
        process.stdin.close()
        assert process.stdout.read() == joined([answers[3]])
    assert process.returncode == 0


def translate(capsys, monkeypatch, lines: list[str], *args: str) -> tuple:
    "The lines printed by the command in this process, and its messages."
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(joined(lines))))
    with pytest.raises(SystemExit) as end:
        main(["translate", str(RUN), *args])
    out, err = capsys.readouterr()
    assert end.value.code == 0 and (out.endswith("\n") or not out), err
    return out.split("\n")[:-1], err


def test_order_and_greedy_search(capsys, monkeypatch, lines, answers):
    "Empty lines stay where they are, and one that is too long has a translation."
    odd = {50: "", 51: "   ", 150: "the dog and " * 100, 199: ""}
    given = [odd.get(i, line) for i, line in enumerate(lines[:200])]
    found, err = translate(capsys, monkeypatch, given, *GREEDY)
    assert len(found) == 200
    for i, answer in enumerate(answers):
        assert i in odd or found[i] == answer
    assert [found[i] == "" for i in odd] == [True, True, False, True]
    assert err == ""


@posix
def test_somebody_types(lines, answers):
    "A prompt on standard error, an answer to each line, Ctrl-D leaves."
    import pty

    ours, theirs = pty.openpty()
    with start(*GREEDY, stdin=theirs) as process:
        os.close(theirs)

        def prompted() -> bytes:
            found = b""
            while not found.endswith(b"> "):
                assert select.select([process.stderr], [], [], 120)[0]
                found += os.read(process.stderr.fileno(), 100)
            return found

        assert prompted() == b"Type a sentence and press return; Ctrl-D leaves.\n> "
        for line, answer in zip(lines[:3], answers):
            os.write(ours, joined([line]))
            assert process.stdout.readline() == joined([answer])
            assert prompted() == b"> "
        os.write(ours, b"\x04")
        assert process.wait(120) == 0 and process.stdout.read() == b""
        assert process.stderr.read() == b"\n"
    os.close(ours)
