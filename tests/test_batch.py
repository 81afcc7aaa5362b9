"Batches: every pair once, under the budget, with hardly any padding, the same for the same seed and epoch; prepared text on disk (51c)."

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice, product

import numpy as np
import pytest
import torch
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from annotated_transformer import UserError
from annotated_transformer.data import prepared as module
from annotated_transformer.data.batch import (
    Batch,
    EncodedPairs,
    RaggedArray,
    RunPosition,
    _cut_points,
    _padding_share,
    bucket_by_length,
    collate,
    drop_long_pairs,
    encode_pairs,
    epoch_batches,
    id_dtype,
    pad_ids,
    training_steps,
)
from annotated_transformer.data.bpe_dropout import BPEDropout, sample_segmentation
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.prepared import (
    _ABOUT,
    _FILES,
    _open_pairs,
    _write_pairs,
    open_prepared,
    prepare,
)
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.io.files import sha256

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


def test_pairs():
    assert len(DATA) == 400
    found = DATA.lengths()
    assert found.dtype == np.int32 and found.tolist() == [
        [len(s) + 1, len(t) + 1] for s, t in zip(*LISTS, strict=True)
    ]
    some = DATA.take(np.array([3, 1]))
    assert [row.tolist() for row in some.tgt] == [LISTS[1][3], LISTS[1][1]]
    swapped = replace(DATA, src=DATA.tgt)
    assert len(swapped) == 400 and swapped.src is swapped.tgt is DATA.tgt
    with pytest.raises(TypeError):  # two sides, but 400 pairs: take one by its name
        tuple(DATA)
    empty = EncodedPairs(RaggedArray.from_lists([]), RaggedArray.from_lists([]))
    assert (
        len(empty) == 0
        and empty.lengths().shape == (0, 2)
        and list(epoch_batches(empty, VOCAB, 100, seed=0, epoch=0)) == []
    )


def test_encode_pairs():
    text = [
        ("the dog", "der Hund"),
        ("a house \u2581 and", "ein Haus \u2028 und"),
        ("", ""),
    ]
    data = encode_pairs(iter(text), VOCAB)
    assert [
        (VOCAB.decode(s), VOCAB.decode(t)) for s, t in zip(data.src, data.tgt)
    ] == text and data.src.ids.dtype == np.uint16
    long = max(map(len, (*data.src, *data.tgt)))
    assert (
        len(encode_pairs(text, VOCAB, max_len=long)) == 3
        and len(encode_pairs(text, VOCAB, max_len=long - 1)) == 2
    )


# Order and cuts


@given(lengths_of_pairs, st.integers(50, 400), st.integers(0, 3))
def test_every_row_once_and_under_the_budget(lengths, budget, seed):
    batches = bucket_by_length(lengths, budget, np.random.default_rng(seed))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(
        len(rows) and lengths[rows].sum(axis=0).max() <= budget for rows in batches
    )


@given(lengths_of_pairs, st.integers(50, 400))
def test_cuts_are_those_of_a_walk(lengths, budget):
    points, used = [0], np.zeros(2)
    for i, row in enumerate(lengths):
        used = used + row
        if used.max() > budget:
            points, used = [*points, i], row
    assert _cut_points(lengths, budget) == [*points, len(lengths)]


def test_sums_beyond_32_bits():
    lengths = np.full((50, 2), 2**30, np.int32)
    assert _cut_points(lengths, 2**32) == [*range(0, 50, 4), 50]
    assert _cut_points(lengths[:0], 10) == [0]


def test_padding_share_by_hand():
    lengths = np.array([[3, 4], [5, 4]])
    assert _padding_share(lengths, [np.array([0, 1])]) == 1 - 16 / 18
    assert _padding_share(lengths, [np.array([0]), np.array([1])]) == 0


def test_zigzag_pads_less_than_sorting():
    lengths = np.random.default_rng(0).integers(5, 40, (4000, 2))
    batches = bucket_by_length(lengths, 1000, np.random.default_rng(0))
    order = np.argsort(lengths[:, 1], kind="stable")
    assert (
        _padding_share(lengths, batches)
        < _padding_share(lengths, np.array_split(order, len(batches))) / 2
    )


def test_multi30k_padding(data_dir):
    "At most 5 % at 4,096 tokens, of whole batches and of what three ranks with two goes each see of a step of six times as many."
    sides = []
    for language in ("en", "de"):
        with gzip.open(
            data_dir / "multi30k" / f"train.{language}.gz",
            "rt",
            encoding="utf-8",
            newline="\n",
        ) as f:
            sides.append([line.rstrip("\n") for line in f])
    vocab = learn_bpe((line for side in sides for line in side), 8000)
    lengths = encode_pairs(zip(*sides, strict=True), vocab).lengths()
    assert (
        _padding_share(
            lengths, bucket_by_length(lengths, 4096, np.random.default_rng(0))
        )
        <= 0.05
    )
    shared = [
        part
        for rows in bucket_by_length(lengths, 6 * 4096, np.random.default_rng(0))
        for part in np.array_split(rows, 6)
        if len(part)
    ]
    assert _padding_share(lengths, shared) <= 0.05


# Rectangles


@given(lists_of_ids, st.none() | st.just(2), st.none() | st.just(3))
def test_pad_ids_is_the_loop(lists, first, last):
    rows = [
        [*([] if first is None else [first]), *row, *([] if last is None else [last])]
        for row in lists
    ]
    longest = max(map(len, rows))
    wanted = [row + [0] * (longest - len(row)) for row in rows]
    found = pad_ids(lists, 0, first=first, last=last)
    assert (
        found.dtype == torch.int64
        and found.tolist()
        == wanted
        == pad_ids(
            RaggedArray.from_lists(lists, np.uint16), 0, first=first, last=last
        ).tolist()
    )


def test_every_pair_once_and_in_place():
    found = []
    for batch in epoch_batches(DATA, VOCAB, 300, seed=0, epoch=0):
        assert (
            batch.src.dtype == batch.tgt_in.dtype == batch.tgt_out.dtype == torch.int64
            and batch.tgt_in.shape == batch.tgt_out.shape
        )
        assert (
            batch.n_tokens
            == (batch.tgt_out != VOCAB.pad_id).sum()
            == (batch.tgt_in != VOCAB.pad_id).sum()
        )
        for src, read, say in zip(*batch[:3], strict=True):
            src, read, say = (
                [i for i in row.tolist() if i != VOCAB.pad_id]
                for row in (src, read, say)
            )
            assert (
                read[0] == VOCAB.bos_id
                and src[-1] == say[-1] == VOCAB.eos_id
                and read[1:] == say[:-1]
            )
            found.append((src[:-1], say[:-1]))
    assert sorted(found) == sorted(zip(*LISTS, strict=True))


def test_empty_sentences():
    pairs = encode_pairs([("", ""), ("the dog", "der Hund")], VOCAB)
    batch = collate(pairs.src, pairs.tgt, VOCAB)
    assert batch.src[0].tolist()[:2] == [*VOCAB.encode(""), VOCAB.eos_id]
    bare = collate(
        RaggedArray.from_lists([[]]), RaggedArray.from_lists([[]]), VOCAB
    )  # no piece at all, which `encode` never gives
    assert (
        bare.src.tolist() == bare.tgt_out.tolist() == [[VOCAB.eos_id]]
        and bare.tgt_in.tolist() == [[VOCAB.bos_id]]
        and bare.n_tokens == 1
    )


def test_to_a_device():
    batch = next(epoch_batches(DATA, VOCAB, 300, seed=0, epoch=0))
    there = batch.to(torch.device("cpu"))
    assert (
        type(there) is type(batch)
        and there.n_tokens == batch.n_tokens
        and torch.equal(there.src, batch.src)
    )


# Steps


def steps(n: int, **how) -> list:
    return list(islice(training_steps(DATA, VOCAB, 300, seed=0, **how), n))


def plain(step) -> tuple:
    return *step[:3], [
        [t.tolist() for t in batch[:3]] + [batch.n_tokens] for batch in step.micro
    ]


def sentences(micro: list[Batch]) -> list[tuple]:
    "The pairs of some batches as lists of ids, sorted; none for a row of padding."
    rows = (
        (src, say)
        for batch in micro
        if batch.n_tokens
        for src, say in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    )
    return sorted(
        ([i for i in src if i >= SPECIAL], [i for i in say if i >= SPECIAL])
        for src, say in rows
    )


N_EPOCH = sum(1 for _ in epoch_batches(DATA, VOCAB, 300, seed=0, epoch=0))


def test_seed_and_epoch_decide():
    def epoch(seed, epoch):
        return [
            batch.src.tolist() for batch in epoch_batches(DATA, VOCAB, 300, seed, epoch)
        ]

    assert epoch(0, 3) == epoch(0, 3)
    assert epoch(0, 3) != epoch(0, 4) and epoch(0, 3) != epoch(1, 3)
    together = training_steps(DATA, VOCAB, 300, seed=0)
    for number in range(3):
        for i_batch, src in enumerate(epoch(0, number)):
            step = next(together)
            assert step.position[1:] == (number, i_batch + 1)
            assert step.micro[0].src.tolist() == src
    assert [step.step for step in steps(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "world_size, accumulate",
    [(1, 2), (2, 1), (3, 4), (8, 1), (64, 2), (1, 10_000), (3, 10_000)],
)
def test_shares_are_the_whole_step(world_size, accumulate):
    "Over ranks and micro-batches: the same sentences, each once; the same count of tokens; as many micro-batches on every rank, no more than rows."
    ranks = [
        steps(N_EPOCH + 2, rank=rank, world_size=world_size, accumulate=accumulate)
        for rank in range(world_size)
    ]
    empty = 0
    for whole, *shares in zip(steps(N_EPOCH + 2), *ranks, strict=True):
        batches = [batch for share in shares for batch in share.micro]
        n_micro = min(accumulate, -(-len(whole.micro[0].src) // world_size))
        assert {
            (share.position, share.n_tokens, len(share.micro)) for share in shares
        } == {(whole.position, whole.n_tokens, n_micro)}
        assert (
            sentences(batches) == sentences(whole.micro)
            and sum(batch.n_tokens for batch in batches) == whole.n_tokens
        )
        for batch in batches:
            if batch.n_tokens == 0:
                assert (
                    batch.src.tolist()
                    == batch.tgt_in.tolist()
                    == batch.tgt_out.tolist()
                    == [[VOCAB.pad_id]]
                )
            empty += batch.n_tokens == 0
    if world_size == 64:
        assert empty  # 300 tokens are about 20 rows, for 64 batches
    if world_size == 1:
        assert not empty


def test_an_epoch_holds_every_pair_once_over_ranks():
    found = [
        pair
        for rank in range(3)
        for step in steps(N_EPOCH, rank=rank, world_size=3, accumulate=2)
        for pair in sentences(step.micro)
    ]
    assert sorted(found) == sorted(zip(*LISTS, strict=True))


@pytest.mark.parametrize(
    "how", [{}, {"rank": 1, "world_size": 3, "accumulate": 2}, {"max_len": 20}], ids=str
)
def test_resumed_equals_uninterrupted(how):
    "From every position of more than two epochs, an epoch's end included."
    whole = list(map(plain, steps(2 * N_EPOCH + 3, **how)))
    for done in range(len(whole) - 1):
        start = whole[done - 1][0] if done else RunPosition()
        assert plain(steps(1, start=start, **how)[0]) == whole[done]
    rest = steps(len(whole) - 3, start=whole[2][0], **how)
    assert list(map(plain, rest)) == whole[3:]


def test_long_pairs_are_left_out():
    lists = [(s, t) for s, t in zip(*LISTS, strict=True) if max(len(s), len(t)) <= 12]
    left = [step for step in steps(2 * N_EPOCH, max_len=12) if step.position.epoch == 0]
    assert 0 < len(lists) < 400 and sorted(
        pair for step in left for pair in sentences(step.micro)
    ) == sorted(lists)


@pytest.mark.parametrize("max_len", [1, 6, 19, 28, 29, 100])
def test_held_out_pairs_that_fit(max_len, capsys):
    "All pairs of at most max_len tokens on either side and no other; one line tells of the others."
    some = drop_long_pairs(DATA, max_len)
    kept = [i for i, sides in enumerate(zip(*LISTS)) if max(map(len, sides)) <= max_len]
    assert [row.tolist() for row in some.src] == [LISTS[0][i] for i in kept] and [
        row.tolist() for row in some.tgt
    ] == [LISTS[1][i] for i in kept]
    err = capsys.readouterr().err
    if len(kept) == len(DATA):
        assert err == "" and some is DATA
    else:
        assert err == (
            f"validation leaves out {len(DATA) - len(kept)} of 400 pairs: "
            f"they have more than max_len={max_len} tokens\n"
        )
    drop_long_pairs(DATA, max_len, quiet=True)
    assert capsys.readouterr().err == ""


def test_no_held_out_pair_fits():
    why = "no validation pair of 400 is left: all are longer than max_len=0"
    with pytest.raises(UserError, match=why):
        drop_long_pairs(DATA, 0)
    nothing = EncodedPairs(RaggedArray.from_lists([]), RaggedArray.from_lists([]))
    with pytest.raises(UserError, match="there is no validation pair"):
        drop_long_pairs(nothing, 10)


def test_seeds_differ_by_step_and_rank():
    seeds = [
        step.seed for rank in range(4) for step in steps(50, rank=rank, world_size=4)
    ]
    assert len(set(seeds)) == 200 and seeds == [
        step.seed for rank in range(4) for step in steps(50, rank=rank, world_size=4)
    ]
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_errors():
    with pytest.raises(
        ValueError,
        match=r"batch_tokens=20 is less than the longest sentence, \d+ tokens: raise it to \d+ .* max_len",
    ):
        next(epoch_batches(DATA, VOCAB, 20, seed=0, epoch=0))
    with pytest.raises(
        ValueError, match="no sentence pair of 1 is left: all are longer than max_len=1"
    ):
        encode_pairs([("the dog", "der Hund")], VOCAB, max_len=1)
    with pytest.raises(ValueError, match="no sentence pair"):
        encode_pairs([], VOCAB)
    with pytest.raises(ValueError, match="no sentence pair"):
        next(
            training_steps(
                EncodedPairs(RaggedArray.from_lists([]), RaggedArray.from_lists([])),
                VOCAB,
                300,
                seed=0,
            )
        )
    with pytest.raises(ValueError, match="no sentence pair of 400 is left"):
        steps(1, max_len=0)
    for how in ({"rank": 2, "world_size": 2}, {"rank": -1}, {"accumulate": 0}):
        with pytest.raises(
            ValueError, match="take 0 ≤ rank < world_size and accumulate ≥ 1"
        ):
            steps(1, **how)
    with pytest.raises(
        ValueError, match=f"i_batch=999 is beyond epoch 2 with its {N_EPOCH} batches"
    ):
        steps(1, start=RunPosition(999, 2, 999))


# Prepared text on disk

TEXT = [
    (f"the {a} sees a {b}", f"der {b} sieht ein {a}") for a, b in product(WORDS, WORDS)
]
HARD = [("two  spaces ", "\u2581 \u2028"), ("\ttab", "x\x85")]


def made(folder, text=TEXT, valid=HARD, sha="a1", n_pieces=320, **how):
    return prepare(folder, text, valid, sha, n_pieces, quiet=True, **how)


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
        assert same(found.train, encode_pairs(TEXT, found.vocab)) and same(
            found.valid, encode_pairs(HARD, found.vocab)
        )
        assert [
            (found.vocab.decode(s), found.vocab.decode(t))
            for s, t in zip(found.valid.src, found.valid.tgt, strict=True)
        ] == HARD
        assert (
            found.train.src.ids.base is not None
            and found.train.src.ids.dtype == np.uint16
        )  # mapped, two bytes an id
        with pytest.raises(ValueError, match="read-only"):
            found.train.src.ids[0] = 5
    assert (
        capsys.readouterr() == ("", "")
        and sorted(os.listdir(folder.parent)) == ["data"]
        and sorted(os.listdir(folder)) == sorted([*_FILES, _ABOUT])
    )


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"sha": "b2"}, "from other text"),
        ({"n_pieces": 310}, "with n_pieces=320, not 310"),
        ({"n_sample": 150}, "with n_sample=1000000, not 150"),
    ],
)
def test_other_text_is_not_overwritten(folder, change, reason, nothing_is_made):
    "Another run may be using it."
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        ValueError, match=f"data was made {reason}: choose another folder, or remove it"
    ):
        made(folder, **change)
    assert before == {
        path.name: path.read_bytes() for path in folder.iterdir()
    } and os.listdir(folder.parent) == ["data"]


def cut_short(path):
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path):
    path.write_bytes(bytes([*(content := path.read_bytes())[:-1], content[-1] ^ 1]))


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0\0")


@pytest.mark.parametrize(
    "damage", [cut_short, flip_a_bit, lengthen, os.remove], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("name", _FILES)
def test_damage_is_noticed(folder, damage, name):
    damage(folder / name)
    with pytest.raises(ValueError, match=f"{name} is missing or damaged"):
        open_prepared(folder)


def rewritten(folder, name, change):
    "Another array in place of one of the folder's, with its fingerprint in about.json."
    dtype = "<i8" if name.endswith("starts") else "<u2"
    change(np.fromfile(folder / name, dtype)).astype(dtype).tofile(folder / name)
    about = json.loads((folder / _ABOUT).read_text())
    about[name] = sha256(folder / name)
    (folder / _ABOUT).write_text(json.dumps(about))


def put(i, value):
    return lambda a: np.concatenate([a[:i], [value], a[i:][1:]])


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("side", ["src", "tgt"])
@pytest.mark.parametrize(
    "part, change, why",
    [
        ("ids", put(1, 320), "ids holds the id 320, but the vocabulary ends at 319"),
        ("ids", put(1, 65535), "ids holds the id 65535, but"),
        ("ids", lambda a: a[:-1], "ids is missing or damaged"),
        ("starts", put(0, 1), "starts does not rise from 0"),
        ("starts", put(1, -1), "starts does not rise from 0"),
        ("starts", put(1, 2**62), "starts does not rise from 0"),
        ("starts", put(1, -(2**63)), "starts does not rise from 0"),
        ("starts", lambda a: a[[0, -1]], "sentences, "),
        ("starts", lambda a: a[:0], "starts is missing or damaged"),
        ("starts", lambda a: a * 0, "starts is missing or damaged"),
        ("starts", lambda a: np.repeat(a, 99), "starts is missing or damaged"),
    ],
)
def test_numbers_that_no_vocabulary_writes(folder, split, side, part, change, why):
    "Their fingerprints are right, as in a folder that somebody else has made."
    rewritten(folder, f"{split}.{side}.{part}", change)
    with pytest.raises(UserError, match=why) as refused:
        open_prepared(folder)
    assert f"data/{split}." in str(refused.value)


@pytest.mark.parametrize("name", [*_FILES, _ABOUT])
def test_a_file_with_holes_is_not_read(folder, monkeypatch, name):
    "A terabyte that takes no room on the disk: its size alone shows that it is wrong."

    def read(path):
        assert path.stat().st_size < 10**6, path
        return sha256(path)

    monkeypatch.setattr(module, "sha256", read)
    os.truncate(folder / name, 2**40)
    with pytest.raises(UserError, match=f"{name} (is missing|has more than)"):
        open_prepared(folder)


@pytest.mark.parametrize(
    "about", ["", "{", "[]", "3", "null", '{"format": 1}', '{"format": 0}', b"\xff"]
)
def test_damaged_about(folder, about, nothing_is_made):
    "Nothing proves that the other files are ours: they stay."
    (folder / _ABOUT).write_bytes(about.encode() if isinstance(about, str) else about)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=str(folder)):
        open_prepared(folder)
    with pytest.raises(ValueError, match=str(folder)):
        made(folder)
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_of_somebody_else(tmp_path, nothing_is_made):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/vocab.model").write_text("my own")
    with pytest.raises(ValueError, match="mine is not a folder of prepared text"):
        made(tmp_path / "mine")
    assert (tmp_path / "mine/vocab.model").read_text() == "my own"


@pytest.mark.parametrize("name", [*_FILES, _ABOUT])
def test_links_are_refused(folder, tmp_path, name, nothing_is_made):
    "A folder that comes from elsewhere must hold its files itself."
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    for use in (open_prepared, made):
        with pytest.raises(ValueError, match=f"{name} is a link"):
            use(folder)


def test_damaged_is_not_replaced(folder, nothing_is_made):
    "It may be the user's own: the message says what to do."
    for name in _FILES[:3]:
        before = (folder / name).read_bytes()
        cut_short(folder / name)
        with pytest.raises(
            ValueError,
            match=f"{name} is missing or damaged: remove .*data to have it made again",
        ):
            made(folder)
        (folder / name).write_bytes(before)
    (folder / _FILES[1]).unlink()
    (folder / _FILES[1]).mkdir()
    (folder / _FILES[1] / "thesis.txt").write_text("the only copy")
    with pytest.raises(ValueError, match="to have it made again"):
        made(folder)
    assert (folder / _FILES[1] / "thesis.txt").read_text() == "the only copy"


def test_absent(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder of prepared text"):
        open_prepared(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert len(made(tmp_path / "empty").train) == len(TEXT)
    assert len(made(tmp_path / "new" / "and" / "deeper").train) == len(TEXT)


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("line 3")],
    ids=lambda e: type(e).__name__,
)
def test_interrupted_leaves_nothing_and_harms_nothing(folder, tmp_path, error, capsys):
    class Breaking(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield from islice(super().__iter__(), 100 if self.passes > 1 else None)
            if self.passes > 1:
                raise error

    with pytest.raises(type(error)):
        made(tmp_path / "other", Breaking(TEXT))
    assert os.listdir(tmp_path) == ["data"] and same(
        made(folder).train, open_prepared(folder).train
    )


def test_killed_in_between(tmp_path):
    "Half a folder next to the name, and none under it; the next to prepare removes it, because nobody holds it any more."
    code = f"""if True:
        from annotated_transformer.data.prepared import prepare
        from itertools import count
        class Slow:
            passes = 0
            def __iter__(self):
                self.passes += 1
                for i in range(300) if self.passes == 1 else count(): yield f"the dog {{i}}", f"der Hund {{i}}"
        prepare({str(tmp_path / "data")!r}, Slow(), [], "a1", 320, quiet=True)"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    try:
        for _ in range(600):
            if any(path.stat().st_size > 1000 for path in tmp_path.rglob("*.ids")):
                break
            time.sleep(0.05)
        else:
            raise AssertionError("nothing was written within 30 s")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    [half] = tmp_path.iterdir()
    assert half.name.startswith(".annotated_transformer-")
    (tmp_path / ".annotated_transformer-mine.part").mkdir()  # without a marker
    assert len(made(tmp_path / "data").train) == len(TEXT)
    (tmp_path / ".annotated_transformer-mine.part").rmdir()
    assert os.listdir(tmp_path) == ["data"]


def test_other_things_are_left_alone(folder, tmp_path):
    (folder / "thesis.txt").write_text("the only copy")
    assert len(made(folder).train) == len(TEXT), "to open it disturbs nobody"
    assert (folder / "thesis.txt").read_text() == "the only copy" and len(
        list(folder.iterdir())
    ) == len(_FILES) + 2
    (tmp_path / "file").write_text("text")
    with pytest.raises(ValueError, match="file is a file, and a folder is to be made"):
        made(tmp_path / "file")
    with pytest.raises(ValueError, match="is not a folder of prepared text"):
        open_prepared(tmp_path / "file")


def test_two_at_once(tmp_path, monkeypatch):
    "The second finds what the first has made, and takes it."
    write = module._write_prepared

    def slow(*args):
        write(*args)
        if not (tmp_path / "data").exists():
            with monkeypatch.context() as patch:
                patch.setattr(module, "_write_prepared", write)
                made(tmp_path / "data")

    monkeypatch.setattr(module, "_write_prepared", slow)
    assert len(made(tmp_path / "data").train) == len(TEXT) and os.listdir(tmp_path) == [
        "data"
    ]


def test_no_text(tmp_path):
    assert len(made(tmp_path / "data", valid=[]).valid) == 0
    with pytest.raises(ValueError, match="the text is empty"):
        made(tmp_path / "none", text=[])
    assert os.listdir(tmp_path) == ["data"]


def test_progress_on_standard_error(tmp_path, capsys):
    prepare(tmp_path / "data", TEXT, HARD, "a1", 320)
    out, err = capsys.readouterr()
    assert out == "" and all(
        f"{what}: 100%" in err
        for what in ("vocabulary", "train to ids", "valid to ids")
    )


class Numbers:
    "Stands in for a vocabulary of any size: a sentence is written as its ids."

    def __init__(self, n: int):
        self.n = n

    def __len__(self) -> int:
        return self.n

    def encode_many(self, texts: list[str]) -> list[list[int]]:
        return [[*map(int, text.split())] for text in texts]


@pytest.mark.parametrize(
    "n_vocab, dtype", [(2**16, np.uint16), (2**16 + 1, np.int32), (250_000, np.int32)]
)
def test_many_pieces_and_many_chunks(tmp_path, n_vocab, dtype):
    "The largest id is kept; more sentences than are encoded at a time, and rows without any id, come back as they were."
    rng = np.random.default_rng(0)
    sides = [
        [rng.integers(0, n_vocab, n).tolist() for n in rng.integers(0, 4, 25_000)]
        for _ in "st"
    ]
    sides[0][-1] = [n_vocab - 1]
    _write_pairs(
        tmp_path / "x",
        zip(
            *([" ".join(map(str, ids)) for ids in side] for side in sides), strict=True
        ),
        Numbers(n_vocab),
    )
    pairs = _open_pairs(tmp_path / "x", id_dtype(n_vocab))
    for rows, side in zip((pairs.src, pairs.tgt), sides, strict=True):
        assert (
            rows.ids.dtype == dtype
            and [row.tolist() for row in rows] == side
            and len(rows.ids) == len(list(chain.from_iterable(side)))
        )


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


SAMPLE = """
import sys
from pathlib import Path
from annotated_transformer.data.bpe_dropout import sample_segmentation
from annotated_transformer.data.vocab import Vocab
text = Path(sys.argv[2]).read_text(encoding="utf-8").split("\\n")
print(sample_segmentation(text, Vocab.load(Path(sys.argv[1])), 0.2, 3))
"""


def test_bpe_dropout_is_the_same_in_another_process(vocab_and_text, tmp_path):
    "As a resumed run and the ranks of a parallel one need it."
    vocab, pairs = vocab_and_text
    text = [sentence for pair in pairs[:20] for sentence in pair]
    vocab.save(tmp_path / "vocab.model")
    (tmp_path / "text").write_text("\n".join(text), encoding="utf-8")
    command = [
        sys.executable,
        "-c",
        SAMPLE,
        tmp_path / "vocab.model",
        tmp_path / "text",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == sample_segmentation(text, vocab, 0.2, 3)


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


def test_bpe_dropout_keeps_what_it_cannot_sample(vocab_and_text):
    "Without dropout nothing changes; SentencePiece's own sign and too long samples stay."
    vocab, text = vocab_and_text
    data = encode_pairs([*text, ("a▁b", "  ")], vocab)
    for segment in (BPEDropout(vocab, 0.0, 0), BPEDropout(vocab, 0.9, 0, max_len=1)):
        pairs = segment(data, 0)
        for side, plain in ((pairs.src, data.src), (pairs.tgt, data.tgt)):
            assert [row.tolist() for row in side] == [row.tolist() for row in plain]
    sampled = BPEDropout(vocab, 0.9, 0)(data, 0)
    assert vocab.decode(sampled.src[len(text)]) == "a▁b"
    assert len(sampled.src.ids) > len(data.src.ids)


@pytest.fixture(scope="module")
def vocab_and_text():
    text = [(s.en, s.de) for s in builtin(200, seed=0)]
    return learn_bpe((s for pair in text for s in pair), 500), text
