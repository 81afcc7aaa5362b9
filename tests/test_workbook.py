"The workbook's checks: the reference passes, each known mistake is diagnosed as itself, nothing else passes."

import contextlib
import inspect
import io
import json
import linecache
import re
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import matplotlib
import pytest
import torch
from cells import code_of, joined, slug
from conftest import ROOT

from annotated_transformer import UserError
from annotated_transformer.experiments import workbook
from annotated_transformer.experiments.diagnosis import (
    NOT_KNOWN,
    Raised,
    diagnose,
    difference,
    outcome,
    same,
)
from annotated_transformer.experiments.workbook import (
    TASKS,
    by_hand,
    grade,
    grade_lines,
    verdict_on,
)


@pytest.fixture(autouse=True)
def called_from_here(monkeypatch):
    "They read the names of whoever calls them, which is the type checker otherwise."
    for name in ("check", "score"):
        monkeypatch.setattr(workbook, name, inspect.unwrap(getattr(workbook, name)))


every_task = pytest.mark.parametrize("name", TASKS)
MISTAKES = [(name, m.name) for name, task in TASKS.items() for m in task.mistakes]


@every_task
def test_reference_and_version_by_hand_are_right(name, unchecked):
    task = TASKS[name]
    for function in (task.reference, by_hand(name)):
        assert diagnose(task, function).state == "right"


@pytest.mark.parametrize("name, mistake", MISTAKES)
def test_each_mistake_is_diagnosed_as_itself(name, mistake, unchecked):
    found = diagnose(TASKS[name], TASKS[name].with_mistakes(mistake))
    assert (found.state, found.mistakes) == ("known", (mistake,)), found.text


@every_task
def test_a_mistake_does_not_only_raise(name, unchecked):
    "Else any function that raises this type of exception would be taken for it."
    task = TASKS[name]
    for mistake in task.mistakes:
        function = task.with_mistakes(mistake.name)
        found = [outcome(task, function, args) for args in task.cases]
        assert not all(isinstance(x, Raised) for x in found), mistake.name


@every_task
def test_mistakes_in_pairs_are_refused(name, unchecked):
    "By the numbers; which of two mistakes is named is decided by what they have in common."
    task = TASKS[name]
    for one, two in combinations([m.name for m in task.mistakes], 2):
        function = task.with_mistakes(one, two)
        found = (outcome(task, function, args) for args in task.cases)
        equal = (same(a, b, task.tolerance) for a, b in zip(found, task.expected))
        assert not all(equal), (one, two)


@every_task
def test_what_nobody_wrote_is_missing_and_nonsense_is_unknown(name, unchecked):
    task = TASKS[name]
    assert diagnose(task, None).state == "missing"
    assert diagnose(task, lambda *args: None).state == "missing"
    for nonsense in (lambda *args: "text", lambda *args: 1 / 0):
        assert diagnose(task, nonsense).state == "unknown"
    raised = diagnose(task, lambda *args: 1 / 0).text
    assert "ZeroDivisionError: division by zero" in raised


PAIRS = [
    ("attention", "no_scale", "over_queries"),
    ("softmax", "second_axis", "overflow"),
    ("target_mask", "later", "no_padding"),
    ("feed_forward", "no_b_1", "no_b_2"),
    ("add_and_norm", "unbiased", "epsilon_outside"),
    ("positional_encoding", "exponent_doubled", "each_feature"),
]


@pytest.mark.parametrize("name, one, two", PAIRS)
def test_two_mistakes_at_once_are_named(name, one, two, unchecked):
    found = diagnose(TASKS[name], TASKS[name].with_mistakes(one, two))
    assert found.state == "pair" and {*found.mistakes} == {one, two}


def test_a_check_leaves_the_random_numbers_alone(unchecked):
    torch.manual_seed(0)
    first = torch.rand(1)
    torch.manual_seed(0)
    diagnose(TASKS["transformer"], TASKS["transformer"].reference)
    assert torch.equal(first, torch.rand(1))


# ---- answers as students write them

RIGHT = """
def softmax(scores):
    return scores.softmax(dim=-1)

def attention(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    return softmax(scores.masked_fill(~mask, -math.inf)) @ value

def padding_mask(ids, pad_id):
    return (ids != pad_id)[:, None, None]

def target_mask(ids, pad_id):
    t = ids.size(1)
    return padding_mask(ids, pad_id) & torch.ones(t, t, dtype=torch.bool).tril()

def split_heads(x, n_heads):
    b, n, d = x.shape
    return x.view(b, n, n_heads, d // n_heads).transpose(1, 2)

def merge_heads(x):
    return x.transpose(1, 2).flatten(2)

def multi_head(query, key, value, mask, weights, n_heads):
    q = split_heads(query @ weights.w_q, n_heads)
    k = split_heads(key @ weights.w_k, n_heads)
    v = split_heads(value @ weights.w_v, n_heads)
    return merge_heads(attention(q, k, v, mask)) @ weights.w_o

def feed_forward(x, weights):
    return torch.relu(x @ weights.w_1 + weights.b_1) @ weights.w_2 + weights.b_2

def add_and_norm(x, sublayer_out, weights):
    return F.layer_norm(x + sublayer_out, x.shape[-1:], *weights)

def positional_encoding(n, d_model):
    angles = torch.arange(n)[:, None] / 10000 ** (torch.arange(0, d_model, 2) / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)

def encoder_layer(x, src_mask, weights, n_heads):
    a = multi_head(x, x, x, src_mask, weights.self_attn, n_heads)
    y = add_and_norm(x, a, weights.norm_1)
    return add_and_norm(y, feed_forward(y, weights.feed_forward), weights.norm_2)

def decoder_layer(x, memory, tgt_mask, src_mask, weights, n_heads):
    a = multi_head(x, x, x, tgt_mask, weights.self_attn, n_heads)
    y = add_and_norm(x, a, weights.norm_1)
    c = multi_head(y, memory, memory, src_mask, weights.cross_attn, n_heads)
    z = add_and_norm(y, c, weights.norm_2)
    return add_and_norm(z, feed_forward(z, weights.feed_forward), weights.norm_3)

def transformer(src, tgt_in, weights, n_heads, pad_id):
    d = weights.embedding.size(1)
    def embed(ids):
        return weights.embedding[ids] * d**0.5 + positional_encoding(ids.size(1), d)
    src_mask, tgt_mask = padding_mask(src, pad_id), target_mask(tgt_in, pad_id)
    x, y = embed(src), embed(tgt_in)
    for layer in weights.encoder:
        x = encoder_layer(x, src_mask, layer, n_heads)
    for layer in weights.decoder:
        y = decoder_layer(y, x, tgt_mask, src_mask, layer, n_heads)
    return y @ weights.embedding.T

def shift_right(sentences, pad_id, bos_id, eos_id):
    n = max(map(len, sentences))
    rows = [[bos_id, *s, eos_id] + [pad_id] * (n - len(s)) for s in sentences]
    ids = torch.tensor(rows)
    return ids[:, :-1], ids[:, 1:]

def smoothed_loss(logits, tgt_out, pad_id, label_smoothing):
    options = {"ignore_index": pad_id, "label_smoothing": label_smoothing}
    return F.cross_entropy(logits.transpose(1, 2), tgt_out, **options)

def learning_rate(step, d_model, warmup_steps):
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)

def training_step(loss_of, optimizer, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    optimizer.step()
    return loss.item()

def greedy_search(step, bos_id, eos_id, max_len):
    prefix = [bos_id]
    for _ in range(max_len):
        token = int(step(prefix)[-1].argmax())
        if token == eos_id:
            break
        prefix.append(token)
    return prefix[1:]

def beam_search(step, bos_id, eos_id, max_len, beam_size, alpha):
    live, finished = [(0.0, [bos_id])], []
    for _ in range(max_len):
        new = []
        for p, prefix in live:
            more = step(prefix)[-1].log_softmax(dim=-1).tolist()
            new += [(p + q, prefix + [t]) for t, q in enumerate(more)]
        new.sort(reverse=True)
        live = [h for h in new[:beam_size] if h[1][-1] != eos_id]
        finished += [h for h in new[:beam_size] if h[1][-1] == eos_id]
    score = lambda h: h[0] / ((5 + len(h[1]) - 1) / 6) ** alpha
    return [t for t in max(finished + live, key=score)[1][1:] if t != eos_id]
"""
FUNCTIONS = {
    name: f"def {name}({body}"
    for name, body in re.findall(r"def (\w+)\((.*?)(?=\ndef |\Z)", RIGHT, re.DOTALL)
}


def space_with(name: str = "", old: str = "", new: str = "") -> dict:
    "A notebook's names, in which `old` in one of the functions is replaced by `new`."
    space = {"__name__": "__main__"}
    exec("import math, torch\nimport torch.nn.functional as F\n" + RIGHT, space)
    if name:
        assert old in FUNCTIONS[name], old
        define(space, FUNCTIONS[name].replace(old, new))
    return space


def define(space: dict, code: str) -> None:
    "As a cell of a notebook does it, with lines that an exception can show."
    cell = f"<cell {len(linecache.cache)}>"
    linecache.cache[cell] = len(code), None, code.splitlines(True), cell
    exec(compile(code, cell, "exec"), space)


@every_task
def test_answers_of_students_are_right(name, unchecked):
    "Which call each other, as in the notebook; the references do not."
    assert verdict_on(name, space_with()).state == "right"


STRIPS = "return [t for t in max(finished + live, key=score)[1][1:] if t != eos_id]"
KEEPS = "live = [h for h in new[:beam_size] if h[1][-1] != eos_id]"
AFTER_KEEPS = FUNCTIONS["beam_search"].partition(KEEPS)[2].rstrip()
VARIANTS = {
    "others take the places": (
        KEEPS,
        KEEPS.replace("[:beam_size]", "") + "[:beam_size]",
    ),
    "ends when nothing is live": (KEEPS, f"if not live: break\n        {KEEPS}"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_beam_search_are_right(variant, unchecked):
    space = space_with("beam_search", *VARIANTS[variant])
    assert verdict_on("beam_search", space).state == "right"


def test_finished_hypotheses_may_compete_for_the_beam(unchecked):
    space = space_with()
    define(
        space,
        """
def beam_search(step, bos_id, eos_id, max_len, beam_size, alpha):
    beam = [(0.0, [bos_id])]
    for _ in range(max_len):
        new = [h for h in beam if h[1][-1] == eos_id]
        for p, prefix in beam:
            if prefix[-1] != eos_id:
                more = step(prefix)[-1].log_softmax(dim=-1).tolist()
                new += [(p + q, prefix + [t]) for t, q in enumerate(more)]
        beam = sorted(new, reverse=True)[:beam_size]
    score = lambda h: h[0] / ((5 + len(h[1]) - 1) / 6) ** alpha
    return [t for t in max(beam, key=score)[1][1:] if t != eos_id]
""",
    )
    assert verdict_on("beam_search", space).state == "right"


IN_PLACE = [
    (
        "softmax",
        "return scores",
        "scores -= scores.amax(-1, keepdim=True)\n    return scores",
    ),
    (
        "attention",
        "scores =",
        "query /= 1.5\n    query *= 1.5\n    mask.logical_not_()\n    mask = ~mask\n    scores =",
    ),
    ("multi_head", "q = ", "weights.w_q.mul_(2).div_(2).add_(1e-6)\n    q = "),
    (
        "add_and_norm",
        "return F.layer_norm(x + sublayer_out",
        "x += sublayer_out\n    return F.layer_norm(x",
    ),
    (
        "shift_right",
        "n = ",
        "sentences = [s.append(0) or s[:-1] for s in sentences]\n    n = ",
    ),
    (
        "smoothed_loss",
        "options =",
        "tgt_out[tgt_out == pad_id] = pad_id = -100\n    options =",
    ),
    ("padding_mask", "return", "ids.add_(1)\n    pad_id += 1\n    return"),
]


@pytest.mark.parametrize("name, old, new", IN_PLACE, ids=[x[0] for x in IN_PLACE])
def test_a_function_that_changes_its_arguments_is_refused(name, old, new, unchecked):
    found = verdict_on(name, space_with(name, old, new))
    assert found.mistakes == ("in_place",) and "in place" in found.text


NO_GRADIENT = [
    ("softmax", "scores.softmax", "scores.detach().softmax", "scores"),
    ("attention", "query @", "query.detach() @", "query"),
    ("feed_forward", "+ weights.b_2", "+ weights.b_2.data", "weights"),
    (
        "decoder_layer",
        "c = multi_head(y, memory",
        "memory = memory.detach()\n    c = multi_head(y, memory",
        "memory",
    ),
    (
        "smoothed_loss",
        "return F",
        "logits = torch.tensor(logits.tolist())\n    return F",
        "logits",
    ),
    ("transformer", "x, y = embed(src)", "x, y = embed(src).detach()", "weights"),
]


@pytest.mark.parametrize("name, old, new, lost", NO_GRADIENT)
def test_a_function_without_a_gradient_is_refused(name, old, new, lost, unchecked):
    found = verdict_on(name, space_with(name, old, new))
    assert found.mistakes == ("no_gradient",) and f"`{lost}`" in found.text


def test_what_backward_cannot_follow_is_refused(unchecked):
    space = space_with()
    lines = "e = scores.exp()", "e /= e.sum(-1, keepdim=True)", "return e.clone()"
    define(space, "def softmax(scores):\n    " + "\n    ".join(lines))
    # finite scores only, as this softmax overflows
    task = replace(TASKS["softmax"], inputs=lambda rng: [(torch.randn(2, 3),)])
    found = diagnose(task, space["softmax"])
    assert found.mistakes == ("no_gradient",) and "in place" in found.text


# what is replaced, by what, and what its check says; no known mistake of these
CLUES = [
    ("softmax", "scores.softmax(dim=-1)", "2 * scores.softmax(dim=-1)", "do not sum to 1"),
    ("softmax", "scores.softmax(dim=-1)", "scores.double().softmax(dim=-1)", "float64, they should be float32"),
    ("softmax", "scores.softmax(dim=-1)", "scores.softmax(dim=-1) if len(scores) == 1 else None", "one path"),
    ("attention", "scores =", "scores = torch.rand(1) *", "two calls with the same input"),
    ("attention", "key.transpose(-2, -1)", "key.transpose(1, 2)", "in the line  scores = query @ key.transpose(1, 2)"),
    ("target_mask", "dtype=torch.bool", "dtype=torch.float", "has to be boolean"),
    ("target_mask", "return padding_mask(ids, pad_id) &", "return padding_mask(ids, pad_id) and", "& | ~"),
    ("split_heads", "d // n_heads", "d / n_heads", "use //"),
    ("split_heads", ".transpose(1, 2)", ".permute(3, 0, 1, 2)", "with the axes in another order, its numbers are right"),
    ("merge_heads", ".flatten(2)", ".flatten(1)", "its numbers and their order are right"),
    ("merge_heads", ".flatten(2)", ".flatten(2).flip(2)", "in another order"),
    ("multi_head", "key @ weights.w_k", "key @ weights.w_q", "`x` is `key` @ `weights.w_q`: it should be `key` @ `weights.w_k`"),
    ("multi_head", "query @ weights.w_q", "query * weights.w_q", "a matrix product is @"),
    ("feed_forward", "torch.relu(x", "torch.max(0, x", "relu for max(0, x)"),
    ("feed_forward", "torch.relu(x", "torch.maximum(0, x", "relu for max(0, x)"),
    ("attention", "math.sqrt(", "torch.sqrt(", "for a number use those of math"),
    ("learning_rate", "return", "return torch.exp(0.5) *", "for a number use those of math"),
    ("attention", "key.transpose(-2, -1)", "key.transpose()", "transpose swaps two axes"),
    ("split_heads", ".transpose(1, 2)", ".transpose(0, 2, 1, 3)", "permute takes the whole order"),
    ("attention", "key.transpose(-2, -1)", "key.T", ".mT swaps the last two"),
    ("shift_right", "torch.tensor(rows)", "torch.zeros(len(rows), n + 2).long()\n    ids[:] = rows", "torch.tensor(…)"),
    ("attention", "math.sqrt(", "np.sqrt(", "use torch or math"),
    ("smoothed_loss", "options =", "logits.gather(-1, tgt_out)\n    options =", "[..., None]"),
    ("training_step", 'group["lr"]', "group.lr", 'set group["lr"]'),
    ("training_step", 'group["lr"]', 'optimizer.param_groups["lr"]', 'set group["lr"]'),
    ("target_mask", "padding_mask(ids, pad_id)", "(torch.arange(t) < (ids[0] != pad_id).sum())", "along axis 0 (of 4): index 0 is right, 1 is wrong"),
    ("positional_encoding", "angles.cos()", "0 * angles", "along axis 1 (of 2): indices 0 and 2 are right, 1 and 3 are wrong"),
    ("positional_encoding", "10000 ** (", "math.e ** (4 * ", "along axis 1 (of 2): indices 0 and 1 are right, 2 and 3 are wrong"),
    ("positional_encoding", "return", "angles += angles > 60\n    return", "6, 7, … are right, 61, 62, 63, 64, 65, 66, 67, 68, … are wrong"),
    ("encoder_layer", "feed_forward(y,", "feed_forward(x,", "reads the input of the layer"),
    ("encoder_layer", "add_and_norm(x, a,", "add_and_norm(a, a,", "`x` is the result of call 1 of `multi_head`: it should be `x`"),
    ("decoder_layer", "src_mask, weights.cross", "tgt_mask, weights.cross", "`mask` is `tgt_mask`: it should be `src_mask`"),
    ("decoder_layer", "weights.norm_3", "weights.norm_2", "in call 3 of `add_and_norm`, `weights` is `weights.norm_2`"),
    ("decoder_layer", "add_and_norm(y, c", "add_and_norm(memory, c", "`x` is `memory`: it should be the result of call 1 of `add_and_norm`"),
    ("decoder_layer", "multi_head(y, mem", "multi_head(x, mem", "`query` is `x`: it should be the result of call 1"),
    ("decoder_layer", "add_and_norm(z,", "add_and_norm(x,", "in call 3 of `add_and_norm`, `x` is `x`"),
    ("decoder_layer", "a = multi_head(x, x, x,", "a = (lambda *args: x)(x, x, x,", "it calls `multi_head` once, it should call it 2 times"),
    ("transformer", "x = encoder_layer(x,", "memory = encoder_layer(x,", "decoder attends to the embeddings"),
    ("transformer", "y = decoder_layer(y,", "y = decoder_layer(embed(tgt_in),", "it should be the result of call 1 of `decoder_layer`"),
    ("transformer", "encoder_layer(x, src_mask", "encoder_layer(x, target_mask(src, pad_id)", "in call 1 of `encoder_layer`, `src_mask` "),
    ("shift_right", " + [pad_id] * (n - len(s))", "", "fill them up"),
    ("shift_right", "torch.tensor(rows)", "torch.tensor(rows).float()", "decoder input: its numbers are float32"),
    ("smoothed_loss", "logits.transpose(1, 2)", "logits", "vocabulary on axis 1"),
    ("smoothed_loss", "**options)", "**options).item()", "leave out .item()"),
    ("learning_rate", "return", "return torch.ones(()) *", "it is a tensor, it should be a number"),
    ("training_step", "loss.backward()", "loss.backward", "lacks its brackets"),
    ("training_step", "loss = loss_of()", "loss = loss_of", "loss_of is a function"),
    ("training_step", "return loss.item()", "", "the loss of step 1: it returns None"),
    ("greedy_search", "int(step(prefix)[-1].argmax())", "step(prefix)[-1].argmax()", "it contains a tensor, it should contain numbers"),
    ("greedy_search", "[-1].argmax()", ".argmax(-1)[0]", "logits of the first position"),
    ("greedy_search", "range(max_len)", "range(2)", "the first 2 tokens are right; the next should be "),
    ("beam_search", "[bos_id])]", "[])]", "empty prefix: it begins with BOS"),
]  # fmt: skip


@pytest.mark.parametrize("name, old, new, clue", CLUES)
def test_the_kind_of_a_difference_comes_first(name, old, new, clue, unchecked):
    found = verdict_on(name, space_with(name, old, new))
    assert found.state in ("unknown", "known")
    assert clue in found.text.partition(NOT_KNOWN)[0], found.text


LISTS = [
    ([3, 5], [], "the first token should be 3, and the result is empty"),
    ([3, 5], [4, 5], "the first token should be 3, and is 4"),
    ([3, 5], [3], "the first token is right; the next should be 5, and the result ends"),
    ([3, 5, 6], [3, 5, 7], "the first 2 tokens are right; the next should be 6, and is 7"),
    ([3], [3, 4], "the first token is right; the result should end there, and has 4 next"),
    ([], [4], "the result should be empty, and begins with 4"),
]  # fmt: skip


@pytest.mark.parametrize("expected, found, text", LISTS)
def test_the_first_token_that_differs_is_named(expected, found, text, unchecked):
    assert difference(expected, found, 1e-4) == text


# as others write them than the versions by hand
KNOWN = [
    (
        "add_and_norm",
        "return F.layer_norm(x + sublayer_out, x.shape[-1:], *weights)",
        "h = x + sublayer_out\n    y = h - h.mean(-1, keepdim=True)\n"
        "    y = y / ((h**2).mean(-1, keepdim=True) + 1e-5).sqrt()\n"
        "    return y * weights.gain + weights.bias",
        "mean_square",
    ),
    (
        "smoothed_loss",
        'options = {"ignore_index": pad_id, ',
        "real = tgt_out != pad_id\n    logits = logits * real[..., None]\n"
        '    options = {"reduction": "sum", "label_smoothing": label_smoothing}\n'
        "    logits = logits.transpose(1, 2)\n"
        "    return F.cross_entropy(logits, tgt_out, **options) / real.sum()\n"
        "    options = {",
        "masked_logits",
    ),
    (
        "softmax",
        "return scores.softmax(dim=-1)",
        "e = torch.exp(scores - scores.amax(-1))\n"
        "    return e / e.sum(-1, keepdim=True)",
        "largest_lost",
    ),
    ("attention", "query.size(-1)", "value.size(-1)", "d_v_for_d_k"),
    (
        "smoothed_loss",
        "options =",
        "real = tgt_out != pad_id\n"
        "    log_p, target = logits.log_softmax(-1)[real], tgt_out[real]\n"
        "    chosen, even = log_p[:, target], log_p.mean(-1)\n"
        "    eps = label_smoothing\n"
        "    return -((1 - eps) * chosen + eps * even).mean()\n"
        "    options =",
        "pairs_of_tokens",
    ),
    (
        "smoothed_loss",
        "options =",
        "real = tgt_out != pad_id\n"
        "    log_p, target = logits.log_softmax(-1)[real], tgt_out[real]\n"
        "    chosen = log_p.gather(-1, target[:, None])[:, 0]\n"
        "    eps, others = label_smoothing, log_p.size(-1) - 1\n"
        "    return -((1 - eps) * chosen + eps / others * log_p.sum(-1)).mean()\n"
        "    options =",
        "one_too_few",
    ),
    ("training_step", 'group["lr"] = lr', 'group["lr"] *= lr', "rate_multiplied"),
    (
        "beam_search",
        "    score =",
        "        if len(finished) >= beam_size:\n            live = []\n"
        "            break\n    score =",
        "stops_early",
    ),
    ("beam_search", KEEPS, "live = new[:beam_size]", "ended_continued"),
    (
        "beam_search",
        f"{KEEPS}{AFTER_KEEPS}",
        f"live = new[:beam_size]{AFTER_KEEPS[: -len(STRIPS)]}"
        "ids = max(finished + live, key=score)[1][1:]\n"
        "    return ids[:-1] if ids[-1] == eos_id else ids",
        "eos_inside",
    ),
    ("beam_search", "finished + live", "finished or live", "live_if_none"),
]


@pytest.mark.parametrize("name, old, new, mistake", KNOWN, ids=[x[3] for x in KNOWN])
def test_mistakes_of_students_are_known(name, old, new, mistake, unchecked):
    found = verdict_on(name, space_with(name, old, new))
    assert found.mistakes == (mistake,), found.text


def test_dropout_is_found_whatever_it_drops(unchecked):
    "The smallest input has three hidden units, of which it often drops none."
    hidden = "torch.relu(x @ weights.w_1 + weights.b_1)"
    space = space_with("feed_forward", hidden, f"F.dropout({hidden}, 0.1)")
    for seed in range(20):
        torch.manual_seed(seed)
        text = verdict_on("feed_forward", space).text
        assert "two calls with the same input" in text, (seed, text)


def test_small_inputs_are_shown_in_full(unchecked):
    space = space_with("padding_mask", "ids != pad_id", "ids > pad_id")
    text = verdict_on("padding_mask", space).text
    assert re.search(r"ids += \[\[0, .*\]\], shape \(3, 5\)", text), text
    space = space_with("training_step", "= lr", "= 2 * lr")
    text = verdict_on("training_step", space).text
    assert re.search(r"lr +=\s0\.1\n", text), text


def test_numbers_begin_where_they_differ(unchecked):
    space = space_with(
        "positional_encoding", "angles.cos()", "angles.cos() - 1.0 * (angles == 4)"
    )
    rows = verdict_on("positional_encoding", space).text.split("\n")
    assert rows[0] == "along axis 0 (of 2): indices 0, 1, 2 and 3 are right, 4 is wrong"
    assert "smallest input" in rows[1] and rows[2].split() == ["n", "=", "5"]
    assert [row.split()[0] for row in rows[4:]] == ["expected[4]", "found[4]"]


# ---- the functions as they are now


def checked(space: dict, name: str, capsys) -> str:
    space["check"] = workbook.check
    exec(f"check({name})", space)
    return capsys.readouterr().out


def test_a_check_and_the_score_run_the_present_functions(capsys, unchecked):
    "Redefined cells that were not checked again: broken after a ✓, repaired after a ✗."
    space = space_with()
    assert "✓" in checked(space, "multi_head", capsys)
    define(space, FUNCTIONS["attention"].replace("query.size(-1)", "1"))
    assert "first repair attention" in checked(space, "multi_head", capsys)
    space["score"] = workbook.score
    exec("found = score()", space)
    lines = capsys.readouterr().out.split("\n")
    assert not space["found"] and "✗ attention: this is what" in "".join(lines)
    assert "✗ transformer: first repair attention" in lines
    assert "14 of 19 tasks are right; next: attention" in lines
    define(space, FUNCTIONS["attention"])
    assert "✓" in checked(space, "multi_head", capsys)
    exec("found = score()", space)
    assert space["found"] and "19 of 19 tasks are right" in capsys.readouterr().out


def test_what_a_function_does_not_call_is_not_blamed(unchecked):
    space = space_with("encoder_layer", "weights.norm_2", "weights.norm_1")
    define(space, FUNCTIONS["merge_heads"].replace(".transpose(1, 2)", ""))
    assert verdict_on("encoder_layer", space).text == "first repair merge_heads"
    of_torch = (
        "F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)"
    )
    body = FUNCTIONS["multi_head"].replace(
        "merge_heads(attention(q, k, v, mask))", of_torch
    )
    define(space, body)
    assert "norm_1 is used twice" in verdict_on("encoder_layer", space).text


def test_a_part_that_is_missing_is_written_first(unchecked):
    space = space_with("attention", "return", "...\n    return None and")
    assert verdict_on("multi_head", space).text == "first write attention"


def test_functions_that_call_each_other_end(unchecked):
    space = space_with()
    define(space, "def greedy_search(*args):\n    return beam_search(*args, 0, 0)[:1]")
    define(space, "def beam_search(*args):\n    return greedy_search(*args[:4])[:1]")
    assert verdict_on("greedy_search", space).state == "waiting"


def test_other_callables_are_found_by_their_name_in_the_notebook(capsys, unchecked):
    space = space_with()
    exec("softmax = lambda scores: torch.softmax(scores, dim=-1)", space)
    assert checked(space, "softmax", capsys) == "✓ softmax: right\n"
    exec("softmax = torch.nn.Softmax(dim=-1)", space)
    assert checked(space, "softmax", capsys) == "✓ softmax: right\n"
    exec("softmax = torch.nn.Softmax(dim=-2)", space)
    assert "over the queries" in checked(space, "softmax", capsys)
    exec("def mine(x): return x", space)
    assert "is not a task" in checked(space, "mine", capsys)


def test_a_trace_puts_the_functions_back(unchecked):
    space = space_with("encoder_layer", "x, x, x", "x, x, 2 * x")
    before = dict(space)
    verdict_on("encoder_layer", space)
    assert {**space} == before
    assert workbook._multi_head.__name__ == "_multi_head"


# ---- links


def headings(stem: str) -> set[str]:
    path = ROOT / f"nbs/{stem}.ipynb"
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = [joined(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    found = [h for t in texts for h in re.findall(r"^#{2,4} +(.+)$", t, re.MULTILINE)]
    return {slug(heading) for heading in found}


def test_every_link_leads_to_a_heading():
    links = {m.link for task in TASKS.values() for m in task.mistakes}
    links |= {task.lesson for task in TASKS.values()}
    lost = []
    for link in sorted(links):
        stem, _, anchor = link.partition("#")
        if anchor not in headings(stem):
            lost.append(link)
    assert lost == []


def test_addresses():
    address = workbook.lesson_address("321_attention#why-a-softmax")
    assert address.endswith("attention.html#why-a-softmax") and "321" not in address
    assert workbook.lesson_address("misreadings#x").endswith("misreadings.html#x")


# ---- the notebook

PATH = ROOT / "nbs/workbook.ipynb"
NOTEBOOK = json.loads(PATH.read_text("utf-8"))
CODES = [
    code_of(joined(cell["source"]))
    for cell in NOTEBOOK["cells"]
    if cell["cell_type"] == "code"
]
STUBS = {
    name: code
    for code in CODES
    for name in re.findall(r"^def (\w+)\(", code, re.MULTILINE)
}


def filled(version: str = "reference", **mistakes: str) -> list[str]:
    "The code cells with the reference in each stub, another version, or a mistake."
    start = "from annotated_transformer.experiments.workbook import TASKS as _tasks\n"
    cells = []
    for code in CODES:
        for name, stub in STUBS.items():
            if code == stub:
                what = f"_tasks[{name!r}]"
                wrong = mistakes.get(name)
                of = (
                    f"{what}.with_mistakes({wrong!r})" if wrong else f"{what}.{version}"
                )
                code = f"{start}{name} = {of}\n{name} = (lambda f: lambda *a: f(*a))({name})"
                code += f"\n{name}.__name__ = {name!r}"
        cells.append(code)
    return cells


def run_cells(cells: list[str]) -> tuple[dict, str]:
    matplotlib.use("agg")
    space, said = {}, io.StringIO()
    with contextlib.redirect_stdout(said):
        for code in cells:
            exec(compile(code, "workbook", "exec"), space)
    return space, said.getvalue()


def test_the_notebook_has_the_tasks_of_the_table():
    "In its order, each with a stub whose parameters are right, its check, and three hints."
    assert [*STUBS] == [*TASKS]
    checks = re.findall(r"^check\((\w+)\)$", "\n".join(CODES), re.MULTILINE)
    assert checks == [*TASKS]
    texts = [
        joined(c["source"]) for c in NOTEBOOK["cells"] if c["cell_type"] == "markdown"
    ]
    of_tasks = [text for text in texts if re.match(r"## \d+\. ", text)]
    for i, (text, (name, task)) in enumerate(zip(of_tasks, TASKS.items()), 1):
        assert text.startswith(f"## {i}. {task.title}\n")
        hints = re.findall(r"<details><summary>Hint (\d)</summary>", text)
        assert hints == ["1", "2", "3"] and "ipynb#" in text.split("Hint 3")[1]
        stub = STUBS[name]
        assert stub.rstrip().endswith("\n    ...")
        parameters = inspect.signature(task.written).parameters
        asked = re.findall(r"(\w+): ", stub.partition(") ->")[0].partition("(")[2])
        assert asked == [*parameters][1:]
    assert len(of_tasks) == len(TASKS)


def test_stubs_are_missing(unchecked):
    space, said = run_cells(CODES)
    assert said.count("· ") == said.count("not written yet") == 2 * len(TASKS)
    assert "0 of 19 tasks are right; next: softmax" in said and "✗" not in said
    assert not space["is_complete"] and "not yet" in said


def test_it_runs_to_the_end_with_the_references(unchecked):
    cells = [code.replace("[], len(ours)", "[], 2") for code in filled()]
    assert cells != filled()
    space, said = run_cells(cells)
    assert said.count("✓") == 38 and "19 of 19 tasks are right\n" in said
    assert len(space["losses"]) == 2 and "too wide." in said
    assert "loss of the last ten steps: yours" in said


@pytest.mark.slow
def test_the_model_that_was_written_translates(unchecked):
    "Both sentences, as the notebook trains it; other processors round otherwise."
    # by hand, because the references build the package's modules for each call
    space, said = run_cells(filled("with_mistakes()"))
    assert space["losses"][-1] < 1.0
    assert "weil es zu müde war." in said and "weil sie zu breit war." in said


def notebook_of(codes: list[str]) -> dict:
    cells = [{"cell_type": "code", "source": code.splitlines(True)} for code in codes]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.fixture
def file_of(tmp_path):
    def write(codes: list[str]):
        path = tmp_path / "of a student.ipynb"
        path.write_text(json.dumps(notebook_of(codes)), encoding="utf-8")
        return path

    return write


def test_the_command_scores_what_was_handed_in(file_of, tmp_path):
    "Also after a cell that raises; a mistake is named."
    codes = ["%matplotlib inline\n!ls\n1 / 0", *filled(attention="no_scale")]
    out = tmp_path / "score.json"
    program = [sys.executable, "-m", "annotated_transformer", "workbook"]
    done = subprocess.run(
        [*program, "--check", file_of(codes), "--json", out],
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert "✗ attention: this is what comes out if the scores are not" in done.stdout
    assert done.stdout.endswith("18 of 19 tasks are right; next: attention\n")
    _, said = run_cells(filled(attention="no_scale"))
    assert done.stdout in said  # score() prints the same
    score = json.loads(out.read_text("utf-8"))
    assert (score["right"], score["tasks"]) == (18, 19)
    assert score["results"]["attention"]["mistakes"] == ["no_scale"]


def test_the_score_replaces_no_other_file(file_of):
    path = file_of([])
    with pytest.raises(UserError, match="already exists, and this program did not"):
        grade_lines(path, path)


def test_a_notebook_that_does_not_end(file_of):
    with pytest.raises(UserError, match="one of its loops does not end"):
        grade(file_of(["while True:\n    pass"]), timeout=2)


def test_a_search_that_does_not_end_is_stopped(unchecked):
    def endless(step, bos_id, eos_id, max_len):
        while True:
            step([bos_id])

    found = diagnose(TASKS["greedy_search"], endless)
    assert found.state == "unknown" and "does the search end?" in found.text


def test_checks_do_not_raise(capsys, unchecked):
    workbook.check()
    workbook.check(lambda: 0)
    assert capsys.readouterr().out.count("is not a task") == 2
