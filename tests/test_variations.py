"""Table 3's rows, the table that is filled one row at a time, and the verdict over an effect."""

import json
import math
import random
import shutil
import statistics
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import ROOT

from annotated_transformer.experiments.variation_runs import (
    _BASES,
    _KEY_ROWS,
    _ROWS,
    _choose_rows,
    _loss_curve,
    _Measured,
    _Plan,
    _remove_weights,
    _row_folder,
    _row_recipe,
    _start_table,
    fill_table,
    format_table,
    read_table,
)
from annotated_transformer.experiments.variations import _verdict, effects, pooled_std
from annotated_transformer.model.config import Recipe, override
from annotated_transformer.runs.folder import create_run

TABLE3 = json.loads((ROOT / "reference/paper_tables.json").read_text(encoding="utf-8"))[
    "table3"
]
SYMBOLS = {
    "h": "n_heads",
    "N": "n_layers",
    "dropout": "dropout",
    "eps": "label_smoothing",
    "d_k": "d_k",
    "d_model": "d_model",
    "d_ff": "d_ff",
}


# the rows


def test_every_row_of_the_paper_is_there_once():
    "By its letter and the first thing it changes; base and the rows that change no number by their letter."

    def name(row):
        key, value = next(iter(row["changes"].items()))
        return (
            row["row"] if row["row"] in ("E", "big") else f"{row['row']} {key}={value}"
        )

    assert sorted(row.paper for row in _ROWS if row.paper) == sorted(
        ["base", *map(name, TABLE3["rows"])]
    )
    assert len({row.name for row in _ROWS}) == len(_ROWS) and set(_KEY_ROWS) < {
        row.name for row in _ROWS
    }


@pytest.mark.parametrize("base", _BASES.values(), ids=_BASES)
@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row.name)
def test_a_row_changes_what_it_says_and_nothing_else(row, base):
    recipe = _row_recipe(row, base, seed=7)
    before, after = (
        asdict(base.model) | asdict(base.train),
        asdict(recipe.model) | asdict(recipe.train),
    )
    steps = base.train.max_steps * (3 if row.name == "big" else 1)
    assert (after["max_steps"], after["valid_every"], after["seed"]) == (
        steps,
        steps,
        7,
    )
    differ = {key for key in before if before[key] != after[key]} - {
        "max_steps",
        "valid_every",
        "seed",
    }
    assert differ == {change.split("=")[0] for change in row.changes}
    letter, _, change = row.name.partition(" ")
    if letter in "ABCD" and "=" in change:
        key, value = change.split("=")
        assert after[SYMBOLS[key]] == float(value)


def test_heads_share_one_width():
    "Row A keeps h · d_k; row B keeps d_v."
    for row in _choose_rows():
        model = _row_recipe(row, _BASES["builtin"], 0).model
        if row.name.startswith("A "):
            assert (model.d_k, model.d_v) == (
                None,
                None,
            ) and model.d_model % model.n_heads == 0
        if row.name.startswith("B "):
            assert model.d_v is None and model.d_k < model.d_model // model.n_heads


@pytest.mark.parametrize(
    "names, message",
    [
        ("A h=3", "no row is called 'A h=3'"),
        ("", "no row is called ''"),
        ("base,", "no row is called ''"),
        ("base;E", "no row is called 'base;E'"),
    ],
)
def test_unknown_rows(names, message):
    with pytest.raises(ValueError, match=message):
        _choose_rows(names)


def test_chosen_rows_come_in_the_order_of_the_table():
    assert [row.name for row in _choose_rows(" E,base ,E")] == ["base", "E"]
    assert _choose_rows("all") == _choose_rows() == _ROWS and [
        row.name for row in _choose_rows("key")
    ] == list(_KEY_ROWS)


# the table


def plan(rows: str = "base,A h=1,E", n_seeds: int = 2, settings=(), **about) -> _Plan:
    return _Plan(
        _choose_rows(rows),
        n_seeds,
        override(_BASES["builtin"], list(settings)),
        {"data": "made up", **about},
    )


def measured(recipe: Recipe) -> _Measured:
    "Numbers that tell every row and seed from every other."
    return _Measured(
        1 + recipe.model.n_heads / 100,
        30.5 + recipe.train.seed,
        1000 * recipe.model.d_model,
        1.5,
    )


class Trainer:
    "Stands in for a training: leaves files in the run folder, and is interrupted in some of its calls, counted from 1."

    def __init__(self, *interrupted: int):
        self.interrupted, self.calls = interrupted, []

    def __call__(self, recipe: Recipe, run: Path, minutes: float | None) -> _Measured:
        self.calls.append((run.name, (run / "checkpoints").exists()))
        if not run.exists():
            create_run(run, recipe, {})
        for name in ("vocab.model", "model.safetensors"):
            (run / name).write_text(name)
        (run / "metrics.jsonl").write_text(
            "".join(
                json.dumps({"step": i, "loss": 3 - i / 10}) + "\n" for i in range(1, 21)
            )
        )
        if len(self.calls) in self.interrupted:
            raise KeyboardInterrupt
        return measured(recipe)


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> Path:
    "A table that nobody interrupted."
    folder, trainer = tmp_path_factory.mktemp("tables") / "straight", Trainer()
    assert (
        fill_table(folder, plan(), trainer, echo=lambda line: None)
        and len(trainer.calls) == 6
    )
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file()
    }


@pytest.mark.parametrize("interrupted", [(1,), (3,), (6,), (1, 2, 3), (2, 4, 6, 7)])
def test_interrupted_and_gone_on_with(interrupted, straight, tmp_path):
    "Whatever the interruptions, the folder ends as the one without; a row is repeated only if it was broken off, and then it finds its run."
    trainer, n_sittings, said = Trainer(*interrupted), 0, []
    while True:
        n_sittings += 1
        try:
            done = fill_table(tmp_path / "t", plan(), trainer, echo=said.append)
        except KeyboardInterrupt:
            continue
        break
    assert (
        done
        and n_sittings == len(interrupted) + 1
        and len(trainer.calls) == 6 + len(interrupted)
        and len(said) == 6
    )
    assert tree(tmp_path / "t") == tree(straight)
    for i in interrupted:
        assert trainer.calls[i] == (trainer.calls[i - 1][0], True)


def test_what_is_left_of_a_run(straight):
    for run in (straight / "rows").iterdir():
        if run.is_dir():
            assert {p.name for p in run.iterdir()} == {"config.json", "metrics.jsonl"}


def test_what_is_not_of_a_run_is_kept(tmp_path):
    fill_table(tmp_path / "t", plan("base", 1), Trainer(), echo=lambda line: None)
    run, recipe = (
        _row_folder(tmp_path / "t", _ROWS[0], 0),
        _row_recipe(_ROWS[0], plan().base, 0),
    )
    (run / "diary.txt").write_text("today")
    (run / "vocab.model").write_text("left by a killed process")
    (run / "data").mkdir()
    (run / "data/thesis.txt").write_text("the only copy")
    _remove_weights(run, recipe)
    assert {p.name for p in run.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "diary.txt",
        "data",
    } and (run / "data/thesis.txt").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/vocab.model").write_text("my own")
    with pytest.raises(ValueError, match="mine is not a run folder"):
        _remove_weights(tmp_path / "mine", recipe)
    other = tmp_path / "other"
    create_run(other, _row_recipe(_ROWS[0], plan().base, 1), {})
    (other / "vocab.model").write_text("of another run")
    _remove_weights(other, recipe)
    assert (tmp_path / "mine/vocab.model").read_text() == "my own" and (
        other / "vocab.model"
    ).exists()


def test_a_file_that_is_not_of_the_table(straight, tmp_path):
    shutil.copytree(straight, tmp_path / "t")
    (tmp_path / "t/rows/notes.json").write_text('{"format": 1, "row": "base"}')
    with pytest.raises(ValueError, match="notes.json lacks bleu, changes"):
        read_table(tmp_path / "t")


def test_curves(straight, tmp_path):
    "The table says how the loss of each row fell: equal stretches, which together have every step; nothing for a run that is gone or too short."
    for row in read_table(straight)["rows"]:
        for one in row["found"]:
            assert one["curve"] == pytest.approx([3 - i / 10 for i in range(1, 21)])
    for n, n_parts, wanted in ((7, 3, [0.5, 2.5, 5]), (3, 3, [0, 1, 2]), (2, 3, [])):
        records = [{"step": i, "loss": float(i)} for i in range(n)] + [
            {"step": n, "valid_loss": 7.0}
        ]
        (tmp_path / "metrics.jsonl").write_text(
            "".join(json.dumps(record) + "\n" for record in records)
        )
        assert _loss_curve(tmp_path, n_parts) == wanted
    assert _loss_curve(tmp_path / "gone") == []


def test_killed_before_it_was_cleared(straight, tmp_path):
    "The row's file was written and the process killed: the next sitting clears the run and does not train it again."
    fill_table(tmp_path / "t", plan(), Trainer(), echo=lambda line: None)
    run = _row_folder(tmp_path / "t", _ROWS[0], 0)
    (run / "checkpoints").mkdir()
    (run / "model.safetensors").write_text("heavy")
    (tmp_path / "t/table.json").unlink()
    trainer = Trainer()
    assert fill_table(tmp_path / "t", plan(), trainer) and trainer.calls == []
    assert tree(tmp_path / "t") == tree(straight) and not (run / "checkpoints").exists()


def test_all_rows_get_their_first_seed_before_one_gets_a_second(tmp_path):
    trainer = Trainer()
    fill_table(tmp_path, plan("base,E"), trainer, echo=lambda line: None)
    assert [name for name, _ in trainer.calls] == [
        "base-seed0",
        "E-seed0",
        "base-seed1",
        "E-seed1",
    ]


def test_time_is_up(tmp_path, monkeypatch):
    "A row that is not through when time is up has no result; none is begun without time; each gets what is left."
    now, given = [0.0], []
    monkeypatch.setattr(
        "annotated_transformer.experiments.variation_runs.time.monotonic",
        lambda: now[0],
    )

    def slow(recipe, run, minutes):
        given.append(minutes)
        now[0] += 60
        return measured(recipe) if minutes >= 1 else None

    assert not fill_table(tmp_path, plan(), slow, minutes=2.5, echo=lambda line: None)
    assert given == [2.5, 1.5, 0.5] and [
        row["row"] for row in read_table(tmp_path)["rows"]
    ] == ["base", "A h=1"]
    assert not fill_table(tmp_path, plan(), slow, minutes=1, echo=lambda line: None)
    assert given[3:] == [1.0] and len(read_table(tmp_path)["rows"]) == 3
    for wrong in (-1, 0, float("inf"), float("nan")):
        with pytest.raises(
            ValueError, match=f"minutes={wrong} must be positive and below"
        ):
            fill_table(tmp_path, plan(), slow, minutes=wrong)


@pytest.mark.parametrize(
    "other, message",
    [
        (
            {"settings": ["max_steps=500"]},
            "max_steps=1600, not 500: choose another --out",
        ),
        ({"settings": ["d_model=64"]}, "d_model=128, not 64"),
        ({"data": "other"}, "data='made up', not 'other'"),
        ({"train_text": "0a1b"}, "train_text=None, not '0a1b'"),
    ],
)
def test_another_table_in_the_same_folder(other, message, straight):
    before = tree(straight)
    with pytest.raises(ValueError, match=f"straight was started with .*{message}"):
        fill_table(straight, plan(**other), Trainer())
    assert tree(straight) == before


def test_more_rows_and_more_seeds(tmp_path):
    for rows, n_seeds in (("E", 1), ("base", 3), ("base,E", 2)):
        fill_table(tmp_path, plan(rows, n_seeds), Trainer(), echo=lambda line: None)
    assert [
        (row["row"], [one["seed"] for one in row["found"]])
        for row in read_table(tmp_path)["rows"]
    ] == [("base", [0, 1, 2]), ("E", [0, 1])]


def test_folders_that_are_no_table(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter").write_text("Dear")
    (tmp_path / "file").write_text("")
    for name, message in (("mine", "is not empty"), ("file", "is a file")):
        with pytest.raises(ValueError, match=message):
            _start_table(tmp_path / name, plan())
    assert {p.name for p in tmp_path.rglob("*")} == {"mine", "letter", "file"}


def test_a_row_that_cannot_be_is_refused_before_the_first_is_trained(tmp_path):
    narrow = plan("all", settings=["d_model=48"])
    with pytest.raises(ValueError, match="does not split into n_heads=32"):
        fill_table(tmp_path / "t", narrow, Trainer())
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 99}'])
def test_damaged_files_are_named(text, straight, tmp_path):
    for name in ("settings.json", "rows/base-seed0.json"):
        folder = tmp_path / name.replace("/", "-")
        fill_table(folder, plan(), Trainer(), echo=lambda line: None)
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=name):
            fill_table(folder, plan(), Trainer())


def test_nothing_to_thin(tmp_path):
    _remove_weights(
        tmp_path / "never made", _BASES["builtin"]
    )  # a row may leave no folder at all


def test_table_for_a_terminal(straight):
    head, *lines = format_table(read_table(straight))
    assert len(lines) == 3 and len(set(map(len, lines))) == 1
    assert lines[1].split() == [
        "A",
        "h=1",
        "1600",
        "128,000",
        f"{math.exp(1.01):.3f}",
        "±",
        "0.000",
        "31.00",
        "±",
        "0.50",
        "2",
    ]
    assert head.split() == ["steps", "parameters", "perplexity", "BLEU", "seeds"]
    table = read_table(straight)
    for row in table["rows"]:
        del row["found"][1:]
    assert all("±" in line for line in lines) and not any(
        "±" in line for line in format_table(table)
    )  # one training has no spread


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


def test_spread_by_hand_and_by_statistics():
    assert pooled_std(table_of({"base": [1, 3], "a": [5]}), "bleu") == pytest.approx(
        math.sqrt(2)
    )  # deviations 1 and 1, one degree of freedom
    rows = {"base": [1.0, 2.5, 4.0], "a": [7.0, 7.5], "b": [3.0]}
    pooled = (
        2 * statistics.variance(rows["base"]) + statistics.variance(rows["a"])
    ) / 3
    assert pooled_std(table_of(rows), "bleu") == pytest.approx(math.sqrt(pooled))
    with pytest.raises(ValueError, match="--seeds 2"):
        pooled_std(table_of({"base": [1], "a": [2]}), "bleu")


@pytest.mark.parametrize(
    "ours, noise, paper, word",
    [
        (-1.0, 0.5, -0.1, "agrees"),
        (1.0, 0.5, 0.1, "agrees"),
        (1.0, 0.5, -0.1, "disagrees"),
        (-1.0, 0.5, 0.1, "disagrees"),
        (0.5, 0.5, 0.1, "cannot tell"),
        (-0.4, 0.5, -3.0, "cannot tell"),
        (1.0, 0.0, 0.0, "disagrees"),
        (0.0, 0.0, 0.0, "cannot tell"),
        (1.0, 0.5, None, "higher"),
        (-1.0, 0.5, None, "lower"),
        (0.1, 0.5, None, "cannot tell"),
    ],
)
def test_verdict(ours, noise, paper, word):
    assert _verdict(ours, noise, paper) == word


def test_effects_by_hand():
    "Base 30 and 32, spread 1: with two seeds luck reaches 2, with one 2 · √1.5."
    table = table_of(
        {"base": [30, 32], "two": [28, 29], "one": [28.6], "ours": [40]}, {"ours": None}
    )
    two, one, ours = effects(
        table,
        "bleu",
        {"base": {"bleu": 25}, "two": {"bleu": 24}, "one": {"bleu": 26}},
        std=1.0,
    )
    assert two == ("two", -2.5, 2.0, -1, "agrees")
    assert (
        one.ours == pytest.approx(-2.4)
        and one.noise == pytest.approx(2 * math.sqrt(1.5))
        and one.verdict == "cannot tell"
        and one.paper == 1
    )
    assert ours[3:] == (None, "higher")
    assert [
        e.verdict
        for e in effects(
            table,
            "bleu",
            {"base": {"bleu": 25}, "two": {"bleu": 24}, "one": {"bleu": 26}},
            std=0.5,
        )
    ] == ["agrees", "disagrees", "higher"]
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
    table["rows"][1]["found"][1]["curve"] = falling_to(5.0)
    paper = {"base": {"bleu": 25}, "a": {"bleu": 24}}
    assert effects(table, "bleu", paper, std=0.1)[0].verdict == "not converged"
    table["rows"][1]["found"][1]["curve"] = falling_to(4.5)
    assert effects(table, "bleu", paper, std=0.1)[0].verdict == "agrees"
    for rows in ([0], [1], [0, 1]):
        bare = json.loads(json.dumps(table))
        for i in rows:
            for one in bare["rows"][i]["found"]:
                one["curve"] = []
        assert effects(bare, "bleu", paper, std=0.1)[0].verdict == "agrees"


@pytest.mark.parametrize("data, slow", [("builtin", 4), ("multi30k", 0)])
def test_verdicts_of_the_recorded_tables(data, slow):
    "The four rows that had learned least get none, whatever the measure."
    record = json.loads((ROOT / f"results/variations_{data}.json").read_text("utf-8"))
    table = record["table"]
    names = {row["row"]: {"bleu": 0.0, "valid_loss": 0.0} for row in table["rows"]}
    paper = names | {row["paper"]: names["base"] for row in table["rows"]}
    for measure in ("bleu", "valid_loss"):
        found = effects(table, measure, paper, pooled_std(table, measure))
        none = {e.row for e in found if e.verdict == "not converged"}
        worst = sorted(
            table["rows"], key=lambda row: -min(x["valid_loss"] for x in row["found"])
        )
        assert none == {row["row"] for row in worst[:slow]}


def test_luck_alone_is_seldom_an_effect():
    "Tables without any effect: about 5 of 100 rows are taken for one. The base is shared, so tables scatter: 400 of them make the mean sure to ±1 %."
    rng, n_told, n_rows = random.Random(0), 0, 0
    for _ in range(400):
        table = table_of(
            {
                name: [rng.gauss(30, 0.4) for _ in range(2)]
                for name in ["base", *map(str, range(20))]
            }
        )
        found = effects(
            table,
            "bleu",
            {name: {"bleu": 25.0} for name in ["base", *map(str, range(20))]},
            pooled_std(table, "bleu"),
        )
        n_told += sum(e.verdict != "cannot tell" for e in found)
        n_rows += len(found)
    assert 0.03 < n_told / n_rows < 0.08
