#!/usr/bin/env python
"""Training speed beside peers: equal batches, equal sizes, one interleaved run.

    make bench-train                                 or, with its options:
    python benchmarks/train.py --precision bf16 fp32 --rounds 7 --out speed.json
    python benchmarks/train.py --profile             where the time of our step goes
    python benchmarks/train.py --memory 2000         peak and growth of memory over so many steps of varied shapes

Peers: torch.nn.Transformer, and Hugging Face's Marian started from scratch (`pip install transformers`), with either of its attentions.
Each has the same sizes (256/1024, 4 heads, 3+3 layers, 8,000 shared pieces, tied), dropout 0.1, label smoothing 0.1, fused Adam, and is
given the same tensors. A round times every contender once, one after the other, beside the rate of `torch.mm`; ratios are taken within a
round, and the median over rounds is printed.
"""

import argparse
import json
import resource
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from annotated_transformer.data.batch import bucket_by_length
from annotated_transformer.engines.choose import FAST
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.position import positional_encoding
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.recipe import precision_context
from annotated_transformer.training.optimizer import adam

SMALL = ModelConfig(n_layers=3, d_model=256, d_ff=1024, n_heads=4)
BASE = ModelConfig()
PAD, BOS = 0, 2
DROPOUT, SMOOTHING = 0.1, 0.1


# ---- the batches


def random_lengths(rng: np.random.Generator, n: int = 29_000) -> np.ndarray:
    "Source and target tokens of n pairs, (n, 2), spread as in image captions."
    src = rng.lognormal(2.6, 0.3, n).clip(4, 60).astype(int)
    tgt = (src * rng.lognormal(0, 0.18, n)).clip(4, 60).astype(int)
    return np.stack([src, tgt], axis=1)


def batches(
    n: int, n_tokens: int, n_vocab: int, seed: int = 0
) -> list[tuple[Tensor, Tensor, Tensor]]:
    "(src, tgt_in, tgt_out) of random words; lengths spread as in image captions, sorted and cut as our batches are."
    rng, made = np.random.default_rng(seed), []
    while len(made) < n:  # other lengths in each round, and so other shapes
        lengths = random_lengths(rng)
        made += [
            random_words(lengths[rows], n_vocab, rng)
            for rows in bucket_by_length(lengths, n_tokens, rng)
        ]
    return made[:n]


def random_words(
    lengths: np.ndarray, n_vocab: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    "One batch of these lengths, (b, 2)."
    sides = []
    for side in lengths.T:
        real = np.arange(side.max()) < side[:, None]
        sides.append(
            torch.from_numpy(np.where(real, rng.integers(4, n_vocab, real.shape), PAD))
        )
    src, tgt_out = sides
    tgt_in = torch.cat(
        [torch.full((len(src), 1), BOS), tgt_out[:, :-1]], dim=1
    ).masked_fill(tgt_out == PAD, PAD)
    return src, tgt_in, tgt_out


def useful_flops(
    batch: tuple[Tensor, Tensor, Tensor], m: ModelConfig, n_vocab: int
) -> float:
    "Of forward and backward on real tokens alone, 2 for each multiply-add; the backward pass counts twice the forward."
    d, ff = m.d_model, m.d_ff
    s, t = ((side != PAD).sum(dim=1).double() for side in (batch[0], batch[2]))
    encoder = 2 * s * (4 * d * d + 2 * d * ff) + 4 * s * s * d
    decoder = (
        2 * t * (4 * d * d + 2 * d * ff)
        + 4 * t * t * d
        + 4 * t * d * d
        + 4 * s * d * d
        + 4 * t * s * d
    )
    return 3 * float((m.n_layers * (encoder + decoder) + 2 * t * d * n_vocab).sum())


# ---- the contenders: each a module whose forward gives the summed loss


class Ours(nn.Module):
    def __init__(self, m: ModelConfig, n_vocab: int):
        super().__init__()
        self.model = build_transformer(
            m,
            n_vocab,
            PAD,
            DROPOUT,
            attention=FAST.attention,
            make_dropout=FAST.make_dropout,
        )

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        return FAST.loss(
            self.model(src, tgt_in),
            self.model.embedding.weight,
            tgt_out,
            PAD,
            SMOOTHING,
        )


class TorchTransformer(nn.Module):
    "torch.nn.Transformer as its documentation uses it, with the embedding, positions and tied logits that it leaves to the caller."

    def __init__(self, m: ModelConfig, n_vocab: int):
        super().__init__()
        self.embedding = nn.Embedding(n_vocab, m.d_model)
        nn.init.normal_(self.embedding.weight, std=m.d_model**-0.5)
        self.register_buffer("table", positional_encoding(256, m.d_model))
        self.dropout = nn.Dropout(DROPOUT)
        self.model = nn.Transformer(
            m.d_model,
            m.n_heads,
            m.n_layers,
            m.n_layers,
            m.d_ff,
            DROPOUT,
            batch_first=True,
        )

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(
            self.embedding(ids) * self.table.size(1) ** 0.5 + self.table[: ids.size(1)]
        )

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        future = torch.ones(
            2 * [tgt_in.size(1)], dtype=torch.bool, device=src.device
        ).triu(1)  # True = may not look
        hidden = self.model(
            self.embed(src),
            self.embed(tgt_in),
            tgt_mask=future,
            src_key_padding_mask=src == PAD,
            tgt_key_padding_mask=tgt_in == PAD,
            memory_key_padding_mask=src == PAD,
            tgt_is_causal=True,
        )
        logits = F.linear(hidden, self.embedding.weight)
        return F.cross_entropy(
            logits.flatten(0, 1),
            tgt_out.flatten(),
            ignore_index=PAD,
            label_smoothing=SMOOTHING,
            reduction="sum",
        )


class HuggingFaceMarian(nn.Module):
    attention = "sdpa"  # its default

    def __init__(self, m: ModelConfig, n_vocab: int):
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        self.model = MarianMTModel(
            MarianConfig(
                vocab_size=n_vocab,
                d_model=m.d_model,
                encoder_layers=m.n_layers,
                decoder_layers=m.n_layers,
                encoder_attention_heads=m.n_heads,
                decoder_attention_heads=m.n_heads,
                encoder_ffn_dim=m.d_ff,
                decoder_ffn_dim=m.d_ff,
                activation_function="relu",
                dropout=DROPOUT,
                attention_dropout=0.0,
                activation_dropout=0.0,
                scale_embedding=True,
                pad_token_id=PAD,
                decoder_start_token_id=BOS,
                eos_token_id=3,
                forced_eos_token_id=3,
                max_position_embeddings=256,
                use_cache=False,
                attn_implementation=self.attention,
            )
        )

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        logits = self.model(
            input_ids=src,
            attention_mask=src != PAD,
            decoder_input_ids=tgt_in,
            decoder_attention_mask=tgt_in != PAD,
        ).logits
        return F.cross_entropy(
            logits.flatten(0, 1),
            tgt_out.flatten(),
            ignore_index=PAD,
            label_smoothing=SMOOTHING,
            reduction="sum",
        )


class HuggingFaceMarianEager(HuggingFaceMarian):
    attention = "eager"  # plain products: on a CPU the faster of its two


PEERS = {
    "torch.nn.Transformer": TorchTransformer,
    "Hugging Face Marian": HuggingFaceMarian,
    "the same, eager": HuggingFaceMarianEager,
}


def contender(
    kind: type[nn.Module], m: ModelConfig, n_vocab: int, device: str
) -> tuple[nn.Module, torch.optim.Optimizer]:
    "A module of that kind, in train mode, and its Adam."
    torch.manual_seed(0)
    module = kind(m, n_vocab).to(device).train()
    optimizer = adam(module.parameters())
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    return module, optimizer


def contenders(
    m: ModelConfig, n_vocab: int, device: str
) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
    "Ours first, then each peer that is installed."
    made = {}
    for name, kind in {"ours": Ours, **PEERS}.items():
        try:
            made[name] = contender(kind, m, n_vocab, device)
        except ImportError as e:
            print(f"{name} is left out: {e}")
    return made


# ---- timing


def train_on(
    module: nn.Module, optimizer: torch.optim.Optimizer, some: list, autocast
) -> float:
    "Seconds for one step on each batch: forward, loss, backward, Adam."
    wait = torch.cuda.synchronize if some[0][0].is_cuda else (lambda: None)
    # beforehand, as a loader knows them: on a GPU, reading a number waits for it
    counts = [int((tgt_out != PAD).sum()) for _, _, tgt_out in some]
    wait()
    began = time.perf_counter()
    for (src, tgt_in, tgt_out), n_tokens in zip(some, counts):
        with autocast:
            loss = module(src, tgt_in, tgt_out) / n_tokens
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    wait()
    return time.perf_counter() - began


def mm_rate(dtype: torch.dtype, device: str, width: int) -> float:
    "FLOP/s of `torch.mm` at the shape of a feed-forward layer: the best of several."
    n = 4096 if device == "cpu" else 32_768
    a, b = (
        torch.randn(n, width, dtype=dtype, device=device),
        torch.randn(width, 4 * width, dtype=dtype, device=device),
    )
    wait = torch.cuda.synchronize if device != "cpu" else (lambda: None)
    seconds = []
    for _ in range(8):
        wait()
        began = time.perf_counter()
        torch.mm(a, b)
        wait()
        seconds.append(time.perf_counter() - began)
    return 8 * n * width * width / min(seconds)


def compare(kind: str, args: argparse.Namespace, m: ModelConfig) -> dict:
    "Rounds of all contenders in turn; medians of what each round gave."
    made, autocast = (
        contenders(m, args.vocab, args.device),
        precision_context(kind, torch.device(args.device)),
    )
    some = [
        tuple(t.to(args.device) for t in b)
        for b in batches(args.batches, args.tokens, args.vocab)
    ]
    words, flops = (
        sum(int((b[2] != PAD).sum()) for b in some),
        sum(useful_flops(b, m, args.vocab) for b in some),
    )
    for module, optimizer in made.values():
        train_on(module, optimizer, some[:2], autocast)  # warm
    rounds = []
    for i in range(args.rounds):
        names = list(made)
        order = names[i % len(names) :] + names[: i % len(names)]
        ceiling = mm_rate(
            torch.bfloat16 if kind == "bf16" else torch.float32, args.device, m.d_model
        )
        rounds.append(
            {
                "mm": ceiling,
                **{name: train_on(*made[name], some, autocast) for name in order},
            }
        )
    peers = [name for name in made if name != "ours"]
    middle = lambda values: round(statistics.median(values), 3)
    result = {
        name: {
            "tokens_per_s": round(middle(words / r[name] for r in rounds)),
            "of_mm": middle(flops / r[name] / r["mm"] for r in rounds),
            "ours_is_faster_by": middle(r[name] / r["ours"] for r in rounds),
        }
        for name in made
    }
    result["ours over the fastest peer"] = (
        middle(min(r[p] for p in peers) / r["ours"] for r in rounds) if peers else None
    )
    result["mm, GFLOP/s"] = round(middle(r["mm"] for r in rounds) / 1e9)
    print(
        f"\n{kind}, {args.device}, {args.threads} threads, {args.rounds} rounds of {len(some)} batches; torch.mm {result['mm, GFLOP/s']} GFLOP/s"
    )
    print(f"{'':24}{'tokens/s':>10}{'of torch.mm':>13}{'ours is faster by':>19}")
    for name in made:
        print(
            f"{name:24}{result[name]['tokens_per_s']:>10,}{result[name]['of_mm']:>13.2f}{result[name]['ours_is_faster_by']:>19.2f}"
        )
    if peers:
        print(
            f"ours over the fastest peer of each round: {result['ours over the fastest peer']:.2f}"
        )
    return result


def profile(args: argparse.Namespace, m: ModelConfig) -> None:
    "The operators of our step, by their own time."
    module, optimizer = contenders(m, args.vocab, args.device)["ours"]
    some, autocast = (
        batches(6, args.tokens, args.vocab),
        precision_context(args.precision[0], torch.device(args.device)),
    )
    train_on(module, optimizer, some[:2], autocast)
    with torch.profiler.profile() as watched:
        train_on(module, optimizer, some, autocast)
    events = sorted(watched.key_averages(), key=lambda e: -e.self_cpu_time_total)
    total = sum(e.self_cpu_time_total for e in events)
    for e in events[:16]:
        print(
            f"{e.key[:50]:52}{e.self_cpu_time_total / total:7.1%}{e.count // len(some):8} a step"
        )


def memory(args: argparse.Namespace, m: ModelConfig) -> dict:
    "Memory of our training while shapes vary."
    module, optimizer = contenders(m, args.vocab, args.device)["ours"]
    some, autocast = (
        batches(args.memory, 1000, args.vocab),
        precision_context(args.precision[0], torch.device(args.device)),
    )
    marks = {}
    for i, batch in enumerate(some, start=1):
        train_on(module, optimizer, [batch], autocast)
        if i == 100 or i % 500 == 0:
            with open("/proc/self/statm") as f:
                now = int(f.read().split()[1]) * resource.getpagesize() / 2**20
            marks[i] = {
                "now_mb": round(now),
                "peak_mb": round(
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                ),
            }
            print(
                f"step {i:5}: {now:6.0f} MB, peak {marks[i]['peak_mb']} MB", flush=True
            )
    print(
        f"{len({(tuple(b[0].shape), tuple(b[2].shape)) for b in some})} different pairs of shapes"
    )
    return marks


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--precision", nargs="+", default=["bf16", "fp32"], choices=["bf16", "fp32"]
    )
    parser.add_argument("--size", default="small", choices=["small", "base"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=4, help="of a round")
    parser.add_argument("--tokens", type=int, default=4096, help="of a batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--memory", type=int, metavar="STEPS")
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    m, args.vocab = (SMALL, 8000) if args.size == "small" else (BASE, 37_000)
    if args.profile:
        return profile(args, m)
    result = (
        memory(args, m)
        if args.memory
        else {kind: compare(kind, args, m) for kind in args.precision}
    )
    if args.out:
        with open(args.out, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()
