"The same weights in transformers: the same logits in every shape, the same ids and sentences, a folder whole or none; the page on serving."

import importlib.util
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cells import joined
from conftest import ROOT
from small_runs import HAS_VNNI, TIE, random_run, small_vocab, trained_run

from annotated_transformer import UserError, __version__
from annotated_transformer.cli.main import main
from annotated_transformer.data.batch import pad_ids
from annotated_transformer.data.corpus import DATA_SETS
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import SPACE
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
    search_with,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.export import model_card as cards
from annotated_transformer.export.hugging_face import (
    _marian_config,
    _marian_weights,
    export_hf,
)
from annotated_transformer.export.model_card import _training_command, model_card
from annotated_transformer.io.files import sha256
from annotated_transformer.model.config import RECIPES, get_recipe, override
from annotated_transformer.model.stack import PreNorm
from annotated_transformer.runs.folder import load_run, write_config
from annotated_transformer.runs.weights import read_tensors
from annotated_transformer.translating.ct2 import export_ct2
from annotated_transformer.translating.load import load
from annotated_transformer.translating.marian import build_marian, marian_names
from annotated_transformer.translating.marian_import import import_marian

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def vocab():
    return small_vocab()


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    "A random run, and its export."
    folder = tmp_path_factory.mktemp("small")
    random_run(folder / "run")
    export_hf(folder / "run", folder / "out")
    return folder


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
    {"n_layers": 1, "n_heads": 1},
    {"n_layers": 3, "n_heads": 8, "d_k": 4, "d_v": 4},
    {"d_model": 6, "n_heads": 3, "d_ff": 5},
    {"d_model": 2, "n_heads": 1, "d_ff": 1},
]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@torch.no_grad()
def test_every_shape(tmp_path, vocab, sizes):
    "Logits, but at padding; in 64 bits the order of additions changes 1e-14, a weight in the wrong place units."
    run = load_run(random_run(tmp_path / "run", **sizes))
    export_hf(tmp_path / "run", tmp_path / "out")
    src, tgt = random_ids(vocab, (8, 12)), random_ids(vocab, (8, 12)).flip(0)
    tgt[:, 0] = vocab.bos_id
    mask, real = (src != vocab.pad_id).long(), tgt != vocab.pad_id
    mine = run.model.embedding.logits(run.model(src, tgt))[real]
    assert mine.std() > 0.1
    for attention in ("eager", "sdpa"):
        theirs = loaded(tmp_path / "out", attn_implementation=attention)
        other = theirs(src, mask, decoder_input_ids=tgt).logits[real]
        # float32 sums of tens of terms of a few units lose some of the last digit, 5e-7
        assert (mine - other).abs().max() < 5e-5
    config = _marian_config(run.recipe, vocab)
    weights, model = _marian_weights(run.model, config), build_marian(config).eval()
    model.load_state_dict({marian_names(config)[k]: w for k, w in weights.items()})
    a, b = (m.double().embedding.logits(m(src, tgt)) for m in (run.model, model))
    assert (a - b)[real].abs().max() < 1e-11


def test_every_position_is_ours(tmp_path):
    "To the last bit, although the library computes them itself."
    run = load_run(random_run(tmp_path / "run", max_len=700))
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


def test_round_trip_is_exact(small, tmp_path):
    "Export, then import: each weight of the run bit for bit, in its own order again, and zeros for what the run has not."
    import_marian(small / "out", tmp_path / "back")
    before, after = (
        read_tensors(folder / "model.safetensors")
        for folder in (small / "run", tmp_path / "back")
    )
    assert before.keys() < after.keys()
    for name, weight in after.items():
        if name in before:
            assert torch.equal(in_our_order(name, weight), before[name]), name
        else:
            assert name.endswith(".bias") and not weight.any(), name


# token ids


def fuzzed_lines(n: int) -> list[str]:
    "Random characters of several scripts, spaces, controls, and text that looks like a token."
    rng = random.Random(0)
    parts = [*"aéß漢🐕 \t\u200bﬁ„’\x00\u00a0\ufeff", "  ", "e\u0301"]
    parts += ["</s>", "<pad>", "<unk>", "<s>", "<0xE2>"]
    kinds = [
        lambda: rng.choice(parts),
        lambda: chr(rng.randrange(32, 127)),
        lambda: chr(rng.randrange(0xA0, 0xD800)),
        lambda: chr(rng.randrange(0xE000, 0x110000)),
    ]
    lines = ["".join(rng.choice(kinds)() for _ in range(i % 40 + 1)) for i in range(n)]
    return [line.replace(SPACE, "_") for line in lines]


def test_ids_and_text(trained):
    "Random lines and real ones become our ids, and any ids our text, but for spaces at its ends."
    run, folder, sentences = trained
    vocab, tokenizer = run.vocab, tokenizer_of(folder / "out")
    lines = [*fuzzed_lines(1000), *sentences, *(s.de for s in builtin(200, seed=3))]
    lines += ["„Punctuation“ — ‘quotes’ … % 1 000,5", " a ", "\n", " ", "x" * 5000]
    lines += ["a >>deu<< dog", ">>deu a dog"]
    ids_of = lambda line: tokenizer(line).input_ids
    for line in lines:
        assert ids_of(line) == [*vocab.encode(line), vocab.eos_id], line
    # the three kinds of lines that the notebook names
    for line in (">>deu<< a dog", f"a{SPACE}dog", ""):
        assert ids_of(line) != [*vocab.encode(line), vocab.eos_id]
    assert ids_of("") == [vocab.eos_id]
    rng = random.Random(1)
    for _ in range(500):
        ids = [rng.randrange(len(vocab)) for _ in range(rng.randrange(12))]
        theirs = tokenizer.decode(ids, skip_special_tokens=True)
        assert theirs == vocab.decode(ids).strip(), ids


# sentences


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    sentences = trained_run(folder / "run")
    export_hf(folder / "run", folder / "out")
    return load_run(folder / "run"), folder, sentences


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


@pytest.mark.parametrize(
    "beam_size, alpha, limit", [(1, 0.0, 40), (1, 0.0, 3), (4, 0.6, 40), (2, 1.0, 3)]
)
def test_search_with_their_penalty(trained, beam_size, alpha, limit):
    "At a limit of 3 nearly every hypothesis is cut, so the rules at the limit agree too."
    run, folder, sentences = trained
    penalty = lambda n: n**alpha
    search = partial(batched_beam_search, beam_size=beam_size, penalty=penalty)
    settings = {"num_beams": beam_size, "length_penalty": alpha}
    if beam_size == 1:
        search, settings = batched_greedy_search, {"num_beams": 1}
        settings["early_stopping"] = False
    mine = ours(run, sentences, limit, search)
    other = theirs(folder / "out", sentences, limit, **settings)
    assert_equal_but_for_ties(run, sentences, mine, other, penalty)


def test_the_folders_own_search(trained):
    "Without options: beam 4 without a length penalty, as `translate --alpha 0`."
    run, folder, sentences = trained
    model = loaded(folder / "out")
    assert model.generation_config.max_length == run.recipe.train.max_len + 52
    assert model.generation_config.bad_words_ids == [[run.vocab.pad_id]]
    assert model.generation_config.early_stopping == "never"
    mine = ours(run, sentences, 60, search_with(4, 0.0))
    other = theirs(folder / "out", sentences, 60)
    assert_equal_but_for_ties(run, sentences, mine, other, lambda n: 1)
    lines = sentences[:20]
    assert (
        load(folder / "run", search=search_with(4, 0.0)).translate(lines) == other[:20]
    )


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
        ({"position": "learned", "n_positions": 90}, "position=learned cannot be exp"),
        ({"d_k": 8}, "d_k=8 cannot be exported to transformers: its .* has d_k=16"),
        ({"d_v": 8}, "d_v=8 cannot be exported"),
        ({"n_heads": 3, "d_k": 8, "d_v": 8}, "d_k=8 cannot be exported .* has d_k=10"),
    ],
)
def test_refusals(tmp_path, capsys, sizes, says):
    "One line on standard error, exit status 2, no folder."
    run = random_run(tmp_path / "run", **sizes)
    with pytest.raises(SystemExit) as left:
        main(["export-hf", str(run), str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert (left.value.code, out, err.count("\n")) == (2, "", 1)
    assert re.match(f"annotated-transformer: {says}", err), err
    assert not (tmp_path / "out").exists()


def test_parts_that_it_does_not_know_are_refused(small):
    "As by CTranslate2: another formula, and a weight that would be lost."
    run = load_run(small / "run")
    config = _marian_config(run.recipe, run.vocab)
    layer = run.model.decoder.layers[0]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(layer.self_attn, "rotate", lambda *args: args[0])
        with pytest.raises(UserError, match="a Fused.* another rotate .* transformers"):
            _marian_weights(run.model, config)
    run.model.encoder.layers[1].residuals[0].__class__ = PreNorm
    with pytest.raises(UserError, match=r"layers\.1\.residuals\.0 is a PreNorm"):
        _marian_weights(run.model, config)


# the folder


def test_files_of_the_folder(small):
    "Whoever can read one of them can read all."
    found = {file.name: file.stat().st_mode for file in (small / "out").iterdir()}
    names = "README.md config.json generation_config.json model.safetensors source.spm "
    names += "target.spm tokenizer_config.json vocab.json"
    assert [*sorted(found)] == names.split() and len({*found.values()}) == 1


def test_nothing_of_this_machine_is_in_it(tmp_path):
    "No path, although config.json of a run names its text and its data folder."
    source = {"src": f"{tmp_path}/secret.en", "tgt": f"{tmp_path}/secret.de"}
    about = {"data": "own", "src_lang": "src", "tgt_lang": "tgt", "source": source}
    out = export_hf(random_run(tmp_path / "run", about), tmp_path / "out")
    for file in out.iterdir():
        assert str(tmp_path).encode() not in file.read_bytes(), file
        assert b"secret" not in file.read_bytes(), file


# the model card


def card_of(tmp_path, about: dict, name: str = "some-model", passes=(), **settings):
    "The card of a run folder without a model, and what the Hub's library reads in it."
    hub = pytest.importorskip("huggingface_hub")
    recipe = get_recipe("multi30k-tiny")
    recipe = replace(recipe, train=replace(recipe.train, **settings))
    (tmp_path / "run").mkdir()
    write_config(tmp_path / "run", recipe, about)
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
    assert f"Text: multi30k ({DATA_SETS['multi30k'].source}; licence: terms of" in card
    assert "Weights: average of 10 checkpoints." in card


@pytest.mark.parametrize(
    "languages, known",
    [
        (("en", "pt-BR"), ["en", "pt"]),
        (("en", None), None),
    ],
)
def test_card_of_own_text(tmp_path, languages, known):
    about = {"data": "own"} | dict(zip(("src_lang", "tgt_lang"), languages))
    card, data = card_of(tmp_path, about)
    assert (data.language, data.datasets, data.eval_results) == (known, None, None)
    assert "The run has none." in card and "Text: the author's own." in card
    assert ("to translate from en to pt-BR" in card) == bool(known)
    named = " --src-lang en --tgt-lang pt-BR" if known else ""
    assert f"--src SOURCE --tgt TARGET{named} --config" in card
    (tmp_path / "pairs").mkdir()
    source = {"pairs": "mine.tsv", "valid_pairs": None}
    card, _ = card_of(tmp_path / "pairs", about | {"source": source})
    assert f" train --pairs PAIRS{named} --config" in card and "mine.tsv" not in card


def test_card_of_a_demo(small, tmp_path):
    "Its report counts as long as the weights are those that were measured."
    report = {"weights_sha256": sha256(small / "run/model.safetensors"), "bleu": 99.5}
    report |= {"exact_match": 0.98, "n_sentences": 1000}
    make = partial(model_card, "x", small / "run", load_run(small / "run").recipe)
    try:
        (small / "run/report.json").write_text(json.dumps(report))
        card = make({"data": "builtin", "case_variants": True})
        (small / "run/report.json").write_text(json.dumps(report | {"bleu": "high"}))
        assert "high" not in make({})
        (small / "run/report.json").write_text(
            json.dumps(report | {"weights_sha256": "0"})
        )
        assert "99.5" not in make({})
    finally:
        (small / "run/report.json").unlink()
    assert "- BLEU: 99.5 (1000 held-out sentences, beam 4, α 0.6; sig" in card
    assert "- exact match: 0.98 (1000 held-out" in card
    assert "as annotated_transformer), with copies in other cases." in card


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
    git = lambda *words: subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    if git("ls-files", "settings.ini"):
        assert f"{__version__}, commit {git('rev-parse', 'HEAD')}" in cards._version()
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True)
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(cards, "files", lambda _: tmp_path)
    assert cards._version() == __version__
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cards._version() == __version__


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
    "Without the option of 8 bits, as the page says, the same sentences; with it, most of them where the processor has 8-bit dot products."
    pytest.importorskip("ctranslate2")
    run, folder, sentences = trained
    expected = load(folder / "run", search=search_with(4, 0.0)).translate(
        sentences[:50]
    )
    monkeypatch.chdir(served)
    code, space = code_with("import ctranslate2"), {}
    exec(code, space)
    found = space["translate"](sentences[:50])
    assert len(found) == 50
    if HAS_VNNI:
        assert sum(a == b for a, b in zip(found, expected)) > 25
    export_ct2(Path("runs/mine"), Path("whole"))
    exec(code.replace("served-ct2", "whole"), space)
    assert space["translate"](sentences[:50]) == expected


@pytest.mark.slow
def test_page_export_and_compile(served, trained, monkeypatch, unchecked):
    """The program gives the model's logits, of other shapes and when it was saved; so does the compiled one, where a compiler is.

    ONNX Runtime, where it is, translates. While the model is exported, its sizes are symbols, which the types of shapes refuse.
    """
    monkeypatch.chdir(served)
    code, space = code_with("class Logits"), {}
    to_onnx = next(line for line in code.split("\n") if "torch.onnx" in line)
    exec(code.replace(to_onnx, ""), space)
    # more than 64 keys, from which on our attention may take another path
    src, tgt_in = torch.randint(4, 50, (3, 80)), torch.randint(4, 50, (3, 70))
    src[1, 7:] = space["run"].vocab.pad_id
    compiled = code_with("torch.compile")
    if not shutil.which("c++"):
        compiled = compiled.replace("torch.compile(", "(lambda model, dynamic: model)(")
    exec(compiled, space)
    with torch.no_grad():
        found = space["program"].module()(src, tgt_in)
        assert torch.allclose(found, space["Logits"]()(src, tgt_in), atol=1e-4)
        expected = space["Logits"]()(*space["example"])
        for found in (space["logits"], space["compiled"](*space["example"])):
            assert torch.allclose(found, expected, atol=1e-4)
    for needed in ("onnxscript", "onnxruntime"):
        pytest.importorskip(needed)
    exec(to_onnx, space)
    exec(code_with('InferenceSession("logits.onnx")'), space)
    expected = load(Path("runs/mine"), search=search_with(1)).translate(trained[2][:20])
    assert [space["translate"](line) for line in trained[2][:20]] == expected


@pytest.mark.slow
def test_page_two_graphs(served, trained, monkeypatch, unchecked):
    """Encoder and decoder apart: the sentences of greedy search and of a beam of 4.

    Without ONNX Runtime, its sessions are the exported programs, but without the guard
    that a length is 2 or more, which a file of ONNX has not.
    """
    monkeypatch.chdir(served)
    code, parts = code_with("class Encoder"), {}
    to_onnx = next(line for line in code.split("\n") if "torch.onnx" in line).strip()
    if any(importlib.util.find_spec(x) is None for x in ("onnxscript", "onnxruntime")):
        code = code.replace(to_onnx, "parts[name] = part.module(check_guards=False)")

        class Session:
            def __init__(self, path):
                self.compute = parts[Path(path).stem]

            def run(self, _, feeds):
                with torch.no_grad():
                    found = self.compute(*map(torch.tensor, feeds.values()))
                return [t.numpy() for t in (found if len(feeds) == 1 else [found])]

        stand_in = SimpleNamespace(InferenceSession=Session)
        monkeypatch.setitem(sys.modules, "onnxruntime", stand_in)
    space: dict = {"parts": parts}
    exec(code_with("class Logits").split("class Logits")[0], space)
    exec(code, space)
    exec(code_with('"decoder.onnx"'), space)
    lines = trained[2][:20]
    for beam_size, n in ((1, 20), (4, 5)):
        translator = load(Path("runs/mine"), search=search_with(beam_size))
        expected = translator.translate(lines[:n])
        assert [space["translate"](x, beam_size) for x in lines[:n]] == expected


def test_page_nn_transformer(served, monkeypatch):
    "With padding: the logits of nn.Transformer with our weights are ours."
    monkeypatch.chdir(served)
    space: dict = {}
    exec(code_with("nn.Transformer("), space)
    src, tgt_in = torch.randint(4, 50, (3, 12)), torch.randint(4, 50, (3, 5))
    src[1, 7:] = space["run"].vocab.pad_id
    ours = space["ours"]
    with torch.no_grad():
        expected = ours.embedding.logits(ours(src, tgt_in))
        assert torch.allclose(space["logits"](src, tgt_in), expected, atol=1e-4)


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
