"The loop: what a step is, what hooks may and may not do, its ends."
import json
import math
from itertools import islice

import pytest
import torch
from torch import nn

from annotated_transformer.batch import Batch
from annotated_transformer.train import StepRecord, Stop, every, metrics_file, progress_bar, stop_after, train


def batches(seed=0):
    "Numbers whose sum is to be learned; in rows of unequal worth, as sentences are."
    rng = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(8, 5, generator=rng)
        yield 0, Batch(x, x, x.sum(dim=1, keepdim=True), int(torch.randint(1, 9, (), generator=rng)))


def loss_fn(model, batch): return (model(batch.src) - batch.tgt_out)[:batch.n_tokens].square().sum()


def model(seed=0, dropout=0.0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))


def run(net, n_steps, hooks=(), rate=lambda step: 0.01, seed=0, **more):
    return train(net, batches(seed), loss_fn, torch.optim.SGD(net.parameters(), lr=0.0), rate, n_steps, hooks, **more)


def weights(net): return torch.cat([p.detach().flatten() for p in net.parameters()])


def test_equals_the_plain_loop():
    net, plain, records = model(), model(), []
    run(net, 7, [records.append], rate=lambda step: 0.02 / step)
    losses = []
    for step, (_, batch) in enumerate(islice(batches(), 7), start=1):
        loss = loss_fn(plain, batch) / batch.n_tokens
        grads = torch.autograd.grad(loss, list(plain.parameters()))
        with torch.no_grad():
            for p, g in zip(plain.parameters(), grads): p -= 0.02 / step * g
        losses.append(loss.item())
    torch.testing.assert_close(weights(net), weights(plain), rtol=1e-6, atol=1e-7)  # the optimiser may fuse multiply and add
    assert [r.loss for r in records] == pytest.approx(losses, rel=1e-5)
    assert [(r.step, r.lr) for r in records] == [(i, 0.02 / i) for i in range(1, 8)]


def test_every_parameter_group_gets_the_rate():
    net = model()
    optimizer = torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[3].parameters(), "lr": 7.0}], lr=0.0)
    before = weights(net)
    train(net, batches(), loss_fn, optimizer, lambda step: 0.0, 3)
    assert torch.equal(weights(net), before)


@pytest.mark.parametrize("seed", range(5))
def test_cut_into_parts_gives_the_gradient_of_the_whole(seed):
    "The reason for the summed loss: any cut of a step, divided by the words of the whole."
    net, (_, batch) = model(seed).double(), next(batches(seed))
    batch = Batch(*(t.double() for t in batch[:3]), 8)
    whole = torch.autograd.grad(loss_fn(net, batch) / 8, list(net.parameters()))
    cut = 1 + seed
    halves = [Batch(*(t[rows] for t in batch[:3]), n) for rows, n in ((slice(None, cut), cut), (slice(cut, None), 8 - cut))]
    for half in halves: (loss_fn(net, half) / 8).backward()
    for p, g in zip(net.parameters(), whole): assert (p.grad - g).norm() <= 1e-12 * g.norm()


def test_hooks_see_every_step_and_change_nothing():
    watched, alone, seen = model(dropout=0.5), model(dropout=0.5), []
    torch.manual_seed(1)
    assert run(watched, 5, [seen.append, every(2, lambda r: "this is no Stop")]) == Stop("max_steps=5 reached")
    torch.manual_seed(1)
    run(alone, 5)
    assert len(seen) == 5 and torch.equal(weights(watched), weights(alone))


def test_all_hooks_hear_of_the_last_step():
    heard = []
    def at_three(reason): return lambda r: Stop(reason) if r.step == 3 else None
    assert run(model(), 9, [at_three("first"), lambda r: heard.append(r.step), at_three("second")]) == Stop("first")
    assert heard == [1, 2, 3]


def test_no_more_is_drawn_than_needed():
    "A run of n steps takes n batches: whoever resumes knows where the data stands."
    drawn = []

    def counted():
        for item in batches(): drawn.append(1); yield item
    net = model()
    train(net, counted(), loss_fn, torch.optim.SGD(net.parameters()), lambda step: 0.01, 4)
    assert len(drawn) == 4


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_non_finite_loss_leaves_the_weights(bad):
    net, two, n = model(), model(), []

    def breaks(net, batch):
        n.append(1)
        return loss_fn(net, batch) + (bad if len(n) == 3 else 0)
    with pytest.raises(ValueError, match=r"the loss became (-?inf|nan) at step 3 with learning rate 1\.00e-02: lower the rate"):
        train(net, batches(), breaks, torch.optim.SGD(net.parameters()), lambda step: 0.01, 9)
    run(two, 2)
    assert torch.equal(weights(net), weights(two))


def test_dropout_is_on_whatever_the_mode_was():
    net, modes = model(dropout=0.5).eval(), []
    run(net, 1, [lambda r: modes.append(net.training)])
    assert modes == [True]


def test_same_seed_same_weights():
    def trained(seed):
        net = model(seed, dropout=0.3)
        run(net, 6)
        return weights(net)
    assert torch.equal(trained(1), trained(1)) and not torch.equal(trained(1), trained(2))


def test_autocast_is_entered_at_every_step():
    found = []

    def watches(net, batch):
        found.append(torch.is_autocast_enabled("cpu"))
        return loss_fn(net, batch).float()
    net = model()
    train(net, batches(), watches, torch.optim.SGD(net.parameters()), lambda step: 0.01, 2, autocast=torch.autocast("cpu", torch.bfloat16))
    assert found == [True, True] and not torch.is_autocast_enabled("cpu")


def record(step, seconds=1.0): return StepRecord(step, 0, 2.0, 1e-3, 100, seconds)


def test_every():
    found = []
    hook = every(3, lambda r: found.append(r.step))
    for step in range(1, 11): hook(record(step))
    assert found == [3, 6, 9]
    assert every(2, lambda r: Stop("x"))(record(4)) == Stop("x") and every(2, lambda r: Stop("x"))(record(5)) is None
    with pytest.raises(ValueError, match="n_steps=0"): every(0, print)


def test_stop_after():
    hook = stop_after(minutes=0.5)
    assert hook(record(1, 29.9)) is None and hook(record(2, 30.0)) == Stop("0.5 minutes used up")


def test_metrics_file_is_appended_to_and_readable_at_any_time(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n')
    hook = metrics_file(path)
    for step in (1, 2):
        hook(record(step))
        assert [json.loads(line)["step"] for line in path.read_text().split("\n")[:-1]] == list(range(step + 1))
    assert StepRecord(**json.loads(path.read_text().split("\n")[1])) == record(1)


@pytest.mark.parametrize("minutes, ends", [(None, "100/100"), (0.5, "30/30")])
def test_progress_bar(minutes, ends, capsys):
    "In steps or in seconds, never beyond its end."
    bar = progress_bar(100, minutes)
    for step in range(1, 101): bar(record(step, step * 0.4))
    bar.close()
    last = capsys.readouterr().err.split("\r")[-1]
    assert ends in last and "step 100 loss 2.000 ppl 7.4 lr 1.0e-03 250 tokens/s" in last


def test_a_progress_bar_survives_a_huge_loss(capsys):
    bar = progress_bar(1)
    bar(StepRecord(1, 0, 1e9, 1e-3, 100, 1.0))
    bar.close()
    assert "loss 1000000000.000" in capsys.readouterr().err


def test_the_bar_is_plain_text_everywhere():
    "tqdm.auto would draw a widget in a notebook, and warn where there are none."
    import tqdm.std

    import annotated_transformer.train as module
    assert module.tqdm is tqdm.std.tqdm
