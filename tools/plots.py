"""Figures of matplotlib as notebooks store them beside the PNG: SVG on one line, colours that a page may set, words that may be translated."""

import re
from collections.abc import Iterator
from html import escape, unescape
from pathlib import Path

from lxml.html import HtmlElement, fragment_fromstring
from lxml.html.builder import CLASS, SPAN

# Colours of text, axes, paper and curves (notebook 80), and the names by which a page sets them. In a figure with any other colour, or with an
# image, dark and light mean something: it keeps all of its colours, on white.
NAMED = {
    "#22262b": "ink",
    "#000000": "ink",
    "#ffffff": "paper",
    "#16345a": "curve-0",
    "#d1672b": "curve-1",
    "#5fa0cf": "curve-2",
    "#8c5a86": "curve-3",
    "#c9a227": "curve-4",
    "#6f7680": "curve-5",
}
COLOUR = r"(?<=fill: |roke: )#[0-9a-f]{6}"
NUMBER = r"\d+(?:[.,]\d+)*"
LEAST = 9.1  # pixels of the letters of a figure on a phone, at the least
PADDING = 14  # pixels, of a figure on white


def stored(svg: str) -> str:
    "What matplotlib writes, on one line: coordinates to a hundredth of a point, no names of groups and images, the colours as `NAMED`."
    svg = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"\s+", " ", svg).replace("> <", "><").strip()
    short = lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0])
    svg = re.sub(r"<[^>]+>", short, svg)
    svg = re.sub(r'(<g|<image\b[^>]*?) id="[^"]*"', r"\1", svg)
    svg = re.sub(r"'DejaVu Sans',.*?sans-serif", "'DejaVu Sans', sans-serif", svg)
    fixed = "<image" in svg or set(re.findall(COLOUR, svg)) - NAMED.keys()
    if not fixed:
        svg = re.sub(COLOUR, lambda m: f"var(--{NAMED[m[0]]}, {m[0]})", svg)
    # the rule for all elements, which in a page would be for all of the page
    svg = re.sub(r"<defs><style[^>]*>\*\{([^}]*)\}</style></defs>", "", svg)
    of_lines = "stroke-linejoin: round; stroke-linecap: butt"
    kind = "plot on-white" if fixed else "plot"
    return svg.replace("<svg", f'<svg class="{kind}" style="{of_lines}"', 1)


def stored_figures(nb: dict) -> Iterator[dict]:
    "The data of outputs of a notebook that are figures."
    for cell in nb["cells"]:
        for out in cell.get("outputs", []):
            data = out.get("data", {})
            if {"image/png", "image/svg+xml"} <= data.keys():
                yield data


def words_of(svg: str) -> list[str]:
    "The texts that a stored figure shows, with # for each number."
    texts = map(unescape, re.findall(">([^<]+)</text>", svg))
    return [re.sub(NUMBER, "#", text) for text in texts]


def translate(svg: str, words: dict[str, str]) -> str:
    "A stored figure whose texts are those of a language, as far as it has them; numbers stay, in `words` they are #."

    def said(m: re.Match) -> str:
        text = unescape(m[0])
        own, numbers = words.get(re.sub(NUMBER, "#", text)), re.findall(NUMBER, text)
        if own is None:
            return m[0]
        return escape(re.sub("#", lambda _: numbers.pop(0), own), quote=False)

    return re.sub("(?<=>)[^<]+(?=</text>)", said, svg)


def write_figures(page: HtmlElement, folder: Path) -> None:
    "Put the figures into the page in place of links to them, so that they take its colours; on a phone they can be moved sideways."
    for n, img in enumerate(page.xpath("//main//img[contains(@src, '/figure-html/')]")):
        if not img.get("src").endswith(".svg"):
            continue
        text = (folder / img.get("src")).read_text(encoding="utf-8")
        text = re.sub(r'(\bid="|href="#|url\(#)', rf"\1figure-{n}-", text)
        svg = fragment_fromstring(text)
        svg.attrib.update({"role": "img", "aria-label": img.get("alt", "")})
        width = float(svg.get("width").removesuffix("pt"))
        smallest = min(map(float, re.findall(r"([\d.]+)px", text)), default=LEAST)
        least = f"--least: {width * LEAST / smallest + PADDING:.0f}px"
        img.getparent().replace(img, SPAN(svg, CLASS("drawing"), style=least))
