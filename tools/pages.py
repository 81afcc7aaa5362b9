#!/usr/bin/env python
"""What the site has on top of nbdev and Quarto.

Above the line "beside the pages": what nbdev does to each notebook (settings.ini: procs).

tools/pages.py FOLDER    beside the pages that Quarto wrote to FOLDER from _proc/: Markdown, notebooks, charts.js, llms.txt
"""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html import escape, unescape
from importlib import import_module
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import yaml
from execnb.nbio import mk_cell
from nbdev.process import Processor
from notebooks import (
    CAPTION,
    FENCED,
    FOLDED,
    INLINE,
    ROOT,
    as_markdown,
    code_of,
    directives,
    is_folded,
    joined,
    only_imports,
    retarget,
    settings,
)

BRANCH = "gh-pages"  # the site as published: Colab opens notebooks from a branch
VEGA = "application/vnd.vegalite.v5+json"
CAPTIONED = (
    rf"^!\[(?P<alt>[^\]]*)\]\((?P<file>[^)]*)\)\n\n{re.escape(CAPTION)}(?P<caption>.*)$"
)
CHARTS = """for (const box of document.querySelectorAll(".chart")) {
    const spec = JSON.parse(box.querySelector("script").textContent);
    delete spec.$schema;  // of an older Vega-Lite, which the newer reads
    vegaEmbed(box.querySelector("div"), spec, {mode: "vega-lite", actions: false, renderer: "svg"});
}"""


# ---- which pages


class Entry(NamedTuple):
    "A line of the sidebar: a part of the paper, or a notebook below it."

    text: str
    path: Path | None = None  # None: a part


def page_name(path: Path) -> str:
    "nbdev's rule: the number is for sorting, the page is called by the rest."
    return re.sub(r"^\d+[a-zA-Z0-9]*_", "", path.stem.lower()) + ".html"


def heading(path: Path) -> tuple[str, str]:
    "A notebook's title and the sentence below it."
    first = joined(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title = re.search(r"^#\s+(.+)$", first, re.M)
    about = re.search(r"^>\s+(.+)$", first, re.M)
    return title[1].strip() if title else path.stem, about[1].strip() if about else ""


def sidebar() -> list[Entry]:
    "The sidebar of _quarto.yml, in order."
    quarto = yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))
    entries = []
    for part in quarto["website"]["sidebar"]["contents"]:
        if "href" in part:
            entries.append(Entry(part["text"], ROOT / "nbs" / part["href"]))
            continue
        paths = [ROOT / "nbs" / name for name in part["contents"]]
        entries.append(Entry(part["section"]))
        entries += [Entry(titled(path), path) for path in paths]
    return entries


def titled(path: Path) -> str:
    "A notebook's title with its number, by which the texts name it."
    number = re.match(r"\d+[a-z]?(?=_)", path.stem)
    return f"{number[0]} {heading(path)[0]}" if number else heading(path)[0]


NEXT = r"^\*Next:\*.*?\]\((?P<next>\w+\.ipynb)"


def reading_path(start: str = "01_one_page.ipynb") -> list[Path]:
    "Where the first link after *Next:* leads from page to page: the evening path."
    path, name = [], start
    while name and ROOT / "nbs" / name not in path:
        path.append(ROOT / "nbs" / name)
        cells = json.loads(path[-1].read_text(encoding="utf-8"))["cells"]
        found = re.search(NEXT, joined(cells[-1]["source"]), re.M)
        name = found and found["next"]
    return path


# ---- links


def repository(target: str, cfg: dict[str, str]) -> str:
    "The address of a file of the repository that is no part of the site, as nbs/ names it: `../LICENSE`."
    file, hash_, anchor = target.removeprefix("../").partition("#")
    kind = "tree" if (ROOT / file).is_dir() else "blob"
    return f"{cfg['git_url']}/{kind}/{cfg['branch']}/{file.rstrip('/')}{hash_}{anchor}"


def leave_site(text: str, cfg: dict[str, str]) -> str:
    "Markdown whose links out of nbs/ lead to the repository."
    return retarget(
        text,
        lambda target: repository(target, cfg) if target.startswith("../") else target,
    )


def link(target: str) -> str:
    "Where a link of a notebook leads on its page."
    file, hash_, anchor = target.partition("#")
    return page_name(Path(file)) + hash_ + anchor if file.endswith(".ipynb") else target


def absolute(text: str, cfg: dict[str, str]) -> str:
    "Markdown of a notebook that is read elsewhere: notebooks become pages of the site, files of the repository are linked there."
    site = f"{cfg['doc_host']}{cfg['doc_baseurl']}/"
    return retarget(leave_site(text, cfg), lambda target: site + link(target))


def slug(heading: str) -> str:
    "The anchor that pandoc gives a heading; a translated one says it, `Heading {#anchor}`."
    if given := re.search(r"\{#([\w.-]+)[^}]*\}$", heading):
        return given[1]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    kept = "".join(c for c in plain if c.isalnum() or c in "_-." or c.isspace())
    return re.sub(r"^[\W\d_]+", "", "-".join(kept.lower().split()))


class Names(NamedTuple):
    "What the package defines, and which of these names are also used for something else."

    places: dict[str, dict[str, str]]  # name → page → anchor
    taken: frozenset[str]


THEIRS = ["generate"]  # names by which the texts mean another library's function


@cache
def names_of_package() -> Names:
    "The definitions that nbdev indexed; the names that are also a module's, a field's, a parameter's, a command's or another library's."
    library, places = settings()["lib_path"], {}
    taken = {*import_module(f"{library}.cli.main").program.commands, *THEIRS}
    for module, symbols in import_module(f"{library}._modidx").d["syms"].items():
        taken.add(module.rpartition(".")[2])
        for name, (address, _) in symbols.items():
            page, _, anchor = address.partition("#")  # that of a method is its class's
            places.setdefault(name.removeprefix(f"{module}."), {})[page] = (
                anchor.partition(".")[0]
            )
    for path in (ROOT / library).glob("*/[!_]*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)):
                    taken.add(name)
                case ast.Dict(keys=keys) if path.parent.name == "cli":
                    taken |= {
                        key.value for key in keys if isinstance(key, ast.Constant)
                    }
    return Names(places, frozenset(taken & places.keys()))


NAME = r"(?<!`)`(?P<name>[^`\s()]+)(?P<call>\(\))?`(?!`)"
LINKED = (
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\](?:\([^)]*\)|\[[^\]]*\])|^\[[^\]\n]+\]:[^\n]*|<a\b.*?</a>|<code\b.*?</code>"
    r"|<!--.*?-->|</?[a-zA-Z][^>]*>"
)
NO_PROSE = rf"{FENCED}|^(?: {{4}}|\t)[^\n]*|^#{{1,6}} [^\n]*|{LINKED}"


def link_names(text: str, page: str, names: Names) -> str:
    "Markdown whose names of definitions lead to them: not in code, links and headings, and none that may mean something else."

    def change(m: re.Match) -> str:
        places = names.places.get(m["name"] or "", {})
        if page in places:
            return f"[{m[0]}](#{places[page]})"
        if len(places) != 1 or m["name"] in names.taken:
            return m[0]
        [(there, anchor)] = places.items()
        return f"[{m[0]}]({there}#{anchor})"

    return re.sub(f"{NO_PROSE}|{NAME}|{INLINE}", change, text, flags=re.M | re.S)


def markdown_of(cell: dict) -> Iterator[tuple[dict, str, str]]:
    "The Markdown of a cell and of its outputs: (where it is kept, its name there, text)."
    if cell["cell_type"] == "markdown":
        yield cell, "source", joined(cell["source"])
    for out in cell.get("outputs") or []:
        data = out.get("data", {})
        for kind in {"text/markdown", "text/html"} & data.keys():
            yield data, kind, joined(data[kind])


# ---- what nbdev does to each notebook on top of its own steps (settings.ini: procs)


class Definitions(Processor):
    "A place to link to above each definition. nbdev's add_show_docs, left out, repeats the definition's head below it."

    def __init__(self, nb):
        super().__init__(nb)
        # nbdev runs such cells whenever the page is made, if it is told that there are any
        nb.has_docs_ = any("exec_doc" in c.directives_ for c in nb.cells)

    def end(self):
        texts = [c.source for c in self.nb.cells if c.cell_type == "markdown"]
        heads = re.findall(r"^#{2,6} +(.+)$", "\n\n".join(map(joined, texts)), re.M)
        taken, cells = set(map(slug, heads)), []
        for cell in self.nb.cells:
            if cell.cell_type == "code" and {"export", "exporti"} & {*cell.directives_}:
                code = joined(cell.source)
                names = re.findall(r"^(?:class|def|async def) (\w+)", code, re.M)
                new = [
                    n for n in dict.fromkeys(map(str.lower, names)) if n not in taken
                ]
                taken.update(new)
                spans = [f'<span class="place" id="{name}"></span>' for name in new]
                if new:
                    cells.append(mk_cell(html("".join(spans)), "markdown"))
            cells.append(cell)
        self.nb.cells = cells


class Numbers(Processor):
    "The notebook's number in the title of its page, and so in the menu."

    def end(self):
        path, first = Path(self.nb.path_), self.nb.cells[0]
        number = titled(path).removesuffix(heading(path)[0])
        head = r"^(# |title: ['\"]?)"
        first.source = re.sub(
            head, rf"\g<0>{number}", first.source, count=1, flags=re.M
        )


BADGE = r'^<a href="[^"]*"><img src="images/colab\.svg"[^>]*></a>\n+'


class PageLinks(Processor):
    """Below the title: open it in Colab, see its source, take it along, read it as plain text.

    At the end: report a problem with the page. The home page's badge is left out: it says the same, and would be the picture that other
    sites show of a link to it.
    """

    def cell(self, cell):
        if cell.cell_type == "markdown":
            cell.source = re.sub(BADGE, "", joined(cell.source), flags=re.M)

    def end(self):
        cfg, path = settings(), Path(self.nb.path_)
        own = f"{cfg['user']}/{cfg['repo']}/blob/{BRANCH}"
        # Quarto's script cuts off /index.html, and Quarto itself decodes once
        plain = f"{page_name(path)}.md".replace("index.", "index%252E")
        links = [
            f'<a href="https://colab.research.google.com/github/{own}/notebooks/{path.name}">Open in Colab</a>',
            f'<a href="{cfg["git_url"]}/blob/{cfg["branch"]}/nbs/{path.name}">View source</a>',
            f'<a href="notebooks/{path.name}" download>Download notebook</a>',
            f'<a href="{plain}">Markdown</a>',
        ]
        rows = " ".join(links)
        nav = f'<nav class="page-links" aria-label="This notebook">{rows}</nav>'
        self.nb.cells.insert(1, mk_cell(html(nav), "markdown"))
        about = urlencode({"title": f"{path.name}: "})
        report = f'<a href="{cfg["git_url"]}/issues/new?{escape(about)}">Report a problem with this page</a>'
        nav = f'<nav class="page-links" aria-label="Problems">{report}</nav>'
        self.nb.cells.append(mk_cell(html(nav), "markdown"))


class RepositoryLinks(Processor):
    "A link to a file beside nbs/ leads to the repository: the site holds no such file."

    def cell(self, cell):
        for kept, kind, text in markdown_of(cell):
            kept[kind] = leave_site(text, settings())


class Captions(Processor):
    "What other readers see below a figure becomes the caption that Quarto numbers: see `show_captions`."

    def cell(self, cell):
        source = joined(cell.source)
        if cell.cell_type == "markdown":
            cell.source = re.sub(CAPTIONED, self.figure, source, flags=re.M)
        elif "fig-cap" in directives(source):
            cell.outputs = [out for out in cell.outputs if not self.is_caption(out)]

    def is_caption(self, out: dict) -> bool:
        text = joined(out.get("data", {}).get("text/markdown", ""))
        return text.startswith(CAPTION)

    def figure(self, m: re.Match) -> str:
        alt = m["alt"].replace('"', "'")
        label = Path(m["file"]).stem.replace("_", "-")
        return f'![{m["caption"]}]({m["file"]}){{#fig-{label} fig-alt="{alt}"}}'


class Folds(Processor):
    """Cells that only import and cells with the tag "fold" are folded.

    A folded cell says what is in it. Imports that follow imports join their fold.
    """

    def begin(self):
        cells = []
        for cell in self.nb.cells:
            if cells and imports(cell) and imports(cells[-1]):
                cells[-1].source += "\n" + code_of(joined(cell.source))
            else:
                cells.append(cell)
        self.nb.cells = cells

    def cell(self, cell):
        folded = is_folded(cell)
        for key in FOLDED:  # Quarto would write them into the page
            cell.metadata.pop(key, None)
        if not folded:
            return
        source = joined(cell.source)
        opts, code = directives(source), code_of(source)
        names = re.findall(r"^(?:def|class) (\w+)", code, re.M)
        what = (
            "Imports"
            if only_imports(code)
            else "Code of the figure"
            if "fig-cap" in opts
            else "Code of the output"
            if re.search(r"^\s*print\(", code, re.M)
            else "Checks"
            if re.search(r"^\s*(assert|test_(eq|close|fail))\b", code, re.M)
            else "Code of " + ", ".join(names[:3])
            if names
            else "Show the code"
        )
        new = {"code-fold": "true", "code-summary": what}
        cell.source = (
            "".join(f"#| {k}: {v}\n" for k, v in new.items() if k not in opts) + source
        )


def imports(cell: dict) -> bool:
    "Is this a cell whose imports show on its page?"
    source = joined(cell["source"])
    if cell["cell_type"] != "code" or {"hide", "echo"} & directives(source).keys():
        return False
    return only_imports(code_of(source))


class NameLinks(Processor):
    """A backticked name leads to its definition, unless the notebook's own code gives it another meaning.

    nbdev's own add_links, left out, links names in code, and of two the wrong one.
    """

    def begin(self):
        codes = [joined(c.source) for c in self.nb.cells if c.cell_type == "code"]
        own = re.findall(r"^(?:class|def|async def) (\w+)", "\n".join(codes), re.M)
        names = names_of_package()
        self.names = names._replace(taken=names.taken | {*own})

    def cell(self, cell):
        for kept, kind, text in markdown_of(cell):
            if kind != "text/html":
                page = page_name(Path(self.nb.path_))
                kept[kind] = link_names(text, page, self.names)


class LiveCharts(Processor):
    "An Altair chart becomes its drawing and its description in one box; charts.js makes the box live."

    def cell(self, cell):
        for out in cell.get("outputs") or []:
            data = out.get("data", {})
            if VEGA not in data:
                continue
            alt = directives(cell.source).get("fig-alt", "")
            spec = json.dumps(data[VEGA]).replace("</", "<\\/")
            drawing = joined(data.get("image/svg+xml", ""))
            out["data"] = {
                "text/html": f'<div class="chart" role="img" aria-label="{escape(alt)}"><div>{drawing}</div>'
                f'<script type="application/json">{spec}</script></div><script defer src="charts.js"></script>'
            }


class RawHtml(Processor):
    "An HTML output becomes Markdown with a raw block: for `text/html` Quarto asks another host for require.js and jquery."

    def cell(self, cell):
        for out in cell.get("outputs") or []:
            if text := out.get("data", {}).pop("text/html", None):
                box = f'<div class="wide">{joined(text)}</div>'
                out["data"] = {"text/markdown": html(box)}


def html(text: str) -> str:
    ticks = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return f"{ticks}{{=html}}\n{text}\n{ticks}"


# ---- beside the pages


def this_version() -> str:
    "The commit or tag that the pages were made from, as GitHub names its archive."
    if shutil.which("git"):
        command = ["git", "rev-parse", "HEAD"]
        git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if git.returncode == 0:
            return git.stdout.strip()
    return f"v{settings()['version']}"


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


def for_colab(path: Path) -> dict:
    "A notebook whose links lead to the site from anywhere, and which installs this very version."
    cfg, nb = settings(), json.loads(path.read_text(encoding="utf-8"))
    for cell in nb["cells"]:
        for kept, kind, text in markdown_of(cell):
            kept[kind] = absolute(text, cfg)
        if cell["cell_type"] == "code" and "[notebooks] @" in joined(cell["source"]):
            cell["source"] = joined(cell["source"]).replace(
                "/archive/HEAD.zip", f"/archive/{this_version()}.zip"
            )
    return nb


def llms_txt(menu: list[Entry]) -> str:
    "Every page as Markdown, with what it is about, in the order of the sidebar."
    cfg, lines = settings(), []
    for text, path in menu:
        if not path:
            lines.append(f"\n## {text}\n")
            continue
        address = f"{cfg['doc_host']}{cfg['doc_baseurl']}/{page_name(path)}.md"
        about = heading(path)[1]
        lines.append(f"- [{text}]({address})" + (f": {about}" if about else ""))
    return "\n".join([f"# {cfg['title']}\n\n> {cfg['description']}\n", *lines, ""])


# Of a page's HTML, for search.
NOT_FOUND = "annotation|original-text|footer|iframe|nav|script|style|svg"
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
        for anchor, heading, text in sections(page):
            href = f"{old['href']}#{anchor}".rstrip("#")
            new = {"objectID": href, "href": href, "section": heading}
            entries.append(old | new | {"text": escape(text)})
    index.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")


FOOTER = r'<nav class="page-navigation">.*?</nav>'


def write_footers(folder: Path, path: list[Path]) -> None:
    "The footer of a page of the reading path leads along it; Quarto's leads along the menu."
    for before, page, after in zip([None, *path], path, [*path[1:], None]):
        links = "".join(
            f'<div class="nav-page nav-page-{where}">'
            f'<a href="./{page_name(to)}" class="pagination-link" aria-label="{escape(titled(to))}">'
            f'{left}<span class="nav-page-text">{escape(titled(to))}</span>{right}</a></div>'
            if to
            else f'<div class="nav-page nav-page-{where}"></div>'
            for where, to, left, right in (
                ("previous", before, '<i class="bi bi-arrow-left-short"></i> ', ""),
                ("next", after, "", ' <i class="bi bi-arrow-right-short"></i>'),
            )
        )
        file = folder / page_name(page)
        new = f'<nav class="page-navigation">{links}</nav>'
        parts = re.split(FOOTER, file.read_text(encoding="utf-8"), flags=re.S)
        assert len(parts) == 2, f"{file.name}: not one footer"
        file.write_text(new.join(parts), encoding="utf-8")


def write_live_pages(folder: Path, lang: str) -> None:
    "The live pages of the pretrained runs: the pages link to those next to them."
    from annotated_transformer.runs.folder import PRETRAINED, pretrained_run
    from annotated_transformer.show.live import write_live_page

    texts = ROOT / settings()["lib_path"] / f"show/pages/strings.{lang}.json"
    for name in PRETRAINED if texts.exists() else ():
        file = "live_page.html" if name == "demo" else f"live_{name}.html"
        run, out = pretrained_run(Path(name)), folder / file
        write_live_page(run, out, site="", file=file, lang=lang)


def main(folder: Path) -> None:
    import vl_convert

    menu = sidebar()
    (folder / "notebooks").mkdir(exist_ok=True)
    for path in (entry.path for entry in menu if entry.path):
        made = plain(path, ROOT / "_proc" / path.name)
        (folder / f"{page_name(path)}.md").write_text(made, encoding="utf-8")
        text = json.dumps(for_colab(path), ensure_ascii=False)
        (folder / "notebooks" / path.name).write_text(text, encoding="utf-8")
    write_search(folder)
    write_footers(folder, reading_path())
    shutil.copy(ROOT / "nbs/search.js", folder)
    # Quarto copies those pictures alone that it shows as pictures.
    shutil.copytree(ROOT / "nbs/images", folder / "images", dirs_exist_ok=True)
    (folder / "llms.txt").write_text(llms_txt(menu), encoding="utf-8")
    charts = vl_convert.javascript_bundle(CHARTS)
    (folder / "charts.js").write_text(charts, encoding="utf-8")
    write_live_pages(folder, "en")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
