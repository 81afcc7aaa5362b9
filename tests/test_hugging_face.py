"The same weights in transformers: the same logits in every shape, the same ids and sentences, a folder whole or none; the page on serving."

import importlib.util
import json
import os
import random
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from cells import joined
from conftest import ROOT, text_of
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import HAS_VNNI, random_run, trained_run

from annotated_transformer import UserError, __version__
from annotated_transformer.cli.main import main
from annotated_transformer.data.corpus import DATA_SETS
from annotated_transformer.engines.batched_search import (
    batched_greedy_search,
    search_with,
)
from annotated_transformer.export.ct2 import export_ct2
from annotated_transformer.export.hugging_face import (
    export_hf,
)
from annotated_transformer.runs.checkpoint import read_tensors
from annotated_transformer.runs.folder import load_run
from annotated_transformer.translating.load import load

transformers = pytest.importorskip("transformers")
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def loaded(folder: Path, **more):
    "Their model, in which no weight is missing or left over."
    model = transformers.MarianMTModel.from_pretrained(folder, **more)
    # positions are computed, and copies of the shared matrix are tied to it
    ours = {"model.shared.weight", "final_logits_bias", *model.state_dict()}
    stored = read_tensors(folder / "model.safetensors").keys()
    rest = {name for name in ours - stored if "embed_" not in name}
    assert stored <= ours and rest <= {"lm_head.weight"}
    return model.eval()


# the model


SHAPES = [
    {"n_layers": 3, "n_heads": 8, "d_k": 4, "d_v": 4},
    {"d_model": 6, "n_heads": 3, "d_ff": 5},
]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@torch.no_grad()
def test_every_shape(tmp_path, sizes):
    "Logits, but at padding."
    run = load_run(random_run(tmp_path / "run", **sizes))
    export_hf(tmp_path / "run", tmp_path / "out")
    vocab, rng = run.vocab, torch.Generator().manual_seed(0)
    src, tgt = torch.randint(4, len(vocab), (2, 8, 12), generator=rng)
    for i in range(8):
        src[i, 12 - i :] = tgt[7 - i, 12 - i :] = vocab.pad_id
    tgt[:, 0] = vocab.bos_id
    mask, real = (src != vocab.pad_id).long(), tgt != vocab.pad_id
    mine = run.model.embedding.logits(run.model(src, tgt))[real]
    assert mine.std() > 0.1
    for attention in ("eager", "sdpa"):
        theirs = loaded(tmp_path / "out", attn_implementation=attention)
        other = theirs(src, mask, decoder_input_ids=tgt).logits[real]
        # float32 sums of tens of terms of a few units lose some of the last digit, 5e-7
        assert (mine - other).abs().max() < 5e-5


# token ids


LINES = [" a ", "\n", "  two  spaces", "x" * 5000, "a >>deu<< dog", ">>deu a dog"]
LINES += ["„Punctuation“ — ‘quotes’ … % 1 000,5", "</s> <pad> <unk> <s> <0xE2>"]
LINES += ["\u200b\x01\ufeff", "Ünï — 漢字 🐕 ﬁ", "e\u0301\u00a0\t"]


@pytest.fixture(scope="module")
def tokenizer(trained):
    return transformers.AutoTokenizer.from_pretrained(trained[1] / "out")


@settings(max_examples=60)
@given(st.text(max_size=40).filter(lambda s: ">>" not in s and "\0" not in s))
def test_ids_and_text(trained, tokenizer, text):
    "Any line without NUL becomes our ids, and any ids our text, but for spaces at its ends."
    run, folder, sentences = trained
    vocab = run.vocab
    ids_of = lambda line: tokenizer(line).input_ids
    for line in [text, *LINES, *sentences[:20]]:
        assert ids_of(line) == [*vocab.encode(line), vocab.eos_id], line
    # a code of a language is theirs alone
    assert ids_of(">>deu<< a dog") != [*vocab.encode(">>deu<< a dog"), vocab.eos_id]
    rng = random.Random(text)
    ids = [rng.randrange(len(vocab)) for _ in range(rng.randrange(12))]
    theirs = tokenizer.decode(ids, skip_special_tokens=True)
    assert theirs.replace("\ufffd", "").strip() == vocab.decode(ids).strip(), ids


# sentences


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    sentences = trained_run(folder / "run")
    export_hf(folder / "run", folder / "out")
    return load_run(folder / "run"), folder, sentences


# the folder


@pytest.mark.parametrize(
    "sizes, says",
    [
        ({"norm": "pre"}, "norm=pre: an export to transformers holds post alone"),
        ({"d_k": 8}, "d_k=8: an export to transformers holds 16 or none alone"),
    ],
)
def test_refusals(tmp_path, sizes, says):
    with pytest.raises(UserError, match=says):
        export_hf(random_run(tmp_path / "run", **sizes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_whoever_can_read_one_file_can_read_all(tmp_path):
    export_hf(random_run(tmp_path / "run"), tmp_path / "out")
    assert len({file.stat().st_mode for file in (tmp_path / "out").iterdir()}) == 1


# the model card


def test_card(tmp_path):
    "Of a run that started from another one: both texts, since both licences count; no path."
    hub = pytest.importorskip("huggingface_hub")
    about = {"data": "multi30k", "src_lang": "en", "tgt_lang": "pt-BR", "steps": 3}
    about |= {"weights": "average of 10 checkpoints", "from": {"data": "wmt14"}}
    about["source"] = {"src": f"{tmp_path}/secret.en"}
    names = ("weights", "step", "valid_loss", "valid_ppl", "valid_bleu")
    measured = (
        ("last, step 3", 3, 1, 2.718, 40.0),
        (about["weights"], 3, 2, 7.389, 31.25),
    )
    about["validation"] = [dict(zip(names, values)) for values in measured]
    run = random_run(tmp_path / "run", about)
    out = export_hf(run, tmp_path / "some-model")
    card = (out / "README.md").read_text("utf-8")
    data = hub.ModelCard(card).data
    assert (data.language, data.license) == (["en", "pt"], None)
    assert (data.library_name, data.pipeline_tag) == ("transformers", "translation")
    assert data.datasets == ["bentrevett/multi30k"]
    assert ": valid_loss 2, valid_ppl 7.389, valid_bleu 31.25.\n" in card
    first, then = (DATA_SETS[name].licence for name in ("wmt14", "multi30k"))
    assert re.search(f"Text: wmt14 .*{first}.; then multi30k .*{then}", card)
    assert "Steps: 3. Weights: average of 10 checkpoints." in card
    assert "# some-model\n" in card and __version__ in card
    assert not any(b"secret" in file.read_bytes() for file in out.iterdir())


# the page on serving


def blocks_of_page(language: str = "") -> list[str]:
    "The code that the page shows."
    nb = json.loads((ROOT / "nbs/serving.ipynb").read_text(encoding="utf-8"))
    text = "\n".join(joined(cell["source"]) for cell in nb["cells"])
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
            if line.startswith("annotated-transformer export "):
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
    translator = load(folder / "run", search=search_with(4, 0.0))
    assert space["translate"](sentences[:20]) == translator.translate(sentences[:20])


def test_page_ctranslate2(served, trained, monkeypatch):
    "Without the option of 8 bits, as the page says, the same sentences; with it, most of them where the processor has 8-bit dot products."
    pytest.importorskip("ctranslate2")
    run, folder, sentences = trained
    translator = load(folder / "run", search=search_with(4, 0.0))
    expected = translator.translate(sentences[:50])
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
def test_page_export_and_compile(served, monkeypatch, unchecked):
    "The program gives the model's logits, of other shapes too; so does the compiled one, where a compiler is."
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


def test_page_token_by_token_and_alignment(served, trained, monkeypatch):
    "The last text is that of greedy search; each pair is of words that exist."
    run, folder, sentences = trained
    monkeypatch.chdir(served)
    space: dict = {}
    exec(code_with("def stream"), space)
    exec(code_with("def alignment"), space)
    translator = load(folder / "run", search=batched_greedy_search)
    for line in sentences[:5]:
        *_, found = space["stream"](line)
        assert found == translator.translate(line)
    monkeypatch.setitem(space, "translator", load("tatoeba"))
    monkeypatch.setitem(space, "vocab", space["translator"].vocab)
    lines = "The old man sees a cat.", "Der alte Mann sieht eine Katze."
    found = space["alignment"](*lines)
    assert found == " ".join(f"{i}-{i}" for i in range(6))
    (example,) = re.findall(r"give `([\d -]+)`", text_of("serving"))
    assert found == example


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
