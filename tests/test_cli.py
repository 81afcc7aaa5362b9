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
import sentencepiece as spm
from cells import INSTALLS, joined
from conftest import ROOT
from torch.optim.optimizer import register_optimizer_step_post_hook

from annotated_transformer import UserError, __version__
from annotated_transformer.cli.main import main
from annotated_transformer.cli.train import program
from annotated_transformer.data.corpus import DATA_SETS, load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.export.formats import EXPORTS
from annotated_transformer.io.files import MARKER, mark_folder, sha256
from annotated_transformer.io.text import shell_line, typed_lines
from annotated_transformer.runs.folder import PRETRAINED
from annotated_transformer.runs.settings import RECIPES, override, recipe_from_dict
from annotated_transformer.show import demo
from annotated_transformer.translating import metrics
from annotated_transformer.translating.evaluate import bleu
from annotated_transformer.translating.metrics import METRICS

TINY = (
    "n_layers=1 d_model=32 d_ff=64 n_heads=2 vocab_size=500 max_steps=4 batch_tokens=400 "
    "valid_every=2 save_every=2 average_last=0"
)


def tiny(*settings: str) -> str:
    "TINY with these in place of its own: `name=value`, or a name alone to leave it out."
    names = [setting.partition("=")[0] for setting in settings]
    kept = [word for word in TINY.split() if word.partition("=")[0] not in names]
    return " ".join([*kept, *(setting for setting in settings if "=" in setting)])


TEXT = "--src en --tgt de"
QUIET = "--device cpu --quiet"
TRAIN = f"train {TEXT} --config tiny {QUIET} {TINY}"


def write(path: str | Path, lines: list[str]) -> None:
    Path(path).write_bytes("".join(line + "\n" for line in lines).encode())


def exit_status(line: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(shlex.split(line))
    return left.value.code


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    "A folder with two aligned texts, and a run of four steps that was made of them."
    folder, here = tmp_path_factory.mktemp("made"), Path.cwd()
    sentences = builtin(300, seed=3)
    for side in ("en", "de"):
        lines = [getattr(s, side) for s in sentences]
        write(folder / side, lines)
        write(folder / f"few.{side}", lines[:40])
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


def lines_of(run, line: str) -> list[str]:
    return done(run, line)[0].split("\n")[:-1]


def answer(run, line: str) -> tuple[int, str]:
    "Exit status and message of a command; one that fails says one line, and changes nothing."
    files = lambda: {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    before = files()
    status, out, err = run(line)
    if status:
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert files() == before
    return status, err.removeprefix("annotated-transformer: ").removesuffix("\n")


def refused(run, line: str) -> str:
    "The message of a command that fails by a mistake of the user."
    status, message = answer(run, line)
    assert status, message
    return message


def same_weights(*runs: str) -> bool:
    first, second = (Path(run, "model.safetensors").read_bytes() for run in runs)
    return first == second


def test_help_has_every_command_in_order(run):
    out, _ = done(run, "--help")
    commands = re.findall(r"^  ([a-z][\w-]*)  ", out, re.MULTILINE)
    assert commands == [*program.commands] and commands[0] == "train"
    status, out, err = run("")
    assert (status, out) == (2, "") and "\n  train " in err


@pytest.mark.parametrize("name", ["train", "prepare"])
def test_help_names_recipes_data_sets_and_models(name, run):
    words = re.findall(
        r"[\w-]+", re.sub(r"-\n\s+", "-", done(run, f"{name} --help")[0])
    )
    assert {*RECIPES, *DATA_SETS, *PRETRAINED} - {*words} == set()


@pytest.mark.parametrize("name", ["train", "score"])
def test_help_names_metrics(name, run):
    (said,) = re.findall(r"--metric NAME([^;]*);", done(run, f"{name} --help")[0])
    assert {*METRICS} - {*re.findall(r"[\w+]+", said)} == set()


def test_the_page_of_options_is_the_program_s_own():
    "The stored output of nbs/command_line.ipynb, which no name or default leaves unnoticed."
    page = json.loads((ROOT / "nbs/command_line.ipynb").read_text(encoding="utf-8"))
    codes = [c for c in page["cells"] if c["cell_type"] == "code"]
    codes = [c for c in codes if c["id"] != INSTALLS]
    space = {}
    for cell in codes:
        exec(joined(cell["source"]), space)
    (output,) = codes[-1]["outputs"]
    stored = joined(output["data"]["text/markdown"])
    assert stored == space["reference_of"](program), "make notebooks NAMES=command_line"
    for name, command in program.commands.items():
        assert f"### {name}\n" in stored
        assert all(
            f"`{p.opts[0]}`" in stored for p in command.params if p.opts[0][0] == "-"
        )


@pytest.mark.parametrize(
    "words, posix, windows",
    [
        ([Path("demo")], "demo", "demo"),
        (
            ["my run", "grad_accum_steps=2"],
            "'my run' grad_accum_steps=2",
            '"my run" grad_accum_steps=2',
        ),
        (["runs\\demo", 3], "'runs\\demo' 3", "runs\\demo 3"),
        (["it's", 'a"b'], """'it'"'"'s' 'a"b'""", """it's a\\"b"""),
    ],
)
def test_hints_are_for_the_shell_at_hand(words, posix, windows, monkeypatch, capsys):
    for name, wanted in (("posix", posix), ("nt", windows)):
        with monkeypatch.context() as other:
            other.setattr(os, "name", name)
            found = shell_line("translate", *words)
            other.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A dog.\n")))
            typed = [*typed_lines()]
        assert found == f"annotated-transformer translate {wanted}"
        assert typed == [[b"A dog.\n"]]
        key = {"posix": "Ctrl-D leaves", "nt": "Ctrl-Z and return leave"}[name]
        assert key in capsys.readouterr().err


def test_version(run):
    assert done(run, "--version") == (f"annotated-transformer {__version__}\n", "")


@pytest.mark.parametrize("name", sorted(program.commands))
def test_no_option_is_lost_when_it_is_given_twice(name):
    "Each is refused, whatever its kind, unless it takes several values."

    def given(option: click.Option) -> list[str]:
        value = getattr(option.type, "choices", ["1"])[0]
        value = {"out": "a.html", "columns": "1,2"}.get(option.name, value)
        return [option.opts[0]] if option.is_flag else [option.opts[0], value]

    command = program.commands[name]
    words = ["a.html"] * sum(isinstance(p, click.Argument) for p in command.params)
    for option in command.params:
        if isinstance(option, click.Argument) or option.multiple:
            continue
        once = given(option)
        others = [
            word
            for p in command.params
            if p.required and isinstance(p, click.Option) and p is not option
            for word in given(p)
        ]
        wanted = f"{option.opts[0]} is given more than once"
        with pytest.raises(UserError, match=wanted):
            command.make_context(name, [*words, *others, *once, *once])
        with command.make_context(name, [*words, *others, *once]) as context:
            assert context.params


# mistakes

NEW = f"train {TEXT} --config tiny --out new --quiet"
OWN = f"train {TEXT} --out new"
DATA = "train --out new --data builtin"
SAY = "translate run asked"
PAGE = "attention run A --out"
REFUSED = f"""
nonsense | nonsense
translate | RUN
translate nowhere asked | nowhere is not a run folder: there is none of this name
average demo --last 2 | demo is not a run folder: it is a pretrained model, and a run of your own
translate tatoeba_zh asked | there is none of this name; a pretrained model is tatoeba-zh
{SAY} --n-best 0 | n_best=0
{SAY} --precision fp8 | 'fp8'
{SAY} --beam-size many | many
train --out new --data builtin --config base peak_lr=0.1 | peak_lr has no effect with schedule=paper
{NEW} position=rotary d_model=36 n_heads=4 | d_k=9, so use an even d_k, or a d_model that is a multiple of 8
{NEW} optimizer=muon --fsdp | optimizer=muon needs whole matrices
{NEW} dropout=1 | dropout=1.0 must be at least 0 and below 1
{NEW} d_model=high | d_model='high' must be a whole number
train --out new --src en --tgt few.de | few.de has 40: line i of one must translate line i of the other
train --resume nowhere | nowhere is not a run folder
average run --last 3 | the last 3 checkpoints cannot be averaged: run has 2
score few.de --ref de | few.de has 40
workbook --check en | en cannot be read as JSON
export run en --to hf | en is a file, not a folder
{NEW} --minutes 0 | minutes=0.0 must be positive and below 10,000,000
{NEW} --fsdp --metric bleu | score (--metric) exclude each other
{NEW} --device '' | device '' cannot be used here
{NEW} --colour blue | --colour
{OWN} --config huge | 'huge'
{OWN} --pairs en | pass either --data, or --src with --tgt, or --pairs
{OWN} --valid-pairs en | --valid-pairs cannot be used with --src
{OWN} --valid-src en | --valid-src needs --valid-tgt
{OWN} --src-lang english | src_lang='english' is no
{DATA} --tgt de | --tgt cannot be used with --data
train --out new --data wmt99 | 'wmt99'
train | pass either --out, a new run folder, or --resume RUN
train --out new --resume run | pass either --out, a new run folder, or
train --src nofile --tgt nofile --out new vocab_size=299 | vocab_size=299 is too few
train --out new --pairs en | en, line 1 has no tab
train --resume run --tgt x | pass either --data, or --src with --tgt
train --resume run --from demo | --from cannot be used with --resume
train --resume run --config tiny | --config cannot be used with --resume
train --resume run max_steps=1 | max_steps=1 is less than the
train --resume demo | demo is not a run folder
average demo --last 2 | demo is not a run folder
translate empty_folder asked | empty_folder is not a run folder: it has no config.json
translate Some/model asked | there is none of this name; a model of the Hub
translate theirs asked | theirs is not a run folder: it is for transformers
import-marian Some/model new | hf download NAME
translate run asked --device mps | device 'mps' cannot be used here: PyTorch sees no
translate run asked --device gpu | device 'gpu' cannot be used here: use cpu, cuda
score asked --ref asked --tokenize ko-mecab | needs pip install "sacrebleu[ko]"
translate run asked --sample --seed 9999999999999999999 | --seed
translate run bad.gz | bad.gz cannot be read: Unknown compression method
translate run nofile | nofile: no such file
train --out new --pairs 4.tsv --columns 2,5 | line 1 has 4 columns (1 | a | 2 | b)
train --out new --pairs 4.tsv --columns 0,1 | '0,1' is not two numbers from 1, such as 2,4
train --out new --pairs empty_folder | empty_folder is a folder: text to train on
{OWN} --columns 1,2 | --columns cannot be used with --src
score asked --ref asked --bleu-variants xx | Moses does not know the language 'xx': use as,
{SAY} --beam-size 0 | beam_size=0
{SAY} --n-best 5 | n_best=5 with beam_size=4
{SAY} --sample --alpha 1 | (--alpha) cannot be used with sample (--sample)
{SAY} --sample --top-p 2 | top_p=2.0 must be in (0, 1]
{SAY} --sample --temperature 0 | temperature=0.0 must be from 1e-30 to 1e30
{SAY} --sample --temperature inf | temperature=inf must be from
{SAY} --sample --temperature nan | temperature=nan must be from
{SAY} --sample --temperature 1e-40 | temperature=1e-40 must be from
{SAY} --sample --engine ctranslate2 | does not support sampl
{SAY} --engine ctranslate2 --precision bf16 | supports fp32 and int8
{SAY} --engine onnx | 'onnx'
{SAY} --batch-tokens 0 | batch_tokens=0
{SAY} --device cuda:99 | 'cuda:99'
score de | --ref
score run --ref de --src asked | asked has 3 lines, de has 300
score de --ref de --perplexity | (--perplexity) needs a run, not a file
score nowhere --ref de | nowhere: no such file
{PAGE} de | de does not end in .html
{PAGE} new/x.html | cannot be written: No such file or directory
export run new | --to
export run new --to onnx | 'onnx'
export run new --to ct2 --quantization int7 | 'int7'
export run new --to hf --quantization int8 | quantization=int8 is for ct2, not for hf
import-marian run new | run is a run of annotated_transformer already, not a
demo --out de | choose another place
{NEW} --quiet | --quiet is given more than once
{NEW} seed=1 dropout=0 seed=1 | the setting seed is given more than once
train --resume run max_steps=8 max_steps=9 | the setting max_steps is given more than once
train --src en --src few.en --tgt de --out new | src and tgt need equally many files, not 2 and 1
{NEW} --valid-src few.en --valid-tgt few.de --valid-tgt few.de | valid_src and valid_tgt need equally many files
train --src en --src few.en --tgt few.de --tgt de --out new | few.de has 40: line i of one must translate
train --pairs 4.tsv --pairs en --columns 2,4 --out new | en, line 1 has no tab
score de --ref de --ref few.de | few.de has 40
score run --src en --ref de --ref de --perplexity | (--perplexity) is of one --ref, not of 2
score de --ref de --sentences --confidence | (--confidence) cannot be used with sentences (--sentences)
score de en --ref de --sentences | (--sentences) scores one system, not 2
{NEW} --metric bleu --metric bertscore | metric='bertscore' is unknown: use bleu
{NEW} --vocab few.en | few.en: not a SentencePiece model
{NEW} --vocab run/vocab.model --from run | --from cannot be used with --vocab
{NEW} --vocab run/vocab.model vocab_size=500 | vocab_size is the size of --vocab: leave it out
train --resume run --vocab run/vocab.model | --vocab cannot be used with --resume
{SAY} --prefix "{"Der Hund " * 40}" | tokens leaves no room in a translation of at most
{SAY} --prefix "Der Hund" --max-len 1 | max_len=1 with a prefix of
{SAY} --prefix "" | (--prefix) '' has no token
{SAY} --prefix T\udcfcr | b'T\\xfcr' is not UTF-8
{SAY} --max-len 99999999999999999999 | --max-len
attention run T\udcfcr --out x.html | b'T\\xfcr' is not UTF-8
{SAY} --prefix Der --engine ctranslate2 | CTranslate2 does not support a prefix
"""


@pytest.mark.parametrize("case", REFUSED.strip().split("\n"))
def test_mistakes(case, run):
    Path("bad.gz").write_bytes(b"\x1f\x8bnot compressed")
    write("4.tsv", ["1\ta\t2\tb"])
    Path("mine.html").write_text("<p>mine</p>")
    Path("empty_folder").mkdir()
    Path("theirs").mkdir()
    Path("theirs/config.json").write_text('{"model_type": "marian"}')
    line, message = case.split(" | ", 1)
    assert message in refused(run, line)


# advice: what a command says, what is taken from it, the next command, what that says;
# a mistake whose message advises something is here, and not above

ADVICE = rf"""
{NEW} {TINY} d_modl=32 | did you mean (d_model)\? | {NEW} {tiny("d_model")} \1=32 | new is ready
{NEW} {tiny("n_heads=3")} | use a multiple of (3) | {NEW} {tiny("n_heads=3", "d_model")} d_model=3\g<1>0 | must be even|new is ready
{NEW} {TINY} position=learned n_positions=40 | use (n_positions=257) or | {NEW} {TINY} position=learned \1 | new is ready
{NEW} {TINY} position=learned n_positions=40 | or (max_len=39) | {NEW} {TINY} position=learned n_positions=40 \1 | new is ready
{NEW} {tiny("average_last=3")} keep_last=2 | at most keep_last=(2) | {NEW} {tiny("average_last")} average_last=\1 keep_last=2 | new is ready
{NEW} {TINY} --device gpu | use (cpu), cuda | {NEW} {TINY} --device \1 | new is ready
{NEW} {TINY} | is ready: annotated-transformer (translate new) | \1 asked | ^$
prepare {TEXT} --out new {TINY} | to train: annotated-transformer (train --resume new) | \1 | new is ready
{TRAIN} --out run | continue it with (--resume) \(in Python resume_run\), choose | train \1 run {QUIET} | run has already finished
{TRAIN} --out run | choose another (--out) | {TRAIN} \1 new | new is ready
train --resume run {QUIET} | To train further: annotated-transformer (train --resume run max_steps=8) | \1 | run is ready
train --resume run dropout=0.3 | only grad_accum_steps, (average_last), .* can | train --resume run \1=2 {QUIET} | run has already finished
train --resume run --src de --tgt en | was started with other (text) | train --resume run --src en --tgt de max_steps=5 | run is ready
train --out new --src en {TINY} | --src needs (--tgt) | train --out new --src en \1 de {TINY} | new is ready
train --out new {TINY} | or (--src with --tgt) | train --out new {TEXT} {TINY} | new is ready
{OWN} --config fine-tune {TINY} | needs (--from), a run | {OWN} --config fine-tune \1 run {QUIET} max_steps=2 warmup_steps=1 | new is ready
{OWN} --from demo vocab_size=500 | which has (vocab_size=\d+): leave it out | {OWN} --from demo {QUIET} \1 max_steps=2 warmup_steps=1 | new is ready
train --out new --pairs 4.tsv {TINY} | for example (--columns 2,4) | train --out new --pairs 4.tsv \1 {TINY} | new is ready
export run run --to ct2 | choose another (place) | export run \1 --to ct2 | place is ready
export run new --to onnx | not one of '(hf)' | export run new --to \1 | new is ready
export run new --to hf --quantization int8 | is for (ct2), not for hf | export run new --to \1 --quantization int8 | new is ready
live run --out mine.html | choose another (name) | live run --out \1.html | name.html is ready
{PAGE} x.html --lang xx | pages are in (en), | {PAGE} x.html --lang \1 | x.html is ready
score run --ref de | (--src) is missing: it is what run translates | score run --ref few.de \1 few.en | ^$
score de --ref de --metric rouge | use bleu, chrf, chrf\+\+, (ter) | score de --ref de --metric \1 | ^$
translate unfinished asked | which (train --resume) continues | \1 unfinished {QUIET} | unfinished
train --resume begun | not made yet: repeat the command | train {TEXT} --out begun {TINY} | begun is ready
{SAY} --max-len 0 | must be at least (1) | {SAY} --max-len \1 | ^$
{SAY} --top-p 0.5 | without sample \((--sample)\) | {SAY} --top-p 0.5 \1 | ^$
"""


@pytest.mark.parametrize("case", ADVICE.strip().split("\n"))
def test_advice_is_taken(case, run):
    "The next command is made of the words of the message, and says something new."
    four = [f"{i}\t{s.de}\t{i}\t{s.en}" for i, s in enumerate(builtin(100, seed=3))]
    write("4.tsv", four)
    write("zh", ["你好，世界。", "我很好。"])
    Path("mine.html").write_text("<p>mine</p>")
    Path(shutil.copytree("run", "unfinished"), "model.safetensors").unlink()
    Path("begun").mkdir()
    mark_folder(Path("begun"))
    first, pattern, after, says = case.split(" | ")
    _, err = answer(run, first)
    advice = re.search(pattern, err)
    assert advice, err
    status, _, then = run(advice.expand(after))
    last = then.replace("\r", "\n").strip().split("\n")[-1]
    assert re.search(says, last) and last != err.strip().split("\n")[-1], then
    assert status == 0, then


def test_early_stopping_is_no_end(run):
    "A fine-tuning that stopped early goes on with the patience that it is told to have."
    tune = f"train --from run {TEXT} {QUIET} --out new max_steps=9 valid_every=1 "
    done(run, f"{tune} patience=1 peak_lr=9 warmup_steps=1")
    for patience in (2, 4):
        _, err = done(run, f"train --resume new {QUIET}")
        (more,) = re.findall(r"annotated-transformer (train .*)", err)
        assert more == f"train --resume new patience={patience}"
        before = json.loads(Path("new/config.json").read_text())["steps"]
        done(run, more)
        assert json.loads(Path("new/config.json").read_text())["steps"] > before


def test_the_advice_raises_all_limits_that_were_reached(run):
    tune = f"train --from run {TEXT} {QUIET} --out new max_steps=1 valid_every=1"
    done(run, f"{tune} patience=1 peak_lr=9 warmup_steps=1")
    _, err = done(run, f"train --resume new {QUIET}")
    (more,) = re.findall(r"annotated-transformer (train .*)", err)
    assert more == "train --resume new max_steps=2 patience=2"
    done(run, more)
    assert json.loads(Path("new/config.json").read_text())["steps"] == 2


COMMANDS = f"""
prepare {TEXT} --valid-src few.en --valid-tgt few.de --out new {TINY} --quiet
train --resume new --metric bleu --metric ter {QUIET}
train --from run {TEXT} {QUIET} --out c max_steps=2 warmup_steps=1 dropout=0
average new --last 1
translate new asked --quiet
attention new "We are not sick." --lang zh --out a.html
live new --lang zh --out live.html
score new --src few.en --ref few.de
export new ct2 --to ct2 --quantization int8
export new hf --to hf
import-marian hf back
translate back asked --quiet
workbook --check {shlex.quote(str(ROOT / "nbs/workbook.ipynb"))} --json score.json
"""


def test_every_command_succeeds(run):
    lines = COMMANDS.strip().split("\n")
    # demo trains for two minutes, and has tests of its own below
    assert {line.split()[0] for line in lines} == program.commands.keys() - {"demo"}
    for line in lines:
        done(run, line)
    names = {"config.json", "model.safetensors", "README.md", "generation_config.json"}
    assert names < {*os.listdir("hf")} and "model.bin" in os.listdir("ct2")


@pytest.mark.parametrize("to", EXPORTS)
def test_every_export_says_how_it_is_loaded(to, run):
    "By a line of Python that works, if its program is installed."
    _, err = done(run, f"export run new --to {to}")
    (loads,) = re.findall("^new is ready: (.*)$", err, re.MULTILINE)
    module = pytest.importorskip(loads.partition(".")[0])
    assert eval(loads, {module.__name__: module})


def test_warnings_about_the_data_are_shown_quietly_too(run):
    wrong = (
        f"train --src de --tgt en --src-lang en --tgt-lang de --out new {TINY} {QUIET}"
    )
    _, err = done(run, wrong)
    assert "warning: source and target look swapped" in err and "text:" not in err


def test_a_warm_up_that_is_too_long(run):
    wrong = f"train {TEXT} --config tiny {tiny('warmup_steps=9', 'max_steps=1')} --out short"
    assert "training ends before the learning rate reaches" in done(run, wrong)[1]


def test_what_a_run_is_made_of(run):
    "The default recipe, the languages and the text to validate on reach config.json."
    files = "--valid-src asked --valid-tgt asked --tgt-lang zh-Hans-SG"
    done(run, f"prepare {TEXT} {files} --out new --quiet vocab_size=500")
    config = json.loads(Path("new/config.json").read_text(encoding="utf-8"))
    assert recipe_from_dict(config) == override(RECIPES["small"], ["vocab_size=500"])
    assert (config["src_lang"], config["tgt_lang"]) == (None, "zh-Hans-SG")
    assert [Path(x).name for x in config["source"]["valid_src"]] == ["asked"]


def test_pairs_in_one_file(run):
    "The run that two files give, also when its text is lost and passed again."
    sides = (Path(name).read_text("utf-8").split("\n")[:-1] for name in ("en", "de"))
    write("pairs.tsv", ["\t".join(pair) for pair in zip(*sides)])
    done(run, f"{TRAIN} --out new".replace(TEXT, "--pairs pairs.tsv"))
    assert same_weights("new", "run")
    shutil.rmtree("new/data")
    assert "pass --data, --pairs, or" in refused(run, f"train --resume new {QUIET}")
    done(run, f"train --resume new --pairs pairs.tsv {QUIET}")


def test_text_in_several_files(run):
    "The run of all lines, one file after the other; resumed, also without its text."
    for side in ("en", "de"):
        lines = Path(side).read_text("utf-8").split("\n")[:-1]
        write(f"a.{side}", lines[:77])
        write(f"b.{side}", lines[77:])
    both = "--src a.en --src b.en --tgt a.de --tgt b.de"
    done(run, f"{TRAIN} --out new".replace(TEXT, both))
    assert same_weights("new", "run")
    valid = "--valid-src few.en --valid-src asked --valid-tgt few.de --valid-tgt asked"
    done(run, f"prepare {both} {valid} --out ready {TINY} --quiet")
    shutil.rmtree("ready/data")
    swapped = f"train --resume ready {both} {valid} {QUIET}".replace(TEXT, both)
    other = swapped.replace("few.en --valid-src asked", "asked --valid-src few.en")
    other = other.replace("few.de --valid-tgt asked", "asked --valid-tgt few.de")
    assert "was started with other text" in refused(run, other)
    done(run, swapped)
    kept = json.loads(Path("ready/config.json").read_text(encoding="utf-8"))
    assert kept["text"]["train"] == 300 and kept["text"]["valid"] == 42
    tune = f"train --from run {both} {QUIET} --out tuned max_steps=1 warmup_steps=1"
    done(run, tune)
    pairs = [
        zip(*(Path(f"{x}.{y}").read_text().split("\n")[:-1] for y in ("en", "de")))
        for x in "ab"
    ]
    for name, rows in zip("ab", pairs):
        write(f"{name}.tsv", ["\t".join(pair) for pair in rows])
    tabs = "--pairs a.tsv --pairs b.tsv"
    done(run, f"{TRAIN} --out tabs".replace(TEXT, tabs))
    assert same_weights("tabs", "run")


def test_a_vocabulary_of_ones_own(run):
    "The run has it to the byte, and so has one that starts from it; a wrong one is named."
    how = {"input": "en,de", "vocab_size": 420, "minloglevel": 2}
    special = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    learn = spm.SentencePieceTrainer.train
    for name, kind in (
        ("own", {"model_type": "bpe", "byte_fallback": True} | special),
        ("nopad", {"model_type": "bpe", "byte_fallback": True}),
        ("unigram", {"byte_fallback": True} | special),
        ("nobytes", {"model_type": "bpe", "vocab_size": 90} | special),
    ):
        learn(**how | kind, model_prefix=name)
    text = f"{TEXT} --out new {QUIET} --config tiny {tiny('vocab_size')}"
    for name in ("nopad", "unigram", "nobytes"):
        assert "train it with spm_train" in refused(
            run, f"train {text} --vocab {name}.model"
        )
    done(run, f"train {text} --vocab own.model")
    done(run, f"train --from new {TEXT} {QUIET} --out tuned max_steps=1 warmup_steps=1")
    own = Path("own.model").read_bytes()
    assert all(Path(x, "vocab.model").read_bytes() == own for x in ("new", "tuned"))
    assert "was given" not in done(run, f"train --resume new {QUIET} max_steps=6")[1]
    assert len(lines_of(run, "translate new asked")) == 3


def test_what_was_read_is_said_once_and_kept(run):
    "In the order of a wrong option; a resumed run is silent."
    sides = zip(*(Path(name).read_text("utf-8").split("\n") for name in ("de", "en")))
    write("4.tsv", [f"{i}\t{de}\t{i}\t{en}" for i, (de, en) in enumerate(sides) if en])
    options = f"--config tiny --columns 2,4 --src-lang en --tgt-lang de {TINY}"
    _, err = done(run, f"train --pairs 4.tsv {options} --out new")
    kept = json.loads(Path("new/config.json").read_text(encoding="utf-8"))["text"]
    assert f"text: {kept['train']:,} pairs to train on" in err and kept["too_long"] == 0
    assert kept["train"] + kept["valid"] == 300 and len(kept["examples"]) == 3
    assert "warning: source and target look swapped: are they en and de?" in err
    assert [src for src, _ in kept["examples"]] and kept["src_tokens"] > 3
    assert "text:" not in done(run, "train --resume new max_steps=6")[1]


def test_bleu_and_tensorboard(run, monkeypatch):
    "TensorBoard is refused before any text is read where it is not installed."
    done(run, f"{TRAIN} --out new --metric bleu --metric chrf++ --minutes 1e-6")
    done(run, f"train --resume new {QUIET} --metric bleu --metric chrf++")
    found = map(json.loads, Path("new/metrics.jsonl").read_text().split("\n")[:-1])
    passes = [m for m in found if "valid_loss" in m]
    assert len(passes) > 1 and "tok:13a" in passes[0]["bleu_signature"]
    assert all(0 <= m[x] <= 100 for m in passes for x in ("valid_bleu", "valid_chrf++"))
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    missing = "--tensorboard needs the package tensorboard: pip install tensorboard"
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


def test_launchers(run, monkeypatch):
    "RANK alone is not torchrun; after a restart by torchrun, --out continues the run."
    monkeypatch.setenv("RANK", "1")
    done(run, f"train {TEXT} --config tiny {QUIET} {tiny('max_steps=1')} --out new")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    assert "already holds a run" in refused(run, f"{TRAIN} --out new")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    done(run, f"{TRAIN} --out new")


def test_a_sharded_run_draws_other_weights(run):
    "In one process too, which shows that the option arrives."
    done(run, f"{TRAIN} --out new --fsdp")
    assert not same_weights("new", "run")


def test_lines_in_lines_out(run):
    lines = ["The dog was tired.", "", "   ", "\u2028odd\u0085spaces", "A cat?"]
    write("in", lines)
    answers = lines_of(run, "translate run in")
    assert len(answers) == len(lines) and answers[1] == answers[2] == ""
    Path("dos").write_bytes(b"\xef\xbb\xbfThe dog was tired.\r\n\r\nWhere is the cat?")
    Path("asked.gz").write_bytes(gzip.compress(Path("asked").read_bytes()))
    for name in ("dos", "asked.gz"):
        assert done(run, f"translate run {name}") == done(run, "translate run asked")


def test_a_line_of_several_sentences(run):
    "Each is translated as if it were alone, unless the line is to be one."
    write("three", ["Where is the cat? The dog was tired. Where is the dog?"])
    write("each", ["Where is the cat?", "The dog was tired.", "Where is the dog?"])
    each = lines_of(run, "translate demo each")
    assert lines_of(run, "translate demo three") == [" ".join(each)]
    assert lines_of(run, "translate demo three --no-split") != [" ".join(each)]


def test_the_best_few(run):
    "As many lines out for each line in, best first; with scores, and a tab."
    how = "translate run asked --beam-size 5 --alpha 1 --batch-tokens 30"
    rows = [line.split("\t") for line in lines_of(run, f"{how} --n-best 3 --scores")]
    texts, scores = [text for _, text in rows], [float(score or 0) for score, _ in rows]
    assert len(rows) == 9 and texts[::3] == lines_of(run, how)
    for a, b, c in zip(scores[::3], scores[1::3], scores[2::3]):
        assert -100 < c <= b <= a <= 0
    assert scores[0] > scores[2]
    assert rows[3:6] == [["0.0000", ""], ["", ""], ["", ""]]  # a line without text
    assert lines_of(run, f"{how} --n-best 3") == texts


def test_what_finds_the_translations(run):
    "The paper's search is the default, and greedy search has no length penalty."
    write("in", [s.en for s in builtin(6, seed=5)])
    found = lambda how: lines_of(run, f"translate run in --scores {how}")
    paper, greedy = found("--beam-size 4 --alpha 0.6"), found("--beam-size 1")
    assert found("") == found("--alpha 0.6") == paper != greedy
    assert found("--beam-size 1 --alpha 5") == greedy
    assert "0.0000\t" not in found("--n-best 2")
    pytest.importorskip("ctranslate2")
    assert found("--n-best 2 --engine ctranslate2") == found("--n-best 2")


def test_samples(run):
    "The same of a seed, the right number of lines, and greedy search without chance."
    write("in", [s.en for s in builtin(6, seed=5)])
    found = lambda how: lines_of(run, f"translate run in --scores {how}")
    once, other = (found(f"--sample --n-best 3 --seed {i}") for i in (1, 2))
    assert once != other and once == found("--seed 1 --sample --n-best 3")
    assert len(once) == 18
    assert found("--sample") == found("--sample --seed 0 --top-p 1 --temperature 1")
    texts = lambda how: [line.partition("\t")[2] for line in found(how)]
    for how in ("temperature 1e-30", "top-p 1e-9"):
        assert texts(f"--sample --{how}") == texts("--beam-size 1")


def test_a_given_beginning_and_a_limit(run):
    "Of every search; each line is translated at once."
    write("in", ["The dog was tired. Where is the cat?", "", "Where is the dog?"])
    for how in ("", "--beam-size 1", "--sample --seed 3", "--n-best 1 --scores"):
        lines = lines_of(run, f"translate demo in {how} --prefix 'Die Katze'")
        texts = [line.rpartition("\t")[2] for line in lines]
        assert [text[:9] for text in texts] == ["Die Katze", "", "Die Katze"]
        short = lines_of(run, f"translate demo in {how} --no-split --max-len 2")
        texts = [line.rpartition("\t")[2] for line in short]
        assert all(len(text.split()) <= 2 for text in texts) and texts[0]
    free, own = (lines_of(run, f"translate demo in {x}") for x in ("--no-split", ""))
    assert lines_of(run, f"translate demo in --prefix '{free[0]}'")[0] == free[0]
    assert lines_of(run, "translate demo in --max-len 100") == own


def test_which_demo(run):
    "The package's model, unless a folder of that name is here; a line says which."
    _, err = done(run, "translate demo asked")
    assert err == "demo: a pretrained model of this package\n"
    shutil.copytree("run", "demo")
    out, err = done(run, "score few.de demo --src few.en --ref few.de --beam-size 1")
    assert err.startswith("demo: the folder in the current directory, not the pret")
    assert out.split("\n")[1].startswith("demo: BLEU = ")


def test_scores(run):
    "Of a run, of its translations, and of several systems; golden has every measure."
    for name, rest in (("few.en", ""), ("two", " Yes. No.")):  # several sentences
        text = Path("few.en").read_text("utf-8").split("\n")[:-1]
        write(name, [line + rest for line in text])
        write("said", lines_of(run, f"translate run {name}"))
        plain = done(run, f"score run --src {name} --ref few.de")
        assert plain == done(run, "score said --ref few.de")
    write("good", [s.de for s in builtin(300, seed=3)[:39]] + ["Nein."])
    greedy = "--src few.en --ref few.de --beam-size 1 --perplexity"
    first, second, third, unsure = lines_of(run, f"score good run few.de {greedy}")
    assert first.startswith("good: BLEU = 9") and "p =" not in first
    assert second.startswith("run: BLEU = ")
    assert second.endswith("p = 0.0001, sentences that differ: 40")
    assert third.startswith("few.de: BLEU = 100.00")
    assert third.endswith("p = 1.0000, sentences that differ: 1")
    assert unsure.startswith("run: perplexity = ")


def test_several_references_and_metrics(run):
    "A sentence is right if one of them has it; a line for each metric, or each sentence."
    write("half", Path("few.de").read_text("utf-8").split("\n")[:20] + 20 * ["nein"])
    write("rest", 20 * ["ja"] + Path("few.de").read_text("utf-8").split("\n")[20:-1])
    two = "score few.de --ref half --ref rest"
    every = "".join(f" --metric {name}" for name in METRICS)
    best = [line.split("  ")[0] for line in lines_of(run, two + every)]
    assert best == ["BLEU = 100.00", "chrF2 = 100.00", "chrF2++ = 100.00", "TER = 0.00"]
    assert "nrefs:2" in done(run, two)[0]
    assert done(run, f"{two} --confidence")[0].startswith("BLEU = 100.00 (100.00 to")
    assert all("100.00" in line for line in lines_of(run, f"{two} --bleu-variants de"))
    first, second = lines_of(run, "score half few.de --ref half --ref rest")
    assert second.startswith("few.de: BLEU = 100.00") and "p = " in second
    rows = lines_of(
        run, "score half --ref few.de --metric bleu --metric ter --sentences"
    )
    assert len(rows) == 40 and rows[:20] == 20 * ["100.00\t0.00"] != rows[20:]
    write(
        "lower", [x.lower() for x in Path("few.de").read_text("utf-8").split("\n")[:-1]]
    )
    assert done(run, "score lower --ref few.de --lowercase")[0].startswith(
        "BLEU = 100.00"
    )


def test_nothing_is_scored_too(run):
    "A system that says nothing has a BLEU of 0."
    write("empty", 40 * [""])
    assert lines_of(run, "score empty --ref few.de")[0].startswith("BLEU = 0.00")


SCRIPTS = {
    "th": ("แมวนอนอยู่ใต้สะพานเก่า", "เด็ก", "char"),
    "my": ("ခွေးသည်တံတားအောက်တွင်အိပ်နေသည်", "ကလေး", "char"),
    "km": ("ឆ្កែកំពុងដេកនៅក្រោមស្ពាន", "ក្មេង", "char"),
    "lo": ("ໝານອນຢູ່ໃຕ້ຂົວເກົ່າ", "ເດັກ", "char"),
    "bo": ("ཁྱི་ཟམ་པའི་འོག་ཏུ་ཉལ།", "ཕྲུ་གུ", "char"),
    "zh": ("狗睡在旧桥下面,用PyTorch训练的。", "孩子", "zh"),
    "ja": ("古い橋の下で犬が眠っています。", "子供", "char"),
    "ko": ("개가 오래된 다리 밑에서 자고 있습니다.", "아이", "char"),
    "de": ("Ein Hund (dt. für 狗) schläft unter der alten Brücke.", "Kind", "13a"),
    "hi": ("कुत्ता पुराने पुल के नीचे सो रहा है।", "बच्चा", "13a"),
}


@pytest.mark.parametrize("language", SCRIPTS)
def test_bleu_of_any_script(language, run, monkeypatch):
    "A wrong ending in each line leaves most of it right, in score and in training."
    metrics._installed.cache_clear()
    monkeypatch.setitem(sys.modules, "MeCab", None)  # installed or not
    monkeypatch.setitem(sys.modules, "mecab_ko", None)
    line, other, tokenizer = SCRIPTS[language]
    write("ref", [f"{line} {i} {line}" for i in range(8)])
    write("sys", [f"{line} {i} {line}{other}" for i in range(8)])
    out, err = done(run, "score sys --ref ref")
    assert f"|tok:{tokenizer}|" in out and float(re.findall(r"= (\S+)", out)[0]) > 30
    lacks = language in ("ja", "ko")
    assert err.count("\n") == lacks and (f"sacrebleu[{language}]" in err) == lacks
    assert "|tok:intl|" in done(run, "score sys --ref ref --tokenize intl")[0]
    assert bleu(["x"], [line]).signature.split("|")[3] == f"tok:{tokenizer}"


def test_bleu_in_training_is_of_its_script(run):
    lines, _, _ = SCRIPTS["th"]
    write("th", [f"{lines} {i}" for i in range(300)])
    done(run, f"{TRAIN} --out new --metric bleu".replace("--tgt de", "--tgt th"))
    kept = json.loads(Path("new/config.json").read_text(encoding="utf-8"))
    assert "|tok:char|" in kept["validation"][0]["bleu_signature"]


def test_pages(run):
    "Each is one file without a network address, and is replaced by the same kind only."
    attention = "attention run 'The dog was tired.' --out"
    for line in (f"{attention} a.html", f"{attention} a.html", "live run --out l.HTML"):
        out, err = done(run, line)
        assert not out and err.startswith(f"{line.split()[-1]} is ready: open it")
    page = Path("a.html").read_text(encoding="utf-8").replace("http-equiv", "")
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "did not make it" in refused(run, f"{attention} l.HTML")
    assert "did not make it" in refused(run, "live run --out a.html")


def as_demo(out: Path) -> None:
    "Make a run folder one that `demo` has left."
    weights = sha256(out / "model.safetensors")
    report = {"format": 1, "kind": "demo", "weights_sha256": weights}
    (out / "report.json").write_text(json.dumps(report))


def test_a_demo_replaces_unchanged_demos_only(run):
    other = Path("run/checkpoints/step-0000002/model.safetensors")
    for change in (
        lambda: Path("run/notes.txt").write_text("keep me"),
        lambda: shutil.copyfile(other, "run/model.safetensors"),
        lambda: Path("run/report.json").write_text('{"kind": "demo"}'),
        lambda: Path("run/report.json").unlink(),
    ):
        as_demo(Path("run"))
        change()
        assert "is not a demo, or was changed" in refused(run, "demo --out run")
        Path("run/notes.txt").unlink(missing_ok=True)


def test_interrupted_demo(run, monkeypatch):
    "Nothing is measured of a model that is half trained; the earlier demo is still there."
    as_demo(Path("run"))
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    small = load_corpus("builtin", n_train=300, n_valid=20, n_test=1)
    monkeypatch.setattr(demo, "load_corpus", lambda name: small)
    with stopped_by("SIGTERM"):
        status, _, err = run("demo --out run")
    assert status == 143 and err.endswith("interrupted by SIGTERM\n")
    demo._check_demo(Path("run"))
    files = {p: p.stat().st_mtime_ns for p in Path("run").rglob("*") if p.is_file()}
    assert files.items() <= before.items() and len(files) > 3


def test_a_demo_is_made_where_a_process_was_killed(tmp_path):
    (tmp_path / MARKER).touch()
    (tmp_path / ".annotated_transformer-12345678.part").mkdir()
    with demo._replacing(tmp_path) as new:
        (new / "report.json").touch()
    assert {path.name for path in tmp_path.iterdir()} == {MARKER, "report.json"}
