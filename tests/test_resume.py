"""A run that was killed goes on as if nothing had happened: at random moments, restarted by torchrun, with another number of processes.

Interruptions together with other features are in test_pairs.
"""

import os
import random
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from processes import run_ranks, start, torchrun
from safetensors.torch import load_file
from small_runs import distance

from annotated_transformer import UserError
from annotated_transformer.cli.main import main
from annotated_transformer.data.corpus import Corpus
from annotated_transformer.io.files import lock_folder
from annotated_transformer.runs.checkpoint import checkpoints
from annotated_transformer.runs.folder import (
    read_config,
    read_metrics,
)
from annotated_transformer.runs.settings import fine_tune, get_recipe, override
from annotated_transformer.runs.train_run import (
    RunOptions,
    prepare_run,
    resume_run,
    train_run,
)

SETTINGS = [
    "n_layers=1",
    "d_model=32",
    "d_ff=64",
    "n_heads=2",
    "vocab_size=500",
    "max_steps=12",
    "batch_tokens=400",
    "valid_every=6",
    "save_every=3",
    "average_last=2",
    "dropout=0.1",
    "precision=fp32",
]


def but(*changed: str) -> list[str]:
    "The settings, some of them changed: each may be given once."
    return [*{x.partition("=")[0]: x for x in [*SETTINGS, *changed]}.values()]


WITHOUT_DROPOUT = but("dropout=0")


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def text(corpus, tmp_path_factory) -> list[str]:
    "The same text as aligned files, and the command line's other options."
    folder, words = tmp_path_factory.mktemp("files"), []
    for part, pairs in (("", corpus.train), ("valid-", corpus.valid)):
        for side, lines in zip(("src", "tgt"), zip(*pairs)):
            file = folder / f"{part}{side}"
            file.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
            words += [f"--{part}{side}", str(file)]
    return [*words, "--config", "tiny", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def train(corpus):
    "Start a run of the little text."

    def start(out: Path, settings=SETTINGS, **options) -> Path:
        recipe = override(get_recipe("tiny"), settings)
        return train_run(corpus, recipe, out, RunOptions("cpu", quiet=True, **options))

    return start


@pytest.fixture(scope="module")
def resume():
    def go_on(run: Path, **options) -> Path:
        return resume_run(run, RunOptions("cpu", quiet=True, **options))

    return go_on


@pytest.fixture(scope="module")
def straight(train, tmp_path_factory) -> Path:
    "A run that nothing disturbs."
    return train(tmp_path_factory.mktemp("runs") / "straight")


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def losses(run: Path) -> list[tuple]:
    names = ("step", "loss", "valid_loss")
    return [tuple(map(record.get, names)) for record in read_metrics(run)]


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


# processes of their own


def harm() -> None:
    """This process does to itself, at the first report from a step on, what HARM says.

    Another thread has then written the checkpoint before, every three steps.
    """
    if (
        "HARM" not in os.environ
        or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") > "0"
    ):
        return
    from annotated_transformer.runs.monitor import RunLog

    plain, harms = RunLog.step, os.environ["HARM"].split()

    def step(log, record, state):
        plain(log, record, state)
        if harms and record.step >= int(os.environ["AT_STEP"]):
            due = f"checkpoints/step-{(record.step - 1) // 3 * 3:07}"
            while not (log.path.parent / due / "state.json").exists():  # its last file
                time.sleep(0.01)
            while harms:
                os.kill(os.getpid(), getattr(signal, harms.pop()))

    RunLog.step = step


def train_here(*words) -> None:
    "`annotated-transformer train`, in a process that may do something to itself."
    harm()
    try:
        main(["train", *map(str, words)])
    except SystemExit as left:  # torchrun takes any for a failure
        if left.code:
            raise


def resume_here(run: Path, options: RunOptions) -> None:
    "In a process of its own, which may do something to itself."
    harm()
    resume_run(run, options)


def resume_by(n: int, run: Path, folder: Path, harm: str = "", at: int = 0, **options):
    "Status, and what was printed, of n processes that train on together."
    env = {"HARM": harm, "AT_STEP": str(at)} if harm else {}
    options = RunOptions("cpu", quiet=True, **options)
    return run_ranks(n, resume_here, run, options, folder=folder, env=env)


@pytest.mark.posix
def test_a_signal_that_comes_twice_saves_all_ranks(train, tmp_path):
    "As from SLURM or a terminal, which signal every process, and from torchrun, which repeats it."
    run = train(tmp_path / "run", minutes=1e-6)
    status, said = resume_by(2, run, tmp_path, harm="SIGTERM SIGTERM", at=5)
    assert status == 1 and f"to continue: resume_run('{run}')" in said, said
    about = read_config(run)[1]
    assert (about["steps"], about["stopped"]) == (6, "SIGTERM")
    assert checkpoints(run / "checkpoints")[-1].name == "step-0000006"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("at", [3, 5])
def test_an_interrupted_run_does_not_return(name, at, train, resume, tmp_path):
    "What follows in a script or a cell is not run; the message's call continues."
    run = tmp_path / "a run"
    stop = lambda r: r.step == at and signal.raise_signal(getattr(signal, name)) or None
    with pytest.raises(KeyboardInterrupt) as left:
        train(run, on_record=stop, report_every=1)
    message = f"{name} at step {at}, saved; to continue: resume_run('{run}')"
    assert str(left.value) == message
    about = read_config(run)[1]
    assert (about["steps"], about["stopped"]) == (at, name)
    resume(run)
    assert read_config(run)[1]["stopped"].startswith("max_steps")


@pytest.fixture(scope="module")
def without_dropout(train, tmp_path_factory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "one", WITHOUT_DROPOUT)


@pytest.mark.posix
def test_torchrun_restarts_a_killed_rank(text, without_dropout, tmp_path):
    "Two processes, one is killed in step 8, torchrun starts both again: they end where one undisturbed process ends."
    run, said = tmp_path / "two", tmp_path / "said"
    words = [*text, "--out", run, *WITHOUT_DROPOUT]
    env = {"HARM": "SIGKILL", "AT_STEP": "8"}
    status, err = torchrun(2, train_here, *words, said=said, restarts=1, env=env)
    assert status == 0 and "exitcode: -9" in err, err
    steps = [record["step"] for record in read_metrics(run) if "loss" in record]
    assert steps == [3, 6, 9, 10, 12]
    # Adam makes more of rounding than the gradients' 1e-6
    assert distance(run, without_dropout / "model.safetensors") < 1e-4


@pytest.mark.posix
def test_sharded_and_resumed_by_one_process(train, without_dropout, tmp_path):
    "Two processes that hold slices are killed in step 8, and one resumes: with the losses of a run that never was sharded."
    run = train(tmp_path / "run", WITHOUT_DROPOUT, minutes=1e-6)
    killed = {"harm": "SIGKILL", "at": 8}
    status, said = resume_by(2, run, tmp_path, sharded=True, **killed)
    found = [path.name for path in checkpoints(run / "checkpoints")]
    assert status and found == ["step-0000003", "step-0000006"], said
    resume_run(run, RunOptions("cpu", quiet=True))
    found = [r["loss"] for r in read_metrics(run) if "loss" in r]
    right = [r["loss"] for r in read_metrics(without_dropout) if "loss" in r]
    assert found == pytest.approx(right, rel=1e-5)
    assert distance(run, without_dropout / "model.safetensors") < 1e-4


@pytest.mark.posix
def test_four_ranks_resume_to_the_same_bits(corpus, tmp_path):
    "DDP divides its gradients into buckets again after its first pass: before the first step, in both."
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    prepare_run(corpus, override(get_recipe("tiny"), SETTINGS), undisturbed, quiet=True)
    shutil.copytree(undisturbed, killed)
    status, said = resume_by(4, undisturbed, tmp_path)
    assert status == 0, said
    status, said = resume_by(4, killed, tmp_path, harm="SIGKILL", at=8)
    assert status and checkpoints(killed / "checkpoints")[-1].name == "step-0000006"
    status, said = resume_by(4, killed, tmp_path)
    assert status == 0, said
    assert weights(killed) == weights(undisturbed)
    assert losses(killed) == losses(undisturbed)


def begin(words: list, folder: Path, ranks: int) -> list:
    "Processes that run a command together, as those of torchrun."
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    found = []
    for i in range(ranks):
        env = group | {"RANK": str(i), "LOCAL_RANK": str(i)} if ranks > 1 else {}
        found.append(start(main, words, said=folder / f"said {i}", env=env))
    return found


def kill(processes: list) -> list[int]:
    "Their statuses."
    for process in processes:
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def finish(words: list, folder: Path, ranks: int) -> None:
    processes = begin(words, folder, ranks)
    for process in processes:
        process.join(60 if process is processes[0] else 5)
    said = [x.read_text() for x in folder.glob("said *")]
    assert kill(processes) == [0] * ranks, said


OFTEN = [(50, 1, []), (10, 2, []), (10, 2, ["--fsdp"])]
OFTEN = [pytest.param(*case, marks=pytest.mark.slow) for case in OFTEN]


@pytest.mark.posix
@pytest.mark.parametrize("n, ranks, options", [(2, 1, []), (2, 2, ["--fsdp"]), *OFTEN])
def test_killed_and_resumed(text, tmp_path, n, ranks, options):
    "Killed n times, at random moments, a run ends with the bits of one undisturbed."
    straight, run, where = tmp_path / "a", tmp_path / "b", (tmp_path, ranks)
    settings = but("max_steps=40", "valid_every=20", "save_every=10")
    first = ["train", *text, *options, *settings, "--out"]
    finish([*first, str(straight)], *where)
    resume = ["train", "--resume", str(run), "--device", "cpu", "--quiet", *options]
    words = lambda: resume if (run / "config.json").exists() else [*first, str(run)]
    steps = lambda: [m["step"] for m in read_metrics(run)] if run.exists() else []
    for k in range(n):
        # the second time, also while it starts; the first time after a checkpoint
        step, wait = random.randrange(0 if k % 2 else 12, 40), random.uniform(0, 0.05)
        processes = begin(words(), *where)
        while any(process.is_alive() for process in processes):
            if max(steps(), default=0) >= step:
                break
            time.sleep(0.001)
        time.sleep(wait)
        kill(processes)
        if k % 2:
            finish(words(), *where)
            said = f"{wait} s after step {step}"
            assert weights(run) == weights(straight), said
            assert losses(run) == losses(straight), said
            shutil.rmtree(run)


@pytest.mark.slow
def test_another_number_of_processes(train, without_dropout, tmp_path):
    run = train(tmp_path / "run", WITHOUT_DROPOUT, minutes=1e-6)
    status, said = resume_by(3, run, tmp_path)
    assert status == 0, said
    assert distance(run, without_dropout / "model.safetensors") < 1e-4


# one process, interrupted by a hook


def test_what_only_one_process_may_do(straight, resume, tmp_path):
    run = shutil.copytree(straight, tmp_path / "run")
    with lock_folder(run):
        before = files(run)
        with pytest.raises(UserError, match="in use"):
            resume(run)
        assert files(run) == before


def test_data_that_was_lost_is_made_again(corpus, train, straight, tmp_path):
    "But not of other text."
    run = train(tmp_path / "run", minutes=1e-6)
    shutil.rmtree(run / "data")
    with pytest.raises(
        UserError, match="run was started with other text than data=builtin"
    ):
        resume_run(run, RunOptions("cpu", quiet=True), turned(corpus, "train"))
    resume_run(run, RunOptions("cpu", quiet=True), corpus)
    assert weights(run) == weights(straight)


def turned(corpus: Corpus, part: str) -> Corpus:
    "The same sentences, and so the same vocabulary, in another order."
    return corpus._replace(**{part: getattr(corpus, part)[::-1]})


@pytest.mark.parametrize("part", ["train", "valid"])
def test_other_text_of_the_same_vocabulary(part, corpus, train, tmp_path):
    "A run does not go on with it."
    other, run = turned(corpus, part), train(tmp_path / "run", minutes=1e-6)
    before = files(run)
    with pytest.raises(UserError, match="other text"):
        resume_run(run, RunOptions("cpu", quiet=True), other)
    assert files(run) == before


def test_what_is_not_of_this_run(train, resume, tmp_path):
    "Another number of heads, which shapes do not show, and another vocabulary; what was trained stays as it was."
    run = train(tmp_path / "run", minutes=1e-6)
    before, config = weights(run), (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"n_heads": 2', '"n_heads": 4'))
    with pytest.raises(
        UserError, match="step-0000003/model.safetensors has weights whose shapes"
    ):
        resume(run)
    (run / "config.json").write_text(config)
    (run / "vocab.model").write_bytes(b"other")
    with pytest.raises(UserError, match="vocab.model: not a SentencePiece model"):
        resume(run)
    assert weights(run) == before and max(r["step"] for r in read_metrics(run)) == 3


# from the weights of another run

TUNED = ["max_steps=6", "warmup_steps=2", "valid_every=3", "save_every=2", "dropout=0"]


@pytest.fixture(scope="module")
def tune(corpus, straight):
    "Start a run of other text from the weights of the undisturbed one, by `train_run` or `prepare_run`."
    other = Corpus("own", "en", "de", corpus.train[40:80], corpus.valid[:5], [])
    recipe = fine_tune(read_config(straight)[0])

    def start(out: Path, *settings: str) -> Path:
        options = RunOptions("cpu", quiet=True)
        wanted = override(recipe, [*TUNED, *settings])
        return train_run(other, wanted, out, options, straight)

    start.prepared = lambda out: prepare_run(
        other, override(recipe, TUNED), out, start=straight, quiet=True
    )
    return start


def test_a_run_starts_from_weights_and_vocabulary(tune, straight, tmp_path):
    "Steps that are nearly 0 leave the weights where they began; the first validation pass is before them."
    run = tune(tmp_path / "run", "peak_lr=1e-9")
    began, ended = (load_file(one / "model.safetensors") for one in (straight, run))
    assert began.keys() == ended.keys()
    for name, weight in began.items():
        torch.testing.assert_close(ended[name], weight, atol=1e-6, rtol=0)
    assert (run / "vocab.model").read_bytes() == (straight / "vocab.model").read_bytes()
    about = read_config(run)[1]
    assert about["data"] == "own" and about["from"]["run"] == str(straight)
    assert about["from"]["weights"] == read_config(straight)[1]["weights"]
    passes = [r for r in read_metrics(run) if "valid_loss" in r]
    assert [r["step"] for r in passes] == [0, 3, 6]
    assert passes[0]["valid_loss"] == pytest.approx(passes[2]["valid_loss"], abs=1e-4)


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_start_from_weights(sharded, tune, tmp_path):
    straight, run = tune(tmp_path / "straight"), tune.prepared(tmp_path / "run")
    status, said = resume_by(2, run, tmp_path, sharded=sharded)
    assert status == 0, said
    assert distance(run, straight / "model.safetensors") < 1e-4


@pytest.mark.parametrize("setting", ["d_model=64", "vocab_size=400"])
def test_a_start_of_other_sizes(setting, tune, straight, tmp_path):
    with pytest.raises(UserError, match=f"{setting} cannot start from {straight}"):
        tune(tmp_path / "run", setting)
    assert not (tmp_path / "run").exists()
