#!/usr/bin/env python
"""Export the notebooks, run them, make README.md from the index.

tools/notebooks.py export            notebooks → package, notebooks cleaned, README.md made; nothing is run
tools/notebooks.py setup             once in an environment: nbdev's own commands find what settings.ini names in tools/
tools/notebooks.py run [NAME ...]    all that, and the named notebooks (default: all) run top to bottom, their outputs stored
"""

import argparse
import ast
import json
import os
import posixpath
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from configparser import ConfigParser
from functools import cache, partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIP_TAG = "skip-execution"  # nbclient leaves such cells, and their outputs, alone
CAPTION = "**Figure.** "  # how captions begin, which other readers than Quarto see below a figure
FOLDED = {"jupyter": {"source_hidden": True}, "cellView": "form"}  # in Lab; in Colab


def settings(root: Path = ROOT) -> dict[str, str]:
    "What settings.ini says."
    config = ConfigParser(delimiters=["="])
    config.read(root / "settings.ini", encoding="utf-8")
    return dict(config["DEFAULT"])


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


@cache
def strict_loader() -> type:
    "PyYAML's reader with the rules of YAML 1.2 that Quarto's reader keeps: no key twice, no `yes` that means true."
    import yaml  # not at the top: lowest.py runs before anything is installed

    class Strict(yaml.SafeLoader):
        yaml_implicit_resolvers = {}

        def construct_mapping(self, node, deep=False):
            seen = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise yaml.MarkedYAMLError("a key is no text", key.start_mark)
                if key.value in seen:
                    says = f"the key {key.value!r} is there twice"
                    raise yaml.MarkedYAMLError(says, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    for kind, form, first in (
        ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
        ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
        ("int", r"[-+]?\d+", "-+0123456789"),
        ("float", r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?", "-+.0123456789"),
    ):
        form = re.compile(f"^(?:{form})$")
        Strict.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", form, list(first))
    integer = lambda loader, node: int(loader.construct_scalar(node))
    Strict.add_constructor("tag:yaml.org,2002:int", integer)
    return Strict


def strict_yaml(text: str, where: str) -> dict:
    "The names and values of a YAML text; ValueError for what Quarto's reader refuses, and for anchors and tags."
    import yaml

    try:
        for token in yaml.scan(text):
            if isinstance(token, yaml.AnchorToken | yaml.AliasToken | yaml.TagToken):
                raise yaml.MarkedYAMLError("an anchor or a tag", token.start_mark)
        found = yaml.load(text, strict_loader()) or {}
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


def is_run(source: str, flags: set[str]) -> bool:
    "Is this cell run without being asked for? Not those with one of `flags`, not `eval: false`."
    found = directives(source)
    return not flags & found.keys() and found.get("eval", "").lower() != "false"


def joined(text: str | list[str]) -> str:
    "Notebook files hold a text either whole or as a list of lines."
    return text if isinstance(text, str) else "".join(text)


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


# ---- running


def execute(nb, folder: Path, flags: set[str]) -> None:
    "Run a notebook in a Jupyter kernel of its own, in a folder; cells that are not run get a tag."
    from nbclient import NotebookClient

    for cell in nb.cells:
        if cell.cell_type == "code" and not is_run(cell.source, flags):
            cell.metadata["tags"] = [SKIP_TAG]
    NotebookClient(
        nb,
        timeout=1800,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        skip_cells_with_tag=SKIP_TAG,
        extra_arguments=["--IPKernelApp.log_level=40"],
        resources={"metadata": {"path": str(folder)}},
    ).execute()


def run(path: Path, flags: set[str]) -> str:
    "Run one notebook and store its outputs. Returns what went wrong, or nothing."
    import nbformat
    from nbclient.exceptions import CellExecutionError

    nb = nbformat.read(path, 4)
    kept = [dict(cell.metadata) for cell in nb.cells]
    try:
        execute(nb, path.parent, flags)
    except CellExecutionError as e:
        return re.sub(r"\x1b\[[0-9;]*m", "", str(e))
    for cell, metadata in zip(nb.cells, kept, strict=True):
        cell.metadata = metadata
    write_clean(json.loads(nbformat.writes(nb)), path)
    return ""


def write_clean(nb: dict, path: Path) -> None:
    """Write a notebook as nbdev_clean leaves it, with what its page folds or hides folded in JupyterLab and Colab too.

    A file that would not change is not touched.
    """
    from execnb.nbio import dict2nb, write_nb
    from nbdev.clean import clean_nb

    nb = dict2nb(nb)
    clean_nb(nb, allowed_cell_metadata_keys=["tags"])
    for cell in nb["cells"]:
        if is_folded(cell) or cell["cell_type"] == "code" and is_hidden(cell):
            cell["metadata"].update(FOLDED)
    write_nb(nb, path)


def run_all(names: list[str], workers: int) -> int:
    "Run notebooks, two at a time; returns how many failed."
    nbs = ROOT / "nbs"
    paths = [
        nbs / f"{n.removesuffix('.ipynb').removeprefix('nbs/')}.ipynb" for n in names
    ] or sorted(nbs.glob("[!_.]*.ipynb"))
    if missing := [p.name for p in paths if not p.exists()]:
        sys.exit(f"no such notebook in nbs/: {', '.join(missing)}")
    # One thread and one order of sets: the same figures on every machine, as far as that goes.
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    flags, failed = set(settings()["tst_flags"].split()), 0
    with ProcessPoolExecutor(workers) as pool:
        for path, error in zip(
            paths, pool.map(run, paths, [flags] * len(paths)), strict=True
        ):
            print(
                f"{'failed' if error else 'ran   '} {path.relative_to(ROOT)}",
                error,
                sep="\n" if error else "",
                flush=True,
            )
            failed += bool(error)
    return failed


# ---- README.md


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


def unix_lines(lib: Path) -> None:
    "Lines end as in git wherever the modules are exported; on Windows nbdev writes CRLF."
    for path in lib.rglob("*.py"):
        if b"\r\n" in (data := path.read_bytes()):
            path.write_bytes(data.replace(b"\r\n", b"\n"))


def relative_imports(lib: Path) -> None:
    "nbdev makes imports from the package relative only where they stand on one line: here all of them."
    for path in lib.glob("*/**/*.py"):
        text = path.read_text(encoding="utf-8")
        dots = "." * len(path.relative_to(lib).parts)
        made = re.sub(rf"^( *from ){lib.name}\b\.?", rf"\1{dots}", text, flags=re.M)
        made = re.sub(
            rf"^( *from ){re.escape(dots + path.parent.name)}\.",
            r"\1.",
            made,
            flags=re.M,
        )
        if made != text:
            path.write_text(made, encoding="utf-8", newline="\n")


def export(root: Path = ROOT) -> None:
    "Notebooks → package, notebooks cleaned, README.md and translations of it made, in `root`, which is the current directory."
    from nbdev.doclinks import nbdev_export
    from translate import begun, languages, site, translated

    nbdev_export()
    unix_lines(root / settings(root)["lib_path"])
    relative_imports(root / settings(root)["lib_path"])
    for path in (root / "nbs").glob("[!_.]*.ipynb"):
        write_clean(json.loads(path.read_text(encoding="utf-8")), path)
    index = root / "nbs" / settings(root)["readme_nb"]
    made = {}
    if index.exists():
        nb = json.loads(index.read_text(encoding="utf-8"))
        made["README.md"] = readme(nb, f"nbs/{index.name}")
    for folder in languages(root):
        if (path := folder / f"{index.stem}.md") in begun(folder):
            where = path.relative_to(root).as_posix()
            made[site(folder)["readme"]] = readme(translated(path, both=False), where)
    for name, text in made.items():
        (root / name).write_text(text, encoding="utf-8", newline="\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["setup", "export", "run"])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="notebooks, by their stem: 31_stack"
    )
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    os.chdir(ROOT)
    if args.command == "setup":
        to = Path(sysconfig.get_path("purelib"), "tools.pth")
        to.write_text(f"{ROOT / 'tools'}\n", encoding="utf-8")
        (ROOT / "README.md").touch()  # nbdev would make it anew from a newer index
        return 0
    export()
    if args.command == "export":
        return 0
    failed = run_all(args.names, args.workers)
    export()  # README.md shows what the index printed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
