"A model for inference against the plain one. (`test_twins.py` compares the layers.)"

import os

import pytest
import torch
from torch import nn

from annotated_transformer import UserError
from annotated_transformer.data.batch import Batch
from annotated_transformer.engines import packed
from annotated_transformer.engines.choose import FAST
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.engines.packed import (
    can_int8,
    fast_decoder,
    prepare_for_inference,
)
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import BatchLoss, precision_context
from annotated_transformer.training.attention_dropout import AttentionDropout
from annotated_transformer.translating.load import load


def words_of(model, src, tgt_in):
    decoder, found = fast_decoder(model), []
    with torch.no_grad():
        state = decoder.start(src)
        for i in range(tgt_in.size(1)):
            log_probs, state = decoder.step(tgt_in[:, i : i + 1], state)
            found.append(log_probs[..., 1:])  # all but padding
    return torch.cat(found, dim=1)


SIZES = [
    dict(norm="post"),
    dict(norm="pre"),
    dict(d_k=5, d_v=3),
    dict(position="learned", n_positions=20),
    dict(position="rotary", norm_kind="rms", norm="pre", activation="swiglu"),
    dict(n_kv_heads=2, qk_norm=True, bias=False, tied=False, activation="gelu"),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    "precision, tolerance", [("fp32", 1e-5), ("bf16", 0.3), ("int8", 0.3)]
)
def test_the_model_says_the_same(sizes, precision, tolerance):
    src, tgt_in = torch.randint(1, 50, (3, 7)), torch.randint(1, 50, (3, 5))
    src[1, 4:] = 0
    right = words_of(small_model(**sizes).eval(), src, tgt_in)
    ready = prepare_for_inference(small_model(**sizes), precision)
    found = words_of(ready, src, tgt_in)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right, rtol=0, atol=tolerance)
    with torch.no_grad():
        at_once = ready.embedding.logits(ready(src, tgt_in)).float().log_softmax(dim=-1)
    # in int8 the inputs are rounded together, not token by token
    torch.testing.assert_close(at_once[..., 1:], found, rtol=0, atol=tolerance)
    assert not any(p.requires_grad for p in ready.parameters())
    has_linear = any(type(module) is nn.Linear for module in ready.modules())
    assert has_linear == (precision != "int8")
    is_bf16 = next(ready.parameters()).dtype == torch.bfloat16
    assert is_bf16 == (precision == "bf16")


def small_model(**sizes):
    torch.manual_seed(0)
    sizes = {"n_layers": 2, "d_model": 32, "d_ff": 64, "n_heads": 4, **sizes}
    return build_transformer(ModelConfig(**sizes), 50, 0)


def no_engine(monkeypatch):
    def fails(weight, bias):
        raise RuntimeError(
            "Didn't find engine for operation quantized::linear_prepack NoQEngine"
        )

    monkeypatch.setattr(torch.ops.quantized, "linear_prepack", fails)


def wrong_result(monkeypatch):
    right = packed._pack_int8
    monkeypatch.setattr(packed, "_pack_int8", lambda w, bias: right(2 * w, bias))


def test_one_product_in_8_bits_is_three():
    "The projections of self-attention in a decoding step, to the bit."
    attn = load("demo", precision="int8").model.decoder.layers[0].self_attn
    y = torch.randn(3, 2, attn.w_q.weight.size(1))
    three = [w(y) for w in (attn.w_q, attn.w_k, attn.w_v)]
    assert torch.equal(attn.joined(y), torch.cat(three, dim=-1))


def test_int8_weights_are_not_made_of_int8_weights():
    with pytest.raises(ValueError, match="in int8 already"):
        prepare_for_inference(load("demo", precision="int8").model, "int8")


@pytest.mark.parametrize("lack", [no_engine, wrong_result])
def test_int8_is_refused_where_pytorch_lacks_it(monkeypatch, lack):
    assert can_int8() is True
    lack(monkeypatch)
    assert can_int8() is False
    model = small_model().train()
    with pytest.raises(UserError) as e:
        prepare_for_inference(model, "int8")
    assert str(e.value).startswith("precision=int8 needs 8-bit matrix products")
    assert str(e.value).endswith(": use precision=fp32 or precision=bf16")
    # refused before anything was changed
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert not prepare_for_inference(small_model(), "bf16").training


def two_beams(decoder) -> torch.Tensor:
    "Log-probabilities of six steps: padded sources, three hypotheses, reordered."
    torch.manual_seed(1)
    src = torch.randint(1, 50, (4, 9))
    src[1, 5:] = 0
    found, last = [], torch.full((4, 1), 2)
    with torch.no_grad():
        state = decoder.start(src)
        for _ in range(6):
            log_probs, state = decoder.step(last, state)
            found.append(log_probs[..., 1:].flatten())  # all but padding
            parents = torch.randint(last.size(1), (4, 3))
            rows = torch.arange(4)[:, None]
            kept = [t[rows, parents] for t in state.per_hypothesis]
            state = state._replace(per_hypothesis=kept)
            last = torch.randint(1, 50, (4, 3))
    return torch.cat(found)


@pytest.mark.parametrize(
    "change", ["attend", "rotate", "activation", "dropout", "layer"]
)
def test_layer_with_parts_of_its_own_keeps_the_general_step(change):
    config = ModelConfig(n_layers=2, d_model=32, d_ff=64, n_heads=4)
    model = build_transformer(config, 50, 0, attention=FAST.attention)
    layer = model.decoder.layers[0]
    if change == "attend":
        layer.cross_attn.attend = AttentionDropout(0.1)
    elif change == "rotate":
        layer.cross_attn.rotate = lambda heads, positions: 2 * heads
    elif change == "activation":
        layer.feed_forward.activation = nn.SiLU()
    elif change == "dropout":
        layer.residuals[1].dropout = nn.Hardtanh()
    else:
        layer.__class__ = type("Own", (type(layer),), {})
    decoder = fast_decoder(prepare_for_inference(model))
    # any activation is called as it is
    is_short = all(type(step) is packed._ShortStep for step in decoder.layer_steps)
    assert is_short == (change == "activation")
    assert torch.equal(two_beams(decoder), two_beams(KVCache(decoder.model)))


def test_nothing_changes_for_the_rest_of_the_process(monkeypatch):
    "Neither a model that is ready to translate nor training in bf16."

    def settings():
        cuda = torch.backends.cuda
        attention = cuda.cudnn_sdp_enabled(), cuda.flash_sdp_enabled()
        precision = torch.get_float32_matmul_precision(), torch.get_default_dtype()
        return dict(os.environ), attention, precision, torch.is_grad_enabled()

    # as in a new process
    torch.backends.cuda.enable_cudnn_sdp(True)
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        monkeypatch.delenv(name, raising=False)
    before = settings()
    assert load("demo").translate(["the dog sleeps."])
    model, ids = small_model(), torch.randint(1, 50, (2, 5))
    batch = Batch(src=ids, tgt_in=ids, tgt_out=ids, n_tokens=10)
    autocast = precision_context("bf16", torch.device("cpu"))
    BatchLoss(model, 0.1, autocast)(batch).backward()
    assert settings() == before
