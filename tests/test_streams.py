"""Standard streams that are closed, endless or of another encoding, and pipes in the place of files: processes of their own."""

import configparser
import gzip
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import ROOT
from safetensors.torch import load_file, save_file

from annotated_transformer import UserError
from annotated_transformer.cli.main import main
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import Vocab
from annotated_transformer.io.text import MAX_LINE_BYTES
from annotated_transformer.runs.weights import read_tensors

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="streams, pipes and locales of POSIX"
)
SIZES = [
    "n_layers=1",
    "d_model=16",
    "d_ff=32",
    "n_heads=2",
    "n_pieces=320",
    "max_steps=2",
    "batch_tokens=400",
    "valid_every=2",
    "save_every=2",
    "average_last=0",
]
TEXT = ["--src", "en", "--tgt", "de", "--config", "tiny"]
GREEDY = ["--beam-size", "1"]
ENVIRONMENT = {
    k: v
    for k, v in os.environ.items()
    if k not in ("IN_TEST", "ANNOTATED_TRANSFORMER_DATA", "PYTHONUNBUFFERED")
} | {"OMP_NUM_THREADS": "1"}
ASCII = ENVIRONMENT | {
    "LANG": "C",
    "LC_ALL": "C",
    "PYTHONUTF8": "0",
    "PYTHONCOERCECLOCALE": "0",
}


@pytest.fixture(scope="module")
def work(tmp_path_factory) -> Path:
    "A folder with two texts and a run that was made of them; whatever the run is given, it says umlauts."
    folder, text = tmp_path_factory.mktemp("streams"), builtin(200, seed=3)
    for name, lines in {
        "en": [s.en for s in text],
        "de": [s.de for s in text],
        "two": ["a dog.", "a cat."],
    }.items():
        (folder / name).write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )
    here = os.getcwd()
    os.chdir(folder)
    try:
        with pytest.raises(SystemExit) as left:
            main(["train", *TEXT, "--out", "run", "--device", "cpu", "--quiet", *SIZES])
        assert left.value.code == 0
        weights, vocab = (
            load_file("run/model.safetensors"),
            Vocab.load("run/vocab.model"),
        )
        umlaut = next(i for i in range(len(vocab)) if "ü" in vocab.words([i])[0])
        weights["decoder.layers.0.residuals.2.norm.bias"] += (
            1000 * weights["embedding.weight"][umlaut]
        )
        save_file(weights, "run/model.safetensors")
    finally:
        os.chdir(here)
    return folder


def shell(
    work: Path, redirected: str, *args: str | bytes, env: dict = ENVIRONMENT
) -> tuple[int, bytes, bytes]:
    "Exit status, standard output and standard error of a command whose streams a shell has redirected."
    command = [
        "sh",
        "-c",
        f'exec "$@" {redirected}',
        "sh",
        sys.executable,
        "-m",
        "annotated_transformer",
        *args,
    ]
    left = subprocess.run(
        command, cwd=work, env=env, input=b"", capture_output=True, timeout=120
    )
    return left.returncode, left.stdout, left.stderr


def one_line(err: bytes) -> str:
    "The message of a process that has failed with one."
    assert (
        err.startswith(b"annotated-transformer: ")
        and err.count(b"\n") == 1
        and err.endswith(b"\n")
    ), err
    return err.decode().removeprefix("annotated-transformer: ").removesuffix("\n")


@pytest.fixture(scope="module")
def answers(work) -> bytes:
    "What the two lines are translated to."
    status, out, err = shell(work, "", "translate", "run", "two", *GREEDY)
    assert status == 0 and out.count(b"\n") == 2 and "ü" in out.decode() and err == b""
    return out


# closed streams


def test_closed_input(work, answers):
    "It is missed only where it would be read."
    status, out, err = shell(work, "<&-", "translate", "run", *GREEDY)
    assert (status, out) == (2, b"") and one_line(
        err
    ) == "standard input is closed: name a FILE"
    assert shell(work, "<&-", "translate", "run", "two", *GREEDY) == (0, answers, b"")


PRINTS = [
    ["translate", "run", "two"],
    ["score", "de", "--ref", "de"],
    ["score", "run", "--src", "en", "--ref", "de"],
    ["demo", "--out", "new"],
    ["variations", "--data", "builtin", "--out", "new"],
    ["--help"],
    ["train", "--help"],
    ["attention", "--help"],
]


@pytest.mark.parametrize("args", PRINTS, ids=" ".join)
def test_closed_output(args, work):
    "Before anything is done, since the results would be lost; `--help` went nowhere, with status 0, and `translate` showed a traceback."
    status, out, err = shell(work, ">&-", *args)
    assert (
        (status, out) == (2, b"")
        and one_line(err).startswith("standard output is closed")
        and not (work / "new").exists()
    )


def test_closed_errors(work, answers, tmp_path):
    "Messages are dropped, not sent to standard output, as Python's `print` does; the exit status tells."
    assert shell(work, "2>&-", "translate", "run", "two", *GREEDY) == (0, answers, b"")
    assert shell(work, "2>&-", "score", "de", "--ref", "nowhere") == (2, b"", b"")
    assert shell(work, "2>&-", "dream") == (2, b"", b"")
    (tmp_path / "long").write_text("the dog and " * 500 + "\n")
    status, out, err = shell(
        work, "2>&-", "translate", "run", str(tmp_path / "long"), *GREEDY
    )
    assert status == 0 and out.count(b"\n") == 1 and err == b"", (
        "the report of a long line"
    )
    status, out, err = shell(work, "<&- 2>&-", "score", "de", "--ref", "de")
    assert status == 0 and out.startswith(b"BLEU = 100.00") and err == b""
    status, out, err = shell(work, "<&- 2>&-", "--help")
    assert status == 0 and b"Usage:" in out and err == b""


@pytest.mark.parametrize(
    "redirected, quiet",
    [("2>&-", ["--quiet"]), ("2>&-", []), ("<&- >&- 2>&-", [])],
    ids=["quiet", "bars", "all closed"],
)
def test_closed_streams_of_a_training(redirected, quiet, work, tmp_path):
    "No progress bar fails, and nothing is written into a file of the run that got the number of a closed stream."
    plain, out = work / "run", tmp_path / "run"
    args = ["train", *TEXT, "--out", str(out), "--device", "cpu", *quiet, *SIZES]
    status, said, _ = shell(work, redirected, *args)
    assert status == 0 and said == b""
    names = ["vocab.model", "checkpoints/step-0000002/model.safetensors"]
    assert [(out / name).read_bytes() for name in names] == [
        (plain / name).read_bytes() for name in names
    ]
    for file in ("config.json", "metrics.jsonl"):
        assert len((out / file).read_text().split("\n")) == len(
            (plain / file).read_text().split("\n")
        )


def test_closed_streams_of_a_preparation(work, tmp_path):
    status, said, err = shell(
        work, "<&- >&- 2>&-", "prepare", *TEXT, "--out", str(tmp_path / "run"), *SIZES
    )
    assert (status, said, err) == (0, b"", b"") and (
        tmp_path / "run/data/about.json"
    ).exists()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(closed, tmp_path):
    "What others write to that number, C++ say, would go into the file; and a process that is started here has streams."
    code = (
        "import os, subprocess, sys; from annotated_transformer.cli.main import _ready_streams; _ready_streams(); file = open('file', 'w')\n"
        "for number in (1, 2): os.write(number, b'stray')\n"
        "print('lost', file=sys.stdout); print('lost', file=sys.stderr)\n"
        "child = subprocess.run([sys.executable, '-c', 'import os; [os.fstat(i) for i in range(3)]']).returncode\n"
        "sys.exit(0 if file.fileno() > 2 and child == 0 and os.fstat(0) else 1)"
    )
    left = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", code],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
    )
    assert left.returncode == 0 and (tmp_path / "file").read_bytes() == b"", left


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [PRINTS[i] for i in (0, 1, 5, 6)], ids=" ".join)
def test_a_full_disk(args, work):
    "The message and the status of any other mistake, although Python has the text still to write at its exit."
    status, out, err = shell(work, ">/dev/full", *args)
    assert (status, out) == (2, b"") and "No space left on device" in one_line(err)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_errors(work):
    "Where standard error is full, the status alone."
    assert shell(work, "2>/dev/full", "score", "de", "--ref", "nowhere")[:2] == (2, b"")


# odd environments


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("TQDM_NCOLS", "x", "invalid literal for int"),
        ("TQDM_BAR_FORMAT", "{x}", "KeyError: 'x'"),
        ("TQDM_FILE", "x", "AttributeError"),
        ("TQDM_DISABLE", "1", ""),
        ("_ANNOTATED_TRANSFORMER_COMPLETE", "bash_source", ""),
        ("_ANNOTATED_TRANSFORMER_COMPLETE", "complete_zsh", ""),
    ],
)
def test_variables_of_libraries(name, value, says, work, answers):
    "Settings of progress bars, and shell completion, which this program has not."
    code = "import sys; sys.argv[0] = 'annotated-transformer'; from annotated_transformer.__main__ import main; main()"
    left = subprocess.run(
        [sys.executable, "-c", code, "translate", "run", "two", *GREEDY],
        cwd=work,
        env=ENVIRONMENT | {name: value},
        capture_output=True,
        timeout=120,
    )
    if says:
        assert (left.returncode, left.stdout) == (2, b"")
        assert f"{name}={value!r} in the environment" in one_line(left.stderr)
        assert says in left.stderr.decode()
    else:
        assert (left.returncode, left.stdout, left.stderr) == (0, answers, b"")


@pytest.mark.parametrize("module", ["typer", "torch"])
@pytest.mark.parametrize("started", ["module", "command"])
def test_interrupted_imports(module, started, work, tmp_path):
    "Ctrl-C while a library is imported, before the command or by it: one line, whichever way the program was started."
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    settings = configparser.ConfigParser()
    settings.read(ROOT / "settings.ini")
    entry = settings["DEFAULT"]["console_scripts"].partition("=")[2]
    name, _, function = entry.partition(":")
    code = f"import sys; from {name} import {function}; sys.exit({function}())"
    start = {"module": ["-m", "annotated_transformer"], "command": ["-c", code]}
    left = subprocess.run(
        [sys.executable, *start[started], "train", *TEXT, "--out", "new"],
        cwd=work,
        env=ENVIRONMENT | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        timeout=120,
    )
    assert (left.returncode, one_line(left.stderr)) == (130, "interrupted")
    assert not (work / "new").exists()


# endless lines

LAUNCHER = """
import resource, subprocess, sys
resource.setrlimit(resource.RLIMIT_DATA, (3 * 2 ** 30, 3 * 2 ** 30))  # without a limit a failure of this test would take the machine's memory
status = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024, file=sys.stderr)
sys.exit(status)
"""  # the peak of a child counts what its parent held when it was started, so the parent is a small process


@pytest.mark.skipif(
    sys.platform != "linux", reason="memory is limited and measured as on Linux"
)
@pytest.mark.parametrize("endless", ["standard input", "/dev/zero", "a.gz"])
def test_an_endless_line_takes_no_memory(endless, work, answers, tmp_path):
    "A GB in one line, from a pipe, a device and a small archive: the lines before it are translated, the error tells which one it is."
    file, number = endless, 1
    args = ["translate", "run", *GREEDY]
    if endless == "a.gz":
        file = str(tmp_path / "a.gz")
        Path(file).write_bytes(
            gzip.compress(b"a dog.\n") + 64 * gzip.compress(b"a" * 2**24, 1)
        )
        args, number = ["score", "run", "--src", file, "--ref", "de"], 2
    elif endless == "/dev/zero":
        args.append(endless)
    else:
        number = 3
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            LAUNCHER,
            sys.executable,
            "-m",
            "annotated_transformer",
            *args,
        ],
        cwd=work,
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        rescue = threading.Timer(
            60, os.killpg, [process.pid, signal.SIGKILL]
        )  # a test that fails must not hang
        rescue.start()
        if endless == "standard input":
            with pytest.raises(BrokenPipeError):
                process.stdin.write(b"a dog.\na cat.\n")
                for _ in range(1200):
                    process.stdin.write(b"a" * 2**20)
        out, err = process.communicate()
        rescue.cancel()
    *_, message, megabytes = err.decode().split("\n")[:-1]
    assert message == (
        f"annotated-transformer: {file}, line {number} is longer than {MAX_LINE_BYTES} bytes: put each sentence on a line of its own"
    )
    assert (
        process.returncode == 2
        and out == (answers if number == 3 else b"")
        and int(megabytes) < 1000
        and err.count(b"\n") == 2
    )


# pipes in the place of files


def fed(pipe: Path, data: bytes) -> Path:
    "A named pipe that somebody writes into, once."
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True).start()
    return pipe


def rescuer(pipe: Path) -> subprocess.Popen:
    "A test that fails must not hang: after ten seconds a reader finds the pipe empty. A process, since a reader may hold the interpreter's lock."
    return subprocess.Popen(["sh", "-c", f"sleep 10; : > '{pipe}'"])


def in_process(capsys, *args) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in args])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


def test_score_reads_pipes(work, capsys, tmp_path):
    "`score <(…)`: a pipe as a system was taken for a run, and reading one a second time would wait for ever."
    data = {name: (work / name).read_bytes() for name in ("en", "de")}
    status, files, _ = in_process(
        capsys,
        "score",
        work / "de",
        work / "en",
        "--ref",
        work / "de",
        "--src",
        work / "en",
        "--chrf",
    )
    pipes = [
        fed(tmp_path / f"pipe{i}", data[name])
        for i, name in enumerate(["de", "en", "de", "en"])
    ]
    status, out, err = in_process(
        capsys,
        "score",
        pipes[0],
        pipes[1],
        "--ref",
        pipes[2],
        "--src",
        pipes[3],
        "--chrf",
    )
    assert (
        status == 0
        and err == ""
        and re.sub(
            r"\S+pipe(\d)", lambda found: str(work / ["de", "en"][int(found[1])]), out
        )
        == files
    )
    both = fed(tmp_path / "both", data["de"])
    rescue = rescuer(both)
    status, out, err = in_process(capsys, "score", both, "--ref", both)
    assert status == 0 and out.startswith("BLEU = 100.00") and err == ""
    rescue.kill()
    rescue.wait()
    pipes = [
        fed(tmp_path / f"more{i}", data[name]) for i, name in enumerate(["en", "de"])
    ]
    status, out, err = in_process(
        capsys,
        "score",
        work / "run",
        "--src",
        pipes[0],
        "--ref",
        pipes[1],
        "--perplexity",
        *GREEDY,
    )
    assert (
        status == 0
        and [line.split(" = ")[0] for line in out.split("\n")]
        == ["BLEU", "perplexity", ""]
        and err == ""
    )


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_score_reads_the_output_of_a_command(work):
    command = (
        f"'{sys.executable}' -m annotated_transformer score /dev/fd/3 --ref de 3<&0"
    )
    left = subprocess.run(
        ["sh", "-c", f"cat de | {command}"],
        cwd=work,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
    )
    assert (
        left.returncode == 0
        and left.stdout.startswith(b"BLEU = 100.00")
        and left.stderr == b""
    ), left


@pytest.mark.parametrize(
    "name, read", [("model.safetensors", read_tensors), ("vocab.model", Vocab.load)]
)
def test_a_pipe_is_no_file_of_a_run(name, read, tmp_path):
    "It waited for ever for somebody who writes."
    path = tmp_path / name
    os.mkfifo(path)
    rescue = rescuer(path)
    with pytest.raises(UserError, match=name):
        read(path)
    assert rescue.poll() is None, "it was opened"
    rescue.kill()
    rescue.wait()


# text and names in a locale that knows ASCII alone


def test_translations_are_utf8_in_every_locale(work, answers):
    "They were an error of the codec."
    assert shell(work, "", "translate", "run", "two", *GREEDY, env=ASCII) == (
        0,
        answers,
        b"",
    )


def test_help_is_utf8_in_every_locale(work):
    assert shell(work, "", "score", "--help", env=ASCII) == shell(
        work, "", "score", "--help", env=ENVIRONMENT | {"LC_ALL": "C.UTF-8"}
    )


@pytest.mark.parametrize(
    "env",
    [
        ASCII,
        ENVIRONMENT | {"LC_ALL": "C.UTF-8"},
        ENVIRONMENT | {"PYTHONIOENCODING": "latin-1"},
    ],
    ids=["ASCII", "UTF-8", "Latin-1"],
)
def test_names_in_messages(env, work):
    "A name in UTF-8 can be read in the message, in any locale; a byte that is none is shown by its number."
    status, out, err = shell(work, "", "translate", "Straße".encode(), "two", env=env)
    assert (status, out) == (2, b"") and one_line(
        err
    ) == "Straße is not a run folder: it has no config.json"
    status, out, err = shell(work, "", "score", b"Stra\xdfe", "--ref", "de", env=env)
    assert (status, out) == (2, b"") and one_line(
        err
    ) == "Stra\\xdfe: no such file or run"


@pytest.mark.parametrize(
    "env",
    [ASCII, ENVIRONMENT | {"PYTHONIOENCODING": "utf-8:strict"}],
    ids=["ASCII", "UTF-8"],
)
def test_names_in_results(env, work, tmp_path):
    "The bytes that they are; one that is no UTF-8 was an error of the codec."
    for name in ("Straße".encode(), b"Stra\xdfe"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(
            (work / "de").read_bytes()
        )
    status, out, err = shell(
        tmp_path,
        "",
        "score",
        "Straße".encode(),
        b"Stra\xdfe",
        "--ref",
        str(work / "de"),
        env=env,
    )
    assert (
        status == 0
        and err == b""
        and [line.split(b": ")[0] for line in out.split(b"\n")]
        == ["Straße".encode(), b"Stra\xdfe", b""]
    )
