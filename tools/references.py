#!/usr/bin/env python
"""Which works do the notebooks name that the bibliography lacks?

tools/references.py    prints each author and year that is missing, with its notebooks; exits with 1 if there is one
"""

import json
import re
import sys

from notebooks import ROOT, joined

BIBLIOGRAPHY = ROOT / "reference/bibliography.json"
NAME = r"[A-Z][a-zà-ž]+(?:[A-Z][a-z]+)?(?:-[A-Z][a-zà-ž]+)?"
MENTION = re.compile(
    rf"\b({NAME}(?:(?:, {NAME})*,? (?:and|&) {NAME})?(?: et al\.)?),? \(?((?:18|19|20)\d\d)\b"
)
# Words before a year that are no authors.
MONTHS = "January February March April May June July August September October November December"
NO_AUTHOR = {
    *MONTHS.split(),
    "Before",
    "By",
    "Development",
    "In",
    "Since",
    "Spring",
    "Until",
}


def mentions(text: str) -> set[str]:
    "Authors and year of each work that a text names, as in “Kingma and Ba 2015”."
    found = set()
    for names, year in MENTION.findall(" ".join(text.split())):
        if names.split()[0] not in NO_AUTHOR:
            found.add(f"{names.replace('&', 'and')} {year}")
    return found


def cites() -> set[str]:
    "Every form in which a work of the bibliography is named."
    entries = json.loads(BIBLIOGRAPHY.read_text(encoding="utf-8"))
    return {cite for entry in entries for cite in entry["cites"]}


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


if __name__ == "__main__":
    lacking = missing()
    for name, found in sorted(lacking.items()):
        print(f"{name}: {', '.join(found)}")
    sys.exit(bool(lacking))
