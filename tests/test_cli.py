"""The command line: every command on a small run, every mistake one clear line and exit status 2, nothing half-written."""

import gzip
import io
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from torch.optim.optimizer import register_optimizer_step_post_hook

from annotated_transformer.cli import train as cli_train
from annotated_transformer.cli.main import main
from annotated_transformer.cli.train import _DEFAULT_RECIPE, program
from annotated_transformer.data.corpus import DATA_SETS, load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.io.files import sha256
from annotated_transformer.runs.folder import PRETRAINED
from annotated_transformer.runs.settings import RECIPES, override, recipe_from_dict
from annotated_transformer.show import demo

TINY = (
    "n_layers=1 d_model=32 d_ff=64 n_heads=2 n_pieces=500 max_steps=4 batch_tokens=400 "
    "valid_every=2 save_every=2 average_last=0"
)
TEXT_OF = ("en", "de")
TEXT = "--src en --tgt de"
QUIET = "--device cpu --quiet"
TRAIN = f"train {TEXT} --config tiny {QUIET} {TINY}"
PREPARE = f"prepare {TEXT} --config tiny --quiet {TINY}"


def write(path: Path, lines: list[str]) -> None:
    path.write_bytes("".join(line + "\n" for line in lines).encode())


def snapshot(folder: Path = Path()) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def exit_status(line: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(shlex.split(line))
    return left.value.code


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    "A folder with two aligned texts, and a run of four steps that was made of them."
    folder, here = tmp_path_factory.mktemp("made"), Path.cwd()
    sentences = builtin(300, seed=3)
    write(folder / "en", [s.en for s in sentences])
    write(folder / "de", [s.de for s in sentences])
    write(folder / "few.en", [s.en for s in sentences[:40]])
    write(folder / "few.de", [s.de for s in sentences[:40]])
    write(folder / "asked", ["The dog was tired.", "", "Where is the cat?"])
    os.chdir(folder)
    try:
        assert exit_status(f"{TRAIN} --out run") == 0
    finally:
        os.chdir(here)
    return folder


@pytest.fixture
def run(made, tmp_path, monkeypatch, capsys) -> Callable[[str], tuple[int, str, str]]:
    "Runs a command in a copy of that folder: exit status, standard output and error."
    folder = tmp_path / "work"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_DATA", raising=False)

    def call(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = exit_status(line)
        said = capsys.readouterr()
        return status, said.out, said.err

    return call


def done(run, line: str) -> tuple[str, str]:
    "Standard output and error of a command that succeeds."
    status, out, err = run(line)
    assert status == 0, err
    return out, err


def refused(run, line: str) -> str:
    "The message of a command that fails by a mistake of the user, and changes nothing."
    before = snapshot()
    status, out, err = run(line)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert snapshot() == before
    return err.removeprefix("annotated-transformer: ").removesuffix("\n")


# the frozen command line

FROZEN = {  # what scripts rely on: a new name gets a place here, an old one stays
    "train": "[KEY=VALUE]... --out --resume --from --data --data-dir --src --tgt --valid-src "
    "--valid-tgt --pairs --valid-pairs --src-lang --tgt-lang --config --minutes --device --bleu "
    "--shard --tensorboard --quiet",
    "prepare": "[KEY=VALUE]... --out --from --data --data-dir --src --tgt --valid-src "
    "--valid-tgt --pairs --valid-pairs --src-lang --tgt-lang --config --quiet",
    "average": "RUN --last",
    "translate": "RUN [FILE] --beam-size --alpha --n-best --scores --sample --temperature "
    "--top-p --seed --batch-tokens --engine --precision --device --quiet",
    "score": "RUN... --ref --src --chrf --confidence --flavours --perplexity "
    "--beam-size --alpha --precision --device",
    "attention": "RUN SENTENCE --out --lang --device",
    "live": "RUN --out --lang",
    "import-marian": "DIR RUN",
    "export-ct2": "RUN DIR --quantization",
    "export-hf": "RUN DIR",
    "variations": "[KEY=VALUE]... --data --data-dir --rows --seeds --minutes --steps "
    "--out --device --quiet",
    "demo": "--out",
}


def test_commands_and_options():
    assert program.commands.keys() == FROZEN.keys()
    for name, options in FROZEN.items():
        found = [
            p.opts[0] if isinstance(p, click.Option) else p.metavar
            for p in program.commands[name].params
        ]
        assert sorted(found) == sorted(options.split()), name
        arguments = [o for o in options.split() if o[:2] != "--"]
        assert [o for o in found if o[:2] != "--"] == arguments, name


@pytest.mark.parametrize("name", ["", *FROZEN])
def test_help_is_worth_reading(name, run):
    out, _ = done(run, f"{name} --help")
    assert out.startswith(f"Usage: annotated-transformer {name}".rstrip())
    assert max(map(len, out.split("\n"))) <= 88
    assert all(option in out for option in FROZEN.get(name, "").split())
    if not name:
        assert all(f"  {each} " in out for each in FROZEN)


@pytest.mark.parametrize("name", ["train", "prepare"])
def test_help_lists_recipes_and_data_sets(name, run):
    out = " ".join(re.sub(r"-\n\s+", "-", done(run, f"{name} --help")[0]).split())
    words = re.findall(r"[\w-]+", out.split("settings by name:")[1].split("--")[0])
    assert [word for word in words if word in RECIPES] == [*RECIPES]
    assert f"{_DEFAULT_RECIPE} (the default)" in out
    assert all(f"{key}, {known.about}" in out for key, known in DATA_SETS.items())


@pytest.mark.parametrize("name", ["train", "prepare", "translate", "score", "live"])
def test_help_names_the_pretrained_models(name, run):
    out = " ".join(done(run, f"{name} --help")[0].split())
    assert f"{' or '.join(PRETRAINED)} (pretrained models)" in out


def test_without_a_command_the_help_is_shown(run):
    status, out, err = run("")
    assert (status, out) == (2, "") and err.startswith("Usage: annotated-transformer")
    assert "\n  train " in err


# mistakes

NEW = f"train {TEXT} --config tiny --out new --quiet"
REFUSED = {
    # settings and options of train
    f"{NEW} d_modl=64": "did you mean d_model?",
    f"{NEW} d_model=30 n_heads=4": "d_model=30 does not split into n_heads=4 equal",
    f"{NEW} dropout=much": "dropout='much' must be a finite number",
    f"{NEW} --config huge": "huge",
    f"{NEW} --device ''": "device '' cannot be used here",
    f"{NEW} --minutes 0": "minutes=0.0 must be positive and below 10,000,000",
    f"{NEW} --colour blue": "No such option '--colour'",
    f"{NEW} --shard --bleu": "--bleu",
    # a new run, or one to continue
    "train": "name either --out, a new run folder, or --resume, one to continue",
    f"train --out run {TEXT}": "already holds a run",
    "train --resume nowhere": "is not a run folder",
    "train --resume run dropout=0.3": "dropout of a run cannot be changed",
    "train --resume run --tgt x": "name either --data, or --src with --tgt",
    # the text
    "train --out new": "name either --data, or --src with --tgt",
    "train --out new --src en": "--src needs --tgt",
    f"{NEW} --pairs en": "name either --data, or --src with --tgt, or --pairs",
    "train --out new --src en --valid-pairs en": "for text without --src and --tgt",
    "train --out new --data builtin --pairs en": "name either --data, or --src",
    "train --out new --pairs en": "en, line 1 has no tab",
    "train --out new --pairs run --src-lang en": "run is not a regular file",
    f"{NEW} --valid-src en": "--valid-src and --valid-tgt go together",
    "train --out new --data wmt99": "data='wmt99' is unknown",
    "train --out new --data builtin --tgt-lang de": "of --data builtin are known",
    f"{NEW} --src-lang english": "src_lang='english' is no language code",
    f"{NEW} --tgt asked": "300 lines but",
    f"{NEW} --tgt nowhere": "nowhere: no such file",
    f"{NEW} --tgt run": "run is not a regular file",
    f"{NEW} --tgt empty": "empty",
    f"{NEW} --tgt bytes": "line 2",
    f"{NEW} --tgt cut.gz": "cut.gz",
    f"{NEW} --tgt pipe": "pipe is not a regular file: text to train on is read several",
    # runs
    "translate empty_folder asked": "is not a run folder",
    "average run --last 3": "has 2",
    "average run --last x": "'x' is not a valid integer",
    "average demo --last 2": "demo is not a run folder",
    "train --resume demo": "demo is not a run folder",
    "translate 'a\nb'": "a b is not a run folder",
    # translate
    "translate run nowhere": "nowhere: no such file",
    "translate run bad.gz": "bad.gz cannot be read: Not a gzipped file",
    "translate run asked more": "unexpected extra argument (more)",
    "translate run asked --beam-size 0": "beam_size=0 must be from 1 to 256",
    "translate run asked --alpha -1": "alpha=-1.0 must be from 0 to 10",
    "translate run asked --sample --alpha 1": "--alpha is for a search",
    "translate run asked --top-p 0.5": "--top-p is for --sample",
    "translate run asked --sample --top-p 2": "top_p=2.0 is a probability",
    "translate run asked --n-best 5": "n_best=5 with beam_size=4",
    "translate run asked --engine onnx": "engine='onnx' is neither pytorch nor",
    "translate run asked --engine ctranslate2 --sample": "does not support sampling",
    "translate run asked --batch-tokens 0": "batch_tokens=0",
    "translate run asked --precision fp33": "precision='fp33'",
    "translate run asked --device cuda:99": "'cuda:99'",
    # score
    "score de": "Missing option '--ref'",
    "score run --ref de": "--src is missing: it is what run translates",
    "score run --ref de --src asked": "asked has 3 lines, de has 300",
    "score de --ref asked": "asked has 3 lines, de has 300",
    "score de --ref de --perplexity": "--perplexity needs a run, not a file",
    "score nowhere --ref de": "nowhere: no such file or run",
    # pages
    "attention run ' ' --out x.html": "the sentence is empty",
    "attention run 'A dog.' --out de": "de does not end in .html",
    "attention run A --out x.html --lang xx": "lang='xx': pages are in en",
    "live run --out x.html --lang xx": "lang='xx': pages are in en",
    "live run --out x": "--out x does not end in .html",
    "live run --out folder.html": "folder.html is not a regular file",
    "live run --out mine.html": "already exists, and this program did not make it",
    "attention run A --out new/x.html": "cannot be written: No such file or directory",
    # other programs
    "export-ct2 run new --quantization int7": "quantization='int7'",
    "export-ct2 run run": "run is not empty",
    "import-marian run new": "run is a run of annotated_transformer already, not a",
    "import-marian nowhere new": "nowhere/config.json: no such file",
    # Table 3, and the demo
    "variations --data wmt14": "there is a base for builtin and for multi30k",
    "variations --data builtin --rows 'A h=3'": "no row is called 'A h=3'",
    "variations --data builtin --seeds 0": "'--seeds': 0 is not in the range x>=1",
    "variations --data builtin --steps 0": "max_steps=0",
    "demo --out run": "run is not a demo, or was changed since: choose another --out",
    "demo --out de": "choose another place",
    "dream": "No such command 'dream'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_mistakes(line, run):
    Path("empty").touch()
    Path("bytes").write_bytes(b"eins\nzw\xffei\ndrei\n")
    Path("cut.gz").write_bytes(gzip.compress(b"eins\nzwei\ndrei\n")[:-9])
    Path("bad.gz").write_bytes(b"not compressed")
    Path("mine.html").write_text("<p>mine</p>")
    for name in ("folder.html", "empty_folder"):
        Path(name).mkdir()
    if "pipe" in line:
        os.mkfifo("pipe")
    assert REFUSED[line] in refused(run, line)


def test_a_model_too_large_for_the_machine(run):
    "Said before any text is read, also when a run is continued."
    missing = "--src no --tgt no n_layers=1000 d_ff=100000000"
    said = refused(run, f"train --out new {missing}")
    assert "n_layers=1000 d_model=256 d_ff=100000000 needs 1,6" in said
    config = json.loads(Path("run/config.json").read_text(encoding="utf-8"))
    config["model"]["d_ff"] = 2**31 - 1
    Path("run/config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "d_ff=2147483647 needs" in refused(run, "train --resume run")


# train, prepare, average


def test_a_run_holds_what_it_should(run):
    config = json.loads(Path("run/config.json").read_text(encoding="utf-8"))
    assert config["steps"] == 4 and config["model"]["d_model"] == 32
    assert "validation" in config["weights"]
    names = {path.name for path in Path("run").iterdir()}
    expected = "config.json vocab.model data model.safetensors metrics.jsonl curve.svg"
    assert names == {*expected.split(), "checkpoints"}
    found = {path.name for path in Path("run/checkpoints").iterdir()}
    assert found == {"step-0000002", "step-0000004", "best.safetensors"}
    assert not [*Path("run").rglob(".*")], "no temporary file is left"


def test_prepare_then_train(run):
    "The two halves of train give the run that train gives."
    resume = "annotated-transformer train --resume"
    _, err = done(run, f"{PREPARE} --out other")
    assert err.endswith(f"{resume} other\n")
    _, err = done(run, f"train --resume other {QUIET}")
    assert err.endswith("other is ready: annotated-transformer translate other\n")
    found = [Path(at, "model.safetensors").read_bytes() for at in ("other", "run")]
    assert found[0] == found[1]


def test_the_recipe_and_the_languages_of_a_run(run):
    "The default recipe; config.json holds language codes only where they were given."
    done(run, f"prepare {TEXT} --out new --quiet n_pieces=500 --tgt-lang zh-Hans-SG")
    config = json.loads(Path("new/config.json").read_text(encoding="utf-8"))
    recipe = override(RECIPES[_DEFAULT_RECIPE], ["n_pieces=500"])
    assert recipe_from_dict(config) == recipe
    assert (config["src_lang"], config["tgt_lang"]) == (None, "zh-Hans-SG")


def test_text_of_its_own_to_validate_on(run):
    files = "--valid-src asked --valid-tgt asked"
    done(run, f"{PREPARE} {files} --out new")
    source = json.loads(Path("new/config.json").read_text(encoding="utf-8"))["source"]
    assert Path(source["valid_src"]).name == "asked"


def test_pairs_in_one_file(run):
    "The run that two files give; its text is at hand when it is named again."
    sides = (
        Path(name).read_text(encoding="utf-8").split("\n")[:-1] for name in TEXT_OF
    )
    write(Path("pairs.tsv"), ["\t".join(pair) for pair in zip(*sides)])
    one = TRAIN.replace(TEXT, "--pairs pairs.tsv")
    done(run, f"{one} --out new")
    found = [Path(at, "model.safetensors").read_bytes() for at in ("new", "run")]
    assert found[0] == found[1]
    shutil.rmtree("new/data")
    assert "pass --data, --pairs, or" in refused(run, f"train --resume new {QUIET}")
    done(run, f"train --resume new --pairs pairs.tsv {QUIET}")


def test_bleu_and_tensorboard(run, monkeypatch):
    "BLEU at each pass where it is asked for; TensorBoard is refused before any text where it is not installed."
    done(run, f"{TRAIN} --out new --bleu --minutes 1e-6")
    assert len(Path("new/metrics.jsonl").read_text().split("\n")) == 3
    done(run, f"train --resume new {QUIET} --bleu")
    metrics = Path("new/metrics.jsonl").read_text().split("\n")[:-1]
    found = [json.loads(line) for line in metrics]
    measured = [0 <= m["valid_bleu"] <= 100 for m in found if "valid_loss" in m]
    assert measured and all(measured)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    missing = "TensorBoard is not installed: pip install tensorboard"
    for words in ("--src no --tgt no --out other", "--resume run"):
        assert refused(run, f"train {words} --tensorboard") == missing


@contextmanager
def stopped_by(name: str) -> Iterator[None]:
    "In this block, a signal reaches this process after the second step of training."
    steps = itertools.count(1)

    def count(*_):
        if next(steps) == 2:
            os.kill(os.getpid(), getattr(signal, name))

    handle = register_optimizer_step_post_hook(count)
    yield
    handle.remove()


def test_interrupted_training(run):
    with stopped_by("SIGTERM"):
        status, _, err = run(f"{TRAIN} --out new")
    resume = "train --resume new"
    assert status == 143 and re.search(r"SIGTERM at step \d, saved; to continue", err)
    assert f"annotated-transformer {resume}\n" in err and err.count("\n") == 1
    done(run, f"{resume} {QUIET}")
    found = [Path(at, "model.safetensors").read_bytes() for at in ("new", "run")]
    assert found[0] == found[1]


def test_launchers(run, monkeypatch):
    "RANK alone is not torchrun; after a restart by torchrun, --out continues the run."
    monkeypatch.setenv("RANK", "1")
    done(run, f"{TRAIN} --out new max_steps=1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert "already holds a run" in refused(run, f"{TRAIN} --out new")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    done(run, f"{TRAIN} --out new")


def test_a_sharded_run_draws_other_weights(run):
    "In one process too, which shows that the option arrives."
    done(run, f"{TRAIN} --out new --shard")
    found = [Path(at, "model.safetensors").read_bytes() for at in ("new", "run")]
    assert found[0] != found[1]


# translate


def test_lines_in_lines_out(run):
    lines = ["The dog was tired.", "", "   ", "\u2028odd\u0085spaces", "A cat?"]
    write(Path("in"), lines)
    out, _ = done(run, "translate run in")
    answers = out.split("\n")[:-1]
    assert len(answers) == len(lines) and answers[1] == answers[2] == ""
    Path("dos").write_bytes(b"\xef\xbb\xbfThe dog was tired.\r\n\r\nWhere is the cat?")
    assert done(run, "translate run dos") == done(run, "translate run asked")
    Path("asked.gz").write_bytes(gzip.compress(Path("asked").read_bytes()))
    assert done(run, "translate run asked.gz") == done(run, "translate run asked")


def test_the_best_few(run):
    "As many lines out for each line in, best first; with scores, and a tab."
    how = "translate run asked --beam-size 5 --alpha 1 --batch-tokens 30"
    best, _ = done(run, how)
    out, _ = done(run, f"{how} --n-best 3 --scores")
    rows = [line.split("\t") for line in out.split("\n")[:-1]]
    assert len(rows) == 9 and [text for _, text in rows[::3]] == best.split("\n")[:-1]
    scores = [float(score) for score, _ in rows]
    for a, b, c in zip(scores[::3], scores[1::3], scores[2::3]):
        assert -100 < c <= b <= a <= 0
    assert scores[0] > scores[2]
    assert rows[3:6] == [["0.0000", ""]] * 3  # a line without text
    plain, _ = done(run, f"{how} --n-best 3")
    assert plain.split("\n")[:-1] == [text for _, text in rows]


def test_another_engine(run):
    pytest.importorskip("ctranslate2")
    write(Path("in"), [s.en for s in builtin(6, seed=5)])
    how = "translate run in --n-best 2"
    assert done(run, f"{how} --engine ctranslate2") == done(run, how)
    assert not Path("run/ctranslate2").exists()


def test_samples(run):
    "The same of a seed, the right number of lines, and greedy search without chance."
    write(Path("in"), [s.en for s in builtin(6, seed=5)])
    how = "translate run in --scores --sample"
    once, other = (done(run, f"{how} --n-best 3 --seed {i}")[0] for i in (1, 2))
    assert once != other and once == done(run, f"{how} --seed 1 --n-best 3")[0]
    assert once.count("\n") == 18
    assert (
        done(run, how)[0] == done(run, f"{how} --seed 0 --top-p 1 --temperature 1")[0]
    )
    cold, narrow = (f"{how} --{one}" for one in ("temperature 1e-9", "top-p 1e-9"))
    greedy = done(run, "translate run in --scores --beam-size 1")[0].split("\n")
    for found in (done(run, cold)[0], done(run, narrow)[0]):
        texts = [line.partition("\t")[2] for line in found.split("\n")]
        assert texts == [line.partition("\t")[2] for line in greedy]


def test_the_papers_search_is_the_default(run):
    write(Path("in"), [s.en for s in builtin(6, seed=5)])
    default, paper, greedy = (
        done(run, f"translate run in --scores {how}")[0]
        for how in ("", "--beam-size 4 --alpha 0.6", "--beam-size 1")
    )
    assert default == paper != greedy
    assert done(run, "translate run in --scores --alpha 0.6")[0] == paper


class Terminal(io.BytesIO):
    "Somebody who types."

    def isatty(self):
        return True

    buffer = property(lambda self: self)


def test_typing(run, monkeypatch):
    "A prompt for each line and one for the end, on standard error."
    said, _ = done(run, "translate run asked")
    monkeypatch.setattr(sys, "stdin", Terminal(Path("asked").read_bytes()))
    out, err = done(run, "translate run")
    prompts = "Type a sentence and press return; Ctrl-D leaves.\n" + "> " * 4 + "\n"
    assert (out, err) == (said, prompts)


def test_which_demo(run):
    "The package's model, unless a folder of that name is here; a line says which."
    _, err = done(run, "translate demo asked")
    assert err == "demo: a pretrained model of this package\n"
    shutil.copytree("run", "demo")
    out, err = done(run, "score few.de demo --src few.en --ref few.de --beam-size 1")
    assert (
        err == "demo: the folder in the current directory, not the pretrained model\n"
    )
    assert out.split("\n")[1].startswith("demo: BLEU = ")


# score


def test_every_score(run):
    Path("said").write_text(done(run, "translate run few.en")[0], encoding="utf-8")
    plain, _ = done(run, "score run --src few.en --ref few.de")
    assert plain.startswith("BLEU = ") and "tok:13a" in plain
    assert done(run, "score said --ref few.de")[0] == plain  # translated before, or now
    options = "--chrf --confidence --flavours de --perplexity"
    lines = done(run, f"score run --src few.en --ref few.de {options}")[0].split("\n")[
        :-1
    ]
    assert len(lines) == 8
    assert [line.split(" =")[0] for line in lines[:3]] == ["BLEU", "chrF2", "13a"]
    interval = r"\w+ = \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)  \S+bs:1000\S+"
    assert all(re.fullmatch(interval, line) for line in lines[:2]), lines
    assert lines[2].split("= ")[1].split(" ")[0] == plain.split("= ")[1].split(" ")[0]
    unsure = r"perplexity = \d+\.\d{3} per token \(\d+\), \d+\.\d{3} per word \(\d+\)"
    assert re.fullmatch(unsure, lines[-1])


def test_systems_are_compared(run):
    write(Path("good"), [s.de for s in builtin(300, seed=3)[:39]] + ["Nein."])
    greedy = "--beam-size 1 --perplexity"
    out, _ = done(run, f"score good run few.de --src few.en --ref few.de {greedy}")
    first, second, third, unsure = out.split("\n")[:-1]
    assert first.startswith("good: BLEU = 9") and "p =" not in first
    assert second.startswith("run: BLEU = ")
    assert second.endswith("p = 0.0001, 40 sentences differ")
    assert third.startswith("few.de: BLEU = 100.00")
    assert third.endswith("p = 1.0000, 1 sentences differ")
    assert unsure.startswith("run: perplexity = ")


# pages, other people's programs


def test_pages(run):
    "Each is one file without a network address, and is replaced by the same kind only."
    attention = "attention run 'The dog was tired.' --out"
    for line in (f"{attention} a.html", f"{attention} a.html", "live run --out l.HTML"):
        out, err = done(run, line)
        name = line.split()[-1]
        ready = f"{name} is ready: open it in a browser, no network needed\n"
        assert (out, err) == ("", ready)
    page = Path("a.html").read_text(encoding="utf-8").replace("http-equiv", "")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "did not make it" in refused(run, f"{attention} l.HTML")
    assert "did not make it" in refused(run, "live run --out a.html")


def test_there_and_back(run):
    "To transformers, and back by import-marian: a run for the other commands."
    transformers = pytest.importorskip("transformers")
    _, err = done(run, "export-hf run hf")
    call = "transformers.AutoModelForSeq2SeqLM.from_pretrained('hf')"
    assert err == f"hf is ready: {call}\n"
    transformers.AutoModelForSeq2SeqLM.from_pretrained("hf")
    _, err = done(run, "import-marian hf back")
    assert err == "back is ready: annotated-transformer translate back\n"
    how = "asked --beam-size 4 --alpha 0.6"
    assert done(run, f"translate back {how}")[0] == done(run, f"translate run {how}")[0]
    done(run, "score back run --src few.en --ref few.de --beam-size 1")
    done(run, "attention back 'The dog was tired.' --out a.html")
    done(run, "export-hf back again")
    written = [Path(name, "model.safetensors").read_bytes() for name in ("hf", "again")]
    assert written[0] == written[1]
    for line in (
        "import-marian hf back",
        "export-ct2 back new",
        "train --resume back",
        "train --from back --src few.en --tgt few.de --out new",
        "average back --last 2",
    ):
        assert "back" in refused(run, line)


# Table 3


def small_corpus(name, data_dir=None):
    return load_corpus(name, data_dir, n_train=300, n_valid=20, n_test=1)


def test_variations(run, monkeypatch):
    "A table that is interrupted, by a signal and by a time limit, and continued."

    monkeypatch.setattr(cli_train.corpus, "load_corpus", small_corpus)
    sizes = "n_layers=1 d_model=32 d_ff=64 n_pieces=500 batch_tokens=400 save_every=2"
    rows = f"--rows 'base,A h=1' --seeds 1 {QUIET} --steps 3 {sizes} warmup_steps=1"
    line = f"variations --data builtin {rows} --out table"
    with stopped_by("SIGINT"):
        status, out, err = run(line)
    assert (status, out, err.count("\n")) == (130, "", 1)
    assert "what was done is in table: to continue, give the same command again" in err
    out, err = done(run, f"{line} --minutes 1e-5")
    assert (
        err
        == "1e-05 minutes used up, and rows are left: to continue, give the same command again\n"
    )
    out, err = done(run, line)
    assert [row.split("  ")[0] for row in out.split("\n")[1:-1]] == ["base", "A h=1"]
    assert "2 of 2: A h=1, seed 0: perplexity" in err and err.count("\n") == 2
    names = {path.name for path in Path("table").iterdir()}
    assert names == {"table.json", "rows"}
    said = refused(run, f"{line} label_smoothing=0.0")
    assert "was started with label_smoothing=0.1, not 0.0: choose another --out" in said


# the demo


def as_demo(out: Path) -> None:
    "Make a run folder one that `demo` has left."
    weights = sha256(out / "model.safetensors")
    report = {"format": 1, "kind": "demo", "weights_sha256": weights}
    (out / "report.json").write_text(json.dumps(report))


CHANGES = {
    "no report": lambda out: (out / "report.json").unlink(),
    "no hash": lambda out: (out / "report.json").write_text('{"kind": "demo"}'),
    "other weights": lambda out: shutil.copyfile(
        out / "checkpoints/step-0000002/model.safetensors", out / "model.safetensors"
    ),
    "a note": lambda out: (out / "notes.txt").write_text("keep me"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_demo_replaces_demos_only(change, run):
    as_demo(Path("run"))
    CHANGES[change](Path("run"))
    assert "is not a demo, or was changed since" in refused(run, "demo --out run")


def test_interrupted_demo(run, monkeypatch):
    "Nothing is measured of a model that is half trained; another demo takes its place."
    as_demo(Path("run"))
    monkeypatch.setattr(demo, "load_corpus", small_corpus)
    with stopped_by("SIGTERM"):
        status, _, err = run("demo --out run")
    assert status == 143 and "interrupted by SIGTERM: demo begins again" in err
    assert not Path("run/attention.html").exists()
    demo._remove_demo(Path("run"), demo.get_recipe("tiny"))
    assert not [*Path("run").iterdir()]
