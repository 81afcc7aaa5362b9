"The interface of the live page in a browser whose network is cut: by pointer, by keys, with odd input, with parts switched off."

import dataclasses
import json
import re
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from browser import Browser
from cells import page_name
from conftest import ROOT
from engine import HELD_OUT
from test_explorer import KEYS, click, press, tap

from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.show import live
from annotated_transformer.show.heads import (
    antecedent_attention,
    following_head,
    pronoun_sentences,
)
from annotated_transformer.translating.load import load

PAGES = ROOT / "annotated_transformer/show/pages"
CHECKS = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
ES = "Das Tier überquerte die Straße nicht, weil es zu müde war."
SIE = "Das Tier überquerte die Straße nicht, weil sie zu breit war."
KEYS |= {" ": 32, "End": 35, "Home": 36}


@pytest.fixture(scope="module")
def url(live_page) -> str:
    return live_page.as_uri()


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
        run = pretrained._replace(model=model, recipe=recipe)
        path.write_text(live.live_page(run), "utf-8")
    return path.as_uri()


@pytest.fixture
def page(browser, url) -> Browser:
    "The browser, in which the page has just been opened."
    open_page(browser, url)
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


# --- opening


def test_opening_shows_the_translation(page, pretrained):
    "The animal sentence, at the pronoun, with the head that follows it; no request."
    assert shown(page, "result") == ES
    assert page.ask("byId('result').firstChild.data").endswith(" weil es")
    assert page.ask("byId('sentence').value") == TIRED
    model, vocab, *_ = pretrained
    found = antecedent_attention(model, vocab, pronoun_sentences(100))
    kind, layer, head = following_head(found)
    assert kind == "cross" and found[kind].antecedent[layer, head] > 0.9
    title = f"Cross-attention, layer {layer + 1}, head {head + 1}"
    assert shown(page, "box-title") == title
    assert page.ask("view.rowNames[view.row]") == "weil"
    assert page.ask("view.columnNames[view.column]") == "animal"
    assert shown(page, "next").startswith("es") and shown(page, "message") == ""
    assert page.ask("performance.getEntriesByType('resource').length") == 0


def test_page_is_one_file_of_two_megabytes(live_page):
    text = live_page.read_text("utf-8")
    assert len(text.encode()) < 2e6
    assert "default-src 'none'" in text and '<html lang="en">' in text
    without_links = re.sub(r'"site":"[^"]*"', "", re.sub(r"// .*", "", text))
    assert not re.search(r"https?://|@import|url\([^#]|<link|<img", without_links)


def test_every_link_leads_to_a_heading():
    texts = "".join(path.read_text("utf-8") for path in PAGES.glob("strings.*"))
    links = set(re.findall(r"\]\((\w+\.html)#?([\w-]*)\)", texts))
    notebooks = {page_name(path): path for path in (ROOT / "nbs").glob("*.ipynb")}
    assert len(links) > 12
    for name, anchor in links:
        cells = json.loads(notebooks[name].read_text("utf-8"))["cells"]
        lines = "".join("".join(c["source"]) + "\n" for c in cells).split("\n")
        titles = [x.lstrip("# ").lower() for x in lines if x.startswith("#")]
        slugs = {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}
        assert not anchor or anchor in slugs, (name, anchor)


# --- tensors and their arithmetic

SHAPES = """(() => {
  const found = {};
  for (const {dataset: {box}} of mapBoxes()) {
    chooseBox(box);
    for (const {key} of BOXES[box].stages) {
      change({stage: key, layer: 1});
      const canvas = byId("plot").querySelector("canvas");
      found[`${box} ${key}`] = {shown: byId("shape").textContent.match(/[(](.*?)[)]/)[1],
        drawn: view.stage.axes.includes("vocab") ? null : [canvas.height, canvas.width],
        menus: [byId("row").length, byId("column").length],
        numbers: [view.rows.length, view.rows[0].length]};
    }
  }
  return found; })()"""


def test_each_box_has_its_tensors(browser, odd_url):
    "The shapes that PyTorch gives, of a model whose sizes differ; the heat map has a pixel per number."
    open_page(browser, odd_url)
    s, t = browser.ask("[run.srcIds.length, run.tgtIds.length]")
    h, d, d_k, d_v, d_ff, n_vocab = 3, 24, 5, 7, 40, browser.ask("config.n_vocab")
    boxes = browser.ask("mapBoxes().map(box => box.dataset.box)")
    assert s != t and len(boxes) == len(set(boxes)) == 21
    found = browser.ask(SHAPES)
    seen = {at: tuple(map(int, x["shown"].split(", "))) for at, x in found.items()}
    for at, x in found.items():
        assert x["menus"] == x["numbers"] and x["drawn"] in (None, [*seen[at][-2:]]), at
    for stack, n, (q, k) in (
        ("encoder", s, (s, s)),
        ("decoder", t, (t, t)),
        ("cross", t, (t, s)),
    ):
        box = "decoder.cross" if stack == "cross" else f"{stack}.self"
        expected = {"q": (h, q, d_k), "k": (h, k, d_k), "v": (h, k, d_v)}
        expected |= {"mixed": (h, q, d_v), "merged": (q, h * d_v), "output": (q, d)}
        expected |= {key: (h, q, k) for key in ("scores", "scaled", "weights")}
        expected |= {"masked": (h, q, k)} if stack == "decoder" else {}
        of_box = {at: x for at, x in seen.items() if at.startswith(f"{box} ")}
        assert of_box == {f"{box} {key}": x for key, x in expected.items()}
        norm = "decoder.crossNorm" if stack == "cross" else f"{stack}.selfNorm"
        assert seen[f"{norm} residual"] == seen[f"{norm} norm"] == (n, d)
        if stack != "cross":
            for key in ("embedding", "position", "input"):
                assert seen[f"{stack}.{key} {key}"] == (n, d)
            assert seen[f"{stack}.feedForward hidden"] == (n, d_ff)
            assert seen[f"{stack}.feedForward output"] == (n, d)
            assert seen[f"{stack}.feedForwardNorm norm"] == (n, d)
    assert seen["encoder.memory memory"] == (s, d)
    assert seen["decoder.logits logits"] == (t, n_vocab)
    assert seen["decoder.softmax logProbs"] == (t, n_vocab)
    for box, ids in (("encoder.tokens", "srcIds"), ("decoder.tokens", "tgtIds")):
        browser.ask(f"chooseBox({box!r})")
        cells = "[...byId('token-table').querySelectorAll('td:last-child')]"
        assert browser.ask(f"{cells}.map(x => +x.textContent)") == browser.ask(
            f"run.{ids}"
        )


# Of every tensor the last number, the last of the first row and some other: what the page shows,
# what its arithmetic gives, and what is in the trace.
ARITHMETIC = """(seed => {
  const random = randomNumbers(seed), found = [];
  for (const box of mapBoxes().map(({dataset}) => dataset.box)) {
    chooseBox(box);
    for (const {key} of BOXES[box].stages) {
      change({stage: key, layer: Math.floor(random() * 9), head: Math.floor(random() * 4)});
      const [n, width] = [view.rows.length, view.rows[0].length];
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
  return found;
})"""
HEADS_OFF = "decoder.1.cross:0,decoder.1.cross:1,encoder.0.self:2,decoder.0.self:1"


def number(text: str) -> float:
    "The number that the page writes in this way."
    text = text.translate(str.maketrans("−⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "-0123456789-"))
    return float(re.sub(r"·10(-?\d+)", r"e\1", text))


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"off": "scale,causal", "headsOff": HEADS_OFF},
        {"off": "positions,residual", "temperature": 2},
    ],
    ids=str,
)
def test_arithmetic_gives_the_number(browser, odd_url, state):
    open_page(browser, odd_url, **state)
    found = browser.ask(f"{ARITHMETIC}(1)")
    assert len({(box, key) for box, key, *_ in found}) == 51
    for box, key, row, column, value, title, result in found:
        assert title == result, (box, key, row, column, value)
        if value is not None:  # -Infinity is no JSON
            assert number(title) == pytest.approx(value, rel=6e-3, abs=1e-12)
    masked = [x for x in found if x[1] == "masked" and x[5] == "−∞"]
    assert bool(masked) == ("causal" not in state.get("off", ""))


def test_pointer_reads_and_chooses_a_number(browser, url):
    open_page(browser, url, step=0)
    browser.ask("byId('plot').scrollIntoView({block: 'center'})")
    x, y, width, height = browser.ask(
        "(b => [b.x, b.y, b.width, b.height])(byId('plot').getBoundingClientRect())"
    )
    n, n_columns = browser.ask("[view.rows.length, view.columns.length]")
    at = {"x": x + width * 3.5 / n_columns, "y": y + height * 2.5 / n}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
    value = browser.ask("show(view.rows[2][3])")
    assert shown(browser, "legend").endswith(f": {value}")
    button = at | {"button": "left", "clickCount": 1}
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, **button)
    assert browser.ask("[byId('row').value, byId('column').value]") == ["2", "3"]
    assert shown(browser, "number-title").endswith(value)
    chosen = "[...document.querySelectorAll('#matrix .chosen')].map(x => x.textContent)"
    names = browser.ask("[shownTokens(run.srcIds)[3], shownTokens(run.tgtIds)[2]]")
    assert sorted(browser.ask(chosen)) == sorted(names)
    browser.ask("byId('row').focus()")
    press(browser, "ArrowDown")
    assert browser.ask("[view.row, view.column]") == [3, 3]


# --- the translation, token by token


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
    for _ in range(3):
        click(page, "#back")
    assert page.ask("[run.step, +byId('step').value]") == [n - 3, n - 3]
    assert page.ask("document.querySelectorAll('#translation .later').length") == 3
    assert page.ask("sum(nextProbabilities())") == pytest.approx(1, abs=1e-5)


def test_playing(page):
    page.ask("later = setTimeout; setTimeout = (f, ms) => later(f, ms / 100)")
    page.ask("change({step: 3})")
    click(page, "#play")
    assert shown(page, "play") == "Pause"
    page.ask("""new Promise(done => { const wait = () =>
        byId("play").textContent === "Play" ? done() : later(wait, 20); wait(); })""")
    assert page.ask("run.step") == page.ask("run.ids.length")
    click(page, "#play")  # from the start
    click(page, "#play")  # pauses
    step = page.ask("run.step")
    page.ask("new Promise(done => later(done, 300))")
    assert page.ask("run.step") == step < page.ask("run.ids.length")


# --- by keyboard alone


def focused(browser) -> str:
    return browser.ask("""(e => e.id || e.dataset.box || e.dataset.key
        || (e.dataset.save && `save:${e.dataset.save}`) || e.ariaLabel
        || e.textContent.trim())(document.activeElement)""")


STOPS = """tour-start sentence Translate presets known-title token:8 back play forward step
decoder.cross stages:weights head:1:HEAD drawings:matrix plot save:matrix row column
switch:scale switch:causal switch:positions switch:residual off:encoder.0.self:0 try
temperature topK topP draw beam node:0:0 save:tree hypothesis:13:0 link""".split()


def test_by_keyboard_alone(page):
    "Tab from group to group, in the order of the page, links left out; everything has a name."
    head = page.ask("state.head")
    texts = page.ask("[...byId('presets').children].map(x => x.textContent)")
    wanted = [name.replace("HEAD", str(head)) for name in STOPS]
    wanted[3:4] = texts
    stops = []
    for _ in range(60):
        press(page, "Tab")
        if page.ask(
            "!document.activeElement.matches('a:not(#link), [data-key^=action]')"
        ):
            stops.append(focused(page))
        if stops[-1:] == ["link"]:
            break
    assert stops == wanted
    nameless = page.ask("""[...document.querySelectorAll(
        "button, select, input, textarea, a, [role=button], [tabindex='0']")].filter(e =>
        e.checkVisibility() && !(e.textContent.trim() || e.ariaLabel || e.labels?.length
        || e.getAttribute("aria-labelledby"))).map(e => e.outerHTML)""")
    assert nameless == []


ALL_CHANGED = """{off: ["causal", "scale", "positions"], headsOff: ["decoder.1.cross:0"],
    temperature: 2, seed: 3}"""


def test_focus_is_not_under_the_box_at_the_top(page):
    size = {"width": 700, "height": 500, "deviceScaleFactor": 1, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **size)
    page.ask(f"change({ALL_CHANGED}); byId('link').focus()")
    settle(page)
    covered, stops = [], 0
    while focused(page) != "sentence" and stops < 60:
        press(page, "Tab", modifiers=8)
        stops += 1
        if page.ask("""(e => { const [box, at] = [byId("effect"), e].map(
                each => each.getBoundingClientRect());
            return !byId("effect").contains(e) && at.top < box.bottom
                && at.bottom > box.top; })(document.activeElement)"""):
            covered.append(focused(page))
    assert 30 < stops < 60 and covered == []


def test_keys_within_the_groups(page):
    press(page, "Tab", "Tab", "Tab")
    assert focused(page) == "sentence"
    type_sentence(page, WIDE)
    assert shown(page, "result") == SIE and focused(page) == "sentence"
    page.ask("byId('map').querySelector('[tabindex=\"0\"]').focus()")
    press(page, "ArrowUp", "ArrowUp", "ArrowUp")
    assert focused(page) == "decoder.feedForwardNorm"
    press(page, "Enter")
    title = "Add & Norm after the feed-forward network, layer 2"
    assert shown(page, "box-title") == title
    press(page, "ArrowLeft")
    assert focused(page) == "encoder.memory"
    press(page, "ArrowDown", "ArrowDown", " ")
    assert shown(page, "box-title").startswith("Feed-forward network of the encoder")
    press(page, "Tab", "Tab", "ArrowLeft")  # past a link, to the tensors
    assert focused(page) == "stages:hidden"
    press(page, "Tab", "ArrowLeft")
    assert focused(page) == "layers:0"
    assert shown(page, "box-title").endswith("layer 1")
    press(page, "Tab")
    assert focused(page) == "plot"
    row, column = page.ask("[view.row, view.column]")
    press(page, "Home", "ArrowRight", "ArrowDown")
    assert page.ask("[view.row, view.column]") == [row + 1, 1]
    assert "feature 1)" in shown(page, "number-title")
    press(page, "End", "ArrowRight")
    assert page.ask("view.column") == page.ask("config.d_ff - 1")
    page.ask("document.querySelector('[data-key=\"switch:residual\"]').focus()")
    press(page, " ")
    assert page.ask("state.off") == ["residual"]
    assert focused(page) == "switch:residual"
    press(page, " ")
    page.ask("document.querySelector('[data-key=\"off:encoder.0.self:0\"]').focus()")
    press(page, "ArrowDown", "ArrowDown", "ArrowRight", " ")
    assert page.ask("state.headsOff") == ["decoder.0.cross:1"]
    assert focused(page) == "off:decoder.0.cross:1"
    page.ask("byId('tree').querySelector('button').focus()")
    press(page, "ArrowRight", "ArrowDown")
    assert focused(page) == "node:1:1" and shown(page, "candidate").startswith("“")


# --- the address


def test_address_restores_the_state(page):
    type_sentence(page, "My mouse & the goats = 100 % happy #1.")
    page.ask("chooseBox('encoder.self')")
    page.ask("""change({stage: "scaled", layer: 0, head: 3, row: 2, column: 5, step: 4,
        drawing: "matrix", off: ["causal", "scale"], headsOff: ["decoder.1.cross:2"],
        temperature: 1.5, beam: 2})""")
    settle(page)
    address = page.ask("location.href")
    assert page.ask("byId('link').href") == address
    state = "JSON.stringify([state, run.ids, byId('view').textContent])"
    before = page.ask(state)
    open_page(page, address)
    assert page.ask(state) == before
    assert page.ask("byId('sentence').value") == page.ask("state.text")
    page.ask("location.hash = 'beam=3'")  # as by the browser's history
    settle(page)
    assert page.ask("[state.beam, state.text]") == [3, TIRED]


# --- odd input

ODD = {
    "": "The line is empty",
    "   ": "The line is empty",
    "Das Tier ist müde, weil es nicht schläft.": "looks like German",
    "word " * 200: "translates at most 64",
    "The жук crossed the 街.": "“ж”, “у”, “к”, “街” did not occur in training",
    "The dog sleeps. The cat sees the house.": "trained on single sentences",
    "The zebra quickly ate the unicorn.": "“zebra”, “quickly”, “unicorn”",
    "</script><script>bad()</script>": "“<”, “/”, “>”, “(”, “)” did not occur",
    "🙂": "did not occur",
    "\ufffd \u2028 9\u0301": "did not occur",
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


# TODO(issue 43): remove once the pretrained models are trained again
of_1_0_0 = pytest.mark.xfail(strict=True, reason="a vocabulary of 1.0.0 keeps ’ and ʼ")


@of_1_0_0
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


@of_1_0_0
def test_sentences_of_the_corpus_get_no_remark(page):
    "However they are typed."
    lines = [s.en for s in HELD_OUT] + TYPED
    found = page.ask(f"{json.dumps(lines)}.map(remarkOn)")
    assert [pair for pair in zip(lines, found, strict=True) if pair[1]] == []


def test_case_of_a_model_without_case_variants(browser, live_page, tmp_path):
    "As the one of `make demo`: sentences of the corpus get no remark, others do."
    text = live_page.read_text("utf-8")
    assert text.count('"case_variants":true') == 1
    text = text.replace('"case_variants":true', '"case_variants":false')
    (tmp_path / "live.html").write_text(text, "utf-8")
    open_page(browser, (tmp_path / "live.html").as_uri())
    for typed, all_of_them in ((str, False), (str.lower, True), (str.upper, True)):
        lines = [typed(s.en) for s in HELD_OUT[:100]]
        found = browser.ask(f"{json.dumps(lines)}.map(remarkOn)")
        assert sum(map(bool, found)) == 100 * all_of_them, typed
        assert ("Capital letters" in found[0]) == all_of_them


def test_typed_sentences_are_translated_as_by_the_package(page):
    found = page.ask(f"""{json.dumps(TYPED)}.map(text =>
        textOf(generatedIds(searchTranslation(text, SWITCHES))))""")
    assert found == load("demo").translate(TYPED)


# --- switches


def weights(browser, path: str) -> torch.Tensor:
    got = browser.ask(f"(x => [x.shape, [...x.data]])(run.trace.get({path!r}))")
    return torch.tensor(got[1]).view(got[0])


def switch(browser, name: str) -> None:
    click(browser, f"[data-key='switch:{name}']")


def reset(browser) -> None:
    click(browser, "[data-key='action:reset']")


def later(browser) -> torch.Tensor:
    every = [weights(browser, f"decoder.{i}.self.weights").triu(1) for i in range(2)]
    return torch.stack(every).sum(-1).mean()


def test_shuffled_words_without_positions(page):
    "The memory has the same rows in another order, and the translation is the same; with positions both change."
    switch(page, "positions")
    translation, memory = shown(page, "result"), page.ask("[...run.memory.data]")
    click(page, "[data-key='action:shuffle']")
    sentence = page.ask("state.text")
    assert sentence != TIRED and sorted(sentence.split()) == sorted(TIRED.split())
    assert shown(page, "result") == translation
    assert "same rows in another order" in shown(page, "comparison")
    before = f"Before: {translation}Shuffled: {translation}"
    assert shown(page, "comparison").startswith(before)
    shuffled = page.ask("[...run.memory.data]")
    assert shuffled != memory
    assert sorted(shuffled) == pytest.approx(sorted(memory), abs=1e-4)
    switch(page, "positions")
    assert "has changed" in shown(page, "comparison")
    assert shown(page, "comparison").startswith(f"Before: {ES}Shuffled: ")
    click(page, "[data-key='action:restore']")
    assert page.ask("state.text") == TIRED and shown(page, "result") == ES


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


def try_each_head(browser) -> None:
    click(browser, "#try")
    browser.ask("""new Promise(done => { const wait = () =>
        trials.left ? setTimeout(wait, 20) : done(); wait(); })""")


def test_head_switched_off(page):
    "Its mixed values are 0, and what the trial of each head announced is what happens."
    click(page, "[data-key='off:encoder.1.self:2']")
    mixed = weights(page, "encoder.1.self.mixed")
    assert (mixed[2] == 0).all() and (mixed[[0, 1, 3]] != 0).any()
    page.ask("chooseBox('encoder.self'); change({layer: 1, head: 2, stage: 'mixed'})")
    assert "switched off" in shown(page, "arithmetic")
    off = "[...byId('heads').querySelectorAll('.off')].map(x => x.ariaLabel)"
    assert page.ask(off) == ["layer 2, head 3, switched off"]
    reset(page)
    page.ask("change({step: 0})")
    try_each_head(page)
    trials = "trials.found.filter(x => x.isChanged).map(x => [x.name, textOf(x.ids)])"
    found = page.ask(trials)
    assert 0 < len(found) < 24
    assert shown(page, "findings").startswith(f"{len(found)} of 24 heads")
    matters = "[...document.querySelectorAll('.matters')].map(x => x.dataset.key)"
    assert page.ask(matters) == [f"off:{name}" for name, _ in found]
    name, said = found[-1]
    click(page, f"#findings [data-key='action:{name}']")  # leads to the head
    assert page.ask(
        "`${state.box.split('.')[0]}.${state.layer}.${state.box.split('.')[1]}:`"
        " + `${state.head} ${state.stage}`"
    ) == (f"{name} weights")
    changed = page.ask(f"shownToken(run.ids[{page.ask('run.step')} - 1])")
    assert changed in ES.replace(".", "").split() and changed not in said.split()
    for name, translation in found:
        page.ask(f"change({{headsOff: [{name!r}]}})")
        assert page.ask("textOf(run.ids)") == translation != ES


def test_changes_are_named_beside_the_translation(page):
    changes = "byId('changes').checkVisibility()"
    assert shown(page, "effect") == f"All parts on:{ES}" and not page.ask(changes)
    click(page, "[data-key='off:encoder.1.self:0']")
    text = "Parts off: encoder head 2.1 · Reset all"
    assert shown(page, "changes") == text and page.ask(changes)
    page.ask("change({temperature: 3})")
    assert "head 2.1 · Temperature 3 · " in shown(page, "changes")
    click(page, "#draw")
    assert "head 2.1 · Sampled at temperature 3 · " in shown(page, "changes")
    lines = "[...byId('effect').querySelectorAll('p')].map(x => x.textContent.trim())"
    intact, now, _legend = page.ask(lines)
    assert intact == f"All parts on:{ES}"
    assert now.startswith("Sampled at temperature 3:")
    reset(page)
    assert page.ask("[state.headsOff, state.temperature, state.seed]") == [[], 1, 0]
    assert shown(page, "effect") == f"All parts on:{ES}" and not page.ask(changes)


def test_a_switch_keeps_the_step(page):
    "Also over a translation that is shorter."
    assert page.ask("run.step") == 9
    for action in (
        "[data-key='switch:scale']",
        "[data-key='off:decoder.0.self:1']",
        "#draw",
        "#search",
    ):
        click(page, action)
        assert page.ask("run.step === Math.min(9, run.ids.length)")
    page.ask("change({temperature: 2}); change({beam: 2})")
    reset(page)
    page.ask("change({step: 12}); change({text: 'The dog sleeps.'})")
    assert page.ask("run.step === run.ids.length && run.step < 12")
    page.ask(f"change({{text: {TIRED!r}}})")
    assert page.ask("run.step") == 12


def test_temperature_and_sampling(page):
    entropy = "sum(nextProbabilities().map(p => p > 0 ? -p * Math.log(p) : 0))"
    found = []
    for temperature in (0.5, 1, 2):
        page.ask(f"change({{temperature: {temperature}, step: 9}})")
        found.append(page.ask(entropy))
        assert shown(page, "next").startswith("es")
    assert found == sorted(found)
    click(page, "#draw")
    drawn = [page.ask("[...run.ids]")]
    assert shown(page, "candidate") == "Sampling has no tree."
    settle(page)
    address = page.ask("location.href")
    click(page, "#draw")
    drawn.append(page.ask("[...run.ids]"))
    assert drawn[0] != drawn[1]
    open_page(page, address)
    assert page.ask("[...run.ids]") == drawn[0]
    click(page, "#search")
    assert page.ask("state.seed") == 0


# --- beam search


@pytest.mark.parametrize("beam", [1, 4])
def test_tree_of_the_beam(browser, url, beam):
    "A column per step, as many kept as the beam is wide, and a bold path that reads as the translation."
    open_page(browser, url, beam=beam)
    tree = browser.ask("run.search.tree")
    nodes = browser.ask("""[...byId("tree").querySelectorAll("button")].map(b =>
        [b.style.gridColumnStart, b.style.gridRowStart, b.className,
         b.firstChild.textContent, b.checkVisibility()])""")
    assert len(nodes) == sum(map(len, tree)) and all(node[-1] for node in nodes)
    for step, candidates in enumerate(tree):
        column = [node for node in nodes if node[0] == str(step + 2)]
        assert [node[1] for node in column] == [str(i + 1) for i in range(len(column))]
        assert [node[2].split()[0] for node in column] == [x["why"] for x in candidates]
        assert sum(x["why"] == "kept" for x in candidates) == beam
        assert sum("best" in node[2] for node in column) <= 1
    best = [node[3] for node in nodes if "best" in node[2]]
    assert best == browser.ask("shownTokens(run.ids)")
    assert browser.ask("byId('tree').querySelectorAll('path').length") == len(nodes)
    rows = browser.ask("""[...byId("hypotheses").querySelectorAll("tr")].slice(1).map(
        row => [...row.children].map(cell => cell.textContent.replace("−", "-")))""")
    assert rows[0][0] == shown(browser, "result") == ES
    scores = [float(row[4]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    for _, log_prob, n, penalty, score in rows:
        alpha = 0 if beam == 1 else 0.6
        assert float(penalty) == pytest.approx(((5 + int(n)) / 6) ** alpha, rel=1e-3)
        assert float(log_prob) / float(penalty) == pytest.approx(float(score), rel=2e-3)
    click(browser, "#tree button", len(nodes) - 1)
    why = tree[-1][-1]["why"].capitalize()
    assert f"{why}: " in shown(browser, "candidate")


# --- looks

LOOKS = {
    "heads off": "change({headsOff: ['encoder.1.self:0'], temperature: 3, seed: 2})",
    "lines": "change({drawing: 'lines'})",
    "hidden units": "chooseBox('encoder.feedForward'); change({stage: 'hidden'})",
    "masked": "chooseBox('decoder.self'); change({stage: 'masked'})",
    "tokens": "chooseBox('encoder.tokens'); followPath(run.search.hypotheses[1].end)",
    "switched off": "change({off: ['residual'], headsOff: ['decoder.1.cross:0']})",
    "a long sentence": f"submit({'the animal and ' * 20!r}); chooseBox('encoder.self')",
    "a wide beam": "change({beam: 8}); byId('tree').querySelector('button').focus()",
    "shuffled": "change({off: ['positions']}); shuffleWords()",
    "the tour": "goTo(9)",
    "cut off": "change({temperature: 3, topK: 3}); byId('draft').textContent = 'a b'",
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


def test_tap_on_a_phone(browser, url):
    open_page(browser, url, {"width": 390})
    tap(browser, "[data-box='encoder.feedForward']")
    assert shown(browser, "box-title").startswith("Feed-forward")
    tap(browser, "#translation button", 2)
    assert browser.ask("run.step") == 3
    tap(browser, "[data-key='switch:scale']")
    assert browser.ask("state.off") == ["scale"]


def test_page_in_a_frame_follows_the_site(browser, live_page, tmp_path):
    text = live_page.read_text("utf-8").replace("&", "&amp;").replace('"', "&quot;")
    path = tmp_path / "site.html"
    frame = f'<iframe srcdoc="{text}"></iframe>'
    path.write_text(f"<!doctype html><body class='quarto-dark'>{frame}", "utf-8")
    open_page(browser, path.as_uri(), {"scheme": "light"})
    inner = "document.querySelector('iframe').contentWindow"
    ground = f"getComputedStyle({inner}.document.body).backgroundColor"
    pixel = f"""[...{inner}.document.querySelector('canvas').getContext('2d')
        .getImageData(0, 0, 99, 99).data].reduce((a, b) => a + b)"""
    dark = browser.ask(ground), browser.ask(pixel)
    browser.ask("document.body.className = 'quarto-light'")
    browser.ask("new Promise(done => setTimeout(done, 100))")
    light = browser.ask(ground), browser.ask(pixel)
    assert dark[0] == "rgb(18, 23, 29)" and light[0] == "rgb(255, 255, 255)"
    assert dark[1] != light[1]
    link = browser.ask(f"{inner}.document.getElementById('link').href")
    assert re.fullmatch(r"https://.*/live_page\.html#.*step=9.*", link)
    result = f"{inner}.document.getElementById('result').textContent"
    assert ES in browser.ask(result)
