"The live page: its engine gives the numbers, ids and translations of the package, and the page is what the package wrote."

import random
import re
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest
import torch
from engine import (
    HELD_OUT,
    Engine,
    Pair,
    lines_of,
    logits_of,
    pairs_of,
    plain_model,
    rude_lines,
)
from torch import Tensor, nn

from annotated_transformer.data.vocab import learn_bpe
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.stack import PostNorm
from annotated_transformer.model.transformer import Transformer, build_transformer
from annotated_transformer.runs.checkpoint import (
    pack_weights,
    unpack_weights,
)
from annotated_transformer.runs.folder import Run
from annotated_transformer.runs.settings import Recipe, get_recipe
from annotated_transformer.show.heads import ablate_head
from annotated_transformer.show.live import pack_model
from annotated_transformer.show.visualize import attention_maps
from annotated_transformer.translating.translate import Translator

# Sums of a few hundred products in fp32 here and in doubles there differ by about 1e-5.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def odd() -> Run:
    "A model whose sizes are all different, with random weights of every size."
    sizes = ModelConfig(n_layers=3, d_model=24, d_ff=40, n_heads=3, d_k=5, d_v=7)
    vocab = learn_bpe([s.en for s in HELD_OUT], vocab_size=400)
    torch.manual_seed(0)
    model = build_transformer(sizes, len(vocab), vocab.pad_id).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.4)
    train = replace(get_recipe("base").train, vocab_size=400, max_len=100)
    return Run(model.requires_grad_(False), vocab, Recipe(sizes, train), {})


@pytest.fixture(scope="module")
def demo(pretrained) -> Run:
    return pretrained


@pytest.fixture(scope="module")
def engine(offline, demo, odd, tmp_path_factory) -> Engine:
    engine = Engine(offline, tmp_path_factory.mktemp("engine"))
    engine.add("demo", pack_model(demo))
    engine.add("odd", pack_model(odd, "fp32"))
    return engine


def assert_close(found: list[Tensor], model: Transformer, pairs: list[Pair]) -> None:
    "The logits of the page are those of PyTorch."
    wanted = [logits_of(model, pair) for pair in pairs]
    torch.testing.assert_close(found, wanted, rtol=0, atol=TOLERANCE)


# --- the numbers


def test_logits_of_a_model_whose_sizes_differ(engine, odd):
    pairs, model = pairs_of(odd.vocab, 3), plain_model(odd)
    assert_close(engine.logits("odd", pairs), model, pairs)
    engine.add("packed", pack_model(odd))
    weights = unpack_weights(pack_weights(dict(odd.model.state_dict())))
    packed = plain_model(odd, weights)
    assert_close(engine.logits("packed", pairs), packed, pairs)
    rounding = (logits_of(packed, pairs[0]) - logits_of(model, pairs[0])).abs().max()
    assert rounding > 100 * TOLERANCE


def test_cached_steps_are_the_whole_prefix(engine, demo):
    pairs = pairs_of(demo.vocab, 1)
    for switches in ({}, {"causal": False}, {"positions": False, "residual": False}):
        whole = engine.logits("demo", pairs, switches)
        steps = engine.logits("demo", pairs, switches, by="stepsOf")
        for one, other in zip(whole, steps, strict=True):
            if "causal" in switches:  # earlier rows of the whole see later positions
                one, other = one[-1], other[-1]
            torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


# --- every switch is the same change in PyTorch


@contextmanager
def exchanged(module: nn.Module, name: str, value):
    "Inside the block, an attribute of a module is another; then it is as before."
    had = name in vars(module)
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before) if had else delattr(module, name)


def unscaled(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ value


@contextmanager
def switched(model: Transformer, switches: dict):
    "The model with the same parts off; causal=False is for the caller."
    with ExitStack() as stack:
        change = lambda *args: stack.enter_context(exchanged(*args))
        for module in list(model.modules()):
            if not switches.get("scale", True) and hasattr(module, "attend"):
                change(module, "attend", unscaled)
            if not switches.get("residual", True) and isinstance(module, PostNorm):
                forward = lambda x, sublayer, norm=module.norm: norm(sublayer(x))
                change(module, "forward", forward)
        if not switches.get("positions", True):
            # of a module, so not in vars
            position = model.position
            model.position = nn.Identity()
            stack.callback(setattr, model, "position", position)
        for name in switches.get("headsOff", []):
            path, head = name.split(":")
            stack_, layer, kind = path.split(".")
            kind = stack_ if kind == "self" else kind
            stack.enter_context(ablate_head(model, kind, int(layer), int(head)))
        yield


def switched_logits(model: Transformer, pair: Pair, switches: dict) -> Tensor:
    with switched(model, switches):
        if switches.get("causal", True):
            return logits_of(model, pair)
        src, tgt_in = (torch.tensor([ids]) for ids in pair)
        memory, src_mask = model.encode(src)
        x = model.decoder(model._embed(tgt_in), memory, None, src_mask)
        return model.embedding.logits(x)[0]


ATTENTIONS = ("encoder.{}.self", "decoder.{}.self", "decoder.{}.cross")
HEADS = [
    f"{x.format(i)}:{head}" for x in ATTENTIONS for i in (0, 1) for head in range(4)
]
SWITCHED = [
    {"scale": False},
    {"causal": False},
    {"positions": False},
    {"residual": False},
    *({"headsOff": [head]} for head in HEADS),
    {"headsOff": HEADS[::3]},
    {"scale": False, "causal": False, "headsOff": HEADS[:2]},
    {"positions": False, "residual": False},
]


def test_switches_are_the_same_change_in_pytorch(engine, demo):
    pairs, model = pairs_of(demo.vocab, 1), plain_model(demo)
    unchanged = [logits_of(model, pair) for pair in pairs]
    for switches in SWITCHED:
        found = engine.logits("demo", pairs, switches)
        for logits, pair, before in zip(found, pairs, unchanged, strict=True):
            wanted = switched_logits(model, pair, switches)
            torch.testing.assert_close(logits, wanted, rtol=0, atol=TOLERANCE)
            assert (wanted - before).abs().max() > 10 * TOLERANCE, switches
    for logits, pair in zip(unchanged, pairs, strict=True):
        torch.testing.assert_close(logits, logits_of(model, pair))


# --- every tensor on the way


def recorded_by_hooks(model: Transformer, pair: Pair) -> dict[str, Tensor]:
    "Inputs and outputs of PyTorch's modules under the paths of the trace."
    found: dict[str, Tensor] = {}

    def record(module: nn.Module, path: str, take) -> None:
        hook = lambda module, args, output: found.update({path: take(args, output)})
        hooks.append(module.register_forward_hook(hook))

    hooks: list = []
    output = lambda args, output: output[0]
    entering = lambda args, output: args[0][0]
    for name, kinds in (("encoder", ["self"]), ("decoder", ["self", "cross"])):
        for i, layer in enumerate(getattr(model, name).layers):
            for number, kind in enumerate(kinds):
                attn, path = getattr(layer, f"{kind}_attn"), f"{name}.{i}.{kind}"
                split = lambda args, x, h=attn.n_heads: (
                    x[0].unflatten(-1, (h, -1)).transpose(0, 1)
                )
                for w in "qkv":
                    record(getattr(attn, f"w_{w}"), f"{path}.{w}", split)
                record(attn.w_o, f"{path}.merged", entering)
                record(attn, f"{path}.output", output)
                residual = layer.residuals[number].norm
                record(residual, f"{path}.residual", entering)
                record(residual, f"{path}.norm", output)
            path = f"{name}.{i}.feedForward"
            record(layer.feed_forward.w_2, f"{path}.hidden", entering)
            record(layer.feed_forward, f"{path}.output", output)
            record(layer.residuals[-1].norm, f"{path}.residual", entering)
            record(layer.residuals[-1].norm, f"{path}.norm", output)
    logits = logits_of(model, pair)
    for hook in hooks:
        hook.remove()
    found["decoder.logits"] = logits
    found["decoder.logProbs"] = logits.log_softmax(-1)
    for stack, ids in zip(("encoder", "decoder"), pair, strict=True):
        rows = model.embedding(torch.tensor([ids]))
        found[f"{stack}.embedding"] = rows[0]
        found[f"{stack}.input"] = model.position(rows)[0]
        found[f"{stack}.position"] = model.position(torch.zeros_like(rows))[0]
    return found


@pytest.mark.parametrize("name", ["demo", "odd"])
def test_trace_is_what_pytorch_computes(engine, name, request):
    run = request.getfixturevalue(name)
    pair, model = pairs_of(run.vocab, 1)[0], plain_model(run)
    trace, wanted = engine.trace(name, pair), recorded_by_hooks(model, pair)
    maps = attention_maps(model, *(torch.tensor([ids]) for ids in pair))
    for kind, path in zip(("encoder", "decoder", "cross"), ATTENTIONS, strict=True):
        for i in range(run.recipe.model.n_layers):
            at = path.format(i)
            q, k, v = (wanted[f"{at}.{w}"] for w in "qkv")
            scores = q @ k.transpose(-2, -1)
            scaled = scores / q.size(-1) ** 0.5
            later = torch.ones(q.size(1), k.size(1)).triu(1).bool()
            masked = scaled.masked_fill(later, float("-inf"))
            wanted |= {
                f"{at}.scores": scores,
                f"{at}.scaled": scaled,
                f"{at}.masked": masked if kind == "decoder" else scaled,
                f"{at}.weights": maps[kind][i, 0],
                f"{at}.mixed": maps[kind][i, 0] @ v,
            }
    assert trace.keys() == wanted.keys()
    for path, found in trace.items():
        # scores of the random model are in the hundreds
        torch.testing.assert_close(found, wanted[path], rtol=1e-5, atol=TOLERANCE)


# --- translations


def test_random_model_reaches_the_length_limit(engine, odd):
    "A hypothesis that never ends is cut off where the package cuts it off."
    rows = [pair[0] for pair in pairs_of(odd.vocab, 1)]
    translator = Translator(odd.model, odd.vocab)
    for row, found in zip(rows, engine.search("odd", rows, {}), strict=True):
        best = found["hypotheses"][0]
        assert best["ids"] == translator.search_ids([row])[0][0].ids


# --- token ids


def test_ids_are_sentencepieces(engine, demo, odd):
    marks = re.compile("[\u0300-\u036f]{2}")  # the page puts marks in order
    lines = [line for line in lines_of(1500) if not marks.search(line)]
    for name, vocab in (("demo", demo.vocab), ("odd", odd.vocab)):
        assert engine.ids(name, lines) == [vocab.encode(line) for line in lines]


def test_text_of_ids_is_sentencepieces(engine, demo):
    "Any ids: bytes that are part of no character, special tokens, none."
    rng, n = random.Random(0), len(demo.vocab)
    rows = [[], [2, 3], [0, 1]]
    for _ in range(500):
        limit = rng.choice([n, 260, 300])  # the first 260: special tokens and bytes
        rows.append([rng.randrange(limit) for _ in range(rng.randint(1, 8))])
    rows += [demo.vocab.encode(line) for line in rude_lines(200)]
    rows += [[4 + byte for byte in "a\ufeffé🙂".encode()]]
    assert engine.texts("demo", rows) == [demo.vocab.decode(ids) for ids in rows]
