"Batches: every pair once, under the budget, with hardly any padding, the same for the same seed and epoch; prepared text on disk (51c)."

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from annotated_transformer.data import prepared as module
from annotated_transformer.data.batch import (
    Batch,
    EncodedPairs,
    RaggedArray,
    _cut_points,
    bucket_by_length,
    drop_long_pairs,
    encode_pairs,
    epoch_batches,
    training_steps,
)
from annotated_transformer.data.bpe_dropout import BPEDropout, sample_segmentation
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.prepared import (
    open_prepared,
    prepare,
)
from annotated_transformer.data.vocab import learn_bpe

WORDS = "the dog cat sees a house der Hund die Katze sieht ein Haus und dann".split()
VOCAB = learn_bpe([" ".join(WORDS)] * 5, 320)
SPECIAL = 4  # ids below are special symbols


def some_lists(n: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(SPECIAL, len(VOCAB), rng.integers(1, 30)).tolist()
        for _ in range(n)
    ]


LISTS = some_lists(400, seed=0), some_lists(400, seed=1)
DATA = EncodedPairs(*map(RaggedArray.from_lists, LISTS))
lists_of_ids = st.lists(
    st.lists(st.integers(SPECIAL, 300), max_size=12), min_size=1, max_size=8
)
lengths_of_pairs = st.integers(1, 60).flatmap(
    lambda n: st_np.arrays(np.int32, (n, 2), elements=st.integers(1, 50))
)


# Rows


@given(lists_of_ids, st.data())
def test_rows_are_the_lists(lists, data):
    rows = RaggedArray.from_lists(lists)
    assert (
        len(rows) == len(lists)
        and [row.tolist() for row in rows] == lists
        and rows[-1].tolist() == lists[-1]
    )
    with pytest.raises(IndexError):
        rows[len(lists)]
    some = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=12))
    taken = rows.take(np.array(some, np.int32))
    assert [row.tolist() for row in taken] == [lists[i] for i in some]
    assert taken.starts[0] == 0 and taken.starts[-1] == len(
        taken.ids
    )  # a whole of its own


# Order and cuts


@given(lengths_of_pairs, st.integers(50, 400), st.integers(0, 3))
def test_every_row_once_and_under_the_budget(lengths, budget, seed):
    batches = bucket_by_length(lengths, budget, np.random.default_rng(seed))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(
        len(rows) and lengths[rows].sum(axis=0).max() <= budget for rows in batches
    )


def test_multi30k_has_little_padding(data_dir):
    "51c says that it stays under 5 % at 4,096 tokens."
    pairs = load_corpus("multi30k", data_dir).train
    vocab = learn_bpe((sentence for pair in pairs for sentence in pair), 8000)
    lengths = encode_pairs(pairs, vocab).lengths()
    batches = bucket_by_length(lengths, 4096, np.random.default_rng(0))
    allocated = sum(len(rows) * lengths[rows].max(axis=0).sum() for rows in batches)
    assert 0.01 < 1 - lengths.sum() / allocated < 0.05


def test_sums_beyond_32_bits():
    lengths = np.full((50, 2), 2**30, np.int32)
    assert _cut_points(lengths, 2**32) == [*range(0, 50, 4), 50]


# Steps


def steps(n: int, **how) -> list:
    return list(islice(training_steps(DATA, VOCAB, 300, seed=0, **how), n))


def plain(step) -> tuple:
    return (
        step[:3],
        *step[3:5],
        [
            [t.tolist() for t in batch[:3]] + [batch.n_tokens]
            for batch in step.micro_batches
        ],
    )


def sentences(micro_batches: list[Batch]) -> list[tuple]:
    "The pairs of some batches as lists of ids, sorted; none for a row of padding."
    rows = (
        (src, say)
        for batch in micro_batches
        if batch.n_tokens
        for src, say in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    )
    return sorted(
        ([i for i in src if i >= SPECIAL], [i for i in say if i >= SPECIAL])
        for src, say in rows
    )


N_EPOCH = sum(1 for _ in epoch_batches(DATA, VOCAB, 300, seed=0, epoch=0))


@pytest.mark.parametrize(
    "world_size, grad_accum_steps", [(1, 2), (2, 1), (3, 4), (64, 2), (3, 10_000)]
)
def test_shares_are_the_whole_step(world_size, grad_accum_steps):
    "Over ranks and micro-batches: the same sentences, each once; the same count of tokens; as many micro-batches on every rank, no more than rows."
    sizes = {"world_size": world_size, "grad_accum_steps": grad_accum_steps}
    ranks = [steps(N_EPOCH + 2, rank=rank, **sizes) for rank in range(world_size)]
    empty = 0
    for whole, *shares in zip(steps(N_EPOCH + 2), *ranks, strict=True):
        batches = [batch for share in shares for batch in share.micro_batches]
        n_micro = min(
            grad_accum_steps, -(-len(whole.micro_batches[0].src) // world_size)
        )
        for share in shares:
            assert share[:3] == whole[:3] and len(share.micro_batches) == n_micro
            assert share.n_tokens == whole.n_tokens
        assert sentences(batches) == sentences(whole.micro_batches)
        assert sum(batch.n_tokens for batch in batches) == whole.n_tokens
        for batch in batches:
            if batch.n_tokens == 0:
                empty += 1
                assert [ids.tolist() for ids in batch[:3]] == [[[VOCAB.pad_id]]] * 3
    # 300 tokens are about 20 rows
    assert bool(empty) == (world_size == 64) or world_size == 3


@pytest.mark.parametrize(
    "how",
    [{}, {"rank": 1, "world_size": 3, "grad_accum_steps": 2}, {"max_len": 20}],
    ids=str,
)
def test_resumed_equals_uninterrupted(how):
    "From every position of more than two epochs, an epoch's end included."
    whole = list(map(plain, steps(2 * N_EPOCH + 3, **how)))
    for done in range(len(whole) - 1):
        start = whole[done - 1][0] if done else (0, 0, 0)
        assert plain(steps(1, start=start, **how)[0]) == whole[done]
    assert whole[0][3] != whole[N_EPOCH][3], "each epoch has its own order"
    rest = steps(len(whole) - 3, start=whole[2][0], **how)
    assert list(map(plain, rest)) == whole[3:]


@pytest.mark.parametrize("max_len", [1, 12, 29, 100])
def test_long_pairs_are_left_out(max_len, capsys):
    "All pairs of at most max_len tokens on either side and no other; of held-out text one line tells of the others."
    fits = [i for i, two in enumerate(zip(*LISTS)) if max(map(len, two)) <= max_len]
    wanted = sorted((LISTS[0][i], LISTS[1][i]) for i in fits)
    found = [
        pair
        for step in steps(2 * N_EPOCH, max_len=max_len)
        if step.epoch == 0
        for pair in sentences(step.micro_batches)
    ]
    assert sorted(found) == wanted
    some = drop_long_pairs(DATA, max_len)
    pairs = [(s.tolist(), t.tolist()) for s, t in zip(some.src, some.tgt)]
    assert sorted(pairs) == wanted
    left_out = f"validation leaves out {400 - len(fits)} of 400 pairs: "
    says = f"{left_out}they have more than max_len={max_len} tokens\n"
    assert capsys.readouterr().err == ("" if len(fits) == 400 else says)
    drop_long_pairs(DATA, max_len, quiet=True)
    assert capsys.readouterr().err == ""


def test_seeds_differ_by_step_and_rank():
    seeds = [
        step.seed for rank in range(4) for step in steps(50, rank=rank, world_size=4)
    ]
    assert len(set(seeds)) == 200 and seeds == [
        step.seed for rank in range(4) for step in steps(50, rank=rank, world_size=4)
    ]
    assert all(0 <= seed < 2**32 for seed in seeds)


# Prepared text on disk

TEXT = [
    (f"the {a} sees a {b}", f"der {b} sieht ein {a}") for a, b in product(WORDS, WORDS)
]
HARD = [("two  spaces ", "\u2581 \u2028"), ("\ttab", "x\x85")]


def made(folder, text=TEXT, valid=HARD, sha="a1", vocab_size=320, **how):
    return prepare(folder, text, valid, sha, vocab_size, quiet=True, **how)


def same(a: EncodedPairs, b: EncodedPairs) -> bool:
    return all(
        np.array_equal(*parts)
        for x, y in ((a.src, b.src), (a.tgt, b.tgt))
        for parts in ((x.ids, y.ids), (x.starts, y.starts))
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared") / "data"
    made(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return shutil.copytree(original, tmp_path / "data")


@pytest.fixture
def nothing_is_made(monkeypatch):
    def never(*_):
        raise AssertionError("the text was prepared again")

    monkeypatch.setattr(module, "learn_bpe", never)


def test_prepared_is_encoded(folder, capsys, nothing_is_made):
    for found in (open_prepared(folder), made(folder), made(str(folder))):
        assert same(found.train, encode_pairs(TEXT, found.vocab))
        assert same(found.valid, encode_pairs(HARD, found.vocab))
        # mapped, two bytes an id
        assert found.train.src.ids.base is not None
        assert found.train.src.ids.dtype == np.uint16
        with pytest.raises(ValueError, match="read-only"):
            found.train.src.ids[0] = 5
    assert capsys.readouterr() == ("", "") and os.listdir(folder.parent) == ["data"]


@pytest.mark.parametrize(
    "change", [{"sha": "b2"}, {"vocab_size": 310}, {"n_sample": 9}]
)
def test_other_text_is_encoded_again(folder, change):
    found = made(folder, text=TEXT[:50], **change)
    assert same(found.train, encode_pairs(TEXT[:50], found.vocab))
    assert os.listdir(folder.parent) == ["data"]


def test_bpe_dropout_depends_on_seed_and_epoch_alone(vocab_and_text):
    "Not on what was sampled before, nor on the thread; decoding gives the text back."
    vocab, text = vocab_and_text
    data = encode_pairs(text, vocab)

    def sample(seed: int, epoch: int) -> list[list[int]]:
        pairs = BPEDropout(vocab, 0.2, seed)(data, epoch)
        return [row.tolist() for side in (pairs.src, pairs.tgt) for row in side]

    first = sample(0, 0)
    assert sample(1, 0) != first != sample(0, 1)
    assert sample(0, 0) == first
    with ThreadPoolExecutor() as threads:
        assert threads.submit(sample, 0, 0).result() == first
    sentences = [sentence for side in zip(*text, strict=True) for sentence in side]
    assert [vocab.decode(ids) for ids in first] == sentences


def test_bpe_dropout_samples_as_sentencepiece(vocab_and_text):
    "Without dropout the same ids; with it the same number of tokens on average."
    vocab, pairs = vocab_and_text
    odd = ["", "  two  spaces ", "a\ttab", "a ﬁne day", "Kaffee ☕", "<s> <unk> <0x41>"]
    text = [sentence for pair in pairs for sentence in pair]
    plain = [vocab.encode(sentence) for sentence in odd + text]
    assert sample_segmentation(odd + text, vocab, 0.0, 0) == plain
    for dropout in (0.1, 0.5):
        ours = sum(map(len, sample_segmentation(text * 5, vocab, dropout, 0)))
        spaced = [" " + sentence for sentence in text * 5]
        theirs = sum(
            len(ids)
            for ids in vocab.pieces.encode(
                spaced, enable_sampling=True, alpha=dropout, nbest_size=-1
            )
        )
        assert abs(ours / theirs - 1) < 0.01  # 5 standard deviations or more


@pytest.fixture(scope="module")
def vocab_and_text():
    text = [(s.en, s.de) for s in builtin(200, seed=0)]
    return learn_bpe((s for pair in text for s in pair), 500), text
