#!/usr/bin/env python
"""Catalogues of translations: for each text of nbs/NAME.ipynb, translations/LANG/NAME.md has the English and its translation.

tools/translate.py extract [NAME ...]   make catalogues of notebooks, or bring them up to date; what is translated stays
tools/translate.py accept NAME ...      the same, after a revision: each translation counts as made of today's English
tools/translate.py check [NAME ...]     one line for each mistake of a translation
tools/translate.py status               the texts without translation of today's English, and what changed in it
"""

import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import yaml
from cells import (
    CAPTION,
    FENCED,
    INLINE,
    ROOT,
    html,
    joined,
    markdown_of,
    options,
    retarget,
    slug,
)

# ---- catalogues


class Unit(NamedTuple):
    "A text of a notebook: a cell, the caption or alternative text of a figure, or an output with the tag `translate`."

    key: str  # the id of its cell, and which of the cell's options, or "output"
    english: str
    text: str = ""  # the translation; empty: none yet


CAPTIONS = ("fig-cap", "fig-alt")
START = r"^<!-- (\w+(?: fig-\w+| output)?)$"


def written(units: list[Unit]) -> str:
    "A catalogue: the English of each unit in a comment, then the translation."
    texts = []
    for key, english, text in units:
        english = english.replace("-->", r"--\>")
        texts.append(f"<!-- {key}\n{english}\n-->\n" + (f"\n{text}\n" if text else ""))
    return "\n".join(texts)


def parsed(path: Path) -> list[Unit]:
    "The units of a catalogue; ValueError for what is none."
    before, *rest = re.split(START, path.read_text(encoding="utf-8"), flags=re.M)
    units = []
    if before.strip():
        raise ValueError(f"{path.name}: text before the first unit: {before[:40]!r}")
    for key, body in zip(rest[::2], rest[1::2]):
        english, end, text = body.partition("\n-->\n")
        if not end or "<!--" in text or "-->" in text:
            says = "no line --> after its English, or a comment in the translation"
            raise ValueError(f"{path.name}: {key}: {says}")
        english = english.removeprefix("\n").replace(r"--\>", "-->")
        units.append(Unit(key, english, text.strip("\n")))
    if len({unit.key for unit in units}) < len(units):
        raise ValueError(f"{path.name}: a unit is there twice")
    return units


def notebook(path: Path) -> dict:
    "The notebook of a catalogue."
    file = path.parents[2] / "nbs" / f"{path.stem}.ipynb"
    if not file.exists():
        raise ValueError(f"{path.name}: there is no nbs/{file.name}")
    return json.loads(file.read_text(encoding="utf-8"))


ITEM = r"(?:[-*]|\d+\.) "
NUMBER = r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)"


def without_numbers(text: str) -> tuple[str, list[str]]:
    "An output, {1} for its first number and so on; and the numbers, which the next run may change. Those in code and links stay."
    numbers = []

    def change(m: re.Match) -> str:
        if not m["number"]:
            return m[0]
        numbers.append(m["number"])
        return f"{{{len(numbers)}}}"

    # lines end elsewhere after longer numbers
    text = re.sub(rf"(?<!\n)\n(?!\n|{ITEM}|\|) *", " ", text)
    pattern = rf"{INLINE}|\]\([^)]*\)|(?P<number>{NUMBER})"
    return re.sub(pattern, change, text), numbers


def with_numbers(text: str, numbers: list[str]) -> str:
    return re.sub(r"\{(\d+)\}", lambda m: numbers[int(m[1]) - 1], text)


def output_of(cell: dict) -> list[tuple[dict, str, str]]:
    "The Markdown that a cell puts out, if it has the tag `translate`."
    is_tagged = "translate" in cell["metadata"].get("tags", [])
    return [*markdown_of(cell)] if is_tagged else []


def english_of(nb: dict) -> Iterator[tuple[str, str]]:
    "The texts of a notebook, in its order, by their keys."
    for cell in nb["cells"]:
        source = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            yield cell["id"], source
        elif cell["cell_type"] == "code":
            opts = options(source, cell["id"])
            for key in filter(opts.get, CAPTIONS):
                yield f"{cell['id']} {key}", opts[key]
            for _, _, text in output_of(cell):
                yield f"{cell['id']} output", without_numbers(text)[0]


@cache
def site(folder: Path) -> dict:
    "What a language's site.yml says."
    return yaml.safe_load((folder / "site.yml").read_text(encoding="utf-8"))


def languages(root: Path = ROOT) -> list[Path]:
    return sorted(path.parent for path in root.glob("translations/*/site.yml"))


def texts(path: Path) -> list[tuple[Unit, str]]:
    "The texts of a notebook: a translation with the English that it was made of, or of nothing, and today's English."
    known = {unit.key: unit for unit in parsed(path) if unit.text}
    today = english_of(notebook(path))
    return [(known.get(key, Unit(key, "")), now) for key, now in today]


def begun(folder: Path) -> list[Path]:
    "The catalogues of a language that become pages: those whose title is translated."
    return [path for path in sorted(folder.glob("*.md")) if texts(path)[0][0].text]


def extract(folder: Path, names: Sequence[str], accept: bool = False) -> None:
    "Write catalogues of today's texts with the translations that there are."
    for name in names or [path.stem for path in folder.glob("*.md")]:
        path = folder / f"{name}.md"
        path.touch()
        units = [
            unit if unit.text and not accept else unit._replace(english=now)
            for unit, now in texts(path)
        ]
        path.write_text(written(units), encoding="utf-8", newline="\n")


def status(folder: Path) -> None:
    for path in sorted(folder.glob("*.md")):
        found = [(unit, now) for unit, now in texts(path) if unit.english != now]
        if path not in begun(folder):
            print(f"{path.stem}: not begun, {len(found)} texts")
            continue
        for unit, now in found:
            old, new = unit.english.split(), now.split()
            words = [*difflib.unified_diff(old, new, n=5, lineterm="")][2:]
            what = " ".join(re.sub("^@@.*", "…", word).strip() for word in words)
            print(f"{path.stem}: {unit.key}: {what if unit.text else 'not translated'}")


# ---- checks

KINDS = {  # of blocks, by how they begin; others are paragraphs
    "heading": "#+ ", "table": r"\|", "list": ITEM, "code": "```",
    "formula": r"\$\$", "html": "</?[a-z]", "picture": r"\[?!\[",
}  # fmt: skip
MARKS = rf"(?m)^#+ |^ *{ITEM}|(?<!\\)\|"  # as many as in the English
MORE = r"\n(?!#|```|\$\$|\|)[^\n]+"
BLOCK = (
    rf"(?ms){FENCED}|^\$\$.*?\$\$[^\n]*|^#+ [^\n]*|^\|[^\n]*(?:\n\|[^\n]*)*"
    rf"|^{ITEM}[^\n]*(?:\n+(?: |{ITEM})[^\n]*|{MORE})*|^[^\n]*\S[^\n]*(?:{MORE})*"
)


def blocks(text: str) -> list[tuple[str, str]]:
    "Headings, paragraphs, lists, tables … of Markdown as these notebooks have it: (kind, text)."
    found = [m[0] for m in re.finditer(BLOCK, text)]
    kind = lambda t: next((k for k, p in KINDS.items() if re.match(p, t)), "paragraph")
    return [(kind(text), text) for text in found]


MATH = r"\$\$.+?\$\$|(?<![\\$])\$(?=\S)(?:[^$\\\n]|\\.)+?(?<=\S)\$"
PARTS = {  # what is as often in a translation as in its English, and what stays of it in the prose
    "code": (f"{FENCED}|{INLINE}", "`"),
    "formula": (MATH, "$"),
    "link": (r"\]\([^)]*\)|\]\[[^\]]+\]|\b(?:href|src)=\"[^\"]+\"", "]"),
    "a record's number": (r"\{\d+\}", "#"),
    "tag": (r"</?[a-zA-Z][\w-]*(?=[^<>]*>)", ""),
    "number": (r"\d+(?:,\d{3})*(?:\.\d+)?", r"\g<0>"),
}
MARKERS = rf"(?m)^(?: *{ITEM}|#+ |> |\*\*\d+\.\*\* )|{re.escape(CAPTION)}"


def parts(text: str) -> tuple[Counter[str], str]:
    "Code, formulas, links, tags and numbers of a text, and its prose."
    found = Counter[str]()
    for kind, (pattern, stays) in PARTS.items():
        left = r"[,.]|0+$" if kind == "number" else r"\s"  # 65 million is 6500万
        for m in re.finditer(pattern, text, re.M | re.S):
            found[f"{kind} {re.sub(left, '', m[0])}"] += 1
        text = re.sub(pattern, stays, text, flags=re.M | re.S)
    return found, re.sub(MARKERS, "", text)


@cache
def terms(folder: Path) -> dict[str, list[str]]:
    "English term → its renderings: the rows of nbs/words.ipynb that site.yml names, and what it adds."
    says, found = site(folder), {}
    cells = notebook(folder / "words.md")["cells"]
    text = "\n\n".join(joined(cell["source"]) for cell in cells)
    for english, ours in re.findall(says["terms"], text, re.M):
        names, said = english.split(", "), ours.split("、")
        for i, name in enumerate(names):
            one = [said[i]] if len(names) == len(said) else said
            itself = [] if name.islower() else [name]  # Adam
            found[name] = one + says["also"].get(name, itself)
    return found


# A link that names its page: with the page's number, or in 《》.
NAMED = r"\[(?=《|(\d+[a-z]?)[^\]]+\]\(\1_)([^\]]*)\]\((\w+)\.ipynb"


@cache
def names(folder: Path) -> dict[str, str]:
    "What pages are called: by their titles, up to a colon or a bracket, and as site.yml says those without a catalogue."
    texts = {path.stem: path.read_text("utf-8") for path in folder.glob("*.md")}
    titles = {k: re.search(r"(?m)^-->\n\n# ([^\n：（]+)", t) for k, t in texts.items()}
    return site(folder)["names"] | {k: m[1] for k, m in titles.items() if m}


def mistakes(unit: Unit, folder: Path, words: bool = True) -> Iterator[str]:
    "What is wrong with a translation, for the English it was made of."
    (wanted, english), (found, prose) = parts(unit.english), parts(unit.text)
    yield from (f"lacks {what}" for what in (wanted - found).elements())
    yield from (f"adds {what}" for what in (found - wanted).elements())
    form = lambda text: [(k, "".join(re.findall(MARKS, t))) for k, t in blocks(text)]
    if (ours := form(unit.text)) != (theirs := form(unit.english)):
        yield f"blocks: {ours} where the English has {theirs}"
    for kind, text in blocks(unit.text):
        if kind in ("paragraph", "list"):
            second = rf"(?<!\n)\n(?!\n| *(?:{ITEM}|[>$]))(.+)"
            yield from (f"a second line: {line}" for line in re.findall(second, text))
        for _, said, page in re.findall(NAMED, text):
            name = names(folder).get(page)
            if name and (name not in said or said[0] != "《" and kind != "table"):
                yield f"{said}: the page is called 《{name}》"
    for pattern, wrong, *where in site(folder)["mistakes"]:
        for m in re.finditer(pattern, prose, re.M):
            asked = not where or re.search(where[0], english)
            if asked and (m[0].isascii() or m[0] not in english):
                near = prose[max(0, m.start() - 6) : m.end() + 6]
                yield f"{wrong}: {near!r}"
    for name, said in terms(folder).items() if words else ():
        plural = re.sub("(?<=[^aeiou])y$", "(y|ie)", re.escape(name)) + "s?"
        is_there = re.search(rf"(?<![\w-]){plural}(?![\w-])", english, re.I)
        if is_there and not any(s.replace(" ", "") in unit.text for s in said):
            yield f"{name}: no {' or '.join(said)}"


def check(folder: Path, names: Sequence[str], words: bool = True) -> list[str]:
    "One line for each mistake of the named catalogues, or of all; without `words` not those in terms."
    lines, where = [], f"translations/{folder.name}"
    for path in sorted(folder.glob("*.md")):
        if names and path.stem not in names:
            continue
        try:
            notebook(path)
            for unit in filter(lambda unit: unit.text, parsed(path)):
                found = mistakes(unit, folder, words)
                lines += [f"{where}/{path.name}: {unit.key}: {m}" for m in found]
        except ValueError as e:
            lines.append(f"{where}/{e}")
    return lines


def of_gate(root: Path = ROOT) -> list[str]:
    "What the gate says: malformed translations, and more stale texts than site.yml has recorded."
    lines = []
    for folder in languages(root):
        lines += (found := check(folder, [], words=False))
        pairs = [] if found else [p for path in begun(folder) for p in texts(path)]
        n = sum(unit.english != now for unit, now in pairs)
        if n > site(folder)["stale"]:
            lines.append(
                f"translations/{folder.name}: {n} texts have no translation of today's English: "
                f"see `make zh-status`, and translate them, or write `stale: {n}` into site.yml"
            )
    return lines


# ---- notebooks

ORIGINAL = '<original-text lang="en">'  # an element of its own: Quarto moves an aside
AS_IS = ("code", "formula", "html", "picture")
# With the punctuation behind a formula a browser would begin a line.
HELD = r"[（“]?(?<!\$)\$(?=[^\s$])(?:[^$\\\n]|\\.)+\$[，。；：、！？）”]+"


def bilingual(unit: Unit) -> str:
    "A translated cell: headings with the English anchors, and below each paragraph the English."
    out = []
    pairs = zip(blocks(unit.text), blocks(unit.english), strict=True)
    for (kind, text), (_, english) in pairs:
        if kind in AS_IS or text == english:
            out.append(text)
            continue
        english = re.sub(r"^#+ ", "", english.removeprefix(CAPTION))
        anchor = f" {{#{slug(english)}}}" if kind == "heading" else ""
        out.append(re.sub(HELD, r"[\g<0>]{.unbroken}", text) + anchor)
        out += [html(ORIGINAL), english, html("</original-text>")]
    return "\n\n".join(out)


def in_english(text: str, folder: Path) -> str:
    "A cell without translation: marked, its headings outside of what is marked."
    note, out = f'<p lang="{folder.name}">{site(folder)["stale_note"]}</p>', []
    for is_head, some in groupby(blocks(text), lambda block: block[0] == "heading"):
        these = [text for _, text in some]
        if is_head:
            out += [f"{t} {{#{slug(t.lstrip('# '))} lang=en}}" for t in these]
        else:
            start = html(f'<div class="stale" lang="en">{note}')
            out += [start, *these, html("</div>")]
    return "\n\n".join(out)


def shared(nb: dict) -> list[dict]:
    "The code cells of a notebook without what is translated in them."
    cells = [cell for cell in nb["cells"] if cell["cell_type"] == "code"]
    drop = lambda cell: re.sub(r"(?m)^#\| fig-(cap|alt):.*", "", joined(cell["source"]))
    return [
        cell | {"source": drop(cell)} | ({"outputs": []} if output_of(cell) else {})
        for cell in cells
    ]


def own_picture(target: str, path: Path) -> str:
    "A drawing with the texts of a catalogue's language, images/NAME.LANG.svg, if there is one."
    own = Path(target).with_suffix(f".{path.parent.name}{Path(target).suffix}")
    return own.as_posix() if (path.parents[2] / "nbs" / own).is_file() else target


def translated(path: Path, both: bool = True) -> dict:
    "The notebook of a catalogue with its texts translated, or with `both` languages; all else stays as it is."
    nb = notebook(path)
    code, cells = shared(nb), {cell["id"]: cell for cell in nb["cells"]}
    for i, (unit, now) in enumerate(texts(path)):
        key, _, option = unit.key.partition(" ")
        cell = cells[key]
        if unit.english != now:
            if both and i and not option:
                cell["source"] = in_english(now, path.parent)
        elif option == "output":
            [(out, kind, text)] = output_of(cell)
            english, numbers = without_numbers(text)
            both_texts = (with_numbers(t, numbers) for t in (english, unit.text))
            filled = Unit(unit.key, *both_texts)
            out[kind] = bilingual(filled) if both else filled.text
        elif option:
            english = f"{ORIGINAL}{now}</original-text>"
            text = unit.text + (english if both and option == "fig-cap" else "")
            line = f"#| {option}: {json.dumps(text, ensure_ascii=False)}"
            pattern, line = rf"(?m)^#\| {option}:.*", line.replace("\\", r"\\")
            cell["source"] = re.sub(pattern, line, joined(cell["source"]))
        else:
            text = bilingual(unit) if both and i else unit.text
            cell["source"] = retarget(text, partial(own_picture, path=path))
    assert shared(nb) == code, f"{path.stem}: its code or outputs changed"
    return nb


def main(command: str = "", *names: str) -> int:
    if command not in ("extract", "accept", "check", "status"):
        sys.exit(__doc__)
    if command == "accept" and not names:
        sys.exit("accept: which pages were revised?")
    lines = []
    for folder in languages():
        if command == "check":
            lines += check(folder, names)
        elif command == "status":
            status(folder)
        else:
            extract(folder, names, accept=command == "accept")
    if command == "check":
        print(*lines, f"{len(lines)} mistakes", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
