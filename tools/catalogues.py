"Catalogues of translations, and which of a text's blocks they have: translations/LANG/NAME.md is for nbs/NAME.ipynb."

import difflib
import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from cells import CAPTION, FENCED, INLINE, ROOT, joined, markdown_of, options


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
RECORDS = r"\{\d+\}"  # in place of a number of an output
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


def plain(text: str) -> str:
    "A text without its line ends, which mean nothing to a translation."
    return " ".join(text.split())


def changed(path: Path) -> list[tuple[Unit, str]]:
    "The texts of a notebook whose English is another one since they were translated, or that have no translation."
    return [(u, now) for u, now in texts(path) if plain(u.english) != plain(now)]


def extract(folder: Path, names: Sequence[str], accepted: Sequence[str] = ()) -> None:
    "Write catalogues of today's texts with the translations that there are; those of the accepted keys are of today's English."
    for name in names or [path.stem for path in folder.glob("*.md")]:
        path = folder / f"{name}.md"
        path.touch()
        units = [
            unit._replace(english=now)
            if unit.key in accepted or not unit.text
            else unit
            for unit, now in texts(path)
        ]
        path.write_text(written(units), encoding="utf-8", newline="\n")


# ---- blocks

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
    "link": (
        r"\]\([^)]*\)|\]\[[^\]]+\]|\b(?:href|src)=\"[^\"]+\"|^\[[^\]\n]+\]:\s+\S+$",
        "]",
    ),
    "a record's number": (RECORDS, "#"),
    "tag": (r"</?[a-zA-Z][\w-]*(?=[^<>]*>)", ""),
    "number": (r"\d+(?:,\d{3})*(?:\.\d+)?", r"\g<0>"),
}
MARKERS = rf"(?m)^(?: *{ITEM}|#+ |> |\*\*\d+\.\*\* )|{re.escape(CAPTION)}"


def parts(text: str) -> tuple[Counter[str], str]:
    "Code, formulas, links, tags and numbers of a text, and its prose."
    found = Counter[str]()
    for kind, (pattern, stays) in PARTS.items():
        left = r"[,.]|0+$" if kind == "number" else r"\s"  # 65 million is 6500万
        if kind == "formula":  # words in it are translated
            left += r"|(?<=\\text{)[^{}]+"
        for m in re.finditer(pattern, text, re.M | re.S):
            found[f"{kind} {re.sub(left, '', m[0])}"] += 1
        text = re.sub(pattern, stays, text, flags=re.M | re.S)
    return found, re.sub(MARKERS, "", text)


# ---- what is translated of today's English

BREAKS = {"table": "\n", "list": rf"\n(?={ITEM})"}


def pieces(kind: str, text: str) -> list[str]:
    "The rows of a table, the items of a list; another block is one piece."
    return re.split(BREAKS[kind], text) if kind in BREAKS else [text]


def known_as(piece: str, key: str) -> str:
    "What a piece of English has to keep for its translation to stay: its words, not its number in a list or those of a record."
    text = re.sub(f"^{ITEM}", "", plain(piece))
    return re.sub(RECORDS, "{}", text) if key.endswith(" output") else text


class Block(NamedTuple):
    "A block of today's English: its pieces, each with its translation, which is empty where there is none."

    kind: str
    english: str
    pairs: list[tuple[str, str]]


def known(unit: Unit) -> dict[str, deque[tuple[str, str]]]:
    "A text's pieces with their translations; what is there twice may have two."
    found = defaultdict(deque)
    for block, translation in zip(blocks(unit.english), blocks(unit.text), strict=True):
        both = pieces(*block), pieces(*translation)
        for english, text in zip(*both) if len(both[0]) == len(both[1]) else ():
            numbers = [sorted(re.findall(RECORDS, t)) for t in (english, text)]
            if numbers[0] == numbers[1]:
                found[known_as(english, unit.key)].append((english, text))
    return found


def translation(piece: str, found: deque[tuple[str, str]]) -> str:
    "That of the same English, with today's numbers of a list and of records; nothing if there is none."
    if not re.search(r"[^\W\d_]", parts(piece)[1]):
        return piece  # code, a formula, numbers: it has no words
    if not found:
        return ""
    english, text = found[0]
    found.rotate(-1)
    numbers = (re.findall(RECORDS, t) for t in (english, piece))
    new = dict(zip(*numbers, strict=True))
    text = re.sub(RECORDS, lambda m: new.get(m[0], m[0]), text)
    return re.match(f"(?:{ITEM})?", piece)[0] + re.sub(f"^{ITEM}", "", text)


def today(unit: Unit, now: str) -> list[Block]:
    "Today's blocks of a text: each piece whose English is still the same has its translation, wherever it is now."
    if plain(unit.english) == plain(now):
        pairs = zip(blocks(unit.english), blocks(unit.text), strict=True)
        return [Block(*block, [(block[1], text)]) for block, (_, text) in pairs]
    found = known(unit)
    of = lambda piece: translation(piece, found[known_as(piece, unit.key)])
    return [
        Block(kind, text, [(piece, of(piece)) for piece in pieces(kind, text)])
        for kind, text in blocks(now)
    ]


def differences(unit: Unit, now: str) -> Iterator[str]:
    "What changed in the English of a text, a line for each block, row or item: word by word."
    old, new = (
        [known_as(piece, unit.key) for block in blocks(t) for piece in pieces(*block)]
        for t in (unit.english, now)
    )
    gone = [piece for piece in old if piece not in new]
    for piece in new:
        if piece in old:
            continue
        if not (near := difflib.get_close_matches(piece, gone, 1, 0.4)):
            yield f"new: {piece}"
            continue
        gone.remove(near[0])
        both = near[0].split(), piece.split()
        words = [*difflib.unified_diff(*both, n=5, lineterm="")][2:]
        yield " ".join(re.sub("^@@.*", "…", word).strip() for word in words)
    yield from (f"no longer there: {piece}" for piece in gone)
