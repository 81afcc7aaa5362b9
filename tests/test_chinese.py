"Translated pages: their catalogues, what is checked in them, what is made of them. The pages as they are published: test_site.py."

import json
import re
import shutil
from copy import deepcopy

import pytest
import translate
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st
from notebooks import joined
from test_gate import cell
from test_pages import CAPTION, LABEL, shows
from translate import Unit, blocks, mistakes, parsed, stale, updated, written

NOTEBOOKS = sorted((ROOT / "nbs").glob("[!_.]*.ipynb"))


def nb_of(path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


# ---- catalogues


def test_every_notebook_survives_its_catalogue():
    for path in NOTEBOOKS:
        units = [
            u._replace(text="译文\n\n第二段")
            for u in translate.units_of(nb_of(path), "")
        ]
        assert units and parsed(written(units), "") == units, path.name


@given(st.text(alphabet="<!->\\ \nab"))
def test_any_english_fits_into_a_comment(text):
    hidden = translate.hidden(text)
    assert translate.unhidden(hidden) == text
    assert not re.search(r"<!--|--!?>", hidden)
    units = [Unit("a", text, "译文"), Unit("b fig-cap", text)]
    assert parsed(written(units), "") == units


def test_blocks_lose_nothing():
    "And paragraphs, headings and lists are told apart wherever the notebooks have them."
    for path in NOTEBOOKS:
        for unit in translate.units_of(nb_of(path), ""):
            found = "".join(block.text for block in blocks(unit.english))
            assert found.split() and "".join(found.split()) == "".join(
                unit.english.split()
            )
    text = "# A\ntext $x$\ngoes on\n\n- a\n- b\n\n| a | b |\n|---|---|\n| $|x$ | c |\n$$\nx\n$$\n```\n# no\n```"
    assert [kind for kind, _ in blocks(text)] == [
        "heading #", "text", "list 2", "table [3, 3, 4]", "math", "fence",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, says",
    [
        ("译文\n<!-- a\nx\n-->\n", "text before the first unit"),
        ("<!-- a\nx\n\n译文\n", "a: no line --> ends its English"),
        ("<!-- a\nx -->\n\n<!-- b\ny\n-->\n", "a: no line --> ends its English"),
        ("<!-- a\nx\n-->\n\n译文<!-- b -->\n", "a: a comment in the translation"),
        ("<!-- a\nx\n-->\n\n<!-- a\ny\n-->\n", "a: this unit is there twice"),
    ],
)
def test_malformed(text, says):
    with pytest.raises(ValueError, match=f"^name: {re.escape(says)}"):
        parsed(text, "name")


OLD = [Unit("a", "one", "一"), Unit("b", "two", "二"), Unit("c", "three")]


def test_translations_follow_the_notebook():
    "In its order; of changed English the old one stays; of a cell with another id, by its text; of none, nothing."
    new = [
        Unit(*u)
        for u in [("b", "two, changed"), ("d", "one"), ("c", "three"), ("e", "new")]
    ]
    made = updated(OLD, new)
    assert made == [
        Unit("b", "two", "二"), Unit("d", "one", "一"), Unit("c", "three"), Unit("e", "new"),
    ]  # fmt: skip
    assert updated(made, new) == made
    assert [now.key for _, now in stale(OLD, new)] == ["b", "c", "e"]
    accepted = updated(made, new, accept=True)
    assert [now.key for _, now in stale(accepted, new)] == ["c", "e"]


def test_word_diff():
    assert translate.word_diff("a b c", "a x c d") == "a [-b-] {+x+} c {+d+}"
    long = " ".join(map(str, range(40)))
    assert translate.word_diff(long, long + " x").count(" ") < 15


# ---- checks

ENGLISH = """## The mask
Each row of $QK^T$ has 65 million scores; `softmax` makes the *weights* of one query ([31 Stacks](31_stack.ipynb#dropout)).

- one
- two

| a | 2,048 |
|---|---|
| b | c |"""
CHINESE = """## 掩码
$QK^T$的每一行（row）有6500万个得分，`softmax`由此得到一个查询的*权重*（[31堆叠](31_stack.ipynb#dropout)）。

- 一
- 二

| a | 2048 |
|---|---|
| 二 | c |"""


def test_translation_without_mistake():
    assert mistakes(Unit("a", ENGLISH, CHINESE), "zh") == []
    assert mistakes(Unit("a", ENGLISH), "zh") == []


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("$QK^T$", "$QK$", "formulas: lacks $QK^T$; adds $QK$"),
        ("`softmax`", "`Softmax`", "code: lacks"),
        ("`softmax`", "softmax函数`softmax`", None),
        ("`softmax`", "`softmax`（`softmax`）", "code: adds `softmax`"),
        ("31_stack.ipynb#dropout", "31_stack.ipynb", "links: lacks"),
        ("6500万", "6600万", "numbers: lacks 65; adds 66"),
        ("2048", "2049", "numbers: lacks 2048; adds 2049"),
        ("## 掩码", "### 掩码", "blocks: ['heading ###'"),
        ("| 二 | c |", "| 二 | c |\n| 三 | d |", "blocks: "),
        ("| 二 | c |", "| 二 |", "blocks: "),
        ("- 一\n- 二", "- 一", "blocks: "),
        ("查询", "请求", "query: no 查询"),
        ("## 掩码", "## 面罩", "mask: no 掩码 or 掩蔽"),
        ("得分，", "得分，\n", "a paragraph of two lines"),
        ("- 一", "- 一\n  和半", "a paragraph of two lines"),
        ("*权重*", "**权重。**", "bold ends in full-width punctuation"),
        ("的*权重*", " 的*权重*", "a space next to Chinese"),
        ("`softmax`由此", "`softmax` 由此", "a space next to Chinese"),
        ("（[31堆叠]", "，见 [31堆叠]", "a space next to Chinese"),
        ("[31堆叠]", "[31 堆叠]", "a space next to Chinese"),
        ("得分，", "得分,", "half-width punctuation"),
        ("（row）", "(row)", "half-width brackets"),
        ("$QK^T$的", "$QK^T$3的", "a digit after a formula"),
        ("（row）", "", "行/列 without （row）"),
        ("得分", "令牌的得分", "令牌: 词元"),
    ],
)
def test_mistake_is_found(old, new, says):
    assert CHINESE.count(old) >= 1
    found = mistakes(Unit("a", ENGLISH, CHINESE.replace(old, new, 1)), "zh")
    assert bool(found) == bool(says) and (
        not says or any(f.startswith(says) for f in found)
    ), found


@pytest.mark.parametrize(
    "text, is_bare",
    [
        ("对每一行做softmax", True),
        ("$W$的各列", True),
        ("进行、运行、并行，序列和队列，列出一系列、排列，行为，列表", False),
        ("每一行（row）、列向量（column vector）", False),
    ],
)  # fmt: skip
def test_rows_and_columns(text, is_bare):
    "行 and 列, where the English has rows or columns, and nowhere else."
    assert bool(re.search(translate.BARE, text)) == is_bare
    unit = Unit("a", "Every line of $W$.", "$W$的每一行。")
    assert mistakes(unit, "zh") == []


def test_terms_are_those_of_the_words_page():
    table = translate.terms("zh")
    assert table["query"][1] == ["查询"] and table["multi-query attention"][1] == [
        "多查询注意力"
    ]
    assert "bias" not in table and "内存" in table["memory"][1]
    for text in ("two queries", "A query"):
        assert re.search(table["query"][0], text, re.I)
    assert not re.search(table["query"][0], "multi-query", re.I)


@pytest.mark.parametrize("lang", translate.languages())
def test_catalogues_have_no_mistakes(lang):
    assert translate.catalogues(lang) and translate.check(lang, []) == []


@pytest.fixture
def project(tmp_path):
    "A project of one notebook, translated."
    (tmp_path / "nbs").mkdir()
    shutil.copytree(ROOT / "translations/zh", tmp_path / "translations/zh")
    for path in translate.catalogues("zh", tmp_path)[1:]:
        path.unlink()
    for name in (translate.catalogues("zh", tmp_path)[0].stem, "words"):
        shutil.copy(ROOT / f"nbs/{name}.ipynb", tmp_path / "nbs")
    site = tmp_path / "translations/zh/site.yml"
    text = re.sub(
        "^stale: .*", "stale: 0", site.read_text(encoding="utf-8"), flags=re.M
    )
    site.write_text(text, encoding="utf-8")
    return tmp_path


def test_gate_counts_stale_texts(project):
    "One English paragraph changed on purpose: what the gate says, and what makes it content. A changed table of terms holds nobody up."
    [catalogue] = translate.catalogues("zh", project)
    path = project / f"nbs/{catalogue.stem}.ipynb"
    assert translate.of_gate(project) == []
    nb = nb_of(path)
    [i] = [i for i, c in enumerate(nb["cells"]) if c["cell_type"] == "markdown"][2:3]
    nb["cells"][i]["source"] = "Changed. " + joined(nb["cells"][i]["source"])
    path.write_text(json.dumps(nb), encoding="utf-8")
    [line] = translate.of_gate(project)
    assert "1 texts" in line and "0 are recorded" in line and "write `stale: 1`" in line
    site = project / "translations/zh/site.yml"
    site.write_text(site.read_text().replace("stale: 0", "stale: 1"), encoding="utf-8")
    translate.site.cache_clear()
    assert translate.of_gate(project) == []
    words = project / "nbs/words.ipynb"
    words.write_text(words.read_text().replace("注意力", "专注"), encoding="utf-8")
    assert translate.of_gate(project) == []
    catalogue.write_text("x" + catalogue.read_text(), encoding="utf-8")
    [line] = translate.of_gate(project)
    assert line.startswith(
        f"translations/zh/{catalogue.name}: text before the first unit"
    )


# ---- pages


def toy() -> dict:
    cells = [
        cell("# Toy\n> A toy · §9", "markdown"),
        cell(
            "## A heading\nA paragraph with $x$, twice.\n\n$$y \\tag{2}$$", "markdown"
        ),
        cell("#| export\nx = 1"),
        cell("## A heading\n\nOne more.", "markdown"),
        cell(LABEL + "draw()") | {"outputs": [shows(png="aaaa"), CAPTION]},
    ]
    return {"cells": cells, "metadata": {}}


TEXTS = ["# 玩具\n> 一个玩具 · §9", "## 标题\n有$x$，两次。\n\n$$y \\tag{2}$$", "## 标题\n\n再来一段。", "一个点：$z$", "一个点"]  # fmt: skip


def test_translated_notebook():
    nb = toy()
    units = [
        u._replace(text=t)
        for u, t in zip(translate.units_of(nb, ""), TEXTS, strict=True)
    ]
    made = translate.translated(nb, units, "zh", "toy")
    assert nb == toy()
    title, first, _, second, figure = (joined(c["source"]) for c in made["cells"])
    assert title == TEXTS[0]
    assert "## 标题 {#a-heading}\n" in first and "## 标题 {#a-heading-1}\n" in second
    assert "a $y$\n" in translate.original("a $y \\tag{3}$")  # one anchor
    assert first.index("两次") < first.index("twice") and first.count("\\tag{2}") == 1
    assert "有[$x$，]{.unbroken}两次" in first
    assert re.search(
        r'#\| fig-cap: "一个点：\$z\$<original.*A dot: \$z\$</original-text>"', figure
    )
    assert '#| fig-alt: "一个点"\ndraw()' in figure
    assert made["cells"][4]["outputs"] == nb["cells"][4]["outputs"]


def test_stale_text_is_shown_in_english():
    "In todays's, marked; its headings outside of the mark, with their anchors; a caption as it is."
    nb = toy()
    units = [
        u._replace(text=t)
        for u, t in zip(translate.units_of(nb, ""), TEXTS, strict=True)
    ]
    changed = deepcopy(nb)
    changed["cells"][1]["source"] = "## Another\nA new paragraph."
    changed["cells"][4]["source"] = joined(nb["cells"][4]["source"]).replace(
        "A dot", "A blot"
    )
    made = translate.translated(changed, units, "zh", "toy")
    _, first, _, second, figure = (joined(c["source"]) for c in made["cells"])
    head, mark, text = re.split(r"(?s)```\{=html\}\n(<div.*?)\n```", first)
    assert (
        head.strip() == "## Another {#another lang=en}" and "A new paragraph." in text
    )
    assert mark == '<div class="stale" lang="en"><p lang="zh">译文待更新</p>'
    assert text.strip().endswith("</div>\n```")
    assert "## 标题 {#a-heading}" in second
    assert 'fig-cap: "A blot: $z$"' in figure and 'fig-alt: "一个点"' in figure


def test_other_code_is_refused(monkeypatch):
    nb = toy()
    broken = lambda source, option, text: source + "\nmore()"
    monkeypatch.setattr(translate, "replaced", broken)
    units = [
        u._replace(text=t)
        for u, t in zip(translate.units_of(nb, ""), TEXTS, strict=True)
    ]
    with pytest.raises(AssertionError, match="its code or outputs changed"):
        translate.translated(nb, units, "zh", "toy")


def test_links_lead_to_the_english_page_where_it_alone_is_there():
    names = {"31_stack.ipynb"}
    for target, becomes in {
        "31_stack.ipynb#x": "31_stack.ipynb#x",
        "321_attention.ipynb#x": "../attention.html#x",
        "images/a.svg": "images/a.svg",
    }.items():
        assert translate.lead(target, names) == becomes


PAGE = """<head></head><h1 class="title">33 标题</h1><nav class="page-links" aria-label="This notebook"><a href="x">Open in Colab</a></nav>
<details><summary>Imports</summary></details><details><summary>Code of f, g</summary></details>
<svg><a href="stack.html#x">a</a></svg> <a href="./feed_forward.html#y">b</a> <a href="#z">c</a> <a href="https://stack.html">d</a>
<nav class="page-links" aria-label="Problems"><a href="https://x">Report a problem with this page</a></nav>"""


def test_page_and_its_english_one(tmp_path):
    (tmp_path / "zh").mkdir()
    page, english = tmp_path / "zh/feed_forward.html", tmp_path / "feed_forward.html"
    for path in (page, english, tmp_path / "stack.html"):
        path.write_text(PAGE, encoding="utf-8")
    translate.finish(page, "zh", ROOT / "_zh/33_feed_forward.ipynb", tmp_path)
    made = page.read_text(encoding="utf-8")
    for said in (
        "<summary>导入</summary>", "<summary>f, g的代码</summary>", ">报告本页的问题</a>", 'aria-label="问题反馈"',
        '<a href="../stack.html#x" hreflang="en">a</a>', '<a href="./feed_forward.html#y">b</a>', '<a href="#z">c</a>', '<a href="https://stack.html">d</a>',
        'href="../feed_forward.html">English</a>', 'class="both"', '<original-text lang="en">Position-wise feed-forward networks. A two',
    ):  # fmt: skip
        assert made.count(said) == 1, said
    for _ in range(2):
        translate.announce(english, "zh")
    text = english.read_text(encoding="utf-8")
    assert text.count('href="zh/feed_forward.html">中文</a>') == 1
    for html in (made, text):
        links = re.findall(
            'hreflang="([^"]+)" href="[^"]+/annotated-transformer(/[^"]+)">\n', html
        )
        assert links == [("en", "/feed_forward.html"), ("zh", "/zh/feed_forward.html"), ("x-default", "/feed_forward.html")]  # fmt: skip


def test_sidebar_has_the_pages_that_are_translated():
    contents = [
        {"text": "Home", "href": "index.ipynb"},
        {
            "section": "The model",
            "contents": ["31_stack.ipynb", "33_feed_forward.ipynb"],
        },
        {"section": "Results", "contents": ["61a_decode.ipynb"]},
    ]
    texts = {"Home": "首页", "The model": "模型"}
    part = {"section": "模型", "contents": ["33_feed_forward.ipynb"]}
    assert translate.menu(contents, {"33_feed_forward.ipynb"}, texts) == [part]
    assert translate.menu(contents, {"index.ipynb"}, texts) == [{"text": "首页", "href": "index.ipynb"}]  # fmt: skip
