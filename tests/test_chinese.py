"Translated pages: their catalogues, what is checked in them, what is made of them. The pages as they are published: test_site.py."

import json
import re
import shutil

import catalogues
import gate
import plots
import publish
import pytest
import translate
from catalogues import Unit, blocks, english_of, extract, parsed, texts, today, written
from cells import heading, joined, readme
from conftest import ROOT
from lxml.html import document_fromstring, tostring
from test_gate import cell, notebook
from test_pages import CAPTION, LABEL, shows
from translate import accept, check, mistakes, of_gate

ZH = ROOT / "translations/zh"
FIRST = "## A heading\nA paragraph with $x$,\ntwice.\n\n$$y \\tag{2}$$\n\nThe last."
SOURCES = ["# Toy\n> A toy · §9", FIRST, "x = 1", "## Another\n\n- One more."]
CHINESE = [
    "# 玩具\n> 一个玩具 · §9", "## 标题\n有$x$，两次。\n\n$$y \\tag{2}$$\n\n末段。",
    "## 另一个\n\n- 再来一段。", "一个点：$z$", "一个<dark>点",
]  # fmt: skip


@pytest.fixture
def toy(tmp_path):
    "The catalogue of a notebook, translated, in a project of its own."
    shutil.copytree(ZH, tmp_path / "translations/zh", ignore=lambda *_: ["index.md"])
    for path in (tmp_path / "translations/zh").glob("*.md"):
        path.unlink()
    (tmp_path / "nbs").mkdir()
    shutil.copy(ROOT / "nbs/words.ipynb", tmp_path / "nbs")
    kind = lambda text: "code" if " = " in text else "markdown"
    figure = cell(LABEL + "draw()") | {"outputs": [shows(png="aaaa"), CAPTION]}
    cells = [cell(text, kind(text)) for text in SOURCES]
    notebook(tmp_path / "nbs/11_toy.ipynb", *cells, figure)
    path = tmp_path / "translations/zh/11_toy.md"
    extract(path.parent, ["11_toy"])
    pairs = zip(parsed(path), CHINESE, strict=True)
    path.write_text(written([unit._replace(text=text) for unit, text in pairs]))
    translate.site.cache_clear()
    return path


def key_of(path, i: int) -> str:
    return texts(path)[i][0].key


def change(path, old: str, new: str) -> None:
    "Change a text of the notebook of a catalogue."
    file = path.parents[2] / f"nbs/{path.stem}.ipynb"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))


# ---- catalogues


def test_every_notebook_survives_its_catalogue(tmp_path):
    "And its blocks are all of it; as its own translation it has no mistake of form."
    for file in sorted((ROOT / "nbs").glob("[!_.]*.ipynb")):
        found = english_of(json.loads(file.read_text(encoding="utf-8")))
        units = [Unit(key, text, "译文\n\n第二段") for key, text in found]
        (tmp_path / "a.md").write_text(written(units), encoding="utf-8")
        assert units and parsed(tmp_path / "a.md") == units, file.name
        for unit in units:
            text = "".join(text for _, text in blocks(unit.english))
            assert "".join(text.split()) == "".join(unit.english.split())
            same = mistakes(unit._replace(text=unit.english), ZH, words=False)
            assert not [m for m in same if re.match("lacks|adds|blocks", m)]


@pytest.mark.parametrize(
    "text, says",
    [
        ("译文\n<!-- a\nx\n-->\n", "text before the first unit"),
        ("<!-- a\nx\n\n译文\n", "a: no line --> after its English"),
        ("<!-- a\nx\n-->\n\n<!-- a\ny\n-->\n", "a unit is there twice"),
    ],
)
def test_malformed(text, says, toy):
    toy.write_text(text)
    [line], new = of_gate(toy.parents[2])
    assert new == []
    assert line.startswith("translations/zh/11_toy.md: ") and says in line


def test_new_english_stops_nobody(toy, capsys, monkeypatch):
    "The gate names the page, `status` the text and the words, until a revision is accepted, text by text."
    folder, root = toy.parent, toy.parents[2]
    assert of_gate(root) == ([], [])
    change(toy, "A paragraph with", "A short text with")
    change(toy, "One more.", "One more, too.")
    wrong, [line] = of_gate(root)
    assert wrong == [] and line.endswith("zh-status): 11_toy (2 blocks)")
    monkeypatch.setattr(translate, "ROOT", root)
    monkeypatch.setattr("sys.argv", ["gate.py", str(root)])
    monkeypatch.setattr(gate, "drift", lambda root: [])
    assert gate.main() == 0 and line in capsys.readouterr().out
    translate.status(folder, [])
    said = capsys.readouterr().out
    assert f"11_toy\n  {key_of(toy, 1)}\n    " in said
    assert " A -paragraph +short +text with $x$, twice.\n" in said
    extract(folder, ["11_toy"])
    assert of_gate(root) == ([], [line])
    for keys in [], [key_of(toy, 0)], ["no-such-key"]:
        with pytest.raises(SystemExit, match=key_of(toy, 1)):
            accept(folder, "11_toy", *keys)
    assert of_gate(root) == ([], [line])
    accept(folder, "11_toy", key_of(toy, 1))
    said = capsys.readouterr().out
    assert "-paragraph +short" in said and "too" not in said
    [line] = of_gate(root)[1]
    assert line.endswith("11_toy (1 block)")
    accept(folder, "11_toy", key_of(toy, 2))
    assert all(unit.english == now and unit.text for unit, now in texts(toy))
    monkeypatch.setattr(translate, "terms", lambda _: {"short": ["短"]})
    [line] = check(folder, [])
    assert line.endswith("short: no 短") and of_gate(root) == ([], [])


def test_white_space_changes_nothing(toy):
    before = sources(translate.translated(toy, both=False))
    change(toy, 'with $x$,\\n",\n    "twice.', "with $x$, twice.")
    assert of_gate(toy.parents[2]) == ([], [])
    assert sources(translate.translated(toy, both=False)) == before
    assert "译文待更新" not in "".join(sources(translate.translated(toy)))


# ---- checks

RIGHT = Unit(
    "a",
    """## The mask
Each row of $QK^T$ has 65 million scores; `softmax` makes the *weights* of one query ([31 Stacks](31_stack.ipynb#dropout)).

- one
- two

| a | 2,048 |
|---|---|
| b | c |""",
    """## 掩码
$QK^T$的每一行（row）有6500万个得分，`softmax`由此得到一个查询的*权重*（[《31编码器与解码器的堆叠》](31_stack.ipynb#dropout)）。

- 一
- 二

| a | 2048 |
|---|---|
| 二 | c |""",
)


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("", "", None),
        ("$QK^T$", "$QK$", "lacks formula $QK^T$"),
        ("31_stack.ipynb#dropout", "31_stack.ipynb", "lacks link"),
        ("6500万", "6600万", "adds number 66"),
        ("## 掩码", "### 掩码", "blocks"),
        ("查询", "请求", "query: no 查询"),
        ("*权重*", "**权重。**", "bold ends in full-width"),
        ("的*权重*", " 的*权重*", "a space before Chinese"),
        ("得分，", "得分,", "half-width punctuation"),
        ("（row）", "", None),  # the conversion to Traditional Chinese is for that
        ("《31编码器与解码器的堆叠》", "《31堆叠》", "《31堆叠》: the page is called"),
        ("《31编码器与解码器的堆叠》", "31编码器与解码器的堆叠", "31编码器"),
    ],
)
def test_mistakes(old, new, says):
    found = [*mistakes(RIGHT._replace(text=RIGHT.text.replace(old, new, 1)), ZH)]
    assert any(m.startswith(says) for m in found) if says else not found, found


@pytest.mark.parametrize("folder", translate.languages())
def test_catalogues_have_no_mistakes(folder):
    assert translate.begun(folder) and check(folder, []) == []


# ---- pages


def sources(nb: dict) -> list[str]:
    return [joined(cell["source"]) for cell in nb["cells"]]


def test_translated_notebook(toy):
    title, first, code, second, figure = sources(translate.translated(toy))
    assert (title, code) == (CHINESE[0], SOURCES[2])
    assert "## 标题 {#a-heading}\n" in first and "## 另一个 {#another}\n" in second
    assert first.index("两次") < first.index("twice") and first.count("\\tag{2}") == 1
    assert "有[$x$，]{.unbroken}两次" in first
    english = f"一个点：$z${translate.ORIGINAL}A dot: $z$</original-text>"
    assert f"#| fig-cap: {json.dumps(english, ensure_ascii=False)}\n" in figure
    assert '#| fig-alt: "一个<dark>点"\ndraw()' in figure
    alone = sources(translate.translated(toy, both=False))
    assert (
        alone[1] == CHINESE[1].replace("题\n", "题\n\n") and "A dot:" not in alone[-1]
    )


def test_an_output_is_translated_without_its_numbers(toy):
    "A later run's numbers need no new translation; a number that is left out is a mistake."
    file = toy.parents[2] / "nbs/11_toy.ipynb"
    nb = json.loads(file.read_text())
    said = "Of 1,000 rows, 98.3%\n  hold in [61e](61e_a.ipynb), `v2`."
    code = cell("show() ") | {"outputs": [shows(markdown=said)]}
    notebook(file, *nb["cells"], code | {"metadata": {"tags": ["translate"]}})
    extract(toy.parent, ["11_toy"])
    *units, unit = parsed(toy)
    english = "Of {1} rows, {2}% hold in [61e](61e_a.ipynb), `v2`."
    assert (unit.key.split()[1], unit.english) == ("output", english)
    chinese = "{2}%成立，共{1}个（[61e](61e_a.ipynb)，`v2`）。"
    toy.write_text(written([*units, unit._replace(text=chinese)]))
    assert check(toy.parent, []) == []
    change(toy, "98.3%", "99.15%")
    shown = translate.translated(toy, both=False)["cells"][-1]["outputs"][0]["data"]
    made = "99.15%成立，共1,000个（[61e](61e_a.ipynb)，`v2`）。"
    assert joined(shown["text/markdown"]) == made
    assert of_gate(toy.parents[2]) == ([], [])
    both = translate.translated(toy)["cells"][-1]["outputs"][0]["data"]["text/markdown"]
    assert both.startswith(made) and "Of 1,000 rows, 99.15% hold" in both
    toy.write_text(toy.read_text().replace("{2}%成立，", "成立，"))
    [line] = check(toy.parent, [])
    assert line.endswith("lacks a record's number {2}")


def test_a_drawing_has_the_texts_of_the_language(toy):
    "If there is one that has."
    change(toy, "One more.", "![a](images/a.svg)")
    for old, new in (
        ("One more.", "![a](images/a.svg)"),
        ("再来一段。", "![甲](images/a.svg)"),
    ):
        toy.write_text(toy.read_text().replace(old, new))
    made = lambda: sources(translate.translated(toy, both=False))[3]
    assert made().endswith("- ![甲](images/a.svg)")
    (toy.parents[2] / "nbs/images").mkdir()
    (toy.parents[2] / "nbs/images/a.zh.svg").touch()
    assert made().endswith("- ![甲](images/a.zh.svg)")


def test_readme(toy):
    "In Chinese alone, of the home page."
    change(toy, "One more.", "[See](31_stack.ipynb)")
    toy.write_text(toy.read_text().replace("One more.", "[See](31_stack.ipynb)"))
    toy.write_text(toy.read_text().replace("再来一段。", "[见](31_stack.ipynb)"))
    nb = translate.translated(toy, both=False)
    made = readme(nb | {"cells": nb["cells"][:-1]}, "translations/zh/11_toy.md")
    assert made.startswith("<!-- Made from translations/zh/11_toy.md ")
    assert made.endswith("\n\n## 另一个\n\n- [见](nbs/31_stack.ipynb)\n")


MARK = '<em class="stale">译文待更新</em>'


def test_one_new_paragraph_is_shown_in_english(toy):
    "In today's, marked; all else of its cell is translated, as are other options of a figure."
    change(toy, "A paragraph with", "A new one with")
    change(toy, 'A dot: $z$\\"', 'A blot\\"')
    _, first, _, second, figure = sources(translate.translated(toy))
    english = f'\n\n{MARK} <span lang="en">A new one with $x$,\ntwice.</span>\n\n'
    assert english in first and first.count("A new one") == 1 and "两次" not in first
    assert first.startswith("## 标题 {#a-heading}\n") and "\n\n末段。\n" in first
    assert MARK not in second and "再来一段。" in second
    caption = json.dumps(f'{MARK} <span lang="en">A blot</span>', ensure_ascii=False)
    assert f"fig-cap: {caption}" in figure and 'fig-alt: "一个<dark>点"' in figure


TABLE = "| Name | Of |\n|---|---|\n| One [a](a.ipynb) | 1 |\n| Two | 2 |"
OLD = f"Before.\n\n1. One.\n2. Two.\n\n{TABLE}\n\n$$x$$\n\nAfter."
CHINESE_TABLE = "| 名 | 数 |\n|---|---|\n| 一[a](a.ipynb) | 1 |\n| 二 | 2 |"
UNIT = Unit(
    "a", OLD, f"前面。\n\n1. 第一。\n2. 第二。\n\n{CHINESE_TABLE}\n\n$$x$$\n\n后面。"
)


@pytest.mark.parametrize(
    "old, new, missing, made",
    [
        ("Before.", "Before\nit. ", ["Before\nit. "], "后面。"),
        ("| Two", "| Second", ["| Second | 2 |"], "| 一[a](a.ipynb) | 1 |\n?"),
        ("| Two", "| Three | 3 |\n| Two", ["| Three | 3 |"], "| 二 | 2 |"),
        ("| Two | 2 |", "", [], CHINESE_TABLE[:-10] + "\n\n"),
        ("1. One.", "1. Zero.\n2. One.", ["1. Zero."], "2. 第一。\n2. 第二。"),
        ("Before.", "Before.\n\nInserted.", ["Inserted."], "前面。\n\n?\n\n1. 第一"),
        ("Before.\n\n", "", [], "1. 第一。"),
        ("\n\nAfter.", "\n\nAfter.\n\nBefore.", [], "后面。\n\n前面。"),
        ("$$x$$", "$$y$$", [], "$$y$$\n\n后面。"),  # a formula has no words
    ],
)
def test_blocks_rows_and_items(old, new, missing, made):
    "Changed, inserted, deleted, moved: exactly what is new has no translation."
    found = today(UNIT, OLD.replace(old, new, 1))
    assert [e for b in found for e, text in b.pairs if not text] == missing
    text = "\n\n".join("\n".join(t or "?" for _, t in b.pairs) for b in found)
    assert made in text


def test_a_new_row_is_marked_in_its_first_cell(toy):
    "Every cell of it is English, to screen readers and to the conversion to Traditional Chinese; links stay links."
    change(toy, "- One more.", TABLE.replace("\n", "\\n"))
    text = toy.read_text().replace("- One more.", TABLE)
    toy.write_text(text.replace("- 再来一段。", CHINESE_TABLE))
    assert of_gate(toy.parents[2]) == ([], [])
    change(toy, "One [a]", "First [a]")
    row = f'| 名 | 数 |\n|---|---|\n| {MARK} <span lang="en">First [a](a.ipynb)</span> | <span lang="en">1</span> |\n| 二 | 2 |'
    for both in (False, True):
        assert row in sources(translate.translated(toy, both))[3]


def test_a_new_row_of_an_output(toy):
    "The numbers of a record are counted anew."
    file = toy.parents[2] / "nbs/11_toy.ipynb"
    nb = json.loads(file.read_text())

    def write(*rows: str) -> None:
        out = shows(markdown="\n".join(["| A | B |", "|---|---|", *rows]))
        tagged = {"outputs": [out], "metadata": {"tags": ["translate"]}}
        notebook(file, *nb["cells"], cell("show() ") | tagged)

    write("| one | 5 |", "| two | 7 of 9 |")
    extract(toy.parent, ["11_toy"])
    *units, unit = parsed(toy)
    ours = "| 甲 | 乙 |\n|---|---|\n| 一 | {1} |\n| 二 | {3}个里{2}个 |"
    toy.write_text(written([*units, unit._replace(text=ours)]))
    assert check(toy.parent, []) == []
    write("| new | 3 |", "| one | 5.5 |", "| two | 7.5 of 9 |")
    data = translate.translated(toy, both=False)["cells"][-1]["outputs"][0]["data"]
    made = data["text/markdown"].split("\n")
    assert "new" in made[2] and MARK in made[2] and '"en">3</span>' in made[2]
    assert made[3:] == ["| 一 | 5.5 |", "| 二 | 9个里7.5个 |"]


DRAWING = '<svg><a href="a.html"><text x="1" aria-label="{}">{}</text></a></svg>'


@pytest.mark.parametrize(
    "english, says",
    [
        (DRAWING.format("The sum", "2 sums"), ""),
        (DRAWING.format("The sum", "3 sums"), "images/a.zh.svg"),
        (DRAWING.format("The sum", "2 sums").replace("a.html", "b.html"), "images/a"),
        (DRAWING.format("The sum", "2 sums").replace("</a>", "<b/></a>"), "images/a"),
    ],
)
def test_a_drawing_out_of_date_is_reported(toy, english, says):
    "Its elements, links, places and numbers are those of the English one; what is no drawing is a mistake."
    folder = toy.parents[2] / "nbs/images"
    folder.mkdir()
    (folder / "a.svg").write_text(english)
    (folder / "a.zh.svg").write_text(DRAWING.format("和", "2个和"))
    wrong, new = of_gate(toy.parents[2])
    assert wrong == [] and bool(new) == bool(says) and says in "".join(new)
    (folder / "a.zh.svg").write_text("<svg>")
    [line], _ = of_gate(toy.parents[2])
    assert "a drawing" in line


def test_readme_marks_what_is_new(toy):
    "And that alone, in plain Markdown."
    change(toy, "The last.", "The very last.")
    nb = translate.translated(toy, both=False)
    made = readme(nb | {"cells": nb["cells"][:-1]}, "translations/zh/11_toy.md")
    assert f'$$\n\n{MARK} <span lang="en">The very last.</span>\n\n' in made
    assert made.count(MARK) == 1 and made.count("last") == 1 and "两次" in made


PAGE = """<head></head><main><header id="title-block-header"><h1>33 标题</h1></header>
<summary>Code of f, g</summary> <a href="notebooks/a.ipynb">n</a> <a href="https://stack.html">s</a>
<svg><a href="stack.html#x">a</a></svg> <em>das Tier</em> <em>词</em> <a href="./feed_forward.html#y">c</a> <a href="{}/explorer.html">d</a>
<a id="quarto-back-to-top"></a></main>"""


def test_page_and_its_english_one(tmp_path):
    (tmp_path / "zh").mkdir()
    (tmp_path / "notebooks").mkdir()
    names = ("feed_forward.html", "stack.html", "explorer.html", "notebooks/a.ipynb")
    for name in (*names, "feed_forward.html.md", "zh/feed_forward.html"):
        (tmp_path / name).touch()
    made = {}
    for place, path in (
        ("", ROOT / "nbs/33_feed_forward.ipynb"),
        ("zh", ZH / "33_feed_forward.md"),
    ):
        page = document_fromstring(PAGE.format(publish.HOME))
        publish.write_links(page, path, place)
        if place:
            publish.finish(page, path, tmp_path)
        made[place] = tostring(page, encoding="unicode")
    for said in (
        "<summary>代码：f, g<", 'aria-label="本页"', ">在Colab中打开<", 'href="../notebooks/a.ipynb">n', '"https://stack.html">s',
        'href="../stack.html#x" hreflang="en">a', 'href="../explorer.html" hreflang="en">d', '="feed_forward.html#y">c',
        'href="../feed_forward.html">English<', 'href="../feed_forward.html.md" hreflang="en">', '<em lang="en">das Tier', "<em>词",
        'href="../zh-hant/feed_forward.html">繁體<', '/gh-pages/zh/notebooks/33_feed_forward.ipynb"', '/translations/zh/33_feed_forward.md"',
        '<button type="button" class="both"', '<original-text lang="en">33 Position-wise',
    ):  # fmt: skip
        assert made["zh"].count(said) == 1, said
    assert made[""].count('href="zh/feed_forward.html">中文</a>') == 1
    for text in made.values():
        found = re.findall(f'hreflang="([^"]+)" href="{publish.HOME}/([^"]+)">', text)
        assert dict(found)["zh"] == "zh/feed_forward.html" and len(found) == 4
        assert dict(found)["zh-Hant-TW"] == "zh-hant/feed_forward.html"


def test_every_page_of_the_menu_has_a_name():
    "A title of its own, or the name of a page that is in English alone, to which the menu leads."
    there = {f"{path.stem}.ipynb" for path in translate.begun(ZH)}
    quarto = publish.quarto_of(ZH, there)
    parts = quarto["website"]["sidebar"]["contents"]
    entries = [e for part in parts for e in part.get("contents", [part.get("href")])]
    assert len(entries) == len(publish.every_page()) and there >= {
        entry for entry in entries if isinstance(entry, str)
    }
    for entry in entries:
        if isinstance(entry, dict):
            assert re.search("[\u3400-\u9fff]|CTranslate2", entry["text"]), entry
            assert entry["href"].startswith(f"{publish.HOME}/")


def test_notebooks_lead_to_translated_pages(tmp_path, monkeypatch):
    here = {"zh": {"pages": ["feed_forward.html"]}}
    monkeypatch.setattr(publish, "editions", lambda: here)
    publish.write_notebooks(tmp_path, [ZH / "33_feed_forward.md"], "zh")
    text = (tmp_path / "notebooks/33_feed_forward.ipynb").read_text(encoding="utf-8")
    own, other = f"{publish.HOME}/zh/feed_forward.html", f"{publish.HOME}/zh/stack.html"
    assert "前馈网络" in text and other not in text
    assert f"{publish.HOME}/stack.html" in text or own in text
    assert "](#" not in text and f"{own}#" in text  # headings are translated there


# The pages that a query may find first; those without translation stand above the folder.
FOUND = {
    "注意力机制": "attention", "为什么除以根号dk": "attention", "位置编码": "position", "掩码怎么写": "masking",
    "标签平滑": "label_smoothing", "显存不足": "answers", "损失不下降": "troubleshooting", "推理": "packed kv_cache",
    "束搜索和贪心搜索的区别": "decode troubleshooting", "优化器": "optimizer", "注意力分数": "scoring attention", "mask": "masking",
    "Dropout": "label_smoothing", "前馈神经网络": "feed_forward one_page", "暂退法": "label_smoothing", "层规范化": "stack", "QKV": "attention",
    "词向量": "embedding", "集束搜索": "decode", "遮罩": "masking", "不收敛": "answers troubleshooting",
    "多头注意力": "multi_head", "残差连接有什么用": "stack", "教师强制": "masking", "KV缓存": "kv_cache", "显著性检验": "significance",
    "微调": "fine_tuning", "多卡训练": "many_gpus", "BLEU怎么算": "evaluate", "断点续训": "answers",
    "注意力": "attention", "前馈网络": "feed_forward", "词元": "vocab", "分词": "vocab", "检查点": "checkpoint", "学习率": "optimizer",
    "解码": "decode", "RoPE": "rotary", "命令行": "command_line", "为什么用自注意力": "complexity", "导出到CTranslate2": "ct2",
}  # fmt: skip


def test_search_in_chinese(browser, tmp_path):
    "By the terms as whole words, and by what else readers call them; on the text of today's translations, and of untranslated pages the names."
    entries = []
    for path in translate.begun(ZH):
        shown = translate.translated(path, both=False)["cells"]
        texts = [joined(c["source"]) for c in shown if c["cell_type"] == "markdown"]
        title, *first = texts[0].splitlines()
        about = first[1][2:]
        text = "\n".join([*first, *texts[1:]])
        parts = ["", *re.split(r"(?m)^##+ (.*)$", text)]
        href = publish.page_name(path).removesuffix(".html")
        entries += [
            {"href": href, "title": title[2:], "section": section, "text": text}
            | ({} if section else {"about": about})
            for section, text in zip(parts[::2], parts[1::2])
        ]
    for path in publish.every_page():
        if name := publish.named(path, ZH):
            name = re.sub(r"^\d+\w? ", "", name)
            href = publish.page_name(path).removesuffix(".html")
            entry = {"href": href, "title": name, "section": "", "text": ""}
            entries.append(entry | {"about": heading(path)[1]})
    script = publish.search_script(ZH)
    page = f"<!DOCTYPE html><meta charset=utf-8><script>{script}</script>"
    (tmp_path / "t.html").write_text(page, encoding="utf-8")
    browser.open((tmp_path / "t.html").as_uri())
    browser.ask(f"globalThis.entries = {json.dumps(entries)}, entries.length")
    ask = "search.rank(%s, entries)[0].href"
    found = {query: browser.ask(ask % json.dumps(query)) for query in FOUND}
    assert {q: p for q, p in found.items() if p not in FOUND[q].split()} == {}


def test_search_without_folded_titles():
    page = "<main><h1>t</h1><p>a</p><details><summary>Checks</summary><pre>b</pre></details></main>"
    assert publish.sections(document_fromstring(page)) == [("", "", "a b")]


NOTE = """document.querySelector(".way") && [document.querySelector(".way").textContent, document.querySelector(".way a").getAttribute("href"),
  document.querySelector("#to").getAttribute("href")]"""


def test_a_reader_is_led_back(browser, tmp_path):
    "From an English page to the language of the page seen last, until the link to English is followed."
    row = '<nav class="page-links"><a lang="en" href="{}a.html">English</a></nav><a id="to" href="./stack.html#x">b</a>'
    for name, up in (("a", ""), ("stack", ""), ("zh-hant/stack", "../")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        html = f"<!DOCTYPE html><meta charset=utf-8>{row.format(up)}<script>{publish.ways()}</script>"
        (tmp_path / f"{name}.html").write_text(html, encoding="utf-8")

    def see(name: str):
        browser.open((tmp_path / name).as_uri())
        return browser.ask(NOTE)

    def back_from(name: str, to_english: bool = False):
        "The note on an English page after one in Chinese."
        see("zh-hant/stack.html")
        if to_english:
            browser.ask("document.querySelector('a[lang]').click(), 1")
        return see(name)

    def shows(note, *of) -> bool:
        "Within ten tries: Chromium sometimes forgets what a file that is left at once stored."
        return any(back_from(*of) == note for _ in range(10))

    assert see("a.html") is None and see("zh-hant/stack.html") is None
    there = "zh-hant/stack.html#x"
    assert shows(["本頁沒有中文譯文。中文目錄", "zh-hant/index.html", there], "a.html")
    assert shows(["本頁有中文版", "zh-hant/stack.html", there], "stack.html")
    assert shows(None, "stack.html", True)


# ---- figures


def test_words_of_figures():
    "Each is in a figure, and the pages have it; formulas, numbers and code are the same in both languages."
    words, shown, there = translate.figure_words(ZH), set(), set()
    for path in translate.begun(ZH):
        of = lambda nb: {
            word
            for data in plots.stored_figures(nb)
            for word in plots.words_of(joined(data["image/svg+xml"]))
        }
        there |= of(catalogues.notebook(path))
        shown |= of(translate.translated(path))
    assert set(words) - there == set(), "in no figure"
    assert (
        not {english for english, chinese in words.items() if english != chinese}
        & shown
    )
    assert set(words.values()) <= shown
