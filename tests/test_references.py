"The bibliography: every work that a notebook names is in it, once, in order, with an address."

import json
import re
import unicodedata

from cells import joined
from conftest import ROOT

ENTRIES = json.loads((ROOT / "reference/bibliography.json").read_text("utf-8"))
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


# The anchor of each form in which a work of the bibliography is named.
ANCHORS = {
    cite: anchor(entry["cites"][0]) for entry in ENTRIES for cite in entry["cites"]
}


def texts(kinds: tuple[str, ...]) -> dict[str, str]:
    "The cells of these kinds of each notebook, as one text."
    found = {}
    for path in sorted((ROOT / "nbs").glob("[!_.]*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        some = [joined(c["source"]) for c in cells if c["cell_type"] in kinds]
        found[path.stem] = "\n\n".join(some)
    return found


def test_every_mention_is_in_the_bibliography():
    named = {
        (stem, mention)
        for stem, text in texts(("markdown", "code", "raw")).items()
        for mention in mentions(text)
    }
    assert len({mention for _, mention in named}) > 40
    missing = {pair for pair in named if pair[1] not in ANCHORS}
    assert not missing, "add them to reference/bibliography.json"


def test_page_has_an_anchor_for_every_entry():
    path = ROOT / "nbs/reading.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    stored = "".join(
        joined(out["data"]["text/markdown"])
        for cell in cells
        for out in cell.get("outputs", [])
    )
    ids = re.findall(r'<a id="([a-z0-9-]+)"></a>', stored)
    assert ids == [anchor(entry["cites"][0]) for entry in ENTRIES]
    for entry in ENTRIES:
        assert f"</a>{entry['cites'][0]} |" in stored, "run the notebook reading"
