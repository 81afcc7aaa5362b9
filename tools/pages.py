#!/usr/bin/env python
"""What the published site (Quarto) and the preview share: a page's links, its plain Markdown, notebooks for Colab, llms.txt.

tools/pages.py FOLDER    beside the pages that Quarto wrote to FOLDER from _proc/: Markdown, notebooks, charts.js, llms.txt
"""

import ast
import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from html import escape, unescape
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import yaml
from execnb.nbio import mk_cell, read_nb
from nbdev.process import Processor
from notebooks import (
    FOLDED,
    ROOT,
    code_of,
    directives,
    is_folded,
    joined,
    only_imports,
    options,
    settings,
)

DIALECT = "markdown+lists_without_preceding_blankline-smart"  # of Quarto's Markdown, what the notebooks use
BRANCH = "gh-pages"  # the site as published: Colab opens notebooks from a branch
PAGE_LINKS = ("Open in Colab", "View source", "Download notebook", "Markdown")
VEGA = "application/vnd.vegalite.v5+json"
CAPTION = "**Figure.** "  # how a notebook's captions begin
CAPTIONED = (
    rf"^!\[(?P<alt>[^\]]*)\]\((?P<file>[^)]*)\)\n\n{re.escape(CAPTION)}(?P<caption>.*)$"
)
# Of a page's HTML, for search.
NOT_FOUND = "annotation|footer|iframe|nav|script|style|svg"
IN_LINE = "a|b|code|em|i|kbd|m[a-z]+|small|span|strong|sub|sup"
IMPORTS = r"<details[^>]*>\s*<summary>Imports</summary>.*?</details>"
DEFINITION = (
    r'(?P<places>(?:<span class="place" id="[^"]+"></span>)+)\s*(?P<code>.*?</pre>)'
)
HEADING = r'<h[23][^>]*? (?:data-anchor-)?id="([^"]+)"[^>]*>(.*?)</h[23]>'
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
    title, about = (
        re.search(r"^#\s+(.+)$", first, re.M),
        re.search(r"^>\s+(.+)$", first, re.M),
    )
    return title[1].strip() if title else path.stem, about[1].strip() if about else ""


def sidebar() -> list[Entry]:
    "The sidebar of _quarto.yml, in order; a notebook that is not there is left out, with a line that says so."

    def walk(items):
        for item in items:
            item = {"href": item} if isinstance(item, str) else item
            if "section" in item:
                inside = list(walk(item["contents"]))
                if inside:
                    yield from [Entry(item["section"]), *inside]
                continue
            path = ROOT / "nbs" / item["href"]
            if path.exists():
                yield Entry(item.get("text") or heading(path)[0], path)
            else:
                print(
                    f"preview: the sidebar lists nbs/{path.name}, which is not there",
                    file=sys.stderr,
                )

    return list(
        walk(
            yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))[
                "website"
            ]["sidebar"]["contents"]
        )
    )


# ---- links

INLINE = r"(?P<ticks>`+)(?!`)(?:(?!\n\n).)+?(?<!`)(?P=ticks)(?!`)"
FENCED = r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n(?:.*?^ {0,3}(?P=fence)[`~]*[ ]*$|.*\Z)"
TARGET = r"(?P<before>\]\(<?|^\[[^\]\n]+\]: +|\b(?:href|src)=\")(?P<target>(?![a-z][a-z+.-]*:|[#/])[^)>\"\s]+)"


def repository(target: str, cfg: dict[str, str]) -> str:
    "The address of a file of the repository that is no part of the site, as nbs/ names it: `../LICENSE`."
    file, hash_, anchor = target.removeprefix("../").partition("#")
    kind = "tree" if (ROOT / file).is_dir() else "blob"
    return f"{cfg['git_url']}/{kind}/{cfg['branch']}/{file.rstrip('/')}{hash_}{anchor}"


def retarget(text: str, lead: Callable[[str], str]) -> str:
    "Markdown whose relative links and pictures go where `lead` says; code, raw HTML apart, stays as it is."

    def change(m: re.Match) -> str:
        if m["target"]:
            return m["before"] + lead(m["target"])
        raw = m["fence"] and re.match(r"[`~]+ *\{=html\}", m[0].lstrip())
        return (
            re.sub(TARGET, lambda t: t["before"] + lead(t["target"]), m[0])
            if raw
            else m[0]
        )

    return re.sub(f"{FENCED}|{INLINE}|{TARGET}", change, text, flags=re.M | re.S)


def leave_site(text: str, cfg: dict[str, str]) -> str:
    "Markdown whose links out of nbs/ lead to the repository."
    return retarget(
        text,
        lambda target: repository(target, cfg) if target.startswith("../") else target,
    )


def absolute(text: str, cfg: dict[str, str]) -> str:
    "Markdown of a notebook that is read elsewhere: notebooks become pages of the site, files of the repository are linked there."
    site = f"{cfg['doc_host']}{cfg['doc_baseurl']}/"
    return retarget(leave_site(text, cfg), lambda target: site + link(target, cfg))


def slug(heading: str) -> str:
    "The anchor that pandoc gives a heading."
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    kept = "".join(c for c in plain if c.isalnum() or c in "_-." or c.isspace())
    return re.sub(r"^[\W\d_]+", "", "-".join(kept.lower().split()))


class Names(NamedTuple):
    "What the package defines, and which of these names are also used for something else."

    places: dict[str, dict[str, str]]  # name → page → anchor
    taken: frozenset[str]


@cache
def names_of_package() -> Names:
    "The definitions that nbdev indexed; the names that are also a module's, a field's, a parameter's or a command's."
    library, places = settings()["lib_path"], {}
    taken = {*import_module(f"{library}.cli.main").program.commands}
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
    return Names(places, frozenset(taken))


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


def markdown_of(cell):
    "The Markdown of a cell and of its outputs: (where it is kept, its name there, text)."
    if cell.cell_type == "markdown":
        yield cell, "source", joined(cell.source)
    for out in cell.get("outputs") or []:
        data = out.get("data", {})
        yield from (
            (data, kind, joined(data[kind]))
            for kind in ("text/markdown", "text/html")
            if kind in data
        )


# ---- what nbdev does to each notebook on top of its own steps (settings.ini: procs)


class Definitions(Processor):
    "A place to link to above each definition. nbdev's add_show_docs, left out, repeats the definition's head below it."

    def __init__(self, nb):
        super().__init__(nb)
        nb.has_docs_ = any(
            "exec_doc" in c.directives_ for c in nb.cells
        )  # are there cells that are run whenever the page is made?

    def end(self):
        text = "\n\n".join(
            joined(c.source) for c in self.nb.cells if c.cell_type == "markdown"
        )
        taken, cells = {slug(h) for h in re.findall(r"^#{2,6} +(.+)$", text, re.M)}, []
        for cell in self.nb.cells:
            if cell.cell_type == "code" and {"export", "exporti"} & set(
                cell.directives_
            ):
                names = re.findall(
                    r"^(?:class|def|async def) (\w+)", joined(cell.source), re.M
                )
                new = [
                    name
                    for name in dict.fromkeys(map(str.lower, names))
                    if name not in taken
                ]
                taken.update(new)
                if new:
                    cells.append(
                        mk_cell(
                            html(
                                "".join(
                                    f'<span class="place" id="{name}"></span>'
                                    for name in new
                                )
                            ),
                            "markdown",
                        )
                    )
            cells.append(cell)
        self.nb.cells = cells


class PageLinks(Processor):
    "Below the title: open it in Colab, see its source, take it along, read it as plain text."

    def end(self):
        cfg, path = settings(), Path(self.nb.path_)
        plain = f"{page_name(path)}.md".replace(
            "index.", "index%2E"
        )  # Quarto's script cuts off /index.html
        links = [
            f"https://colab.research.google.com/github/{cfg['user']}/{cfg['repo']}/blob/{BRANCH}/notebooks/{path.name}",
            f"{cfg['git_url']}/blob/{cfg['branch']}/nbs/{path.name}",
            f"notebooks/{path.name}",
            plain,
        ]
        rows = " ".join(
            f'<a href="{href}"{" download" if text.startswith("Down") else ""}>{text}</a>'
            for text, href in zip(PAGE_LINKS, links, strict=True)
        )
        self.nb.cells.insert(
            1,
            mk_cell(
                f'```{{=html}}\n<nav class="page-links" aria-label="This notebook">{rows}</nav>\n```',
                "markdown",
            ),
        )


class RepositoryLinks(Processor):
    "A link to a file beside nbs/ leads to the repository: the site holds no such file."

    def cell(self, cell):
        for kept, kind, text in markdown_of(cell):
            kept[kind] = leave_site(text, settings())


class Captions(Processor):
    "What other readers see below a figure becomes the caption that Quarto numbers: see `show_captions`."

    def cell(self, cell):
        if cell.cell_type == "markdown":
            cell.source = re.sub(
                CAPTIONED, self.figure, joined(cell.source), flags=re.M
            )
        elif "fig-cap" in directives(joined(cell.source)):
            cell.outputs = [
                out
                for out in cell.get("outputs") or []
                if not joined(out.get("data", {}).get("text/markdown", "")).startswith(
                    CAPTION
                )
            ]

    def figure(self, m: re.Match) -> str:
        alt = m["alt"].replace('"', "'")
        return f'![{m["caption"]}]({m["file"]}){{#fig-{Path(m["file"]).stem.replace("_", "-")} fig-alt="{alt}"}}'


class Folds(Processor):
    """Cells that only import and cells with the tag "fold" are folded.

    A folded cell says what is in it.
    """

    def cell(self, cell):
        folded = is_folded(cell)
        for key in FOLDED:  # Quarto would write them into the page
            cell.metadata.pop(key, None)
        if not folded:
            return
        source = joined(cell.source)
        opts, code = directives(source), code_of(source)
        what = (
            "Imports"
            if only_imports(code)
            else "Checks"
            if re.search(r"^assert\b", code, re.M)
            else "Code of the figure"
            if "fig-cap" in opts
            else "Show the code"
        )
        new = {"code-fold": "true", "code-summary": what}
        cell.source = (
            "".join(f"#| {k}: {v}\n" for k, v in new.items() if k not in opts) + source
        )


class NameLinks(Processor):
    "A backticked name leads to its definition. nbdev's own add_links, left out, links names in code, and of two the wrong one."

    def cell(self, cell):
        for kept, kind, text in markdown_of(cell):
            if kind != "text/html":
                kept[kind] = link_names(
                    text, page_name(Path(self.nb.path_)), names_of_package()
                )


class LiveCharts(Processor):
    "An Altair chart becomes its drawing and its description in one box; charts.js makes the box live."

    def cell(self, cell):
        for out in cell.get("outputs") or []:
            data = out.get("data", {})
            if VEGA not in data:
                continue
            alt, spec = (
                directives(cell.source).get("fig-alt", ""),
                json.dumps(data[VEGA]).replace("</", "<\\/"),
            )
            drawing = joined(data.get("image/svg+xml", ""))
            out["data"] = {
                "text/html": f'<div class="chart" role="img" aria-label="{escape(alt)}"><div>{drawing}</div>'
                f'<script type="application/json">{spec}</script></div><script defer src="charts.js"></script>'
            }


class RawHtml(Processor):
    "An HTML output becomes Markdown with a raw block: for `text/html` Quarto asks another host for require.js and jquery."

    def cell(self, cell):
        for out in cell.get("outputs") or []:
            text = out.get("data", {}).pop("text/html", None)
            if text:
                out["data"] = {
                    "text/markdown": html(f'<div class="wide">{joined(text)}</div>')
                }


# ---- one processed notebook → Markdown


def fenced(text: str, css: str) -> str:
    tildes = "~" * (1 + max(3, *map(len, re.findall(r"~+", text)), 3))
    return f"{tildes} {{{css}}}\n{text.rstrip()}\n{tildes}"


def html(text: str) -> str:
    ticks = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return f"{ticks}{{=html}}\n{text}\n{ticks}"


def picture(data: dict, stem: Path) -> Path | None:
    "Write an output's picture beside the page; returns the file, or None where there is no picture."
    if "image/svg+xml" in data:
        file, content = stem.with_suffix(".svg"), joined(data["image/svg+xml"]).encode()
    elif "image/png" in data:
        file, content = (
            stem.with_suffix(".png"),
            base64.b64decode(joined(data["image/png"])),
        )
    else:
        return None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def numbered(label: str, numbers: dict) -> str:
    "Give the next figure its number and remember it for references."
    if not label.startswith("fig-"):
        return ""
    numbers[label] = f"Figure {1 + len(numbers)}"
    return f"{numbers[label]}: "


def output(out: dict, opts: dict, stem: Path, folder: Path, numbers: dict) -> str:
    "One output as Markdown."
    if out["output_type"] == "stream":
        return fenced(joined(out["text"]), f".cell-output .{out['name']}")
    if out["output_type"] == "error":
        return fenced("\n".join(out["traceback"]), ".cell-output .stderr")
    data, label, caption = out["data"], opts.get("label", ""), opts.get("fig-cap", "")
    if file := picture(data, stem):
        alt = opts.get("fig-alt", "").replace('"', '\\"')
        return f'![{numbered(label, numbers)}{caption}]({file.relative_to(folder).as_posix()}){{{"#" + label if label else ""} alt="{alt}"}}'
    if "text/markdown" in data:
        box = joined(data["text/markdown"])
        if not label.startswith("fig-"):
            return box
        return "\n\n".join(
            [
                html(f'<figure id="{escape(label)}">'),
                box,
                html("<figcaption>"),
                numbered(label, numbers) + caption,
                html("</figcaption></figure>"),
            ]
        )
    if "text/latex" in data:
        return joined(data["text/latex"])
    return fenced(joined(data.get("text/plain", "")), ".cell-output")


def code_cell(cell, name: str, folder: Path, numbers: dict) -> list[str]:
    "The code a cell shows and its outputs, as the cell's options ask."
    where = f"{name}, cell {cell.idx_}"
    opts, code = options(cell.source, where), code_of(cell.source)
    if opts.get("include") is False:
        return []
    parts = []
    if code and opts.get("echo") is not False:
        parts = [fenced(code, ".python")]
        if opts.get("code-fold") in (True, "show"):
            opened, title = (
                " open" if opts["code-fold"] == "show" else "",
                escape(opts.get("code-summary", "Code")),
            )
            parts = [
                html(f"<details{opened}><summary>{title}</summary>"),
                *parts,
                html("</details>"),
            ]
    if opts.get("output") is False:
        return parts
    stem = folder / f"{name}_files" / f"cell-{cell.idx_}"
    return parts + [
        output(o, opts, stem.with_name(f"{stem.name}-{i}"), folder, numbers)
        for i, o in enumerate(cell.get("outputs") or [])
    ]


def markdown(nb, name: str, folder: Path) -> str:
    "A processed notebook as one text for pandoc, figures numbered; its pictures are written below `folder`."
    front, numbers = yaml.safe_load(nb.cells[0].source.strip().strip("-")), {}
    about = front.get("description", "").replace("· §", "·\u00a0§")
    parts = [f"::: description\n{about}\n:::"]
    for i, cell in enumerate(nb.cells):
        cell.idx_ = i
        if cell.cell_type == "markdown":
            parts.append(
                re.sub(
                    r"!\[([^\]]*)\](\([^)]*\)\{#(fig-[\w-]+))",
                    lambda m: f"![{numbered(m[3], numbers)}{m[1]}]{m[2]}",
                    joined(cell.source).replace("fig-alt=", "alt="),
                )
            )
        elif cell.cell_type == "code":
            parts += code_cell(cell, name, folder, numbers)
    text = "\n\n".join(parts)
    for label, number in numbers.items():
        text = re.sub(rf"@{re.escape(label)}(?![\w-])", f"[{number}](#{label})", text)
    return text


def pandoc(text: str, *options: str) -> str:
    import pypandoc  # many columns: else a table with a long line gets the widths of its dashes

    command = [
        pypandoc.get_pandoc_path(),
        "-f",
        DIALECT,
        "--wrap=none",
        "--columns=9999",
        *options,
    ]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"pandoc says\n{done.stderr}")
    return done.stdout


def link(target: str, cfg: dict[str, str]) -> str:
    "Where a link of a notebook leads on its page."
    site = cfg["doc_host"] + cfg["doc_baseurl"] + "/"
    if target.startswith(site):
        return target.removeprefix(site)
    if re.match(r"[a-z][a-z+.-]*:|#|notebooks/", target):
        return target
    file, hash_, anchor = target.partition("#")
    return page_name(Path(file)) + hash_ + anchor if file.endswith(".ipynb") else target


def write_plain(text: str, path: Path, folder: Path) -> None:
    "The page as plain Markdown, beside it: what language models and terminals read."
    cfg = settings()
    text = re.sub(
        r"^(```+)\{=html\}$.*?^\1$|<!--.*?-->", "", text, flags=re.M | re.S
    ).replace("{.cell-output", "{.text .cell-output")
    plain = pandoc(text, "-t", "gfm-raw_html-tex_math_gfm+tex_math_dollars")
    plain = re.sub(
        r"(?<=\]\()([^)\s]+\.ipynb[^)\s]*)", lambda m: link(m[1], cfg), plain
    )
    (folder / f"{page_name(path)}.md").write_text(
        f"# {heading(path)[0]}\n\n{plain}", encoding="utf-8"
    )


# ---- beside the pages


def install_cell(cfg: dict[str, str]) -> str:
    "What Colab has to run first: the package and its records, at the commit that the page was made from."
    at = f"v{cfg['version']}"
    if shutil.which("git"):
        git = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
        if git.returncode == 0:
            at = git.stdout.strip()
    return f"""# In Colab: {cfg["lib_name"]} {cfg["version"]}, as this page was made from it.
import sys
if "google.colab" in sys.modules:
    !git clone -q --filter=blob:none {cfg["git_url"]} project && git -C project checkout -q {at}
    !pip install -q "./project[plot,bench]" "fastcore<2"
    %cd project/nbs"""


def write_live(folder: Path) -> None:
    "live_page.html: the live page of the pretrained model, which links to the pages next to it."
    from annotated_transformer.runs.folder import pretrained_run
    from annotated_transformer.show.live import write_live_page

    write_live_page(pretrained_run(Path("demo")), folder / "live_page.html", site="")


def finish(menu: list[Entry], folder: Path) -> None:
    "Notebooks that run in Colab, the script of the charts, the live page, llms.txt."
    import vl_convert

    cfg = settings()
    first = {
        "cell_type": "code",
        "id": "colab",
        "metadata": {},
        "source": install_cell(cfg),
        "execution_count": None,
        "outputs": [],
    }
    (folder / "notebooks").mkdir(exist_ok=True)
    lines = [f"# {cfg['title']}\n\n> {cfg['description']}\n"]
    for entry in menu:
        if not entry.path:
            lines.append(f"\n## {entry.text}\n")
            continue
        nb = json.loads(entry.path.read_text(encoding="utf-8"))
        for cell in nb["cells"]:
            texts = [(cell, "source")] if cell["cell_type"] == "markdown" else []
            texts += [
                (out["data"], "text/markdown")
                for out in cell.get("outputs", [])
                if "text/markdown" in out.get("data", {})
            ]
            for kept, kind in texts:
                kept[kind] = absolute(joined(kept[kind]), cfg)
        nb["cells"].insert(1, first)
        (folder / "notebooks" / entry.path.name).write_text(
            json.dumps(nb, ensure_ascii=False), encoding="utf-8"
        )
        about = heading(entry.path)[1]
        lines.append(
            f"- [{entry.text}]({cfg['doc_host']}{cfg['doc_baseurl']}/{page_name(entry.path)}.md){': ' + about if about else ''}"
        )
    (folder / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "charts.js").write_text(
        vl_convert.javascript_bundle(CHARTS), encoding="utf-8"
    )
    write_live(folder)


def sections(page: str) -> list[tuple[str, str, str]]:
    """What search looks through: (anchor, heading, text) of a page's sections and definitions.

    Without imports, drawings, scripts, links that every page has, and the TeX beside MathML. A definition's code is its own entry's alone.
    """

    def plain(html: str) -> str:
        html = re.sub(rf"</?(?:{IN_LINE})\b[^>]*>", "", html)
        return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())

    def define(m: re.Match) -> str:
        code = plain(m["code"])
        for anchor in re.findall(r'id="([^"]+)"', m["places"]):
            name = re.search(rf"(?:class|def) ({anchor})\b", code, re.I)[1]
            definitions.append((anchor, name, code))
        return ""

    definitions = []
    text = re.search(r"</h1>(.*)</main>", page, re.S)[1]
    text = re.sub(rf"<({NOT_FOUND})\b.*?</\1>|{IMPORTS}", " ", text, flags=re.S)
    text = re.sub(DEFINITION, define, text, flags=re.S)
    first, *rest = re.split(HEADING, text, flags=re.S)
    heads = zip(rest[::3], map(plain, rest[1::3]), map(plain, rest[2::3]), strict=True)
    return [("", "", plain(first)), *heads, *definitions]


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


def main(folder: Path) -> None:
    menu = sidebar()
    for path in (e.path for e in menu if e.path):
        write_plain(
            markdown(read_nb(ROOT / "_proc" / path.name), path.stem, folder),
            path,
            folder,
        )
    write_search(folder)
    shutil.copytree(
        ROOT / "nbs/images", folder / "images", dirs_exist_ok=True
    )  # Quarto copies those alone that it shows as pictures
    finish(menu, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
