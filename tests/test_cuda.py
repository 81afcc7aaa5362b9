"""What a run does on a GPU, as far as a machine without one can show it.

Tensors are fake ones on CUDA, or a stand-in (claims_cuda.py) takes the driver's place,
below what PyTorch checks itself; and what happens at the end of memory.
"""

from dataclasses import replace

import pytest
import torch
from claims_cuda import claim
from processes import start
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from annotated_transformer import UserError
from annotated_transformer.data.batch import Batch
from annotated_transformer.engines.choose import FAST
from annotated_transformer.engines.fused_attention import fused_attention
from annotated_transformer.runs.folder import read_config, read_metrics
from annotated_transformer.runs.settings import get_recipe, override
from annotated_transformer.runs.train_run import RunOptions, resume_run, train_run
from annotated_transformer.training.distributed import pick_device

SETTINGS = (
    "n_layers=1 d_model=32 d_ff=64 n_heads=2 vocab_size=400 batch_tokens=400 "
    "max_steps=12 valid_every=6 save_every=3 precision=fp32 average_last=0"
).split()


class Observe(TorchFunctionMode):
    "Note what `note` gives for each call of a function, and make the call."

    def __init__(self, function, note):
        super().__init__()
        self.function, self.note, self.found = function, note, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == self.function:
            self.found.append(self.note(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def test_a_gpu_has_its_index():
    "PyTorch refuses a device without one wherever it chooses between several."
    with FakeTensorMode():
        device = pick_device("cuda")
    assert device == torch.device("cuda", 0)
    assert torch.cuda._utils._get_device_index(device) == 0


def train_here(claims: bool, *args) -> None:
    if claims:
        claim()
    train_run(*args)


def test_a_run_on_a_machine_that_claims_a_gpu(corpus, tmp_path):
    "The same run as on the CPU, by the prefetching and the copies of CUDA."
    recipe, losses = override(get_recipe("tiny"), SETTINGS), []
    for claims, device in (
        (True, "cuda:0 (stand-in)"),
        (False, "cpu (1 threads)"),
    ):
        run, said = tmp_path / str(claims), tmp_path / "said"
        options = RunOptions(None if claims else "cpu")
        process = start(train_here, claims, corpus, recipe, run, options, said=said)
        process.join(120)
        assert process.exitcode == 0, said.read_text()
        assert f"training on {device}, fp32, 1 process\n" in said.read_text()
        records = read_metrics(run)
        losses.append([r[k] for r in records for k in ("loss", "valid_loss") if k in r])
    # fused Adam
    assert losses[0] == pytest.approx(losses[1], rel=1e-4) and len(losses[0]) > 4


@pytest.mark.skipif(
    bool(torch.version.cuda)
    and not torch.cuda.is_available()
    and torch.__version__ < "2.12",
    reason="this build of PyTorch asks the driver, which is missing",
)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_on_cuda_never_uses_cudnn(dropout):
    "At the call, and the settings of the process stay."
    cuda = torch.backends.cuda
    kernels = lambda *args, **named: (
        cuda.cudnn_sdp_enabled(),
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
    )
    before = kernels()
    assert before[0], "PyTorch's own setting has changed"
    attend = FAST.attention_dropout(dropout) if dropout else fused_attention
    function = torch.nn.functional.scaled_dot_product_attention
    with FakeTensorMode(), Observe(function, kernels) as calls:
        q = torch.ones(2, 8, 5, 16, device="cuda")
        attend(q, q, q)
    assert calls.found == [(False, True, True, True)]
    assert kernels() == before


@pytest.mark.parametrize("device, expected", [("cuda:0", True), ("cpu", False)])
def test_copies_overlap_on_cuda_only(device, expected):
    "Elsewhere, memory that is freed too early would be copied."
    ids = torch.ones(2, 3, dtype=torch.long)
    noted = lambda *args, non_blocking=False, **named: non_blocking
    with FakeTensorMode() as fake, Observe(torch.Tensor.to, noted) as calls:
        ids = fake.from_tensor(ids)
        Batch(ids, ids, ids, 6).to(torch.device(device))
    assert calls.found == 3 * [expected]


# memory


@pytest.fixture
def quiet() -> RunOptions:
    return RunOptions("cpu", quiet=True)


def more_than_there_is(*args, **named):
    "A loss that asks PyTorch for more memory than any machine has."
    return torch.empty(2**50).sum()


def test_out_of_memory_names_the_remedy_and_keeps_the_run(corpus, tmp_path, quiet):
    "At the first step: the text stays encoded, and the run continues with smaller batches."
    run, recipe = tmp_path / "a run", override(get_recipe("tiny"), SETTINGS)
    failing = replace(quiet, engines=FAST._replace(loss=more_than_there_is))
    with pytest.raises(UserError) as failed:
        train_run(corpus, recipe, run, failing)
    says = (
        "out of memory on cpu: continue with smaller micro-batches, which leave the step "
        "as it is, by resume_run in Python or annotated-transformer train --resume "
        f"'{run}' grad_accum_steps=2"
    )
    assert str(failed.value) == says
    resume_run(run, quiet, changes=["grad_accum_steps=2"])
    straight = train_run(corpus, recipe, tmp_path / "straight", quiet)
    assert read_config(run)[0].train.grad_accum_steps == 2
    tokens, others = (
        [r["n_tokens"] for r in read_metrics(path) if "loss" in r]
        for path in (run, straight)
    )
    assert tokens == others and len(tokens) == 5


def test_settings_that_may_change_when_a_run_is_resumed(corpus, tmp_path, quiet):
    recipe = override(get_recipe("tiny"), SETTINGS)
    run = train_run(corpus, recipe, tmp_path / "run", replace(quiet, minutes=1e-6))
    before = (run / "config.json").read_bytes()
    for wrong, says in (
        ("dropout=0.3", "cannot be changed"),
        ("grad_accum_steps=0", "=0"),
    ):
        with pytest.raises(UserError, match=says):
            resume_run(run, quiet, changes=["save_every=2", wrong])
    assert (run / "config.json").read_bytes() == before
    resume_run(
        run, quiet, changes=["grad_accum_steps=2", "valid_every=4", "save_every=2"]
    )
    settings = read_config(run)[0].train
    found = settings.grad_accum_steps, settings.valid_every, settings.save_every
    assert found == (2, 4, 2)
    assert [r["step"] for r in read_metrics(run) if "valid_loss" in r] == [4, 8, 12]
