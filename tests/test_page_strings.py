"The texts of the pages are in tables: none is missing or unused in any of them, and none is left in a page or a script."

import json
import re

import pytest
from conftest import ROOT

PAGES = ROOT / "annotated_transformer/show/pages"
TABLES = {
    path.name.split(".")[1]: json.loads(path.read_text("utf-8"))
    for path in PAGES.glob("strings.*.json")
}
NAMES = ("attention", "live")
LIVE = (PAGES.parent / "live.py").read_text("utf-8")
NAME = r"\{\w+\}"  # in a text, of a value


def sources(name: str) -> tuple[str, str]:
    "The template of a page, and its scripts."
    template = (PAGES / f"{name}.html").read_text("utf-8")
    scripts = re.findall(r"^\$(\w+)_js", template, re.M)
    return template, "".join((PAGES / f"{x}.js").read_text("utf-8") for x in scripts)


def used_keys(name: str) -> tuple[set[str], list[str]]:
    "The keys that a page names, and patterns of those that its scripts make up."
    template, script = sources(name)
    calls = re.findall(r'\b(?:say|rich)\(\s*(?:"([^"]*)"|`([^`]*)`)', script)
    made = [re.escape(re.sub(r"\$\{.*?\}", "\0", x)) for _, x in calls if x]
    patterns = [x.replace(re.escape("\0"), r"[\w.]+") for x in made]
    keys = {key for key, _ in calls if key}
    if name == "live":  # one of three titles
        keys |= set(re.findall(r'texts\["([\w.]+)"\]', LIVE))
    return keys | set(re.findall(r"\$\{([\w.]+)\}", template)), patterns


def test_every_text_is_in_the_table_and_every_entry_is_used():
    unused = {section: set(table) for section, table in TABLES["en"].items()}
    assert set(unused) == {"shared", *NAMES}
    for name in NAMES:
        known = TABLES["en"]["shared"].keys() | TABLES["en"][name].keys()
        keys, patterns = used_keys(name)
        assert len(keys) > 15 and keys - known == set(), name
        for pattern in patterns:
            assert any(re.fullmatch(pattern, key) for key in known), pattern
        for section in ("shared", name):
            unused[section] -= keys
            unused[section] -= {
                key
                for key in unused[section]
                if any(re.fullmatch(pattern, key) for pattern in patterns)
            }
    assert unused == {"shared": set(), "attention": set(), "live": set()}


@pytest.mark.parametrize("lang", TABLES)
def test_tables_have_the_same_entries(lang):
    "With the same values in each text, and links to the same pages."
    for section, texts in TABLES["en"].items():
        others = TABLES[lang][section]
        assert others.keys() == texts.keys()
        for key, text in texts.items():
            for part in (NAME, r"\]\((\w+\.html)"):
                found, wanted = (set(re.findall(part, x)) for x in (others[key], text))
                assert found == wanted, (key, part)
