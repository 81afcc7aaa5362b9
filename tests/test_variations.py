"""Table 3: the program that trains its rows, and the verdict over the effect of a row."""

import json
import math
import os
import signal
import sys
from statistics import variance

import pytest
from conftest import program
from torch.optim.optimizer import register_optimizer_step_post_hook

from annotated_transformer import UserError
from annotated_transformer.data import corpus
from annotated_transformer.experiments.variations import (
    MARGIN,
    effects,
    equality_verdict,
    pooled_std,
)

TINY = """n_layers=1 d_model=32 d_ff=64 n_heads=2 vocab_size=500 max_steps=20 warmup_steps=2
batch_tokens=200 save_every=4"""


@pytest.fixture
def fill(monkeypatch, tmp_path):
    "Runs the program in an empty folder on a little text; returns its table."
    text = corpus.load_corpus("builtin", n_train=300, n_valid=10, n_test=1)
    monkeypatch.setattr(corpus, "load_corpus", lambda *args: text)
    monkeypatch.chdir(tmp_path)

    def call(out: str, *rows: str, more=()) -> dict:
        line = f"variations --data builtin --seeds 0 --out {out} --set {TINY}".split()
        monkeypatch.setattr(sys, "argv", [*line, *more, "--rows", *rows])
        program("results/variations.py", "__main__")
        return json.loads((tmp_path / out / "table.json").read_text("utf-8"))

    return call


def test_interrupted_and_continued(fill, capsys, tmp_path):
    "The table of a program that nobody interrupted; nothing is trained or measured twice."
    rows, steps = ["A h=1", "D dropout=0.2", "E"], []

    def count(*_):
        steps.append(None)
        if len(steps) == 27:  # in the second row
            os.kill(os.getpid(), signal.SIGINT)

    straight = fill("straight", *rows)
    handle = register_optimizer_step_post_hook(count)
    with pytest.raises(SystemExit, match="D-dropout=0.2-seed0 is interrupted"):
        fill("out", *rows)
    fill("out", "E")
    table = fill("out", *rows)
    handle.remove()
    assert len(steps) == 60 and capsys.readouterr().out.count("valid_loss") == 6
    for row in [*straight["rows"], *table["rows"]]:
        assert row["found"][0].pop("seconds") > 0
    assert table == straight
    assert [row["row"] for row in table["rows"]] == rows
    record = tmp_path / "record.json"
    model = {k: v for k, v in table["model"].items() if k != "qk_norm"}  # is later
    record.write_text(json.dumps({"table": {**table, "model": model}}), "utf-8")
    assert fill("new", "E", more=["--record", str(record)]) == table
    with pytest.raises(SystemExit, match="runs of another base or text"):
        fill("out", "A h=2", more=["dropout=0.3"])


def test_base_is_decoded_in_many_ways(fill):
    "What §6.1 chooses, and a look at the validation set in each eighth of the run."
    (base,) = fill("out", "base")["rows"]
    (run,) = base["found"]
    bleu = {tuple(one.values())[:3]: one["bleu"] for one in run["decoding"]}
    assert len(bleu) == 14 and bleu[1, 4, 0.6] == run["bleu"]
    assert [step for step, _ in run["curve"]][-2:] == [18, 20]


def table_of(*rows: tuple[str, list[float], dict]) -> dict:
    "A table of rows: name, BLEU of each seed, and what else is known of the row."
    entries = [
        {"row": name, "paper": name, "changes": (), **about}
        | {"found": [{"bleu": x} for x in scores]}
        for name, scores, about in rows
    ]
    return {"rows": entries}


def test_spread_by_statistics():
    rows = ("base", [1.0, 2.5, 4.0], {}), ("a", [7.0, 7.5], {}), ("b", [3.0], {})
    expected = math.sqrt((2 * variance(rows[0][1]) + variance(rows[1][1])) / 3)
    assert pooled_std(table_of(*rows), "bleu") == pytest.approx(expected)


def test_effects_by_hand():
    "Base 30, 31 and 32, std 1: with three seeds the interval reaches 2 · √⅔, with two further."
    three, two = 2 * (2 / 3) ** 0.5, 2 * (1 / 3 + 1 / 2) ** 0.5
    rows = ("base", [30, 31, 32], {}), ("a", [28, 29, 29.1], {}), ("b", [28, 28], {})
    table = table_of(*rows, ("ours", [40, 40, 40], {"paper": None}))
    paper = {"base": {"bleu": 25}, "a": {"bleu": 24}, "b": {"bleu": 24}}
    a, b, ours = effects(table, "bleu", paper, std=1.0)
    assert a == ("a", *map(pytest.approx, (-2.3, three, -1)), "confirmed")
    assert b == ("b", *map(pytest.approx, (-3, two, -1)), "undecided")  # two seeds
    assert ours[3:] == (None, "better here")
    assert effects(table, "bleu", paper, std=1.5)[0].verdict == "undecided"
    paper["a"] = {"bleu": 26}
    assert effects(table, "bleu", paper, std=1.0)[0].verdict == "contradicted"
    # no difference counts that is smaller than what base gained in its last quarter
    table["rows"] += table_of(("1,500 steps", [28, 28, 28], {}))["rows"]
    a, b, ours = effects(table, "bleu", paper, std=1.0)
    assert (a.noise, a.verdict, ours.verdict) == (3.0, "undecided", "better here")


def test_effects_of_rows_of_our_own():
    "Better is a higher BLEU and a lower loss; what the last quarter changes is base's, also of rows beside others."
    ours = {"paper": None}
    rows = ("base", [30] * 3, ours), ("a", [33] * 3, ours), ("b", [28] * 3, ours)
    table = table_of(*rows, ("1,500 steps", [29] * 3, {}))
    for row in table["rows"]:
        row["found"] = [one | {"valid_loss": one["bleu"]} for one in row["found"]]

    def words(*how: str) -> list[str]:
        return [e.verdict.split()[0] for e in effects(table, how[0], {}, 0.1, *how[1:])]

    assert words("bleu") == ["better", "worse"]
    assert words("valid_loss") == ["worse", "better"]
    assert words("bleu", "b") == ["better", "better"]
    table["rows"][-1]["found"] = [{"bleu": 27, "valid_loss": 27}] * 3
    assert words("bleu", "b") == ["undecided", "better"]  # 2 and 5 above b
    with pytest.raises(UserError, match="rows base and c"):
        effects(table, "bleu", {}, 0.1, "c")


@pytest.mark.parametrize(
    "scores, printed, verdict",
    [
        ([30.9, 31, 31.1], 24, "confirmed"),  # -0.08 to 0.08, though the paper's falls
        ([30.4, 30.5, 30.6], 25, "undecided"),  # below -0.4, and above
        ([30.2, 30.3, 30.4], 25, "contradicted"),  # up to -0.62
        ([31.6, 31.7, 31.8], 24, "contradicted"),
    ],
)
@pytest.mark.parametrize("row", ["E", "a"])
def test_claims_of_equality(row, scores, printed, verdict):
    "Row E claims it, and so does each row for which the paper prints base's number."
    std = 0.3 if verdict == "undecided" else 0.05
    table = table_of(("base", [31, 31, 31], {}), (row, scores, {}))
    paper = {"base": {"bleu": 25}, row: {"bleu": printed if row == "E" else 25}}
    [effect] = effects(table, "bleu", paper, std)
    assert effect.verdict == verdict
    table["rows"][1]["found"].pop()  # two seeds
    assert effects(table, "bleu", paper, std)[0].verdict == "undecided"


@pytest.mark.parametrize("margin", [*MARGIN.values(), *(-x for x in MARGIN.values())])
def test_the_ends_of_the_interval_decide_equality(margin):
    "Ends in units of the margin; a negative one turns them round."

    def between(low: float, high: float) -> str:
        middle, half = margin * (low + high) / 2, abs(margin) * (high - low) / 2
        return equality_verdict(middle, half, abs(margin))

    assert between(-0.9, 0.9) == between(0.5, 0.9) == "confirmed"
    assert between(0.5, 1.1) == between(-1.1, 0.9) == between(-2, 2) == "undecided"
    assert between(1.1, 9) == "contradicted"
