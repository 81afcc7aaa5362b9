"The same weights in CTranslate2: the same log-probabilities in every shape, the same sentences, a folder whole or none."

import subprocess
import sys
from unittest import mock

import pytest
import torch
from small_runs import TIE, random_run, trained_run

from annotated_transformer import UserError
from annotated_transformer.data.batch import pad_ids
from annotated_transformer.engines.batched_search import (
    search_with,
)
from annotated_transformer.export.ct2 import N_POSITIONS, export_ct2
from annotated_transformer.runs.checkpoint import save_weights
from annotated_transformer.runs.folder import load_run
from annotated_transformer.translating.load import load

ctranslate2 = pytest.importorskip("ctranslate2")
CT2 = "ctranslate2"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    "A random run, and its export."
    folder = tmp_path_factory.mktemp("small")
    random_run(folder / "run")
    export_ct2(folder / "run", folder / "out")
    return folder


def random_rows(n: int, longest: int, n_vocab: int) -> list[list[int]]:
    rng = torch.Generator().manual_seed(0)
    lengths = [1 + i % longest for i in range(n)]
    return [torch.randint(4, n_vocab, (n,), generator=rng).tolist() for n in lengths]


def largest_gap(folder, run, src, tgt) -> float:
    "Of any word's log-probability, the end's included, over all sentences."
    engine = ctranslate2.Translator(str(folder), intra_threads=1, inter_threads=1)
    vocab = run.vocab
    pad, bos, eos = vocab.pad_id, vocab.bos_id, vocab.eos_id
    with torch.no_grad():
        inputs = [row + [eos] for row in src], [[bos] + row for row in tgt]
        hidden = run.model(*(pad_ids(rows, pad) for rows in inputs))
        log_probs = run.model.embedding.logits(hidden).log_softmax(dim=-1)
    gaps, words = [], [[vocab.tokens(row) for row in side] for side in (src, tgt)]
    theirs = engine.score_batch(*words, max_input_length=0)
    for found, ours, row in zip(theirs, log_probs, tgt, strict=True):
        mine = ours[range(len(row) + 1), [*row, eos]]
        gaps.append((torch.tensor(found.log_probs) - mine).abs().max().item())
    return max(gaps)


@pytest.mark.parametrize(
    "sizes",
    [
        {"norm": "pre", "position": "learned", "n_positions": 41},
        {"n_layers": 3, "n_heads": 8},
        {"d_model": 6, "n_heads": 4, "d_k": 5, "d_v": 5},
    ],
    ids=str,
)
def test_every_shape(tmp_path, sizes):
    "Log-probabilities of a few nats in float32, whose last digit is 5e-7; sums of hundreds of terms lose some tens of them."
    run = load_run(random_run(tmp_path / "run", **sizes))
    n_vocab = len(run.vocab)
    src, tgt = random_rows(40, 40, n_vocab), random_rows(40, 39, n_vocab)[::-1]
    out = export_ct2(tmp_path / "run", tmp_path / "out")
    assert largest_gap(out, run, src, tgt) < 5e-5


def test_long_input_is_not_cut(small):
    "The engine cuts at 1,024 tokens unless told otherwise; the table holds twice as many."
    run = load_run(small / "run")
    src = (random_rows(200, 200, len(run.vocab))[-1] * 11)[: N_POSITIONS - 1]
    assert len(src) == N_POSITIONS - 1  # with EOS, as many as there are
    assert largest_gap(small / "out", run, [src], [[5, 6, 7]]) < 5e-5


# sentences


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "Pre-norm, learned positions; the notebook's run is post-norm, sinusoidal."
    folder = tmp_path_factory.mktemp("trained")
    learned = "position=learned", "n_positions=120", "max_len=119"
    sentences = trained_run(folder / "run", "norm=pre", *learned)
    export_ct2(folder / "run", folder / "out")
    run = load_run(folder / "run")
    return run, folder, [run.vocab.encode(source) for source in sentences]


ALONE = """
import re, sys
sys.modules["torch"] = sys.modules["annotated_transformer"] = None
(code,) = re.findall("```python\\n(.*?)```", open("README.md").read(), re.DOTALL)
lines = sys.stdin.buffer.read().decode().split("\\n")
exec(code)
sys.stdout.buffer.write("\\n".join(translations).encode())
"""


def test_the_readme_translates(trained):
    "Its lines as they are written, without PyTorch and this package; letters that the vocabulary lacks go through as bytes."
    run, folder, rows = trained
    lines = [run.vocab.decode(row) for row in rows[:50]]
    lines += ["Ünï — 漢字 went home.", "  two  spaces ", ""]
    command, asked = [sys.executable, "-c", ALONE], "\n".join(lines).encode()
    said = subprocess.check_output(command, cwd=folder / "out", input=asked)
    expected = load(folder / "run", search=search_with(4, 0.0)).translate(lines)
    assert said.decode().split("\n") == expected


# inside our translator


@pytest.mark.parametrize("how", [{}, {"beam_size": 1}, {"n_best": 4}, {"alpha": 0.0}])
def test_the_engine_in_our_translator(trained, how):
    "Text and scores of ours, in one batch with long lines, empty ones and bytes."
    run, folder, rows = trained
    lines = [run.vocab.decode(row) for row in rows]
    lines += ["", "  ", "Ünï — 漢字 \u2581 went.", " ".join(lines[:30])]
    search = search_with(**how)
    mine, other = (
        load(folder / "run", search=search, engine=engine).n_best(lines)
        for engine in ("pytorch", CT2)
    )
    assert [len(found) for found in mine] == [len(found) for found in other]
    pairs = [pair for some, more in zip(mine, other) for pair in zip(some, more)]
    assert sum(a.text != b.text for a, b in pairs) <= 0.01 * len(pairs)
    assert max(abs(a.score - b.score) for a, b in pairs) < 20 * TIE


def test_limits_and_padding(tmp_path):
    "A model whose likeliest token is padding, and which never stops: neither is in a translation."
    run = load_run(random_run(tmp_path / "run"))
    with torch.no_grad():  # along the mean of the hidden states
        norm = run.model.decoder.layers[-1].residuals[2].norm
        run.model.embedding.weight[run.vocab.pad_id] = 2 * norm.bias
    save_weights(run.model, tmp_path / "run/model.safetensors")
    rows = [[*row, run.vocab.eos_id] for row in random_rows(20, 12, len(run.vocab))]
    for how in ({"beam_size": 1}, {"n_best": 2}):
        mine, other = (
            load(tmp_path / "run", search=search_with(**how), engine=engine)
            for engine in ("pytorch", CT2)
        )
        raw = other.search.translate([run.vocab.tokens(rows[0])], max_decoding_length=5)
        assert "<pad>" in raw[0].hypotheses[0]
        mine, other = mine.search_ids(rows), other.search_ids(rows)
        lengths = [[len(one.ids) for one in found] for found in other]
        assert lengths == [[len(one.ids) for one in found] for found in mine]
        assert not any(0 in one.ids for found in other for one in found)


def test_an_unknown_engine_is_named(small):
    with pytest.raises(UserError, match="engine='onnx' is neither pytorch nor ctran"):
        load(small / "run", engine="onnx")


# the folder


def test_no_half_folder(small, tmp_path, monkeypatch):
    fail = mock.Mock(side_effect=OSError("No space left on device"))
    monkeypatch.setattr(f"{export_ct2.__module__}.write_sentencepiece", fail)
    with pytest.raises(OSError, match="half cannot be written: .*No space left"):
        export_ct2(small / "run", tmp_path / "half")
    assert not (tmp_path / "half").exists()
