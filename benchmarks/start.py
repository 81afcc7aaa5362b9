#!/usr/bin/env python
"""Time to the first translation: a process is started, loads a model, translates one line and ends.

    python benchmarks/start.py runs/small --out start.json
    tools/record.py results/start.json --command "…" --seed 0 --json start=start.json

Contenders, with the same weights and a beam of 4: `annotated-transformer translate RUN`; CTranslate2 with
SentencePiece; Hugging Face's `generate`; and `import torch` alone, for comparison. A round starts each
contender once. Printed are medians over rounds, in seconds of the clock and of processor time.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from annotated_transformer.export.ct2 import export_ct2
from annotated_transformer.export.hugging_face import export_hf

LINE = "A man in a blue shirt is standing on a ladder.\n"

CTRANSLATE2 = """
import sys, ctranslate2, sentencepiece
model, vocab = sys.argv[1:]
pieces = sentencepiece.SentencePieceProcessor(model_file=vocab)
engine = ctranslate2.Translator(model)
tokens = pieces.encode(sys.stdin.read().strip(), out_type=str)
found = engine.translate_batch([tokens], beam_size=4, max_input_length=0)
print(pieces.decode(found[0].hypotheses[0]))
"""

HUGGING_FACE = """
import sys
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1])
ids = tokenizer(sys.stdin.read().strip(), return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, num_beams=4)[0], skip_special_tokens=True))
"""


def commands(run: Path, folder: Path) -> dict[str, list[str]]:
    "The command of each contender; models are exported into `folder`."
    python = [sys.executable]
    found = {
        "import torch": [*python, "-c", "import torch"],
        "ours": [*python, "-m", "annotated_transformer", "translate", str(run)],
    }
    ct2 = export_ct2(run, folder / "ct2")
    vocab = str(run / "vocab.model")
    found["CTranslate2"] = [*python, "-c", CTRANSLATE2, str(ct2), vocab]
    export_hf(run, folder / "hf")
    found["Hugging Face"] = [*python, "-c", HUGGING_FACE, str(folder / "hf")]
    return found


def timed(command: list[str]) -> tuple[float, float, str]:
    "Seconds of the clock, of processor time, and what was printed."
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(
        command, input=LINE, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, processor, done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", help="write the figures as JSON")
    args = parser.parse_args()
    times: dict[str, list[tuple[float, float, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        contenders = commands(args.run, Path(folder))
        for i in range(args.rounds + 1):
            for name, command in contenders.items():
                found = timed(command)
                if i:  # the first round fills the caches of files
                    times.setdefault(name, []).append(found)
    result = {
        name: {
            "seconds": round(statistics.median(t[0] for t in found), 2),
            "processor_seconds": round(statistics.median(t[1] for t in found), 2),
            "translation": found[0][2],
        }
        for name, found in times.items()
    }
    torch_alone = result["import torch"]
    for name, found in result.items():
        above = found["seconds"] - torch_alone["seconds"]
        print(
            f"{name:14}{found['seconds']:6.2f} s, {above:+.2f} beyond import torch, "
            f"{found['processor_seconds']:.2f} s of processor time  {found['translation']}"
        )
    if args.out:
        Path(args.out).write_text(json.dumps(result, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
