"The box on the home page, and the live pages of the site, which share the file of a model: as tools/home.py makes them, without Quarto."

import json
import re
import shutil
import struct
import xml.etree.ElementTree as ET
from pathlib import Path

import home
import pytest
from browser import Browser, click, press, wait_for
from cells import as_html
from lxml.html import document_fromstring
from publish import editions
from test_pages import BARE

from annotated_transformer.show.live import write_live_page
from annotated_transformer.translating.load import load

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = "The animal didn't cross the street because it was too wide."
ES = "Das Tier überquerte die Straße nicht, weil es zu müde war."
SIE = "Das Tier überquerte die Straße nicht, weil sie zu breit war."
MAP = (home.NBS / "images/live_map.svg").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    "Live pages and their models as on the site, the pages in another language below them, and home pages."
    docs = tmp_path_factory.mktemp("site")
    (docs / "zh").mkdir()
    for place in ("", "zh"):
        up = "../" if place else ""
        said = {"home": "https://a.org/site", "own": place, "editions": editions()}
        for name in ("tatoeba", "tatoeba-zh"):
            page = docs / place / f"live_{name}.html"
            write_live_page(Path(name), page, site="", lang=place or "en")
            home.publish_live_page(page, docs / f"live_{name}.js", up, **said)
        pictures = (
            f'<p><a href="live_tatoeba.html"><span class="drawing">{MAP}</span></a></p>'
        )
        links = "<p><strong><a href=a.html>A</a></strong>\n<strong><a href=live_tatoeba.html>B</a></strong></p>"
        bare = BARE.replace("</header>", f"</header>{links}{pictures}")
        made = document_fromstring(bare.replace("<head>", "<head><meta charset=utf-8>"))
        home.finish_home(made, docs, place, editions()[place])
        made.head[-1].set("src", f"{up}home.js")
        (docs / place / "index.html").write_text(as_html(made), "utf-8")
        shutil.copy(home.NBS / "favicon.svg", docs / place)
    (docs / "home.js").write_text(home.home_script(), "utf-8")
    return docs


@pytest.fixture
def page(browser, site) -> Browser:
    browser.open((site / "index.html").as_uri())
    return browser


def shown(browser: Browser, selector: str) -> str:
    return browser.ask(f"document.querySelector({selector!r}).textContent")


def wait_for_text(browser: Browser, selector: str, text: str) -> None:
    element = f"document.querySelector({json.dumps(selector)})"
    wait_for(browser, f"{element}.textContent.includes({json.dumps(text)})")


HREFS = "[...document.querySelectorAll('.map a')].map(a => a.getAttribute('href'))"
LOADED = "typeof liveData"
ROWS = "[...document.querySelectorAll('.target button')].map(b => b.textContent)"


def test_the_box_says_what_the_model_does_without_a_script(site):
    text = (site / "index.html").read_text("utf-8")
    made = document_fromstring(text)
    assert not made.xpath("//a[.//span[@class='drawing']]")
    assert [p.text_content() for p in made.find_class("actions")] == ["A\nB"]
    [box] = made.find_class("live")
    assert box.find_class("result")[0].text == ES
    assert box.find(".//textarea").text == TIRED
    [caption] = box.find_class("caption")
    assert "“es”, layer 4, head 3 attends most to “animal” (0.93)" in caption.text
    assert len(text) < 60_000


def test_nothing_is_fetched_until_somebody_presses_or_types(page):
    "Then an example is translated, the line leads elsewhere, and each box leads to this sentence."
    before = page.ask(ROWS)
    assert page.ask(LOADED) == "undefined" and shown(page, ".result") == ES
    assert page.ask(HREFS)[3] == "live_tatoeba.html#box=decoder.cross&layer=3&head=2&step=9"  # fmt: skip
    click(page, ".examples button", 1)
    wait_for_text(page, ".result", SIE)
    assert "“sie”" in shown(page, ".caption") and "“street”" in shown(page, ".caption")
    assert "browser" in shown(page, ".state")
    assert shown(page, ".map text.name") == "sie"
    hrefs = page.ask(HREFS)
    assert len(hrefs) == 15 and all("text=The+animal" in href for href in hrefs)
    click(page, ".examples button", 0)
    wait_for_text(page, ".result", ES)
    assert page.ask(ROWS) == before  # as PyTorch had computed them


def test_doors_open_their_box_at_the_sentence(page, site):
    click(page, ".examples button", 1)
    wait_for_text(page, ".result", SIE)
    for href in page.ask(HREFS)[::4] + page.ask(HREFS)[3:4]:
        page.open("about:blank")
        page.open(f"{site.as_uri()}/{href}")
        assert page.ask("[state.text, state.box]") == [WIDE, re.search("box=([^&]*)", href)[1]]  # fmt: skip
    assert page.ask("[run.step, state.layer, state.head]") == [9, 3, 2]
    assert page.ask("shownTokens(run.ids)[run.step - 1]") == "sie"


TYPED = [
    "Where is the nearest train station?",
    "I am tired. Are you coming? 42.",
    "“I don’t believe you,” she said.",
]


def test_what_is_typed_is_translated_after_a_pause(page):
    "As by the package; a text of several sentences too."
    wanted = load("tatoeba").translate(TYPED, split=True)
    for text, translation in zip(TYPED, wanted, strict=True):
        page.ask("document.querySelector('textarea').select()")
        page.call("Input.insertText", text=text)
        wait_for_text(page, ".result", translation)
    page.ask("document.querySelector('textarea').value = 'Thank you.'")
    page.ask("document.querySelector('textarea').focus()")
    press(page, "Enter")
    wait_for_text(page, ".result", "Danke")


def test_tokens_by_keyboard(page):
    "Without the model: each token shows its line; one of them can be reached by Tab."
    page.ask("document.querySelector('.target [aria-pressed=true]').focus()")
    press(page, "ArrowUp", "ArrowUp")
    focused = "document.activeElement.textContent"
    assert (
        page.ask(focused).split() == [",", "0.91"] and page.ask(LOADED) == "undefined"
    )
    assert "“,”" in shown(page, ".caption")
    stops = "[...document.querySelectorAll('.target button')].filter(b => b.tabIndex === 0).length"
    assert page.ask(stops) == 1
    assert page.ask("[...document.querySelectorAll('.lines path')].length") == 15


def test_a_model_that_does_not_arrive(offline, site):
    "On the home page the next press tries again; the live page says so, and keeps its first translation."
    text = (site / "index.html").read_text("utf-8")
    file = site / "broken.html"
    file.write_text(text.replace('"live_tatoeba.js"', '"none.js"'), "utf-8")
    offline.open(file.as_uri())
    click(offline, ".live form button")
    wait_for_text(offline, ".state", "could not be loaded")
    live = (site / "live_tatoeba.html").read_text("utf-8")
    file.write_text(live.replace('"live_tatoeba.js"', '"none.js"'), "utf-8")
    offline.open(file.as_uri())
    wait_for_text(offline, "#loading", "could not be loaded")
    assert shown(offline, "#result") == ES
    assert offline.ask("document.getElementById('old').hidden")
    offline.said.clear()


@pytest.mark.parametrize("place", ["", "zh"])
def test_live_page_of_the_site(browser, site, place):
    "Small, with its model in one file for all; it says whose it is, leads home, and takes the site's colours."
    file = site / place / "live_tatoeba.html"
    text = file.read_text("utf-8")
    assert len(text) < 400_000 and not (site / "zh/live_tatoeba.js").exists()
    own = f"{place}/live_tatoeba.html".lstrip("/")
    assert f'rel="canonical" href="https://a.org/site/{own}"' in text
    assert (
        '<meta property="og:image" content="https://a.org/site/images/card.png">'
        in text
    )
    for scheme, theme in {"alternate": "dark", "default": "light"}.items():
        chosen = f"localStorage.setItem('quarto-color-scheme', '{scheme}')"
        add = "Page.addScriptToEvaluateOnNewDocument"
        call = browser.call(add, source=f"try {{ {chosen} }} catch {{}}")
        browser.open("about:blank")
        browser.open(file.as_uri())
        browser.call("Page.removeScriptToEvaluateOnNewDocument", **call)
        assert browser.ask("document.documentElement.dataset.theme") == theme
        assert browser.ask("getComputedStyle(document.documentElement).colorScheme") == theme  # fmt: skip
    browser.ask("localStorage.clear()")
    assert shown(browser, "#result") == ES
    assert browser.ask("document.querySelector('header a').getAttribute('href')") == "index.html"  # fmt: skip


def test_titles_of_live_pages_differ(live_page, site, tmp_path):
    write_live_page(Path("learning"), tmp_path / "learning.html")
    names = ("live_tatoeba.html", "live_tatoeba-zh.html")
    pages = [live_page, *(site / name for name in names), tmp_path / "learning.html"]
    titles = {re.search("<title>(.*)</title>", p.read_text("utf-8"))[1] for p in pages}
    assert len(titles) == 4


def test_card(tmp_path):
    "1200 × 630, with the home page's title on lines that end before the drawing."
    home.write_card(tmp_path / "card.png")
    data = (tmp_path / "card.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1200, 630)
    svg = ET.fromstring(home.card_svg())
    own = [e for e in svg if e.tag.endswith("text")]
    title, _ = home.heading(home.NBS / "index.ipynb")
    assert " ".join(e.text for e in own).startswith(title)
    # a letter of the widest of its fonts, DejaVu Sans Bold, is 0.61 of its size wide here
    assert all(70 + 0.61 * float(e.get("font-size")) * len(e.text) < 680 for e in own)
    assert "var(" not in home.card_svg() and "light-dark" not in home.card_svg()


def test_the_chinese_home_page_translates_into_chinese(browser, site):
    "At the pronoun of its first sentence, and in tokens without hyphens; its links lead to this model's page."
    file = site / "zh/index.html"
    made = document_fromstring(file.read_text("utf-8"))
    assert [a.get("href") for a in made.xpath("//p[@class='actions']//a")] == ["a.html", "live_tatoeba-zh.html"]  # fmt: skip
    [box] = made.find_class("live")
    assert box.get("data-model") == "../live_tatoeba-zh.js"
    assert box.find(".//form//label").text.startswith("输入一个英语句子")
    translator = load("tatoeba-zh")
    wanted = translator.translate(box.find(".//textarea").text)
    assert box.find_class("result")[0].text == wanted
    browser.open(file.as_uri())
    rows = browser.ask(ROWS)
    chosen = browser.ask("document.querySelector('[aria-pressed=true]').textContent")
    assert chosen.split()[0] == "她" and not any(row.startswith("-") for row in rows)
    assert browser.ask(LOADED) == "undefined"
    hello = translator.translate("Hello, world!")
    click(browser, ".examples button", 1)
    wait_for_text(browser, ".result", hello)
    assert browser.ask(HREFS)[3].startswith("live_tatoeba-zh.html#text=Hello")
    click(browser, ".examples button", 0)
    wait_for_text(browser, ".result", wanted)
    assert browser.ask(ROWS) == rows  # as PyTorch had computed them
