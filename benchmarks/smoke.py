#!/usr/bin/env python
"""Is what a device computes right? A line for each check, in two minutes; the first that fails ends it, with status 1 and what to do.

make smoke-gpu                             or, with a tiny model on a CPU:
python benchmarks/smoke.py --device cpu
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from measuring import Ids, random_pairs

from annotated_transformer import load
from annotated_transformer.data.batch import Batch, StepData, training_steps
from annotated_transformer.data.grammar import builtin
from annotated_transformer.engines.choose import FAST, PLAIN, Engines
from annotated_transformer.engines.prefetch import prefetch
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.runs.settings import RECIPES, Recipe
from annotated_transformer.training.distributed import pick_device
from annotated_transformer.training.train import train


def build(device: torch.device, engines: Engines = FAST, **settings) -> tuple:
    "Loss, optimiser and learning rates of the base model, or of a tiny one on a CPU."
    m, n_vocab = RECIPES["base"].model, 37_000
    if device.type != "cuda":
        m, n_vocab = ModelConfig(n_layers=1, d_model=32, d_ff=64, n_heads=2), 500
    recipe = Recipe(m, replace(RECIPES["base"].train, warmup_steps=200, **settings))
    return build_training(recipe, Ids(n_vocab), device, engines=engines)[1:]


def steps(n_tokens: int, longest: int) -> Iterator[StepData]:
    "Of random ids, but of 300 only, which can be learnt in some steps."
    lengths = np.random.default_rng(0).integers(1, longest, (20_000, 2))
    return training_steps(random_pairs(lengths, 300), Ids(300), n_tokens, seed=0)


def gradient(device: torch.device, batch: Batch, which: Engines, precision: str):
    "The loss of a token, and its gradient by all weights."
    objective, *_ = build(device, which, precision=precision, dropout=0.0)
    loss = objective(batch.to(device)) / max(batch.n_tokens, 1)
    loss.backward()
    gradients = [p.grad.flatten() for p in objective.parameters()]
    return loss.item(), torch.cat(gradients).double().cpu()


# ---- the checks; the first line of each is what to do if it fails


def a_kernel_runs(device: torch.device) -> str:
    "install the build of PyTorch for this driver (nvidia-smi) and this kind of GPU"
    assert (torch.ones(1, device=device) + 1).item() == 2
    assert device.type == "cpu" or device.index is not None, f"{device} has no index"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def engines_equal_lessons(device: torch.device) -> str:
    "tests/test_twins.py names the engine; until then: RunOptions(engines=PLAIN)"
    # sentences of up to 200 tokens, which attention takes in several blocks
    batch = next(steps(2000, 200)).micro_batches[0]
    loss, exact = gradient(device, batch, PLAIN, "fp32")

    def errors(*case) -> tuple[float, float]:
        other, grad = gradient(device, batch, *case)
        return abs(other / loss - 1), ((grad - exact).norm() / exact.norm()).item()

    fp32, bf16 = errors(FAST, "fp32"), errors(FAST, "bf16")
    # rounding to 24 bits makes some 1e-6 of it; TF32, with 11 bits, would make 1e-3
    assert max(fp32) < 1e-4, f"loss and gradient in fp32 are off by {fp32}"
    # what rounding to 8 bits makes of it, the lessons show; 1e-3: both are about 0
    for ours, theirs in zip(bf16, errors(PLAIN, "bf16")):
        assert ours < 2 * theirs + 1e-3, f"off by {ours} in bf16, lessons by {theirs}"
    return f"gradients are off by {fp32[1]:.0e} in fp32, {bf16[1]:.0e} in bf16"


def padding_has_no_gradient(device: torch.device) -> str:
    "a rank without text spoils the others: take a newer PyTorch, or larger steps"
    empty = torch.zeros(1, 1, dtype=torch.int64)
    for precision in ("fp32", "bf16"):
        loss, grad = gradient(device, Batch(empty, empty, empty, 0), FAST, precision)
        assert loss == 0 and not grad.any(), f"{precision}: loss {loss}, or a gradient"
    return "loss and gradient are 0"


def training_learns_and_does_not_wait(device: torch.device) -> str:
    "no memory: grad_accum_steps=4; no lower loss: precision=fp32; a wait costs time only"
    cuda, n_tokens, counts = torch.cuda if device.type == "cuda" else None, 500, []
    if cuda:
        memory = cuda.get_device_properties(device).total_memory
        n_tokens = 25_000 if memory > 20e9 else 8_000

    def text() -> Iterator[StepData]:
        for step in prefetch(steps(n_tokens, 60), device):
            counts.append(step.n_tokens)
            if cuda:  # waits are errors but in the first steps and where a report comes
                strict = step.step > 10 and 1 < step.step % 10 < 9
                cuda.set_sync_debug_mode("error" if strict else "default")
            yield step

    objective, optimizer, schedule = build(device)
    records = train(objective, text(), optimizer, schedule, 31, report_every=10)
    at = {record.step: record for record in records}
    loss, rate = at[31].loss, sum(counts[10:30]) / (at[20].seconds + at[30].seconds)
    assert loss < at[10].loss - 0.05, f"{at[10].loss} in step 10, {loss} in step 31"
    more = "whether it waits is asked on CUDA alone"
    if cuda:
        more = f"no wait, {cuda.max_memory_allocated() / 1e9:.1f} GB at most"
    return f"loss {at[10].loss:.2f} to {loss:.2f}, {rate:,.0f} tokens/s; {more}"


def beam_search_is_the_same(device: torch.device) -> str:
    "tests/test_twins.py names the engine; until then: translate --device cpu"
    lines, same = [s.en for s in builtin(200, seed=7, split="test")], []
    expected = load("demo").translate(lines)
    for precision in ("fp32", "bf16"):
        found = load("demo", str(device), precision=precision).translate(lines)
        same.append(sum(map(str.__eq__, found, expected)))
    shown = f"{same[0]} of {len(lines)} as on the CPU, {same[1]} in bf16"
    # bf16 may exchange translations of almost equal score
    assert same[0] == len(lines) and same[1] >= 0.95 * len(lines), shown
    return shown


CHECKS = [a_kernel_runs, engines_equal_lessons, padding_has_no_gradient]
CHECKS += [training_learns_and_does_not_wait, beam_search_is_the_same]


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    name = parser.parse_args(args).device
    for check in CHECKS:
        what = check.__name__.replace("_", " ")
        try:
            print(f"{what}: {check(pick_device(name))}", flush=True)
        except Exception as e:
            print(f"{what}: FAILED: {type(e).__name__}: {e}\nto do: {check.__doc__}")
            raise SystemExit(1) from None


if __name__ == "__main__":
    main()
