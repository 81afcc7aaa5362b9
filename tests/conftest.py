"What several tests share. See CONTRIBUTING.md for what belongs here and what in a notebook."

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
from jaxtyping import config, install_import_hook

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # notebooks.py, gate.py, pages.py, links.py

# A wrong shape in a call of the package is an error, wherever a test makes it.
install_import_hook("annotated_transformer", "shapes.check")

# The same examples on every run, and no time limit on one: machines differ.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.load_profile("steady")


# With pytest-xdist a file's tests stay together, and so do those of the live page, which
# takes long to write; what takes longest begins first.
LIVE = ("test_live",)
SLOW = ("test_live_page", "test_pairs", "test_resume", "test_cli", "test_hugging_face")


def pytest_configure(config):
    # a shell's background job ignores these, and so would all that the tests start
    for name, handler in (
        ("SIGINT", signal.default_int_handler),
        ("SIGHUP", signal.SIG_DFL),
    ):
        number = getattr(signal, name, None)
        if number and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    config.addinivalue_line("markers", "xdist_group(name): tests that one process runs")


def pytest_collection_modifyitems(items):
    group = lambda item: "test_live_page" if item.path.stem in LIVE else item.path.stem
    for i, item in enumerate(items):
        # the rows of test_pairs are long, and have nothing in common
        part = f" {i % 4}" if group(item) == "test_pairs" else ""
        item.add_marker(pytest.mark.xdist_group(group(item) + part))
    place = {name: i for i, name in enumerate(SLOW)}
    items.sort(key=lambda item: place.get(group(item), len(SLOW)))


@pytest.fixture
def unchecked():
    "Shapes are not checked: for tests of the package's own errors."
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def cfg() -> dict[str, str]:
    "What settings.ini says."
    from cells import settings

    return settings()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    "The folder of real text that ANNOTATED_TRANSFORMER_DATA names; without it the test is skipped."
    folder = os.environ.get("ANNOTATED_TRANSFORMER_DATA")
    if not folder:
        pytest.skip(
            "needs real text: set ANNOTATED_TRANSFORMER_DATA to a folder that holds multi30k/"
        )
    return Path(folder)


@pytest.fixture(scope="session")
def chromium() -> str:
    "A browser. In CI, as root, it is installed; elsewhere the test is skipped without one."
    names = ("chromium", "chromium-browser", "google-chrome")
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if not any(map(shutil.which, names)) and is_root and os.environ.get("CI"):
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for args in ("update", "install -y --no-install-recommends chromium"):
            command = ["apt-get", "-q", *args.split()]
            subprocess.run(command, capture_output=True, timeout=300, env=env)
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        line = "NO BROWSER: chromium is not installed, so no page was opened in one. Install it and run pytest again."
        warnings.warn(line, stacklevel=1)
        if os.environ.get("CI"):
            print(f"\n::warning::{line}", file=sys.__stderr__)
        pytest.skip(line)
    return found


@cache
def text_of(name: str) -> str:
    "What a page says: its Markdown, and what its cells put out as Markdown."
    from cells import markdown_of  # of tools/

    nb = json.loads((ROOT / f"nbs/{name}.ipynb").read_text(encoding="utf-8"))
    found = [kept for cell in nb["cells"] for kept in markdown_of(cell)]
    return "\n\n".join(text for _, kind, text in found if kind != "text/html")


def program(path: str, main: str = "imported") -> SimpleNamespace:
    "What a program of benchmarks/ or results/ defines; with `__main__` it is run."
    folder = str((ROOT / path).parent)
    if folder not in sys.path:
        sys.path.append(folder)  # where it finds what it shares with others
    return SimpleNamespace(**runpy.run_path(str(ROOT / path), run_name=main))


@pytest.fixture(scope="session")
def offline(chromium, tmp_path_factory):
    "A browser whose network is cut, for the pages that need none."
    from browser import Browser

    with Browser(chromium, tmp_path_factory.mktemp("profile")) as browser:
        nothing = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        browser.call("Network.emulateNetworkConditions", offline=True, **nothing)
        yield browser


@pytest.fixture
def browser(offline):
    "Whatever a test does, the page complains of nothing."
    yield offline
    assert offline.said == []


@pytest.fixture(scope="session")
def corpus():
    "A little built-in text, for runs of seconds."
    from annotated_transformer.data.corpus import load_corpus

    return load_corpus("builtin", n_train=300, n_valid=40, n_test=10)


@pytest.fixture(scope="session")
def pretrained():
    "The run that comes with the package."
    from annotated_transformer.runs.folder import load_run

    return load_run(Path("demo"))


@pytest.fixture(scope="session")
def live_page(tmp_path_factory) -> Path:
    "The live page of the pretrained run, which takes seconds to write."
    from annotated_transformer.show.live import write_live_page

    path = tmp_path_factory.mktemp("live") / "live.html"
    write_live_page(Path("demo"), path)
    return path


@pytest.fixture(scope="module")
def one_thread():
    "As the processes that the tests start, so that their bits can be compared."
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
