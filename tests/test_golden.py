"""Facts that no change of the code moves, held from outside: by commands and files.

tests/golden/ was written by version 1.0.0; GOLDEN=write writes what is stored anew, for
a change that is meant. Bits are compared between runs of one machine alone; a stored
number has a tolerance, since processors round differently. run-1.0.0/ was stopped at
step 20 of 40: the built-in corpus, another run's weights to start from, two checkpoints.
"""

import gzip
import hashlib
import io
import json
import os
import random
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from exported import read_by_ct2, read_by_transformers
from processes import start
from safetensors.torch import load_file
from small_runs import distance

from annotated_transformer import build_transformer, get_recipe, load, load_corpus

HERE = Path(__file__).resolve().parent / "golden"
PAGES = HERE.parent.parent / "annotated_transformer/show/pages"
SENTENCES = json.loads((HERE / "sentences.json").read_text("utf-8"))
NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e-?\d+)?|e-?\d+)")  # that is not whole
CPU = ["--config", "tiny", "--device", "cpu", "--quiet"]
# steps, passes and checkpoints are multiples of ten, however often a run reports
SETTINGS = """n_layers=1 d_model=32 d_ff=64 n_heads=2 n_pieces=500 batch_tokens=300
    max_steps=40 valid_every=20 save_every=10 average_last=2""".split()


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


def begin(*words, folder: Path, ranks: int = 1) -> list:
    "Processes that run a command together, as those of torchrun."
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    found = []
    for i in range(ranks):
        env = group | {"RANK": str(i), "LOCAL_RANK": str(i)} if ranks > 1 else {}
        found.append(start(program, *words, said=folder / f"said {i}", env=env))
    return found


def kill(processes: list) -> None:
    for process in processes:
        process.kill()
        process.join()


def finish(*words, folder: Path, ranks: int = 1) -> None:
    processes = begin(*words, folder=folder, ranks=ranks)
    for process in processes:
        process.join(60 if process is processes[0] else 5)
    statuses = [process.exitcode for process in processes]
    kill(processes)
    assert statuses == [0] * ranks, [x.read_text() for x in folder.glob("said *")]


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


def last_step(run: Path) -> int:
    file = run / "metrics.jsonl"
    steps = re.findall(r'"step": (\d+)', file.read_text()) if file.exists() else []
    return int(steps[-1]) if steps else 0


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> list:
    "Built-in text in two files, as options of train."
    folder = tmp_path_factory.mktemp("text")
    corpus = load_corpus("builtin", n_train=600, n_valid=40, n_test=10)
    for name in ("train", "valid"):
        write(folder / name, map("\t".join, getattr(corpus, name)))
    return ["--pairs", folder / "train", "--valid-pairs", folder / "valid"]


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    "A copy of the old run in the working directory, with sentences and their pairs."
    monkeypatch.chdir(tmp_path)
    write("src", SENTENCES["old"])
    write("ref", ["Wir sind nicht krank.", *"abcd"])
    pairs = load_corpus("builtin", n_train=200, n_valid=1, n_test=1).train
    for name, lines in zip(("en", "de"), zip(*pairs)):
        write(name, lines)
    lines = "".join(f"{src}\t{tgt}\n" for src, tgt in pairs)
    Path("pairs.tsv.gz").write_bytes(gzip.compress(lines.encode()))
    return Path(shutil.copytree(HERE / "run-1.0.0", "old"))


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


OFTEN = [(50, 1, []), (10, 2, []), (10, 2, ["--shard"])]
OFTEN = [pytest.param(*case, marks=pytest.mark.slow) for case in OFTEN]


@pytest.mark.posix
@pytest.mark.parametrize("n, ranks, options", [(2, 1, []), (2, 2, ["--shard"]), *OFTEN])
def test_killed_and_resumed(text, tmp_path, n, ranks, options):
    "Killed n times, at random moments, a run ends with the bits of one undisturbed."
    where, straight, run = (
        {"folder": tmp_path, "ranks": ranks},
        tmp_path / "a",
        tmp_path / "b",
    )
    first = ["train", *text, *CPU, *options, *SETTINGS, "dropout=0.1", "--out"]
    finish(*first, straight, **where)
    resume = ["train", "--resume", run, "--device", "cpu", "--quiet", *options]
    words = lambda: resume if (run / "config.json").exists() else [*first, run]
    state = lambda run: ((run / "model.safetensors").read_bytes(), losses(run))
    for k in range(n):
        # the second time, also while it starts; the first time after a checkpoint
        step, wait = random.randrange(0 if k % 2 else 12, 40), random.uniform(0, 0.05)
        processes = begin(*words(), **where)
        while (
            any(process.is_alive() for process in processes) and last_step(run) < step
        ):
            time.sleep(0.001)
        time.sleep(wait)
        kill(processes)
        if k % 2:
            finish(*words(), **where)
            assert state(run) == state(straight), f"{wait} s after step {step}"
            shutil.rmtree(run)


def test_two_ranks_are_one(text, tmp_path):
    "The same steps; the order of sums alone differs, and Adam makes more of it."
    words = ["train", *text, *CPU, *SETTINGS, "dropout=0", "--out"]
    runs = one, two = tmp_path / "one", tmp_path / "two"
    for ranks, run in enumerate(runs, start=1):
        finish(*words, run, folder=tmp_path, ranks=ranks)
    for a, b in zip(losses(two), losses(one), strict=True):
        assert a == pytest.approx(b, rel=1e-5)
    assert distance(two, one / "model.safetensors") < 1e-4


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
    done("export-ct2", name, tmp_path / "out")
    found = read_by_ct2(tmp_path / "out", SENTENCES[name])
    assert found == stored(f"translations-{name}")["--alpha 0"]


@both
def test_hugging_face(name, tmp_path):
    "There, and back as an imported Marian model."
    there, back = tmp_path / "there", tmp_path / "back"
    done("export-hf", name, there)
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
    measures = ["--chrf", "--confidence", "--flavours", "de"]
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


def test_old_run_translates(old):
    found = done("translate", old, "src", "--quiet")
    assert load(old).translate(SENTENCES["old"]) == found
    hold("old", found)


def test_old_run_is_averaged(old):
    names = [f"checkpoints/step-00000{n}0/model.safetensors" for n in (1, 2)]
    first, last = (load_file(old / name) for name in names)
    means = [last, {name: (first[name] + last[name]) / 2 for name in last}]
    for n, mean in enumerate(means, start=1):
        done("average", old, "--last", n)
        for name, found in load_file(old / "model.safetensors").items():
            torch.testing.assert_close(found, mean[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("lost", ["nothing", "data"])
def test_old_run_goes_on(old, lost):
    "From step 20 to 40, also when its text has to be generated and encoded again."
    shutil.rmtree(old / lost, ignore_errors=True)
    done("train", "--resume", old, "--device", "cpu", "--quiet")
    if os.environ.get("GOLDEN") == "write":
        shutil.copy(old / "model.safetensors", HERE / "old-resumed.safetensors")
    assert distance(old, HERE / "old-resumed.safetensors") < 1e-4
    hold("old-resumed", losses(old, every=10), rel=1e-4)


GONE = {"--prepared", "--engine"}  # of version 1.0.0, neither promised nor forbidden
SMALL = "--config tiny --quiet n_layers=1 d_model=16 n_heads=2 d_ff=16 n_pieces=400"
SMALL = f"{SMALL} batch_tokens=200 max_steps=10 valid_every=10 save_every=10"


def lines_of(name: str) -> list[str]:
    lines = (HERE / f"{name}.txt").read_text("utf-8")
    return lines.replace("SMALL", SMALL).splitlines()


def test_names_of_commands_and_options():
    options = lambda *words: re.findall(r"^  (--[\w-]+)", help_of(*words), re.MULTILINE)
    help_of = lambda *words: "\n".join(done(*words, "--help"))
    commands = {*re.findall(r"^  ([a-z][\w-]*)  ", help_of(), re.MULTILINE)}
    commands = sorted(commands - {"variations"})
    hold("options", {name: sorted({*options(name)} - GONE) for name in commands})


def test_each_command(old):
    "Status and what it prints; of an export, the names of its files too."
    found = [[line, *command(*shlex.split(line))] for line in lines_of("commands")]
    files = {name: sorted(os.listdir(name)) for name in ("ct2", "hf", "back")}
    hold("commands", [found, files], rel=1e-3)


def test_each_mistake(old):
    "One line, status 2, and every file as it was."
    everything = lambda: {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    before = everything()
    for line in lines_of("mistakes"):
        status, out, err = command(*shlex.split(line))
        assert (status, out, err.count("\n")) == (2, "", 1), (line, out, err)
        assert err.startswith("annotated-transformer: "), line
        assert everything() == before, line
