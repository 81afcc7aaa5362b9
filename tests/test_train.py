"The loop: what a step is, what hooks may and may not do, its ends."
import json
import math
import re
import signal
import sys
import threading
from itertools import count, islice

import pytest
import torch
from torch import nn

from annotated_transformer.batch import Batch, Step
from annotated_transformer.train import (
    NotFinite, StepRecord, Stop, every, metrics_file, on_signal, progress_bar, stop_after, tensorboard, train)


def steps(seed=0, start=1, n_micro=1):
    "Numbers whose sum is to be learned; in rows of unequal worth, as sentences are. A step has its own random numbers."
    for i in count(start):
        rng = torch.Generator().manual_seed(1000 * seed + i)
        micro = [Batch(x, x, x.sum(dim=1, keepdim=True), int(torch.randint(1, 9, (), generator=rng)))
                 for x in torch.randn(n_micro, 8, 5, generator=rng)]
        yield Step(i, i // 4, i % 4, 17 * i, sum(batch.n_tokens for batch in micro), micro)


class Objective(nn.Module):
    "A network, and how far its guesses are from the sums of the first rows."
    def __init__(self, seed=0, dropout=0.0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1))

    def forward(self, batch): return (self.net(batch.src) - batch.tgt_out)[:batch.n_tokens].square().sum()


def run(objective, n_steps, hooks=(), rate=lambda step: 0.01, found=None, **more):
    return train(objective, found or steps(), torch.optim.SGD(objective.parameters(), lr=0.0), rate, n_steps, hooks, **more)


def weights(objective): return torch.cat([p.detach().flatten() for p in objective.parameters()])


def test_equals_the_plain_loop():
    objective, plain, records = Objective(), Objective(), []
    run(objective, 7, [records.append], rate=lambda step: 0.02 / step)
    losses = []
    for step in islice(steps(), 7):
        loss = plain(step.micro[0]) / step.n_tokens
        grads = torch.autograd.grad(loss, list(plain.parameters()))
        with torch.no_grad():
            for p, g in zip(plain.parameters(), grads): p -= 0.02 / step.step * g
        losses.append(loss.item())
    torch.testing.assert_close(weights(objective), weights(plain), rtol=1e-6, atol=1e-7)  # the optimiser may fuse multiply and add
    assert [r.loss for r in records] == pytest.approx(losses, rel=1e-5)
    assert [(r.step, r.epoch, r.i_batch, r.lr, r.grad_norm) for r in records] == [(i, i // 4, i % 4, 0.02 / i, None) for i in range(1, 8)]
    assert [r.n_tokens for r in records] == [step.n_tokens for step in islice(steps(), 7)]


def test_every_parameter_group_gets_the_rate():
    objective = Objective()
    optimizer = torch.optim.SGD([{"params": objective.net[0].parameters()}, {"params": objective.net[3].parameters(), "lr": 7.0}], lr=0.0)
    before = weights(objective)
    train(objective, steps(), optimizer, lambda step: 0.0, 3)
    assert torch.equal(weights(objective), before)


def cut(step, sizes):
    "The same step, its one batch in parts of these numbers of rows; no row beyond `n_tokens` counts in any of them."
    batch, first, parts = step.micro[0], 0, []
    for n in sizes:
        parts.append(Batch(*(t[first:first + n] for t in batch[:3]), max(0, min(n, batch.n_tokens - first))))
        first += n
    return step._replace(micro=parts)


@pytest.mark.parametrize("sizes", [(4, 4), (1, 7), (7, 1), (3, 3, 2), (1,) * 8, (0, 8), (8, 0, 0)])
def test_accumulated_steps_are_the_same_steps(sizes):
    "The reason for the summed loss: any cut of a step, divided by the words of the whole. In float64: rounding hides no mistake."
    def double(step): return step._replace(micro=[Batch(*(t.double() for t in batch[:3]), batch.n_tokens) for batch in step.micro])
    whole, parts, losses = Objective().double(), Objective().double(), {}
    for name, objective in (("whole", whole), ("parts", parts)):
        found = (double(step if name == "whole" else cut(step, sizes)) for step in steps())
        run(objective, 5, [lambda r, name=name: losses.setdefault(name, []).append(r.loss)], found=found)
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-12, atol=1e-14)
    assert losses["parts"] == pytest.approx(losses["whole"], rel=1e-6)  # the record's loss is added up in float32


def test_several_batches_are_one_step():
    objective, records = Objective(), []
    run(objective, 3, [records.append], found=steps(n_micro=4))
    for record, step in zip(records, steps(n_micro=4)): assert record.n_tokens == step.n_tokens == sum(b.n_tokens for b in step.micro)


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 1e6])
def test_clipping_shortens_and_keeps_the_direction(clip_norm):
    free, clipped, records = Objective(), Objective(), []
    run(free, 1)
    run(clipped, 1, [records.append], clip_norm=clip_norm)
    grads = [torch.cat([p.grad.flatten() for p in objective.parameters()]) for objective in (free, clipped)]
    length = grads[0].norm().item()
    assert records[0].grad_norm == pytest.approx(length, rel=1e-5)
    torch.testing.assert_close(grads[1], grads[0] * min(1.0, clip_norm / length), rtol=1e-4, atol=0)  # PyTorch divides by the length + 1e-6


def test_a_broken_gradient_of_a_finite_loss_leaves_the_weights():
    "The root has no slope at 0: the loss is a number, its gradient is none."
    class Root(Objective):
        def forward(self, batch): return super().forward(batch) + (self.net[3].bias * 0).sqrt().sum()
    objective, before = Root(), weights(Root())
    with pytest.raises(NotFinite, match="the length of the gradient became nan at step 1 with learning rate 1.00e-02"):
        run(objective, 3, clip_norm=1.0)
    assert torch.equal(weights(objective), before)


def test_hooks_see_every_step_and_change_nothing():
    watched, alone, seen = Objective(dropout=0.5), Objective(dropout=0.5), []
    draws = [seen.append, every(2, lambda r: "this is no Stop"), lambda r: torch.rand(3)]
    assert run(watched, 5, draws) == Stop("max_steps=5 reached")
    run(alone, 5)
    assert len(seen) == 5 and torch.equal(weights(watched), weights(alone))


def test_all_hooks_hear_of_the_last_step():
    heard = []
    def at_three(reason): return lambda r: Stop(reason) if r.step == 3 else None
    assert run(Objective(), 9, [at_three("first"), lambda r: heard.append(r.step), at_three("second")]) == Stop("first")
    assert heard == [1, 2, 3]


def test_no_more_is_drawn_than_needed():
    "A run of n steps takes n batches: whoever resumes knows where the data stands."
    drawn = []

    def counted():
        for step in steps(): drawn.append(1); yield step
    run(Objective(), 4, found=counted())
    assert len(drawn) == 4


def test_ends_at_once_beyond_the_last_step():
    objective, heard = Objective(), []
    before = weights(objective)
    assert run(objective, 4, [heard.append], found=steps(start=5)) == Stop("max_steps=4 reached")
    assert heard == [] and torch.equal(weights(objective), before)
    assert run(objective, 4, [heard.append], found=steps(start=4)) == Stop("max_steps=4 reached")
    assert [r.step for r in heard] == [4]


@pytest.mark.parametrize("at", range(1, 6))
def test_continued_equals_uninterrupted(at):
    "Each step brings its own seed: with dropout, and to the last bit."
    once, twice = Objective(dropout=0.5), Objective(dropout=0.5)
    run(once, 6)
    run(twice, at)
    torch.rand(at)  # whatever else is drawn between
    run(twice, 6, found=steps(start=at + 1))
    assert torch.equal(weights(once), weights(twice))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_non_finite_loss_leaves_the_weights(bad):
    class Breaks(Objective):
        n_calls = 0
        def forward(self, batch):
            self.n_calls += 1
            return super().forward(batch) + (bad if self.n_calls == 3 else 0)
    objective, two = Breaks(), Objective()
    with pytest.raises(NotFinite, match=r"the loss became (-?inf|nan) at step 3 with learning rate 1\.00e-02: lower the rate"):
        run(objective, 9)
    run(two, 2)
    assert torch.equal(weights(objective), weights(two)) and issubclass(NotFinite, ValueError)


def test_dropout_is_on_whatever_the_mode_was():
    objective, modes = Objective(dropout=0.5).eval(), []
    run(objective, 1, [lambda r: modes.append(objective.training)])
    assert modes == [True]


def test_same_seed_same_weights():
    def trained(seed):
        objective = Objective(seed, dropout=0.3)
        run(objective, 6)
        return weights(objective)
    assert torch.equal(trained(1), trained(1)) and not torch.equal(trained(1), trained(2))


def record(step, seconds=1.0): return StepRecord(step, 0, step - 1, 2.0, 1e-3, 100, seconds, None)


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


def test_metrics_of_a_resumed_run_count_on(tmp_path):
    metrics_file(tmp_path / "metrics.jsonl", seconds_before=100.0)(record(7, 2.5))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["seconds"] == 102.5


@pytest.mark.parametrize("minutes, ends", [(None, "100/100"), (0.5, "30/30")])
def test_progress_bar(minutes, ends, capsys):
    "In steps or in seconds, never beyond its end."
    bar = progress_bar(100, minutes)
    for step in range(1, 101): bar(record(step, step * 0.4))
    bar.close()
    last = capsys.readouterr().err.split("\r")[-1]
    assert ends in last and "step 100 loss 2.000 ppl 7.4 lr 1.0e-03 250 tokens/s" in last


def test_progress_bar_of_a_resumed_run(capsys):
    "It begins where the run stood, and knows how much time is left."
    bar = progress_bar(100, first_step=60)
    assert "60/100" in capsys.readouterr().err
    bar(record(61, 0.5))
    bar.close()
    assert re.search(r"61/100 \[\d\d:\d\d<\d\d:\d\d", capsys.readouterr().err.split("\r")[-1])


def test_a_progress_bar_survives_a_huge_loss(capsys):
    bar = progress_bar(1)
    bar(record(1)._replace(loss=1e9))
    bar.close()
    assert "loss 1000000000.000" in capsys.readouterr().err


def test_the_bar_is_plain_text_everywhere():
    "tqdm.auto would draw a widget in a notebook, and warn where there are none."
    import tqdm.std

    import annotated_transformer.train as module
    assert module.tqdm is tqdm.std.tqdm


def test_tensorboard_writes_curves(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hook = tensorboard(tmp_path)
    for step in (3, 4): hook(record(step))
    hook(record(5)._replace(grad_norm=0.5))
    hook.close()
    found = events.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [(3, 2.0), (4, 2.0), (5, 2.0)]
    assert [(e.step, e.value) for e in found.Scalars("gradient")] == [(5, 0.5)]


def test_without_tensorboard_there_is_no_hook(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert tensorboard(tmp_path) is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step(number):
    before, heard = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)], []
    def at_three(r):
        heard.append(r.step)
        if r.step == 3: signal.raise_signal(number)
    with on_signal() as hook: assert run(Objective(), 9, [at_three, hook]) == Stop(number.name)
    assert heard == [1, 2, 3] and [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_signal_means_it():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), on_signal() as hook:
        signal.raise_signal(signal.SIGINT)
        assert hook(record(1)) == Stop("SIGINT")
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_signals_are_left_alone():
    before, found = signal.getsignal(signal.SIGTERM), []
    def inside():
        with on_signal() as hook: found.append((signal.getsignal(signal.SIGTERM) is before, hook(record(1))))
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [(True, None)]
