#!/usr/bin/env python
"""Which works do the notebooks name that the bibliography lacks, or name without a link to it?

tools/references.py    prints each author and year that is missing, with its notebooks, and each first mention in the text of a
                       notebook that has no link; exits with 1 if there is one
"""

import json
import re
import sys
import unicodedata

from cells import ROOT, joined

BIBLIOGRAPHY = ROOT / "reference/bibliography.json"
NAME = r"[A-Z][a-zà-ž]+(?:[A-Z][a-z]+)?(?:-[A-Z][a-zà-ž]+)?"
MENTION = re.compile(
    rf"\b({NAME}(?:(?:, {NAME})*,? (?:and|&) {NAME})?(?: et al\.)?),? \(?((?:18|19|20)\d\d)\b"
)
# Words before a year that are no authors.
MONTHS = "January February March April May June July August September October November December"
NO_AUTHOR = f"{MONTHS} Before By Development In Since Spring Until".split()


def mentions(text: str) -> set[str]:
    "Authors and year of each work that a text names, as in “Kingma and Ba 2015”."
    found = set()
    for names, year in MENTION.findall(" ".join(text.split())):
        if names.split()[0] not in NO_AUTHOR:
            found.add(f"{names.replace('&', 'and')} {year}")
    return found


def anchor(cite: str) -> str:
    "The place of a work on the page reading, as in muller-et-al-2019."
    letters = unicodedata.normalize("NFKD", cite).encode("ascii", "ignore").decode()
    return "-".join(re.findall(r"[a-z0-9]+", letters.lower()))


def anchors() -> dict[str, str]:
    "The anchor of each form in which a work of the bibliography is named."
    entries = json.loads(BIBLIOGRAPHY.read_text(encoding="utf-8"))
    return {
        cite: anchor(entry["cites"][0]) for entry in entries for cite in entry["cites"]
    }


def cites() -> set[str]:
    "Every form in which a work of the bibliography is named."
    return set(anchors())


def named() -> dict[str, list[str]]:
    "Each work that a notebook names, and the notebooks that name it."
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "nbs").glob("[!_.]*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join(joined(cell["source"]) for cell in cells)
        for mention in mentions(text):
            found.setdefault(mention, []).append(path.stem)
    return found


def missing() -> dict[str, list[str]]:
    "The works that notebooks name and the bibliography lacks."
    known = cites()
    return {name: found for name, found in named().items() if name not in known}


def first_unlinked(text: str) -> list[str]:
    "The works whose first mention in a text of Markdown is no link to their entry."
    found = []
    for name in sorted(mentions(text) & cites()):
        target = rf"reading\.ipynb#{anchors()[name]}"
        link = re.search(rf"\[[^\]]*\]\({target}\)|<a href=\"{target}\">", text)
        if not link or name in mentions(text[: link.start()]):
            found.append(name)
    return found


def unlinked() -> dict[str, list[str]]:
    "For each notebook the works that its text names before it links to them."
    found = {}
    for path in sorted((ROOT / "nbs").glob("[!_.]*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = [joined(c["source"]) for c in cells if c["cell_type"] == "markdown"]
        names = first_unlinked("\n\n".join(text))
        if names and path.stem != "reading":
            found[path.stem] = names
    return found


if __name__ == "__main__":
    lacking, bare = missing(), unlinked()
    for name, found in sorted(lacking.items()):
        print(f"{name}: {', '.join(found)}")
    for stem, names in bare.items():
        print(f"{stem} names without a link: {', '.join(names)}")
    sys.exit(bool(lacking or bare))
