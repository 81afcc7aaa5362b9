"Exports and the live page use every weight and every setting of a model, or refuse it in one line."

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Literal, get_args, get_origin

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_runs import random_run
from torch import nn

from annotated_transformer import UserError
from annotated_transformer.export import ct2, hugging_face
from annotated_transformer.export.formats import EXPORTS, export_run
from annotated_transformer.io.fields import as_typed
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.runs.folder import load_run
from annotated_transformer.runs.settings import get_recipe, override
from annotated_transformer.show.live import pack_model


def to_transformers(run):
    hugging_face._check(run, hugging_face._marian_config(run.recipe, run.vocab))


TARGETS = {
    "an export to transformers": to_transformers,
    "an export to CTranslate2": ct2._engine_spec,
    "a live page": pack_model,
}


@pytest.fixture(params=TARGETS)
def target(request):
    if request.param == "an export to CTranslate2":
        pytest.importorskip("ctranslate2")
    return request.param, TARGETS[request.param]


def test_a_weight_that_nobody_reads(target, tmp_path):
    name, take = target
    run = load_run(random_run(tmp_path / "run"))
    take(run)
    layer = run.model.encoder.layers[0].feed_forward
    layer.w_3 = nn.Parameter(torch.zeros(2))
    place = "encoder.layers.0.feed_forward.w_3"
    with pytest.raises(
        UserError, match=f"^{name} has no place for the weights {place}"
    ):
        take(run)


def test_a_setting_that_nobody_knows(target, tmp_path):
    "Has its default, or is refused; so whoever adds one cannot forget an export."

    @dataclass(frozen=True)
    class NewConfig(ModelConfig):
        novelty: str = "none"

    name, take = target
    run = load_run(random_run(tmp_path / "run"))
    sizes = asdict(run.recipe.model)
    for novelty in ("none", "some"):
        config = NewConfig(**sizes, novelty=novelty)
        other = run._replace(recipe=replace(run.recipe, model=config))
        if novelty == "none":
            take(other)
            continue
        wrong = f"^novelty=some: {name} holds none alone"
        with pytest.raises(UserError, match=wrong):
            take(other)


# what a target has besides the paper's
HELD = {"an export to CTranslate2": ["position=learned", "norm=pre"]}


def parsed(setting: str) -> dict:
    "A setting of a model as it is typed."
    recipe = override(get_recipe("tiny"), [setting])
    return {setting.partition("=")[0]: getattr(recipe.model, setting.partition("=")[0])}


def choices():
    "Each value of a setting that chooses a part, but for the paper's."
    for field in fields(ModelConfig):
        words = get_args(field.type) if get_origin(field.type) is Literal else ()
        both = (True, False) if field.type is bool else ()
        for value in (*words, *both):
            if value != field.default:
                yield field.name, value
    yield "n_kv_heads", 1


@pytest.mark.parametrize("key, value", [*choices()])
def test_another_part_is_held_or_refused(target, key, value, tmp_path):
    name, take = target
    run = load_run(random_run(tmp_path / "run", **{key: value}))
    if f"{key}={value}" in HELD.get(name, []):
        take(run)  # with all weights: see below
        return
    wrong = f"^{key}={as_typed(value)}: {name} holds [a-z0-9 ]+ alone"
    with pytest.raises(UserError, match=wrong) as refused:
        take(run)
    words = re.search("holds (.+) alone", str(refused.value))[1].split(" or ")
    for word in words:  # each is taken when it is typed so
        take(load_run(random_run(tmp_path / word, **parsed(f"{key}={word}"))))


@pytest.mark.parametrize("to", EXPORTS)
def test_every_weight_is_in_every_export(to, tmp_path):
    "Each, if it is changed, changes the files of the folder."
    pytest.importorskip("ctranslate2")
    run = random_run(tmp_path / "run")
    weights = load_file(run / "model.safetensors")

    def exported(name: str) -> list[bytes]:
        out = tmp_path / name
        export_run(run, out, to)
        files = sorted(path for path in out.rglob("*") if path.is_file())
        return [path.read_bytes() for path in files if path.name != "README.md"]

    before = exported("before")
    for name, weight in weights.items():
        save_file(weights | {name: weight + 1}, run / "model.safetensors")
        assert exported(name) != before, name
    save_file(weights, run / "model.safetensors")
    assert exported("again") == before
