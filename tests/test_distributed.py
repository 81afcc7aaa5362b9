"Several processes learn what one learns: real ones, started by torchrun on a CPU."

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from annotated_transformer.data.batch import EncodedPairs, RaggedArray, training_steps
from annotated_transformer.engines.chunked_loss import chunked_loss
from annotated_transformer.model.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.training import distributed
from annotated_transformer.training.distributed import (
    any_rank,
    data_parallel,
    distribute_like,
    first_over_ranks,
    full_tensor,
    launched,
    main_process_first,
    pick_device,
    process_group,
    rank,
    shard,
    sum_over_ranks,
    sync_gradients,
    world_size,
)
from annotated_transformer.training.train import NotFinite, Stop, train

CPU, SINGLE, DOUBLE = torch.device("cpu"), torch.float32, torch.float64
MANY, FEW, ONE = (
    80,
    30,
    12,
)  # tokens a step: some nine pairs; three, which leave a micro-batch of two ranks empty; one, which leaves ranks empty


class Objective(nn.Module):
    def __init__(self, dtype=SINGLE, norm="post", position="sinusoidal"):
        super().__init__()
        torch.manual_seed(0)
        config = ModelConfig(
            n_layers=1, d_model=32, d_ff=65, n_heads=4, norm=norm, position=position
        )  # 65: no equal slices
        self.model = build_transformer(config, n_vocab=51, pad_id=0).to(dtype)

    def forward(self, batch):
        hidden = self.model(batch.src, batch.tgt_in)
        return chunked_loss(
            hidden, self.model.embedding.weight, batch.tgt_out, self.model.pad_id, 0.1
        )


def layers(objective):
    return [*objective.model.encoder.layers, *objective.model.decoder.layers]


def steps(batch_tokens, rank=0, world_size=1, accumulate=1):
    rng = np.random.default_rng(0)
    data = EncodedPairs(
        *(
            RaggedArray.from_lists(
                [rng.integers(4, 51, n) for n in rng.integers(1, 12, 100)]
            )
            for _ in range(2)
        )
    )
    symbols = SimpleNamespace(pad_id=0, bos_id=2, eos_id=3)
    return training_steps(
        data,
        symbols,
        batch_tokens,
        seed=0,
        rank=rank,
        world_size=world_size,
        accumulate=accumulate,
    )


WRAPS = {
    "data_parallel": lambda objective: data_parallel(objective, CPU),
    "shard": lambda objective: shard(objective, layers(objective)),
}
GRADIENTS = {
    "many": (MANY, 1, SINGLE, {}),
    "many in threes": (MANY, 3, SINGLE, {}),
    "few in threes": (FEW, 3, DOUBLE, {}),
    "one, the other model": (ONE, 1, SINGLE, {"norm": "pre", "position": "learned"}),
}


def gradient(
    case,
    wrap=lambda objective: objective,
    rank=0,
    world_size=1,
    accumulate=None,
    dtype=None,
):
    budget, n_micro, usual, config = GRADIENTS[case]
    objective, step = (
        Objective(dtype or usual, **config),
        next(steps(budget, rank, world_size, accumulate or n_micro)),
    )
    wrapped = wrap(objective)
    for i, batch in enumerate(step.micro, start=1):
        with sync_gradients(wrapped, last=i == len(step.micro)):
            (wrapped(batch) / step.n_tokens).backward()
    return {name: full_tensor(p.grad) for name, p in objective.named_parameters()}, [
        batch.n_tokens for batch in step.micro
    ]


def training(
    wrap=lambda objective: objective,
    rank=0,
    world_size=1,
    accumulate=1,
    hooks=(),
    broken=False,
    sync_every=1,
):
    "Four steps of the real loop, with Adam and clipping, in float64: rounding cannot hide a mistake there. A diverged one stops with its message."

    class Breaks(Objective):
        n_calls = 0

        def forward(self, batch):
            self.n_calls += 1
            return super().forward(batch) * (float("inf") if self.n_calls == 3 else 1)

    objective, records = (Breaks if broken else Objective)(DOUBLE), []
    wrapped = wrap(objective)
    optimizer = torch.optim.Adam(wrapped.parameters(), lr=0.0, fused=True)
    found = steps(MANY, rank, world_size, accumulate)
    try:
        stop = train(
            wrapped,
            found,
            optimizer,
            lambda step: 1e-3 * step,
            4,
            [records.append, *hooks],
            0.5,
            sync_every,
        ).reason
    except NotFinite as e:
        stop = str(e)
    return {
        "weights": {
            name: full_tensor(p.detach()) for name, p in objective.named_parameters()
        },
        "stop": stop,
        "losses": [r.loss for r in records],
        "norms": [r.grad_norm for r in records],
        "steps": [r.step for r in records],
    }


class Memory(TorchDispatchMode):
    "The most bytes that tensors hold at one time, while it is open."

    def __init__(self):
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta:
                storage = tensor.untyped_storage()
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {
            key: (ref, n) for key, (ref, n) in self.alive.items() if not ref.expired()
        }
        self.peak = max(self.peak, sum(n for _, n in self.alive.values()))
        return out


BUILT = {"post": {}, "pre": {"norm": "pre", "position": "learned", "n_positions": 20}}


class Vocab20:
    pad_id = 0

    def __len__(self):
        return 20


def built(case, sharded):
    "A model as a run begins with it, what it took to build it, and the objective."
    recipe = Recipe(
        ModelConfig(n_layers=4, d_model=32, d_ff=65, n_heads=4, **BUILT[case]),
        TrainConfig(precision="fp32", seed=3, max_len=19),
    )
    with Memory() as memory:
        objective, parallel, optimizer, _ = build_training(
            recipe, Vocab20(), CPU, sharded=sharded
        )
    tensors = {**dict(objective.named_parameters()), **dict(objective.named_buffers())}
    assert {id(p) for p in objective.parameters()} == {
        id(p) for group in optimizer.param_groups for p in group["params"]
    }
    return (
        {name: full_tensor(tensor.detach()) for name, tensor in tensors.items()},
        memory.peak,
        parallel,
    )


def worker(folder):
    "What each process does; the tests below look at what it found."
    found, me = {}, int(os.environ["RANK"])
    with process_group(pick_device("cpu")):
        n, others = world_size(), (rank(), world_size())
        found["who"], mine = (me, *others), torch.tensor([1.0, me])
        found["sum"] = sum_over_ranks(mine).tolist()
        assert mine.tolist() == [1.0, me]  # the argument is left as it was
        found["any"] = [any_rank(me == who, CPU) for who in (0, n - 1, n)]
        found["first"] = [
            first_over_ranks(("rank", me) if me in who else None)
            for who in ({0, 1}, {n - 1}, {1, n - 1})
        ]
        with main_process_first():
            found["prepared"] = (folder / "prepared").exists()
            if me == 0:
                (folder / "prepared").touch()
        for name, wrap in WRAPS.items():
            for case in GRADIENTS:
                found[case, name] = gradient(case, wrap, *others)
            found["training", name] = training(wrap, *others, accumulate=2)
            found["in groups", name] = training(
                wrap, *others, accumulate=2, sync_every=3
            )
            # the loss of one rank breaks in the third step; the second step's last micro-batch is its second call
            found["broken", name] = training(wrap, *others, broken=me == n - 1)
            found["broken in groups", name] = training(
                wrap, *others, broken=me == n - 1, sync_every=4
            )
        module = shard(Objective(), [])  # in one piece
        tensors = {name: p.detach() for name, p in module.named_parameters()}
        found["local"] = {name: p.to_local().clone() for name, p in tensors.items()}
        found["back"] = all(
            torch.equal(distribute_like(full_tensor(p), p).to_local(), p.to_local())
            for p in tensors.values()
        )
        with torch.no_grad():
            module(next(steps(MANY)).micro[0])
        found["sliced after a look"] = all(
            hasattr(p, "full_tensor") for p in module.parameters()
        )
        with sync_gradients(module, last=False):
            module(next(steps(MANY)).micro[0]).backward()
        found["silent"] = all(
            p.grad is None for p in module.parameters()
        )  # a slice's gradient comes with the last micro-batch
        begun = Objective()
        with torch.no_grad():
            begun.model.embedding.weight += me
        data_parallel(begun, CPU)
        found["begun"] = begun.state_dict()

        def stops(record):
            return Stop("enough") if me == n - 1 and record.step == 2 else None

        found["stopped"] = training(WRAPS["data_parallel"], *others, hooks=[stops])
        for case in BUILT:
            tensors, peak, objective = built(case, sharded=True)
            sliced = {
                name: p.to_local().nbytes for name, p in objective.named_parameters()
            }
            found["built", case] = tensors, peak, sliced
        uneven = data_parallel(objective := Objective(), CPU)
        if me == n - 1:
            objective.model.position.table = objective.model.position.table[
                :2
            ]  # it grows again when it is used
        uneven(next(steps(MANY, *others)).micro[0]).backward()
    found["left"] = (rank(), world_size(), dist.is_initialized())
    torch.save(found, folder / f"{me}.pt")


PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_distributed import worker
worker(Path(sys.argv[2]))
"""


@pytest.fixture(scope="module", params=[2, 3])
def found(request, tmp_path_factory):
    "What each of two, or three, processes found."
    folder, n = tmp_path_factory.mktemp("ranks"), request.param
    (folder / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(n),
        folder / "program.py",
        os.path.dirname(__file__),
        folder,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert (
        "broadcast_buffers" not in done.stderr
    )  # an argument of DDP that newer versions warn of
    return [torch.load(folder / f"{i}.pt") for i in range(n)]


LEAVING = """
import weakref
from pathlib import Path

import torch
import torch.distributed as dist

from annotated_transformer.training.distributed import data_parallel, process_group


def train():
    module = data_parallel(torch.nn.Linear(2, 2), torch.device("cpu"))
    module(torch.ones(1, 2)).sum().backward()
    torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)


with process_group(torch.device("cpu")):
    group = weakref.ref(dist.group.WORLD)
    train()
threads = [p.read_text() for p in Path("/proc/self/task").glob("*/comm")]  # of Linux
assert group() is None and "gloo" not in "".join(threads), threads
"""


def test_nothing_of_the_group_outlives_it(tmp_path):
    "Its threads were still there when Python ended, and one that freed a tensor then aborted the process: status -6."
    (tmp_path / "program.py").write_text(LEAVING)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*start, "--nproc-per-node", "2", tmp_path / "program.py"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


def off(found, right):
    "How far, in the worst tensor, as a share of its length."
    return max(
        float((found[name] - right[name]).norm() / right[name].norm()) for name in right
    )


def test_who_is_who(found):
    n = len(found)
    assert [f["who"] for f in found] == [(i, i, n) for i in range(n)]
    assert [f["left"] for f in found] == [(0, 1, False)] * n


def test_all_hear_the_sum_and_agree(found):
    n = len(found)
    for f in found:
        assert f["sum"] == [n, n * (n - 1) / 2]
        assert f["any"] == [True, True, False]
        assert f["first"] == [("rank", 0), ("rank", n - 1), ("rank", 1)]


def test_rank_0_goes_first(found):
    assert [f["prepared"] for f in found] == [False] + [True] * (len(found) - 1)


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradient_is_that_of_one_process(found, case, wrap):
    right, _ = gradient(case, accumulate=1)
    for f in found:
        grads, n_tokens = f[case, wrap]
        assert (
            off(grads, right) < {SINGLE: 1e-6, DOUBLE: 1e-13}[GRADIENTS[case][2]]
        )  # rounding, added up in another order
        assert all(
            torch.equal(grads[name], found[0][case, wrap][0][name]) for name in grads
        )
    empty = case.startswith("one") or case.startswith("few") and len(found) == 2
    assert (0 in sum((f[case, wrap][1] for f in found), [])) == empty


@pytest.mark.parametrize("wrap", WRAPS)
def test_training_is_that_of_one_process(found, wrap):
    "With clipping: the length that is clipped is that of the whole gradient."
    one = training()
    for f in found:
        several = f["training", wrap]
        assert (
            off(several["weights"], one["weights"]) < 1e-9
        )  # float64; Adam divides by small numbers
        assert several["losses"] == pytest.approx(
            one["losses"], rel=1e-6
        )  # added up in float32
        assert (
            several["norms"] == pytest.approx(one["norms"], rel=1e-9)
            and max(one["norms"]) > 0.5
        )
        assert several["stop"] == "max_steps=4 reached" and several["steps"] == [
            1,
            2,
            3,
            4,
        ]


def test_slices_make_up_the_whole(found):
    for name, p in Objective().named_parameters():
        assert torch.equal(torch.cat([f["local"][name] for f in found]), p)
        assert max(len(f["local"][name]) for f in found) <= -(-len(p) // len(found))
    assert all(f["back"] and f["sliced after a look"] for f in found)


@pytest.mark.parametrize("case", BUILT)
def test_a_sharded_run_begins_with_the_same_weights(found, case):
    "Bit for bit, the table of positions too, and every parameter is sliced."
    right, _, _ = built(case, sharded=False)
    for f in found:
        tensors, _, sliced = f["built", case]
        assert tensors.keys() == right.keys() and all(
            torch.equal(tensors[name], right[name]) for name in right
        )
        for name, n_bytes in sliced.items():
            rows = -(-len(right[name]) // len(found)) if right[name].dim() else 1
            assert n_bytes <= rows * right[name].nbytes // len(right[name])
    assert [sum(f["built", case][2][name] for f in found) for name in sliced] == [
        right[name].nbytes for name in sliced
    ]


def test_a_sharded_run_is_never_whole_on_a_rank(found):
    "While it is built: the slices, one whole tensor and its slice, and the small tensors that are not drawn. An ordinary build has all."
    right, peak, _ = built("pre", sharded=False)
    sizes, small = (
        [tensor.nbytes for tensor in right.values()],
        sum(t.nbytes for name, t in right.items() if "norm" in name),
    )
    assert peak >= sum(sizes)
    for f in found:
        _, peak, sliced = f["built", "pre"]
        assert (
            sum(sliced.values())
            <= peak
            <= sum(sliced.values()) + 2 * max(sizes) + 2 * small
            < sum(sizes)
        )


def test_slices_meet_only_in_the_last_micro_batch(found):
    assert all(f["silent"] for f in found)


def test_all_begin_with_the_weights_of_rank_0(found):
    right = Objective().state_dict()
    for f in found:
        assert all(torch.equal(f["begun"][name], right[name]) for name in right)


def test_one_hook_on_one_rank_stops_all(found):
    assert [f["stopped"]["stop"] for f in found] == ["enough"] * len(found)
    assert all(f["stopped"]["steps"] == [1, 2] for f in found)


@pytest.mark.parametrize("wrap", WRAPS)
def test_steps_read_in_groups_are_the_same(found, wrap):
    for f in found:
        one_by_one, groups = f["training", wrap], f["in groups", wrap]
        assert all(
            torch.equal(groups["weights"][name], w)
            for name, w in one_by_one["weights"].items()
        )
        assert all(
            groups[name] == one_by_one[name]
            for name in ("stop", "losses", "norms", "steps")
        )


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_broken_loss_on_one_rank_stops_all(found, wrap):
    "With the weights of two steps on all of them, in groups as well, where the fourth step was begun."
    for f in found:
        one_by_one, groups = f["broken", wrap], f["broken in groups", wrap]
        assert groups["stop"] == one_by_one["stop"] and groups["stop"].startswith(
            "the loss became inf at step 3"
        )
        assert groups["steps"] == one_by_one["steps"] == [1, 2]
        assert all(
            torch.equal(groups["weights"][name], w) and w.isfinite().all()
            for name, w in one_by_one["weights"].items()
        )


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
@pytest.mark.parametrize("case", ["many", "few in threes"])
def test_shares_sum_to_the_step(case, n, accumulate):
    "What the processes compute, one after the other in this one; in float64."
    right, _ = gradient(case, accumulate=1, dtype=DOUBLE)
    each = [
        gradient(case, rank=i, world_size=n, accumulate=accumulate, dtype=DOUBLE)
        for i in range(n)
    ]
    n_rows = len(next(steps(GRADIENTS[case][0])).micro[0].src)
    assert {len(n_tokens) for _, n_tokens in each} == {min(accumulate, -(-n_rows // n))}
    assert (
        sum(sum(n_tokens) for _, n_tokens in each)
        == next(steps(GRADIENTS[case][0])).n_tokens
    )
    assert (
        off({name: sum(grads[name] for grads, _ in each) for name in right}, right)
        < 1e-13
    )


VARIABLES = {
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
    "LOCAL_RANK": "99",
}


@pytest.fixture
def started(monkeypatch):
    "As if torchrun had started this process, as the only one."
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def test_alone_nothing_happens():
    assert not launched()
    objective, x = Objective(), torch.randn(3)
    with process_group(CPU):
        assert (rank(), world_size(), dist.is_initialized()) == (0, 1, False)
        assert (
            data_parallel(objective, CPU) is objective
            and shard(objective, layers(objective)) is objective
        )
        assert (
            sum_over_ranks(x) is x
            and full_tensor(x) is x
            and distribute_like(x, x) is x
        )
        assert any_rank(True, CPU) is True and any_rank(False, CPU) is False
        with main_process_first(), sync_gradients(objective, last=False):
            pass


@pytest.mark.parametrize(
    "missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
)
def test_half_a_set_of_variables_is_none(started, monkeypatch, missing):
    monkeypatch.delenv(missing)
    assert not launched()
    with process_group(CPU):
        assert not dist.is_initialized()


def test_a_group_of_one(started):
    with process_group(CPU):
        assert dist.is_initialized() and (rank(), world_size()) == (0, 1)
        objective = Objective()
        assert (
            data_parallel(objective, CPU) is objective
            and shard(objective, []) is objective
        )
        with main_process_first():
            pass
    assert not dist.is_initialized()


def test_devices_without_a_backend_are_refused(started):
    with pytest.raises(
        ValueError,
        match="device 'mps' cannot communicate with other processes: take cuda or cpu",
    ):
        with process_group(torch.device("mps")):
            pass
    assert not dist.is_initialized()


@pytest.mark.parametrize("name", ["abacus", "cuda:99", "meta:x", ""])
def test_a_device_that_is_not_there(name):
    with pytest.raises(ValueError, match=f"device '{name}' cannot be used here: "):
        pick_device(name)


def test_each_process_takes_its_own_gpu(started):
    "Here there is none of number 99: the refusal says which was asked for."
    with pytest.raises(ValueError, match="device 'cuda:99' cannot be used here: "):
        pick_device("cuda")
    assert pick_device("cpu") == CPU


@pytest.mark.parametrize(
    "cuda, mps, several, best",
    [
        (False, False, False, "cpu"),
        (False, True, False, "mps"),
        (False, True, True, "cpu"),
        (True, True, False, "cuda"),
        (True, True, True, "cuda:99"),
    ],
)
def test_the_best_device_there_is(monkeypatch, cuda, mps, several, best):
    for name, value in VARIABLES.items() if several else ():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    monkeypatch.setattr(
        torch, "empty", lambda *args, device: None
    )  # no such device here
    assert pick_device() == torch.device(best)


def test_patience_outlasts_the_preparation():
    "Rank 0 reads millions of sentences while the others wait; PyTorch by itself gives up after 10 or 30 minutes."
    assert distributed._PATIENCE.total_seconds() >= 3600
