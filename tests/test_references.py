"The bibliography: every work that a notebook names is in it. The READMEs of records: what they name exists."

import json
import re

import pytest
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


def test_every_mention_is_in_the_bibliography():
    known = {cite for entry in ENTRIES for cite in entry["cites"]}
    named = set()
    for path in sorted((ROOT / "nbs").glob("[!_.]*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n\n".join(joined(cell["source"]) for cell in cells)
        named |= {(path.stem, mention) for mention in mentions(text)}
    assert len({mention for _, mention in named}) > 40
    missing = {pair for pair in named if pair[1] not in known}
    assert not missing, "add them to reference/bibliography.json"


def test_numbers_of_the_works_that_the_paper_cites():
    "Each number once; both lists are sorted by first author, but for one work."
    lists = {}
    for name, n_works in (("preprint", 40), ("proceedings", 32)):
        own = sorted((e for e in ENTRIES if name in e), key=lambda e: e[name])
        assert [e[name] for e in own] == [*range(1, n_works + 1)]
        lists[name] = own
    surnames = [e["authors"].split(",")[0] for e in lists["preprint"]]
    assert surnames == sorted(surnames)
    kept = [e for e in lists["preprint"] if "proceedings" in e]
    # the proceedings list Kaiser and Bengio under the second author, after Lin
    last = next(e for e in kept if e["cites"][0] == "Kaiser and Bengio 2016")
    kept.remove(last)
    assert lists["proceedings"] == [*kept[:19], last, *kept[19:]]


def test_notebooks_that_build_on_a_work_exist():
    used = {page for entry in ENTRIES for page in entry.get("used", [])}
    assert used and all((ROOT / f"nbs/{page}.ipynb").exists() for page in used)


@pytest.mark.parametrize("folder", ["reference", "results"])
def test_a_readme_names_files_that_exist(folder):
    "Programs, unless the text says that they are removed, and notebooks."
    text = re.sub(
        r"`[^`]*`(?=[^`|]*\(removed\))", "", (ROOT / folder / "README.md").read_text()
    )
    named = re.findall(r"\b(\w+/\w+\.(?:py|ipynb))\b", text)
    named += [f"nbs/{name}.ipynb" for name in re.findall(r"`(\d\w+_\w+)`", text)]
    assert named and [name for name in named if not (ROOT / name).exists()] == []
