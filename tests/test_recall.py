"Recall over a distance: the task by its definition, models deep enough and of equal size, and what the record says."

import pytest
import torch

from annotated_transformer.experiments.recall import (
    _KEY,
    _N_VALUES,
    _accuracy,
    learn_recall,
    recall_batch,
    recall_models,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


NAMES = list(recall_models(10))

# the task


@pytest.mark.parametrize("distance", [0, 4, 57])
def test_value_follows_the_first_key(distance):
    tokens, values = recall_batch(200, distance, rng())
    firsts = set()
    for row, value in zip(tokens.tolist(), values.tolist()):
        first, last = [i for i, token in enumerate(row) if token == _KEY]
        assert last == len(row) - 1 and row[first + 1] == value < _N_VALUES
        assert last - (first + 1) - 1 >= distance  # distractors between them
        rest = row[:first] + row[first + 2 : last]
        assert all(token > _KEY for token in rest)
        firsts.add(first)
    assert firsts == set(range(distance // 5 + 1))
    assert set(values.tolist()) == set(range(_N_VALUES))


# the models


@pytest.mark.parametrize("distance", [10, 100])
@pytest.mark.parametrize("name", NAMES)
def test_equal_size_and_deep_enough(name, distance):
    "The last position depends on the first one, which may hold the key, by gradient."
    torch.manual_seed(0)
    model = recall_models(distance)[name]()
    n_parameters = sum(p.numel() for p in model.parameters())
    assert n_parameters == pytest.approx(50_000, rel=0.06)
    tokens, _ = recall_batch(1, distance, rng())
    x = model.double().embedding(tokens).detach().requires_grad_()
    out = model.body(x)[0]
    # a plain sum of normalised numbers would have no gradient
    (out * torch.randn(out.shape, generator=rng())).sum().backward()
    assert x.grad[0].any(-1).all()


# training


def test_learns_and_stops():
    torch.manual_seed(0)
    model = recall_models(4)["self-attention"]()
    found = learn_recall(model, 4, 500, 3e-3, seed=0)
    assert len(found) < 20 and min(found[-2:]) >= 0.99
    assert all(min(pair) < 0.99 for pair in zip(found[:-2], found[1:-1]))
    tokens, values = recall_batch(300, 4, rng(99))
    assert _accuracy(model, tokens, values) > 0.9
