#!/usr/bin/env python
"""The site: what stands beside the pages that Quarto makes, and the pages in other languages.

tools/publish.py FOLDER    after nbdev_docs, which wrote the English pages to FOLDER from _proc/
"""

import json
import os
import re
import shutil
import subprocess
import sys
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import traditional
import yaml
from cells import (
    CAPTION,
    INSTALLS,
    ROOT,
    as_markdown,
    heading,
    joined,
    markdown_of,
    page_name,
    retarget,
    settings,
    titled,
)
from evening import write_lessons
from pages import BRANCH, leave_site
from translate import ORIGINAL, begun, languages, site, terms, translated
from vl_convert import javascript_bundle

HOME = settings()["doc_host"] + settings()["doc_baseurl"]
CHARTS = """for (const box of document.querySelectorAll(".chart")) {
    const spec = JSON.parse(box.querySelector("script").textContent);
    delete spec.$schema;  // of an older Vega-Lite, which the newer reads
    vegaEmbed(box.querySelector("div"), spec, {mode: "vega-lite", actions: false, renderer: "svg"});
}"""


# ---- which pages


def sidebar() -> dict[str, list[Path]]:
    "The sidebar of _quarto.yml, in order: the notebooks of each part; the home page is in none."
    quarto = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    return {
        part.get("section", ""): [
            ROOT / "nbs" / name for name in part.get("contents", [part.get("href")])
        ]
        for part in quarto["website"]["sidebar"]["contents"]
    }


def every_page() -> list[Path]:
    return [path for paths in sidebar().values() for path in paths]


NEXT = r"^\*Next:\*.*?\]\((?P<next>\w+\.ipynb)"


def reading_path() -> list[Path]:
    "Where the first link after *Next:* leads from page to page: the evening path, and on."
    path, name = [], "01_one_page.ipynb"
    while name and ROOT / "nbs" / name not in path:
        path.append(ROOT / "nbs" / name)
        cells = json.loads(path[-1].read_text(encoding="utf-8"))["cells"]
        found = re.search(NEXT, joined(cells[-1]["source"]), re.M)
        name = found and found["next"]
    return path


LESSON = r"^\d+\. \[[^\]]*\]\((\w+\.ipynb)\)"


def evening_path() -> list[Path]:
    "The lessons that the page of the evening path lists."
    cells = json.loads((ROOT / "nbs/evening.ipynb").read_text(encoding="utf-8"))[
        "cells"
    ]
    text = "\n\n".join(joined(cell["source"]) for cell in cells)
    return [ROOT / "nbs" / name for name in re.findall(LESSON, text, re.M)]


# ---- a page elsewhere: as Markdown, and in Colab


def link(target: str) -> str:
    "Where a link of a notebook leads on its page."
    file, hash_, anchor = target.partition("#")
    return page_name(Path(file)) + hash_ + anchor if file.endswith(".ipynb") else target


def absolute(text: str, cfg: dict[str, str]) -> str:
    "Markdown of a notebook that is read elsewhere: notebooks become pages of the site, files of the repository are linked there."
    return retarget(leave_site(text, cfg), lambda target: f"{HOME}/{link(target)}")


def this_version() -> str:
    "The commit or tag that the pages were made from, as GitHub names its archive."
    command = ["git", "rev-parse", "HEAD"]
    git = shutil.which("git") and subprocess.run(
        command, cwd=ROOT, stdout=-1, text=True
    )
    return git.stdout.strip() if git and git.stdout else f"v{settings()['version']}"


FIGURE = (
    r'!\[(?P<caption>.*?)\]\((?P<file>[^)]*)\)\{#fig-\S+ fig-alt="(?P<alt>[^"]*)"\}'
)
RAW = r"^(?P<ticks>`{3,})\{=html\}$.*?^(?P=ticks)$|<!--.*?-->"


def plain(path: Path, processed: Path) -> str:
    "A page as Markdown alone: what language models and terminals read."
    about = heading(path)[1]

    def picture(opts: dict, n: int) -> str:
        file = f"{path.stem}_files/figure-html/{opts['label']}-output-{n}.png"
        return f"![{opts['fig-alt']}]({file})"

    nb = json.loads(processed.read_text(encoding="utf-8"))
    text = "\n\n".join(as_markdown(nb, path.name, picture))
    text = re.sub(RAW, "", text, flags=re.M | re.S)
    text = re.sub(FIGURE, rf"![\g<alt>](\g<file>)\n\n{CAPTION}\g<caption>", text)
    text = re.sub(r"\n{3,}", "\n\n", retarget(text, link)).strip()
    return f"# {titled(path)}\n\n{about}\n\n{text}\n"


def for_colab(nb: dict) -> dict:
    "A notebook whose links lead to the site from anywhere, and which installs this very version."
    cfg = settings()
    for cell in nb["cells"]:
        for kept, kind, text in markdown_of(cell):
            kept[kind] = absolute(text, cfg)
        if cell.get("id") == INSTALLS:
            cell["source"] = joined(cell["source"]).replace(
                "/archive/HEAD.zip", f"/archive/{this_version()}.zip"
            )
    return nb


def llms_txt() -> str:
    "Every page as Markdown, with what it is about, in the order of the sidebar."
    cfg = settings()
    lines = [f"# {cfg['title']}\n\n> {cfg['description']}\n"]
    for part, paths in sidebar().items():
        lines += [f"\n## {part}\n"] if part else []
        for path in paths:
            link = f"- [{titled(path)}]({HOME}/{page_name(path)}.md)"
            lines.append(": ".join(filter(None, [link, heading(path)[1]])))
    return "\n".join([*lines, ""])


# ---- search, and the way from page to page

# Of a page's HTML, for search.
NOT_FOUND = "annotation|original-text|footer|iframe|nav|script|style|summary|svg"
IN_LINE = "a|b|code|em|i|kbd|m[a-z]+|small|span|strong|sub|sup"
IMPORTS = r"<details[^>]*>\s*<summary>Imports</summary>.*?</details>"
DEFINITION = (
    r'(?P<places>(?:<span class="place" id="[^"]+"></span>)+)\s*(?P<code>.*?</pre>)'
)
HEADING = r'<h[23][^>]*? (?:data-anchor-)?id="([^"]+)"[^>]*>(.*?)</h[23]>'


def sections(page: str) -> list[tuple[str, str, str]]:
    """What search looks through: (anchor, heading, text) of a page's sections and definitions.

    Without imports, drawings, scripts, links that every page has, and the TeX beside MathML. A definition's code is its own entry's alone.
    """

    def words(html: str) -> str:
        html = re.sub(rf"</?(?:{IN_LINE})\b[^>]*>", "", html)
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())

    def define(m: re.Match) -> str:
        code = words(m["code"])
        for anchor in re.findall(r'id="([^"]+)"', m["places"]):
            name = re.search(rf"(?:class|def) ({anchor})\b", code, re.I)[1]
            definitions.append((anchor, name, code))
        return ""

    definitions = []
    text = re.search(r"</h1>(.*)</main>", page, re.S)[1]
    text = re.sub(rf"<({NOT_FOUND})\b.*?</\1>|{IMPORTS}", " ", text, flags=re.S)
    text = re.sub(DEFINITION, define, text, flags=re.S)
    first, *rest = re.split(HEADING, text, flags=re.S)
    heads = zip(rest[::3], map(words, rest[1::3]), map(words, rest[2::3]), strict=True)
    return [("", "", words(first)), *heads, *definitions]


def write_search(folder: Path) -> None:
    "The index of Quarto's search, whose texts are HTML, with our sections; its trail of parts is kept."
    index, entries = folder / "search.json", []
    for old in json.loads(index.read_text(encoding="utf-8")):
        if "#" in old["href"]:
            continue
        page = (folder / old["href"]).read_text(encoding="utf-8")
        for anchor, section, text in sections(page):
            href = f"{old['href']}#{anchor}".rstrip("#")
            new = {"objectID": href, "href": href, "section": section}
            entries.append(old | new | {"text": escape(text)})
    index.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")


def search_script(folder: Path | None) -> str:
    "The search of a language: with its terms, and what else readers call what the pages name."
    text = (ROOT / "nbs/search.js").read_text(encoding="utf-8")
    if not folder:
        return text
    more = {key: also.split("/") for key, also in site(folder)["search"].items()}
    known = {name for said in terms(folder).values() for name in said} | more.keys()
    known = sorted((name for name in known if name[1:] and not name.isascii()), key=len)
    lists = [json.dumps(value, ensure_ascii=False) for value in (known[::-1], more)]
    return text.replace("KNOWN = [], MORE = {}", "KNOWN = {}, MORE = {}".format(*lists))


def add_english(folder: Path, to: Path) -> None:
    "The pages that are in English alone, in the search of another language by their names there."
    index, says = to / "search.json", site(folder)
    entries = json.loads(index.read_text(encoding="utf-8"))
    for path in every_page():
        if (name := named(path, folder)) and not (to / page_name(path)).exists():
            href, text = f"../{page_name(path)}", f"{says['none']} {heading(path)[1]}"
            entry = {"objectID": href, "href": href, "title": name, "section": ""}
            entries.append(entry | {"text": escape(text), "crumbs": [says["none"]]})
    index.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")


FOOTER = r'<nav class="page-navigation">.*?</nav>'


def step(side: str, to: Path | None) -> str:
    "A half of a footer: the link to the page before or after."
    if not to:
        return f'<div class="nav-page nav-page-{side}"></div>'
    arrow = "left" if side == "previous" else "right"
    icon = f'<i class="bi bi-arrow-{arrow}-short"></i>'
    text = f'<span class="nav-page-text">{escape(titled(to))}</span>'
    both = f"{icon} {text}" if side == "previous" else f"{text} {icon}"
    return f"""<div class="nav-page nav-page-{side}"><a href="./{page_name(to)}"
class="pagination-link" aria-label="{escape(titled(to))}">{both}</a></div>"""


def write_footers(folder: Path, path: list[Path]) -> None:
    "The footer of a page of the reading path leads along it; Quarto's leads along the menu."
    for before, page, after in zip([None, *path], path, [*path[1:], None]):
        file = folder / page_name(page)
        links = step("previous", before) + step("next", after)
        new = f'<nav class="page-navigation">{links}</nav>'
        parts = re.split(FOOTER, file.read_text(encoding="utf-8"), flags=re.S)
        assert len(parts) == 2, f"{file.name}: not one footer"
        file.write_text(new.join(parts), encoding="utf-8")


# ---- other languages


def named(path: Path, folder: Path) -> str:
    "The name that a language has for a page that is in English alone."
    name = site(folder)["names"].get(path.stem, "")
    return name and titled(path).replace(heading(path)[0], name)


def quarto_of(folder: Path, names: set[str]) -> dict:
    "The settings of the second project: those of the first in this language; its menu leads to English pages where there are no others."
    says = site(folder)

    def entry(name: str) -> str | dict[str, str]:
        path = ROOT / "nbs" / name
        there = {"href": f"{HOME}/{page_name(path)}"}
        return name if name in names else there | {"text": named(path, folder)}

    quarto = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    quarto["lang"], menu = folder.name, quarto["website"]["sidebar"]
    quarto["language"] = says["quarto"]
    quarto["website"]["description"] = says["description"]
    quarto["website"]["site-url"] = f"{HOME}/{folder.name}"
    parts, menu["contents"] = menu["contents"], []
    for part in parts:
        for key in {"text", "section"} & part.keys():
            part[key] = says["texts"].get(part[key], part[key])
        if "contents" in part:
            part["contents"] = [entry(name) for name in part["contents"]]
        menu["contents"].append(part)
    return quarto


ROW = r'<nav class="page-links"[^>]*>'


class Version(NamedTuple):
    "The pages in one language."

    lang: str
    place: str  # the folder below the site
    name: str


def versions(folder: Path) -> list[Version]:
    "A language's pages, and those that they are made from or into."
    own = Version(folder.name, folder.name, site(folder)["name"])
    says = traditional.SAYS
    converted = Version(says["lang"], traditional.PLACE, says["name"])
    has_both = [own, converted] if says["of"] == folder.name else [own]
    return [Version("en", "", "English"), *has_both]


def switched(text: str, all_: list[Version], place: str, name: str) -> str:
    "A page with links to its other languages in the row below its title, and with the addresses of all for search engines."
    up, below = "../" if place else "", lambda there: f"{there}/{name}".lstrip("/")
    links = " ".join(
        f'<a lang="{lang}" hreflang="{lang}" href="{up}{below(there)}">{said}</a>'
        for lang, there, said in all_
        if there != place
    )
    if links in text:  # built before
        return text
    heads = "".join(
        f'<link rel="alternate" hreflang="{lang}" href="{HOME}/{below(there)}">\n'
        for lang, there, _ in [*all_, Version("x-default", "", "")]
    )
    text = re.sub(ROW, lambda m: f"{m[0]}{links} ", text, count=1)
    return text.replace("</head>", f"{heads}</head>", 1)


FIXED = r'(<summary>|<(?:a|button)\b[^>]*>|aria-label="|ariaLabel = ")(Code of (?!the )|[^<>"]+)'


EXAMPLE = r"<em>(?=[^<\u2e80-\uffff]+</em>)"  # in Latin letters: italics, not bold


def finish(path: Path, docs: Path) -> None:
    "A page of Quarto's gets its fixed texts, its links to pages that are in English alone, and the way to the other language and back."
    lang, name, says = path.parent.name, page_name(path), site(path.parent)
    page, english = docs / lang / name, docs / name

    def lead(m: re.Match) -> str:
        to = m[2].removeprefix(f"{HOME}/").removeprefix("./")
        file, hash_, anchor = to.partition("#")
        file = file if "/" in file else link(file)
        if ":" in to or not (docs / unquote(file)).is_file():
            return m[0]
        if (page.parent / file).exists():
            return f'{m[1]}href="{file}{hash_}{anchor}"'
        mark = ' hreflang="en"' if file.endswith((".html", ".md")) else ""
        return f'{m[1]}href="../{file}{hash_}{anchor}"{mark}'

    text = page.read_text(encoding="utf-8")
    text = re.sub(FIXED, lambda m: m[1] + says["texts"].get(m[2], m[2]), text)
    text = re.sub(r'(<a\b[^>]*?)href="([^"]+)"', lead, text)
    text = re.sub(EXAMPLE, '<em lang="en">', text)
    title = titled(ROOT / "nbs" / f"{path.stem}.ipynb")
    text = text.replace("</h1>", f"</h1>{ORIGINAL}{title}</original-text>", 1)
    text = text.replace(f"/{BRANCH}/notebooks/", f"/{BRANCH}/{lang}/notebooks/")
    source = f"translations/{lang}/{path.stem}.md"
    text = text.replace(f"/nbs/{path.stem}.ipynb", f"/{source}")
    button = f'<button type="button" class="both" aria-pressed="false">{says["both"]}</button>'
    text = re.sub(ROW, lambda m: f"{m[0]}{button} ", text, count=1)
    pages = {page: text, english: english.read_text(encoding="utf-8")}
    for place, file in (lang, page), ("", english):
        new = switched(pages[file], versions(path.parent), place, name)
        file.write_text(new, encoding="utf-8")


def render(folder: Path, to: Path) -> list[Path]:
    "Quarto's pages of a language, and the notebooks that they were made from."
    from nbdev.processors import FilterDefaults
    from nbdev.serve_drv import main as process

    os.chdir(ROOT)  # nbdev reads its settings there
    made = ROOT / f"_proc/_{folder.name}"
    shutil.rmtree(made, ignore_errors=True)
    project, sources = made / "site", []
    shutil.copytree(ROOT / "nbs/images", project / "images")
    for path in begun(folder):
        file = made / f"{path.stem}.ipynb"
        file.write_text(json.dumps(translated(path)), encoding="utf-8")
        process((file, project / file.name, FilterDefaults))
        sources.append(file)
    for name in "pages.lua site.scss dark.scss head.html skip.html favicon.svg".split():
        both = [p for p in (ROOT / "nbs" / name, folder / name) if p.exists()]
        text = "".join(p.read_text(encoding="utf-8") for p in both)
        (project / name).write_text(text, encoding="utf-8")
    quarto = quarto_of(folder, {file.name for file in sources})
    (project / "_quarto.yml").write_text(yaml.safe_dump(quarto), encoding="utf-8")
    subprocess.run(["quarto", "render", "--no-cache"], cwd=project, check=True)
    shutil.rmtree(to, ignore_errors=True)
    shutil.move(project / "_site", to)
    return sources


# ---- the site


def write_live_pages(folder: Path, lang: str) -> None:
    "The live pages of the pretrained runs: the pages link to those next to them."
    from annotated_transformer.runs.folder import PRETRAINED, pretrained_run
    from annotated_transformer.show.live import write_live_page

    def lead(m: re.Match) -> str:  # to the English page where there is no other
        return m[0] if (folder / m[1]).exists() else f"](../{m[1]}"

    texts = ROOT / settings()["lib_path"] / f"show/pages/strings.{lang}.json"
    for name in PRETRAINED if texts.exists() else ():
        file = "live_page.html" if name == "demo" else f"live_{name}.html"
        run = pretrained_run(Path(name))
        write_live_page(run, folder / file, site="", file=file, lang=lang)
    for page in folder.glob("live_*.html"):
        text = re.sub(r"\]\((\w+\.html)", lead, page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")


def write_elsewhere(folder: Path) -> None:
    "Each page as Markdown and as a notebook for Colab, and a list of them."
    (folder / "notebooks").mkdir(exist_ok=True)
    for path in every_page():
        made = plain(path, ROOT / "_proc" / path.name)
        (folder / f"{page_name(path)}.md").write_text(made, encoding="utf-8")
        nb = json.loads(path.read_text(encoding="utf-8"))
        text = json.dumps(for_colab(nb), ensure_ascii=False)
        (folder / "notebooks" / path.name).write_text(text, encoding="utf-8")
    (folder / "llms.txt").write_text(llms_txt(), encoding="utf-8")


def ways() -> str:
    "The script that leads readers of another language back to it, after what it knows of each."
    known = {}
    for folder in languages():
        pages = [page_name(path) for path in begun(folder)]
        for version, says in zip(
            versions(folder)[1:], (site(folder), traditional.SAYS)
        ):
            texts = {key: says[key] for key in ("there", "none", "contents")}
            known[version.place] = texts | {"lang": version.lang, "pages": pages}
    script = (ROOT / "nbs/ways.js").read_text(encoding="utf-8")
    return f"const LANGUAGES = {json.dumps(known, ensure_ascii=False)};\n{script}"


def write_notebooks(folder: Path, to: Path) -> None:
    "The translated notebooks, for Colab; their links lead to translated pages where there are some."
    (to / "notebooks").mkdir(exist_ok=True)
    pages = {page_name(path) for path in begun(folder)}
    lead = lambda m: f"{HOME}/{folder.name}/{m[1]}" if m[1] in pages else m[0]
    for path in begun(folder):
        text = json.dumps(for_colab(translated(path, both=False)), ensure_ascii=False)
        # Jupyter names a place by its heading, which is translated
        text = text.replace("](#", f"]({HOME}/{page_name(path)}#")
        text = re.sub(rf"{HOME}/(\w+\.html)", lead, text)
        (to / f"notebooks/{path.stem}.ipynb").write_text(text, encoding="utf-8")


def build(docs: Path, language: Path | None = None) -> None:
    "The site in a folder: what is beside the English pages there, or all of another language, below them."
    to, sources = docs, every_page()
    if language:
        to = docs / language.name
        sources = render(language, to)
        write_notebooks(language, to)
    else:
        write_elsewhere(docs)
        # Quarto copies those pictures alone that it shows as pictures.
        shutil.copytree(ROOT / "nbs/images", docs / "images", dirs_exist_ok=True)
    write_search(to)
    if language:
        add_english(language, to)
    by_name = {path.name: path for path in sources}
    evening = [by_name[path.name] for path in reading_path() if path.name in by_name]
    if evening[1:]:  # Quarto writes no footer on a page alone
        write_footers(to, evening)
    (to / "search.js").write_text(search_script(language), encoding="utf-8")
    (to / "ways.js").write_text(ways(), encoding="utf-8")
    (to / "charts.js").write_text(javascript_bundle(CHARTS), encoding="utf-8")
    write_live_pages(to, language.name if language else "en")
    for path in begun(language) if language else ():
        finish(path, docs)
    if "evening.ipynb" in by_name:
        lessons = [path for path in evening_path() if path.name in by_name]
        names = [page_name(path).removesuffix(".html") for path in lessons]
        texts = site(language)["texts"] if language else {}
        write_lessons(to / "evening.html", names, texts)


if __name__ == "__main__":
    for language in [None, *languages()]:
        build(Path(sys.argv[1]).resolve(), language)
    traditional.write(Path(sys.argv[1]).resolve(), HOME)
