"The live page in a browser whose network is cut: its numbers, by pointer and by keys, with odd input, with parts switched off; its tour."

import dataclasses
import gzip
import json
import math
import re
from pathlib import Path
from urllib.parse import quote, unquote_plus

import pytest
import torch
from browser import Browser, click, press, wait_for
from cells import page_name
from conftest import ROOT
from engine import HELD_OUT, logits_of
from links import of_notebook

from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.decode import draw
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.checkpoint import read_tensors, unpack_weights
from annotated_transformer.runs.folder import PRETRAINED, load_run, pretrained_run
from annotated_transformer.show import live
from annotated_transformer.show.explorer import write_attention_page
from annotated_transformer.show.heads import (
    antecedent_attention,
    following_head,
    pronoun_sentences,
)
from annotated_transformer.translating.load import load

PAGES = ROOT / "annotated_transformer/show/pages"
CHECKS = (ROOT / "tests/page.js").read_text(encoding="utf-8")
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
ES = "Das Tier überquerte die Straße nicht, weil es zu müde war."
SIE = "Das Tier überquerte die Straße nicht, weil sie zu breit war."


@pytest.fixture(scope="module")
def odd_url(pretrained, tmp_path_factory) -> str:
    "The page of a model whose sizes are all different, with random weights."
    torch.manual_seed(0)
    sizes = ModelConfig(n_layers=3, d_model=24, d_ff=40, n_heads=3, d_k=5, d_v=7)
    vocab = pretrained.vocab
    model = build_transformer(sizes, len(vocab), vocab.pad_id)
    recipe = dataclasses.replace(pretrained.recipe, model=sizes)
    path = tmp_path_factory.mktemp("odd") / "live.html"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(live, "_training_text", lambda run: None)  # takes seconds
        # of the form of a language code, but no code for a browser
        about = pretrained.about | {"src_lang": "en-ab-cd"}
        run = pretrained._replace(model=model, recipe=recipe, about=about)
        path.write_text(live.live_page(run), "utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def pages(live_page, tmp_path_factory) -> dict[str, str]:
    path = tmp_path_factory.mktemp("attention") / "attention.html"
    write_attention_page(load("demo"), [TIRED], path)
    return {"live": live_page.as_uri(), "attention": path.as_uri()}


@pytest.fixture
def page(browser, live_page) -> Browser:
    "The browser, in which the page has just been opened."
    open_page(browser, live_page.as_uri())
    return browser


def open_page(browser: Browser, url: str, _options=None, **state) -> None:
    "Without the blank page, an address that differs after # would load nothing."
    browser.open("about:blank")
    state = "&".join(f"{key}={quote(str(x))}" for key, x in state.items())
    browser.open(f"{url}#{state}" if state else url, **(_options or {}))


def shown(browser: Browser, name: str) -> str:
    return browser.ask(f"byId({name!r}).textContent")


def type_sentence(browser: Browser, sentence: str) -> None:
    browser.ask("byId('sentence').focus(); byId('sentence').select()")
    browser.call("Input.insertText", text=sentence)
    if not sentence:
        browser.ask("byId('sentence').value = ''")
    press(browser, "Enter")


def settle(browser: Browser) -> None:
    browser.ask("new Promise(done => setTimeout(done, 300))")  # as for the address


def focused(browser: Browser) -> str:
    return browser.ask("(e => e.id || e.dataset.box || e.dataset.key)(document.activeElement)")  # fmt: skip


# ---- opening


def test_opening_shows_the_translation(page, pretrained):
    "The animal sentence, at the pronoun, with the head that follows it; no request."
    assert shown(page, "result") == ES
    assert page.ask("byId('result').firstChild.data").endswith(" weil es")
    assert page.ask("byId('sentence').value") == TIRED
    found = antecedent_attention(*pretrained[:2], pronoun_sentences(100))
    kind, layer, head = following_head(found)
    assert kind == "cross" and found[kind].antecedent[layer, head] > 0.9
    title = f"Cross-attention, layer {layer + 1}, head {head + 1}"
    assert shown(page, "box-title") == title
    names = "[view.rowNames[view.row], view.columnNames[view.column]]"
    assert page.ask(names) == ["weil", "animal"]
    assert shown(page, "next").startswith("es") and shown(page, "message") == ""
    assert page.ask("performance.getEntriesByType('resource').length") == 0


def waiting(browser: Browser, url: str, then: str) -> None:
    "Open a page whose script stops at its data, as if they had not arrived; `then` is run after its markup."
    stop = "JSON.parse = () => { throw Error('not yet'); };"
    stop += (
        "onerror = () => true; Object.defineProperty(window, 'onerror', {set() {}});"
    )
    stop += f"addEventListener('DOMContentLoaded', () => {{ {then} }});"
    call = browser.call("Page.addScriptToEvaluateOnNewDocument", source=stop)
    open_page(browser, url)
    browser.call("Page.removeScriptToEvaluateOnNewDocument", **call)
    browser.said.clear()


def test_a_translation_is_there_before_the_model(browser, live_page):
    "What the page shows first is what its model then computes; an address with another sentence shows that alone."
    parts = ["result", "source", "translation", "presets", "sentence", "intro"]
    texts = f"{parts}.map(id => document.getElementById(id).textContent)"
    waiting(browser, live_page.as_uri(), "")
    before = browser.ask(texts)
    assert browser.ask("document.getElementById('loading').textContent.slice(0, 19)")
    assert before[0] == ES and before[4] == TIRED and "1,178,624" in before[5]
    waiting(browser, f"{live_page.as_uri()}#text={quote(WIDE)}", "")
    assert browser.ask("document.getElementById('sentence').value") == WIDE
    assert browser.ask(texts)[:3] == ["", "", ""]
    open_page(browser, live_page.as_uri())
    squeezed = [text.replace("\n", "") for text in before]
    assert [text.replace("\n", "") for text in browser.ask(texts)] == squeezed
    assert browser.ask("[byId('loading'), document.querySelector('main').ariaBusy]") == [None, "false"]  # fmt: skip


def test_what_was_typed_while_the_model_was_loading_is_translated(browser, live_page):
    text = f"document.getElementById('sentence').value = {WIDE!r}"
    type_early = f"""new MutationObserver((_, self) => {{
        if (!document.getElementById("data")) return;
        {text}; self.disconnect(); }}).observe(document, {{childList: true, subtree: true}})"""
    call = browser.call("Page.addScriptToEvaluateOnNewDocument", source=type_early)
    open_page(browser, live_page.as_uri())
    browser.call("Page.removeScriptToEvaluateOnNewDocument", **call)
    assert shown(browser, "result") == SIE and browser.ask("state.text") == WIDE


def test_page_names_no_other_host(live_page):
    text = live_page.read_text("utf-8")
    assert "default-src 'none'" in text and '<html lang="en">' in text
    without_links = re.sub(r'"site":"[^"]*"', "", re.sub(r"// .*", "", text))
    without_links = re.sub(r'<a href="[^"]*"', "", without_links)
    assert not re.search(r"https?://|@import|url\([^#]|<link|<img", without_links)


def test_every_link_leads_to_a_heading():
    texts = "".join(path.read_text("utf-8") for path in PAGES.glob("strings.*"))
    links = set(re.findall(r"\]\((\w+\.html)#?([\w-]*)\)", texts))
    notebooks = {page_name(path): path for path in (ROOT / "nbs").glob("*.ipynb")}
    assert len(links) > 12
    links.remove(("live_learning.html", ""))  # the site has a page for each run
    assert "learning" in PRETRAINED
    for name, anchor in links:
        anchors = of_notebook(notebooks[name].read_text("utf-8")).anchors
        assert anchor in {"", *anchors}, (name, anchor)


def test_links_of_the_lessons_open_their_box(page):
    "Every state that a notebook links to has keys and a box of the page, and is what it says."
    nbs = [path.read_text("utf-8") for path in (ROOT / "nbs").glob("[0-9]*.ipynb")]
    states = {
        x for text in nbs for x in re.findall(r"live_tatoeba\.html#([^)\"\\]+)", text)
    }
    assert len(states) > 5
    for address in states:
        wanted = dict(pair.split("=") for pair in address.split("&"))
        found = page.ask(f"readAddress({'#' + address!r})")
        assert wanted.keys() <= found.keys(), address
        same = {k: str(found[k]) == unquote_plus(v) for k, v in wanted.items()}
        assert all(same.values()), (address, same)
        assert page.ask(f"{found['box']!r} in BOXES"), address
        if stage := wanted.get("stage"):
            keys = page.ask(f"BOXES[{found['box']!r}].stages.map(({{key}}) => key)")
            assert stage in keys, address


# ---- tensors and their arithmetic

# Of every tensor the last number, the last of the first row and some other: what the page shows,
# what its arithmetic gives, and what is in the trace; and the shape that it names, and that of its picture and menus.
ARITHMETIC = """(seed => {
  const random = randomNumbers(seed), found = [], shapes = {};
  for (const box of mapBoxes().map(({dataset}) => dataset.box)) {
    chooseBox(box);
    for (const {key} of BOXES[box].stages) {
      change({stage: key, layer: Math.floor(random() * 9), head: Math.floor(random() * 4)});
      const canvas = byId("plot").querySelector("canvas");
      const [n, width] = [view.rows.length, view.rows[0].length];
      const isCut = view.stage.axes.includes("vocab");  // the most probable are shown
      const named = byId("shape").textContent.match(/[(](.*?)[)]/)[1];
      shapes[`${box} ${key}`] = [isCut ? `${n}, ${width}` : named,
        isCut ? [n, width] : [canvas.height, canvas.width],
        [byId("row").length, byId("column").length], [n, width]];
      const cells = [[n - 1, width - 1], [0, width - 1]];
      cells.push([Math.floor(random() * n), Math.floor(random() * width)]);
      for (const [row, column] of cells) {
        chooseNumber(row, column);
        found.push([box, key, row, column, view.rows[row][column],
          byId("number-title").querySelector("b").textContent,
          document.querySelector(".result b").textContent]);
      }
    }
  }
  return [found, shapes];
})"""
HEADS_OFF = "decoder.1.cross:0,decoder.1.cross:1,encoder.0.self:2,decoder.0.self:1"


def number(text: str) -> float:
    "The number that the page writes in this way."
    text = text.translate(str.maketrans("−⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "-0123456789-"))
    return float(re.sub(r"·10(-?\d+)", r"e\1", text))


ALL_OFF = {"off": "scale,causal,positions,residual", "headsOff": HEADS_OFF}


@pytest.mark.parametrize("state", [{}, ALL_OFF | {"temperature": 2}], ids=str)
def test_arithmetic_gives_the_number(browser, odd_url, state):
    open_page(browser, odd_url, **state)
    found, shapes = browser.ask(f"{ARITHMETIC}(1)")
    assert len(shapes) == 51
    for at, (named, *others) in shapes.items():
        shape = [int(n) for n in named.split(", ")]
        assert others == [shape[-2:]] * 3, at
    assert shapes["encoder.self q"][0].startswith("3, ")  # a tensor for each head
    for box, key, row, column, value, title, result in found:
        assert title == result, (box, key, row, column, value)
        if value is not None:  # -Infinity is no JSON
            assert number(title) == pytest.approx(value, rel=6e-3, abs=1e-12)
    masked = [x for x in found if x[1] == "masked" and x[5] == "−∞"]
    assert bool(masked) == ("causal" not in state.get("off", ""))


def test_pointer_reads_and_chooses_a_number(page):
    page.ask("change({step: 0}); byId('plot').scrollIntoView({block: 'center'})")
    x, y, width, height = page.ask(
        "(b => [b.x, b.y, b.width, b.height])(byId('plot').getBoundingClientRect())"
    )
    n, n_columns = page.ask("[view.rows.length, view.columns.length]")
    at = {"x": x + width * 3.5 / n_columns, "y": y + height * 2.5 / n}
    page.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
    value = page.ask("show(view.rows[2][3])")
    assert shown(page, "legend").endswith(f": {value}")
    button = at | {"button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, **button)
    assert page.ask("[byId('row').value, byId('column').value]") == ["2", "3"]
    assert shown(page, "number-title").endswith(value)


# ---- the translation, token by token


def test_stepping(page):
    "The decoder's tensors have a row per token of the prefix, and the last one predicts the chosen token."
    click(page, "#presets button", 1)
    assert shown(page, "result") == SIE and not page.ask("state.step")
    n = page.ask("run.ids.length")
    tokens = page.ask("shownTokens(run.ids)")
    assert tokens[-1] == "EOS" and page.ask("byId('forward').disabled")
    for i in (0, tokens.index("sie"), n - 2):
        click(page, "#translation button", i)
        assert page.ask("view.rows.length") == i + 1
        assert shown(page, "next").startswith(tokens[i])
        assert shown(page, "next-label").startswith(f"Token {i + 1} of {n}")
    click(page, "#forward")
    assert page.ask("run.step") == n
    click(page, "#back")
    assert page.ask("[run.step, +byId('step').value]") == [n - 1, n - 1]
    assert page.ask("sum(nextProbabilities())") == pytest.approx(1, abs=1e-5)


def test_by_keyboard_alone(page):
    "Arrows within the groups; everything has a name."
    press(page, "Tab", "Tab", "Tab")
    assert focused(page) == "sentence"
    type_sentence(page, WIDE)
    assert shown(page, "result") == SIE and focused(page) == "sentence"
    page.ask("byId('map').querySelector('[tabindex=\"0\"]').focus()")
    press(page, "ArrowUp", "ArrowUp", "ArrowUp", "Enter")
    title = "Add & Norm after the feed-forward network, layer 2"
    assert shown(page, "box-title") == title
    page.ask("byId('plot').focus()")
    row = page.ask("view.row")
    press(page, "Home", "ArrowRight", "ArrowUp")
    assert page.ask("[view.row, view.column]") == [row - 1, 1]
    page.ask("document.querySelector('[data-key=\"off:encoder.0.self:0\"]').focus()")
    press(page, "ArrowDown", "ArrowDown", "ArrowRight", " ")
    assert page.ask("state.headsOff") == ["decoder.0.cross:1"]
    assert focused(page) == "off:decoder.0.cross:1"
    nameless = page.ask("""[...document.querySelectorAll(
        "button, select, input, textarea, a, [role=button], [tabindex='0']")].filter(e =>
        e.checkVisibility() && !(e.textContent.trim() || e.ariaLabel || e.labels?.length
        || e.getAttribute("aria-labelledby"))).map(e => e.outerHTML)""")
    assert nameless == []


def test_address_restores_the_state(page):
    type_sentence(page, "My mouse & the goats = 100 % happy #1.")
    page.ask("chooseBox('encoder.self')")
    page.ask("""change({stage: "scaled", layer: 0, head: 3, row: 2, column: 5, step: 4,
        drawing: "matrix", off: ["causal", "scale"], headsOff: ["decoder.1.cross:2"],
        temperature: 1.5, beam: 2, tour: 6})""")
    settle(page)
    address = page.ask("location.href")
    assert page.ask("byId('link').href") == address
    state = "JSON.stringify([state, run.ids, byId('view').textContent])"
    before = page.ask(state)
    open_page(page, address)
    assert page.ask(state) == before
    page.ask("location.hash = 'beam=3&tour=99'")  # as by the browser's history
    settle(page)
    assert page.ask("[state.beam, state.text]") == [3, TIRED]


# ---- odd input

ODD = {
    "": "The line is empty",
    "   ": "The line is empty",
    "Das Tier ist müde, weil es nicht schläft.": "looks like German",
    "word " * 200: "translates at most 64",
    "The жук crossed the 街.": "“ж”, “у”, “к”, “街” did not occur in training",
    f"{HELD_OUT[0].en} {HELD_OUT[1].en}": "",
    "The zebra quickly ate the unicorn.": "“zebra”, “quickly”, “unicorn”",
    "</script><script>bad()</script>": "“<”, “/”, “>”, “(”, “)” did not occur",
    "a \ufffd \u2028 9\u0301": "did not occur",
    "42": "No letter in it",
    "the animal": "ends with a word like “animal”",
    "My brother's donkey didn't sleep, did it?": "like “didn't sleep” next to each",
    "Sleeps the dog.": "begins with a word like “sleeps”",
    "The dog sleeps the cat.": "has words like “sleeps the” next to each other",
    "The teacher’s dog isn’t.": "Not in the training text: “isn't”",
    "MY MOTHER‘S DOG DIDNʼT CROSS THE RIVER BECAUSE IT WAS TOO WIDE.": "",
}

# 15 sentences in the four ways that people type them
TYPED = [
    typed(s.en)
    for s in HELD_OUT[:15]
    for typed in (
        str.lower,
        str.upper,
        lambda text: text.replace("'", "’"),
        lambda text: text.lower().replace("'", "ʼ"),
    )
]


def test_odd_input_gets_one_line(page):
    result = ES
    for line, wanted in ODD.items():
        type_sentence(page, line)
        message = shown(page, "message")
        assert wanted in message and bool(message) == bool(wanted), line
        if line.strip():
            typed = page.ask("state.text").split()  # a line break becomes a space
            assert typed == line.split() and page.ask("run.ids.length") > 0
        else:
            assert shown(page, "result") == result  # the last translation stays
        result = shown(page, "result")
    assert page.ask("typeof bad") == "undefined"


def test_sentences_of_the_corpus_get_no_remark_and_our_translation(page):
    "However they are typed."
    lines = [s.en for s in HELD_OUT] + TYPED
    found = page.ask(f"{json.dumps(lines)}.map(remarkOn)")
    assert [pair for pair in zip(lines, found, strict=True) if pair[1]] == []
    found = page.ask(f"""{json.dumps(TYPED)}.map(text =>
        textOf(generatedIds(searchTranslation(text, SWITCHES))))""")
    assert found == load("demo").translate(TYPED)


def test_several_sentences(page):
    "All are translated, and one is shown: a button chooses, and the address keeps it."
    text = "The dog sleeps. My cat saw the house.  Why does he sing?"
    wanted = load("demo").translate(text, split=True)
    type_sentence(page, text)
    assert shown(page, "result") == wanted and wanted.count(".") == 2
    click(page, "#parts button", 1)
    assert shown(page, "result") == wanted and shown(page, "source").startswith("My")
    assert focused(page) == "part:1"
    settle(page)
    open_page(page, page.ask("location.href"))
    assert shown(page, "source").startswith("My") and shown(page, "result") == wanted
    type_sentence(page, "The dog sleeps.")
    assert page.ask("byId('parts').hidden") and shown(page, "source").startswith("The")
    found = page.ask(
        "sentencesOf('Mr. B. Smith came! It was I.\\n\\n42 ').map(Object.values)"
    )
    assert found == [["Mr. B. Smith came!", ""], ["It was I.", " "], ["42", "\n\n"]]


def test_the_translation_can_be_copied(page):
    "From the clipboard; where the browser has none, it is selected."
    page.ask("navigator.clipboard.writeText = async text => { copied = text; }")
    click(page, "#copy")
    settle(page)
    assert page.ask("copied") == shown(page, "result") == ES
    assert shown(page, "copied-text") == "Copied."
    page.ask("navigator.clipboard.writeText = async () => { throw Error(); }")
    click(page, "#copy")
    settle(page)
    assert "is selected" in shown(page, "copied-text")
    assert page.ask("String(getSelection())") == ES


@pytest.mark.parametrize("name", ["live", "attention"])
def test_a_browser_that_lacks_something_is_told_so(offline, pages, name):
    "One line; a mistake after the page has begun is none of the browser's."
    for script, is_hidden in (("delete Object.hasOwn", False), ("1", True)):
        call = offline.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        open_page(offline, pages[name])
        offline.call("Page.removeScriptToEvaluateOnNewDocument", **call)
        offline.ask("setTimeout(() => { throw Error(); })")
        settle(offline)
        assert offline.ask("document.getElementById('old').hidden") == is_hidden


def test_a_printed_page_keeps_its_bars(page):
    "Which are backgrounds, and browsers leave those out unless a page says otherwise."
    adjust = "getComputedStyle(document.querySelector('.bar')).printColorAdjust"
    assert page.ask(adjust) == "exact"


# ---- moments of training


@pytest.fixture(scope="module")
def learning_url(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("learning") / "live.html"
    live.write_live_page(Path("learning"), path)
    return path.as_uri()


def test_each_moment_computes_as_pytorch(browser, learning_url):
    "The slider chooses weights; the logits are PyTorch's, the curve's mark is at the step, the address keeps it."
    open_page(browser, learning_url)
    run = load_run(Path("learning"))
    folder = pretrained_run(Path("learning"))
    files = {int(f.stem.split("-")[1]): f for f in folder.glob("moment-*")}
    steps = [*sorted(files), int(run.about["weights"].split()[-1])]
    assert browser.ask("past.steps") == steps and len(steps) >= 8
    translations, marks = [], []
    for moment, step in enumerate(steps):
        browser.ask(f"byId('moment').value = {moment}")
        browser.ask("byId('moment').dispatchEvent(new Event('input'))")
        if step in files:
            run.model.load_state_dict(unpack_weights(read_tensors(files[step])))
        else:
            run = load_run(Path("learning"))
        pair = browser.ask("[run.srcIds, run.tgtIds]")
        found = weights(browser, "decoder.logits")
        torch.testing.assert_close(found, logits_of(run.model, pair), rtol=0, atol=1e-4)
        assert shown(browser, "moment-value") == f"step {step:,} of {steps[-1]:,}"
        marks.append(float(browser.ask("byId('curve').lastChild.getAttribute('cx')")))
        translations.append(shown(browser, "result"))
    assert translations[-1] == ES and len({*translations}) > len(steps) // 2
    assert marks == sorted(marks) and marks[0] == 0 and marks[-1] == 320
    losses = browser.ask("past.steps.map(lossAt)")
    assert losses == sorted({*losses}, reverse=True)
    assert losses[0] > math.log(len(run.vocab)) - 0.5
    browser.ask("change({moment: 2})")
    settle(browser)
    open_page(browser, browser.ask("location.href"))
    assert shown(browser, "result") == translations[2]


def test_no_slider_without_moments(page):
    assert page.ask("byId('learning').hidden && START.moment === 0")
    assert "learning" not in page.ask("TOUR.map(([name]) => name)")


# ---- switches


def weights(browser: Browser, path: str) -> torch.Tensor:
    got = browser.ask(f"(x => [x.shape, [...x.data]])(run.trace.get({path!r}))")
    return torch.tensor(got[1]).view(got[0])


def switch(browser: Browser, name: str) -> None:
    click(browser, f"[data-key='switch:{name}']")


def test_shuffled_words_without_positions(page):
    "The memory has the same rows in another order, and the translation is the same; with positions both change."
    switch(page, "positions")
    translation, memory = shown(page, "result"), page.ask("[...run.memory.data]")
    click(page, "[data-key='action:shuffle']")
    sentence = page.ask("state.text")
    assert sentence != TIRED and sorted(sentence.split()) == sorted(TIRED.split())
    assert shown(page, "result") == translation
    assert "same rows in another order" in shown(page, "comparison")
    shuffled = page.ask("[...run.memory.data]")
    assert shuffled != memory
    assert sorted(shuffled) == pytest.approx(sorted(memory), abs=1e-4)
    switch(page, "positions")
    assert "has changed" in shown(page, "comparison")
    click(page, "[data-key='action:restore']")
    assert page.ask("state.text") == TIRED and shown(page, "result") == ES


def test_shuffled_words_are_one_sentence(page):
    "Every order but the words' own that is not divided is found; where there is none, the words stay as they are."
    orders = lambda text: {
        tuple(order)
        for order in page.ask(
            f"Array(200).fill({text!r}.split(' ')).map(shuffledOrder)"
        )
    }
    assert orders("Cats sleep. Dogs") == {(0, 2, 1), (2, 0, 1)}
    assert orders("A b.") == {(0, 1)}


def test_residual_connections_switched_off(page):
    switch(page, "residual")
    residual, output = (
        weights(page, f"encoder.0.self.{x}") for x in ("residual", "output")
    )
    torch.testing.assert_close(residual, output)
    assert shown(page, "result") != ES and ES in shown(page, "effect")
    # without what is struck out it is the new translation, without what is marked the old
    words = """(tag => {
        const line = byId("effect").querySelectorAll("p")[1].lastChild.cloneNode(true);
        line.querySelectorAll(tag).forEach(each => each.remove());
        return line.textContent.split(/\\s+/).filter(Boolean).join(" ");
    })"""
    assert page.ask(f"{words}('del')") == shown(page, "result").strip()
    assert page.ask(f"{words}('mark')") == ES


def test_head_switched_off(page):
    "Its mixed values are 0, and what the trial of each head announced is what happens."
    click(page, "[data-key='off:encoder.1.self:2']")
    mixed = weights(page, "encoder.1.self.mixed")
    assert (mixed[2] == 0).all() and (mixed[[0, 1, 3]] != 0).any()
    click(page, "[data-key='action:reset']")
    assert page.ask("state.headsOff") == []
    click(page, "#try")
    wait_for(page, "!trials.left")
    trials = "trials.found.filter(x => x.isChanged).map(x => [x.name, textOf(x.ids)])"
    found = page.ask(trials)
    assert 0 < len(found) < 24
    assert shown(page, "findings").startswith(f"{len(found)} of 24 heads")
    for name, translation in found:
        page.ask(f"change({{headsOff: [{name!r}]}})")
        assert page.ask("textOf(run.ids)") == translation != ES


def test_a_switch_has_an_example_that_changes(page):
    "Found by the page among its examples, and true by the package's word for both."
    for name in ("causal", "positions"):
        page.ask(f"change({{off: [{name!r}], text: 'The dog sleeps.'}})")
        wait_for(page, f"breaking[{name!r}]")
        click(page, f"[data-key='action:example:{name}']")
        text = page.ask("state.text")
        assert page.ask("state.off") == [name] and text in live._EXAMPLES
        assert shown(page, "result") != load("demo").translate([text])[0], name


# ---- sampling


def test_temperature_and_sampling(page):
    entropy = "sum(nextProbabilities().map(p => p > 0 ? -p * Math.log(p) : 0))"
    found = []
    for temperature in (0.5, 1, 2):
        page.ask(f"change({{temperature: {temperature}, step: 9}})")
        found.append(page.ask(entropy))
        assert shown(page, "next").startswith("es")
    assert found == sorted(found)
    click(page, "#draw")
    drawn = page.ask("[...run.ids]")
    settle(page)
    address = page.ask("location.href")
    click(page, "#draw")
    assert page.ask("[...run.ids]") != drawn
    open_page(page, address)
    assert page.ask("[...run.ids]") == drawn
    page.ask("change({topK: 2})")
    assert page.ask("""run.ids.every((id, i) => { change({step: i + 1});
        return largest(nextProbabilities(), 2).includes(id); })""")
    page.ask("change({topK: 1})")  # the most probable token, so greedy search
    assert shown(page, "result") == ES
    click(page, "#search")
    assert page.ask("state.seed") == 0


@pytest.mark.parametrize("top_p", [0.5, 0.95])
def test_top_p_keeps_the_tokens_of_the_package(page, top_p):
    "The fewest that have this probability together."
    page.ask("change({temperature: 2, step: 9})")
    probs = torch.tensor(page.ask("[...nextProbabilities()]"))
    kept = page.ask(f"[...truncated(nextProbabilities(), 0, {top_p})]")
    ids = {i for i, p in enumerate(kept) if p > 0}
    rng = torch.Generator().manual_seed(0)
    found = set(draw(probs.log().expand(2000, -1), 1.0, top_p, rng)[1].tolist())
    assert found <= ids
    total = probs[sorted(ids)].sum()
    assert total >= top_p - 1e-5 > total - probs[sorted(ids)].min() - 2e-5
    assert probs[sorted(ids)].min() >= probs[sorted(set(range(len(probs))) - ids)].max()


# ---- beam search


@pytest.mark.parametrize("beam", [1, 4])
def test_tree_of_the_beam(page, beam):
    "A column per step, as many kept as the beam is wide, and a bold path that reads as the translation."
    page.ask(f"change({{beam: {beam}}})")
    tree = page.ask("run.search.tree")
    nodes = page.ask("""[...byId("tree").querySelectorAll("button")].map(b =>
        [b.style.gridColumnStart, b.className, b.firstChild.textContent])""")
    assert len(nodes) == sum(map(len, tree))
    for step, candidates in enumerate(tree):
        column = [node for node in nodes if node[0] == str(step + 2)]
        assert [node[1].split()[0] for node in column] == [x["why"] for x in candidates]
        assert sum(x["why"] == "kept" for x in candidates) == beam
    best = [node[2] for node in nodes if "best" in node[1]]
    assert best == page.ask("shownTokens(run.ids)")
    rows = page.ask("""[...byId("hypotheses").querySelectorAll("tr")].slice(1).map(
        row => [...row.children].map(cell => cell.textContent.replace("−", "-")))""")
    assert rows[0][0] == shown(page, "result") == ES
    scores = [float(row[4]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    for _, log_prob, n, penalty, score in rows:
        alpha = 0 if beam == 1 else 0.6
        assert float(penalty) == pytest.approx(((5 + int(n)) / 6) ** alpha, rel=1e-3)
        assert float(log_prob) / float(penalty) == pytest.approx(float(score), rel=2e-3)


# ---- looks

LOOKS = {
    "heads off": "change({headsOff: ['encoder.1.self:0'], temperature: 3, seed: 2})",
    "lines": "change({drawing: 'lines'})",
    "masked": "chooseBox('decoder.self'); change({stage: 'masked'})",
    "a long sentence": f"submit({'the animal and ' * 20!r}); chooseBox('encoder.self')",
    "the tour": "goTo(9)",
}


@pytest.mark.parametrize("look", LOOKS)
def test_on_a_screen_and_on_a_phone(page, look):
    "Contrast of 4.5 in both themes, nothing to scroll sideways at 320 px, nothing too small for a finger."
    page.ask(LOOKS[look])
    page.ask(CHECKS)
    for scheme in ("light", "dark"):
        page.look(1280, scheme)
        assert page.ask("page.faint().concat(page.wide())") == [], scheme
    for width in (320, 390):
        page.look(width, "light")
        assert page.ask("page.wide()") == [], width
    small = page.ask("""[...document.querySelectorAll(
        "button, select, textarea, input[type=range], .choices span, [role=button]")]
        .filter(e => e.checkVisibility()).map(e => [e.getBoundingClientRect(), e])
        .filter(([{width, height}]) => Math.min(width, height) < 20)
        .map(([_, e]) => e.outerHTML)""")
    assert small == []


# ---- the tour

N_STEPS = 10
IN_SIGHT = """(name => {
  const target = document.querySelector(".toured").getBoundingClientRect();
  const panel = byId("tour").getBoundingClientRect();
  return target.top < panel.top - 40 && target.bottom > 0 && panel.bottom <= innerHeight
    && panel.left >= 0 && panel.right <= innerWidth;
})()"""


@pytest.mark.parametrize("width", [1280, 320])
def test_each_step_shows_what_it_is_about(browser, live_page, width):
    "By keyboard: the panel, what it is about next to it, nothing to scroll sideways."
    open_page(browser, live_page.as_uri(), {"width": width})
    browser.ask("byId('tour-start').focus()")
    press(browser, "Enter")
    assert focused(browser) == "tour-title"
    press(browser, "Tab", "Tab")  # past the link to the notebook; Back is off
    assert focused(browser) == "tour-next"
    for step in range(1, N_STEPS + 1):
        assert browser.ask("state.tour") == step
        assert shown(browser, "tour-count") == f"Step {step} of {N_STEPS}"
        assert browser.ask(IN_SIGHT), step
        assert browser.ask("document.documentElement.scrollWidth") == width
        if step < N_STEPS:
            press(browser, "Enter")
    assert focused(browser) == "tour-end"  # Next is off, and must not lose the focus
    press(browser, "Escape")
    assert browser.ask("[state.tour, byId('tour').hidden]") == [0, True]
    assert focused(browser) == "tour-start"


def test_a_pause_translates_what_was_typed(page):
    "Greedily, as the package does; the state stays until Enter."
    wanted = load("demo", search=search_with(1)).translate(["The dog sleeps."])[0]
    page.ask("byId('sentence').focus(); byId('sentence').select()")
    page.call("Input.insertText", text="The dog sleeps.")
    assert shown(page, "draft") == ""  # not at once
    wait_for(page, f"byId('draft').textContent.endsWith({wanted!r})")
    assert page.ask("state.text") == TIRED and shown(page, "result") == ES
    press(page, "Enter")
    assert shown(page, "draft") == "" and shown(page, "result") == wanted


# ---- a model of real text


EVERYDAY = [
    "The printer on the second floor is broken again.",
    "where is the nearest train station",
    "“I don’t believe you,” she said.",
    "could you send me the file again? i can't open it",
    "We won! 🎉🎉",
    "THIS IS TOO LOUD!",
]


@pytest.mark.parametrize("name", ["tatoeba", "tatoeba-zh"])
def test_page_of_everyday_sentences(name, browser, tmp_path):
    "6 MB, 4.5 compressed; it translates as the package does, however they are typed."
    path = tmp_path / "live.html"
    live.write_live_page(Path(name), path, file=f"live_{name}.html")
    text = path.read_bytes()
    assert len(text) <= 6_000_000 and len(gzip.compress(text)) <= 4_500_000
    open_page(browser, path.as_uri())
    translator = load(name, search=search_with(4))
    first = translator.translate(load_run(Path(name)).about["examples"][0])
    assert shown(browser, "result") == first
    assert "CC BY" in shown(browser, "attribution")
    wanted = translator.translate(EVERYDAY)
    for line, translation in zip(EVERYDAY, wanted, strict=True):
        call = f"searchTranslation({json.dumps(line)}, SWITCHES)"
        assert browser.ask(f"vocab.decode(generatedIds({call}))") == translation
