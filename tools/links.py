#!/usr/bin/env python
"""Do all links lead somewhere? Over the pages, the Markdown files at the top, and the notebooks as files.

    tools/links.py [FOLDER]    the folder of the pages, default _preview

A link within the project that leads nowhere is an error, and so is one that leads out of the folder of the pages, which alone is published.
Links to other hosts are listed, and nothing is fetched.
"""

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from notebooks import ROOT, joined, settings

URL = re.compile(r"[a-z][a-z+.-]*:|//")


class Found(NamedTuple):
    "What a file offers to links, and where its own lead."

    anchors: set[str]
    targets: list[str]  # of links, pictures, scripts and styles


class Page(HTMLParser):
    def __init__(self, text: str):
        super().__init__()
        self.anchors, self.targets = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for key, value in attrs:
            if key == "id":
                self.anchors.add(value)
            elif key in ("href", "src") and value:
                self.targets.append(value)


def of_html(text: str) -> Found:
    page = Page(text)
    return Found(page.anchors, page.targets)


def of_markdown(text: str) -> Found:
    "Links of Markdown outside code; anchors as GitHub makes them of headings."
    text = re.sub(
        r"^(```|~~~).*?^\1|`[^`\n]+`|\$\$.*?\$\$", "", text, flags=re.M | re.S
    )
    headings = re.findall(r"^#+\s+(.+?)\s*$", text, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    raw = of_html(text)
    return Found(
        anchors | raw.anchors,
        raw.targets + re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", text),
    )


def of_notebook(text: str) -> Found:
    "Of its Markdown; its outputs that are Markdown have anchors too."
    cells = json.loads(text)["cells"]
    found = of_markdown(
        "\n\n".join(joined(c["source"]) for c in cells if c["cell_type"] == "markdown")
    )
    outputs = [o.get("data", {}) for c in cells for o in c.get("outputs", [])]
    shown = "\n\n".join(joined(data.get("text/markdown", "")) for data in outputs)
    return Found(found.anchors | of_html(shown).anchors, found.targets)


def inside(url: str, folder: Path, root: Path, cfg: dict[str, str]) -> str | None:
    "The path of a link to our own repository, site or notebook in Colab; None for another host's."
    here, site = (
        re.escape(cfg["git_url"]) + rf"/(?:blob|tree)/{re.escape(cfg['branch'])}/",
        cfg["doc_host"] + cfg["doc_baseurl"] + "/",
    )
    colab = re.match(
        rf"https://colab\.research\.google\.com/github/{cfg['user']}/{cfg['repo']}/blob/[\w.-]+/(.*)",
        url,
    )
    if colab:
        return str(folder / colab[1])
    if ours := re.match(here, url):
        return str(root / url[ours.end() :])
    if url.startswith(site):
        return str(folder / (url.removeprefix(site) or "index.html"))


def check(folder: Path, root: Path = ROOT) -> tuple[list[str], dict[str, list[str]]]:
    "One line for each link that leads nowhere; the links to other hosts, each with the files that hold it."
    cfg, broken, outside, root, folder = (
        settings(),
        [],
        {},
        root.resolve(),
        folder.resolve(),
    )
    kinds = {".html": of_html, ".md": of_markdown, ".ipynb": of_notebook}
    files = [
        f
        for kind in ("*.html", "*.md", "llms.txt", "notebooks/*.ipynb")
        for f in folder.glob(kind)
    ]
    files += [*root.glob("*.md"), *(root / "nbs").glob("[!_.]*.ipynb")]
    found = {
        f.resolve(): kinds.get(f.suffix, of_markdown)(f.read_text(encoding="utf-8"))
        for f in sorted(files)
    }
    for file, (_, targets) in found.items():
        name = (
            file.relative_to(root).as_posix()
            if file.is_relative_to(root)
            else file.name
        )
        for target in dict.fromkeys(targets):
            if target.startswith(("data:", "mailto:")):
                continue
            path, _, anchor = target.partition("#")
            if path.startswith(base := cfg["doc_baseurl"] + "/"):
                path = str(folder / path.removeprefix(base))  # as on the page 404
            if URL.match(target):
                if (ours := inside(path, folder, root, cfg)) is None:
                    outside.setdefault(target, []).append(name)
                    continue
                path = ours
            to = (
                (file.parent / unquote(path.partition("?")[0])).resolve()
                if path
                else file
            )
            if (
                file.is_relative_to(folder)
                and not URL.match(target)
                and not to.is_relative_to(folder)
            ):
                broken.append(f"{name}: {target} leads out of the site")
            elif not to.exists():
                broken.append(f"{name}: {target} is not there")
            elif (
                anchor
                and file.suffix == ".html"
                and to in found
                and unquote(anchor) not in found[to].anchors
            ):
                broken.append(f"{name}: {target} names no place of that page")
            elif (
                anchor
                and file.parent == root
                and to in found
                and unquote(anchor) not in found[to].anchors
            ):
                broken.append(f"{name}: {target} names no heading of that file")
    return broken, outside


def main(folder: Path) -> int:
    if not (folder / "index.html").exists():
        sys.exit(f"{folder} holds no pages: run `make preview` first")
    broken, outside = check(folder)
    for url, names in sorted(outside.items()):
        print(
            f"links: elsewhere, not fetched: {url}  ({names[0]}{', …' if names[1:] else ''})"
        )
    for line in broken:
        print(f"links: {line}")
    print(f"links: {len(broken)} lead nowhere, {len(outside)} lead to other hosts")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(
        main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "_preview").resolve())
    )
