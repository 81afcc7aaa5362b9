"Sweeps over every setting: text in and out, the refusals, the file."

import dataclasses
import inspect
import math
import runpy
import sys

import pytest

from annotated_transformer import UserError
from annotated_transformer.io.fields import Rule
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.runs.settings import (
    RECIPES,
    TrainConfig,
    get_recipe,
    override,
)

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
    rule, base = Rule.of(field.type), get_recipe("base")
    base = base.model if part is ModelConfig else base.train
    assert rule.optional == (field.default is None)
    for wrong in WRONG[rule.kind] + ([] if rule.optional else [None]):
        with pytest.raises(UserError, match=field.name):
            dataclasses.replace(base, **{field.name: wrong})


def test_recipes_rely_on_no_default(monkeypatch):
    "With other default sizes, each is the same."
    module, init = (
        sys.modules[TrainConfig.__module__],
        inspect.unwrap(ModelConfig.__init__),
    )
    monkeypatch.setattr(init, "__defaults__", (2, 4, 2, 2, *init.__defaults__[4:]))
    assert ModelConfig().n_layers == 2
    again = runpy.run_path(module.__file__, {}, module.__name__)["RECIPES"]
    for name, recipe in RECIPES.items():
        assert dataclasses.asdict(again[name]) == dataclasses.asdict(recipe)


COUNTS = {field.name for _, field in FIELDS if Rule.of(field.type).kind is int}
SHARES = """bpe_dropout dropout attention_dropout label_smoothing adam_beta1
            adam_beta2""".split()
RANGES = {  # values that are just inside, and just outside
    **{name: ([], [0]) for name in sorted(COUNTS - {"seed", "average_last"})},
    **{name: ([0, 0.999], [1, -0.1]) for name in SHARES},
    "seed": ([0, 2**63 - 1], [2**63]),
    "average_last": ([0, 5], [6]),  # no more than `keep_last`
    "vocab_size": ([300, 2**20], [299, 2**20 + 1]),
    "n_layers": ([], [0, 1001]),
    "grad_accum_steps": ([10_000], [0, 10_001]),
    "r_drop": ([0, 999], [-1, 1000]),
    "peak_lr": ([1e-9], [0]),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges(name):
    inside, outside = RANGES[name]
    for value in inside:
        recipe = override(get_recipe("small"), [f"{name}={value}"])
        assert getattr(recipe.train, name) == value
    for value in outside:
        with pytest.raises(UserError, match=f"{name}={value}"):
            override(get_recipe("small"), [f"{name}={value}"])


def test_a_rate_of_the_papers_schedule_is_refused_until_another_is_chosen():
    with pytest.raises(UserError, match="choose another schedule"):
        override(get_recipe("base"), ["peak_lr=0.1"])
    recipe = override(get_recipe("base"), ["peak_lr=0.1", "schedule=linear"])
    assert recipe.train.peak_lr == 0.1
