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
from typing import Literal, NamedTuple, get_args, get_origin

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import LayerNorm

from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.model.after import (
    GatedFeedForward,
    RMSNorm,
)
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.feed_forward import FeedForward
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.position import LearnedPosition, SinusoidalPosition
from annotated_transformer.model.rotary import rotate
from annotated_transformer.model.stack import (
    DecoderLayer,
    EncoderLayer,
    PostNorm,
    PreNorm,
)
from annotated_transformer.runs import monitor as monitor_module
from annotated_transformer.runs import train_run as runs_module
from annotated_transformer.runs.folder import read_config, read_metrics
from annotated_transformer.runs.recipe import build_training
from annotated_transformer.runs.settings import TrainConfig, get_recipe, override
from annotated_transformer.runs.train_run import RunOptions, train_run

CONFIGS = (ModelConfig, TrainConfig)
FIELDS = [field.name for config in CONFIGS for field in dataclasses.fields(config)]
BASE = """n_layers=1 d_model=16 d_ff=24 n_heads=2 vocab_size=400 batch_tokens=600 max_steps=6
schedule=linear peak_lr=0.01 warmup_steps=2 dropout=0 label_smoothing=0 precision=fp32
valid_every=2 save_every=2 keep_last=2 average_last=0""".split()


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus("builtin", n_train=80, n_valid=20, n_test=1)


# one run, watched


def sentences(batch) -> list[tuple]:
    "The source and target ids of each row, without padding, in an order of their own."
    rows = zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    return sorted(tuple(tuple(i for i in side if i) for side in row) for row in rows)


def watch(
    corpus: Corpus,
    settings: list[str],
    out: Path,
    losses: tuple[float, ...],  # what validation passes find; (): what they measure
) -> SimpleNamespace:
    "Train, and note what was built and what each step was given and did."
    recipe = override(get_recipe("tiny"), [*BASE, *settings])
    seen = SimpleNamespace(recipe=recipe, out=out, batches=defaultdict(list))
    seen.noise, seen.compiled, seen.left = [], [], []
    seen.validated, seen.dtypes = set(), set()

    def build(recipe, vocab, device, **options):
        built = build_training(recipe, vocab, device, **options)
        objective, _, optimizer, _ = built
        seen.objective, seen.model, seen.vocab = objective, objective.model, vocab
        seen.optimizer = optimizer
        named = seen.model.named_parameters()
        seen.start = {name: weight.detach().clone() for name, weight in named}
        objective.register_forward_pre_hook(given)
        for layer in (*seen.model.encoder.layers, *seen.model.decoder.layers):
            layer.feed_forward.w_1.register_forward_hook(
                lambda module, args, product: seen.dtypes.add(product.dtype)
            )
        return built

    def given(objective, args):
        if not objective.training:
            return seen.validated.update(sentences(args[0]))
        if not (seen.noise and seen.noise[-1] == torch.initial_seed()):
            seen.noise.append(torch.initial_seed())  # each step has its own
        seen.batches[len(seen.noise)].append(args[0])

    def after(record):
        grads = [weight.grad for weight in seen.model.parameters()]
        seen.left.append(nn.utils.get_total_norm(grads).item())

    def compiled(module, **how):
        seen.compiled.append((type(module).__name__, how))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_module, "build_training", build)
        # what takes most of the time, and is tested elsewhere
        patch.setattr("os.fsync", lambda file: None)
        patch.setattr(nn.Module, "compile", compiled)
        if losses:
            found = iter(losses)
            patch.setattr(monitor_module, "validation_loss", lambda *_: next(found))
        options = RunOptions("cpu", on_record=after, quiet=True, report_every=1)
        train_run(corpus, recipe, out, options)
    records = read_metrics(out)
    seen.steps = [record for record in records if "loss" in record]
    seen.passes = [record["step"] for record in records if "valid_loss" in record]
    saved = (out / "checkpoints").glob("step-*")
    seen.checkpoints = sorted(int(path.name.removeprefix("step-")) for path in saved)
    seen.about = read_config(out)[1]
    seen.result = load_file(out / "model.safetensors")
    seen.rows = [
        sorted(row for batch in batches for row in sentences(batch))
        for batches in seen.batches.values()
    ]
    return seen


RUNS = {}


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory) -> Callable[..., SimpleNamespace]:
    "A run with these settings; each is trained once."

    def trained(settings: str, losses: tuple[float, ...] = ()) -> SimpleNamespace:
        if (settings, losses) not in RUNS:
            out = tmp_path_factory.mktemp("runs") / "run"
            RUNS[settings, losses] = watch(corpus, settings.split(), out, losses)
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
        "batches": seen.rows,
        "micro_batches": [len(batches) for batches in seen.batches.values()],
        "noise": seen.noise,  # the seed of each step's dropout
        "dtypes": seen.dtypes,  # of the products
        "validated": seen.validated,  # the text of the validation passes
        "compiled": str(seen.compiled),
        "loss": seen.steps[0]["loss"],
        "norm": seen.steps[0]["grad_norm"],
        "left": seen.left[0],  # norm of the gradient that the optimiser was given
        "rates": [record["lr"] for record in seen.steps],
        "learned": [record["loss"] for record in seen.steps[1:]],
        "passes": tuple(seen.passes),
        "checkpoints": tuple(seen.checkpoints),
        "result": seen.result,  # the final weights
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


# what is seen of one run


def shapes(*names: str) -> Callable:
    return lambda seen: [tuple(seen.start[name].shape) for name in names]


def modules(kind: type, attribute: str) -> Callable:
    "The values of an attribute in all modules of this type."
    return lambda seen: {
        getattr(m, attribute, None) for m in seen.model.modules() if isinstance(m, kind)
    }


def count(*kinds: type) -> Callable:
    return lambda seen: [
        sum(isinstance(module, kind) for module in seen.model.modules())
        for kind in kinds
    ]


def attention_dropout(seen) -> set:
    attends = modules(MultiHeadAttention, "attend")(seen)
    return {getattr(attend, "dropout", None) for attend in attends}


def ended(seen) -> tuple:
    return len(seen.steps), len(seen.passes), seen.about["stopped"]


# checks of both runs


def right_rates(*runs) -> None:
    "The learning rate of every step that was done (§5.3)."
    for seen in runs:
        settings, d_model = seen.recipe.train, seen.recipe.model.d_model
        warmup, end = settings.warmup_steps, settings.max_steps
        for step, record in enumerate(seen.steps, start=1):
            left = (end - step) / (end - warmup)  # of the time to fall
            falls = {
                "linear": left,
                "cosine": math.sin(math.pi * left / 2) ** 2,
                "inverse_sqrt": math.sqrt(warmup / step),
            }
            if settings.schedule == "paper":
                rate = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
            elif step <= warmup:
                rate = settings.peak_lr * step / warmup
            else:
                rate = settings.peak_lr * falls[settings.schedule]
            assert record["lr"] == pytest.approx(rate, rel=1e-12)


def epochs(seen: SimpleNamespace) -> list[set]:
    "The sentence pairs of each epoch that was begun."
    found = defaultdict(set)
    for record, rows in zip(seen.steps, seen.rows, strict=True):
        found[record["epoch"]].update(rows)
    return list(found.values())


def batch_tokens(base, new):
    "A step's tokens of the longer side."
    most = [
        max(max(sum(map(len, side)) for side in zip(*rows)) for rows in seen.rows)
        for seen in (base, new)
    ]
    assert most[0] <= 600 < most[1] <= 1200 and epochs(base)[0] == epochs(new)[0]


def max_len(base, new):
    "In tokens, of training and held-out pairs; a sentence also has its EOS."
    for before, after in (
        (epochs(base)[0], epochs(new)[0]),
        (base.validated, new.validated),
    ):
        short = {pair for pair in before if max(map(len, pair)) <= 30 + 1}
        assert after == short != before


def init_gain(base, new):
    "Half of each projection; embeddings, layer norms and biases are the same."
    for name, weight in new.start.items():
        projection = weight.dim() == 2 and "embedding" not in name
        factor = 0.5 if projection else 1.0
        torch.testing.assert_close(weight, factor * base.start[name])


def bpe_dropout(base, new):
    "Other tokens for the same text, and other ones in the next epoch."
    first, second, *_ = epochs(new)
    text, same_text = (
        {tuple(seen.vocab.decode(side) for side in pair) for pair in epochs(seen)[0]}
        for seen in (base, new)
    )
    assert text == same_text and first != second and not first & epochs(base)[0]
    assert len(new.steps) == len(base.steps)


def momenta(seen, kind: str) -> set[str]:
    "The weights of which the optimiser keeps an average of this kind."
    states = seen.optimizer.state
    return {name for name, p in seen.model.named_parameters() if kind in states[p]}


def muon(base, new):
    "Muon has the matrices of the layers, Adam all else, at the same rate."
    in_layers = {n for n, w in new.start.items() if "layers" in n and w.dim() == 2}
    assert momenta(new, "momentum_buffer") == in_layers
    assert momenta(new, "exp_avg") == {*new.start} - in_layers
    assert momenta(base, "exp_avg") == {*base.start}
    (rate,) = {group["lr"] for group in new.optimizer.param_groups}
    assert rate == new.steps[-1]["lr"]


def weight_decay(base, new):
    "Matrices, the shared one too, are smaller; biases and scales do not decay."
    decays = {
        name: group["weight_decay"]
        for group in new.optimizer.param_groups
        for name, p in new.model.named_parameters()
        if any(p is one for one in group["params"])
    }
    assert decays == {n: 0.5 * (w.dim() == 2) for n, w in new.start.items()}
    sizes = [sum(w.square().sum() for w in s.result.values()) for s in (base, new)]
    assert sizes[1] < sizes[0]


def precision(base, new):
    "Of the products; weights, gradients and Adam's averages keep their 32 bits."
    assert (base.dtypes, new.dtypes) == ({torch.float32}, {torch.bfloat16})
    tensors = [*new.start.values(), *new.result.values()]
    tensors += [weight.grad for weight in new.model.parameters()]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def average_last(base, new):
    "The last two of three checkpoints."
    assert new.checkpoints == [2, 4, 6]
    four, six = (
        load_file(new.out / "checkpoints" / name / "model.safetensors")
        for name in ("step-0000004", "step-0000006")
    )
    mean = {name: (four[name] + six[name]) / 2 for name in new.result}
    assert distance(new.result, mean) < 1e-6
    assert new.about["weights"].startswith("average of 2 checkpoints, step-0000004 to")


def grad_accum_steps(base, new):
    "In parts of one sentence pair at least."
    n_pairs = list(map(len, base.rows))
    assert max(n_pairs) > 3 and aspects(base)["micro_batches"] == [1] * 6
    assert aspects(new)["micro_batches"] == [min(3, n) for n in n_pairs]


def clip_norm(base, new):
    "The norm is noted as it was, and the optimiser is given what is left."
    assert base.left[0] == pytest.approx(base.steps[0]["grad_norm"], rel=1e-5)
    assert base.left[0] > 0.5 and new.left[0] == pytest.approx(0.1, rel=1e-4)


def seed(base, new):
    "Of weights, dropout and order: an epoch has the same sentences."
    assert epochs(base)[0] == epochs(new)[0] and not {*base.noise} & {*new.noise}


# the table


class Row(NamedTuple):
    change: str  # of one setting
    differs: str  # aspects
    check: Callable  # of both runs; or of one, which finds `base` and `new`
    base: object = None
    new: object = None
    under: str = ""  # settings of both runs
    losses: tuple[float, ...] = ()  # as for `watch`, of both runs
    either: str = ""  # aspects that may differ by little


LATER = "learned result"
LEARNING = f"loss norm left {LATER}"  # what another first loss entails
SIZED = f"shapes start {LEARNING}"
PARTS = f"parts {SIZED}"
RMS = f"parts shapes start {LEARNING}"
QKVO = shapes(*(f"decoder.layers.0.cross_attn.w_{name}.weight" for name in "qkvo"))
NARROW, FULL, WIDE = (10, 16), (16, 16), (16, 10)
FEED_FORWARD = shapes(*(f"encoder.layers.0.feed_forward.w_{i}.weight" for i in (1, 2)))
TABLE = shapes("position.table")
LEARNED = "position=learned max_len=39"
POSITIONS = count(SinusoidalPosition, LearnedPosition)
NORMS = count(PostNorm, PreNorm, LayerNorm)
ROTATIONS = modules(MultiHeadAttention, "rotate")
FEED_FORWARDS = count(FeedForward, GatedFeedForward)
EMBEDDINGS = lambda seen: sorted(n for n in seen.start if "embedding" in n)
BIASES = lambda seen: sum(name.endswith("bias") for name in seen.start)
BETAS = lambda seen: seen.optimizer.param_groups[0]["betas"]
R_DROP = lambda seen: getattr(seen.objective.r_drop, "alpha", None)
SMOOTHING = lambda seen: seen.objective.label_smoothing
CHECKPOINTS = lambda seen: seen.checkpoints
# three passes in a row without gain after step 2; the same loss is no gain
TO_LOSE_PATIENCE = (3, 2, 2.5, 2, 4, 1, 1.5, 1.5)
OF_MAX_STEPS = f"rates {LATER} passes checkpoints chosen end"
OF_PATIENCE = "passes checkpoints result chosen end"
COMPILED = ("Transformer", {"dynamic": True})

ROWS = [
    Row("n_layers=2", PARTS, count(EncoderLayer, DecoderLayer), [1, 1], [2, 2]),
    Row("d_model=32", SIZED, shapes("embedding.weight"), [(400, 16)], [(400, 32)]),
    Row("d_ff=40", SIZED, FEED_FORWARD, [(24, 16), (16, 24)], [(40, 16), (16, 40)]),
    Row("n_heads=4", LEARNING, modules(MultiHeadAttention, "n_heads"), {2}, {4}),
    Row("d_k=5", SIZED, QKVO, [FULL] * 4, [NARROW, NARROW, FULL, FULL]),
    Row("d_v=5", SIZED, QKVO, [FULL] * 4, [FULL, FULL, NARROW, WIDE]),
    Row("position=learned", PARTS, POSITIONS, [1, 0], [0, 1]),
    # cross-attention has none
    Row("position=rotary", f"parts {LEARNING}", ROTATIONS, {None}, {None, rotate}),
    # which pairs are left out is a matter of `max_len` alone
    Row("n_positions=40", SIZED, TABLE, [(1024, 16)], [(40, 16)], under=LEARNED),
    # two residual connections in an encoder layer, three in a decoder layer
    Row("norm=pre", PARTS, NORMS, [5, 0, 5], [0, 5, 7]),
    Row("norm_kind=rms", RMS, count(LayerNorm, RMSNorm), [5, 0], [0, 5]),
    Row(
        "activation=gelu", f"parts {LEARNING}", count(nn.ReLU, nn.GELU), [2, 0], [0, 2]
    ),
    Row("activation=swiglu", PARTS, FEED_FORWARDS, [2, 0], [0, 2]),
    Row("n_kv_heads=1", SIZED, QKVO, [FULL] * 4, [FULL, (8, 16), (8, 16), FULL]),
    # of queries and of keys, in three attentions
    Row("qk_norm=true", PARTS, count(RMSNorm), [0], [6]),
    # two in a feed-forward network, one in a norm
    Row("bias=false", f"shapes start {LEARNING}", BIASES, 9, 0),
    Row(
        "tied=false",
        PARTS,
        EMBEDDINGS,
        ["embedding.weight"],
        ["embedding.output", "embedding.weight"],
    ),
    Row(
        "vocab_size=450",
        f"vocabulary batches validated {SIZED}",
        lambda seen: len(seen.vocab),
        400,
        450,
    ),
    Row("batch_tokens=1200", f"batches {LEARNING}", batch_tokens),
    Row("max_len=30", f"batches validated {LEARNING}", max_len),
    Row(
        "max_steps=4",
        OF_MAX_STEPS,
        ended,
        (6, 3, "max_steps=6 reached"),
        (4, 2, "max_steps=4 reached"),
    ),
    Row("schedule=paper", f"rates {LATER}", right_rates, losses=(3, 2, 1)),
    Row("schedule=cosine", f"rates {LATER}", right_rates),
    Row("schedule=inverse_sqrt", f"rates {LATER}", right_rates),
    Row("peak_lr=0.02", f"rates {LATER}", right_rates),
    Row("warmup_steps=4", f"rates {LATER}", right_rates),
    Row("adam_beta1=0.5", LATER, BETAS, (0.9, 0.98), (0.5, 0.98)),
    Row("adam_beta2=0.5", LATER, BETAS, (0.9, 0.98), (0.9, 0.5)),
    Row(
        "adam_eps=0.01",
        LATER,
        lambda seen: seen.optimizer.param_groups[0]["eps"],
        1e-9,
        0.01,
    ),
    Row("optimizer=muon", LATER, muon),
    Row("weight_decay=0.5", LATER, weight_decay),
    Row("init_gain=0.5", f"start {LEARNING}", init_gain),
    Row("dropout=0.3", LEARNING, modules(nn.Dropout, "p"), {0.0}, {0.3}),
    Row("attention_dropout=0.3", f"parts {LEARNING}", attention_dropout, {None}, {0.3}),
    Row(
        "bpe_dropout=0.5", f"batches {LEARNING}", bpe_dropout, under="batch_tokens=2000"
    ),
    Row("r_drop=3", LEARNING, R_DROP, None, 3, under="dropout=0.2"),
    Row("label_smoothing=0.2", LEARNING, SMOOTHING, 0.0, 0.2),
    # a loss is a mean over many tokens, in which roundings cancel
    Row("precision=bf16", f"dtypes norm left {LATER}", precision, either="loss"),
    Row("valid_every=4", "passes chosen", lambda seen: seen.passes, [2, 4, 6], [4]),
    Row("save_every=5", "checkpoints", CHECKPOINTS, [4, 6], [5, 6]),
    Row("keep_last=1", "checkpoints", CHECKPOINTS, [4, 6], [6]),
    Row(
        "average_last=2",
        "result chosen",
        average_last,
        under="keep_last=3",
        losses=(3, 2, 1.5, 1),  # of the average, too
    ),
    Row(
        "patience=3",
        OF_PATIENCE,
        ended,
        (8, 8, "max_steps=8 reached"),
        (5, 5, "patience=3 reached: no gain in as many validation passes"),
        under="valid_every=1 max_steps=8",
        losses=TO_LOSE_PATIENCE,
    ),
    Row("grad_accum_steps=3", "micro_batches", grad_accum_steps),
    Row("clip_norm=0.1", f"left {LATER}", clip_norm, under="adam_eps=0.1"),
    Row("compile=true", "compiled", lambda seen: seen.compiled, [], [COMPILED]),
    Row("seed=1", f"start batches noise {LEARNING}", seed),
]


def test_every_setting_and_each_of_its_words_has_a_row():
    changes = [tuple(row.change.split("=")) for row in ROWS]
    assert {name for name, _ in changes} == {*FIELDS}
    assert len({*changes}) == len(changes)
    words = {
        (field.name, word)
        for config in CONFIGS
        for field in dataclasses.fields(config)
        for word in (get_args(field.type) if get_origin(field.type) is Literal else ())
    }
    at_first = override(get_recipe("base"), BASE)
    at_first = dataclasses.asdict(at_first.model) | dataclasses.asdict(at_first.train)
    # "auto" is one of the others, as the device is (test_recipe)
    assert words - {*at_first.items()} - {("precision", "auto")} <= {*changes}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.change)
def test_a_setting_does_what_it_says(row, run):
    """What must differ does so clearly; all else is the same but for rounding.

    Parts of a step that are added up differ by 1e-6 at most, what a setting changes
    by 1e-4 at least.
    """
    if "muon" in row.change and not hasattr(torch.optim, "Muon"):
        pytest.skip("PyTorch has it since 2.9")
    base = run(row.under, losses=row.losses)
    new = run(f"{row.under} {row.change}", losses=row.losses)
    seen = aspects(new)
    apart = {what: distance(value, seen[what]) for what, value in aspects(base).items()}
    different = {what for what, far in apart.items() if far > 1e-5}
    differs, either = set(row.differs.split()), set(row.either.split())
    assert differs <= different <= differs | either, apart
    if row.base == row.new:
        row.check(base, new)
    else:
        assert (row.check(base), row.check(new)) == (row.base, row.new)
