"Sweeps over the built-in grammar."

import re

import pytest

from annotated_transformer import UserError
from annotated_transformer.data.grammar import (
    _LEXICON,
    _NOUN,
    _VERB,
    _read_lexicon,
    builtin,
)

LEAF = r"\([A-Z$.,]+ [^\s()]+\)"
PRONOUNS = {"m": "er", "f": "sie", "n": "es"}


def words(text):
    return [w.strip(".,?").lower() for w in text.split()]


@pytest.fixture(scope="module")
def train():
    return builtin(8_000)


def test_a_line_of_a_lexicon_with_a_mistake_is_named(tmp_path):
    path = tmp_path / "words.txt"
    good = "[nouns]\nkind  singular\n\nanimal  dog  # barks\n"
    path.write_text(good, encoding="utf-8")
    assert _read_lexicon(path) == {"nouns": [("animal", "dog")]}
    for line, found in (("animal cat", 1), ("animal  cat  cats", 3)):
        path.write_text(f"{good}{line}\n", encoding="utf-8")
        message = rf"words\.txt, line 5: expected 2 columns \(kind, singular\), found {found};"
        with pytest.raises(UserError, match=message):
            _read_lexicon(path)


def test_the_lexicon_names_only_its_own_words():
    known = {
        "noun": {*_NOUN, *(noun.kind for noun in _NOUN.values())},
        "adjective": {en for en, *_ in _LEXICON["adjectives"]},
        "verb": {en.split()[0] for en, *_ in _LEXICON["verbs"]},
    }
    columns = [
        ("kinds", {"noun": [0], "adjective": [2, 3]}),
        ("unidiomatic", {"noun": [0]}),
        ("adjectives", {"adjective": [2]}),
        ("comparatives", {"adjective": [0]}),
        ("verbs", {"noun": [9]}),
        ("verbs of animals", {"verb": [0]}),
        ("tenses", {"verb": [0]}),
        ("places", {"noun": [2]}),
        ("directions", {"noun": [3]}),
        ("tales", {"verb": [0], "noun": [3]}),
        ("too", {"noun": [0], "adjective": [1]}),
        ("reasons", {"verb": [0], "noun": [1], "adjective": [2]}),
    ]
    for section, of in columns:
        for part, indices in of.items():
            cells = [row[i] for row in _LEXICON[section] for i in indices]
            used = {word for cell in cells for word in cell.split()}
            assert used and used <= known[part], (section, part)
    for section, i in (("nouns", 1), ("adjectives", 0), ("verbs", 0)):
        words = [row[i].split()[0] for row in _LEXICON[section]]
        assert len(words) == len(set(words)), section


def test_verbs_have_their_prefix_and_their_auxiliary():
    call = _VERB["call"]
    assert (call.prefix, call.stem, call.de_part) == ("an", "rufen", "angerufen")
    assert (call.perfect, _VERB["follow"].perfect) == ("has", "is")


def test_english_determines_german(train):
    german = {s.en: s.de for s in train}
    again = [s for s in builtin(4_000, seed=5) if s.en in german]
    assert again
    assert all(german[s.en] == s.de for s in again)


def test_form_of_sentences(train):
    for s in train:
        assert re.fullmatch(r"[A-Z][A-Za-z',\- ]*[.?]", s.en), s
        assert re.fullmatch(r"[A-ZÄÖÜ][A-Za-zÄÖÜäöüß, ]*[.?]", s.de), s
        assert s.en[-1] == s.de[-1] and "  " not in s.en + s.de
        assert 3 <= len(s.en.split()) <= 16
        assert not re.search(r"\b([Aa] [aeiou]|[Aa]n [^aeiou])", s.en), s
        assert not re.search(r"\b([Ii]n dem|[Ii]n das|[Zz]u dem|[Zz]u der)\b", s.de), s


def test_trees(train):
    for s in train:
        assert s.tree.startswith(("(S (", "(SQ (", "(SBARQ ("))
        # innermost brackets first: what remains is one tree
        rest, before = s.tree, ""
        while rest != before:
            before = rest
            rest = re.sub(r"\(([A-Z$]+|[.,]) (x ?)+\)", "x", re.sub(LEAF, "x", rest))
        assert rest == "x", s.tree


def test_pronouns(train):
    pronouns = [s for s in train if s.pronoun]
    assert all(("it" in words(s.en)) == (s.pronoun is not None) for s in train)
    assert 0.15 < len(pronouns) / len(train) < 0.25
    differ = [s for s in pronouns if s.pronoun.answer != s.pronoun.wrong]
    assert len(differ) > len(pronouns) / 2
    for s in pronouns:
        en, p = words(s.en), s.pronoun
        assert en[p.word] == "it" and s.de.split()[p.answer_word] == p.answer
        genders = [_NOUN[en[i]].gender for i in (p.antecedent, p.other)]
        assert [PRONOUNS[gender] for gender in genders] == [p.answer, p.wrong]


def test_the_meaning_decides():
    "Within the animal family an adjective speaks of the animal always or of the place always."
    side = {}
    for s in builtin(3_000, patterns=("it_because",)):
        p = s.pronoun
        side.setdefault(words(s.en)[-1], set()).add(p.antecedent < p.other)
    assert all(len(s) == 1 for s in side.values())
