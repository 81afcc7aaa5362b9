#!/usr/bin/env python
"""The live page in a browser: how exact, how large and how fast it is, and what weights in 8 bits cost.

    python benchmarks/live.py --data /data --out live.json
    tools/record.py results/live.json --command "…" --seed 0 --json live=live.json

The model is a pretrained one, `demo` unless --model names another. Logits and translations of the page are compared with PyTorch's, token
ids with SentencePiece's. The page is opened in a headless Chromium without a network. What packing costs is measured on the runs that
--unpacked names, on the synthetic corpus, and also how they translate what is typed in lower case, in capitals or with ’. --data is a folder
that holds multi30k/.
"""

import gzip
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from measuring import ROOT, options, write

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from browser import Browser  # noqa: E402
from engine import Engine, lines_of, logits_of, pairs_of, plain_model  # noqa: E402
from pretrain import exact_as_typed  # noqa: E402

from annotated_transformer.data.grammar import builtin  # noqa: E402
from annotated_transformer.data.vocab import learn_bpe  # noqa: E402
from annotated_transformer.runs.folder import (  # noqa: E402
    Run,
    load_run,
    pretrained_run,
)
from annotated_transformer.runs.weights import pack_weights, unpack_weights  # noqa: E402
from annotated_transformer.show.live import pack_model, write_live_page  # noqa: E402
from annotated_transformer.translating.load import load  # noqa: E402
from annotated_transformer.translating.translate import Translator  # noqa: E402

N = 10  # sentences at once: the browser answers within its time limit
# of news, mail and talk, written down before any model had seen them
SENTENCES = (
    "The government announced on Tuesday that it would raise taxes on fuel.",
    "More than 2,000 people were evacuated after the earthquake in northern Chile.",
    "The central bank left interest rates unchanged, which surprised most analysts.",
    "Police are looking for two men who robbed a jewellery shop in Leeds.",
    "Scientists have discovered a new species of frog in the rainforest.",
    "The team lost 3–1 at home and is now last in the table.",
    "Dear Ms. Schneider, thank you for your message of 12 May.",
    "could you send me the file again? i can't open it",
    "I'm sorry for the late reply, I was on holiday last week.",
    "Please find attached the invoice for October.",
    "Let's meet on Thursday at half past nine, if that works for you.",
    "The printer on the second floor is broken again.",
    "It's raining cats and dogs.",
    "He finally spilled the beans.",
    "Break a leg!",
    "That's a piece of cake.",
    "Don't count your chickens before they hatch.",
    "She has bigger fish to fry.",
    "“I don’t believe you,” she said.",
    "He’s reading a book called “The Old Man and the Sea”.",
    "‘That’s not what I meant,’ he replied.",
    "where is the nearest train station",
    "what time is it",
    "my brother lives in berlin and works as a nurse",
    "I NEED HELP!",
    "I love this song ❤️",
    "See you tomorrow 👋",
    "We won! 🎉🎉",
    "Colorless green ideas sleep furiously.",
    "The animal didn't cross the street because it was too tired.",
)


def largest_difference(engine: Engine, name: str, run: Run, n: int) -> float:
    "Of the logits of n held-out sentences, from PyTorch's."
    pairs, model, worst = pairs_of(run.vocab, n), plain_model(run), 0.0
    for i in range(0, n, N):
        some = pairs[i : i + N]
        for logits, pair in zip(engine.logits(name, some), some, strict=True):
            worst = max(worst, float((logits - logits_of(model, pair)).abs().max()))
    return worst


def translations(engine: Engine, run: Run, sentences: Sequence[str]) -> Iterator[str]:
    "The best hypotheses of the page's beam search."
    for i in range(0, len(sentences), N):
        some = map(run.vocab.encode_source, sentences[i : i + N])
        rows = [[*ids, run.vocab.eos_id] for ids in some]
        for one in engine.search("int8", rows, {}):
            yield run.vocab.decode(one["hypotheses"][0]["ids"])


def compared(engine: Engine, run: Run, translator: Translator, n: int) -> dict:
    "Translations by the page and by PyTorch: how many of n held-out ones are equal, and those of `SENTENCES`."
    held_out = [s.en for s in builtin(n, seed=1, split="test")]
    sentences = [*held_out, *SENTENCES]
    wanted, found = (
        translator.translate(sentences),
        translations(engine, run, sentences),
    )
    rows = list(zip(sentences, found, wanted, strict=True))
    keys = "source", "page", "pytorch"
    return {
        "n_translations": n,
        "n_equal_translations": sum(page == other for _, page, other in rows[:n]),
        "unprepared": [dict(zip(keys, row)) for row in rows[n:]],
    }


def equal_ids(engine: Engine, run: Run, data: Path | None) -> dict:
    "Lines whose ids are SentencePiece's: of grammar and rude ones, and of Multi30k."
    lines = lines_of(10_000)
    same = sum(
        map(list.__eq__, engine.ids("int8", lines), map(run.vocab.encode, lines))
    )
    counts = {"n_lines": len(lines), "n_equal": same}
    if data:
        text = []
        for side in ("en", "de"):
            raw = gzip.open(data / f"multi30k/train.{side}.gz").read().decode()
            text += raw.split("\n")[:5000]
        vocab = learn_bpe(text, n_pieces=8000)
        engine.add("large", pack_model(run._replace(vocab=vocab)))
        found = engine.ids("large", text)
        counts["n_multi30k_lines"] = len(text)
        counts["n_multi30k_equal"] = sum(
            map(list.__eq__, found, map(vocab.encode, text))
        )
        counts["multi30k_tokens"] = len(vocab)
    return counts


def milliseconds(engine: Engine, run: Run, n: int) -> dict:
    "Per token of greedy search, and per sentence of beam search with four hypotheses."
    rows = [pair[0] for pair in pairs_of(run.vocab, n)]
    timed = """(model, rows) => {
        const [greedyTimes, beamTimes] = [[], []];
        for (const ids of rows) {
          let began = performance.now();
          const {hypotheses: [best]} = greedy(model, ids);
          greedyTimes.push((performance.now() - began) / best.tokenLogProbs.length);
          began = performance.now();
          beamSearch(model, ids);
          beamTimes.push(performance.now() - began);
        }
        return {greedyTimes, beamTimes};
    }"""
    found: dict[str, list[float]] = {"greedyTimes": [], "beamTimes": []}
    for i in range(0, n, N):
        for name, times in engine.ask(timed, "@int8", rows[i : i + N]).items():
            found[name] += times
    per_token, per_sentence = map(sorted, (found["greedyTimes"], found["beamTimes"]))
    return {
        "greedy_ms_per_token": per_token[n // 2],
        "greedy_ms_per_token_p95": per_token[n * 95 // 100],
        "beam_ms_per_sentence": per_sentence[n // 2],
    }


def first_translation(browser: Browser, page: Path) -> float:
    "Seconds from opening the page to the first translation in it."
    began = time.perf_counter()
    browser.open(page.as_uri())
    shown = 'document.getElementById("result").textContent.trim() !== ""'
    while not browser.ask(shown):
        if time.perf_counter() - began > 60:
            raise RuntimeError("no translation within a minute")
        time.sleep(0.005)
    return time.perf_counter() - began


def exact(run: Run, n: int) -> tuple[int, list[str]]:
    sentences = builtin(n, seed=1, split="test")
    found = Translator(run.model, run.vocab).translate([s.en for s in sentences])
    return sum(h == s.de for h, s in zip(found, sentences, strict=True)), found


def cost_of_packing(path: Path, n: int) -> dict:
    "Exact matches as trained, in 8 bits, and of other typing; changed translations."
    run = load_run(path)
    before, translations = exact(run, n)
    packed = unpack_weights(pack_weights(dict(run.model.state_dict())))
    run.model.load_state_dict(packed)
    after, again = exact(run, n)
    changed = sum(map(str.__ne__, translations, again))
    return {
        "n": n,
        "exact": before,
        "exact_int8": after,
        "n_changed": changed,
        "typed": exact_as_typed(path, n),
    }


def figures(run: Run, folder: Path, data: Path | None, scratch: Path) -> dict:
    "What the page in the browser does."
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    page = scratch / "live.html"
    write_live_page(folder, page)
    with Browser(chromium, scratch / "profile") as browser:
        seconds = sorted(first_translation(browser, page) for _ in range(5))
        engine = Engine(browser, scratch)
        for weights in ("int8", "fp32"):
            engine.add(weights, pack_model(run, weights))
        return {
            "n_parameters": sum(p.numel() for p in run.model.parameters()),
            "pretrained_bytes": sum(f.stat().st_size for f in folder.iterdir()),
            "page_bytes": page.stat().st_size,
            "seconds_to_first_translation": seconds[2],
            "n_logit_sentences": 200,
            "logit_difference_int8": largest_difference(engine, "int8", run, 200),
            "logit_difference_fp32": largest_difference(engine, "fp32", run, 200),
            **compared(engine, run, load(folder), 500),
            **equal_ids(engine, run, data),
            **milliseconds(engine, run, 100),
            "browser": browser.ask("navigator.userAgent.match(/Chrome.(\\d+)/)[0]"),
        }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--unpacked", type=Path, nargs="*", default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", default="demo")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder, began = pretrained_run(Path(args.model)), time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        found = figures(load_run(folder), folder, args.data, Path(scratch))
    found["packing"] = {p.name: cost_of_packing(p, 1000) for p in args.unpacked}
    found["cpu_seconds"] = round(time.process_time() - began, 1)
    print(json.dumps(found, indent=1))
    write(args.out, found)


if __name__ == "__main__":
    main()
