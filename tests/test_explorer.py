"The page of attention maps: as text, and in a browser whose network is cut, by real pointer, finger and keys."

import json
import re

import pytest
import torch
from browser import Browser, declarations, page_files
from conftest import ROOT
from test_visualize import contrast

from annotated_transformer.cli.main import main
from annotated_transformer.data.grammar import ANIMAL_TIRED, ANIMAL_WIDE
from annotated_transformer.show.explorer import (
    AttentionExample,
    attention_page,
    display_tokens,
)

PAGES = ROOT / "annotated_transformer/show/pages"

RUDE = [
    "</script>",
    "<script>bad()</script>",
    "<!--",
    "]]>",
    "&lt;",
    '"',
    "'",
    "\\",
    "\u2028",
    "\x00",
    "\ud800",
    "",
    " ",
    "${x}",
    "$script",
    "$$",
    "🙂",
    "שלום",
]
ANIMAL = (
    "The animal did n't cross the street .".split(),
    "<s> Das Tier überquerte die Straße nicht .".split(),
)
LONG = ["Donaudampfschifffahrtsgesellschaftskapitän"] * 3 + RUDE[:3], ["<s>", "b"]


def data_of(page: str) -> list:
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def drawn(
    n_layers: int, n_heads: int, src: list[str], tgt: list[str]
) -> AttentionExample:
    "Random maps; the decoder's are causal."
    s, t = len(src), len(tgt)
    scores = {
        kind: 2 * torch.randn(n_layers, n_heads, *shape)
        for kind, shape in (("encoder", (s, s)), ("decoder", (t, t)), ("cross", (t, s)))
    }
    scores["decoder"].masked_fill_(torch.ones(t, t).triu(1).bool(), float("-inf"))
    return AttentionExample(
        src, tgt, {kind: x.softmax(-1) for kind, x in scores.items()}
    )


# --- as text ------------------------------------------------------------------------------------------------------------------


def mixed(over: str, under: str, opacity: float) -> str:
    return "#" + "".join(
        f"{round(int(over[i : i + 2], 16) * opacity + int(under[i : i + 2], 16) * (1 - opacity)):02x}"
        for i in (1, 3, 5)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_contrast(scheme):
    common = (PAGES / "common.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", common)
    colour = {name: two[scheme == "dark"] for name, *two in pairs}
    style = (PAGES / "lines.css").read_text(encoding="utf-8")
    opacity = re.search(r"opacity: calc\(var\(--weight, 0\) \* ([\d.]+)\)", style)
    strongest = float(opacity[1])
    heads = [colour[f"head{i}"] for i in range(5)]
    pairs = [
        (text, ground) for text in ("ink", "muted") for ground in ("paper", "panel")
    ] + [("paper", "head0")]
    for text, ground in pairs:
        assert contrast(colour[text], colour[ground]) >= 4.5, (text, ground)
    for head in heads:
        assert (
            contrast(colour["ink"], mixed(head, colour["paper"], strongest)) >= 4.5
        ), head
        assert (
            contrast(head, colour["paper"]) >= 4.5
            and contrast(head, colour["panel"]) >= 3
        ), head
    assert contrast(colour["edge"], colour["paper"]) >= 3  # the frame of a control


def test_rude_tokens_stay_text():
    n = len(RUDE)
    page = attention_page(
        [AttentionExample(RUDE, RUDE, {"cross": torch.eye(n)[None, None]})],
        title='"><script>bad()</script>',
    )
    assert data_of(page)[0]["src"] == RUDE
    assert (
        "<script>bad" not in page
        and page.count("<script") == 2
        and page.count("</script") == 2
    )
    assert "<!--" not in page


def test_page_names_no_other_host():
    page = attention_page([AttentionExample(["a"], ["b"], {"cross": [[[[1.0]]]]})])
    assert not re.search(
        r"//\w|@import|url\(|<link|<img|\bsrc=|\bhref=", re.sub(r"// .*", "", page)
    )
    assert "default-src 'none'" in page and '<html lang="en">' in page


def test_weights_are_rounded():
    page = attention_page(
        [
            AttentionExample(
                ["a", "b"], ["c"], {"cross": torch.tensor([[[[1 / 3, 2 / 3]]]])}
            )
        ]
    )
    assert data_of(page)[0]["maps"]["cross"] == [[[[0.333, 0.667]]]]


@pytest.mark.parametrize("piece", ["", "▁", "▁▁", "▁a", "a", ".", "<0xE2>", "</s>"])
def test_every_piece_is_shown(piece):
    assert display_tokens(["▁The", piece])[1] if piece else True


def test_special_tokens_have_the_names_of_the_live_page():
    assert display_tokens(["<s>", "▁Das", "Tier", "</s>"]) == [
        "BOS",
        "Das",
        "-Tier",
        "EOS",
    ]


# --- in a browser -------------------------------------------------------------------------------------------------------------


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
def examples() -> list[AttentionExample]:
    torch.manual_seed(0)
    return [drawn(2, 4, *ANIMAL), drawn(2, 4, *LONG)]


@pytest.fixture(scope="module")
def url(examples, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("page") / "a.html"
    path.write_text(attention_page(examples, title="A & B"), encoding="utf-8")
    return path.as_uri()


def middle(browser: Browser, selector: str, i: int = 0) -> dict[str, float]:
    "Where on the screen the i-th such element is, once it was scrolled into sight."
    return browser.ask(f"""(() => {{ const e = document.querySelectorAll({json.dumps(selector)})[{i}];
        e.scrollIntoView({{block: "center"}});
        const box = e.getBoundingClientRect();
        return {{x: box.x + box.width / 2, y: box.y + box.height / 2}}; }})()""")


def hover(browser, selector, i=0):
    browser.call(
        "Input.dispatchMouseEvent", type="mouseMoved", **middle(browser, selector, i)
    )


def leave(browser):
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)


def click(browser, selector, i=0):
    at = middle(browser, selector, i)
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **at)
    for what in ("mousePressed", "mouseReleased"):
        browser.call(
            "Input.dispatchMouseEvent", type=what, button="left", clickCount=1, **at
        )


def tap(browser, selector, i=0):
    browser.call(
        "Input.dispatchTouchEvent",
        type="touchStart",
        touchPoints=[middle(browser, selector, i)],
    )
    browser.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


KEYS = {
    "Tab": 9,
    "Enter": 13,
    "Escape": 27,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


def press(browser, *names):
    for name in names:
        key = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name]}
        browser.call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            **key,
            **({"text": "\r"} if name == "Enter" else {}),
        )
        browser.call("Input.dispatchKeyEvent", type="keyUp", **key)


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


def test_hovering_shows_the_weights_of_the_map(browser, url, examples):
    "Layer 2, head 3, the pointer on a word: everything that is shown is the map's row."
    browser.open(url)
    click(browser, "#heads button", 1 * 4 + 2)
    hover(browser, "#q button", 1)
    got, row = (
        seen(browser),
        [round(w, 3) for w in examples[0].maps["encoder"][1, 2, 1].double().tolist()],
    )
    assert got["selection"] == "Encoder, layer 2, head 3"
    assert got["curves"] == [[0, 1, k, w] for k, w in enumerate(row) if w >= 0.005]
    assert got["k"]["numbers"] == [f"{w:.2f}" if w >= 0.005 else "" for w in row]
    assert got["k"]["shades"] == [
        [pytest.approx(0.4 * w, abs=1e-6)] for w in row
    ]  # the style's arithmetic is in float32
    assert got["q"] == {"numbers": [""] * 8, "shades": [[]] * 8}
    words = examples[0].src_tokens
    top = sorted(range(8), key=lambda k: -row[k])[:5]
    assert got["description"].split() == [
        "animal",
        "attends",
        "to",
        *(x for k in top if row[k] >= 0.01 for x in (words[k], f"{row[k]:.2f}")),
    ]
    leave(browser)
    assert len(seen(browser)["curves"]) == sum(
        w >= 0.005
        for w in examples[0].maps["encoder"][1, 2].double().round(decimals=3).flatten()
    )
    assert (
        browser.said == []
        and browser.ask("performance.getEntriesByType('resource').length") == 0
    )


def test_queries_that_attend_to_a_key(browser, url, examples):
    browser.open(url)
    click(browser, "#k button", 2)
    leave(browser)  # held by the click
    column = examples[0].maps["encoder"][0, 0, :, 2].double().round(decimals=3).tolist()
    got = seen(browser)
    assert got["q"]["numbers"] == [
        f"{w:.2f}" if w >= 0.005 else "" for w in column
    ] and got["description"].startswith("did is attended to by ")
    click(browser, "#heads button", 3)  # another head, the same word
    leave(browser)
    assert seen(browser)["description"].startswith("did is attended to by ") and {
        k for _, _, k, _ in seen(browser)["curves"]
    } == {2}
    press(browser, "Escape")
    assert (
        len({k for _, _, k, _ in seen(browser)["curves"]}) == 8 and browser.said == []
    )


def test_all_heads_of_all_layers_at_once(browser, url, examples):
    "A small picture for each, whose pixels are the map; a click goes to the head."
    browser.open(url)
    cells = browser.ask("""[...document.querySelectorAll("#heads button")].map(b => { const c = b.firstChild;
        const data = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        return [b.getAttribute("aria-label"), c.width, c.height, [...data].filter((_, i) => i % 4 === 3)]; })""")
    assert [c[0] for c in cells] == [
        f"layer {i + 1}, head {j + 1}" for i in range(2) for j in range(4)
    ]
    for cell, weights in zip(
        cells, examples[0].maps["encoder"].flatten(0, 1), strict=True
    ):
        assert cell[1:3] == [8, 8]
        assert cell[3] == pytest.approx(
            (255 * weights.flatten()).tolist(), abs=0.7
        )  # the weight's 3 decimals, and a whole number of 255
    boxes = browser.ask(
        """[...document.querySelectorAll("#heads button")].map(b => b.getBoundingClientRect()).map(b => [b.x, b.y])"""
    )
    assert (
        len({y for _, y in boxes}) == 2 and len({x for x, _ in boxes}) == 4
    )  # a row is a layer, a column a head
    for i in (5, 0, 7):
        click(browser, "#heads button", i)
        assert (
            seen(browser)["selection"]
            == f"Encoder, layer {i // 4 + 1}, head {i % 4 + 1}"
        )
        assert browser.ask("[byId('layer').value, byId('head').value]") == [
            str(i // 4),
            str(i % 4),
        ]
        pressed = [
            j
            for j in range(8)
            if browser.ask(
                f"document.querySelectorAll('#heads button')[{j}].getAttribute('aria-pressed')"
            )
            == "true"
        ]
        assert pressed == [i]
    hover(browser, "#q button", 3)  # and its row stands out in all of them
    assert browser.ask(
        "[byId('heads').dataset.role, byId('heads').style.getPropertyValue('--start')]"
    ) == ["q", "37.5%"]
    assert (
        "37.5%"
        in browser.ask("getComputedStyle(document.querySelector('canvas')).maskImage")
        and browser.said == []
    )


def test_heads_compared(browser, url, examples):
    "Several heads, of different layers too: each has its lines, its bars and its line of numbers; never more than five."
    browser.open(url)
    click(browser, "#compare")
    for i in (6, 3):
        click(browser, "#heads button", i)
    hover(browser, "#q button", 1)
    got, chosen = seen(browser), ((0, 0), (1, 2), (0, 3))
    rows = [
        examples[0].maps["encoder"][layer, head, 1].double().round(decimals=3).tolist()
        for layer, head in chosen
    ]
    assert got["curves"] == [
        [h, 1, k, w]
        for h, row in enumerate(rows)
        for k, w in enumerate(row)
        if w >= 0.005
    ]
    assert got["k"]["shades"] == [
        [pytest.approx(0.4 * row[k], abs=1e-6) for row in rows] for k in range(8)
    ]
    assert got["selection"] == "Encoder, 3 heads"
    best = [max(range(8), key=lambda k: row[k]) for row in rows]
    for row, k, name in zip(
        rows, best, ("layer 1, head 1", "layer 2, head 3", "layer 1, head 4")
    ):
        assert f"{name}{examples[0].src_tokens[k]} {row[k]:.2f}" in got["description"]
    leave(browser)
    assert seen(browser)["description"].endswith(
        "layer 1, head 1layer 2, head 3layer 1, head 4"
    )  # the legend
    colours = browser.ask(
        "[0, 1, 2].map(h => getComputedStyle(document.querySelector(`#curves path[data-head='${h}']`)).stroke)"
    )
    dashes = browser.ask(
        "[0, 1, 2].map(h => document.querySelector(`#curves path[data-head='${h}']`).getAttribute('stroke-dasharray'))"
    )
    assert len(set(colours)) == len(set(dashes)) == 3
    click(browser, "#heads button", 6)  # chosen again: let go
    for i in (1, 2, 4, 5):
        click(browser, "#heads button", i)
    assert browser.ask("state.heads.length") == 5
    click(browser, "#compare")
    assert (
        seen(browser)["selection"] == "Encoder, layer 2, head 2" and browser.said == []
    )


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("sentence", [0, 1])
def test_no_token_moves_under_the_pointer(browser, url, sentence, width):
    "Neither with a longer description nor with more heads; also when the screen is turned."
    browser.open(url, width=width)
    browser.ask(f"selectSentence({sentence})")
    click(browser, "#compare")
    where = """[null, ...["q", "k"].flatMap(role => tokensOf(role).map((_, i) => ({role, i})))].map(token => {
        highlight(token); return byId("tokens").getBoundingClientRect().y + scrollY; })"""
    heights = set()
    for i in (None, 6, 3):
        if i:
            click(browser, "#heads button", i)
        at = browser.ask(where)
        assert len(at) > 10 and len(set(at)) == 1, (i, at)
        heights.add(browser.ask("byId('description').offsetHeight"))
    assert len(heights) > 1  # more heads, more to say
    browser.look(1670 - width, "light")
    browser.ask("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert len(set(browser.ask(where))) == 1 and browser.said == []


def test_measuring_makes_the_page_no_longer(browser, url):
    "The descriptions of all tokens are in the page while they are measured."
    browser.open(url)
    before, during = browser.ask("""(() => {
        const {remove} = Element.prototype, height = () => document.documentElement.scrollHeight;
        const before = height();
        let during;
        Element.prototype.remove = function () { during = height(); remove.call(this); };
        reserveHeight();
        Element.prototype.remove = remove;
        return [before, during]; })()""")
    assert before == during


def test_curves_join_query_and_key(browser, url):
    "A curve begins at the row of its query and ends at the row of its key."
    browser.open(url)
    ends = browser.ask("""[...document.querySelectorAll("#curves path")].map(path => {
        const length = path.getTotalLength();
        const {dataset: {q, k}} = path;
        return [+q, path.getPointAtLength(0).y, +k, path.getPointAtLength(length).y]; })""")
    assert len(ends) > 8
    for q, start, k, end in ends:
        assert (start, end) == (q + 0.5, pytest.approx(k + 0.5, abs=1e-3))
    assert "0 0 100 8" == browser.ask("byId('curves').getAttribute('viewBox')")


def test_kind_layer_and_sentence(browser, url, examples):
    browser.open(url)
    words = lambda side: browser.ask(
        f"[...document.querySelectorAll('#{side} button')].map(b => b.textContent)"
    )
    click(browser, "#kind span", 2)
    browser.ask("byId('layer').focus()")
    press(browser, "ArrowDown")
    assert [words("q"), words("k")] == [
        examples[0].tgt_tokens,
        examples[0].src_tokens,
    ] and seen(browser)["selection"] == "Cross, layer 2, head 1"
    assert seen(browser)["curves"][0] == [
        0,
        0,
        0,
        round(examples[0].maps["cross"][1, 0, 0, 0].item(), 3),
    ]
    click(browser, "#kind span", 1)
    assert (
        all(k <= q for _, q, k, _ in seen(browser)["curves"])
        and seen(browser)["selection"] == "Decoder, layer 2, head 1"
    )
    browser.ask("byId('sentence').focus()")
    press(browser, "ArrowDown")
    assert (
        words("q") == ["<s>", "b"]
        and seen(browser)["selection"] == "Decoder, layer 2, head 1"
    )
    click(browser, "#kind span", 0)
    assert (
        words("q") == LONG[0]
        and browser.ask("[typeof bad, document.title]") == ["undefined", "A & B"]
        and browser.said == []
    )


def test_page_opens_with_the_head_that_follows_it(browser, tmp_path, monkeypatch):
    "With its query pinned; without an it, with the first head and no token."
    monkeypatch.chdir(tmp_path)
    for line, selection, description in (
        (ANIMAL_TIRED.en, "Cross, layer ", "weil attends to animal "),
        (ANIMAL_WIDE.en, "Cross, layer ", "weil attends to street "),
        ("The dog is tired.", "Encoder, layer 1, head 1", "Each source token attends"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(["attention", "demo", line, "--out", "a.html"])
        browser.open((tmp_path / "a.html").as_uri())
        assert seen(browser)["selection"].startswith(selection)
        assert seen(browser)["description"].startswith(description)
        assert browser.said == []


def test_by_keyboard_alone(browser, url, examples):
    "Tab from part to part, arrows within; a word is held by Return. A part is one stop, however many heads it has."
    browser.open(url)
    where = lambda: browser.ask(
        "(e => e.id || e.name || e.ariaLabel || e.textContent)(document.activeElement)"
    )
    stops = []
    for _ in range(8):
        press(browser, "Tab")
        stops.append(where())
    assert stops == [
        "sentence",
        "kind",
        "layer",
        "head",
        "layer 1, head 1",
        "compare",
        "The",
        "The",
    ]
    press(browser, "ArrowLeft", "ArrowDown")
    assert where() == "animal" and seen(browser)["description"].startswith(
        "animal attends to "
    )
    press(browser, "Enter", "ArrowRight", "ArrowDown")
    assert where() == "did" and seen(browser)["description"].startswith(
        "did is attended to by "
    )
    browser.call("Runtime.evaluate", expression="document.activeElement.blur()")
    assert seen(browser)["description"].startswith("animal attends to ")  # held
    browser.ask("document.querySelector('#heads button').focus()")
    press(browser, "ArrowDown", "ArrowRight", "ArrowRight", "Enter")
    assert (
        seen(browser)["selection"] == "Encoder, layer 2, head 3"
        and where() == "layer 2, head 3"
    )
    nameless = browser.ask("""[...document.querySelectorAll("button, select, input")]
        .filter(e => !(e.textContent.trim() || e.ariaLabel || e.labels?.length)).length""")
    assert nameless == 0 and browser.said == []


STATE = """[state.sentence, state.kind, state.heads.map(({layer, head}) => `${layer}.${head}`).join(),
    lines.pinned && lines.pinned.role + lines.pinned.i, byId("compare").checked]"""


def test_address_restores_the_state(browser, url):
    browser.open("about:blank")
    browser.open(url)
    wait = "new Promise(done => setTimeout(done, 300))"
    browser.ask(wait)
    assert browser.ask("location.href") == url  # as it opens, nothing is written
    browser.ask("selectSentence(1); selectKind('decoder'); byId('compare').click()")
    browser.ask("selectHead(1, 2); selectHead(0, 3)")
    browser.ask("byId('k').querySelectorAll('button')[1].click()")
    browser.ask(wait)
    before, address = browser.ask(STATE), browser.ask("location.href")
    assert before == [1, "decoder", "0.0,1.2,0.3", "k1", True]
    browser.open("about:blank")
    browser.open(address)
    assert browser.ask(STATE) == before
    assert browser.ask("byId('sentence').value") == "1"
    browser.ask("location.hash = 'kind=cross&heads=1.1'")  # as by the browser's history
    browser.ask(wait)
    assert browser.ask(STATE) == [0, "cross", "1.1", None, False]
    assert seen(browser)["selection"] == "Cross, layer 2, head 2" and browser.said == []


@pytest.mark.parametrize(
    "query",
    [
        "sentence=9&kind=nowhere&heads=9.9,x,-1.0&token=q99",
        "sentence=-1&kind=constructor&heads=&token=x0",
        "sentence=length&heads=0.0,0.0&token=k",
        "__proto__=1&sentence=1.5&heads=1e9.1&kind=",
    ],
)
def test_address_that_is_wrong(browser, url, query):
    "What is unknown is as at the start."
    browser.open("about:blank")
    browser.open(f"{url}#{query}")
    assert browser.ask(STATE) == [0, "encoder", "0.0", None, False]
    assert browser.said == []


def test_landmarks_and_headings(browser, url):
    browser.open(url)
    landmarks = "[...document.body.children].map(e => e.localName)"
    assert browser.ask(landmarks)[:3] == ["header", "main", "footer"]
    headings = "[...document.querySelectorAll('h1, h2, h3')].map(e => e.localName)"
    assert browser.ask(headings) == ["h1", "h2", "h2", "h2"]
    outside = """[...document.body.querySelectorAll("h1, p, section, figure")].filter(
        e => !e.closest("header, main, footer")).length"""
    assert browser.ask(outside) == 0


def test_focus_is_not_under_the_box_at_the_top(browser, url):
    "Shift and Tab from the end of the page, where several heads are described."
    browser.open("about:blank")
    browser.open(url)
    size = {"width": 390, "height": 700, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    browser.ask("byId('compare').click(); selectHead(0, 1); selectHead(1, 3)")
    browser.ask("new Promise(done => setTimeout(done, 100))")
    browser.ask("[...document.querySelectorAll('#k button')].at(-1).focus()")
    for _ in range(6):
        key = {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9, "modifiers": 8}
        browser.call("Input.dispatchKeyEvent", type="keyDown", **key)
        browser.call("Input.dispatchKeyEvent", type="keyUp", **key)
        assert not browser.ask("""(e => { const [box, at] = [byId("details"), e].map(
            each => each.getBoundingClientRect());
            return at.top < box.bottom && at.bottom > box.top; })(document.activeElement)""")
    browser.look(1280, "light")


def test_forced_colours(browser, url):
    "Where the system replaces the colours, what is selected still differs from the rest."
    browser.open("about:blank")
    browser.open(url)
    forced = {"name": "forced-colors", "value": "active"}
    browser.call("Emulation.setEmulatedMedia", features=[forced])
    browser.ask("byId('compare').click(); selectHead(0, 1)")
    browser.ask("document.querySelector('#q button').click()")
    look = """selector => { const style = getComputedStyle(document.querySelector(selector));
        return style.backgroundColor + style.borderTopColor + style.boxShadow; }"""
    for marked, other in {
        "#kind input:checked + span": "#kind input:not(:checked) + span",
        "#heads [aria-pressed=true]": "#heads [aria-pressed=false]",
        "#k .bars i": "#k .bars i + i",
    }.items():
        assert browser.ask(f"({look})({marked!r})") != browser.ask(
            f"({look})({other!r})"
        ), marked
    browser.look(1280, "light")


@pytest.mark.parametrize("sentence", [0, 1])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 320])
def test_on_a_phone(browser, url, sentence, scheme, width):
    "390 and 320 pixels: nothing to scroll sideways, nothing too small for a finger; a tap holds a word; the reader's scheme."
    browser.open(url, width=width, scheme=scheme)
    browser.ask(f"selectSentence({sentence})")
    assert browser.ask("[innerWidth, document.documentElement.scrollWidth]") == [
        width,
        width,
    ]
    tap(browser, "#heads button", 5)
    assert browser.ask(
        "byId('details').getBoundingClientRect().bottom < innerHeight"
    )  # it came into sight
    tap(browser, "#q button", 1)
    assert "attends to" in seen(browser)["description"] and {
        q for _, q, _, _ in seen(browser)["curves"]
    } == {1}
    small = browser.ask("""[...document.querySelectorAll("button, select, .choices span")].filter(e =>
        Math.min(e.offsetHeight, e.offsetWidth) < 24 || e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML)""")
    assert small == [] and browser.ask("document.documentElement.scrollWidth") == width
    assert (
        browser.ask("getComputedStyle(document.body).backgroundColor")
        == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 23, 29)"}[scheme]
    )
    assert browser.said == []


def test_a_base_model_fits(browser, tmp_path):
    "6 layers of 16 heads on a phone: the small pictures may scroll in their own box, the page does not."
    torch.manual_seed(0)
    (tmp_path / "a.html").write_text(
        attention_page([drawn(6, 16, *ANIMAL)]), encoding="utf-8"
    )
    browser.open((tmp_path / "a.html").as_uri(), width=390)
    assert browser.ask(
        "[document.documentElement.scrollWidth, document.querySelectorAll('#heads button').length]"
    ) == [390, 96]
    click(browser, "#heads button", 95)
    assert (
        seen(browser)["selection"] == "Encoder, layer 6, head 16" and browser.said == []
    )


def test_browser_understands_every_declaration(browser, url):
    "A browser ignores a misspelt property or value and reports nothing."
    browser.open(url)
    for path in page_files(PAGES, "attention", "css"):
        found = declarations(path.read_text(encoding="utf-8"))
        unknown = browser.ask(
            f"{json.dumps(found)}.filter(([name, value]) => !CSS.supports(name, value))"
        )
        assert len(found) > 15 and unknown == []


def test_browser_refuses_what_is_not_in_the_page(browser, url):
    "The Content-Security-Policy forbids requests, even those of a script in the page."
    browser.open(url)
    got = browser.ask("fetch('http://127.0.0.1:9/').catch(error => error.message)")
    assert got == "Failed to fetch"
    assert any("Content Security Policy" in line for line in browser.said)


def test_scheme_changes_under_the_page(browser, url):
    "Small pictures are painted anew when the system turns dark."
    pixel = """(() => { const data = document.querySelector("canvas").getContext("2d").getImageData(0, 0, 8, 8).data;  // the strongest one
        const i = Array.from({length: 64}, (_, i) => i).sort((a, b) => data[4 * b + 3] - data[4 * a + 3])[0];
        return [...data.slice(4 * i, 4 * i + 3)]; })()"""
    browser.open(url, scheme="light")
    light = browser.ask(pixel)
    browser.ask(
        "void (turned = new Promise(done => matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => done(1))))"
    )
    browser.look(1280, "dark")
    assert browser.ask("turned") == 1
    assert sum(browser.ask(pixel)) > sum(light) and browser.said == []
