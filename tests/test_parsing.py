"Trees as tokens and back, repairs of malformed output, brackets counted as EVALB does."

import random
import re
import shutil
import subprocess
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.experiments.parsing import (
    _EQUAL,
    _NOT_COUNTED,
    _PUNCTUATION,
    _ROOT,
    _UNKNOWN_TAG,
    BracketScore,
    LinearisationErrors,
    Tree,
    bracket_score,
    delinearise,
    linearise,
    plain_label,
    read_trees,
)
from annotated_transformer.experiments.parsing_results import (
    _TREEBANK,
    _plain,
    _training_pair,
    _tree_tokens,
    load_treebank,
    parse,
    parsing_experiment,
)

BUILTIN = [read_trees(s.tree)[0] for s in builtin(1000, seed=3)]

# Any name without space and bracket; two letters come often, so that labels repeat and match where they should not.
name = st.sampled_from("AB") | st.text(min_size=1).filter(
    lambda text: not re.search(r"[\s()]", text)
)
leaf = st.builds(Tree, name, st.just(()), name)
anything = st.recursive(
    leaf,
    lambda parts: st.builds(
        Tree, name, st.lists(parts, min_size=1, max_size=4).map(tuple), st.just("")
    ),
    max_leaves=20,
)
penn = st.sampled_from("S NP VP ADVP PRT TOP S1".split())
penn_tag = st.sampled_from(["NN", "VB", ",", ".", ":", "''"])


def one(text):
    [tree] = read_trees(text)
    return tree


# Trees as tokens and back


@given(anything)
def test_any_tree_comes_back_whole(tree):
    sentence, text = _training_pair(tree)
    assert delinearise(linearise(tree), tree.words()) == (tree, LinearisationErrors())
    assert delinearise(_tree_tokens(text), sentence.split(" ")) == (
        tree,
        LinearisationErrors(),
    )
    assert read_trees(str(tree)) == [tree]


def test_built_in_trees_come_back_through_a_vocabulary():
    pairs = list(map(_training_pair, BUILTIN))
    vocab = learn_bpe([text for pair in pairs for text in pair], 600)
    for tree, (sentence, text) in zip(BUILTIN, pairs):
        said = vocab.decode(vocab.encode(text))
        assert delinearise(
            _tree_tokens(said), vocab.decode(vocab.encode(sentence)).split(" ")
        ) == (tree, LinearisationErrors())


@given(anything, st.sampled_from(["tag", "word", _UNKNOWN_TAG]))
def test_other_tokens_of_words_change_nothing_but_tags(tree, leaf):
    tokens = linearise(tree, leaf)
    other, errors = delinearise(tokens, tree.words())
    wanted = {
        "tag": [leaf.label for leaf in tree.preterminals()],
        "word": tree.words(),
        _UNKNOWN_TAG: [_UNKNOWN_TAG] * len(tree.words()),
    }[leaf]
    assert [t for t in tokens if t[0] not in "()"] == wanted
    assert [leaf.label for leaf in other.preterminals()] == wanted
    assert other.words() == tree.words() and errors == LinearisationErrors()
    assert [t for t in linearise(other) if t[0] in "()"] == [
        t for t in linearise(tree) if t[0] in "()"
    ]
    assert bracket_score(tree, other) == bracket_score(tree, tree)


# Malformed output

token = st.sampled_from(
    ["(S", "(NP", "(VP", ")S", ")NP", ")VP", "(", ")", "NN", "XX", "(TOP", ")TOP"]
)


@given(
    st.lists(token, max_size=40) | st.lists(name, max_size=20),
    st.lists(name, min_size=1, max_size=8),
)
def test_whatever_comes_the_tree_is_over_the_words(tokens, words):
    tree, errors = delinearise(tokens, words)
    assert tree.words() == words
    assert delinearise(linearise(tree), words) == (
        tree,
        LinearisationErrors(),
    )  # it is a tree, and stays as it is
    assert any(errors) == (
        linearise(tree) != tokens
    )  # repaired if and only if it was none
    n_places = sum(t[0] not in "()" for t in tokens)
    assert (errors.surplus_tags, errors.missing_tags) == (
        max(0, n_places - len(words)),
        max(0, len(words) - n_places),
    )


@given(st.text(alphabet="() SNPX\n\u2028", max_size=60))
def test_any_text_is_repaired(text):
    assert delinearise(_tree_tokens(text), ["a", "b"])[0].words() == ["a", "b"]


@pytest.mark.parametrize(
    "text, tree, errors",
    [
        (
            "(S (NP DT NN )NP (VP VB )VP )S",
            "(S (NP (DT a) (NN b)) (VP (VB c)))",
            LinearisationErrors(),
        ),
        (
            "(S (NP DT NN )NP (VP VB",
            "(S (NP (DT a) (NN b)) (VP (VB c)))",
            LinearisationErrors(unclosed=2),
        ),
        (
            "(S (NP DT (PP NN )NP (VP VB )VP )S",
            "(S (NP (DT a) (PP (NN b))) (VP (VB c)))",
            LinearisationErrors(unclosed=1),
        ),
        (
            "(S (NP DT NN )NP )NP (VP VB )VP )S )S",
            "(S (NP (DT a) (NN b)) (VP (VB c)))",
            LinearisationErrors(dropped=2),
        ),
        (
            "(S ( (NP )NP DT NN VB )S )",
            "(S (DT a) (NN b) (VB c))",
            LinearisationErrors(dropped=3),
        ),
        (
            "(S (NP DT NN )NP )S",
            "(S (NP (DT a) (NN b)) (XX c))",
            LinearisationErrors(missing_tags=1),
        ),
        (
            "(S DT NN VB (NP NN JJ )NP )S",
            "(S (DT a) (NN b) (VB c))",
            LinearisationErrors(surplus_tags=2, dropped=1),
        ),
        (
            "(NP DT NN )NP (VP VB )VP",
            "(TOP (NP (DT a) (NN b)) (VP (VB c)))",
            LinearisationErrors(no_root=1),
        ),
        (
            "",
            "(TOP (XX a) (XX b) (XX c))",
            LinearisationErrors(missing_tags=3, no_root=1),
        ),
        (
            ")S )S (NP",
            "(TOP (XX a) (XX b) (XX c))",
            LinearisationErrors(unclosed=1, dropped=3, missing_tags=3, no_root=1),
        ),
        (
            "DT",
            "(TOP (DT a) (XX b) (XX c))",
            LinearisationErrors(missing_tags=2, no_root=1),
        ),
    ],
)
def test_repairs_by_hand(text, tree, errors):
    assert delinearise(text.split(), ["a", "b", "c"]) == (one(tree), errors)


def test_brackets_thousands_deep():
    tree, errors = delinearise(["(NP"] * 2_000 + ["NN"], ["dog"])
    assert errors == LinearisationErrors(unclosed=2_000)
    assert bracket_score(one("(S (NP (NN dog)))"), tree) == BracketScore(
        1, 2, 2_000, 0, 1
    )
    assert len(_plain(tree).preterminals()) == 1


def test_a_sentence_without_words_is_refused():
    with pytest.raises(ValueError, match="words is empty"):
        delinearise(["NN"], [])


# Counting


def spans(tree, begin=0):
    "Brackets as one would write them down: by recursion, with the words counted anew for each."
    if tree.word:
        return []
    found, at = [], begin
    for part in tree.children:
        found += spans(part, at)
        at += sum(leaf.label not in _PUNCTUATION for leaf in part.preterminals())
    return found + [(_EQUAL.get(tree.label, tree.label), begin, at)] * (
        at > begin and tree.label not in _NOT_COUNTED
    )


@st.composite
def two_trees(draw):
    "A tree, and another one over the same words with the same tags."
    gold = draw(
        st.recursive(
            st.builds(Tree, penn_tag, st.just(()), st.just("w")),
            lambda parts: st.builds(
                Tree,
                penn,
                st.lists(parts, min_size=1, max_size=3).map(tuple),
                st.just(""),
            ),
            max_leaves=8,
        )
    )
    between = st.lists(
        st.sampled_from(
            [
                f"{kind}{label}"
                for kind in "()"
                for label in ("S", "NP", "ADVP", "PRT", "TOP")
            ]
        ),
        max_size=3,
    )
    tokens = [
        t for leaf in gold.preterminals() for t in [*draw(between), leaf.label]
    ] + draw(between)
    return gold, delinearise(tokens, gold.words())[0]


@settings(max_examples=60)
@given(two_trees())
def test_counts_are_those_of_a_plain_recursion(trees):
    gold, said = trees
    wanted, found = map(spans, trees)
    left, matched = list(found), 0
    for bracket in wanted:
        if bracket in left:
            left.remove(bracket)
            matched += 1
    if all(leaf.label in _PUNCTUATION for leaf in gold.preterminals()):
        assert bracket_score(gold, said) == BracketScore(n_skipped=1)
    else:
        assert bracket_score(gold, said) == BracketScore(
            matched, len(wanted), len(found), int(sorted(wanted) == sorted(found)), 1
        )


@settings(max_examples=60)
@given(two_trees())
def test_precision_and_recall_change_places(trees):
    there, back = bracket_score(*trees), bracket_score(*trees[::-1])
    assert (there.precision, there.recall, there.f1, there.exact) == (
        back.recall,
        back.precision,
        back.f1,
        back.exact,
    )
    assert bracket_score(trees[0], trees[0]).f1 in (0, 100)  # 0: no bracket that counts


GOLD = "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sleeps) (PP (IN in) (NP (DT the) (NN barn)))) (. .)))"  # S, NP, VP, PP, NP
HAND = [  # what is wrong, gold, predicted, matched, brackets of gold, of predicted
    ("nothing", GOLD, GOLD, 5, 5, 5),
    ("a label", GOLD, GOLD.replace("(PP", "(ADVP"), 4, 5, 5),
    ("two labels", GOLD, GOLD.replace("(NP", "(QP"), 3, 5, 5),
    (
        "a bracket missing",
        GOLD,
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sleeps) (IN in) (NP (DT the) (NN barn))) (. .)))",
        4,
        5,
        4,
    ),
    (
        "a bracket too many",
        GOLD,
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sleeps) (PP (IN in) (NP (DT the) (NP (NN barn))))) (. .)))",
        5,
        5,
        6,
    ),
    (
        "attached higher",
        GOLD,
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sleeps)) (PP (IN in) (NP (DT the) (NN barn))) (. .)))",
        4,
        5,
        5,
    ),
    (
        "flat",
        GOLD,
        "(TOP (DT the) (NN dog) (VBZ sleeps) (IN in) (DT the) (NN barn) (. .))",
        0,
        5,
        0,
    ),
    (
        "a flat S",
        GOLD,
        "(TOP (S (DT the) (NN dog) (VBZ sleeps) (IN in) (DT the) (NN barn) (. .)))",
        1,
        5,
        1,
    ),
    (
        "punctuation elsewhere",
        GOLD,
        "(TOP (S (NP (DT the) (NN dog)) (VP (VBZ sleeps) (PP (IN in) (NP (DT the) (NN barn) (. .))))))",
        5,
        5,
        5,
    ),
    ("a bracket around punctuation", GOLD, GOLD.replace("(. .)", "(X (. .))"), 5, 5, 5),
    ("tags", GOLD, GOLD.replace("(NN", "(VB").replace("(. .)", "(NN .)"), 5, 5, 5),
    ("no root", GOLD, GOLD[5:-1], 5, 5, 5),
    ("another root", GOLD, GOLD.replace("TOP", "S1"), 5, 5, 5),
    ("a root that counts", GOLD, GOLD.replace("TOP", "ROOT"), 5, 5, 6),
    (
        "a unary chain of two labels, one said",
        "(S (VP (VB go)))",
        "(VP (VB go))",
        1,
        2,
        1,
    ),
    (
        "a unary chain of one label twice, one said",
        "(NP (NP (NN dog)))",
        "(NP (NN dog))",
        1,
        2,
        1,
    ),
    ("one said three times", "(NP (NN dog))", "(NP (NP (NP (NN dog))))", 1, 1, 3),
    ("two of three", "(NP (NP (NP (NN dog))))", "(NP (NP (NN dog)))", 2, 3, 2),
    ("the chain the other way round", "(S (VP (VB go)))", "(VP (S (VB go)))", 2, 2, 2),
    (
        "PRT for ADVP",
        "(VP (VB go) (PRT (RP up)))",
        "(VP (VB go) (ADVP (RP up)))",
        2,
        2,
        2,
    ),
    (
        "a comma inside",
        "(S (NP (NN a) (, ,)) (VP (VB b)))",
        "(S (NP (NN a)) (, ,) (VP (VB b)))",
        3,
        3,
        3,
    ),
    (
        "round brackets are words",
        "(S (-LRB- -LRB-) (NP (NN a)))",
        "(S (NP (-LRB- -LRB-) (NN a)))",
        1,
        2,
        2,
    ),
    (
        "functions are cut off",
        "(S (NP-SBJ-1 (NN a)) (VP (VB b)))",
        "(S (NP=2 (NN a)) (VP (VB b)))",
        3,
        3,
        3,
    ),
]


@pytest.mark.parametrize(
    "gold, said, matched, n_gold, n_said",
    [row[1:] for row in HAND],
    ids=[row[0] for row in HAND],
)
def test_counts_by_hand(gold, said, matched, n_gold, n_said):
    score = bracket_score(one(gold), one(said))
    assert score == BracketScore(
        matched, n_gold, n_said, int(matched == n_gold == n_said), 1
    )


@pytest.mark.parametrize(
    "said, score",
    [
        (None, BracketScore(n_skipped=1)),  # empty output
        (GOLD.replace("(DT the) ", ""), BracketScore(n_errors=1)),  # words missing
        (
            GOLD.replace("(NN dog)", "(NN dog) (NN dog)"),
            BracketScore(n_errors=1),
        ),  # a word more
        (GOLD.replace("dog", "cat"), BracketScore(n_errors=1)),  # as many, but another
        (
            GOLD.replace("(. .)", ""),
            BracketScore(5, 5, 5, 1, 1),
        ),  # only punctuation is missing
        (
            "(TOP (S (. .)))",
            BracketScore(n_skipped=1),
        ),  # nothing but punctuation is there
    ],
)
def test_left_out(said, score):
    assert bracket_score(one(GOLD), said and one(said)) == score


def test_only_punctuation():
    assert bracket_score(one("(TOP (S (. .)))"), one("(S (. .))")) == BracketScore(
        n_skipped=1
    )


def test_totals_are_sums_and_not_means():
    pairs = [(one(gold), one(said)) for _, gold, said, *_ in HAND[:8]] + [
        (one(GOLD), None),
        (one(GOLD), one("(NN dog)")),
    ]
    score = BracketScore.total([bracket_score(*pair) for pair in pairs])
    assert score == BracketScore(26, 40, 31, 1, 8, 1, 1)
    assert (score.precision, score.recall) == (100 * 26 / 31, 100 * 26 / 40)
    assert BracketScore.total([]) == BracketScore() and (
        BracketScore().f1,
        BracketScore().exact,
    ) == (0, 0)


PARAMETERS = "".join(
    f"{line}\n"
    for line in (
        "DEBUG 0",
        "MAX_ERROR 100000",
        "CUTOFF_LEN 40",
        "LABELED 1",
        *(f"DELETE_LABEL {label}" for label in (*_NOT_COUNTED, *_PUNCTUATION)),
        "DELETE_LABEL_FOR_LENGTH -NONE-",
        *(f"EQ_LABEL {a} {b}" for a, b in _EQUAL.items()),
    )
)


def shaken(tree, rng):
    "The tree after some brackets were lost, doubled, relabelled or moved."
    tokens = []
    for t in linearise(tree):
        luck = rng.random()
        if t[0] not in "()" or luck < 0.8:
            tokens.append(t)
        elif luck < 0.85:
            tokens += [t, t]
        elif luck < 0.9:
            tokens.append(t[0] + rng.choice("NP VP S PP ADVP PRT".split()))
    return delinearise(tokens, tree.words())[0]


@pytest.mark.skipif(not shutil.which("evalb"), reason="needs evalb")
def test_the_same_as_evalb(tmp_path):
    rng = random.Random(0)
    said = [
        shaken(tree, rng) if rng.random() < 0.95 else rng.choice(BUILTIN)
        for tree in BUILTIN
    ]
    for file, trees in (("gold", BUILTIN), ("said", said)):
        (tmp_path / file).write_text("".join(f"{tree}\n" for tree in trees))
    (tmp_path / "settings").write_text(PARAMETERS)
    out = subprocess.run(
        ["evalb", "-p", "settings", "gold", "said"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    theirs = dict(
        re.findall(r"^(.*\S) += +([\d.]+)$", out.partition("-- len<=")[0], re.M)
    )
    score = BracketScore.total([bracket_score(*pair) for pair in zip(BUILTIN, said)])
    ours = {
        "Bracketing Recall": score.recall,
        "Bracketing Precision": score.precision,
        "Bracketing FMeasure": score.f1,
        "Complete match": score.exact,
    }
    assert {k: theirs[k] for k in ours} == {k: f"{v:.2f}" for k, v in ours.items()}
    assert score.n_errors == int(theirs["Number of Error sentence"]) > 10


# The experiment


def test_a_perfect_model_and_a_silent_one():
    train, valid, test = BUILTIN[:20], BUILTIN[20:25], BUILTIN[25:60]
    known = dict(map(_training_pair, test))

    def teach(pairs, held_out):
        assert (pairs, held_out) == (
            list(map(_training_pair, train)),
            list(map(_training_pair, valid)),
        )
        return lambda sentences: [known[sentence] for sentence in sentences]

    result = parsing_experiment(train, valid, test, teach)
    assert (
        result.trees == test
        and not any(map(any, result.errors))
        and BracketScore.total(result.scores).f1
        == BracketScore.total(result.scores).exact
        == 100
    )
    silent = parsing_experiment(
        train, valid, test, lambda *_: lambda sentences: [""] * len(sentences)
    )
    score = BracketScore.total(silent.scores)
    assert (
        sum(map(any, silent.errors)) == score.n_compared == len(test)
        and score.n_predicted == score.f1 == 0
        and score.n_gold > 0
    )


def test_a_model_that_loses_lines_is_noticed():
    with pytest.raises(ValueError, match="argument 2 is longer"):
        parse([["a"], ["b"]], lambda sentences: ["NN"])


# Reading


@pytest.mark.parametrize(
    "text, message",
    [
        ("(S (NN a)", "line 1: the bracket .S is never closed"),
        ("(NN a))", "line 1: a bracket is closed"),
        ("\n(S\n())", "line 3: a bracket inside"),
        ("a", "'a' has no bracket"),
        ("(S (NN a b))", "'b' has no bracket"),
        ("(S (NN a) b)", "'b' has no bracket"),
        ("(NN a (NN b))", "a bracket behind the word 'a'"),
        ("(S (NP))", ".NP holds no word"),
        ("()", ".TOP holds no word"),
    ],
)
def test_what_is_no_tree_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        read_trees(text)


def test_functions_indices_and_traces_go():
    text = """( (S (NP-SBJ-1 (NP (DT the) (NN dog)) (SBAR (WHNP-2 (-NONE- 0)) (S (NP=3 (-NONE- *T*-2)) (VP (VBD slept)))))
              (VP (VBZ is) (VP (VBN seen) (NP (-NONE- *-1)))) (-LRB- -LRB-) (. .)))"""
    assert str(_plain(one(text))) == (
        "(TOP (S (NP (NP (DT the) (NN dog)) (SBAR (S (VP (VBD slept))))) (VP (VBZ is) (VP (VBN seen))) "
        "(-LRB- -LRB-) (. .)))"
    )
    with pytest.raises(ValueError, match="words is empty"):
        _plain(one("(S (NP (-NONE- *)))"))


@given(anything)
def test_plain_trees_stay_plain(tree):
    if any(leaf.label != "-NONE-" for leaf in tree.preterminals()):
        assert _plain(_plain(tree)) == _plain(tree)


def as_ours(node):
    "A tree of NLTK's as one of ours."
    name = node.label() or _ROOT
    return (
        Tree(name, word=node[0])
        if isinstance(node[0], str)
        else Tree(name, tuple(map(as_ours, node)))
    )


@given(anything)
def test_nltk_reads_the_same(tree):
    nltk = pytest.importorskip("nltk")
    assert as_ours(nltk.Tree.fromstring(str(tree))) == tree


# The treebank's sample: counts only, none of its text


@pytest.fixture(scope="module")
def sample(data_dir):
    if not (data_dir / "treebank" / "treebank.zip").is_file():
        pytest.skip("needs treebank/treebank.zip: nltk.download('treebank')")
    return {split: load_treebank(data_dir, split) for split in _TREEBANK}


def test_counts_of_the_treebank(sample):
    everything = sum(sample.values(), [])
    assert {split: len(trees) for split, trees in sample.items()} == {
        "train": 3396,
        "valid": 273,
        "test": 245,
    }
    assert sum(len(tree.preterminals()) for tree in everything) == 94_084
    assert (
        len({t[1:] for tree in everything for t in linearise(tree) if t[0] == "("})
        == 28
    )
    assert len(
        {leaf.label for tree in everything for leaf in tree.preterminals()}
    ) == 45 and {tree.label for tree in everything} == {_ROOT}


def test_every_tree_of_the_treebank_comes_back(sample):
    for tree in sum(sample.values(), []):
        sentence, text = _training_pair(tree)
        same = delinearise(_tree_tokens(text), sentence.split(" ")) == (
            tree,
            LinearisationErrors(),
        )
        assert same  # and no tree is shown
    assert (
        BracketScore.total([bracket_score(tree, tree) for tree in sample["test"]]).exact
        == 100
    )


def test_nltk_reads_the_treebank_as_we_do(data_dir, sample):
    nltk = pytest.importorskip("nltk")

    def without(node):
        "Functions, indices and traces gone, by recursion over NLTK's tree; None if nothing is left."
        if isinstance(node[0], str):
            return (
                None if node.label() == "-NONE-" else Tree(node.label(), word=node[0])
            )
        parts = tuple(filter(None, map(without, node)))
        return Tree(plain_label(node.label()) or _ROOT, parts) if parts else None

    with zipfile.ZipFile(data_dir / "treebank" / "treebank.zip") as archive:
        texts = [
            archive.read(f"treebank/combined/wsj_{i:04}.mrg").decode()
            for i in _TREEBANK["test"]
        ]
    theirs = [
        nltk.Tree.fromstring("(" + part)
        for text in texts
        for part in re.split(r"(?m)^\(", text)[1:]
    ]
    same = list(map(without, theirs)) == sample["test"]
    assert same


def test_a_treebank_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="nltk.download"):
        load_treebank(tmp_path, "train")
    (tmp_path / "treebank").mkdir()
    (tmp_path / "treebank" / "treebank.zip").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="nltk.download"):
        load_treebank(tmp_path, "train")
    with zipfile.ZipFile(tmp_path / "treebank" / "treebank.zip", "w") as archive:
        archive.writestr("other", "")
    with pytest.raises(ValueError, match="nltk.download"):
        load_treebank(tmp_path, "train")
    with pytest.raises(ValueError, match="split='dev' is unknown"):
        load_treebank(tmp_path, "dev")
