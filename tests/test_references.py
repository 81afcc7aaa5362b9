"The bibliography: every work that a notebook names is in it, once, in order, with an address."

import json
import re

import pytest
from conftest import ROOT
from notebooks import joined
from references import (
    BIBLIOGRAPHY,
    anchor,
    cites,
    first_unlinked,
    mentions,
    missing,
    named,
    unlinked,
)

ENTRIES = json.loads(BIBLIOGRAPHY.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text, found",
    [
        ("as in (Bahdanau et al. 2015).", {"Bahdanau et al. 2015"}),
        ("Ba et al. (2016) and Elman 1990", {"Ba et al. 2016", "Elman 1990"}),
        ("by Hochreiter and\nSchmidhuber 1997", {"Hochreiter and Schmidhuber 1997"}),
        ("Tiedemann & Thottingal 2020", {"Tiedemann and Thottingal 2020"}),
        ("Junczys-Dowmunt et al., 2018", {"Junczys-Dowmunt et al. 2018"}),
        ("Popović 2015; Vig's BertViz (2019)", {"Popović 2015", "BertViz 2019"}),
        ("Multi30k and WMT 2014, in December 2017, n_steps=2000", set()),
        ("Vinyals & Kaiser et al. (2014)", {"Vinyals and Kaiser et al. 2014"}),
    ],
)
def test_mentions_are_found(text, found):
    assert mentions(text) == found


def test_every_mention_is_in_the_bibliography():
    assert len(named()) > 40
    assert missing() == {}, "add them to reference/bibliography.json"


@pytest.mark.parametrize(
    "text, found",
    [
        (
            "by [Müller et al. (2019)](reading.ipynb#muller-et-al-2019), then Müller et al. 2019",
            [],
        ),
        ("[Vinyals et al. (2015, §2.2)](reading.ipynb#vinyals-et-al-2015)", []),
        ('<a href="reading.ipynb#elman-1990">Elman 1990</a>', []),
        ("Elman 1990, later [Elman 1990](reading.ipynb#elman-1990)", ["Elman 1990"]),
        ("[Elman 1990](reading.ipynb#gage-1994)", ["Elman 1990"]),
        ("[Elman 1990](https://example.org)", ["Elman 1990"]),
        ("nobody in December 2017", []),
    ],
)
def test_first_mentions_without_a_link_are_found(text, found):
    assert first_unlinked(text) == found


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
