"Is a GPU right? The program that answers ends at whatever is broken, tried on a CPU."

import pytest
from conftest import program

# ---- is it right?


def broken_loss(names: dict) -> dict:
    "A loss that is 1 % too large, in the engines alone."
    fast = names["FAST"]
    return {"FAST": fast._replace(loss=lambda *args: 1.01 * fast.loss(*args))}


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
    "beam search is the same": broken_weights,
}


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
