"Several processes learn what one learns: real ones, started by torchrun on a CPU."

import gc
import os
import weakref
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from processes import torchrun
from small_runs import LATER
from torch import nn

from annotated_transformer.data.batch import EncodedPairs, RaggedArray, training_steps
from annotated_transformer.engines.chunked_loss import chunked_loss
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.runs.settings import Recipe, get_recipe
from annotated_transformer.training.distributed import (
    agree,
    any_rank,
    data_parallel,
    distribute_like,
    full_tensor,
    is_main,
    main_process_first,
    pick_device,
    process_group,
    rank,
    shard,
    sum_over_ranks,
    sync_gradients,
    world_size,
)
from annotated_transformer.training.train import NotFinite, train

CPU = torch.device("cpu")
# PyTorch 2.8 clips slices by a factor in float32
SLICES = 1e-9 if torch.__version__ >= "2.12" else 1e-7
CLIPS = {"data_parallel": 1e-9, "shard": SLICES}
MANY, ONE = 80, 12  # tokens a step: some nine pairs; one, which leaves ranks empty


class Objective(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        torch.manual_seed(0)
        # 65: no equal slices
        config = ModelConfig(n_layers=1, d_model=32, d_ff=65, n_heads=4, **settings)
        self.model = build_transformer(config, n_vocab=51, pad_id=0)

    def forward(self, batch):
        hidden = self.model(batch.src, batch.tgt_in)
        weight, pad_id = self.model.embedding.output_weight(), self.model.pad_id
        return chunked_loss(hidden, weight, batch.tgt_out, pad_id, 0.1)


class Breaks(Objective):
    "The loss of the third micro-batch is infinite."

    n_calls = 0

    def forward(self, batch):
        self.n_calls += 1
        return super().forward(batch) * (float("inf") if self.n_calls == 3 else 1)


def layers(objective):
    return [*objective.model.encoder.layers, *objective.model.decoder.layers]


def steps(batch_tokens, rank=0, world_size=1, grad_accum_steps=1):
    rng = np.random.default_rng(0)

    def side():
        lengths = rng.integers(1, 12, 100)
        return RaggedArray.from_lists([rng.integers(4, 51, n) for n in lengths])

    symbols = SimpleNamespace(pad_id=0, bos_id=2, eos_id=3)
    place = {
        "rank": rank,
        "world_size": world_size,
        "grad_accum_steps": grad_accum_steps,
    }
    data = EncodedPairs(side(), side())
    return training_steps(data, symbols, batch_tokens, seed=0, **place)


OTHER = LATER | {"position": "learned"}  # the other model has other parts
WRAPS = {
    "data_parallel": lambda objective: data_parallel(objective, CPU),
    "shard": lambda objective: shard(objective, layers(objective)),
}


def training(
    wrap=lambda objective: objective,
    rank=0,
    world_size=1,
    grad_accum_steps=1,
    stop_at=None,
    kind=Objective,
    report_every=1,
    budget=MANY,
    **config,
):
    "Four steps of the real loop, with Adam and clipping, in float64: rounding cannot hide a mistake there. One may diverge, or be stopped by a rank."
    objective, records = kind(**config).double(), []
    wrapped = wrap(objective)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.0, fused=True)
    found, stop = steps(budget, rank, world_size, grad_accum_steps), None
    rate = lambda step: 1e-3 * step
    try:
        for record in train(wrapped, found, optimizer, rate, 4, 0.5, report_every):
            records.append(record)
            asked = "enough" if (rank, record.step) == stop_at else None
            if stop := agree(asked, CPU):
                break
    except NotFinite as e:
        stop = str(e)
    named = objective.named_parameters()
    tensors = {name: full_tensor(p.detach()) for name, p in named}
    return tensors, stop, [(r.step, r.loss, r.grad_norm) for r in records]


def built(sharded):
    "The tensors of a model as a run starts with it."
    recipe = Recipe(
        ModelConfig(n_layers=4, d_model=32, d_ff=65, n_heads=4, **OTHER),
        replace(
            get_recipe("base").train,
            precision="fp32",
            seed=3,
            max_len=19,
            init_gain=0.5,
        ),
    )
    vocab = mock.MagicMock(pad_id=0, __len__=lambda self: 200)
    objective, _, optimizer, _ = build_training(recipe, vocab, CPU, sharded=sharded)
    given = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in objective.parameters()} == given
    return {name: p.detach() for name, p in objective.named_parameters()}


def data_parallel_worker(folder, me):
    found, n, others = {}, world_size(), (rank(), world_size())
    found["who"], mine = (me, *others, is_main()), torch.tensor([1.0, me])
    found["sum"] = sum_over_ranks(mine).tolist()
    assert mine.tolist() == [1.0, me]  # the argument is left as it was
    found["any"] = [any_rank(me == who, CPU) for who in (0, n - 1, n)]
    found["first"] = [
        agree(("rank", me) if me in who else None, CPU)
        for who in ({0, 1}, {n - 1}, {1, n - 1}, set())
    ]
    with main_process_first():
        found["prepared"] = (folder / "prepared").exists()
        if me == 0:
            (folder / "prepared").touch()
    begun = Objective()
    with torch.no_grad():
        begun.model.embedding.weight += me
    data_parallel(begun, CPU)
    found["begun"] = begun.state_dict()
    last = (n - 1, 2)
    found["stopped"] = training(WRAPS["data_parallel"], *others, stop_at=last)
    uneven = data_parallel(objective := Objective(), CPU)
    if me == n - 1:  # it grows again when it is used
        objective.model.position.table = objective.model.position.table[:2]
    uneven(next(steps(MANY, *others)).micro_batches[0]).backward()
    return found


def sharding_worker():
    found, module = {}, shard(Objective(), [])  # in one piece
    tensors = {name: p.detach() for name, p in module.named_parameters()}
    found["local"] = {name: p.to_local().clone() for name, p in tensors.items()}
    found["back"] = all(
        torch.equal(distribute_like(full_tensor(p), p).to_local(), p.to_local())
        for p in tensors.values()
    )
    with torch.no_grad():
        module(next(steps(MANY)).micro_batches[0])
    found["sliced after a look"] = all(
        hasattr(p, "full_tensor") for p in module.parameters()
    )
    with sync_gradients(module, last=False):
        module(next(steps(MANY)).micro_batches[0]).backward()
    # a slice's gradient comes with the last micro-batch
    found["silent"] = all(p.grad is None for p in module.parameters())
    return found


def both_workers(wrap, me):
    found, n, others = {}, world_size(), (rank(), world_size())
    found["empty", wrap] = training(WRAPS[wrap], *others, budget=ONE, **OTHER)
    for every, name in ((1, "each"), (3, "thirds")):
        more = {"grad_accum_steps": 2, "report_every": every}
        found[name, wrap] = training(WRAPS[wrap], *others, **more)
    # the loss of one rank breaks in the third step
    kind = Breaks if me == n - 1 else Objective
    found["broken", wrap] = training(WRAPS[wrap], *others, kind=kind)
    return found


def worker(folder):
    "What each process does; the tests below look at what it found."
    me = int(os.environ["RANK"])
    gc.disable()  # so that nothing but leaving the group can free its cycles
    with process_group(pick_device("cpu")):
        group = weakref.ref(dist.group.WORLD)
        found = data_parallel_worker(folder, me) | both_workers("data_parallel", me)
    found["left"] = (rank(), world_size(), dist.is_initialized(), group())
    gc.enable()
    # as after a restart: the store still has the addresses of before
    os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
    with process_group(CPU):
        found |= sharding_worker() | both_workers("shard", me)
    torch.save(found, folder / f"{me}.pt")


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def found(request, tmp_path_factory):
    "What each of two, or three, processes found."
    folder, n = tmp_path_factory.mktemp("ranks"), request.param
    status, said = torchrun(n, worker, folder, said=folder / "said")
    assert status == 0, said
    # an argument of DDP that newer versions warn of
    assert "broadcast_buffers" not in said
    return [torch.load(folder / f"{i}.pt") for i in range(n)]


def off(found, right):
    "How far, in the worst tensor, as a share of its length."
    return max(
        float((found[name] - right[name]).norm() / right[name].norm()) for name in right
    )


def same(found, right):
    return all(torch.equal(found[name], right[name]) for name in right)


def test_ranks_agree(found):
    "Who they are, on sums and flags, that rank 0 goes first, on weights and on a stop."
    n = len(found)
    for i, f in enumerate(found):
        assert f["who"] == (i, i, n, i == 0)
        assert f["sum"] == [n, n * (n - 1) / 2]
        assert f["any"] == [True, True, False]
        assert f["first"] == [("rank", 0), ("rank", n - 1), ("rank", 1), None]
        assert f["prepared"] == (i > 0)
        assert same(f["begun"], Objective().state_dict())
        _, stop, records = f["stopped"]
        assert stop == "enough" and [step for step, *_ in records] == [1, 2]
        # a thread of gloo that was still there when Python ended aborted the process
        assert f["left"] == (0, 1, False, None)


@pytest.mark.parametrize("wrap", WRAPS)
def test_training_is_that_of_one_process(found, wrap):
    "With clipping, of the whole gradient's length, and with steps that leave ranks empty. However often it is reported, to the last bit."
    for what, right in (("each", training()), ("empty", training(budget=ONE, **OTHER))):
        one, one_stop, one_records = right
        for f in found:
            several, stop, records = f[what, wrap]
            # float64; Adam divides by small numbers
            assert off(several, one) < CLIPS[wrap]
            assert same(several, found[0][what, wrap][0])
            assert stop is one_stop is None
            for record, its in zip(records, one_records, strict=True):
                # the loss is added up in float32
                assert record == pytest.approx(its, rel=1e-6)
                assert record[2] == pytest.approx(its[2], rel=1e-9)
        assert max(norm for *_, norm in one_records) > 0.5
    for f in found:
        several, stop, records = f["each", wrap]
        thirds, *rest = f["thirds", wrap]
        assert same(thirds, several) and rest == [stop, records[2:]]


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_broken_loss_on_one_rank_stops_all(found, wrap):
    "With the weights of two steps on all of them."
    right, *_ = found[0]["broken", wrap]
    assert all(w.isfinite().all() for w in right.values())
    for tensors, stop, records in (f["broken", wrap] for f in found):
        assert stop.startswith("the loss became inf at step 3")
        assert [step for step, *_ in records] == [1, 2] and same(tensors, right)


def test_slices_make_up_the_whole(found):
    for name, p in Objective().named_parameters():
        assert torch.equal(torch.cat([f["local"][name] for f in found]), p)
        assert max(len(f["local"][name]) for f in found) <= -(-len(p) // len(found))
    assert all(f["back"] and f["sliced after a look"] and f["silent"] for f in found)


def test_a_sharded_start_is_drawn_as_an_unsharded_one():
    "Other numbers of the same distributions; what is not drawn is equal."
    found, right = built(True), built(False)
    assert found.keys() == right.keys()
    firsts = []
    for name, tensor in right.items():
        if tensor.std() == 0:
            assert torch.equal(found[name], tensor)
        else:
            stds = found[name].std().item(), tensor.std().item()
            assert stds[0] == pytest.approx(stds[1], rel=0.1)
            firsts.append(found[name].flatten()[0].item())
    assert len(set(firsts)) == len(firsts)
