"""`translate` as a process between pipes: what is there is answered at once, in order, and what is answered is whole."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.engines.batched_search import batched_greedy_search
from annotated_transformer.model.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import create_run, write_config
from annotated_transformer.runs.weights import save_weights
from annotated_transformer.translating.load import load

GREEDY = ["--beam-size", "1"]
posix = pytest.mark.skipif(os.name == "nt", reason="signals and terminals of POSIX")


def made(folder: Path, push: float) -> Path:
    "A run with random weights, made so that other lines get other answers; `push` towards the end symbol."
    text, recipe = (
        builtin(300, seed=3),
        Recipe(
            ModelConfig(n_layers=1, d_model=32, d_ff=64, n_heads=2),
            TrainConfig(n_pieces=400, max_len=60),
        ),
    )
    vocab = learn_bpe([side for s in text for side in (s.en, s.de)], 400)
    create_run(folder, recipe, {})
    vocab.save(folder / "vocab.model")
    write_config(folder, recipe, {})
    torch.manual_seed(1)
    model = build_transformer(recipe.model, len(vocab), vocab.pad_id)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "cross_attn" in name or "feed_forward" in name:
                weight.mul_(4)
        model.decoder.layers[0].residuals[2].norm.bias.add_(
            model.embedding.weight[vocab.eos_id], alpha=push
        )
    save_weights(model, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return made(tmp_path_factory.mktemp("runs") / "run", push=0)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return [" ".join(s.en.split()[:4]) for s in builtin(3000, seed=7)]


@pytest.fixture(scope="module")
def answers(run, lines) -> list[str]:
    "What each line is translated to, found in this process."
    found = load(run, search=batched_greedy_search).translate(lines[:1000])
    assert len(set(found)) > 900, "the lines are to be told apart by their answers"
    return found


def start(run: Path, *args: str, **pipes) -> subprocess.Popen:
    "A `translate` that runs."
    environment = {k: v for k, v in os.environ.items() if k != "IN_TEST"} | {
        "OMP_NUM_THREADS": "1"
    }
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    } | pipes
    return subprocess.Popen(
        [sys.executable, "-m", "annotated_transformer", "translate", str(run), *args],
        env=environment,
        **pipes,
    )


def translate(run: Path, text: str, *args: str) -> tuple[list[str], str]:
    "Lines out, and what was said beside them."
    process = start(run, *args)
    out, err = process.communicate(text.encode(), timeout=60)
    assert process.returncode == 0 and (out.endswith(b"\n") or not out), err
    return out.decode().split("\n")[:-1], err.decode()


def test_a_line_is_answered_before_the_next_one_is_there(run, lines, answers):
    with start(run, *GREEDY) as process:
        for line, answer in zip(lines[:3], answers):
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 30)[0], (
                "no answer, though the line is whole"
            )
            assert process.stdout.readline().decode() == answer + "\n"
        process.stdin.write(lines[3].encode())  # the last line needs no line break
        process.stdin.close()
        assert process.stdout.read().decode() == answers[3] + "\n"
    assert process.returncode == 0


def test_order_and_greedy_search(run, lines, answers):
    "`--beam-size 1` is greedy search; empty lines stay where they are, one that is too long is reported, and nothing is lost."
    odd = {100: "", 101: "   ", 400: "the dog and " * 100, 999: ""}
    said, err = translate(
        run,
        "".join(odd.get(i, line) + "\n" for i, line in enumerate(lines[:1000])),
        *GREEDY,
    )
    assert len(said) == 1000 and all(
        said[i] == answer for i, answer in enumerate(answers) if i not in odd
    )
    assert [said[i] == "" for i in odd] == [True, True, False, True]
    assert re.fullmatch(
        r"line 401 is longer than 60 tokens: translated in \d+ parts\n", err
    )


def test_n_best_with_scores(run, lines):
    best, _ = translate(run, "".join(line + "\n" for line in lines[:8]))
    said, _ = translate(
        run,
        "".join(line + "\n" for line in [*lines[:8], ""]),
        "--n-best",
        "3",
        "--scores",
    )
    assert len(said) == 27
    for i, three in enumerate(zip(*[iter(said)] * 3, strict=True)):
        pairs = [one.split("\t", 1) for one in three]
        scores = [float(score) for score, _ in pairs]
        assert all(
            re.fullmatch(r"-?\d+\.\d{4}", score) for score, _ in pairs
        ) and scores == sorted(scores, reverse=True)
        assert pairs[0][1] == ([*best, ""])[i]


@posix
def test_an_interruption_leaves_whole_lines(run, lines, answers):
    "Ctrl-C in the middle of a long stream that is read slowly."
    with start(run, *GREEDY) as process:
        os.set_blocking(process.stdin.fileno(), False)
        rest, out = "".join(line + "\n" for line in lines).encode(), b""
        while out.count(b"\n") < 300:
            ready, writable, _ = select.select(
                [process.stdout], [process.stdin] if rest else [], [], 30
            )
            if writable:
                rest = rest[os.write(process.stdin.fileno(), rest[:4096]) :]
            if ready:
                out += os.read(process.stdout.fileno(), 512)
                time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        out += process.stdout.read()
        err = process.stderr.read().decode()
        assert process.wait(30) == 130 and err == "annotated-transformer: interrupted\n"
    said = out.decode().split("\n")
    assert said.pop() == "" and 300 <= len(said) < len(lines)
    assert said[:1000] == answers[: len(said)]


@posix
def test_a_reader_that_goes_away(run, lines):
    with start(run, *GREEDY) as process:
        process.stdin.write("".join(line + "\n" for line in lines[:600]).encode())
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait(30) == 141


def most_memory(run: Path, lines: list[str], n_lines: int) -> float:
    "MB that a `translate` of so many lines held at most."
    with start(run, *GREEDY, stderr=None) as process:
        os.set_blocking(process.stdin.fileno(), False)
        rest, out = (
            "".join(line + "\n" for line in lines[:1000]).encode() * (n_lines // 1000),
            0,
        )
        while out < n_lines:
            ready, writable, _ = select.select(
                [process.stdout], [process.stdin] if rest else [], [], 30
            )
            if writable:
                rest = rest[os.write(process.stdin.fileno(), rest[:65536]) :]
            if ready:
                out += os.read(process.stdout.fileno(), 65536).count(b"\n")
        most = re.search(
            r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text()
        )[1]
        process.stdin.close()
    assert process.returncode == 0 and out == n_lines
    return int(most) / 1024


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory is read from /proc"
)
def test_memory_does_not_grow_with_the_text(tmp_path, lines):
    "Ten times the lines, of many lengths: kernels that oneDNN keeps for each shape once took hundreds of MB. The allocator's tides are a few."
    run = made(tmp_path / "run", push=4)
    assert most_memory(run, lines, 10_000) - most_memory(run, lines, 1_000) < 12


@posix
def test_somebody_types(run, lines, answers):
    "A prompt on standard error, an answer to each line, Ctrl-D leaves."
    import pty

    ours, theirs = pty.openpty()
    with start(run, *GREEDY, stdin=theirs) as process:
        os.close(theirs)

        def prompted(so_far: bytes = b"") -> bytes:
            while (
                not so_far.endswith(b"> ")
                and select.select([process.stderr], [], [], 30)[0]
            ):
                so_far += os.read(process.stderr.fileno(), 100)
            return so_far

        assert prompted() == b"Type a sentence and press return; Ctrl-D leaves.\n> "
        for line, answer in zip(lines[:3], answers):
            os.write(ours, line.encode() + b"\n")
            assert (
                process.stdout.readline().decode() == answer + "\n"
                and prompted() == b"> "
            )
        os.write(ours, b"\x04")
        assert (
            process.wait(30) == 0
            and process.stdout.read() == b""
            and process.stderr.read() == b"\n"
        )
    os.close(ours)
