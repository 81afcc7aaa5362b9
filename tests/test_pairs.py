"""Two features at once: a covering array in which each pair of values of all dimensions has a run.

A row is a run with its disturbances, played to its end: who is interrupted resumes, and
who gets advice follows it. Whatever the row, the same must hold. Dimensions are added by
a line in DIMENSIONS.
"""

import math
import os
import re
import shlex
import shutil
import signal
import time
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from allpairspy import AllPairs
from processes import run_ranks, start
from small_runs import LATER

from annotated_transformer.cli.main import main
from annotated_transformer.data.batch import epoch_batches
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.prepared import open_prepared
from annotated_transformer.io.files import read_json
from annotated_transformer.runs import monitor, train_run
from annotated_transformer.runs.checkpoint import checkpoints
from annotated_transformer.runs.folder import load_run, read_config, read_metrics
from annotated_transformer.runs.recipe import BatchLoss, validation_loss
from annotated_transformer.show import visualize
from annotated_transformer.training import train as training

pytestmark = [pytest.mark.posix, pytest.mark.usefixtures("one_thread")]

FAST = "linear peak_lr=1"  # the loss gets worse
DIMENSIONS = {
    "folder": ["new", "half made", "theirs", "with notes"],
    "start": ["", "--from base"],
    "kill": ["", "before a checkpoint", "between two", "after the end"],
    "stop": ["", "SIGTERM", "--minutes 1e-6"],
    "not_finite": ["", "step 1", "step 7", "validation"],
    "memory": ["", "training", "validation"],
    "patience": ["none", "1", "2"],
    "average_last": ["0", "2", "3"],
    "keep_last": ["3", "4"],
    "valid_every": ["2", "3", "5"],
    "save_every": ["2", "3", "5"],
    "schedule": ["linear", "paper", FAST],
    "grad_accum_steps": ["1", "3"],
    "change": [
        "",
        "save_every=4",
        "max_steps=16",
        "patience=3",
        "average_last=1",
        "valid_every=4",
    ],
    "valid": ["few", "many"],
    "bleu": ["", "--metric=bleu"],
    "quiet": ["", "--quiet"],
    "ends": ["once", "again"],
    "ranks": ["1", "2", "2 --fsdp"],
}
SMALL = (
    "n_layers=1 d_model=16 n_heads=2 d_ff=16 vocab_size=400 batch_tokens=400 seed=1 "
)
SMALL += "max_steps=12 warmup_steps=3 peak_lr=0.03 dropout=0.1 precision=fp32"
LATER_PARTS = {**LATER, "position": "rotary", "weight_decay": 0.1, "n_kv_heads": 1}
PARTS = " ".join(f"{name}={value}".lower() for name, value in LATER_PARTS.items())
MUON = "optimizer=muon weight_decay=0.1"
LIMIT = 260  # ids of a micro-batch that the memory holds, where memory is short


def covering_rows() -> list[SimpleNamespace]:
    "Rows with every pair of values; one process wherever a pair does not need more."
    others = {name: v for name, v in DIMENSIONS.items() if name != "ranks"}
    rows = [
        dict(zip(others, row)) | {"ranks": "1"} for row in AllPairs(others.values())
    ]
    # several processes take the longest: as few rows of them as their pairs need
    free = [*rows]
    for ranks in DIMENSIONS["ranks"]:
        missing = {(name, v) for name, values in others.items() for v in values}
        while missing:
            n_new = [len(missing.intersection(row.items())) for row in free]
            if any(n_new):
                best = free.pop(n_new.index(max(n_new)))
            else:
                best = dict(next(row for row in rows if missing & row.items()))
                rows.append(best)
            best["ranks"] = ranks
            missing.difference_update(best.items())
    return [SimpleNamespace(**row) for row in rows]


def with_others(**values: str) -> SimpleNamespace:
    "A row with these values, and else the first of each dimension."
    return SimpleNamespace(**{name: v[0] for name, v in DIMENSIONS.items()} | values)


# bugs that needed more than two features at once
MORE = [
    # an early stop whose best weights are not the last, nor the average
    with_others(schedule=FAST, patience="1", average_last="2", ends="again"),
    with_others(
        schedule=FAST, patience="2", average_last="2", save_every="3", ends="again"
    ),
    # several checkpoints of another rhythm, and steps to come
    with_others(kill="between two", change="save_every=4", save_every="3"),
    with_others(stop="SIGTERM", change="save_every=4", save_every="3", keep_last="4"),
    # parts and an optimiser that are not the paper's
    *(
        with_others(kill="between two", parts=parts, ends="again", ranks=ranks)
        for parts, ranks in ((PARTS, "1"), (MUON, "1"), (PARTS, "2 --fsdp"))
    ),
    # steps between two reports
    with_others(not_finite="step 1", valid_every="5", save_every="5"),
]
ROWS = covering_rows() + MORE


def test_each_pair_has_a_row():
    pairs = lambda row: combinations(sorted(vars(row).items()), 2)
    found = {pair for row in ROWS for pair in pairs(row)}
    names = combinations(sorted(DIMENSIONS), 2)
    for a, b in names:
        for x in DIMENSIONS[a]:
            assert all(((a, x), (b, y)) in found for y in DIMENSIONS[b]), (a, x, b)


# a process that something happens to


def disturbed(events: dict, words: list[str]) -> None:
    "The command line, in a process in which something goes wrong at a step."
    seen, append = SimpleNamespace(step=0), monitor.append_json
    plain_loss, gradient = monitor.validation_loss, training.compute_gradient

    def append_json(path, values):
        append(path, values)
        step, every = values["step"], events.get("save_every", 100)
        if "loss" not in values or step < events.get("at", 1e9):
            return
        due = step // every * every  # has been written, unless it is this step
        last = path.parent / f"checkpoints/step-{due:07}/state.json"
        while 0 < due < step and not last.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), getattr(signal, events.pop("signal")))
        events["at"] = 1e9

    def needs(batches, where):
        ids = max(batch.src.numel() for batch in batches)
        if events.get("memory") == where and ids > LIMIT:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    def compute_gradient(objective, step, clip_norm):
        needs(step.micro_batches, "training")
        seen.step = step.step
        found = gradient(objective, step, clip_norm)
        return found * float("nan") if step.step == events.get("nan") else found

    def loss(objective, batches):
        needs(batches, "validation")
        found = plain_loss(objective, batches)
        return float("nan") if seen.step == events.get("nan in validation") else found

    def killed(*args, **more):
        os.kill(os.getpid(), signal.SIGKILL)

    # what takes most of the time, and is tested elsewhere
    os.fsync = visualize.save_learning_curve = lambda path: None
    monitor.append_json, monitor.validation_loss = append_json, loss
    training.compute_gradient = compute_gradient
    if events.get("at the end"):
        train_run.set_final_weights = killed
    main(words)


def last_settings(words: list[str]) -> list[str]:
    "A command in which the last of several settings of a name counts."
    keys = [word.partition("=")[0] for word in words]
    later = lambda i: not words[i].startswith("-") and keys[i] in keys[i + 1 :]
    return [words[i] for i in range(len(words)) if "=" not in words[i] or not later(i)]


class Play:
    "One row, played to its end in a folder."

    def __init__(self, row: SimpleNamespace, folder: Path):
        self.row, self.folder, self.run = row, folder, folder / "run"
        self.said: list[str] = []  # what was said, the last words of each sitting
        self.theirs: dict[Path, bytes] = {}
        self.events: dict = {"memory": row.memory}  # that happen again
        self.once: dict = {}  # that happen in the first sitting that comes so far
        if row.not_finite.startswith("step"):
            self.events["nan"] = int(row.not_finite[-1])
        elif row.not_finite:
            self.events["nan in validation"] = int(row.valid_every)
        names = "patience average_last keep_last valid_every save_every schedule"
        own = [f"{x}={getattr(row, x)}" for x in [*names.split(), "grad_accum_steps"]]
        text = ["--pairs", "train", "--valid-pairs", row.valid]
        text += shlex.split(f"--src-lang en --tgt-lang de {row.bleu} {row.quiet}")
        config = shlex.split(row.start) or ["--config", "tiny"]
        self.options = [
            "--device",
            "cpu",
            *(["--fsdp"] if "fsdp" in row.ranks else []),
        ]
        settings = " ".join([SMALL, *own, getattr(row, "parts", "")]).split()
        self.new = ["train", *text, *self.options, *config, *settings]
        self.again = shlex.split(f"{row.bleu} {row.quiet}") + self.options

    def sit(self, words: list[str], **events) -> int:
        "Run a command, in as many processes as the row says; its status."
        events, words = self.events | events, last_settings(words)
        n, said = int(self.row.ranks[0]), self.folder / "said"
        if n == 1:
            process = start(disturbed, events, words, said=said)
            process.join(60)
            status = process.exitcode
            process.kill()
        else:
            status, _ = run_ranks(n, disturbed, events, words, folder=self.folder)
            said = self.folder / "rank 0 said"
        lines = said.read_text().replace("\r", "\n").strip().split("\n")
        self.said.append(lines[-1])
        assert status in (0, 2, 143, -signal.SIGKILL), "\n".join(lines)
        assert "Traceback" not in said.read_text()
        self.keep()
        return status

    def keep(self) -> None:
        "What is theirs is as it was."
        for path, data in self.theirs.items():
            assert path.read_bytes() == data, path

    def put(self, *names: str) -> None:
        "Files of theirs."
        for name in names:
            path = self.run / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"mine")
            self.theirs[path] = b"mine"

    def begin(self) -> int:
        "The first sitting."
        row = self.row
        if row.folder == "theirs":
            self.put(".lock", "data/thesis.txt", "report.json")
            alone = [word for word in self.new if word != "--metric=bleu"]
            assert self.sit([*alone, "--out", str(self.run)]) == 2
            self.run = self.folder / "another"
        elif row.folder == "half made":
            at_once = {"signal": "SIGKILL", "at": 0}
            self.sit([*self.new, "--out", str(self.run)], **at_once)
            (self.run / "config.json").unlink(missing_ok=True)
        self.said.clear()
        if row.kill:
            two = 2 * int(row.save_every) + 1
            before = {"before a checkpoint": 1, "between two": two}
            self.once = {"signal": "SIGKILL", "at": before.get(row.kill, 1e9)}
            self.once["save_every"] = int(row.save_every)
            self.once["at the end"] = row.kill == "after the end"
        elif row.stop == "SIGTERM":
            self.once = {"signal": row.stop, "at": 2 * int(row.save_every) + 1}
        more = shlex.split(row.stop) if row.stop.startswith("--") else []
        return self.sit_once([*self.new, *more, "--out", str(self.run)])

    def sit_once(self, words: list[str]) -> int:
        "A sitting with what happens once, if it has not yet."
        status = self.sit(words, **self.once)
        if status != 2:  # else the run did not come so far
            self.once = {}
        return status

    def about(self) -> dict:
        has_config = (self.run / "config.json").exists()
        return read_config(self.run)[1] if has_config else {}

    def follow(self) -> list[str]:
        "The command that the last words advise."
        said = self.said[-1]
        assert self.said.count(said) == 1, f"the same advice twice: {self.said}"
        if command := re.search(r"annotated-transformer (train --resume .*)", said):
            words = shlex.split(command[1])
            return [*words, *(x for x in self.again if x not in words)]
        if "choose another --out" in said:
            self.run = self.run.with_name(f"not {self.run.name}")
        elif "exclude each other" in said:
            self.new.remove("--metric=bleu")
            self.again.remove("--metric=bleu")
        else:  # the loss is NaN as long as the settings are these
            setting = re.search(
                r"train (it again|another run),? with (\w+=\S+?)(;|$)", said
            )
            assert setting, said
            assert f"at step {self.events['nan']} " in said
            assert (self.run / "data/about.json").exists(), "encoded text is lost"
            self.events.pop("nan")
            self.new.append(setting[2])
            if setting[1] == "another run":
                self.run = self.folder / "with another rate"
        return [*self.new, "--out", str(self.run)]

    def to_the_end(self) -> None:
        "Resume, and follow what is advised, until the run has ended."
        status, changes = self.begin(), self.row.change.split()
        for _ in range(12):
            stopped = self.about().get("stopped") or ""
            if status in (0, 143):
                check(self.run)
            has_ended = stopped.startswith(("max_steps", "patience"))
            if status == 0 and has_ended and not changes:
                return
            if (
                self.row.folder == "with notes"
                and self.run.exists()
                and not self.theirs
            ):
                self.put("notes", "data/thesis.txt", "checkpoints/mine")
            if status == 2:
                words = self.follow()
            elif self.about():
                words = ["train", "--resume", str(self.run), *self.again]
            else:
                words = [*self.new, "--out", str(self.run)]
            kept = self.scheduled()
            if changes and "--resume" in words and not self.once:
                words, changes = [*words, *changes], []
            status = self.sit_once(words)
            found = checkpoints(self.run / "checkpoints")
            assert len(found) >= int(self.row.keep_last) or kept <= {*found}
        pytest.fail(f"no end: {self.said}")

    def scheduled(self) -> set[Path]:
        "Checkpoints that stay until there are enough of them."
        found = checkpoints(self.run / "checkpoints")
        return {p for p in found if read_json(p / "state.json")["scheduled"]}

    def once_more(self) -> None:
        "A run that has ended says what goes on, and that is so."
        steps, self.events = self.about()["steps"], {}
        self.said.clear()
        words = ["train", "--resume", str(self.run), *self.again]
        for _ in range(3):
            assert self.sit(words) == 0
            if (now := self.about()["steps"]) > steps:
                return
            assert now == steps
            words = self.follow()
        pytest.fail(f"nothing is trained: {self.said}")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    "Texts, and a run to start from."
    folder = tmp_path_factory.mktemp("texts")
    pairs = [f"{s.en}\t{s.de}\n" for s in builtin(300, seed=3)]
    for name, some in (
        ("train", pairs[:250]),
        ("few", pairs[250:258]),
        ("many", pairs[250:286]),
    ):
        (folder / name).write_text("".join(some), encoding="utf-8")
    words = ["--pairs", folder / "train", "--valid-pairs", folder / "few"]
    words += ["--config", "tiny", *SMALL.split(), "valid_every=6", "average_last=0"]
    base = ["train", *words, "--device", "cpu", "--quiet", "--out", folder / "base"]
    process = start(disturbed, {}, list(map(str, base)), said=folder / "said")
    process.join(60)
    assert process.exitcode == 0, (folder / "said").read_text()
    return folder


def measured(run: Path) -> float:
    "The validation loss of the final weights, measured anew."
    model, vocab, recipe, _ = load_run(run)
    valid = open_prepared(run / "data").valid
    return validation_loss(
        BatchLoss(model, 0.0), list(epoch_batches(valid, vocab, 4000, 0, 0))
    )


def check(run: Path) -> None:
    "What holds of every run that has ended."
    records = read_metrics(run)
    keys = [(r["step"], "loss" in r) for r in records]
    assert len(set(keys)) == len(keys), "a line is there twice"
    assert keys == sorted(keys, key=lambda key: key[0])
    losses = [r["valid_loss"] for r in records if "valid_loss" in r]
    about = read_config(run)[1]
    losses += [m["valid_loss"] for m in about.get("validation") or []]
    losses = [loss for loss in losses if math.isfinite(loss)]
    if losses:  # of other batches, and so other sums
        assert measured(run) == pytest.approx(min(losses), rel=1e-4), about["weights"]
    else:
        assert about["weights"] == f"last, step {about['steps']}"


def equal_runs(one: Path, other: Path, with_weights: bool) -> None:
    "To the bit, where both have reported."
    names = ("loss", "grad_norm", "valid_loss", "valid_bleu")
    lines = lambda run: {
        (r["step"], "loss" in r): str([r.get(k) for k in names])
        for r in read_metrics(run)
    }
    found, right = lines(one), lines(other)
    passes = lambda lines: {step for step, is_step in lines if not is_step}
    assert passes(found) == passes(right)
    assert all(found[key] == right[key] for key in found.keys() & right.keys())
    weights = lambda run: (run / "model.safetensors").read_bytes()
    assert not with_weights or weights(one) == weights(other)


def params() -> list:
    "The rows; all but three of each kind with several processes, which take long, are slow."
    n, found = Counter(), []
    for row in ROWS:
        n[row.ranks] += 1
        is_slow = row.ranks != "1" and n[row.ranks] > 3
        name = " ".join(vars(row).values())
        found.append(pytest.param(row, id=name, marks=[pytest.mark.slow] * is_slow))
    return found


@pytest.mark.parametrize("row", params())
def test_pairs(row, texts, tmp_path, monkeypatch):
    if "muon" in getattr(row, "parts", "") and not hasattr(torch.optim, "Muon"):
        pytest.skip("PyTorch has it since 2.9")
    for name in ("train", "few", "many"):
        shutil.copy(texts / name, tmp_path)
    shutil.copytree(texts / "base", tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    play = Play(row, tmp_path)
    play.to_the_end()
    check(play.run)
    play.keep()
    config, *_ = read_config(play.run)
    # the same steps: not in other parts, at other rates, or with other settings
    is_same = str(config.train.grad_accum_steps) == row.grad_accum_steps
    is_same &= row.schedule == "paper" or "max_steps" not in row.change
    is_same &= "valid_every" not in row.change
    if is_same and play.run.name != "with another rate":
        straight = Play(SimpleNamespace(**vars(row) | {"folder": "new"}), tmp_path)
        straight.run, straight.events, straight.new = tmp_path / "a", {}, play.new
        straight.events = {k: v for k, v in play.events.items() if k != "memory"}
        words = [*play.new, *row.change.split(), "--out", str(straight.run)]
        assert straight.sit(words) == 0
        equal_runs(play.run, straight.run, "save_every" not in row.change)
    if row.ends == "again":
        play.once_more()
        check(play.run)
        play.keep()
