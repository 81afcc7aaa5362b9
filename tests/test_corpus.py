"What reading other people's files must survive."
import gzip
import http.server
import os
import threading
from functools import partial
from pathlib import Path

import pooch
import pytest

from annotated_transformer import corpus
from annotated_transformer.corpus import load_corpus, multi30k, own_corpus, read_lines, read_pairs
from annotated_transformer.grammar import builtin

DATA = os.environ.get("ANNOTATED_TRANSFORMER_DATA")


def test_unknown_name():
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
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
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


def test_own_files_set_some_aside(tmp_path):
    lines = [f"sentence {i % 700}" for i in range(1000)]
    (tmp_path / "a").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    own = own_corpus(tmp_path / "a", tmp_path / "a")
    assert len(own.train) + len(own.valid) == 1000 and 10 < len(own.valid) < 120 and own.test == []
    assert not set(own.train) & set(own.valid), "a sentence that stands there twice is on one side only"
    assert own_corpus(*[tmp_path / "a"] * 4).valid == own_corpus(*[tmp_path / "a"] * 4).train == [(line, line) for line in lines]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_very_small_files_have_something_to_validate_on(n, tmp_path):
    (tmp_path / "a").write_text("".join(f"sentence {i}\n" for i in range(n)), encoding="utf-8")
    own = own_corpus(tmp_path / "a", tmp_path / "a")
    assert own.train and own.valid and len(own.train) + len(own.valid) == n


def test_one_sentence_is_too_few(tmp_path):
    (tmp_path / "a").write_text("the same\n" * 4, encoding="utf-8")
    with pytest.raises(ValueError, match="too few to train and to validate on"): own_corpus(tmp_path / "a", tmp_path / "a")
