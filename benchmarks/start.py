#!/usr/bin/env python
"""Time to the first translation: a process is started, loads a model, translates one line and ends.

    python benchmarks/start.py runs/small --out start.json
    tools/record.py results/start.json --command "…" --seed 0 --json start=start.json

Contenders, with the same weights and a beam of 4: `annotated-transformer translate RUN`; CTranslate2 with
SentencePiece; Hugging Face's `generate`; and `import torch` alone, for comparison. A round starts each
contender once. Printed are medians over rounds, in seconds of the clock and of processor time.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import middle, options, write

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


def commands(run: Path, folder: Path) -> dict[str, list]:
    "The command of each contender; models are exported into `folder`."
    ct2, hf = export_ct2(run, folder / "ct2"), export_hf(run, folder / "hf")
    return {
        "import torch": ["-c", "import torch"],
        "ours": ["-m", "annotated_transformer", "translate", run],
        "CTranslate2": ["-c", CTRANSLATE2, ct2, run / "vocab.model"],
        "Hugging Face": ["-c", HUGGING_FACE, hf],
    }


def processor() -> float:
    "Seconds of all processes that have ended."
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command: list) -> tuple[float, float, str]:
    "Seconds of the clock, of processor time, and what was printed."
    before, began = processor(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        input=LINE,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - began
    return seconds, processor() - before, done.stdout.strip()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        contenders = commands(args.run, Path(folder))
        rounds = [
            {name: timed(command) for name, command in contenders.items()}
            for _ in range(args.rounds + 1)
        ][1:]  # the first one fills the caches of files
    result = {
        name: {
            "seconds": middle((r[name][0] for r in rounds), 2),
            "processor_seconds": middle((r[name][1] for r in rounds), 2),
            "translation": rounds[0][name][2],
        }
        for name in contenders
    }
    for name, found in result.items():
        print(f"{name:14}{found}")
    write(args.out, result)


if __name__ == "__main__":
    main()
