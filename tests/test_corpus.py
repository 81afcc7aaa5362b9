"Sweeps over the built-in grammar, and what reading of other people's files must survive."
import gzip
import http.server
import os
import re
import threading
from functools import partial
from pathlib import Path

import pytest

from annotated_transformer import corpus
from annotated_transformer.corpus import (
    ANIMAL_TIRED,
    ANIMAL_WIDE,
    NOUN,
    PATTERNS,
    builtin,
    join_tokens,
    leaves,
    load_corpus,
    multi30k,
    number,
    read_lines,
    read_pairs,
    split_of,
)

DATA = os.environ.get("ANNOTATED_TRANSFORMER_DATA")
PRONOUNS = {"m": "er", "f": "sie", "n": "es"}


def words(text): return [w.strip(".,?").lower() for w in text.split()]


@pytest.fixture(scope="module")
def train(): return builtin(20_000)


@pytest.fixture(scope="module")
def held_out(): return builtin(400, 1, "test") + builtin(400, 1, "valid")


def test_size_of_the_language(train):
    forms = {w for s in train for w in words(s.en)}
    assert len([w for w in forms if "-" not in w]) >= 300
    assert len(PATTERNS) >= 15 and {s.pattern for s in train} == set(PATTERNS)


def test_deterministic_and_distinct(train):
    assert builtin(300) == train[:300] and builtin(300, 1) != train[:300]
    assert len({s.en for s in train}) == len(train)


def test_one_translation_each(train):
    german = {s.en: s.de for s in train}
    assert all(german.get(s.en, s.de) == s.de for seed in (2, 3) for s in builtin(5_000, seed))


def test_nothing_held_out_was_seen_and_no_word_of_it_is_new(train, held_out):
    assert not {s.en for s in train} & {s.en for s in held_out}
    assert {split_of(s.en) for s in train} == {"train"} and {split_of(s.en) for s in held_out} == {"test", "valid"}
    assert {w for s in held_out for w in words(s.en)} <= {w for s in train for w in words(s.en)}
    assert .88 < sum(split_of(f"{s.en} {i}") == "train" for i, s in enumerate(train)) / len(train) < .92


def test_split_never_changes():
    assert [split_of(x) for x in "aflp"] == ["train", "valid", "valid", "test"]


def test_form_of_sentences(train):
    for s in train:
        assert re.fullmatch(r"[A-Z][A-Za-z',\- ]*[.?]", s.en) and re.fullmatch(r"[A-ZÄÖÜ][A-Za-zÄÖÜäöüß, ]*[.?]", s.de), s
        assert 3 <= len(s.en.split()) <= 16 and s.en[-1] == s.de[-1] and "  " not in s.en + s.de
        assert not re.search(r"\b(a [aeiou]|an [^aeiou]|in dem|in das|zu dem|zu der)\b", s.en if s.en[0] != "I" else "") , s.en


def test_trees(train):
    for s in train:
        assert join_tokens(leaves(s.tree)) == s.en
        depth = 0
        for c in s.tree:
            depth += (c == "(") - (c == ")")
            assert depth >= 0
        assert depth == 0 and s.tree.startswith(("(S (", "(SQ (", "(SBARQ ("))
        assert re.fullmatch(r"(\([A-Z$]+ |\([A-Z$.,]+ [^\s()]+\)|\)| )*", s.tree), s.tree
        assert s.tree.replace("(", " ( ").split().count("(") == len(re.findall(r"\((?:[A-Z$]+|[.,]) (?=[^ ])", s.tree)), s.tree


def test_pronouns(train):
    plural_or_gender = {n.en: n.gender for n in NOUN.values()}
    pronouns = [s for s in train if s.pronoun]
    assert all(("it" in words(s.en)) == (s.pronoun is not None) for s in train)
    assert .15 < len(pronouns) / len(train) < .25
    assert sum(s.pronoun.answer != s.pronoun.wrong for s in pronouns) > len(pronouns) / 2
    for s in pronouns:
        en, p = words(s.en), s.pronoun
        assert en[p.word] == "it" and s.de.split()[p.answer_word] == p.answer
        assert PRONOUNS[plural_or_gender[en[p.antecedent]]] == p.answer and PRONOUNS[plural_or_gender[en[p.other]]] == p.wrong


def test_the_animal_sentences_are_held_out():
    for s in (ANIMAL_TIRED, ANIMAL_WIDE):
        assert split_of(s.en) == "test"
    assert ANIMAL_TIRED.de.endswith("weil es zu müde war.") and ANIMAL_WIDE.de.endswith("weil sie zu breit war.")
    assert not {ANIMAL_TIRED.en, ANIMAL_WIDE.en} & {s.en for s in builtin(6_000, patterns=("it_because",))}


def test_the_meaning_decides():
    "Within the animal family an adjective speaks of the animal always or of the place always."
    side = {}
    for s in builtin(3_000, patterns=("it_because",)):
        p = s.pronoun
        side.setdefault(words(s.en)[-1], set()).add(p.antecedent < p.other)
    assert all(len(s) == 1 for s in side.values())


def test_numbers():
    assert [number(n)[1] for n in (7, 12, 20, 37, 66, 72, 99)] == [
        "sieben", "zwölf", "zwanzig", "siebenunddreißig", "sechsundsechzig", "zweiundsiebzig", "neunundneunzig"]


@pytest.mark.parametrize("en, de", [
    ("The boys help the old bear.", "Die Jungen helfen dem alten Bären."),
    ("I have thrown away a red cup.", "Ich habe eine rote Tasse weggeworfen."),
])
def test_hand_made_clauses(en, de):
    from annotated_transformer.corpus import PRONOUNS as people
    from annotated_transformer.corpus import VERB, acc, clause, finish, np, statement
    old = np("bear", "the", "old")
    made = {"The boys help the old bear.": lambda: clause(np("boy", plural=True), VERB["help"], obj=(old.en, old.de[2])),
            "I have thrown away a red cup.": lambda: clause(people[0], VERB["throw"], "perfect", acc(np("cup", "a", "red")))}
    s = finish("", *statement(made[en]()))
    assert (s.en, s.de) == (en, de)


def test_hundreds_of_thousands():
    "A pot of N gives about n²/2N repeats in n draws, more if some are likelier: so n²/2·repeats is at most about N."
    n, seen, repeats, rng = 20_000, set(), 0, corpus.random.Random(9)
    names = [name for name in PATTERNS for _ in range(PATTERNS[name][1])]
    for _ in range(n):
        name = rng.choice(names)
        en = corpus.finish(name, *PATTERNS[name][0](rng)).en
        repeats += en in seen
        seen.add(en)
    assert n * n / (2 * max(repeats, 1)) >= 300_000


def test_unknown_names():
    with pytest.raises(ValueError, match="take train, valid or test"): builtin(1, split="dev")
    with pytest.raises(ValueError, match="songs.*are unknown"): builtin(1, patterns=("songs",))
    with pytest.raises(ValueError, match="take builtin or multi30k"): load_corpus("wmt")


def test_load_builtin():
    c = load_corpus("builtin", n_train=300, n_valid=20, n_test=10, seed=4)
    assert (c.src_lang, c.tgt_lang) == ("en", "de") and [len(x) for x in c[3:]] == [300, 20, 10]
    assert c.train == [(s.en, s.de) for s in builtin(300, 4)] and c.test == [(s.en, s.de) for s in builtin(10, 4, "test")]


ODD = "one\u2028two\x0bthree\x85four"


@pytest.mark.parametrize("data, lines", [
    (b"a\nb\n", ["a", "b"]), (b"a\nb", ["a", "b"]), (b"a\r\nb\r\n", ["a", "b"]), (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
    (b"a\n\nb\n", ["a", "", "b"]), ((ODD + "\nb\n").encode(), [ODD, "b"]), (b"a\rb\n", ["a\rb"]), ("a\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
])
@pytest.mark.parametrize("name", ["f.en", "f.en.gz"])
def test_lines(tmp_path, name, data, lines):
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert read_lines(path) == lines == read_lines(str(path))


def test_bad_files(tmp_path):
    def bad(name, data, message):
        path = tmp_path / name
        if data is not None: path.write_bytes(data)
        with pytest.raises(ValueError, match=message) as e: read_lines(path)
        assert str(path) in str(e.value) and "\n" not in str(e.value) and type(e.value) is ValueError
    bad("missing", None, "no such file")
    bad("empty", b"", "is empty")
    bad("bom", b"\xef\xbb\xbf", "is empty")
    bad("blank", b"\n\n", "is empty")
    bad("latin", "a\nb\nmüde\n".encode("latin-1"), "line 3: byte 2 is not UTF-8")
    bad("utf16", "a\nb\n".encode("utf-16"), "line 1: byte 1 is not UTF-8")
    bad("plain.gz", b"a\n", "cannot be read")
    bad("short.gz", gzip.compress(b"a\n" * 1000)[:-9], "cannot be read")
    (tmp_path / "folder").mkdir()
    bad("folder", None, "cannot be read")


def test_pairs(tmp_path):
    (tmp_path / "a").write_bytes(b"1\n\n3\n 4 \n5\n")
    (tmp_path / "b").write_bytes(b"eins\nzwei\n \nvier\n5\n")
    (tmp_path / "c").write_bytes(b"eins\n")
    (tmp_path / "d").write_bytes(b"\nx\n\n\n\n")
    assert read_pairs(tmp_path / "a", tmp_path / "b") == [("1", "eins"), (" 4 ", "vier"), ("5", "5")]
    with pytest.raises(ValueError, match="a has 5 lines but .*c has 1"): read_pairs(tmp_path / "a", tmp_path / "c")
    with pytest.raises(ValueError, match="no line with text in both"): read_pairs(tmp_path / "a", tmp_path / "d")


def test_own_sentences_survive_a_file(tmp_path):
    sentences = builtin(200)
    for lang in ("en", "de"):
        with gzip.open(tmp_path / f"x.{lang}.gz", "wb") as f: f.write("".join(getattr(s, lang) + "\n" for s in sentences).encode())
    assert read_pairs(tmp_path / "x.en.gz", tmp_path / "x.de.gz") == [(s.en, s.de) for s in sentences]


def test_multi30k_folder_errors(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="must hold train.en.gz"): multi30k(tmp_path)
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="must hold train.en.gz"): load_corpus("multi30k")
    (tmp_path / "multi30k").mkdir()
    (tmp_path / "multi30k" / "train.en.gz").write_bytes(gzip.compress(b"hello\n"))
    with pytest.raises(ValueError, match="is not the file expected: its sha256 is"): multi30k(tmp_path)


@pytest.mark.skipif(not DATA, reason="ANNOTATED_TRANSFORMER_DATA is not set")
def test_multi30k_read():
    c = load_corpus("multi30k")
    assert [len(x) for x in c[3:]] == [29_000, 1_014, 1_000]
    assert sum(len(s.split()) for s, _ in c.test) == 11_877 and sum(len(t.split()) for _, t in c.test) == 10_905


@pytest.fixture
def server(tmp_path, monkeypatch):
    "A small copy of the source on this machine, and an empty cache."
    (tmp_path / "web").mkdir()
    sums = {}
    for file in corpus.MULTI30K:
        data = gzip.compress("".join(f"{file} {i}\n" for i in range(3)).encode(), mtime=0)
        (tmp_path / "web" / file).write_bytes(data)
        sums[file] = corpus.hashlib.sha256(data).hexdigest()
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_): pass
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "web")))
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "ANNOTATED_TRANSFORMER_DATA"): monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(corpus.pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(corpus, "MULTI30K", sums)
    yield f"http://127.0.0.1:{httpd.server_port}", Path(tmp_path)
    httpd.shutdown()
    httpd.server_close()


def test_download(server, monkeypatch):
    url, folder = server
    c = multi30k(url=url)
    assert c.train[2] == ("train.en.gz 2", "train.de.gz 2") and len(c.test) == 3
    assert multi30k(url="http://127.0.0.1:1") == c  # from the cache
    monkeypatch.setitem(corpus.MULTI30K, "val.de.gz", "0" * 64)
    with pytest.raises(ValueError, match="val.de.gz"): multi30k(url=url)


def test_no_network(server):
    with pytest.raises(ValueError, match="cannot download .*train.en.gz .*--data-dir") as e: multi30k(url="http://127.0.0.1:1")
    assert "\n" not in str(e.value)
