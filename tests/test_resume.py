"""A run that was interrupted goes on as if nothing had happened: killed, asked to stop, restarted by torchrun, with another number of processes."""

import json
import os
import shutil
import signal
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
    RunFolder,
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


def stop_at(step: int) -> list:
    return [lambda record: Stop("enough") if record.step == step else None]


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def chosen(run: Path) -> dict:
    "Where a run ended, and which weights it has chosen."
    about = json.loads((run / "config.json").read_text())
    return {"weights": weights(run)} | {
        key: about[key] for key in ("weights", "stopped", "steps")
    }


def losses(run: Path) -> list[tuple]:
    names = ("step", "loss", "valid_loss")
    return [tuple(map(record.get, names)) for record in read_metrics(run)]


def files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


# processes of their own


def harm() -> None:
    """This process does to itself, at one step of its first start, what HARM says.

    Another thread has then written the last checkpoint that is due, every three steps.
    """
    if (
        "HARM" not in os.environ
        or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") > "0"
    ):
        return
    from annotated_transformer.runs import hooks

    plain = hooks.metrics_file

    def harmed(path, *args):
        observer = plain(path, *args)
        write = observer.see_step

        def see_step(record):
            write(record)
            if record.step == int(os.environ["AT_STEP"]):
                due = f"checkpoints/step-{record.step // 3 * 3:07}"
                while not (path.parent / due / "state.json").exists():  # its last file
                    time.sleep(0.01)
                for name in os.environ["HARM"].split():
                    os.kill(os.getpid(), getattr(signal, name))

        observer.see_step = see_step
        return observer

    hooks.metrics_file = harmed


def train_here(*words) -> None:
    "`annotated-transformer train`, in a process that may do something to itself."
    harm()
    try:
        main(["train", *map(str, words)])
    except SystemExit as left:  # torchrun takes any for a failure
        if left.code:
            raise


def end_of(function, *words, said: Path, harm: str, at: int) -> tuple[int, str]:
    "Status of a process that calls a function, and what it printed."
    process = start(function, *words, said=said, env={"HARM": harm, "AT_STEP": str(at)})
    process.join(120)
    process.kill()
    process.join()
    return process.exitcode, said.read_text()


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
def test_asked_to_stop(text, straight, tmp_path):
    "It saves, says how to resume, and leaves with the signal's status."
    run, said = tmp_path / "run", tmp_path / "said"
    words = [*text, "--out", run, *SETTINGS]
    status, err = end_of(train_here, *words, said=said, harm="SIGTERM", at=5)
    assert status == 143 and err.count("\n") == 1, err
    assert (
        f"SIGTERM at step 5, saved; to continue: annotated-transformer train --resume {run}"
        in err
    )
    assert chosen(run)["steps"] == 5
    resume_run(run, RunOptions("cpu", quiet=True))
    assert weights(run) == weights(straight)


@pytest.mark.posix
def test_a_signal_that_comes_twice_saves_all_ranks(train, tmp_path):
    "As from SLURM or a terminal, which signal every process, and from torchrun, which repeats it."
    run = train(tmp_path / "run", minutes=1e-6)
    status, said = resume_by(2, run, tmp_path, harm="SIGTERM SIGTERM", at=5)
    assert status == 0, said
    assert chosen(run)["steps"] == 5 and chosen(run)["stopped"] == "SIGTERM"
    assert checkpoints(run / "checkpoints")[-1].name == "step-0000005"


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
    assert steps == list(range(1, 13))
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
        UserError, match="step-0000001/model.safetensors has weights of o"
    ):
        resume(run)
    (run / "config.json").write_text(config)
    (run / "vocab.model").write_bytes(b"other")
    with pytest.raises(UserError, match="vocab.model: not a SentencePiece model"):
        resume(run)
    assert weights(run) == before and max(r["step"] for r in read_metrics(run)) == 1


@pytest.fixture
def rates(monkeypatch):
    "Set the learning rate of each step."

    def take(schedule):
        name = "annotated_transformer.runs.recipe._learning_rate_schedule"
        monkeypatch.setattr(name, lambda *_: schedule)

    return take


def test_not_finite_names_the_last_good_checkpoint(train, rates, tmp_path):
    rates(lambda step: 1e-3 if step < 5 else 1e30)
    why = r"became (nan|inf).* at step \d+ .*the last good checkpoint is .*step-0000003"
    with pytest.raises(ValueError, match=why):
        train(tmp_path / "run")


PATIENT = [*SETTINGS, "patience=2", "valid_every=4", "max_steps=100", "average_last=0"]


@pytest.fixture
def worsening(rates):
    "Learning up to step 6, and then steps so wide that the validation loss is higher at 8 than at 4, and lowest at 6."
    rates(lambda step: 1e-2 if step <= 6 else 0.3)


@pytest.mark.parametrize("sittings", [(4,), (6, 10, 11)], ids=str)
def test_early_stopping_does_not_depend_on_interruptions(
    sittings, train, resume, worsening, tmp_path
):
    "A validation pass at the end of a sitting once counted: as one without gain, or as the best. Steps 4, 8 and 12 are the ones that count."
    straight = chosen(train(tmp_path / "straight", PATIENT))
    assert straight["steps"] == 12
    assert straight["stopped"] == "no gain in 2 validation passes"
    run = train(tmp_path / "run", PATIENT, hooks=stop_at(sittings[0]))
    for at in (*sittings[1:], None):
        assert chosen(run)["stopped"] == "enough"
        resume(run, hooks=stop_at(at))
    assert chosen(run) == straight
    before = files(run)
    resume(run)  # it has ended
    assert files(run) == before


def test_the_end_of_a_sitting_is_chosen_until_the_run_goes_on(
    train, resume, worsening, tmp_path
):
    "Better weights are of use at once."
    four = train(tmp_path / "four", PATIENT, hooks=stop_at(4))
    six = train(tmp_path / "six", PATIENT, hooks=stop_at(6))
    about = json.loads((six / "config.json").read_text())
    assert about["weights"] == "best on validation, step 6"
    newest = load_file(six / "checkpoints/step-0000006/model.safetensors")
    mine = load_file(six / "model.safetensors")
    assert all(map(torch.equal, mine.values(), newest.values()))
    resume(six, hooks=stop_at(9))
    assert weights(six) == weights(four)


def test_the_pass_at_the_last_step_counts(train, resume, tmp_path):
    "Though it is outside the schedule: nothing follows it, and it is made once."
    settings = [*SETTINGS, "valid_every=4", "max_steps=10", "average_last=0"]
    run = train(tmp_path / "run", settings)
    about = json.loads((run / "config.json").read_text())
    assert about["weights"] == "best on validation, step 10"
    assert (run / "checkpoints/best.safetensors").read_bytes() == weights(run)
    before = files(run)
    resume(run)
    assert files(run) == before


@pytest.mark.parametrize(
    "settings, stops",
    [([], (11,)), (["keep_last=2"], (1, 2, 4, 5))],
    ids=str,
)
def test_stopped_between_two_checkpoints(settings, stops, train, resume, tmp_path):
    "The checkpoint that an interruption writes is no part of the average in the end, and takes no other's place."
    settings = [*SETTINGS, "save_every=2", "valid_every=3", "keep_last=3", *settings]
    straight = train(tmp_path / "straight", settings)
    run = train(tmp_path / "run", settings, hooks=stop_at(stops[0]))
    for at in (*stops[1:], None):
        resume(run, hooks=stop_at(at))
    assert chosen(run) == chosen(straight)
    names = [[p.name for p in checkpoints(r / "checkpoints")] for r in (run, straight)]
    assert names[0] == names[1]


def test_killed_before_its_end_was_noted(
    train, resume, straight, tmp_path, monkeypatch
):
    "All steps done and saved, the weights that translate not chosen yet."

    class Killed(BaseException):
        pass

    def killed(*args, **more):
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "use_weights", killed)
        train(tmp_path / "run")
    assert "stopped" not in json.loads((tmp_path / "run/config.json").read_text())
    resume(tmp_path / "run")
    assert chosen(tmp_path / "run") == chosen(straight)


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


@pytest.mark.parametrize("saved", [False, True])
def test_a_start_that_was_interrupted(saved, tune, tmp_path):
    "Its first checkpoint counts; before there is one, the weights to start from are in the run itself."
    straight, run = tune(tmp_path / "straight"), tune.prepared(tmp_path / "run")
    resume_run(run, RunOptions("cpu", minutes=1e-6, quiet=True))
    assert checkpoints(run / "checkpoints")
    if not saved:
        shutil.rmtree(run / "checkpoints")
        (run / "checkpoints").mkdir()
    resume_run(run, RunOptions("cpu", quiet=True))
    assert weights(run) == weights(straight)


@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_start_from_weights(sharded, tune, tmp_path):
    straight, run = tune(tmp_path / "straight"), tune.prepared(tmp_path / "run")
    status, said = resume_by(2, run, tmp_path, sharded=sharded)
    assert status == 0, said
    assert distance(run, straight / "model.safetensors") < 1e-4


@pytest.mark.parametrize("setting", ["d_model=64", "n_pieces=400"])
def test_a_start_of_other_sizes(setting, tune, straight, tmp_path):
    with pytest.raises(UserError, match=f"{setting} cannot start from {straight}"):
        tune(tmp_path / "run", setting)
    assert not (tmp_path / "run").exists()
