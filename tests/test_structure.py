"Heads that follow structure: dependencies of known sentences, measures judged by hand-made attention, and the record."

from itertools import product

import pytest
import torch

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
    dependency_attention,
    prefix_attention,
    prefixes_predicted,
)
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import Transformer, build_transformer
from annotated_transformer.show import heads
from annotated_transformer.show.heads import WordPair, word_attention

OBJECTS = ("verb → object", "verb → earlier object")


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return learn_bpe((side for s in builtin(500) for side in (s.en, s.de)), 330)


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    return builtin(300, 5, "test") + builtin(60, 5, "test", ("wh", "relative_object"))


@pytest.fixture(scope="module")
def separated(sentences) -> list[Sentence]:
    return [s for s in sentences if separated_verb(s)]


def made(vocab: Vocab) -> Transformer:
    torch.manual_seed(0)
    config = ModelConfig(n_layers=2, d_model=16, d_ff=16, n_heads=4)
    return build_transformer(config, len(vocab), vocab.pad_id)


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
            "(S (NP (PRP He)) (VP (VBD gave) (NP (DT the) (NN girl)) "
            "(NP (DT a) (JJ red) (NN ball))) (. .))",
            {"gave ball", "the girl", "a ball", "red ball"},
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
        (
            "(S (NP (NP (DT The) (NN boy)) (SBAR (WHNP (WP who)) (S (VP (VBZ sees) "
            "(NP (DT a) (NN cat)))))) (VP (VBZ is) (ADJP (JJ sad))) (. .))",
            {"The boy", "sees cat", "a cat"},
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


def test_pairs_name_the_words(vocab, sentences):
    for s in sentences[:40]:
        pair = WordPair.encode(vocab, s)
        for ids, words, text in (
            (pair.src[:-1], pair.src_words[:-1], s.en),
            (pair.tgt_in[1:], pair.tgt_words[1:], s.de),
        ):
            for i, word in enumerate(text.split()):
                spelt = vocab.decode(t for t, w in zip(ids, words) if w == i)
                assert spelt.strip() == "".join(c for c in word if c.isalnum())
        for word in range(len(s.de.split())):  # the reference up to this word
            before = vocab.decode(pair.tgt_in[1 : pair.predicts.index(word) + 1])
            assert before.split() == s.de.split()[:word]


def planted(pairs: list[WordPair], tops: list) -> dict:
    "Maps of one layer: every query of head i attends to the word tops[i](pair number, kind, query word)."
    n_src, n_tgt = (
        max(map(len, ids)) for ids in zip(*((p.src, p.tgt_in) for p in pairs))
    )
    sizes = {"encoder": (n_src,) * 2, "decoder": (n_tgt,) * 2, "cross": (n_tgt, n_src)}
    maps = {
        kind: torch.zeros(1, len(pairs), len(tops), *size)
        for kind, size in sizes.items()
    }
    for b, pair in enumerate(pairs):
        words = {
            "encoder": (pair.src_words, pair.src_words),
            "decoder": (pair.predicts, pair.tgt_words),
            "cross": (pair.predicts, pair.src_words),
        }
        for kind, (head, top) in product(words, enumerate(tops)):
            queries, keys = words[kind]
            for i, word in enumerate(queries):
                key = top(b, kind, word)
                key = key if key in keys else max(keys)
                for j in [j for j, w in enumerate(keys) if w == key]:
                    maps[kind][0, b, head, i, j] = 1 / keys.count(key)
    return maps


def plant(monkeypatch, vocab, sentences, tops) -> None:
    "Let `attention_maps` return what `tops(batch of sentences, their pairs)` attends to."
    queue = list(sentences)

    def maps(model, src, tgt_in):
        batch = [queue.pop(0) for _ in range(len(src))]
        pairs = [WordPair.encode(vocab, s) for s in batch]
        return planted(pairs, tops(batch, pairs))

    monkeypatch.setattr(heads, "attention_maps", maps)


def test_planted_heads_of_the_encoder(vocab, sentences, monkeypatch):
    "Head 1 follows every dependency, head 2 attends to the next word, head 3 to EOS."

    def tops(batch, pairs):
        links = [{d.query: d.key for d in dependencies(s)} for s in batch]
        last = [max(pair.src_words) for pair in pairs]
        return [
            lambda b, kind, word: links[b].get(word, last[b]),
            lambda b, kind, word: word + 1,
            lambda b, kind, word: last[b],
        ]

    some = sentences[:40]
    plant(monkeypatch, vocab, some, tops)
    found = dependency_attention(torch.nn.Linear(1, 1), vocab, some)
    assert set(found) == {d.relation for s in some for d in dependencies(s)}
    for relation, f in found.items():
        next_word = (f.distance == 1).float()
        assert f.largest[:, 0, 0].eq(1).all() and f.largest[:, 0, 2].eq(0).all()
        assert torch.equal(f.largest[:, 0, 1], next_word)
        compared = ~f.same_distance[:, 0, 1].isnan()
        assert torch.equal(f.same_distance[compared, 0, 1], next_word[compared])
        if relation in OBJECTS:  # no other word has an object, nor EOS as near
            assert f.same_distance[compared, 0, 0].mean() < 0.2


def test_planted_heads_of_the_decoder(vocab, sentences, separated, monkeypatch):
    "Head 1 attends to the verb from everywhere, head 2 to the fourth word back."

    def tops(batch, pairs):
        verbs = list(map(separated_verb, batch))
        own = {"decoder": "finite", "encoder": "english", "cross": "english"}
        return [
            lambda b, kind, word: getattr(verbs[b], own[kind]),
            lambda b, kind, word: word - 4,
        ]

    some = separated[:20]
    plant(monkeypatch, vocab, some, tops)
    others = [s for s in sentences[:9] if not separated_verb(s)]
    found = prefix_attention(torch.nn.Linear(1, 1), vocab, others + some)
    for kind, f in found.items():
        assert f.largest[:, 0, 0].eq(1).all()
        assert torch.equal(f.largest[:, 0, 1], (f.distance == -4).float())
        assert kind == "cross" or (f.distance < 0).all()
        on_key = f.same_key[:, 0, 0]  # from everywhere
        assert set(on_key[~on_key.isnan()].tolist()) == {1.0}
    expected = [v.finite - v.prefix for v in map(separated_verb, some)]
    assert found["decoder"].distance.tolist() == expected


def test_batches_change_nothing(vocab, separated):
    model, some = made(vocab), separated[:5]
    both = dependency_attention(model, vocab, some)
    alone = [dependency_attention(model, vocab, [s]) for s in some]
    for relation, f in both.items():
        parts = [one[relation] for one in alone if relation in one]
        for got, wanted in zip(f, map(torch.cat, zip(*parts))):
            torch.testing.assert_close(got, wanted, equal_nan=True)


def test_prefixes_predicted_by_hand(vocab, separated):
    "A model that always predicts the first token of one prefix."
    model, some = made(vocab), separated[:5]
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
