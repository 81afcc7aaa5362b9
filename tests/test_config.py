"Sweeps over every setting: text in and out, the refusals, the file."

import dataclasses
import math

import pytest
import torch

from annotated_transformer import UserError
from annotated_transformer.cli.main import main
from annotated_transformer.data.vocab import learn_bpe
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
    int: [[], "6", 6.5, True, math.nan],
    float: [[], "6", True, math.nan, math.inf, 10**400, -(10**400)],
    str: [[], 6, True],
    bool: [[], "true", 1],
}


@each_field
def test_wrong_types_are_refused_with_the_name(part, field):
    rule = Rule.of(field.type)
    assert rule.optional == (field.default is None)
    for wrong in WRONG[rule.kind] + ([] if rule.optional else [None]):
        with pytest.raises(ValueError, match=field.name):
            part(**{field.name: wrong})


COUNTS = [f.name for _, f in FIELDS if Rule.of(f.type).kind is int]


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
    with pytest.raises(UserError, match="average_last=6 must be at most keep_last=5"):
        TrainConfig(keep_last=5, average_last=6)


def test_seed():
    for seed in (0, 2**63 - 1):
        assert override(get_recipe("base"), [f"seed={seed}"]).train.seed == seed
    with pytest.raises(ValueError, match="seed"):
        TrainConfig(seed=2**63)


def test_too_few_pieces_are_refused_before_any_text_is_read(tmp_path, capsys):
    "In the vocabulary's words: its own check would come after these files are opened."
    missing, out = str(tmp_path / "missing"), tmp_path / "run"
    options = ["train", "--src", missing, "--tgt", missing, "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main([*options, "n_pieces=299"])
    said = capsys.readouterr().err
    with pytest.raises(UserError) as refusal:
        learn_bpe(["a b"], n_pieces=299)
    assert ended.value.code == 2 and said.endswith(f": {refusal.value}\n")
    assert said.count("\n") == 1 and not out.exists()
    assert TrainConfig(n_pieces=300).n_pieces == 300


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
