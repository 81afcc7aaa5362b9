"Attention and multi-head attention: rows without a key, dropout of weights, masks of fewer axes, what is changed in a module."

from unittest import mock

import pytest
import torch
from torch import nn

from annotated_transformer.engines.fused_attention import (
    FusedAttentionDropout,
    FusedMultiHeadAttention,
    fused_attention,
)
from annotated_transformer.experiments.background import AdditiveAttention
from annotated_transformer.model.attention import (
    attention,
)
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.training.attention_dropout import AttentionDropout


def close(a, b, eps=2e-5):
    torch.testing.assert_close(a, b, rtol=eps, atol=eps)


def out_and_grads(attend, *inputs, mask):
    "The output, and the gradients of a random reading of it at every input."
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out, rng = attend(*inputs, mask), torch.Generator().manual_seed(1)
    reading = torch.randn(out.shape, generator=rng).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * reading).sum(), inputs)]


@pytest.mark.parametrize(
    "attend",
    [
        attention,
        fused_attention,
        AttentionDropout(0.5),
        FusedAttentionDropout(0.5),
        AdditiveAttention(8, 5),
    ],
    ids=["readable", "fused", "dropout", "fused dropout", "additive"],
)
def test_a_row_that_may_look_nowhere_is_zero_and_harmless(attend):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    mask = torch.ones(2, 1, 4, 5, dtype=torch.bool)
    mask[0] = False  # a whole sentence
    mask[1, :, 2] = False  # one query of the other
    out, *grads = out_and_grads(attend, q, k, v, mask=mask)
    assert not out[0].any() and not out[1, :, 2].any() and out[1, :, [0, 1, 3]].any()
    assert all(g.isfinite().all() and not g[0].any() for g in grads)


# Multi-head


class OnGPU(FusedAttentionDropout):
    "What it does there, tried here: PyTorch's kernel has a form for every device."

    def forward(self, query, key, value, mask=None):
        with mock.patch.object(torch.Tensor, "device", torch.device("cuda")):
            return super().forward(query, key, value, mask)


@pytest.mark.parametrize("dropped", [AttentionDropout, FusedAttentionDropout, OnGPU])
def test_dropout_on_weights_is_a_part_and_only_while_training(dropped):
    torch.manual_seed(0)
    module = MultiHeadAttention(16, 4, attend=dropped(0.3))
    plain, x = MultiHeadAttention(16, 4), torch.randn(2, 7, 16)
    plain.load_state_dict(module.state_dict())
    assert not torch.equal(module(x, x, x, None), module(x, x, x, None))
    close(module.eval()(x, x, x, None), plain(x, x, x, None))
    q, k, v = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 5, 8), torch.randn(1, 1, 5, 3)
    many = [t.expand(20000, -1, -1, -1) for t in (q, k, v)]
    found = dropped(0.3)(*many, None)
    mean = found.mean(0, keepdim=True)
    # 20,000 draws of a standard deviation near 1: 0.007, four times over
    close(mean, attention(q, k, v), 0.03)
    # with the identity as values, the output is the weights: kept or not, each by itself
    eye = torch.eye(5).expand(20000, 1, 5, 5)
    weights, whole = dropped(0.3)(*many[:2], eye), attention(q, k, eye[:1])
    kept = weights > 0
    assert abs(kept.float().mean() - 0.7) < 0.01
    assert abs((kept[..., 0] & kept[..., 1]).float().mean() - 0.49) < 0.02
    close(weights, torch.where(kept, whole / 0.7, 0.0), 1e-3)


@pytest.mark.parametrize("shape", [(6, 9), (3, 6, 9), (2, 3, 6, 9), (2, 1, 1, 9)])
def test_a_mask_of_fewer_axes_is_that_of_all_heads(shape):
    torch.manual_seed(0)
    module = MultiHeadAttention(24, 3, attend=AdditiveAttention(8, 10))
    query, memory, mask = (
        torch.randn(2, 6, 24),
        torch.randn(2, 9, 24),
        torch.rand(shape) > 0.4,
    )
    every = mask.expand(2, 3, 6, 9)
    close(module(query, memory, memory, mask), module(query, memory, memory, every))


# The fused projections


class Scaled(nn.Linear):
    def forward(self, x):
        return 3 * super().forward(x)


@pytest.mark.parametrize("change", ["map", "attend"])
def test_what_is_changed_is_used_in_self_attention(change):
    "As in attention to another tensor with the same numbers."
    torch.manual_seed(0)
    module, plain = FusedMultiHeadAttention(8, 2), FusedMultiHeadAttention(8, 2)
    if change == "map":
        module.w_v = Scaled(8, 8, bias=False)
    if change == "attend":
        module.attend = lambda *args: 2 * attention(*args)
    plain.load_state_dict(module.state_dict())
    x = torch.randn(2, 3, 8)
    found = module(x, x, x, None)
    close(found, module(x, x.clone(), x.clone(), None))
    assert (found - plain(x, x, x, None)).abs().max() > 1e-2
