"""Every setting does what it says: one table over all fields, seen through `train_run`.

Each row changes one field of a very small run, names the aspects of the run that must
differ then (all others must be the same), and checks the new value by hand.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import LayerNorm

from annotated_transformer.data.batch import encode_pairs, epoch_batches
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.engines.fast_dropout import FastDropout
from annotated_transformer.engines.fused_attention import fused_attention
from annotated_transformer.io import files
from annotated_transformer.model.config import (
    ModelConfig,
    TrainConfig,
    get_recipe,
    override,
)
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.position import LearnedPosition, SinusoidalPosition
from annotated_transformer.model.stack import PostNorm, PreNorm
from annotated_transformer.runs import recipe as recipe_module
from annotated_transformer.runs import train_run as runs_module
from annotated_transformer.runs.folder import read_config, read_metrics
from annotated_transformer.runs.recipe import build_training, validation_loss
from annotated_transformer.runs.train_run import RunOptions, train_run
from annotated_transformer.training.attention_dropout import AttentionDropout

FIELDS = [
    field.name
    for part in (ModelConfig, TrainConfig)
    for field in dataclasses.fields(part)
]
BASE = (
    "n_layers=1",
    "d_model=16",
    "d_ff=24",
    "n_heads=2",
    "n_pieces=400",
    "batch_tokens=600",
    "max_steps=6",
    "schedule=linear",
    "peak_lr=0.01",
    "warmup_steps=2",
    "dropout=0",
    "label_smoothing=0",
    "precision=fp32",
    "valid_every=2",
    "save_every=2",
    "keep_last=2",
    "average_last=0",
)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus("builtin", n_train=80, n_valid=20, n_test=1)


# one run, watched


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def sentences(batch) -> list[tuple]:
    "The source and target ids of each row, without padding, in an order of their own."
    rows = zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    return sorted(tuple(tuple(i for i in side if i) for side in row) for row in rows)


def watch(
    corpus: Corpus,
    settings: tuple[str, ...],
    out: Path,
    losses: tuple[float, ...],  # what validation passes find; (): what they measure
) -> SimpleNamespace:
    "Train, and note what was built and what each step was given and did."
    seen = SimpleNamespace(
        recipe=override(get_recipe("tiny"), [*BASE, *settings]),
        out=out,
        done=0,
        batches=defaultdict(list),
        noise={},
        compiled=[],
        validated=set(),
        dtypes=set(),
        gradient={},
        mean={},
        square={},
        update={},
    )

    def build(recipe, vocab, device, **options):
        objective, parallel, optimizer, schedule = build_training(
            recipe, vocab, device, **options
        )
        seen.objective, seen.optimizer, seen.vocab = objective, optimizer, vocab
        seen.model, seen.start = objective.model, copied(objective.model)
        held_out = encode_pairs(corpus.valid, vocab, max_len=39)
        seen.held_out = validation_loss(
            objective, list(epoch_batches(held_out, vocab, 10_000, seed=0, epoch=0))
        )
        objective.register_forward_pre_hook(given)
        for layer in (*objective.model.encoder.layers, *objective.model.decoder.layers):
            layer.feed_forward.w_1.register_forward_hook(
                lambda module, args, product: seen.dtypes.add(product.dtype)
            )
        return objective, parallel, optimizer, schedule

    def given(objective, args):
        if not objective.training:
            return seen.validated.update(sentences(args[0]))
        seen.noise[seen.done + 1] = torch.initial_seed()
        seen.batches[seen.done + 1].append(args[0])

    def compiled(module, **how):
        seen.compiled.append((type(module).__name__, how))

    def after(record):
        seen.done = record.step
        if record.step > 1:
            return
        weights = dict(seen.model.named_parameters())
        state = seen.optimizer.state
        for name, weight in weights.items():
            seen.gradient[name] = weight.grad.clone()
            seen.mean[name] = state[weight]["exp_avg"].clone()
            seen.square[name] = state[weight]["exp_avg_sq"].clone()
            seen.update[name] = weight.detach() - seen.start[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "build_training", build)
        # what takes most of the time, and is tested elsewhere
        patch.setattr(files, "_fsync", lambda path: None)
        patch.setattr(nn.Module, "compile", compiled)
        if losses:
            found = iter(losses)
            patch.setattr(recipe_module, "validation_loss", lambda *_: next(found))
        train_run(
            corpus, seen.recipe, out, RunOptions("cpu", hooks=[after], quiet=True)
        )
    records = read_metrics(out)
    seen.steps = [record for record in records if "loss" in record]
    seen.passes = [record["step"] for record in records if "valid_loss" in record]
    saved = (out / "checkpoints").glob("step-*")
    seen.checkpoints = sorted(path.name for path in saved)
    seen.about = read_config(out)[1]
    seen.result = load_file(out / "model.safetensors")
    return seen


RUNS = {}


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory) -> Callable[..., SimpleNamespace]:
    "A run with these settings; each is trained once."

    def trained(*settings: str, losses: tuple[float, ...] = ()) -> SimpleNamespace:
        if (settings, losses) not in RUNS:
            out = tmp_path_factory.mktemp("runs") / "run"
            RUNS[settings, losses] = watch(corpus, settings, out, losses)
        return RUNS[settings, losses]

    yield trained
    RUNS.clear()


def aspects(seen: SimpleNamespace) -> dict[str, object]:
    """What there is to know of a run.

    A list holds a value for each step: as far as both runs went, it is compared.
    """
    return {
        "vocabulary": seen.vocab.model,
        "parts": {name: type(part) for name, part in seen.model.named_modules()},
        "shapes": {name: tuple(weight.shape) for name, weight in seen.start.items()},
        "start": seen.start,  # the initial weights
        "held_out": seen.held_out,  # their loss on held-out text
        "batches": [
            sorted(row for part in parts for row in sentences(part))
            for parts in seen.batches.values()
        ],
        "micro": [len(parts) for parts in seen.batches.values()],
        "noise": list(seen.noise.values()),  # the seed of each step's dropout
        "dtypes": seen.dtypes,  # of the products
        "validated": seen.validated,  # the text of the validation passes
        "compiled": str(seen.compiled),
        "loss": seen.steps[0]["loss"],
        "norm": seen.steps[0]["grad_norm"],
        "mean": seen.mean,  # Adam's first moment after step 1
        "square": seen.square,  # and the second
        "update": seen.update,  # of the weights in step 1
        "rates": [record["lr"] for record in seen.steps],
        "learned": [record["loss"] for record in seen.steps[1:]],
        "passes": tuple(seen.passes),
        "checkpoints": tuple(seen.checkpoints),
        "result": seen.result,  # the weights that translate
        "chosen": seen.about["weights"],
        "end": (seen.about["steps"], seen.about["stopped"]),
    }


def distance(a, b) -> float:
    "How far two aspects are apart: 0 for the same, relative for numbers, else ∞."
    if isinstance(a, float):
        return abs(a - b) / max(abs(a), abs(b), 1e-30)
    if isinstance(a, list):
        return max((distance(x, y) for x, y in zip(a, b, strict=False)), default=0.0)
    if isinstance(a, dict) and isinstance(next(iter(a.values())), torch.Tensor):
        if {k: v.shape for k, v in a.items()} != {k: v.shape for k, v in b.items()}:
            return math.inf
        apart = sum((a[name] - b[name]).square().sum().item() for name in a)
        return math.sqrt(apart / sum(b[name].square().sum().item() for name in a))
    return 0.0 if a == b else math.inf


# what the settings promise, by hand


def rates(seen: SimpleNamespace) -> list[float]:
    "The learning rate of every step that was done (§5.3)."
    train, d_model = seen.recipe.train, seen.recipe.model.d_model
    warmup, end = train.warmup_steps, train.max_steps
    steps = range(1, len(seen.steps) + 1)
    if train.schedule == "paper":
        return [d_model**-0.5 * min(step**-0.5, step * warmup**-1.5) for step in steps]
    return [
        train.peak_lr
        * (step / warmup if step <= warmup else (end - step) / (end - warmup))
        for step in steps
    ]


def check_rates(seen: SimpleNamespace) -> None:
    found = [record["lr"] for record in seen.steps]
    assert found == pytest.approx(rates(seen), rel=1e-12)


def check_first_step(seen: SimpleNamespace) -> None:
    "Adam's state and update after step 1, from the gradient that was left (§5.3)."
    train, gradient = seen.recipe.train, seen.gradient
    b1, b2 = train.adam_beta1, train.adam_beta2
    mean = {name: (1 - b1) * g for name, g in gradient.items()}
    square = {name: (1 - b2) * g**2 for name, g in gradient.items()}
    update = {
        name: -rates(seen)[0] * g / (g.abs() + train.adam_eps)
        for name, g in gradient.items()
    }
    assert distance(seen.mean, mean) < 1e-5 and distance(seen.square, square) < 1e-5
    # the update was rounded when it was added to the weights
    assert distance(seen.update, update) < 1e-3


def cost(seen: SimpleNamespace, smoothing: float) -> float:
    "The loss of step 1's batch under the initial weights, per target token (§5.4)."
    total = n_tokens = 0
    for batch in seen.batches[1]:
        hidden = torch.func.functional_call(
            seen.model.eval(), seen.start, (batch.src, batch.tgt_in)
        )
        log_p = (hidden @ seen.start["embedding.weight"].T).log_softmax(dim=-1)
        right = log_p.gather(-1, batch.tgt_out[..., None])[..., 0]
        each = -(1 - smoothing) * right - smoothing * log_p.mean(dim=-1)
        total = total + each[batch.tgt_out != 0].sum()
        n_tokens += batch.n_tokens
    return (total / n_tokens).item()


def modules(seen: SimpleNamespace, *kinds: type) -> list[nn.Module]:
    "All of the model's modules of these kinds, of which there must be one at least."
    found = [module for module in seen.model.modules() if isinstance(module, kinds)]
    assert found
    return found


def sizes(seen: SimpleNamespace) -> list[int]:
    "Of each step: tokens of the longer side."
    return [
        max(sum(len(side) for side in column) for column in zip(*rows))
        for rows in aspects(seen)["batches"]
    ]


def epochs(seen: SimpleNamespace) -> list[set]:
    "The sentence pairs of each epoch that was begun."
    found = defaultdict(set)
    for record, rows in zip(seen.steps, aspects(seen)["batches"], strict=True):
        found[record["epoch"]].update(rows)
    return list(found.values())


# the table


class Row(NamedTuple):
    change: str  # of one setting
    differs: set[str]  # aspects
    either: set[str]  # aspects that may differ by little
    under: tuple[str, ...]  # settings of both runs
    losses: tuple[float, ...]  # as for `watch`, of both runs
    check: Callable[[SimpleNamespace, SimpleNamespace], None]  # of both runs


ROWS = {}
# what another first loss entails
LEARNING = "loss norm mean square update learned result"


def row(
    change: str,
    differs: str,
    either: str = "",
    under: tuple[str, ...] = (),
    losses: tuple[float, ...] = (),
) -> Callable:
    "Let a function named as a setting be the last part of its row."

    def add(check):
        assert change.startswith(f"{check.__name__}=")
        ROWS[check.__name__] = Row(
            change, set(differs.split()), set(either.split()), under, losses, check
        )
        return check

    return add


@row("n_layers=2", f"parts shapes start held_out {LEARNING}")
def n_layers(base, new):
    for seen, n in ((base, 1), (new, 2)):
        assert len(seen.model.encoder.layers) == len(seen.model.decoder.layers) == n


@row("d_model=32", f"shapes start held_out {LEARNING}")
def d_model(base, new):
    for seen, d in ((base, 16), (new, 32)):
        assert seen.start["embedding.weight"].shape == (400, d)
        assert all(norm.weight.shape == (d,) for norm in modules(seen, LayerNorm))
        for layer in modules(seen, MultiHeadAttention):
            assert layer.w_q.weight.shape == layer.w_v.weight.shape == (d, d)


@row("d_ff=40", f"shapes start held_out {LEARNING}")
def d_ff(base, new):
    for seen, d in ((base, 24), (new, 40)):
        for layer in (*seen.model.encoder.layers, *seen.model.decoder.layers):
            assert layer.feed_forward.w_1.weight.shape == (d, 16)
            assert layer.feed_forward.w_2.weight.shape == (16, d)


@row("n_heads=4", f"held_out {LEARNING}")
def n_heads(base, new):
    for seen, n in ((base, 2), (new, 4)):
        assert {layer.n_heads for layer in modules(seen, MultiHeadAttention)} == {n}


@row("d_k=5", f"shapes start held_out {LEARNING}")
def d_k(base, new):
    for seen, d in ((base, 8), (new, 5)):
        for layer in modules(seen, MultiHeadAttention):
            assert layer.w_q.weight.shape == layer.w_k.weight.shape == (2 * d, 16)
            assert layer.w_v.weight.shape == layer.w_o.weight.T.shape == (16, 16)


@row("d_v=5", f"shapes start held_out {LEARNING}")
def d_v(base, new):
    for seen, d in ((base, 8), (new, 5)):
        for layer in modules(seen, MultiHeadAttention):
            assert layer.w_q.weight.shape == layer.w_k.weight.shape == (16, 16)
            assert layer.w_v.weight.shape == layer.w_o.weight.T.shape == (2 * d, 16)


@row("position=learned", f"parts shapes start held_out {LEARNING}")
def position(base, new):
    assert len(modules(base, SinusoidalPosition)) == 1
    assert len(modules(new, LearnedPosition)) == 1
    assert new.start.keys() - base.start.keys() == {"position.table"}


@row(
    "n_positions=40",
    f"shapes start held_out {LEARNING}",
    under=("position=learned", "max_len=39"),
)
def n_positions(base, new):
    "Which pairs are left out is a matter of `max_len` alone."
    for seen, n in ((base, 1024), (new, 40)):
        assert seen.start["position.table"].shape == (n, 16)


@row("norm=pre", f"parts shapes start held_out {LEARNING}")
def norm(base, new):
    "Two residual connections in an encoder layer, three in a decoder layer."
    assert len(modules(base, PostNorm)) == len(modules(new, PreNorm)) == 5
    assert not any(isinstance(module, PreNorm) for module in base.model.modules())
    assert (len(modules(base, LayerNorm)), len(modules(new, LayerNorm))) == (5, 7)


@row("n_pieces=450", f"vocabulary shapes start batches validated held_out {LEARNING}")
def n_pieces(base, new):
    for seen, n in ((base, 400), (new, 450)):
        assert len(seen.vocab) == len(seen.start["embedding.weight"]) == n


@row("batch_tokens=1200", f"batches {LEARNING}")
def batch_tokens(base, new):
    assert max(sizes(base)) <= 600 < max(sizes(new)) <= 1200
    assert epochs(base)[0] == epochs(new)[0]


@row("max_len=30", f"batches validated {LEARNING}")
def max_len(base, new):
    "In tokens, of training and held-out pairs; a sentence also has its EOS."
    for before, after in (
        (epochs(base)[0], epochs(new)[0]),
        (base.validated, new.validated),
    ):
        short = {pair for pair in before if max(map(len, pair)) <= 30 + 1}
        assert after == short != before


@row("max_steps=4", "rates learned passes checkpoints result chosen end")
def max_steps(base, new):
    for seen, n in ((base, 6), (new, 4)):
        check_rates(seen)
        assert len(seen.steps) == n == seen.about["steps"]
        assert seen.about["stopped"] == f"max_steps={n} reached"


@row("schedule=paper", "rates update learned result", losses=(3, 2, 1))
def schedule(base, new):
    for seen in (base, new):
        check_rates(seen), check_first_step(seen)


@row("peak_lr=0.02", "rates update learned result")
def peak_lr(base, new):
    for seen in (base, new):
        check_rates(seen), check_first_step(seen)
    assert max(record["lr"] for record in new.steps) == 0.02


@row("warmup_steps=4", "rates update learned result")
def warmup_steps(base, new):
    for seen in (base, new):
        check_rates(seen), check_first_step(seen)
    assert max(new.steps, key=lambda record: record["lr"])["step"] == 4


@row("adam_beta1=0.5", "mean learned result")
def adam_beta1(base, new):
    "The first update is the same, since Adam divides its state by 1 − β₁."
    for seen in (base, new):
        check_first_step(seen)


@row("adam_beta2=0.5", "square learned result")
def adam_beta2(base, new):
    for seen in (base, new):
        check_first_step(seen)


@row("adam_eps=0.01", "update learned result")
def adam_eps(base, new):
    for seen in (base, new):
        check_first_step(seen)


@row("init_gain=0.5", f"start held_out {LEARNING}")
def init_gain(base, new):
    "Half of each projection; embeddings, layer norms and biases are the same."
    for name, weight in new.start.items():
        projection = weight.dim() == 2 and "embedding" not in name
        factor = 0.5 if projection else 1.0
        torch.testing.assert_close(weight, factor * base.start[name])


@row("dropout=0.3", LEARNING)
def dropout(base, new):
    for seen, p in ((base, 0.0), (new, 0.3)):
        assert {module.p for module in modules(seen, FastDropout)} == {p}


@row("attention_dropout=0.3", f"parts {LEARNING}")
def attention_dropout(base, new):
    for layer in modules(base, MultiHeadAttention):
        assert layer.attend is fused_attention
    for layer in modules(new, MultiHeadAttention):
        assert isinstance(layer.attend, AttentionDropout)
        assert layer.attend.dropout == 0.3


def texts(seen: SimpleNamespace) -> list[set]:
    "The sentence pairs of each epoch that was begun, as text."
    return [
        {tuple(seen.vocab.decode(side) for side in pair) for pair in pairs}
        for pairs in epochs(seen)
    ]


@row("bpe_dropout=0.5", f"batches {LEARNING}", under=("batch_tokens=2000",))
def bpe_dropout(base, new):
    "Other tokens for the same text, and other ones in the next epoch."
    first, second, *_ = epochs(new)
    assert texts(base)[0] == texts(new)[0] and first != second
    assert not first & epochs(base)[0]
    assert len(new.steps) == len(base.steps)


@row("r_drop=3", LEARNING, under=("dropout=0.2",))
def r_drop(base, new):
    "Both passes and how far they are apart, computed by hand with the same dropout."
    assert base.objective.r_drop is None
    (batch,) = new.batches[1]
    torch.manual_seed(new.noise[1])
    new.model.train()
    hidden = torch.func.functional_call(
        new.model, new.start, (batch.src.repeat(2, 1), batch.tgt_in.repeat(2, 1))
    )
    logits = hidden @ new.start["embedding.weight"].T
    passes = logits.log_softmax(dim=-1).chunk(2)
    real, target = batch.tgt_out != 0, batch.tgt_out[..., None]
    nats = sum(-p.gather(-1, target)[..., 0][real].sum() for p in passes) / 2
    one, other = (p[real] for p in passes)
    apart = sum(
        nn.functional.kl_div(b, a, reduction="sum", log_target=True)
        for a, b in ((one, other), (other, one))
    )
    expected = (nats + 3 / 2 * apart / 2) / batch.n_tokens
    assert new.steps[0]["loss"] == pytest.approx(expected.item(), rel=1e-5)


@row("label_smoothing=0.2", LEARNING)
def label_smoothing(base, new):
    "While training alone: what is measured on held-out text is the cross-entropy."
    for seen, smoothing in ((base, 0.0), (new, 0.2)):
        assert seen.steps[0]["loss"] == pytest.approx(cost(seen, smoothing), rel=1e-5)


@row(
    "precision=bf16",
    "dtypes norm mean square update learned result",
    either="loss held_out",
)
def precision(base, new):
    """Of the products; weights and the optimiser's state keep their 32 bits.

    A loss is a mean over many tokens, in which roundings cancel.
    """
    assert (base.dtypes, new.dtypes) == ({torch.float32}, {torch.bfloat16})
    for tensors in (new.start, new.gradient, new.mean, new.result):
        assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


@row("valid_every=4", "passes")
def valid_every(base, new):
    "And one pass at the end."
    assert (base.passes, new.passes) == ([2, 4, 6], [4, 6])


@row("save_every=5", "checkpoints")
def save_every(base, new):
    "And a checkpoint at the end; the newest two are kept."
    assert base.checkpoints == ["step-0000004", "step-0000006"]
    assert new.checkpoints == ["step-0000005", "step-0000006"]


@row("keep_last=1", "checkpoints")
def keep_last(base, new):
    assert base.checkpoints == ["step-0000004", "step-0000006"]
    assert new.checkpoints == ["step-0000006"]


@row("average_last=2", "result chosen", under=("keep_last=3",))
def average_last(base, new):
    "The last two of three checkpoints."
    assert new.checkpoints == ["step-0000002", "step-0000004", "step-0000006"]
    two = [
        load_file(new.out / "checkpoints" / name / "model.safetensors")
        for name in ("step-0000004", "step-0000006")
    ]
    mean = {name: (two[0][name] + two[1][name]) / 2 for name in new.result}
    assert distance(new.result, mean) < 1e-6
    assert new.about["weights"].startswith("average of 2 checkpoints, step-0000004 to")


@row(
    "patience=3",
    "passes checkpoints result chosen end",
    under=("valid_every=1", "max_steps=8"),
    losses=(3, 2, 2.5, 2, 4, 1, 1.5, 1.5),
)
def patience(base, new):
    "Three passes in a row without gain after step 2; the same loss again is no gain."
    assert (base.passes, new.passes) == ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5])
    assert base.about["weights"] == "best on validation, step 6"
    assert new.about["weights"] == "best on validation, step 2"
    assert new.about["stopped"] == "no gain in 3 validation passes"


@row("accumulate=3", "micro")
def accumulate(base, new):
    "In parts of one sentence pair at least."
    n_pairs = list(map(len, aspects(base)["batches"]))
    assert max(n_pairs) > 3
    assert aspects(base)["micro"] == [1] * 6
    assert aspects(new)["micro"] == [min(3, n) for n in n_pairs]


@row("clip_norm=0.1", "mean square learned result", under=("adam_eps=1e-15",))
def clip_norm(base, new):
    "The norm is noted as it was, and Adam is given what is left."
    norm = base.steps[0]["grad_norm"]
    assert norm > 0.5 and new.steps[0]["grad_norm"] == pytest.approx(norm, rel=1e-5)
    clipped = {name: g * (0.1 / norm) for name, g in base.gradient.items()}
    assert distance(new.gradient, clipped) < 1e-4
    check_first_step(new)


@row("compile=true", "compiled")
def compile(base, new):
    assert (base.compiled, new.compiled) == ([], [("Transformer", {"dynamic": True})])


@row("seed=1", f"start held_out batches noise {LEARNING}")
def seed(base, new):
    "Of weights, dropout and order: an epoch has the same sentences."
    assert epochs(base)[0] == epochs(new)[0]
    assert not set(base.noise.values()) & set(new.noise.values())


def test_every_setting_has_a_row():
    assert sorted(ROWS) == sorted(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_a_setting_does_what_it_says(name, run):
    """What must differ does so clearly; all else is the same but for rounding.

    Parts of a step that are added up differ by 1e-6 at most, what a setting changes
    by 1e-4 at least.
    """
    change, differs, either, under, losses, check = ROWS[name]
    base, new = run(*under, losses=losses), run(*under, change, losses=losses)
    seen = aspects(new)
    apart = {what: distance(value, seen[what]) for what, value in aspects(base).items()}
    different = {what for what, far in apart.items() if far > 1e-5}
    assert differs <= different <= differs | either, apart
    check(base, new)
