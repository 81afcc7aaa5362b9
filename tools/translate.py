#!/usr/bin/env python
"""The site in other languages: for each text of nbs/NAME.ipynb, translations/LANG/NAME.md has the English and its translation.

tools/translate.py extract [NAME ...]   make catalogues of notebooks, or bring them up to date; what is translated stays
tools/translate.py accept NAME ...      the same, after a revision: each translation counts as made of today's English
tools/translate.py check [NAME ...]     one line for each mistake of a translation
tools/translate.py status               the texts without translation of today's English, and what changed in it
tools/translate.py build                pages from the notebooks and catalogues, in _docs/LANG/ beside the English ones in _docs/
"""

import argparse
import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from notebooks import CAPTION, FENCED, INLINE, ROOT, joined, options

# ---- catalogues


class Unit(NamedTuple):
    "A text of a notebook: a cell, or the caption or alternative text of a figure."

    key: str  # the id of its cell, and which of the cell's options
    english: str
    text: str = ""  # the translation; empty: none yet


START = r"^<!-- (\w+(?: fig-cap| fig-alt)?)$"


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
        if not end:
            raise ValueError(f"{path.name}: {key}: no line --> ends its English")
        if "<!--" in text or "-->" in text:
            raise ValueError(f"{path.name}: {key}: a comment in the translation")
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


def units_of(nb: dict) -> Iterator[Unit]:
    "The texts of a notebook, in its order, none translated."
    for cell in nb["cells"]:
        source = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            yield Unit(cell["id"], source)
        elif cell["cell_type"] == "code":
            opts = options(source, cell["id"])
            for key in filter(opts.get, ("fig-cap", "fig-alt")):
                yield Unit(f"{cell['id']} {key}", opts[key])


def languages(root: Path = ROOT) -> list[Path]:
    return sorted(path.parent for path in root.glob("translations/*/site.yml"))


@cache
def site(folder: Path) -> dict:
    "What a language's site.yml says."
    return yaml.safe_load((folder / "site.yml").read_text(encoding="utf-8"))


def known(path: Path) -> list[Unit]:
    "The texts of a notebook today, with the translations of its catalogue; what was made of other English keeps that English."
    old = {unit.key: unit for unit in parsed(path) if unit.text}
    return [old.get(unit.key, unit) for unit in units_of(notebook(path))]


def stale(path: Path) -> dict[str, tuple[Unit, Unit]]:
    "The units that have no translation of today's English: what they have, and today's, by key."
    pairs = zip(known(path), units_of(notebook(path)), strict=True)
    return {
        now.key: (was, now)
        for was, now in pairs
        if not was.text or was.english != now.english
    }


def pages(folder: Path) -> list[Path]:
    "The catalogues of the pages that there are in a language: those whose title is translated."
    return [path for path in sorted(folder.glob("*.md")) if known(path)[0].text]


# ---- checks

ITEM = r"(?:[-*]|\d+\.) "
KINDS = {  # of blocks, by how they begin; others are paragraphs
    "heading": "#+ ", "table": r"\|", "list": ITEM, "code": "```",
    "formula": r"\$\$", "html": "</?[a-z]", "picture": r"!\[",
}  # fmt: skip
MORE = r"\n(?!#|```|\$\$|\|)[^\n]+"
BLOCK = (
    rf"{FENCED}|^\$\$.*?\$\$[^\n]*|^#+ [^\n]*|^\|[^\n]*(?:\n\|[^\n]*)*"
    rf"|^{ITEM}[^\n]*(?:\n+(?: |{ITEM})[^\n]*|{MORE})*|^[^\n]*\S[^\n]*(?:{MORE})*"
)


class Block(NamedTuple):
    kind: str
    text: str


def blocks(text: str) -> list[Block]:
    "Headings, paragraphs, lists, tables … of Markdown as these notebooks have it."
    found = [m[0] for m in re.finditer(BLOCK, text, re.M | re.S)]
    kind = lambda t: next((k for k, p in KINDS.items() if re.match(p, t)), "paragraph")
    return [Block(kind(text), text) for text in found]


def form(block: Block) -> str:
    "What a translation has too: the level of a heading, the items of a list, the cells of a table."
    parts = {"heading": r"\A#+", "list": rf"^ *{ITEM}", "table": r"(?<!\\)\||$"}
    if block.kind not in parts:
        return block.kind
    found = re.findall(parts[block.kind], block.text, re.M)
    return (
        f"{block.kind} {len(''.join(found)) if block.kind == 'heading' else len(found)}"
    )


MATH = r"\$\$.+?\$\$|(?<![\\$])\$(?=\S)(?:[^$\\\n]|\\.)+?(?<=\S)\$"
PARTS = {  # what is as often in a translation as in its English, and what stays of it in the prose
    "code": (f"{FENCED}|{INLINE}", "`"),
    "formulas": (MATH, "$"),
    "links": (r"\]\([^)]*\)|\]\[[^\]]+\]|\b(?:href|src)=\"[^\"]+\"", "]"),
    "tags": (r"</?[a-zA-Z][\w-]*(?=[^<>]*>)", ""),
    "numbers": (r"\d+(?:,\d{3})*(?:\.\d+)?", r"\g<0>"),
}


def parts(text: str) -> tuple[dict[str, Counter], str]:
    "Code, formulas, links, tags and numbers of a text, and its prose."
    found = {}
    for kind, (pattern, stays) in PARTS.items():
        matches = re.finditer(pattern, text, re.M | re.S)
        found[kind] = Counter("".join(m[0].split()) for m in matches)
        text = re.sub(pattern, stays, text, flags=re.M | re.S)
    return found, text


@cache
def terms(folder: Path) -> dict[str, list[str]]:
    "English term → its renderings: the tables of nbs/words.ipynb that have this language, and what site.yml adds."
    found, column = {}, 0
    for cell in notebook(folder / "words.md")["cells"]:
        for row in joined(cell["source"]).split("\n"):
            row = [name.strip() for name in row.strip("| ").split(" | ")]
            if row[0] == "English":
                names = site(folder)["terms"]
                column = row.index(names) if names in row else 0
            elif column and len(row) > column and "(" not in row[0]:
                english, said = row[0].split(", "), row[column].split("、")
                alike = len(english) == len(said)
                for i, name in enumerate(english):
                    mine = [said[i]] if alike else said
                    mine = mine + [name] * (name != name.lower())  # Adam
                    found[name] = mine + site(folder)["also"].get(name, [])
    return found


def mistakes(unit: Unit, folder: Path, words: bool = True) -> list[str]:
    "What is wrong with a translation, for the English it was made of."
    if not unit.text:
        return []
    says, found = site(folder), []
    theirs, english = parts(unit.english)
    ours, prose = parts(unit.text)
    left = ",.0" if re.search(says["scaled"], prose) else ","
    for part in (theirs, ours):
        part["numbers"] = Counter(
            re.sub(f"[{left}]", "", n) for n in part["numbers"].elements()
        )
    for kind in PARTS:
        for word, rest in (
            ("lacks", theirs[kind] - ours[kind]),
            ("adds", ours[kind] - theirs[kind]),
        ):
            found += [f"{kind}: {word} {what}" for what in rest.elements()]
    forms = [[*map(form, blocks(text))] for text in (unit.english, unit.text)]
    if forms[0] != forms[1]:
        found.append(f"blocks: {forms[1]} where the English has {forms[0]}")
    for kind, text in blocks(unit.text):
        if kind in ("paragraph", "list"):
            second = rf"(?<!\n)\n(?!\n| *(?:{ITEM}|[>$]))(.+)"
            found += [
                f"a paragraph of two lines: {t}" for t in re.findall(second, text)
            ]
    marked = re.sub(
        rf"^(?: *{ITEM}|#+ |> |\*\*\d+\.\*\* )|{re.escape(CAPTION)}",
        "",
        prose,
        flags=re.M,
    )
    for pattern, wrong, *where in says["mistakes"]:
        if not where or re.search(where[0], english):
            for m in re.finditer(pattern, marked, re.M):
                near = marked[max(0, m.start() - 6) : m.end() + 6]
                if m[0].isascii() or m[0] not in english:
                    found.append(f"{wrong}: {near!r}")
    for name, said in terms(folder).items() if words else ():
        plural = name.removesuffix("y") + ("(y|ies)" if name.endswith("y") else "s?")
        if re.search(rf"(?<![\w-]){plural}(?![\w-])", english, re.I):
            if not any(s.replace(" ", "") in unit.text for s in said):
                found.append(f"{name}: no {' or '.join(said)}")
    return found


def check(folder: Path, names: list[str], words: bool = True) -> list[str]:
    "One line for each mistake of the named catalogues, or of all; without `words` not those in terms."
    lines = []
    for path in sorted(folder.glob("*.md")):
        if names and path.stem not in names:
            continue
        where = f"translations/{folder.name}"
        try:
            notebook(path)
            for unit in parsed(path):
                found = mistakes(unit, folder, words)
                lines += [f"{where}/{path.name}: {unit.key}: {m}" for m in found]
        except ValueError as e:
            lines.append(f"{where}/{e}")
    return lines


def of_gate(root: Path = ROOT) -> list[str]:
    "What the gate says: malformed translations, and more stale texts than site.yml has recorded."
    lines = []
    for folder in languages(root):
        if found := check(folder, [], words=False):
            lines += found
            continue
        n = sum(len(stale(path)) for path in pages(folder))
        if n > (recorded := site(folder)["stale"]):
            lines.append(
                f"translations/{folder.name}: {n} texts have no translation of today's English, {recorded} are recorded: "
                f"see `make zh-status`, and translate them, or write `stale: {n}` into site.yml"
            )
    return lines


def word_diff(old: str, new: str) -> str:
    "As `git diff --word-diff`: [-gone-]{+new+}; of what stayed, the words around it."
    a, b, words = old.split(), new.split(), []
    for op, i, j, k, l in difflib.SequenceMatcher(None, a, b, False).get_opcodes():
        if op == "equal":
            words += a[i:j] if j - i < 12 else [*a[i : i + 5], "…", *a[j - 5 : j]]
            continue
        words += [f"[-{' '.join(a[i:j])}-]"] * (j > i)
        words += [f"{{+{' '.join(b[k:l])}+}}"] * (l > k)
    return " ".join(words)


def status(folder: Path) -> None:
    total, begun = 0, pages(folder)
    for path in sorted(folder.glob("*.md")):
        found = stale(path)
        if path not in begun:
            print(f"{path.stem}: {len(found)} of {len(known(path))} texts to translate")
            continue
        total += len(found)
        for was, now in found.values():
            what = word_diff(was.english, now.english) if was.text else "not translated"
            print(f"{path.stem}: {now.key}: {what}")
    print(f"{folder.name}: {len(begun)} pages, {total} texts stale")


def extract(folder: Path, names: list[str], accept: bool) -> None:
    "Write catalogues of today's texts with the translations that there are."
    if accept and not names:
        sys.exit("accept: which pages were revised?")
    for name in names or [path.stem for path in folder.glob("*.md")]:
        path = folder / f"{name}.md"
        path.touch()
        units = known(path)
        if accept:
            now = units_of(notebook(path))
            units = [n._replace(text=u.text) for u, n in zip(units, now, strict=True)]
        path.write_text(written(units), encoding="utf-8", newline="\n")


# ---- commands


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = ["extract", "accept", "check", "status", "build"]
    parser.add_argument("command", choices=commands)
    parser.add_argument("names", nargs="*", metavar="NAME", help="as 31_stack")
    parser.add_argument("--lang", help="default: all")
    args = parser.parse_args()
    failed = False
    for folder in languages():
        if args.lang not in (None, folder.name):
            continue
        match args.command:
            case "extract" | "accept":
                extract(folder, args.names, args.command == "accept")
            case "check":
                lines = check(folder, args.names)
                print("\n".join([*lines, f"{folder.name}: {len(lines)} mistakes"]))
                failed |= bool(lines)
            case "status":
                status(folder)
            case "build":
                build(folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
