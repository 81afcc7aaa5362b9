"The texts of the pages are in tables: none is missing or unused in any of them, and none is left in a page or a script."

import json
import re

import pytest
from conftest import ROOT
from test_explorer import ANIMAL, drawn

from annotated_transformer.show import explorer, live

PAGES = ROOT / "annotated_transformer/show/pages"
TABLES = {
    path.name.split(".")[1]: json.loads(path.read_text("utf-8"))
    for path in PAGES.glob("strings.*.json")
}
NAMES = ("attention", "live")
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


@pytest.mark.parametrize("name", NAMES)
def test_scripts_name_their_texts(name):
    "A call with anything but a text could name a key that nothing checks."
    assert re.findall(r"\b(?:say|rich)\((?!\s*[\"`]).*", sources(name)[1]) == []


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


# --- what a reader sees, if every letter of the table is another one


def marked(text: str) -> str:
    "The text in fullwidth letters, without its links; the names of values stay."
    parts = re.split(rf"({NAME})", re.sub(r"\]\([^)]*\)", "](x.html)", text))
    wide = lambda part: re.sub(
        r"(?<!\()[a-zA-Z](?!\w*\.html\))",
        lambda letter: chr(ord(letter[0]) + 0xFEE0),
        part,
    )
    return "".join(x if i % 2 else wide(x) for i, x in enumerate(parts))


# Ordinary letters that are seen or read out: two or more in a row, tokens left out.
LEAKS = """((allowed) => {
  const known = new Set(allowed.flatMap(text => text.match(/[a-z]+/gi) ?? []));
  const found = new Set();
  const LEFT_OUT = "script, style, [hidden]";  // what is hidden is of an earlier state
  const look = text => (text.match(/[a-z]{2,}/gi) ?? []).filter(
    word => !known.has(word)).forEach(word => found.add(`${word} in: ${text}`));
  const walk = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
  while (walk.nextNode()) {
    const node = walk.currentNode;
    if (node.nodeType === 3 && !node.parentElement.closest(LEFT_OUT)) {
      look(node.data);
    }
    for (const name of ["aria-label", "title", "aria-valuetext",
        "aria-roledescription", "alt", "placeholder"]) {
      const isSeen = node.nodeType === 1 && !node.closest(LEFT_OUT);
      const text = isSeen && node.getAttribute(name);
      if (text) look(text);
    }
    if (node.nodeType === 1 && node.name === "description") look(node.content);
  }
  return [...found];
})"""
TOKENS = """[...vocab.tokens([...Array(config.n_vocab).keys()]).filter(x => x.length < 3),
  ...[run.ids, ...run.search.hypotheses.map(x => x.ids)].map(ids => vocab.decode(ids)),
  ...run.search.tree.flat().map(x => shownToken(x.id)), vocab.decode(run.intactIds),
  ...largest(nextProbabilities(), 10).map(shownToken), ...columnsOf({axes: [0, "vocab"]},
    rowsOf(run.trace.get("decoder.logits"))).map(shownToken), ...EXAMPLES, state.text,
  ...trials.found.map(x => vocab.decode(x.ids)), ...knownWords,
  about.text.source, about.text.licence, vocab.decode(generatedIds(searchTranslation(
    shuffled.original || state.text, switches()))),
  "BOS EOS exp sin cos max dmodel model English German"]"""
LOOKS = [
    *(f"goTo({i})" for i in range(1, 11)),
    # such translations do not end before the limit: a beam of 1 takes a quarter of the time
    "leaveTour(); change({off: Object.keys(SWITCHES).slice(0, 4), beam: 1})",
    "change({headsOff: ['encoder.0.self:1'], temperature: 2})",
    "change({seed: 3, topK: 5, topP: .5, box: 'encoder.self', headsOff: []})",
    "change({off: ['positions'], seed: 0}); shuffleWords()",
    "change({off: []}); tryEachHead()",
    "followPath(run.search.hypotheses[0].end)",
]
REMARKED = [
    *("", "Das ist ein Tier.", "word " * 200, "жук", "zebra", "The dog. The cat."),
    *("The animal", "Sleeps the dog.", "The dog sleeps the cat."),
]
BOXES = """const found = new Set(), look = %s, allowed = %s;
for (const box of mapBoxes()) {
  chooseBox(box.dataset.box);
  for (const {key} of BOXES[state.box].stages) {
    change({stage: key});
    for (const text of look(allowed)) found.add(text);
  }
}"""


@pytest.fixture
def in_other_letters(monkeypatch):
    strings = explorer.page_strings
    other = lambda *args: {k: marked(text) for k, text in strings(*args).items()}
    monkeypatch.setattr(explorer, "page_strings", other)


def test_no_text_is_left_in_the_live_page(
    browser, pretrained, training_text, in_other_letters, tmp_path
):
    page = tmp_path / "live.html"
    page.write_text(live.live_page(pretrained), "utf-8")
    browser.open(page.as_uri())
    assert "Ｔｏｋｅｎ" in browser.ask("document.body.textContent")
    for look in LOOKS:
        browser.ask(f"{look}; 0")
        assert browser.ask(f"{LEAKS}({TOKENS})") == [], look
    browser.ask("change({off: ['causal']})")
    boxes = BOXES % (LEAKS, TOKENS)
    assert browser.ask(f"(() => {{ {boxes} return [...found]; }})()") == []
    for text in REMARKED:
        message = browser.ask(f"remarkOn({text!r})")
        values = f"[...knownWords, {text!r}]"
        leaks = f"{message!r}.match(/[a-z]{{2,}}/gi)?.filter(x => !{values}"
        assert browser.ask(f"{leaks}.some(y => y.includes(x))) ?? []") == [], text
        assert message


def test_no_text_is_left_in_the_attention_page(browser, in_other_letters, tmp_path):
    page = tmp_path / "a.html"
    text = explorer.attention_page([drawn(2, 2, *ANIMAL)] * 2)
    page.write_text(text, encoding="utf-8")
    browser.open(page.as_uri())
    allowed = json.dumps([*ANIMAL[0], *ANIMAL[1]])
    for look in ("0", "selectKind('cross')", "highlight({role: 'k', i: 0})", "compare"):
        if look == "compare":
            look = "byId('compare').click(); selectHead(1, 1)"
        browser.ask(f"{look}; 0")
        assert browser.ask(f"{LEAKS}({allowed})") == [], look
