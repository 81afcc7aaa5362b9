"Sweeps over every setting: text in and out, the refusals, the file."

import dataclasses
import math
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer import UserError
from annotated_transformer.model.config import (
    RECIPES,
    ModelConfig,
    TrainConfig,
    get_recipe,
    override,
    recipe_from_dict,
)
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import build_training, check_memory

same_each_time = settings(
    derandomize=True, deadline=None
)  # no deadline: the machine may be busy
FIELDS = [
    (part, field)
    for part in (ModelConfig, TrainConfig)
    for field in dataclasses.fields(part)
]
NAMES = [field.name for _, field in FIELDS]
each_field = pytest.mark.parametrize("part, field", FIELDS, ids=NAMES)
WORDS = {
    "position": "learned",
    "norm": "pre",
    "schedule": "linear",
    "precision": "fp32",
}
SHARES = {
    "bpe_dropout",
    "dropout",
    "attention_dropout",
    "label_smoothing",
    "adam_beta1",
    "adam_beta2",
}


def another(field) -> object:
    "A value that is allowed and is not the default."
    if field.type is bool:
        return not field.default
    if field.type is str:
        return WORDS[field.name]
    if field.type is float:
        return 0.25
    if field.name == "average_last":
        return field.default - 1  # not above keep_last
    if field.type == float | None:
        return 0.5
    return 64 if field.default is None else field.default * 2


@each_field
def test_every_setting_is_reached_by_its_name(part, field):
    value = another(field)
    changed = override(get_recipe("base"), [f"{field.name}={str(value).lower()}"])
    home = changed.model if part is ModelConfig else changed.train
    assert getattr(home, field.name) == value and type(
        getattr(home, field.name)
    ) is type(value)
    assert dataclasses.asdict(home) == dataclasses.asdict(part()) | {field.name: value}


@each_field
def test_wrong_text_is_refused_with_the_name(part, field):
    for wrong in ("", "nan", "inf", "-inf", "-1", "1e400", "maybe", "0x10", "1,5"):
        with pytest.raises(ValueError, match=field.name):
            override(get_recipe("base"), [f"{field.name}={wrong}"])


WRONG = {
    int: [None, [], "6", 6.5, True, math.nan],
    float: [None, [], "6", True, math.nan, math.inf, 10**400],
    str: [None, [], 6, True],
    bool: [None, [], "true", 1],
    int | None: [[], "6", 6.5, True, math.nan],
    float | None: [[], "6", True, math.nan, math.inf, -(10**400)],
}


@each_field
def test_wrong_types_are_refused_with_the_name(part, field):
    for wrong in WRONG[field.type]:
        with pytest.raises(ValueError, match=field.name):
            part(**{field.name: wrong})


COUNTS = [f.name for _, f in FIELDS if f.type in (int, int | None)]


@pytest.mark.parametrize("name", sorted({*COUNTS} - {"seed", "average_last"}))
def test_counts_start_at_one(name):
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        override(get_recipe("base"), [f"{name}=0"])


@pytest.mark.parametrize("name", sorted(SHARES))
def test_shares_lie_from_zero_to_below_one(name):
    assert getattr(override(get_recipe("base"), [f"{name}=0"]).train, name) == 0
    for wrong in ("1", "1.5", "-0.1"):
        with pytest.raises(ValueError, match=name):
            override(get_recipe("base"), [f"{name}={wrong}"])


def test_no_more_is_averaged_than_kept():
    TrainConfig(keep_last=5, average_last=5)
    with pytest.raises(
        UserError, match="average_last=6 must be at least 0 and below 6"
    ):
        TrainConfig(keep_last=5, average_last=6)


def test_seed():
    for seed in (0, 2**63 - 1):
        assert override(get_recipe("base"), [f"seed={seed}"]).train.seed == seed
    with pytest.raises(ValueError, match="seed"):
        TrainConfig(seed=2**63)


@pytest.mark.parametrize(
    "wrong, message",
    [
        (["dropuot=0.1"], "did you mean dropout"),
        (["=3"], "no setting is called ''"),
        (["Dropout=0.1"], "did you mean dropout"),
        ([""], "not of the form key=value"),
        (["d_k=8", "n_heads=7"], "multiple of 7"),
    ],
)
def test_wrong_settings(wrong, message):
    with pytest.raises(ValueError, match=message):
        override(get_recipe("base"), wrong)


@same_each_time
@given(st.sampled_from(NAMES), st.text(max_size=12))
def test_no_value_does_anything_but_work_or_be_refused(name, text):
    try:
        changed = override(get_recipe("base"), [f"{name}={text}"])
    except ValueError as e:
        assert name in str(e) or "n_heads" in str(e)
    else:
        assert recipe_from_dict(dataclasses.asdict(changed)) == changed


SIZES = [recipe.model for recipe in RECIPES.values()] + [
    ModelConfig(d_model=64, **more)
    for more in (
        dict(norm="pre"),
        dict(position="learned", n_positions=77),
        dict(d_k=3, d_v=5),
        dict(d_k=9, n_layers=1, n_heads=1),
    )
]


@pytest.mark.parametrize("sizes", SIZES)
def test_the_parameters_are_those_of_the_built_model(sizes):
    with torch.device("meta"):
        model = build_transformer(sizes, 301, 0)
    assert sizes.n_parameters(301) == sum(p.numel() for p in model.parameters())


def test_what_does_not_fit_is_said_before_anything_is_built(monkeypatch):
    "Weights when a model is built; with gradients and Adam's state when it is trained."
    huge = ModelConfig(n_layers=1000, d_ff=100_000_000)
    with pytest.raises(UserError, match="^n_layers=1000 d_model=512 d_ff=100000000 ma"):
        build_transformer(huge, 1000, 0)
    base, cpu = get_recipe("base"), torch.device("cpu")
    n = base.model.n_parameters(1000)
    memory = lambda each: lambda name: each * n if name == "SC_PHYS_PAGES" else 1
    monkeypatch.setattr("os.sysconf", memory(15), raising=False)
    base.model.check_memory(1000)
    for sharded in (False, True):  # in one process, which has all of the model
        with pytest.raises(UserError, match=f"{n:,} parameters: their weights, gradie"):
            build_training(base, range_vocab(1000), cpu, sharded=sharded)
    check_memory(base.model, 1000, cpu, n_devices=2)
    with pytest.raises(UserError, match="n_layers=1000 .* makes"):
        check_memory(huge, 1000, cpu, n_devices=2)
    monkeypatch.setattr("os.sysconf", memory(3), raising=False)
    with pytest.raises(UserError, match=f"{n:,} parameters: their weights need"):
        build_transformer(base.model, 1000, 0)
    monkeypatch.delattr("os.sysconf", raising=False)  # Windows
    base.model.check_memory(1000)
    with pytest.raises(UserError, match="there are 1,100 GB"):
        huge.check_memory(1000)


def range_vocab(n: int):
    "As much of a vocabulary as a model needs."
    return mock.MagicMock(__len__=lambda _: n, pad_id=0)
