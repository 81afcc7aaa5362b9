"""Modules behave as PyTorch's do.

Each has its own parts, hooks are called, weights are followed, copies work, and the defaults of PyTorch may be others.
"""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch._dynamo  # PyTorch 2.8 cannot import it under a default device
from small_runs import small_vocab
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.utils import parametrizations, prune

from annotated_transformer import UserError
from annotated_transformer.data.batch import Batch
from annotated_transformer.engines.batched_search import (
    batched_greedy_search,
    sample_with,
    search_with,
)
from annotated_transformer.engines.choose import FAST, PLAIN
from annotated_transformer.engines.fused_attention import FusedMultiHeadAttention
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.engines.packed import fast_decoder, prepare_for_inference
from annotated_transformer.experiments.compared import _PARTS, _system
from annotated_transformer.experiments.gpt import build_gpt
from annotated_transformer.experiments.recall import recall_models
from annotated_transformer.export.marian import (
    MarianConfig,
    build_marian,
    marian_search,
)
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import PrefixDecoder
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.runs.settings import get_recipe, override
from annotated_transformer.translating.load import load

CONFIG = ModelConfig(n_layers=2, d_model=16, d_ff=24, n_heads=4)
MARIAN = MarianConfig(50, 16, 64, 2, 4, 24, 2, 4, 24, "gelu", True, 0, 0, 1)
LINES = ["the dog sleeps.", "the old man sees a cat."]
PRECISIONS = ("fp32", "bf16", "int8")


def ids(*shape: int) -> torch.Tensor:
    return torch.randint(1, 50, shape, generator=torch.Generator().manual_seed(1))


def a_run(engines, *settings: str):
    sizes = "n_layers=2 d_model=16 d_ff=24 n_heads=4 vocab_size=320".split()
    recipe = override(get_recipe("tiny"), [*sizes, *settings])
    return build_training(recipe, small_vocab(), torch.device("cpu"), engines=engines)


# Each module has parts of its own

MODELS = {
    "post-norm": lambda: build_transformer(CONFIG, 50, 0),
    "pre-norm": lambda: build_transformer(
        ModelConfig(2, 16, 24, 4, norm="pre"), 50, 0, 0.1
    ),
    "a run": lambda: a_run(FAST, "attention_dropout=0.1")[0],
    "a plain run": lambda: a_run(PLAIN, "attention_dropout=0.1")[0],
    "Marian": lambda: build_marian(MARIAN),
    "decoder only": lambda: build_gpt(CONFIG, 50, 0),
    **{name: partial(_system, name, 50, 0, 0.1, 16) for name in _PARTS},
    **recall_models(8),
}


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_no_module_has_two_places(build):
    "In a model or in two models, so that a hook has one name, and `apply` reaches each."
    first, second = build(), build()
    places = [module for _, module in first.named_modules(remove_duplicate=False)]
    assert len(places) == len({id(module) for module in places})
    assert not {id(module) for module in second.modules()} & {*map(id, places)}


# Hooks are called while a search decodes


def before(module, note):
    return module.register_forward_pre_hook(lambda *args: note())


def after(module, note):
    return module.register_forward_hook(lambda *args: note())


def of_all_modules(module, note):
    count = lambda one, *args: note() if one is module else None
    return register_module_forward_hook(count)


def in_place(module, note):
    "`forward` of the one module is replaced, as other libraries do it."
    forward = module.forward
    module.forward = lambda *args, **more: note() or forward(*args, **more)
    return SimpleNamespace(remove=lambda: delattr(module, "forward"))


HOOKED = [
    "encoder.layers.0.self_attn.w_k",
    "embedding",
    "decoder",
    "decoder.layers.1",
    "decoder.layers.0.self_attn",
    "decoder.layers.0.cross_attn.w_q",
    "decoder.layers.1.feed_forward.activation",
]


@pytest.fixture(scope="module", params=["fp32", "int8"])
def translator(request):
    return load("demo", search=batched_greedy_search, precision=request.param)


@pytest.mark.parametrize("register", [before, after, of_all_modules, in_place])
def test_hooks_are_called_while_a_search_decodes(translator, register):
    "Though registered after `load`; the translation stays."
    expected = translator.translate(LINES[0])
    for name in HOOKED:
        noted = []
        note = partial(noted.append, name)
        hook = register(translator.model.get_submodule(name), note)
        assert translator.translate(LINES[0]) == expected
        hook.remove()
        assert noted, name
        assert type(translator.decoder(translator.model)) is KVCache


def test_a_hook_changes_a_translation():
    translator = load("demo", search=batched_greedy_search)
    layer = translator.model.decoder.layers[0]
    expected = translator.translate(LINES)
    layer.register_forward_hook(lambda layer, args, x: 0 * x)
    found = translator.translate(LINES)
    assert found != expected
    translator.decoder = PrefixDecoder
    assert found == translator.translate(LINES)


# Weights are followed


class LowRank(nn.Module):
    "A linear layer with an update of rank 1, as in LoRA."

    def __init__(self, base: nn.Module, n_in: int, n_out: int):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(0.2 * torch.randn(1, n_in))
        self.b = nn.Parameter(0.2 * torch.randn(n_out, 1))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def with_bias(w: nn.Linear) -> nn.Linear:
    new = nn.Linear(w.in_features, w.out_features)
    nn.init.normal_(new.bias)
    return new


CHANGES = {
    "pruned": partial(prune.l1_unstructured, name="weight", amount=0.5),
    "weight norm, by a hook": nn.utils.weight_norm,
    "weight norm": parametrizations.weight_norm,
    "spectral norm, by a hook": nn.utils.spectral_norm,
    "spectral norm": parametrizations.spectral_norm,
    "low rank": lambda w: LowRank(w, w.in_features, w.out_features),
    "bias": with_bias,
}


def changed_model(change, attention) -> nn.Module:
    torch.manual_seed(0)
    model = build_transformer(CONFIG, 50, 0, attention=attention)
    for module in [m for m in model.modules() if isinstance(m, MultiHeadAttention)]:
        for name in ("w_q", "w_k", "w_v", "w_o"):
            setattr(module, name, change(getattr(module, name)))
    return model


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_weights_are_followed(change):
    "Three steps of training and a search give what the plain attention gives."
    found, src = [], ids(2, 6)
    for attention in (MultiHeadAttention, FusedMultiHeadAttention):
        model = changed_model(change, attention)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            logits = model.embedding.logits(model(src, src))
            nn.functional.cross_entropy(logits.flatten(0, 1), src.flatten()).backward()
            optimizer.step()
        assert all(p.grad is not None for p in model.parameters())
        model.eval().requires_grad_(False)
        found.append([model(src, src)])
        prepare_for_inference(model)
        for decoder in (PrefixDecoder(model), fast_decoder(model)):
            log_probs, _ = decoder.step(src[:, :1], decoder.start(src))
            found[-1].append(log_probs[..., 1:])
    plain, fused = found
    for a, b in zip(plain, fused):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fused[1], fused[2], rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_weights_in_8_bits(change):
    "What is changed is not lost, and what is not plain stays in 32 bits."
    model, src = changed_model(change, FusedMultiHeadAttention).eval(), ids(2, 6)
    with torch.no_grad():
        right = model.embedding.logits(model(src, src)).log_softmax(dim=-1)
        prepare_for_inference(model, "int8")
        for decoder in (PrefixDecoder(model), fast_decoder(model)):
            found, _ = decoder.step(src[:, :1], decoder.start(src))
            assert (found - right[:, :1])[..., 1:].abs().max() < 0.3


def test_weights_in_8_bits_are_fixed():
    model = prepare_for_inference(build_transformer(CONFIG, 50, 0), "int8")
    with pytest.raises(ValueError, match="weights in 8 bits are fixed"):
        model.load_state_dict(model.state_dict())


# Copies


def is_sent(x):
    return pickle.loads(pickle.dumps(x))


@pytest.mark.parametrize("search", [search_with(), sample_with(seed=3, n_best=2)])
@pytest.mark.parametrize("copied", [is_sent, copy.deepcopy])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_copies_of_a_translator(precision, copied, search):
    translator = load("demo", search=copied(search), precision=precision)
    other = copied(translator)
    assert other.translate(LINES[:1]) == translator.translate(LINES[:1])


@pytest.mark.parametrize("search", [None, sample_with()])
@pytest.mark.parametrize("beams", [1, 4])
def test_copies_of_the_search_of_marian(search, beams):
    config = replace(MARIAN, num_beams=beams, length_penalty=0.7)
    found, src = [], ids(2, 6)
    model = build_marian(config).eval()
    for one in (marian_search(config, search), is_sent(marian_search(config, search))):
        decoder = fast_decoder(model)
        with torch.no_grad():
            limits = torch.tensor([3, 4])
            found.append(one(decoder.step, decoder.start(src), 0, 1, limits))
    assert found[0] == found[1]


CAST = {
    "half": nn.Module.half,
    "double": nn.Module.double,
    "shared": nn.Module.share_memory,
}


@pytest.mark.parametrize("change", CAST.values(), ids=CAST)
def test_a_model_changed_after_load(change):
    translator = load("demo")
    expected = translator.translate(LINES)
    change(translator.model)
    assert translator.translate(LINES) == expected


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_loaded_after_load(precision):
    translator, other = (load("demo", precision=precision) for _ in range(2))
    expected = translator.translate(LINES[:1])
    with torch.no_grad():
        for weight in other.model.decoder.parameters():
            weight.zero_()
    assert other.translate(LINES[:1]) != expected
    other.model.load_state_dict(translator.model.state_dict(), strict=True)
    assert other.translate(LINES[:1]) == expected


FORK = """
import multiprocessing, sys, torch
torch.set_num_threads(2)
from annotated_transformer import load
translator = load("demo")
translator.translate(["the dog sleeps."] * 40)
pool = multiprocessing.get_context("fork").Pool(1)
print(pool.apply(translator.translate, ["the dog sleeps."]))
pool.terminate()
print(torch.get_num_threads())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_translates():
    "Where threads have computed before the fork; they are not in the child."
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"OMP_NUM_THREADS": "2"},
    )
    expected = load("demo").translate("the dog sleeps.")
    assert done.stdout.split("\n")[:2] == [expected, "2"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_ctranslate2_refuses_a_forked_process(monkeypatch):
    "Where it would wait for ever for threads that are not there."
    translator = load("demo", engine="ctranslate2")
    assert translator.translate("the dog sleeps.")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(UserError, match="CTranslate2 does not work in .* forked"):
        translator.translate("the dog sleeps.")


# The defaults of PyTorch


@pytest.fixture(params=[torch.float64, torch.float16, torch.bfloat16, "meta"], ids=str)
def default(request):
    "A default of the process: a dtype, or the device without numbers."
    is_dtype = isinstance(request.param, torch.dtype)
    change = torch.set_default_dtype if is_dtype else torch.set_default_device
    change(request.param)
    yield request.param
    change(torch.float32 if is_dtype else None)


@pytest.fixture(scope="module")
def expected():
    return [load("demo", precision=name).translate(LINES) for name in PRECISIONS]


@pytest.mark.filterwarnings("error")
def test_a_translator_has_the_dtype_of_its_precision(expected, default):
    for precision, right in zip(PRECISIONS, expected):
        translator = load("demo", precision=precision)
        dtypes = {p.dtype for p in translator.model.parameters()}
        assert dtypes == {torch.bfloat16 if precision == "bf16" else torch.float32}
        assert translator.translate(LINES) == right


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.filterwarnings("error")
def test_a_run_trains_in_float32(precision, default):
    objective, wrapped, optimizer, _ = a_run(FAST, f"precision={precision}")
    src = ids(2, 6) if default != "meta" else torch.full((2, 6), 5, device="cpu")
    loss = wrapped(Batch(src, src, src, 12))
    loss.backward()
    optimizer.step()
    assert loss.isfinite() and loss.dtype == torch.float32
    assert {p.dtype for p in objective.parameters()} == {torch.float32}


def test_a_module_has_the_defaults(default):
    model, src = build_transformer(CONFIG, 50, 0), torch.ones(2, 5, dtype=torch.long)
    for tensor in (model(src, src), *model.parameters()):
        assert default in (tensor.dtype, tensor.device.type)
