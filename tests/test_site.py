"""Every page of the published site in a browser without a network, light and dark, on a screen and on a phone.

`make docs` makes the pages, and DOCS=_docs names their folder; without it the checks alone are tested.
"""

import json
import os
import re
import shutil
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
import traditional
from browser import Browser, press, wait_for
from cells import FENCED, INLINE, heading, joined, page_name, titled
from conftest import ROOT
from links import check
from publish import (
    evening_path,
    every_page,
    places_of_package,
    reading_path,
    sidebar,
)
from translate import begun, languages

CHECKS = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
PHONE_CHECKS = (
    "[page.wide(), page.split(), page.tiny(), page.covered(), page.squeezed()].flat()"
)
LITERAL_LINK = re.compile(r"\[(`|<code>)[^`\]<\n]+(`|</code>)\]\(")
NAMES = [page_name(path) for path in every_page()]
TRANSLATED = [
    f"{path.parent.name}/{page_name(path)}"
    for folder in languages()
    for path in begun(folder)
] + [f"{traditional.PLACE}/{name}" for name in ("index.html", "words.html")]


@pytest.fixture(scope="module")
def browser(chromium, tmp_path_factory):
    with Browser(chromium, tmp_path_factory.mktemp("chromium")) as b:
        yield b


def nameless(browser: Browser) -> list[str]:
    "What can be used on a page and has no name for those who do not see it."
    return [
        f"no name: a {node['role']['value']}"
        for node in browser.call("Accessibility.getFullAXTree")["nodes"]
        if node.get("role", {}).get("value")
        in ("button", "link", "searchbox", "textbox")
        and not node["ignored"]
        and not node.get("name", {}).get("value", "").strip()
    ]


def complaints(browser: Browser, url: str) -> list[str]:
    "Whatever is wrong with a page, links apart; it takes the system's colours when it is loaded."
    found = []
    for scheme in ("light", "dark"):
        browser.open(url, width=1280, scheme=scheme)
        browser.ask(CHECKS + "; page.open()")
        found += browser.said
        found += [f"{scheme}: {line}" for line in browser.ask("page.faint()")]
        browser.look(390, scheme)
        found += [f"{scheme}: {line}" for line in browser.ask("page.faint('header')")]
    found += browser.ask("page.rawTex().concat(page.pictures())") + nameless(browser)
    return found + browser.ask(PHONE_CHECKS) + browser.said


@pytest.fixture(scope="module")
def docs() -> Path:
    "The folder of the pages that Quarto made."
    if not os.environ.get("DOCS"):
        pytest.skip("needs the pages: make docs, then DOCS=_docs")
    return (ROOT / os.environ["DOCS"]).resolve()


@pytest.fixture(scope="module")
def published(docs, cfg, browser) -> str:
    "The address of Quarto's pages on a server of this machine, below the path that they will have."

    class Pages(SimpleHTTPRequestHandler):
        def translate_path(self, path):
            return super().translate_path(path.removeprefix(cfg["doc_baseurl"]))

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=docs))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser.home = f"http://127.0.0.1:{server.server_port}/"
    yield browser.home.rstrip("/") + cfg["doc_baseurl"] + "/"
    browser.home = "file:"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def broken_in_docs(docs) -> list[str]:
    return check(docs)[0]


@pytest.mark.parametrize("name", [*NAMES, *TRANSLATED, "404.html"])
def test_page_of_docs(docs, published, browser, broken_in_docs, name):
    text = (docs / name).read_text(encoding="utf-8")
    assert not LITERAL_LINK.search(text)
    assert complaints(browser, published + name) == []
    assert [
        line
        for line in broken_in_docs
        if re.match(rf"(_docs/)?{re.escape(name)}(\.md)?: ", line)
    ] == []


def test_card_of_the_home_page(docs, cfg):
    "What other sites show of a link to it: not the first picture that stands in it."
    text = (docs / "index.html").read_text(encoding="utf-8")
    card = f"{cfg['doc_host']}{cfg['doc_baseurl']}/images/card.png"
    for key in ("og:image", "twitter:image"):
        assert re.findall(rf'"{key}" content="([^"]*)"', text) == [card]


def test_menu_and_contents_of_a_phone(published, browser):
    "The button in the bar opens all pages; the contents are below the title, as they are beside the text on a screen."
    wide = "document.querySelectorAll('#TOC a').length"
    visible = "document.querySelector('%s').checkVisibility()"
    for name, has_contents in (("attention.html", True), ("404.html", False)):
        browser.open(published + name, width=390)
        button = browser.ask(
            "(b => [b.getBoundingClientRect().bottom < 80, (b.click(), 1)])"
            "(document.querySelector('.navbar .quarto-btn-toggle'))"
        )
        assert button == [True, 1]
        wait_for(browser, visible % "#quarto-sidebar")
        if has_contents:
            links = "document.querySelectorAll('.contents a').length"
            assert browser.ask(links) == browser.ask(wide) > 5
            assert browser.ask(visible % ".contents")
            browser.look(1280, "light")
            assert not browser.ask(visible % ".contents")


def test_only_what_goes_on_has_a_shade(published, browser):
    shaded = """[...document.querySelectorAll("main *")].filter(e => getComputedStyle(e).backgroundImage.includes("gradient"))
        .map(e => e.scrollWidth > e.clientWidth)"""
    for name, width in (("attention.html", 1280), ("variations.html", 390)):
        browser.open(published + name, width=width)
        found = browser.ask(shaded)
        assert all(found) and (width > 390 or found)


def test_search_of_docs(published, browser):
    "As Quarto's script asks: whoever searches a name is led to its definition first, and by a title to its page."
    search = """readSearchData().then(index => fuseSearch("%s", index, {limit: 50}))
        .then(hits => hits[0]?.section)"""
    missed = """readSearchData().then(index => index.filter(page => !page.section &&
        fuseSearch(page.title, index, {limit: 1})[0].href.split("?")[0] !== page.href)).then(missed => missed.map(page => page.title))"""
    for place in ["", *(f"{path.name}/" for path in languages())]:
        browser.open(f"{published}{place}index.html")
        assert browser.ask(missed) == []
    browser.open(published + "index.html")
    names = [
        name
        for name in places_of_package()
        if re.fullmatch(r"[A-Za-z]+(_[a-z0-9]+|[A-Z][a-z]+)\w*", name)
    ]  # others may be a word of the text
    assert len(names) > 100
    assert [n for n in names[::3] if browser.ask(search % n) != n] == []


def test_footers_lead_along_the_reading_path(published, browser):
    for page, after in zip(reading_path(), reading_path()[1:]):
        browser.open(published + page_name(page))
        assert shown(browser, ".nav-page-next") == [page_name(after)]
        browser.open(published + page_name(after))
        assert shown(browser, ".nav-page-previous") == [page_name(page)]


ENTRIES = {
    "properties": ("Layers", "Properties", "of ropes"),
    "rotary": ("35 Positions", "Rotary positions (RoPE)", "turns pairs"),
    "text": ("80 Pictures", "", "BERT is encoder-only; the model’s pre–norm, √d"),
    "beam": ("61a Search", "beam_search", "def beam_search"),
    "search": ("61a Search", "", "beam search, by hand"),
    "case": ("Vocabulary", "Words", "注意力 attention, naïve"),
    "rate": ("优化器", "先升后降的学习率", "前4000步是预热"),
    "stuck": ("Answers", "The loss is stuck and does not go down", "at ln V, 8.99"),
    "eos": ("Trouble", "The model outputs only EOS", "EOS, EOS and EOS again"),
    "bos": ("Batches", "BOS, EOS and the shifted target", "EOS ends a sentence"),
    "own": ("Answers", "How do I use my own data set?", "two text files"),
}
RANKED = {  # what is found for a query, best first
    "RoPE": ["rotary", "properties"],  # whole words first
    "model's": ["eos", "text"],
    "beam search": ["search", "beam"],
    "rotary missing": ["rotary"],
    "注意力": ["case"],
    "学习率预热": ["rate"],  # in two places of the text
    "naive": ["case"],
    "why is my loss stuck at ln V?": ["stuck", "case"],
    "only EOS": ["eos", "bos"],  # a stop word counts where the heading has it too
    "how do I train on a custom dataset": ["own", "stuck"],
    "constructor": [],  # a name that every object has
    "(": ["rotary"],
    " ": [],
}


def test_search_ranks_what_was_asked_for(browser, tmp_path):
    (tmp_path / "t.html").write_text(BARE + "<script src=search.js></script>")
    shutil.copy(ROOT / "nbs/search.js", tmp_path)
    browser.open((tmp_path / "t.html").as_uri())
    entries = [
        {"href": name, "title": title, "section": section, "text": text}
        for name, (title, section, text) in ENTRIES.items()
    ]
    ask = "search.rank(%s, %s).map(e => e.href)"
    for query, names in RANKED.items():
        found = browser.ask(ask % (json.dumps(query), json.dumps(entries)))
        assert found == names, query


MESSAGES = {  # as other readers have them, and what the page of error messages calls them
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB": "OutOfMemoryError: CUDA",
    "RuntimeError: CUDA error: device-side assert triggered": "AcceleratorError: CUDA",
    "Expected all tensors to be on the same device, but found at least two devices, cpu and cuda:0!": "RuntimeError: Expected",
    "IndexError: Target 8000 is out of bounds.": "IndexError: Target",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x256 and 512x512)": "RuntimeError: mat1 and mat2 shapes",
    "The size of tensor a (230) must match the size of tensor b (200) at non-singleton dimension 1": "RuntimeError: The size of tensor a",
    "view size is not compatible with input tensor's size and stride": "RuntimeError: view size",
    "value cannot be converted to type at::Half without overflow": "RuntimeError: value cannot",
    "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded": "UnpicklingError",
    "Vocabulary size too high (32000). Please set it to a value <= 8123.": "RuntimeError: INTERNAL: […] Vocabulary size too high",
    'OSError: Not found: "bpe.model": No such file or directory Error #2': "RuntimeError: NOT_FOUND",
    "no setting is called 'droput': did you mean dropout?": "UserError: no setting",
    "the loss became inf at step 400 with learning rate 1.00e-02": "NotFinite",
}
QUESTIONS = {  # page and beginning of the heading that one of the first three finds has
    "CUDA out of memory": ("answers", "CUDA out of memory"),
    "is +0.5 BLEU significant": ("61d_significance", ""),
    "significant": ("61d_significance", ""),
    "deviations": ("70_conclusion", "Every deviation"),
    "deviations from the paper": ("70_conclusion", "Every deviation"),
    "attn_mask key_padding_mask difference": ("answers", "attn_mask"),
    "fine-tune opus-mt": ("91_marian", "A published checkpoint"),
    "label smoothing pitfalls": ("54_label_smoothing", "Pitfalls"),
    "device-side assert": ("errors", "AcceleratorError"),
    "masked_fill -1e9": ("answers", "Why masked_fill"),
    "why softmax and not sigmoid": ("answers", "Why softmax"),
    "self-attention vs fully connected layer": (
        "answers",
        "What is the difference between self-attention",
    ),
    "is attention an explanation": ("answers", "Is attention an explanation"),
    "encoder causal mask": ("answers", "Why has the encoder no causal mask"),
    "exposure bias": ("answers", "What is exposure bias"),
    "register_buffer": ("answers", "Why register_buffer"),
    "contiguous view transpose": ("answers", "Why .contiguous()"),
    "LambdaLR noam": ("answers", "How do I write the paper's schedule"),
    "scaled_dot_product_attention padding mask backend": (
        "90b_fused_attention",
        "Masks and kernels",
    ),
    "validation loss lower than training loss": (
        "troubleshooting",
        "Validation loss below",
    ),
    "same seed different result on gpu": ("answers", "Same seed"),
    "is it on PyPI": ("answers", "Installing"),
    "swiglu setting": ("answers", "How do I turn on"),
    "tokens per second fairseq": ("answers", "How fast is it"),
    "why decoder-only": ("answers", "Which of BERT and GPT"),
    "one consumer GPU hours": ("answers", "How much memory"),
}


FIRST = {  # the page that is found first
    "label smoothing": "label_smoothing",
    "beam search": "decode",
    "positional encoding": "position",
    "why divide by sqrt d_k": "attention",
    "KV cache": "kv_cache",
    "multi head": "multi_head",
    "BLEU": "evaluate",
    "mask": "masking",
    "causal mask": "masking",
    "teacher forcing": "masking",
    "warmup": "optimizer",
    "learning rate": "optimizer",
    "adam": "optimizer",
    "rotary": "rotary",
    "GQA": "grouped",
    "train on my own data": "answers",
    "install": "answers",
    "export to CTranslate2": "ct2",
    "softmax": "embedding",
    "dropout": "label_smoothing",
    "attention": "attention",
    "scaled dot product": "attention",
    "feed forward": "feed_forward",
    "transformer": "transformer",
    "encoder": "stack",
    "residual connection": "stack",
    "greedy search": "decode",
    "BPE": "vocab",
    "tokenizer": "vocab",
    "GPT": "gpt",
    "config": "config",
    "multi gpu": "many_gpus",
    "visualize attention": "visualize",
    "checkpoint": "checkpoint",
    "glossary": "words",
    "cost": "costs",
}


def entries_of_notebooks() -> list[dict]:
    "Sections and their text, as the search has them, from the notebooks: without code and results."
    found = []
    for path in every_page():
        notebook = json.loads(path.read_text(encoding="utf-8"))
        texts = [
            joined(c["source"])
            for c in notebook["cells"]
            if c["cell_type"] == "markdown"
        ]
        title, about = titled(path), heading(path)[1]
        first, *rest = re.split(
            r"(?m)^##+ (.*)$", "\n".join([*texts[0].splitlines()[1:], *texts[1:]])
        )
        for section, text in [("", first), *zip(rest[::2], rest[1::2])]:
            section = re.sub(r"^(`+)(.*)\1$", r"\2", section)
            found.append(
                {
                    "href": page_name(path),
                    "title": title,
                    "section": section,
                    "about": "" if section else about,
                    "text": text,
                }
            )
    return found


def test_search_in_a_folder_says_that_it_needs_a_server(offline, tmp_path):
    stubs = "<script>fuseSearch = 1; offsetURL = path => path</script>"
    page = BARE + stubs + "<script src=search.js></script>"
    (tmp_path / "t.html").write_text(page)
    shutil.copy(ROOT / "nbs/search.js", tmp_path)
    (tmp_path / "search.json").write_text("[]")
    offline.open((tmp_path / "t.html").as_uri())
    ask = "readSearchData().then(found => fuseSearch('mask', found, {limit: 50}))"
    (hit,) = offline.ask(ask)
    assert "needs a web server" in hit["title"] and "http.server" in hit["text"]


@pytest.fixture(scope="module")
def ranked(browser, tmp_path_factory):
    "Page, heading and title of what the search finds in the text of today's notebooks, best first."
    folder, entries = tmp_path_factory.mktemp("search"), entries_of_notebooks()
    (folder / "t.html").write_text(BARE + "<script src=search.js></script>")
    shutil.copy(ROOT / "nbs/search.js", folder)
    browser.open((folder / "t.html").as_uri())
    browser.ask(f"globalThis.entries = {json.dumps(entries)}, entries.length")
    ask = "search.rank(%s, entries).slice(0, 3).map(e => [e.href, e.section])"
    return entries, lambda query: browser.ask(ask % json.dumps(query))


def test_search_finds_what_readers_missed(ranked):
    "A pasted message finds itself, and a question its answer."
    entries, find = ranked
    own = [
        e["section"]
        for e in entries
        if e["href"] == "errors.html" and ": " in e["section"]
    ]
    assert len(own) > 20
    for message, start in [*MESSAGES.items(), *zip(own[::5], own[::5])]:
        page, section = find(message)[0]
        assert page == "errors.html" and section.startswith(start), message
    for query, (page, start) in QUESTIONS.items():
        hits, page = find(query), page_name(Path(page))
        assert any(p == page and s.startswith(start) for p, s in hits), (query, hits)


def test_search_finds_first_what_is_named(ranked):
    "A page by its title, with its number and without, and by what readers type who look for it."
    entries, find = ranked
    pages = [(e["title"], e["href"]) for e in entries if not e["section"]]
    asked = {query: f"{page}.html" for query, page in FIRST.items()} | dict(pages[::9])
    asked |= {re.sub(r"^\d+[a-z]? |:.*", "", title): page for title, page in pages}
    found = {query: find(query)[0] for query in asked}
    assert {q: hit for q, hit in found.items() if hit[0] != asked[q]} == {}


# ---- the checks can fail

PHONE = '<meta name="viewport" content="width=device-width">'
BARE = f"""<!DOCTYPE html><html lang=en><meta charset=utf-8>{PHONE}<link rel=icon href="data:,">
<title>t</title><style>:root {{ color-scheme: light dark; background: light-dark(#fff, #111); color: light-dark(#000, #eee) }}</style><main>"""
FAULTS = {  # each, and what is said of it
    "<p>half of $x_1$</p>": r"raw TeX: half of \$x_1\$",
    '<img src="none.png" alt="a dog">': "no picture: none.png",
    '<figure id="fig-a"><svg></svg></figure>': "no alternative text: fig-a",
    '<p style="color: #888">grey on white</p>': r"light: contrast 3.5\d: grey",
    '<p style="color: light-dark(#000, #444)">gone by night</p>': "dark: contrast .*: gone by night",
    '<svg aria-label="x" viewBox="0 0 99 9"><rect width="99" height="9" fill="#fff"/><text y="7" fill="#aaa">ink</text></svg>': "contrast .*: ink",
    '<pre style="white-space: pre">' + "x" * 400 + "</pre>": "px wide in 390",
    '<table><td style="width: 4em; display: block; word-break: break-all">unbreakable</table>': "breaks inside a word: unbreakable",
    '<svg aria-label="x" viewBox="0 0 900 9" width="300"><text y="9" font-size="12">a</text></svg>': "4.0 px: a",
    '<pre>a = 1<button class="code-copy-button" title="b" style="margin-left: -1em">c</button></pre>': "a button covers code: a = 1",
    "<button><i></i></button>": "no name: a button",
    '<script>console.log("hello")</script>': "console: hello",
    "<script>nothing()</script>": "error: ReferenceError",
    '<script src="none.js"></script>': "request failed",
    '<img src="https://example.org/a.png" alt="a">': "request leaves: https://example.org/a.png",
}


def test_faults_are_found(browser, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(BARE + "\n".join(FAULTS))
    found = complaints(browser, page.as_uri())
    for fault, said in FAULTS.items():
        assert any(re.search(said, line) for line in found), (fault, found)


LINKS = {  # each, and what is said of it
    "none.html": "none.html is not there",
    "index.html#none": "names no place",
    "{git_url}/blob/{branch}/none.txt": "none.txt is not there",
    "{doc_baseurl}/none.html": "none.html is not there",
    "../index.html": "leads out of the site",
}


def test_broken_links_are_found(tmp_path, cfg):
    links = [link.format(**cfg) for link in [*LINKS, "#x", "https://example.org"]]
    page = "".join(f'<a href="{link}">a</a>' for link in links)
    (tmp_path / "index.html").write_text(f'<p id="x">{page}')
    broken, outside = check(tmp_path)
    found = [line for line in broken if line.startswith("index.html: ")]
    assert len(found) == len(LINKS)
    for line, link, says in zip(found, links, LINKS.values()):
        assert line.startswith(f"index.html: {link} ") and says in line
    assert outside["https://example.org"] == ["index.html"]


# ---- what the pages do


def shown(browser: Browser, menu: str) -> list[str]:
    "The pages whose names one sees in a menu."
    links = f"[...document.querySelectorAll('{menu} a[href]')]"
    seen = "a.checkVisibility() && !a.href.includes('#')"
    name = "a.href.split('/').pop() || 'index.html'"
    return browser.ask(f"{links}.filter(a => {seen}).map(a => {name})")


def test_menu_of_docs_opens_the_current_part(published, browser):
    "It shows the home page and its own part; the others open by the keyboard too."
    menu = sidebar()
    own = [page_name(path) for path in menu[""] + menu["The model"]]
    browser.open(published + "stack.html")
    assert shown(browser, "#quarto-sidebar") == own
    browser.ask("""new Promise(done => {
        addEventListener("shown.bs.collapse", () => done());
        [...document.querySelectorAll("#quarto-sidebar a[href]")].find(a => a.textContent.trim() === "Results").focus();
        document.activeElement.click();
    })""")
    assert "decode.html" in shown(browser, "#quarto-sidebar")


@pytest.mark.parametrize("name", TRANSLATED[:1])
def test_both_languages_side_by_side(published, browser, name):
    "Hidden at first, shown by the button and on the next visit; each page leads to the other."
    seen = (
        "[...document.querySelectorAll('original-text')].map(e => e.checkVisibility())"
    )
    for click, is_shown in ((False, False), (True, True), (False, True), (True, False)):
        browser.open(published + name)
        if click:
            browser.ask("document.querySelector('button.both').click()")
        unfolded = [*browser.ask(seen)]
        assert any(unfolded) == is_shown and len(unfolded) > 5
    lang, page = name.split("/")
    to = "[...document.querySelectorAll('.page-links a[hreflang][lang]')].map(a => a.href)"
    assert browser.ask(to) == [published + page, f"{published}zh-hant/{page}"]
    browser.open(published + page)
    assert published + name in browser.ask(to)


FOCUSED = """(e => {
    const {outlineStyle, outlineWidth, outlineColor} = getComputedStyle(e), seen = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
    return [e.className.baseVal ?? e.className, e.closest("svg, .aa-Form") || seen ? outlineColor : "not seen"];
})(document.activeElement)"""
IN_MENU = "document.activeElement.closest('#quarto-sidebar')"


def test_by_keyboard_alone(published, browser):
    "Through the bar and the menu of a phone and the search: its place is seen, and Escape leads back to the button."
    for scheme in ("light", "dark"):
        browser.open(published + "index.html", width=390, scheme=scheme)
        link = browser.ask("getComputedStyle(document.querySelector('main a')).color")
        press(browser, "Tab", "Tab")
        assert "quarto-btn-toggle" in browser.ask(FOCUSED)[0]
        press(browser, "Enter")
        wait_for(browser, "!!document.querySelector('#quarto-sidebar.show')")
        places = []
        while not browser.ask(f"!!{IN_MENU}"):
            places.append(browser.ask(FOCUSED))
            press(browser, "Tab")
        assert 3 < len(places) < 9 and {colour for _, colour in places} == {link}
        press(browser, "Escape")
        wait_for(
            browser, "!document.querySelector('#quarto-sidebar').checkVisibility()"
        )
        assert "quarto-btn-toggle" in browser.ask(FOCUSED)[0]
        browser.ask("document.querySelector('.aa-DetachedSearchButton').focus()")
        press(browser, "Enter")
        wait_for(browser, "document.activeElement.matches('.aa-Input')")
        browser.call("Input.insertText", text="softmax")
        wait_for(browser, "document.querySelectorAll('.aa-Item').length > 2")
        press(browser, "ArrowDown")
        browser.ask(CHECKS)
        assert browser.ask("page.faint('.aa-DetachedContainer')") == []
        press(browser, "Escape")
        wait_for(browser, "!document.querySelector('.aa-DetachedContainer')")
        wait_for(browser, "document.activeElement.matches('.aa-DetachedSearchButton')")


def test_nothing_moves_for_whom_motion_harms(published, browser):
    browser.open(published + "index.html", width=390)
    moving = """[...document.querySelectorAll("*")].filter(e => getComputedStyle(e).transitionDuration !== "0s")
        .map(e => e.tagName)"""
    assert len(browser.ask(moving)) > 1
    reduced = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.call("Emulation.setEmulatedMedia", features=[reduced])
    assert browser.ask(moving) == []


def test_links_in_a_text_are_underlined(published, browser):
    "Colour alone does not tell them from the text."
    plain = """[...document.querySelectorAll("main :is(p, li) a:not(.actions a, .contents a, nav a, svg a, .anchorjs-link)")]
        .filter(a => !getComputedStyle(a).textDecorationLine.includes("underline")).map(a => a.textContent)"""
    for name in ("index.html", "attention.html", "answers.html"):
        browser.open(published + name)
        assert browser.ask(plain) == [], name


PARTS = re.compile(
    r'(<nav id="TOC".*)<main\b.*?</header>(.*)<a [^>]*id="quarto-back-to-top"', re.S
)


def wrong_on_one_page(page: str, pages: dict[str, str]) -> list[str]:
    "What is wrong with the page of all lessons, whose own pages have these names and texts."
    tags = lambda text: " ".join(re.findall(r"<[a-zA-Z][^<>]*>", text))
    ids_of = lambda text: re.findall(r'\sid="([^"]+)"', tags(text))
    contents, text = PARTS.search(page).groups()
    ids = Counter(ids_of(text))
    whole = {n: ids_of(PARTS.search(page)[2]) for n, page in pages.items()}
    places = ((n, i) for n, ids in whole.items() for i in ids)
    parts_of_figure = re.compile(r"figure-\d+-")  # each page numbers its own
    wanted = [*pages, *(f"{n}-{i}" for n, i in places if not parts_of_figure.match(i))]
    named = r'(?:(?:href|target)="#|url\(#|anchor-id=")([^")]+)'
    links = re.findall(named, tags(contents + text))
    away = rf'href="(?:\./)?((?:{"|".join(pages)})\.html(?:#[^"]*)?)"'
    return [
        *(f"not there: {i}" for i in wanted if i not in ids),
        *(f"there {n} times: {i}" for i, n in ids.items() if n > 1),
        *(f"leads nowhere: {to}" for to in links if unquote(to) not in ids),
        *(f"leads to another page: {to}" for to in re.findall(away, contents + text)),
    ]


LESSONS = [page_name(path).removesuffix(".html") for path in evening_path()]
BROKEN = {  # what is changed on the page of all lessons, and what is said of it
    'id="masking"': ('id="mask"', "not there: masking"),
    'id="heads-summary"': ('id="stack-summary"', "there 2 times: stack-summary"),
    'href="#attention-': ('href="#', "leads nowhere: "),
    'href="#position"': ('href="./position.html"', "another page: position.html"),
}


@pytest.mark.parametrize("folder", [".", *(path.name for path in languages())])
def test_all_lessons_on_one_page(docs, folder):
    pages = {n: (docs / folder / f"{n}.html").read_text("utf-8") for n in LESSONS}
    page = (docs / folder / "evening.html").read_text("utf-8")
    assert wrong_on_one_page(page, pages) == []
    for old, (new, said) in BROKEN.items():
        found = wrong_on_one_page(page.replace(old, new, 1), pages)
        assert any(said in line for line in found), (old, found)


def test_llms_txt_names_every_page(docs, cfg):
    "In the order of the menu, with what each is about; the Markdown of each is there, without HTML."
    entry = r"^- \[.+?\]\((\S+)\.md\): \S"
    found = re.findall(entry, (docs / "llms.txt").read_text(encoding="utf-8"), re.M)
    home = f"{cfg['doc_host']}{cfg['doc_baseurl']}"
    assert found == [f"{home}/{name}" for name in NAMES]
    for name in NAMES:
        text = (docs / f"{name}.md").read_text(encoding="utf-8")
        text = re.sub(rf"{FENCED}|{INLINE}|^ {{4}}.*?$", "", text, flags=re.M | re.S)
        tag = r"</?(?:a|code|details|div|li|p|span|summary|svg|ul)\b[^<>]*>|&#\d+;|^:::"
        assert re.findall(tag, text, re.M) == [], name


def test_markdown_has_its_pictures_and_code(docs):
    for plain in docs.glob("*.html.md"):
        text = plain.read_text(encoding="utf-8")
        pictures = re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)", text)
        assert [p for p in pictures if not (docs / p).exists()] == [], plain.name
        blocks = re.findall(r"^```.*?^```", text, re.M | re.S)
        assert not any(map(LITERAL_LINK.search, blocks)), plain.name
