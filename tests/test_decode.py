"Greedy search: against the search for one sentence, over tables and over Transformers of several shapes."
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.config import ModelConfig
from annotated_transformer.decode import greedy_search
from annotated_transformer.transformer import build_transformer

PAD, BOS, EOS, N_VOCAB = 0, 2, 3, 20


def one_by_hand(next_log_probs, max_len):
    "Greedy search for one sentence: the oracle."
    said = []
    while len(said) < max_len:
        word = int(next_log_probs(said).argmax())
        if word == EOS: break
        said.append(word)
    return said


def table_step(last_ids, state):
    "A state that is the words said so far and, for each sentence, some tables that take turns."
    said, tables = state
    log_probs = tables[torch.arange(len(tables))[:, None], said.size(-1) % tables.size(1), last_ids]
    return log_probs, (torch.cat([said, last_ids[..., None]], dim=-1), tables)


def search_tables(tables, limits):
    return greedy_search(table_step, (torch.empty(len(tables), 1, 0, dtype=torch.long), tables), BOS, EOS, limits)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), b=st.integers(1, 9), n_vocab=st.integers(4, 12), longest=st.integers(0, 12),
       sharp=st.sampled_from([0.0, 1.0, 9.0]))
def test_tables(seed, b, n_vocab, longest, sharp):
    "Ties (sharp = 0: all words equally likely), early ends and limits of 0, alone and together."
    torch.manual_seed(seed)
    tables, limits = (sharp * torch.randn(b, 3, n_vocab, n_vocab)).log_softmax(dim=-1), torch.randint(0, longest + 1, (b,))
    found = search_tables(tables, limits)
    for table, limit, row in zip(tables, limits, found):
        def next_log_probs(said, table=table): return table[len(said) % 3, [BOS, *said][-1]]
        assert row == one_by_hand(next_log_probs, int(limit))
    assert found == [search_tables(tables[i:i + 1], limits[i:i + 1])[0] for i in range(b)]
    order = torch.randperm(b)
    assert [found[i] for i in order] == search_tables(tables[order], limits[order])


def test_nothing_to_do():
    def never(last_ids, state): raise AssertionError("nothing was to be asked")
    assert greedy_search(never, None, BOS, EOS, torch.tensor([], dtype=torch.long)) == []
    assert greedy_search(never, None, BOS, EOS, torch.tensor([0, 0])) == [[], []]


def test_no_gradient_is_recorded():
    weight = torch.zeros(N_VOCAB, requires_grad=True)
    seen = []

    def step(last_ids, state):
        log_probs = weight.log_softmax(0).expand(*last_ids.shape, -1)
        seen.append(log_probs.requires_grad)
        return log_probs, state
    greedy_search(step, None, BOS, EOS, torch.tensor([3]))
    assert seen == [False] * 3


@pytest.mark.parametrize("sizes", [
    dict(n_layers=1, n_heads=1), dict(n_layers=2, n_heads=4), dict(n_layers=2, n_heads=4, norm="pre"),
    dict(n_layers=1, n_heads=2, position="learned", n_positions=70), dict(n_layers=1, n_heads=2, d_k=5, d_v=3)], ids=str)
def test_transformer(sizes):
    "start and step, in a batch with padding = forward over the whole prefix, one sentence at a time. In float64, so that ties cannot decide."
    torch.manual_seed(1)
    model = build_transformer(ModelConfig(d_model=16, d_ff=32, **sizes), N_VOCAB, PAD).double().eval().requires_grad_(False)
    for layer in model.decoder.layers:
        for weight in layer.feed_forward.parameters(): weight.mul_(4)  # otherwise it repeats one word
    src = torch.tensor([[5, 6, 7, 8, EOS], [9, 4, EOS, PAD, PAD], [EOS, PAD, PAD, PAD, PAD], [11, 12, 13, EOS, PAD]])
    limits = (src != PAD).sum(dim=1) + 15

    def sayable(log_probs): return log_probs.index_fill(-1, torch.tensor([PAD]), -torch.inf)  # forward takes padding in the target for no word

    def step(last_ids, state):
        log_probs, state = model.step(last_ids, state)
        return sayable(log_probs), state
    for row, limit, found in zip(src, limits, greedy_search(step, model.start(src), BOS, EOS, limits)):
        def next_log_probs(said, row=row):
            return sayable(model.embedding.logits(model(row[row != PAD][None], torch.tensor([[BOS, *said]])))[0, -1])
        assert found == one_by_hand(next_log_probs, int(limit))
