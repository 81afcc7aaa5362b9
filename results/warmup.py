#!/usr/bin/env python
"""Does a small model need a warm-up? Both orders of the norm, two rates, with and without (notebook 53).

    nice python results/warmup.py --out warmup.json
    python tools/record.py results/warmup.json --command "…" --seed 0 --json warmup=warmup.json

Six layers of width 32 learn to copy six random letters, as on the page. The loss is that of the batch of each step, which the model has not
seen before; its means over 50 steps are kept. About ten minutes of one core in all.
"""

import torch
import torch.nn.functional as F
from figures import options, write

from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.training.optimizer import adam

PAD, BOS, EOS, N_VOCAB = 0, 2, 3, 14
EVERY = 50  # steps of a mean
SETTINGS = [  # norm, highest rate, steps of warm-up (1 = none)
    ("post", 0.003, 1),
    ("post", 0.003, 60),
    ("post", 0.001, 1),
    ("post", 0.001, 60),
    ("pre", 0.003, 1),
    ("pre", 0.003, 60),
]


def learn_to_copy(
    norm: str, peak: float, warmup_steps: int, seed: int, n_steps: int
) -> list[float]:
    "The loss of each step, in nats per token; the rate stays at `peak` after its rise."
    torch.manual_seed(seed)
    config = ModelConfig(n_layers=6, d_model=32, d_ff=64, n_heads=4, norm=norm)
    model = build_transformer(config, N_VOCAB, PAD, dropout=0.0)
    optimizer, losses = adam(model.parameters()), []
    for step in range(1, n_steps + 1):
        letters = torch.randint(4, N_VOCAB, (16, 6))
        src = F.pad(letters, (0, 1), value=EOS)
        tgt_in = F.pad(letters, (1, 0), value=BOS)
        logits = model.embedding.logits(model(src, tgt_in))
        loss = F.cross_entropy(logits.flatten(0, 1), src.flatten())
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = peak * min(1, step / warmup_steps)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--steps", type=int, default=600, help="of each run, a multiple of 50")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict = {"seeds": args.seeds, "every": EVERY, "rows": []}
    for norm, peak, warmup_steps in SETTINGS:
        runs = []
        for seed in args.seeds:
            losses = learn_to_copy(norm, peak, warmup_steps, seed, args.steps)
            runs.append([round(sum(x) / EVERY, 4) for x in in_parts(losses)])
            print(norm, peak, warmup_steps, seed, *runs[-1], flush=True)
        row = {"norm": norm, "peak": peak, "warmup_steps": warmup_steps}
        found["rows"].append({**row, "losses": runs})
        write(args.out, found)


def in_parts(losses: list[float]) -> list[list[float]]:
    return [losses[i : i + EVERY] for i in range(0, len(losses), EVERY)]


if __name__ == "__main__":
    main()
