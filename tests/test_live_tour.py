"Besides its tensors the live page has a tour, translates while one types, samples from fewer tokens, saves drawings; and runs models of real text."

import gzip
import json
import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from browser import Browser
from test_explorer import click, press
from test_live_page import ES, TIRED, focused, open_page, settle, shown

from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.model.decode import draw
from annotated_transformer.show import live
from annotated_transformer.translating.load import load

N_STEPS = 10


@pytest.fixture(scope="module")
def url(live_page) -> str:
    return live_page.as_uri()


@pytest.fixture
def page(browser, url) -> Browser:
    open_page(browser, url)
    return browser


# --- the tour

IN_SIGHT = """(name => {
  const target = document.querySelector(".toured").getBoundingClientRect();
  const panel = byId("tour").getBoundingClientRect();
  return target.top < panel.top - 40 && target.bottom > 0 && panel.bottom <= innerHeight
    && panel.left >= 0 && panel.right <= innerWidth;
})()"""


@pytest.mark.parametrize(
    "width, scheme", [(1280, "light"), (390, "dark"), (320, "light")]
)
def test_each_step_shows_what_it_is_about(browser, url, width, scheme):
    "By keyboard: the panel, what it is about next to it, nothing to scroll sideways."
    open_page(browser, url, {"width": width, "scheme": scheme})
    browser.ask("byId('tour-start').focus()")
    press(browser, "Enter")
    assert focused(browser) == "tour-title"
    press(
        browser, "Tab", "Tab"
    )  # past the link to the notebook, and Back, which is off
    assert focused(browser) == "tour-next"
    titles = []
    for step in range(1, N_STEPS + 1):
        assert browser.ask("state.tour") == step
        assert shown(browser, "tour-count") == f"Step {step} of {N_STEPS}"
        assert browser.ask("byId('tour-text').querySelector('a').href").startswith("h")
        assert browser.ask(IN_SIGHT), step
        assert browser.ask("document.documentElement.scrollWidth") == width
        titles.append(shown(browser, "tour-title"))
        if step < N_STEPS:
            press(browser, "Enter")
    assert len(set(titles)) == N_STEPS
    assert (
        focused(browser) == "tour-end"
    )  # Next is off now, and must not lose the focus
    assert browser.ask("byId('tour-next').disabled && !byId('tour-back').disabled")
    press(browser, "Escape")
    assert browser.ask("[state.tour, byId('tour').hidden]") == [0, True]
    assert focused(browser) == "tour-start"


def test_steps_of_the_tour(page):
    "Each is the state that its text speaks of."
    found = {}
    for step in range(1, N_STEPS + 1):
        page.ask(f"goTo({step})")
        keys = "[state.box, state.stage, state.drawing, state.step, state.off.join()]"
        found[page.ask(f"TOUR[{step} - 1][0]")] = page.ask(keys)
        if step == 6:
            assert "masked" in shown(page, "legend")
    assert found["tokens"][:2] == ["encoder.tokens", ""]
    assert found["embedding"][:2] == ["encoder.embedding", "embedding"]
    assert found["position"][:2] == ["encoder.position", "position"]
    assert (
        found["query"] == found["heads"] == ["encoder.self", "weights", "matrix", 0, ""]
    )
    assert found["mask"][:2] == ["decoder.self", "masked"]
    assert found["cross"][:3] == ["decoder.cross", "weights", "lines"]
    assert found["softmax"][1:4] == ["logProbs", "matrix", 1]
    assert found["break"][4] == "positions"
    assert page.ask("String(run.ids) !== String(run.intactIds)")


def test_a_link_to_a_step(browser, url):
    "Also a short one; what else the address names goes before what the step sets."
    open_page(browser, url, tour=6)
    assert browser.ask("[state.box, state.stage]") == ["decoder.self", "masked"]
    assert browser.ask(IN_SIGHT) and focused(browser) != "tour-title"
    browser.ask("change({layer: 1})")
    settle(browser)
    address = browser.ask("location.href")
    assert "tour=6" in address
    open_page(browser, address)
    assert browser.ask("[state.tour, state.stage, state.layer]") == [6, "masked", 1]
    open_page(browser, url, tour=6, stage="scores", text="The dog sleeps.")
    assert browser.ask("[state.stage, state.text]") == ["scores", "The dog sleeps."]
    for wrong in ("99", "-1", "1.5", "x"):
        open_page(browser, url, tour=wrong)
        assert shown(browser, "result")
        assert 0 <= browser.ask("state.tour") <= N_STEPS


def test_the_tour_keeps_the_sentence_and_traps_nobody(page):
    page.ask("change({text: 'The dog sleeps.', off: ['scale']}); goTo(1)")
    assert page.ask("[state.text, state.off]") == ["The dog sleeps.", []]
    assert focused(page) == "tour-title"
    press(page, "Tab", "Tab", "Tab", "Tab")
    assert focused(page) == "sentence"  # the page goes on after the panel
    press(page, "Escape")
    assert page.ask("state.tour") == 0
    assert focused(page) == "sentence"  # the focus was not in the panel, and stays
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    assert not any(x.get("name", {}).get("value") == "End the tour" for x in tree)
    page.ask("goTo(2)")
    tree = page.call("Accessibility.getFullAXTree")["nodes"]
    value = lambda node, key: node.get(key, {}).get("value")
    seen = {(value(node, "role"), value(node, "name")) for node in tree}
    assert {("button", "Next"), ("button", "End the tour")} < seen
    assert ("complementary", "Tour") in seen and ("heading", "Embedding") in seen
    assert page.ask("byId('tour-step').ariaLive") == "polite"


# --- translating while one types


def wait_for(browser: Browser, condition: str) -> None:
    until = time.monotonic() + 50
    while not browser.ask(condition):
        assert time.monotonic() < until, condition
        time.sleep(0.05)


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


# --- sampling from fewer tokens


@pytest.mark.parametrize("top_p", [0.2, 0.5, 0.91, 0.95])
def test_top_p_keeps_the_tokens_of_the_package(page, top_p):
    "The fewest that have this probability together."
    page.ask("change({temperature: 2, step: 9})")
    probs = torch.tensor(page.ask("[...nextProbabilities()]"))
    kept = page.ask(f"[...truncated(nextProbabilities(), 0, {top_p})]")
    ids = {i for i, p in enumerate(kept) if p > 0}
    rng = torch.Generator().manual_seed(0)
    rows = probs.log().expand(2000, -1)
    found = set(draw(rows, 1.0, top_p, rng)[1].tolist())
    assert found <= ids
    total = probs[sorted(ids)].sum()
    assert total >= top_p - 1e-5 > total - probs[sorted(ids)].min() - 2e-5
    assert probs[sorted(ids)].min() >= probs[sorted(set(range(len(probs))) - ids)].max()


def test_what_is_cut_off_is_shown(page):
    page.ask("change({temperature: 3, topK: 3, step: 9, beam: 1})")
    names = "[...byId('next').querySelectorAll('.cut .name')].map(x => x.textContent)"
    every = "[...byId('next').querySelectorAll('.name')].map(x => x.textContent)"
    assert page.ask(names) == page.ask(every)[3:] and len(page.ask(every)) == 10
    sure = page.ask("sum([...nextProbabilities()].sort((a, b) => b - a).slice(0, 3))")
    assert f"from 3 of 2000 tokens, which have {sure:.2f}" in shown(page, "next-kept")
    assert shown(page, "topK-value") == "3" and shown(page, "result") == ES
    found = set()
    for seed in range(1, 9):
        page.ask(f"change({{topK: 2, seed: {seed}}})")
        found.add(shown(page, "result"))
        best = """run.ids.every((id, i) => { change({step: i + 1});
            return largest(nextProbabilities(), 2).includes(id); })"""
        if seed == 1:
            assert page.ask(best)
            page.ask("change({step: 9})")
    assert len(found) > 1
    assert "temperature 3, top-k 2" in shown(page, "effect")
    page.ask("change({topK: 1})")  # the most probable token, so greedy search
    assert shown(page, "result") == ES
    click(page, "[data-key='action:reset']")
    assert page.ask("[state.topK, state.topP, state.seed]") == [0, 1, 0]
    assert page.ask(names) == [] and shown(page, "next-kept") == ""


# --- examples that change


def test_each_switch_has_an_example_that_changes(page):
    "Found by the page among its examples, and true by the package's word for both."
    for name in ("scale", "causal", "positions", "residual"):
        page.ask(f"change({{off: [{name!r}], text: 'The dog sleeps.'}})")
        wait_for(page, f"breaking[{name!r}]")
        click(page, f"[data-key='action:example:{name}']")
        assert page.ask("state.off") == [name]
        text = page.ask("state.text")
        assert text in live._EXAMPLES and page.ask("byId('sentence').value") == text
        assert shown(page, "result") != load("demo").translate([text])[0], name
        assert page.ask("String(run.ids) !== String(run.intactIds)")


# --- drawings as files

SVG = "{http://www.w3.org/2000/svg}"


def saved(browser: Browser, folder: Path, name: str) -> tuple[str, ET.Element]:
    "The file that the button of this drawing gives."
    behaviour = {"behavior": "allow", "downloadPath": str(folder)}
    browser.call("Page.setDownloadBehavior", **behaviour)
    before = set(folder.iterdir())
    click(browser, f"[data-save={name}]")
    until = time.monotonic() + 30
    while not (new := {x for x in folder.iterdir() if x.suffix == ".svg"} - before):
        assert time.monotonic() < until
        time.sleep(0.05)
    path = new.pop()
    return path.name, ET.fromstring(path.read_text("utf-8"))


def test_drawings_are_saved_as_they_are_shown(browser, url, tmp_path):
    "Also of the dark page, on white, with nothing from elsewhere."
    open_page(browser, url, {"scheme": "dark"})
    browser.ask("goTo(6)")
    name, matrix = saved(browser, tmp_path, "matrix")
    assert name == "decoder.self-masked-1-1.svg"
    rows = browser.ask(
        "view.rows.map(row => [...row].map(x => x === -Infinity ? null : x + 0))"
    )
    largest = browser.ask("view.max")
    cells = [x for x in matrix.iter(f"{SVG}rect") if x.get("fill-opacity")]
    wanted = [
        0.35 if value is None else min(1, abs(value) / largest)
        for row in rows
        for value in row
    ]
    opacities = [float(cell.get("fill-opacity")) for cell in cells]
    assert opacities == pytest.approx([x for x in wanted if x >= 0.005], abs=6e-4)
    browser.ask("goTo(7)")
    name, lines = saved(browser, tmp_path, "lines")
    paths = [float(x.get("stroke-opacity")) for x in lines.iter(f"{SVG}path")]
    weights = [w for row in browser.ask("view.rows.map(x => [...x])") for w in row]
    assert paths == pytest.approx([w for w in weights if w >= 0.005], abs=6e-4)
    name, tree = saved(browser, tmp_path, "tree")
    n = browser.ask("run.search.tree.flat().length")
    assert name == "beam-4.svg" and len(list(tree.iter(f"{SVG}path"))) == n
    for root, tokens in (
        (matrix, "shownTokens(run.tgtIds)"),
        (lines, "shownTokens(run.srcIds)"),
        (tree, "shownTokens(run.ids)"),
    ):
        texts = [x.text for x in root.iter(f"{SVG}text")]
        assert set(browser.ask(tokens)) <= set(texts)
        ground = root.find(f"{SVG}rect")
        assert ground.get("fill") == "#ffffff"
        assert root.get("fill") == "rgb(27, 37, 48)"  # the ink of the light page
        source = ET.tostring(root, "unicode")
        assert not re.search(r"var\(|url\(|href|class=|style=", source)
        width = float(root.get("width"))
        assert all(0 <= float(x.get("x")) <= width for x in root.iter(f"{SVG}text"))


# --- a model of real text


@pytest.fixture(scope="module")
def real_url(pretrained, tmp_path_factory) -> str:
    "The page of a run that is none of the synthetic corpus, as one of real text."
    sentences = ["Where is the hat?", TIRED]
    about = {"data": "tatoeba", "src_lang": "en", "tgt_lang": "de", "source": {}}
    about |= {"examples": sentences}
    page = live.live_page(pretrained._replace(about=about), file="live_real.html")
    path = tmp_path_factory.mktemp("real") / "live.html"
    path.write_text(page, "utf-8")
    return path.as_uri()


def test_page_of_real_text(browser, real_url):
    "Its own examples, its source named, no list of words and no remark that needs one."
    open_page(browser, real_url)
    presets = "[...byId('presets').children].map(x => x.textContent)"
    assert browser.ask(presets) == ["Where is the hat?", TIRED]
    assert browser.ask("state.text") == "Where is the hat?"
    assert "https://tatoeba.org" in shown(browser, "attribution")
    assert shown(browser, "attribution").endswith("Licence: CC BY 2.0 FR.")
    assert browser.ask("byId('known').hidden")
    for line in (
        *(
            "Nice hat! I was in the war.",
            "the hat was here",
            "THE ZEBRA DIED.",
            "So what",
        ),
        *("Unbelievably quick unicorns.", "He said: “No.” Then he left."),
    ):
        remark = browser.ask(f"remarkOn({json.dumps(line)})")
        assert not remark or "did not occur" in remark, line
    assert "“U+FE0F”" in browser.ask("remarkOn('❤\\ufe0f')")
    assert "looks like German" in browser.ask("remarkOn('Das ist nicht gut.')")
    for step in range(1, N_STEPS + 1):  # the tour needs no “it”
        browser.ask(f"goTo({step})")
        assert browser.ask("byId('tour-title').textContent && !byId('tour').hidden")


TYPED = [
    "The printer on the second floor is broken again.",
    "where is the nearest train station",
    "“I don’t believe you,” she said.",
    "could you send me the file again? i can't open it",
    "I love this song ❤️",
    "We won! 🎉🎉",
    "THIS IS TOO LOUD!",
    TIRED,
]


@pytest.fixture(scope="module")
def tatoeba(tmp_path_factory) -> Path:
    "The page of the pretrained model of everyday sentences."
    path = tmp_path_factory.mktemp("tatoeba") / "live.html"
    live.write_live_page(Path("tatoeba"), path, file="live_tatoeba.html")
    return path


def test_page_of_everyday_sentences_is_small(browser, tatoeba):
    "4 MB, 3 compressed."
    text = tatoeba.read_bytes()
    assert len(text) <= 4_000_000 and len(gzip.compress(text)) <= 3_000_000
    open_page(browser, tatoeba.as_uri())
    assert shown(browser, "result") == ES and "CC BY" in shown(browser, "attribution")


def test_page_of_everyday_sentences_translates_as_the_package(browser, tatoeba):
    "However they are typed."
    open_page(browser, tatoeba.as_uri())
    wanted = load("tatoeba", search=search_with(4)).translate(TYPED)
    for line, translation in zip(TYPED, wanted, strict=True):
        call = f"searchTranslation({json.dumps(line)}, SWITCHES)"
        assert browser.ask(f"vocab.decode(generatedIds({call}))") == translation
