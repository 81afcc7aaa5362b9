"The whole model: equal to PyTorch's with the same weights, causal, blind to padding, the same word by word as all at once."

import copy
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.engines.fused_attention import FusedMultiHeadAttention
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.model.attention import attention
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import DecodingState, next_log_probs
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.position import LearnedPosition, positional_encoding
from annotated_transformer.model.stack import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    PostNorm,
    PreNorm,
)
from annotated_transformer.model.transformer import (
    Transformer,
    build_transformer,
    init_weights,
)
from annotated_transformer.training.attention_dropout import AttentionDropout

PAD, N_VOCAB = 0, 23
SMALL = {"n_layers": 2, "d_model": 16, "d_ff": 24, "n_heads": 4}
SIZES = [
    {},
    {"norm": "pre"},
    {"position": "learned", "n_positions": 12},
    {"n_heads": 1},
    {"n_heads": 16},
    {"n_layers": 1, "d_ff": 1},
    {"d_k": 3},
    {"d_v": 5},
    {"n_heads": 3, "d_k": 5, "d_v": 7, "norm": "pre"},
    {"d_model": 6, "n_heads": 2},
    {"n_layers": 5, "norm": "pre"},
]
sizes = pytest.mark.parametrize(
    "changes",
    SIZES,
    ids=lambda c: " ".join(f"{k}={v}" for k, v in c.items()) or "small",
)
sweep = settings(max_examples=25, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make(changes=(), **rest) -> Transformer:
    "A small model with every parameter away from its start: biases that are 0 and scales that are 1 would hide mistakes."
    model = build_transformer(
        ModelConfig(**SMALL | dict(changes)), N_VOCAB, PAD, **rest
    ).eval()
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


class Torchs(nn.Module):
    "Our weights in PyTorch's stacks. `nn.Transformer` itself has final norms under post-norm too, hence the single stacks."

    def __init__(self, ours: Transformer, config: ModelConfig):
        super().__init__()
        self.ours, pre = ours, config.norm == "pre"
        sizes = dict(
            d_model=config.d_model,
            nhead=config.n_heads,
            dim_feedforward=config.d_ff,
            dropout=0.0,
            batch_first=True,
            norm_first=pre,
        )
        final = lambda: nn.LayerNorm(config.d_model) if pre else None
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**sizes),
            config.n_layers,
            final(),
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(**sizes), config.n_layers, final()
        )
        for theirs, mine in (
            (self.encoder, ours.encoder),
            (self.decoder, ours.decoder),
        ):
            for a, b in zip(theirs.layers, mine.layers, strict=True):
                load_layer(a, b)
            if pre:
                theirs.norm.load_state_dict(mine.norm.state_dict())

    def embed(self, ids):
        weight = self.ours.embedding.weight
        return weight[ids] * math.sqrt(weight.size(1)) + positional_encoding(
            ids.size(1), weight.size(1)
        ).to(weight)

    def forward(self, src, tgt_in):
        no_src, no_tgt, t = (
            src == PAD,
            tgt_in == PAD,
            tgt_in.size(1),
        )  # there, True = may not look
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        memory = self.encoder(self.embed(src), src_key_padding_mask=no_src)
        return self.decoder(
            self.embed(tgt_in),
            memory,
            tgt_mask=future,
            tgt_key_padding_mask=no_tgt,
            memory_key_padding_mask=no_src,
        )


EQUAL = [
    dict(norm=norm, n_heads=h, n_layers=n, d_model=d, d_ff=ff)
    for norm in ("post", "pre")
    for h, n, d, ff in ((4, 2, 16, 24), (1, 1, 16, 64), (8, 6, 64, 128), (2, 3, 10, 7))
]


@pytest.mark.parametrize("sizes", EQUAL, ids=lambda s: " ".join(map(str, s.values())))
@pytest.mark.parametrize(
    "training", [True, False], ids=["train", "eval"]
)  # in evaluation PyTorch's encoder takes a path of its own
def test_the_model_is_torchs(sizes, training):
    ours = make(sizes).train(training)
    theirs, (src, tgt_in, real) = (
        Torchs(ours, ModelConfig(**SMALL | sizes)).train(training),
        batch(),
    )
    with torch.set_grad_enabled(training):
        a, b = logits(ours, src, tgt_in), ours.embedding.logits(theirs(src, tgt_in))
    assert 0.5 < a[real].std() < 2  # or the tolerance would mean nothing
    close(a[real], b[real])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_model_is_torchs_in_double_with_gradients(norm):
    config = ModelConfig(**SMALL | {"norm": norm})
    ours = make({"norm": norm})
    theirs, (src, tgt_in, real) = Torchs(ours, config).double().train(), batch()
    grads = []
    for model in (ours, theirs):
        out = ours.embedding.logits(model(src, tgt_in))[real]
        grads.append(
            [
                out,
                *torch.autograd.grad(out.logsumexp(-1).sum(), [ours.embedding.weight]),
            ]
        )
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# Variants are parts


@sizes
def test_readable_attention_gives_the_same(changes):
    readable, (src, tgt_in, _) = make(changes), batch()
    fast = make(changes, attention=FusedMultiHeadAttention)
    fast.load_state_dict(readable.state_dict())
    close(logits(readable, src, tgt_in), logits(fast, src, tgt_in))
    state_a, state_b = KVCache(fast).start(src), KVCache(readable).start(src)
    for i in range(3):
        a, state_a = KVCache(fast).step(tgt_in[:, i : i + 1], state_a)
        b, state_b = KVCache(readable).step(tgt_in[:, i : i + 1], state_b)
        close(a, b)


def test_readable_attention_can_be_passed_in():
    from annotated_transformer.model.embedding import Embedding
    from annotated_transformer.model.feed_forward import FeedForward
    from annotated_transformer.model.position import SinusoidalPosition

    model, (src, tgt_in, _) = make(), batch()
    attn, ff, residual = (
        lambda: MultiHeadAttention(16, 4, attend=attention),
        lambda: FeedForward(16, 24),
        lambda: PostNorm(16),
    )
    by_hand = Transformer(
        Encoder(
            [EncoderLayer(attn(), ff(), residual) for _ in range(2)], nn.Identity()
        ),
        Decoder(
            [DecoderLayer(attn(), attn(), ff(), residual) for _ in range(2)],
            nn.Identity(),
        ),
        Embedding(N_VOCAB, 16),
        SinusoidalPosition(16),
        dropout=nn.Dropout(0.0),
        pad_id=PAD,
    ).eval()
    by_hand.load_state_dict(model.state_dict())
    close(logits(by_hand, src, tgt_in), logits(model, src, tgt_in))


DROPOUTS = {
    "dropout": dict(dropout=0.3),
    "of attention weights": dict(
        attention=partial(MultiHeadAttention, attend=AttentionDropout(0.3))
    ),
}


@pytest.mark.parametrize("kind", DROPOUTS)
def test_dropout_only_while_training(kind):
    src, tgt_in, _ = batch()
    model, plain = make(**DROPOUTS[kind]), make()
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(src, tgt_in), plain(src, tgt_in))
    assert not torch.equal(model.train()(src, tgt_in), model(src, tgt_in))
    assert torch.equal(plain.train()(src, tgt_in), plain(src, tgt_in))
    assert any(isinstance(m, AttentionDropout) for m in model.modules()) == (
        kind == "of attention weights"
    )


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


# Causality


@sizes
def test_no_word_moves_what_stands_before_it(changes):
    model, src, tgt_in = make(changes), words(2, 5), words(2, 6)
    with torch.no_grad():
        base = logits(model, src, tgt_in)
        for i in range(6):
            changed = tgt_in.clone()
            changed[:, i] = tgt_in[:, i] % (N_VOCAB - 1) + 1
            moved = (logits(model, src, changed) != base).any(-1).any(0)
            assert moved.tolist() == [j >= i for j in range(6)]


def influence(model, src, tgt_in):
    "Which logits have a slope towards which embedded target word, and towards which memory position: (t, t) and (t, s)."
    captured = {}
    hook = model.decoder.register_forward_pre_hook(
        lambda m, args: (
            captured.update(
                y=args[0].detach().requires_grad_(),
                memory=args[1].detach().requires_grad_(),
            )
            or (captured["y"], captured["memory"], *args[2:])
        )
    )
    out = logits(model, src, tgt_in)
    hook.remove()
    reading = torch.randn(out.size(-1))
    slopes = [
        torch.autograd.grad(
            (row * reading).sum(),
            [captured["y"], captured["memory"]],
            retain_graph=True,
        )
        for row in out[0]
    ]
    return (torch.stack([s[k][0].abs().sum(-1) > 0 for s in slopes]) for k in (0, 1))


@sizes
def test_no_slope_towards_the_future_nor_towards_padding(changes):
    model, tgt_in = (
        make(changes).double(),
        torch.cat([words(1, 4), torch.zeros(1, 2, dtype=torch.long)], dim=1),
    )
    src = torch.cat([words(1, 3), torch.zeros(1, 2, dtype=torch.long)], dim=1)
    to_target, to_memory = influence(model, src, tgt_in)
    assert to_target[:4].int().tolist() == torch.ones(4, 6).tril().int().tolist()
    assert to_memory[:4].int().tolist() == [[1, 1, 1, 0, 0]] * 4


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
    torch.manual_seed(seed)
    model, src, tgt_in = make({"norm": norm}), words(1, s), words(1, t)
    others = (
        words(2, s + more_s),
        words(2, t + more_t),
    )  # neighbours in the batch must not matter either
    padded = (
        torch.cat([F.pad(src, (0, more_s)), others[0]]),
        torch.cat([F.pad(tgt_in, (0, more_t)), others[1]]),
    )
    with torch.no_grad():
        alone, together = logits(model, src, tgt_in), logits(model, *padded)
        close(together[:1, :t], alone)
        first = tgt_in[:, :1].repeat(3, 1)
        close(
            KVCache(model).step(first, KVCache(model).start(padded[0]))[0][:1],
            KVCache(model).step(first[:1], KVCache(model).start(src))[0],
        )


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


# Word by word


@sizes
def test_step_by_step_is_all_at_once(changes):
    model, (src, _, _), tgt_in = make(changes), batch(), words(3, 8)
    with torch.no_grad():
        state, said = KVCache(model).start(src), []
        for i in range(8):
            out, state = KVCache(model).step(tgt_in[:, i : i + 1], state)
            assert out.shape == (3, 1, N_VOCAB) and out.dtype == torch.float32
            said.append(out)
        close(torch.cat(said, dim=1), log_probs(model, src, tgt_in))


@sweep
@given(
    b=st.integers(1, 3),
    beams=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    norm=st.sampled_from(["post", "pre"]),
    seed=st.integers(0, 999),
)
def test_a_search_may_reorder_double_and_drop_hypotheses(b, beams, norm, seed):
    torch.manual_seed(seed)
    model, src = make({"norm": norm}), batch()[0][:b]
    begun = torch.full((b, 1, 0), 0)  # (b, beam, t)
    with torch.no_grad():
        state = KVCache(model).start(src)
        rows = torch.arange(b)[:, None]
        for beam in beams:
            which = torch.randint(begun.size(1), (b, beam))
            state = DecodingState(
                [t[rows, which] for t in state.per_hypothesis], state.per_sentence
            )
            last = words(b, beam)
            begun = torch.cat([begun[rows, which], last[..., None]], dim=-1)
            out, state = KVCache(model).step(last, state)
            at_once = log_probs(
                model, src.repeat_interleave(beam, dim=0), begun.flatten(0, 1)
            )[:, -1].view(b, beam, -1)
            close(out, at_once)


@sweep
@given(keep=st.lists(st.booleans(), min_size=3, max_size=3).filter(any))
def test_finished_sentences_can_leave_the_batch(keep):
    torch.manual_seed(0)
    model, (src, _, _), (first, second), keep = (
        make(),
        batch(),
        words(2, 3, 2),
        torch.tensor(keep),
    )
    with torch.no_grad():
        state = KVCache(model).start(src)
        state = DecodingState(
            [t[:, [0, 0]] for t in state.per_hypothesis], state.per_sentence
        )
        _, state = KVCache(model).step(first, state)
        whole, _ = KVCache(model).step(second, state)
        fewer, _ = KVCache(model).step(
            second[keep], DecodingState(*([t[keep] for t in group] for group in state))
        )
    close(fewer, whole[keep])


def test_the_state_is_two_groups_and_step_leaves_it_alone():
    model, (src, _, _) = make({"d_k": 3, "d_v": 5}), batch()
    state = KVCache(model).start(src)
    assert [tuple(t.shape) for t in state.per_hypothesis] == [(3, 1, 0)]
    pool, memory = [(3, 4, 0, 3), (3, 4, 0, 5)] * 2, [(3, 4, 7, 3), (3, 4, 7, 5)] * 2
    assert [tuple(t.shape) for t in state.per_sentence] == [
        *pool,
        *memory,
        (3, 1, 1, 7),
    ]
    with torch.no_grad():
        first, grown = KVCache(model).step(words(3, 1), state)
        assert grown.per_hypothesis[0].tolist() == [[[0]]] * 3 and all(
            t.size(2) >= 1 for t in grown.per_sentence[:4]
        )
        assert state.per_hypothesis[0].shape == (3, 1, 0) and all(
            a is b for a, b in zip(grown.per_sentence[4:], state.per_sentence[4:])
        )
        last = words(3, 1)
        assert torch.equal(
            KVCache(model).step(last, grown)[0], KVCache(model).step(last, grown)[0]
        )  # asked again, it says the same
    assert first[..., PAD].eq(-torch.inf).all()
    # the others are not normalised again
    assert first.exp().sum(-1).lt(1).all() and first.exp().sum(-1).gt(0.5).all()


def test_the_source_is_read_once():
    model, calls = make(), []
    for module in (
        model.encoder,
        *(layer.cross_attn.w_k for layer in model.decoder.layers),
    ):
        module.register_forward_hook(lambda *_: calls.append(1))
    state = KVCache(model).start(words(2, 5))
    n = len(calls)
    for _ in range(4):
        _, state = KVCache(model).step(words(2, 1), state)
    assert n == len(calls) == 3


# Start


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_first_loss_is_that_of_knowing_nothing(norm):
    n_vocab = 2000
    model = build_transformer(
        ModelConfig(n_layers=6, d_model=64, d_ff=256, n_heads=8, norm=norm),
        n_vocab,
        PAD,
    )
    src, tgt = torch.randint(1, n_vocab, (2, 64, 17))
    with torch.no_grad():
        out = logits(model, src, tgt[:, :-1])
    loss = F.cross_entropy(out.flatten(0, 1), tgt[:, 1:].flatten()).item()
    assert loss == pytest.approx(
        math.log(n_vocab) + out.var().item() / 2, abs=0.12
    )  # 1,024 words, logits of spread 1: 0.03, four times over
    assert out.var().item() == pytest.approx(1, abs=0.1)


@sizes
def test_how_the_numbers_start(changes):
    model = build_transformer(ModelConfig(**SMALL | changes), N_VOCAB, PAD)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            bound = math.sqrt(6 / (module.in_features + module.out_features))
            assert module.weight.abs().max() <= bound and (
                module.weight.numel() < 100 or module.weight.abs().max() > 0.9 * bound
            )
            assert module.bias is None or not module.bias.any()
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all() and not module.bias.any()
    d = model.embedding.weight.size(1)
    if d == 16:
        assert model.embedding.weight.std().item() == pytest.approx(
            d**-0.5, rel=0.15
        )  # 368 draws: 4 %, four times over


def test_the_words_matrix_is_left_alone():
    model = make()
    before = model.embedding.weight.clone()
    assert init_weights(model) is model and torch.equal(model.embedding.weight, before)


def test_three_places_one_matrix():
    model = make()
    assert sum(p.shape == (N_VOCAB, 16) for p in model.parameters()) == 1
    src, tgt_in = torch.tensor([[3, 4]]), torch.tensor([[5, 6]])
    (grad,) = torch.autograd.grad(
        model(src, tgt_in).pow(3).sum(), model.embedding.weight
    )
    assert grad.abs().sum(1).nonzero().flatten().tolist() == [3, 4, 5, 6]  # the lookups
    (grad,) = torch.autograd.grad(
        logits(model, src, tgt_in).logsumexp(-1).sum(), model.embedding.weight
    )
    assert grad.abs().sum(1).gt(0).all()  # and the logits


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_no_two_layers_share_weights(name):
    ids = [id(p) for layer in getattr(make(), name).layers for p in layer.parameters()]
    assert len(ids) == len(set(ids))


def test_the_same_under_a_seed():
    def run(seed):
        torch.manual_seed(seed)
        attention = partial(MultiHeadAttention, attend=AttentionDropout(0.2))
        model = build_transformer(
            ModelConfig(**SMALL), N_VOCAB, PAD, dropout=0.2, attention=attention
        )
        return [*model.parameters(), model(words(2, 5), words(2, 4))]

    assert all(torch.equal(a, b) for a, b in zip(run(1), run(1)))
    assert not all(torch.equal(a, b) for a, b in zip(run(1), run(2)))


# What others hold on to


def test_names_of_the_weights():
    attn = ["w_q.weight", "w_k.weight", "w_v.weight", "w_o.weight"]
    ff = ["w_1.weight", "w_1.bias", "w_2.weight", "w_2.bias"]

    def layer(stack, parts, n_norms):
        names = [
            f"{part}.{name}"
            for part in parts
            for name in (ff if part == "feed_forward" else attn)
        ]
        return {
            f"{stack}.layers.0.{name}"
            for name in names
            + [
                f"residuals.{i}.norm.{x}"
                for i in range(n_norms)
                for x in ("weight", "bias")
            ]
        }

    expected = {"embedding.weight"} | layer("encoder", ["self_attn", "feed_forward"], 2)
    expected |= layer("decoder", ["self_attn", "cross_attn", "feed_forward"], 3)
    assert make({"n_layers": 1}).state_dict().keys() == expected
    final = {
        f"{stack}.norm.{x}"
        for stack in ("encoder", "decoder")
        for x in ("weight", "bias")
    }
    assert make({"n_layers": 1, "norm": "pre"}).state_dict().keys() == expected | final
    assert make(
        {"n_layers": 1, "position": "learned"}
    ).state_dict().keys() == expected | {"position.table"}


@sizes
def test_weights_go_out_and_come_back(changes):
    model, other, (src, tgt_in, _) = make(changes), make(changes), batch()
    assert not torch.equal(model(src, tgt_in), other(src, tgt_in))
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(model(src, tgt_in), other(src, tgt_in))


def test_weights_of_another_order_are_refused():
    with pytest.raises(RuntimeError, match="encoder.norm.weight"):
        make({"norm": "pre"}).load_state_dict(make().state_dict())


def test_a_copy_stands_alone():
    model, (src, tgt_in, _) = make(), batch()
    double = copy.deepcopy(model)
    before = model(src, tgt_in)
    assert torch.equal(double(src, tgt_in), before)
    with torch.no_grad():
        for p in double.parameters():
            p.add_(1)
    assert torch.equal(model(src, tgt_in), before) and len(
        list(double.parameters())
    ) == len(list(model.parameters()))


# Precision


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_bf16_autocast(norm):
    model, (src, tgt_in, real) = make({"norm": norm}), batch()
    exact = log_probs(model, src, tgt_in)
    with torch.autocast("cpu", torch.bfloat16):
        rough = log_probs(model, src, tgt_in)
        state, said = KVCache(model).start(src), []
        for i in range(tgt_in.size(1)):
            out, state = KVCache(model).step(tgt_in[:, i : i + 1], state)
            said.append(out)
        loss = logits(model, src, tgt_in)[real].float().logsumexp(-1).sum()
    loss.backward()
    assert all(out.dtype == torch.float32 for out in said)
    assert all(
        p.grad.isfinite().all() and p.grad.dtype == torch.float32
        for p in model.parameters()
    )
    # Eight bits: 0.004 of numbers near 3, some dozen roundings.
    for out in (rough, torch.cat(said, dim=1)):
        close(out[real].float(), exact[real], 0.1)


@pytest.mark.parametrize("dtype, eps", [(torch.float64, 1e-5), (torch.bfloat16, 0.2)])
def test_a_model_of_another_precision(dtype, eps):
    model, (src, tgt_in, real) = make(), batch()
    exact, model = log_probs(model, src, tgt_in), copy.deepcopy(model).to(dtype)
    out, _ = KVCache(model).step(tgt_in[:, :1], KVCache(model).start(src))
    assert model(src, tgt_in).dtype == dtype and out.dtype == torch.float32
    close(log_probs(model, src, tgt_in)[real].float(), exact[real], eps)
    close(out[:, 0], exact[:, 0], eps)


# Positions


def test_positions_count_from_the_start_in_both_sequences():
    for changes in ({}, {"position": "learned"}):
        model = make(changes)
        same = torch.full((1, 5), 7)
        table = model._embed(same) - model.embedding(same)
        expected = (
            model.position.table[:5]
            if isinstance(model.position, LearnedPosition)
            else positional_encoding(5, 16)
        )
        close(table[0], expected)
        embedded = model.embedding(same)
        close(model.position(embedded[:, :2], start=3), model._embed(same)[:, 3:])


def test_learned_positions_end():
    model = make({"position": "learned", "n_positions": 4})
    model(words(1, 4), words(1, 4))
    for src, tgt_in in ((words(1, 5), words(1, 4)), (words(1, 4), words(1, 5))):
        with pytest.raises(
            ValueError, match="position 4 was never learned: n_positions=4 ends at 3"
        ):
            model(src, tgt_in)
    state = KVCache(model).start(words(1, 4))
    for _ in range(4):
        _, state = KVCache(model).step(words(1, 1), state)
    with pytest.raises(ValueError, match="position 4 was never learned"):
        KVCache(model).step(words(1, 1), state)


def test_sinusoids_have_no_last_position():
    model = make()
    close(model(words(1, 2), words(1, 1030))[:, :3].std(), torch.tensor(1.0), 0.5)
    assert model(words(1, 1030), words(1, 2)).isfinite().all()


# Errors


def test_errors_name_the_value_and_what_would_be_right(unchecked):
    config, model, src, tgt_in = ModelConfig(**SMALL), make(), words(2, 5), words(2, 3)
    state = KVCache(model).start(src)
    for call, message in [
        (
            lambda: build_transformer(config, 10, pad_id=10),
            "pad_id=10 must be from 0 to n_vocab - 1 = 9",
        ),
        (
            lambda: build_transformer(config, 10, pad_id=-1),
            "pad_id=-1 must be from 0 to n_vocab - 1 = 9",
        ),
        (
            lambda: build_transformer(config, 10, 0, dropout=1.5),
            "dropout probability has to be between 0 and 1, but got 1.5",
        ),
        (
            lambda: ModelConfig(d_model=16, n_heads=3),
            "d_model=16 does not split into n_heads=3 equal heads: take a multiple of 3",
        ),
        (
            lambda: model(src, tgt_in[:1]),
            "src is (2, 5) and tgt_in is (1, 3): give (b, s) and (b, t), each source its target",
        ),
        (
            lambda: model(src[:1], tgt_in),
            "src is (1, 5) and tgt_in is (2, 3): give (b, s) and (b, t), each source its target",
        ),
        (
            lambda: model(src, tgt_in[0]),
            "src is (2, 5) and tgt_in is (3,): give (b, s) and (b, t), each source its target",
        ),
        (
            lambda: model(src[0], tgt_in[0]),
            "ids has shape (5,): give a batch (b, n), one sentence as ids[None]",
        ),
        (
            lambda: model.encode(src[0]),
            "ids has shape (5,): give a batch (b, n), one sentence as ids[None]",
        ),
        (
            lambda: KVCache(model).start(src[0]),
            "ids has shape (5,): give a batch (b, n), one sentence as ids[None]",
        ),
        (
            lambda: KVCache(model).step(tgt_in, state),
            "last_ids is (2, 3), the state's hypotheses are (b, beam) = (2, 1): give one id to each",
        ),
        (
            lambda: KVCache(model).step(tgt_in[:, 0], state),
            "last_ids is (2,), the state's hypotheses are (b, beam) = (2, 1): give one id to each",
        ),
    ]:
        with pytest.raises(ValueError) as error:
            call()
        assert str(error.value) == message


# The skeleton of §3.1


@pytest.mark.parametrize("part", [PostNorm, PreNorm])
def test_what_is_dropped_is_what_is_added(part):
    connection, x = part(8, nn.Dropout(0.5)).train(), torch.randn(2, 3, 8)
    close(connection(x, torch.zeros_like), part(8)(x, torch.zeros_like), 0)
    assert not torch.equal(
        connection(x, torch.ones_like), connection(x, torch.ones_like)
    )
    close(connection.eval()(x, torch.ones_like), part(8)(x, torch.ones_like), 0)


@pytest.mark.parametrize("part, ends_normed", [(PostNorm, True), (PreNorm, False)])
def test_which_is_which(part, ends_normed):
    x = torch.randn(1, 50, 64)
    variance = part(64)(x, lambda y: 2 * y).var(dim=-1, correction=0)
    assert ((variance - 1).abs().max() < 1e-3) == ends_normed
