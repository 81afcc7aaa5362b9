"What reading other people's files, and fetching them, must survive."

import errno
import gzip
import hashlib
import http.server
import io
import os
import tarfile
import tempfile
import threading
import zipfile
import zlib
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pooch
import pytest

from annotated_transformer import UserError
from annotated_transformer.data.corpus import (
    _MULTI30K,
    _TATOEBA,
    _TATOEBA_ZH,
    _WMT14,
    Corpus,
    _Download,
    _multi30k,
    _tatoeba,
    _tatoeba_zh,
    _wmt14,
    corpus_from_files,
    corpus_from_pairs,
    load_corpus,
)
from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.prepared import _warnings
from annotated_transformer.io import text as io_text
from annotated_transformer.io.text import (
    TextPairs,
    decode_lines,
    fingerprint,
    open_text,
    read_lines,
)
from annotated_transformer.translating.translate import line_groups

ODD = "one\u2028two\x0bthree\x85four"


@pytest.mark.parametrize(
    "data, lines",
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\xef\xbb\xbfa\nb\n", ["a", "b"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        ((ODD + "\nb\n").encode(), [ODD, "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\rb\r\rc", ["a", "b", "", "c"]),
        ("a\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
    ],
)
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_lines(tmp_path, compress, data, lines):
    "Whether a file is compressed is in its bytes, and not in its name."
    for name in ("f.en", "f.en.gz"):
        (path := tmp_path / name).write_bytes(compress(data))
        assert read_lines(path) == lines == read_lines(str(path))


def test_pairs(tmp_path):
    (tmp_path / "a").write_bytes(b"1\n\n3\n 4 \n5\n")
    (tmp_path / "b").write_bytes(b"eins\nzwei\n \nvier\n5\n")
    (tmp_path / "c").write_bytes(b"eins\n")
    (tmp_path / "d").write_bytes(b"\nx\n\n\n\n")
    pairs = [("1", "eins"), (" 4 ", "vier"), ("5", "5")]
    assert list(TextPairs([(tmp_path / "a", tmp_path / "b")])) == pairs
    with pytest.raises(UserError, match="a has 5 lines but .*c has 1"):
        list(TextPairs([(tmp_path / "a", tmp_path / "c")]))
    with pytest.raises(UserError, match="c has 1 lines but .*a has 5"):
        list(TextPairs([(tmp_path / "c", tmp_path / "a")]))
    with pytest.raises(UserError, match="no pair with text on both"):
        list(TextPairs([(tmp_path / "a", tmp_path / "d")]))


# ---- pairs that stay on disk


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


def test_two_readers_do_not_disturb_one_another(tmp_path):
    write(tmp_path / "a", ["one", "two", "four"])
    pairs = TextPairs([(tmp_path / "a", tmp_path / "a")] * 2, keep=lambda s: "o" in s)
    whole = [("one", "one"), ("two", "two"), ("four", "four")] * 2
    first, second = iter(pairs), iter(pairs)
    assert [next(first), next(second)] == whole[:1] * 2
    assert [*first] == [*second] == whole[1:]


# ---- files from elsewhere: a small copy of the sources on this machine


def archive(texts: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, text in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    return out.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    "/good/NAME, and what goes wrong on the way: another file, one cut short, none."

    files: dict[str, bytes] = {}
    asked: list[str] = []

    def do_GET(self):
        self.asked.append(self.path)
        _, how, name = self.path.split("/", 2)
        data = self.files.get(name)
        if how == "none" or data is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if how == "other":
            data = bytes([data[0] ^ 1]) + data[1:]
        self.wfile.write(data[: len(data) // 2] if how == "short" else data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    "Its address, files and requests; and an empty cache, which is `tmp_path / cache`."
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.url = f"http://127.0.0.1:{httpd.server_port}"
    httpd.files, httpd.asked = {}, []
    monkeypatch.setattr(Handler, "files", httpd.files)
    monkeypatch.setattr(Handler, "asked", httpd.asked)
    threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
    for name in ("DATA", "MIRROR"):
        monkeypatch.delenv(f"ANNOTATED_TRANSFORMER_{name}", raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def put(server, name: str, data: bytes, how="good", members=()) -> _Download:
    "A file on the server, and what the tables would say of it; its address behaves as `how` says."
    server.files[name] = data
    url = f"{server.url}/{how}/{name}"
    return _Download(url, hashlib.sha256(data).hexdigest(), members)


def tiny_multi30k(server, how: str = "good") -> tuple[_Download, ...]:
    "Three lines each."
    texts = {f.name: "".join(f"{f.name} {i}\n" for i in range(3)) for f in _MULTI30K}
    files = {name: gzip.compress(t.encode(), mtime=0) for name, t in texts.items()}
    return tuple(put(server, name, data, how) for name, data in files.items())


def tiny_wmt14(server, how: str = "good") -> tuple[_Download, ...]:
    "Archives with the members of the real ones, and others beside them; each text has two lines, the first with CRLF and an odd separator."

    def made(file: _Download) -> _Download:
        texts = {"training/europarl-v7.fr-en.fr": b"Un.\n"}
        for member in file.members:
            name = Path(member).name
            texts[member] = f"{name} 1\u2028\r\n{name} 2\n".encode()
        return put(server, file.name, archive(texts), how, members=file.members)

    return tuple(map(made, _WMT14))


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_multi30k_read(data_dir):
    c = load_corpus("multi30k", data_dir)
    assert c.source == {"data": "multi30k", "data_dir": str(data_dir.absolute())}
    assert [len(x) for x in c[3:6]] == [29_000, 1_014, 1_000]
    assert sum(len(s.split()) for s, _ in c.test) == 11_877
    assert sum(len(t.split()) for _, t in c.test) == 10_905


def test_tatoeba_has_one_split_for_both_languages(tmp_path):
    "A held-out sentence of either language is trained on in neither; Chinese marks are Chinese."
    sources = [f"It’s {i}." for i in range(2000)]
    german = "".join(f"{x}\tEs ist {x}\n" for x in sources)
    chinese = "".join(
        f"{x}\t它是{i}吗?\tCC-BY\n{x}\t是{i}, 对.\tCC-BY\n"
        for i, x in enumerate(sources)
    )
    zipped, plain = tmp_path / "tatoeba/deu-eng.zip", tmp_path / "tatoeba-zh/cmn.txt"
    for path in (zipped, plain):
        path.parent.mkdir()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("deu.txt", german)
    plain.write_text("\ufeff" + chinese, encoding="utf-8")
    digests = [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in (zipped, plain)
    ]
    de = _tatoeba(tmp_path, _TATOEBA._replace(sha256=digests[0]))
    zh = _tatoeba_zh(tmp_path, _TATOEBA_ZH._replace(sha256=digests[1]))
    assert (zh.name, zh.src_lang, zh.tgt_lang) == ("tatoeba-zh", "en", "zh")
    trained, valid, tested = ({en for en, _ in pairs} for pairs in zh[3:6])
    assert trained | valid | tested == {x.replace("’", "'") for x in sources}
    assert not (trained & tested or trained & valid or valid & tested)
    assert len(zh.train) == 2 * len(trained) and len(zh.test) == len(tested) > 20
    assert len(zh.valid) == len(valid) > 20
    assert not tested & {en for en, _ in de.train}
    assert not trained & {en for pairs in (de.valid, de.test) for en, _ in pairs}
    found = dict(zh.train)["It's 7."], dict(zh.test)
    assert found[0] in ("它是7吗？", "是7, 对。")  # after Chinese characters alone
    assert all("?" not in zh and zh[-1] in "？。" for zh in found[1].values())


def test_download_multi30k(server, tmp_path):
    files, cache = tiny_multi30k(server), tmp_path / "cache" / "multi30k"
    c = _multi30k(files=files)
    assert c.train[2] == ("train.en.gz 2", "train.de.gz 2")
    assert [len(x) for x in c[3:6]] == [3, 3, 3]
    assert c.source == {"data": "multi30k", "data_dir": None}
    assert files_in(cache) == sorted(f.name for f in files)
    assert _multi30k(files=files) == c and len(server.asked) == 6, "from the cache"
    (cache / "val.de.gz").write_bytes(b"spoilt")
    assert _multi30k(files=files) == c and len(server.asked) == 7, "fetched again"


@pytest.mark.parametrize("how", ["none", "short", "other"])
def test_next_address(server, tmp_path, monkeypatch, how):
    "A mirror is tried first: the file is not there, cut short, or another one."
    files = tiny_multi30k(server)
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_MIRROR", f"{server.url}/{how}/")
    assert _multi30k(files=files).valid[0] == ("val.en.gz 0", "val.de.gz 0")
    assert server.asked[:2] == [f"/{x}/train.en.gz" for x in (how, "good")]
    kept = sorted(f"multi30k/{f.name}" for f in files)
    assert files_in(tmp_path / "cache") == kept, "no leftover"


@pytest.mark.parametrize(
    "how, says",
    [("none", "404)"), ("short", ""), ("other", "SHA256 hash")],
)
def test_all_addresses_fail(server, tmp_path, monkeypatch, capfd, how, says):
    "One line: each address with what was wrong, and which files to put where. Nothing else is printed or logged."
    files = tiny_multi30k(server, how)
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_MIRROR", "http://127.0.0.1:1/x")
    pooch.get_logger().setLevel("INFO")
    logged = []
    monkeypatch.setattr(pooch.get_logger(), "handle", logged.append)
    with pytest.raises(UserError) as e:
        _multi30k(files=files)
    message, start = str(e.value), "cannot download train.en.gz: http://127.0.0.1:1/x/"
    assert message.startswith(f"{start}train.en.gz (ConnectionError), ")
    for what in (
        f"/{how}/train.en.gz ({says}",
        ": put train.en.gz, train.de.gz, val.en.gz,",
        "into a folder multi30k",
        "--data-dir or ANNOTATED_TRANSFORMER_DATA",
    ):
        assert what in message
    assert "\n" not in message and files_in(tmp_path / "cache") == []
    assert capfd.readouterr() == ("", "") and logged == []


@pytest.mark.posix
@pytest.mark.parametrize("code", ["EACCES", "EROFS", "ENOSPC"])
def test_no_room_for_downloads(server, tmp_path, monkeypatch, code):
    "One line: the folder, what is wrong with it, and which files to put where."
    error = OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    def refused(*_, **__):
        raise error

    files = tiny_multi30k(server)
    monkeypatch.setattr(os, "makedirs", refused)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refused)
    with pytest.raises(UserError) as e:
        _multi30k(files=files)
    says = (
        f"{tmp_path}/cache/multi30k cannot be written: {error.strerror}: put train.en"
    )
    assert str(e.value).startswith(says) and "--data-dir or ANNOT" in str(e.value)
    assert str(e.value).count("multi30k and name the folder") == 1


def test_a_text_that_breaks_off_names_its_file(tmp_path, monkeypatch):
    "A network drive that goes away while its lines are read."

    class Gone:
        peek = staticmethod(lambda n: b"a\n")

        def __iter__(self):
            yield b"a\n"
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(io_text, "open_text", lambda path: nullcontext(Gone()))
    says = f"^far cannot be read: {os.strerror(errno.ESTALE)}$"
    with pytest.raises(UserError, match=says):
        read_lines("far")


def check_wmt14(c: Corpus) -> None:
    names = ["europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v9.de-en"]
    lines = ("1\u2028", "2")
    train = [(f"{x}.en {i}", f"{x}.de {i}") for x in names for i in lines]
    assert list(c.train) == list(c.train) == train
    valid = [(f"newstest2013.en {i}", f"newstest2013.de {i}") for i in lines]
    assert list(c.valid) == valid and c[:3] == ("wmt14", "en", "de")


def test_download_wmt14(server, tmp_path):
    files, cache = tiny_wmt14(server), tmp_path / "cache" / "wmt14"
    check_wmt14(_wmt14(files=files))
    found = [p for p in files_in(cache) if p.endswith(".fr") or "tmp" in p]
    assert found == [], "only what is wanted is unpacked, and nothing is left over"
    for file in files:
        (cache / file.name).unlink()
    check_wmt14(_wmt14(files=files))
    assert len(server.asked) == 4, "what is unpacked needs no archive"
    members = files[-1].members
    texts = archive({member: b"new\n" for member in members})
    new = put(server, files[-1].name, texts, members=members)
    again = _wmt14(files=(*files[:-1], new))
    assert list(again.valid) == [("new", "new")], "another archive of the same name"


def test_wmt14_archives_of_ones_own(server, tmp_path):
    "Nothing is fetched, and nothing written into the user's folder."
    files, own = tiny_wmt14(server), tmp_path / "data" / "wmt14"
    own.mkdir(parents=True)
    says = "v7.tgz: no such file: put training-.*v7.tgz, .*, dev.tgz into .*data.wmt14"
    with pytest.raises(UserError, match=says):
        _wmt14(tmp_path / "data", files=files)
    for file in files:
        (own / file.name).write_bytes(server.files[file.name])
    spoilt = own / files[1].name
    spoilt.write_bytes(server.files[files[1].name][:-1])
    says = "commoncrawl.tgz is not the file expected: its sha256 is [0-9a-f]{64}, not"
    with pytest.raises(UserError, match=says):
        _wmt14(tmp_path / "data", files=files)
    assert spoilt.read_bytes() == server.files[files[1].name][:-1]
    spoilt.write_bytes(server.files[files[1].name])
    c = _wmt14(tmp_path / "data", files=files)
    check_wmt14(c)
    assert server.asked == [] and files_in(own) == sorted(f.name for f in files)
    assert c.source == {"data": "wmt14", "data_dir": str(tmp_path / "data")}


# ---- a corpus from what a run wrote down, and from one's own files


@pytest.mark.parametrize("n", [2, 3, 5, 500, 30_000])
def test_same_sentences_are_set_aside_as_ever(tmp_path, n):
    "The rule, written out: the hash of the source below a twentieth, or below a thousand sentences; of a very small file the last sentence."
    lines = [f"sentence {i}" for i in range(n)] * 2
    own = corpus_from_files(*[write(tmp_path / "a", lines)] * 2)
    limit = min(0.05, 1000 / len(lines)) * 2**32
    aside = [s for s in lines if zlib.crc32(s.encode()) < limit]
    aside = aside or lines[-1:] * 2
    left = {*lines} - {*aside}
    assert [s for s, _ in own.valid] == aside and own.test == []
    assert [s for s, _ in own.train] == [s for s in lines if s in left]
    both = corpus_from_files(*[tmp_path / "a"] * 4)
    assert [s for s, _ in both.valid] == [s for s, _ in both.train] == lines


# ---- text as people have it

PAIRS = [("Go, now!", 'He said "go".'), ("Hi.", "Hallo.")]
FORMS = {
    "quoted by pandas": (b'Go, now!\t"He said ""go""."\nHi.\tHallo.\n', None),
    "quoted by a spreadsheet": (
        b'"Go, now!"\t"He said ""go""."\r\nHi.\tHallo.\r\n',
        None,
    ),
    "all quoted": (b'"Go, now!"\t"He said ""go""."\n"Hi."\t"Hallo."\n', None),
    "headings": (b'Source\tTarget\nGo, now!\tHe said "go".\nHi.\tHallo.\n', None),
    "headings of pandas": (
        b'english_sentence\tgerman_sentence\nGo, now!\tHe said "go".\nHi.\tHallo.\n',
        None,
    ),
    "headings with codes": (b'en\tde\nGo, now!\tHe said "go".\nHi.\tHallo.', None),
    "an index and a licence": (
        b'\ten\tde\tby\n0\tGo, now!\tHe said "go".\tCC\n1\tHi.\tHallo.\tCC\n',
        (2, 3),
    ),
    "the other way round": (b'He said "go".\tGo, now!\nHallo.\tHi.\n', (2, 1)),
    "tatoeba.org": (
        b'\xef\xbb\xbf7\tGo, now!\t9\tHe said "go".\n\n8\tHi.\t9\tHallo.\n',
        (2, 4),
    ),
    "empty columns": (b'Go, now!\tHe said "go".\t\t\nHi.\tHallo.\t\t\n', None),
    "CR": (b'Go, now!\tHe said "go".\rHi.\tHallo.\r', None),
}


def test_commands_agree_on_lines(tmp_path):
    "translate, score and train find the same lines, whatever ends them."
    path = tmp_path / "text"
    for text in map("".join, product("a\r\n", repeat=5)):
        path.write_bytes(text.encode())
        with open_text(path) as file:
            groups = [decode_lines(lines) for lines in line_groups(file)]
        lines = [line for group in groups for line in group]
        assert lines == read_lines(path), repr(text)
        if any(map(str.strip, lines)):
            pairs = [src for src, _ in TextPairs([(path, path)])]
            assert pairs == [line for line in lines if line.strip()], repr(text)


@pytest.mark.parametrize("form", FORMS)
def test_tables_as_programs_write_them(tmp_path, form):
    data, columns = FORMS[form]
    (path := tmp_path / "pairs").write_bytes(data)
    assert [*TextPairs([(path,)], columns=columns)] == PAIRS


@pytest.mark.parametrize(
    "data",
    [
        b'"Go."\t"Los", sagte er.\nHi.\tHallo.\n',
        b'"Go."\tLos, los!\nHi.\tHallo.\n',
        b'"Go."\tLos!\nHi.\tHallo.\n',
    ],
)
def test_quotation_marks_of_a_sentence_stay(tmp_path, data):
    (path := tmp_path / "pairs").write_bytes(data)
    assert next(iter(TextPairs([(path,)])))[0] == '"Go."'


@pytest.mark.parametrize(
    "data, columns, says",
    [
        (
            b"1\ta\t2\tb\n",
            None,
            r"line 1 has 4 columns \(1 \| a \| 2 \| b\): .* --columns 2,4",
        ),
        (b"a\tb\nc\td\te\n", None, r"line 2 has 3 columns \(c \| d \| e\)"),
        (b"1\ta\t2\tb\n1\ta\n", (2, 4), r"line 2 has 2 columns \(1 \| a\)"),
        (
            b"PK\x03\x04...",
            None,
            "is a zip archive, or a spreadsheet: unpack it, or",
        ),
        (b"\ta\tb\n", None, r"3 columns \(\(empty\) \| a \| b\): .* --columns 2,3"),
        ("1\t" + 30 * "你" + "\tb\n", None, f"{23 * '你'}…"),
        (b"a,b\n", None, r"has no tab: .* \(CSV: save it with tabs\)"),
        (b"BZh9...", None, "is compressed with bzip2: unpack it first"),
        (b"\xfd7zXZ\0", None, "is compressed with xz: unpack it first"),
        ("a\tb\n".encode("utf-16"), None, "is UTF-16: save it as UTF-8"),
        ("a\tb\n".encode("utf-16-be"), None, "is UTF-16 or no text: save it as UTF-8"),
        (
            "Где\tWo\n".encode("utf-16-le"),
            None,
            "is UTF-16 or no text: save it as UTF-8",
        ),
        (
            "कहाँ\tWo\n".encode("utf-16-be"),
            None,
            "is UTF-16 or no text: save it as UTF-8",
        ),
        (gzip.compress(b"a\tb\n", mtime=0)[:-9], None, "cannot be read: "),
        (b"\x1f\x8b", None, "cannot be read: "),
    ],
)
def test_text_of_another_kind_is_named(tmp_path, data, columns, says):
    data = data.encode() if isinstance(data, str) else data
    (path := tmp_path / "pairs.tsv").write_bytes(data)
    with pytest.raises(UserError, match=says):
        corpus_from_pairs(path, columns=columns)


@pytest.mark.parametrize("data", [b"Hi.\0\tHallo.\0\n", b"\0Hi.\tHallo.\r\n"])
def test_text_with_a_nul_is_text(tmp_path, data):
    (path := tmp_path / "pairs.tsv").write_bytes(data)
    assert len(list(TextPairs([(path,)]))) >= 1


@pytest.mark.parametrize(
    "line, is_alike",
    [
        ("{}", False),
        ("<2deu_Latn> {}", False),
        (">>deu_Latn<< {}", False),
        ("CC-BY 2.0 (France) Attribution: {}", True),
        ("translation", True),
    ],
)
def test_a_column_that_is_always_the_same_is_named(line, is_alike):
    pairs = [(line.format(s.en), s.de) for s in builtin(500, seed=3)]
    found = [w for w in _warnings(pairs, (None, None)) if "source is alike" in w]
    assert bool(found) == is_alike


def test_columns_are_part_of_a_text(tmp_path):
    (path := tmp_path / "pairs").write_bytes(b"1\ta\tb\n")
    texts = [TextPairs([(path,)], columns=columns) for columns in ((2, 3), (1, 3))]
    assert fingerprint(texts[0]) != fingerprint(texts[1])
