"What `make preview` makes of a notebook's dialect, and what it puts beside the pages. The pages themselves: test_site.py."

import json
import re

import pytest
import yaml
from conftest import ROOT
from execnb.nbio import dict2nb
from IPython.core.inputtransformer2 import TransformerManager
from links import of_notebook
from nbdev.process import NBProcessor
from notebooks import FOLDED
from pages import (
    Definitions,
    Folds,
    Names,
    install_cell,
    leave_site,
    link_names,
    names_of_package,
    page_name,
    sections,
    sidebar,
    write_search,
)
from test_gate import cell


def test_links_to_the_repository(cfg):
    "What the site does not hold is linked where it is; code is not touched, raw HTML is."
    blob, tree = (
        f"{cfg['git_url']}/{kind}/{cfg['branch']}" for kind in ("blob", "tree")
    )
    for text, becomes in {
        "[`a`](../LICENSE) ![b](images/b.svg) [c](31_stack.ipynb)": f"[`a`]({blob}/LICENSE) ![b](images/b.svg) [c](31_stack.ipynb)",
        "[a](../results) [b](../results/README.md#x 'y')": f"[a]({tree}/results) [b]({blob}/results/README.md#x 'y')",
        "[a][b]\n\n[b]: ../LICENSE": f"[a][b]\n\n[b]: {blob}/LICENSE",
        '<a href="../LICENSE">a</a>': f'<a href="{blob}/LICENSE">a</a>',
        '```{=html}\n<a href="../LICENSE">a</a>\n```': f'```{{=html}}\n<a href="{blob}/LICENSE">a</a>\n```',
        "`[a](../b)` ``[`a`](../b)``": None,
        "```\n[a](../b)\n```": None,
        "~~~ md\n[a](../b)\n~~~~": None,
        "```\n[a](../b)": None,
    }.items():
        assert leave_site(text, cfg) == (becomes or text)


NAMES = Names(
    {
        "Vocab": {"vocab.html": "vocab"},
        "Vocab.words": {"vocab.html": "vocab"},
        "put": {"stack.html": "put", "ct2.html": "put"},
        "train": {"train.html": "train"},
    },
    frozenset({"train"}),
)


@pytest.mark.parametrize(
    "text, becomes",
    [
        (
            "`Vocab` and `Vocab.words()`",
            "[`Vocab`](vocab.html#vocab) and [`Vocab.words()`](vocab.html#vocab)",
        ),
        ("`put`, `train`, `other`, `Vocab of words`, ``Vocab``", None),
        (
            "```python\n# as `Vocab`\n```\n    `Vocab`\n# `Vocab`\n<code>`Vocab`</code> <!-- `Vocab` -->",
            None,
        ),
        (
            "[of `Vocab`](x) [`Vocab`][x] ![`Vocab`](x.svg) [[1] `Vocab`](x) <a href='x'>`Vocab`</a>\n\n[x]: y `Vocab`",
            None,
        ),
        (
            "```\n`a`\n```\n| `Vocab` | [x](y) |",
            "```\n`a`\n```\n| [`Vocab`](vocab.html#vocab) | [x](y) |",
        ),
    ],
)
def test_names_link_to_their_definition(text, becomes):
    assert link_names(text, "batch.html", NAMES) == (becomes or text)


def test_ambiguous_names_link_within_their_notebook():
    assert link_names("`put`", "ct2.html", NAMES) == "[`put`](#put)"
    assert link_names("`train`", "train.html", NAMES) == "[`train`](#train)"


def test_names_of_the_package():
    names = names_of_package()
    assert names.places["MultiHeadAttention.forward"] == {
        "multi_head.html": "multiheadattention"
    }
    assert {
        "attention",
        "train",
        "schedule",
        "rank",
        "prepare",
    } <= names.taken and not {"Encoder", "beam_search"} & names.taken


def test_no_link_is_left_as_text(site):
    "Pages and plain Markdown: no `[`name`](…)` in code or in the text that is shown."
    literal = re.compile(r"\[(`|<code>)[^`\]<\n]+(`|</code>)\]\(")
    for page in site.glob("*.html"):
        assert not literal.search(page.read_text(encoding="utf-8")), page.name
    for plain in site.glob("*.md"):
        blocks = re.findall(
            r"^```.*?^```", plain.read_text(encoding="utf-8"), re.M | re.S
        )
        assert not any(map(literal.search, blocks)), plain.name


def test_dialect(site, cfg):
    raw = (site / "trial.html").read_text(encoding="utf-8")
    assert "secret" not in raw and "unseen" not in raw
    assert (
        'alt="One &quot;dark&quot; dot"' in raw
        and "Figure 1: A dot" in raw
        and "Figure 2: File" in raw
        and 'alt="a file"' in raw
    )
    assert (
        '<a href="#fig-dot">Figure 1</a>' in raw
        and '<a href="#fig-trial-dot">Figure 2</a>' in raw
        and 'id="fig-dot"' in raw
    )
    assert raw.count("A dot: ") == 1 and "Figure.</strong>" not in raw
    assert (
        '<details class="callout note"><summary>' in raw
        and '<div class="callout tip"><p class="callout-title">' in raw
    )
    assert (
        'href="stack.html#deviations"' in raw
        and raw.count(f'href="{cfg["git_url"]}/blob/{cfg["branch"]}/LICENSE"') == 3
    )
    assert "<summary>Show the code</summary>" in raw
    assert (site / "trial_files").is_dir()
    assert (
        '<figure id="fig-box">' in raw
        and "<b>bold</b>" in raw
        and "Figure 3: A box" in raw
    )


def test_equations_bear_the_papers_numbers(site):
    raw = (site / "trial.html").read_text(encoding="utf-8")
    assert re.search(
        r'<div id="equation-7" class="equation">.*?<math display="block".*?<div class="number">\s*\(7\)',
        raw,
        re.S,
    )
    assert "\\tag" not in re.sub(r"<annotation.*?</annotation>", "", raw)


def test_definition_is_shown_once(site):
    "In its cell, below a place to link to; the head of it is not repeated, and is no heading of its own."
    raw = (site / "trial.html").read_text(encoding="utf-8")
    assert raw.count('id="twice"') == 1 and re.search(
        r'<span class="place" id="twice"></span>\s*<div class="sourceCode"', raw
    )
    assert len(re.findall(r"twice", re.sub(r"<[^>]+>", "", raw))) == 1
    assert (site / "trial.html.md").read_text(encoding="utf-8").count("twice") == 1


def test_a_place_is_made_once():
    "Not where a heading has the name already, and once for names that differ in their capitals alone."
    cells = [
        cell("## Search", "markdown"),
        cell("#| export\nclass Search: pass\ndef Take(): pass"),
        cell("#| export\ndef take(): pass"),
        cell("def search(): pass"),
    ]
    nb = dict2nb({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    NBProcessor(nb=nb, procs=[Definitions]).process()
    assert re.findall(r'id="(\w+)"', "\n".join(c.source for c in nb.cells)) == ["take"]


def test_names_have_a_place(site):
    "Each name of the package's index, but for private ones: its anchor is on the page once."
    ids = {}
    for name, places in names_of_package().places.items():
        for page, anchor in places.items():
            if page not in ids:
                ids[page] = re.findall(
                    r'\bid="([^"]+)"', (site / page).read_text(encoding="utf-8")
                )
            assert ids[page].count(anchor) == 1, f"{name}: {page}#{anchor}"


def test_html_outputs_are_raw_blocks(trial):
    "Quarto gives a page with an output of the kind text/html two scripts of another host."
    kinds = [
        kind
        for c in trial.cells
        for out in c.get("outputs") or []
        for kind in out.get("data", {})
    ]
    assert "text/markdown" in kinds and "text/html" not in kinds
    text = next(
        o["data"]["text/markdown"]
        for c in trial.cells
        for o in c.get("outputs") or []
        if "<b>" in str(o)
    )
    assert (
        text
        == '````{=html}\n<div class="wide"><b>bold</b> ``` <iframe title=box></iframe></div>\n````'
    )


def test_drawing_with_links_is_put_in(site):
    raw = (site / "trial.html").read_text(encoding="utf-8")
    assert (
        '<svg role="group" aria-label="A &quot;map&quot;"' in raw
        and '<a href="stack.html#deviations"><text' in raw
    )
    assert '<a href="index.html">' in raw


def test_drawing_of_the_home_page_takes_its_colours(site):
    "It is put into the page too, though it holds no link, and has an alternative text instead of a caption."
    raw = (site / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<span class="drawing"><svg role="img" aria-label="[^"]', raw)
    assert "images/it.svg" not in raw and "<figcaption" not in raw


def test_links_of_each_page(site, cfg):
    raw = (site / "trial.html").read_text(encoding="utf-8")
    links = dict(
        re.findall(
            r'<a href="([^"]+)"(?: download)?>([^<]+)</a>',
            re.search(r'<nav class="page-links".*?</nav>', raw, re.S)[0],
        )
    )
    assert {v: k for k, v in links.items()} == {
        "Open in Colab": f"https://colab.research.google.com/github/{cfg['user']}/{cfg['repo']}/blob/gh-pages/notebooks/trial.ipynb",
        "View source": f"{cfg['git_url']}/blob/{cfg['branch']}/nbs/trial.ipynb",
        "Download notebook": "notebooks/trial.ipynb",
        "Markdown": "trial.html.md",
    }


def test_colab_installs_first(site, cfg):
    "The first code cell fetches this version in Colab, and does nothing elsewhere."
    cells = json.loads((site / "notebooks/trial.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    first = next(c for c in cells if c["cell_type"] == "code")["source"]
    assert (
        f"git clone -q --filter=blob:none {cfg['git_url']} project" in first
        and f"{cfg['lib_name']} {cfg['version']}" in first
    )
    assert (
        re.search(r"checkout -q ([0-9a-f]{40}|v[\d.]+)\n", first)
        and "%cd project/nbs" in first
    )
    exec(
        compile(TransformerManager().transform_cell(first), "colab", "exec"),
        {"get_ipython": None},
    )


def test_notebooks_read_elsewhere_have_their_links_and_pictures(site, cfg):
    home = f"{cfg['doc_host']}{cfg['doc_baseurl']}/"
    cells = json.loads((site / "notebooks/trial.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    texts = [c["source"] for c in cells if c["cell_type"] == "markdown"]
    texts += [
        o["data"]["text/markdown"]
        for c in cells
        for o in c.get("outputs", [])
        if "text/markdown" in o.get("data", {})
    ]
    text = "\n\n".join(map(str, texts))
    assert (
        f"[stack]({home}stack.html#deviations)" in text
        and f"![a file]({home}images/trial_dot.svg)" in text
    )
    assert text.count(f"{cfg['git_url']}/blob/{cfg['branch']}/LICENSE") == 3
    for notebook in (site / "notebooks").glob("*.ipynb"):
        targets = of_notebook(notebook.read_text(encoding="utf-8")).targets
        assert [t for t in targets if not re.match(r"[a-z]+:|#", t)] == [], (
            notebook.name
        )


def test_plain_markdown_has_its_pictures(site):
    for plain in site.glob("*.html.md"):
        pictures = re.findall(
            r"!\[[^\]]*\]\(([^)\s]+)\)", plain.read_text(encoding="utf-8")
        )
        assert [p for p in pictures if not (site / p).exists()] == [], plain.name


def test_code_in_raw_html_keeps_its_quotes_and_dashes(site):
    assert """<pre><code>print("it's", 1) --beam ...</code></pre>""" in (
        site / "trial.html"
    ).read_text(encoding="utf-8")
    quarto = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    assert quarto["format"]["html"]["from"].endswith("-smart")


def test_colab_without_git(cfg, monkeypatch):
    "Pages made where there is no git fetch the release instead of a commit."
    monkeypatch.setenv("PATH", "")
    assert f"checkout -q v{cfg['version']}\n" in install_cell(cfg)


def test_plain_markdown(site):
    plain = (site / "trial.html.md").read_text(encoding="utf-8")
    assert (
        plain.startswith("# Trial\n\nA width $d_k$")
        and "``` python\ndef twice(" in plain
        and "](stack.html#deviations)" in plain
    )
    assert "Folded $y$." in plain and not re.search(
        r"<(div|details|nav|!--)|secret", plain
    )


@pytest.mark.parametrize(
    "source, becomes",
    [
        (
            "import os\nfrom re import sub",
            "#| code-fold: true\n#| code-summary: Imports\n",
        ),
        ("#| code-fold: false\nimport os", ""),
        ("#| code-fold: true\nassert x", "#| code-summary: Checks\n"),
        ("#| code-fold: true\nx = 1", "#| code-summary: Show the code\n"),
        (
            '#| code-fold: true\n#| fig-cap: "a"\ndraw()',
            "#| code-summary: Code of the figure\n",
        ),
        ("#| code-fold: true\n#| code-summary: Mine\nx = 1", ""),
        ("import os\nx = 1", ""),
        ("x = 1", ""),
        ("!pip list", ""),
        ("", ""),
        ("#| echo: false", ""),
    ],
)
def test_folded_cells_say_what_is_in_them(source, becomes):
    "Quarto is not told what is meant for JupyterLab and Colab."
    cells = [cell(source) | {"metadata": dict(FOLDED)}]
    nb = dict2nb({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    Folds(nb).cell(nb.cells[0])
    assert nb.cells[0].source == becomes + source and nb.cells[0].metadata == {}


# A page with an import cell, a formula, a drawing and two definitions, as Quarto writes it and as the preview does.
QUARTO_PAGE = """<main><a class="skip" href="#m">Skip to the text</a><header><h1>T</h1><p>About</p></header>
<nav class="page-links"><a>Markdown</a></nav><p>A <em>st</em>ack.</p>
<details class="code-fold">\n<summary>Imports</summary><pre>import torch</pre></details>
<section id="one" class="level2"><h2 class="anchored" data-anchor-id="one">One &amp; <code>x</code></h2>
<p>Half <math><mi>d</mi><annotation>d_k</annotation></math> &lt; 2<svg><text>box</text></svg></p>
<iframe srcdoc="<main><h2>No</h2></main>"></iframe>
<span class="place" id="stack"></span><span class="place" id="take"></span>\n<div id="ab" class="cell"><pre><code><span>class</span> Stack: ...
<span>def</span> take(): ...</code></pre></div><p>Then</p><pre>print(1)</pre></section></main><footer>Foot</footer>"""
PREVIEW_PAGE = (
    QUARTO_PAGE.replace('<section id="one" class="level2">', "")
    .replace(' class="anchored" data-anchor-id="one"', ' id="one"')
    .replace("</section></main>", "<footer>near</footer></main>")
)


@pytest.mark.parametrize("page", [QUARTO_PAGE, PREVIEW_PAGE], ids=["quarto", "preview"])
def test_search_has_sections_and_definitions(page, tmp_path):
    code = "class Stack: ... def take(): ..."
    assert sections(page) == [
        ("", "", "About A stack."),
        ("one", "One & x", "Half d < 2 Then print(1)"),
        ("stack", "Stack", code),
        ("take", "take", code),
    ]
    (tmp_path / "t.html").write_text(page)
    index, crumbs = tmp_path / "search.json", ["Part", "T"]
    old = {"href": "t.html", "title": "T", "section": "", "text": "", "crumbs": crumbs}
    index.write_text(json.dumps([old, old | {"href": "t.html#one"}]))
    write_search(tmp_path)
    new = json.loads(index.read_text())
    assert [e["href"] for e in new] == [
        "t.html",
        "t.html#one",
        "t.html#stack",
        "t.html#take",
    ]
    assert new[1] == {
        "objectID": "t.html#one",
        "href": "t.html#one",
        "title": "T",
        "section": "One & x",
        "text": "Half d &lt; 2 Then print(1)",
        "crumbs": crumbs,
    }


def test_search_finds_each_definition(site):
    "Once, unless it has the name of a section; its import is found nowhere."
    text = (site / "search.js").read_text(encoding="utf-8")
    found = json.loads(text.removeprefix("window.sections = ").rstrip(";\n"))
    addresses = [address for address, *_ in found]
    for name, places in names_of_package().places.items():
        for page, anchor in places.items():
            assert addresses.count(f"{page}#{anchor}") == 1, name
    imported = [e for e in found if "import build_transformer" in e[3]]
    assert "misreadings.html" not in [address for address, *_ in imported]


def test_what_quarto_is_told_of_is_there():
    "Favicon, card, the page 404, what is put into each page."
    quarto = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    page, web = quarto["format"]["html"], quarto["website"]
    for name in (
        web["favicon"],
        web["image"],
        page["include-in-header"],
        page["include-before-body"],
        "404.qmd",
    ):
        assert (ROOT / "nbs" / name).exists()
    assert page["canonical-url"] and web["open-graph"] and web["twitter-card"]
    assert web["sidebar"]["collapse-level"] == 1  # opens the current part alone
    for target in re.findall(
        r"\]\(/([\w-]+)\.html\)", (ROOT / "nbs/404.qmd").read_text(encoding="utf-8")
    ):
        assert f"{target}.html" in [page_name(e.path) for e in sidebar() if e.path]


def test_llms_txt_lists_every_page(site, cfg):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith(f"# {cfg['title']}\n\n> {cfg['description']}\n")
    listed = re.findall(
        rf"^- \[.+\]\({cfg['doc_host']}{cfg['doc_baseurl']}/([\w-]+\.html)\.md\)",
        text,
        re.M,
    )
    assert listed == [page_name(e.path) for e in sidebar() if e.path] + ["trial.html"]


def test_pages_differ_in_name_and_say_what_they_are(site):
    titles = [e.text.lower() for e in sidebar() if e.path]
    assert sorted(titles) == sorted(set(titles))
    for page in site.glob("*.html"):
        head = page.read_text(encoding="utf-8").partition("</head>")[0]
        assert re.search(r'<meta name="description"\s+content="[^"]{10}', head), page


def test_loads_nothing_from_elsewhere(site):
    for page in site.glob("*.html"):
        raw = page.read_text(encoding="utf-8")
        assert not re.findall(
            r'<(?!a\b)\w+[^>]*?\s(?:src|href)="(?:https?:)?//[^"]*"', raw
        ), page.name
    assert not re.search(
        r"url\(|@import", (site / "preview.css").read_text(encoding="utf-8")
    )


def test_palette_has_one_source(site):
    "The preview's colours are those that Quarto reads, light and dark."
    css, scss = (
        (site / "preview.css").read_text(encoding="utf-8"),
        (ROOT / "nbs/site.scss").read_text(encoding="utf-8"),
    )
    pairs = re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", css)
    assert len(pairs) > 9 and all(
        f"${n}: if($is-dark-theme, {dark}, {light});" in scss
        for n, light, dark in pairs
    )
    assert {n for n in re.findall(r"var\(--(\w+)", css)} <= {n for n, *_ in pairs} | {
        "sans",
        "mono",
    }


def test_styles_compile_with_bootstrap(styles):
    "Quarto puts Bootstrap between our variables and our rules: none of our names may be one of Bootstrap's."
    for theme, ground in (("light", "#fffefc"), ("dark", "#17191c")):
        assert (
            f"--paper: {ground}" in styles[theme]
            and f"--bs-body-bg: {ground}" in styles[theme]
        )
        assert f"color-scheme: {theme}" in styles[theme]
        assert "--bs-dark: #" in styles[theme]
