"The loop: what a step is, where it ends, how often it reports; and signals."

import math
import signal
from itertools import count, islice

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from annotated_transformer.data.batch import Batch, StepData
from annotated_transformer.runs.monitor import STOP_SIGNALS, catch_signals
from annotated_transformer.training.train import (
    NotFinite,
    OutOfMemory,
    memory_errors,
    train,
)

CPU = torch.device("cpu")


def steps():
    "Numbers whose sum is to be learned; in rows of unequal worth, as sentences are. A step has its own random numbers."
    for i in count(1):
        rng = torch.Generator().manual_seed(i)
        x, n_tokens = torch.randn(8, 5, generator=rng), 1 + 3 * i % 8
        batch = Batch(x, x, x.sum(dim=1, keepdim=True), n_tokens)
        yield StepData(i, i // 4, i % 4, 17 * i, n_tokens, [batch])


class Objective(nn.Module):
    "A network, and how far its guesses are from the sums of the first rows."

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Linear(5, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1)
        )

    def forward(self, batch):
        return (self.net(batch.src) - batch.tgt_out)[: batch.n_tokens].square().sum()


class Breaks(Objective):
    "In one of its calls the loss, or the gradient norm alone, is not finite."

    def __init__(self, at_call, bad, what):
        super().__init__()
        self.n_left, self.bad, self.what = at_call, bad, what

    def forward(self, batch):
        self.n_left -= 1
        loss = super().forward(batch)
        if self.n_left != 0:
            return loss
        if self.what == "loss":
            return loss + self.bad  # its gradient is finite
        # the derivative of a root at 0 is infinite
        return loss + (self.net[3].bias * 0).sqrt().sum()


def run(objective, n_steps, schedule=lambda step: 0.01, found=None, **more):
    # every group gets the rate of the schedule
    groups = [{"params": layer.parameters(), "lr": 7.0} for layer in objective.net[::3]]
    optimizer, found = torch.optim.SGD(groups, fused=True), found or steps()
    return train(objective, found, optimizer, schedule, n_steps, **more)


def weights(objective):
    return torch.cat([p.detach().flatten() for p in objective.parameters()])


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_equals_the_plain_loop(clip_norm):
    objective, plain = Objective(), Objective()
    rate = lambda step: 0.02 / step
    records = list(run(objective, 7, schedule=rate, clip_norm=clip_norm))
    losses, norms = [], []
    for step in islice(steps(), 7):
        loss = plain(step.micro_batches[0]) / step.n_tokens
        grads = torch.autograd.grad(loss, list(plain.parameters()))
        norms.append(torch.cat([g.flatten() for g in grads]).norm().item())
        share = min(1.0, clip_norm / norms[-1]) if clip_norm else 1.0
        with torch.no_grad():
            for p, g in zip(plain.parameters(), grads):
                p -= 0.02 / step.step * share * g
        losses.append(loss.item())
    # the optimiser may fuse multiply and add
    torch.testing.assert_close(weights(objective), weights(plain), rtol=1e-6, atol=1e-7)
    assert [r.loss for r in records] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in records] == pytest.approx(norms, rel=1e-5)
    assert min(norms) > 0.5
    assert [(*r[:3], r.lr, r.n_tokens) for r in records] == [
        (i, i // 4, i % 4, 0.02 / i, step.n_tokens)
        for i, step in enumerate(islice(steps(), 7), start=1)
    ]


def test_endings():
    "A run that has done all its steps ends at once; dropout is active in a loop, whatever the mode was before."
    objective = Objective()
    modes = [objective.training for _ in run(objective.eval(), 3)]
    assert modes == [True] * 3
    assert len([*run(objective, 5, found=islice(steps(), 3))]) == 3
    before = weights(objective)
    assert [*run(objective, 3, found=islice(steps(), 3, None))] == []
    assert torch.equal(weights(objective), before)


@pytest.mark.parametrize("report_every, last", [(1, 6), (4, 8)])
def test_a_caller_leaves_after_a_step_that_is_reported(report_every, last):
    "No step follows, and what draws steps ahead is closed."
    objective, right, closed = Objective(), Objective(), []

    def drawn():
        try:
            yield from steps()
        finally:
            closed.append(True)

    for record in run(objective, 99, found=drawn(), report_every=report_every):
        assert not closed
        if record.step >= 6:
            break
    del record
    assert closed and len([*run(right, last)]) == last
    assert torch.equal(weights(objective), weights(right))


@pytest.mark.parametrize("report_every", [1, 4])
@pytest.mark.parametrize("bad", [-math.inf, math.nan, "gradient norm"])
def test_a_step_that_is_not_finite_ends_the_loop(bad, report_every):
    "At the next report, which names the step; reported at once, it leaves the weights as they were."
    what = bad if isinstance(bad, str) else "loss"
    objective, two, reported = Breaks(3, bad, what), Objective(), []
    why = f"{what} became .* at step 3 with learning rate 1.00e-02: lower"
    with pytest.raises(NotFinite, match=why):
        for record in run(objective, 9, report_every=report_every):
            reported.append(record.step)
    assert reported == ([1, 2] if report_every == 1 else [])
    list(run(two, 2))
    if report_every == 1:
        assert torch.equal(weights(objective), weights(two))


# steps that are not reported


def trained(report_every):
    "The records without their time, and the tensors that 10 steps left."
    objective = Objective(dropout=0.5)
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.0, fused=True)
    rate = lambda step: 0.01 / step
    found = train(objective, steps(), optimizer, rate, 10, 0.5, report_every)
    records = [record._replace(seconds=0) for record in found]
    averages = [x for of in optimizer.state.values() for x in of.values()]
    return records, [weights(objective), *averages]


@pytest.mark.parametrize("report_every", [3, 50, (4, 7)])
def test_reports_change_nothing(report_every):
    "Weights and the optimizer's state, to the last bit; a record has the tokens since the one before."
    all_records, right = trained(1)
    records, tensors = trained(report_every)
    assert all(torch.equal(a, b) for a, b in zip(tensors, right, strict=True))
    steps = {3: [3, 6, 9, 10], 50: [10], (4, 7): [4, 7, 8, 10]}[report_every]
    assert [r.step for r in records] == steps
    assert sum(r.n_tokens for r in records) == sum(r.n_tokens for r in all_records)
    for record in records:
        same = all_records[record.step - 1]
        assert record._replace(n_tokens=same.n_tokens) == same


def test_numbers_are_read_once_a_report(monkeypatch):
    "On a GPU each reading waits for the device: as many as reports, and none between, not by PyTorch either."

    class NoScalars(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert function is not torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    read, plain, made = [], torch.Tensor.tolist, [*islice(steps(), 10)]
    note = lambda self: read.append(tuple(self.shape)) or plain(self)
    monkeypatch.setattr(torch.Tensor, "tolist", note)
    monkeypatch.setattr(torch.Tensor, "cpu", None)
    with NoScalars():
        list(run(Objective(), 10, found=made, report_every=4, clip_norm=1.0))
    assert read == [(4, 2), (4, 2), (2, 2)]


def test_advice_about_memory_is_computed_when_it_is_needed():
    calls = []
    advice = lambda: calls.append(1) or "buy more"
    with memory_errors(torch.device("cpu"), advice):
        pass
    assert not calls
    with pytest.raises(OutOfMemory, match="out of memory on cpu: buy more"):
        with memory_errors(torch.device("cpu"), advice):
            raise MemoryError


# signals


SIGNALS = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]


@pytest.fixture
def handlers():
    "What handles the signals, and does afterwards."
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield dict(before)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_noted(number, handlers):
    with catch_signals() as received:
        assert received() is None
        signal.raise_signal(number)
        assert received() == number.name
    assert STOP_SIGNALS[number.name] == number
    if number.name == "SIGHUP":
        # a closing terminal may send a second one while the run is saved
        handlers[number] = signal.SIG_IGN
    assert {n: signal.getsignal(n) for n in SIGNALS} == handlers


@pytest.mark.posix
def test_a_hangup_that_is_ignored_stays_ignored(handlers):
    "A process under nohup."
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with catch_signals() as received:
        signal.raise_signal(signal.SIGHUP)
        assert received() is None
        signal.raise_signal(signal.SIGTERM)
        assert received() == "SIGTERM"
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_second_signal_means_it():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), catch_signals() as received:
        signal.raise_signal(signal.SIGINT)
        assert received() == "SIGINT"
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_under_torchrun_a_second_signal_changes_nothing(monkeypatch):
    "It may be the first one, repeated by torchrun."
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    with catch_signals() as received:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
            assert received() == "SIGTERM"
