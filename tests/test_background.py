"Sweeps over the systems of §2: padding, causality, two ways to one answer, search, and what each layer computes, by hand or by PyTorch."

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from annotated_transformer.engines.batched_search import (
    _reorder,
    _select_rows,
)
from annotated_transformer.experiments.background import (
    BidirectionalEncoder,
    EncoderDecoder,
)
from annotated_transformer.experiments.compared import _PARTS
from annotated_transformer.experiments.convolutions import (
    ByteNetEncoder,
    ConvS2SDecoder,
    ConvS2SEncoder,
    MemoryNetwork,
    NeuralGPU,
    _convolve_same,
    _GatedConvolution,
)
from annotated_transformer.model.attention import attention
from annotated_transformer.model.embedding import Embedding
from annotated_transformer.model.position import LearnedPosition

PAD, BOS, EOS = 0, 1, 2
PARTS = _PARTS | {
    "ConvS2S, learned positions": lambda d: (
        ConvS2SEncoder(d, 2, 5),
        ConvS2SDecoder(d, 2, 4, attention),
        LearnedPosition(d, 256),
    )
}


def build(name, d=16, n_vocab=20, pad_id=PAD):
    encoder, decoder, position = PARTS[name](d)
    return EncoderDecoder(
        encoder, decoder, Embedding(n_vocab, d), position, 0.0, pad_id
    )


@pytest.fixture(params=PARTS)
def model(request):
    "In float64: two ways to one answer differ by rounding alone, 1e-12 of numbers near 1."
    torch.manual_seed(0)
    return build(request.param).double().eval()


def draw(b, s, t, seed=0, n_vocab=20):
    "Sources and targets of unequal lengths; the first row is full."
    rng = torch.Generator().manual_seed(seed)
    src, tgt = (
        torch.randint(3, n_vocab, (b, s), generator=rng),
        torch.randint(3, n_vocab, (b, t), generator=rng),
    )
    for i in range(b):
        n_src, n_tgt = s, t
        if i:
            n_src = int(torch.randint(1, s + 1, (), generator=rng))
            n_tgt = int(torch.randint(1, t + 1, (), generator=rng))
        src[i, n_src - 1], tgt[i, 0] = EOS, BOS
        src[i, n_src:] = tgt[i, n_tgt:] = PAD
    return src, tgt


def log_probs(model, src, tgt_in):
    "As of `step`, which excludes padding."
    found = model.embedding.logits(model(src, tgt_in)).log_softmax(-1)
    return found.index_fill(-1, torch.tensor([PAD]), -torch.inf)


@settings(max_examples=6)
@given(
    b=st.integers(1, 4),
    s=st.integers(1, 9),
    t=st.integers(1, 9),
    more=st.integers(0, 12),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_padding_and_neighbours_do_not_matter(b, s, t, more, seed):
    src, tgt = draw(b, s, t, seed)
    for name in PARTS:
        torch.manual_seed(seed)
        model = build(name).double()
        together = model(src, tgt)
        assert together.shape == (b, t, 16) and together.isfinite().all()
        padded = model(F.pad(src, (0, more)), F.pad(tgt, (0, more)))[:, :t]
        torch.testing.assert_close(padded, together, rtol=0, atol=1e-12)
        for i in range(b):
            n_src, n_tgt = int((src[i] != PAD).sum()), int((tgt[i] != PAD).sum())
            alone = model(src[i : i + 1, :n_src], tgt[i : i + 1, :n_tgt])[0]
            torch.testing.assert_close(alone, together[i, :n_tgt], rtol=0, atol=1e-12)


@torch.no_grad()
def test_step_by_step_is_all_at_once(model):
    src, tgt = draw(3, 8, 30)  # longer than the dilated encoder's columns reach
    state, at_once = model.start(src), log_probs(model, src, tgt)
    for i in range(30):
        found, state = model.step(tgt[:, i : i + 1], state)
        torch.testing.assert_close(
            found[:, 0].double(), at_once[:, i], rtol=0, atol=1e-5
        )  # log-probabilities are float32
    assert state.per_sentence[0].tolist() == [30] * 3


@torch.no_grad()
def test_a_search_may_reorder_and_leave_out(model):
    src, tgt = draw(3, 6, 4)
    _, state = model.step(tgt[:, :1], model.start(src))
    state = _reorder(state, torch.zeros(3, 2, dtype=torch.int64))  # two of each
    _, state = model.step(torch.tensor([[5, 6], [7, 8], [9, 10]]), state)
    state = _reorder(state, torch.tensor([[1, 0], [1, 1], [0, 0]]))
    state = _select_rows(state, torch.tensor([0, 2]))
    found, _ = model.step(torch.tensor([[3, 4], [3, 4]]), state)
    said = {(0, 0): [6, 3], (0, 1): [5, 4], (1, 0): [9, 3], (1, 1): [9, 4]}
    for (row, j), ids in said.items():
        source, prefix = src[[0, 2]][row][None], torch.tensor([[BOS, *ids]])
        whole = log_probs(model, source, prefix)[0, -1]
        torch.testing.assert_close(found[row, j].double(), whole, rtol=0, atol=1e-5)


def test_two_ways_are_torchs_bidirectional_lstm():
    torch.manual_seed(0)
    encoder = BidirectionalEncoder(8, 1).double()
    both = nn.LSTM(8, 8, bidirectional=True, batch_first=True).double()
    with torch.no_grad():
        for name, p in both.named_parameters():
            half = encoder.backwards if name.endswith("_reverse") else encoder.forwards
            p.copy_(getattr(half, name.removesuffix("_reverse"), torch.zeros(())))
    lengths = torch.tensor([6, 4, 1])
    real = torch.arange(6) < lengths[:, None]
    x = torch.randn(3, 6, 8).double() * real[..., None]
    packed, _ = both(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True))
    theirs, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    ours = encoder(x, real)[2] * real[..., None]
    torch.testing.assert_close(ours, theirs[..., :8] + theirs[..., 8:])


@pytest.mark.parametrize("width", [1, 3, 5])
def test_gated_convolution_is_its_formula(width):
    torch.manual_seed(0)
    layer, x = _GatedConvolution(4, width).double(), torch.randn(2, 7, 4).double()
    out = _convolve_same(layer, x, torch.ones(2, 7, dtype=torch.bool))
    padded, conv = F.pad(x, (0, 0, width // 2, width // 2)), layer.conv
    for i in range(7):
        window = padded[:, i : i + width]
        both = torch.einsum("bkd,odk->bo", window, conv.weight) + conv.bias
        torch.testing.assert_close(out[:, i], both[:, :4] * both[:, 4:].sigmoid())


def test_neural_gpu_is_its_formula():
    torch.manual_seed(0)
    gpu, s = NeuralGPU(3, n_columns=2).double(), torch.randn(1, 3, 5, 2).double()
    convolve = lambda s, kernel, bias: F.conv2d(F.pad(s, (1, 1, 1, 1)), kernel, bias)
    u, r = convolve(s, gpu.gates.weight, gpu.gates.bias).sigmoid().chunk(2, dim=1)
    new = torch.tanh(convolve(r * s, gpu.candidate.weight, gpu.candidate.bias))
    torch.testing.assert_close(gpu.step(s), u * s + (1 - u) * new)


def test_memory_hops_are_their_formula():
    torch.manual_seed(0)
    hops = MemoryNetwork(4, 3).double()
    q, memory = torch.randn(2, 4).double(), torch.randn(2, 5, 4).double()
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    out = hops(q, memory, real)
    for i, n in enumerate((5, 2)):
        u = q[i]
        for _ in range(3):
            p = (hops.w_k(memory[i, :n]) @ u).softmax(0)
            u = hops.w_h(u) + p @ hops.w_v(memory[i, :n])
        torch.testing.assert_close(out[i], u)


def test_bytenet_has_more_columns_for_longer_sources():
    real = torch.arange(10) < torch.tensor([[10], [5]])
    (columns,) = ByteNetEncoder(16, 3, [1, 2])(torch.randn(2, 10, 16), real)
    assert columns.any(-1).sum(dim=1).tolist() == [12 + 4, 6 + 4]
