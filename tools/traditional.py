#!/usr/bin/env python
"""Pages in Traditional Chinese as in Taiwan: those in Simplified, converted by OpenCC and by the words of translations/zh-hant.yml.

tools/traditional.py TEXT    what becomes of a text
"""

import re
import shutil
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import yaml
from cells import ROOT, settings

PLACE = "zh-hant"
SAYS = yaml.safe_load((ROOT / f"translations/{PLACE}.yml").read_text(encoding="utf-8"))


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


class Converted(HTMLParser):
    "HTML whose text, attributes and scripts are converted; what `kept` names and what is in another language stays."

    def __init__(self, text: str, kept: set[str], page: str = ""):
        super().__init__(convert_charrefs=False)
        self.kept, self.out, self.page = kept, [], page
        self.within, self.depth = (
            "",
            0,
        )  # an element that stays, and how deep in its like
        self.feed(text)
        self.close()

    def handle_data(self, text):
        self.out.append(text if self.within else convert(text, self.page))

    def handle_starttag(self, tag, attrs):
        text, lang = self.get_starttag_text(), dict(attrs).get("lang") or "zh"
        if not self.within and (tag in self.kept or not lang.startswith("zh")):
            self.within = tag
            text = text.replace("<main", '<main lang="zh-Hans"')
        elif not self.within:
            lang = f'lang="{SAYS["lang"]}"'
            text = convert(re.sub(r'(?<!href)lang="zh[\w-]*"', lang, text), self.page)
        self.depth += tag == self.within
        self.out.append(text)

    def handle_endtag(self, tag):
        self.out.append(f"</{tag}>")
        self.depth -= tag == self.within
        self.within = self.within if self.depth else ""

    def handle_startendtag(self, tag, attrs):
        text = self.get_starttag_text()
        self.out.append(text if self.within else convert(text))

    def handle_entityref(self, name):
        self.out.append(f"&{name};")

    def handle_charref(self, name):
        self.out.append(f"&#{name};")

    def handle_comment(self, text):
        self.out.append(f"<!--{text}-->")

    def handle_decl(self, text):
        self.out.append(f"<!{text}>")


def page(text: str, name: str) -> str:
    "A finished page with its text converted, what it says about that, and the way back."
    is_kept = name in SAYS["kept"]
    elements = {"code", "pre", "original-text", *(["main"] if is_kept else [])}
    made = "".join(Converted(text, elements, name).out)
    title = quote(f"{name} ({SAYS['name']}): ")
    report = f"{settings()['git_url']}/issues/new?title={title}"
    note = SAYS["kept_note" if is_kept else "note"].format(report)
    row = r'(<nav class="page-links".*?)<a lang="{lang}".*?</a>(.*?</nav>)'.format(
        **SAYS
    )
    back = f'<a lang="zh-Hans" hreflang="zh" href="../{SAYS["of"]}/{name}">简体</a>'
    new = rf'\1{back}\2<p class="way">{note}</p>'
    return re.sub(row, new, made, count=1, flags=re.S)


def write(docs: Path, home: str) -> None:
    "All of the folder of finished pages in Simplified Chinese, converted where it is text of ours."
    simplified, to = docs / SAYS["of"], docs / PLACE
    shutil.rmtree(to, ignore_errors=True)
    own = rf'(?<!hreflang="{SAYS["of"]}" href="){home}/{SAYS["of"]}/'
    shutil.copytree(simplified, to)
    for file in [*to.glob("*.*"), *to.glob("notebooks/*"), *to.glob("images/*")]:
        if file.suffix in (".html", ".ipynb", ".js", ".json", ".svg", ".txt", ".xml"):
            text = file.read_text(encoding="utf-8")
            made = page(text, file.name) if file.suffix == ".html" else convert(text)
            made = re.sub(own, f"{home}/{PLACE}/", made).replace(
                f"/{SAYS['of']}/notebooks/", f"/{PLACE}/notebooks/"
            )
            file.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    print(convert(" ".join(sys.argv[1:])))
