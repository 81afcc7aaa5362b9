#!/usr/bin/env python
"""Catalogues of translations: for each text of nbs/NAME.ipynb, translations/LANG/NAME.md has the English and its translation.

tools/translate.py extract [NAME ...]    make catalogues of notebooks, or bring them up to date; what is translated stays
tools/translate.py status [NAME ...]     what changed in the English since it was translated, by page, text and block
tools/translate.py accept NAME KEY ...   after a revision: the translations of these texts count as made of today's English
tools/translate.py check [NAME ...]      one line for each mistake of a translation
"""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

import plots
import yaml
from catalogues import (
    CAPTIONS,
    ITEM,
    MARKS,
    Block,
    Unit,
    begun,
    blocks,
    changed,
    differences,
    extract,
    languages,
    notebook,
    output_of,
    parsed,
    parts,
    plain,
    site,
    texts,
    today,
    with_numbers,
    without_numbers,
)
from cells import CAPTION, ROOT, html, joined, retarget, slug

# ---- checks


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


# ---- what changed in the English


def says(unit: Unit, now: str) -> str:
    "A text that changed, and how."
    lines = differences(unit, now) if unit.text else ["not translated"]
    return "\n    ".join([f"  {shlex.quote(unit.key)}", *lines])


def out_of_date(path: Path) -> bool:
    "Does a drawing with the texts of a language, NAME.LANG.svg, differ from the English one in more than words?"
    english = path.with_name(path.name.split(".")[0] + path.suffix)
    if not english.exists():
        return True
    both = [[*ElementTree.parse(p).iter()] for p in (english, path)]
    form = lambda e: (e.tag, e.attrib | {"aria-label": ""})
    texts = lambda e: [plain(t or "") for t in (e.text, e.tail, e.get("aria-label"))]
    numbers = lambda text: sorted(re.findall(r"\d+(?:\.\d+)?", text))
    if [*map(form, both[0])] != [*map(form, both[1])]:
        return True
    said = [[text for e in elements for text in texts(e)] for elements in both]
    return any(
        ours != theirs and (ours.isascii() or numbers(ours) != numbers(theirs))
        for theirs, ours in zip(*said)
    )


def drawings(folder: Path) -> list[str]:
    "The drawings of a language that are out of date."
    paths = folder.parents[1].glob(f"nbs/images/*.{folder.name}.svg")
    return [f"images/{path.name}" for path in sorted(paths) if out_of_date(path)]


def status(folder: Path, names: Sequence[str]) -> None:
    for path in sorted(folder.glob("*.md")):
        if (found := changed(path)) and (path.stem in names or not names):
            print(path.stem, *(says(*pair) for pair in found), sep="\n")
    for name in drawings(folder):
        print(f"{name}: out of date")


def accept(folder: Path, name: str = "", *keys: str) -> None:
    "The translations of these texts count as made of today's English; what changed in it is printed."
    path = folder / f"{name}.md"
    if not path.exists():
        sys.exit(f"accept: no catalogue {path.name}")
    known = {unit.key: (unit, now) for unit, now in changed(path) if unit.text}
    if not keys or set(keys) - known.keys():
        sys.exit(f"accept {name}: what changed is: {shlex.join(known) or 'nothing'}")
    print(*(says(*known[key]) for key in keys), sep="\n")
    extract(folder, [name], keys)


def of_gate(root: Path = ROOT) -> tuple[list[str], list[str]]:
    "What the gate says: mistakes of form; and, which is none, what has no translation of today's English."
    wrong, new = [], []
    for folder in languages(root):
        where, lines = f"translations/{folder.name}", check(folder, [], words=False)
        try:
            found = drawings(folder)
        except ElementTree.ParseError as e:
            lines.append(f"{where}: a drawing, or the English one of it: {e}")
        wrong += lines
        for path in () if lines else begun(folder):
            now = [block for pair in changed(path) for block in today(*pair)]
            if n := sum(not all(text for _, text in block.pairs) for block in now):
                found.append(f"{path.stem} ({n} block{'s' * (n > 1)})")
        if not lines and found:
            what = "changed since it was translated, no failure (make zh-status)"
            new.append(f"{where}: {what}: {', '.join(found)}")
    return wrong, new


# ---- notebooks

ORIGINAL = '<original-text lang="en">'  # an element of its own: Quarto moves an aside
AS_IS = ("code", "formula", "html", "picture")
# With the punctuation behind a formula a browser would begin a line.
HELD = r"[（“]?(?<!\$)\$(?=[^\s$])(?:[^$\\\n]|\\.)+\$[，。；：、！？）”]+"


def marked(english: str, folder: Path) -> str:
    "A block, row or item that is not translated."
    note = f'<em class="stale">{site(folder)["stale_note"]}</em>'
    itself = r'<span lang="en">\g<0></span>'
    if english.startswith("|"):
        cells = re.sub(r"(?<=\| )(?! *\|).+?(?= *(?<!\\)\|)", itself, english)
        return cells.replace("|", f"| {note}", 1)
    if re.match(r"<|\[?!\[", english):
        return f"{note}\n\n{english}"
    begins = re.match(rf"(?:{ITEM}|#+ |> )?", english)[0]
    line = rf"(?s)^.+?(?=\n *(?:\n|{ITEM}|```|\$\$)|\Z)"  # a list may follow
    line = re.sub(line, itself, english.removeprefix(begins))
    return f"{begins}{note} {line}"


def shown(block: Block, folder: Path, both: bool) -> str:
    "A block, what is not translated of it in English; with `both` a heading with its English anchor, other text above the English."
    text = "\n".join(ours or marked(theirs, folder) for theirs, ours in block.pairs)
    if not both or block.kind in AS_IS or text == block.english:
        return text
    english = re.sub(r"^#+ ", "", block.english.removeprefix(CAPTION))
    anchor = f" {{#{slug(english)}}}" if block.kind == "heading" else ""
    text = re.sub(HELD, r"[\g<0>]{.unbroken}", text) + anchor
    if all(ours in ("", theirs) for theirs, ours in block.pairs):
        return text
    return "\n\n".join([text, html(ORIGINAL), english, html("</original-text>")])


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


@cache
def figure_words(folder: Path) -> dict[str, str]:
    "What the texts in figures are in a language: figures.yml, if it has one."
    file = folder / "figures.yml"
    return yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}


def caption(unit: Unit, now: str, folder: Path, both: bool) -> str:
    "A figure's caption or alternative text."
    is_caption = unit.key.endswith(" fig-cap")
    if plain(unit.english) != plain(now):
        return marked(now, folder) if is_caption else now
    english = f"{ORIGINAL}{now}</original-text>"
    return unit.text + (english if both and is_caption else "")


def translated(path: Path, both: bool = True) -> dict:
    "The notebook of a catalogue with its texts translated, or with `both` languages; all else stays as it is."
    nb, folder = notebook(path), path.parent
    code, cells = shared(nb), {cell["id"]: cell for cell in nb["cells"]}
    for i, (unit, now) in enumerate(texts(path)):
        key, _, option = unit.key.partition(" ")
        cell = cells[key]
        if option in CAPTIONS:
            text = caption(unit, now, folder, both)
            line = f"#| {option}: {json.dumps(text, ensure_ascii=False)}"
            pattern, line = rf"(?m)^#\| {option}:.*", line.replace("\\", r"\\")
            cell["source"] = re.sub(pattern, line, joined(cell["source"]))
            continue
        found = today(unit, now)
        if both and not i:  # the title and the line below it are no Markdown
            text = "\n".join(t or english for b in found for english, t in b.pairs)
        else:
            text = "\n\n".join(shown(block, folder, both) for block in found)
        if option == "output":
            [(out, kind, english)] = output_of(cell)
            out[kind] = with_numbers(text, without_numbers(english)[1])
        else:
            cell["source"] = retarget(text, partial(own_picture, path=path))
    assert shared(nb) == code, f"{path.stem}: its code or outputs changed"
    for data in plots.stored_figures(nb):
        svg = joined(data["image/svg+xml"])
        data["image/svg+xml"] = plots.translate(svg, figure_words(folder))
    return nb


def main(command: str = "", *names: str) -> int:
    lines = []
    for folder in languages():
        if command == "check":
            lines += check(folder, names)
        elif command == "status":
            status(folder, names)
        elif command == "accept":
            accept(folder, *names)
        elif command == "extract":
            extract(folder, names)
        else:
            sys.exit(__doc__)
    if command == "check":
        print(*lines, f"{len(lines)} mistakes", sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
