#!/usr/bin/env python
"""Check the scripts, styles and templates of the pages, without installing anything.

A page NAME is NAME.html with the files that it names: $STEM_css and $STEM_js in it stand
for STEM.css and STEM.js. Its scripts are one script, in this order. Scripts are checked
where node is on PATH: syntax errors, names that are not defined, are defined twice or are
never used. Styles and templates are always checked: syntax, and ids, classes and custom
properties that do not exist. A file of several pages may use classes and properties that
only some of them define.
"""

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "annotated_transformer/show/pages"
OTHER_SCRIPTS = [ROOT / "tools/preview.js", ROOT / "tests/page.js"]
USED_BY_TESTS = "page.js:2: page is never used"
MAX_LINE = 88
AT_RULES = {"media"}
VOID = {"br", "hr", "img", "input", "link", "meta"}


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def page_files(folder: Path, name: str, kind: str) -> list[Path]:
    "The files of a kind (css or js) that NAME.html names, in its order."
    stems = re.findall(rf"\$(\w+)_{kind}\b", read(folder / f"{name}.html"))
    return [folder / f"{stem}.{kind}" for stem in stems]


# --- scripts


def script_complaints(files: list[Path]) -> list[str]:
    "Complaints about files that are one script; syntax alone where node has no parser."
    lint = ["node", "--expose-internals", Path(__file__).with_name("lint.js"), *files]
    done = subprocess.run(lint, capture_output=True, text=True)
    if done.returncode == 0:
        return done.stdout.split("\n")[:-1] if done.stdout.strip() else []
    if "internal/deps/acorn" not in done.stderr:
        raise RuntimeError(f"tools/lint.js failed: {done.stderr}")
    source = "".join(read(file) for file in files)
    check = ["node", "--check", "-"]
    done = subprocess.run(check, input=source, capture_output=True, text=True)
    return [done.stderr.strip()] if done.returncode else []


def page_script_complaints(folder: Path, names: list[str]) -> list[str]:
    "What a page does not use of a shared file is no complaint while another page does."
    scripts = {name: page_files(folder, name, "js") for name in names}
    found = {name: script_complaints(files) for name, files in scripts.items()}

    def is_reported(line: str) -> bool:
        file = folder / line.partition(":")[0]
        with_file = [name for name in names if file in scripts[name]]
        everywhere = all(line in found[name] for name in with_file)
        return everywhere or not line.endswith(" is never used")

    return sorted({x for lines in found.values() for x in lines if is_reported(x)})


# --- styles


def without_comments(css: str) -> str:
    return re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), css, flags=re.S)


def declarations(css: str) -> list[tuple[str, str]]:
    "Every (property, value) of a style sheet."
    blocks = re.findall(r"\{([^{}]*)\}", without_comments(css))
    lines = [line.strip() for block in blocks for line in block.split(";")]
    return [
        (name.strip(), value.strip())
        for name, _, value in (line.partition(":") for line in lines if line)
    ]


def style_complaints(css: str, name: str) -> list[str]:
    "Braces that do not match, unknown at-rules, declarations without a value."
    lines, depth = [], 0
    for i, line in enumerate(without_comments(css).split("\n"), 1):
        code = re.sub(r'"[^"\n]*"', '""', line)
        if '"' in code.replace('""', ""):
            lines.append(f"{name}:{i}: a string is not closed")
        for brace in re.findall(r"[{}]", code):
            depth += 1 if brace == "{" else -1
            if depth < 0:
                lines.append(f"{name}:{i}: this brace closes nothing")
                depth = 0
        for rule in set(re.findall(r"@([\w-]+)", code)) - AT_RULES:
            lines.append(f"{name}:{i}: @{rule} is not one of {', '.join(AT_RULES)}")
    if depth or "/*" in without_comments(css):
        lines.append(f"{name}: a brace or a comment is not closed")
    for name_, value in declarations(css):
        if not re.fullmatch(r"(--)?[a-z][a-z0-9-]*", name_) or not value:
            lines.append(f"{name}: this is no declaration: {name_}: {value}")
        if value.count("(") != value.count(")"):
            lines.append(f"{name}: brackets do not match: {name_}: {value}")
    return lines


# --- templates


class TemplateParser(HTMLParser):
    "What a template defines, what it refers to, and whether its tags match."

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.classes, self.used_ids = [], set(), set()
        self.open, self.lines = [], []
        self.feed(text)
        self.lines += [f"<{tag}> is not closed" for tag in self.open]

    def handle_starttag(self, tag, attrs):
        found = {name: value or "" for name, value in attrs}
        self.ids += [found["id"]] if "id" in found else []
        self.classes |= set(found.get("class", "").split())
        for name in ("for", "aria-labelledby"):
            self.used_ids |= set(found.get(name, "").split())
        if tag not in VOID:
            self.open.append(tag)

    def ids_twice(self) -> list[str]:
        return [name for name, n in Counter(self.ids).items() if n > 1]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.lines.append(f"line {self.getpos()[0]}: </{tag}> closes another tag")


class Names(NamedTuple):
    "Sets of ids, classes and custom properties."

    ids: set[str] = frozenset()
    classes: set[str] = frozenset()
    properties: set[str] = frozenset()

    def __or__(self, other: "Names") -> "Names":
        return Names(*map(set.union, map(set, self), other))

    def __sub__(self, other: "Names") -> list[str]:
        "What only the first has, as complaints."
        kinds = zip(("id", "class", "property"), self, other, strict=True)
        return [f"no {kind} {name}" for kind, a, b in kinds for name in sorted(a - b)]


def defined_names(page: TemplateParser, css: str, js: str) -> Names:
    "A class is defined by an element of the template, or by a string in the script."
    set_in_script = re.findall(r'setProperty\("(--[\w-]+)"', js)
    return Names(
        ids=set(page.ids),
        classes=page.classes | set(re.findall(r'"([\w-]+)"', js)),
        properties={name for name, _ in declarations(css)} | set(set_in_script),
    )


def used_names(css: str, js: str) -> Names:
    selectors = re.sub(r"\{[^{}]*\}", "{}", without_comments(css))
    in_styles = re.findall(r"#([A-Za-z][\w-]*)", selectors)
    in_scripts = re.findall(r'byId\("([\w-]+)"\)', js)
    return Names(
        ids={*in_styles, *in_scripts},
        classes=set(re.findall(r"\.([A-Za-z][\w-]*)", selectors)),
        properties=set(re.findall(r"var\((--[\w-]+)[,)]", css + js)),
    )


def name_complaints(folder: Path, names: list[str]) -> list[str]:
    "What a page uses, it defines; classes that shared files use, some page defines."
    files = {
        name: [page_files(folder, name, kind) for kind in ("css", "js")]
        for name in names
    }
    count = Counter(path for two in files.values() for path in two[0] + two[1])
    shared = {path for path, n in count.items() if n > 1}

    def text(paths: Iterable[Path]) -> str:
        return "\n".join(map(read, paths))

    lines, anywhere = [], Names()
    for name, both in files.items():
        page = TemplateParser(read(folder / f"{name}.html"))
        defined = defined_names(page, *map(text, both))
        anywhere |= defined
        twice = [f"two elements have the id {i}" for i in page.ids_twice()]
        own = [[path for path in paths if path not in shared] for paths in both]
        ids = used_names(*map(text, both)).ids | page.used_ids
        used = used_names(*map(text, own)) | Names(ids=ids)
        lines += [f"{name}.html: {s}" for s in page.lines + twice + (used - defined)]
    in_shared = [
        sorted(p for p in shared if p.suffix == end) for end in (".css", ".js")
    ]
    used = used_names(*map(text, in_shared))
    return lines + [f"shared: {s}" for s in used - anywhere]


def file_complaints(folder: Path, names: list[str]) -> list[str]:
    "Files that a page names and that are not there, and files that no page names."
    named = {
        path: name
        for name in names
        for kind in ("css", "js")
        for path in page_files(folder, name, kind)
    }
    there = {path for path in folder.iterdir() if path.suffix in (".css", ".js")}
    missing = sorted(named.keys() - there)
    return [f"{named[path]}.html: no file {path.name}" for path in missing] + [
        f"{path.name}: no page has this file" for path in sorted(there - named.keys())
    ]


# --- all


def complaints(folder: Path = PAGES) -> list[str]:
    "One line per complaint about the pages in a folder."
    names = sorted(path.stem for path in folder.glob("*.html"))
    lines = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".css", ".js"):
            lines += [
                f"{path.name}:{i}: more than {MAX_LINE} columns"
                for i, line in enumerate(read(path).split("\n"), 1)
                if len(line) > MAX_LINE
            ]
            if re.search(r"</(style|script)|<!--", read(path), re.I):
                lines.append(f"{path.name}: holds what ends the element around it")
        if path.suffix == ".css":
            lines += style_complaints(read(path), path.name)
    lines += file_complaints(folder, names)
    if any(": no file " in line for line in lines):
        return lines
    lines += name_complaints(folder, names)
    if shutil.which("node"):
        lines += page_script_complaints(folder, names)
    return lines


def main() -> int:
    lines = complaints()
    if shutil.which("node"):
        for script in OTHER_SCRIPTS:
            found = script_complaints([script])
            lines += [line for line in found if line != USED_BY_TESTS]
    else:
        print("lint_pages: node is not on PATH, so the scripts are not checked")
    for line in lines:
        print(f"lint_pages: {line}")
    if not lines:
        print("lint_pages: the pages' files are in order")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
