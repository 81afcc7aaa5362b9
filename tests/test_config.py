"Sweeps over every setting: text in and out, the refusals, the file."

import dataclasses
import math

import pytest
import torch

from annotated_transformer import UserError
from annotated_transformer.model.config import ModelConfig, Rule
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import _n_weights, check_memory
from annotated_transformer.runs.settings import TrainConfig, get_recipe, override

FIELDS = [
    (part, field)
    for part in (ModelConfig, TrainConfig)
    for field in dataclasses.fields(part)
]
NAMES = [field.name for _, field in FIELDS]
each_field = pytest.mark.parametrize("part, field", FIELDS, ids=NAMES)
WRONG_TEXT = ("", "nan", "inf", "-inf", "-1", "1e400", "maybe", "0x10", "1,5")
WRONG = {
    int: [[], "6", 6.5, True, math.nan],
    float: [[], "6", True, math.nan, math.inf, 10**400, -(10**400)],
    str: [[], 6, True],
    bool: [[], "true", 1],
}


@each_field
def test_wrong_values_are_refused_with_the_name(part, field):
    for wrong in WRONG_TEXT:
        with pytest.raises(UserError, match=field.name):
            override(get_recipe("base"), [f"{field.name}={wrong}"])
    rule = Rule.of(field.type)
    assert rule.optional == (field.default is None)
    for wrong in WRONG[rule.kind] + ([] if rule.optional else [None]):
        with pytest.raises(UserError, match=field.name):
            part(**{field.name: wrong})


COUNTS = {field.name for _, field in FIELDS if Rule.of(field.type).kind is int}
SHARES = """bpe_dropout dropout attention_dropout label_smoothing adam_beta1
            adam_beta2""".split()
RANGES = {  # values that are just inside, and just outside
    **{name: ([], [0]) for name in sorted(COUNTS - {"seed", "average_last"})},
    **{name: ([0, 0.999], [1, -0.1]) for name in SHARES},
    "seed": ([0, 2**63 - 1], [2**63]),
    "average_last": ([0, 5], [6]),  # no more than `keep_last`
    "n_pieces": ([300], [299]),
    "peak_lr": ([1e-9], [0]),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges(name):
    inside, outside = RANGES[name]
    for value in inside:
        recipe = override(get_recipe("base"), [f"{name}={value}"])
        assert getattr(recipe.train, name) == value
    for value in outside:
        with pytest.raises(UserError, match=f"{name}={value}"):
            override(get_recipe("base"), [f"{name}={value}"])


SIZES = [
    [],
    ["d_k=16", "n_layers=3"],
    ["d_model=256", "d_k=32", "d_v=16"],
    ["norm=pre"],
    ["position=learned"],
]


@pytest.mark.parametrize("settings", SIZES, ids=str)
def test_numbers_are_counted_without_building_the_model(settings):
    sizes = override(get_recipe("base"), settings).model
    with torch.device("meta"):
        model = build_transformer(sizes, 1000, pad_id=0)
    matrices = [p.numel() for p in model.parameters() if p.dim() == 2]
    assert _n_weights(sizes, 1000) == sum(matrices)
    assert sum(matrices) > 0.99 * sum(p.numel() for p in model.parameters())


def test_what_does_not_fit_is_said_before_anything_is_built(monkeypatch):
    "Weights with gradients and Adam's state, on all devices that share them."
    sizes, cpu = get_recipe("base").model, torch.device("cpu")
    n = _n_weights(sizes, 1000)
    memory = lambda each: lambda name: each * n if name == "SC_PHYS_PAGES" else 1
    monkeypatch.setattr("os.sysconf", memory(16), raising=False)
    check_memory(sizes, 1000, cpu)
    monkeypatch.setattr("os.sysconf", memory(15), raising=False)
    with pytest.raises(UserError, match="^n_layers=6 .* needs 1 GB to be trained"):
        check_memory(sizes, 1000, cpu)
    check_memory(sizes, 1000, cpu, n_devices=2)
    monkeypatch.delattr("os.sysconf", raising=False)  # Windows
    check_memory(sizes, 1000, cpu)
    with pytest.raises(UserError, match="there are 1,100 GB: use smaller sizes"):
        check_memory(ModelConfig(n_layers=1000, d_ff=100_000_000), 1000, cpu)
