"The page of claims: each line has a verdict, one short finding, and a page that says the same."

import json
import os
import re

import pytest
from cells import INSTALLS, code_of, joined
from conftest import ROOT, text_of

from annotated_transformer.experiments.variations import Effect

CELLS = json.loads((ROOT / "nbs/claims.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [
    joined(cell["source"])
    for cell in CELLS
    if cell["cell_type"] == "code" and cell["id"] != INSTALLS
]


@pytest.fixture(scope="module")
def page():
    "The names that the page defines."
    here, space = os.getcwd(), {"__name__": "claims"}
    os.chdir(ROOT / "nbs")
    try:
        for source in CODE:
            exec(code_of(source), space)
    finally:
        os.chdir(here)
    return space


@pytest.fixture(scope="module")
def claims(page):
    return [claim for group in page["every"] for claim in group]


def test_a_line_is_short_and_decided_somewhere(page, claims):
    "At most five numbers, as in the difference of a row in two measures."
    measured = {f"{word} here" for word in ("confirmed", "contradicted", "undecided")}
    assert len(claims) > 45 and len({c.what for c in claims}) == len(claims)
    for claim in [*claims, *page["choices"]]:
        assert claim.verdict in {*measured, "by formula", "not tried"}, claim
        numbers = re.findall(r"\d[\d.,/]*", re.sub(r"\$.*?\$", "", claim.found))
        assert claim.found and len(numbers) <= 5 and len(claim.found) < 160, claim
        assert claim.pages and "|" not in "".join(claim), claim


def test_no_claim_is_counted_twice_or_not_shown(page, claims):
    "Lines that explain the one above have no section, and are not counted."
    assert page["counts"].total() == sum(claim.place != "" for claim in claims)
    lists = [
        page[name] for name in re.findall(r"^table\((\w+)\)", "\n".join(CODE), re.M)
    ]
    assert lists == [*page["every"], page["choices"]]


def test_a_page_that_contradicts_the_paper_says_so(claims):
    against = [claim for claim in claims if claim.verdict == "contradicted here"]
    assert against
    for claim in against:
        name = claim.pages.split()[0].partition("#")[0]
        assert "contradicted here" in text_of(name).lower(), claim


def test_every_row_that_was_trained_has_a_claim(page):
    "The paper claims nothing of 4 heads and of a smoothing of 0.2."
    trained = {row for row, e in page["table_3"]["bleu"].items() if e.paper is not None}
    named = set(re.findall(r'"((?:[A-D] \w+=[\d.]+|E))"', "\n".join(CODE)))
    assert named == trained - {"A h=2", "D eps=0.2"}


def test_verdict_and_finding_of_rows(page):
    def measured(loss: str, bleu: str) -> dict:
        return {
            "valid_loss": {"a": Effect("a", 0.2, 0.1, 1.0, loss)},
            "bleu": {"a": Effect("a", -1.0, 2.0, -1.0, bleu)},
        }

    of_rows, one = page["of_rows"], measured("confirmed", "undecided")
    said = "A: loss 0.200 ± 0.100 nats higher, BLEU 1.0 ± 2.0 lower"
    assert of_rows(one, "A", "a") == ("confirmed here", said)
    both = measured("confirmed", "contradicted")
    assert of_rows(both, "A", "a")[0] == "undecided here"
    for measure, also in measured("undecided", "undecided").items():
        one[measure]["b"] = also["a"]
        one[measure]["c"] = also["a"]
    assert of_rows(one, "rows", "a", "b") == ("confirmed here", "1 of 2 rows")
    assert of_rows(one, "rows", "a", "b", "c") == ("undecided here", "2 of 3 rows")
