#!/usr/bin/env python
"""Do all links lead somewhere? Over the notebooks and their drawings, the Markdown files at the top, and the pages of a folder.

    tools/links.py [FOLDER]    the folder of the pages, if they were made

A link within the project that leads nowhere is an error, and so is one that leads out of the folder of the pages, which alone is published.
Links to other hosts are listed, and nothing is fetched.
"""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import mistune
from cells import ROOT, joined, settings, slug
from lxml.html import document_fromstring

URL = re.compile(r"[a-z][a-z+.-]*:|//")
MARKDOWN = mistune.create_markdown(escape=False, plugins=["math"])


class Found(NamedTuple):
    "What a file offers to links, and where its own lead."

    anchors: set[str]
    targets: list[str]  # of links, pictures, scripts and styles


def of_html(text: str) -> Found:
    page = document_fromstring(text)
    return Found({*page.xpath("//@id")}, page.xpath("(//@href | //@src)[. != '']"))


def of_markdown(text: str, on_github: bool = True) -> Found:
    "Anchors as pandoc makes them of headings, and as GitHub does, which has none for notebooks."
    page = f"<main>{MARKDOWN(text)}</main>"
    found = document_fromstring(page).iter("h1", "h2", "h3", "h4", "h5", "h6")
    heads = [head.text_content() for head in found]
    github = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
    anchors, targets = of_html(page)
    return Found(
        anchors | set(map(slug, heads)) | (github if on_github else set()), targets
    )


def of_notebook(text: str) -> Found:
    "Of its Markdown and of outputs that are Markdown; equations and definitions are anchors of its page."
    cells = json.loads(text)["cells"]
    shown = [joined(c["source"]) for c in cells if c["cell_type"] == "markdown"]
    outputs = [o.get("data", {}) for c in cells for o in c.get("outputs", [])]
    shown += [joined(data.get("text/markdown", "")) for data in outputs]
    anchors, targets = of_markdown("\n\n".join(shown), on_github=False)
    code = [joined(c["source"]) for c in cells if c["cell_type"] == "code"]
    exported = "\n".join(source for source in code if "#| export" in source)
    names = re.findall(r"^(?:def|class) (\w+)", exported, re.M)
    anchors |= {name.lower() for name in names}
    anchors |= {
        f"equation-{n}" for n in re.findall(r"\\tag\{(\w+)\}", "\n".join(shown))
    }
    return Found(anchors, targets)


KINDS = {".html": of_html, ".svg": of_html, ".ipynb": of_notebook}


def inside(url: str, site: Path | None, root: Path, cfg: dict[str, str]) -> Path | None:
    "The file of a link to our own repository, or to a site that was made; None for others."
    own, home = f"{cfg['user']}/{cfg['repo']}", cfg["doc_baseurl"] + "/"
    addresses = {
        f"{cfg['git_url']}/(?:blob|tree)/{cfg['branch']}/": root,
        rf"https://colab\.research\.google\.com/github/{own}/blob/[\w.-]+/": site,
        f"{cfg['doc_host']}{home}": site,
        home: site,  # as on the page 404
    }
    for address, folder in addresses.items():
        if folder and (match := re.match(address, url)):
            return folder / (url[match.end() :] or "index.html")
    return None


def files_of(folder: Path | None, root: Path) -> list[Path]:
    "Those whose links are checked."
    notebooks = (root / "nbs").glob("[!_.]*.ipynb")
    files = [*root.glob("*.md"), *notebooks, *(root / "nbs/images").glob("*.svg")]
    kinds = ("*.html", "*/*.html", "*.md", "llms.txt", "**/notebooks/*.ipynb")
    for kind in kinds if folder else ():
        files += folder.glob(kind)
    return sorted(files)


def check(folder: Path | None, root: Path = ROOT) -> tuple[list[str], dict[str, list]]:
    "One line for each link that leads nowhere; the links to other hosts, each with the files that hold it."
    cfg, broken, outside, root = settings(), [], {}, root.resolve()
    site = folder.resolve() if folder else None
    found = {
        file.resolve(): KINDS.get(file.suffix, of_markdown)(file.read_text("utf-8"))
        for file in files_of(site, root)
    }
    for file, (_, targets) in found.items():
        name = file.relative_to(root) if file.is_relative_to(root) else file.name
        for target in dict.fromkeys(targets):
            if target.startswith(("data:", "mailto:")):
                continue
            path, _, anchor = target.partition("#")
            to = inside(path, site, root, cfg)
            if not to and URL.match(path):
                outside.setdefault(target, []).append(str(name))
                continue
            here = file.parent / unquote(path.partition("?")[0]) if path else file
            to = (to or here).resolve()
            is_page = site and file.is_relative_to(site) and not URL.match(path)
            if is_page and not to.is_relative_to(site):
                broken.append(f"{name}: {target} leads out of the site")
            elif not to.exists():
                broken.append(f"{name}: {target} is not there")
            # a page as Markdown has not the anchors of the page
            elif to.name.endswith(".html.md") or not anchor or to not in found:
                continue
            elif to.name.startswith("live_") and "=" in anchor:
                continue  # the state of a live page, which tests/test_live_page.py opens
            elif unquote(anchor) not in found[to].anchors:
                broken.append(f"{name}: {target} names no place of that file")
    return broken, outside


def main(folder: Path | None) -> int:
    if folder and not (folder / "index.html").exists():
        sys.exit(f"{folder} holds no pages: run `make docs` first")
    broken, outside = check(folder)
    for url, names in sorted(outside.items()):
        more = ", …" if names[1:] else ""
        print(f"links: elsewhere, not fetched: {url}  ({names[0]}{more})")
    for line in broken:
        print(f"links: {line}")
    print(f"links: {len(broken)} lead nowhere, {len(outside)} lead to other hosts")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
