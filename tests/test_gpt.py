"A decoder-only model: what it may depend on, PyTorch's own layers, rows made of pairs, sampling, and what the record holds."

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_model import load_layer
from torch import nn

from annotated_transformer.data.batch import Batch, pad_ids
from annotated_transformer.experiments.gpt import (
    NextTokenLoss,
    PromptDecoder,
    build_gpt,
    join_pairs,
    prefix_mask,
)
from annotated_transformer.model.config import ModelConfig

PAD, BOS, EOS, N_VOCAB = 0, 2, 3, 12
SIZES = {
    norm: ModelConfig(n_layers=2, d_model=16, d_ff=32, n_heads=4, norm=norm)
    for norm in ("pre", "post")
}
bidirectional = partial(prefix_mask, pad_id=PAD, bos_id=BOS)
# of numbers near 1 in float64, added in another order
close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def build(norm="pre", mask=None, seed=0):
    torch.manual_seed(seed)
    return build_gpt(SIZES[norm], N_VOCAB, PAD, mask=mask).double().eval()


def draw_pairs(b: int, seed: int) -> list[tuple[list[int], list[int]]]:
    "Sources and targets of 1 to 6 tokens, without special tokens."
    rng = torch.Generator().manual_seed(seed)

    def side() -> list[int]:
        n = int(torch.randint(1, 7, (), generator=rng))
        return torch.randint(4, N_VOCAB, (n,), generator=rng).tolist()

    return [(side(), side()) for _ in range(b)]


def batch_of(pairs) -> Batch:
    sources, targets = zip(*pairs)
    return Batch(
        pad_ids(sources, PAD, last=EOS),
        pad_ids(targets, PAD, first=BOS),
        pad_ids(targets, PAD, last=EOS),
        sum(len(target) + 1 for target in targets),
    )


# the model


@pytest.mark.parametrize("norm", SIZES)
@torch.no_grad()
def test_it_is_torchs_encoder_with_a_causal_mask(norm):
    model = build(norm)
    size, d = SIZES[norm], SIZES[norm].d_model
    layer = nn.TransformerEncoderLayer(
        d, size.n_heads, size.d_ff, 0.0, batch_first=True, norm_first=norm == "pre"
    )
    final = nn.LayerNorm(d) if norm == "pre" else None
    theirs = nn.TransformerEncoder(layer, size.n_layers, final, False).double()
    for p in model.stack.parameters():
        p.copy_(torch.randn_like(p) / 4)  # norms and biases too
    for ours, other in zip(model.stack.layers, theirs.layers, strict=True):
        load_layer(other, ours)
    if final:
        final.load_state_dict(model.stack.norm.state_dict())
    ids = torch.randint(4, N_VOCAB, (3, 7))
    x = model.position(model.embedding(ids))
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)  # True = ignore
    close(model(ids), theirs(x, mask=hidden))


# rows made of pairs


def test_loss_is_of_the_target_alone():
    "Each pair by itself, added up by hand."
    model, pairs, right = build(), draw_pairs(4, seed=1), 0.0
    with torch.no_grad():
        loss_of = NextTokenLoss(model, partial(join_pairs, pad_id=PAD))
        found = loss_of(batch_of(pairs))
        for src, tgt in pairs:
            row = [*src, EOS, BOS, *tgt, EOS]
            hidden = model(torch.tensor([row[:-1]]))[0]
            log_probs = model.embedding.logits(hidden).log_softmax(-1)
            for i in range(len(src) + 1, len(row) - 1):
                right -= log_probs[i, row[i + 1]].item()
    close(found.item(), right, atol=1e-9)


@settings(max_examples=20)
@given(b=st.integers(1, 4), seed=st.integers(0, 999))
def test_prefix_mask_has_the_pairs_of_three_attentions(b, seed):
    pairs = draw_pairs(b, seed)
    ids, _ = join_pairs(batch_of(pairs), PAD)
    mask = bidirectional(ids)
    assert mask.shape == (b, 1, ids.size(1), ids.size(1))
    for (src, tgt), allowed in zip(pairs, mask[:, 0]):
        s, n = len(src) + 1, len(src) + len(tgt) + 2
        right = torch.zeros_like(allowed)
        right[:n, :s] = True  # encoder and cross-attention
        right[s:n, s:n] = torch.ones(n - s, n - s).tril().bool()
        assert allowed[:n].equal(right[:n])


# generation


@pytest.mark.parametrize("mask", [None, bidirectional], ids=["causal", "prefix"])
@torch.no_grad()
def test_a_step_is_the_row_alone(mask):
    "Prompts of different lengths, two hypotheses each, over three steps."
    model, pairs = build(mask=mask), draw_pairs(3, seed=2)
    decoder = PromptDecoder(model)
    state = decoder.start(batch_of(pairs).src)
    state = state._replace(per_hypothesis=[state.per_hypothesis[0].repeat(1, 2, 1)])
    said = [[[] for _ in range(2)] for _ in pairs]
    for tokens in ([BOS, BOS], [5, 6], [7, 8]):
        found, state = decoder.step(torch.tensor([tokens] * 3), state)
        for (src, _), texts, row in zip(pairs, said, found):
            for token, text, log_probs in zip(tokens, texts, row):
                text.append(token)
                hidden = model(torch.tensor([[*src, EOS, *text]]))[0, -1]
                alone = model.embedding.logits(hidden).log_softmax(-1)
                # `next_log_probs` is in float32
                torch.testing.assert_close(
                    log_probs[1:].double(), alone[1:], rtol=0, atol=1e-5
                )
                assert log_probs[PAD] == -torch.inf
