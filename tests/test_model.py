"The whole model: equal to PyTorch's with the same weights, causal, blind to padding, the same word by word as all at once."

import dataclasses
import math
import typing

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import next_log_probs
from annotated_transformer.model.feed_forward import FeedForward
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.position import (
    LearnedPosition,
    SinusoidalPosition,
    positional_encoding,
)
from annotated_transformer.model.rotary import RotaryPosition
from annotated_transformer.model.stack import DecoderLayer, PostNorm, PreNorm
from annotated_transformer.model.transformer import (
    FEED_FORWARDS,
    NORMS,
    POSITIONS,
    RESIDUALS,
    Transformer,
    build_transformer,
)

PAD, N_VOCAB = 0, 23
SMALL = {"n_layers": 2, "d_model": 16, "d_ff": 24, "n_heads": 4}
SIZES = [
    {},
    {"norm": "pre"},
    {"position": "learned", "n_positions": 12},
    {"n_heads": 3, "d_k": 5, "d_v": 7, "norm": "pre"},
    {"d_model": 6, "n_heads": 2, "n_layers": 1, "d_ff": 1},
    {"position": "rotary", "norm_kind": "rms", "activation": "swiglu", "norm": "pre"},
    {"n_kv_heads": 2, "qk_norm": True, "bias": False, "tied": False},
]
sizes = pytest.mark.parametrize("changes", SIZES, ids=str)
sweep = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make(changes=(), **rest) -> Transformer:
    "A small model, whose biases are not 0 and whose scales are not 1."
    config = ModelConfig(**SMALL | dict(changes))
    model = build_transformer(config, N_VOCAB, PAD, **rest).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 1:
                p.add_(0.1 * torch.randn_like(p))
    return model


def words(*shape):
    return torch.randint(1, N_VOCAB, shape)


def batch(src_lens=(7, 4, 1), tgt_lens=(3, 6, 5)):
    "Padded ids, and where they are real."
    src, tgt = ([words(n) for n in lens] for lens in (src_lens, tgt_lens))
    src, tgt = (
        nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=PAD)
        for ids in (src, tgt)
    )
    return src, tgt, tgt != PAD


def logits(model, src, tgt_in):
    return model.embedding.logits(model(src, tgt_in))


def log_probs(model, src, tgt_in):
    "As of `step`, which excludes padding."
    return next_log_probs(model, model(src, tgt_in))


# Logits are of size 1 here. Both sides of a comparison round their sums in another order: some units in the seventh digit, layer upon layer.
def close(a, b, eps=1e-5):
    torch.testing.assert_close(a, b, rtol=0, atol=eps)


# PyTorch's model with the same weights


def load_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention):
    theirs.in_proj_weight.copy_(
        torch.cat([ours.w_q.weight, ours.w_k.weight, ours.w_v.weight])
    )
    theirs.out_proj.weight.copy_(ours.w_o.weight)
    theirs.in_proj_bias.zero_(), theirs.out_proj.bias.zero_()  # ours has none


@torch.no_grad()
def load_layer(theirs, ours):
    load_attention(theirs.self_attn, ours.self_attn)
    if isinstance(ours, DecoderLayer):
        load_attention(theirs.multihead_attn, ours.cross_attn)
    theirs.linear1.load_state_dict(ours.feed_forward.w_1.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.w_2.state_dict())
    for i, residual in enumerate(ours.residuals, start=1):
        getattr(theirs, f"norm{i}").load_state_dict(residual.norm.state_dict())


@torch.no_grad()
def test_query_key_and_value_are_three_inputs():
    ours = MultiHeadAttention(16, 4)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    load_attention(theirs, ours)
    q, k, v = torch.randn(3, 2, 5, 16)
    torch.testing.assert_close(ours(q, k, v), theirs(q, k, v)[0])


class Torchs(nn.Module):
    "Our weights in PyTorch's single stacks: `nn.Transformer` always has final norms."

    def __init__(self, ours: Transformer, config: ModelConfig):
        super().__init__()
        self.ours, pre, n = ours, config.norm == "pre", config.n_layers
        sizes = dict(
            d_model=config.d_model,
            nhead=config.n_heads,
            dim_feedforward=config.d_ff,
            dropout=0.0,
            batch_first=True,
            norm_first=pre,
        )
        final = lambda: nn.LayerNorm(config.d_model) if pre else None
        layer, other = (
            nn.TransformerEncoderLayer(**sizes),
            nn.TransformerDecoderLayer(**sizes),
        )
        self.encoder = nn.TransformerEncoder(
            layer, n, final(), enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(other, n, final())
        stacks = (self.encoder, ours.encoder), (self.decoder, ours.decoder)
        for theirs, mine in stacks:
            for a, b in zip(theirs.layers, mine.layers, strict=True):
                load_layer(a, b)
            if pre:
                theirs.norm.load_state_dict(mine.norm.state_dict())

    def embed(self, ids):
        weight = self.ours.embedding.weight
        d_model = weight.size(1)
        positions = positional_encoding(ids.size(1), d_model).to(weight)
        return weight[ids] * math.sqrt(d_model) + positions

    def forward(self, src, tgt_in):
        no_src, no_tgt = src == PAD, tgt_in == PAD  # there, True = masked
        future = torch.ones(tgt_in.size(1), tgt_in.size(1), dtype=torch.bool).triu(1)
        return self.decoder(
            self.embed(tgt_in),
            self.encoder(self.embed(src), src_key_padding_mask=no_src),
            tgt_mask=future,
            tgt_key_padding_mask=no_tgt,
            memory_key_padding_mask=no_src,
        )


EQUAL = [
    dict(norm=norm, n_heads=h, n_layers=n, d_model=d, d_ff=ff)
    for norm in ("post", "pre")
    for h, n, d, ff in ((4, 2, 16, 24), (8, 6, 64, 128), (2, 3, 10, 7))
]


@pytest.mark.parametrize("sizes", EQUAL, ids=lambda s: " ".join(map(str, s.values())))
def test_the_model_is_torchs(sizes):
    "In double precision, with gradients."
    ours = make(sizes)
    theirs = Torchs(ours, ModelConfig(**SMALL | sizes)).double().train()
    src, tgt_in, real = batch()
    found = []
    for model in (ours, theirs):
        out = ours.embedding.logits(model(src, tgt_in))[real]
        total = out.logsumexp(-1).sum()
        found.append([out, *torch.autograd.grad(total, [ours.embedding.weight])])
    for a, b in zip(*found):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_dropouts_stand_where_the_paper_has_them():
    "§5.4: on every sub-layer's output, and on the sum of embedding and position in both stacks; nowhere else."
    found = {
        name: m.p
        for name, m in make(dropout=0.3).named_modules()
        if isinstance(m, nn.Dropout)
    }
    expected = {
        f"{stack}.layers.{i}.residuals.{j}.dropout"
        for stack, n in (("encoder", 2), ("decoder", 3))
        for i in range(2)
        for j in range(n)
    }
    assert found.keys() == expected | {"dropout"} and set(found.values()) == {0.3}
    x, all_left_out = torch.randn(2, 3, 16), nn.Dropout(1.0)
    post, pre = PostNorm(16, all_left_out), PreNorm(16, all_left_out)
    close(post(x, torch.exp), post.norm(x))
    close(pre(x, torch.exp), x)


# Padding


@sweep
@given(
    s=st.integers(1, 6),
    t=st.integers(1, 6),
    more_s=st.integers(0, 5),
    more_t=st.integers(0, 5),
    norm=st.sampled_from(["post", "pre"]),
    seed=st.integers(0, 999),
)
def test_any_amount_of_padding_changes_nothing(s, t, more_s, more_t, norm, seed):
    "Nor do neighbours in the batch."
    torch.manual_seed(seed)
    model, src, tgt_in = make({"norm": norm}), words(1, s), words(1, t)
    padded_src = torch.cat([F.pad(src, (0, more_s)), words(2, s + more_s)])
    padded_tgt = torch.cat([F.pad(tgt_in, (0, more_t)), words(2, t + more_t)])
    with torch.no_grad():
        together = logits(model, padded_src, padded_tgt)
        close(together[:1, :t], logits(model, src, tgt_in))
        cache, first = KVCache(model), tgt_in[:, :1].repeat(3, 1)
        found, _ = cache.step(first, cache.start(padded_src))
        close(found[:1], cache.step(first[:1], cache.start(src))[0])


@sizes
def test_a_source_of_padding_alone_is_harmless(changes):
    model, (src, tgt_in, real) = make(changes).train(), batch()
    src[1] = PAD

    def grads(src, tgt_in, mask):
        model.zero_grad()
        out = logits(model, src, tgt_in)
        assert out.isfinite().all()
        out[mask].logsumexp(-1).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    assert all(g.isfinite().all() for g in grads(src, tgt_in, real))
    real[1] = False  # the empty one not asked about: it has no part in the gradient
    keep = [0, 2]
    for a, b in zip(
        grads(src, tgt_in, real), grads(src[keep], tgt_in[keep], real[keep])
    ):
        close(a, b, 2e-5 * max(1, b.abs().max().item()))
    state = KVCache(model.eval()).start(src)
    found, _ = KVCache(model).step(tgt_in[:, :1], state)
    assert found[..., PAD + 1 :].isfinite().all()


def test_a_step_leaves_the_state_alone():
    cache, last = KVCache(make()), words(3, 1)
    with torch.no_grad():
        first, grown = cache.step(words(3, 1), cache.start(batch()[0]))
        assert torch.equal(cache.step(last, grown)[0], cache.step(last, grown)[0])
    # padding is excluded, and the others are not normalised again
    assert first[..., PAD].eq(-torch.inf).all()
    assert first.exp().sum(-1).lt(1).all() and first.exp().sum(-1).gt(0.5).all()


# Precision


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_bf16_autocast(norm):
    model, (src, tgt_in, real) = make({"norm": norm}), batch()
    exact = log_probs(model, src, tgt_in)
    with torch.autocast("cpu", torch.bfloat16):
        rough = log_probs(model, src, tgt_in)
        first, _ = KVCache(model).step(tgt_in[:, :1], KVCache(model).start(src))
        loss = logits(model, src, tgt_in)[real].float().logsumexp(-1).sum()
    loss.backward()
    for p in model.parameters():
        assert p.grad.isfinite().all() and p.grad.dtype == torch.float32
    assert first.dtype == torch.float32
    # eight bits: 0.004 of numbers near 3, some dozen roundings
    close(rough[real].float(), exact[real], 0.1)
    close(first[:, 0], exact[:, 0], 0.1)


# Positions


def test_a_table_that_grew_while_translating_can_be_trained_with():
    position, x = SinusoidalPosition(16, n_start=2), torch.randn(1, 9, 16)
    with torch.inference_mode():
        position(torch.zeros(1, 9, 16))
    position(x.requires_grad_()).square().sum().backward()
    assert x.grad.norm() > 0
    # nor does it change what is saved
    SinusoidalPosition(16).load_state_dict(position.state_dict(), strict=True)


def test_sinusoids_of_any_length_in_any_type():
    "In bfloat16, the table is computed in double and rounded at the end."
    position = SinusoidalPosition(16, n_start=8)
    long = position(torch.zeros(1, 50, 16))[0]
    close(long, positional_encoding(50, 16), eps=1e-6)
    assert len(position.table) == 100 and list(position.parameters()) == []
    in_bfloat16 = SinusoidalPosition(16, n_start=8).bfloat16()
    added = in_bfloat16(torch.zeros(1, 300, 16, dtype=torch.bfloat16))[0]
    close(added.float(), positional_encoding(300, 16), eps=2**-8)
    with pytest.raises(ValueError, match="d_model=7 must be even"):
        positional_encoding(60, 7)


@pytest.mark.parametrize("n, start", [(9, 0), (1, 8)])
def test_positions_that_were_never_learned(n, start):
    learned, x = LearnedPosition(16, n_positions=8), torch.randn(1, 8, 16)
    close(learned(x[:, 5:], start=5), learned(x)[:, 5:])
    message = "position 8 was never learned: n_positions=8 ends at 7"
    with pytest.raises(ValueError, match=message):
        learned(torch.randn(1, n, 16), start=start)


def test_initial_weights():
    "Xavier, times the gain, for linear layers, with biases of 0; one matrix for source, target and logits."
    config = ModelConfig(n_layers=1, d_model=64, d_ff=256, n_heads=4)
    model = build_transformer(config, 50, PAD, init_gain=0.5)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            expected = 0.5**2 * 2 / sum(module.weight.shape)
            # of at least 4,096 draws from a uniform distribution
            assert math.isclose(module.weight.var(), expected, rel_tol=0.1)
            assert module.bias is None or not module.bias.any()
    shared = [name for name, p in model.named_parameters() if len(p) == 50]
    assert shared == ["embedding.weight"]


def test_the_id_of_padding_is_in_the_vocabulary():
    with pytest.raises(
        ValueError, match="pad_id=50 must be from 0 to n_vocab - 1 = 49"
    ):
        build_transformer(ModelConfig(**SMALL), 50, pad_id=50)


@pytest.mark.parametrize(
    "name, table",
    [
        ("norm", RESIDUALS),
        ("position", POSITIONS),
        ("norm_kind", NORMS),
        ("activation", FEED_FORWARDS),
    ],
)
def test_each_word_of_a_setting_has_a_part(name, table):
    words = next(f.type for f in dataclasses.fields(ModelConfig) if f.name == name)
    assert set(typing.get_args(words)) == set(table)


@pytest.mark.parametrize("norm", RESIDUALS)
def test_parts_are_passed_in(norm):
    "Nothing of what they replace is left, wherever it stands."
    parts = {"feed_forward": lambda d, d_ff: Wide(d, d_ff), "norm": nn.RMSNorm}
    parts["position"] = position = RotaryPosition()
    model = make({"norm": norm}, **parts)
    replaced = [*map(type, model.modules())]
    assert model.position is position and SinusoidalPosition not in replaced
    assert model.decoder.layers[0].self_attn.rotate is position.rotate
    plain = [*map(type, make({"norm": norm}).modules())]
    assert replaced.count(Wide) == plain.count(FeedForward) == 4
    assert replaced.count(nn.RMSNorm) == plain.count(nn.LayerNorm) >= 10
    assert not {FeedForward, nn.LayerNorm} & {*replaced}


class Wide(FeedForward):
    pass


def test_as_many_heads_of_keys_as_heads_is_the_papers_model():
    "One word for one model, so that exports and `--from` take it."
    assert ModelConfig(**SMALL, n_kv_heads=4) == ModelConfig(**SMALL)
