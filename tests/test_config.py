"Sweeps over every setting: text in and out, the refusals, the file."

import dataclasses
import math
from unittest import mock

import pytest
import torch

from annotated_transformer import UserError
from annotated_transformer.model.config import (
    ModelConfig,
    TrainConfig,
    get_recipe,
    override,
)
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import build_training, check_memory

FIELDS = [
    (part, field)
    for part in (ModelConfig, TrainConfig)
    for field in dataclasses.fields(part)
]
NAMES = [field.name for _, field in FIELDS]
each_field = pytest.mark.parametrize("part, field", FIELDS, ids=NAMES)
SHARES = {
    "bpe_dropout",
    "dropout",
    "attention_dropout",
    "label_smoothing",
    "adam_beta1",
    "adam_beta2",
}


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
