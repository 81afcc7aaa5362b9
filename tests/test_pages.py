"What tools/pages.py makes of notebooks, and what tools/publish.py puts beside their pages. The pages as they are published: test_site.py."

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pages
import publish
import pytest
import yaml
from cells import FOLDED
from conftest import ROOT, text_of
from execnb.nbio import dict2nb, read_nb
from links import of_notebook
from lxml.html import document_fromstring, tostring
from nbdev.process import NBProcessor
from pages import leave_site
from plots import stored, translate, write_figures
from publish import (
    evening_path,
    every_page,
    for_colab,
    plain,
    reading_path,
    sections,
    without_tags,
    write_not_found,
    write_search,
)
from test_gate import cell, notebook

from annotated_transformer.show.visualize import SHADES, heatmap, lines, panels

PAGES = every_page()


# ---- the evening path, and what to cite


def test_the_evening_path_is_listed_as_it_is_read():
    "On its page; the home page counts them."
    lessons = evening_path()
    assert lessons == reading_path()[: len(lessons)] and lessons[-1].stem == "80b_heads"
    item = re.search(r"(?ms)^- \*\*\[One evening\].*?(?=^- )", text_of("index"))[0]
    assert re.findall(r"(\w+\.ipynb)", item) == ["evening.ipynb"]
    assert "Eleven lessons" in item and len(lessons) == 11


def test_citation(cfg):
    "What each page offers to copy is what CITATION.cff asks to cite, in today's version."
    text = (ROOT / "nbs/citation.bib").read_text(encoding="utf-8")
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    package, paper = re.findall(r"(?ms)^@.*?^\}$", text)
    assert cff["version"] == cfg["version"] and cff["repository-code"] in package
    assert f"version = {{{cfg['version']}}}" in package and cff["title"] in package
    [cited] = cff["references"]
    names = ["{family-names}, {given-names}".format(**who) for who in cited["authors"]]
    for said in (" and ".join(names), cited["title"], cited["url"], str(cited["year"])):
        assert f"{{{said}}}" in paper
    assert text.count("{") == text.count("}")


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
    "Own": {"vocab.html": "own"},
}
LINKED = {  # a text, and what becomes of it if that is another
    "<code>Vocab</code>s, x": '<a href="vocab.html#vocab"><code>Vocab</code></a>s, x',
    "<code>Vocab.tokens()</code>": '<a href="vocab.html#vocab"><code>Vocab.tokens()</code></a>',
    "<code>train()</code>": '<a href="train.html#train"><code>train()</code></a>',
    "<code>put_ids</code>, <code>train</code>, <code>other</code>, <code>Own</code>, <code>Vocab of words</code>": None,
    "<pre><code>Vocab</code></pre><h2><code>Vocab</code></h2>": None,
    '<a href="x">of <code>Vocab</code></a>': None,
}


@pytest.mark.parametrize("text", LINKED)
def test_names_link_to_their_definition(text, monkeypatch):
    "On its own page a name does, whatever else it may mean."
    monkeypatch.setattr(publish, "places_of_package", lambda: PLACES)
    monkeypatch.setattr(publish, "text_of", lambda *_: "class Own:\n    pass")

    def linked(text: str, name: str) -> str:
        page = document_fromstring(f"<main><div>{text}</div></main>")
        publish.link_names(page, Path(name))
        return tostring(page.find(".//div"), encoding="unicode")

    assert linked(text, "51c_batch.ipynb") == f"<div>{LINKED[text] or text}</div>"
    own = linked("<code>train</code>", "52_train.ipynb")
    assert own == '<div><a href="#train"><code>train</code></a></div>'


def test_names_of_the_package():
    forward = publish.places_of_package()["MultiHeadAttention.forward"]
    assert forward == {"multi_head.html": "multiheadattention"}


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


# ---- figures


def drawn(draw: Callable) -> str:
    "A figure that `draw` draws on axes in the house style, as matplotlib writes it for the notebooks."
    with matplotlib.rc_context(fname=ROOT / "tools/matplotlibrc"):
        fig, (ax,) = panels(width=4.0)
        draw(ax)
        fig.savefig(file := io.StringIO(), format="svg")
        plt.close(fig)
    return file.getvalue()


def curve(ax) -> None:
    lines({"loss": ([1.0, 2.0], [1.0, 0.123456789])}, x="step", y="loss, nats", ax=ax)


@pytest.mark.parametrize("draw, fixed", [
    (curve, False),
    (lambda ax: heatmap([[0.0, 1.0]], x="key", ax=ax), True),
    (lambda ax: ax.bar([1], [2], color=SHADES[2]), True),
])  # fmt: skip
def test_figure_takes_colours_unless_they_mean_something(draw, fixed):
    svg = stored(drawn(draw))
    assert svg == stored(drawn(draw)) and "\n" not in svg and "<style" not in svg
    assert not re.search(r"\d\.\d{3}", svg)
    page = document_fromstring(svg)
    kind = page.xpath("string(//svg/@class)")
    assert kind == ("plot on-white" if fixed else "plot")
    assert not page.xpath("//g/@id | //image/@id")  # equal images have equal ones
    in_page = svg.count("var(--ink, #22262b)"), svg.count("var(--curve-0, #16345a)")
    assert in_page == (0, 0) if fixed else min(in_page) > 0


def test_figures_stand_in_the_page(tmp_path):
    svg = stored(drawn(curve))
    (tmp_path / "a/figure-html").mkdir(parents=True)
    (tmp_path / "a/figure-html/f.svg").write_text(svg, encoding="utf-8")
    img = '<img alt="A curve" src="a/figure-html/f.svg">'
    page = document_fromstring(f"<main><figure>{img}</figure>{img}</main>")
    write_figures(page, tmp_path)
    assert not page.xpath("//img") and len(page.find_class("drawing")) == 2
    assert page.xpath("//svg/@aria-label") == ["A curve"] * 2
    ids = page.xpath("//svg//@id")
    assert len(ids) == len(set(ids)) > 2
    used = page.xpath("//@*[starts-with(., '#figure-') or starts-with(., 'url(#')]")
    assert {re.search("figure-[^)]*", name)[0] for name in used} <= set(ids)


def test_words_of_a_figure_are_translated():
    words = {"loss, nats": "损失，nat", "#.#e & #": "#与#"}
    svg = stored(drawn(curve)).replace(">step<", ">2.5e &amp; 4<")
    assert ">损失，nat</text>" in (said := translate(svg, words))
    assert ">2.5e &amp; 4</text>" in said
    assert ">2.5与4</text>" in translate(svg, {"#e & #": "#与#"})


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
        cell(LABEL + "draw()")
        | {"outputs": [shows(png="aaaa", svg="<svg/>"), CAPTION]},
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
    assert set(drawing) == {"image/png", "image/svg+xml"}
    assert chart["text/markdown"].startswith('```{=html}\n<div class="wide"><div class')
    assert 'aria-label="One &lt;dark&gt; dot"><div><svg/></div>' in str(chart)
    assert r'{"a": "<\\/script>"}' in str(chart)
    assert box == {
        "text/markdown": f'````{{=html}}\n<div class="wide">{HTML}</div>\n````'
    }


def test_page_as_markdown(toy):
    text = plain(*toy, {"Decoder": "stack.html#decoder"})
    assert text.startswith("# 11 Toy\n\nA width $d_k$ · §9\n\n")
    assert "```python\ndef twice(x):" in text
    assert "[`Encoder`](stack.html#deviations), [`Decoder`](stack.html#decoder)" in text
    assert "![A 'map'](images/transformer.svg)\n\n**Figure.** The model" in text
    file = "11_toy_files/figure-html/fig-dot-output-1.svg"
    assert f"![One <dark> dot]({file})\n\n**Figure.** A dot: $z$" in text
    assert text.count("**Figure.** A dot: $z$") == 2  # of the chart too
    assert "```python\nfolded = 1\n```\n\n    1\n    ```\n" in text
    assert not re.search(r"secret|<b>|box\(\)|class=", text)


def test_missing_pages_lead_to_each_language(tmp_path, cfg):
    (tmp_path / "404.html").write_text("<!DOCTYPE html><main><p>none</p></main>")
    write_not_found(tmp_path)
    text = (tmp_path / "404.html").read_text(encoding="utf-8")
    line = r'<p lang="([^"]+)">[^<]+。<a href="([^"]+)">([^<]+)</a></p>'
    found = re.findall(line, text)
    to = f"{cfg['doc_baseurl']}/zh{{}}/index.html"
    assert found == [
        ("zh", to.format(""), "中文目录"),
        ("zh-Hant-TW", to.format("-hant"), "中文目錄"),
    ]


TAGGED = {  # HTML of a notebook or of a cell's output, and the same in Markdown
    "<details><summary>Answer</summary>\n\nYes.\n\n</details>": "**Answer**\n\n\n\nYes.\n\n",
    "<summary><code>f</code> Adds.</summary>": "**`f` Adds.**\n\n",
    "<p>Raises</p><ul><li>a&#95;b</li><li>c</li></ul>": "Raises\n\n- a_b\n- c\n",
    '<a href="a.html#b">there</a> <a id="c"></a>': "[there](a.html#b) ",
    "`<p>` and <pad>, $a<p>b$": "`<p>` and <pad>, $a<p>b$",
    "```\n<p>&lt;</p>\n```": "```\n<p>&lt;</p>\n```",
    "    <p>printed</p>": "    <p>printed</p>",
}


def test_html_becomes_markdown():
    "But in code, in formulas and in what was printed."
    assert {text: without_tags(text) for text in TAGGED} == TAGGED


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


BARE = """<head></head><main><header id="title-block-header"><h1>T</h1></header>
<a id="quarto-back-to-top"></a></main>"""


@pytest.mark.parametrize("name, runs", [("31_stack", True), ("map", False)])
def test_colab_is_offered_where_a_page_runs(name, runs, cfg):
    page = document_fromstring(BARE)
    publish.write_links(page, ROOT / f"nbs/{name}.ipynb", "")
    [row, report] = page.find_class("page-links")
    links = {a.text: a.get("href") for a in row.iter("a")}
    assert ("Open in Colab" in links) == runs
    source = f"{cfg['git_url']}/blob/{cfg['branch']}/nbs/{name}.ipynb"
    assert links["View source"] == source
    assert links["Download notebook"] == f"notebooks/{name}.ipynb"
    assert f"title={name}.ipynb" in report[0].get("href")
    assert "Illia}" in row.find("button").get("data-clipboard-text")


TOC = """<nav id="TOC"><h2>On this page</h2><ul><li><a href="#a" id="toc-a" class="nav-link active" data-scroll-target="#a">A</a>
<ul class="collapse"><li><a href="#b" id="toc-b" class="nav-link">B</a></li></ul></li></ul></nav>"""


def test_contents_stand_below_the_title_too():
    "Everything in them is open, and no name is there twice."
    page = document_fromstring(BARE.replace("<main>", f"{TOC}<main>"))
    publish.write_links(page, ROOT / "nbs/31_stack.ipynb", "")
    publish.write_contents(page)
    box = page.find_class("page-links")[0].getnext()
    assert (box.tag, box.get("class"), box[0].text) == (
        "details",
        "contents",
        "On this page",
    )
    assert [dict(a.attrib) for a in box.iter("a")] == [{"href": "#a"}, {"href": "#b"}]
    assert [dict(ul.attrib) for ul in box.iter("ul")] == [{}, {}]
    assert len(page.xpath("//*[@id='toc-a']")) == 1


@pytest.mark.parametrize("name, said", [("97a_checkpoint", True), ("31_stack", False)])
def test_a_page_behind_the_lessons_says_so(name, said):
    page, path = document_fromstring(BARE), ROOT / f"nbs/{name}.ipynb"
    publish.write_links(page, path, "")
    publish.write_kind(page, path, publish.BEHIND)
    before = page.find_class("page-links")[0].getprevious()
    assert (before.text == publish.BEHIND) == said


def test_a_formula_keeps_its_stop():
    formula = '<math display="inline"><mi>x</mi></math>'
    text = f"<main><p>a {formula}, b {formula} c {formula}。</p></main>"
    page = document_fromstring(text)
    publish.keep_stops(page)
    kept = f'<span class="with-mark">{formula}'
    wanted = f"<p>a {kept},</span> b {formula} c {kept}。</span></p>"
    assert tostring(page.find(".//p"), encoding="unicode") == wanted
    long = text.replace("<mi>x</mi>", "<mi>x</mi><mo>+</mo>" * 5)
    page = document_fromstring(long)
    publish.keep_stops(page)
    assert not page.find_class("with-mark")


def test_notebooks_for_colab(toy, cfg):
    "The cell that installs the package takes the version of the page; all links are absolute."
    home = f"{cfg['doc_host']}{cfg['doc_baseurl']}/"
    opened = lambda path: json.loads(path.read_text(encoding="utf-8"))
    nb = for_colab(opened(ROOT / "nbs/31_stack.ipynb"), "stack.html")
    first = next(c for c in nb["cells"] if c["cell_type"] == "code")["source"]
    assert re.search(r"/archive/([0-9a-f]{40}|v[\d.]+)\.zip", first)
    assert cfg["git_url"] in first
    nb = for_colab(opened(toy[0]), "toy.html")
    assert f"{home}stack.html#deviations" in nb["cells"][2]["source"]
    assert f"]({home}images/transformer.svg)" in nb["cells"][2]["source"]
    for path in PAGES:
        nb = for_colab(opened(path), path.name)
        targets = of_notebook(json.dumps(nb)).targets
        assert [t for t in targets if not re.match(r"[a-z]+:|#", t)] == [], path.name


SAYS = """print("WARN: Unable to resolve link target: a.ipynb")
print("WARN: Invalid URI 'near 100% of it' in attribute 'alt' of element 'IMG'")
import pages
print(pages.__file__)"""


def test_an_unexpected_warning_is_kept(capsys, monkeypatch):
    "To be told at the end; and nbdev takes its steps from this checkout. A failure ends all."
    monkeypatch.setattr(publish, "warnings", [])
    publish.heard([sys.executable, "-c", SAYS], ROOT)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 and [f"{shown[0]}\n"] == publish.warnings
    assert Path(shown[1]) == ROOT / "tools/pages.py"
    with pytest.raises(SystemExit):
        publish.heard([sys.executable, "-c", "exit(3)"], ROOT)


# A page with an import cell, a formula, a drawing and two definitions, as Quarto writes it.
PAGE = """<meta name="description" content="It is T">
<main id="quarto-document-content"><a class="skip" href="#m">Skip to the text</a><header><h1>T</h1><p>About</p></header>
<nav><a>Part</a></nav><p>A <em>st</em>ack.</p>
<details class="code-fold">\n<summary>Imports</summary><pre>import torch</pre></details>
<section id="one" class="level2"><h2 class="anchored" data-anchor-id="one">One &amp; <code>x</code></h2>
<p>Half <math><mi>d</mi><annotation>d_k</annotation></math> &lt; 2<svg><text>box</text></svg></p>
<iframe srcdoc="<main><h2>No</h2></main>"></iframe>
<span class="place" id="stack"></span><span class="place" id="take"></span>\n<div id="ab" class="cell"><pre><code><span>class</span> Stack: ...
<span>def</span> take(): ...</code></pre></div><p>Then</p><pre>print(1)</pre></section></main><footer>Foot</footer>"""


def test_search_has_sections_and_definitions(tmp_path):
    code = "class Stack: ... def take(): ..."
    page = document_fromstring(PAGE)
    assert sections(page) == [
        ("", "", "About A stack."),
        ("one", "One & x", "Half d < 2 Then print(1)"),
        ("stack", "Stack", code),
        ("take", "take", code),
    ]
    index, crumbs = tmp_path / "search.json", ["Part", "T"]
    old = {"href": "t.html", "title": "T", "section": "", "text": "", "crumbs": crumbs}
    index.write_text(json.dumps([old, old | {"href": "t.html#one"}]))
    write_search(tmp_path, {"t": page}, None)
    new = json.loads(index.read_text())
    anchors = ["", "#one", "#stack", "#take"]
    assert [entry["href"] for entry in new] == [f"t.html{a}" for a in anchors]
    assert [entry.get("about") for entry in new] == ["It is T", None, None, None]
    one = {"href": "t.html#one", "title": "T", "crumbs": crumbs}
    one |= {"section": "One & x", "text": "Half d &lt; 2 Then print(1)"}
    assert new[1] == one | {"objectID": "t.html#one"}


def test_a_long_formula_in_a_list_can_be_moved():
    formula = f"<math display='inline'>{'<mi>x</mi>' * 9}</math>"
    page = document_fromstring(
        f"<main><p>{formula}, a</p><ul><li>a {formula}, b</li></ul></main>"
    )
    publish.keep_stops(page)
    [box] = page.find_class("wide")
    assert box.getparent().tag == "li" and box.tail == ", b"
    assert [el.tag for el in box] == ["math"] and not box[0].tail
