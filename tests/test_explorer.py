"The page of attention maps: as text, and in a browser whose network is cut, by real pointer, finger and keys."

import json
import re

import pytest
import torch
from browser import Browser, click, hover, leave, press, tap
from conftest import ROOT

from annotated_transformer.cli.main import main
from annotated_transformer.data.grammar import ANIMAL_TIRED
from annotated_transformer.show.explorer import (
    AttentionExample,
    attention_page,
)

CHECKS = (ROOT / "tests/page.js").read_text(encoding="utf-8")

RUDE = ["</script>", "<script>bad()</script>", "<!--", "]]>", "&lt;", '"', "'", "\\"]
RUDE += ["\u2028", "\x00", "\ud800", "", " ", "${x}", "$script", "$$", "🙂", "שלום"]
LONG = ["Donaudampfschifffahrtsgesellschaftskapitän"] * 3 + RUDE[:3], ["<s>", "b"]
ANIMAL = (
    "The animal did n't cross the street .".split(),
    "<s> Das Tier überquerte die Straße nicht .".split(),
)


def drawn(src: list[str], tgt: list[str]) -> AttentionExample:
    "Random maps of two layers with four heads; the decoder's are causal."
    s, t = len(src), len(tgt)
    shapes = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
    scores = {kind: 2 * torch.randn(2, 4, *shape) for kind, shape in shapes.items()}
    scores["decoder"].masked_fill_(torch.ones(t, t).triu(1).bool(), float("-inf"))
    maps = {kind: x.softmax(-1) for kind, x in scores.items()}
    return AttentionExample(src, tgt, maps)


# --- as text


def test_rude_tokens_stay_text():
    maps = {"cross": torch.eye(len(RUDE))[None, None]}
    page = attention_page([AttentionExample(RUDE, RUDE, maps)])
    (data,) = json.loads(page.split('id="data">')[1].split("</script>")[0])
    assert data["src"] == RUDE and "<script>bad" not in page and "<!--" not in page


def test_what_no_page_can_show_is_refused():
    "An example without maps, with another kind, or with maps that do not fit: one line says which."
    maps = {"cross": torch.full((1, 1, 2, 3), 1 / 3)}
    example = AttentionExample(list("abc"), list("de"), maps)
    attention_page([example])
    for message, changes in (
        ("known are encoder, decoder, cross", {"maps": {"both": maps["cross"]}}),
        ("its tokens require (n_layers, h, 2, 2)", {"src_tokens": list("ab")}),
        ("has no maps", {"maps": {}}),
        ("not between 0 and 1", {"maps": {"cross": -maps["cross"]}}),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            attention_page([example._replace(**changes)])
    with pytest.raises(ValueError, match="at least one sentence pair"):
        attention_page([])


# --- in a browser


@pytest.fixture
def page(browser, url) -> Browser:
    "The browser, in which the page has just been opened."
    browser.open("about:blank")
    browser.open(url)
    return browser


@pytest.fixture(scope="module")
def examples() -> list[AttentionExample]:
    torch.manual_seed(0)
    return [drawn(*ANIMAL), drawn(*LONG)]


@pytest.fixture(scope="module")
def url(examples, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "a.html"
    path.write_text(attention_page(examples, title="A & B"), encoding="utf-8")
    return path.as_uri()


def rounded(weights: torch.Tensor) -> list:
    return weights.double().round(decimals=3).tolist()


def visible(row: list[float], query: int, head: int = 0) -> list[list]:
    "The curves of one query for a head's row of weights."
    return [[head, query, k, w] for k, w in enumerate(row) if w >= 0.005]


def seen(browser) -> dict:
    "The weights that the page shows: as curves, bars and numbers, and in the description."
    return browser.ask("""(() => {
        const list = side => [...document.querySelectorAll(`#${side} li`)];
        const shade = i => +getComputedStyle(i).opacity;
        const of = side => ({numbers: list(side).map(li => li.dataset.weight),
            shades: list(side).map(li => [...li.querySelectorAll("i")].map(shade))});
        return {q: of("q"), k: of("k"), selection: byId("selection").textContent, description: byId("description").textContent,
            curves: [...document.querySelectorAll("#curves path")].filter(p => p.checkVisibility()).map(p =>
                [+p.dataset.head, +p.dataset.q, +p.dataset.k, +p.getAttribute("stroke-opacity")])}; })()""")


def test_hovering_shows_the_weights_of_the_map(page, examples):
    "Layer 2, head 3, the pointer on a word: everything that is shown is the map's row."
    click(page, "#heads button", 1 * 4 + 2)
    hover(page, "#q button", 1)
    weights = examples[0].maps["encoder"][1, 2]
    got, row = seen(page), rounded(weights[1])
    assert got["selection"] == "Encoder, layer 2, head 3"
    assert got["curves"] == visible(row, 1)
    assert got["k"]["numbers"] == [f"{w:.2f}" if w >= 0.005 else "" for w in row]
    # the style's arithmetic is in float32
    assert got["k"]["shades"] == [[pytest.approx(0.4 * w, abs=1e-6)] for w in row]
    assert got["q"] == {"numbers": [""] * 8, "shades": [[]] * 8}
    words, top = examples[0].src_tokens, sorted(range(8), key=lambda k: -row[k])[:5]
    said = " ".join(f"{words[k]} {row[k]:.2f}" for k in top if row[k] >= 0.01)
    assert got["description"].split() == f"animal attends to {said}".split()
    leave(page)
    everything = [w for row in rounded(weights) for w in row if w >= 0.005]
    assert len(seen(page)["curves"]) == len(everything)
    assert page.ask("performance.getEntriesByType('resource').length") == 0


def test_all_heads_of_all_layers_at_once(page, examples):
    "A small picture for each, whose pixels are the map; a click goes to the head."
    cells = page.ask("""[...document.querySelectorAll("#heads button")].map(b => { const c = b.firstChild;
        const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        return [b.getAttribute("aria-label"), c.width, c.height, [...data].filter((_, i) => i % 4 === 3)]; })""")
    names = [f"layer {i + 1}, head {j + 1}" for i in range(2) for j in range(4)]
    assert [cell[0] for cell in cells] == names
    for cell, weights in zip(cells, examples[0].maps["encoder"].flatten(0, 1)):
        assert cell[1:3] == [8, 8]
        # the weight's 3 decimals, and a whole number of 255
        assert cell[3] == pytest.approx((255 * weights.flatten()).tolist(), abs=0.7)
    pressed = """[...document.querySelectorAll("#heads button")].flatMap(
        (b, i) => b.ariaPressed === "true" ? [i] : [])"""
    for i in (5, 0, 7):
        click(page, "#heads button", i)
        selection = f"Encoder, layer {i // 4 + 1}, head {i % 4 + 1}"
        assert seen(page)["selection"] == selection and page.ask(pressed) == [i]
        menus = [str(i // 4), str(i % 4)]
        assert page.ask("[byId('layer').value, byId('head').value]") == menus


def test_heads_compared(page, examples):
    "Several heads, of different layers too: each has its lines, its bars and its line of numbers; never more than five."
    click(page, "#compare")
    for i in (6, 3):
        click(page, "#heads button", i)
    hover(page, "#q button", 1)
    got, maps = seen(page), examples[0].maps["encoder"]
    rows = [rounded(maps[i, j, 1]) for i, j in ((0, 0), (1, 2), (0, 3))]
    curves = [visible(row, 1, head) for head, row in enumerate(rows)]
    assert got["curves"] == sum(curves, []) and got["selection"] == "Encoder, 3 heads"
    shades = [[pytest.approx(0.4 * w, abs=1e-6) for w in key] for key in zip(*rows)]
    assert got["k"]["shades"] == shades
    click(page, "#heads button", 6)  # chosen again: let go
    for i in (1, 2, 4, 5):
        click(page, "#heads button", i)
    assert page.ask("state.heads.length") == 5
    click(page, "#compare")
    assert seen(page)["selection"] == "Encoder, layer 2, head 2"


def test_kind_layer_and_sentence(page, examples):
    words = "[...document.querySelectorAll('#q button')].map(b => b.textContent)"
    click(page, "#kind span", 2)
    page.ask("byId('layer').focus()")
    press(page, "ArrowDown")
    assert page.ask(words) == examples[0].tgt_tokens
    assert seen(page)["selection"] == "Cross, layer 2, head 1"
    weights = rounded(examples[0].maps["cross"][1, 0])
    assert seen(page)["curves"][0] == [0, 0, 0, weights[0][0]]
    page.ask("byId('sentence').focus()")
    press(page, "ArrowDown")
    click(page, "#kind span", 0)
    assert page.ask(words) == LONG[0]
    assert page.ask("[typeof bad, document.title]") == ["undefined", "A & B"]


def test_page_opens_with_the_head_that_follows_it(browser, tmp_path, monkeypatch):
    "With its query pinned; without an it, with the first head and no token."
    monkeypatch.chdir(tmp_path)
    for line, selection, description in (
        (ANIMAL_TIRED.en, "Cross, layer ", "weil attends to animal "),
        ("The dog is tired.", "Encoder, layer 1, head 1", "Each source token attends"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(["attention", "demo", line, "--out", "a.html"])
        browser.open((tmp_path / "a.html").as_uri())
        assert seen(browser)["selection"].startswith(selection)
        assert seen(browser)["description"].startswith(description)


def test_by_keyboard_alone(page):
    "Tab from part to part, arrows within; a word is held by Return. A part is one stop, however many heads it has."
    focused = "(e => e.id || e.name || e.ariaLabel || e.textContent)"
    where = lambda: page.ask(f"{focused}(document.activeElement)")
    stops = []
    for _ in range(8):
        press(page, "Tab")
        stops.append(where())
    parts = ["sentence", "kind", "layer", "head", "layer 1, head 1", "compare"]
    assert stops == [*parts, "The", "The"]
    says = lambda: seen(page)["description"]
    press(page, "ArrowLeft", "ArrowDown")
    assert where() == "animal" and says().startswith("animal attends to ")
    press(page, "Enter", "ArrowRight", "ArrowDown")
    assert where() == "did" and says().startswith("did is attended to by ")
    page.ask("document.activeElement.blur()")
    assert says().startswith("animal attends to ")  # held
    page.ask("document.querySelector('#heads button').focus()")
    press(page, "ArrowDown", "ArrowRight", "ArrowRight", "Enter")
    assert seen(page)["selection"] == "Encoder, layer 2, head 3"
    assert where() == "layer 2, head 3"
    nameless = page.ask("""[...document.querySelectorAll("button, select, input")]
        .filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length""")
    assert nameless == 0


STATE = """[state.sentence, state.kind, state.heads.map(({layer, head}) => `${layer}.${head}`).join(),
    lines.pinned && lines.pinned.role + lines.pinned.i, byId("compare").checked]"""


def test_address_restores_the_state(page, url):
    wait = "new Promise(done => setTimeout(done, 300))"
    page.ask(wait)
    assert page.ask("location.href") == url  # as it opens, nothing is written
    page.ask("selectSentence(1); selectKind('decoder'); byId('compare').click()")
    page.ask("selectHead(1, 2); selectHead(0, 3)")
    page.ask("byId('k').querySelectorAll('button')[1].click()")
    page.ask(wait)
    before, address = page.ask(STATE), page.ask("location.href")
    assert before == [1, "decoder", "0.0,1.2,0.3", "k1", True]
    page.open("about:blank")
    page.open(address)
    assert page.ask(STATE) == before
    assert page.ask("byId('sentence').value") == "1"
    page.ask("location.hash = 'kind=cross&heads=1.1'")  # as by the browser's history
    page.ask(wait)
    assert page.ask(STATE) == [0, "cross", "1.1", None, False]
    assert seen(page)["selection"] == "Cross, layer 2, head 2"


@pytest.mark.parametrize(
    "sentence, scheme, width, ground",
    [(0, "light", 390, "rgb(255, 255, 255)"), (1, "dark", 320, "rgb(18, 23, 29)")],
)
def test_on_a_phone(browser, url, sentence, scheme, width, ground):
    "390 and 320 pixels: nothing to scroll sideways, nothing too small for a finger; a tap holds a word; the reader's scheme."
    browser.open(url, width=width, scheme=scheme)
    browser.ask(f"selectSentence({sentence})")
    assert browser.ask("document.documentElement.scrollWidth") == width
    tap(browser, "#heads button", 5)
    bottom = "byId('details').getBoundingClientRect().bottom"
    assert browser.ask(f"{bottom} < innerHeight")  # it came into sight
    tap(browser, "#q button", 1)
    assert "attends to" in seen(browser)["description"]
    assert {q for _, q, _, _ in seen(browser)["curves"]} == {1}
    small = browser.ask("""[...document.querySelectorAll("button, select, .choices span")].filter(e =>
        Math.min(e.offsetHeight, e.offsetWidth) < 24 || e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML)""")
    assert small == [] and browser.ask("document.documentElement.scrollWidth") == width
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == ground
    assert browser.ask(CHECKS + "; page.faint()") == []  # contrast of 4.5


def test_browser_refuses_what_is_not_in_the_page(offline, url):
    "The Content-Security-Policy forbids requests, even those of a script in the page."
    offline.open(url)
    got = offline.ask("fetch('http://127.0.0.1:9/').catch(error => error.message)")
    assert got == "Failed to fetch"
    assert any("Content Security Policy" in line for line in offline.said)
