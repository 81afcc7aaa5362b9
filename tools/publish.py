#!/usr/bin/env python
"""The site: the pages that nbdev and Quarto make, what stands beside them, and the pages in other languages.

tools/publish.py    writes it to the folder that settings.ini names; a warning of Quarto's that is not expected is told at the end, an error
"""

import json
import os
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from functools import cache
from html import escape, unescape
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import traditional
import yaml
from cells import (
    CAPTION,
    FENCED,
    INLINE,
    INSTALLS,
    ROOT,
    as_html,
    as_markdown,
    heading,
    joined,
    markdown_of,
    opened,
    page_name,
    retarget,
    runs_alone,
    settings,
    titled,
)
from evening import write_lessons
from home import (
    finish_home,
    home_script,
    live_file,
    publish_live_page,
    write_card,
)
from jinja2 import Template
from lxml.html import HtmlElement, fragment_fromstring
from lxml.html.builder import E
from pages import leave_site
from plots import write_figures
from translate import ORIGINAL, begun, languages, site, terms, translated
from vl_convert import javascript_bundle

NBS = ROOT / "nbs"
HOME = settings()["doc_host"] + settings()["doc_baseurl"]


# ---- which pages


def sidebar() -> dict[str, list[Path]]:
    "The sidebar of _quarto.yml, in order: the notebooks of each part; the home page is in none."
    quarto = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    return {
        part.get("section", ""): [
            NBS / name for name in part.get("contents", [part.get("href")])
        ]
        for part in quarto["website"]["sidebar"]["contents"]
    }


def stem(path: Path) -> str:
    "What the page of a notebook, or of its translation, is called."
    return page_name(path).removesuffix(".html")


def every_page() -> list[Path]:
    return [path for paths in sidebar().values() for path in paths]


def text_of(name: str, kind: str = "markdown") -> str:
    "The text of a notebook, or its code."
    cells = json.loads((NBS / name).read_text(encoding="utf-8"))["cells"]
    found = (joined(cell["source"]) for cell in cells if cell["cell_type"] == kind)
    return "\n\n".join(found)


def reading_path() -> list[Path]:
    "Where the first link after *Next:* leads from page to page: the evening path, and on."
    path, name = [], "01_one_page.ipynb"
    while name and NBS / name not in path:
        path.append(NBS / name)
        found = re.search(r"^\*Next:\*.*?\]\((\w+\.ipynb)", text_of(name), re.M)
        name = found and found[1]
    return path


def evening_path() -> list[Path]:
    "The lessons that the page of the evening path lists."
    lesson = r"^\d+\. \[[^\]]*\]\((\w+\.ipynb)\)"
    found = re.findall(lesson, text_of("evening.ipynb"), re.M)
    return [NBS / name for name in found]


@cache
def editions() -> dict[str, dict]:
    "What pages there are, and what is said in their language: by their folder below the site."
    pages = [*map(page_name, every_page())]
    found = {"": {"lang": "en", "name": "English", "pages": pages}}
    for folder in languages():
        pages = [*map(page_name, begun(folder))]
        found[folder.name] = site(folder) | {"pages": pages}
        if folder.name == traditional.SAYS["of"]:
            found[traditional.PLACE] = traditional.SAYS | {"pages": pages}
    return found


# ---- a page elsewhere: as Markdown, and in Colab


def link(target: str) -> str:
    "Where a link of a notebook leads on its page."
    file, hash_, anchor = target.partition("#")
    return page_name(Path(file)) + hash_ + anchor if file.endswith(".ipynb") else target


@cache
def this_version() -> str:
    "The commit or tag that the pages were made from, as GitHub names its archive."
    command = f"git rev-parse HEAD || echo v{settings()['version']}"
    git = subprocess.run(command, shell=True, cwd=ROOT, stdout=-1, text=True)
    return git.stdout.strip()


FIGURE = (
    r'!\[(?P<caption>.*?)\]\((?P<file>[^)]*)\)\{#fig-\S+ fig-alt="(?P<alt>[^"]*)"\}'
)
# What is no prose, and a name in prose.
NAMED = (
    rf"{FENCED}|^(?: {{4}}|#{{2,6}} )[^\n]*|!?\[(?:[^\[\]]|\[[^\[\]]*\])*\](?:\([^)]*\)|\[[^\]]*\])"
    rf"|<code\b.*?</code>|(?<!`)`(?P<name>[^`\s]+)`(?!`)|{INLINE}"
)
RAW = r"^(?P<ticks>`{3,})\{=html\}$.*?^(?P=ticks)$|<!--.*?-->"
AS_MARKDOWN = (  # the tags that notebooks write: a pattern, and what becomes of it
    (r"<a id=[^>]*></a>|</?(?:details|ul)\b[^>]*>", ""),
    (r"<a href=\"([^\"]*)\"[^>]*>(.*?)</a>", r"[\2](\1)"),
    (r"</?code\b[^>]*>", "`"),
    (r"<summary>(`[^`]*`)?(.*?)</summary>", r"**\1\2**\n\n"),
    (r"<p>(.*?)</p>", r"\1\n\n"),
    (r"<li>(.*?)</li>", r"- \1\n"),
)


def without_tags(text: str) -> str:
    "Markdown whose HTML is Markdown too. Code, formulas and what only looks like a tag (<pad>) stay as they are."
    kept = rf"{FENCED}|{INLINE}|^ {{4}}[^\n]*|\$\$.*?\$\$|\$[^$\n]+\$"
    store = []

    def keep(m: re.Match) -> str:
        store.append(m[0])
        return f"\0{len(store) - 1}\0"

    text = re.sub(kept, keep, text, flags=re.M | re.S)
    for pattern, new in AS_MARKDOWN:
        text = re.sub(pattern, new, text, flags=re.S)
    return re.sub("\0(\\d+)\0", lambda m: store[int(m[1])], unescape(text))


def plain(path: Path, processed: Path, names: dict[str, str]) -> str:
    "A page as Markdown alone, names linked as there: what language models and terminals read."
    about = heading(path)[1]

    def picture(opts: dict, n: int) -> str:
        file = f"{path.stem}_files/figure-html/{opts['label']}-output-{n}.svg"
        return f"![{opts['fig-alt']}]({file})"

    nb = json.loads(processed.read_text(encoding="utf-8"))
    text = "\n\n".join(as_markdown(nb, path.name, picture))
    text = without_tags(re.sub(RAW, "", text, flags=re.M | re.S))
    text = re.sub(FIGURE, rf"![\g<alt>](\g<file>)\n\n{CAPTION}\g<caption>", text)
    lead = lambda m: f"[{m[0]}]({names[m['name']]})" if m["name"] in names else m[0]
    text = re.sub(NAMED, lead, retarget(text, link), flags=re.M | re.S)
    text = re.sub(r"\n{3,}", "\n\n", text).strip()
    return f"# {titled(path)}\n\n{about}\n\n{text}\n"


def for_colab(nb: dict, name: str, place: str = "") -> dict:
    "The notebook of a page whose links lead to the site from anywhere, and which installs this very version."

    def lead(target: str) -> str:
        is_there = link(target).partition("#")[0] in editions()[place]["pages"]
        return "/".join(filter(None, [HOME, is_there and place, link(target)]))

    for cell in nb["cells"]:
        for kept, kind, text in markdown_of(cell):
            kept[kind] = retarget(leave_site(text, settings()), lead)
            if place:  # Jupyter names a place by its heading, which is translated
                kept[kind] = kept[kind].replace("](#", f"]({HOME}/{place}/{name}#")
        if cell.get("id") == INSTALLS:
            cell["source"] = joined(cell["source"]).replace(
                "/archive/HEAD.zip", f"/archive/{this_version()}.zip"
            )
    return nb


def write_notebooks(to: Path, paths: list[Path], place: str) -> None:
    "The notebooks, or those of catalogues, for Colab."
    (to / "notebooks").mkdir(exist_ok=True)
    for path in paths:
        text = path.read_text(encoding="utf-8")
        nb = translated(path, both=False) if place else json.loads(text)
        nb = for_colab(nb, page_name(path), place)
        text = json.dumps(nb, ensure_ascii=False)
        (to / f"notebooks/{path.stem}.ipynb").write_text(text, encoding="utf-8")


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


# ---- search

NOT_FOUND = (
    ".//h1 | .//nav | .//a[@class='skip' or @role='button'] | .//details[summary='Imports']"
    "| .//annotation | .//original-text | .//footer | .//iframe | .//script | .//style | .//summary | .//svg"
)
IN_LINE = "a b code em i kbd small span strong sub sup".split()


def words(text: str) -> str:
    return " ".join(text.split())


def sections(page: HtmlElement) -> list[tuple[str, str, str]]:
    """What search looks through: (anchor, heading, text) of a page's sections and definitions.

    Without imports, drawings, scripts, links that every page has, and the TeX beside MathML. A definition's code is its own entry's alone.
    """
    main = deepcopy(page.find(".//main"))
    for el in main.xpath(NOT_FOUND):
        el.drop_tree()
    for el in main.iter("*"):  # blocks have gaps around them; formulas have none inside
        if el.tag not in IN_LINE and not re.fullmatch("m[a-z]+", el.tag):
            el.text, el.tail = f" {el.text or ''}", f" {el.tail or ''}"
    definitions, codes = [], []
    for place in main.find_class("place"):
        codes.append(place.xpath("following::pre[1]")[0])
        code, anchor = words(codes[-1].text_content()), place.get("id")
        name = re.search(rf"(?:class|def) ({anchor})\b", code, re.I)[1]
        definitions.append((anchor, name, code))
    for code in dict.fromkeys(codes):
        code.drop_tree()
    found = [("", "", [])]
    for part in main.xpath(
        ".//h2 | .//h3 | .//text()[not(ancestor::h2 | ancestor::h3)]"
    ):
        if isinstance(part, str):
            found[-1][2].append(part)
        else:
            anchor = part.get("data-anchor-id") or part.get("id")
            found.append((anchor, words(part.text_content()), []))
    of_sections = [(anchor, head, words("".join(text))) for anchor, head, text in found]
    return of_sections + definitions


def write_search(
    to: Path, pages: dict[str, HtmlElement], language: Path | None
) -> None:
    """The index of Quarto's search, whose texts are HTML, with our sections; its trail of parts is kept.

    A page's own entry has the sentence below its title. In another language with the names of the pages that are in English alone.
    """
    index, entries = to / "search.json", []
    old = {e["href"]: e for e in json.loads(index.read_text(encoding="utf-8"))}
    for name, page in pages.items():
        for anchor, section, text in sections(page):
            href = f"{name}.html#{anchor}".rstrip("#")
            new = {"objectID": href, "href": href, "section": section}
            entries.append(old[f"{name}.html"] | new | {"text": escape(text)})
            if not anchor:
                below = "string(//meta[@name='description']/@content)"
                entries[-1]["about"] = page.xpath(below)
    for path in every_page() if language else ():
        if (called := named(path, language)) and stem(path) not in pages:
            href, none = f"../{page_name(path)}", site(language)["none"]
            entry = {"objectID": href, "href": href, "title": called, "section": ""}
            about = heading(path)[1]
            text = escape(f"{none} {about}")
            entries.append(entry | {"about": about, "text": text, "crumbs": [none]})
    index.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")


def search_script(folder: Path | None) -> str:
    "The search of a language: with its terms, and what else readers call what the pages name."
    text = (NBS / "search.js").read_text(encoding="utf-8")
    if not folder:
        return text
    more = {key: also.split("/") for key, also in site(folder)["search"].items()}
    known = {name for said in terms(folder).values() for name in said} | more.keys()
    known = sorted((name for name in known if name[1:] and not name.isascii()), key=len)
    lists = [json.dumps(value, ensure_ascii=False) for value in (known[::-1], more)]
    return text.replace("KNOWN = [], MORE = {}", "KNOWN = {}, MORE = {}".format(*lists))


# ---- the way from page to page


@cache
def places_of_package() -> dict[str, dict[str, str]]:
    "Where nbdev found the definitions: name → page → anchor."
    library, places = settings()["lib_path"], {}
    for module, symbols in import_module(f"{library}._modidx").d["syms"].items():
        for name, (address, _) in symbols.items():
            page, _, anchor = address.partition("#")  # that of a method is its class's
            of_name = places.setdefault(name.removeprefix(f"{module}."), {})
            of_name[page] = anchor.partition(".")[0]
    return places


# Text as code; not in links, titles and blocks of code, nor in HTML that a cell puts out.
NAMES = ".//code[not(ancestor::*[self::a or self::pre or self::summary or self::h2 or self::h3 or self::h4 or @class='wide'])]"


def link_names(page: HtmlElement, notebook: Path) -> dict[str, str]:
    """Names of definitions lead to them, but none that may mean something else. Returns which lead where.

    A word in lower case may, as may a name that is defined on several pages, or by the notebook's own code; not on the page of its definition.
    """
    here, code = page_name(notebook), text_of(notebook.name, "code")
    own, names = re.findall(r"^(?:class|def) (\w+)", code, re.M), {}
    for el in page.find(".//main").xpath(NAMES):
        said = el.text_content()
        name = said.removesuffix("()")
        found = places_of_package().get(name, {})
        means_it = name not in own and not (said.isalpha() and said.islower())
        if here not in found and not (means_it and len(found) == 1):
            continue
        there, anchor = ("", found[here]) if here in found else [*found.items()][0]
        names[said] = f"{there}#{anchor}"
        link = E.a(href=names[said])
        el.addprevious(link)
        link.tail, el.tail = el.tail, None
        link.append(el)
    return names


def write_links(page: HtmlElement, path: Path, place: str) -> None:
    """Below the title: other languages, open it in Colab, if it runs there, see its source, take it along, read it as plain text, copy what to cite.

    At the end: report a problem with the page. For search engines: the languages.
    """
    name, notebook = page_name(path), f"{path.stem}.ipynb"
    template = Template((NBS / "links.html").read_text("utf-8"), autoescape=True)
    made = template.render(
        settings(),
        home=HOME,
        own=place,
        page=name,
        editions={k: v for k, v in editions().items() if name in v["pages"]},
        in_colab=runs_alone(NBS / notebook),
        notebook=notebook,
        source=path.relative_to(ROOT).as_posix(),
        cited=(NBS / "citation.bib").read_text(encoding="utf-8"),
    )
    *alternates, row, report = fragment_fromstring(made)
    page.head.extend(alternates)
    page.get_element_by_id("title-block-header").addnext(row)
    page.get_element_by_id("quarto-back-to-top").addprevious(report)


def write_contents(page: HtmlElement) -> None:
    "The contents of a page in a fold below its title: Quarto has them beside the text alone, where a phone has no room."
    for toc in page.xpath("//nav[@id='TOC']"):
        box = E.details(E.summary(toc.find("h2").text), deepcopy(toc.find("ul")))
        box.set("class", "contents")
        for el in box.iter("a", "ul"):
            for name in ("id", "class", "data-scroll-target"):
                el.attrib.pop(name, None)
        page.find_class("page-links")[0].addnext(box)


def write_not_found(docs: Path) -> None:
    "One page is shown for every address without one: it says so in each language, and leads to the contents."
    page = opened(docs / "404.html")
    for place, says in editions().items():
        if place:
            to = f"{settings()['doc_baseurl']}/{place}/index.html"
            way = E.a({"href": to}, says["contents"])
            line = E.p({"lang": says["lang"]}, says["not_found"], way)
            page.find(".//main").append(line)
    (docs / "404.html").write_text(as_html(page), encoding="utf-8")


BEHIND = "Behind the lessons: how the package does it. Whoever reads the paper may skip this page."


def write_kind(page: HtmlElement, path: Path, said: str) -> None:
    "What is numbered 9x says that it is no lesson."
    if path.stem[0] == "9":
        page.find_class("page-links")[0].addprevious(E.p({"class": "kind"}, said))


STOP = re.compile(r"[,.;:!?)\]，。；：！？）、」]+")


def keep_stops(page: HtmlElement) -> None:
    "A short formula in a line and the stop behind it are not parted; a long one in a list can be moved sideways."
    for formula in page.xpath("//main//math[@display='inline']"):
        short = len(formula.xpath(".//mi | .//mn | .//mo")) <= 8  # fits into a line
        tail = formula.tail or ""
        stop = STOP.match(tail)
        if short and stop:
            kind, n = "with-mark", stop.end()
        elif not short and formula.getparent().tag == "li":  # a list cannot be moved
            kind, n = "wide", 0
        else:
            continue
        formula.addprevious(box := E.span({"class": kind}))
        box.append(formula)
        formula.tail, box.tail = tail[:n], tail[n:]


def write_footers(pages: dict[str, HtmlElement], names: list[str]) -> None:
    "The footer of a page of the reading path leads along it; Quarto's leads along the menu."
    for before, name, after in zip(["", *names], names, [*names[1:], ""]):
        for side, to in (("previous", before), ("next", after)):
            for link in pages[name].xpath(
                f"//div[contains(@class, 'nav-page-{side}')]/a"
            ):
                if not to:
                    link.drop_tree()
                    continue
                title = pages[to].find(".//h1").text_content()
                link.attrib.update({"href": f"./{to}.html", "aria-label": title})
                [text] = link.find_class("nav-page-text")
                text[:], text.text = [], title


# ---- other languages


def named(path: Path, folder: Path) -> str:
    "The name that a language has for a page that is in English alone."
    name = site(folder)["names"].get(path.stem, "")
    return name and titled(path).replace(heading(path)[0], name)


def quarto_of(folder: Path, names: set[str]) -> dict:
    "The settings of the second project: those of the first in this language; its menu leads to English pages where there are no others."
    says = site(folder)

    def entry(name: str) -> str | dict[str, str]:
        path = NBS / name
        there = {"href": f"{HOME}/{page_name(path)}"}
        return name if name in names else there | {"text": named(path, folder)}

    quarto = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    quarto |= {"lang": folder.name, "language": says["quarto"]}
    site_url = f"{HOME}/{folder.name}"
    quarto["website"] |= {"description": says["description"], "site-url": site_url}
    for part in quarto["website"]["sidebar"]["contents"]:
        for key in {"text", "section"} & part.keys():
            part[key] = says["texts"].get(part[key], part[key])
        if "contents" in part:
            part["contents"] = [entry(name) for name in part["contents"]]
    return quarto


def finish(page: HtmlElement, path: Path, docs: Path) -> None:
    "A page of another language gets its fixed texts, its English title, and links to pages that are in English alone."
    texts = site(path.parent)["texts"]
    for el in page.iter("summary", "a", "button"):
        said = texts.get(el.text, el.text) or ""
        el.text = said.replace("Code of ", texts["Code of "])
    for el in page.xpath("//*[@aria-label]"):
        said = el.get("aria-label")
        el.set("aria-label", texts.get(said, said))
    for a in page.iter("a"):
        to = a.get("href", "").removeprefix(f"{HOME}/").removeprefix("./")
        file = unquote(to.partition("#")[0])
        if ":" in to or not (docs / file).is_file():
            continue
        is_there = (docs / path.parent.name / file).exists()
        a.set("href", to if is_there else f"../{to}")
        if not is_there and file.endswith((".html", ".md")):
            a.set("hreflang", "en")
    for em in page.iter("em"):  # in Latin letters: italics, not bold
        if not len(em) and not re.search("[\u2e80-\uffff]", em.text or ""):
            em.set("lang", "en")
    title = escape(titled(NBS / f"{path.stem}.ipynb"))
    original = fragment_fromstring(f"{ORIGINAL}{title}</original-text>")
    page.find(".//h1").addnext(original)


def render(folder: Path, to: Path) -> None:
    "Quarto's pages of a language."
    from nbdev.processors import FilterDefaults
    from nbdev.serve_drv import main as process

    os.chdir(ROOT)  # nbdev reads its settings there
    made = ROOT / f"_proc/_{folder.name}"
    names = {f"{path.stem}.ipynb" for path in begun(folder)}
    shutil.rmtree(made, ignore_errors=True)
    ignored = shutil.ignore_patterns("*.ipynb", "*.qmd", "runs")
    shutil.copytree(NBS, made / "site", ignore=ignored)
    for own in (folder / "head.html", folder / "site.scss"):
        with (made / "site" / own.name).open("a", encoding="utf-8") as file:
            file.write(own.read_text(encoding="utf-8"))
    # Quarto knows no page that is in English alone
    lead = lambda m: m[0] if m[1] in names else f"]({HOME}/{link(m[1])}"
    for path in begun(folder):
        file = made / f"{path.stem}.ipynb"
        file.write_text(json.dumps(translated(path)), encoding="utf-8")
        processed = made / "site" / file.name
        process((file, processed, FilterDefaults))
        text = processed.read_text(encoding="utf-8")
        text = re.sub(r"\]\((\w+\.ipynb)", lead, text)
        processed.write_text(text, encoding="utf-8")
    quarto = yaml.safe_dump(quarto_of(folder, names))
    (made / "site/_quarto.yml").write_text(quarto, encoding="utf-8")
    heard(["quarto", "render", "--no-cache"], made / "site")
    shutil.rmtree(to, ignore_errors=True)
    shutil.move(made / "site/_site", to)


# ---- the site


def write_live_pages(folder: Path, place: str) -> None:
    "The live pages of the pretrained runs: the pages link to those next to them, and share the file of each model."
    from annotated_transformer.runs.folder import PRETRAINED, pretrained_run
    from annotated_transformer.show.live import write_live_page

    def lead(m: re.Match) -> str:  # to the English page where there is no other
        return m[0] if (folder / m[2]).exists() else f"{m[1]}../{m[2]}"

    lang, up = place or "en", "../" if place else ""
    texts = ROOT / settings()["lib_path"] / f"show/pages/strings.{lang}.json"
    for name in PRETRAINED if texts.exists() else ():
        run, file = pretrained_run(Path(name)), live_file(name)
        write_live_page(run, folder / file, site="", file=file, lang=lang)
    for page in folder.glob("live_*.html"):
        data, said = page.with_suffix(".js"), {"home": HOME, "own": place}
        publish_live_page(page, data, up, editions=editions(), **said)
        text = page.read_text(encoding="utf-8")
        text = re.sub(r'(\]\(|<a href=")(\w+\.html)', lead, text)
        page.write_text(text, encoding="utf-8")


def ways() -> str:
    "The script that leads readers of another language back to it, after what it knows of each."
    keys = ("lang", "there", "none", "contents", "pages")
    known = {
        place: {key: says[key] for key in keys}
        for place, says in editions().items()
        if place
    }
    script = (NBS / "ways.js").read_text(encoding="utf-8")
    return f"const LANGUAGES = {json.dumps(known, ensure_ascii=False)};\n{script}"


def build(docs: Path, language: Path | None = None) -> None:
    "The site in a folder: what is beside the English pages there, or all of another language, below them."
    place = language.name if language else ""
    to, paths = docs / place, begun(language) if language else every_page()
    if language:
        render(language, to)
    else:
        (to / "llms.txt").write_text(llms_txt(), encoding="utf-8")
        write_not_found(docs)
        # Quarto copies those pictures alone that it shows as pictures.
        shutil.copytree(NBS / "images", to / "images", dirs_exist_ok=True)
    write_notebooks(to, paths, place)
    write_live_pages(to, place)
    if language:  # the same card
        (to / "images").mkdir(exist_ok=True)
        shutil.copy(docs / "images/card.png", to / "images")
    else:
        write_card(to / "images/card.png")
    for name, script in {
        "search": search_script(language),
        "ways": ways(),
        "home": home_script(),
        "charts": javascript_bundle((NBS / "charts.js").read_text("utf-8")),
    }.items():
        (to / f"{name}.js").write_text(script, encoding="utf-8")
    pages = {stem(path): opened(to / page_name(path)) for path in paths}
    for path in paths:
        names = link_names(pages[stem(path)], NBS / f"{path.stem}.ipynb")
        if not language:
            made = plain(path, ROOT / "_proc" / path.name, names)
            (to / f"{page_name(path)}.md").write_text(made, encoding="utf-8")
    say = lambda text: site(language)["texts"][text] if language else text
    there = lambda some: [stem(path) for path in some if stem(path) in pages]
    write_search(to, pages, language)
    write_footers(pages, there(reading_path()))
    if "evening" in pages:
        lessons = {name: pages[name] for name in there(evening_path())}
        write_lessons(pages["evening"], lessons, say("Code"), say("Fold the code"))
    for path in paths:
        write_links(pages[stem(path)], path, place)
        write_contents(pages[stem(path)])
        write_kind(pages[stem(path)], path, say(BEHIND))
        write_figures(pages[stem(path)], to)
        keep_stops(pages[stem(path)])
        if stem(path) == "index":
            finish_home(pages["index"], docs, place, editions()[place])
        if language:
            finish(pages[stem(path)], path, docs)
        text = as_html(pages[stem(path)])
        (to / page_name(path)).write_text(text, encoding="utf-8")


# What Quarto warns of without need: it takes the alternative text of a page's first picture for an address.
EXPECTED = r"Invalid URI '.*' in attribute 'alt' of element 'IMG'"
warnings = []


def heard(command: list[str], folder: Path) -> None:
    "Run a command; its warnings are kept, to be told at the end."
    tools = [str(ROOT / "tools"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(tools)}
    with subprocess.Popen(
        command, cwd=folder, env=env, stdout=-1, stderr=-2, encoding="utf-8"
    ) as run:
        for line in run.stdout:
            if re.search(EXPECTED, line) or not line.strip():
                continue
            print(line, end="", flush=True)
            if re.search(r"\bWARN(ING)?\b", line):
                warnings.append(line)
    if run.returncode:
        sys.exit(run.returncode)


if __name__ == "__main__":
    docs = ROOT / settings()["doc_path"]
    heard(["nbdev_docs", "--n_workers", "1"], ROOT)
    for language in [None, *languages()]:
        build(docs, language)
    traditional.write(docs, HOME)
    print(*warnings, f"publish: {len(warnings)} warnings", sep="\n")
    sys.exit(bool(warnings))
