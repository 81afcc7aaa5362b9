#!/usr/bin/env python
"""Pages in Traditional Chinese as in Taiwan: those in Simplified, converted by OpenCC and by the words of translations/zh-hant.yml.

tools/traditional.py TEXT    what becomes of a text
"""

import re
import shutil
import sys
from functools import cache
from pathlib import Path
from urllib.parse import quote

import yaml
from cells import ROOT, as_html, opened, settings
from lxml.html import HtmlComment, HtmlElement, fragment_fromstring

PLACE = "zh-hant"
SAYS = yaml.safe_load((ROOT / f"translations/{PLACE}.yml").read_text(encoding="utf-8"))
TEXTS = {".ipynb", ".js", ".json", ".svg", ".txt", ".xml"}


@cache
def converters(page: str):
    "OpenCC, the pattern of our words on a page, and what each becomes."
    from opencc import OpenCC  # a requirement of the site alone

    words = SAYS["pages"].get(page, {})
    words = words | {k: new for k, new in SAYS["words"].items() if k not in words}
    pattern = re.compile("|".join(f"({word})" for word in words))
    return OpenCC("s2twp").convert, pattern, [*words.values()]


def convert(text: str, page: str = "") -> str:
    "Simplified to Traditional: our words, OpenCC for what is between them, and other quotation marks."
    if text.isascii():
        return text
    (rest, pattern, ours), done = converters(page), []
    for piece in re.split(r'(["\n])', re.sub(r"‘(\w[^‘’]*\w)’", r"『\1』", text)):
        at = 0
        for m in () if piece.isascii() else pattern.finditer(piece):
            done += [rest(piece[at : m.start()]), ours[m.lastindex - 1]]
            at = m.end()
        done.append(piece if piece.isascii() else rest(piece[at:]))
    return "".join(done)


def change(el: HtmlElement, kept: set[str], page: str) -> None:
    "Convert texts and attributes of an element, but of those that `kept` names, and of what is in another language."
    is_ours = not isinstance(el, HtmlComment) and el.tag not in kept
    if not is_ours or not el.get("lang", "zh").startswith("zh"):
        return
    el.text = convert(el.text or "", page)
    for key, text in el.items():
        is_lang = key in ("lang", "xml:lang")
        el.set(key, SAYS["lang"] if is_lang else convert(text, page))
    for child in el:
        change(child, kept, page)
        child.tail = convert(child.tail or "", page)


def change_page(page: HtmlElement, name: str) -> None:
    "A finished page with its text converted, what it says about that, and the way back."
    is_kept = name in SAYS["kept"]
    change(page, {"code", "pre", "original-text", *(["main"] if is_kept else [])}, name)
    if is_kept:
        page.find(".//main").set("lang", "zh-Hans")
    title = quote(f"{name} ({SAYS['name']}): ")
    report = f"{settings()['git_url']}/issues/new?title={title}"
    note = SAYS["kept_note" if is_kept else "note"].format(report)
    for row in page.find_class("page-links")[:1]:
        row.addnext(fragment_fromstring(f'<p class="way">{note}</p>'))
        [back] = row.xpath("a[@lang=$lang]", lang=SAYS["lang"])
        back.text = "简体"
        way = {"lang": "zh-Hans", "hreflang": "zh", "href": f"../{SAYS['of']}/{name}"}
        back.attrib.update(way)


def write(docs: Path, home: str) -> None:
    "All of the folder of finished pages in Simplified Chinese, converted where it is text of ours."
    simplified, to = docs / SAYS["of"], docs / PLACE
    own = rf'(?<!hreflang="{SAYS["of"]}" href="){home}/{SAYS["of"]}/'
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(simplified, to)
    for file in [*to.glob("*.*"), *to.glob("notebooks/*"), *to.glob("images/*")]:
        if file.suffix == ".html":
            page = opened(file)
            change_page(page, file.name)
            text = as_html(page)
        elif file.suffix in TEXTS:
            text = convert(file.read_text(encoding="utf-8"))
        else:
            continue
        text = re.sub(own, f"{home}/{PLACE}/", text)
        text = text.replace(f"/{SAYS['of']}/notebooks/", f"/{PLACE}/notebooks/")
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    print(convert(" ".join(sys.argv[1:])))
