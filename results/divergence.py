#!/usr/bin/env python
"""Why the shape of `multi30k-tiny` does not learn at a peak rate of 4e-3 with post-norm, and which changes cure it.

    python results/divergence.py --data-dir DATA --out divergence.json
    python tools/record.py results/divergence.json --command "…" --seed 0 --json divergence=divergence.json

Each row of ROWS trains 1,200 steps of 1,000 tokens, a few minutes of one core. Every 50 steps, without dropout and on the same held-out
sentences, it measures the loss, the loss if each sentence gets another source, how similar the encoder's outputs of one sentence are,
and the norm of the gradient in the first and the last layer.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from figures import options, write
from jaxtyping import Float
from torch import Tensor, nn

from annotated_transformer.data.batch import Batch, epoch_batches, training_steps
from annotated_transformer.data.corpus import load_corpus
from annotated_transformer.data.prepared import Prepared, prepare
from annotated_transformer.io.text import fingerprint
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.runs.recipe import BatchLoss, build_training
from annotated_transformer.runs.settings import Recipe, get_recipe, override
from annotated_transformer.training.train import NotFinite, train

COMMON = (
    "batch_tokens=1000 max_steps=1200 peak_lr=4e-3 warmup_steps=200 dropout=0.1 "
    "init_gain=1"
)
ROWS = {  # name: settings
    "post-norm": "",
    "peak rate 1e-3": "peak_lr=1e-3",
    "warm-up of 800 steps": "warmup_steps=800",
    "half of the initial weights": "init_gain=0.5",
    "gradient clipped at 0.5": "clip_norm=0.5",
    "pre-norm": "norm=pre",
}
EVERY = 50  # steps from one measurement to the next


def similarity(
    memory: Float[Tensor, "b s d_model"], real: Float[Tensor, "b s"]
) -> float:
    "Mean cosine between the encoder's outputs of two positions of one sentence."
    unit = nn.functional.normalize(memory, dim=-1) * real[..., None]
    n = real.sum(dim=1)  # positions of each sentence
    off_diagonal = unit.sum(dim=1).square().sum(dim=-1) - n  # (b,)
    return (off_diagonal / (n * (n - 1))).mean().item()


def with_other_sources(batch: Batch) -> Batch:
    "The batch, in which each target sentence has the source of its neighbour."
    return batch._replace(src=batch.src.roll(1, dims=0))


@torch.no_grad()
def measured(objective: BatchLoss, batch: Batch) -> dict[str, float]:
    "Loss in nats per token, the same with other sources, and the similarity."
    model: Transformer = objective.model
    objective.eval()
    loss = objective(batch).item() / batch.n_tokens
    other = objective(with_other_sources(batch)).item() / batch.n_tokens
    real = batch.src != model.pad_id
    with objective.autocast:
        memory, _ = model.encode(batch.src)
    objective.train()
    return {
        "loss": loss,
        "other_source": other,
        "similarity": similarity(memory.float(), real.float()),
    }


def gradient_norm(layer: nn.Module) -> float:
    "Norm of the gradient of all parameters of a layer."
    return nn.utils.get_total_norm([p.grad for p in layer.parameters()]).item()


def recipe_of(row: str, seed: int, settings: list[str]) -> Recipe:
    "The recipe of a row; `settings` are for tests."
    own = [*COMMON.split(), *ROWS[row].split()]
    return override(get_recipe("multi30k-tiny"), [*own, *settings, f"seed={seed}"])


def curve(recipe: Recipe, data: Prepared) -> list[dict[str, float]]:
    "Train, and measure every EVERY steps; it ends early if the loss is not finite."
    settings, found = recipe.train, []
    objective, parallel, optimizer, schedule = build_training(
        recipe, data.vocab, torch.device("cpu")
    )
    layers = [*objective.model.encoder.layers, *objective.model.decoder.layers]
    held_out = next(epoch_batches(data.valid, data.vocab, 2000, seed=0, epoch=0))

    steps = training_steps(data.train, data.vocab, settings.batch_tokens, settings.seed)
    try:
        n, clip_norm = settings.max_steps, settings.clip_norm
        for record in train(parallel, steps, optimizer, schedule, n, clip_norm):
            if record.step == 1 or record.step % EVERY == 0:
                first, last = map(gradient_norm, (layers[0], layers[-1]))
                norms = {"first": first, "last": last}
                now = measured(objective, held_out)
                found.append({"step": record.step} | now | norms)
    except NotFinite as error:
        print(error)
    return found


def main() -> None:
    parser = options(__doc__)
    add = parser.add_argument
    add("--data-dir", help="holds multi30k/; without it the text is downloaded")
    add("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    add("--seed", type=int, default=0)
    add("--set", nargs="*", default=[], help="settings for all rows")
    args = parser.parse_args()
    corpus = load_corpus("multi30k", args.data_dir)
    texts = f"{fingerprint(corpus.train)} {fingerprint(corpus.valid)}"
    found = []
    with TemporaryDirectory() as folder:
        vocab_size = recipe_of(args.rows[0], args.seed, args.set).train.vocab_size
        out = Path(folder) / "text"
        data = prepare(out, corpus.train, corpus.valid, texts, vocab_size)
        for row in args.rows:
            points = curve(recipe_of(row, args.seed, args.set), data)
            rounded = [{k: round(v, 4) for k, v in point.items()} for point in points]
            about = {"row": row, "settings": ROWS[row]}
            print(json.dumps(about | rounded[-1]), flush=True)
            found.append(about | {"curve": rounded})
            write(args.out, {"common": COMMON, "rows": found})


if __name__ == "__main__":
    main()
