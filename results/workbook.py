#!/usr/bin/env python
"""The training of the workbook's own functions, which its last figure draws next to the reader's.

    python results/workbook.py --out workbook.json
    tools/record.py results/workbook.json --command "…" --seed 0 --json workbook=workbook.json

Takes one or two minutes of two cores.
"""

import argparse
import json
from pathlib import Path

from annotated_transformer.experiments.workbook import TASKS, by_hand, train_functions

SENTENCE = "The animal didn't cross the street because it was too {}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    trained = train_functions({name: by_hand(name) for name in TASKS}, args.steps)
    texts = [SENTENCE.format(adjective) for adjective in ("tired", "wide")]
    found = {
        "losses": [round(loss, 4) for loss in trained.losses],
        "translations": {text: trained.translate(text) for text in texts},
    }
    args.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
