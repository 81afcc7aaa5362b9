#!/usr/bin/env python
"""The site's pages without Quarto: notebooks as nbdev processes them, through pandoc, to `_preview/*.html`.

    tools/preview.py [NAME ...]    the named notebooks, default all that the sidebar lists

Pages hold no script and load nothing from elsewhere.
"""
import base64
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from html import escape
from pathlib import Path

import yaml
from notebooks import ROOT, code_of, joined, settings

OUT = ROOT / "_preview"
HERE = Path(__file__).resolve().parent
DIALECT = "markdown+lists_without_preceding_blankline"


# ---- one notebook → Markdown

def processed(path: Path):
    "A notebook as nbdev hands it to Quarto: hidden cells dropped, references added, its title taken out."
    from execnb.nbio import read_nb
    from nbdev.processors import FilterDefaults
    os.environ["IN_TEST"] = "1"
    nb = read_nb(path)
    FilterDefaults()(nb)
    return nb


def options(source: str, where: str) -> dict:
    "Quarto's `#| name: value` lines of a cell."
    lines = [m[1] for m in re.finditer(r"^\s*#\s*\|\s*(.*:.*)$", source, re.M)]
    try: return yaml.safe_load("\n".join(lines)) or {}
    except yaml.YAMLError as e: raise ValueError(f"{where}: the #| lines are no YAML; put the text in quotes\n{e}") from None


def fenced(text: str, css: str) -> str:
    tildes = "~" * (1 + max(3, *map(len, re.findall(r"~+", text)), 3))
    return f"{tildes} {{{css}}}\n{text.rstrip()}\n{tildes}"


def html(text: str) -> str:
    return f"```````{{=html}}\n{text}\n```````"


def picture(data: dict, stem: Path) -> Path | None:
    "Write an output's picture beside the page; returns the file, or None where there is no picture."
    if "image/svg+xml" in data: file, content = stem.with_suffix(".svg"), joined(data["image/svg+xml"]).encode()
    elif "image/png" in data: file, content = stem.with_suffix(".png"), base64.b64decode(joined(data["image/png"]))
    else: return None
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def numbered(label: str, numbers: dict) -> str:
    "Give the next figure its number and remember it for references."
    if not label.startswith("fig-"): return ""
    numbers[label] = f"Figure {1 + sum(n.startswith('F') for n in numbers.values())}"
    return f"{numbers[label]}: "


def figure(src: str, opts: dict, numbers: dict) -> str:
    "A picture with its caption, number and text for those who cannot see it."
    label, cap = opts.get("label", ""), opts.get("fig-cap", "")
    return "\n\n".join([html(f'<figure id="{escape(label)}"><img src="{src}" alt="{escape(opts.get("fig-alt", ""))}"><figcaption>'),
                        numbered(label, numbers) + cap, html("</figcaption></figure>")])


def output(out: dict, opts: dict, stem: Path, numbers: dict) -> str:
    "One output as Markdown; of several forms the one that needs no script."
    if out["output_type"] == "stream": return fenced(joined(out["text"]), f".output .{out['name']}")
    if out["output_type"] == "error": return fenced("\n".join(out["traceback"]), ".output .stderr")
    data = out["data"]
    if file := picture(data, stem): return figure(file.relative_to(OUT).as_posix(), opts, numbers)
    if "text/markdown" in data: return joined(data["text/markdown"])
    if "text/html" in data: return html(f'<div class="wide">{joined(data["text/html"])}</div>')
    if "text/latex" in data: return joined(data["text/latex"])
    return fenced(joined(data.get("text/plain", "")), ".output")


def code_cell(cell, where: str, stem: Path, numbers: dict) -> list[str]:
    "The code a cell shows and its outputs, as the cell's options ask."
    opts, code = options(cell.source, where), code_of(cell.source)
    if opts.get("include") is False: return []
    parts = []
    if re.match(r"show_doc\(", code):  # the reference of what was just defined: folded, the code stands above it
        name = re.sub(r"show_doc\(|\).*", "", code)
        docs = [joined(o["data"]["text/markdown"]) for o in cell.outputs if "text/markdown" in o.get("data", {})]
        return [html(f'<details class="reference"><summary>Reference: <code>{escape(name)}</code></summary>'), *docs, html("</details>")]
    if code and opts.get("echo") is not False:
        parts = [fenced(code, ".python")]
        if opts.get("code-fold") in (True, "show"):
            opened, title = " open" if opts["code-fold"] == "show" else "", escape(opts.get("code-summary", "Code"))
            parts = [html(f"<details{opened}><summary>{title}</summary>"), *parts, html("</details>")]
    if opts.get("output") is False: return parts
    return parts + [output(o, opts, stem.with_name(f"{stem.name}-{i}"), numbers) for i, o in enumerate(cell.get("outputs") or [])]


def markdown(nb, name: str) -> str:
    "A processed notebook as one text for pandoc, with figures and equations numbered."
    parts, numbers = [f"::: description\n{nb.frontmatter_.get('description', '')}\n:::"], {}
    for i, cell in enumerate(nb.cells):
        if cell.cell_type == "markdown":
            parts.append(re.sub(r"!\[([^\]]*)\](\([^)]*\)\{#(fig-[\w-]+))", lambda m: f"![{numbered(m[3], numbers)}{m[1]}]{m[2]}",
                                cell.source.replace("fig-alt=", "alt=")))
        elif cell.cell_type == "code": parts += code_cell(cell, f"{name}, cell {i}", OUT / f"{name}_files" / f"cell-{i}", numbers)
    text = "\n\n".join(parts)

    def equation(m: re.Match) -> str:
        numbers[m[2]] = f"({1 + sum(n.startswith('(') for n in numbers.values())})"
        return f"::: {{#{m[2]} .equation}}\n::: wide\n$${m[1].strip()}$$\n:::\n[{numbers[m[2]]}]{{.number}}\n:::"
    text = re.sub(r"\$\$((?:(?!\$\$).)+)\$\$\s*\{#(eq-[\w-]+)\}", equation, text, flags=re.S)
    for label, number in numbers.items():
        said = f"Equation {number}" if number.startswith("(") else number
        text = re.sub(rf"@{re.escape(label)}(?![\w-])", f"[{said}](#{label})", text)
    return text


# ---- Markdown → page

def page_name(path: Path) -> str:
    "nbdev's rule: the number is for sorting, the page is called by the rest."
    return re.sub(r"^\d+[a-zA-Z0-9]*_", "", path.stem.lower()) + ".html"


def title_of(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    heads = (re.search(r"^(?:#|title:)\s+(.+)$", joined(c["source"]), re.M) for c in cells if c["cell_type"] != "code")
    return next((m[1].strip("\"' ") for m in heads if m), path.stem)


def sidebar() -> list[tuple[str, str, Path | None]]:
    "(kind, text, notebook) for each line of _quarto.yml's sidebar."
    def walk(items):
        for item in items:
            item = {"href": item} if isinstance(item, str) else item
            if "section" in item:
                yield "section", item["section"], None
                yield from walk(item["contents"])
            else:
                path = ROOT / "nbs" / item["href"]
                if path.exists(): yield "page", item.get("text") or title_of(path), path
                else: print(f"preview: the sidebar lists nbs/{path.name}, which is not there")
    return list(walk(yaml.safe_load((ROOT / "_quarto.yml").read_text(encoding="utf-8"))["website"]["sidebar"]["contents"]))


def link(target: str, cfg: dict[str, str]) -> str:
    "Where a link of a notebook leads in the preview."
    site = cfg["doc_host"] + cfg["doc_baseurl"] + "/"
    if target.startswith(site): return target.removeprefix(site)
    if re.match(r"[a-z][a-z+.-]*:|#", target): return target
    if target.startswith("../"): return f"{cfg['git_url']}/blob/{cfg['branch']}/{target[3:]}"
    file, hash_, anchor = target.partition("#")
    return page_name(Path(file)) + hash_ + anchor if file.endswith(".ipynb") else target


def page(path: Path, menu: list) -> str:
    "Build one page; returns its name."
    cfg, nb = settings(), processed(path)
    pages = [(text, p) for kind, text, p in menu if kind == "page"]
    at = [p for _, p in pages].index(path)
    rows = [f"<p>{escape(text)}</p>" if kind == "section" else
            f'<a href="{page_name(p)}"{" aria-current=page" if p == path else ""}>{escape(text)}</a>' for kind, text, p in menu]
    near = [f'<a rel="{rel}" href="{page_name(pages[i][1])}">{word}{escape(pages[i][0])}</a>'
            for rel, word, i in (("prev", "← ", at - 1), ("next", "→ ", at + 1)) if 0 <= i < len(pages)]
    source = f"{cfg['git_url']}/blob/{cfg['branch']}/nbs/{path.name}"
    fields = {"title": escape(title_of(path)), "site": cfg["title"],
              "menu": "\n".join(rows), "near": " ".join(near), "source": escape(source)}
    import pypandoc
    done = subprocess.run([pypandoc.get_pandoc_path(), "-f", DIALECT, "-t", "html5", "--mathml", "--toc", "--toc-depth=2", "--standalone",
                           "--wrap=none", f"--template={HERE / 'preview.html'}", f"--lua-filter={HERE / 'callouts.lua'}", "--fail-if-warnings",
                           *(f"--variable={k}={v}" for k, v in fields.items())],
                          input=markdown(nb, path.stem), capture_output=True, text=True)
    if done.returncode: raise ValueError(f"{path.name}: pandoc says\n{done.stderr}")
    text = re.sub(r'(<a\b[^>]*?\bhref=")([^"]*)(")', lambda m: m[1] + link(m[2], cfg) + m[3], done.stdout)
    (OUT / page_name(path)).write_text(text, encoding="utf-8")
    return page_name(path)


def main(names: list[str]) -> None:
    os.chdir(ROOT)
    menu = sidebar()
    paths = [p for _, _, p in menu if p and (not names or p.stem in names)]
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    shutil.copy2(HERE / "preview.css", OUT)
    if (ROOT / "nbs/images").exists(): shutil.copytree(ROOT / "nbs/images", OUT / "images")
    # A fresh process for each page: processing runs the notebook's exported cells.
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in pool.map(page, paths, [menu] * len(paths)): print(f"_preview/{name}")


if __name__ == "__main__":
    main(sys.argv[1:])
