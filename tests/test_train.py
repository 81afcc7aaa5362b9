"The loop: what a step is, what hooks may and may not do, its ends."

import json
import math
import re
import signal
import sys
import threading
import time
from contextlib import closing
from itertools import count, islice
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import annotated_transformer.training.train as loop
from annotated_transformer import UserError
from annotated_transformer.data.batch import Batch, RunPosition, Step
from annotated_transformer.runs.hooks import (
    STOP_SIGNALS,
    Every,
    metrics_file,
    on_signal,
    progress_bar,
    stop_after,
    tensorboard,
)
from annotated_transformer.training.train import (
    NotFinite,
    StepRecord,
    Stop,
    _prefetch,
    train,
)

CPU = torch.device("cpu")


def steps(seed=0, start=1, n_micro=1):
    "Numbers whose sum is to be learned; in rows of unequal worth, as sentences are. A step has its own random numbers."
    for i in count(start):
        rng = torch.Generator().manual_seed(1000 * seed + i)
        micro = [
            Batch(
                x,
                x,
                x.sum(dim=1, keepdim=True),
                int(torch.randint(1, 9, (), generator=rng)),
            )
            for x in torch.randn(n_micro, 8, 5, generator=rng)
        ]
        n_tokens = sum(batch.n_tokens for batch in micro)
        yield Step(RunPosition(i, i // 4, i % 4), 17 * i, n_tokens, micro)


class Objective(nn.Module):
    "A network, and how far its guesses are from the sums of the first rows."

    def __init__(self, seed=0, dropout=0.0):
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(
            nn.Linear(5, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 1)
        )

    def forward(self, batch):
        return (self.net(batch.src) - batch.tgt_out)[: batch.n_tokens].square().sum()


def run(objective, n_steps, hooks=(), schedule=lambda step: 0.01, found=None, **more):
    return train(
        objective,
        found or steps(),
        torch.optim.SGD(objective.parameters(), lr=0.0),
        schedule,
        n_steps,
        hooks,
        **more,
    )


def weights(objective):
    return torch.cat([p.detach().flatten() for p in objective.parameters()])


def test_equals_the_plain_loop():
    objective, plain, records = Objective(), Objective(), []
    run(objective, 7, [records.append], schedule=lambda step: 0.02 / step)
    losses, norms = [], []
    for step in islice(steps(), 7):
        loss = plain(step.micro[0]) / step.n_tokens
        grads = torch.autograd.grad(loss, list(plain.parameters()))
        norms.append(torch.cat([g.flatten() for g in grads]).norm().item())
        with torch.no_grad():
            for p, g in zip(plain.parameters(), grads):
                p -= 0.02 / step.step * g
        losses.append(loss.item())
    torch.testing.assert_close(
        weights(objective), weights(plain), rtol=1e-6, atol=1e-7
    )  # the optimiser may fuse multiply and add
    assert [r.loss for r in records] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in records] == pytest.approx(norms, rel=1e-5)
    assert [(*r.position, r.step, r.lr) for r in records] == [
        (i, i // 4, i % 4, i, 0.02 / i) for i in range(1, 8)
    ]
    assert [r.n_tokens for r in records] == [
        step.n_tokens for step in islice(steps(), 7)
    ]


def test_every_parameter_group_gets_the_rate():
    objective = Objective()
    optimizer = torch.optim.SGD(
        [
            {"params": objective.net[0].parameters()},
            {"params": objective.net[3].parameters(), "lr": 7.0},
        ],
        lr=0.0,
    )
    before = weights(objective)
    train(objective, steps(), optimizer, lambda step: 0.0, 3)
    assert torch.equal(weights(objective), before)


def cut(step, sizes):
    "The same step, its one batch in parts of these numbers of rows; no row beyond `n_tokens` counts in any of them."
    batch, first, parts = step.micro[0], 0, []
    for n in sizes:
        parts.append(
            Batch(
                *(t[first : first + n] for t in batch[:3]),
                max(0, min(n, batch.n_tokens - first)),
            )
        )
        first += n
    return step._replace(micro=parts)


@pytest.mark.parametrize(
    "sizes", [(4, 4), (1, 7), (7, 1), (3, 3, 2), (1,) * 8, (0, 8), (8, 0, 0)]
)
def test_accumulated_steps_are_the_same_steps(sizes):
    "The reason for the summed loss: any cut of a step, divided by the words of the whole. In float64: rounding hides no mistake."

    def double(step):
        return step._replace(
            micro=[
                Batch(*(t.double() for t in batch[:3]), batch.n_tokens)
                for batch in step.micro
            ]
        )

    whole, parts, losses = Objective().double(), Objective().double(), {}
    for name, objective in (("whole", whole), ("parts", parts)):
        found = (
            double(step if name == "whole" else cut(step, sizes)) for step in steps()
        )
        run(
            objective,
            5,
            [lambda r, name=name: losses.setdefault(name, []).append(r.loss)],
            found=found,
        )
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-12, atol=1e-14)
    assert losses["parts"] == pytest.approx(
        losses["whole"], rel=1e-6
    )  # the record's loss is added up in float32


def test_several_batches_are_one_step():
    objective, records = Objective(), []
    run(objective, 3, [records.append], found=steps(n_micro=4))
    for record, step in zip(records, steps(n_micro=4)):
        assert record.n_tokens == step.n_tokens == sum(b.n_tokens for b in step.micro)


@pytest.mark.parametrize("clip_norm", [0.1, 1.0, 1e6])
def test_clipping_shortens_and_keeps_the_direction(clip_norm):
    free, clipped, records = Objective(), Objective(), []
    run(free, 1)
    run(clipped, 1, [records.append], clip_norm=clip_norm)
    grads = [
        torch.cat([p.grad.flatten() for p in objective.parameters()])
        for objective in (free, clipped)
    ]
    length = grads[0].norm().item()
    assert records[0].grad_norm == pytest.approx(length, rel=1e-5)
    torch.testing.assert_close(
        grads[1], grads[0] * min(1.0, clip_norm / length), rtol=1e-4, atol=0
    )  # PyTorch divides by the length + 1e-6


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_broken_gradient_of_a_finite_loss_leaves_the_weights(clip_norm):
    "The derivative of a root at 0 is infinite: the loss is finite, its gradient is not. Without clipping, NaN was once written into the weights."

    class Root(Objective):
        def forward(self, batch):
            return super().forward(batch) + (self.net[3].bias * 0).sqrt().sum()

    objective, before = Root(), weights(Root())
    with pytest.raises(
        NotFinite,
        match="the gradient norm became nan at step 1 with learning rate 1.00e-02",
    ):
        run(objective, 3, clip_norm=clip_norm)
    assert torch.equal(weights(objective), before)


def test_hooks_see_every_step_and_change_nothing():
    watched, alone, seen = Objective(dropout=0.5), Objective(dropout=0.5), []
    draws = [
        seen.append,
        Every(2, lambda r: "this is no Stop"),
        lambda r: torch.rand(3),
    ]
    assert run(watched, 5, draws) == Stop("max_steps=5 reached")
    run(alone, 5)
    assert len(seen) == 5 and torch.equal(weights(watched), weights(alone))


def test_all_hooks_hear_of_the_last_step():
    heard = []

    def at_three(reason):
        return lambda r: Stop(reason) if r.step == 3 else None

    assert run(
        Objective(),
        9,
        [at_three("first"), lambda r: heard.append(r.step), at_three("second")],
    ) == Stop("first")
    assert heard == [1, 2, 3]


def test_no_more_is_drawn_than_needed():
    "A run of n steps takes n batches: whoever resumes knows where the data stands."
    drawn = []

    def counted():
        for step in steps():
            drawn.append(1)
            yield step

    run(Objective(), 4, found=counted())
    assert len(drawn) == 4


def test_ends_at_once_beyond_the_last_step():
    objective, heard = Objective(), []
    before = weights(objective)
    assert run(objective, 4, [heard.append], found=steps(start=5)) == Stop(
        "max_steps=4 reached"
    )
    assert heard == [] and torch.equal(weights(objective), before)
    assert run(objective, 4, [heard.append], found=steps(start=4)) == Stop(
        "max_steps=4 reached"
    )
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
    with pytest.raises(
        NotFinite,
        match=r"the loss became (-?inf|nan) at step 3 with learning rate 1\.00e-02: lower the rate",
    ):
        run(objective, 9)
    run(two, 2)
    assert torch.equal(weights(objective), weights(two)) and issubclass(
        NotFinite, ValueError
    )


# several steps read at once

OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}


def in_groups(
    objective,
    n_steps,
    hooks=(),
    sync_every=4,
    kind="adam",
    fused=True,
    found=None,
    **more,
):
    optimizer = OPTIMIZERS[kind](objective.parameters(), lr=0.0, fused=fused)
    return train(
        objective,
        found or steps(),
        optimizer,
        lambda step: 0.01 / step,
        n_steps,
        hooks,
        sync_every=sync_every,
        **more,
    ), optimizer


def state(optimizer):
    return [
        value
        for values in optimizer.state.values()
        for value in values.values()
        if torch.is_tensor(value)
    ]


def same_state(a, b):
    return len(state(a)) == len(state(b)) and all(
        torch.equal(x, y) for x, y in zip(state(a), state(b))
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("sync_every", [2, 3, 4, 10, 50])
def test_groups_train_the_same(sync_every, kind):
    "Weights, the optimizer's state, and all of the records but their time: to the last bit."
    found = {}
    for name, k in (("one by one", 1), ("in groups", sync_every)):
        objective, records = Objective(dropout=0.5), []
        stop, optimizer = in_groups(
            objective, 10, [records.append], k, kind, clip_norm=0.5
        )
        found[name] = (
            stop,
            weights(objective),
            state(optimizer),
            [r._replace(seconds=0) for r in records],
        )
        assert (
            not hasattr(optimizer, "found_inf")
            and [type(r.loss) for r in records] == [float] * 10
        )
        assert sorted(r.seconds for r in records) == [r.seconds for r in records]
    (stop, w, adam, records), (stop_2, w_2, adam_2, records_2) = found.values()
    assert stop == stop_2 == Stop("max_steps=10 reached") and records == records_2
    assert torch.equal(w, w_2) and all(
        torch.equal(a, b) for a, b in zip(adam, adam_2, strict=True)
    )


def test_groups_end_at_multiples():
    "Whatever step a run begins with: what acts at multiples sees the weights of its step."
    events = []

    class Told(Objective):
        def forward(self, batch):
            events.append("step")
            return super().forward(batch)

    hooks = [lambda r: events.append(r.step), lambda r: events.append(-r.step)]
    in_groups(Told(), 10, hooks, 4, found=steps(start=3))
    assert events == ["step"] * 2 + [3, -3, 4, -4] + ["step"] * 4 + [
        5,
        -5,
        6,
        -6,
        7,
        -7,
        8,
        -8,
    ] + ["step"] * 2 + [9, -9, 10, -10]


def test_steps_that_run_out_are_reported():
    heard = []
    assert in_groups(
        Objective(), 99, [lambda r: heard.append(r.step)], found=islice(steps(), 6)
    )[0] == Stop("no more steps")
    assert heard == [1, 2, 3, 4, 5, 6]
    beyond = (
        step for step in steps() if step.step not in (6, 7)
    )  # 5, and then 8, which is too far
    assert in_groups(Objective(), 7, [lambda r: heard.append(r.step)], found=beyond)[
        0
    ] == Stop("max_steps=7 reached")
    assert heard[6:] == [1, 2, 3, 4, 5]


def test_a_stop_within_a_group_ends_after_it():
    "All hooks get all of the group's records; the first stop counts."
    heard, objective, eight = [], Objective(), Objective()
    hooks = [
        lambda r: Stop(f"at {r.step}") if r.step in (6, 7) else None,
        lambda r: heard.append(r.step),
        lambda r: Stop("late") if r.step == 6 else None,
    ]
    assert in_groups(objective, 99, hooks)[0] == Stop("at 6")
    in_groups(eight, 8)
    assert heard == list(range(1, 9)) and torch.equal(
        weights(objective), weights(eight)
    )
    assert in_groups(Objective(), 3, [lambda r: Stop("enough")], 4)[0] == Stop(
        "enough"
    )  # the last group is a short one


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("what", ["loss", "gradient norm"])
@pytest.mark.parametrize("bad_step", [1, 5, 6, 7, 8])
def test_a_group_with_a_broken_step_leaves_the_weights(bad_step, what, kind):
    "The weights and the optimizer's state are those before the step; hooks got the steps before it."

    class Breaks(Objective):
        n_calls = 0

        def forward(self, batch):
            self.n_calls += 1
            if self.n_calls != bad_step:
                return super().forward(batch)
            if what == "loss":
                return super().forward(batch) + math.inf  # its gradient is finite
            return super().forward(batch) + (self.net[3].bias * 0).sqrt().sum()

    broken, good, heard = Breaks(), Objective(), []
    optimizers = [
        OPTIMIZERS[kind](objective.parameters(), lr=0.0, fused=True)
        for objective in (broken, good)
    ]
    with pytest.raises(
        NotFinite,
        match=f"the {what} became (inf|nan) at step {bad_step} with learning rate",
    ):
        train(
            broken,
            steps(),
            optimizers[0],
            lambda step: 0.01,
            99,
            [lambda r: heard.append(r.step)],
            sync_every=4,
        )
    if bad_step > 1:
        train(good, steps(), optimizers[1], lambda step: 0.01, bad_step - 1)
    assert heard == list(range(1, bad_step)) and torch.equal(
        weights(broken), weights(good)
    )
    if bad_step > 1:
        assert same_state(*optimizers)
    else:
        assert not any(
            value.any() for value in state(optimizers[0])
        )  # the step count, too, is 0
    assert not hasattr(optimizers[0], "found_inf")


def test_groups_need_a_fused_optimizer():
    for sync_every, fused in ((2, False), (2, None), (0, True), (-1, True)):
        with pytest.raises(
            ValueError,
            match=f"sync_every={sync_every} must be 1, or more with a fused optimizer",
        ):
            in_groups(Objective(), 3, (), sync_every, fused=fused)
    in_groups(Objective(), 3, (), 1, fused=False)


def test_numbers_are_read_once_a_group(monkeypatch):
    "On a GPU each reading waits for the device: as many as groups, and none within, not by PyTorch either."

    class NoScalars(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert function is not torch.ops.aten._local_scalar_dense.default
            return function(*args, **(kwargs or {}))

    read, plain, made, objective = (
        [],
        torch.Tensor.tolist,
        [*islice(steps(), 10)],
        Objective(),
    )
    monkeypatch.setattr(
        torch.Tensor,
        "tolist",
        lambda self: read.append(tuple(self.shape)) or plain(self),
    )
    monkeypatch.setattr(torch.Tensor, "cpu", None)
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.0, fused=True)
    with NoScalars():
        train(
            objective,
            made,
            optimizer,
            lambda step: 0.01,
            10,
            clip_norm=1.0,
            sync_every=4,
        )
    assert read == [(4, 2), (4, 2), (2, 2)]


# prefetching


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_prefetched_steps_are_the_steps(depth):
    with closing(_prefetch(islice(steps(n_micro=2), 7), CPU, depth)) as found:
        for here, there in zip(islice(steps(n_micro=2), 7), found, strict=True):
            assert here._replace(micro=[]) == there._replace(micro=[])
            for a, b in zip(here.micro, there.micro, strict=True):
                assert (
                    all(torch.equal(x, y) for x, y in zip(a[:3], b[:3]))
                    and a[3] == b[3]
                )
    assert not threads()


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_is_prefetched_than_the_depth(depth):
    drawn = []

    def counted():
        for step in steps():
            drawn.append(step.step)
            yield step

    with closing(_prefetch(counted(), CPU, depth)) as found:
        assert (
            not drawn and not threads()
        )  # it begins with the first step that is asked for
        for n in range(1, 5):
            assert next(found).step == n and wait_until(
                lambda n=n: len(drawn) >= n + depth
            )
            time.sleep(0.01)  # time enough to draw one more
            assert drawn == list(range(1, n + depth + 1))
    assert not threads() and len(drawn) == 4 + depth


def test_an_error_comes_where_its_step_would_have_been():
    def torn():
        yield from islice(steps(), 3)
        raise OSError("the disk is gone")

    heard = []
    with (
        closing(_prefetch(torn(), CPU, 5)) as found,
        pytest.raises(OSError, match="the disk is gone"),
    ):
        for step in found:
            heard.append(step.step)
    assert heard == [1, 2, 3] and not threads()
    with pytest.raises(ValueError, match="depth=0 must be at least 1"):
        next(_prefetch(steps(), CPU, 0))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_loop_that_breaks_off_leaves_no_thread(error, monkeypatch):
    monkeypatch.setattr(loop, "_PREFETCH_ON", ("cpu",))

    def breaks(r):
        assert threads()
        if r.step == 3:
            raise error

    with pytest.raises(error) as kept:
        run(Objective(), 9, [breaks])
    assert (
        not threads() and kept.tb
    )  # while its traceback still holds the loop's iterator


@pytest.mark.parametrize("n_steps, given", [(6, None), (99, 5)])
def test_a_prefetching_loop_trains_the_same(n_steps, given, monkeypatch):
    "A loop on a CPU does not prefetch, unless made to; weights and records are the same; the thread ends with the loop, however that ends."
    found = []

    def trained():
        objective, records = Objective(dropout=0.5), []
        stop = run(
            objective,
            n_steps,
            [lambda r: records.append((r.step, r.loss, r.grad_norm, len(threads())))],
            found=islice(steps(), given),
        )
        found.append((stop, weights(objective), [r[:3] for r in records]))
        assert not threads()
        return {r[3] for r in records}

    assert trained() == {0}
    monkeypatch.setattr(loop, "_PREFETCH_ON", ("cpu",))
    assert 1 in trained()  # which has ended when the last step was handed over
    (stop, w, records), (stop_2, w_2, records_2) = found
    assert stop == stop_2 and torch.equal(w, w_2) and records == records_2
    assert (
        run(Objective(), 9, [lambda r: Stop("enough") if r.step == 2 else None])
        == Stop("enough")
        and not threads()
    )


def test_batches_for_a_gpu_are_pinned(monkeypatch):
    "By the thread, on the device of the loop; there is no GPU here, so the calls are noted."
    calls, one = [], next(steps(n_micro=2))
    monkeypatch.setattr(
        torch.Tensor,
        "pin_memory",
        lambda self: (
            calls.append((threading.current_thread().name, tuple(self.shape)))
            or self.clone()
        ),
    )
    monkeypatch.setattr(
        torch.cuda,
        "set_device",
        lambda device: calls.append((threading.current_thread().name, device)),
    )
    device = torch.device("cuda", 1)
    with closing(_prefetch(iter([one]), device)) as found:
        there = list(found)
    assert calls == [("prefetch", device)] + 2 * [
        ("prefetch", (8, 5)),
        ("prefetch", (8, 5)),
        ("prefetch", (8, 1)),
    ]
    assert (
        torch.equal(there[0].micro[1].tgt_out, one.micro[1].tgt_out)
        and there[0].micro[0].src is not one.micro[0].src
    )
    assert loop._PREFETCH_ON == ("cuda",)


def test_dropout_is_on_whatever_the_mode_was():
    objective, modes = Objective(dropout=0.5).eval(), []
    run(objective, 1, [lambda r: modes.append(objective.training)])
    assert modes == [True]


def test_same_seed_same_weights():
    def trained(seed):
        objective = Objective(seed, dropout=0.3)
        run(objective, 6)
        return weights(objective)

    assert torch.equal(trained(1), trained(1)) and not torch.equal(
        trained(1), trained(2)
    )


def record(step, seconds=1.0):
    return StepRecord(RunPosition(step, 0, step), 2.0, 1e-3, 100, seconds, 0.5)


def testEvery():
    found = []
    hook = Every(3, lambda r: found.append(r.step))
    for step in range(1, 11):
        hook(record(step))
    assert found == [3, 6, 9]
    assert (
        Every(2, lambda r: Stop("x"))(record(4)) == Stop("x")
        and Every(2, lambda r: Stop("x"))(record(5)) is None
    )


def test_stop_after():
    hook = stop_after(minutes=0.5)
    assert hook(record(1, 29.9)) is None and hook(record(2, 30.0)) == Stop(
        "0.5 minutes used up"
    )


def test_metrics_file_is_appended_to_and_readable_at_any_time(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n')
    hook = metrics_file(path)
    for step in (1, 2):
        hook(record(step))
        assert [
            json.loads(line)["step"] for line in path.read_text().split("\n")[:-1]
        ] == list(range(step + 1))
    assert json.loads(path.read_text().split("\n")[2]) == record(2).to_dict()


def test_a_line_of_the_metrics():
    "The keys and their meaning are those of the first edition: `i_batch` is the step's own batch."
    line = StepRecord(RunPosition(7, 2, 3), 2.0, 1e-3, 100, 1.5, 0.5).to_dict()
    assert json.dumps(line) == (
        '{"step": 7, "epoch": 2, "i_batch": 2, "loss": 2.0, "lr": 0.001, '
        '"n_tokens": 100, "seconds": 1.5, "grad_norm": 0.5}'
    )


def test_metrics_of_a_resumed_run_count_on(tmp_path):
    metrics_file(tmp_path / "metrics.jsonl", seconds_before=100.0)(record(7, 2.5))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["seconds"] == 102.5


@pytest.mark.parametrize("minutes, ends", [(None, "100/100"), (0.5, "30/30")])
def test_progress_bar(minutes, ends, capsys):
    "In steps or in seconds, never beyond its end."
    bar = progress_bar(100, minutes)
    for step in range(1, 101):
        bar(record(step, step * 0.4))
    bar.close()
    last = capsys.readouterr().err.split("\r")[-1]
    assert (
        ends in last and "step 100 loss 2.000 ppl 7.4 lr 1.0e-03 250 tokens/s" in last
    )


def test_progress_bar_of_a_resumed_run(capsys):
    "It begins where the run stood, and knows how much time is left."
    bar = progress_bar(100, first_step=60)
    assert "60/100" in capsys.readouterr().err
    bar(record(61, 0.5))
    bar.close()
    assert re.search(
        r"61/100 \[\d\d:\d\d<\d\d:\d\d", capsys.readouterr().err.split("\r")[-1]
    )


def test_a_progress_bar_survives_a_huge_loss(capsys):
    bar = progress_bar(1)
    bar(record(1)._replace(loss=1e9))
    bar.close()
    assert "loss 1000000000.000" in capsys.readouterr().err


def test_the_bar_is_plain_text_everywhere():
    "tqdm.auto would draw a widget in a notebook, and warn where there are none."
    import tqdm.std

    import annotated_transformer.runs.hooks as module

    assert module.tqdm is tqdm.std.tqdm


def test_tensorboard_writes_curves(tmp_path):
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    hook = tensorboard(tmp_path)
    for step in (3, 4):
        hook(record(step))
    hook(record(5)._replace(grad_norm=0.25))
    hook.close()
    found = events.EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in found.Scalars("loss")] == [
        (3, 2.0),
        (4, 2.0),
        (5, 2.0),
    ]
    assert [(e.step, e.value) for e in found.Scalars("gradient")] == [
        (3, 0.5),
        (4, 0.5),
        (5, 0.25),
    ]


def test_tensorboard_gets_four_curves(tmp_path, monkeypatch):
    "The same without TensorBoard, from a module of its name that takes notes."

    class SummaryWriter:
        notes = []

        def __init__(self, folder):
            self.notes.append(folder)

        def add_scalar(self, *values):
            self.notes.append(values)

        def close(self):
            self.notes.append("closed")

    fake = ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    hook = tensorboard(tmp_path)
    hook(record(7))
    hook.close()
    assert SummaryWriter.notes == [
        tmp_path,
        ("loss", 2.0, 7),
        ("learning rate", 1e-3, 7),
        ("tokens", 100, 7),
        ("gradient", 0.5, 7),
        "closed",
    ]


def test_tensorboard_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="pip install tensorboard"):
        tensorboard(tmp_path)
    assert not list(tmp_path.iterdir())


SIGNALS = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]
needs_sighup = pytest.mark.skipif(
    not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP"
)


def hung_up(*_):
    pytest.fail("a closed terminal would have ended the process")


@pytest.fixture
def terminal():
    "SIGHUP is not ignored, though the tests may run under nohup; afterwards it is as it was."
    before = (
        signal.signal(signal.SIGHUP, hung_up) if hasattr(signal, "SIGHUP") else None
    )
    yield
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, before)


def handlers():
    return {number: signal.getsignal(number) for number in SIGNALS}


def test_the_numbers_of_signals():
    assert {number.name: int(number) for number in SIGNALS} == {
        name: STOP_SIGNALS[name] for name in STOP_SIGNALS if hasattr(signal, name)
    }


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_stops_after_the_step(number, terminal):
    before, heard = handlers(), []

    def at_three(r):
        heard.append(r.step)
        if r.step == 3:
            signal.raise_signal(number)

    with on_signal() as hook:
        assert run(Objective(), 9, [at_three, hook]) == Stop(number.name)
    assert heard == [1, 2, 3]
    if number.name == "SIGHUP":
        before[number] = (
            signal.SIG_IGN
        )  # a closing terminal may send a second one while the run is saved
    assert handlers() == before


@needs_sighup
def test_a_hangup_that_is_ignored_stays_ignored(terminal):
    "A process under nohup."
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with on_signal() as hook:
        signal.raise_signal(signal.SIGHUP)
        assert (
            hook(record(1)) is None
            and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        )
        signal.raise_signal(signal.SIGTERM)
        assert hook(record(2)) == Stop("SIGTERM")
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@needs_sighup
def test_a_second_hangup_hurries_nothing(terminal):
    "The system sends one and the shell another; after Ctrl-C, too, the terminal may be closed."
    for first in (signal.SIGHUP, signal.SIGINT):
        try:
            with on_signal() as hook:
                signal.raise_signal(first)
                signal.raise_signal(signal.SIGHUP)
                assert hook(record(1)) == Stop(first.name)
        except KeyboardInterrupt:
            pytest.fail("it hurried")
        signal.raise_signal(signal.SIGHUP)  # while the run is saved
        signal.signal(signal.SIGHUP, hung_up)


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
        with on_signal() as hook:
            found.append((signal.getsignal(signal.SIGTERM) is before, hook(record(1))))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert found == [(True, None)]
