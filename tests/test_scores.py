"Scores against sacreBLEU's own command, Perl, a hand loop and exact counting."

import gzip
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import CHRF, TER
from sacrebleu.metrics.base import Metric, Signature
from sacrebleu.metrics.base import Score as MetricScore

from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.translating.evaluate import (
    _SUSTAINED_FLOPS,
    Score,
    _Perplexity,
    _split_hyphens,
    bleu,
    bleu_variants,
    chrf,
    corpus_score,
    moses_lowercase,
    moses_tokenize,
    perplexity,
    pronoun_accuracy,
    read_aligned,
    training_cost,
)
from annotated_transformer.translating.significance import (
    _Comparison,
    compare,
    score_systems,
)
from annotated_transformer.translating.translate import Translator

GOLD = [s.de for s in builtin(120, seed=1, split="test")]
GOLD += [
    "Ein 24-jähriger Mann liest „Ost-West“.",
    "Der Ball – 3,5 kg schwer – ist z.B. rot-weiß.",
    "a-b-c",
]
WORDS = " ".join(GOLD).split()


def slips(lines, share, seed):
    rng = random.Random(seed)
    return [
        " ".join(
            rng.choice(WORDS) if rng.random() < share else word for word in line.split()
        )
        for line in lines
    ]


GOOD, BAD = slips(GOLD, 0.1, 0), slips(GOLD, 0.3, 1)


def write(path, lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def sacrebleu(tmp_path, references, *systems, options=()):
    "What `python -m sacrebleu` says of the same text."
    files = [write(tmp_path / f"sys{i}", said) for i, said in enumerate(systems)]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "sacrebleu",
            write(tmp_path / "ref", references),
            "-i",
            *files,
            "-w",
            "8",
            "-f",
            "json",
            *options,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return json.loads(done.stdout)


# sacreBLEU's numbers


def test_scores_are_the_commands(tmp_path):
    "The same numbers, intervals and signatures."
    plain = sacrebleu(tmp_path, GOLD, GOOD, options=["-m", "bleu", "chrf"])
    sure = sacrebleu(
        tmp_path,
        GOLD,
        GOOD,
        options=["-m", "bleu", "chrf", "--confidence", "--confidence-n", "200"],
    )
    for measure, theirs, with_interval in zip((bleu, chrf), plain, sure):
        found = measure(GOOD, GOLD)
        assert (found.name, found.signature) == (
            theirs["name"],
            theirs["signature"],
        ) and found.low is found.high is None
        assert found.value == pytest.approx(
            theirs["score"], abs=1e-7
        )  # eight decimals are printed
        found = measure(GOOD, GOLD, 200)
        assert found.signature == with_interval["signature"]
        middle, half = with_interval["confidence_mean"], with_interval["confidence_var"]
        assert [found.value, found.low, found.high] == pytest.approx(
            [theirs["score"], middle - half, middle + half], abs=1e-4
        )  # float32 adds up
    assert (
        "tok:13a" in bleu(GOOD, GOLD).signature
        and "case:mixed" in bleu(GOOD, GOLD).signature
    )


def test_p_values_are_the_commands(tmp_path):
    "Wherever the floor is below them. (The command leaves out its `bs` among the signature's entries: it was not asked for intervals.)"
    theirs = sacrebleu(
        tmp_path,
        GOLD,
        GOOD,
        slips(GOLD, 0.1, 2),
        BAD,
        options=["-m", "bleu", "--paired-ar"],
    )
    found = compare({"good": GOOD, "other": slips(GOLD, 0.1, 2), "bad": BAD}, GOLD)
    for ours, row in zip(found, theirs):
        assert ours.score.value == pytest.approx(row["BLEU"]["score"], abs=1e-7)
        assert ours.p_value == (
            None
            if row["BLEU"]["p_value"] is None
            else pytest.approx(row["BLEU"]["p_value"], abs=1e-7)
        )
    assert (
        found[0].p_value is None
        and found[1].p_value > 0.05
        and found[2].p_value < 0.001
    )


@pytest.mark.parametrize("test", ["ar", "bs"])
def test_repeatable(test):
    assert compare({"a": GOOD, "b": BAD}, GOLD, test=test) == compare(
        {"a": GOOD, "b": BAD}, GOLD, test=test
    )
    assert bleu(GOOD, GOLD, 100) == bleu(GOOD, GOLD, 100)


def test_the_seed_is_the_environments(monkeypatch):
    default = bleu(GOOD, GOLD, 100)
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    other = bleu(GOOD, GOLD, 100)
    assert "seed:12345" in default.signature and "seed:7" in other.signature
    assert other.value == default.value and (other.low, other.high) != (
        default.low,
        default.high,
    )


@pytest.mark.parametrize("metric", [None, CHRF()])
@pytest.mark.parametrize("test", ["ar", "bs"])
def test_equal_systems_do_not_differ(test, metric):
    same, spaced = compare(
        {"a": GOOD, "again": list(GOOD), "spaced": [line + " " for line in GOOD]},
        GOLD,
        metric,
        test,
    )[1:]
    assert (same.p_value, same.n_differ) == (1, 0)
    assert (spaced.p_value, spaced.n_differ) == (
        1,
        len(GOOD),
    )  # other text, but the same words


def worse(n):
    "GOLD with its first n sentences spoiled: each of them speaks for GOLD."
    return [line.split()[0] + " nein" for line in GOLD[:n]] + GOLD[n:]


def swaps(a, b, n):
    "The difference of BLEU after each of the 2^n swaps among the first n sentences; the first is the real one."
    for picks in range(2**n):
        x, y = zip(
            *(
                (d, c) if i < n and picks >> i & 1 else (c, d)
                for i, (c, d) in enumerate(zip(a, b))
            )
        )
        yield abs(bleu(x, GOLD[: len(a)]).value - bleu(y, GOLD[: len(a)]).value)


@pytest.mark.parametrize("n_differ", range(1, 7))
def test_p_is_exact_where_all_differences_point_one_way(n_differ):
    "Of all 2^k swaps only two, none and all, reach the real difference."
    gold, spoiled = GOLD[:20], worse(n_differ)[:20]
    real, *others = swaps(gold, spoiled, n_differ)
    exact = sum(d >= real - 1e-9 for d in (real, *others)) / 2**n_differ
    assert (
        compare({"gold": gold, "worse": spoiled}, gold)[1].p_value
        == exact
        == 2 ** (1 - n_differ)
    )


@pytest.mark.parametrize("seed", range(4))
def test_p_is_near_the_exact_one(seed):
    "Where either system wins some: within four standard errors of 10,000 tosses (0.02), and the ties, which sacreBLEU does not count."
    n, gold = 7, GOLD[:12]
    a, b = ([*slips(gold[:n], 0.4, 2 * seed + i), *gold[n:]] for i in (0, 1))
    real, *others = swaps(a, b, n)
    at_least, above = (
        sum(d >= real + e for d in (real, *others)) / 2**n for e in (-1e-9, 1e-9)
    )
    assert above - 0.02 <= compare({"a": a, "b": b}, gold)[1].p_value <= at_least + 0.02


def test_interval_stays_on_the_scale():
    assert (
        bleu(GOLD, GOLD, 50)[1:4] == pytest.approx((100, 100, 100))
        and bleu(["x"] * 3, ["y"] * 3, 50).low >= 0
    )
    nearly = bleu(worse(1), GOLD, 200)
    assert nearly.low < nearly.value < 100 and nearly.high <= 100


# flavours


@pytest.mark.parametrize(
    "line, split",
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("Ost-West-Straße", "Ost ##AT##-##AT## West ##AT##-##AT## Straße"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # the b was used up
        ("a-b-c-d", "a ##AT##-##AT## b-c ##AT##-##AT## d"),
        (
            "1-ü-2",
            "1 ##AT##-##AT## ü ##AT##-##AT## 2",
        ),  # two bytes: one for either match
        ("a--b", "a ##AT##-##AT## -b"),
        ("a---b", "a ##AT##-##AT## --b"),
        ("----", "- ##AT##-##AT## --"),
        ("- a -b c- -", "- a -b c- -"),
        ("", ""),
        ("-", "-"),
        ("a – b-", "a – b-"),
        (r"\1-\2", r"\1 ##AT##-##AT## \2"),
    ],
)
def test_hyphens_by_hand(line, split):
    assert _split_hyphens(line) == split


HYPHENS = st.text(
    st.sampled_from(list("--- abüß🐕\t\u00a0\u2028\x85$1\\")), max_size=30
)


@given(HYPHENS)
def test_hyphens_lose_nothing(line):
    assert _split_hyphens(line).replace(" ##AT##-##AT## ", "-") == line


def test_hyphens_are_perls():
    "The authors' own line, run by Perl."
    if not shutil.which("perl"):
        pytest.skip("needs perl")
    rng = random.Random(0)
    lines = [
        "".join(
            rng.choice("---abcüß🐕 \t\u00a0\u2028\x85$1\\")
            for _ in range(rng.randrange(25))
        )
        for _ in range(5000)
    ]
    text = "\n".join(lines).encode() + b"\n"
    done = subprocess.run(
        ["perl", "-ple", r"s{(\S)-(\S)}{$1 ##AT##-##AT## $2}g"],
        input=text,
        capture_output=True,
        check=True,
    )
    assert [_split_hyphens(line) for line in lines] == done.stdout.decode().split("\n")[
        :-1
    ]


def test_flavours_are_sacrebleus(tmp_path):
    "Each is what sacreBLEU's command says of the text as prepared."
    found = {score.name: score for score in bleu_variants(BAD, GOLD)}
    assert list(found) == [
        "13a",
        "13a, lower case",
        "Moses",
        "Moses, lower case",
        "Moses, hyphens split",
    ]
    assert found["13a"] == bleu(BAD, GOLD)._replace(name="13a")

    def split(lines):
        return [_split_hyphens(line) for line in moses_tokenize(lines, "de")]

    theirs = sacrebleu(
        tmp_path, split(GOLD), split(BAD), options=["--tokenize", "none", "--force"]
    )
    assert found["Moses, hyphens split"].value == pytest.approx(
        theirs["score"], abs=1e-7
    )
    assert found["Moses, hyphens split"].signature == theirs["signature"]
    lowered = bleu_variants(
        [line.lower() for line in BAD], [line.lower() for line in GOLD]
    )
    assert found["13a, lower case"].value == pytest.approx(lowered[0].value) and found[
        "Moses, lower case"
    ].value == pytest.approx(lowered[3].value)
    assert all(
        "case:lc" in score.signature for name, score in found.items() if "lower" in name
    )


def test_flavours_differ():
    "By case, by abbreviations that 13a takes apart, by quotation marks, by hyphens."
    said, wanted = (
        ['ein rot-weißer Ball, z.B. "der große", liegt hier.'],
        ["Ein rot-weißer Ball, z.B. „der große“, liegt dort."],
    )
    assert len({round(score.value, 3) for score in bleu_variants(said, wanted)}) == 5


def test_multi30k_tokens_are_the_published(data_dir):
    "test_2016 has 12,968 English and 12,103 German tokens in its authors' own release."
    sides = zip(*load_corpus("multi30k", data_dir).test)
    for lines, language, n in zip(sides, ("en", "de"), (12_968, 12_103)):
        assert (
            sum(
                len(line.split())
                for line in moses_tokenize(moses_lowercase(lines, language), language)
            )
            == n
        )


@pytest.mark.parametrize("part", [moses_tokenize, moses_lowercase])
def test_without_sacremoses(monkeypatch, part):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(ValueError, match="needs sacremoses: pip install sacremoses"):
        part(["a"], "de")


# perplexity

EN = [
    "the old dog sleeps.",
    "",
    "where is my cat?",
    "a",
    "the dog " * 30,
    "  two   spaces ",
]
DE = [
    "der alte Hund schläft.",
    "nichts",
    "",
    "eine",
    "der Hund " * 25,
    "zwei\u00a0Räume \u2028 🐕",
]


@pytest.fixture(scope="module")
def translator():
    "Random weights, in float64."
    vocab = learn_bpe([*EN, *DE] * 3, 300)
    torch.manual_seed(0)
    return Translator(
        build_transformer(
            ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2),
            len(vocab),
            vocab.pad_id,
        ).double(),
        vocab,
    )


def by_hand(translator, source, reference):
    "Nats, piece after piece, one sentence alone: each by a softmax over what may follow."
    model, vocab, said, nats = (
        translator.model,
        translator.vocab,
        [translator.vocab.bos_id],
        0.0,
    )
    src = torch.tensor([vocab.encode(source) + [vocab.eos_id]])
    for word in [*vocab.encode(reference), vocab.eos_id]:
        with torch.no_grad():
            logits = model.embedding.logits(model(src, torch.tensor([said])))[0, -1]
        nats -= logits.softmax(dim=-1)[word].log().item()
        said.append(word)
    return nats, len(said) - 1


def test_perplexity_is_a_hand_loops(translator):
    found, each = (
        perplexity(translator, EN, DE),
        [by_hand(translator, *two) for two in zip(EN, DE)],
    )
    nats, n_pieces, n_words = (
        sum(n for n, _ in each),
        sum(n for _, n in each),
        sum(len(line.split()) + 1 for line in DE),
    )
    assert (found.n_tokens, found.n_words) == (n_pieces, n_words)
    assert found.nats == pytest.approx(nats, rel=1e-5)  # the loss takes float32 logits
    assert found[:2] == pytest.approx(
        (math.exp(nats / n_pieces), math.exp(nats / n_words)), rel=1e-5
    )


@pytest.mark.parametrize("batch_tokens", [1, 40, 100, 10_000])
def test_perplexity_does_not_depend_on_batches(translator, batch_tokens):
    whole, order = perplexity(translator, EN, DE), [3, 1, 5, 0, 4, 2]
    other = perplexity(
        Translator(translator.model, translator.vocab, batch_tokens),
        [EN[i] for i in order],
        [DE[i] for i in order],
    )
    assert other == pytest.approx(whole, rel=1e-6)  # float32 logits


def test_perplexity_beyond_all_numbers(translator):
    "A model that is certain of the wrong word: no overflow."
    model = build_transformer(
        ModelConfig(n_layers=1, d_model=16, d_ff=32, n_heads=2),
        len(translator.vocab),
        translator.vocab.pad_id,
    )
    with torch.no_grad():
        model.embedding.weight.mul_(1e5)
    assert perplexity(Translator(model, translator.vocab), EN, DE).per_word > 1e300


# costs, files, words


def test_costs():
    assert training_cost(12 / 24, 8, "P100") == pytest.approx(
        3.3e18, rel=0.01
    )  # as printed, two digits
    assert training_cost(3.5, 8, "P100") == pytest.approx(2.3e19, rel=0.01)
    assert [
        training_cost(1 / 86_400, 1, gpu) for gpu in _SUSTAINED_FLOPS
    ] == pytest.approx(list(_SUSTAINED_FLOPS.values()))
    with pytest.raises(
        ValueError,
        match="gpu='p100' is none of those the paper estimates: K80, K40, M40, P100",
    ):
        training_cost(1, 1, "p100")


def test_read_aligned(tmp_path):
    (tmp_path / "a").write_bytes("\ufeffone\r\n\r\nthree\u2028still three".encode())
    with gzip.open(tmp_path / "b.gz", "wb") as f:
        f.write(b"eins\nzwei\ndrei\n")
    assert read_aligned(tmp_path / "a", tmp_path / "b.gz") == [
        ["one", "", "three\u2028still three"],
        ["eins", "zwei", "drei"],
    ]
    write(tmp_path / "c", ["1", "2"])
    with pytest.raises(
        ValueError,
        match=re.escape(
            f"{tmp_path / 'a'} has 3 lines, {tmp_path / 'c'} has 2: they must correspond line by line"
        ),
    ):
        read_aligned(tmp_path / "a", tmp_path / "b.gz", tmp_path / "c")


def test_measures_refuse_what_does_not_match(translator):
    for measure in (
        bleu,
        chrf,
        bleu_variants,
        pronoun_accuracy,
        lambda h, r: compare({"a": r, "b": h}, r),
        lambda h, r: compare({"a": h, "b": r}, r),
    ):
        with pytest.raises(
            ValueError, match="2 hypotheses do not go with 1 references"
        ):
            measure(["a", "b"], ["er"])
        with pytest.raises(ValueError):
            measure([], [])
    with pytest.raises(ValueError, match="2 sources do not go with 1 references"):
        perplexity(translator, ["a", "b"], ["c"])
    with pytest.raises(ValueError, match="there is no sentence to score"):
        perplexity(translator, [], [])


def test_as_printed():
    score = Score("BLEU", 27.25, None, None, "tok:13a")
    assert str(score) == "BLEU = 27.25  tok:13a"
    sure = score._replace(low=26.0, high=28.5)
    assert str(sure) == "BLEU = 27.25 (26.00 to 28.50)  tok:13a"
    assert (
        str(_Comparison("base", sure, 0, None))
        == "base: BLEU = 27.25 (26.00 to 28.50)  tok:13a"
    )
    assert (
        str(_Comparison("big", sure, 812, 0.0123))
        == "big: BLEU = 27.25 (26.00 to 28.50)  tok:13a  p = 0.0123, 812 sentences differ"
    )
    assert (
        str(_Perplexity(4.92, 9.0, 1.0, 63, 35))
        == "perplexity = 4.920 per token (63), 9.000 per word (35)"
    )


def test_a_name_of_ones_own():
    assert corpus_score(CHRF(), GOOD, GOLD, name="letters") == chrf(
        GOOD, GOLD
    )._replace(name="letters")


@pytest.mark.parametrize(
    "hypothesis, reference, right",
    [
        ("weil es müde war.", "weil es müde war", 1),
        ("weil sie müde war", "weil es müde war", 0),
        ("weil müde war", "weil es müde war", 0),
        ("Sie sieht es.", "sie sieht es", 1),
        ("es sieht sie", "sie sieht es", 0),
        ("weil es, es müde war", "weil es müde war", 0),
        ("Essen, siebzehn, erst. Es!", "es", 1),
    ],
)
def test_pronouns(hypothesis, reference, right):
    assert pronoun_accuracy([hypothesis], [reference]) == right


class _ExactMatchSignature(Signature):
    pass


class _ExactMatch(Metric):
    "The share of sentences that equal their reference, as a metric of sacreBLEU's."

    _SIGNATURE_TYPE = _ExactMatchSignature

    def _compute_score_from_stats(self, stats):
        return MetricScore("Exact", 100 * stats[0] / stats[1])

    def _aggregate_and_compute(self, stats):
        return self._compute_score_from_stats([sum(s) for s in zip(*stats)])

    def _compute_segment_statistics(self, hypothesis, ref_kwargs):
        return [int(hypothesis == ref_kwargs["ref"]), 1]

    def _extract_reference_info(self, refs):
        return {"ref": refs[0]}

    def _preprocess_segment(self, sent):
        return sent


def test_an_error_rate_may_exceed_100():
    "TER counts edits per reference word: its interval is not cut at 100."
    lines = ["a b c d e f g h"] * 40
    score = corpus_score(TER(), lines, ["x"] * 20 + ["a b"] * 20, 50)
    assert score.value > 100 and score.high >= score.value >= score.low


def test_any_metric_of_sacrebleu_is_scored_and_compared():
    "A new metric is a class; nothing of this package changes for it."
    references = [f"line {i}" for i in range(60)]
    systems = {"right": references, "half": references[:30] + ["wrong"] * 30}
    right, half = score_systems(systems, references, _ExactMatch())
    assert (right.score.value, half.score.value) == (100, 50) and half.p_value < 0.05
