"""Table 3's rows, the table that is filled one row at a time, and the verdict over an effect."""

import json
import math
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest

from annotated_transformer.experiments.variation_runs import (
    _BASES,
    _ROWS,
    _choose_rows,
    _Plan,
    _row_recipe,
    fill_table,
    format_table,
    read_table,
)
from annotated_transformer.experiments.variations import (
    effects,
    pooled_std,
)
from annotated_transformer.runs.settings import Recipe, override

# the rows


@pytest.mark.parametrize("base", _BASES.values(), ids=_BASES)
def test_a_row_changes_what_it_says_and_nothing_else(base):
    for row in _ROWS:
        recipe = _row_recipe(row, base, seed=7)
        steps = base.train.max_steps * (3 if row.name == "big" else 1)
        same = {"max_steps": steps, "valid_every": steps, "seed": 7}
        before = asdict(base.model) | asdict(base.train) | same
        after = asdict(recipe.model) | asdict(recipe.train)
        differ = {f"{key}={after[key]}" for key in before if before[key] != after[key]}
        assert differ == set(row.changes)


# the table


def plan(rows: str = "base,A h=1,E", n_seeds: int = 2, settings=(), **about) -> _Plan:
    base = override(_BASES["builtin"], list(settings))
    return _Plan(_choose_rows(rows), n_seeds, base, {"data": "made up", **about})


def measured(recipe: Recipe) -> dict:
    "Numbers that tell every row and seed from every other."
    loss, score = 1 + recipe.model.n_heads / 100, 30.5 + recipe.train.seed
    sizes = {"n_parameters": 1000 * recipe.model.d_model, "seconds": 1.5}
    return {"valid_loss": loss, "bleu": score} | sizes


class Trainer:
    "Stands in for training; it is interrupted in some of its calls, counted from 1."

    def __init__(self, *interrupted: int):
        self.interrupted, self.calls = interrupted, []

    def __call__(self, recipe: Recipe, run: Path, minutes: float | None) -> dict:
        self.calls.append((run.name, (run / "checkpoints").exists()))
        (run / "checkpoints").mkdir(parents=True, exist_ok=True)
        (run / "model.safetensors").write_text("weights")
        records = [{"step": i, "loss": 3 - i / 10} for i in range(1, 21)]
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (run / "metrics.jsonl").write_text(lines)
        if len(self.calls) in self.interrupted:
            raise KeyboardInterrupt
        return measured(recipe)


def fill(folder: Path, plan: _Plan, trainer=None, **options) -> bool:
    options = {"echo": lambda line: None} | options
    return fill_table(folder, plan, trainer or Trainer(), **options)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    "A table that nobody interrupted."
    folder = tmp_path_factory.mktemp("tables") / "straight"
    assert fill(folder, plan())
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("interrupted", [(), (1,), (2, 4, 6, 7)])
def test_interrupted_and_resumed(interrupted, straight, tmp_path):
    "The folder ends as the one without interruptions; a row is repeated only if it was interrupted, and then it finds its run."
    trainer, said = Trainer(*interrupted), []
    for _ in interrupted:
        with pytest.raises(KeyboardInterrupt):
            fill(tmp_path / "t", plan(), trainer, echo=said.append)
    assert fill(tmp_path / "t", plan(), trainer, echo=said.append)
    assert len(trainer.calls) == 6 + len(interrupted) and len(said) == 6
    assert tree(tmp_path / "t") == tree(straight)
    assert not list((tmp_path / "t").rglob("checkpoints"))
    for i in interrupted:
        assert trainer.calls[i] == (trainer.calls[i - 1][0], True)
    assert fill(tmp_path / "t", plan(), None if interrupted else trainer)
    assert len(trainer.calls) == 6 + len(interrupted)


def test_time_is_up(tmp_path, monkeypatch):
    "A row that is not finished when time is up has no result; none is started without time; each gets what is left."
    now, given = [0.0], []
    clock = "annotated_transformer.experiments.variation_runs.time.monotonic"
    monkeypatch.setattr(clock, lambda: now[0])

    def slow(recipe, run, minutes):
        given.append(minutes)
        now[0] += 60
        return measured(recipe) if minutes >= 1 else None

    assert not fill(tmp_path, plan(), slow, minutes=2.5)
    rows = read_table(tmp_path)["rows"]
    assert given == [2.5, 1.5, 0.5] and [r["row"] for r in rows] == ["base", "A h=1"]
    assert not fill(tmp_path, plan(), slow, minutes=1)
    assert given[3:] == [1.0] and len(read_table(tmp_path)["rows"]) == 3


@pytest.mark.parametrize(
    "other, message",
    [
        ({"settings": ["max_steps=500"]}, "max_steps=1600, not 500: choose another"),
        ({"settings": ["d_model=64"]}, "d_model=128, not 64"),
        ({"data": "other"}, "data='made up', not 'other'"),
        ({"train_text": "0a1b"}, "train_text=None, not '0a1b'"),
    ],
)
def test_another_table_in_the_same_folder(other, message, straight):
    before = tree(straight)
    with pytest.raises(ValueError, match=f"straight was started with .*{message}"):
        fill(straight, plan(**other))
    assert tree(straight) == before


def test_refused_before_the_first_row(tmp_path):
    narrow = plan("all", settings=["d_model=48"])
    with pytest.raises(ValueError, match="does not split into n_heads=32"):
        fill(tmp_path / "t", narrow)
    assert not any(tmp_path.iterdir())


def test_table_for_a_terminal(straight):
    head, *lines = format_table(read_table(straight))
    assert head.split() == ["steps", "parameters", "perplexity", "BLEU", "seeds"]
    assert len(lines) == 3 and len(set(map(len, lines))) == 1
    shown = f"A h=1 1600 128,000 {math.exp(1.01):.3f} ± 0.000 31.00 ± 0.50 2"
    assert lines[1].split() == shown.split()
    table = read_table(straight)
    for row in table["rows"]:
        del row["found"][1:]
    assert not any("±" in line for line in format_table(table))  # one has no range


# effects


def table_of(
    rows: dict[str, list[float]], paper: dict[str, str | None] | None = None
) -> dict:
    return {
        "rows": [
            {
                "row": row,
                "paper": (paper or {}).get(row, row),
                "found": [{"bleu": x} for x in values],
            }
            for row, values in rows.items()
        ]
    }


def test_spread_by_statistics():
    rows = {"base": [1.0, 2.5, 4.0], "a": [7.0, 7.5], "b": [3.0]}
    pooled = (
        2 * statistics.variance(rows["base"]) + statistics.variance(rows["a"])
    ) / 3
    assert pooled_std(table_of(rows), "bleu") == pytest.approx(math.sqrt(pooled))


def test_effects_by_hand():
    "Base 30 and 32, std 1: with two seeds chance reaches 2, with one 2 · √1.5."
    rows = {"base": [30, 32], "two": [28, 29], "one": [28.6], "ours": [40]}
    table = table_of(rows, {"ours": None})
    paper = {"base": {"bleu": 25}, "two": {"bleu": 24}, "one": {"bleu": 26}}
    two, one, ours = effects(table, "bleu", paper, std=1.0)
    assert two == ("two", -2.5, 2.0, -1, "agrees")
    noise = pytest.approx(2 * math.sqrt(1.5))
    assert one == ("one", pytest.approx(-2.4), noise, 1, "cannot tell")
    assert ours[3:] == (None, "higher")
    verdicts = [e.verdict for e in effects(table, "bleu", paper, std=0.5)]
    assert verdicts == ["agrees", "disagrees", "higher"]
    with pytest.raises(ValueError, match="no row base"):
        effects(table_of({"two": [1, 2]}), "bleu", {}, 1.0)


def curves_of(rows: dict[str, tuple[list[float], list[str]]]) -> dict:
    "A table whose rows have a curve and settings that differ from base's."
    table = table_of({name: [30.0 - i, 30.0 - i] for i, name in enumerate(rows)})
    for row, (curve, changes) in zip(table["rows"], rows.values()):
        row["changes"] = changes
        for one in row["found"]:
            one["curve"] = curve
    return table | {"train": {"label_smoothing": 0.1, "n_pieces": 1000}}


def falling_to(last: float, n_parts: int = 20) -> list[float]:
    "A loss that falls in a straight line from 7 nats."
    return [7 - (7 - last) * i / (n_parts - 1) for i in range(n_parts)]


@pytest.mark.parametrize(
    "last, changes, verdict",
    [
        (2.0, [], "agrees"),
        # base is at 4.37 in the middle of its run
        (4.3, ["n_layers=4"], "agrees"),
        (4.4, ["n_layers=4"], "not converged"),
        (8.0, [], "not converged"),
        # the entropy of the target is 1.02 nats at 0.1, 1.88 at 0.2, and 0 without
        (5.2, ["label_smoothing=0.2"], "agrees"),
        (5.3, ["label_smoothing=0.2"], "not converged"),
        (3.3, ["label_smoothing=0.0"], "agrees"),
        (3.4, ["label_smoothing=0.0"], "not converged"),
    ],
)
def test_a_row_that_has_not_converged_gets_no_verdict(last, changes, verdict):
    table = curves_of({"base": (falling_to(2.0), []), "a": (falling_to(last), changes)})
    paper = {"base": {"bleu": 25}, "a": {"bleu": 24}}
    [effect] = effects(table, "bleu", paper, std=0.1)
    assert effect == ("a", -1.0, pytest.approx(0.2), -1, verdict)


def test_convergence_of_every_seed_together():
    "The mean of the seeds counts; a table without curves is judged as before."
    table = curves_of({"base": (falling_to(2.0), []), "a": (falling_to(4.0), [])})
    paper = {"base": {"bleu": 25}, "a": {"bleu": 24}}
    of_a = table["rows"][1]["found"]
    for curve, verdict in (
        (falling_to(5.0), "not converged"),
        (falling_to(4.5), "agrees"),
        ([], "agrees"),
    ):
        of_a[1]["curve"] = curve
        of_a[0]["curve"] = curve and falling_to(4.0)
        assert effects(table, "bleu", paper, std=0.1)[0].verdict == verdict
