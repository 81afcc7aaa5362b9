"What tools/pages.py makes of notebooks, and what tools/publish.py puts beside their pages. The pages as they are published: test_site.py."

import json
import re
from pathlib import Path

import pages
import pytest
from cells import FOLDED
from conftest import ROOT, text_of
from execnb.nbio import dict2nb, read_nb
from links import of_notebook
from nbdev.process import NBProcessor
from pages import bibtex, leave_site, link_names, places_of_package
from publish import (
    evening_path,
    every_page,
    for_colab,
    plain,
    reading_path,
    sections,
    write_search,
)
from test_gate import cell, notebook

PAGES = every_page()


# ---- the evening path, and what to cite


def test_the_evening_path_is_listed_as_it_is_read():
    "On its page and on the home page."
    lessons = evening_path()
    assert lessons == reading_path()[: len(lessons)] and lessons[-1].stem == "80b_heads"
    item = re.search(r"(?ms)^- \*\*One evening\*\*.*?(?=^- )", text_of("index"))[0]
    names = [path.name for path in lessons]
    assert re.findall(r"(\w+\.ipynb)", item) == ["evening.ipynb", *names]


def test_citation(cfg):
    package, paper = re.findall(r"(?ms)^@.*?^\}$", bibtex())
    assert f"version = {{{cfg['version']}}}" in package and cfg["git_url"] in package
    assert "year = {2017}" in paper and paper.count(" and ") == 7
    assert bibtex().count("{") == bibtex().count("}")


# ---- links


def test_links_to_the_repository(cfg):
    "What the site does not hold is linked where it is; code is not touched, raw HTML is."
    blob, tree = (
        f"{cfg['git_url']}/{kind}/{cfg['branch']}" for kind in ("blob", "tree")
    )
    for text, becomes in {
        "[`a`](../LICENSE) ![b](images/b.svg) [c](31_stack.ipynb)": f"[`a`]({blob}/LICENSE) ![b](images/b.svg) [c](31_stack.ipynb)",
        "[a](../results) [b](../README.md#x 'y')": f"[a]({tree}/results) [b]({blob}/README.md#x 'y')",
        "[a][b]\n\n[b]: ../LICENSE": f"[a][b]\n\n[b]: {blob}/LICENSE",
        '```{=html}\n<a href="../LICENSE">a</a>\n```': f'```{{=html}}\n<a href="{blob}/LICENSE">a</a>\n```',
        "`[a](../b)` ``[`a`](../b)``": None,
        "```\n[a](../b)\n```": None,
    }.items():
        assert leave_site(text, cfg) == (becomes or text)


PLACES = {
    "Vocab": {"vocab.html": "vocab"},
    "Vocab.tokens": {"vocab.html": "vocab"},
    "put_ids": {"stack.html": "put_ids", "ct2.html": "put_ids"},
    "train": {"train.html": "train"},
}
LINKED = {  # a text, and what becomes of it if that is another
    "`Vocab` and `Vocab.tokens()`": "[`Vocab`](vocab.html#vocab) and [`Vocab.tokens()`](vocab.html#vocab)",
    "```\n`a`\n```\n| `Vocab` | [x](y) |": "```\n`a`\n```\n| [`Vocab`](vocab.html#vocab) | [x](y) |",
    "`put_ids`, `train`, `other`, `Vocab of words`, ``Vocab``": None,
    "```python\n# as `Vocab`\n```\n    `Vocab`\n# `Vocab`\n<code>`Vocab`</code> <!-- `Vocab` -->": None,
    "[of `Vocab`](x) [`Vocab`][x] ![`Vocab`](x.svg) <a href='x'>`Vocab`</a>\n\n[x]: y `Vocab`": None,
}


@pytest.mark.parametrize("text", LINKED)
def test_names_link_to_their_definition(text):
    "On its own page a name does, whatever else it may mean."
    assert link_names(text, "batch.html", PLACES) == (LINKED[text] or text)
    assert link_names("`train`", "train.html", PLACES) == "[`train`](#train)"


def test_names_of_the_package(tmp_path):
    "A notebook that defines one of them without exporting it means its own."
    forward = places_of_package()["MultiHeadAttention.forward"]
    assert forward == {"multi_head.html": "multiheadattention"}
    text = cell("`beam_search`, `greedy_search`", "markdown")
    notebook(tmp_path / "t.ipynb", text, cell("def beam_search():\n    pass"))
    nb = read_nb(tmp_path / "t.ipynb")
    NBProcessor(nb=nb, procs=[pages.NameLinks]).process()
    ours, theirs = nb.cells[0].source.split(", ")
    assert ours == "`beam_search`" and theirs.startswith("[`greedy_search`](decode")


def of_cells(*cells: dict):
    return dict2nb({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def test_a_place_is_made_once():
    "Not where a heading has the name already, and once for names that differ in their capitals alone."
    nb = of_cells(
        cell("## Search", "markdown"),
        cell("#| export\nclass Search: pass\ndef Take(): pass"),
        cell("#| export\ndef take(): pass"),
    )
    NBProcessor(nb=nb, procs=[pages.Definitions]).process()
    text = "".join(c.source for c in nb.cells if c.cell_type == "markdown")
    assert re.findall(r'id="([^"]+)"', text) == ["take"]


# ---- one notebook, by all our processors


def shows(**data: str) -> dict:
    "Outputs of a cell, by kind: png, svg, markdown, html, vega."
    kinds = {
        "png": "image/png",
        "svg": "image/svg+xml",
        "markdown": "text/markdown",
        "html": "text/html",
        "vega": pages.VEGA,
    }
    found = {kinds[kind]: text for kind, text in data.items()}
    out = {"output_type": "display_data", "metadata": {}, "data": found}
    return out


LABEL = """#| label: fig-dot
#| fig-cap: "A dot: $z$"
#| fig-alt: "One <dark> dot"
"""
CAPTION = shows(markdown="**Figure.** A dot: $z$")
HTML = "<b>bold</b> ``` <iframe title=box></iframe>"


@pytest.fixture(scope="module")
def toy(tmp_path_factory, cfg) -> tuple[Path, Path]:
    "A notebook that uses what pages know, and what our processors make of it."
    folder = tmp_path_factory.mktemp("toy")
    source, processed = folder / "11_toy.ipynb", folder / "processed.ipynb"
    said = {"output_type": "stream", "name": "stdout", "text": "1\n```\n"}
    notebook(
        source,
        cell("# Toy\n> A width $d_k$ · §9", "markdown"),
        cell("#| export\ndef twice(x):\n    return 2 * x"),
        cell(
            "See [`Encoder`](31_stack.ipynb#deviations), `Decoder`, <a href='../LICENSE'>raw</a>"
            ' and <a href="../LICENSE">the licence</a>.\n\n'
            '![A "map"](images/transformer.svg)\n\n**Figure.** The model',
            "markdown",
        ),
        cell("#| code-fold: true\nfolded = 1") | {"outputs": [said]},
        cell(LABEL + "draw()") | {"outputs": [shows(png="aaaa"), CAPTION]},
        cell(LABEL + "chart()")
        | {"outputs": [shows(vega={"a": "</script>"}, svg="<svg/>"), CAPTION]},
        cell("#| echo: false\nbox()") | {"outputs": [shows(html=HTML)]},
        cell("#| hide\nsecret = 1"),
    )
    nb = read_nb(source)
    procs = [
        getattr(pages, name.partition(":")[2])
        for name in cfg["procs"].split()
        if name.startswith("pages:")
    ]
    for proc in procs:  # one after the other, and directives stay, as in nbdev
        NBProcessor(nb=nb, procs=[proc], rm_directives=False).process()
    processed.write_text(json.dumps(nb, default=str), encoding="utf-8")
    return source, processed


def cells_of(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("title", ["# Toy", "---\ntitle: Toy\n---", "title: 'Toy: it'"])
def test_title_has_the_number(toy, title):
    nb = of_cells(cell(title, "markdown"))
    for path in (toy[0], ROOT / "nbs/index.ipynb"):  # the latter has none
        nb.path_ = path
        pages.Numbers(nb).end()
        assert nb.cells[0].source == title.replace("Toy", "11 Toy", 1)


def test_figures_are_as_quarto_reads_them(toy):
    "The caption is told once; a chart becomes a box, and no output is HTML, for which Quarto asks another host."
    cells = cells_of(toy[1])
    text = "\n".join(c["source"] for c in cells if c["cell_type"] == "markdown")
    figure = (
        "![The model](images/transformer.svg){#fig-transformer fig-alt=\"A 'map'\"}"
    )
    assert figure in text
    outputs = [out.get("data") for c in cells for out in c.get("outputs", [])]
    drawing, chart, box = filter(None, outputs)
    assert set(drawing) == {"image/png"}
    assert chart["text/markdown"].startswith('```{=html}\n<div class="wide"><div class')
    assert 'aria-label="One &lt;dark&gt; dot"><div><svg/></div>' in str(chart)
    assert r'{"a": "<\\/script>"}' in str(chart)
    assert box == {
        "text/markdown": f'````{{=html}}\n<div class="wide">{HTML}</div>\n````'
    }


def test_page_as_markdown(toy):
    text = plain(*toy)
    assert text.startswith("# 11 Toy\n\nA width $d_k$ · §9\n\n")
    assert "```python\ndef twice(x):" in text
    assert "[`Encoder`](stack.html#deviations), [`Decoder`](stack.html#decoder)" in text
    assert "![A 'map'](images/transformer.svg)\n\n**Figure.** The model" in text
    file = "11_toy_files/figure-html/fig-dot-output-1.png"
    assert f"![One <dark> dot]({file})\n\n**Figure.** A dot: $z$" in text
    assert text.count("**Figure.** A dot: $z$") == 2  # of the chart too
    assert "```python\nfolded = 1\n```\n\n    1\n    ```\n" in text
    assert not re.search(r"secret|<nav|<b>|box\(\)|class=", text)


FOLDS = {  # a cell, and what is written before it
    "import os\nfrom re import sub": "#| code-fold: true\n#| code-summary: Imports\n",
    "#| code-fold: false\nimport os": "",
    "#| code-fold: true\nassert x": "#| code-summary: Checks\n",
    "#| code-fold: true\nx = 1": "#| code-summary: Show the code\n",
    "#| code-fold: true\ndef f(x): ...\nclass A: ...": "#| code-summary: Code of f, A\n",
    '#| code-fold: true\n#| fig-cap: "a"\ndraw()': "#| code-summary: Code of the figure\n",
    "#| code-fold: true\n#| code-summary: Mine\nx = 1": "",
    "#| echo: false": "",
}


@pytest.mark.parametrize("source", FOLDS)
def test_folded_cells_say_what_is_in_them(source):
    "Quarto is not told what is meant for JupyterLab and Colab."
    nb = of_cells(cell(source) | {"metadata": dict(FOLDED)})
    pages.Folds(nb).cell(nb.cells[0])
    assert nb.cells[0].source == FOLDS[source] + source and nb.cells[0].metadata == {}


def test_imports_share_a_fold():
    sources = ["#| export\nimport a", "from b import c", "x = 1", "import f"]
    nb = of_cells(*map(cell, sources))
    pages.Folds(nb).begin()
    both = "#| export\nimport a\nfrom b import c"
    assert [c.source for c in nb.cells] == [both, *sources[2:]]


# ---- beside the pages


@pytest.mark.parametrize("name, runs", [("31_stack", True), ("map", False)])
def test_colab_is_offered_where_a_page_runs(name, runs):
    nb = read_nb(ROOT / f"nbs/{name}.ipynb")
    pages.PageLinks(nb).end()
    assert ("Open in Colab" in nb.cells[1].source) == runs
    assert "Download notebook" in nb.cells[1].source


def test_notebooks_for_colab(toy, cfg):
    "The cell that installs the package takes the version of the page; all links are absolute."
    home = f"{cfg['doc_host']}{cfg['doc_baseurl']}/"
    opened = lambda path: json.loads(path.read_text(encoding="utf-8"))
    nb = for_colab(opened(ROOT / "nbs/31_stack.ipynb"))
    first = next(c for c in nb["cells"] if c["cell_type"] == "code")["source"]
    assert re.search(r"/archive/([0-9a-f]{40}|v[\d.]+)\.zip", first)
    assert cfg["git_url"] in first
    nb = for_colab(opened(toy[0]))
    assert f"{home}stack.html#deviations" in nb["cells"][2]["source"]
    assert f"]({home}images/transformer.svg)" in nb["cells"][2]["source"]
    for path in PAGES:
        targets = of_notebook(json.dumps(for_colab(opened(path)))).targets
        assert [t for t in targets if not re.match(r"[a-z]+:|#", t)] == [], path.name


# A page with an import cell, a formula, a drawing and two definitions, as Quarto writes it.
PAGE = """<main><a class="skip" href="#m">Skip to the text</a><header><h1>T</h1><p>About</p></header>
<nav class="page-links"><a>Markdown</a></nav><p>A <em>st</em>ack.</p>
<details class="code-fold">\n<summary>Imports</summary><pre>import torch</pre></details>
<section id="one" class="level2"><h2 class="anchored" data-anchor-id="one">One &amp; <code>x</code></h2>
<p>Half <math><mi>d</mi><annotation>d_k</annotation></math> &lt; 2<svg><text>box</text></svg></p>
<iframe srcdoc="<main><h2>No</h2></main>"></iframe>
<span class="place" id="stack"></span><span class="place" id="take"></span>\n<div id="ab" class="cell"><pre><code><span>class</span> Stack: ...
<span>def</span> take(): ...</code></pre></div><p>Then</p><pre>print(1)</pre></section></main><footer>Foot</footer>"""


def test_search_has_sections_and_definitions(tmp_path):
    code = "class Stack: ... def take(): ..."
    assert sections(PAGE) == [
        ("", "", "About A stack."),
        ("one", "One & x", "Half d < 2 Then print(1)"),
        ("stack", "Stack", code),
        ("take", "take", code),
    ]
    (tmp_path / "t.html").write_text(PAGE)
    index, crumbs = tmp_path / "search.json", ["Part", "T"]
    old = {"href": "t.html", "title": "T", "section": "", "text": "", "crumbs": crumbs}
    index.write_text(json.dumps([old, old | {"href": "t.html#one"}]))
    write_search(tmp_path)
    new = json.loads(index.read_text())
    anchors = ["", "#one", "#stack", "#take"]
    assert [entry["href"] for entry in new] == [f"t.html{a}" for a in anchors]
    one = {"href": "t.html#one", "title": "T", "crumbs": crumbs}
    one |= {"section": "One & x", "text": "Half d &lt; 2 Then print(1)"}
    assert new[1] == one | {"objectID": "t.html#one"}
