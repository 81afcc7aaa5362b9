"The pages that `make preview` builds: mathematics shown, figures described, nothing loaded from elsewhere, readable on a phone."
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import ROOT
from gate import copy, files_of
from test_gate import cell, notebook

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
QUIET = ("--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update "
         "--disable-sync --hide-scrollbars --enable-logging=stderr").split()
NO_NETWORK = "--host-resolver-rules=MAP * ~NOTFOUND"


class Page(HTMLParser):
    "What of a page the tests look at."
    def __init__(self, path: Path):
        super().__init__()
        self.tags, self.text, self.inside = [], "", []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("code", "annotation", "style"): self.inside.append(tag)

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag: self.inside.pop()

    def handle_data(self, data):
        if not self.inside: self.text += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    "A preview of two real notebooks and one that uses all the page dialect."
    root = tmp_path_factory.mktemp("preview")
    copy(ROOT, root, files_of(ROOT))
    picture = [{"output_type": "display_data", "metadata": {}, "data": {"image/png": PIXEL, "text/plain": "<Figure>"}}]
    said = [{"output_type": "stream", "name": "stdout", "text": "x" * 400 + "\n~~~~\n"}]
    notebook(root / "nbs/99_trial.ipynb", cell("# Trial\n> A width $d_k$ · §9", "markdown"), cell("#| default_exp trial"),
             cell("#| export\ndef twice(\n    x: int,  # a number\n) -> int:    # its double\n    'Two of it.'\n    return 2 * x"),
             cell("See @eq-one, @fig-dot and @fig-file.\n\n$$\\frac{a}{b} = " + " + ".join(["c_i"] * 60) + "$$ {#eq-one}", "markdown"),
             cell("::: {.callout-note title=\"Mind\" collapse=\"true\"}\nFolded $y$.\n:::\n\n::: {.callout-tip}\n## Hint\nTry.\n:::", "markdown"),
             cell("#| hide\nsecret = 1"), cell("#| echo: false\nunseen = 1"), cell("#| code-fold: true\nfolded = 1") | {"outputs": said},
             cell("#| label: fig-dot\n#| fig-cap: \"A dot: $z$\"\n#| fig-alt: \"One \\\"dark\\\" dot\"\ndraw()") | {"outputs": picture},
             cell("![File](images/none.svg){#fig-file fig-alt=\"a file\"}\n\n[stack](31_stack.ipynb#layers) [home](../LICENSE)", "markdown"))
    quarto = (root / "_quarto.yml").read_text(encoding="utf-8")
    (root / "_quarto.yml").write_text(quarto.replace("\nmetadata-files", "          - 99_trial.ipynb\n\nmetadata-files"), encoding="utf-8")
    done = subprocess.run([sys.executable, root / "tools/preview.py", "31_stack", "321_attention", "99_trial"], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr
    return root / "_preview"


@pytest.fixture(params=["stack", "attention", "trial"])
def path(pages, request) -> Path: return pages / f"{request.param}.html"


def test_no_raw_tex(path):
    assert not re.search(r"\$|\\[a-zA-Z(\[]", Page(path).text)


def test_figures_have_alternatives(path):
    images = [attrs for tag, attrs in Page(path).tags if tag == "img"]
    assert all(i.get("alt") for i in images)


def test_loads_nothing_from_elsewhere(path):
    for tag, attrs in Page(path).tags:
        if tag != "a": assert not re.match(r"(https?:)?//", attrs.get("src") or attrs.get("href") or ""), (tag, attrs)
    assert not any(tag == "script" for tag, _ in Page(path).tags)
    assert not re.search(r"url\(|@import", (path.parent / "preview.css").read_text())


def test_links_lead_to_pages(path):
    names = {f"{re.sub(r'^[0-9]+[a-z]?_', '', p.stem)}.html" for p in [*(ROOT / "nbs").glob("*.ipynb"), Path("99_trial")]}
    hrefs = [attrs["href"] for tag, attrs in Page(path).tags if tag == "a" and "href" in attrs]
    local = [h.partition("#")[0] for h in hrefs if not re.match(r"[a-z]+:|#", h)]
    assert set(local) <= names
    ids = {attrs.get("id") for _, attrs in Page(path).tags}
    assert [] == [h for h in hrefs if h.startswith("#") and h[1:] not in ids]


def test_dialect(pages, cfg):
    raw = (pages / "trial.html").read_text(encoding="utf-8")
    assert "secret" not in raw and "unseen" not in raw
    assert 'alt="One &quot;dark&quot; dot"' in raw and "Figure 1: A dot" in raw and "Figure 2: File" in raw and 'alt="a file"' in raw
    assert '<a href="#eq-one">Equation (1)</a>' in raw and '<a href="#fig-dot">' in raw
    assert '<details class="callout note"><summary>' in raw and '<div class="callout tip"><p class="callout-title">' in raw
    assert 'href="stack.html#layers"' in raw and f'href="{cfg["git_url"]}/blob/{cfg["branch"]}/LICENSE"' in raw
    assert "<summary>Code</summary>" in raw and "<summary>Reference: <code>twice</code></summary>" in raw
    assert (pages / "99_trial_files").is_dir()


def test_contrast(pages):
    "Each colour of text on each ground, light and dark: at least 4.5 to 1 (WCAG AA)."
    css = (pages / "preview.css").read_text()

    def light(colour: str) -> float:
        full = colour if len(colour) == 6 else "".join(2 * c for c in colour)
        linear = [c / 12.92 if c <= .03928 else ((c + .055) / 1.055) ** 2.4 for c in (int(full[i:i + 2], 16) / 255 for i in (0, 2, 4))]
        return .2126 * linear[0] + .7152 * linear[1] + .0722 * linear[2]
    for block in re.findall(r":root \{(.*?)\}", css, re.S):
        colours = {k: light(v) for k, v in re.findall(r"--(\w+): #([0-9a-f]{3,6})", block)}
        for text in colours.keys() - {"paper", "tint", "line"}:
            for ground in ("paper", "tint"):
                high, low = sorted((colours[text], colours[ground]), reverse=True)
                assert (high + .05) / (low + .05) >= 4.5, (text, ground)


def browse(chromium: str, tmp_path: Path, url: str, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([chromium, *QUIET, NO_NETWORK, f"--user-data-dir={tmp_path / 'profile'}", *flags, "--dump-dom", url],
                          capture_output=True, text=True, timeout=60)


def test_console_is_silent(path, chromium, tmp_path):
    done = browse(chromium, tmp_path, path.as_uri())
    assert done.returncode == 0 and "</html>" in done.stdout
    assert [] == [line for line in done.stderr.split("\n") if "CONSOLE" in line]


def test_fits_a_phone(path, chromium, tmp_path):
    "Nothing is wider than 390 px: the page does not scroll sideways. (Windows have a least width, so the page is put in a frame.)"
    folder = shutil.copytree(path.parent, tmp_path / "pages")
    probe = "<script>onload = () => parent.postMessage([innerWidth, document.documentElement.scrollWidth], '*')</script></body>"
    page = folder / path.name
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", probe), encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text("<script>onmessage = e => document.title = e.data.join(' ')</script>"
                     f"<iframe src='{page.name}' style='width: 390px; height: 800px; border: 0'></iframe>")
    dom = browse(chromium, tmp_path, frame.as_uri(), "--virtual-time-budget=3000").stdout
    assert re.search(r"<title>(.*)</title>", dom)[1] == "390 390"
