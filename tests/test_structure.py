"Heads that follow structure: dependencies of known sentences, measures judged by hand-made attention, and the record."

from itertools import product

import pytest
import torch
from small_runs import untrained_model

from annotated_transformer.data.grammar import (
    Sentence,
    _join_tokens,
    _leaves,
    builtin,
    separated_verb,
)
from annotated_transformer.data.vocab import Vocab, learn_bpe
from annotated_transformer.experiments.structure import (
    dependencies,
    prefixes_predicted,
)
from annotated_transformer.show.heads import WordPair, word_attention


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return learn_bpe((side for s in builtin(500) for side in (s.en, s.de)), 330)


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    return builtin(300, 5, "test") + builtin(60, 5, "test", ("wh", "relative_object"))


@pytest.fixture(scope="module")
def separated(sentences) -> list[Sentence]:
    return [s for s in sentences if separated_verb(s)]


def bare(word: str) -> str:
    return word.strip(".,?").lower().removesuffix("'s")


# dependencies


@pytest.mark.parametrize(
    "tree, pairs",
    [
        (
            "(S (NP (DT The) (JJ old) (NN man)) (VP (VBZ picks) (PRT (RP up)) "
            "(NP (PRP$ my) (NN hat)) (NP (DT every) (NN day))) (. .))",
            {"The man", "old man.", "picks hat", "my hat"},
        ),
        (
            "(SBARQ (WHNP (WDT Which) (NNS eggs)) (SQ (VBD did) (NP (DT the) "
            "(NN cow)) (VP (VB eat))) (. ?))",
            {"Which eggs", "the cow", "eat eggs"},
        ),
        (
            "(S (NP (NP (DT The) (NN key)) (SBAR (WHNP (WDT that)) (S (NP (PRP she)) "
            "(VP (VBZ has) (VP (VBN lost)))))) (VP (VBZ is) (ADJP (JJ new))) (. .))",
            {"The key", "lost key"},
        ),
    ],
)
def test_dependencies_of_known_sentences(tree, pairs):
    s = Sentence(_join_tokens(_leaves(tree)), "", tree, "", None)
    words = [bare(word) for word in s.en.split()]
    found = {f"{words[d.query]} {words[d.key]}" for d in dependencies(s)}
    assert found == {" ".join(map(bare, pair.split())) for pair in pairs}


# the separated verb


def test_each_kind_of_sentence_with_a_separated_verb():
    known = {
        "Er ruft den Arzt an.": ("He calls the doctor.", (1, 4, 1)),
        "Ruft er den Arzt an?": ("Does he call the doctor?", (0, 4, 2)),
        "Er hat den Arzt angerufen.": ("He has called the doctor.", None),
        "Er sagt, dass sie anruft.": ("He says that she calls.", None),
        "Wenn er anruft, ruft sie ihn an.": ("If he calls, she calls him.", (3, 6, 4)),
        "Er kauft ein Ei.": ("He buys an egg.", None),
        "Er geht auf die Brücke zu.": ("He goes towards the bridge.", None),
    }
    for de, (en, expected) in known.items():
        assert separated_verb(Sentence(en, de, "", "", None)) == expected, de


# attention between words


def test_word_attention_by_plain_loops():
    torch.manual_seed(0)
    weights = torch.rand(2, 3, 5, 4).softmax(-1)
    query_words, key_words = [2, -1, 0, 2, 3], [1, 0, 1, 2]  # no query of word 1
    found = word_attention(weights, query_words, key_words)
    assert found.shape == (2, 3, 4, 3)
    for query, key in product(range(4), range(3)):
        rows = [i for i, word in enumerate(query_words) if word == query]
        columns = [j for j, word in enumerate(key_words) if word == key]
        expected = sum(weights[..., i, j] for i in rows for j in columns)
        expected = expected / len(rows) if rows else torch.zeros(2, 3)
        torch.testing.assert_close(found[..., query, key], expected)


def test_prefixes_predicted_by_hand(vocab, separated):
    "A model that always predicts the first token of one prefix."
    model, some = untrained_model(vocab), separated[:5]
    assert not prefixes_predicted(model, vocab, some).all()

    def first_token(s: Sentence) -> int:
        pair = WordPair.encode(vocab, s)
        return pair.tgt_in[pair.predicts.index(separated_verb(s).prefix) + 1]

    token = first_token(some[0])
    norm = model.decoder.layers[-1].residuals[-1].norm
    with torch.no_grad():
        norm.weight.zero_()
        norm.bias.copy_(10 * model.embedding.weight[token])
    same = [first_token(s) == token for s in some]
    assert prefixes_predicted(model, vocab, some).tolist() == same and same[0]
