"What reading other people's files, and fetching them, must survive."

import gzip
import hashlib
import http.server
import inspect
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tarfile
import threading
import tracemalloc
import zlib
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import pooch
import pytest
import sacrebleu.dataset
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

from annotated_transformer import UserError
from annotated_transformer.data.corpus import (
    _MULTI30K,
    _WMT14,
    DATA_SETS,
    Corpus,
    _Download,
    _download,
    _multi30k,
    _Newstest2014,
    _unpack,
    _wmt14,
    corpus_from_files,
    corpus_from_source,
    load_corpus,
)
from annotated_transformer.data.grammar import builtin
from annotated_transformer.io.text import (
    MAX_LINE_BYTES,
    TextPairs,
    _stream_lines,
    _stream_pairs,
    fingerprint,
    read_lines,
)


def test_unknown_name():
    with pytest.raises(ValueError, match="take builtin, multi30k, wmt14,"):
        load_corpus("wmt")


def test_a_data_set_is_one_entry_of_the_table(monkeypatch, tmp_path):
    mine = load_corpus("builtin", n_train=3, n_valid=2, n_test=1)
    entry = DATA_SETS["builtin"]._replace(load=lambda data_dir: (mine, data_dir))
    monkeypatch.setitem(DATA_SETS, "mine", entry)
    assert load_corpus("mine", tmp_path) == (mine, tmp_path)
    with pytest.raises(UserError, match="take builtin, multi30k, wmt14, mine, or"):
        load_corpus("yours")


def test_load_builtin():
    c = load_corpus("builtin", n_train=300, n_valid=20, n_test=10, seed=4)
    assert (c.src_lang, c.tgt_lang) == ("en", "de") and [len(x) for x in c[3:6]] == [
        300,
        20,
        10,
    ]
    assert c.train == [(s.en, s.de) for s in builtin(300, 4)] and c.test == [
        (s.en, s.de) for s in builtin(10, 4, "test")
    ]


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
        ("a\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
    ],
)
@pytest.mark.parametrize("name", ["f.en", "f.en.gz"])
def test_lines(tmp_path, name, data, lines):
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert read_lines(path) == lines == read_lines(str(path))


@pytest.mark.parametrize("name", ["f.en", "f.en.gz"])
def test_a_line_has_a_limit(tmp_path, name):
    "One of `MAX_LINE_BYTES` bytes is read, with either line end or none; one more is refused by its number, after the lines before it."
    path, most = tmp_path / name, b"a" * MAX_LINE_BYTES

    def written(data: bytes) -> Path:
        path.write_bytes(gzip.compress(data, 1) if name.endswith("gz") else data)
        return path

    for data, lengths in (
        (most, [MAX_LINE_BYTES]),
        (most + b"\n", [MAX_LINE_BYTES]),
        (b"b\n" + most + b"\nc\n", [1, MAX_LINE_BYTES, 1]),
        (most[1:] + b"\r\n", [MAX_LINE_BYTES - 1]),
        (b"\xef\xbb\xbf" + most[3:] + b"\n", [MAX_LINE_BYTES - 3]),
    ):
        assert [len(line) for line in read_lines(written(data))] == lengths
    for data, number in (
        (most + b"a", 1),
        (b"b\n\n" + most + b"a\nc\n", 3),
        (b"b\n" + most + b"\r\n", 2),
        (b"b\n" + most * 3, 2),
    ):
        found = _stream_lines(written(data))
        assert [next(found) for _ in range(number - 1)] == ["b", ""][: number - 1]
        with pytest.raises(UserError) as e:
            next(found)
        assert (
            str(e.value)
            == f"{path}, line {number} is longer than {MAX_LINE_BYTES} bytes: put each sentence on a line of its own"
        )


@pytest.mark.parametrize("name", ["endless", "endless.gz"])
def test_no_more_is_read_than_a_line_may_have(tmp_path, name):
    "A gigabyte in one line, which a small archive can hold, is not read into memory."
    path, piece = tmp_path / name, bytes(2**24)
    if name.endswith("gz"):
        path.write_bytes(gzip.compress(piece, 1) * 64)
    else:
        with open(path, "wb") as file:
            file.truncate(2**30)
    tracemalloc.start()
    with pytest.raises(UserError, match="line 1 is longer than"):
        read_lines(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * MAX_LINE_BYTES


def test_bad_files(tmp_path):
    def bad(name, data, message):
        path = tmp_path / name
        if data is not None:
            path.write_bytes(data)
        with pytest.raises(ValueError, match=message) as e:
            read_lines(path)
        assert (
            str(path) in str(e.value)
            and "\n" not in str(e.value)
            and type(e.value) is UserError
        )

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
    assert list(_stream_pairs(tmp_path / "a", tmp_path / "b")) == [
        ("1", "eins"),
        (" 4 ", "vier"),
        ("5", "5"),
    ]
    with pytest.raises(ValueError, match="a has 5 lines but .*c has 1"):
        list(_stream_pairs(tmp_path / "a", tmp_path / "c"))
    with pytest.raises(ValueError, match="no line with text in both"):
        list(_stream_pairs(tmp_path / "a", tmp_path / "d"))


def test_own_sentences_survive_a_file(tmp_path):
    sentences = builtin(200)
    for lang in ("en", "de"):
        with gzip.open(tmp_path / f"x.{lang}.gz", "wb") as f:
            f.write("".join(getattr(s, lang) + "\n" for s in sentences).encode())
    assert list(_stream_pairs(tmp_path / "x.en.gz", tmp_path / "x.de.gz")) == [
        (s.en, s.de) for s in sentences
    ]


def test_multi30k_read(data_dir):
    c = load_corpus("multi30k", data_dir)
    assert c.source == {"data": "multi30k", "data_dir": str(data_dir.absolute())}
    assert [len(x) for x in c[3:6]] == [29_000, 1_014, 1_000]
    assert (
        sum(len(s.split()) for s, _ in c.test) == 11_877
        and sum(len(t.split()) for _, t in c.test) == 10_905
    )


# ---- pairs that stay on disk


def write(path: Path, lines: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


@pytest.fixture
def two_parts(tmp_path) -> list[tuple[Path, Path]]:
    "Four files: CRLF in one, a byte order mark in another, odd separators, blank sides."
    (tmp_path / "1.en").write_bytes("one\r\n\r\nthree\u2028\x0b\r\n".encode())
    (tmp_path / "1.de").write_bytes(f"\ufeffeins\nzwei\n{ODD}\n".encode())
    (tmp_path / "2.en.gz").write_bytes(gzip.compress(b"four\nfive\nsix"))
    (tmp_path / "2.de").write_bytes(b"vier\n \nsechs\n")
    return [
        (tmp_path / "1.en", tmp_path / "1.de"),
        (tmp_path / "2.en.gz", tmp_path / "2.de"),
    ]


def test_text_pairs(two_parts):
    pairs = TextPairs(two_parts)
    assert (
        list(pairs)
        == list(pairs)
        == [pair for files in two_parts for pair in _stream_pairs(*files)]
    )
    assert list(pairs)[0] == ("one", "eins") and len(list(pairs)) == 4
    assert list(TextPairs(two_parts, keep=lambda s: "o" in s)) == [
        ("one", "eins"),
        ("four", "vier"),
    ]
    first, second = iter(pairs), iter(pairs)  # two readers do not disturb one another
    assert next(first) == next(second) and list(first) == list(second)


def test_text_pairs_errors(tmp_path, two_parts):
    (en, de), more = two_parts
    longer = write(tmp_path / "longer", ["a"] * 4)
    with pytest.raises(ValueError, match="1.en has 3 lines but .*longer has 4"):
        list(TextPairs([(en, longer), more]))
    with pytest.raises(ValueError, match="longer has 4 lines but .*1.de has 3"):
        list(TextPairs([more, (longer, de)]))
    (tmp_path / "latin").write_bytes("a\nb\nmüde\n".encode("latin-1"))
    with pytest.raises(ValueError, match="latin, line 3: byte 2 is not UTF-8"):
        list(TextPairs([more, (en, tmp_path / "latin")]))
    with pytest.raises(ValueError, match="no such file"):
        list(TextPairs([(en, tmp_path / "none")]))


def test_memory_does_not_grow_with_the_text(tmp_path):
    "Ten times the text, and the peak differs by less than a tenth of what that takes on disk (1.6 MB)."

    def peak(n: int, use) -> int:
        files = [
            write(
                tmp_path / f"{n}.{lang}",
                [f"{lang} sentence number {i}, of some length" for i in range(n)],
            )
            for lang in ("en", "de")
        ]
        pairs = TextPairs([files])
        tracemalloc.start()
        use(pairs)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    for use in (
        lambda pairs: deque(pairs, maxlen=0),
        fingerprint,
        lambda pairs: deque(corpus_from_files(*pairs.parts[0]).train, maxlen=0),
    ):
        small, large = peak(2_000, use), peak(20_000, use)
        assert large - small < 150_000


def test_fingerprint(tmp_path, two_parts):
    pairs = list(TextPairs(two_parts))
    prints = [
        fingerprint(TextPairs(two_parts)),
        fingerprint(TextPairs(two_parts[::-1])),
        fingerprint(TextPairs(two_parts[:1])),
        fingerprint(TextPairs([part[::-1] for part in two_parts])),
        fingerprint(TextPairs(two_parts, keep=lambda s: "o" in s)),
        fingerprint(pairs),
        fingerprint(pairs[1:]),
        fingerprint([(t, s) for s, t in pairs]),
    ]
    assert len(set(prints)) == len(prints) and all(len(x) == 64 for x in prints)
    assert fingerprint(pairs) == fingerprint(
        TextPairs(two_parts, keep=lambda s: True)
    ), "chosen pairs are known by their sentences"
    assert (
        len(
            {
                fingerprint(x)
                for x in (
                    [("a", "b")],
                    [("a", "c")],
                    [("ab", "")],
                    [("", "ab")],
                    [("a", ""), ("", "b")],
                    [],
                )
            }
        )
        == 6
    )
    two_parts[0][1].write_bytes(two_parts[0][1].read_bytes().replace(b"zwei", b"zwej"))
    assert fingerprint(TextPairs(two_parts)) != prints[0]


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
    "/good/NAME, and what goes wrong on the way: another file, one cut short, one that never ends, none."

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
        if how in ("short", "stuck"):
            data = data[: len(data) // 2]
        self.wfile.write(data)
        self.wfile.flush()
        if how == "stuck":
            self.server.stuck.wait(20)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    "Its address, files and requests; and an empty cache, which is `tmp_path / cache`."
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.stuck, httpd.url = threading.Event(), f"http://127.0.0.1:{httpd.server_port}"
    httpd.files, httpd.asked = {}, []
    monkeypatch.setattr(Handler, "files", httpd.files)
    monkeypatch.setattr(Handler, "asked", httpd.asked)
    threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
    for name in (
        "http_proxy",
        "HTTP_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "ANNOTATED_TRANSFORMER_DATA",
        "ANNOTATED_TRANSFORMER_MIRROR",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache")
    yield httpd
    httpd.stuck.set()
    httpd.shutdown()
    httpd.server_close()


def put(
    server, name: str, data: bytes, *how: str, members: tuple[str, ...] = ()
) -> _Download:
    "A file on the server, and what the tables would say of it; its addresses behave as `how` says."
    server.files[name] = data
    return _Download(
        tuple(f"{server.url}/{h}/{name}" for h in how or ("good",)),
        len(data),
        hashlib.sha256(data).hexdigest(),
        members,
    )


def tiny_multi30k(server, *how: str) -> tuple[_Download, ...]:
    return tuple(
        put(
            server,
            file.name,
            gzip.compress(
                "".join(f"{file.name} {i}\n" for i in range(3)).encode(), mtime=0
            ),
            *how,
        )
        for file in _MULTI30K
    )


def tiny_wmt14(server, *how: str) -> tuple[_Download, ...]:
    "Archives with the members of the real ones, and others beside them; each text has two lines, the first with CRLF and an odd separator."

    def text(member: str) -> bytes:
        return f"{Path(member).name} 1\u2028\r\n{Path(member).name} 2\n".encode()

    return tuple(
        put(
            server,
            file.name,
            archive(
                {"training/europarl-v7.fr-en.fr": b"Un.\n"}
                | {m: text(m) for m in file.members}
            ),
            *how,
            members=file.members,
        )
        for file in _WMT14
    )


def files_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_download_multi30k(server, tmp_path):
    files = tiny_multi30k(server)
    c = _multi30k(files=files)
    assert c.train[2] == ("train.en.gz 2", "train.de.gz 2") and [
        len(x) for x in c[3:6]
    ] == [3, 3, 3]
    assert c.source == {"data": "multi30k", "data_dir": None} and files_in(
        tmp_path / "cache" / "multi30k"
    ) == sorted(f.name for f in files)
    server.files.clear()
    assert _multi30k(files=files) == c and len(server.asked) == 6, (
        "the second time from the cache"
    )
    (tmp_path / "cache" / "multi30k" / "val.de.gz").write_bytes(b"spoilt")
    server.files["val.de.gz"] = gzip.compress(
        "".join(f"val.de.gz {i}\n" for i in range(3)).encode(), mtime=0
    )
    assert _multi30k(files=files) == c, "a spoilt file of the cache is fetched again"


def test_next_address(server, tmp_path):
    "A file that is not there, one cut short and another one: the fourth address is right."
    files = tiny_multi30k(server, "none", "short", "other", "good")
    assert _multi30k(files=files).valid[0] == ("val.en.gz 0", "val.de.gz 0")
    assert server.asked[:4] == [
        f"/{how}/train.en.gz" for how in ("none", "short", "other", "good")
    ]
    assert files_in(tmp_path / "cache") == sorted(
        f"multi30k/{f.name}" for f in files
    ), "no leftover"


@pytest.mark.parametrize("name", ["multi30k", "wmt14"])
def test_mirror_comes_first(server, monkeypatch, name):
    load, files = (
        (_multi30k, tiny_multi30k(server, "none"))
        if name == "multi30k"
        else (_wmt14, tiny_wmt14(server, "none"))
    )
    monkeypatch.setattr(inspect.unwrap(load), "__defaults__", (None, files))
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_MIRROR", f"{server.url}/good/")
    load_corpus(name)
    assert server.asked == [f"/good/{f.name}" for f in files]


@pytest.mark.parametrize("mirror", ["none", "other", "short"])
def test_bad_mirror_is_passed_over(server, monkeypatch, mirror):
    files = tiny_multi30k(server)
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_MIRROR", f"{server.url}/{mirror}")
    _multi30k(files=files)
    assert server.asked == [
        f"/{how}/{f.name}" for f in files for how in (mirror, "good")
    ]


def test_all_addresses_fail(server, tmp_path, monkeypatch):
    "One line: each address with what was wrong, and which files to put where."
    files = tiny_multi30k(server, "none", "short", "other")
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_MIRROR", "http://127.0.0.1:1/x")
    with pytest.raises(ValueError) as e:
        _multi30k(files=files)
    message = str(e.value)
    assert message.startswith(
        "cannot download train.en.gz: http://127.0.0.1:1/x/train.en.gz (ConnectionError), "
    )
    for what in (
        "/none/train.en.gz (404)",
        "/short/train.en.gz (",
        "/other/train.en.gz (SHA256 hash",
        ": put train.en.gz, train.de.gz, val.en.gz,",
        "into a folder multi30k",
        "--data-dir or ANNOTATED_TRANSFORMER_DATA",
    ):
        assert what in message
    assert "\n" not in message and files_in(tmp_path / "cache") == []


@pytest.fixture
def said(monkeypatch, capsys):
    "What is on standard error, with what pooch logs there."
    (handler,) = pooch.get_logger().handlers
    now = SimpleNamespace(
        write=lambda text: sys.stderr.write(text), flush=lambda: None
    )  # the one of the moment
    monkeypatch.setattr(handler, "stream", now)
    monkeypatch.setattr(pooch.get_logger(), "level", logging.INFO)
    pooch.get_logger()._cache.clear()  # of the levels that are on
    yield lambda: capsys.readouterr().err
    pooch.get_logger()._cache.clear()


@pytest.mark.parametrize("n_bytes", [1000, 20_000_000])
@pytest.mark.parametrize("how", ["none", "other", "short", "nobody"])
def test_a_failed_download_is_its_error_alone(how, n_bytes, server, said, tmp_path):
    "Each address was also logged, so that the command line printed three lines for one error."
    file = put(server, "a.tgz", bytes(range(256)) * 40)._replace(n_bytes=n_bytes)
    url = "http://127.0.0.1:1/a.tgz" if how == "nobody" else f"{server.url}/{how}/a.tgz"
    with pytest.raises(UserError, match="cannot download a.tgz: http.*a.tgz"):
        _download([url, url], file, tmp_path / "cache")
    assert said() == "" and files_in(tmp_path / "cache") == []


@pytest.mark.parametrize("n_bytes, n_lines", [(1000, 0), (20_000_000, 1)])
def test_a_large_download_is_logged(n_bytes, n_lines, server, said, tmp_path):
    "From which address, and where it is now; a failure before it is not. Nothing when the file is there already."
    file = put(server, "a.tgz", bytes(range(256)) * 40, "other", "good")._replace(
        n_bytes=n_bytes
    )
    for n_now in (n_lines, 0):
        path = _download(file.urls, file, tmp_path / "cache")
        assert (
            said()
            == f"Downloading data from '{server.url}/good/a.tgz' to file '{path}'.\n"
            * n_now
        )


def test_a_failed_download_is_one_line_of_the_command_line(server, tmp_path):
    file = put(server, "train.en.gz", b"text", "none", "other", "short")
    code = (
        "import json, pooch, sys; from annotated_transformer.cli import main as cli; "
        "from annotated_transformer.data import corpus; pooch.os_cache = lambda name: sys.argv[1]; "
        "corpus._multi30k.__defaults__ = (None, None, (corpus._Download(*json.loads(sys.argv[2])),)); "
        "cli.main(['prepare', '--data', 'multi30k', '--out', sys.argv[1] + '/run'])"
    )
    left = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "cache", json.dumps(file)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert left.returncode == 2 and left.stdout == "", left.stderr
    assert (
        left.stderr.startswith(
            "annotated-transformer: cannot download train.en.gz: http://"
        )
        and left.stderr.count("\n") == 1
    )


@pytest.mark.skipif(os.name == "nt", reason="the home directory of POSIX")
def test_no_home_directory_for_downloads(tmp_path, monkeypatch):
    "A user without home directory and name, as in a container; a folder of one's own needs neither."
    import pwd

    for name in ("HOME", "XDG_CACHE_HOME", "ANNOTATED_TRANSFORMER_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    with pytest.raises(UserError, match="no folder for downloads: .*HOME.*--data-dir"):
        load_corpus("multi30k")
    with pytest.raises(UserError, match="train.en.gz: no such file"):
        load_corpus("multi30k", tmp_path)


def test_a_failed_unpacking_is_its_error_alone(said, tmp_path):
    (tmp_path / "a.tgz").write_bytes(archive({"a.en": b"One.\n"}))
    with pytest.raises(UserError, match="does not hold a.de"):
        _unpack(tmp_path / "a.tgz", ("a.de",), tmp_path / "to")
    assert said() == ""
    _unpack(tmp_path / "a.tgz", ("a.en",), tmp_path / "to")
    assert said() == f"Unpacked {tmp_path / 'a.tgz'} to {tmp_path / 'to'}.\n"


def test_killed_download(server, tmp_path):
    "A process killed in the middle of a file leaves nothing that is taken for it."
    data = bytes(range(256)) * 4096
    file = put(server, "a.tgz", data, "stuck", "good")
    code = (
        "import sys, pathlib; "
        "from annotated_transformer.data.corpus import _Download, _download; f = _Download(tuple(sys.argv[2:3]), 0, sys.argv[3]); "
        "_download(f.urls, f, pathlib.Path(sys.argv[1]))"
    )
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            code,
            tmp_path / "cache" / "wmt14",
            file.urls[0],
            file.sha256,
        ],
        stderr=subprocess.DEVNULL,
    )
    for _ in range(300):
        if any(
            p.stat().st_size for p in (tmp_path / "cache").rglob("tmp*") if p.is_file()
        ):
            break
        try:
            assert child.wait(0.1) is None, "the child ended by itself"
        except subprocess.TimeoutExpired:
            continue
    else:
        pytest.fail("the download did not begin")
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "cache" / "wmt14" / "a.tgz").exists()
    assert (
        _download(file.urls[1:], file, tmp_path / "cache" / "wmt14").read_bytes()
        == data
    )


def test_disk_errors_are_not_blamed_on_the_server(server, tmp_path):
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    with pytest.raises(OSError):
        _multi30k(files=tiny_multi30k(server))


def check_wmt14(c: Corpus) -> None:
    names = ["europarl-v7.de-en", "commoncrawl.de-en", "news-commentary-v9.de-en"]
    assert (
        list(c.train)
        == list(c.train)
        == [
            (f"{name}.en {i}", f"{name}.de {i}")
            for name in names
            for i in ("1\u2028", "2")
        ]
    )
    assert list(c.valid) == [
        ("newstest2013.en 1\u2028", "newstest2013.de 1\u2028"),
        ("newstest2013.en 2", "newstest2013.de 2"),
    ]
    assert c[:3] == ("wmt14", "en", "de")


def test_download_wmt14(server, tmp_path):
    files = tiny_wmt14(server)
    c = _wmt14(files=files)
    check_wmt14(c)
    cache = tmp_path / "cache" / "wmt14"
    assert [p for p in files_in(cache) if p.endswith(".fr") or "tmp" in p] == [], (
        "only what is wanted is unpacked, and nothing is left over"
    )
    before = fingerprint(c.train)
    for file in files:
        (cache / file.name).unlink()
    server.files.clear()
    again = _wmt14(files=files)
    assert fingerprint(again.train) == before and len(server.asked) == 4, (
        "what is unpacked needs no archive"
    )


def test_another_archive_of_the_same_name(server):
    "What was unpacked from the old one is not taken for what is in the new one."
    files = tiny_wmt14(server)
    old = list(_wmt14(files=files).valid)
    new = put(
        server,
        files[-1].name,
        archive({member: b"new\n" for member in files[-1].members}),
        members=files[-1].members,
    )
    assert (
        list(_wmt14(files=(*files[:-1], new)).valid) == [("new", "new")]
        and list(_wmt14(files=files).valid) == old
    )


def test_wmt14_archives_of_ones_own(server, tmp_path):
    files = tiny_wmt14(server)
    own = tmp_path / "data" / "wmt14"
    own.mkdir(parents=True)
    with pytest.raises(
        ValueError,
        match="v7.tgz: no such file: put training-.*v7.tgz, .*commoncrawl.tgz, .*nc-v9.tgz, dev.tgz into .*data.wmt14",
    ):
        _wmt14(tmp_path / "data", files=files)
    for file in files:
        (own / file.name).write_bytes(server.files[file.name])
    spoilt = own / files[1].name
    spoilt.write_bytes(server.files[files[1].name][:-1])
    with pytest.raises(
        ValueError,
        match="commoncrawl.tgz is not the file expected: its sha256 is [0-9a-f]{64}, not",
    ):
        _wmt14(tmp_path / "data", files=files)
    assert spoilt.read_bytes() == server.files[files[1].name][:-1], (
        "the user's own file stays as it is"
    )
    spoilt.write_bytes(server.files[files[1].name])
    c = _wmt14(tmp_path / "data", files=files)
    check_wmt14(c)
    assert server.asked == [] and files_in(own) == sorted(f.name for f in files), (
        "nothing is fetched, and nothing written into the user's folder"
    )
    assert c.source == {"data": "wmt14", "data_dir": str(tmp_path / "data")}


def test_wmt14_unpacked_by_oneself(server, tmp_path, monkeypatch):
    files = tiny_wmt14(server)
    for file in files:
        with tarfile.open(fileobj=io.BytesIO(server.files[file.name])) as tar:
            tar.extractall(tmp_path / "wmt14", filter="data")
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_DATA", str(tmp_path))
    c = load_corpus("wmt14")  # the real table: the archives are not asked for
    check_wmt14(c)
    monkeypatch.delenv("ANNOTATED_TRANSFORMER_DATA")
    with pytest.raises(ValueError, match="its text is not at hand: name it"):
        corpus_from_source(json.loads(json.dumps(c.source)))
    assert server.asked == [] and not (tmp_path / "cache").exists()
    (tmp_path / "wmt14" / "commoncrawl.de-en.de").write_bytes(b"one line\n")
    with pytest.raises(
        ValueError,
        match="commoncrawl.de-en.en has 2 lines but .*commoncrawl.de-en.de has 1",
    ):
        list(load_corpus("wmt14", tmp_path).train)


def test_unpacking_broken_off(tmp_path, monkeypatch):
    "A member is in its place only when it is whole, and what was aside is gone."
    (tmp_path / "a.tgz").write_bytes(archive({"x/a": b"a" * 1000, "x/b": b"b" * 1000}))
    extract, done = tarfile.TarFile.extractfile, []

    def broken(self, member):
        file = extract(self, member)
        done.append(member.name)
        if member.name == "x/b":
            monkeypatch.setattr(file, "read", halves(file))
        return file

    def halves(file):
        def read(n):
            raise KeyboardInterrupt

        return read

    monkeypatch.setattr(tarfile.TarFile, "extractfile", broken)
    with pytest.raises(KeyboardInterrupt):
        _unpack(tmp_path / "a.tgz", ("x/a", "x/b"), tmp_path / "to")
    assert (
        done == ["x/a", "x/b"]
        and files_in(tmp_path / "to") == ["x/a"]
        and [p.name for p in (tmp_path / "to").iterdir()] == ["x"]
    )


def test_archives_that_mean_harm(tmp_path):
    "Names and links that lead out are not followed, and links are not files."

    def tgz(*infos: tarfile.TarInfo) -> Path:
        with tarfile.open(tmp_path / "a.tgz", "w:gz") as tar:
            for info in infos:
                tar.addfile(info, io.BytesIO(b"x" * info.size))
        return tmp_path / "a.tgz"

    def info(name: str, size: int = 0, **more) -> tarfile.TarInfo:
        made = tarfile.TarInfo(name)
        made.size = size
        for key, value in more.items():
            setattr(made, key, value)
        return made

    with pytest.raises(ValueError, match="leads out of"):
        _unpack(tgz(info("../out", 3)), ("../out",), tmp_path / "to")
    link = info("a", type=tarfile.SYMTYPE, linkname="../../secret")
    with pytest.raises(ValueError, match="does not hold a"):
        _unpack(tgz(link), ("a",), tmp_path / "to")
    _unpack(tgz(info("./b", 3, mode=0o4777), link), ("b",), tmp_path / "to")
    assert (
        files_in(tmp_path / "to") == ["b"]
        and not (tmp_path / "to" / "b").stat().st_mode & 0o4022
        and not (tmp_path / "out").exists()
    )


def sgm(tag: str, lines: list[str]) -> bytes:
    return "".join(
        [
            f'<{tag}>\n<doc docid="1" genre="news" origlang="en">\n',
            *(f'<seg id="{i}">{x}</seg>\n' for i, x in enumerate(lines)),
            f"</doc>\n</{tag}>\n",
        ]
    ).encode()


@pytest.fixture
def newstest(server, tmp_path, monkeypatch) -> FakeSGMLDataset:
    "sacreBLEU's entry for wmt14/full, with two sentences, on this machine."
    members = sacrebleu.dataset.DATASETS["wmt14/full"].langpairs["en-de"]
    data = archive(
        {
            members[0]: sgm("srcset", ["One.", "Two."]),
            members[1]: sgm("refset", ["Eins.", "Zwei."]),
        }
    )
    server.files["test-full.tgz"] = data
    small = FakeSGMLDataset(
        "wmt14/full",
        data=[f"{server.url}/good/test-full.tgz"],
        md5=[hashlib.md5(data).hexdigest()],
        langpairs={"en-de": members},
    )
    small._outdir, small._rawdir = (
        str(tmp_path / "sacrebleu"),
        str(tmp_path / "sacrebleu" / "raw"),
    )
    monkeypatch.setitem(sacrebleu.dataset.DATASETS, "wmt14/full", small)
    return small


def test_test_set(server, newstest):
    test = _Newstest2014()
    assert server.asked == []
    assert list(test) == list(test) == [
        ("One.", "Eins."),
        ("Two.", "Zwei."),
    ] and server.asked == ["/good/test-full.tgz"]


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda d, s: d.data.__setitem__(0, f"{s.url}/none/test-full.tgz"), "404"),
        (lambda d, s: d.data.__setitem__(0, "http://127.0.0.1:1/x.tgz"), "refused"),
        (lambda d, s: d.md5.__setitem__(0, "0" * 32), "another checksum"),
    ],
)
def test_test_set_without_network(server, newstest, spoil, message):
    spoil(newstest, server)
    with pytest.raises(
        ValueError,
        match=rf"sacreBLEU cannot get wmt14/full \(.*{message}.*copy that folder from where",
    ) as e:
        list(_Newstest2014())
    assert "\n" not in str(e.value)


def test_multi30k_folder_errors(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no such file: put train.en.gz, "):
        _multi30k(tmp_path)
    monkeypatch.setenv("ANNOTATED_TRANSFORMER_DATA", str(tmp_path))
    with pytest.raises(ValueError, match="no such file: put train.en.gz, "):
        load_corpus("multi30k")
    (tmp_path / "multi30k").mkdir()
    (tmp_path / "multi30k" / "train.en.gz").write_bytes(gzip.compress(b"hello\n"))
    with pytest.raises(ValueError, match="is not the file expected: its sha256 is"):
        _multi30k(tmp_path)


# ---- a corpus from what a run wrote down, and from one's own files


@pytest.mark.parametrize("n_valid", [5, 9])
def test_builtin_from_source(n_valid):
    c = load_corpus("builtin", n_train=30, n_valid=n_valid, n_test=3, seed=7)
    assert corpus_from_source(json.loads(json.dumps(c.source))) == c


def test_a_source_reads_no_files(tmp_path, monkeypatch):
    "It may come from somebody else's config.json."
    for name in ("a", "b"):
        write(tmp_path / name, [f"{name} {i}" for i in range(100)])
    monkeypatch.chdir(tmp_path)
    for c in (corpus_from_files("a", "b"), corpus_from_files("a", "b", "b", "a")):
        monkeypatch.chdir("/")
        with pytest.raises(ValueError, match="its text is not at hand: name it"):
            corpus_from_source(json.loads(json.dumps(c.source)))
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"data": "builtin", "size": 3},
        {"src": "a"},
        {"src": "a", "tgt": "b", "data": "builtin"},
        {"data_dir": "a"},
        {"data": "multi30k"},
        {"data": "wmt14", "n_train": 5},
        {"data": "builtin", "n_train": True},
        {"data": "builtin", "n_train": 9_999_999},
        {"data": "builtin", "n_train": 100_000, "n_valid": 100_001},
    ],
)
def test_no_source(source):
    with pytest.raises(
        ValueError,
        match="its text is not at hand|does not describe the synthetic corpus|"
        r"source=.* asks for [\d,]+ sentences",
    ):
        corpus_from_source(source)


def test_corpus_by_hand_has_no_source():
    assert Corpus("x", "a", "b", [], [], []).source == {}


@pytest.mark.parametrize(
    "files",
    [("good", "bad"), ("good", "good", "good", "bad"), ("good", "good", "bad", "good")],
)
def test_own_files_are_looked_through_at_once(tmp_path, files):
    write(tmp_path / "good", ["a"] * 30 + ["b"])
    write(tmp_path / "bad", ["a"] * 30)
    with pytest.raises(ValueError, match="has 30 lines|has 30:"):
        corpus_from_files(*(tmp_path / f for f in files))


def test_own_files_set_some_aside(tmp_path):
    lines = [f"sentence {i % 700}" for i in range(1000)]
    (tmp_path / "a").write_text(
        "".join(f"{line}\n" for line in lines), encoding="utf-8"
    )
    own = corpus_from_files(tmp_path / "a", tmp_path / "a")
    train, valid = list(own.train), list(own.valid)
    assert len(train) + len(valid) == 1000 and 10 < len(valid) < 120 and own.test == []
    assert not set(train) & set(valid), (
        "a sentence that stands there twice is on one side only"
    )
    both = corpus_from_files(*[tmp_path / "a"] * 4)
    assert list(both.valid) == list(both.train) == [(line, line) for line in lines]


def test_same_sentences_are_set_aside_as_ever(tmp_path):
    "The rule, written out: the hash of the source below a twentieth, or below a thousand sentences."
    for n in (500, 30_000):
        lines = [f"sentence {i}" for i in range(n)]
        path = write(tmp_path / "a", lines)
        assert [s for s, _ in corpus_from_files(path, path).valid] == [
            s for s in lines if zlib.crc32(s.encode()) < min(0.05, 1000 / n) * 2**32
        ]


@pytest.mark.parametrize("n", [2, 3, 5])
def test_very_small_files_have_something_to_validate_on(n, tmp_path):
    (tmp_path / "a").write_text(
        "".join(f"sentence {i}\n" for i in range(n)), encoding="utf-8"
    )
    own = corpus_from_files(tmp_path / "a", tmp_path / "a")
    assert any(own.train) and any(own.valid) and len([*own.train, *own.valid]) == n


def test_very_small_file_all_of_which_would_be_set_aside(tmp_path):
    lines = [
        s
        for s in (f"sentence {i}" for i in range(200))
        if zlib.crc32(s.encode()) < 0.05 * 2**32
    ][:3]
    own = corpus_from_files(*[write(tmp_path / "a", lines)] * 2)
    assert (
        len(lines) == 3
        and [s for s, _ in own.train] == lines[:2]
        and [s for s, _ in own.valid] == lines[2:]
    )


def test_one_sentence_is_too_few(tmp_path):
    (tmp_path / "a").write_text("the same\n" * 4, encoding="utf-8")
    with pytest.raises(ValueError, match="too few to train and to validate on"):
        corpus_from_files(tmp_path / "a", tmp_path / "a")
