"Packed and rounded weights: against the plain model, at every size of input."
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.config import ModelConfig
from annotated_transformer.inference import Int8Linear, PackedLinear, can_pack, ready_to_translate
from annotated_transformer.marian import MarianEmbedding
from annotated_transformer.transformer import build_transformer

packs = pytest.mark.skipif(not can_pack(), reason="this PyTorch has no oneDNN")


@packs
@settings(max_examples=40)
@given(n_in=st.integers(1, 70), n_out=st.integers(1, 70), n=st.integers(0, 70), bias=st.booleans(), seed=st.integers(0, 99))
def test_packed_is_plain(n_in, n_out, n, bias, seed):
    torch.manual_seed(seed)
    linear, x = nn.Linear(n_in, n_out, bias=bias).requires_grad_(False), torch.randn(2, n, n_in)
    packed = PackedLinear(linear.weight, linear.bias)
    for some in (x, x.transpose(0, 1), x[0], x[:, :n // 2]):
        torch.testing.assert_close(packed(some), linear(some), rtol=1e-5, atol=1e-5)


@packs
def test_a_model_cast_afterwards_is_followed():
    linear, x = nn.Linear(5, 7).requires_grad_(False), torch.randn(3, 5)
    packed = PackedLinear(linear.weight, linear.bias)
    torch.testing.assert_close(packed.double()(x.double()), linear.double()(x.double()))


@settings(max_examples=30)
@given(n_in=st.integers(8, 300), n=st.integers(1, 20), bias=st.booleans(), seed=st.integers(0, 99), size=st.sampled_from([1e-3, 1.0, 1e3]))
def test_eight_bits(n_in, n, bias, seed, size):
    "Half a step of rounding on both sides: of 127 steps for weights, of 127 (seven bits) for inputs; in norm far less than their sum."
    torch.manual_seed(seed)
    linear, x = nn.Linear(n_in, 50, bias=bias).requires_grad_(False), size * torch.randn(n, n_in)
    found, right = Int8Linear(linear.weight, linear.bias)(x), linear(x)
    assert found.dtype == torch.float32 and (found - right).norm() <= 0.05 * right.norm()


def test_a_row_of_zeros_stays_zero():
    weight = torch.randn(4, 8)
    weight[1] = 0
    assert (Int8Linear(weight, None)(torch.randn(3, 8))[:, 1] == 0).all()


def words_of(model, src, tgt_in):
    with torch.no_grad():
        state, said = model.start(src), []
        for i in range(tgt_in.size(1)):
            log_probs, state = model.step(tgt_in[:, i:i + 1], state)
            said.append(log_probs)
    return torch.cat(said, dim=1)


@pytest.mark.parametrize("sizes", [dict(norm="post"), dict(norm="pre"), dict(d_k=5, d_v=3), dict(position="learned", n_positions=20)], ids=str)
@pytest.mark.parametrize("precision, tolerance", [("fp32", 1e-4), ("bf16", 0.3), ("int8", 0.3)])
def test_the_model_says_the_same(sizes, precision, tolerance):
    def make():
        torch.manual_seed(0)
        return build_transformer(ModelConfig(n_layers=2, d_model=32, d_ff=64, n_heads=4, **sizes), 50, 0).eval()
    src, tgt_in = torch.randint(1, 50, (3, 7)), torch.randint(1, 50, (3, 5))
    src[1, 4:] = 0
    right, ready = words_of(make(), src, tgt_in), ready_to_translate(make(), precision)
    found = words_of(ready, src, tgt_in)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, right, rtol=0, atol=tolerance)
    with torch.no_grad(): at_once = ready.embedding.logits(ready(src, tgt_in)).float().log_softmax(dim=-1)
    torch.testing.assert_close(at_once, found, rtol=0, atol=tolerance)  # the attention's one product of three stays plain in int8
    assert not any(p.requires_grad for p in ready.parameters())


@packs
def test_an_embedding_with_a_bias():
    model = build_transformer(ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2), 30, 0)
    model.embedding = MarianEmbedding(30, 16, scaled=False)
    nn.init.normal_(model.embedding.bias)
    hidden, ids = torch.randn(2, 3, 16), torch.randint(30, (2, 3))
    with torch.no_grad(): right, looked_up = model.embedding.logits(hidden), model.embedding(ids)
    ready = ready_to_translate(model)
    torch.testing.assert_close(ready.embedding.logits(hidden), right, rtol=1e-5, atol=1e-5)
    assert torch.equal(ready.embedding(ids), looked_up)


def test_refused():
    model = build_transformer(ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2), 30, 0)
    with pytest.raises(ValueError, match="precision='int4' is none of fp32, bf16, int8"): ready_to_translate(model, "int4")
    with pytest.raises(ValueError, match="precision=int8 is for the CPU: take bf16 on meta"): ready_to_translate(model.to("meta"), "int8")
