"How the tools read notebooks: settings, cells and their options, names of pages, links."

import ast
import json
import posixpath
import re
import textwrap
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from functools import partial
from pathlib import Path

import yaml
from lxml import html as dom

ROOT = Path(__file__).resolve().parent.parent
CAPTION = "**Figure.** "  # how captions begin, which other readers than Quarto see below a figure
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # in Lab; in Colab


def settings(root: Path = ROOT) -> dict[str, str]:
    "What settings.ini says."
    config = ConfigParser(delimiters=["="])
    config.read(root / "settings.ini", encoding="utf-8")
    return dict(config["DEFAULT"])


def joined(text: str | list[str]) -> str:
    "Notebook files hold a text either whole or as a list of lines."
    return text if isinstance(text, str) else "".join(text)


def conflicts(path: Path) -> list[str]:
    "One line for each cell of a notebook that has markers of a merge, or for the whole if it is not JSON."
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except ValueError:
        return [f"{path.name}: not JSON, as after a merge with conflicts"]
    return [
        f"{path.name}, cell {i}: has conflict markers of a merge"
        for i, cell in enumerate(cells)
        if re.search(r"^`?(<{7}|>{7})", joined(cell["source"]), re.M)
    ]


# ---- cells


def directives(source: str) -> dict[str, str]:
    "The `#| name: value` lines at the top of a cell, as nbdev and Quarto read them."
    found = {}
    for line in source.split("\n"):
        if not line.strip():
            continue
        m = re.match(r"\s*#\s*\|\s*([\w.-]+):?\s*(.*)", line)
        if not m:
            break
        found[m[1]] = m[2].strip().strip('"')
    return found


class Strict(yaml.SafeLoader):
    "PyYAML's reader, which refuses a key that is there twice, as Quarto's does."

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                says = f"the key {key.value!r} is there twice"
                raise yaml.MarkedYAMLError(says, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def strict_yaml(text: str, where: str) -> dict:
    "The names and values of a YAML text; ValueError for what Quarto's reader refuses."
    try:
        found = yaml.load(text, Strict) or {}
    except yaml.YAMLError as e:
        raise ValueError(f"{where}: Quarto cannot read this YAML: {e}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{where}: not names and values: {found!r}")
    return found


def options(source: str, where: str) -> dict:
    "Quarto's `#| name: value` lines at the top of a cell."
    lines = []
    for line in filter(str.strip, source.split("\n")):
        m = re.match(r"\s*#\s*\|\s*([\w-]+\s*:.*)?", line)
        if not m:
            break
        lines += [m[1]] if m[1] else []
    return strict_yaml("\n".join(lines), where)


def code_of(source: str) -> str:
    "A cell without its directives."
    lines = source.split("\n")
    while lines and (not lines[0].strip() or re.match(r"\s*#\s*\|", lines[0])):
        lines.pop(0)
    return "\n".join(lines).rstrip()


def only_imports(code: str) -> bool:
    try:
        kinds = {type(node) for node in ast.parse(code).body}
    except SyntaxError:  # a line for the shell
        return False
    return bool(kinds) and kinds <= {ast.Import, ast.ImportFrom}


def is_folded(cell: dict) -> bool:
    "Is a cell's code folded on its page: by an option, by the tag, or as it only imports?"
    code, found = code_of(joined(cell["source"])), directives(joined(cell["source"]))
    if cell["cell_type"] != "code" or not code:
        return False
    if "code-fold" in found:
        return found["code-fold"] == "true"
    return "fold" in cell["metadata"].get("tags", []) or only_imports(code)


def is_hidden(cell: dict) -> bool:
    "Is a cell's code left out of its page?"
    found = directives(joined(cell["source"]))
    return "hide" in found or "false" in (found.get("echo"), found.get("include"))


def markdown_of(cell: dict) -> Iterator[tuple[dict, str, str]]:
    "The Markdown of a cell and of its outputs: (where it is kept, its name there, text)."
    if cell["cell_type"] == "markdown":
        yield cell, "source", joined(cell["source"])
    for out in cell.get("outputs") or []:
        data = out.get("data", {})
        for kind in {"text/markdown", "text/html"} & data.keys():
            yield data, kind, joined(data[kind])


# ---- the first cell of code, for a notebook that is opened alone, as in Colab

INSTALLS = "10000000"  # its id; the export writes its text
INSTALL = """#| hide
try:
    import fastcore  # noqa: F401
    import vl_convert  # noqa: F401

    import annotated_transformer  # noqa: F401
except ImportError:
    import subprocess
    import sys

    address = "{git_url}"
    package = f"annotated_transformer[notebooks]@{{address}}/archive/HEAD.zip"
    print(f'pip install "{{package}}":', end=" ", flush=True)
    pip = [sys.executable, "-m", "pip", "install", package]
    done = subprocess.run(pip, capture_output=True, text=True)
    print(done.stderr.strip().split("\\n")[-1] if done.returncode else "done")"""


def install_cell() -> str:
    "The code that installs the package where a notebook does not find it."
    return INSTALL.format(git_url=settings()["git_url"])


def runs_alone(path: Path) -> bool:
    "Is this a notebook that installs the package, and so runs wherever it is opened?"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return any(cell.get("id") == INSTALLS for cell in cells)


# ---- pages


def page_name(path: Path) -> str:
    "nbdev's rule: the number is for sorting, the page is called by the rest."
    return re.sub(r"^\d+[a-zA-Z0-9]*_", "", path.stem.lower()) + ".html"


def heading(path: Path) -> tuple[str, str]:
    "A notebook's title and the sentence below it."
    first = joined(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    title = re.search(r"^#\s+(.+)$", first, re.M)
    about = re.search(r"^>\s+(.+)$", first, re.M)
    return title[1].strip() if title else path.stem, about[1].strip() if about else ""


def titled(path: Path) -> str:
    "A notebook's title with its number, by which the texts name it."
    number = re.match(r"\d+[a-z]?(?=_)", path.stem)
    return f"{number[0]} {heading(path)[0]}" if number else heading(path)[0]


def slug(heading: str) -> str:
    "The anchor that pandoc gives a heading; a translated one says it, `Heading {#anchor}`."
    if given := re.search(r"\{#([\w.-]+)[^}]*\}$", heading):
        return given[1]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    kept = "".join(c for c in plain if c.isalnum() or c in "_-." or c.isspace())
    return re.sub(r"^[\W\d_]+", "", "-".join(kept.lower().split()))


def opened(file: Path) -> dom.HtmlElement:
    "A page, to be changed."
    return dom.document_fromstring(file.read_text(encoding="utf-8"))


def as_html(page: dom.HtmlElement) -> str:
    return dom.tostring(page, encoding="unicode", doctype="<!DOCTYPE html>")


def html(text: str) -> str:
    "Markdown that is this HTML."
    ticks = "`" * (1 + max([2, *map(len, re.findall("`+", text))]))
    return f"{ticks}{{=html}}\n{text}\n{ticks}"


# ---- links

INLINE = r"(?P<ticks>`+)(?!`)(?:(?!\n\n).)+?(?<!`)(?P=ticks)(?!`)"
FENCED = r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n(?:.*?^ {0,3}(?P=fence)[`~]*[ ]*$|.*\Z)"
TARGET = r"(?P<before>\]\(<?|^\[[^\]\n]+\]: +|\b(?:href|src)=\")(?P<target>(?![a-z][a-z+.-]*:|[#/])[^)>\"\s]+)"


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


# ---- as Markdown alone


def shown(output: dict, picture: Callable[[], str]) -> str:
    "One output of a code cell as Markdown."
    data = output.get("data", {})
    if output["output_type"] == "error":
        raise ValueError("it ends in an error: mend it and run it again")
    if any(kind.startswith("image/") for kind in data):
        return picture()
    if "text/markdown" in data:
        return joined(data["text/markdown"]).strip()
    printed = output.get("text", "") if output.get("name") == "stdout" else ""
    text = joined(printed or data.get("text/plain", "")).rstrip("\n")
    return textwrap.indent(text, "    ") if text.strip() else ""


def as_markdown(nb: dict, name: str, picture: Callable[[dict, int], str]) -> list[str]:
    """What the page of a notebook, as nbdev has processed it, shows: parts of plain Markdown.

    `picture` gives that of a drawing: from its cell's options and its place among the outputs.
    """
    parts = []
    for i, cell in enumerate(nb["cells"]):
        source = joined(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
        if cell["cell_type"] != "code" or "hide" in directives(source):
            continue
        where = f"{name}, cell {i}"
        opts, code = options(source, where), code_of(source)
        if opts.get("include") is False:
            continue
        if code and opts.get("echo") is not False:
            parts.append(f"```python\n{code}\n```")
        if opts.get("output") is not False:
            try:
                parts += [
                    shown(out, partial(picture, opts, n))
                    for n, out in enumerate(cell["outputs"], 1)
                ]
            except ValueError as e:
                raise ValueError(f"{where}: {e}") from None
            if "fig-cap" in opts:
                parts.append(CAPTION + opts["fig-cap"])
    return [part for part in parts if part]


def readme(index: dict, source: str) -> str:
    "README.md as the index notebook makes it: its text, the code it shows, what that printed. `source` is the file to edit."

    def no_picture(opts: dict, n: int) -> str:
        raise ValueError("README.md can only link a picture, from nbs/images/")

    def move(target: str) -> str:  # links are relative to nbs/ in the notebook
        return posixpath.normpath(posixpath.join("nbs", target))

    head = f"<!-- Made from {source} by `make export`. Edit that. -->"
    parts = as_markdown(index, source, no_picture)
    return retarget("\n\n".join([head, *parts]), move) + "\n"
