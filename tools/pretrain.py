#!/usr/bin/env python
"""Train a run that comes with the package, and replace it: annotated_transformer/pretrained/NAME.

    make pretrained                              the model of the synthetic corpus, demo, in about five minutes on two cores
    tools/pretrain.py tatoeba --data-dir DATA    the model of everyday sentences, in about two hours on one core
    tools/pretrain.py tatoeba-zh --data-dir DATA the same into Chinese, begun from the weights of `tatoeba`, in about an hour on one core
    tools/pretrain.py learning                   a smaller one with its weights at some moments of training, in about ten minutes
    … --work FOLDER                              keeps the run there; the same command goes on from it
    … --scores FILE                              writes what `tatoeba` reaches, for tools/record.py
    … --seed 1 --out FOLDER                      another run of the recipe, not into the package

All but `learning` are trained also on copies of some sentences as people type them. Their translations are unchanged, in the usual German
spelling. The weights are stored in 8 bits (97a).
"""

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from annotated_transformer.data.batch import epoch_batches
from annotated_transformer.data.corpus import Corpus, load_corpus
from annotated_transformer.data.grammar import ANIMAL_TIRED, ANIMAL_WIDE, builtin
from annotated_transformer.data.prepared import open_prepared
from annotated_transformer.data.vocab import SPACE, Vocab, learn_bpe
from annotated_transformer.model.transformer import Transformer
from annotated_transformer.runs.checkpoint import (
    pack_weights,
    read_tensors,
    save_tensors,
    weights_metadata,
)
from annotated_transformer.runs.folder import load_run, read_metrics, write_config
from annotated_transformer.runs.recipe import build_training, validation_loss
from annotated_transformer.runs.settings import Recipe, get_recipe, override
from annotated_transformer.runs.train_run import train_or_resume
from annotated_transformer.show.heads import pronoun_sentences
from annotated_transformer.show.visualize import attention_maps
from annotated_transformer.translating.evaluate import (
    bleu,
    chrf,
    corpus_score,
    pronoun_accuracy,
)
from annotated_transformer.translating.load import load
from annotated_transformer.translating.metrics import metric_for

ROOT = Path(__file__).resolve().parent.parent
PRETRAINED = ROOT / "annotated_transformer/pretrained"
Pairs = list[tuple[str, str]]
Change = Callable[[str], str]
EMOJI = "😀😂🙂😉😊😍😎😢😭😡👍👎👏🙏💪🎉🔥❤⭐✨🌧🌞🐶🐱🍕🍺☕🚗🏠📚"


# short sentences that people type and that Tatoeba's English–Chinese text lacks
PHRASES = """
Hello, world! | 你好，世界！
Hello, world. | 你好，世界。
Hello World | 你好，世界
Hello, everyone. | 大家好。
Hello. My name is Tom. | 你好。我叫汤姆。
My name is Mary. | 我叫玛丽。
Bye! | 再见！
Yes. | 是的。
No. | 不。
Okay. | 好的。
Yes, please. | 好的，谢谢。
No, thank you. | 不用了，谢谢。
Sorry. | 对不起。
Help! | 救命！
Be careful! | 小心！
Happy birthday! | 生日快乐！
I'm hungry. | 我饿了。
I'm from China. | 我来自中国。
Do you speak Chinese? | 你会说中文吗？
Where is the station? | 车站在哪里？
Where is the toilet? | 厕所在哪里？
"""


def first_lower(text: str) -> str:
    return text[0].lower() + text[1:]


def without_end(text: str) -> str:
    "The sentence without its final punctuation."
    return text.rstrip(".!?") or text


def with_emoji(pairs: Pairs, rng: random.Random) -> Pairs:
    "One pair in 67, with the same emoji at the end of both sides."
    marks = [(pair, rng.choice(EMOJI)) for pair in pairs if rng.random() < 0.015]
    return [(f"{src} {mark}", f"{tgt} {mark}") for (src, tgt), mark in marks]


# how people type a sentence, and the share of the training sentences copied so
Cases = tuple[tuple[Change, float], ...]
SYNTHETIC: Cases = ((first_lower, 0.15), (str.lower, 0.1), (str.upper, 0.15))
EVERYDAY: Cases = (
    (first_lower, 0.1),
    (str.lower, 0.1),
    (str.upper, 0.07),
    (without_end, 0.1),
    (lambda text: without_end(text.lower()), 0.1),
)
TYPED: dict[str, Change] = {
    "as in the corpus": str,
    "first letter in lower case": first_lower,
    "all in lower case": str.lower,
    "all in capitals": str.upper,
    "without the final punctuation": without_end,
}


def with_copies(model: "Model", pairs: Pairs) -> Pairs:
    "The pairs, and after them copies as people type them, of everyday sentences also with emoji."
    rng, copies = random.Random(0), []
    for change, share in model.cases:
        copies += [(change(src), tgt) for src, tgt in pairs if rng.random() < share]
    if model.is_everyday:
        copies += with_emoji(pairs, rng)
    return [*pairs, *copies]


def synthetic(_: Path | None) -> Corpus:
    return load_corpus("builtin")


def everyday(data_dir: Path | None) -> Corpus:
    "Tatoeba, English–German, with sentences of the grammar."
    corpus = load_corpus("tatoeba", data_dir)
    grammar = [(s.en, s.de) for s in builtin(20_000)]
    return corpus._replace(train=[*corpus.train, *grammar], source={})


def everyday_zh(data_dir: Path | None) -> Corpus:
    "Tatoeba, English–Chinese, with our phrases five times each."
    corpus = load_corpus("tatoeba-zh", data_dir)
    held_out = {src for pairs in (corpus.valid, corpus.test) for src, _ in pairs}
    phrases = [tuple(x.split(" | ")) for x in PHRASES.strip().split("\n")]
    added = 5 * [(src, tgt) for src, tgt in phrases if src not in held_out]
    return corpus._replace(train=[*corpus.train, *added], source={})


# the steps of `learning` whose weights the live page has, besides those of its end
MOMENTS = (0, 50, 100, 200, 400, 800, 1600, 3200)

# words with one translation, each a token
WORDS = {
    "Tom": "汤姆",
    "Mary": "玛丽",
    "she": "她",
    "he": "他",
    "not": "不",
    "book": "书",
}


def aligning_head(model: Transformer, vocab: Vocab, pairs: Pairs) -> dict:
    "The head of the cross-attention that attends most to the word whose translation it predicts."
    bare, total = lambda ids: [x.lstrip(SPACE) for x in vocab.tokens(ids)], 0
    for src, tgt in pairs:
        ids = [*vocab.encode(src), vocab.eos_id], [vocab.bos_id, *vocab.encode(tgt)]
        of_src, of_tgt = bare(ids[0]), bare(ids[1][1:])
        at = [
            (of_tgt.index(WORDS[word]), i)
            for i, word in enumerate(of_src)
            if WORDS.get(word) in of_tgt
        ]
        if at:
            weights = attention_maps(model, *(torch.tensor([side]) for side in ids))
            q, k = zip(*at)
            total += weights["cross"][:, 0][:, :, q, k].sum(-1)
    layer, head = divmod(int(total.argmax()), total.shape[1])
    return {"kind": "cross", "layer": layer, "head": head}


def transferred(name: str, recipe: Recipe, vocab: Vocab, run: Path) -> Path:
    """A run to start from, which is written to the folder `run`: the weights of the model `name`.

    A token that both vocabularies have gets the embedding that it has there; the
    embeddings of the others are as new.
    """
    given, theirs, _, about = load_run(PRETRAINED / name)
    start, *_ = build_training(recipe, vocab, torch.device("cpu"))
    weights, ids = given.state_dict(), {t: i for i, t in enumerate(tokens_of(theirs))}
    matrix = start.model.state_dict()["embedding.weight"].clone()
    for i, token in enumerate(tokens_of(vocab)):
        if token in ids:
            matrix[i] = weights["embedding.weight"][ids[token]]
    run.mkdir(parents=True, exist_ok=True)
    vocab.save(run / "vocab.model")
    header = weights_metadata(recipe.model, f"weights of {name}")
    tensors = weights | {"embedding.weight": matrix}
    save_tensors(tensors, run / "model.safetensors", header)
    write_config(run, recipe, {"data": name, "weights": about["weights"]})
    return run


def tokens_of(vocab: Vocab) -> list[str]:
    return vocab.tokens(range(len(vocab)))


def pack_run(model: "Model", run: Path, out: Path, pairs: Pairs) -> None:
    "A run folder without checkpoints, its weights in 8 bits. Its head to open with is measured on `pairs`."
    loaded = load_run(run)
    about = {k: v for k, v in loaded.about.items() if k not in ("from", "text")}
    if model.cases:
        about["case_variants"] = True
    if model.examples:
        about["examples"] = model.examples
    if model.opening:
        about["opening"] = model.opening(loaded.model, loaded.vocab, pairs)
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(run / "vocab.model", out / "vocab.model")
    write_config(out, loaded.recipe, about)
    weights, which = dict(loaded.model.state_dict()), about["weights"]
    save_packed(weights, loaded.recipe, which, out / "model.safetensors")


def save_packed(
    weights: dict[str, torch.Tensor], recipe: Recipe, which: str, file: Path
) -> None:
    header = weights_metadata(recipe.model, which)
    save_tensors(pack_weights(weights), file, header)
    file.chmod(0o644)  # whoever installs the package reads it


def save_moments(run: Path, out: Path) -> None:
    "The weights of a run at `MOMENTS` in 8 bits, and its validation loss from step 0 on."
    _, vocab, recipe, _ = load_run(run)
    start, *_ = build_training(recipe, vocab, torch.device("cpu"))
    held_out = open_prepared(run / "data").valid
    batches = [*epoch_batches(held_out, vocab, recipe.train.batch_tokens, 0, 0)]
    curve = [{"step": 0, "valid_loss": validation_loss(start, batches)}]
    curve += [
        {name: record[name] for name in curve[0]}
        for record in read_metrics(run)
        if "valid_loss" in record
    ]
    lines = [json.dumps(record) + "\n" for record in curve]
    (out / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
    for step in MOMENTS:
        weights = start.model.state_dict()
        if step:
            folder = run / f"checkpoints/step-{step:07}"
            weights = read_tensors(folder / "model.safetensors")
        file = out / f"moment-{step}.safetensors"
        save_packed(weights, recipe, f"step {step}", file)


def on_grammar(run: Path, _: Path | None) -> dict:
    "Exact matches among 1,000 held-out synthetic sentences, typed in each way, and the share of right pronouns."
    n = 1000
    translator, plain = load(run), builtin(n, seed=1, split="test")
    exact = {}
    for name, typed in TYPED.items():
        found = translator.translate([typed(s.en) for s in plain])
        exact[name] = sum(map(str.__eq__, found, (s.de for s in plain)))
    it = pronoun_sentences(n)
    found = translator.translate([s.en for s in it])
    pronouns = pronoun_accuracy(found, [s.de for s in it])
    return {"n": n, "exact": exact, "pronouns": pronouns}


def on_real_text(run: Path, data_dir: Path | None) -> dict:
    "BLEU and chrF of held-out text; of Tatoeba also BLEU as it is typed, and random examples."
    translator, found = load(run), {}
    for data in ("multi30k", "tatoeba"):
        sources, wanted = map(list, zip(*load_corpus(data, data_dir).test))
        outputs = translator.translate(sources)
        score = bleu(outputs, wanted)
        found[data] = {
            "n": len(sources),
            "bleu": score.value,
            "chrf": chrf(outputs, wanted).value,
            "signature": score.signature,
        }
    examples = random.Random(0).sample([*zip(sources, outputs, wanted)], 8)
    typed = {
        way: bleu(translator.translate(list(map(change, sources))), wanted).value
        for way, change in TYPED.items()
    }
    return {**found, "examples": examples, "typed": typed}


def on_chinese(run: Path, data_dir: Path | None) -> dict:
    "BLEU by three ways to split Chinese, chrF, BLEU as it is typed, tokens, and random examples."
    translator, test = load(run), load_corpus("tatoeba-zh", data_dir).test
    sources, wanted = map(list, zip(*test))
    outputs = translator.translate(sources)
    scores = {
        split: corpus_score(metric_for("bleu", wanted, split), outputs, wanted)
        for split in ("zh", "char", "13a")
    }
    encode, rows = translator.vocab.encode_many, [*zip(sources, outputs, wanted)]
    return {
        "n": len(sources),
        "bleu": {split: score.value for split, score in scores.items()},
        "signature": scores["zh"].signature,
        "chrf": chrf(outputs, wanted).value,
        "exact": sum(map(str.__eq__, outputs, wanted)),
        "you": {  # sources with "you"; references and outputs of these with the polite form
            "sources": len(
                polite := [out for src, *out in rows if "you" in src.lower()]
            ),
            "references": sum("您" in wanted for _, wanted in polite),
            "outputs": sum("您" in found for found, _ in polite),
        },
        "tokens": [sum(map(len, encode(side))) for side in (sources, wanted)],
        "words": sum(len(src.split()) for src in sources),
        "characters": sum(map(len, wanted)),
        "typed": {
            way: bleu(translator.translate(list(map(change, sources))), wanted).value
            for way, change in TYPED.items()
        },
        "examples": random.Random(0).sample(rows, 8),
    }


class Model(NamedTuple):
    "What a model is made of, what its live page begins with, and how it is measured."

    recipe: Recipe
    text: Callable[[Path | None], Corpus] = synthetic
    cases: Cases = ()
    is_everyday: bool = False  # learned with emoji, on one core
    given: str = ""  # the model from whose weights it starts
    examples: list[str] = []
    opening: Callable | None = None  # the head to open with, if none is known for "it"
    save_more: Callable[[Path, Path], None] | None = None
    measured: Callable[[Path, Path | None], dict] = on_grammar
    measured_too: Callable[[Path, Path | None], dict] | None = None  # in 8 bits alone


# the tiny recipe of Multi30k, wider, and with less dropout for more text
TATOEBA = override(
    get_recipe("multi30k-tiny"),
    "d_model=160 d_ff=576 max_steps=7200 batch_tokens=4096 max_len=100 precision=bf16 "
    "peak_lr=2.5e-3 warmup_steps=500 dropout=0.1 valid_every=500 save_every=250 "
    "average_last=0".split(),
)
MODELS = {
    # `tiny`, for longer
    "demo": Model(override(get_recipe("tiny"), ["max_steps=4000"]), cases=SYNTHETIC),
    # half as wide; a checkpoint and the validation loss at each of `MOMENTS`
    "learning": Model(
        override(
            get_recipe("tiny"),
            "d_model=64 d_ff=256 vocab_size=800 max_steps=6400 peak_lr=3e-3 "
            "valid_every=50 save_every=50 keep_last=128".split(),
        ),
        save_more=save_moments,
    ),
    # examples: both translations of "it", two clauses, one as people type it, an easy one
    "tatoeba": Model(
        TATOEBA,
        everyday,
        EVERYDAY,
        is_everyday=True,
        examples=[
            ANIMAL_TIRED.en,
            ANIMAL_WIDE.en,
            "If it doesn't rain tomorrow, we could go to the lake.",
            "she asked me if i could help her with her homework",
            "Where did you buy this book?",
        ],
        measured_too=on_real_text,
    ),
    # the sizes of `tatoeba`, and more dropout for less text
    "tatoeba-zh": Model(
        override(
            TATOEBA,
            "vocab_size=7000 max_steps=6500 batch_tokens=2048 peak_lr=1.5e-3 dropout=0.3 "
            "save_every=100 average_last=10".split(),
        ),
        everyday_zh,
        EVERYDAY,
        is_everyday=True,
        given="tatoeba",
        examples=[
            "She told me that she didn't want to go home.",
            "Hello, world!",
            "where is the nearest station",
        ],
        opening=aligning_head,
        measured=on_chinese,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=tuple(MODELS), nargs="?", default="demo")
    parser.add_argument(
        "--data-dir", type=Path, help="holds the text: tatoeba/ and so on"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="in place of the package's own folder")
    parser.add_argument("--work", type=Path, help="the run folder, kept")
    parser.add_argument("--scores", type=Path, help="a JSON file to write")
    args = parser.parse_args()
    model = MODELS[args.name]
    if model.is_everyday:
        torch.set_num_threads(1)
    recipe = override(model.recipe, [f"seed={args.seed}"])
    with tempfile.TemporaryDirectory() as scratch:
        run, start = args.work or Path(scratch) / "run", None
        text = model.text(args.data_dir)
        text = text._replace(train=with_copies(model, list(text.train)))
        if model.given:
            lines = (line for pair in text.train for line in pair)
            vocab = learn_bpe(lines, recipe.train.vocab_size)
            to = run.with_name(f"{run.name}-start")
            start = transferred(model.given, recipe, vocab, to)
        train_or_resume(text, recipe, run, start=start)
        out = args.out or PRETRAINED / args.name
        pack_run(model, run, out, list(text.valid)[:200])
        if model.save_more:
            model.save_more(run, out)
        measure = lambda path: model.measured(path, args.data_dir)
        scores = {"as trained": measure(run), "in 8 bits": measure(out)}
    if model.measured_too:
        scores |= model.measured_too(out, args.data_dir)
    n_bytes = sum(file.stat().st_size for file in out.iterdir())
    text = json.dumps({"bytes": n_bytes, **scores}, ensure_ascii=False, indent=1)
    print(f"{out}: {text}")
    if args.scores:
        args.scores.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
