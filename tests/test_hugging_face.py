"The same weights in transformers: the same logits in every shape, the same ids and sentences, a folder whole or none; the page on serving."

import importlib.util
import json
import math
import os
import random
import re
import subprocess
import sys
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from notebooks import joined

from annotated_transformer import UserError
from annotated_transformer.cli.main import main
from annotated_transformer.data.batch import pad_ids
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import SPACE, learn_bpe
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    search_with,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.export.hugging_face import (
    _EXTRA_POSITIONS,
    _MAX_POSITIONS,
    _check_run,
    _marian_config,
    _marian_weights,
    export_hf,
)
from annotated_transformer.export.model_card import _training_command, model_card
from annotated_transformer.model.config import (
    RECIPES,
    ModelConfig,
    Recipe,
    TrainConfig,
    get_recipe,
    override,
)
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.stack import PreNorm
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import create_run, load_run, write_config
from annotated_transformer.runs.train_run import RunOptions, train_run
from annotated_transformer.runs.weights import read_tensors, save_weights
from annotated_transformer.translating.load import load
from annotated_transformer.translating.marian import build_marian, marian_names
from annotated_transformer.translating.marian_import import import_marian

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# nats: two sentences so close are ordered by rounding, as in test_ct2
TIE = 1e-4
TEXT = [
    "the old dog sleeps under the bridge.",
    "der alte Hund schläft unter der Brücke.",
    "where is my cat?",
    "Ünï — 漢字",
]


@pytest.fixture(scope="module")
def vocab():
    return learn_bpe(TEXT * 3, 320)


def random_run(path: Path, vocab, about: dict | None = None, **sizes) -> Path:
    "A run whose every weight is random, norms and biases too: none of them may be lost or swapped unseen."
    max_len = sizes.pop("max_len", 40)
    config = ModelConfig(
        **{"n_layers": 2, "d_model": 32, "d_ff": 64, "n_heads": 2, **sizes}
    )
    torch.manual_seed(1)
    model = build_transformer(config, len(vocab), vocab.pad_id)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            torch.nn.init.normal_(weight, mean=float("norm.weight" in name), std=0.3)
    recipe = Recipe(config, TrainConfig(max_len=max_len))
    create_run(path, recipe, about or {})
    vocab.save(path / "vocab.model")
    write_config(path, recipe, about or {})
    save_weights(model, path / "model.safetensors")
    return path


def loaded(folder: Path, **more):
    "Their model, in which no weight is missing or left over."
    model, found = transformers.MarianMTModel.from_pretrained(
        folder, output_loading_info=True, **more
    )
    assert not any(found[kind] for kind in ("unexpected_keys", "mismatched_keys"))
    # positions are computed, and copies of the shared matrix are tied to it
    ours = {"model.shared.weight", "final_logits_bias", *model.state_dict()}
    stored = read_tensors(folder / "model.safetensors").keys()
    rest = {name for name in ours - stored if "embed_" not in name}
    assert stored <= ours and rest <= {"lm_head.weight"}
    return model.eval()


def tokenizer_of(folder: Path):
    return transformers.AutoTokenizer.from_pretrained(folder)


def random_ids(vocab, shape: tuple[int, int]) -> torch.Tensor:
    "Ids of tokens, rows of different lengths, EOS, padding."
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(4, len(vocab), shape, generator=rng)
    for i, row in enumerate(ids):
        row[max(1, shape[1] - i) :] = vocab.pad_id
    return ids


# the model


SHAPES = [
    {},
    {"n_layers": 1, "n_heads": 1},
    {"n_layers": 3, "n_heads": 8},
    {"d_k": 16, "d_v": 16},
    {"d_model": 6, "n_heads": 3, "d_ff": 5},
    {"d_model": 2, "n_heads": 1, "d_ff": 1},
]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_shape(tmp_path, vocab, sizes, attention):
    "Logits; those at padding mean nothing."
    run = load_run(random_run(tmp_path / "run", vocab, **sizes))
    theirs = loaded(
        export_hf(tmp_path / "run", tmp_path / "out"), attn_implementation=attention
    )
    src, tgt = random_ids(vocab, (8, 12)), random_ids(vocab, (8, 12)).flip(0)
    tgt[:, 0] = vocab.bos_id
    with torch.no_grad():
        mine = run.model.embedding.logits(run.model(src, tgt))
        mask = (src != vocab.pad_id).long()
        other = theirs(src, mask, decoder_input_ids=tgt).logits
    real = tgt != vocab.pad_id
    assert mine[real].std() > 0.1
    # float32 sums of tens of terms of a few units lose some of the last digit, 5e-7
    assert (mine - other)[real].abs().max() < 5e-5


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_only_rounding_differs(tmp_path, vocab, sizes):
    "In 64 bits the order of additions changes 1e-14, and a weight in the wrong place would change units."
    run = load_run(random_run(tmp_path / "run", vocab, **sizes))
    config = _marian_config(run.recipe, vocab)
    weights = _marian_weights(run.model.state_dict(), config)
    model = build_marian(config).eval().double()
    model.load_state_dict({marian_names(config)[k]: w for k, w in weights.items()})
    src, tgt = random_ids(vocab, (8, 12)), random_ids(vocab, (8, 12)).flip(0)
    run.model.double()
    with torch.no_grad():
        a, b = (m.embedding.logits(m(src, tgt)) for m in (run.model, model))
    assert (a - b)[tgt != vocab.pad_id].abs().max() < 1e-11


def test_every_position_is_ours(tmp_path, vocab):
    "To the last bit, although the library computes them itself."
    run = load_run(random_run(tmp_path / "run", vocab, max_len=700))
    theirs = loaded(export_hf(tmp_path / "run", tmp_path / "out"))
    table = run.model.position(torch.zeros(1, 752, 32))[0]
    halves = torch.cat([table[:, ::2], table[:, 1::2]], dim=1)
    for side in (theirs.model.encoder, theirs.model.decoder):
        assert torch.equal(side.embed_positions.weight, halves)


def in_our_order(name: str, weight: torch.Tensor) -> torch.Tensor:
    "The inverse of the export, written down by dimensions: every dimension that holds features of the residual stream."
    half = len(weight) // 2 if weight.dim() == 1 else None
    ours = lambda w, dim: torch.stack(w.chunk(2, dim), dim + 1).flatten(dim, dim + 1)
    if "norm" in name or name.endswith("w_2.bias"):
        return torch.stack([weight[:half], weight[half:]], dim=1).flatten()
    if re.search(r"w_[oq2kv1]\.weight|embedding\.weight", name):
        return ours(weight, 0 if re.search(r"w_[o2]\.", name) else 1)
    return weight


def test_round_trip_is_exact(tmp_path, vocab):
    "Export, then import: each weight of the run bit for bit, in its own order again, and zeros for what the run has not."
    run = random_run(tmp_path / "run", vocab)
    import_marian(export_hf(run, tmp_path / "out"), tmp_path / "back")
    before, after = (
        read_tensors(folder / "model.safetensors")
        for folder in (run, tmp_path / "back")
    )
    assert before.keys() < after.keys()
    for name, weight in after.items():
        if name in before:
            assert torch.equal(in_our_order(name, weight), before[name]), name
        else:
            assert name.endswith(".bias") and not weight.any(), name
    exported = read_tensors(tmp_path / "out/model.safetensors")
    names = marian_names(_marian_config(load_run(run).recipe, vocab))
    assert all(torch.equal(exported[k], after[names[k]]) for k in exported)


# token ids


def fuzzed_lines(n: int) -> list[str]:
    "Random characters of several scripts, spaces, controls, and text that looks like a token."
    rng = random.Random(0)
    parts = [
        "a",
        "é",
        "ß",
        "漢",
        "🐕",
        " ",
        "  ",
        "\t",
        "\u200b",
        "ﬁ",
        "„",
        "’",
        "\x00",
    ]
    parts += ["</s>", "<pad>", "<unk>", "<s>", "<0xE2>", "\u00a0", "\ufeff", "e\u0301"]
    kinds = [
        lambda: rng.choice(parts),
        lambda: chr(rng.randrange(32, 127)),
        lambda: chr(rng.randrange(0xA0, 0xD800)),
        lambda: chr(rng.randrange(0xE000, 0x110000)),
    ]
    lines = ["".join(rng.choice(kinds)() for _ in range(i % 40 + 1)) for i in range(n)]
    return [line.replace(SPACE, "_") for line in lines]


def test_ids_and_text(trained):
    "10,000 random lines and real ones become our ids, and any ids our text, but for spaces at its ends."
    run, folder, sentences = trained
    vocab, tokenizer = run.vocab, tokenizer_of(folder / "out")
    lines = [*fuzzed_lines(10_000), *sentences, *(s.de for s in builtin(200, seed=3))]
    lines += ["„Punctuation“ — ‘quotes’ … % 1 000,5", " a ", "\n", "x" * 5000]
    for line in lines:
        assert tokenizer(line).input_ids == [*vocab.encode(line), vocab.eos_id], line
    rng = random.Random(1)
    for _ in range(2000):
        ids = [rng.randrange(len(vocab)) for _ in range(rng.randrange(12))]
        theirs = tokenizer.decode(ids, skip_special_tokens=True)
        assert theirs == vocab.decode(ids).strip(), ids


def test_ids_that_differ(trained):
    "The three kinds of lines that the notebook names."
    run, folder, _ = trained
    vocab, tokenizer = run.vocab, tokenizer_of(folder / "out")
    same = lambda line: tokenizer(line).input_ids == [*vocab.encode(line), 3]
    assert not any(map(same, [">>deu<< a dog", f"a{SPACE}dog", ""]))
    assert all(map(same, ["a >>deu<< dog", ">>deu a dog", " "]))
    assert tokenizer("").input_ids == [vocab.eos_id]


# sentences


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    "A run of some seconds, its folder, 500 held-out sentences."
    folder = tmp_path_factory.mktemp("trained")
    settings = [
        "d_model=64",
        "d_ff=128",
        "n_pieces=600",
        "batch_tokens=800",
        "max_steps=120",
        "warmup_steps=40",
        "peak_lr=5e-3",
    ]
    corpus = load_corpus("builtin", n_train=3000, n_valid=50, n_test=500)
    recipe = override(get_recipe("tiny"), settings)
    train_run(corpus, recipe, folder / "run", RunOptions("cpu", quiet=True))
    export_hf(folder / "run", folder / "out")
    return load_run(folder / "run"), folder, [source for source, _ in corpus.test]


def ours(run, sentences, limit, search):
    "Our hypotheses, all with one limit."
    rows = [[*run.vocab.encode(s), run.vocab.eos_id] for s in sentences]
    with torch.no_grad():
        decoder = KVCache(run.model)
        state = decoder.start(pad_ids(rows, run.vocab.pad_id))
        ends = run.vocab.bos_id, run.vocab.eos_id
        found = search(decoder.step, state, *ends, torch.full((len(rows),), limit))
    return [best for best, *_ in found]


def theirs(folder, sentences, limit, **settings) -> list[str]:
    model, tokenizer = loaded(folder), tokenizer_of(folder)
    batch = tokenizer(sentences, return_tensors="pt", padding=True)
    ids = model.generate(**batch, max_length=limit + 1, **settings)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def assert_equal_but_for_ties(run, sentences, mine, other, penalty, n_ties=5) -> None:
    "Where a sentence differs, its score under our model is the same."
    vocab, gaps = run.vocab, []
    for sentence, a, text in zip(sentences, mine, other, strict=True):
        if vocab.decode(a.ids).strip() == text:
            continue
        src = torch.tensor([[*vocab.encode(sentence), vocab.eos_id]])
        ids = [*vocab.encode(text), vocab.eos_id]
        with torch.no_grad():
            hidden = run.model(src, torch.tensor([[vocab.bos_id, *ids[:-1]]]))
            log_probs = run.model.embedding.logits(hidden)[0].log_softmax(dim=-1)
        score = log_probs[range(len(ids)), ids].sum().item() / penalty(len(ids))
        gaps.append(abs(a.score - score))
    print(f"{len(gaps)} of {len(mine)} sentences differ, by {max(gaps, default=0):.0e}")
    assert len(gaps) <= n_ties and max(gaps, default=0) < TIE


def power(n, alpha):
    return n**alpha


@pytest.mark.parametrize("limit", [40, 3])
def test_greedy(trained, limit):
    run, folder, sentences = trained
    mine = ours(run, sentences, limit, batched_greedy_search)
    other = theirs(folder / "out", sentences, limit, num_beams=1, early_stopping=False)
    assert_equal_but_for_ties(run, sentences, mine, other, lambda n: 1)


@pytest.mark.parametrize(
    "beam_size, alpha, limit", [(4, 0.6, 40), (2, 1.0, 25), (5, 0.0, 3), (4, 1.0, 3)]
)
def test_beam_with_their_penalty(trained, beam_size, alpha, limit):
    "At a limit of 3 nearly every hypothesis is cut, so the rules at the limit agree too."
    run, folder, sentences = trained
    penalty = partial(power, alpha=alpha)
    search = partial(batched_beam_search, beam_size=beam_size, penalty=penalty)
    mine = ours(run, sentences, limit, search)
    settings = {"num_beams": beam_size, "length_penalty": alpha}
    other = theirs(folder / "out", sentences, limit, **settings)
    assert_equal_but_for_ties(run, sentences, mine, other, penalty)


def test_the_folders_own_search(trained):
    "Without options: beam 4 without a length penalty, as `translate --alpha 0`."
    run, folder, sentences = trained
    model = loaded(folder / "out")
    assert model.generation_config.max_length == run.recipe.train.max_len + 52
    assert model.generation_config.bad_words_ids == [[run.vocab.pad_id]]
    mine = ours(run, sentences, 60, search_with(4, 0.0))
    other = theirs(folder / "out", sentences, 60)
    assert_equal_but_for_ties(run, sentences, mine, other, lambda n: 1)
    lines = sentences[:20]
    assert (
        load(folder / "run", search=search_with(4, 0.0)).translate(lines) == other[:20]
    )


def test_the_papers_penalty_has_no_equal(trained):
    "0.45 is nearer to it than 0 and than 0.6, at the length of these sentences."
    run, folder, sentences = trained
    mine = ours(run, sentences, 60, search_with(4, 0.6))
    texts = [run.vocab.decode(best.ids).strip() for best in mine]
    equal = {}
    for alpha in (0.0, 0.45, 0.6):
        other = theirs(folder / "out", sentences, 60, length_penalty=alpha)
        equal[alpha] = sum(a == b for a, b in zip(texts, other))
    print(equal)
    assert max(equal, key=equal.get) == 0.45


def test_a_line_beyond_the_last_position(trained):
    "Theirs fails, as the page on serving says; ours translates in parts."
    run, folder, _ = trained
    line = "the dog sleeps " * run.recipe.train.max_len
    with pytest.raises(IndexError):
        theirs(folder / "out", [line], 5)
    assert load(folder / "run").translate([line])[0]


def test_pipeline(trained):
    "transformers 5 has none for translation, and says so; version 4 had one."
    _, folder, sentences = trained
    if int(transformers.__version__.split(".")[0]) >= 5:
        with pytest.raises(KeyError, match="translation has been removed"):
            transformers.pipeline("translation", str(folder / "out"))
        return
    pipe = transformers.pipeline("translation", str(folder / "out"))
    found = [one["translation_text"] for one in pipe(sentences[:20])]
    assert found == theirs(folder / "out", sentences[:20], 60)


def test_imported_again(trained, tmp_path):
    "The run, exported and imported, translates as its folder does, and is refused a second time."
    run, folder, sentences = trained
    import_marian(folder / "out", tmp_path / "back")
    back = load(tmp_path / "back")
    assert back.max_tokens == run.recipe.train.max_len
    mine = load(folder / "run", search=search_with(4, 0.0)).translate(sentences[:100])
    assert back.translate(sentences[:100]) == mine
    with pytest.raises(UserError, match="back was imported from Marian: transformers"):
        export_hf(tmp_path / "back", tmp_path / "again")


def test_saved_by_transformers(trained, tmp_path):
    "What it saves can be loaded and imported like the folder itself."
    run, folder, sentences = trained
    loaded(folder / "out").save_pretrained(tmp_path / "saved")
    tokenizer_of(folder / "out").save_pretrained(tmp_path / "saved")
    lines = [*sentences[:20], "a </s> b", " two  spaces"]
    tokenizer = tokenizer_of(tmp_path / "saved")
    for line in lines:
        assert tokenizer(line).input_ids == [*run.vocab.encode(line), run.vocab.eos_id]
    assert theirs(tmp_path / "saved", lines, 60) == theirs(folder / "out", lines, 60)
    import_marian(tmp_path / "saved", tmp_path / "back")
    a, b = (read_tensors(tmp_path / x / "model.safetensors") for x in ("saved", "back"))
    assert torch.equal(a["model.shared.weight"], b["embedding.weight"])


# refusals


@pytest.mark.parametrize(
    "sizes, says",
    [
        ({"norm": "pre"}, "norm=pre cannot be exported .* has norm=post"),
        (
            {"position": "learned", "n_positions": 90},
            "position=learned cannot be exported .* has position=sinusoidal",
        ),
        ({"d_k": 8}, "d_k=8 and d_v=16 cannot .* both are d_model / n_heads = 16"),
        ({"d_v": 8}, "d_k=16 and d_v=8 cannot"),
        ({"n_heads": 3, "d_k": 8, "d_v": 8}, "d_k=8 and d_v=8 .* n_heads = 10.6667"),
        ({"max_len": _MAX_POSITIONS - _EXTRA_POSITIONS + 1}, "max_len=4045 .* 4044 is"),
    ],
)
def test_refusals(tmp_path, vocab, capsys, sizes, says):
    "One line on standard error, exit status 2, no folder."
    run = random_run(tmp_path / "run", vocab, **sizes)
    with pytest.raises(SystemExit) as left:
        main(["export-hf", str(run), str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert (left.value.code, out, err.count("\n")) == (2, "", 1)
    assert re.match(f"annotated-transformer: {says}", err), err
    assert not (tmp_path / "out").exists()


def test_the_longest_that_is_allowed(tmp_path, vocab):
    longest = _MAX_POSITIONS - _EXTRA_POSITIONS
    run = random_run(tmp_path / "run", vocab, max_len=longest, d_model=4)
    settings = json.loads(
        (export_hf(run, tmp_path / "out") / "config.json").read_text()
    )
    assert settings["max_position_embeddings"] == _MAX_POSITIONS


def test_modules_that_it_does_not_know_are_refused(tmp_path, vocab):
    "They may have the same weights and another formula."

    class Rotary(MultiHeadAttention):
        pass

    run = load_run(random_run(tmp_path / "run", vocab))
    _check_run(run)
    attn = run.model.decoder.layers[0].self_attn
    was, attn.attend = attn.attend, lambda query, key, value, mask: value
    with pytest.raises(
        UserError, match=r"layers\.0\.self_attn is a Fused.*transformers"
    ):
        _check_run(run)
    kind, attn.attend, attn.__class__ = attn.__class__, was, Rotary
    with pytest.raises(UserError, match=r"decoder\.layers\.0\.self_attn is a Rotary"):
        _check_run(run)
    attn.__class__ = kind
    run.model.encoder.layers[1].residuals[0].__class__ = PreNorm
    with pytest.raises(UserError, match=r"layers\.1\.residuals\.0 is a PreNorm"):
        _check_run(run)


def test_weights_that_it_does_not_know_are_refused(tmp_path, vocab):
    "A bias of our own would otherwise be lost, or taken for Marian's."
    run = load_run(random_run(tmp_path / "run", vocab))
    weights, config = run.model.state_dict(), _marian_config(run.recipe, vocab)
    with pytest.raises(UserError, match="position.table, strange: no place"):
        more = {"strange": torch.zeros(1), "position.table": torch.zeros(1)}
        _marian_weights(weights | more, config)


# the folder

FILES = {
    *("README.md", "config.json", "generation_config.json", "model.safetensors"),
    *("source.spm", "target.spm", "tokenizer_config.json", "vocab.json"),
}


def test_where_it_goes(tmp_path, vocab, monkeypatch):
    "A new folder, with those above it, or an empty one; nothing over something else, and nothing half."
    run = random_run(tmp_path / "run", vocab)
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "a/b/new", tmp_path / "empty"):
        assert export_hf(run, out) == out
        assert {file.name for file in out.iterdir()} == FILES
        assert len({file.stat().st_mode for file in out.iterdir()}) == 1
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "empty", run):
        with pytest.raises(UserError, match=f"{out.name} is (not empty|a file)"):
            export_hf(run, out)
    with pytest.raises(UserError, match="file is a file, so .*file/below cannot be"):
        export_hf(run, tmp_path / "file/below")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(
        "annotated_transformer.export.hugging_face.save_file",
        lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(OSError, match="half cannot be written: .*No space left"):
        export_hf(run, tmp_path / "half")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


def test_nothing_of_this_machine_is_in_it(tmp_path, vocab):
    "No path, although config.json of a run names its text and its data folder."
    source = {"src": f"{tmp_path}/secret.en", "tgt": f"{tmp_path}/secret.de"}
    about = {"data": "own", "src_lang": "src", "tgt_lang": "tgt", "source": source}
    out = export_hf(random_run(tmp_path / "run", vocab, about), tmp_path / "out")
    for file in out.iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), file
        assert b"secret" not in file.read_bytes(), file


# the model card


def card_of(tmp_path, about: dict, name: str = "some-model", passes=(), **settings):
    "The card of a run folder without a model, and what the Hub's library reads in it."
    hub = pytest.importorskip("huggingface_hub")
    recipe = get_recipe("multi30k-tiny")
    recipe = replace(recipe, train=replace(recipe.train, **settings))
    create_run(tmp_path / "run", recipe, about)
    lines = "".join(f"{json.dumps(record)}\n" for record in passes)
    (tmp_path / "run/metrics.jsonl").write_text(lines)
    card = model_card(name, tmp_path / "run", recipe, about)
    return card, hub.ModelCard(card).data


def test_card(tmp_path):
    passes = [
        {"step": 1, "valid_loss": 9.0, "valid_ppl": 8103.1, "valid_bleu": 0.1},
        {"step": 2, "loss": 1.0},
        {"step": 3, "valid_loss": 2.0, "valid_ppl": 7.389, "valid_bleu": 31.25},
    ]
    about = {"data": "multi30k", "src_lang": "en", "tgt_lang": "de", "steps": 3}
    about["weights"] = "average of 10 checkpoints"
    card, data = card_of(tmp_path, about, passes=passes, dropout=0.25)
    assert (data.language, data.license) == (["en", "de"], None)
    assert (data.library_name, data.pipeline_tag) == ("transformers", "translation")
    assert data.datasets == ["bentrevett/multi30k"]
    scores = {x.metric_type: x for x in data.eval_results}
    assert scores["bleu"].metric_value == 31.25
    assert scores["bleu"].metric_args["signature"].startswith("nrefs:1|case:mixed")
    assert scores["perplexity"].metric_value == 7.389
    assert "31.25 (validation text, step 3, greedy; signature `nrefs:1|" in card
    assert "--data multi30k --config multi30k-tiny --out RUN dropout=0.25\n" in card
    assert "Weights: average of 10 checkpoints." in card


def test_card_of_own_text(tmp_path):
    about = {"data": "own", "src_lang": "en", "tgt_lang": "pt-BR"}
    card, data = card_of(tmp_path, about)
    assert data.language == ["en", "pt"] and "to translate from en to pt-BR" in card
    assert "--src SOURCE --tgt TARGET --src-lang en --tgt-lang pt-BR" in card


@pytest.mark.parametrize("languages", [("src", "tgt"), (None, None), ("en", None)])
def test_card_without_scores_or_languages(tmp_path, languages):
    "An earlier version gave own text the languages src and tgt."
    about = {"data": "own"} | dict(zip(("src_lang", "tgt_lang"), languages))
    card, data = card_of(tmp_path, about)
    assert (data.language, data.datasets, data.eval_results) == (None, None, None)
    assert "The run has none." in card and "--src SOURCE --tgt TARGET" in card


def test_card_of_the_pretrained_run(tmp_path):
    "The command that it shows makes a run of other text, so the card says so."
    export_hf(Path("demo"), tmp_path / "hf")
    card = (tmp_path / "hf/README.md").read_text("utf-8")
    assert "Text: builtin, with copies in other cases." in card
    card, _ = card_of(tmp_path, {"data": "builtin"})
    assert "Text: builtin." in card


def test_card_of_a_demo(tmp_path, vocab):
    "Its report counts as long as the weights are those that were measured."
    from annotated_transformer.io.files import sha256

    run = random_run(tmp_path / "run", vocab, {"data": "builtin"})
    report = {"weights_sha256": sha256(run / "model.safetensors"), "bleu": 99.5}
    report |= {"exact_match": 0.98, "n_sentences": 1000}
    (run / "report.json").write_text(json.dumps(report))
    make = lambda: model_card("x", run, load_run(run).recipe, {"data": "builtin"})
    assert "- BLEU: 99.5 (1000 held-out sentences, beam 4, α 0.6; sig" in make()
    assert "- exact match: 0.98 (1000 held-out" in make()
    (run / "report.json").write_text(json.dumps(report | {"weights_sha256": "0"}))
    assert "99.5" not in make()


def test_card_of_a_strange_run(tmp_path):
    "What a run says of itself may come from somebody else, and stays text."
    about = {"data": "x`\n---\n", "src_lang": 'e"', "tgt_lang": "de", "weights": "`# A"}
    passes = [{"step": 1, "valid_loss": 1.0, "valid_ppl": math.inf, "valid_bleu": -1}]
    name = 'a"b`c\n---\ud800/..'
    card, data = card_of(tmp_path, about, name=name, passes=passes)
    assert card.encode() and data.language is None and "# A" not in card
    assert re.search(r"^# a_b_c_---__..$", card, re.M) and "perplexity" not in card


@pytest.mark.parametrize("name", RECIPES)
def test_the_command_gives_the_settings(name):
    recipe = override(get_recipe(name), ["seed=7", "clip_norm=1.5", "compile=true"])
    words = _training_command(recipe, None).split()
    known = get_recipe(words[words.index("--config") + 1])
    assert override(known, [word for word in words if "=" in word]) == recipe


def test_the_commit_is_this_checkouts(tmp_path, monkeypatch):
    "Not that of a repository in which an installed package happens to lie."
    from annotated_transformer import __version__, model_card

    git = lambda *words: subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    if git("ls-files", "settings.ini"):
        assert (
            f"{__version__}, commit {git('rev-parse', 'HEAD')}" in model_card._version()
        )
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(model_card, "files", lambda _: tmp_path)
    assert model_card._version() == __version__
    monkeypatch.setenv("PATH", str(tmp_path))
    assert model_card._version() == __version__


# the page on serving


def blocks_of_page(language: str = "") -> list[str]:
    "The code that the page shows."
    cells = json.loads((ROOT / "nbs/serving.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    text = "\n".join(joined(cell["source"]) for cell in cells)
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [code for its_language, code in found if its_language == language]


def code_with(words: str) -> str:
    (found,) = [code for code in blocks_of_page("python") if words in code]
    return found


@pytest.fixture(scope="module")
def served(trained, tmp_path_factory):
    "A folder with runs/mine, and what the page's commands make of it."
    folder, was = tmp_path_factory.mktemp("served"), Path.cwd()
    (folder / "runs").mkdir()
    (folder / "runs/mine").symlink_to(trained[1] / "run")
    os.chdir(folder)
    try:
        for line in "\n".join(blocks_of_page()).split("\n"):
            if line.startswith("annotated-transformer export-"):
                with pytest.raises(SystemExit) as left:
                    main(line.split()[1:])
                assert left.value.code == 0, line
    finally:
        os.chdir(was)
    (folder / "serve.py").write_text(code_with("FastAPI"), encoding="utf-8")
    return folder


def test_page_transformers(served, trained, monkeypatch):
    run, folder, sentences = trained
    monkeypatch.chdir(served)
    space: dict = {}
    exec(code_with("AutoTokenizer"), space)
    expected = load(folder / "run", search=search_with(4, 0.0)).translate(
        sentences[:20]
    )
    assert space["translate"](sentences[:20]) == expected


def test_page_ctranslate2(served, trained, monkeypatch):
    "Without the option of 8 bits, as the page says, the same sentences; with it, most of them."
    pytest.importorskip("ctranslate2")
    from annotated_transformer.export.ct2 import export_ct2

    run, folder, sentences = trained
    expected = load(folder / "run", search=search_with(4, 0.0)).translate(
        sentences[:50]
    )
    monkeypatch.chdir(served)
    code, space = code_with("import ctranslate2"), {}
    exec(code, space)
    found = space["translate"](sentences[:50])
    assert sum(a == b for a, b in zip(found, expected)) > 25
    export_ct2(Path("runs/mine"), Path("whole"))
    exec(code.replace("served-ct2", "whole"), space)
    assert space["translate"](sentences[:50]) == expected


@pytest.fixture(scope="module")
def client(served):
    "The page's server, in this process."
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    spec = importlib.util.spec_from_file_location("serve", served / "serve.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUN", str(served / "runs/mine"))
        patch.setitem(sys.modules, "serve", module)
        spec.loader.exec_module(module)
        yield TestClient(module.app)


def test_page_http(client, trained):
    run, folder, sentences = trained
    lines = [*sentences[:5], "", "Ünï — 漢字", "x " * 2000]
    answer = client.post("/translate", json={"lines": lines})
    assert answer.status_code == 200
    assert answer.json() == load(folder / "run").translate(lines)
    assert client.post("/translate", json={"lines": []}).json() == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"lines": ["a", 1]}',
        b'{"lines": "a dog"}',
        b"[]",
        b"{",
        b'{"lines": ["\\ud83d"]}',  # half of a surrogate pair
        json.dumps({"lines": ["a"] * 65}).encode(),
        json.dumps({"lines": ["a" * 5001]}).encode(),
    ],
    ids=lambda body: body[:24],
)
def test_page_http_refuses(client, body):
    answer = client.post("/translate", content=body)
    assert answer.status_code == 422 and answer.json()["detail"]


def test_page_http_has_twenty_lines():
    code = code_with("FastAPI").strip().split("\n")
    assert len([line for line in code if line]) <= 20


def test_page_server_starts(served, trained):
    "The page's command as a process of its own, on a free port."
    pytest.importorskip("uvicorn")
    run, folder, sentences = trained
    (line,) = [
        x for x in "\n".join(blocks_of_page()).split("\n") if "uvicorn serve" in x
    ]
    assert line == "RUN=runs/mine uvicorn serve:app --port 8000"
    words = line.replace("8000", "0").split()[1:]
    env = os.environ | {"RUN": "runs/mine", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", *words],
        cwd=served,
        env=env,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            address = None
            for log in server.stderr:
                if found := re.search(r"running on (http://127\.0\.0\.1:\d+)", log):
                    address = found[1]
                    break
            assert address, "the server ended"
            request = urllib.request.Request(
                f"{address}/translate",
                json.dumps({"lines": sentences[:2]}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                found = json.load(answer)
        finally:
            server.terminate()
    assert found == load(folder / "run").translate(sentences[:2])
