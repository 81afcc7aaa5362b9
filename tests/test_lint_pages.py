"The pages' scripts, styles and templates, and that their linter notices what is wrong."

import re
import shutil
from pathlib import Path

import lint_pages
import pytest
from lint_pages import complaints, script_complaints

needs_node = pytest.mark.skipif(not shutil.which("node"), reason="needs node")


def test_pages_are_in_order():
    assert complaints() == []


@pytest.fixture
def pages(tmp_path) -> Path:
    return shutil.copytree(lint_pages.PAGES, tmp_path / "pages")


def found(folder: Path) -> list[str]:
    "The complaints about the pages, without line numbers."
    return [re.sub(r"(?<=[:( ])\d+(?=:)", "N", line) for line in complaints(folder)]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path.name, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


MISTAKES = {
    "a brace too few": (
        "common.css",
        "figure {\n  margin: 0;\n}",
        "figure {\n  margin: 0;\n",
        ["common.css: a brace or a comment is not closed"],
    ),
    "a brace too many": (
        "lines.css",
        ".bars i {",
        "}\n\n.bars i {",
        ["lines.css:N: this brace closes nothing"],
    ),
    "an unknown at-rule": (
        "lines.css",
        "@media (max-width: 30rem)",
        "@meida (max-width: 30rem)",
        ["lines.css:N: @meida is not one of media"],
    ),
    "no value": (
        "common.css",
        "line-height: 1.25;",
        "line-height 1.25;",
        ["common.css: this is no declaration: line-height 1.25: "],
    ),
    "an unset property": (
        "lines.css",
        "stroke: var(--colour);",
        "stroke: var(--color);",
        ["shared: no property --color"],
    ),
    "an unknown id in a style": (
        "attention.css",
        "#description {",
        "#descriptoin {",
        ["attention.html: no id descriptoin"],
    ),
    "an unknown class": (
        "common.css",
        ".columns {",
        ".colums {",
        ["shared: no class colums"],
    ),
    "an id twice": (
        "attention.html",
        'id="tokens"',
        'id="details"',
        [
            "attention.html: two elements have the id details",
            "attention.html: no id tokens",
        ],
    ),
    "a label of nothing": (
        "attention.html",
        'for="layer"',
        'for="layers"',
        ["attention.html: no id layers"],
    ),
    "an open tag": (
        "attention.html",
        "</figcaption>",
        "",
        [
            "attention.html: line N: </figure> closes another tag",
            "attention.html: line N: </main> closes another tag",
            "attention.html: line N: </body> closes another tag",
            "attention.html: line N: </html> closes another tag",
            "attention.html: <html> is not closed",
        ],
    ),
    "a long line": (
        "common.css",
        "figure {",
        f"figure {{{' ' * 90}",
        ["common.css:N: more than 88 columns"],
    ),
    "an end of the element": (
        "common.js",
        "// One pixel per number",
        "// </SCRIPT> Per number",
        ["common.js: holds what ends the element around it"],
    ),
}
IN_SCRIPTS = {
    "syntax": (
        "attention.js",
        "const example = () =>",
        "const example = ( =>",
        "attention.js: Unexpected token (N:18)",
    ),
    "an undefined name": (
        "attention.js",
        "lines.weights = state.heads.map(weightsOf)",
        "lines.weights = state.heads.map(weightOf)",
        "attention.js:N: weightOf is not defined",
    ),
    "a name out of its scope": (
        "common.js",
        "  return canvas;\n}",
        "  return canvas;\n}\nconsole.log(canvas);",
        "common.js:N: canvas is not defined",
    ),
    "a name of the other file": (
        "attention.js",
        "const ROLES",
        "const DASHES",
        "attention.js:N: DASHES is defined twice",
    ),
    "an unused name": (
        "attention.js",
        "const {name} = KINDS[state.kind];",
        "const {name, rule} = KINDS[state.kind];",
        "attention.js:N: rule is never used",
    ),
    "an unknown id": (
        "attention.js",
        'byId("pair")',
        'byId("pairs")',
        "attention.html: no id pairs",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_noticed(pages, mistake):
    name, old, new, lines = MISTAKES[mistake]
    edit(pages / name, old, new)
    assert found(pages) == lines


@needs_node
@pytest.mark.parametrize("mistake", IN_SCRIPTS)
def test_mistake_in_a_script_is_noticed(pages, mistake):
    name, old, new, line = IN_SCRIPTS[mistake]
    edit(pages / name, old, new)
    assert line in found(pages)


@needs_node
def test_second_page_shares_the_common_files(pages):
    "What one page alone uses of common.js is used; what no page uses is not."
    (pages / "other.html").write_text("$common_css $common_js")
    assert complaints(pages) == []
    (pages / "common.js").open("a").write("const unused = 1;\n")
    (line,) = complaints(pages)
    assert line.startswith("common.js:") and line.endswith("unused is never used")


GOOD = """
const {a, b: [c = 1, ...rest], ...others} = {a: 1, b: [2]};
function twice(n, {k} = {}) { try { return n * k; } catch ({message}) { return message; } }
for (const [key, value] of Object.entries({a, c})) twice(key, {k: value, [key]: rest});
class Counter { count = 0; add() { return this.count + others.size; } }
const tag = `${new Counter().add()}`, again = () => again(tag ?? arguments?.[0]);
again();
"""


@needs_node
def test_correct_script_is_not_complained_about(tmp_path):
    (tmp_path / "a.js").write_text(GOOD)
    assert script_complaints([tmp_path / "a.js"]) == []


@needs_node
def test_other_scripts_are_in_order():
    for script in lint_pages.OTHER_SCRIPTS:
        assert set(script_complaints([script])) <= {lint_pages.USED_BY_TESTS}


def test_without_node(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert lint_pages.main() == 0
    assert "node is not on PATH" in capsys.readouterr().out
