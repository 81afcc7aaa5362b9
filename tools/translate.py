#!/usr/bin/env python
"""The site in other languages: translations/LANG/NAME.md has, for each text of nbs/NAME.ipynb, the English and its translation.

tools/translate.py extract [NAME ...]   make or update the catalogues of notebooks (default: of those that have one)
tools/translate.py accept NAME ...      the same, for translations that were revised: stale ones count as made of today's English
tools/translate.py check [NAME ...]     one line for each mistake of a translation
tools/translate.py status               what changed in the English of those that are stale
tools/translate.py build                the pages: from the notebooks, to _docs/LANG/, beside the English ones in _docs/
"""

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

import yaml
from notebooks import CAPTION, ROOT, joined, options, settings
from pages import (
    FENCED,
    INLINE,
    heading,
    html,
    markdown_of,
    page_name,
    reading_path,
    retarget,
    slug,
    write_footers,
    write_search,
)

CAPTIONS = ("fig-cap", "fig-alt")
BUILT = "_{lang}"  # in this folder: notebooks, and in site/ what Quarto makes pages of


# ---- catalogues


class Unit(NamedTuple):
    "A text of a notebook: a cell, or the caption or alternative text of a figure."

    key: str  # the id of its cell, and which of the cell's options
    english: str
    text: str = ""  # the translation; empty: none yet


START = rf"^<!-- ([\w-]+(?: (?:{'|'.join(CAPTIONS)}))?)$"


def hidden(text: str) -> str:
    r"A text that neither opens nor closes a comment: `<\!--`, `--\>`; where it had backslashes there, one more."
    text = re.sub(r"<(\\*)!--", r"<\1\\!--", text)
    return re.sub(r"--(!?\\*)>", r"--\1\\>", text)


def unhidden(text: str) -> str:
    text = re.sub(r"--(!?\\*)\\>", r"--\1>", text)
    return re.sub(r"<(\\*)\\!--", r"<\1!--", text)


def written(units: list[Unit]) -> str:
    "A catalogue: the English of each unit in a comment, then the translation."
    return "\n".join(
        f"<!-- {u.key}\n{hidden(u.english)}\n-->\n"
        + (f"\n{u.text}\n" if u.text else "")
        for u in units
    )


def parsed(text: str, where: str) -> list[Unit]:
    "The units of a catalogue; ValueError for what is none."
    before, *rest = re.split(START, text, flags=re.M)
    units = []
    if before.strip():
        raise ValueError(f"{where}: text before the first unit: {before.strip()[:40]}")
    for key, body in zip(rest[::2], rest[1::2]):
        english, end, said = body.partition("\n-->\n")
        if not end:
            raise ValueError(f"{where}: {key}: no line --> ends its English")
        if "<!--" in said or "-->" in said:
            raise ValueError(f"{where}: {key}: a comment in the translation")
        units.append(Unit(key, unhidden(english[1:]), said.strip("\n")))
    if twice := [k for k, n in Counter(u.key for u in units).items() if n > 1]:
        raise ValueError(f"{where}: {twice[0]}: this unit is there twice")
    return units


def units_of(nb: dict, where: str) -> Iterator[Unit]:
    "The texts of a notebook, in its order."
    for i, cell in enumerate(nb["cells"]):
        source = joined(cell["source"])
        if cell["cell_type"] == "markdown" and source.strip():
            yield Unit(cell["id"], source)
        elif cell["cell_type"] == "code":
            opts = options(source, f"{where}, cell {i}")
            for key in (key for key in CAPTIONS if key in opts):
                yield Unit(f"{cell['id']} {key}", opts[key])


def languages(root: Path = ROOT) -> list[str]:
    return sorted(p.parent.name for p in root.glob("translations/*/site.yml"))


@cache
def site(lang: str, root: Path = ROOT) -> dict:
    "What translations/LANG/site.yml says."
    path = root / "translations" / lang / "site.yml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def catalogues(lang: str, root: Path = ROOT) -> list[Path]:
    return sorted((root / "translations" / lang).glob("*.md"))


def read(path: Path, root: Path = ROOT) -> tuple[list[Unit], list[Unit]]:
    "A catalogue, and the texts of its notebook today."
    units = parsed(path.read_text(encoding="utf-8"), path.name)
    notebook = root / "nbs" / f"{path.stem}.ipynb"
    if not notebook.exists():
        raise ValueError(f"{path.name}: there is no nbs/{notebook.name}")
    nb = json.loads(notebook.read_text(encoding="utf-8"))
    return units, list(units_of(nb, notebook.name))


def updated(old: list[Unit], new: list[Unit], accept: bool = False) -> list[Unit]:
    "The units of a notebook with the translations that there are. What was made of other English keeps that English: it is stale."
    keys = {u.key: u for u in old if u.text}
    texts = {u.english: u for u in old if u.text}
    units = []
    for unit in new:
        same = keys.get(unit.key)
        if not same or same.english != unit.english:
            same = texts.get(unit.english, same)
        english = same.english if same and not accept else unit.english
        units.append(Unit(unit.key, english, same.text if same else ""))
    return units


def stale(old: list[Unit], new: list[Unit]) -> list[tuple[Unit, Unit]]:
    "The units of a notebook that have no translation of today's English, and what they have."
    pairs = zip(updated(old, new), new, strict=True)
    return [
        (was, now) for was, now in pairs if not was.text or was.english != now.english
    ]


def word_diff(old: str, new: str) -> str:
    "As `git diff --word-diff`: [-gone-]{+new+}; of what stayed, the words around it."
    a, b = old.split(), new.split()
    words = []
    for op, i, j, k, l in difflib.SequenceMatcher(None, a, b, False).get_opcodes():
        if op == "equal":
            words += a[i:j] if j - i < 12 else [*a[i : i + 5], "…", *a[j - 5 : j]]
            continue
        words += [f"[-{' '.join(a[i:j])}-]"] * (j > i)
        words += [f"{{+{' '.join(b[k:l])}+}}"] * (l > k)
    return " ".join(words)


# ---- checks


class Block(NamedTuple):
    kind: str  # with the size of what has one, for comparing
    text: str


ITEM = r"(?:[-*]|\d+\.) "
BLOCKS = rf"""(?mx)
    (?P<fence>^\ {{0,3}}```.*?^\ {{0,3}}```[ ]*$) | (?P<math>^\s*\$\$.*?\$\$[^\n]*$) | (?P<heading>^\#{{1,6}}\ [^\n]*$)
    | (?P<table>(?:^\|[^\n]*(?:\n|\Z))+) | (?P<html>^</?[a-zA-Z][^\n]*$)
    | (?P<figure>^!\[[^\]]*\]\([^)]*\)\s*?$(?:\n\n{re.escape(CAPTION).replace(" ", "[ ]")}[^\n]*)?)
    | (?P<list>^{ITEM.replace(" ", "[ ]")}[^\n]*(?:\n+(?:[ ]|{ITEM.replace(" ", "[ ]")})[^\n]*|\n(?![#|<\n]|```|\$\$)[^\n]+)*)
    | (?P<text>^(?![#|\n]|```|\$\$)[^\n]+(?:\n(?![#|<\n]|```|\$\$|!\[)[^\n]+)*)"""


def blocks(text: str) -> list[Block]:
    "Headings, paragraphs, lists, tables … of Markdown as these notebooks have it."
    found = []
    for m in re.finditer(BLOCKS, text, flags=re.S):
        kind, block = m.lastgroup, m[0].strip("\n")
        if not block.strip():
            continue
        size = {
            "heading": re.match("#*", block)[0],
            "table": [len(re.findall(r"(?<!\\)\|", r)) for r in block.split("\n")],
            "list": len(re.findall(rf"^ *{ITEM}", block, re.M)),
        }.get(kind, "")
        found.append(Block(f"{kind} {size}".strip(), block))
    return found


MATH = r"\$\$.+?\$\$|(?<![\\$])\$(?=\S)(?:[^$\\\n]|\\.)+?(?<=\S)\$"
TARGETS = r"\]\(<?([^)\s>]+)>?[^)]*\)|\]\[([^\]]+)\]|^\[([^\]\n]+\]: .+)|\b(?:href|src)=\"([^\"]+)\""
TAG = r"</?([a-zA-Z][\w-]*|https?:[^>]*)[^>]*>"
HAN = "[\u3400-\u9fff]"
WIDE = "[\u3000-\u303f\u3400-\u9fff\uff00-\uffef]"  # with punctuation
NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"


def parts(text: str, loose: bool = False) -> tuple[dict[str, Counter], str]:
    "What a translation has in common with its English, and the prose around it: code and formulas are an x there."
    found = {}
    code = f"{FENCED}|{INLINE}"
    found["code"] = Counter(m[0] for m in re.finditer(code, text, re.M | re.S))
    text = re.sub(code, "x", text, flags=re.M | re.S)
    maths = re.findall(MATH, text, re.S)
    found["formulas"] = Counter("".join(m.split()) for m in maths)
    text = re.sub(MATH, "x", text, flags=re.S)
    found["links"] = Counter("".join(t) for t in re.findall(TARGETS, text, re.M))
    text = re.sub(TARGETS, "]", text, flags=re.M)
    found["tags"] = Counter(m[0] for m in re.finditer(TAG, text))
    found["tags"] = Counter(
        re.match(r"</?[^\s>]*", tag)[0] for tag in found["tags"].elements()
    )
    text = re.sub(TAG, "", text)
    numbers = [n.replace(",", "") for n in re.findall(NUMBER, text)]
    if loose:  # 65 million is 6500万
        numbers = [n.replace(".", "").strip("0") for n in numbers]
    found["numbers"] = Counter(numbers)
    return found, text


MARKERS = rf"^(?: *{ITEM}|#+ |> |\*\*\d+\.\*\* )|{re.escape(CAPTION)}"
FAULTS = {  # in prose that parts() made, without MARKERS
    r"\*\*(?=\S)[^*\n]*[\u3001-\u303f\uff01-\uff65]\*\*": "bold ends in full-width punctuation, where no bold ends",
    rf"(?<={WIDE})[*_)\]]* +(?=[^\s|·])|(?<=[^\s|·]) +[*_(\[]*(?={WIDE})": "a space next to Chinese, which the page makes itself",
    rf"(?<={HAN})[*\]]*(?:[,;:?!]|\.(?!\w))|[,;:?!](?={HAN})": "half-width punctuation",
    rf"(?<={HAN})\(|\((?=[^()]*{HAN})": "half-width brackets",
}
# A reader in Taiwan takes 行 for what one on the mainland calls 列. Not in 进行, 行为, 序列, 列表 and their like.
BARE = (
    rf"(?<![进运执并可流同银另自旅发步平推施现先通履举盛言飞航爬试实排内])行(?![为业动星李驶程政使人走]|{HAN}{{0,3}}（row)"
    rf"|(?<![序队排系并陈数罗阵前下上分])列(?![表出举车为入]|{HAN}{{0,3}}（column)"
)


def soft_breaks(text: str) -> list[str]:
    "Lines that go on in the next one: Quarto puts a space between them."
    found = []
    for kind, block in blocks(text):
        if kind.split()[0] in ("text", "list"):
            lines = [line for line in block.split("\n") if line.strip()]
            pairs = zip(lines, lines[1:])
            found += [a for a, b in pairs if not re.match(rf" *(?:{ITEM}|[>$])", b)]
    return found


@cache
def terms(lang: str, root: Path = ROOT) -> dict[str, tuple[str, list[str]]]:
    "The table of nbs/words.ipynb, and what site.yml adds: term → (a pattern of it, its renderings)."
    also, column, found = site(lang, root)["also"], site(lang, root)["terms"], {}
    nb = json.loads((root / "nbs/words.ipynb").read_text(encoding="utf-8"))
    tables = [b for c in nb["cells"] for b in blocks(joined(c["source"]))]
    for block in tables:
        rows = [row.strip("| ").split(" | ") for row in block.text.split("\n")]
        if not block.kind.startswith("table") or column not in map(str.strip, rows[0]):
            continue
        for row in rows[2:]:
            english, said = row[0], row[[*map(str.strip, rows[0])].index(column)]
            if re.search(r"\([a-z]", english):  # bias (of a layer): it has other senses
                continue
            names = re.sub(r" \(.*?\)", "", english).split(", ")
            said = re.sub("（.*?）", "", said).replace(" ", "").split("、")
            last = names[-1].partition(" ")[2]  # query, multi-query attention
            for i, name in enumerate(names):
                whole = f"{name} {last}" if last and " " not in name else name
                mine = [said[i]] if len(names) == len(said) > 1 else said
                mine = mine + [name] * (name != name.lower()) + also.get(whole, [])
                plural = re.escape(whole).removesuffix("y")
                plural += "(?:y|ies)" if whole.endswith("y") else "s?"
                found[whole] = rf"(?<![\w-]){plural}(?![\w-])", mine
    return found


def difference(ours: Counter, theirs: Counter) -> str:
    lacks, adds = theirs - ours, ours - theirs
    return "; ".join(
        f"{word} {', '.join(sorted(which.elements()))}"
        for word, which in (("lacks", lacks), ("adds", adds))
        if which
    )


def mistakes(unit: Unit, lang: str, root: Path = ROOT, words: bool = True) -> list[str]:
    "What is wrong with a translation, for the English it was made of."
    if not unit.text:
        return []
    theirs, english = parts(unit.english)
    ours, prose = parts(unit.text)
    if re.search(r"\d[万亿千百]", prose):
        theirs, ours = parts(unit.english, True)[0], parts(unit.text, True)[0]
    found = [
        f"{kind}: {what}"
        for kind in theirs
        if (what := difference(ours[kind], theirs[kind]))
    ]
    kinds = [[b.kind for b in blocks(text)] for text in (unit.english, unit.text)]
    if kinds[0] != kinds[1]:
        found.append(f"blocks: {kinds[1]} where the English has {kinds[0]}")
    found += [
        f"a paragraph of two lines: {line[:30]}" for line in soft_breaks(unit.text)
    ]
    for m in re.finditer(MATH, unit.text, re.S):
        if unit.text[m.end() : m.end() + 1].isdigit():
            found.append(f"a digit after a formula, where none ends: {m[0]}")
    marked = re.sub(MARKERS, "", prose, flags=re.M)
    for pattern, says in FAULTS.items():
        for m in re.finditer(pattern, marked, re.M):
            found.append(f"{says}: {marked[max(0, m.start() - 6) : m.end() + 6]!r}")
    if re.search(r"\b(rows?|columns?)\b", english) and (m := re.search(BARE, prose)):
        found.append(
            f"行/列 without （row）/（column）: {prose[max(0, m.start() - 6) : m.end() + 6]!r}"
        )
    for wrong, right in site(lang, root)["never"].items():
        if wrong in prose and wrong not in unit.english:
            found.append(f"{wrong}: {right}")
    for name, (pattern, said) in terms(lang, root).items() if words else ():
        if re.search(pattern, english, re.I):
            if not any(s in unit.text.replace(" ", "") for s in said):
                found.append(f"{name}: no {' or '.join(said)}")
    return found


def check(
    lang: str, names: list[str], root: Path = ROOT, words: bool = True
) -> list[str]:
    "One line for each mistake of the named catalogues, or of all."
    lines = []
    for path in catalogues(lang, root):
        if names and path.stem not in names:
            continue
        try:
            units, _ = read(path, root)
        except ValueError as e:
            lines.append(f"translations/{lang}/{e}")
            continue
        for unit in units:
            where = f"translations/{lang}/{path.name}: {unit.key}"
            lines += [f"{where}: {m}" for m in mistakes(unit, lang, root, words)]
    return lines


def of_gate(root: Path = ROOT) -> list[str]:
    "What the gate says of translations: mistakes, and more stale units than site.yml allows. English is never held up by the table of terms."
    lines = []
    for lang in languages(root):
        lines += (found := check(lang, [], root, words=False))
        if found:
            continue
        n = sum(len(stale(*read(path, root))) for path in catalogues(lang, root))
        if n > (known := site(lang, root)["stale"]):
            lines.append(
                f"translations/{lang}: {n} texts have no translation of today's English, {known} are recorded: "
                f"see `make zh-status`, and translate them, or write `stale: {n}` into site.yml"
            )
    return lines


# ---- pages


ORIGINAL = '<original-text lang="en">'  # an element of its own: Quarto moves an aside


def original(text: str) -> str:
    "What the view with both languages shows below a translation: the English."
    text = re.sub(r"\s*\\tag\{[^}]*\}", "", text)  # its place is the translation's
    return f"{html(ORIGINAL)}\n\n{text}\n\n{html('</original-text>')}"


AS_IS = ("fence", "math", "html")


def unbroken(text: str) -> str:
    "Inline formulas with the punctuation around them: a browser would begin a line with it."
    around = rf"[（“]*(?:{MATH})[，。；：、！？）”]*"

    def held(m: re.Match) -> str:
        text = m[0]
        alone = text.startswith("$$") or text[0] + text[-1] == "$$"
        return text if alone else f"[{text}]{{.unbroken}}"

    return re.sub(around, held, text)


def bilingual(unit: Unit, anchors: Iterator[str]) -> str:
    "A cell's translation, its headings with the English anchors, below each paragraph the English."
    out = []
    for ours, theirs in zip(blocks(unit.text), blocks(unit.english), strict=True):
        kind, english = theirs.kind.split()[0], theirs.text
        out.append(ours.text if kind in AS_IS else unbroken(ours.text))
        if kind == "heading":
            out[-1] += f" {{#{next(anchors)}}}"
            english = english.lstrip("# ")
        elif kind == "figure":
            english = english.partition(CAPTION)[2]
        if english and kind not in AS_IS and ours.text != theirs.text:
            out.append(original(english))
    return "\n\n".join(out)


def in_english(text: str, anchors: Iterator[str], note: str) -> str:
    "A cell without translation: marked, its headings outside of what is marked."
    start = html(f'<div class="stale" lang="en"><p lang="{note[0]}">{note[1]}</p>')
    out, inside = [], False
    for kind, block in blocks(text):
        is_head = kind.startswith("heading")
        if inside == is_head:
            out.append(html("</div>") if inside else start)
            inside = not is_head
        out.append(f"{block} {{#{next(anchors)} lang=en}}" if is_head else block)
    return "\n\n".join(out + [html("</div>")] * inside)


def anchors_of(nb: dict) -> Iterator[str]:
    "The anchors that pandoc gives the headings of a notebook below its title."
    taken = Counter()
    for cell in nb["cells"][1:]:
        if cell["cell_type"] == "markdown":
            for kind, block in blocks(joined(cell["source"])):
                if kind.startswith("heading"):
                    name = slug(block.lstrip("# "))
                    yield name + (f"-{taken[name]}" if taken[name] else "")
                    taken[name] += 1


def translated(nb: dict, units: list[Unit], lang: str, name: str) -> dict:
    "A notebook with its texts translated. Everything else stays as it is."
    made, anchors, says = deepcopy(nb), anchors_of(nb), site(lang)
    now = list(units_of(nb, name))
    missing = {unit.key for _, unit in stale(units, now)}
    known = {unit.key: unit for unit in updated(units, now)}
    for i, cell in enumerate(made["cells"]):
        source, key = joined(cell["source"]), cell["id"]
        if cell["cell_type"] == "markdown" and key in known:
            if i == 0:
                cell["source"] = source if key in missing else known[key].text
            elif key in missing:
                note = says["lang"], says["stale_note"]
                cell["source"] = in_english(source, anchors, note)
            else:
                cell["source"] = bilingual(known[key], anchors)
        for option in CAPTIONS if cell["cell_type"] == "code" else ():
            unit = known.get(f"{key} {option}")
            if unit and unit.key not in missing:
                text = unit.text
                if option == "fig-cap":
                    text += f"{ORIGINAL}{unit.english}</original-text>"
                cell["source"] = source = replaced(source, option, text)
    assert next(anchors, None) is None, name
    same = [
        [bare(c) for c in n["cells"] if c["cell_type"] == "code"] for n in (nb, made)
    ]
    assert same[0] == same[1], f"{name}: its code or outputs changed"
    return made


def replaced(source: str, option: str, text: str) -> str:
    "A cell with another value of an option, which takes one line."
    line = f"#| {option}: {json.dumps(text, ensure_ascii=False)}"
    source, n = re.subn(rf"^#\| {option}:.*$", lambda _: line, source, flags=re.M)
    assert n == 1, line
    return source


def bare(cell: dict) -> dict:
    "A code cell without what is translated of it."
    lines = joined(cell["source"]).split("\n")
    kept = [line for line in lines if not re.match(r"#\| fig-(cap|alt):", line)]
    return cell | {"source": kept}


def menu(contents: list[dict], names: set[str], texts: dict[str, str]) -> list[dict]:
    "The sidebar of _quarto.yml: the pages that are translated, the parts that have some."
    kept = []
    for entry in contents:
        if "href" in entry:
            new = entry | {"text": texts.get(entry["text"], entry["text"])}
            kept += [new] * (entry["href"] in names)
        elif pages := [name for name in entry["contents"] if name in names]:
            part = texts.get(entry["section"], entry["section"])
            kept.append({"section": part, "contents": pages})
    return kept


def quarto_of(lang: str, names: set[str]) -> dict:
    "The settings of the second project: those of the first, in its language."
    cfg, says = settings(), site(lang)
    quarto = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    quarto["lang"] = says["lang"]
    quarto["project"]["output-dir"] = "_site"
    web, home = quarto["website"], f"{cfg['doc_host']}{cfg['doc_baseurl']}"
    web |= {"title": says["title"], "description": says["description"]}
    web |= {"site-url": f"{home}/{lang}", "repo-url": cfg["git_url"]}
    web["sidebar"]["contents"] = [
        *menu(web["sidebar"]["contents"], names, says["texts"]),
        {"text": "English", "href": f"{home}/"},
    ]
    theme = quarto["format"]["html"]["theme"]
    theme["light"] = [theme["light"], "language.scss"]
    theme["dark"].insert(1, "language.scss")
    return quarto


def lead(target: str, names: set[str]) -> str:
    "Where a link of a translated notebook leads: to the English page, where that alone is there."
    file, hash_, anchor = target.partition("#")
    if not file.endswith(".ipynb") or file in names:
        return target
    return f"../{page_name(Path(file))}{hash_}{anchor}"


def process(lang: str, paths: list[Path], project: Path) -> None:
    "What nbdev and our processors make of the translated notebooks, for Quarto."
    from nbdev.processors import FilterDefaults
    from nbdev.serve_drv import main as run

    names = {path.name for path in paths}
    for path in paths:
        run((path, project / path.name, FilterDefaults))
        nb = json.loads((project / path.name).read_text(encoding="utf-8"))
        for cell in nb["cells"]:
            for kept, kind, text in markdown_of(cell):
                text = retarget(text, lambda target: lead(target, names))
                kept[kind] = re.findall(r"[^\n]*\n|[^\n]+", text)  # as Quarto wants it
        text = json.dumps(nb, ensure_ascii=False)
        (project / path.name).write_text(text, encoding="utf-8")


def switch(lang: str, file: str) -> str:
    "The links by which search engines find a page in its other language."
    home = f"{settings()['doc_host']}{settings()['doc_baseurl']}"
    places = {"en": home, site(lang)["lang"]: f"{home}/{lang}", "x-default": home}
    link = '<link rel="alternate" hreflang="{}" href="{}/{}">\n'
    return "".join(link.format(code, to, file) for code, to in places.items())


def finish(page: Path, lang: str, path: Path, docs: Path) -> None:
    "A page that Quarto made: its fixed texts, its links, the row of links below its title."
    says, text = site(lang), page.read_text(encoding="utf-8")

    def fixed(m: re.Match) -> str:
        said = says["texts"].get(m["text"])
        if not said and m["text"].startswith("Code of "):
            said = says["texts"]["Code of {}"].format(
                m["text"].removeprefix("Code of ")
            )
        return m["before"] + (said or m["text"]) + m["after"]

    def link(m: re.Match) -> str:
        to = m["to"].removeprefix("./").removeprefix("../")
        file = to.partition("#")[0].partition("?")[0]
        if not file or "/" in file or (page.parent / file).exists():
            return m[0]
        if not (docs / file).exists():
            return m[0]
        return f'{m["before"]}href="../{to}" hreflang="en"'

    text = re.sub(
        r'(?P<before><summary>|<a\b[^>]*>|aria-label="|ariaLabel = ")(?P<text>[^<>"]+)(?P<after></summary>|</a>|")',
        fixed,
        text,
    )
    text = re.sub(r'(?P<before><a\b[^>]*?)href="(?P<to>[^":]+)"', link, text)
    cfg, name = settings(), path.stem
    own = f"{cfg['user']}/{cfg['repo']}/blob/gh-pages/notebooks/{path.name}"
    source = f"{cfg['git_url']}/blob/{cfg['branch']}/translations/{lang}/{name}.md"
    words = says["texts"]
    links = [
        f'<a hreflang="en" lang="en" href="../{page.name}">English</a>',
        f'<button type="button" class="both" aria-pressed="false">{says["both"]}</button>',
        f'<a hreflang="en" href="https://colab.research.google.com/github/{own}">{words["Open in Colab"]}</a>',
        f'<a href="{source}">{words["View source"]}</a>',
    ]
    row = f'<nav class="page-links" aria-label="{words["This notebook"]}">{" ".join(links)}</nav>'
    text = re.sub(
        r'<nav class="page-links".*?</nav>', lambda _: row, text, count=1, flags=re.S
    )
    title, about = map(escape, heading(ROOT / "nbs" / path.name))
    english = f"{ORIGINAL}{title}. {about}</original-text>"
    text = re.sub(
        r'<h1 class="title">.*?</h1>', lambda m: m[0] + english, text, flags=re.S
    )
    text = text.replace("</head>", switch(lang, page.name) + "</head>", 1)
    page.write_text(text, encoding="utf-8")


def announce(page: Path, lang: str) -> None:
    "The English page names its translation."
    text, code = page.read_text(encoding="utf-8"), site(lang)["lang"]
    if f'hreflang="{code}"' in text:
        return
    there = f'<a lang="{code}" hreflang="{code}" href="{lang}/{page.name}">{site(lang)["name"]}</a>'
    text = re.sub(
        r'<nav class="page-links"[^>]*>', lambda m: f"{m[0]}{there} ", text, count=1
    )
    text = text.replace("</head>", switch(lang, page.name) + "</head>", 1)
    page.write_text(text, encoding="utf-8")


def prepare(lang: str) -> tuple[list[Path], Path]:
    "The translated notebooks, and the project from which Quarto makes their pages."
    folder, ours = ROOT / BUILT.format(lang=lang), ROOT / "translations" / lang
    project, paths = folder / "site", []
    shutil.rmtree(folder, ignore_errors=True)
    project.mkdir(parents=True)
    for path in catalogues(lang):
        notebook = ROOT / "nbs" / f"{path.stem}.ipynb"
        nb = json.loads(notebook.read_text(encoding="utf-8"))
        made = translated(nb, read(path)[0], lang, path.stem)
        paths.append(folder / notebook.name)
        text = json.dumps(made, ensure_ascii=False, indent=1)
        paths[-1].write_text(text + "\n", encoding="utf-8")
    shutil.copytree(ROOT / "nbs/images", project / "images")
    for name in ("pages.lua", "site.scss", "dark.scss", "search.js", "favicon.svg"):
        shutil.copy(ROOT / "nbs" / name, project)
    shutil.copy(ours / "site.scss", project / "language.scss")
    for name in ("head.html", "skip.html"):
        text = (ROOT / "nbs" / name).read_text(encoding="utf-8")
        for english, said in site(lang)["texts"].items():
            text = text.replace(f'"{english}"', f'"{said}"').replace(
                f">{english}<", f">{said}<"
            )
        more = (
            (ours / name).read_text(encoding="utf-8") if (ours / name).exists() else ""
        )
        (project / name).write_text(text + more, encoding="utf-8")
    quarto = yaml.safe_dump(
        quarto_of(lang, {p.name for p in paths}), allow_unicode=True
    )
    (project / "_quarto.yml").write_text(quarto, encoding="utf-8")
    process(lang, paths, project)
    return paths, project


def build(lang: str) -> None:
    "The pages of a language, below those that `make docs` made; these name them."
    docs = ROOT / settings()["doc_path"]
    if not (docs / "index.html").exists():
        sys.exit(f"{docs.name} holds no pages, to which the translated ones link")
    paths, project = prepare(lang)
    subprocess.run(["quarto", "render", "--no-cache"], cwd=project, check=True)
    folder = docs / lang
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(project / "_site", folder)
    shutil.copytree(ROOT / "nbs/images", folder / "images", dirs_exist_ok=True)
    for file in (ROOT / "nbs/search.js", docs / "charts.js"):
        shutil.copy(file, folder)
    write_search(folder)
    here = {path.name: path for path in paths}
    if len(paths) > 1:  # one page alone has no footer
        evening = [here[p.name] for p in reading_path() if p.name in here]
        write_footers(folder, evening)
    for path in paths:
        finish(folder / page_name(path), lang, path, docs)
        announce(docs / page_name(path), lang)


# ---- commands


def status(lang: str) -> None:
    total = 0
    for path in catalogues(lang):
        found = stale(*read(path))
        total += len(found)
        for was, now in found:
            what = word_diff(was.english, now.english) if was.text else "not translated"
            print(f"{path.relative_to(ROOT)}: {now.key}: {what}\n")
    print(f"{lang}: {len(catalogues(lang))} pages, {total} stale")


def extract(lang: str, names: list[str], accept: bool) -> None:
    for name in names or [path.stem for path in catalogues(lang)]:
        path = ROOT / "translations" / lang / f"{name}.md"
        nb = json.loads((ROOT / "nbs" / f"{name}.ipynb").read_text(encoding="utf-8"))
        old = (
            parsed(path.read_text(encoding="utf-8"), path.name) if path.exists() else []
        )
        units = updated(old, list(units_of(nb, name)), accept)
        path.write_text(written(units), encoding="utf-8", newline="\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = ["extract", "accept", "check", "status", "build"]
    parser.add_argument("command", choices=commands)
    parser.add_argument("names", nargs="*", metavar="NAME", help="as 31_stack")
    parser.add_argument("--lang", choices=languages(), help="default: all")
    args = parser.parse_args()
    os.chdir(ROOT)
    failed = False
    for lang in [args.lang] if args.lang else languages():
        match args.command:
            case "extract" | "accept":
                if args.command == "accept" and not args.names:
                    sys.exit("accept: which pages were revised?")
                extract(lang, args.names, args.command == "accept")
            case "check":
                lines = check(lang, args.names)
                print("\n".join([*lines, f"{lang}: {len(lines)} mistakes"]))
                failed |= bool(lines)
            case "status":
                status(lang)
            case "build":
                build(lang)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
