"Trees as tokens and back, repairs of malformed output, brackets counted as EVALB does."

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotated_transformer.experiments.parsing import (
    BracketScore,
    LinearisationErrors,
    Tree,
    bracket_score,
    delinearise,
    linearise,
    read_trees,
)
from annotated_transformer.experiments.parsing_results import (
    _tree_tokens,
    training_pairs,
)

NONE_AT_ALL = LinearisationErrors()

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


def one(text):
    [tree] = read_trees(text)
    return tree


# Trees as tokens and back


@given(anything)
def test_any_tree_comes_back_whole(tree):
    [(sentence, text)] = training_pairs([tree])
    assert delinearise(linearise(tree), tree.words()) == (tree, NONE_AT_ALL)
    assert delinearise(_tree_tokens(text), sentence.split(" ")) == (tree, NONE_AT_ALL)
    assert read_trees(str(tree)) == [tree]


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
    # it is a tree, and stays as it is; repaired if and only if it was none
    assert delinearise(linearise(tree), words) == (tree, NONE_AT_ALL)
    assert any(errors) == (linearise(tree) != tokens)
    n_more = sum(t[0] not in "()" for t in tokens) - len(words)
    assert errors.surplus_tags == max(0, n_more)
    assert errors.missing_tags == max(0, -n_more)


S3 = "(S (NP (DT a) (NN b)) (VP (VB c)))"
NONE = "(TOP (XX a) (XX b) (XX c))"
REPAIRS = [  # output, tree over a b c, and the errors
    ("(S (NP DT NN )NP (VP VB )VP )S", S3, {}),
    (
        "(S (NP DT (PP NN )NP (VP VB )VP )S",
        "(S (NP (DT a) (PP (NN b))) (VP (VB c)))",
        {"unclosed": 1},
    ),
    ("(S (NP DT NN )NP )NP (VP VB )VP )S )S", S3, {"dropped": 2}),
    ("(S ( (NP )NP DT NN VB )S )", "(S (DT a) (NN b) (VB c))", {"dropped": 3}),
    ("(S (NP DT NN )NP )S", "(S (NP (DT a) (NN b)) (XX c))", {"missing_tags": 1}),
    (
        "(S DT NN VB (NP NN JJ )NP )S",
        "(S (DT a) (NN b) (VB c))",
        {"surplus_tags": 2, "dropped": 1},
    ),
    ("", NONE, {"missing_tags": 3, "no_root": 1}),
    (
        ")S )S (NP",
        NONE,
        {"unclosed": 1, "dropped": 3, "missing_tags": 3, "no_root": 1},
    ),
]


@pytest.mark.parametrize("text, tree, errors", REPAIRS)
def test_repairs_by_hand(text, tree, errors):
    found = delinearise(text.split(), ["a", "b", "c"])
    assert found == (one(tree), LinearisationErrors(**errors))


# Counting


NP = "(NP (DT the) (NN dog))"
VP = "(VP (VBZ sleeps) (PP (IN in) (NP (DT the) (NN barn))))"
GOLD = f"(TOP (S {NP} {VP} (. .)))"  # S, NP, VP, PP, NP
HIGH = "(VP (VBZ sleeps)) (PP (IN in) (NP (DT the) (NN barn)))"
HAND = {  # what is wrong: gold, predicted, and the brackets matched, of gold, of predicted
    "attached higher": (GOLD, GOLD.replace(VP, HIGH), 4, 5, 5),
    "another root": (GOLD, GOLD.replace("TOP", "S1"), 5, 5, 5),
    "half of a chain": ("(S (VP (VB go)))", "(VP (VB go))", 1, 2, 1),
    "a label three times": ("(NP (NN dog))", "(NP (NP (NP (NN dog))))", 1, 1, 3),
    "PRT": ("(VP (VB go) (PRT (RP up)))", "(VP (VB go) (ADVP (RP up)))", 2, 2, 2),
    "over punctuation alone": ("(S (NN a) (NP (. .)))", "(S (NN a) (. .))", 1, 1, 1),
    "functions": ("(S (NP-SBJ-1 (NN a)))", "(S (NP=2 (NN a)))", 2, 2, 2),
}


@pytest.mark.parametrize("row", HAND.values(), ids=HAND)
def test_counts_by_hand(row):
    gold, said, matched, n_gold, n_said = row
    exact = int(matched == n_gold == n_said)
    score = bracket_score(one(gold), one(said))
    assert score == BracketScore(matched, n_gold, n_said, exact, 1)


@pytest.mark.parametrize(
    "said, score",
    [
        (None, BracketScore(n_skipped=1)),  # empty output
        (GOLD.replace("(DT the) ", ""), BracketScore(n_errors=1)),  # words missing
        (GOLD.replace("dog", "cat"), BracketScore(n_errors=1)),  # as many, but another
        (GOLD.replace("(. .)", ""), BracketScore(5, 5, 5, 1, 1)),  # only punctuation
        ("(TOP (S (. .)))", BracketScore(n_skipped=1)),  # nothing but punctuation
    ],
)
def test_left_out(said, score):
    assert bracket_score(one(GOLD), said and one(said)) == score
