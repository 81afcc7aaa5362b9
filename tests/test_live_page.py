"The interface of the live page in a browser whose network is cut: by pointer, by keys, with odd input, with parts switched off."

import dataclasses
import json
import random
import re
from pathlib import Path
from urllib.parse import quote

import pytest
import torch
from browser import Browser
from conftest import ROOT
from engine import HELD_OUT
from lint_pages import declarations, page_files
from pages import page_name
from test_explorer import KEYS, click, press, tap
from test_site import CHECKS

from annotated_transformer.model.config import ModelConfig
from annotated_transformer.model.transformer import build_transformer
from annotated_transformer.runs.folder import Run, load_run, pretrained_run
from annotated_transformer.show.explorer import display_tokens
from annotated_transformer.show.heads import (
    antecedent_attention,
    following_head,
    pronoun_sentences,
)
from annotated_transformer.show.live import live_page
from annotated_transformer.translating.load import load

PAGES = ROOT / "annotated_transformer/show/pages"
TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
ES = "Das Tier überquerte die Straße nicht, weil es zu müde war."
SIE = "Das Tier überquerte die Straße nicht, weil sie zu breit war."
KEYS |= {" ": 32, "End": 35, "Home": 36}


@pytest.fixture(scope="module")
def browser(chromium, tmp_path_factory):
    with Browser(chromium, tmp_path_factory.mktemp("profile")) as browser:
        browser.call(
            "Network.emulateNetworkConditions",
            offline=True,
            latency=0,
            downloadThroughput=0,
            uploadThroughput=0,
        )
        yield browser


@pytest.fixture(scope="module")
def demo() -> Run:
    return load_run(pretrained_run(Path("demo")))


@pytest.fixture(scope="module")
def text(demo) -> str:
    return live_page(demo)


@pytest.fixture(scope="module")
def url(text, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "live.html"
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def odd_url(demo, tmp_path_factory) -> str:
    "The page of a model whose sizes are all different, with random weights."
    torch.manual_seed(0)
    sizes = ModelConfig(n_layers=3, d_model=24, d_ff=40, n_heads=3, d_k=5, d_v=7)
    model = build_transformer(sizes, len(demo.vocab), demo.vocab.pad_id)
    recipe = dataclasses.replace(demo.recipe, model=sizes)
    path = tmp_path_factory.mktemp("odd") / "live.html"
    path.write_text(live_page(demo._replace(model=model, recipe=recipe)), "utf-8")
    return path.as_uri()


def state_of(url: str, **state) -> str:
    "The address of a state of the page."
    return url + "#" + "&".join(f"{key}={quote(str(x))}" for key, x in state.items())


def open_page(browser: Browser, url: str, **options) -> None:
    "Without this, an address that differs after # would not load the page again."
    browser.open("about:blank")
    browser.open(url, **options)


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


# --- opening ------------------------------------------------------------------------------------------------------------------


def test_opening_shows_the_translation(browser, url, demo):
    "The animal sentence, at the pronoun, within 1.5 s: the fastest of three, since other processes share the processor."
    seconds = []
    for _ in range(3):
        open_page(browser, url)
        loaded = "performance.getEntriesByType('navigation')[0].domComplete / 1000"
        seconds.append(browser.ask(loaded))
    assert min(seconds) < 1.5, seconds
    assert shown(browser, "result") == ES
    assert browser.ask("byId('result').firstChild.data").endswith(" weil es")
    assert browser.ask("byId('sentence').value") == TIRED
    found = antecedent_attention(demo.model, demo.vocab, pronoun_sentences(100))
    kind, layer, head = following_head(found)
    assert kind == "cross" and found[kind].antecedent[layer, head] > 0.9
    title = f"Cross-attention, layer {layer + 1}, head {head + 1}"
    assert shown(browser, "box-title") == title
    assert browser.ask("view.rowNames[view.row]") == "weil"
    assert browser.ask("view.columnNames[view.column]") == "animal"
    assert shown(browser, "next").startswith("es")
    assert shown(browser, "message") == ""
    n_requests = "performance.getEntriesByType('resource').length"
    assert browser.said == [] and browser.ask(n_requests) == 0


def test_page_is_one_file_of_two_megabytes(text):
    assert len(text.encode()) < 2e6
    assert "default-src 'none'" in text and '<html lang="en">' in text
    without_links = re.sub(r'"site":"[^"]*"', "", re.sub(r"// .*", "", text))
    assert not re.search(r"https?://|@import|url\([^#]|<link|<img", without_links)


@pytest.mark.parametrize(
    "languages, label",
    [
        (("en", "de"), "English sentence"),
        (("pt-BR", None), "Brazilian Portuguese sentence"),
        ((None, "de"), "Source sentence"),
        (("src", "tgt"), "Source sentence"),  # of an earlier version
        ((["en"], 1), "Source sentence"),
        (("not a code", "de"), "Source sentence"),
    ],
    ids=str,
)
def test_language_of_the_sentence(browser, demo, tmp_path, languages, label):
    about = demo.about | dict(zip(("src_lang", "tgt_lang"), languages))
    page = live_page(demo._replace(about=about))
    (tmp_path / "live.html").write_text(page, "utf-8")
    open_page(browser, (tmp_path / "live.html").as_uri())
    assert shown(browser, "sentence-label") == label
    assert shown(browser, "result") and browser.said == []


def test_language_that_the_browser_refuses(browser, text, tmp_path):
    "The page shows what it was given, and works."
    assert text.count('"src_lang":"en"') == 1
    page = text.replace('"src_lang":"en"', '"src_lang":"not a code"')
    (tmp_path / "live.html").write_text(page, "utf-8")
    open_page(browser, (tmp_path / "live.html").as_uri())
    assert shown(browser, "sentence-label") == "not a code sentence"
    assert shown(browser, "result") == ES and browser.said == []


def test_every_link_leads_to_a_heading():
    scripts = "".join(path.read_text("utf-8") for path in PAGES.glob("live*"))
    links = set(re.findall(r'"(\w+\.html)#?([\w-]*)"', scripts))
    notebooks = {page_name(path): path for path in (ROOT / "nbs").glob("*.ipynb")}
    assert len(links) > 12
    for name, anchor in links:
        cells = json.loads(notebooks[name].read_text("utf-8"))["cells"]
        lines = "".join("".join(c["source"]) + "\n" for c in cells).split("\n")
        titles = [x.lstrip("# ").lower() for x in lines if x.startswith("#")]
        slugs = {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}
        assert not anchor or anchor in slugs, (name, anchor)


def test_browser_understands_every_declaration(browser, url):
    open_page(browser, url)
    for path in page_files(PAGES, "live", "css"):
        found = declarations(path.read_text(encoding="utf-8"))
        unknown = browser.ask(
            f"{json.dumps(found)}.filter(([name, value]) => !CSS.supports(name, value))"
        )
        assert len(found) > 15 and unknown == []


# --- tensors and their arithmetic ---------------------------------------------------------------------------------------------


def test_each_box_has_its_tensors(browser, odd_url):
    "The shapes that PyTorch gives, of a model whose sizes differ; the heat map has a pixel per number."
    open_page(browser, odd_url)
    s, t = browser.ask("[run.srcIds.length, run.tgtIds.length]")
    h, d, d_k, d_v, d_ff = 3, 24, 5, 7, 40
    assert s != t
    seen = {}
    boxes = browser.ask("mapBoxes().map(box => box.dataset.box)")
    assert len(boxes) == len(set(boxes)) == 21
    for box in boxes:
        browser.ask(f"chooseBox({box!r})")
        for stage in browser.ask("BOXES[state.box].stages.map(({key}) => key)"):
            for layer in range(3):
                browser.ask(f"change({{stage: {stage!r}, layer: {layer}}})")
                shape = re.search(r"\((.*?)\)", shown(browser, "shape"))[1]
                size = (
                    "(c => [c.height, c.width])(byId('plot').querySelector('canvas'))"
                )
                seen[box, stage] = tuple(map(int, shape.split(", ")))
                if "vocab" not in browser.ask("view.stage.axes"):
                    assert tuple(browser.ask(size)) == seen[box, stage][-2:]
                names = "[byId('row').length, byId('column').length]"
                assert browser.ask(names) == browser.ask(
                    "[view.rows.length, view.rows[0].length]"
                )
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
        assert {key: x for (b, key), x in seen.items() if b == box} == expected
        norm = "decoder.crossNorm" if stack == "cross" else f"{stack}.selfNorm"
        assert seen[norm, "residual"] == seen[norm, "norm"] == (n, d)
        if stack != "cross":
            for key in ("embedding", "position", "input"):
                assert seen[f"{stack}.{key}", key] == (n, d)
            assert seen[f"{stack}.feedForward", "hidden"] == (n, d_ff)
            assert seen[f"{stack}.feedForward", "output"] == (n, d)
            assert seen[f"{stack}.feedForwardNorm", "norm"] == (n, d)
    n_vocab = browser.ask("config.n_vocab")
    assert seen["encoder.memory", "memory"] == (s, d)
    assert seen["decoder.logits", "logits"] == (t, n_vocab)
    assert seen["decoder.softmax", "logProbs"] == (t, n_vocab)
    for box, ids in (("encoder.tokens", "srcIds"), ("decoder.tokens", "tgtIds")):
        browser.ask(f"chooseBox({box!r})")
        rows = browser.ask(
            "[...byId('token-table').querySelectorAll('td:last-child')].map(x => +x.textContent)"
        )
        assert rows == browser.ask(f"run.{ids}")
    assert browser.said == []


# Of every tensor the first, the last, the chosen and some other numbers: what the page shows,
# what its arithmetic gives, and what is in the trace.
ARITHMETIC = """(seed => {
  const random = randomNumbers(seed), found = [];
  for (const box of mapBoxes().map(({dataset}) => dataset.box)) {
    chooseBox(box);
    for (const {key} of BOXES[box].stages) {
      change({stage: key, layer: Math.floor(random() * 9), head: Math.floor(random() * 4)});
      const [n, width] = [view.rows.length, view.rows[0].length];
      const cells = [[0, 0], [n - 1, width - 1], [view.row, view.column], [0, width - 1]];
      for (let i = 0; i < 6; i++) {
        cells.push([Math.floor(random() * n), Math.floor(random() * width)]);
      }
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


def number(text: str) -> float:
    "The number that the page writes in this way."
    text = text.translate(str.maketrans("−⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "-0123456789-"))
    return float(re.sub(r"·10(-?\d+)", r"e\1", text))


SWITCHED = [
    {},
    {"off": "scale,causal"},
    {"off": "positions,residual"},
    {
        "headsOff": "decoder.1.cross:0,decoder.1.cross:1,encoder.0.self:2,decoder.0.self:1"
    },
    {"text": "Zebras ärgern 漢字.", "temperature": 2},
]


@pytest.mark.parametrize("state", SWITCHED, ids=str)
@pytest.mark.parametrize("page", ["url", "odd_url"])
def test_arithmetic_gives_the_number(browser, page, state, request):
    open_page(browser, state_of(request.getfixturevalue(page), **state))
    found = browser.ask(f"{ARITHMETIC}(1)")
    assert len({(box, key) for box, key, *_ in found}) == 51
    for box, key, row, column, value, title, result in found:
        assert title == result, (box, key, row, column, value)
        if value is not None:  # -Infinity is no JSON
            assert number(title) == pytest.approx(value, rel=6e-3, abs=1e-12)
    masked = [x for x in found if x[1] == "masked" and x[5] == "−∞"]
    assert bool(masked) == ("causal" not in state.get("off", ""))
    assert browser.said == []


def test_terms_add_up(browser, url):
    "The terms that are shown, with the others together, are the sum."
    open_page(browser, url)
    values = "[...document.querySelectorAll('.terms td.value')].map(x => x.textContent)"
    for box, stage in (
        ("encoder.self", "q"),
        ("decoder.cross", "scores"),
        ("encoder.feedForward", "hidden"),
        ("decoder.logits", "logits"),
        ("decoder.self", "mixed"),
    ):
        browser.ask(f"chooseBox({box!r}); change({{stage: {stage!r}}})")
        *terms, total = map(number, browser.ask(values))
        assert sum(terms) == pytest.approx(total, rel=2e-3, abs=2e-3), (box, stage)


def test_pointer_reads_and_chooses_a_number(browser, url):
    open_page(browser, state_of(url, step=0))
    browser.ask("byId('plot').scrollIntoView({block: 'center'})")
    x, y, width, height = browser.ask(
        "(b => [b.x, b.y, b.width, b.height])(byId('plot').getBoundingClientRect())"
    )
    n, n_columns = browser.ask("[view.rows.length, view.columns.length]")
    at = {"x": x + width * 3.5 / n_columns, "y": y + height * 2.5 / n}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
    value = browser.ask("show(view.rows[2][3])")
    assert shown(browser, "legend").endswith(f": {value}")
    for kind in ("mousePressed", "mouseReleased"):
        browser.call(
            "Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at
        )
    assert browser.ask("[byId('row').value, byId('column').value]") == ["2", "3"]
    assert shown(browser, "number-title").endswith(value)
    chosen = "[...document.querySelectorAll('#matrix .chosen')].map(x => x.textContent)"
    names = browser.ask("[shownTokens(run.srcIds)[3], shownTokens(run.tgtIds)[2]]")
    assert sorted(browser.ask(chosen)) == sorted(names)
    browser.ask("byId('row').focus()")
    press(browser, "ArrowDown")
    assert browser.ask("[view.row, view.column]") == [3, 3] and browser.said == []


def test_tokens_are_shown_as_in_the_explorer(browser, url, demo):
    open_page(browser, url)
    for line in (TIRED, "Unbelievable,donkeys  x Donaudampfschiff 3.5 ▁ é"):
        ids = demo.vocab.encode(line)
        got = browser.ask(f"shownTokens({ids})")
        assert got == display_tokens(demo.vocab.words(ids))


# --- the translation, token by token ------------------------------------------------------------------------------------------


def test_stepping(browser, url):
    "The decoder's tensors have a row per token of the prefix, and the last one predicts the chosen token."
    open_page(browser, url)
    click(browser, "#presets button", 1)
    assert shown(browser, "result") == SIE and not browser.ask("state.step")
    n = browser.ask("run.ids.length")
    tokens = browser.ask("shownTokens(run.ids)")
    assert tokens[-1] == "EOS" and browser.ask("byId('forward').disabled")
    for i in (0, tokens.index("sie"), n - 2):
        click(browser, "#translation button", i)
        assert browser.ask("view.rows.length") == i + 1
        assert shown(browser, "next").startswith(tokens[i])
        assert shown(browser, "next-label").startswith(f"Token {i + 1} of {n}")
    click(browser, "#forward")
    assert browser.ask("run.step") == n
    for _ in range(3):
        click(browser, "#back")
    assert browser.ask("[run.step, +byId('step').value]") == [n - 3, n - 3]
    later = "document.querySelectorAll('#translation .later').length"
    assert browser.ask(later) == 3 and browser.said == []
    sums = browser.ask("sum(nextProbabilities())")
    assert sums == pytest.approx(1, abs=1e-5)


def test_playing(browser, url):
    open_page(browser, url)
    browser.ask("setTimeout = (f => (run_, ms) => f(run_, ms / 30))(setTimeout)")
    browser.ask("change({step: 3})")
    click(browser, "#play")
    assert shown(browser, "play") == "Pause"
    browser.ask("new Promise(done => setTimeout(done, 60000))")
    assert browser.ask("run.step") == browser.ask("run.ids.length")
    assert shown(browser, "play") == "Play" and browser.said == []
    click(browser, "#play")  # from the start
    click(browser, "#play")  # pauses
    step = browser.ask("run.step")
    browser.ask("new Promise(done => setTimeout(done, 30000))")
    assert browser.ask("run.step") == step < browser.ask("run.ids.length")


# --- by keyboard alone --------------------------------------------------------------------------------------------------------


def focused(browser) -> str:
    return browser.ask("""(e => e.id || e.dataset.box || e.dataset.key || e.ariaLabel
        || e.textContent.trim())(document.activeElement)""")


def test_by_keyboard_alone(browser, url):
    "Tab from group to group, in the order of the page; arrows, Enter and Space within."
    open_page(browser, url)
    stops = []
    for _ in range(45):
        press(browser, "Tab")
        stops.append(focused(browser))
        if stops[-1] == "link":
            break
    head = browser.ask("state.head")
    texts = browser.ask("[...byId('presets').children].map(x => x.textContent)")
    links = [x for x in stops if x in ("the attention page", "§3.2.3")]
    assert links == ["the attention page", "§3.2.3"]
    assert [x for x in stops if x not in links] == [
        "sentence",
        "Translate",
        *texts,
        "known-title",
        "token:8",
        "back",
        "play",
        "forward",
        "step",
        "Label smoothing",
        "decoder.cross",
        "stages:weights",
        f"head:1:{head}",
        "drawings:matrix",
        "plot",
        "row",
        "column",
        "switch:scale",
        "Why divide by √dk",
        "switch:causal",
        "The causal mask",
        "switch:positions",
        "Attention ignores order",
        "action:Shuffle the words",
        "switch:residual",
        "Residual connections",
        "Ablating each head",
        "off:encoder.0.self:0",
        "try",
        "temperature",
        "Sampling",
        "draw",
        "beam",
        "Beam search",
        "node:0:0",
        "hypothesis:13:0",
        "link",
    ]
    nameless = browser.ask("""[...document.querySelectorAll(
        "button, select, input, textarea, a, [role=button], [tabindex='0']")].filter(e =>
        e.checkVisibility() && !(e.textContent.trim() || e.ariaLabel || e.labels?.length
        || e.getAttribute("aria-labelledby"))).map(e => e.outerHTML)""")
    assert nameless == [] and browser.said == []


NAMES = """[...document.querySelectorAll("button[aria-label], [role=button][aria-label]")]
    .filter(e => e.checkVisibility() && e.textContent.trim())
    .map(e => [e.getAttribute("aria-label"), e.textContent])"""
ALL_CHANGED = """{off: ["causal", "scale", "positions"], headsOff: ["decoder.1.cross:0"],
    temperature: 2, seed: 3}"""


def test_names_begin_with_the_visible_text(browser, url):
    "Who speaks to a computer says what is on a button."
    open_page(browser, url)
    try_each_head(browser)
    names = browser.ask(NAMES)
    plain = lambda text: re.sub(r"\s", "", text).lower()
    wrong = [(a, b) for a, b in names if not plain(a).startswith(plain(b))]
    assert len(names) > 150 and wrong == []


@pytest.mark.parametrize("width, height", [(1280, 900), (700, 500)])
def test_focus_is_not_under_the_box_at_the_top(browser, url, width, height):
    open_page(browser, url)
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.ask(f"change({ALL_CHANGED}); byId('link').focus()")
    settle(browser)
    covered, stops = [], 0
    while focused(browser) != "sentence" and stops < 60:
        key = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9, "modifiers": 8}
        browser.call("Input.dispatchKeyEvent", type="keyDown", **key)
        browser.call("Input.dispatchKeyEvent", type="keyUp", **key)
        stops += 1
        if browser.ask("""(e => { const [box, at] = [byId("effect"), e].map(
                each => each.getBoundingClientRect());
            return !byId("effect").contains(e) && at.top < box.bottom
                && at.bottom > box.top; })(document.activeElement)"""):
            covered.append(focused(browser))
    assert 30 < stops < 60 and covered == [] and browser.said == []


def test_keys_within_the_groups(browser, url):
    open_page(browser, url)
    press(browser, "Tab", "Tab")
    assert focused(browser) == "sentence"
    type_sentence(browser, WIDE)
    assert shown(browser, "result") == SIE and focused(browser) == "sentence"
    browser.ask("byId('map').querySelector('[tabindex=\"0\"]').focus()")
    press(browser, "ArrowUp", "ArrowUp", "ArrowUp")
    assert focused(browser) == "decoder.feedForwardNorm"
    press(browser, "Enter")
    assert shown(browser, "box-title") == (
        "Add & Norm after the feed-forward network, layer 2"
    )
    press(browser, "ArrowLeft")
    assert focused(browser) == "encoder.memory"
    press(browser, "ArrowDown", "ArrowDown", " ")
    assert shown(browser, "box-title").startswith("Feed-forward network of the encoder")
    press(browser, "Tab", "Tab", "ArrowLeft")  # past a link, to the tensors
    assert focused(browser) == "stages:hidden"
    press(browser, "Tab", "ArrowLeft")
    assert focused(browser) == "layers:0"
    assert shown(browser, "box-title").endswith("layer 1")
    press(browser, "Tab")
    assert focused(browser) == "plot"
    row, column = browser.ask("[view.row, view.column]")
    press(browser, "Home", "ArrowRight", "ArrowDown")
    assert browser.ask("[view.row, view.column]") == [row + 1, 1]
    assert "feature 1)" in shown(browser, "number-title")
    press(browser, "End", "ArrowRight")
    assert browser.ask("view.column") == browser.ask("config.d_ff - 1")
    browser.ask("document.querySelector('[data-key=\"switch:residual\"]').focus()")
    press(browser, " ")
    assert browser.ask("state.off") == ["residual"]
    assert focused(browser) == "switch:residual"
    press(browser, " ")
    browser.ask("document.querySelector('[data-key=\"off:encoder.0.self:0\"]').focus()")
    press(browser, "ArrowDown", "ArrowDown", "ArrowRight", " ")
    assert browser.ask("state.headsOff") == ["decoder.0.cross:1"]
    assert focused(browser) == "off:decoder.0.cross:1"
    browser.ask("byId('tree').querySelector('button').focus()")
    press(browser, "ArrowRight", "ArrowDown")
    assert focused(browser) == "node:1:1"
    assert shown(browser, "candidate").startswith("“") and browser.said == []


def test_lines_by_keyboard(browser, url):
    open_page(browser, state_of(url, drawing="lines", step=9))
    browser.ask("byId('q').querySelector('button').focus()")
    press(browser, *["ArrowDown"] * 8, "Enter")
    assert browser.ask("lines.pinned") == {"role": "q", "i": 8}
    got = browser.ask("[...byId('k').children].map(x => x.dataset.weight)")
    weights = browser.ask("[...view.rows[8]]")
    assert got == [f"{w:.2f}" if w >= 0.005 else "" for w in weights]
    press(browser, "ArrowRight")
    assert browser.ask("document.activeElement.closest('ol').id") == "k"
    press(browser, "Escape")
    assert browser.ask("lines.pinned") is None and browser.said == []


# --- the address --------------------------------------------------------------------------------------------------------------


def test_address_restores_the_state(browser, url):
    open_page(browser, url)
    type_sentence(browser, "My mouse & the goats = 100 % happy #1.")
    browser.ask("chooseBox('encoder.self')")
    browser.ask("""change({stage: "scaled", layer: 0, head: 3, row: 2, column: 5, step: 4,
        drawing: "matrix", off: ["causal", "scale"], headsOff: ["decoder.1.cross:2"],
        temperature: 1.5, beam: 3})""")
    settle(browser)
    address = browser.ask("location.href")
    assert browser.ask("byId('link').href") == address
    before = browser.ask("JSON.stringify([state, run.ids, byId('view').textContent])")
    open_page(browser, address)
    assert before == browser.ask(
        "JSON.stringify([state, run.ids, byId('view').textContent])"
    )
    assert browser.ask("byId('sentence').value") == browser.ask("state.text")
    browser.ask("location.hash = 'beam=2'")  # as by the browser's history
    settle(browser)
    assert browser.ask("[state.beam, state.text]") == [2, TIRED]
    assert browser.said == []


@pytest.mark.parametrize(
    "state",
    [
        {"box": "nowhere", "stage": "nothing", "layer": 99, "head": 99, "drawing": 3},
        {"row": 1e5, "column": 1e5, "step": 999, "beam": 99, "temperature": 99},
        {"row": -4, "layer": "NaN", "head": 1.5, "beam": 0, "temperature": 0},
        {"off": "everything,scale", "headsOff": "encoder.9.self:9,x", "seed": "x"},
        {"text": "", "constructor": 1, "__proto__": 2, "toString": 3},
        {"box": "constructor", "stage": "toString"},
    ],
    ids=str,
)
def test_address_that_is_wrong(browser, url, state):
    open_page(browser, state_of(url, **state))
    assert shown(browser, "box-title") and shown(browser, "result")
    assert browser.ask("state.beam >= 1 && state.beam <= 8 && state.temperature >= .1")
    assert browser.said == []


# --- odd input ----------------------------------------------------------------------------------------------------------------

ODD = {
    "": "The line is empty",
    "   ": "The line is empty",
    "Das Tier ist müde, weil es nicht schläft.": "looks like German",
    "word " * 200: "translates at most 64",
    "the animal " * 40: "translates at most 64",
    "The жук crossed the 街.": "“ж”, “у”, “к”, “街” did not occur in training",
    "The dog sleeps. The cat sees the house.": "trained on single sentences",
    "The zebra quickly ate the unicorn.": "“zebra”, “quickly”, “unicorn”",
    "</script><script>bad()</script>": "“<”, “/”, “>”, “(”, “)” did not occur",
    "🙂": "did not occur",
    "\ud800".encode("utf-16", "surrogatepass").decode("utf-16", "replace"): "“\ufffd”",
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


def test_sentences_of_the_corpus_get_no_remark(browser, url):
    "However they are typed."
    open_page(browser, url)
    lines = [s.en for s in HELD_OUT] + TYPED
    assert any("’" in line for line in TYPED)
    found = browser.ask(f"{json.dumps(lines)}.map(remarkOn)")
    assert [pair for pair in zip(lines, found, strict=True) if pair[1]] == []


def test_case_of_a_model_without_case_variants(browser, demo, tmp_path):
    "As the one of `make demo`: sentences of the corpus get no remark, others do."
    page = live_page(demo._replace(about=demo.about | {"case_variants": False}))
    (tmp_path / "live.html").write_text(page, "utf-8")
    open_page(browser, (tmp_path / "live.html").as_uri())
    for typed, wanted in (
        (str, 0),
        (str.lower, len(HELD_OUT)),
        (str.upper, len(HELD_OUT)),
    ):
        lines = [typed(s.en) for s in HELD_OUT]
        found = browser.ask(f"{json.dumps(lines)}.map(remarkOn)")
        assert sum(map(bool, found)) == wanted, typed
        assert ("Capital letters" in found[0]) == bool(wanted)


def test_typed_sentences_are_translated_as_by_the_package(browser, url):
    open_page(browser, url)
    found = browser.ask(f"""{json.dumps(TYPED)}.map(text =>
        textOf(generatedIds(searchTranslation(text, SWITCHES))))""")
    assert found == load(pretrained_run(Path("demo"))).translate(TYPED)


@pytest.mark.parametrize("line", ODD, ids=repr)
def test_odd_input_gets_one_line(browser, url, line):
    open_page(browser, url)
    type_sentence(browser, line)
    message = shown(browser, "message")
    assert ODD[line] in message and bool(message) == bool(ODD[line])
    if line.strip():
        assert browser.ask("state.text") == line and browser.ask("run.ids.length") > 0
    else:
        assert shown(browser, "result") == ES  # the last translation stays
    for box in ("encoder.tokens", "decoder.self", "encoder.feedForward"):
        browser.ask(f"chooseBox({box!r})")
    assert browser.ask("typeof bad") == "undefined" and browser.said == []


def test_random_text_never_fails(browser, url):
    rng = random.Random(0)
    open_page(browser, url)
    for _ in range(15):
        line = "".join(
            rng.choice(
                ["the", " ", "\t", "ß", "é", "-", "'", '"', "\u2028", "\u0301", "9"]
            )
            for _ in range(rng.randint(1, 40))
        )
        browser.ask(f"submit({json.dumps(line)})")
    assert browser.said == []


# --- switches -----------------------------------------------------------------------------------------------------------------


def weights(browser, path: str) -> torch.Tensor:
    got = browser.ask(f"(x => [x.shape, [...x.data]])(run.trace.get({path!r}))")
    return torch.tensor(got[1]).view(got[0])


def switch(browser, name: str) -> None:
    click(browser, f"[data-key='switch:{name}']")


def test_division_switched_off(browser, url):
    "The weights become those of scores that are √d_k times larger, and more concentrated."
    open_page(browser, state_of(url, step=0))
    scores = weights(browser, "encoder.0.self.scores")
    intact = weights(browser, "encoder.0.self.weights")
    switch(browser, "scale")
    changed = weights(browser, "encoder.0.self.weights")
    torch.testing.assert_close(changed, scores.softmax(-1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        intact, (scores / 32**0.5).softmax(-1), rtol=1e-4, atol=1e-5
    )
    assert changed.max(-1).values.mean() > intact.max(-1).values.mean() + 0.1
    box = "chooseBox('encoder.self'); change({stage: 'scaled'})"
    browser.ask(box)
    assert "division is switched off" in shown(browser, "box-text")
    largest = [
        weights(browser, f"{stack}.{layer}.{kind}.weights").amax(-1).flatten()
        for stack, kind in (
            ("encoder", "self"),
            ("decoder", "self"),
            ("decoder", "cross"),
        )
        for layer in range(2)
    ]
    measured = browser.ask("document.querySelector('.measured').textContent")
    assert f"is now {torch.cat(largest).mean():.2f} on average" in measured
    before = float(measured.split()[-1][:-1])
    assert before < torch.cat(largest).mean() - 0.05
    click(browser, "[data-key='action:Reset all']")
    assert "scores divided by" in shown(browser, "box-text")
    torch.testing.assert_close(weights(browser, "encoder.0.self.weights"), intact)
    assert browser.ask("state.off") == [] and browser.said == []


def test_mask_switched_off(browser, url):
    open_page(browser, state_of(url, step=6, box="decoder.self"))
    assert weights(browser, "decoder.0.self.weights").triu(1).sum() == 0
    switch(browser, "causal")
    assert browser.ask("[run.step, run.tgtIds.length]") == [6, 6]
    later = weights(browser, "decoder.0.self.weights").triu(1)
    assert later.shape[-1] == 6 and (later.sum((1, 2)) > 0).all()
    both = [later, weights(browser, "decoder.1.self.weights").triu(1)]
    mean = torch.stack(both).sum(-1).mean()
    measured = browser.ask("document.querySelectorAll('.measured')[1].textContent")
    assert f"is now {mean:.2f} on average" in measured
    assert browser.said == []


def test_shuffled_words_without_positions(browser, url):
    "The memory has the same rows in another order, and the translation is the same; with positions both change."
    open_page(browser, url)
    switch(browser, "positions")
    translation, memory = shown(browser, "result"), browser.ask("[...run.memory.data]")
    click(browser, "[data-key='action:Shuffle the words']")
    sentence = browser.ask("state.text")
    assert sentence != TIRED and sorted(sentence.split()) == sorted(TIRED.split())
    assert shown(browser, "result") == translation
    assert "same rows in another order" in shown(browser, "comparison")
    before = f"Before: {translation}Shuffled: {translation}"
    assert shown(browser, "comparison").startswith(before)
    shuffled = browser.ask("[...run.memory.data]")
    assert shuffled != memory
    assert sorted(shuffled) == pytest.approx(sorted(memory), abs=1e-4)
    switch(browser, "positions")
    assert "has changed" in shown(browser, "comparison")
    assert shown(browser, "comparison").startswith(f"Before: {ES}Shuffled: ")
    click(browser, "[data-key='action:Restore the order']")
    assert browser.ask("state.text") == TIRED and shown(browser, "result") == ES
    assert browser.said == []


def test_residual_connections_switched_off(browser, url):
    open_page(browser, url)
    switch(browser, "residual")
    torch.testing.assert_close(
        weights(browser, "encoder.0.self.residual"),
        weights(browser, "encoder.0.self.output"),
    )
    assert shown(browser, "result") != ES and ES in shown(browser, "effect")
    marks = browser.ask("document.querySelectorAll('#effect mark').length")
    assert marks > 0 and browser.said == []


def test_head_switched_off(browser, url):
    "Its mixed values are 0, and what the trial of each head announced is what happens."
    open_page(browser, url)
    click(browser, "[data-key='off:encoder.1.self:2']")
    mixed = weights(browser, "encoder.1.self.mixed")
    assert (mixed[2] == 0).all() and (mixed[[0, 1, 3]] != 0).any()
    browser.ask(
        "chooseBox('encoder.self'); change({layer: 1, head: 2, stage: 'mixed'})"
    )
    assert "switched off" in shown(browser, "arithmetic")
    off = "[...byId('heads').querySelectorAll('.off')].map(x => x.ariaLabel)"
    assert browser.ask(off) == ["layer 2, head 3, switched off"]
    click(browser, "[data-key='action:Reset all']")
    browser.ask("change({step: 0})")
    try_each_head(browser)
    found = browser.ask(
        "trials.found.filter(x => x.isChanged).map(x => [x.name, textOf(x.ids)])"
    )
    assert 0 < len(found) < 24
    assert shown(browser, "findings").startswith(f"{len(found)} of 24 heads")
    matters = "[...document.querySelectorAll('.matters')].map(x => x.dataset.key)"
    assert browser.ask(matters) == [f"off:{name}" for name, _ in found]
    title = browser.ask(f"headTitle({found[-1][0]!r})")
    click(browser, f"#findings [data-key='action:{title}']")  # leads to the head
    stack, layer, rest = found[-1][0].split(".")
    kind, head = rest.split(":")
    assert browser.ask("[state.box, state.layer, state.head, state.stage]") == [
        f"{stack}.{kind}",
        int(layer),
        int(head),
        "weights",
    ]
    changed = browser.ask(f"shownToken(run.ids[{browser.ask('run.step')} - 1])")
    assert (
        changed in ES.replace(".", "").split() and changed not in found[-1][1].split()
    )
    for name, translation in found:
        browser.ask(f"change({{headsOff: [{name!r}]}})")
        assert browser.ask("textOf(run.ids)") == translation != ES
    assert browser.said == []


def try_each_head(browser) -> None:
    click(browser, "#try")
    browser.ask("""new Promise(done => { const wait = () =>
        trials.left ? setTimeout(wait, 20) : done(); wait(); })""")


def test_trials_list_the_probability_of_the_token(browser, url):
    "Of the pronoun, largest change first, as the page shows it when the head is off; heads that are off stay off."
    open_page(browser, url)
    first = "decoder.1.self:2"
    click(browser, f"[data-key='off:{first}']")
    assert shown(browser, "next").startswith("es")
    try_each_head(browser)
    found = browser.ask("trials.found.map(x => [x.name, x.probability, x.isChanged])")
    base = browser.ask("trials.probability")
    assert len(found) == 23 and first not in [name for name, *_ in found]
    n = sum(is_changed for *_, is_changed in found)
    verb = "changes" if n == 1 else "change"
    assert shown(browser, "findings").startswith(f"{n} of 23 heads {verb} this")
    found.sort(key=lambda one: -abs(one[1] - base))
    listed = browser.ask("""[...document.querySelectorAll("#findings .value")].map(
        x => [x.previousSibling.textContent, x.textContent.trim()])""")
    expected = [x for x in found if x[2] or abs(x[1] - base) >= 0.01]
    assert len(expected) > 1
    for (name, p, _), (title, text) in zip(expected, listed, strict=True):
        assert title == browser.ask(f"headTitle({name!r})")
        assert text == f"p(es) {base:.2f} → {p:.2f}"
    name, p, _ = found[0]
    browser.ask(f"change({{headsOff: [{first!r}, {name!r}], step: 9}})")
    es = browser.ask("trials.ids[8]")
    prefix = "run.tgtIds.every((id, i) => !i || id === trials.ids[i - 1])"
    assert browser.ask(prefix)
    assert browser.ask(f"nextProbabilities()[{es}]") == pytest.approx(p, abs=1e-5)
    assert shown(browser, "findings") == "" and browser.said == []


def test_changes_are_named_beside_the_translation(browser, url):
    open_page(browser, url)
    changes = "byId('changes').checkVisibility()"
    assert shown(browser, "effect") == f"All parts on:{ES}" and not browser.ask(changes)
    click(browser, "[data-key='off:encoder.1.self:0']")
    text = "Parts off: encoder head 2.1 · Reset all"
    assert shown(browser, "changes") == text and browser.ask(changes)
    browser.ask("change({temperature: 3})")
    assert "head 2.1 · Temperature 3 · " in shown(browser, "changes")
    click(browser, "#draw")
    assert "head 2.1 · Sampled at temperature 3 · " in shown(browser, "changes")
    lines = "[...byId('effect').querySelectorAll('p')].map(x => x.textContent.trim())"
    intact, now = browser.ask(lines)
    assert intact == f"All parts on:{ES}"
    assert now.startswith("Sampled at temperature 3:")
    click(browser, "[data-key='action:Reset all']")
    assert browser.ask("[state.headsOff, state.temperature, state.seed]") == [[], 1, 0]
    assert shown(browser, "effect") == f"All parts on:{ES}" and not browser.ask(changes)
    assert browser.said == []


@pytest.mark.parametrize("part", ["scale", "causal", "positions", "residual"])
def test_differences_of_the_translations(browser, url, part):
    "Without what is struck out it is the new translation, without what is marked the one with all parts on."
    open_page(browser, state_of(url, off=part))
    words = """(tag => {
        const line = byId("effect").querySelectorAll("p")[1].lastChild.cloneNode(true);
        line.querySelectorAll(tag).forEach(each => each.remove());
        return line.textContent.split(/\\s+/).filter(Boolean).join(" ");
    })"""
    assert browser.ask(f"{words}('del')") == shown(browser, "result").strip()
    assert browser.ask(f"{words}('mark')") == ES
    merged = browser.ask("differences(['a', 'x', 'c'], ['a', 'b', 'c', 'd'])")
    assert sorted(merged) == sorted(
        [["same", "a"], ["mark", "x"], ["del", "b"], ["same", "c"], ["del", "d"]]
    )
    assert browser.said == []


def test_a_switch_keeps_the_step(browser, url):
    "Also over a translation that is shorter."
    open_page(browser, url)
    assert browser.ask("run.step") == 9
    for action in (
        "[data-key='switch:scale']",
        "[data-key='off:decoder.0.self:1']",
        "#draw",
        "#search",
    ):
        click(browser, action)
        assert browser.ask("run.step === Math.min(9, run.ids.length)")
    browser.ask("change({temperature: 2}); change({beam: 2})")
    click(browser, "[data-key='action:Reset all']")
    browser.ask("change({step: 12}); change({text: 'The dog sleeps.'})")
    assert browser.ask("run.step === run.ids.length && run.step < 12")
    browser.ask(f"change({{text: {TIRED!r}}})")
    assert browser.ask("run.step") == 12 and browser.said == []


def test_rows_of_the_decoder_say_what_they_predict(browser, url):
    open_page(browser, url)
    assert shown(browser, "row-text") == "Row weil → predicts es"
    options = browser.ask("[...byId('row').options].map(x => x.textContent)")
    assert options[0] == "0 BOS → Das" and options[-1] == "8 weil → es"
    browser.ask("chooseNumber(1, 1)")
    assert shown(browser, "row-text") == "Row Das → predicts Tier"
    browser.ask("chooseBox('encoder.self')")
    assert shown(browser, "row-text") == "" and browser.said == []


def test_temperature_and_sampling(browser, url):
    open_page(browser, url)
    entropy = "sum(nextProbabilities().map(p => p > 0 ? -p * Math.log(p) : 0))"
    found = []
    for temperature in (0.5, 1, 2):
        browser.ask(f"change({{temperature: {temperature}, step: 9}})")
        found.append(browser.ask(entropy))
        assert shown(browser, "next").startswith("es")
    assert found == sorted(found)
    click(browser, "#draw")
    drawn = [browser.ask("[...run.ids]")]
    assert shown(browser, "candidate") == "Sampling has no tree."
    settle(browser)
    address = browser.ask("location.href")
    click(browser, "#draw")
    drawn.append(browser.ask("[...run.ids]"))
    assert drawn[0] != drawn[1]
    open_page(browser, address)
    assert browser.ask("[...run.ids]") == drawn[0]
    click(browser, "#search")
    assert browser.ask("state.seed") == 0 and browser.said == []


# --- beam search --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 2, 4, 8])
def test_tree_of_the_beam(browser, url, beam):
    "A column per step, as many kept as the beam is wide, and a bold path that reads as the translation."
    open_page(browser, state_of(url, beam=beam))
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
    paths = browser.ask("byId('tree').querySelectorAll('path').length")
    assert paths == len(nodes)
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
    text = shown(browser, "candidate")
    assert f"{tree[-1][-1]['why'].capitalize()}: " in text
    assert browser.said == []


def test_path_of_a_hypothesis(browser, url):
    "Each candidate shows the log-probability of its hypothesis; a row of the table or a candidate marks its path."
    open_page(browser, url)
    totals = browser.ask("""[...byId("tree").querySelectorAll("button")].map(
        b => b.lastChild.textContent.replace("−", "-"))""")
    tree = browser.ask("run.search.tree")
    sums = [candidate["logProb"] for step in tree for candidate in step]
    assert list(map(float, totals)) == pytest.approx(sums, abs=0.006)
    for candidates in tree:
        of_step = [candidate["logProb"] for candidate in candidates]
        assert of_step == sorted(of_step, reverse=True)
    assert "log-probability of the whole hypothesis" in shown(browser, "beam-text")
    click(browser, "#hypotheses button", 1)
    path = """[...byId("tree").querySelectorAll("button.followed")].map(
        b => b.firstChild.textContent)"""
    ids = "run.search.hypotheses[1].ids"
    assert browser.ask(path) == [*browser.ask(f"shownTokens({ids})"), "EOS"]
    pressed = """[...document.querySelectorAll("#tree [aria-pressed=true], "
        + "#hypotheses [aria-pressed=true]")].map(b => b.dataset.key)"""
    end = browser.ask("(x => `${x.step}:${x.index}`)(run.search.hypotheses[1].end)")
    assert browser.ask(pressed) == [f"node:{end}", f"hypothesis:{end}"]
    edges = "byId('tree').querySelectorAll('path.followed').length"
    assert browser.ask(edges) == len(browser.ask(path))
    click(browser, "#tree button", 1)
    assert browser.ask(pressed) == ["node:0:1"] and browser.ask(edges) == 1
    assert browser.said == []


# --- looks --------------------------------------------------------------------------------------------------------------------

LOOKS = {
    "heads off": "change({headsOff: ['encoder.1.self:0'], temperature: 3, seed: 2})",
    "a path": "followPath(run.search.hypotheses[1].end)",
    "at the start": "0",
    "lines": "change({drawing: 'lines'})",
    "hidden units": "chooseBox('encoder.feedForward'); change({stage: 'hidden'})",
    "masked": "chooseBox('decoder.self'); change({stage: 'masked'})",
    "probabilities": "chooseBox('decoder.softmax')",
    "tokens": "chooseBox('encoder.tokens')",
    "switched off": "change({off: ['residual'], headsOff: ['decoder.1.cross:0']})",
    "a long sentence": f"submit({'the animal and ' * 20!r}); chooseBox('encoder.self')",
    "a wide beam": "change({beam: 8}); byId('tree').querySelector('button').focus()",
    "shuffled": "change({off: ['positions']}); shuffleWords()",
    "a remark": "submit('The zebra sings.')",
}


@pytest.mark.parametrize("look", LOOKS)
def test_on_a_screen_and_on_a_phone(browser, url, look):
    "Contrast of 4.5 in both themes, nothing to scroll sideways at 320 and 390 px, nothing too small for a finger."
    open_page(browser, url)
    browser.ask(LOOKS[look])
    browser.ask(CHECKS)
    for scheme in ("light", "dark"):
        browser.look(1280, scheme)
        assert browser.ask("page.faint().concat(page.wide())") == [], scheme
    for width in (320, 390):
        browser.look(width, "light")
        assert browser.ask("page.wide()") == [], width
    small = browser.ask("""[...document.querySelectorAll(
        "button, select, textarea, input[type=range], .choices span, [role=button]")]
        .filter(e => e.checkVisibility()).map(e => [e.getBoundingClientRect(), e])
        .filter(([{width, height}]) => Math.min(width, height) < 20)
        .map(([_, e]) => e.outerHTML)""")
    assert small == [] and browser.said == []


MARKED = {  # what is marked, and another of its kind
    "#stages input:checked + span": "#stages input:not(:checked) + span",
    "#heads [aria-pressed=true]": "#heads [aria-pressed=false]",
    "#translation [aria-pressed=true]": "#translation [aria-pressed=false]",
    "#head-switches .matters": "#head-switches [aria-pressed=false]:not(.matters)",
    "#head-switches [aria-pressed=true]": "#head-switches [aria-pressed=false]",
    "#tree .best": "#tree .kept:not(.best)",
    "#next .bar": "#next",
    "#arithmetic .bar": "#arithmetic",
    "#effect mark": "#effect p",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colours(browser, url, scheme):
    "Where the system replaces the colours, what is marked still differs from the rest."
    open_page(browser, url)
    forced = {"name": "forced-colors", "value": "active"}
    dark = {"name": "prefers-color-scheme", "value": scheme}
    browser.call("Emulation.setEmulatedMedia", features=[forced, dark])
    browser.ask("change({off: ['residual'], headsOff: ['decoder.1.cross:0'], beam: 2})")
    browser.ask("""trials = {key: trialKey(), left: 0, ids: run.ids, step: run.step,
        probability: 1, found: [{name: "encoder.0.self:1", isChanged: true, ids: run.ids,
            probability: 0}]}; drawBreak()""")
    look = """selector => { const style = getComputedStyle(document.querySelector(selector));
        return ["backgroundColor", "borderTopColor", "borderTopStyle", "boxShadow",
            "textDecorationLine"].map(name => style[name]).join(" "); }"""
    same = [
        marked
        for marked, other in MARKED.items()
        if browser.ask(f"({look})({marked!r})") == browser.ask(f"({look})({other!r})")
    ]
    assert same == [] and browser.ask("matchMedia('(forced-colors: active)').matches")
    plain = "getComputedStyle(document.querySelector('form .primary')).borderTopStyle"
    assert browser.ask(plain) == "solid" and browser.said == []
    browser.look(1280, "light")


def test_tap_on_a_phone(browser, url):
    open_page(browser, url, width=390)
    tap(browser, "[data-box='encoder.feedForward']")
    assert shown(browser, "box-title").startswith("Feed-forward")
    tap(browser, "#translation button", 2)
    assert browser.ask("run.step") == 3
    tap(browser, "[data-key='switch:scale']")
    assert browser.ask("state.off") == ["scale"] and browser.said == []


SITES = {
    "preview": (
        "<html data-theme='{}'><body>",
        "document.documentElement.dataset.theme =",
    ),
    "quarto": (
        "<html><body class='quarto-{}'>",
        "document.body.className = 'quarto-' +",
    ),
}


@pytest.mark.parametrize("site", SITES)
def test_page_in_a_frame_follows_the_site(browser, tmp_path, text, site):
    start, switched = SITES[site]
    page = text.replace("&", "&amp;").replace('"', "&quot;")
    path = tmp_path / "site.html"
    path.write_text(
        f'<!doctype html>{start.format("dark")}<iframe srcdoc="{page}"></iframe>',
        "utf-8",
    )
    open_page(browser, path.as_uri(), scheme="light")
    inner = "document.querySelector('iframe').contentWindow"
    ground = f"getComputedStyle({inner}.document.body).backgroundColor"
    pixel = f"""[...{inner}.document.querySelector('canvas').getContext('2d')
        .getImageData(0, 0, 99, 99).data].reduce((a, b) => a + b)"""
    dark = browser.ask(ground), browser.ask(pixel)
    browser.ask(f"{switched} 'light'; new Promise(done => setTimeout(done, 100))")
    light = browser.ask(ground), browser.ask(pixel)
    assert dark[0] == "rgb(18, 23, 29)" and light[0] == "rgb(255, 255, 255)"
    assert dark[1] != light[1]
    link = browser.ask(f"{inner}.document.getElementById('link').href")
    assert re.fullmatch(r"https://.*/live_page\.html#.*step=9.*", link)
    assert f"{ES}" in browser.ask(
        f"{inner}.document.getElementById('result').textContent"
    )
    assert browser.said == []
