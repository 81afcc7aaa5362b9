"What nbdev does to each notebook of the site on top of its own steps (settings.ini: procs)."

import json
import re
from html import escape
from pathlib import Path

from cells import (
    CAPTION,
    FOLDED,
    ROOT,
    code_of,
    directives,
    heading,
    html,
    is_folded,
    joined,
    markdown_of,
    only_imports,
    retarget,
    settings,
    slug,
    titled,
)
from execnb.nbio import mk_cell
from nbdev.process import Processor

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
EDITIONS = r"^(?:\[[^\]]*\]\([^)]*(?:/|README\S*)\)(?: ·)?[ \n])+\n"


class RepositoryLinks(Processor):
    """A link to a file beside nbs/ leads to the repository: the site holds no such file.

    The home page's badges and its links to the site are left out: they are for README.md; badges come from other hosts.
    """

    def cell(self, cell):
        for kept, kind, text in markdown_of(cell):
            text = re.sub(f"{BADGES}|{EDITIONS}", "", text, flags=re.M)
            kept[kind] = leave_site(text, settings())


class Captions(Processor):
    "What other readers see below a figure becomes the caption that Quarto numbers: see `_show_caption`."

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


FOLDS = {  # what a fold says, and what its cell has
    "Code of the figure": r"^#\| fig-cap:",
    "Code of the output": r"^\s*print\(",
    "Checks": r"^\s*(assert|test_(eq|close|fail))\b",
}


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
        code = code_of(source)
        names = re.findall(r"^(?:def|class) (\w+)", code, re.M)
        what = "Code of " + ", ".join(names[:3]) if names else "Show the code"
        what = next((w for w, p in FOLDS.items() if re.search(p, source, re.M)), what)
        what = "Imports" if only_imports(code) else what
        new = {"code-fold": "true", "code-summary": what}
        opts = directives(source)
        lines = [f"#| {k}: {v}\n" for k, v in new.items() if k not in opts]
        cell.source = "".join(lines) + source


def imports(cell: dict) -> bool:
    "Is this a cell whose imports show on its page?"
    source = joined(cell["source"])
    if cell["cell_type"] != "code" or {"hide", "echo"} & directives(source).keys():
        return False
    return only_imports(code_of(source))


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
