"The program that decides which engines stay, on a tiny model."

import json

import pytest
import torch
from conftest import program

BENCH = program("benchmarks/engines.py")
QUICK = BENCH.sizes(True)["quick"]


def test_every_engine_is_measured_and_judged(tmp_path):
    BENCH.main(["--quick", "--out", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    rows = found["rows"]
    trained = [r["engine"] for r in rows if r["setting"].startswith("step of")]
    assert trained == [*BENCH.TRAINED]
    assert {r["setting"] for r in rows} == {"step of 1000", "beam 4, 4 lines", "beam 4, 1 lines"}  # fmt: skip
    for row in rows:
        assert row["saves"] == (min(row["time"], row["memory"]) <= BENCH.MOST), row
    assert found["stays"] == {
        name: any(row["saves"] for row in rows if row["engine"] == name)
        for name in found["stays"]
    }


@pytest.mark.parametrize(
    "time, floats, held, found",
    [
        ((1.0, 0.8), (2000, 2000), 0, {"time": 0.8, "memory": 1.0, "saves": True}),
        ((1.0, 1.5), (2048, 1024), 0, {"time": 1.5, "memory": 0.5, "saves": True}),
        ((1.0, 0.9), (2048, 1024), 2**20, {"time": 0.9, "memory": 0.996, "saves": False}),
    ],
)  # fmt: skip
def test_ratios_are_of_the_engine_by_its_lesson(time, floats, held, found, monkeypatch):
    "Of time, and of what is held with the peak of a call."
    makers = [lambda n=n, t=t: torch.zeros(n) is None or t for n, t in zip(floats, time)]  # fmt: skip
    monkeypatch.setitem(BENCH.rounds.__globals__, "seconds", lambda action: action())
    kinds = ("lesson", "engine")
    row = BENCH.Row("x", "y", dict(zip(kinds, makers)), dict.fromkeys(kinds, held))
    assert BENCH.measure(row, 3) == found


def test_both_sides_of_a_row_translate_alike():
    "But for 8 bits."
    ids = {
        (row.engine, kind): [best.ids for best, *_ in call()]
        for row in BENCH.translating_rows(QUICK, 3)
        for kind, call in row.calls.items()
        if (row.engine, kind) != ("int8", "engine")
    }
    first = ids["step in few calls", "engine"]
    assert all(found == first for found in ids.values())
    assert {len(row) for row in first} == {BENCH.LENGTH}
