#!/usr/bin/env python
"""How the notebooks are written: counts that a reader's stumbles go with.

python tools/prose.py                    a row for each notebook
python tools/prose.py 321 36 --show      also each sentence that was counted

Counted in the text of notebooks and in README.md and CONTRIBUTING.md, without code, formulas, links' addresses and tables'
rules: words; `word` beside `token`; paragraphs with more than one colon; sentences that open with So or And; terms of our
own where the field has another.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

# Terms of our own, and the field's. A pattern is one that a sentence about something else rarely holds.
TERMS = {
    r"pieces?\b(?! of (?:code|text|paper))": "token",
    r"(?:looks?|looked|looking) at (?:the|all|every|each|no|which|itself)"
    r" (?:keys?|words?|tokens?|positions?|places?)": "attends to",
    r"may look": "is allowed to attend",
    r"the way around": "residual connection",
    r"over the memory": "cross-attention",
    r"(?:kept|keeps the) keys and values": "KV cache",
    r"slots?": "KV cache",
    r"words said|(?:was|were|is|are|been|it) said(?! (?:in|by|above|below|to be)\b)": "generated tokens, prefix",
    r"the right (?:word|token|piece)": "the target token",
    r"what bends|bends": "nonlinearity, activation",
    r"(?:its|their|a|the) spread": "standard deviation or variance",
    r"how the numbers start": "initialisation",
    r"slopes?": "gradient, derivative",
    r"(?:learn(?:ed|s|t)?|known|know) by heart": "overfitted, memorised",
    r"made-up text|our own text|made-up sentences": "synthetic corpus",
    r"(?:start|end) symbols?": "BOS, EOS",
    r"parts? (?:that (?:is|are)|which (?:is|are)) given": "an injected module",
    r"a training\b(?! (?:run|step|set|loop|loss|corpus|batch|example|sentence|pair|data|curve|script|text|objective))": "a run",
    r"(?:never saw|has never seen|never seen|unseen sentences)": "held-out sentences",
    r"right to the letter|to the letter": "exact match",
    r"(?:a|each|every|per|one) look\b|looks at the validation": "a validation pass",
    r"beside\b": "next to",
    r"hardly\b": "barely",
    r"nowhere to look|looks? nowhere": "fully masked",
}
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z“\"*_`])")


class Text(NamedTuple):
    name: str
    paragraphs: list[str]


class Counts(NamedTuple):
    words: int
    word: int  # the noun "word", in any number
    token: int
    colons: int  # paragraphs with more than one colon
    openings: int  # sentences that open with So or And
    terms: int


def plain(markdown: str) -> str:
    "What a reader reads as prose: no code, formula, tag or address."
    text = re.sub(r"```.*?```|\$\$.*?\$\$|<!--.*?-->", " ", markdown, flags=re.S)
    text = re.sub(r"`[^`]*`|\$[^$\n]*\$|<[^>]+>", " x ", text)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|^\[[^\]]+\]: \S+$", " ", text, flags=re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def paragraphs(markdown: str) -> Iterator[str]:
    "Paragraphs, items of lists, cells of tables and headings, each by itself."
    for block in re.split(r"\n\s*\n", plain(markdown)):
        for part in re.split(r"\n(?=\s*(?:[-*]|\d+\.|#+|\|)\s)|\|", block):
            text = re.sub(r"^\s*(?:[-*>]|\d+\.|#+)\s+", "", " ".join(part.split()))
            if re.search(r"\w", text):
                yield text


def texts() -> Iterator[Text]:
    "Every text, notebooks first."
    for path in sorted((ROOT / "nbs").glob("[!_.]*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        prose = ["".join(c["source"]) for c in cells if c["cell_type"] == "markdown"]
        yield Text(path.stem, [p for text in prose for p in paragraphs(text)])
    for name in ("README.md", "CONTRIBUTING.md"):
        yield Text(name, list(paragraphs((ROOT / name).read_text(encoding="utf-8"))))


def terms_of(paragraph: str) -> list[tuple[str, str]]:
    "What was written, and the field's term, for each of our own terms in a paragraph."
    return [
        (found[0], better)
        for pattern, better in TERMS.items()
        for found in re.finditer(rf"\b(?:{pattern})", paragraph, re.I)
    ]


def opens_badly(paragraph: str) -> list[str]:
    "The sentences that open with So or And."
    return [s for s in SENTENCE.split(paragraph) if re.match(r"(?:So|And)\b", s)]


def count(text: Text) -> Counts:
    whole = "\n".join(text.paragraphs)
    return Counts(
        words=len(re.findall(r"\w[\w’'-]*", whole)),
        word=len(re.findall(r"\bwords?\b", whole, re.I)),
        token=len(re.findall(r"\b(?:sub)?tokens?\b", whole, re.I)),
        colons=sum(len(re.findall(r":(?=\s|$)", p)) > 1 for p in text.paragraphs),
        openings=sum(len(opens_badly(p)) for p in text.paragraphs),
        terms=sum(len(terms_of(p)) for p in text.paragraphs),
    )


def show(text: Text) -> None:
    "Each place that was counted."
    for p in text.paragraphs:
        for written, better in terms_of(p):
            print(f"  {written!r} → {better}: {p[:160]}")
        for sentence in opens_badly(p):
            print(f"  opens with So or And: {sentence[:160]}")
        if len(re.findall(r":(?=\s|$)", p)) > 1:
            print(f"  colons: {p[:200]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="how the texts' names begin; all")
    parser.add_argument(
        "--show", action="store_true", help="each place that was counted"
    )
    args = parser.parse_args()
    chosen = [
        t for t in texts() if not args.names or t.name.startswith(tuple(args.names))
    ]
    rows = [(t.name, count(t)) for t in chosen]
    rows.append(("all", Counts(*map(sum, zip(*(c for _, c in rows))))))
    print(
        f"{'':22}{'words':>8}{'word':>7}{'token':>7}{'colons':>8}{'So/And':>8}{'terms':>7}"
    )
    for name, c in rows:
        print(
            f"{name:22}{c.words:8}{c.word:7}{c.token:7}{c.colons:8}{c.openings:8}{c.terms:7}"
        )
        if args.show:
            show(next((t for t in chosen if t.name == name), Text(name, [])))


if __name__ == "__main__":
    main()
