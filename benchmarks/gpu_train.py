"Parts of gpu.py on one device: the rate of matrix products, and training compared with peers."

import statistics
import time

from gpu_kit import (
    Kit,
    compile_module,
    first_line,
    forget_compiled,
    matmul_rate,
    model_rate,
    say,
)
from train import PAD, PEERS, Ours, batches, contender, train_on, useful_flops

from annotated_transformer.model.config import ModelConfig
from annotated_transformer.runs.recipe import precision_context

KINDS = {"ours": Ours} | {
    name: kind for name, kind in PEERS.items() if name != "the same, eager"
}
COMPILED = ", compiled"


def shapes(kit: Kit, m: ModelConfig) -> dict[str, tuple[int, int, int]]:
    "The matrix products of a step, (n, k) times (k, m)."
    n, d = kit.step_tokens, m.d_model
    rows = max(256, 2**26 // kit.n_vocab)  # of a chunk of the loss on a GPU
    return {
        "queries, keys and values": (n, d, 3 * d),
        "output of attention": (n, d, d),
        "feed-forward, first": (n, d, m.d_ff),
        "feed-forward, second": (n, m.d_ff, d),
        "gradient of the first": (d, n, m.d_ff),
        "logits": (min(n, rows), d, kit.n_vocab),
    }


def matmul(kit: Kit) -> None:
    "The measured rate of matrix products, at the model's shapes and at a large one."
    kit.note("precision", kit.precision)
    large = 256 if kit.tiny else 8192
    groups = {name: shapes(kit, m) for name, m in kit.sizes().items()}
    groups["largest"] = {"square": (large, large, large)}
    rates: dict[str, dict] = {}
    for size, some in groups.items():
        rates[size] = {}
        for name, shape in some.items():
            gflops = round(matmul_rate(kit, *shape) / 1e9, 1)
            rates[size][name] = {"shape": shape, "gflops": gflops}
            shown = " × ".join(f"{n:,}" for n in shape)
            say(f"  {size:8}{name:26}{shown:24}{gflops / 1e3:10,.2f} TFLOP/s")
            kit.note("rates", rates)


# ---- training compared with peers


class Contender:
    "A module that is trained, with its optimiser, and what its first steps took."

    def __init__(self, kit: Kit, name: str, m: ModelConfig, some: list):
        kind = KINDS[name.removesuffix(COMPILED)]
        kit.forget_peak()
        before, began = kit.megabytes(), time.perf_counter()
        self.autocast = precision_context(kit.precision, kit.device)
        device = str(kit.device)
        self.module, self.optimizer = contender(kind, m, kit.n_vocab, device)
        if name.endswith(COMPILED):
            # ours as the recipe does; a peer with its loss
            inner = self.module.model if kind is Ours else self.module
            compile_module(inner, kit.tiny)
        self.seconds(some)
        first = time.perf_counter() - began
        kit.forget_peak()  # a compiler tries several kernels
        self.seconds(some)
        self.facts = {
            "first_steps_s": round(first, 2),
            "peak_mb": round(kit.peak_mb() - before) if kit.on_cuda else None,
        }

    def seconds(self, some: list) -> float:
        return train_on(self.module, self.optimizer, some, self.autocast)


def prepare(kit: Kit, name: str, m: ModelConfig, some: list) -> Contender | None:
    "The contender after its first steps; None, and a line, if it cannot be had."
    try:
        return Contender(kit, name, m, some)
    except Exception as e:  # not installed, no memory, a compiler that fails
        say(f"  {name} is left out: {first_line(e)}")
        return None


def prepare_all(
    kit: Kit, m: ModelConfig, some: list, compiled: list[str], compile_s: float
) -> dict[str, Contender]:
    """Every contender that can be had; then some compiled, while there is time.

    `compile_s` is what the first compilation of another size took, 0 if there was none.
    """
    made: dict[str, Contender] = {}
    for name in [*KINDS, *(name + COMPILED for name in compiled)]:
        slow = name.endswith(COMPILED)
        if slow and kit.seconds_left() < 1.5 * compile_s + 20 and not kit.tiny:
            say(f"  {name} is left out: no time to compile it")
            continue
        if one := prepare(kit, name, m, some):
            made[name] = one
            say(f"  {name}: first steps {one.facts['first_steps_s']:.1f} s")
            if slow:
                compile_s = max(compile_s, one.facts["first_steps_s"])
    return made


def one_round(
    kit: Kit, made: dict[str, Contender], m: ModelConfig, some: list, turn: int
) -> dict:
    "All contenders in turn on the same batches, and the matmul rate."
    n_tokens = sum(int((batch[2] != PAD).sum()) for batch in some)
    flops = sum(useful_flops(batch, m, kit.n_vocab) for batch in some)
    placed = [tuple(t.to(kit.device) for t in batch) for batch in some]
    rate, names = model_rate(kit, m), list(made)
    names = names[turn % len(names) :] + names[: turn % len(names)]
    seconds = {name: made[name].seconds(placed) for name in names}
    return {"n_tokens": n_tokens, "flops": flops, "rate": rate, "seconds": seconds}


def middle(values) -> float:
    return round(statistics.median(values), 3)


def summary(rounds: list[dict], made: dict[str, Contender]) -> dict:
    "Medians of what each round gave."
    found, peers = {}, [name for name in made if not name.startswith("ours")]
    for name, one in made.items():
        taken = [r["seconds"][name] for r in rounds]
        found[name] = {
            "tokens_per_s": round(
                middle(r["n_tokens"] / s for r, s in zip(rounds, taken))
            ),
            "of_matmul": middle(
                r["flops"] / s / r["rate"] for r, s in zip(rounds, taken)
            ),
            "ours_is_faster_by": middle(
                s / r["seconds"]["ours"] for r, s in zip(rounds, taken)
            ),
            **one.facts,
        }
    result = {
        "rounds": len(rounds),
        "matmul_gflops": round(middle(r["rate"] for r in rounds) / 1e9, 1),
        "contenders": found,
    }
    if peers:
        result["ours_over_the_fastest_peer"] = middle(
            min(r["seconds"][p] for p in peers)
            / min(s for name, s in r["seconds"].items() if name not in peers)
            for r in rounds
        )
    return result


def show(size: str, result: dict) -> None:
    say(f"\n  {size}: matmul {result['matmul_gflops'] / 1e3:,.2f} TFLOP/s")
    head = f"{'tokens/s':>12}{'of matmul':>13}{'ours is faster by':>19}{'peak MB':>10}"
    say(f"  {'':32}{head}")
    for name, r in result["contenders"].items():
        peak = "" if r["peak_mb"] is None else f"{r['peak_mb']:,}"
        say(
            f"  {name:32}{r['tokens_per_s']:>12,}{r['of_matmul']:>13.3f}"
            f"{r['ours_is_faster_by']:>19.2f}{peak:>10}"
        )


def compare(kit: Kit, size: str, m: ModelConfig, compile_s: float) -> dict:
    "Rounds of all contenders; each round has batches of its own, as training has."
    n_rounds, n = (2, 2) if kit.tiny else (5, 8)
    some = batches(2 + n_rounds * n, kit.step_tokens, kit.n_vocab, kit.seed)
    warm = [tuple(t.to(kit.device) for t in batch) for batch in some[:2]]
    compiled = list(KINDS) if size == "base" else ["ours"]
    if kit.tiny:
        compiled = ["ours"] if size == "base" else []
    made = prepare_all(kit, m, warm, compiled, compile_s)
    if "ours" not in made:
        raise RuntimeError(f"our model of size {size} cannot be trained here")
    rounds: list[dict] = []
    for turn in range(n_rounds):
        begin = 2 + turn * n
        rounds.append(one_round(kit, made, m, some[begin : begin + n], turn))
        result = summary(rounds, made)
        kit.note(size, result)
    show(size, result)
    return result


def train(kit: Kit) -> None:
    "Tokens per second and the share of the rate of matrix products, compared with peers."
    kit.note("precision", kit.precision)
    kit.note("tokens_per_step", kit.step_tokens)
    compile_s = 0.0
    for size, m in kit.sizes().items():
        say(f"\n  {size}, {kit.precision}, steps of {kit.step_tokens:,} tokens")
        found = compare(kit, size, m, compile_s)["contenders"]
        ours = found.get("ours" + COMPILED, {})
        compile_s = max(compile_s, ours.get("first_steps_s", 0.0))
        forget_compiled()
