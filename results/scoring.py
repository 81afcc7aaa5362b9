#!/usr/bin/env python
"""Additive, scaled and unscaled dot-product attention, trained at two widths of a key, and their cost by length (notebook 321a).

    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=8000000000 OMP_NUM_THREADS=1 python results/scoring.py --out scoring.json
    tools/record.py results/scoring.json --command "…" --seed 0 --json scoring=scoring.json

All models are Transformers of `--d-model` with d_model / d_k heads, so the projections have the same number of parameters at every width.
Only the score differs. The additive score of a head is v · tanh(q + k): the head's projections W^Q and W^K are the two matrices of the
small network, and v, one vector per head, is the only parameter more. Each model is trained at each of `--rates` with the first of
`--seeds`, and then with the other seeds at the best rate, judged by the validation loss. "unscaled, smaller start" is the unscaled dot
product whose W^Q and W^K are divided by d_k^¼ at the start, so that its first scores are those of the scaled dot product; it is trained
at the largest width only. The models of the smallest width, and the unscaled one of the largest, are trained once more with `--longer`
times the steps, which shows whether they are only slower. FILE is written after each model; started again, the command goes on with the next one.

The settings before the command make glibc keep freed memory; otherwise large tensors are cleared page by page each time, and the times
of the lengths that have such tensors include it.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial

import torch
from figures import Data, earlier, encoded, n_parameters, options, peak_bytes, write
from torch import Tensor, nn

from annotated_transformer.data.batch import Batch, training_steps
from annotated_transformer.data.grammar import builtin
from annotated_transformer.engines.batched_search import batched_greedy_search
from annotated_transformer.experiments.layer_costs import cpu_seconds
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.transformer import Transformer, build_transformer
from annotated_transformer.runs.recipe import BatchLoss, validation_loss
from annotated_transformer.show.heads import pronoun_sentences
from annotated_transformer.show.visualize import attention_modules
from annotated_transformer.training.optimizer import adam, linear_schedule
from annotated_transformer.training.train import train
from annotated_transformer.translating.evaluate import pronoun_accuracy
from annotated_transformer.translating.translate import Translator

PATTERNS = ("it_because", "it_although", "it_fit", "it_bought")
N_LOOKS = 10  # at the validation set, in a run


# --- three scores -------------------------------------------------------------


class DotProduct(nn.Module):
    "(b, h, n_q, d_k) and (b, h, n_k, d_k) to (b, h, n_q, n_k), as all scores."

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-2, -1) * self.scale


class Additive(nn.Module):
    def __init__(self, n_heads: int, d_k: int):
        super().__init__()
        with torch.random.fork_rng():  # all other parameters are those without v
            self.v = nn.Parameter(d_k**-0.5 * torch.randn(n_heads, d_k, 1))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        sums = query.unsqueeze(-2) + key.unsqueeze(-3)  # (b, h, n_q, n_k, d_k)
        return (torch.tanh(sums) @ self.v.unsqueeze(-3)).squeeze(-1)


class Attend(nn.Module):
    "Equation 1 with any score, for `MultiHeadAttention(attend=…)`."

    def __init__(self, score: nn.Module):
        super().__init__()
        self.score = score

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        return masked_softmax(self.score(query, key), mask) @ value


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    "The weights; a fully masked row is 0."
    if mask is None:
        return scores.softmax(dim=-1)
    return scores.masked_fill(~mask, -math.inf).softmax(dim=-1).masked_fill(~mask, 0)


SCORES: dict[str, Callable[[int, int], nn.Module]] = {  # of n_heads and d_k
    "additive": Additive,
    "scaled": lambda n_heads, d_k: DotProduct(d_k**-0.5),
    "unscaled": lambda n_heads, d_k: DotProduct(1.0),
}
SMALLER = "unscaled, smaller start"


# --- training -----------------------------------------------------------------


def load_data(args: argparse.Namespace) -> Data:
    "Sentences with a pronoun: an antecedent has to be found for each."
    pairs, held_out = (
        [(s.en, s.de) for s in builtin(n, 0, split, PATTERNS)]
        for n, split in ((args.n_train, "train"), (args.n_test, "valid"))
    )
    test = [(s.en, s.de) for s in pronoun_sentences(args.n_test, patterns=PATTERNS)]
    return encoded(pairs, held_out, test, args.vocab_size)


def build(name: str, d_k: int, data: Data, args: argparse.Namespace) -> Transformer:
    "A model with the scores of that name in all of its attentions."
    score = SCORES["unscaled" if name == SMALLER else name]

    def attention(d_model: int, n_heads: int, *widths) -> MultiHeadAttention:
        attend = Attend(score(n_heads, d_k))
        return MultiHeadAttention(d_model, n_heads, *widths, attend=attend)

    config = ModelConfig(
        n_layers=args.n_layers,
        d_model=args.d_model,
        d_ff=args.d_ff,
        n_heads=args.d_model // d_k,
    )
    vocab = data.vocab
    model = build_transformer(config, len(vocab), vocab.pad_id, attention=attention)
    if name == SMALLER:
        with torch.no_grad():
            for module in all_attentions(model):
                module.w_q.weight /= d_k**0.25
                module.w_k.weight /= d_k**0.25
    return model


def all_attentions(model: Transformer) -> list[nn.Module]:
    return sum(attention_modules(model).values(), [])


def statistics(objective: BatchLoss, batch: Batch) -> dict[str, float]:
    """The scores of a query's keys, their weights, and the gradient that they receive.

    Of all queries with two keys or more, in all heads and attentions: means of the
    scores' standard deviation and of the weights' entropy as a share of its maximum,
    the logarithm of the number of keys; median of the norm of the gradient.
    """
    kept: list[Tensor] = []
    masks: list[Tensor] = []

    def keep_scores(module: nn.Module, inputs: tuple, scores: Tensor) -> None:
        scores.retain_grad()
        kept.append(scores)

    def keep_mask(module: nn.Module, inputs: tuple, out: Tensor) -> None:
        masks.append(inputs[3])

    attends = [module.attend for module in all_attentions(objective.model)]
    hooks = [module.register_forward_hook(keep_mask) for module in attends]
    hooks += [module.score.register_forward_hook(keep_scores) for module in attends]
    objective(batch).backward()
    for hook in hooks:
        hook.remove()
    objective.zero_grad(set_to_none=True)
    measured = [of_queries(*pair) for pair in zip(kept, masks, strict=True)]
    std, entropy, gradient = torch.cat(measured, dim=1)
    return {
        "score_std": round(std.mean().item(), 3),
        "entropy": round(entropy.mean().item(), 4),
        "gradient": float(f"{gradient.median():.3g}"),
    }


def of_queries(scores: Tensor, mask: Tensor) -> Tensor:
    "Of each query with two keys or more: standard deviation, entropy, gradient (3, n)."
    gradient, scores = scores.grad, scores.detach()
    mask = mask.expand_as(scores)
    n_keys = mask.sum(dim=-1)
    means = (scores * mask).sum(dim=-1, keepdim=True) / n_keys.unsqueeze(-1)
    variance = ((scores - means) * mask).square().sum(dim=-1) / n_keys
    entropy = torch.special.entr(masked_softmax(scores, mask)).sum(dim=-1)
    share = entropy / n_keys.clamp(min=2).log()
    measured = torch.stack([variance.sqrt(), share, gradient.norm(dim=-1)])
    return measured[:, n_keys > 1]


def learn(
    name: str, d_k: int, seed: int, peak_lr: float, data: Data, args: argparse.Namespace
) -> dict:
    "Train one model; what there is to say of it."
    torch.manual_seed(seed)
    model = build(name, d_k, data, args)
    objective = BatchLoss(model, label_smoothing=0.1)
    loss = partial(validation_loss, objective, data.valid)
    start = statistics(objective, data.valid[0])
    curve = [[0, round(loss(), 4)]]
    began = time.process_time()

    warmup = max(1, args.steps // 6)
    rate = lambda step: linear_schedule(step, peak_lr, warmup, args.steps)
    steps = training_steps(data.train, data.vocab, args.batch_tokens, seed)
    optimizer = adam(objective.parameters())
    for record in train(objective, steps, optimizer, rate, args.steps, clip_norm=1.0):
        if record.step % max(1, args.steps // N_LOOKS) == 0:
            curve.append([record.step, round(loss(), 4)])
    seconds = time.process_time() - began
    return {
        "seed": seed,
        "peak_lr": peak_lr,
        "cpu_seconds": round(seconds, 1),
        "valid_loss": round(loss(), 4),
        **translate(model, data),
        "start": start,
        "end": statistics(objective, data.valid[0]),
        "curve": curve,
    }


def translate(model: Transformer, data: Data) -> dict[str, float]:
    "Exact matches and pronouns of the held-out sentences, by greedy search."
    translator = Translator(model, data.vocab, search=batched_greedy_search)
    sources, references = map(list, zip(*data.test))
    hypotheses = translator.translate(sources)
    exact = sum(a == b for a, b in zip(hypotheses, references, strict=True))
    return {
        "exact_match": round(exact / len(references), 4),
        "pronoun_accuracy": round(pronoun_accuracy(hypotheses, references), 4),
    }


def train_all(name: str, d_k: int, data: Data, args: argparse.Namespace) -> dict:
    "Every rate with the first seed, and the best rate with every seed."
    first, *others = args.seeds
    tries = [learn(name, d_k, first, rate, data, args) for rate in args.rates]
    best = min(tries, key=lambda run: run["valid_loss"])
    runs = [learn(name, d_k, seed, best["peak_lr"], data, args) for seed in others]
    model = build(name, d_k, data, args)
    return {
        "n_parameters": n_parameters(model),
        "n_heads": args.d_model // d_k,
        "peak_lr": best["peak_lr"],
        "tries": {f"{run['peak_lr']:g}": run["valid_loss"] for run in tries},
        "runs": [best, *runs],
    }


# --- cost by length -----------------------------------------------------------


def both_passes(module: nn.Module, inputs: list[Tensor], upstream: Tensor) -> None:
    "A forward pass, and the gradients of the inputs and the parameters."
    wanted = [*inputs, *module.parameters()]
    torch.autograd.grad(module(*inputs), wanted, upstream)


def cost(args: argparse.Namespace) -> dict:
    "Forward and backward passes of one head: processor time, all in turn, and memory."
    torch.manual_seed(args.seeds[0])
    d_k = args.cost_d_k
    modules = {name: Attend(score(1, d_k)) for name, score in SCORES.items()}
    seconds, n_bytes = ({name: [] for name in modules} for _ in range(2))
    for n in args.n:
        shape = (1, 1, n, d_k)
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(3)]
        upstream = torch.randn(shape)

        actions = {
            name: partial(both_passes, module, inputs, upstream)
            for name, module in modules.items()
        }
        took = cpu_seconds(actions, args.rounds)
        for name, action in actions.items():
            seconds[name].append(round(took[name], 9))
            n_bytes[name].append(peak_bytes(action))
        ratio = took["additive"] / took["scaled"]
        print(f"n = {n}: additive takes {ratio:.1f} times as long", flush=True)
    about = {"d_k": d_k, "rounds": args.rounds, "n": args.n}
    return about | {"seconds": seconds, "peak_bytes": n_bytes}


# --- the record ---------------------------------------------------------------


def parse_args() -> argparse.Namespace:
    parser = options(__doc__, "scoring.json")
    parser.set_defaults(patterns=list(PATTERNS))
    add = parser.add_argument
    add("--d-k", type=int, nargs="+", default=[8, 128], help="widths, rising")
    add("--d-model", type=int, default=128, help="a multiple of every d_k")
    add("--d-ff", type=int, default=256)
    add("--n-layers", type=int, default=2)
    add("--steps", type=int, default=300)
    add("--longer", type=int, default=2, help="times the steps, once more")
    add("--batch-tokens", type=int, default=800)
    add("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--n-train", type=int, default=20_000, help="sentences")
    add("--n-test", type=int, default=500, help="sentences drawn")
    add("--vocab-size", type=int, default=1000, help="tokens of the vocabulary")
    lengths = [16, 32, 64, 128, 256, 512, 1024]
    add("--n", type=int, nargs="+", default=lengths, help="lengths, for the cost")
    add("--cost-d-k", type=int, default=64, help="width of a key, for the cost")
    add("--rounds", type=int, default=5, help="of timing")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    found = {"models": {}} | earlier(args.out, args)
    if "cost" not in found:
        found["cost"] = cost(args)
        write(args.out, found)
    data = load_data(args)
    found |= {"n_vocab": len(data.vocab), "n_test": len(data.test)}
    for d_k in args.d_k:
        of_width = found["models"].setdefault(str(d_k), {})
        more = [SMALLER] if d_k == args.d_k[-1] else []
        for name in [*SCORES, *more]:
            if name not in of_width:
                of_width[name] = train_all(name, d_k, data, args)
                print(f"d_k {d_k}, {name}: {json.dumps(of_width[name])}", flush=True)
                write(args.out, found)
    longer = argparse.Namespace(**vars(args) | {"steps": args.longer * args.steps})
    again = [(args.d_k[0], name) for name in SCORES] + [(args.d_k[-1], "unscaled")]
    for d_k, name in again:
        model = found["models"][str(d_k)][name]
        if "longer" not in model:
            rate, seed = model["peak_lr"], args.seeds[0]
            model["longer"] = learn(name, d_k, seed, rate, data, longer)
            print(f"longer, d_k {d_k}, {name}: {model['longer']}", flush=True)
            write(args.out, found)


if __name__ == "__main__":
    main()
