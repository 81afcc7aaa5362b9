"""Each engine gives what its plain twin gives: values and gradients, over shapes, masks, dtypes and devices.

A new engine is a new row in TWINS. The exact result is that of the plain twin in float64 on the CPU. Both twins are compared with
it at each precision that has a tolerance, on each device at hand.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, get_args, get_origin
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from small_runs import LATER
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from annotated_transformer.engines import chunked_loss as chunks
from annotated_transformer.engines.batched_search import (
    batched_beam_search,
    batched_greedy_search,
)
from annotated_transformer.engines.chunked_loss import chunked_loss
from annotated_transformer.engines.chunked_r_drop import ChunkedRDrop
from annotated_transformer.engines.fused_attention import (
    FusedMultiHeadAttention,
    fused_attention,
)
from annotated_transformer.engines.kv_cache import KVCache
from annotated_transformer.engines.packed import (
    Int8Linear,
    _ShortStep,
    can_int8,
    fast_decoder,
    prepare_for_inference,
)
from annotated_transformer.model.after import RMSNorm
from annotated_transformer.model.attention import attention, attention_weights
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import (
    DecodingState,
    PrefixDecoder,
    beam_search,
    greedy_search,
)
from annotated_transformer.model.multi_head import MultiHeadAttention
from annotated_transformer.model.rotary import RotaryPosition, rotate
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.show.visualize import attention_maps
from annotated_transformer.training.label_smoothing import smoothed_loss
from annotated_transformer.training.r_drop import RDrop

# A precision is a dtype of the inputs, or float32 inputs under autocast to bfloat16.
DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "autocast": torch.float32,
}


class Tolerance(NamedTuple):
    "The largest ‖a − b‖ / max(‖b‖, √n · scale) of a tensor of n numbers."

    values: float
    gradients: float | None = None  # None: they are not compared
    scale: float = 0.0  # size of a number below which errors are absolute


class Twin(NamedTuple):
    name: str
    plain: Callable  # arguments to tensors, in any nesting; called with torch seeded
    engine: Callable  # the same arguments to the same shapes and dtypes
    inputs: Callable[..., tuple]  # (rng, **case) to arguments, floats in float64
    cases: dict[str, dict]  # name to the keywords of `inputs`
    tolerance: dict[str, Tolerance]  # of each precision that is compared
    devices: tuple[str, ...] = ("cpu", "cuda", "mps")
    available: Callable[[torch.dtype], bool] = lambda dtype: True


def devices_at_hand() -> list[str]:
    found = {"cpu": True, "cuda": torch.cuda.is_available()}
    found["mps"] = torch.backends.mps.is_available()
    return [device for device in found if found[device]]


def is_float(x) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def place(args: tuple, precision: str, device: str, grad: bool = False) -> tuple:
    "Copies of the arguments on a device, floats in the dtype of `precision`."

    def one(x):
        if not isinstance(x, Tensor):
            return x
        if not is_float(x):
            return x.to(device)
        # not straight to the device: mps has no float64
        copy = x.detach().to(DTYPES[precision], copy=True).to(device)
        return copy.requires_grad_(grad)

    return tree_map(one, args)


def results(
    part: Callable, args: tuple, precision: str, device: str, grad: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """What a twin returns, and its gradients at all float tensors among the arguments.

    The gradient from above is random. Without `grad`, there are none.
    """
    placed = place(args, precision, device, grad)
    torch.manual_seed(0)
    with torch.autocast(device, torch.bfloat16, enabled=precision == "autocast"):
        values = [torch.as_tensor(v) for v in tree_leaves(part(*placed))]
    if not grad:
        return values, []
    rng = torch.Generator().manual_seed(1)
    above = [torch.randn(v.shape, generator=rng).to(v) for v in values]
    leaves = [x for x in tree_leaves(placed) if is_float(x)]
    gradients = torch.autograd.grad(values, leaves, above, materialize_grads=True)
    return values, list(gradients)


def error(found: Tensor, exact: Tensor, scale: float) -> float:
    "‖a − b‖ / max(‖b‖, √n · scale); equal infinities differ by nothing."
    a, b = found.detach().cpu().double(), exact.detach().double()
    difference = (a - b).masked_fill(a == b, 0).norm().item()
    size = max(b[b.isfinite()].norm().item(), scale * b.numel() ** 0.5)
    if difference == 0:
        return 0.0
    return difference / size if size else math.inf


# ---- the smoothed loss: over whole logits, and in chunks


def loss_inputs(
    rng: torch.Generator,
    eps: float = 0.1,
    shape: tuple[int, int] = (3, 7),  # (b, t)
    n_vocab: int = 40,
    padding: float = 0.0,  # share of the positions
    certainty: float = 0.0,  # from 0, nothing learned, to 14, certain of the target token
) -> tuple:
    # rounded to bfloat16, so that autocast rounds the products and not the inputs
    weight = torch.randn(n_vocab, 64, generator=rng).bfloat16().double()
    tgt_out = torch.randint(1, n_vocab, shape, generator=rng)
    noise = torch.randn(*shape, 64, generator=rng) / 8
    hidden = (noise + certainty / 64 * weight[tgt_out]).bfloat16().double()
    tgt_out[torch.rand(shape, generator=rng) < padding] = 0
    return hidden, weight, tgt_out, 0, eps


def r_drop_inputs(rng: torch.Generator, shape=(3, 7), **case) -> tuple:
    "Two passes whose hidden states differ, and a batch that is the same in both."
    hidden, weight, tgt_out, *rest = loss_inputs(rng, shape=shape, **case)
    noise = torch.randn(hidden.shape, generator=rng).bfloat16().double() / 4
    other = (hidden + noise).bfloat16().double()
    return torch.cat([hidden, other]), weight, tgt_out.repeat(2, 1), *rest


LOSSES = {
    "no smoothing": dict(eps=0.0),
    "much smoothing": dict(eps=0.9),
    "one token in the vocabulary besides padding": dict(n_vocab=2),
    "padding": dict(shape=(4, 9), padding=0.4),
    "all padding": dict(padding=2.0),
    "no positions": dict(shape=(2, 0)),
    "half certain": dict(n_vocab=300, shape=(1, 200), certainty=8.0),
}
# 8,192 tokens give chunks of 256 positions on a CPU: one, one and a bit, two, three
LARGE = {f"{n} positions": dict(shape=(1, n), n_vocab=8192) for n in (256, 257)} | {
    "chunks with padding": dict(shape=(20, 20), n_vocab=8192, padding=0.3)
}


def padded(loss: Callable) -> Callable:
    "As on a GPU, where padding is set to zero instead of being left out."

    def compute(*args) -> Tensor:
        with mock.patch.object(chunks, "_SELECT_ON", ()):
            return loss(*args)

    return compute


# The sums are taken in another order, and in float32 the plain gradient is e to the power
# of a rounded ln p, on some processors with fewer exact digits. Under autocast,
# logits and probabilities have 8 significant bits; the errors of positions cancel in the
# value, less in the gradients.
LOSS_TOLERANCE = {
    "float64": Tolerance(1e-13, 1e-13),
    "float32": Tolerance(1e-6, 1e-5),
    "autocast": Tolerance(2**-8, 2**-5),
}


# ---- attention: one product after another, and fused


def attention_inputs(
    rng: torch.Generator,
    n_q: int = 5,
    n_k: int = 7,
    mask: str = "none",
    d_v: int = 6,
) -> tuple:
    q, k = (torch.randn(2, 3, n, 8, generator=rng).double() for n in (n_q, n_k))
    v = torch.randn(2, 3, n_k, d_v, generator=rng).double()
    return q, k, v, make_mask(rng, mask, n_q, n_k)


def make_mask(rng: torch.Generator, kind: str, n_q: int, n_k: int) -> Tensor | None:
    if kind == "none":
        return None
    if kind == "causal":
        return torch.ones(n_q, n_k).tril().bool()[None, None]
    if kind == "padding":
        return (torch.arange(n_k) < torch.tensor([[n_k], [1]]))[:, None, None]
    mask = torch.rand(2, 1, n_q, n_k, generator=rng) > 0.4
    mask[0, :, 0] = False  # a fully masked row
    return mask


ATTENTIONS = {
    f"{n_q} × {n_k}, {mask}": dict(n_q=n_q, n_k=n_k, mask=mask)
    for n_q, n_k in ((1, 1), (5, 7), (7, 7), (3, 90))
    for mask in ("none", "causal", "padding", "random")
}


def multi_head_inputs(
    rng: torch.Generator,
    n_q: int,
    n_k: int,
    mask: str,
    self_attention: bool,
    options: dict | None = None,  # of the module
) -> tuple:
    x = torch.randn(2, n_q, 12, generator=rng).double()
    memory = None if self_attention else torch.randn(2, n_k, 12, generator=rng).double()
    options = options or {}
    weights = {
        name: torch.randn(weight.shape, generator=rng).double() / 3
        for name, weight in MultiHeadAttention(12, **HEADS | options)
        .state_dict()
        .items()
    }
    return x, memory, make_mask(rng, mask, n_q, n_k), weights, options


HEADS = dict(n_heads=3, d_k=5, d_v=2)


def apply_multi_head(kind: type, x, memory, mask, weights, options) -> Tensor:
    module = kind(12, **HEADS | options)
    memory = x if memory is None else memory
    return torch.func.functional_call(module, weights, (x, memory, memory, mask))


MULTI_HEADS = {
    f"{'self' if n_q == n_k else 'cross'}, {n_q} × {n_k}, {mask}": dict(
        n_q=n_q, n_k=n_k, mask=mask, self_attention=n_q == n_k
    )
    for n_q, n_k in ((1, 1), (7, 7), (4, 9), (80, 80))
    for mask in ("none", "causal", "padding", "random")
}
for n_q, n_k in ((7, 7), (4, 9)):
    for name, options in (
        ("one head of keys", dict(n_kv_heads=1)),
        ("norm of queries and keys", dict(qk_norm=RMSNorm)),
        ("rotary", dict(rotate=rotate, d_k=6)),
        # a row of the three products has an odd number of features
        ("rotary, odd", dict(rotate=rotate, n_kv_heads=1, d_k=10, d_v=5)),
        ("all three", dict(n_kv_heads=1, qk_norm=RMSNorm, rotate=rotate, d_k=6)),
    ):
        case = dict(n_q=n_q, n_k=n_k, mask="random", self_attention=n_q == n_k)
        MULTI_HEADS[f"{n_q} × {n_k}, {name}"] = case | dict(options=options)


# ---- decoding: the whole prefix at each step, and the newest position alone


def decoding_inputs(
    rng: torch.Generator, beams: tuple[int, ...] = (1, 1, 1), **sizes
) -> tuple:
    src = torch.randint(3, 20, (3, 6), generator=rng)
    src[1, 4:] = 0
    src[2] = 0  # nothing but padding: every key is masked
    beam, choices = 1, []
    for n in beams:  # the hypotheses that are continued, and their new tokens
        parents = torch.randint(beam, (3, n), generator=rng)
        # from 0: padding too, which no search generates but a prefix may hold
        choices.append((parents, torch.randint(20, (3, n), generator=rng)))
        beam = n
    return src, choices, sizes, torch.zeros(1).double()


def inputs_of_a_search(rng: torch.Generator, **case) -> tuple:
    "No token is padding, which no search generates."
    src, choices, *rest = decoding_inputs(rng, **case)
    return src, [(parents, ids.clamp(min=1)) for parents, ids in choices], *rest


def short_steps(model: nn.Module) -> KVCache:
    decoder = fast_decoder(prepare_for_inference(model))
    assert all(type(step) is _ShortStep for step in decoder.layer_steps)
    return decoder


def decode_steps(make: Callable, src, choices, sizes: dict, like: Tensor) -> list:
    "The log-probabilities of each step; `like` has the model's dtype and device."
    config = dict(n_layers=2, d_model=16, d_ff=24, n_heads=4) | sizes
    parts = {"attention": config.pop("attention")} if "attention" in sizes else {}
    torch.manual_seed(0)
    model = build_transformer(ModelConfig(**config), n_vocab=20, pad_id=0, **parts)
    decoder, found = make(model.eval().to(like)), []
    with torch.no_grad():
        state = decoder.start(src)
        for parents, last_ids in choices:
            rows = torch.arange(len(src), device=src.device)[:, None]
            state = state._replace(
                per_hypothesis=[t[rows, parents] for t in state.per_hypothesis]
            )
            log_probs, state = decoder.step(last_ids, state)
            found.append(log_probs)
    return found


DECODINGS = {
    "greedy": dict(beams=(1,) * 9),
    "beams": dict(beams=(1, 2, 4, 3, 3, 1, 2)),
    "pre-norm": dict(beams=(1, 3, 3), norm="pre"),
    "learned positions": dict(beams=(2, 2, 2), position="learned", n_positions=8),
    "one wide head": dict(beams=(1, 2), n_heads=1, d_k=3, d_v=5),
    "RMSNorm": dict(beams=(1, 3, 3), norm_kind="rms"),
    "GELU": dict(beams=(1, 3, 3), activation="gelu"),
    "no biases": dict(beams=(1, 3, 3), bias=False),
    "two matrices": dict(beams=(1, 3, 3), tied=False),
}
# each word of a setting that chooses a part
WORDS = {
    f"{field.name}={word}": dict(beams=(1, 2, 2, 1, 3), **{field.name: word})
    for field in dataclasses.fields(ModelConfig)
    if get_origin(field.type) is Literal
    for word in get_args(field.type)
}
# which no step in few calls has
LATER_PARTS = {
    "two heads of keys": dict(beams=(1, 2, 3, 2), n_kv_heads=2),
    "one head of keys": dict(beams=(2, 2, 1), n_kv_heads=1),
    "norm of queries and keys": dict(beams=(1, 2, 3), qk_norm=True),
    "all of today": dict(beams=(1, 2, 2, 1, 3), position="rotary", **LATER),
}


def fused(cases: dict[str, dict]) -> dict[str, dict]:
    return {
        f"{name}, fused": case | dict(attention=FusedMultiHeadAttention)
        for name, case in cases.items()
    }


# ---- search: one sentence after another, and a batch that sentences leave


def search_inputs(rng: torch.Generator, n: int = 40, limit: int = 9) -> tuple:
    "Tables of next-token probabilities, three for each sentence that take turns."
    tables = (2 * torch.randn(n, 3, 6, 6, generator=rng)).softmax(dim=-1)
    tables[..., 0] = 0  # BOS is never predicted
    tables = (tables / tables.sum(dim=-1, keepdim=True)).double()
    return tables, torch.randint(limit, (n,), generator=rng)


def table_step(last_ids: Tensor, state: DecodingState) -> tuple:
    (prefix,), (tables,) = state
    table = tables[:, prefix.size(-1) % 3]
    log_probs = table[torch.arange(len(table))[:, None], last_ids].log()
    prefix = torch.cat([prefix, last_ids[..., None]], dim=-1)
    return log_probs, DecodingState([prefix], [tables])


def as_tensors(hypotheses: list) -> list[Tensor]:
    "Tokens, then score and log-probability, of each hypothesis."
    return [
        t
        for h in hypotheses
        for t in (torch.tensor(h.ids), torch.tensor([h.score, h.log_prob]))
    ]


def search_batch(search: Callable, tables: Tensor, limits: Tensor) -> list[Tensor]:
    prefix = torch.empty(len(tables), 1, 0, dtype=torch.long)
    state = DecodingState([prefix], [tables])
    found = search(table_step, state, 0, 1, limits)
    return as_tensors([h for hypotheses in found for h in hypotheses])


def search_each(tables: Tensor, limits: Tensor, **options) -> list[Tensor]:
    found = []
    for table, limit in zip(tables, limits.tolist()):

        def next_log_probs(prefix: list[int], table=table) -> list[float]:
            return table[len(prefix) % 3, [0, *prefix][-1]].log().tolist()

        found += beam_search(next_log_probs, 1, limit, **options)
    return as_tensors(found)


SEARCHES = {"40 sentences": {}, "one": dict(n=1), "no token allowed": dict(limit=1)}


# ---- the linear layers of inference


def linear_inputs(rng: torch.Generator, n_in: int, size: float) -> tuple:
    weight = torch.randn(50, n_in, generator=rng).double() * n_in**-0.5
    x = size * torch.randn(2, 20, n_in, generator=rng).double()
    return x, weight, weight[:, 0] if n_in > 8 else None


LINEAR = {
    f"{n}, {size}": dict(n_in=n, size=size) for n in (8, 300) for size in (1e-3, 1e3)
}


def apply_linear(make: Callable, x: Tensor, weight: Tensor, bias: Tensor | None):
    layer = make(weight, bias)
    with torch.no_grad():
        # other strides and numbers of dimensions too
        return [layer(view) for view in (x, x.transpose(0, 1), x[0], x[:, :7])]


# name, plain, engine, inputs and cases
LOSS_TWINS = [
    ("chunked loss", smoothed_loss, chunked_loss, loss_inputs, LOSSES | LARGE),
    ("padding", smoothed_loss, padded(chunked_loss), loss_inputs, LOSSES | LARGE),
    ("R-Drop", RDrop(5.0), ChunkedRDrop(5.0), r_drop_inputs, LOSSES | LARGE),
    ("R-Drop, padding", RDrop(5.0), padded(ChunkedRDrop(5.0)), r_drop_inputs, LOSSES),
    ("no divergence", RDrop(0.0), ChunkedRDrop(0.0), r_drop_inputs, LOSSES),
]
# log-probabilities are float32 in both
DECODING_TOLERANCE = {"float64": Tolerance(1e-7), "float32": Tolerance(2e-6)}
SEARCH_TOLERANCE = {"float64": Tolerance(1e-6), "float32": Tolerance(1e-6)}

TWINS = [
    *(Twin(*row, LOSS_TOLERANCE) for row in LOSS_TWINS),
    Twin(
        "fused attention",
        attention,
        fused_attention,
        attention_inputs,
        ATTENTIONS,
        # sums in another order; bf16 rounds scores, weights and products to 8 bits
        {
            "float64": Tolerance(1e-13, 1e-13, scale=1e-3),
            "float32": Tolerance(1e-6, 3e-6, scale=1e-3),
            "bfloat16": Tolerance(2**-6, 2**-4, scale=1e-1),
        },
    ),
    Twin(
        "multi-head attention",
        partial(apply_multi_head, MultiHeadAttention),
        partial(apply_multi_head, FusedMultiHeadAttention),
        multi_head_inputs,
        MULTI_HEADS,
        {
            "float64": Tolerance(1e-13, 1e-13, scale=1e-3),
            "float32": Tolerance(2e-6, 5e-6, scale=1e-3),
        },
    ),
    Twin(
        "KV cache",
        partial(decode_steps, PrefixDecoder),
        partial(decode_steps, KVCache),
        decoding_inputs,
        DECODINGS | WORDS | LATER_PARTS | fused(DECODINGS | WORDS | LATER_PARTS),
        DECODING_TOLERANCE,
    ),
    Twin(
        "KV cache in short steps",
        partial(decode_steps, PrefixDecoder),
        partial(decode_steps, short_steps),
        inputs_of_a_search,
        fused(DECODINGS),
        DECODING_TOLERANCE,
        devices=("cpu",),
    ),
    Twin(
        "greedy search",
        partial(search_batch, greedy_search),
        partial(search_batch, batched_greedy_search),
        search_inputs,
        SEARCHES,
        SEARCH_TOLERANCE,
        devices=("cpu",),
    ),
    Twin(
        "beam search",
        partial(search_each, beam_size=4, n_best=3),
        partial(search_batch, partial(batched_beam_search, beam_size=4, n_best=3)),
        search_inputs,
        SEARCHES,
        SEARCH_TOLERANCE,
        devices=("cpu",),
    ),
    Twin(
        "8-bit linear layer",
        partial(
            apply_linear, lambda *args: partial(F.linear, weight=args[0], bias=args[1])
        ),
        partial(apply_linear, Int8Linear),
        linear_inputs,
        LINEAR,
        # half a step of rounding on both sides: of 127 steps for weights, of 127 (7 bits)
        # for inputs; in norm far less than their sum
        {"float32": Tolerance(0.05)},
        devices=("cpu",),
        available=lambda dtype: can_int8(),
    ),
]


ROWS = [  # the cases of each are one test
    pytest.param(twin, precision, device, id=f"{twin.name}, {precision}, {device}")
    for twin in TWINS
    for precision in twin.tolerance
    for device in twin.devices
    if device in devices_at_hand()
    and (device != "mps" or precision in ("float32", "bfloat16"))
]


@pytest.mark.parametrize("twin, precision, device", ROWS)
def test_the_engine_equals_its_plain_twin(twin, precision, device):
    if not twin.available(DTYPES[precision]):
        pytest.skip("this PyTorch or processor lacks what the engine needs")
    tolerance = twin.tolerance[precision]
    grad = tolerance.gradients is not None
    for name, case in twin.cases.items():
        args = twin.inputs(torch.Generator().manual_seed(0), **case)
        # values that the precision can represent, so that only the computation is rounded
        args = place(place(args, precision, "cpu"), "float64", "cpu")
        exact = results(twin.plain, args, "float64", "cpu", grad)
        plain = results(twin.plain, args, precision, device, grad)
        engine = results(twin.engine, args, precision, device, grad)
        for i, limit in enumerate((tolerance.values, tolerance.gradients)):
            for a, b, right in zip(engine[i], plain[i], exact[i], strict=True):
                assert a.shape == b.shape and a.dtype == b.dtype, name
                assert a.device == b.device, name
                for which, found in (("engine", a), ("plain", b)):
                    off = error(found, right, tolerance.scale)
                    what = f"{which}, {name}, {('value', 'gradient')[i]}: {off:.1e}"
                    assert off <= limit, what


def test_rotary_positions_everywhere():
    "A model with them is the same plain, fused and in its pictures; DECODINGS has the steps."
    seen = []

    def recording(q, k, v, mask):
        seen.append(attention_weights(q, k, mask))
        return attention(q, k, v, mask)

    def make(attend, **change) -> nn.Module:
        torch.manual_seed(0)
        sizes = dict(n_layers=2, d_model=16, d_ff=24, n_heads=4, position="rotary")
        model = build_transformer(
            ModelConfig(**sizes), 20, 0, attention=attend, **change
        )
        return model.eval().requires_grad_(False)

    src, tgt_in = (
        torch.tensor([[5, 6, 7, 8], [9, 4, 3, 0]]),
        torch.tensor([[2, 5], [2, 8]]),
    )
    plain = make(partial(MultiHeadAttention, attend=recording))
    hidden = plain(src, tgt_in)
    maps = attention_maps(plain, src, tgt_in)
    assert torch.equal(maps["encoder"][0], seen[0])
    assert torch.equal(maps["decoder"][1], seen[4])
    # cross-attention compares positions of two sequences, so it has none
    assert all(layer.cross_attn.rotate is None for layer in plain.decoder.layers)
    other = RotaryPosition()
    other.rotate = lambda heads, positions: rotate(heads, 2 * positions)
    faster = make(MultiHeadAttention, position=other)(src, tgt_in)
    assert (hidden - faster).abs().max() > 0.1
    fused = make(FusedMultiHeadAttention)
    torch.testing.assert_close(fused(src, tgt_in), hidden)


def test_maps_of_heads_that_share_keys():
    "Each query head has its own, as it was computed for a group."
    seen = []

    def recording(q, k, v, mask):
        seen.append(attention_weights(q, k, mask).unflatten(2, (2, -1)).flatten(1, 2))
        return attention(q, k, v, mask)

    sizes = dict(n_layers=1, d_model=16, d_ff=24, n_heads=4, n_kv_heads=2)
    attend = partial(MultiHeadAttention, attend=recording)
    torch.manual_seed(0)
    model = build_transformer(ModelConfig(**sizes), 20, 0, attention=attend).eval()
    src, tgt_in = torch.tensor([[5, 6, 7], [9, 4, 0]]), torch.tensor([[2, 5], [2, 8]])
    with torch.no_grad():
        model(src, tgt_in)
    own = [weights.clone() for weights in seen]
    maps = attention_maps(model, src, tgt_in)
    for kind, weights in zip(("encoder", "decoder", "cross"), own, strict=True):
        assert weights.size(1) == 4
        torch.testing.assert_close(maps[kind][0], weights)
