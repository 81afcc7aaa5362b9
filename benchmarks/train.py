#!/usr/bin/env python
"""Training speed beside peers: equal batches, equal sizes, one interleaved run.

    make bench-train                                 or, with its options:
    python benchmarks/train.py --precision bf16 fp32 --rounds 7 --out speed.json

Peers: torch.nn.Transformer, and Hugging Face's Marian started from scratch (`pip install transformers`), with either of its attentions.
Each has the same sizes (256/1024, 4 heads, 3+3 layers, 8,000 shared pieces, tied), dropout 0.1, none of it on attention weights, label
smoothing 0.1, fused Adam, and is given the same tensors. A round times every contender once, one after the other, beside the rate of
`torch.mm`; ratios are taken within a round, and the median over rounds is printed.
"""

import argparse
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from measuring import in_turn, made_of, matmul_rate, middle, options, seconds, write
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
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


# ---- the batches


def random_lengths(rng: np.random.Generator, n: int = 29_000) -> np.ndarray:
    "Source and target tokens of n pairs, (n, 2), spread as in image captions."
    src = rng.lognormal(2.6, 0.3, n).clip(4, 60).astype(int)
    tgt = (src * rng.lognormal(0, 0.18, n)).clip(4, 60).astype(int)
    return np.stack([src, tgt], axis=1)


def batches(n: int, n_tokens: int, n_vocab: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    "(src, tgt_in, tgt_out) of random words; lengths spread as in image captions, sorted and cut as our batches are."
    rng, made = np.random.default_rng(0), []
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
        ids = np.where(real, rng.integers(4, n_vocab, real.shape), PAD)
        sides.append(torch.from_numpy(ids))
    src, tgt_out = sides
    tgt_in = tgt_out.roll(1, dims=1)
    tgt_in[:, 0] = BOS
    return src, tgt_in.masked_fill(tgt_out == PAD, PAD), tgt_out


def useful_flops(
    batch: tuple[Tensor, Tensor, Tensor], m: ModelConfig, n_vocab: int
) -> float:
    "Of forward and backward on non-padding tokens alone, 2 for each multiply-add; the backward pass counts twice the forward."
    d, ff = m.d_model, m.d_ff
    s, t = ((side != PAD).sum(dim=1).double() for side in (batch[0], batch[2]))
    both = lambda n: 2 * n * (4 * d * d + 2 * d * ff) + 4 * n * n * d
    cross = 4 * t * d * d + 4 * s * d * d + 4 * t * s * d
    encoder, decoder = both(s), both(t) + cross
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
        )

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        return FAST.loss(
            self.model(src, tgt_in),
            self.model.embedding.weight,
            tgt_out,
            PAD,
            SMOOTHING,
        )


def peer_loss(logits: Tensor, tgt_out: Tensor) -> Tensor:
    return F.cross_entropy(
        logits.flatten(0, 1),
        tgt_out.flatten(),
        ignore_index=PAD,
        label_smoothing=SMOOTHING,
        reduction="sum",
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
        for module in self.model.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # of attention weights

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
        return peer_loss(F.linear(hidden, self.embedding.weight), tgt_out)


def marian(m: ModelConfig, n_vocab: int, **more) -> nn.Module:
    "The model of these sizes in Hugging Face's transformers."
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=n_vocab,
        d_model=m.d_model,
        encoder_layers=m.n_layers,
        decoder_layers=m.n_layers,
        encoder_attention_heads=m.n_heads,
        decoder_attention_heads=m.n_heads,
        encoder_ffn_dim=m.d_ff,
        decoder_ffn_dim=m.d_ff,
        activation_function="relu",
        scale_embedding=True,
        **more,
    )
    return MarianMTModel(config)


class HuggingFaceMarian(nn.Module):
    attention = "sdpa"  # its default

    def __init__(self, m: ModelConfig, n_vocab: int):
        super().__init__()
        self.model = marian(
            m,
            n_vocab,
            dropout=DROPOUT,
            attention_dropout=0.0,
            activation_dropout=0.0,
            pad_token_id=PAD,
            decoder_start_token_id=BOS,
            eos_token_id=3,
            forced_eos_token_id=3,
            max_position_embeddings=256,
            use_cache=False,
            attn_implementation=self.attention,
        )

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> Tensor:
        logits = self.model(
            input_ids=src,
            attention_mask=src != PAD,
            decoder_input_ids=tgt_in,
            decoder_attention_mask=tgt_in != PAD,
        ).logits
        return peer_loss(logits, tgt_out)


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


# ---- timing


def train_on(
    module: nn.Module, optimizer: torch.optim.Optimizer, some: list, autocast
) -> float:
    "Seconds for one step on each batch: forward, loss, backward, Adam."
    wait = torch.cuda.synchronize if some[0][0].is_cuda else (lambda: None)
    # beforehand, as a loader knows them: on a GPU, reading a number waits for it
    counts = [int((tgt_out != PAD).sum()) for _, _, tgt_out in some]

    def steps() -> None:
        for (src, tgt_in, tgt_out), n_tokens in zip(some, counts):
            with autocast:
                loss = module(src, tgt_in, tgt_out) / n_tokens
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        wait()

    wait()
    return seconds(steps)


def race(
    made: dict[str, tuple[nn.Module, torch.optim.Optimizer]],
    some: list,
    autocast: AbstractContextManager,
    m: ModelConfig,
    n_vocab: int,
    mm: Callable[[], float],  # the rate of matrix products now, which shares refer to
    n_rounds: int,
) -> dict:
    "Rounds of all contenders in turn; medians of what each round gave."
    n_tokens = sum(int((batch[2] != PAD).sum()) for batch in some)
    flops = sum(useful_flops(batch, m, n_vocab) for batch in some)
    done: list[dict[str, float]] = []
    for turn in range(n_rounds):
        done.append({"mm": mm()})
        for name in in_turn(made, turn):
            done[-1][name] = train_on(*made[name], some, autocast)
    result = {
        name: {
            "tokens_per_s": round(middle(n_tokens / r[name] for r in done)),
            "of_mm": middle(flops / r[name] / r["mm"] for r in done),
            "ours_is_faster_by": middle(r[name] / r["ours"] for r in done),
        }
        for name in made
    }
    ours = [name for name in made if name.startswith("ours")]
    peers = [name for name in made if name not in ours]
    fastest = lambda r, names: min(r[name] for name in names)
    over = (fastest(r, peers) / fastest(r, ours) for r in done) if peers else None
    result["ours over the fastest peer"] = middle(over) if peers else None
    result["mm, GFLOP/s"] = round(middle(r["mm"] for r in done) / 1e9)
    return result


def compare(kind: str, args: argparse.Namespace, m: ModelConfig) -> dict:
    "All contenders in one precision; printed, and returned."
    device = torch.device(args.device)
    made = made_of(
        {
            name: partial(contender, kind, m, args.vocab, args.device)
            for name, kind in {"ours": Ours, **PEERS}.items()
        },
        lacking=ImportError,
    )
    autocast = precision_context(kind, device)
    some = [
        tuple(t.to(device) for t in batch)
        for batch in batches(args.batches, args.tokens, args.vocab)
    ]
    for pair in made.values():
        train_on(*pair, some[:2], autocast)  # warm
    n = 4096 if args.device == "cpu" else 32_768  # of a feed-forward layer
    shape = n, m.d_model, 4 * m.d_model
    mm = partial(matmul_rate, *shape, DTYPES[kind], device)
    result = race(made, some, autocast, m, args.vocab, mm, args.rounds)
    show(f"{kind}, {args.device}, {args.threads} threads", result, made)
    return result


def show(title: str, result: dict, names: Iterable[str]) -> None:
    print(f"\n{title}; torch.mm {result['mm, GFLOP/s']} GFLOP/s")
    print(f"{'':24}{'tokens/s':>10}{'of torch.mm':>13}{'ours is faster by':>19}")
    for name in names:
        tokens, share, faster = result[name].values()
        print(f"{name:24}{tokens:>10,}{share:>13.2f}{faster:>19.2f}")
    print(f"ours over the fastest peer: {result['ours over the fastest peer']}")


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("--precision", nargs="+", default=list(DTYPES), choices=list(DTYPES))
    add("--size", default="small", choices=["small", "base"])
    add("--rounds", type=int, default=7)
    add("--batches", type=int, default=4, help="of a round")
    add("--tokens", type=int, default=4096, help="of a batch")
    add("--device", default="cpu")
    add("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    m, args.vocab = (SMALL, 8000) if args.size == "small" else (BASE, 37_000)
    write(args.out, {kind: compare(kind, args, m) for kind in args.precision})


if __name__ == "__main__":
    main()
