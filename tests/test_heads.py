"Which heads follow it: tokens and words, measures judged by plain loops and planted maps, heads ablated and restored."

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from small_runs import untrained_model

from annotated_transformer.data.grammar import Sentence, builtin
from annotated_transformer.data.vocab import Vocab, learn_bpe
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.show import heads
from annotated_transformer.show.heads import (
    AntecedentAttention,
    WordPair,
    ablate_head,
    antecedent_attention,
    following_head,
    opening_head,
    pronoun_scores,
    pronoun_sentences,
    word_ids,
)
from annotated_transformer.show.visualize import attention_maps, attention_modules


def learned(vocab_size: int) -> Vocab:
    return learn_bpe((side for s in builtin(600) for side in (s.en, s.de)), vocab_size)


@pytest.fixture(scope="module")
def vocab() -> Vocab:
    return learned(330)  # it spells most words: the harder case


@pytest.fixture(scope="module", params=[330, 1200])
def any_vocab(request, vocab) -> Vocab:
    return vocab if request.param == 330 else learned(request.param)


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    return pronoun_sentences(60, seed=5)


# --- tokens and words ---------------------------------------------------------------------------------------------------------


def test_pair_finds_it_and_the_pronoun(any_vocab, sentences):
    vocab = any_vocab
    for s in sentences:
        pair, ids = WordPair.encode(vocab, s), vocab.encode(s.de)
        it = [t for t, word in zip(pair.src, pair.src_words) if word == s.pronoun.word]
        assert vocab.decode(it).strip().lower() == "it"
        assert len(pair.src_words) == len(pair.src)
        assert pair.src_words.count(max(pair.src_words)) == 1
        assert pair.tgt_in == [vocab.bos_id, *ids]
        at = pair.predicts.index(s.pronoun.answer_word)
        before, after = ids[:at], ids[at:]
        assert vocab.decode(before).split() == s.de.split()[: s.pronoun.answer_word]
        assert vocab.decode(after).split()[0] == s.pronoun.answer


def test_marks_belong_to_no_word():
    tokens = ["▁Al", "though", "▁it", "▁was", ",", "▁no", "."]
    assert word_ids(tokens) == [0, 0, 1, 2, 4, 3, 5]


# --- attention to the antecedent ----------------------------------------------------------------------------------------------


def test_antecedent_attention_is_the_mean_of_plain_loops(vocab, sentences):
    model, some = untrained_model(vocab), sentences[:7]
    noun, other, first = (torch.zeros(2, 2, 4) for _ in range(3))  # kind, layer, head
    for s in some:
        pair = WordPair.encode(vocab, s)
        ids = torch.tensor([pair.src]), torch.tensor([pair.tgt_in])
        maps = attention_maps(model, *ids)
        queries = [i for i, w in enumerate(pair.src_words) if w == s.pronoun.word]
        at_pronoun = pair.predicts.index(s.pronoun.answer_word)
        for layer, head in product(range(2), range(4)):
            it = maps["encoder"][layer, 0, head][queries].mean(0)
            pronoun = maps["cross"][layer, 0, head, at_pronoun]
            for kind, row in enumerate((it.tolist(), pronoun.tolist())):
                weight = [
                    sum(w for w, word in zip(row, pair.src_words) if word == i)
                    for i in range(max(pair.src_words) + 1)
                ]
                at, meant = (kind, layer, head), weight[s.pronoun.antecedent]
                noun[at] += meant / 7
                other[at] += weight[s.pronoun.other] / 7
                first[at] += (max(weight) == meant) / 7
    for batch_size in (3, 50):  # padding and batches change nothing
        found = antecedent_attention(model, vocab, some, batch_size)
        for i, kind in enumerate(("encoder", "cross")):
            for got, wanted in zip(found[kind], (noun, other, first)):
                torch.testing.assert_close(got, wanted[i], atol=1e-5, rtol=0)  # fp32


def test_pages_open_with_the_head_that_follows(vocab, monkeypatch):
    "The largest difference to the other noun, of both kinds; none without an it."
    kinds = ("encoder", "cross")
    found = {kind: AntecedentAttention(*torch.zeros(3, 2, 3)) for kind in kinds}
    found["encoder"].antecedent[0, 1], found["encoder"].other[0, 1] = 0.9, 0.8
    found["cross"].antecedent[1, 2] = 0.6
    assert following_head(found) == ("cross", 1, 2)
    record = {kind: [x.tolist() for x in one] for kind, one in found.items()}
    assert following_head(record) == ("cross", 1, 2)
    monkeypatch.setattr(heads, "antecedent_attention", lambda *args: found)
    opening = {"kind": "cross", "layer": 1, "head": 2}
    for sentence, known, wanted in (
        ("The dog sleeps because it is old.", vocab, opening),
        ("It is old.", vocab, opening),
        ("The man sees it.", vocab, opening),
        ("The items are little.", vocab, {}),
        ("It is old.", object(), {}),  # another library's vocabulary
    ):
        assert opening_head(torch.nn.Linear(1, 1), known, sentence) == wanted
    found["cross"].antecedent[1, 2] = 0.3  # no head follows it
    assert opening_head(torch.nn.Linear(1, 1), vocab, "It is old.") == {}


def test_page_of_a_model_with_few_positions(vocab):
    "The sentences on which heads are measured are longer than its positions."
    sizes = ModelConfig(1, 16, 32, 2, position="learned", n_positions=5)
    model = build_transformer(sizes, len(vocab), vocab.pad_id).eval()
    assert opening_head(model, vocab, "It is old.") == {}


# --- ablated heads ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_an_ablated_head_has_no_effect_and_is_restored(vocab):
    "Whatever its values are, the output is the same; any other head's values change it. Afterwards the weights are the same bits."
    model = untrained_model(vocab, norm="pre", d_k=3, d_v=5).eval()
    src, tgt_in = (torch.randint(4, len(vocab), (2, n)) for n in (9, 7))
    before = {name: p.clone() for name, p in model.state_dict().items()}
    whole = model(src, tgt_in)
    for kind, parts in attention_modules(model).items():
        for (layer, attn), head in product(enumerate(parts), range(4)):
            values = attn.w_v.weight.view(attn.n_heads, -1, 16)
            with ablate_head(model, kind, layer, head):
                silent = model(src, tgt_in)
                for i, own in enumerate(values.clone()):
                    values[i] *= -3
                    assert torch.equal(model(src, tgt_in), silent) == (i == head)
                    values[i] = own
            assert not torch.equal(silent, whole)
            assert torch.equal(model(src, tgt_in), whole)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())


WRONG_HEADS = {
    ("self", 0, 0): "kind='self' must be one of encoder, decoder, cross",
    ("encoder", 2, 0): "layer=2 is out of range: use 0 to 1",
    ("encoder", 0, 4): "head=4 is out of range: use 0 to 3",
}


@pytest.mark.parametrize("where", WRONG_HEADS)
def test_a_head_that_is_not_there(vocab, where):
    with pytest.raises(ValueError, match=WRONG_HEADS[where]):
        with ablate_head(untrained_model(vocab), *where):
            pass


def test_heads_are_restored_after_an_error(vocab):
    model = untrained_model(vocab)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="amid"):
        with ablate_head(model, "cross", 0, 0), ablate_head(model, "cross", 0, 1):
            raise RuntimeError("amid")
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


# --- pronouns -----------------------------------------------------------------------------------------------------------------


def test_antecedents_are_those_of_sentences_with_it(vocab):
    with pytest.raises(ValueError, match="does not contain it"):
        antecedent_attention(
            untrained_model(vocab), vocab, builtin(1, patterns=("place",))
        )


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda words, at, wrong: words, (1, 0, 1)),
        (lambda words, at, wrong: [*words[:at], wrong, *words[at + 1 :]], (0, 1, 1)),
        (lambda words, at, wrong: [*words[:at], *words[at + 1 :]], (0, 0, 1)),
        (lambda words, at, wrong: words[: at + 1], (1, 0, 0)),
    ],
    ids=["right", "of the other noun", "left out", "the rest left out"],
)
def test_pronouns_and_the_rest_are_scored_apart(sentences, change, expected):
    known = {s.en: s for s in sentences}
    said = lambda s: change(s.de.split(), s.pronoun.answer_word, s.pronoun.wrong)
    translate = lambda lines: [" ".join(said(known[line])) for line in lines]
    scores = pronoun_scores(SimpleNamespace(translate=translate), sentences)
    assert scores == expected
