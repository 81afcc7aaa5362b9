"Batches: every pair once, under the budget, with hardly any padding, the same for the same seed and epoch (51c)."
import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from annotated_transformer.batch import Pairs, batch_rows, collate, encode_pairs, endless_batches, epoch_batches, pad_ids, padding_share
from annotated_transformer.vocab import learn_bpe

WORDS = "the dog cat sees a house der Hund die Katze sieht ein Haus und dann".split()
VOCAB = learn_bpe([" ".join(WORDS)] * 5, 320)


def some_pairs(n: int, seed: int = 0) -> Pairs:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(4, len(VOCAB), rng.integers(1, 30)).astype(np.int32) for _ in range(2 * n)]
    return Pairs(rows[:n], rows[n:])


DATA = some_pairs(400)
lengths_of_pairs = st.integers(1, 60).flatmap(lambda n: st_np.arrays(np.int64, (n, 2), elements=st.integers(1, 50)))


@given(lengths_of_pairs, st.integers(50, 400), st.integers(0, 3))
def test_every_row_once_and_under_the_budget(lengths, budget, seed):
    batches = batch_rows(lengths, budget, np.random.default_rng(seed))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(len(rows) and lengths[rows].sum(axis=0).max() <= budget for rows in batches)


@given(lengths_of_pairs)
def test_batches_are_full(lengths):
    "Two neighbours in the order never fit into one budget together, which bounds their number."
    batches = batch_rows(lengths, 100, np.random.default_rng(0))
    assert len(batches) <= 2 * lengths.sum() / 100 + 1


def test_padding_share_by_hand():
    lengths = np.array([[3, 4], [5, 4]])
    assert padding_share(lengths, [np.array([0, 1])]) == 1 - 16 / 18
    assert padding_share(lengths, [np.array([0]), np.array([1])]) == 0


def test_zigzag_pads_less_than_sorting():
    lengths = np.random.default_rng(0).integers(5, 40, (4000, 2))
    batches = batch_rows(lengths, 1000, np.random.default_rng(0))
    order = np.argsort(lengths[:, 1], kind="stable")
    assert padding_share(lengths, batches) < padding_share(lengths, np.array_split(order, len(batches))) / 2


def test_seed_and_epoch_decide():
    def epoch(seed, epoch): return [batch.src.tolist() for batch in epoch_batches(DATA, VOCAB, 300, seed, epoch)]
    assert epoch(0, 3) == epoch(0, 3)
    assert epoch(0, 3) != epoch(0, 4) and epoch(0, 3) != epoch(1, 3)
    together = endless_batches(DATA, VOCAB, 300, seed=0)
    for number in range(3):
        for src in epoch(0, number):
            found, batch = next(together)
            assert found == number and batch.src.tolist() == src


def test_every_pair_once_and_in_place():
    found = []
    for batch in epoch_batches(DATA, VOCAB, 300, seed=0, epoch=0):
        assert batch.src.dtype == batch.tgt_in.dtype == batch.tgt_out.dtype == torch.int64 and batch.tgt_in.shape == batch.tgt_out.shape
        assert batch.n_tokens == (batch.tgt_out != VOCAB.pad_id).sum() == (batch.tgt_in != VOCAB.pad_id).sum()
        for src, read, say in zip(*batch[:3], strict=True):
            src, read, say = ([i for i in row.tolist() if i != VOCAB.pad_id] for row in (src, read, say))
            assert read[0] == VOCAB.bos_id and src[-1] == say[-1] == VOCAB.eos_id and read[1:] == say[:-1]
            found.append((tuple(src[:-1]), tuple(say[:-1])))
    assert sorted(found) == sorted((tuple(s.tolist()), tuple(t.tolist())) for s, t in zip(*DATA, strict=True))


def test_empty_sentences():
    batch = collate(*encode_pairs([("", ""), ("the dog", "der Hund")], VOCAB), VOCAB)
    assert batch.src[0].tolist()[:2] == [*VOCAB.encode(""), VOCAB.eos_id]
    bare = collate([np.array([], np.int32)], [np.array([], np.int32)], VOCAB)
    assert bare.src.tolist() == bare.tgt_out.tolist() == [[VOCAB.eos_id]] and bare.tgt_in.tolist() == [[VOCAB.bos_id]] and bare.n_tokens == 1


def test_to_a_device():
    batch = next(epoch_batches(DATA, VOCAB, 300, seed=0, epoch=0))
    there = batch.to(torch.device("cpu"))
    assert type(there) is type(batch) and there.n_tokens == batch.n_tokens and torch.equal(there.src, batch.src)


def test_pad_ids():
    assert pad_ids([[7, 8, 9], [5], []], pad_id=2).tolist() == [[7, 8, 9], [5, 2, 2], [2, 2, 2]]


def test_errors():
    with pytest.raises(ValueError, match=r"batch_tokens=20 is less than the longest sentence, \d+ tokens: raise it to \d+ .* max_len"):
        next(epoch_batches(DATA, VOCAB, 20, seed=0, epoch=0))
    with pytest.raises(ValueError, match="no pair of 1 is left: all are longer than max_len=1"):
        encode_pairs([("the dog", "der Hund")], VOCAB, max_len=1)


def test_multi30k_padding(data_dir):
    "At most 5 % at 4,096 tokens."
    sides = []
    for language in ("en", "de"):
        with gzip.open(data_dir / "multi30k" / f"train.{language}.gz", "rt", encoding="utf-8", newline="\n") as f:
            sides.append([line.rstrip("\n") for line in f])
    vocab = learn_bpe((line for side in sides for line in side), 8000)
    lengths = encode_pairs(list(zip(*sides, strict=True)), vocab).lengths()
    assert padding_share(lengths, batch_rows(lengths, 4096, np.random.default_rng(0))) <= 0.05
