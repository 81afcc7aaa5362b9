"""A run that was broken off goes on as if nothing had happened: killed, terminated, restarted by torchrun, with another number of processes."""

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from safetensors.torch import load_file

from annotated_transformer import UserError
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.prepared import prepare
from annotated_transformer.model.config import get_recipe, override
from annotated_transformer.runs.checkpoint import checkpoints, latest
from annotated_transformer.runs.folder import read_metrics
from annotated_transformer.runs.recipe import _text_sha256
from annotated_transformer.runs.train_run import (
    RunOptions,
    prepare_run,
    resume_run,
    train_run,
)
from annotated_transformer.training.train import Stop

SETTINGS = [
    "n_layers=1",
    "d_model=32",
    "d_ff=64",
    "n_heads=2",
    "n_pieces=500",
    "max_steps=12",
    "batch_tokens=400",
    "valid_every=6",
    "save_every=3",
    "average_last=2",
    "dropout=0.1",
    "precision=fp32",
]
WITHOUT_DROPOUT = [*SETTINGS, "dropout=0"]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus("builtin", n_train=300, n_valid=40, n_test=10)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> list[str]:
    "Two aligned files, as the command line's options."
    folder = tmp_path_factory.mktemp("text")
    for side in ("en", "de"):
        (folder / side).write_text(
            "".join(getattr(s, side) + "\n" for s in builtin(300, seed=3)),
            encoding="utf-8",
        )
    return [
        "--src",
        str(folder / "en"),
        "--tgt",
        str(folder / "de"),
        "--config",
        "tiny",
        "--device",
        "cpu",
        "--quiet",
    ]


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def train(corpus: Corpus, out: Path, settings=SETTINGS, **more) -> Path:
    return train_run(
        corpus,
        override(get_recipe("tiny"), settings),
        out,
        RunOptions("cpu", quiet=True, **more),
    )


@pytest.fixture(scope="module")
def straight(corpus, tmp_path_factory) -> Path:
    return train(corpus, tmp_path_factory.mktemp("runs") / "straight")


def command(
    *args: str,
    torchrun: list[str] | None = None,
    hangup=signal.SIG_DFL,
    **environment: str,
) -> subprocess.CompletedProcess:
    "The command line in a process of its own, or in several under torchrun; `hangup`: what it does at SIGHUP, where the tests may run under nohup."
    start = (
        [sys.executable, "-m", "torch.distributed.run", "--standalone", *torchrun]
        if torchrun
        else [sys.executable]
    )
    outside = (
        {k: v for k, v in os.environ.items() if k != "IN_TEST"}
        | {"OMP_NUM_THREADS": "1"}
        | environment
    )
    return subprocess.run(
        [*start, "-m", "annotated_transformer", "train", *map(str, args)],
        capture_output=True,
        text=True,
        env=outside,
        timeout=300,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, hangup),
    )


# A process that does something to itself at one step of its first start: sitecustomize is read by every Python that starts.
HARM = """
import os, signal
def harm():
    from annotated_transformer.runs import hooks
    plain = hooks.metrics_file
    def harmed(*args):
        write = plain(*args)
        def hook(record):
            write(record)
            if record.step == int(os.environ["AT_STEP"]): os.kill(os.getpid(), getattr(signal, os.environ["HARM"]))
        return hook
    hooks.metrics_file = harmed
if "HARM" in os.environ and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0": harm()
def watch():
    import json
    from annotated_transformer.training import train
    plain = train.train
    def watched(objective, *args):
        parameters = [(type(p.data).__name__, p.numel(), getattr(p.data, "to_local", lambda: p)().numel()) for p in objective.parameters()]
        with open(os.environ["WATCH"] + os.environ.get("RANK", ""), "w") as file: json.dump(parameters, file)
        return plain(objective, *args)
    train.train = watched
if "WATCH" in os.environ: watch()
"""


@pytest.fixture(scope="module")
def harming(tmp_path_factory):
    "Environment that kills, or terminates, rank 0 at a step."
    folder = tmp_path_factory.mktemp("harm")
    (folder / "sitecustomize.py").write_text(HARM)
    path = os.pathsep.join(
        [str(folder), str(ROOT)]
    )  # the package of this checkout, whichever is installed
    return lambda what, step: {"PYTHONPATH": path, "HARM": what, "AT_STEP": str(step)}


def test_killed_and_gone_on_with(text, harming, tmp_path):
    "SIGKILL in step 8, after a checkpoint at 6: the run ends in the very weights of an undisturbed one."
    for name, environment in (("whole", {}), ("killed", harming("SIGKILL", 8))):
        ended = command(*text, "--out", tmp_path / name, *SETTINGS, **environment)
        assert ended.returncode == (0 if name == "whole" else -signal.SIGKILL), (
            ended.stderr
        )
    assert max(r["step"] for r in read_metrics(tmp_path / "killed")) == 8
    assert (
        command(
            "--resume", tmp_path / "killed", "--device", "cpu", "--quiet"
        ).returncode
        == 0
    )
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    same = [
        [
            (r["step"], r.get("loss"), r.get("valid_loss"))
            for r in read_metrics(tmp_path / name)
        ]
        for name in ("whole", "killed")
    ]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    "name, status", [("SIGTERM", 143), ("SIGINT", 130), ("SIGHUP", 129)]
)
def test_asked_to_stop(name, status, text, harming, tmp_path):
    "It saves, says how to go on, and leaves with the signal's status; going on gives the weights of an undisturbed run."
    run = tmp_path / "run"
    ended = command(*text, "--out", run, *SETTINGS, **harming(name, 5))
    assert ended.returncode == status and ended.stderr.count("\n") == 1, ended.stderr
    assert (
        f"annotated-transformer train --resume {run}" in ended.stderr
        and "step 5" in ended.stderr
    )
    assert json.loads((run / "config.json").read_text())["steps"] == 5
    assert command("--resume", run, "--device", "cpu", "--quiet").returncode == 0
    assert command(*text, "--out", tmp_path / "whole", *SETTINGS).returncode == 0
    assert weights(run) == weights(tmp_path / "whole")


def test_under_nohup_a_hangup_is_ignored(text, harming, tmp_path):
    ended = command(
        *text,
        "--out",
        tmp_path / "run",
        *SETTINGS,
        hangup=signal.SIG_IGN,
        **harming("SIGHUP", 5),
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "run/config.json").read_text())["steps"] == 12


def test_a_closed_terminal(text, tmp_path):
    "A real one: what the process writes afterwards fails, and the run is saved all the same."
    mine, its = pty.openpty()
    termios.tcsetwinsize(its, (24, 200))  # room for the bar
    words = [
        sys.executable,
        "-m",
        "annotated_transformer",
        "train",
        *text[:-1],
        "--out",
        str(tmp_path / "run"),
        *SETTINGS,
        "max_steps=2000",
    ]

    def take_the_terminal():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    environment = {k: v for k, v in os.environ.items() if k != "IN_TEST"} | {
        "OMP_NUM_THREADS": "1"
    }
    process = subprocess.Popen(
        words,
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment,
        preexec_fn=take_the_terminal,
    )
    os.close(its)
    shown = b""
    while not re.search(rb"step \d+ loss", shown):
        shown += os.read(mine, 1000)
    os.close(mine)
    assert process.wait(timeout=60) == 129
    about = json.loads((tmp_path / "run/config.json").read_text())
    assert about["stopped"] == "SIGHUP" and about["steps"] > 0
    assert (tmp_path / f"run/checkpoints/step-{about['steps']:07d}").exists()


def test_a_run_at_its_end_stays_as_it_is(straight, tmp_path):
    run = shutil.copytree(straight, tmp_path / "run")
    resume_run(run, RunOptions("cpu", quiet=True))
    assert weights(run) == weights(straight)
    assert (run / "metrics.jsonl").read_bytes() == (
        straight / "metrics.jsonl"
    ).read_bytes()


def test_what_a_killed_process_left_is_swept_away(corpus, tmp_path):
    "In the run itself too: a process may be killed while it writes the run's own weights. What only looks like it stays."
    run = train(corpus, tmp_path / "run", hooks=[], minutes=1e-6)
    code = (
        "import os, signal, sys; from annotated_transformer.io.atomic import replace_file\n"
        "with replace_file(sys.argv[1]) as new: new.write_bytes(b'half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    places = (run, run / "checkpoints")
    for place in places:
        subprocess.run(
            [sys.executable, "-c", code, place / "model.safetensors"], check=False
        )
    left = [
        path for place in places for path in place.glob(".annotated_transformer-*.part")
    ]
    assert len(left) == 2
    kept = [
        place / name
        for place in places
        for name in (
            ".model.safetensors.1.part",
            ".tmpAbC123",
            ".annotated_transformer-mine.part",
        )
    ]
    for path in kept:
        path.write_bytes(b"somebody's")
    resume_run(run, RunOptions("cpu", quiet=True))
    assert [path for path in left if path.exists()] == [] and all(
        path.read_bytes() == b"somebody's" for path in kept
    )


def test_data_that_was_lost_is_made_again(corpus, straight, tmp_path):
    run = train(corpus, tmp_path / "run", hooks=[], minutes=1e-6)
    shutil.rmtree(run / "data")
    resume_run(run, RunOptions("cpu", quiet=True))
    assert weights(run) == weights(straight)


def other_text() -> Corpus:
    return load_corpus("builtin", n_train=300, n_valid=40, n_test=10, seed=1)


def test_shared_text_is_not_overwritten(corpus, tmp_path):
    "Another run with other text is refused, and the first one goes on with its own."
    shared = tmp_path / "shared"
    run = train(corpus, tmp_path / "run", minutes=1e-6, prepared=shared)
    before = {path.name: path.read_bytes() for path in shared.iterdir()}
    with pytest.raises(ValueError, match="shared was made from other text"):
        train(other_text(), tmp_path / "other", prepared=shared)
    assert not (tmp_path / "other").exists() and before == {
        path.name: path.read_bytes() for path in shared.iterdir()
    }
    resume_run(run, RunOptions("cpu", prepared=shared, quiet=True))


@pytest.mark.parametrize("part", ["train", "valid"])
def test_other_text_of_the_same_vocabulary_is_noticed(part, corpus, tmp_path):
    "The vocabulary alone would not show it."
    run = train(corpus, tmp_path / "run", minutes=1e-6)
    turned = corpus._replace(
        **{part: getattr(corpus, part)[::-1]}
    )  # the same sentences, and so the same vocabulary, in another order
    prepare(
        tmp_path / "turned",
        turned.train,
        turned.valid,
        _text_sha256(turned),
        500,
        quiet=True,
    )
    assert (tmp_path / "turned/vocab.model").read_bytes() == (
        run / "vocab.model"
    ).read_bytes()
    for options, text in (
        (RunOptions("cpu", quiet=True), turned),
        (RunOptions("cpu", prepared=tmp_path / "turned", quiet=True), None),
    ):
        with pytest.raises(ValueError, match="other text"):
            resume_run(run, options, corpus=text)
    shutil.rmtree(run / "data")
    shutil.copytree(tmp_path / "turned", run / "data")
    with pytest.raises(ValueError, match="data was made from other text"):
        resume_run(run, RunOptions("cpu", quiet=True))


@pytest.mark.parametrize("part", ["train", "valid"])
def test_shared_text_of_the_same_vocabulary_is_not_taken_for_ones_own(
    part, corpus, tmp_path
):
    "Neither by a run nor by a preparation that differs in one part alone."
    shared, recipe = tmp_path / "shared", override(get_recipe("tiny"), SETTINGS)
    prepare_run(corpus, recipe, tmp_path / "run", shared, quiet=True)
    before = {path.name: path.read_bytes() for path in shared.iterdir()}
    turned = corpus._replace(**{part: getattr(corpus, part)[::-1]})
    for begin in (
        lambda out: train(turned, out, prepared=shared),
        lambda out: prepare_run(turned, recipe, out, shared, quiet=True),
    ):
        with pytest.raises(UserError, match="shared was made from other text"):
            begin(tmp_path / "other")
        assert not (tmp_path / "other").exists()
    assert before == {path.name: path.read_bytes() for path in shared.iterdir()}


def test_settings_that_are_not_the_checkpoints_are_noticed(corpus, tmp_path):
    "The shapes of the weights do not show the number of heads; what was trained stays as it was."
    run = train(corpus, tmp_path / "run", minutes=1e-6)
    about, before = json.loads((run / "config.json").read_text()), weights(run)
    about["model"]["n_heads"] = 4
    (run / "config.json").write_text(json.dumps(about))
    with pytest.raises(
        UserError,
        match="step-0000001/model.safetensors was trained with n_heads=2, but config.json says n_heads=4",
    ):
        resume_run(run, RunOptions("cpu", quiet=True))
    assert weights(run) == before and max(r["step"] for r in read_metrics(run)) == 1


def test_another_vocabulary_is_noticed(corpus, tmp_path):
    "Its ids mean other pieces than those that the weights have learned."
    run, other = (
        train(text, tmp_path / name, minutes=1e-6)
        for name, text in (("run", corpus), ("other", other_text()))
    )
    shutil.copyfile(other / "vocab.model", run / "vocab.model")
    with pytest.raises(
        UserError,
        match="data has another vocabulary than .*run, which cannot continue with it",
    ):
        resume_run(run, RunOptions("cpu", quiet=True))
    assert max(r["step"] for r in read_metrics(run)) == 1


def test_text_outside_the_run_is_named_by_the_user(corpus, tmp_path):
    "config.json may come from somebody else: it does not decide what is read."
    run = train(corpus, tmp_path / "run", minutes=1e-6, prepared=tmp_path / "shared")
    with pytest.raises(
        ValueError, match="uses encoded text outside its folder: name it, by --prepared"
    ):
        resume_run(run, RunOptions("cpu", quiet=True))
    resume_run(run, RunOptions("cpu", prepared=tmp_path / "shared", quiet=True))


def test_runs_of_the_first_edition_go_on(corpus, straight, tmp_path):
    "Their config.json has no fingerprint of the text: it is taken from the text's own folder, and noted."
    run = train(corpus, tmp_path / "run", minutes=1e-6)
    about = json.loads((run / "config.json").read_text())
    text = about.pop("text_sha256")
    (run / "config.json").write_text(json.dumps(about))
    resume_run(run, RunOptions("cpu", quiet=True))
    assert (
        weights(run) == weights(straight)
        and json.loads((run / "config.json").read_text())["text_sha256"] == text
    )


def test_runs_share_their_data(corpus, straight, tmp_path):
    for name in ("a", "b"):
        assert weights(
            train(corpus, tmp_path / name, prepared=tmp_path / "shared")
        ) == weights(straight)
    assert not (tmp_path / "a/data").exists()


def test_not_finite_names_the_last_good_checkpoint(corpus, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"the loss became (nan|inf).* at step \d+ .*the last good checkpoint is .*step-0000003",
    ):

        def spoil(record):
            if record.step == 4:
                raise_rate[0] = 1e30

        raise_rate = [1e-3]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "annotated_transformer.runs.recipe._learning_rate_schedule",
                lambda *_: lambda step: raise_rate[0],
            )
            train(corpus, tmp_path / "run", hooks=[spoil])


def test_early_stop(corpus, tmp_path):
    run = train(
        corpus,
        tmp_path / "run",
        [
            *SETTINGS,
            "patience=2",
            "valid_every=2",
            "peak_lr=1e-12",
            "max_steps=100",
            "average_last=0",
        ],
    )
    about = json.loads((run / "config.json").read_text())
    assert "no gain in 2 validation passes" in about["stopped"] and about["steps"] < 100


@pytest.fixture
def worsening(monkeypatch):
    "Learning up to step 6, and then steps so wide that the validation loss is higher at 8 than at 4, and lowest at 6."
    monkeypatch.setattr(
        "annotated_transformer.runs.recipe._learning_rate_schedule",
        lambda *_: lambda step: 1e-2 if step <= 6 else 0.3,
    )


def chosen(run: Path) -> dict:
    "Where a run ended, and which weights it has chosen."
    about = json.loads((run / "config.json").read_text())
    return {
        "weights": weights(run),
        "which": about["weights"],
        "stopped": about["stopped"],
        "steps": about["steps"],
    }


PATIENT = [*SETTINGS, "patience=2", "valid_every=4", "max_steps=100", "average_last=0"]


@pytest.mark.parametrize(
    "sittings", [(6,), (2,), (4,), (7, 9), (5, 6, 7), (6, 10, 11)], ids=str
)
def test_early_stopping_does_not_depend_on_interruptions(
    sittings, corpus, worsening, tmp_path
):
    "A validation pass at the end of a sitting once counted: as one without gain, or as the best. Steps 4, 8 and 12 are the ones that count."
    straight = chosen(train(corpus, tmp_path / "straight", PATIENT))
    assert straight["steps"] == 12 and straight["which"] == "best on validation, step 4"
    run = tmp_path / "run"
    for number, at in enumerate(sittings):
        hooks = [lambda record, at=at: Stop("enough") if record.step == at else None]
        if number:
            resume_run(run, RunOptions("cpu", hooks=hooks, quiet=True))
        else:
            train(corpus, run, PATIENT, hooks=hooks)
        assert (
            chosen(run)["stopped"] == "enough"
            and [r["step"] for r in read_metrics(run) if "valid_loss" in r][-1] == at
        )
    resume_run(run, RunOptions("cpu", quiet=True))
    assert chosen(run) == straight


def test_the_end_of_a_sitting_is_chosen_until_the_run_goes_on(
    corpus, worsening, tmp_path
):
    "Better weights are of use at once."

    def at(step):
        return [lambda record: Stop("enough") if record.step == step else None]

    four = train(corpus, tmp_path / "four", PATIENT, hooks=at(4))
    six = train(corpus, tmp_path / "six", PATIENT, hooks=at(6))
    assert chosen(six)["which"] == "best on validation, step 6" and weights(
        six
    ) != weights(four)
    newest = load_file(
        six / "checkpoints/step-0000006/model.safetensors"
    )  # what its header says is another thing
    assert all(
        map(torch.equal, load_file(six / "model.safetensors").values(), newest.values())
    )
    resume_run(six, RunOptions("cpu", hooks=at(9), quiet=True))
    assert chosen(six)["which"] == "best on validation, step 4" and weights(
        six
    ) == weights(four)


def test_the_pass_at_the_last_step_counts(corpus, tmp_path):
    "Though it is outside the schedule: nothing follows it."
    run = train(
        corpus,
        tmp_path / "run",
        [*SETTINGS, "valid_every=4", "max_steps=10", "average_last=0"],
    )
    assert chosen(run)["which"] == "best on validation, step 10"
    assert (run / "checkpoints/best.safetensors").read_bytes() == weights(run)


@pytest.mark.parametrize(
    "settings",
    [[], ["keep_last=2"], ["max_steps=13"], ["average_last=1"], ["average_last=0"]],
    ids=str,
)
@pytest.mark.parametrize("stops", [(11,), (1, 2, 4, 5), (7, 8, 10)], ids=str)
def test_stopped_between_two_checkpoints(settings, stops, corpus, tmp_path):
    "The checkpoint that an interruption writes is no part of the average in the end, and takes no other's place."
    settings = [*SETTINGS, "save_every=2", "valid_every=3", "keep_last=3", *settings]
    straight = train(corpus, tmp_path / "straight", settings)
    run = train(
        corpus,
        tmp_path / "run",
        settings,
        hooks=[lambda record: Stop("enough") if record.step == stops[0] else None],
    )
    for at in (*stops[1:], None):
        resume_run(
            run,
            RunOptions(
                "cpu",
                hooks=[
                    lambda record, at=at: Stop("enough") if record.step == at else None
                ],
                quiet=True,
            ),
        )
    assert weights(run) == weights(straight) and chosen(run) == chosen(straight)
    assert [path.name for path in checkpoints(run / "checkpoints")] == [
        path.name for path in checkpoints(straight / "checkpoints")
    ]


def test_a_run_that_stopped_early_has_ended(corpus, tmp_path):
    settings = [
        *SETTINGS,
        "patience=2",
        "valid_every=2",
        "peak_lr=1e-12",
        "max_steps=100",
        "average_last=0",
    ]
    run = train(corpus, tmp_path / "run", settings)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    resume_run(run, RunOptions("cpu", quiet=True))
    assert before == {
        path: path.read_bytes() for path in run.rglob("*") if path.is_file()
    }


def test_killed_before_it_could_conclude(corpus, straight, tmp_path, monkeypatch):
    "All steps done and saved, the weights that translate not chosen yet: the next one to go on chooses them."
    run = train(
        corpus,
        tmp_path / "run",
        hooks=[lambda record: Stop("enough") if record.step == 4 else None],
    )

    class Killed(BaseException):
        pass

    def killed(*args, **more):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("annotated_transformer.runs.train_run._choose_weights", killed)
        with pytest.raises(Killed):
            resume_run(run, RunOptions("cpu", quiet=True))
    assert chosen(run)["steps"] == 4
    resume_run(run, RunOptions("cpu", quiet=True))
    assert weights(run) == weights(straight) and chosen(run) == chosen(straight)


def test_two_into_one_folder(text, harming, tmp_path):
    "The first is held still in step 5; whoever comes second is told who it is, and changes nothing."
    run, environment = (
        tmp_path / "run",
        os.environ | {"OMP_NUM_THREADS": "1"} | harming("SIGSTOP", 5),
    )
    first = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "annotated_transformer",
            "train",
            *text,
            "--out",
            str(run),
            *SETTINGS,
        ],
        env=environment,
    )
    try:
        for _ in range(1200):
            if max((r["step"] for r in read_metrics(run)), default=0) == 5:
                break
            time.sleep(0.05)
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        for words in (
            ["--resume", run, "--device", "cpu", "--quiet"],
            [*text, "--out", run, *SETTINGS],
        ):
            second = command(*words)
            assert second.returncode == 2 and second.stderr.count("\n") == 1, (
                second.stderr
            )
            assert (
                f"in use by process {first.pid} on" in second.stderr
                or "already holds a run" in second.stderr
            )
        assert before == {
            path: path.read_bytes() for path in run.rglob("*") if path.is_file()
        }
        first.send_signal(signal.SIGCONT)
        assert first.wait(timeout=120) == 0 and not (run / ".lock").exists()
    finally:
        first.kill()


@pytest.mark.parametrize("again", [False, True], ids=["removed", "replaced"])
def test_a_run_that_is_removed_under_its_training(again, text, tmp_path, capfd):
    "One line, status 2, and nothing is written there any more: somebody else may have begun another run."
    from annotated_transformer.cli.main import main
    from annotated_transformer.runs import train_run as runs

    run, plain = tmp_path / "run", runs.metrics_file

    def removing(*args):
        write = plain(*args)

        def hook(record):
            write(record)
            if record.step != 3:
                return
            shutil.rmtree(run)
            if again:
                (
                    (run / "checkpoints").mkdir(parents=True),
                    (run / "config.json").write_text("another run"),
                )

        return hook

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(runs, "metrics_file", removing)
        main(["train", *text, "--out", str(run), *SETTINGS])
    err = capfd.readouterr().err
    assert (
        left.value.code == 2
        and "was removed or replaced by someone else while it was in use" in err
        and "is ready" not in err
    )
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == (
        {"run", "run/checkpoints", "run/config.json"} if again else set()
    ), left
    assert not again or (run / "config.json").read_text() == "another run"


def test_a_run_that_is_removed_while_it_is_scored(corpus, tmp_path):
    "Scoring may take minutes, and its result must not go into somebody else's folder."
    run = tmp_path / "run"

    def replaced(model, vocab, valid):
        shutil.rmtree(run)
        run.mkdir()
        return {"bleu": 1.0}

    with pytest.raises(ValueError, match="was removed or replaced by someone else"):
        train(corpus, run, score=replaced)
    assert list(run.iterdir()) == []


def distance(a: Path, b: Path) -> float:
    "Largest ‖a − b‖ / ‖b‖ of a weight."
    ours, theirs = (load_file(run / "model.safetensors") for run in (a, b))
    return max(
        (
            (ours[name] - theirs[name]).norm() / theirs[name].norm().clamp_min(1e-3)
        ).item()
        for name in theirs
    )


def test_torchrun_restarts_a_killed_rank(text, harming, tmp_path):
    "Two processes, one is killed in step 8, torchrun starts both again: they end where one undisturbed process ends."
    two = ["--nproc-per-node", "2", "--max-restarts", "1"]
    ended = command(
        *text,
        "--out",
        tmp_path / "two",
        *WITHOUT_DROPOUT,
        torchrun=two,
        **harming("SIGKILL", 8),
    )
    assert ended.returncode == 0, ended.stderr
    assert command(*text, "--out", tmp_path / "one", *WITHOUT_DROPOUT).returncode == 0
    assert [r["step"] for r in read_metrics(tmp_path / "two") if "loss" in r] == list(
        range(1, 13)
    )
    assert (
        distance(tmp_path / "two", tmp_path / "one") < 1e-4
    )  # Adam makes more of rounding than the gradients' 1e-6


def test_another_number_of_processes_goes_on(text, tmp_path):
    run = tmp_path / "run"
    assert (
        command(*text, "--out", run, *WITHOUT_DROPOUT, "--minutes", "1e-6").returncode
        == 0
    )
    ended = command(
        "--resume",
        run,
        "--device",
        "cpu",
        "--quiet",
        torchrun=["--nproc-per-node", "3"],
    )
    assert ended.returncode == 0, ended.stderr
    assert command(*text, "--out", tmp_path / "one", *WITHOUT_DROPOUT).returncode == 0
    assert distance(run, tmp_path / "one") < 1e-4


def test_sharded_from_the_command_line(text, harming, tmp_path):
    """Two processes that hold slices are killed in step 8, go on sharded from step 6, stop when their time is used up; one process goes on, whole.
    Every parameter is sliced while --shard is given, the losses are those of a run that was never sharded, and the result translates."""
    run, two, never = tmp_path / "run", ["--nproc-per-node", "2"], harming("SIGKILL", 0)
    killed = command(
        *text,
        "--out",
        run,
        *WITHOUT_DROPOUT,
        "--shard",
        torchrun=two,
        **harming("SIGKILL", 8),
        WATCH=str(tmp_path / "first"),
    )
    assert killed.returncode != 0 and [
        p.name for p in checkpoints(run / "checkpoints")
    ] == ["step-0000003", "step-0000006"], killed.stderr
    again = ["--resume", run, "--device", "cpu", "--quiet"]
    stopped = command(
        *again,
        "--shard",
        "--minutes",
        "1e-6",
        torchrun=two,
        **never,
        WATCH=str(tmp_path / "second"),
    )
    assert stopped.returncode == 0, stopped.stderr
    assert latest(run / "checkpoints").name == "step-0000007"
    whole = command(*again, **never, WATCH=str(tmp_path / "third"))
    assert whole.returncode == 0, whole.stderr
    one = command(*text, "--out", tmp_path / "one", *WITHOUT_DROPOUT, **never)
    assert one.returncode == 0, one.stderr

    parameters = json.loads((tmp_path / "third").read_text())
    assert {kind for kind, _, _ in parameters} == {"Tensor"}
    for name in ("first", "second"):
        ranks = [json.loads((tmp_path / f"{name}{i}").read_text()) for i in (0, 1)]
        assert {kind for rank in ranks for kind, _, _ in rank} == {"DTensor"}
        assert (
            [a[2] + b[2] for a, b in zip(*ranks, strict=True)]
            == [n for _, n, _ in parameters]
            == [n for _, n, _ in ranks[0]]
        )
        assert all(a[2] > 0 and b[2] > 0 for a, b in zip(*ranks, strict=True))

    found, right = (
        [
            (r["step"], r.get("loss") or r["valid_loss"])
            for r in read_metrics(out)
            if r["step"] != 7 or "loss" in r
        ]
        for out in (run, tmp_path / "one")
    )
    assert (
        [step for step, _ in found]
        == [step for step, _ in right]
        == [1, 2, 3, 4, 5, 6, 6, 7, 8, 9, 10, 11, 12, 12]
    )
    assert [loss for _, loss in found] == pytest.approx(
        [loss for _, loss in right], rel=1e-5
    )
    assert distance(run, tmp_path / "one") < 1e-4
    translated = subprocess.run(
        [
            sys.executable,
            "-m",
            "annotated_transformer",
            "translate",
            run,
            "--device",
            "cpu",
        ],
        capture_output=True,
        input="The dog was tired.\nA cat sleeps.\n",
        text=True,
        timeout=120,
    )
    assert translated.returncode == 0 and translated.stdout.count("\n") == 2, (
        translated.stderr
    )
