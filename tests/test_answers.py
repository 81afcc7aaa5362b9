"The code of the page of questions and answers: each block runs and does what its answer says."

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cells import joined
from conftest import ROOT, text_of
from torch import nn

from annotated_transformer.data.grammar import builtin
from annotated_transformer.data.vocab import SPACE, learn_bpe, own_vocab
from annotated_transformer.io.files import read_record
from annotated_transformer.training.optimizer import inverse_sqrt_schedule
from annotated_transformer.translating.load import load


def code_with(words: str) -> str:
    cells = json.loads((ROOT / "nbs/answers.ipynb").read_text(encoding="utf-8"))
    text = "\n".join(joined(cell["source"]) for cell in cells["cells"])
    (found,) = [
        code
        for code in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
        if words in code
    ]
    return found


def test_cached_attention():
    "Token by token with the cache: what PyTorch's module gives under the causal mask."
    space = {"torch": torch, "nn": nn, "F": F}
    exec(code_with("def cached_attention"), space)
    torch.manual_seed(0)
    attn = nn.MultiheadAttention(16, 4, batch_first=True)
    nn.init.normal_(attn.in_proj_bias)
    x, cache = torch.randn(2, 6, 16), {}
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    expected, _ = attn(x, x, x, attn_mask=later, need_weights=False)
    steps = [space["cached_attention"](attn, x[:, [t]], cache) for t in range(6)]
    assert torch.allclose(torch.cat(steps, dim=1), expected, atol=1e-5)
    assert cache["k"].shape == (2, 4, 6, 4)


def test_placeholders():
    "A placeholder comes back once, or an error says that it does not."
    space: dict = {}
    exec(code_with("def translate_with_placeholders"), space)
    translate, tatoeba = space["translate_with_placeholders"], load("tatoeba")
    for text in ("Hello {user_id}, how are you?", "{a} loves {b}. {a} is happy."):
        found = translate(tatoeba, text)
        assert sorted(re.findall(r"\{\w+\}", found)) == sorted(
            re.findall(r"\{\w+\}", text)
        )
        assert not re.search("Tom|Mar", found)
    forgetful = SimpleNamespace(translate=lambda text, split: "Hallo!")
    with pytest.raises(ValueError, match="{b} is lost in 'Hallo!'"):
        translate(forgetful, "{b} sleeps.")


def test_decode_step():
    "Token by token: what nn.TransformerDecoder gives for the whole prefix."
    space = {"torch": torch, "nn": nn, "F": F}
    exec(code_with("def cached_attention"), space)
    exec(code_with("def decode_step"), space)
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
    for norm in (None, nn.LayerNorm(16)):
        decoder = nn.TransformerDecoder(layer, 3, norm).eval()
        for weight in decoder.parameters():
            nn.init.normal_(weight, std=0.3)
        x, memory = torch.randn(2, 6, 16), torch.randn(2, 5, 16)
        padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
        later = torch.ones(6, 6, dtype=torch.bool).triu(1)
        masks = {"tgt_mask": later, "memory_key_padding_mask": padding}
        expected, caches = decoder(x, memory, **masks), [{} for _ in decoder.layers]
        steps = [
            space["decode_step"](decoder, x[:, [i]], memory, padding, caches)
            for i in range(6)
        ]
        assert torch.allclose(torch.stack(steps, dim=1), expected, atol=1e-4)


def test_shifted_target():
    "Each position is scored on the token after its input, padding not at all."
    space = {"F": F, "src": None, "pad_id": 0}
    space["tgt"] = torch.tensor([[1, 5, 6, 2], [1, 7, 2, 0]])
    right = F.one_hot(torch.tensor([[5, 6, 2], [7, 2, 3]]), 8) * 100.0
    space["model"] = lambda src, tgt_in: right
    exec(code_with("tgt[:, 1:]"), space)
    assert space["tgt_in"].tolist() == [[1, 5, 6], [1, 7, 2]]
    assert space["loss"] < 1e-6
    space["model"] = lambda src, tgt_in: right.roll(1, dims=1)
    exec(code_with("tgt[:, 1:]"), space)
    assert space["loss"] > 10


def test_two_vocabularies(tmp_path, monkeypatch):
    "Padding has an id of its own, and a character without a token becomes bytes."
    monkeypatch.chdir(tmp_path)
    Path("train.zh").write_text("我们去北京。\n他们在北京。\n" * 50, encoding="utf-8")
    Path("train.en").write_text("We go to Beijing.\n" * 50, encoding="utf-8")
    code, space = code_with("SentencePieceTrainer"), {}
    exec(code.replace("16_000", "290, hard_vocab_limit=False"), space)
    source = space["source"]
    assert [source.unk_id(), source.bos_id(), source.eos_id(), source.pad_id()] == [
        *range(4)
    ]
    assert space["ids"][-1] == 2 and source.decode(space["ids"]) == "我们去北京。"
    assert source.decode(source.encode("龘")) == "龘"


def test_schedule_as_lambda_lr():
    "The rates of the first steps are the paper's, from step 1 on."
    d_model, warmup, params = 512, 4, [nn.Parameter(torch.zeros(1))]
    space = {"torch": torch, "d_model": d_model, "warmup": warmup, "params": params}
    exec(code_with("LambdaLR"), space)
    rates = []
    for _ in range(10):
        rates.append(space["scheduler"].get_last_lr()[0])
        space["optimizer"].step()
        space["scheduler"].step()
    paper = [inverse_sqrt_schedule(step, d_model, warmup) for step in range(1, 11)]
    assert rates == pytest.approx(paper)


def test_deterministic_settings(monkeypatch):
    "The lines run, and do what they say."
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    space = {"os": os, "random": random, "np": np, "torch": torch}
    try:
        exec(code_with("use_deterministic_algorithms"), space)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_ways_to_store_a_table():
    "The rows of the answer's table: does it move, is it stored, is it trained?"

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            table = torch.zeros(3)
            self.pe = table
            self.register_buffer("stored", table)
            self.register_buffer("computed", table, persistent=False)
            self.trained = nn.Parameter(table)

    module, rows = Module().to(torch.float64), []
    for name in ("pe", "stored", "computed", "trained"):
        has = (
            getattr(module, name).dtype == torch.float64,
            name in module.state_dict(),
            name in dict(module.named_parameters()),
        )
        rows.append(" | ".join("yes" if it else "no" for it in has))
    table = text_of("answers").partition("changed by the optimiser |")[2]
    given = [row.split(" | ", 1)[1].strip(" |") for row in table.splitlines()[2:6]]
    assert given == rows


def test_tags_of_one_token(tmp_path, monkeypatch):
    "The answer on several languages: a vocabulary that `train --vocab` accepts, with both tags."
    monkeypatch.chdir(tmp_path)
    pairs = builtin(300)
    space = {"lines": [text for pair in pairs for text in (pair.en, pair.de)]}
    exec(code_with("learn_bpe").replace("8000", "500"), space)
    vocab = own_vocab(tmp_path / "tagged.model")
    for tag in ("<2de>", "<2fr>"):
        line = f"{tag} {pairs[0].en}"
        assert vocab.tokens(vocab.encode(line))[0] == f"{SPACE}{tag}"
        without = learn_bpe([line, pairs[0].de], 300)
        assert len(without.encode(tag)) > 1  # as the answer says of a learned one


def test_token_for_a_trained_run(tmp_path, monkeypatch):
    "The copy has one row and one token more, and translates as before."
    monkeypatch.chdir(tmp_path)
    code = code_with("runs/mine-br").replace("runs/mine-br", "copy")
    exec(code.replace("runs/mine", "demo"), {})
    old, new = load("demo"), load("copy")
    assert len(new.vocab) == len(old.vocab) + 1
    assert new.vocab.encode("<br>") == [len(old.vocab)]
    text = ["The old dog sleeps on the bridge."]
    assert new.translate(text) == old.translate(text)


def test_probability_of_a_translation(capsys):
    "What the answers say of given translations, in nats."
    space: dict = {}
    exec(code_with("Katze Katze Katze"), space)
    nats = re.findall(r"([\d.]+) nats", capsys.readouterr().out)
    answers = text_of("answers")
    assert "here {}, {} and {}.".format(*nats) in answers
    source = "I bought bread, milk and cheese at the market yesterday."
    assert f"*{source}*" in answers

    def per_token(translation: str) -> str:
        found = space["perplexity"](space["translator"], [source], [translation])
        return f"{found.nats / found.n_tokens:.1f}"

    right = "Ich habe gestern auf dem Markt Brot, Milch und Käse gekauft."
    other = "Der König wohnt in einem alten Haus am See."
    said = f"a right translation {per_token(right)} nats a token and an unrelated"
    assert f"{said} sentence {per_token(other)} (" in answers
    less = "Ich habe gestern Brot gekauft."
    assert f"*{less}* has {per_token(less)} nats a token" in answers


def test_profile(tmp_path, monkeypatch, capsys):
    "The lines print a table and write a trace."
    monkeypatch.chdir(tmp_path)
    exec(
        code_with("torch.profiler"),
        {"train_steps": lambda n: torch.ones(n) @ torch.ones(n)},
    )
    assert "aten::dot" in capsys.readouterr().out and Path("trace.json").exists()


def test_figures(cfg):
    "Versions, speeds and hours of the answers, where they come from."
    answers = text_of("answers")
    torch_min = re.search(r"torch>=([\d.]+)", cfg["requirements"])[1]
    needs = f"Python {cfg['min_python']} or newer and PyTorch {torch_min} or newer"
    assert needs in answers
    faster = {"torch.nn.Transformer": [], "the same, eager": []}  # Marian's model
    for name in ("bench_train", "bench_train_base"):
        for peer, found in faster.items():
            found.append(
                read_record(f"results/{name}")["speed"]["bf16"][peer][
                    "ours_is_faster_by"
                ]
            )
    assert all(1.8 < by < 3.2 for by in faster["torch.nn.Transformer"])
    assert all(1.4 < by < 2 for by in faster["the same, eager"])
    beam = read_record("results/bench_decode_fp32")["decode"]["beam 4, batches of 64"]
    assert beam["Hugging Face"]["ours_is_faster_by"] > 2
    assert 0.8 < beam["CTranslate2"]["ours_is_faster_by"] < 1
    chosen = read_record("results/quality")["alpha_chosen_on_validation"]
    wide, paper = (
        [x["bleu"] for x in chosen["validation_bleu"] if x["alpha"] == alpha]
        for alpha in (1.0, 0.6)
    )
    assert "scored {:.2f}, {:.2f} and {:.2f}, and 4".format(*wide) in answers
    assert "with α = 0.6 {:.2f} and {:.2f} (".format(*paper) in answers
    int8 = [
        found["ours, int8"]["ours_is_faster_by"]
        for found in read_record("results/bench_decode")["decode"].values()
        if isinstance(found, dict)
    ]
    assert f"took {min(int8):.2f} to {max(int8):.2f} of the time of fp32" in answers
    costs = text_of("costs")
    hours = r"\| RTX 4090 \| base \| eager \|.*\| ([\d.]+) to ([\d.]+) hours \|"
    assert [round(float(h)) for h in re.search(hours, costs).groups()] == [4, 5]
    assert "4 to 5 hours" in answers
    gb = {
        precision: [
            *map(
                float,
                re.search(rf"\| base, {precision} \| (.*) \|", costs)[1].split(" | "),
            )
        ]
        for precision in ("bf16", "fp32")
    }

    def need(precision, n):  # what a batch adds to memory is divided by n
        one, two, _ = gb[precision]
        return one - 2 * (one - two) * (1 - 1 / n)

    # the smallest number of parts that leaves 15 % free
    parts = lambda precision, card: next(
        n for n in (1, 2, 4, 8, 16) if need(precision, n) <= 0.85 * card
    )
    assert all(abs(need(precision, 4) - gb[precision][2]) < 0.2 for precision in gb)
    for card, names in (
        (4, "RTX 3050 Laptop"),
        (6, "RTX 4050 Laptop"),
        (8, "RTX 3070, RTX 4060"),
    ):
        n = parts("bf16", card)
        assert f"| {card} GB | {names} | `grad_accum_steps={n}` |" in answers
    shares = json.dumps(json.loads((ROOT / "nbs/35_position.ipynb").read_text("utf-8")))
    trained = re.search(r"sinusoidal trained 100 %   beyond (\d+) %", shares)[1]
    bias = re.search(r"trained \d+%   beyond (\d+)%", shares)[1]
    assert f"for {bias} % of the tokens beyond the trained length" in answers
    assert f"and sinusoids for {trained} %" in answers
    old = [parts("fp32", card) for card in (16, 8, 6)]
    needs = "`grad_accum_steps={}` with 16 GB and {} with 8 GB, or {} with 6 GB"
    assert needs.format(*old) in answers
    chinese = read_record("results/tatoeba_zh")["seed_0"]["in 8 bits"]["bleu"]
    scores = f"BLEU {chinese['zh']:.1f} by `zh` and {chinese['13a']:.1f} by `13a`"
    assert scores in answers
    speed = {
        how: [
            found[f"{search}, {how}"]["ours"]["sentences_per_s"]
            for search in ("greedy", "beam 4")
        ]
        for found in [read_record("results/bench_decode")["decode"]]
        for how in ("batches of 64", "one by one")
    }
    greedy, wide = speed["batches of 64"]
    assert 1.9 < greedy / wide < 2.1 and "twice as fast in batches" in answers
    greedy, wide = speed["one by one"]
    assert 1.07 < greedy / wide < 1.15 and "a tenth faster for one sentence" in answers


def test_figures_of_small_data_and_of_colab():
    "Scores and times of the answers are those of the records."
    answers = text_of("answers")
    rows = read_record("results/fine_tune")["fine_tune"]["rows"]

    def score(n_pairs, scratch, rate):
        wanted = (n_pairs, scratch, rate)
        found = [
            row["bleu"]["multi30k"]
            for row in rows
            if (row["n_pairs"], row["scratch"], row["peak_lr"]) == wanted
        ]
        return np.mean(found)

    for n, what in ((1000, "1,000"), (5000, "5,000"), (29_000, "29,000, 2,400 steps")):
        assert f"| {what} | {score(n, True, 2e-3):.0f} |" in answers
    means = {
        row["row"]: np.mean([run["bleu"] for run in row["found"]])
        for row in read_record("results/variations_multi30k")["table"]["rows"]
    }
    assert f"| 10,000, 2,000 steps | {means['base']:.0f}, on validation" in answers
    assert f"It has {means['base']:.1f} BLEU" in answers
    assert (
        f"Without dropout the mean is {means['D dropout=0.0']:.1f}, without label "
        f"smoothing {means['D eps=0.0']:.1f}, and with a width of 64 "
        f"{means['C d_model=64']:.1f}. A width of 256 gave {means['C d_model=256']:.1f},"
    ) in answers
    longest = [
        run["test"]["13a"]
        for run in read_record("results/ingredients")["ingredients"]["runs"]
        if run["row"] == "tiny, half weights"
    ]
    assert f"| 29,000, 8,000 steps | {np.mean(longest):.0f} |" in answers
    gain, loss = (score(n, False, 5e-4) - score(n, True, 2e-3) for n in (1000, 5000))
    assert f"better by {gain:.0f} BLEU with 1,000 captions" in answers and loss < 0
    demo, small = (
        read_record(f"results/{name}") for name in ("demo", "multi30k_small")
    )
    seconds = round(demo["report"]["train_seconds"])
    assert f"the demo trained in {seconds} seconds" in answers
    assert f"--minutes {small['minutes']}` reached {small['bleu']:.1f} BLEU" in answers


SCRIPT = """
import os, sys
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(int(os.environ["RANK"]))  # other weights on each rank, at first
model, n_epochs, seen = nn.Linear(2, 1), 2, []
dataset = TensorDataset(torch.arange(400.0).view(200, 2))

def train_epoch(model, loader, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-7)
    for (x,) in loader:
        seen.append(x)
        optimizer.zero_grad()
        model(x.to(device)).square().mean().backward()
        optimizer.step()

CODE
found = model.module.weight.detach().cpu(), torch.cat(seen), len(seen[0])
torch.save(found, f"{sys.argv[1]}/{os.environ['RANK']}.pt")
"""


@pytest.mark.slow
def test_data_parallel(tmp_path):
    "Two processes: the same weights, each sentence of an epoch on one of them, 64 each."
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("CODE", code_with("init_process_group")))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", str(script), str(tmp_path)]
    quiet = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (first, of_first, n), (second, of_second, _) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)
    )
    assert torch.equal(first, second) and n == 64
    half = len(of_first) // 2  # an epoch
    in_epoch = torch.cat([of_first[:half], of_second[:half]])[:, 0].sort().values
    assert torch.equal(in_epoch, torch.arange(0.0, 400, 2))
    assert not torch.equal(of_first[:half], of_first[half:])  # another order


def test_saved_run(tmp_path):
    "Six steps with dropout, or three, a new process and three more: the same weights."

    def start():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1))
        space = {"torch": torch, "os": os, "model": model, "optimizer": optimizer}
        space["scheduler"] = scheduler
        exec(code_with("def save_run"), space)
        return space

    def train(space, n):
        for _ in range(n):
            space["model"](torch.ones(16, 4)).square().sum().backward()
            space["optimizer"].step()
            space["optimizer"].zero_grad()
            space["scheduler"].step()
        return space["model"].state_dict()

    first = start()
    path = str(tmp_path / "run.pt")
    train(first, 3)
    first["save_run"](path, 3)
    assert os.listdir(tmp_path) == ["run.pt"]
    second = start()
    torch.manual_seed(99)
    assert second["resume_run"](path) == 3
    resumed, expected = train(second, 3), train(start(), 6)
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)


def test_tied_weights():
    "One parameter under two names, and padding that only the output layer changes."
    space = {"nn": nn, "self": nn.Module(), "n_vocab": 9, "d_model": 4}
    exec(code_with("self.output.weight = self.embedding.weight"), space)
    model = space["self"]
    assert len(list(model.parameters())) == 1
    assert list(model.state_dict()) == ["embedding.weight", "output.weight"]
    padded = nn.Embedding(9, 4, padding_idx=0)
    model.output.weight = padded.weight
    logits = model.output(padded(torch.tensor([1])))
    F.cross_entropy(logits, torch.tensor([2])).backward()
    assert padded.weight.grad[0].any()


def test_outputs_at_padding():
    "The fast path returns 0 at padding, the other something else; the mean is the same."
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).eval()
    x, means = torch.randn(2, 6, 16), []
    padding = torch.arange(6) >= torch.tensor([[4], [3]])
    with torch.no_grad():
        fast = encoder(x, src_key_padding_mask=padding)
    slow = encoder(x, src_key_padding_mask=padding).detach()
    assert not fast[padding].any() and slow[padding].all()
    for out in (fast, slow):
        space = {"src_key_padding_mask": padding, "out": out}
        exec(code_with("real = ~src_key_padding_mask"), space)
        means.append(space["mean"])
    assert torch.allclose(*means, atol=1e-5)


def test_top_k():
    "Three logits of each row remain."
    space = {"torch": torch, "k": 3, "logits": torch.randn(5, 9)}
    exec(code_with("kth = "), space)
    assert (space["logits"].isfinite().sum(dim=-1) == 3).all()
