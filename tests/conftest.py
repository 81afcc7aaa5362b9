"What several tests share. See CONTRIBUTING.md for what belongs here and what in a notebook."

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest
from jaxtyping import config, install_import_hook

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(
    0, str(ROOT / "tools")
)  # notebooks.py, gate.py, pages.py, preview.py, links.py

# A wrong shape in a call of the package is an error, wherever a test makes it.
install_import_hook("annotated_transformer", "shapes.check")

# The same examples on every run, and no time limit on one: machines differ.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.load_profile("steady")


# With pytest-xdist a file's tests stay together, and those that need the pages too; what takes longest begins first.
SLOW = (
    "test_resume",
    "site",
    "test_streams",
    "test_distributed",
    "test_translate_stream",
    "test_hostile",
)


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
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    items.sort(
        key=lambda item: (
            SLOW.index(group_of(item)) if group_of(item) in SLOW else len(SLOW)
        )
    )


def group_of(item: pytest.Item) -> str:
    return "site" if item.path.stem in ("test_site", "test_preview") else item.path.stem


@pytest.fixture
def unchecked():
    "Shapes are not checked: for tests of the package's own errors."
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def cfg() -> dict[str, str]:
    "What settings.ini says."
    from notebooks import settings

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
def project(tmp_path_factory) -> Path:
    "A copy of the checkout, to be built in."
    from gate import copy, files_of

    to = tmp_path_factory.mktemp("project")
    copy(ROOT, to, files_of(ROOT))
    return to


@pytest.fixture(scope="session")
def trial(site):
    "The trial notebook as our processors leave it, for Quarto and the preview alike."
    from execnb.nbio import read_nb

    root = site.parent
    code = "from execnb.nbio import write_nb; from preview import *; write_nb(processed(ROOT / 'nbs/trial.ipynb'), ROOT / 'trial.ipynb')"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "tools")])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return read_nb(root / "trial.ipynb")


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    "The preview of all pages, and of one more that uses all the page dialect: built once, in a copy of the checkout."
    from gate import copy, files_of
    from trial import write_trial

    root = tmp_path_factory.mktemp("site")
    copy(ROOT, root, files_of(ROOT))
    write_trial(root)
    done = subprocess.run(
        [sys.executable, root / "tools/preview.py"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert done.returncode == 0, done.stderr
    return root / "_preview"


# Of Quarto's own styles, those that made text unreadable, pages wide or words break, with their order among ours.
QUARTO_DEFAULTS = """
$text-muted: #6c757d !default;
$enable-smooth-scroll: false !default;
"""
QUARTO_RULES = """
pre { color: #000; background: initial; font-size: .875em }
pre.sourceCode { font-size: .875em; position: relative; overflow: visible !important; padding: .4em; }
div.sourceCode { overflow: auto hidden; }
.code-copy-button { position: absolute; top: 0; right: 0; margin: 5px 5px 0 0; border: 0; }
.code-copy-button > .bi::before { content: ""; display: inline-block; width: 1rem; height: 1rem; }
code { white-space: pre }
code span, pre > code.sourceCode > span { color: #000 }
code span.kw { color: #222 }
.table a { word-break: break-word; }
.table > :not(caption) > * > * { background-color: unset; color: unset; }
td code { white-space: pre-wrap; }
.navbar-brand { color: $navbar-fg; }
details > summary, .nav-page a, .quarto-title-breadcrumbs .breadcrumb li:last-of-type a { color: $text-muted; }
.nav-page a { display: flex; align-items: center; }
.page-navigation { display: flex; justify-content: space-between; }
#quarto-back-to-top { display: none; position: fixed; bottom: 50px; left: 50%; background-color: $body-bg; color: $text-muted; }
body.nav-fixed { padding-top: 64px; }
.quarto-secondary-nav .quarto-page-breadcrumbs { display: flex; align-items: center; padding-right: 1em; color: $sidebar-fg; }
.quarto-secondary-nav .breadcrumb { margin-bottom: 0; }
.quarto-secondary-nav .quarto-page-breadcrumbs a { color: $sidebar-fg; }
.quarto-page-breadcrumbs .breadcrumb-item { line-height: 1.2rem; }
@media (min-width: 992px) { .quarto-secondary-nav { display: none; } }
"""


def layered(files: list[Path]) -> str:
    "Our styles around Bootstrap's and Quarto's, in Quarto's order: the last file's defaults first, the rules of both, ours."
    layers = []
    for file in files:
        parts = re.split(
            r"^/\*-- scss:(\w+) --\*/$", file.read_text(encoding="utf-8"), flags=re.M
        )[1:]
        layers.append(list(zip(parts[::2], parts[1::2], strict=True)))
    of = lambda kind, layers: [
        text for layer in layers for k, text in layer if k == kind
    ]
    return "\n".join(
        [
            *of("defaults", reversed(layers)),
            QUARTO_DEFAULTS,
            '@import "bootstrap";',
            QUARTO_RULES,
            *of("rules", layers),
        ]
    )


@pytest.fixture(scope="session")
def styles(tmp_path_factory) -> dict[str, str]:
    "The CSS of both themes, compiled with Bootstrap; skipped without them: `npm install -g sass bootstrap`."
    sass = shutil.which("sass")
    bootstrap = Path(sass).resolve().parents[1] / "bootstrap/scss" if sass else None
    if not bootstrap or not bootstrap.exists():
        pytest.skip("needs sass and bootstrap from npm, installed side by side")
    folder, css = tmp_path_factory.mktemp("styles"), {}
    for theme, names in (
        ("light", ["site.scss"]),
        ("dark", ["site.scss", "dark.scss"]),
    ):
        (folder / f"{theme}.scss").write_text(
            layered([ROOT / "nbs" / n for n in names]), encoding="utf-8"
        )
        command = [
            sass,
            "--quiet",
            "--no-source-map",
            f"--load-path={bootstrap}",
            folder / f"{theme}.scss",
            folder / f"{theme}.css",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        css[theme] = (folder / f"{theme}.css").read_text(encoding="utf-8")
    return css


@pytest.fixture(scope="session")
def docs(tmp_path_factory) -> Path:
    "The pages as they are published: those of the folder that DOCS names, or else built here; skipped without Quarto."
    if os.environ.get("DOCS"):
        return (ROOT / os.environ["DOCS"]).resolve()
    if not shutil.which("quarto"):
        pytest.skip("needs Quarto, or DOCS with the folder of its pages")
    from gate import copy, files_of

    root = tmp_path_factory.mktemp("docs")
    copy(ROOT, root, files_of(ROOT))
    (root / "README.md").touch()  # so that nbdev takes it for made
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "tools")])}
    for command in (
        [Path(sys.executable).parent / "nbdev_docs", "--n_workers", "2"],
        [sys.executable, root / "tools/pages.py", root / "_docs"],
    ):
        done = subprocess.run(
            command, cwd=root, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return root / "_docs"


@pytest.fixture(scope="session")
def chromium() -> str:
    "A browser. In CI, as root, it is installed; elsewhere the test is skipped without one."
    names = ("chromium", "chromium-browser", "google-chrome")
    if (
        not any(map(shutil.which, names))
        and os.environ.get("CI")
        and hasattr(os, "geteuid")
        and os.geteuid() == 0
        and shutil.which("apt-get")
    ):
        for args in (
            ["update"],
            ["install", "-y", "--no-install-recommends", "chromium"],
        ):
            subprocess.run(
                ["apt-get", "-q", *args],
                capture_output=True,
                timeout=300,
                env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            )
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        line = "NO BROWSER: chromium is not installed, so no page was opened in one. Install it and run pytest again."
        warnings.warn(line, stacklevel=1)
        if os.environ.get("CI"):
            print(f"\n::warning::{line}", file=sys.__stderr__)
        pytest.skip(line)
    return found


@pytest.fixture(scope="session")
def offline(chromium, tmp_path_factory):
    "A browser whose network is cut, for the pages that need none."
    from browser import Browser

    with Browser(chromium, tmp_path_factory.mktemp("profile")) as browser:
        nothing = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        browser.call("Network.emulateNetworkConditions", offline=True, **nothing)
        yield browser


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


def benchmark(name: str) -> SimpleNamespace:
    "What a program of benchmarks/ defines; its `main` is not run."
    path = ROOT / "benchmarks" / f"{name}.py"
    return SimpleNamespace(**runpy.run_path(str(path), run_name="bench"))
