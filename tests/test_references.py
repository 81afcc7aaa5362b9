"The bibliography: every work that a notebook names is in it, once, in order, with an address."

import json
import re

from cells import joined
from conftest import ROOT
from references import (
    BIBLIOGRAPHY,
    anchor,
    cites,
    missing,
    named,
    unlinked,
)

ENTRIES = json.loads(BIBLIOGRAPHY.read_text(encoding="utf-8"))


def test_every_mention_is_in_the_bibliography():
    assert len(named()) > 40
    assert missing() == {}, "add them to reference/bibliography.json"


def test_every_first_mention_leads_to_the_bibliography():
    assert unlinked() == {}, (
        "write [Author et al. 2017](reading.ipynb#author-et-al-2017)"
    )


def test_entries_are_complete_and_in_order():
    firsts = [entry["cites"][0] for entry in ENTRIES]
    assert firsts == sorted(firsts, key=str.lower)
    assert len(cites()) == sum(len(entry["cites"]) for entry in ENTRIES)
    for entry in ENTRIES:
        assert set(entry) == {"cites", "authors", "title", "where", "url"}, entry
        assert entry["authors"] and entry["title"] and entry["where"], entry
        assert re.match(r"https://\S+$|$", entry["url"]), entry
        surname = entry["cites"][0].split(" and ")[0].split(" et al.")[0].split()[0]
        assert entry["authors"].startswith(surname), entry


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
