"The workbook's checks: the reference passes, each known mistake is diagnosed as itself, nothing else passes."

import json
import re
from itertools import combinations

import pytest
import torch
from cells import joined, slug
from conftest import ROOT

from annotated_transformer.experiments import workbook
from annotated_transformer.experiments.diagnosis import diagnose, outcome, same
from annotated_transformer.experiments.workbook import TASKS, by_hand, verdict_on

every_task = pytest.mark.parametrize("name", TASKS)
MISTAKES = [(name, m.name) for name, task in TASKS.items() for m in task.mistakes]


@every_task
def test_reference_and_version_by_hand_are_right(name, unchecked):
    task = TASKS[name]
    for function in (task.reference, by_hand(name)):
        assert diagnose(task, function).state == "right"


@pytest.mark.parametrize("name, mistake", MISTAKES)
def test_each_mistake_is_diagnosed_as_itself(name, mistake, unchecked):
    found = diagnose(TASKS[name], TASKS[name].with_mistakes(mistake))
    assert (found.state, found.mistakes) == ("known", (mistake,)), found.text


@every_task
def test_mistakes_in_pairs_are_refused(name, unchecked):
    "By the numbers; which of two mistakes is named is decided by what they have in common."
    task = TASKS[name]
    cases = task.inputs(torch.Generator().manual_seed(0))
    expected = [outcome(task, task.reference, args) for args in cases]
    for one, two in combinations([m.name for m in task.mistakes], 2):
        function = task.with_mistakes(one, two)
        found = [outcome(task, function, args) for args in cases]
        equal = [same(a, b, task.tolerance) for a, b in zip(found, expected)]
        assert not all(equal), (one, two)


@every_task
def test_what_nobody_wrote_is_missing_and_nonsense_is_unknown(name, unchecked):
    task = TASKS[name]
    assert diagnose(task, None).state == "missing"
    assert diagnose(task, lambda *args: None).state == "missing"
    for nonsense in (lambda *args: "text", lambda *args: 1 / 0):
        assert diagnose(task, nonsense).state == "unknown"
    raised = diagnose(task, lambda *args: 1 / 0).text
    assert "ZeroDivisionError: division by zero" in raised


def test_two_mistakes_at_once_are_named(unchecked):
    function = TASKS["attention"].with_mistakes("no_scale", "over_queries")
    found = diagnose(TASKS["attention"], function)
    assert (found.state, found.mistakes) == ("pair", ("no_scale", "over_queries"))


def test_an_unknown_mistake_shows_the_smallest_input(unchecked):
    found = diagnose(TASKS["softmax"], lambda scores: 2 * scores.softmax(dim=-1))
    rows = found.text.split("\n")
    assert [row.split()[0] for row in rows[1:]] == ["scores", "expected", "found"]
    assert "shape (1, 3)" in rows[1]


def test_a_check_leaves_the_random_numbers_alone(unchecked):
    torch.manual_seed(0)
    first = torch.rand(1)
    torch.manual_seed(0)
    diagnose(TASKS["transformer"], TASKS["transformer"].reference)
    assert torch.equal(first, torch.rand(1))


def test_what_a_function_uses_is_repaired_first(unchecked):
    "A wrong attention inside of a right multi_head is not a mistake of multi_head."
    functions = {name: by_hand(name) for name in TASKS}
    functions["attention"] = lambda q, k, v, mask: v.mean(-2, keepdim=True).expand(
        *q.shape[:-1], -1
    )
    functions["multi_head"] = lambda *args: args[0] * 2
    assert verdict_on("multi_head", functions).text == "first repair attention"


# ---- links


def headings(stem: str) -> set[str]:
    path = ROOT / f"nbs/{stem}.ipynb"
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = [joined(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    found = [h for t in texts for h in re.findall(r"^#{2,4} +(.+)$", t, re.MULTILINE)]
    return {slug(heading) for heading in found}


def test_every_link_leads_to_a_heading():
    links = {m.link for task in TASKS.values() for m in task.mistakes}
    links |= {task.lesson for task in TASKS.values()}
    lost = []
    for link in sorted(links):
        stem, _, anchor = link.partition("#")
        if anchor not in headings(stem):
            lost.append(link)
    assert lost == []


def test_addresses():
    address = workbook.lesson_address("321_attention#why-a-softmax")
    assert address.endswith("attention.html#why-a-softmax") and "321" not in address
    assert workbook.lesson_address("misreadings#x").endswith("misreadings.html#x")
