"The live page: its engine gives the numbers, ids and translations of the package, and the page is what the package wrote."

import gzip
import random
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from browser import Browser
from conftest import ROOT
from engine import Engine, Pair
from torch import Tensor, nn

from annotated_transformer import UserError, load
from annotated_transformer.batched_search import search_with
from annotated_transformer.config import ModelConfig, Recipe, TrainConfig
from annotated_transformer.grammar import builtin
from annotated_transformer.heads import ablate_head
from annotated_transformer.live import pack_model, write_live_page
from annotated_transformer.run_folder import PRETRAINED, Run, load_run, pretrained_run
from annotated_transformer.stack import PostNorm
from annotated_transformer.transformer import Transformer, build_transformer
from annotated_transformer.visualize import attention_maps
from annotated_transformer.vocab import Vocab, learn_bpe
from annotated_transformer.weights import pack_weights, unpack_weights

HELD_OUT = builtin(500, seed=1, split="test")
# Sums of a few hundred products in fp32 here and in doubles there differ by about 1e-5.
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def browser(chromium, tmp_path_factory):
    with Browser(chromium, tmp_path_factory.mktemp("profile")) as browser:
        browser.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )
        yield browser


@pytest.fixture(scope="module")
def demo() -> Run:
    return load_run(pretrained_run(Path("demo")))


def plain_model(run: Run, weights: dict[str, Tensor] | None = None) -> Transformer:
    "The model with the plain parts of the lessons, in which each part can be exchanged."
    model = build_transformer(run.recipe.model, len(run.vocab), run.vocab.pad_id)
    model.load_state_dict(weights or run.model.state_dict())
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def odd(demo) -> Run:
    "A model whose sizes are all different, with random weights of every size."
    sizes = ModelConfig(n_layers=3, d_model=24, d_ff=40, n_heads=3, d_k=5, d_v=7)
    vocab = learn_bpe([s.en for s in HELD_OUT], n_pieces=400)
    torch.manual_seed(0)
    model = build_transformer(sizes, len(vocab), vocab.pad_id).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.4)
    train = TrainConfig(n_pieces=400, max_len=100)
    return Run(model.requires_grad_(False), vocab, Recipe(sizes, train), {})


@pytest.fixture(scope="module")
def engine(browser, demo, odd, tmp_path_factory) -> Engine:
    engine = Engine(browser, tmp_path_factory.mktemp("engine"))
    engine.add("demo", pack_model(demo))
    engine.add("full", pack_model(demo, "fp32"))
    engine.add("odd", pack_model(odd, "fp32"))
    return engine


def pairs_of(vocab: Vocab, n: int) -> list[Pair]:
    return [
        ([*vocab.encode(s.en), vocab.eos_id], [vocab.bos_id, *vocab.encode(s.de)])
        for s in HELD_OUT[:n]
    ]


def logits_of(model: Transformer, pair: Pair) -> Tensor:
    src, tgt_in = (torch.tensor([ids]) for ids in pair)
    return model.embedding.logits(model(src, tgt_in))[0]


def assert_close(found: list[Tensor], model: Transformer, pairs: list[Pair]) -> None:
    "The logits of the page are those of PyTorch."
    assert len(found) == len(pairs)
    for logits, pair in zip(found, pairs, strict=True):
        torch.testing.assert_close(
            logits, logits_of(model, pair), rtol=0, atol=TOLERANCE
        )


# --- the numbers


@pytest.mark.parametrize("n", [40])
def test_logits_are_pytorchs(engine, demo, n):
    "With weights in 8 bits, and with the same weights in fp32."
    pairs, model = pairs_of(demo.vocab, n), plain_model(demo)
    assert_close(engine.logits("demo", pairs), model, pairs)
    assert_close(engine.logits("full", pairs[:10]), model, pairs[:10])


def test_logits_of_a_model_whose_sizes_differ(engine, odd):
    pairs, model = pairs_of(odd.vocab, 8), plain_model(odd)
    assert_close(engine.logits("odd", pairs), model, pairs)
    engine.add("packed", pack_model(odd))
    weights = unpack_weights(pack_weights(dict(odd.model.state_dict())))
    packed = plain_model(odd, weights)
    assert_close(engine.logits("packed", pairs), packed, pairs)
    rounding = (logits_of(packed, pairs[0]) - logits_of(model, pairs[0])).abs().max()
    assert rounding > 100 * TOLERANCE


def test_cached_steps_are_the_whole_prefix(engine, demo):
    pairs = pairs_of(demo.vocab, 3)
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


HEADS = [
    f"{path}:{head}"
    for path in (
        *(f"encoder.{i}.self" for i in range(2)),
        *(f"decoder.{i}.{kind}" for i in range(2) for kind in ("self", "cross")),
    )
    for head in range(4)
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
    pairs, model = pairs_of(demo.vocab, 2), plain_model(demo)
    unchanged = [logits_of(model, pair) for pair in pairs]
    for switches in SWITCHED:
        found = engine.logits("demo", pairs, switches)
        for logits, pair, before in zip(found, pairs, unchanged, strict=True):
            wanted = switched_logits(model, pair, switches)
            torch.testing.assert_close(logits, wanted, rtol=0, atol=TOLERANCE)
            assert (wanted - before).abs().max() > 10 * TOLERANCE, switches
    for logits, pair in zip(unchanged, pairs, strict=True):
        torch.testing.assert_close(logits, logits_of(model, pair))


def test_without_positions_the_order_of_the_words_is_lost(engine, demo):
    src, tgt = pairs_of(demo.vocab, 1)[0]
    shuffled = random.Random(0).sample(src, len(src))
    assert shuffled != src
    off = {"positions": False}
    one, other = engine.logits("demo", [(src, tgt), (shuffled, tgt)], off)
    torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


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
    for kind, path in (
        ("encoder", "encoder.{}.self"),
        ("decoder", "decoder.{}.self"),
        ("cross", "decoder.{}.cross"),
    ):
        for i in range(run.recipe.model.n_layers):
            of = lambda what, at=path.format(i): f"{at}.{what}"
            wanted[of("weights")] = maps[kind][i, 0]
            q, k, v = (wanted[of(w)] for w in "qkv")
            wanted[of("scores")] = q @ k.transpose(-2, -1)
            wanted[of("scaled")] = wanted[of("scores")] / q.size(-1) ** 0.5
            later = torch.ones(q.size(1), k.size(1)).triu(1).bool()
            masked = wanted[of("scaled")].masked_fill(later, float("-inf"))
            wanted[of("masked")] = masked if kind == "decoder" else wanted[of("scaled")]
            wanted[of("mixed")] = maps[kind][i, 0] @ v
    assert trace.keys() == wanted.keys()
    for path, found in trace.items():
        # scores of the random model are in the hundreds
        torch.testing.assert_close(found, wanted[path], rtol=1e-5, atol=TOLERANCE)


# --- translations


def translations(engine: Engine, name: str, run: Run, n: int, **options) -> list[str]:
    rows = [pair[0] for pair in pairs_of(run.vocab, n)]
    found = engine.search(name, rows, options)
    return [run.vocab.decode(one["hypotheses"][0]["ids"]) for one in found]


@pytest.mark.parametrize("n", [40])
def test_translations_are_the_packages(engine, demo, n):
    sentences = [s.en for s in HELD_OUT[:n]]
    for options, search in (
        ({}, None),
        ({"beamSize": 1}, search_with(1)),
        ({"beamSize": 3, "alpha": 0}, search_with(3, 0.0)),
    ):
        translator = load(pretrained_run(Path("demo")), search=search)
        found = translations(engine, "demo", demo, n, **options)
        assert found == translator.translate(sentences), options


def test_scores_are_the_packages(engine, demo):
    "Score, log-probability, and the log-probabilities of the tokens."
    rows = [pair[0] for pair in pairs_of(demo.vocab, 10)]
    translator = load(pretrained_run(Path("demo")))
    for row, found in zip(rows, engine.search("demo", rows, {}), strict=True):
        (wanted,), best = translator.search_ids([row])[0], found["hypotheses"][0]
        assert best["ids"] == wanted.ids
        assert best["score"] == pytest.approx(wanted.score, abs=TOLERANCE)
        assert best["logProb"] == pytest.approx(wanted.log_prob, abs=TOLERANCE)
        assert sum(best["tokenLogProbs"]) == pytest.approx(best["logProb"], abs=1e-6)
        assert len(best["tokenLogProbs"]) == len(best["ids"]) + 1


def test_random_model_reaches_the_length_limit(engine, odd):
    "A hypothesis that never ends is cut off where the package cuts it off."
    from annotated_transformer.translate import Translator

    rows = [pair[0] for pair in pairs_of(odd.vocab, 2)]
    translator = Translator(odd.model, odd.vocab)
    for row, found in zip(rows, engine.search("odd", rows, {}), strict=True):
        best = found["hypotheses"][0]
        assert best["ids"] == translator.search_ids([row])[0][0].ids


@pytest.mark.parametrize("beam_size", [1, 2, 4, 8])
def test_tree_leads_to_the_hypotheses(engine, demo, beam_size):
    "Each hypothesis is a path of candidates; what is kept is as many as fit."
    row = pairs_of(demo.vocab, 1)[0][0]
    (found,) = engine.search("demo", [row], {"beamSize": beam_size})
    tree = found["tree"]
    for step, candidates in enumerate(tree):
        assert len(candidates) <= 2 * beam_size
        log_probs = [one["logProb"] for one in candidates]
        assert log_probs == sorted(log_probs, reverse=True)
        assert sum(one["why"] == "kept" for one in candidates) == beam_size
        for one in candidates:
            parent = tree[step - 1][one["parent"]] if step else None
            assert parent["why"] == "kept" if step else one["parent"] == -1
            before = parent["logProb"] if parent else 0
            assert one["logProb"] == pytest.approx(before + one["tokenLogProb"])
            assert (one["why"] == "finished") <= (one["id"] == demo.vocab.eos_id)
    scores = [one["score"] for one in found["hypotheses"]]
    assert scores == sorted(scores, reverse=True) and scores
    for hypothesis in found["hypotheses"]:
        step, index = hypothesis["end"]["step"], hypothesis["end"]["index"]
        path = []
        while step >= 0:
            path.insert(0, tree[step][index])
            step, index = step - 1, tree[step][index]["parent"]
        assert [one["id"] for one in path] == [*hypothesis["ids"], demo.vocab.eos_id]
        logs = [one["tokenLogProb"] for one in path]
        assert logs == hypothesis["tokenLogProbs"]


def test_temperature_sharpens_the_probabilities(engine, demo):
    row = pairs_of(demo.vocab, 1)[0][0]
    cold, one, hot = (
        engine.search("demo", [row], {"beamSize": 1, "temperature": t})[0]["hypotheses"]
        for t in (0.5, 1, 2)
    )
    assert cold[0]["ids"] == one[0]["ids"] == hot[0]["ids"]
    assert cold[0]["logProb"] > one[0]["logProb"] > hot[0]["logProb"]


# --- token ids


RANGES = (
    (0x20, 0x7E), (0xC0, 0x24F), (0x2581, 0x2581), (0x20, 0x20), (0x0, 0x1F),
    (0x300, 0x36F), (0x4E00, 0x4FFF), (0x1F600, 0x1F64F), (0xFB00, 0xFB06),
    (0x2000, 0x206F), (0xE000, 0xE0FF), (0xFFF0, 0xFFFF), (0x10FFF0, 0x10FFFF),
)  # fmt: skip


def rude_lines(n: int, seed: int = 0) -> list[str]:
    "Lines of all kinds of characters, some of them between words of the grammar."
    rng, lines = random.Random(seed), []
    words = [word for s in HELD_OUT[:50] for word in (s.en + " " + s.de).split()]
    for _ in range(n):
        parts = []
        for _ in range(rng.randint(0, 12)):
            first, last = rng.choice(RANGES)
            sign = chr(rng.randint(first, last))
            parts.append(rng.choice([sign, sign * 2, rng.choice(words), " "]))
        lines.append("".join(parts))
    return lines


def lines_of(n: int) -> list[str]:
    "n lines: a half of the grammar, in both languages, a half of rude ones."
    pairs = builtin(n // 4, seed=2, split="test")
    return [*(s.en for s in pairs), *(s.de for s in pairs), *rude_lines(n - n // 4 * 2)]


@pytest.mark.parametrize("n", [4000])
def test_ids_are_sentencepieces(engine, demo, odd, n):
    lines = lines_of(n)
    for name, vocab in (("demo", demo.vocab), ("odd", odd.vocab)):
        assert engine.ids(name, lines) == [vocab.encode(line) for line in lines]


def test_ids_of_a_larger_vocabulary(engine, demo, data_dir):
    "Multi30k, by a vocabulary of 8,000 tokens."
    lines = []
    for side in ("en", "de"):
        raw = gzip.open(data_dir / f"multi30k/train.{side}.gz").read()
        lines += raw.decode().split("\n")[:5000]
    vocab = learn_bpe(lines, n_pieces=8000)
    from annotated_transformer.live import _pack_vocab

    engine.add("large", pack_model(demo) | {"vocab": _pack_vocab(vocab)})
    lines += rude_lines(1000, seed=1)
    assert engine.ids("large", lines) == [vocab.encode(line) for line in lines]


def test_text_of_ids_is_sentencepieces(engine, demo):
    "Any ids: bytes that are part of no character, special tokens, none."
    rng, n = random.Random(0), len(demo.vocab)
    rows = [[], [2, 3], [0, 1]]
    for _ in range(1500):
        limit = rng.choice([n, 260, 300])  # the first 260: special tokens and bytes
        rows.append([rng.randrange(limit) for _ in range(rng.randint(1, 8))])
    rows += [demo.vocab.encode(line) for line in rude_lines(500)]
    rows += [[4 + byte for byte in "a\ufeffé🙂".encode()]]
    assert engine.texts("demo", rows) == [demo.vocab.decode(ids) for ids in rows]
