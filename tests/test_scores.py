"Scores against sacreBLEU's own command, Perl, a hand loop and exact counting."

import json
import random
import shutil
import subprocess
import sys

import pytest
from sacrebleu.metrics import CHRF, TER

from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.translating.evaluate import (
    _split_hyphens,
    bleu,
    chrf,
    moses_lowercase,
    moses_tokenize,
)
from annotated_transformer.translating.significance import (
    compare,
    score_systems,
)

GOLD = [s.de for s in builtin(120, seed=1, split="test")]
GOLD += [
    "Ein 24-jähriger Mann liest „Ost-West“.",
    "Der Ball – 3,5 kg schwer – ist z.B. rot-weiß.",
    "a-b-c",
]
WORDS = " ".join(GOLD).split()


def slips(lines, share, seed):
    rng = random.Random(seed)

    def slip(word):
        return rng.choice(WORDS) if rng.random() < share else word

    return [" ".join(map(slip, line.split())) for line in lines]


GOOD, BAD = slips(GOLD, 0.1, 0), slips(GOLD, 0.3, 1)


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def sacrebleu(tmp_path):
    "What the command `sacrebleu` says of the same text."

    def call(references, *systems, options):
        files = [write(tmp_path / f"sys{i}", said) for i, said in enumerate(systems)]
        words = [write(tmp_path / "ref", references), "-i", *files, *options.split()]
        command = [sys.executable, "-m", "sacrebleu", *words, "-w", "8", "-f", "json"]
        return json.loads(subprocess.run(command, stdout=-1, check=True).stdout)

    return call


# sacreBLEU's numbers


def test_scores_are_the_commands(sacrebleu):
    "The same numbers, intervals and signatures."
    plain = sacrebleu(GOLD, GOOD, options="-m bleu chrf")
    options = "-m bleu chrf --confidence --confidence-n 200"
    sure = sacrebleu(GOLD, GOOD, options=options)
    for measure, theirs, with_interval in zip((bleu, chrf), plain, sure):
        found = measure(GOOD, GOLD)
        assert (found.name, found.signature) == (theirs["name"], theirs["signature"])
        assert found.low is found.high is None
        # eight decimals are printed
        assert found.value == pytest.approx(theirs["score"], abs=1e-7)
        found = measure(GOOD, GOLD, 200)
        assert found == measure(GOOD, GOLD, 200)  # seeded
        assert found.signature == with_interval["signature"]
        middle, half = with_interval["confidence_mean"], with_interval["confidence_var"]
        expected = [theirs["score"], middle - half, middle + half]
        # float32 adds up
        assert found[1:4] == pytest.approx(expected, abs=1e-4)
    assert {"tok:13a", "case:mixed"} <= {*bleu(GOOD, GOLD).signature.split("|")}


def test_p_values_are_the_commands(sacrebleu):
    "Wherever the floor is below them; repeatable, since the tosses are seeded."
    other = slips(GOLD, 0.1, 2)
    theirs = sacrebleu(GOLD, GOOD, other, BAD, options="-m bleu --paired-ar")
    systems = {"good": GOOD, "other": other, "bad": BAD}
    found = compare(systems, GOLD)
    assert found == compare(systems, GOLD)
    for ours, row in zip(found, theirs):
        assert ours.score.value == pytest.approx(row["BLEU"]["score"], abs=1e-7)
    p_values = [row["BLEU"]["p_value"] for row in theirs]
    assert found[0].p_value is None is p_values[0]
    assert [f.p_value for f in found[1:]] == pytest.approx(p_values[1:], abs=1e-7)
    assert found[1].p_value > 0.05 and found[2].p_value < 0.001


@pytest.mark.parametrize("metric", [None, CHRF()])
def test_equal_systems_do_not_differ(metric):
    spaced = [line + " " for line in GOOD]  # other text, but the same words
    systems = {"a": GOOD, "again": list(GOOD), "spaced": spaced}
    same, spaced = compare(systems, GOLD, metric)[1:]
    assert (same.p_value, same.n_differ) == (1, 0)
    assert (spaced.p_value, spaced.n_differ) == (1, len(GOOD))


def worse(n):
    "GOLD with its first n sentences spoiled: each of them speaks for GOLD."
    return [line.split()[0] + " nein" for line in GOLD[:n]] + GOLD[n:]


@pytest.mark.parametrize("n_differ", [1, 4])
def test_p_is_exact_where_all_differences_point_one_way(n_differ):
    "Of all 2^k swaps only two, none and all, reach the real difference."
    systems = {"gold": GOLD[:20], "worse": worse(n_differ)[:20]}
    assert compare(systems, GOLD[:20])[1].p_value == 2 ** (1 - n_differ)


# variants


def test_hyphens_are_perls():
    "The authors' own line, run by Perl."
    if not shutil.which("perl"):
        pytest.skip("needs perl")
    rng, letters = random.Random(0), "---abcüß🐕 \t\u00a0\u2028\x85$1\\"
    lines = ["".join(rng.choices(letters, k=rng.randrange(25))) for _ in range(2000)]
    done = subprocess.run(
        ["perl", "-ple", r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"],
        input="\n".join(lines).encode() + b"\n",
        capture_output=True,
        check=True,
    )
    theirs = done.stdout.decode().split("\n")[:-1]
    assert [_split_hyphens(line) for line in lines] == theirs


def test_multi30k_tokens_are_the_published(data_dir):
    "test_2016 has 12,968 English and 12,103 German tokens in its authors' own release."
    sides = zip(*load_corpus("multi30k", data_dir).test)
    for lines, language, n in zip(sides, ("en", "de"), (12_968, 12_103)):
        tokenized = moses_tokenize(moses_lowercase(lines, language), language)
        assert sum(len(line.split()) for line in tokenized) == n


def test_any_metric_of_sacrebleu_is_scored_and_compared():
    "A metric is a class of sacreBLEU's; nothing of this package knows TER."
    references = [f"line {i}" for i in range(60)]
    systems = {"right": references, "half": references[:30] + ["wrong"] * 30}
    right, half = score_systems(systems, references, TER())
    assert right.score.value == 0 < half.score.value and half.p_value < 0.05
