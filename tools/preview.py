#!/usr/bin/env python
"""The site's pages without Quarto: notebooks as nbdev processes them, through pandoc, to `_preview/*.html`.

    tools/preview.py [NAME ...]    the named notebooks, default all that the sidebar lists

Pages load nothing from elsewhere and open from the folder, without a server.
"""

import json
import multiprocessing
import os
import re
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from html import escape
from pathlib import Path

from notebooks import ROOT, settings
from pages import (
    Entry,
    finish,
    heading,
    link,
    markdown,
    page_name,
    pandoc,
    sections,
    sidebar,
    write_plain,
)

OUT = ROOT / "_preview"
HERE = Path(__file__).resolve().parent


def processed(path: Path):
    "A notebook as nbdev hands it to Quarto: hidden cells dropped, names linked, its title made front matter."
    from execnb.nbio import read_nb
    from nbdev.processors import FilterDefaults

    os.environ["IN_TEST"] = "1"
    nb = read_nb(path)
    FilterDefaults()(nb)
    return nb


def stylesheet() -> str:
    "Colours and type of nbs/site.scss, then the preview's own layout."
    scss = (ROOT / "nbs/site.scss").read_text(encoding="utf-8")
    found = re.findall(r"^\$(\w+): if\(\$is-dark-theme, (#\w+), (#\w+)\);", scss, re.M)
    names = [f"--{name}: light-dark({light}, {dark});" for name, dark, light in found]
    fonts = [
        f"--{name[:4]}: {fonts};"
        for name, fonts in re.findall(r"^\$font-family-(\w+)[\w-]*: (.*);", scss, re.M)
    ]
    themes = "".join(
        f":root[data-theme={t}] {{ color-scheme: {t}; }}\n" for t in ("light", "dark")
    )
    return "\n".join(
        [
            f":root {{ color-scheme: light dark; {' '.join(names + fonts)} }}",
            themes,
            scss.rpartition("/*-- scss:rules --*/")[2],
            (HERE / "preview.css").read_text(encoding="utf-8"),
        ]
    )


def menu_of(menu: list[Entry], path: Path) -> str:
    "The menu of a page: of the parts, that of the page is open."
    parts: list[list[Entry]] = [[]]
    for entry in menu:
        if not entry.path:
            parts.append([])
        parts[-1].append(entry)
    rows = []
    for part in parts:
        links = [
            f'<a href="{page_name(e.path)}"{" aria-current=page" if e.path == path else ""}>{escape(e.text)}</a>'
            for e in part
            if e.path
        ]
        if part and not part[0].path:
            opened = " open" if path in [e.path for e in part] else ""
            title = f"<summary>{escape(part[0].text)}</summary>"
            links = [f"<details{opened}>{title}", *links, "</details>"]
        rows += links
    return "\n".join(rows)


def page(path: Path, menu: list[Entry]) -> list[tuple[str, str, str, str]]:
    "Build one page, and its plain Markdown; returns what search looks through: (address, title, heading, text)."
    cfg, name = settings(), page_name(path)
    pages = [e for e in menu if e.path]
    at = [e.path for e in pages].index(path)
    near = [
        f'<a rel="{rel}" href="{page_name(pages[i].path)}"><small>{word}</small>{escape(pages[i].text)}</a>'
        for rel, word, i in (("prev", "← before", at - 1), ("next", "next →", at + 1))
        if 0 <= i < len(pages)
    ]
    (title, about), include = (
        heading(path),
        lambda name: (ROOT / "nbs" / name).read_text(encoding="utf-8"),
    )
    fields = {
        "title": escape(title),
        "about": escape(about),
        "site": cfg["title"],
        "name": name,
        "menu": menu_of(menu, path),
        "near": "\n".join(near),
        "head": include("head.html"),
        "skip": include("skip.html"),
    }
    try:
        text = markdown(processed(path), path.stem, OUT)
        done = pandoc(
            text,
            "-t",
            "html5",
            "--mathml",
            "--toc",
            "--toc-depth=2",
            "--standalone",
            f"--template={HERE / 'preview.html'}",
            f"--lua-filter={ROOT / 'nbs/pages.lua'}",
            f"--lua-filter={HERE / 'callouts.lua'}",
            "--fail-if-warnings",
            *(f"--variable={k}={v}" for k, v in fields.items()),
        )
        write_plain(text, path, OUT)
    except ValueError as e:
        raise ValueError(f"{path.name}: {e}") from None
    done = re.sub(
        r'(<a\b[^>]*?\bhref=")([^"]*)(")', lambda m: m[1] + link(m[2], cfg) + m[3], done
    )
    (OUT / name).write_text(done, encoding="utf-8")
    return [
        (f"{name}#{anchor}".rstrip("#"), title, head, text)
        for anchor, head, text in sections(done)
    ]


def main(names: list[str]) -> None:
    os.chdir(ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE), os.environ.get("PYTHONPATH")])
    )  # settings.ini names processors of pages.py
    menu = sidebar()
    paths = [e.path for e in menu if e.path and (not names or e.path.stem in names)]
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    (OUT / "preview.css").write_text(stylesheet(), encoding="utf-8")
    for file in (HERE / "preview.js", ROOT / "nbs/favicon.svg"):
        shutil.copy2(file, OUT)
    if (ROOT / "nbs/images").exists():
        shutil.copytree(ROOT / "nbs/images", OUT / "images")
    # A process for each page, since processing runs the notebook's exported cells; each begins with preload.py.
    found, context = (
        [],
        multiprocessing.get_context(
            "forkserver"
            if "forkserver" in multiprocessing.get_all_start_methods()
            else "spawn"
        ),
    )
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["preload"])
    with ProcessPoolExecutor(2, mp_context=context, max_tasks_per_child=1) as pool:
        for path, inside in zip(
            paths, pool.map(page, paths, [menu] * len(paths)), strict=True
        ):
            print(f"_preview/{page_name(path)}")
            found += inside
    (OUT / "search.js").write_text(
        f"window.sections = {json.dumps(found, ensure_ascii=False)};\n",
        encoding="utf-8",
    )
    finish([e for e in menu if not e.path or e.path in paths], OUT)


if __name__ == "__main__":
    main(sys.argv[1:])
