"The same weights in CTranslate2: the same log-probabilities in every shape, the same sentences, a folder whole or none."

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from annotated_transformer import UserError
from annotated_transformer.data.batch import pad_ids
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    eos_among_best,
    search_with,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.export.ct2 import (
    _N_POSITIONS,
    _QUANTIZATIONS,
    _engine_spec,
    export_ct2,
)
from annotated_transformer.model.config import (
    ModelConfig,
    Recipe,
    TrainConfig,
    get_recipe,
    override,
)
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import create_run, load_run, write_config
from annotated_transformer.runs.train_run import RunOptions, train_run
from annotated_transformer.runs.weights import save_weights
from annotated_transformer.translating.load import load

ctranslate2 = pytest.importorskip("ctranslate2")

TIE = 1e-4  # nats: two sentences so close are ordered by rounding. Float32 sums of 40 words were seen to differ by 2e-5
TEXT = [
    "the old dog sleeps under the bridge.",
    "der alte Hund schläft unter der Brücke.",
    "where is my cat?",
    "Ünï — 漢字",
]


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(TEXT * 3, 320)


def random_run(path: Path, vocab, **sizes) -> Path:
    "A run whose every weight is random, norms and biases too: none of them may be lost or swapped unseen."
    config = ModelConfig(
        **{"n_layers": 2, "d_model": 32, "d_ff": 64, "n_heads": 2, **sizes}
    )
    torch.manual_seed(1)
    model = build_transformer(config, len(vocab), vocab.pad_id)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            torch.nn.init.normal_(weight, mean=float("norm.weight" in name), std=0.3)
    recipe = Recipe(config, TrainConfig(max_len=40))
    create_run(path, recipe, {})
    vocab.save(path / "vocab.model")
    write_config(path, recipe, {})
    save_weights(model, path / "model.safetensors")
    return path


def engine_of(folder: Path):
    return ctranslate2.Translator(str(folder), intra_threads=1, inter_threads=1)


def log_probs(run, src: list[list[int]], tgt: list[list[int]]) -> list[torch.Tensor]:
    "Ours, of each word of each target and of its end."
    pad, bos, eos = run.vocab.pad_id, run.vocab.bos_id, run.vocab.eos_id
    tgt_out = pad_ids([row + [eos] for row in tgt], pad)
    with torch.no_grad():
        hidden = run.model(
            pad_ids([row + [eos] for row in src], pad),
            pad_ids([[bos] + row for row in tgt], pad),
        )
        found = (
            run.model.embedding.logits(hidden)
            .log_softmax(dim=-1)
            .gather(2, tgt_out[..., None])[..., 0]
        )
    return [row[: len(ids) + 1] for row, ids in zip(found, tgt)]


def largest_gap(engine, run, src, tgt) -> float:
    "Of any word's log-probability, over all sentences."
    words = [[run.vocab.words(row) for row in side] for side in (src, tgt)]
    theirs = [
        torch.tensor(found.log_probs)
        for found in engine.score_batch(*words, max_input_length=0)
    ]
    return max(
        float((a - b).abs().max())
        for a, b in zip(theirs, log_probs(run, src, tgt), strict=True)
    )


def random_rows(n: int, longest: int, n_vocab: int) -> list[list[int]]:
    rng = torch.Generator().manual_seed(0)
    return [
        torch.randint(4, n_vocab, (1 + i % longest,), generator=rng).tolist()
        for i in range(n)
    ]


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"norm": "pre"},
        {"position": "learned", "n_positions": 70},
        {"norm": "pre", "position": "learned", "n_positions": 41},
        {"n_layers": 1, "n_heads": 1},
        {"n_layers": 3, "n_heads": 8},
        {"d_k": 32, "d_v": 32},
        {"d_k": 4, "d_v": 4, "norm": "pre"},
        {"d_model": 6, "n_heads": 4, "d_k": 5, "d_v": 5},
    ],
    ids=str,
)
def test_every_shape(tmp_path, vocab, sizes):
    run = load_run(random_run(tmp_path / "run", vocab, **sizes))
    src, tgt = random_rows(40, 40, len(vocab)), random_rows(40, 39, len(vocab))[::-1]
    # Log-probabilities of a few nats in float32, whose last digit is 5e-7 there; sums of hundreds of terms lose some tens of them.
    assert (
        largest_gap(
            engine_of(export_ct2(tmp_path / "run", tmp_path / "out")), run, src, tgt
        )
        < 5e-5
    )


def test_long_input_is_not_cut(tmp_path, vocab):
    "The engine cuts at 1,024 tokens unless told otherwise; the table holds twice as many, and beyond it the engine refuses."
    run = load_run(random_run(tmp_path / "run", vocab))
    engine = engine_of(export_ct2(tmp_path / "run", tmp_path / "out"))
    (src,), tgt = (
        random_rows(3000, 3000, len(vocab))[_N_POSITIONS - 2 : _N_POSITIONS - 1],
        [[5, 6, 7]],
    )
    assert len(src) + 1 == _N_POSITIONS and largest_gap(engine, run, [src], tgt) < 5e-5
    with pytest.raises(RuntimeError, match=f"positions >= {_N_POSITIONS}"):
        engine.translate_batch([run.vocab.words([*src, 5])], max_input_length=0)


# sentences


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "A run of some seconds (pre-norm, learned positions; the notebook's is post-norm, sinusoidal), its folder, 500 unseen sentences."
    folder = tmp_path_factory.mktemp("trained")
    settings = [
        "d_model=64",
        "d_ff=128",
        "n_pieces=600",
        "batch_tokens=800",
        "max_steps=120",
        "warmup_steps=40",
        "peak_lr=5e-3",
        "norm=pre",
        "position=learned",
        "n_positions=120",
        "max_len=119",
    ]
    corpus = load_corpus("builtin", n_train=3000, n_valid=50, n_test=500)
    run = load_run(
        train_run(
            corpus,
            override(get_recipe("tiny"), settings),
            folder / "run",
            RunOptions("cpu", quiet=True),
        )
    )
    export_ct2(folder / "run", folder / "out")
    return run, folder, [run.vocab.encode(source) for source, _ in corpus.test]


def ours(run, rows, limit, search, **options) -> list[list]:
    src = pad_ids([row + [run.vocab.eos_id] for row in rows], run.vocab.pad_id)
    with torch.no_grad():
        return search(
            KVCache(run.model).step,
            KVCache(run.model).start(src),
            run.vocab.bos_id,
            run.vocab.eos_id,
            torch.full((len(rows),), limit),
            **options,
        )


def theirs(run, engine, rows, limit, **options) -> list[list[tuple[list[int], float]]]:
    found = engine.translate_batch(
        [run.vocab.words(row) for row in rows],
        return_scores=True,
        max_decoding_length=limit,
        min_decoding_length=0,
        max_input_length=0,
        **options,
    )
    return [
        [
            ([run.vocab.pieces.piece_to_id(word) for word in words], score)
            for words, score in zip(one.hypotheses, one.scores)
        ]
        for one in found
    ]


def assert_equal_but_for_ties(mine, other, n_ties: int) -> None:
    "Every score agrees, and where a sentence differs its score is the same: at most so often."
    gaps = [
        abs(a.score - b[1])
        for some, others in zip(mine, other, strict=True)
        for a, b in zip(some, others, strict=True)
    ]
    different = sum(
        a.ids != b[0] for some, others in zip(mine, other) for a, b in zip(some, others)
    )
    print(
        f"{different} of {len(gaps)} sentences differ, all ties; largest difference of scores {max(gaps):.0e}"
    )
    assert max(gaps) < TIE and different <= n_ties


@pytest.mark.parametrize("limit", [40, 3])
def test_greedy(trained, limit):
    "The engine's score of a greedy sentence is its log-probability."
    run, folder, rows = trained
    other = theirs(
        run, engine_of(folder / "out"), rows, limit, beam_size=1, length_penalty=0
    )
    assert_equal_but_for_ties(
        ours(run, rows, limit, batched_greedy_search), other, n_ties=5
    )


@pytest.mark.parametrize(
    "alpha, patience, beam, n_best, limit",
    [
        (0, 1, 4, 1, 40),
        (0, 1, 4, 1, 3),
        (1, 20, 4, 1, 25),
        (0.6, 20, 2, 1, 25),
        (1, 40, 4, 3, 12),
    ],
)
def test_beam(trained, alpha, patience, beam, n_best, limit):
    "Without a penalty the engine's early stop is exact; with one it needs patience. One tie swaps two sentences of an n-best list."
    run, folder, rows = trained
    mine = ours(
        run,
        rows,
        limit,
        batched_beam_search,
        beam_size=beam,
        n_best=n_best,
        penalty=lambda n: n**alpha,
        may_end=eos_among_best,
    )
    other = theirs(
        run,
        engine_of(folder / "out"),
        rows,
        limit,
        beam_size=beam,
        num_hypotheses=n_best,
        length_penalty=alpha,
        patience=patience,
    )
    assert_equal_but_for_ties(mine, other, n_ties=5 * n_best)


def test_impatience_only_loses(trained):
    "At the engine's default patience a sentence that differs scores lower than ours."
    run, folder, rows = trained
    mine = ours(
        run, rows, 40, batched_beam_search, penalty=lambda n: n, may_end=eos_among_best
    )
    other = theirs(
        run, engine_of(folder / "out"), rows, 40, beam_size=4, length_penalty=1
    )
    gaps = [a.score - b[1] for (a,), (b,) in zip(mine, other)]
    assert min(gaps) > -TIE and max(gaps) > TIE


def test_fewer_bits(trained, tmp_path):
    "Smaller files that still translate; how many sentences stay the same is printed, since nothing promises it."
    run, folder, rows = trained
    greedy = [some[0].ids for some in ours(run, rows, 40, batched_greedy_search)]
    sizes, gaps = [], []
    for kind in _QUANTIZATIONS:
        engine = engine_of(export_ct2(folder / "run", tmp_path / kind, kind))
        sizes.append((tmp_path / kind / "model.bin").stat().st_size)
        gaps.append(largest_gap(engine, run, rows, greedy))
        same = sum(
            ids == found
            for ids, ((found, _),) in zip(
                greedy, theirs(run, engine, rows, 40, beam_size=1)
            )
        )
        print(
            f"{kind}: {sizes[-1]} bytes, {same} of {len(rows)} sentences the same, a word's log-probability within {gaps[-1]:.0e}"
        )
        assert (
            same > len(rows) / 2
        )  # a folder that is wrong, and not only rounded, keeps next to none
    assert sizes == sorted(sizes, reverse=True) and gaps == sorted(gaps)


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
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=folder / "out",
        input="\n".join(lines).encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    expected = load(folder / "run", search=search_with(4, 0.0)).translate(lines)
    assert done.stdout.decode().split("\n") == expected


# the folder


def test_quantising_leaves_the_model_alone(tmp_path, vocab):
    run = load_run(random_run(tmp_path / "run", vocab))
    before = {name: weight.clone() for name, weight in run.model.state_dict().items()}
    spec = _engine_spec(run)
    spec.validate()
    spec.optimize("int8")
    assert all(
        torch.equal(weight, before[name])
        for name, weight in run.model.state_dict().items()
    )


def test_where_it_goes(tmp_path, vocab, monkeypatch):
    "A new folder, with those above it, or an empty one; nothing over something else, and nothing half."
    run = random_run(tmp_path / "run", vocab)
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "a/b/new", tmp_path / "empty"):
        assert export_ct2(run, out) == out
        assert {file.name for file in out.iterdir()} == {
            "README.md",
            "config.json",
            "model.bin",
            "shared_vocabulary.json",
            "source.spm",
            "target.spm",
        }
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "empty", run):
        with pytest.raises(ValueError, match=f"{out.name} is (not empty|a file)"):
            export_ct2(run, out)
    with pytest.raises(
        ValueError, match="file is a file, so .*file/below cannot be a folder"
    ):
        export_ct2(run, tmp_path / "file/below")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(
        "annotated_transformer.export.ct2.write_sentencepiece",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(OSError, match="half cannot be written: .*No space left"):
        export_ct2(run, tmp_path / "half")
    assert (
        sorted(tmp_path.rglob("*")) == before
        and (tmp_path / "file").read_text() == "mine"
    )


@pytest.mark.parametrize(
    "sizes, kind, says",
    [
        ({}, "int4", "quantization='int4' is none of float32"),
        ({"d_k": 8}, "int8", "d_k=8 and d_v=16"),
        ({"d_v": 8}, "float32", "d_k=16 and d_v=8"),
    ],
)
def test_refusals(tmp_path, vocab, sizes, kind, says):
    with pytest.raises(ValueError, match=says):
        export_ct2(random_run(tmp_path / "run", vocab, **sizes), tmp_path / "out", kind)
    assert not (tmp_path / "out").exists()


def test_modules_that_it_does_not_know_are_refused(tmp_path, vocab):
    "They may have the same weights and another formula."

    class Rotary(MultiHeadAttention):
        pass

    run = load_run(random_run(tmp_path / "run", vocab))
    _engine_spec(run)
    attn = run.model.decoder.layers[0].self_attn
    was, attn.attend = attn.attend, lambda query, key, value, mask: value
    with pytest.raises(UserError, match=r"decoder\.layers\.0\.self_attn is a Fused"):
        _engine_spec(run)
    attn.attend, attn.__class__ = was, Rotary
    with pytest.raises(UserError, match=r"decoder\.layers\.0\.self_attn is a Rotary"):
        _engine_spec(run)


def test_without_the_engine(tmp_path, vocab, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(
        ValueError,
        match=r"^ctranslate2 is not installed: pip install 'annotated_transformer\[ct2\]'$",
    ):
        export_ct2(random_run(tmp_path / "run", vocab), tmp_path / "out")
    with pytest.raises(ValueError, match="is not a run folder"):
        export_ct2(tmp_path, tmp_path / "out")


def test_a_run_from_marian(tmp_path):
    "It has weights that the table does not know; the engine converts the original by itself."
    (tmp_path / "config.json").write_text('{"format": 1, "kind": "marian"}')
    with pytest.raises(
        ValueError, match="was imported from Marian: .*ct2-transformers-converter"
    ):
        export_ct2(tmp_path, tmp_path / "out")
