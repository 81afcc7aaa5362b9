"""Facts that no change of the code moves, held from outside: by commands and files.

GOLDEN=write writes what is stored in tests/golden/ anew, for a change that is meant. A
stored number has a tolerance, since processors round differently.
"""

import hashlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from exported import read_by_ct2, read_by_transformers
from processes import start

from annotated_transformer import build_transformer, get_recipe, load, load_corpus

HERE = Path(__file__).resolve().parent / "golden"
PAGES = HERE.parent.parent / "annotated_transformer/show/pages"
SENTENCES = json.loads((HERE / "sentences.json").read_text("utf-8"))
NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e-?\d+)?|e-?\d+)")  # that is not whole
CPU = ["--config", "tiny", "--device", "cpu", "--quiet"]


def program(*words) -> None:
    "python -m annotated_transformer WORDS in this process, which it leaves."
    with patch.object(sys, "argv", ["annotated-transformer", *map(str, words)]):
        runpy.run_module("annotated_transformer", run_name="__main__")


def command(*words) -> tuple[int, str, str]:
    "Its exit status, standard output and standard error."
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        with pytest.raises(SystemExit) as left:
            program(*words)
    out.flush(), err.flush()
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return left.value.code or 0, *said


def done(*words) -> list[str]:
    "The lines that a command prints, which succeeds."
    status, out, err = command(*words)
    assert status == 0, err
    return out.split("\n")[:-1]


def finish(*words, folder: Path) -> None:
    "Run a command in a process of its own, which succeeds."
    process = start(program, *words, said=folder / "said")
    process.join(60)
    assert process.exitcode == 0, (folder / "said").read_text()


def hold(name: str, found, rel: float = 1e-6) -> None:
    "It is what tests/golden/NAME.json says; numbers that are not whole, within `rel`."
    file, text = HERE / f"{name}.json", json.dumps(found, indent=1, ensure_ascii=False)
    if os.environ.get("GOLDEN") == "write":
        file.write_text(text + "\n", "utf-8")
    wanted = file.read_text("utf-8").removesuffix("\n")
    assert NUMBER.sub("#", text) == NUMBER.sub("#", wanted)
    numbers = [list(map(float, NUMBER.findall(x))) for x in (text, wanted)]
    assert numbers[0] == pytest.approx(numbers[1], rel=rel, abs=rel)


def stored(name: str):
    return json.loads((HERE / f"{name}.json").read_text("utf-8"))


def write(file, lines) -> Path:
    Path(file).write_bytes("".join(line + "\n" for line in lines).encode())
    return Path(file)


def data_of(page) -> dict:
    text = Path(page).read_text("utf-8")
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def losses(run: Path, every: int = 1) -> list[dict]:
    "The records of a run, or those of every so many steps, without times."
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    names = ("step", "loss", "grad_norm", "valid_loss")
    records = filter(lambda r: r["step"] % every == 0, records)
    return [{k: r[k] for k in names if k in r} for r in records]


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> list:
    "Built-in text in two files, as options of train."
    folder = tmp_path_factory.mktemp("text")
    corpus = load_corpus("builtin", n_train=600, n_valid=40, n_test=10)
    for name in ("train", "valid"):
        write(folder / name, map("\t".join, getattr(corpus, name)))
    return ["--pairs", folder / "train", "--valid-pairs", folder / "valid"]


@pytest.mark.parametrize("seed", [0, 1])
def test_builtin_corpus(seed):
    "To the byte."
    corpus = load_corpus("builtin", n_train=2000, n_valid=200, n_test=200, seed=seed)
    texts = ["\n".join(map("\t".join, part)) for part in (corpus.train, corpus.valid)]
    hold(f"corpus-{seed}", [hashlib.sha256(x.encode()).hexdigest() for x in texts])


def test_number_of_parameters():
    "Of the paper's two models, with a vocabulary of 37,000."
    with torch.device("meta"):
        names = ("base", "big")
        models = [build_transformer(get_recipe(x).model, 37_000, 0) for x in names]
    hold("parameters", [sum(w.numel() for w in model.parameters()) for model in models])


@pytest.mark.parametrize("dropout", ["0", "0.1"])
def test_loss_curve(text, dropout, tmp_path):
    "Rounding grows in thirty steps of Adam. Other masks of dropout are a new second curve."
    settings = "max_steps=30 warmup_steps=10 batch_tokens=400 valid_every=10 seed=1"
    settings = [*settings.split(), f"dropout={dropout}", "--out", tmp_path / "run"]
    finish("train", *text, *CPU, *settings, folder=tmp_path)
    records = losses(tmp_path / "run", every=10)
    norms = [record.pop("grad_norm") for record in records if "grad_norm" in record]
    hold(f"curve-dropout-{dropout}", records, rel=1e-3)
    # other kernels change the norm of step 20 by 3e-3 and the losses by less than 1e-3
    hold(f"norms-dropout-{dropout}", norms, rel=1e-2)


SEARCHES = {  # options of translate, and of how many sentences
    "": 50,
    "--beam-size 1": 50,
    "--alpha 0": 50,
    "--alpha 2": 50,
    "--n-best 3 --scores": 5,
    "--sample --seed 3 --n-best 2 --top-p 0.9 --temperature 0.8": 5,
    "--precision bf16": 5,
    "--precision int8": 5,
}
both = pytest.mark.parametrize("name", ["demo", "tatoeba"])


WHOLE = ("--quiet", "--no-split")  # a line as the model sees it


@both
def test_translations(name, tmp_path):
    "Of sentences that a change of every weight by 3e-4 leaves as they are."
    found = {}
    for options, n in SEARCHES.items():
        file = write(tmp_path / "src", SENTENCES[name][:n])
        found[options] = done("translate", name, file, *WHOLE, *options.split())
    hold(f"translations-{name}", found, rel=1e-3)


@both
def test_ctranslate2(name, tmp_path):
    done("export", name, tmp_path / "out", "--to", "ct2")
    found = read_by_ct2(tmp_path / "out", SENTENCES[name])
    assert found == stored(f"translations-{name}")["--alpha 0"]


@both
def test_hugging_face(name, tmp_path):
    "There, and back as an imported Marian model."
    there, back = tmp_path / "there", tmp_path / "back"
    done("export", name, there, "--to", "hf")
    found = read_by_transformers(there, SENTENCES[name])
    done("import-marian", there, back)
    again = done("translate", back, write(tmp_path / "src", SENTENCES[name]), *WHOLE)
    assert found == again == stored(f"translations-{name}")["--alpha 0"]


def test_scores(tmp_path, monkeypatch):
    "Fixed translations of twenty sentences against our own; a model's perplexity."
    monkeypatch.chdir(tmp_path)
    write("ref", SENTENCES["references"])
    write("src", SENTENCES["tatoeba"][:20])
    for name, options in (("beam", ""), ("greedy", "--beam-size 1")):
        write(name, stored("translations-tatoeba")[options][:20])
    measures = [
        "--metric",
        "bleu",
        "--metric",
        "chrf",
        "--confidence",
        "--bleu-variants",
        "de",
    ]
    found = done("score", "beam", "greedy", "--ref", "ref", *measures)
    more = ["--src", "src", "--perplexity", "--confidence"]
    found += done("score", "tatoeba", "--ref", "ref", *more)
    hold("scores", [re.sub(r"\|version:\S+", "", line) for line in found], rel=1e-3)


@both
def test_live_page(name, tmp_path):
    "Its program, without a browser, has our translations, scores and logits."
    node = shutil.which("node") or pytest.skip("needs node")
    done("live", name, "--out", tmp_path / "live.html")
    data, sentences = data_of(tmp_path / "live.html"), SENTENCES[name][:6]
    files = [PAGES / f"{x}.js" for x in ("weights", "tokenizer", "transformer")]
    code = "\n".join(x.read_text("utf-8") for x in (*files, HERE / "live.js"))
    asked = json.dumps({"data": data, "sentences": sentences}).encode()
    found = json.loads(subprocess.check_output([node, "-e", code], input=asked))
    translator = load(name)
    for one, (best, *_) in zip(found, translator.n_best(sentences), strict=True):
        assert one["text"] == best.text
        # sums of a few hundred products, which are doubles there
        assert one["score"] == pytest.approx(best.score, abs=1e-4)
        model, tgt_in = translator.model, [translator.vocab.bos_id, *one["ids"]]
        with torch.no_grad():
            hidden = model(torch.tensor([one["src"]]), torch.tensor([tgt_in]))
            logits = model.embedding.logits(hidden).flatten().tolist()
        assert one.pop("logits") == pytest.approx(logits, abs=1e-4)
    about = {k: data["page"][k] for k in ("words", "pairs", "opening", "examples")}
    about["pairs"] = hashlib.sha256(json.dumps(about["pairs"]).encode()).hexdigest()
    hold(f"live-{name}", {"found": found, **about}, rel=1e-3)


def test_attention_page(tmp_path):
    "The maps that it draws, to a thousandth."
    done("attention", "demo", "The old dog is tired.", "--out", tmp_path / "a.html")
    hold("attention", data_of(tmp_path / "a.html"), rel=2e-3)
