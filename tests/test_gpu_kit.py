"The programs for a new GPU, on a CPU with tiny models: whether it is right, and how fast."

import json
import subprocess
import sys

import pytest
from conftest import ROOT, program

PARTS = ["loop", "scaling", "sharding"]


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, dict]:
    "What each part found, by its name; each is complete."
    out = tmp_path_factory.mktemp("records")
    order = ["--device", "cpu", "--only", *PARTS, "--out", out]
    command = [sys.executable, ROOT / "benchmarks/gpu.py", *order]
    done = subprocess.run(command, capture_output=True, text=True)
    files = {path.stem: json.loads(path.read_text()) for path in out.iterdir()}
    ended = {name: record["ended"] for name, record in files.items()}
    assert ended == {f"gpu_{part}": "complete" for part in PARTS}, done.stderr[-3000:]
    assert done.returncode == 0
    return {part: files[f"gpu_{part}"]["found"] for part in PARTS}


def is_timed(case: dict) -> bool:
    "Do the two figures of speed agree, with between 100 and 800 tokens a step?"
    return 100 < case["step_ms"] / 1e3 * case["tokens_per_s"] < 800


def test_the_loop_is_timed_plain_and_compiled(found):
    cases = found["loop"]["1 device"]
    assert list(cases) == ["base", "compiled"]
    assert all(map(is_timed, cases.values()))


def test_scaling_compares_two_processes_with_one(found):
    scaling = found["scaling"]
    for n in ("1 device", "2 devices"):
        assert all(map(is_timed, scaling[n].values())), n
    one, two = (scaling[n]["weak scaling"] for n in ("1 device", "2 devices"))
    efficiency = round(two["tokens_per_s"] / one["tokens_per_s"] / 2, 3)
    assert scaling["efficiency"]["weak scaling, 2"] == efficiency
    # of a step: twice the tokens on two devices
    tokens = [case["step_ms"] * case["tokens_per_s"] for case in (one, two)]
    assert 1.6 < tokens[1] / tokens[0] < 2.4


def test_sharding_is_compared_with_whole_weights(found):
    cases = found["sharding"]["2 devices"]
    assert list(cases) == ["whole on each device", "sharded"]
    assert all(map(is_timed, cases.values()))


# ---- is it right?


def broken_loss(names: dict) -> dict:
    "A loss that is 1 % too large, in the engines alone."
    fast = names["FAST"]
    return {"FAST": fast._replace(loss=lambda *args: 1.01 * fast.loss(*args))}


def broken_padding(names: dict) -> dict:
    "A loss that is NaN for a batch without text."
    fast = names["FAST"]

    def loss(hidden, weight, target, pad_id, smoothing):
        value = fast.loss(hidden, weight, target, pad_id, smoothing)
        return value * (target != pad_id).any() / (target != pad_id).any()

    return {"FAST": fast._replace(loss=loss)}


def broken_training(names: dict) -> dict:
    "An optimiser that changes nothing."

    def build(*args, **settings):
        *others, schedule = names["build"](*args, **settings)
        return *others, lambda step: 0.0 * schedule(step)

    return {"build": build}


def broken_weights(names: dict) -> dict:
    "Weights that came onto the device damaged."

    def load(run, device=None, **more):
        translator = names["load"](run, device, **more)
        if device:
            for layer in translator.model.encoder.layers:
                for weight in layer.parameters():
                    weight.data.mul_(1.3)
        return translator

    return {"load": load}


BROKEN = {
    "engines equal lessons": broken_loss,
    "padding has no gradient": broken_padding,
    "training learns and does not wait": broken_training,
    "beam search is the same": broken_weights,
}


def test_smoke_passes_on_a_cpu(capsys):
    smoke = program("benchmarks/smoke.py")
    smoke.main(["--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    names = [line.partition(":")[0] for line in lines]
    assert names == ["a kernel runs", *BROKEN]


def test_a_device_that_cannot_be_used_ends_smoke_with_advice(capsys):
    with pytest.raises(SystemExit) as ended:
        program("benchmarks/smoke.py").main(["--device", "meta"])
    assert ended.value.code == 1
    first, advice = capsys.readouterr().out.splitlines()
    assert first.startswith("a kernel runs: FAILED: UserError: device 'meta'")
    assert advice.startswith("to do: install the build of PyTorch")


@pytest.mark.parametrize("name", BROKEN)
def test_smoke_ends_at_what_is_broken(name, capsys):
    smoke = program("benchmarks/smoke.py")
    checks = {check.__name__.replace("_", " "): check for check in smoke.CHECKS}
    names = smoke.main.__globals__
    # this check and, as none may follow, the one after it
    place = list(checks).index(name)
    changed = BROKEN[name](dict(names))
    names.update(changed, CHECKS=smoke.CHECKS[place : place + 2])
    with pytest.raises(SystemExit) as ended:
        smoke.main(["--device", "cpu"])
    assert ended.value.code == 1
    first, advice = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{name}: FAILED: AssertionError")
    assert advice == f"to do: {checks[name].__doc__}"
