#!/usr/bin/env python
"""What the kernel of each notebook of the sessions in `nbs/teaching.ipynb` needs: processor time and memory.

    python results/teaching.py --out teaching.json
    tools/record.py results/teaching.json --command "…" --seed 0 --json teaching=teaching.json

Each notebook runs once, in a kernel of its own, with one thread. Memory is the largest that was resident. Processor time counts no
waiting, so other work on the machine changes it little. Linux alone. Takes about ten minutes of one core.
"""

import argparse
import json
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NBS = Path(__file__).resolve().parent.parent / "nbs"
NAMES = """01_one_page 321_attention 322_multi_head 323_masking 33_feed_forward
31_stack 34_embedding 35_position 36_transformer 36a_bug_hunt 51b_vocab 51c_batch
52_train 53_optimizer 54_label_smoothing 61a_decode 61c_evaluate 80b_heads workbook"""
LAST = """import resource
_used = resource.getrusage(resource.RUSAGE_SELF)
print(_used.ru_utime + _used.ru_stime, _used.ru_maxrss / 1024)"""


def measure(name: str) -> dict[str, float]:
    "Seconds of the processor and MiB of memory of a notebook's kernel."
    nb = nbformat.read(NBS / f"{name}.ipynb", 4)
    nb.cells.append(nbformat.v4.new_code_cell(LAST))
    resources = {"metadata": {"path": str(NBS)}}
    options = {"timeout": 1800, "resources": resources, "coalesce_streams": True}
    NotebookClient(nb, **options).execute(env=os.environ | {"OMP_NUM_THREADS": "1"})
    seconds, mib = map(float, nb.cells[-1].outputs[0].text.split())
    return {"seconds": round(seconds, 1), "mib": round(mib)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", nargs="+", default=NAMES.split())
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    found = {}
    for name in args.names:
        found[name] = measure(name)
        print(name, found[name], flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
