"Three scoring functions: their formulas, what is measured of them, and that what notebook 321a says follows from the record."

import json
import math
from functools import partial

import pytest
import torch
from conftest import ROOT, program
from torch import nn

from annotated_transformer.experiments.background import AdditiveAttention
from annotated_transformer.model.attention import attention

BENCH = program("results/scoring.py")
RECORD = json.loads((ROOT / "results/scoring.json").read_text("utf-8"))["scoring"]


def random_inputs():
    "Query, key, value and mask; one query of one sentence is fully masked."
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8, dtype=torch.float64) for n in (5, 7, 7))
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[0, 0, 1] = False
    mask[1, 0, 2] = torch.arange(7) == 3  # one key alone
    return q, k, v, mask


def test_scores_are_their_formulas():
    q, k, v, mask = random_inputs()
    scaled, unscaled, additive = (
        BENCH.Attend(BENCH.SCORES[name](3, 8)).double()
        for name in ("scaled", "unscaled", "additive")
    )
    torch.testing.assert_close(scaled(q, k, v, mask), attention(q, k, v, mask))
    wider = attention(q * math.sqrt(8), k, v, mask)
    torch.testing.assert_close(unscaled(q, k, v, mask), wider)
    oracle = AdditiveAttention(8, 8).double()
    oracle.w_q = oracle.w_k = nn.Identity()  # the projections of the head are outside
    found = additive(q, k, v, mask)
    for head in range(3):
        oracle.v.weight.data = additive.score.v[head].T
        expected = oracle(q[:, head], k[:, head], v[:, head], mask[:, 0])
        torch.testing.assert_close(found[:, head], expected)


def test_of_queries_is_plain_loops():
    q, k, _, mask = random_inputs()
    scores = (q @ k.mT).requires_grad_()
    scores.grad = torch.randn_like(scores)
    wanted = []
    for b, head, i in torch.cartesian_prod(*map(torch.arange, (2, 3, 5))).tolist():
        allowed = scores[b, head, i][mask[b, 0, i]].detach()
        if len(allowed) > 1:
            weights = allowed.softmax(dim=-1)
            entropy = -(weights * weights.log()).sum() / math.log(len(allowed))
            norm = scores.grad[b, head, i].norm()
            wanted.append(torch.stack([allowed.std(correction=0), entropy, norm]))
    torch.testing.assert_close(BENCH.of_queries(scores, mask), torch.stack(wanted, 1))


def test_the_records_bytes_repeat():
    "Bytes are counted, so they do not depend on the machine."
    cost = RECORD["cost"]
    shape = (1, 1, cost["n"][2], cost["d_k"])
    inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
    for name, score in BENCH.SCORES.items():
        attend = BENCH.Attend(score(1, cost["d_k"]))
        action = partial(BENCH.both_passes, attend, inputs, torch.randn(shape))
        expected = cost["peak_bytes"][name][2]
        assert BENCH.peak_bytes(action) == pytest.approx(expected, rel=0.01)


def mean(model: dict, *keys: str) -> float:
    values = model["runs"]
    for key in keys:
        values = [value[key] for value in values]
    return sum(values) / len(values)


def test_the_record_says_what_the_text_says():
    "At wide keys the scale decides; at narrow ones it matters much less."
    narrow, wide = RECORD["models"]["8"], RECORD["models"]["128"]
    loss = {name: mean(model, "valid_loss") for name, model in wide.items()}
    assert min(wide["unscaled"]["tries"].values()) > 4 * max(
        loss["additive"], loss["scaled"]
    )
    assert mean(wide["unscaled"], "exact_match") < 0.01
    assert wide["unscaled"]["longer"]["exact_match"] < 0.1
    smaller = loss["unscaled, smaller start"]
    assert 1.5 * loss["scaled"] < smaller < 0.4 * loss["unscaled"]
    loss = {name: mean(model, "valid_loss") for name, model in narrow.items()}
    assert loss["scaled"] < loss["unscaled"] < 1.5 * loss["scaled"]
    assert all(model["longer"]["exact_match"] > 0.95 for model in narrow.values())
    assert mean(wide["unscaled"], "start", "entropy") < 0.2
    assert mean(wide["unscaled"], "end", "gradient") < 1e-7
    for key, at_least in (("seconds", 30), ("peak_bytes", 60)):
        additive, scaled = (RECORD["cost"][key][n] for n in ("additive", "scaled"))
        assert additive[-1] / scaled[-1] > at_least
