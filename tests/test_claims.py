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
    assert named & trained == trained - {"A h=2", "D eps=0.2"}


def test_too_many_heads_are_those_of_the_row_that_is_worse(page):
    "Table 3 prints 25.8 BLEU for base and for 16 heads, and 25.4 for 32."
    assert page["table_3"]["bleu"]["A h=8"].paper == pytest.approx(-0.4)


def test_the_measure_that_a_claim_is_about_is_first(claims):
    "The first one decides."
    both = [c for c in claims if "BLEU" in c.found and "loss" in c.found]
    by_loss = [c for c in both if c.found.index("loss") < c.found.index("BLEU")]
    assert by_loss == [c for c in both if re.search("perplexity|overfitting", c.what)]
    assert len(both) > 10 and len(by_loss) == 2


def test_verdict_and_finding_of_rows(page):
    def measured(*verdicts: str) -> dict:
        "In BLEU the verdicts of some rows, in the loss as many that are confirmed."
        return {
            name: {i: Effect(str(i), *numbers, v) for i, v in enumerate(words)}
            for name, numbers, words in (
                ("bleu", (-1.0, 2.0, -1.0), verdicts),
                ("valid_loss", (0.2, 0.1, 1.0), ["confirmed"] * len(verdicts)),
            )
        }

    of_rows, one = page["of_rows"], measured("undecided")
    bleu, loss = "BLEU 1.0 ± 2.0 lower", "loss 0.200 ± 0.100 nats higher"
    assert of_rows(one, 0, name="A") == ("undecided here", f"A: {bleu}, {loss}")
    turned = dict(reversed(one.items()))
    assert of_rows(turned, 0, name="A") == ("confirmed here", f"A: {loss}, {bleu}")
    for word in ("confirmed", "contradicted"):
        some = measured(word, word, word, "undecided")
        found = f"BLEU: 2 {word}, 1 undecided; loss: 3 confirmed"
        assert of_rows(some, 0, 1, 3) == ("undecided here", found)
        assert of_rows(some, 0, 1, 2)[0] == f"{word} here"
