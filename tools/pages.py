"What nbdev does to each notebook of the site on top of its own steps (settings.ini: procs)."

import json
import re
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path

import yaml
from cells import (
    CAPTION,
    FENCED,
    FOLDED,
    INLINE,
    ROOT,
    code_of,
    directives,
    heading,
    html,
    is_folded,
    joined,
    markdown_of,
    only_imports,
    page_name,
    retarget,
    runs_alone,
    settings,
    slug,
    titled,
)
from execnb.nbio import mk_cell
from nbdev.process import Processor

BRANCH = "gh-pages"  # the site as published: Colab opens notebooks from a branch
VEGA = "application/vnd.vegalite.v5+json"
CAPTIONED = (
    rf"^!\[(?P<alt>[^\]]*)\]\((?P<file>[^)]*)\)\n\n{re.escape(CAPTION)}(?P<caption>.*)$"
)

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


NAME = r"(?<!`)`(?P<name>[^`\s()]+)(?P<call>\(\))?`(?!`)"
LINKED = (
    r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\](?:\([^)]*\)|\[[^\]]*\])|^\[[^\]\n]+\]:[^\n]*|<a\b.*?</a>|<code\b.*?</code>"
    r"|<!--.*?-->|</?[a-zA-Z][^>]*>"
)
NO_PROSE = rf"{FENCED}|^(?: {{4}}|\t)[^\n]*|^#{{1,6}} [^\n]*|{LINKED}"


def link_names(text: str, page: str, places: dict[str, dict[str, str]]) -> str:
    """Markdown whose names of definitions lead to them: not in code, links and headings, and none that may mean something else.

    A word in lower case may, as may a name that is defined on several pages; not on the page of its definition.
    """

    def change(m: re.Match) -> str:
        name = m["name"] or ""
        found = places.get(name, {})
        if page in found:
            return f"[{m[0]}](#{found[page]})"
        is_word = name.isalpha() and name.islower() and not m["call"]
        if len(found) != 1 or is_word:
            return m[0]
        [(there, anchor)] = found.items()
        return f"[{m[0]}]({there}#{anchor})"

    return re.sub(f"{NO_PROSE}|{NAME}|{INLINE}", change, text, flags=re.M | re.S)


# ---- the steps


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
                names = re.findall(r"^(?:class|def) (\w+)", joined(cell.source), re.M)
                new = {*map(str.lower, names)} - taken
                taken |= new
                spans = [f'<span class="place" id="{n}"></span>' for n in sorted(new)]
                cells += [mk_cell(html("".join(spans)), "markdown")] if new else []
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


BADGES = r"^(?:\[!\[[^\]]*\]\[\w+-badge\]\](?:\[\w+\]|\([^)]*\))[ \n])+\n"


def entry(kind: str, key: str, work: dict, **more: str) -> str:
    "A work of CITATION.cff as an entry of BibTeX."
    names = (
        f"{who['family-names']}, {who['given-names']}"
        if "family-names" in who
        else f"{{{who['name']}}}"
        for who in work["authors"]
    )
    said = {"title": f"{{{work['title']}}}", "author": " and ".join(names)}
    said = {name: text.replace("_", r"\_") for name, text in said.items()}
    lines = [f"  {name} = {{{text}}}," for name, text in (said | more).items()]
    return "\n".join([f"@{kind}{{{key},", *lines, "}\n"])


@cache
def bibtex() -> str:
    "What CITATION.cff asks to cite: the package, and the paper that it reads."
    cff = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    package = {"version": cff["version"], "url": cff["repository-code"]}
    [paper] = cff["references"]
    where = {
        "booktitle": paper["conference"]["name"],
        "year": paper["year"],
        "url": paper["url"],
    }
    key = f"{paper['authors'][0]['family-names'].lower()}{paper['year']}"
    return "\n".join(
        [
            entry("software", cff["title"], cff, **package),
            entry("inproceedings", key, paper, **where),
        ]
    )


class PageLinks(Processor):
    """Below the title: open it in Colab, if it runs there, see its source, take it along, read it as plain text, copy what to cite.

    At the end: report a problem with the page. The home page's badges are left out: they are for README.md, and come from other hosts.
    """

    def cell(self, cell):
        if cell.cell_type == "markdown":
            cell.source = re.sub(BADGES, "", joined(cell.source), flags=re.M)

    def end(self):
        cfg, path = settings(), Path(self.nb.path_)
        own = f"{cfg['user']}/{cfg['repo']}/blob/{BRANCH}"
        colab = f"https://colab.research.google.com/github/{own}/notebooks/{path.name}"
        # Quarto's script cuts off /index.html, and Quarto itself decodes once
        plain = f"{page_name(path)}.md".replace("index.", "index%252E")
        in_colab = f'<a href="{colab}">Open in Colab</a>\n' if runs_alone(path) else ""
        links = f"""{in_colab}<a href="{cfg["git_url"]}/blob/{cfg["branch"]}/nbs/{path.name}">View source</a>
<a href="notebooks/{path.name}" download>Download notebook</a>
<a href="{plain}">Markdown</a>
<button type="button" class="cite" data-clipboard-text="{escape(bibtex())}">Copy citation</button>"""
        address = f"{cfg['git_url']}/issues/new?title={path.name}%3A+"
        report = f'<a href="{address}">Report a problem with this page</a>'
        top, end = (
            mk_cell(
                html(f'<nav class="page-links" aria-label="{label}">{rows}</nav>'),
                "markdown",
            )
            for label, rows in (("This notebook", links), ("Problems", report))
        )
        self.nb.cells = [self.nb.cells[0], top, *self.nb.cells[1:], end]


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
        what = "Code of " + ", ".join(names[:3]) if names else "Show the code"
        if only_imports(code):
            what = "Imports"
        elif "fig-cap" in opts:
            what = "Code of the figure"
        elif re.search(r"^\s*print\(", code, re.M):
            what = "Code of the output"
        elif re.search(r"^\s*(assert|test_(eq|close|fail))\b", code, re.M):
            what = "Checks"
        new = {"code-fold": "true", "code-summary": what}
        lines = [f"#| {k}: {v}\n" for k, v in new.items() if k not in opts]
        cell.source = "".join(lines) + source


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
        own = re.findall(r"^(?:class|def) (\w+)", "\n".join(codes), re.M)
        page = page_name(Path(self.nb.path_))
        self.places = {
            name: found
            for name, found in places_of_package().items()
            if page in found or name not in own
        }

    def cell(self, cell):
        for kept, kind, text in markdown_of(cell):
            if kind != "text/html":
                page = page_name(Path(self.nb.path_))
                kept[kind] = link_names(text, page, self.places)


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
