"The home page: its box with a model, which stands in place of its pictures; the card that other sites show of a link; the heads of live pages."

import json
import re
import textwrap
from functools import cache
from html import escape, unescape
from pathlib import Path

from cells import ROOT, heading, settings
from jinja2 import Template
from lxml.html import HtmlElement, fragment_fromstring
from lxml.html.builder import E
from vl_convert import svg_to_png

NBS = ROOT / "nbs"
SCRIPTS = ROOT / settings()["lib_path"] / "show/pages"


def live_file(name: str) -> str:
    "What the live page of a pretrained run is called."
    return "live_page.html" if name == "demo" else f"live_{name}.html"


def template(name: str) -> Template:
    return Template((NBS / name).read_text(encoding="utf-8"), autoescape=True)


# ---- a live page of the site

DATA = r'<script type="application/json" id="data">(.*)</script>'
FAILED = "window.onerror = null; (e => e.textContent = e.dataset.failed)(document.getElementById('loading'))"
FETCH = f'<script src="{{}}" onerror="{FAILED}"></script>'


def publish_live_page(page: Path, data: Path, up: str, **said) -> None:
    "It fetches its model from the file `data`, which is written if the page is in its folder, and its head says whose it is."
    text = page.read_text(encoding="utf-8")
    [packed] = re.findall(DATA, text)
    if not up:
        data.write_text(f"globalThis.liveData = {packed};\n", encoding="utf-8")
    text = re.sub(DATA, FETCH.format(up + data.name), text)
    own = "script-src 'unsafe-inline' 'self'; img-src 'self'"
    text = text.replace("script-src 'unsafe-inline'", own)
    name = unescape(re.search("<title>(.*)</title>", text)[1])
    about = re.search(r'name="description"\s+content="(.*?)"', text)[1]
    said |= {"page": page.name, "up": up, "name": name, "about": unescape(about)}
    head = template("live_head.html").render(said, title=settings()["title"])
    page.write_text(text.replace("<style>", f"{head}\n<style>", 1), encoding="utf-8")


# ---- the box

# of show/pages, which home.js needs
ENGINE = ("weights", "tokenizer", "sentences", "transformer", "live_tokens")
PRONOUNS = ("er", "sie", "es", "他", "她", "它")  # live_tokens.js has them too
CAPTION = "Predicting “{token}”, layer {layer}, head {head} attends most to “{source}” ({weight}). Press another token to see its line."


def home_script() -> str:
    "The script of the box: the live page's engine and home.js, in a function of their own."
    files = [*(SCRIPTS / f"{name}.js" for name in ENGINE), NBS / "home.js"]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return f'"use strict";\n(() => {{\n{code}}})();\n'


@cache
def first_view(name: str, data: Path) -> tuple[dict, dict]:
    "What the box shows before its model has arrived, and what the file of the model says about it."
    from annotated_transformer.runs.folder import load_run
    from annotated_transformer.show.live import opening_translation

    text = data.read_text(encoding="utf-8").partition(" = ")[2]
    about = json.loads(text.rstrip(";\n"))["page"]
    text, opening = about["examples"][0], about["opening"]
    view = opening_translation(load_run(Path(name)), text, opening)
    at = [i for i, x in enumerate(view["target"]) if x["token"] in PRONOUNS]
    return view | {"step": at[0] if at else 0}, about


def live_box(name: str, data: Path, place: str, texts: dict[str, str]) -> HtmlElement:
    "The box of a pretrained run, whose model is in the file `data`; `texts` has what a language says."
    from annotated_transformer.show.explorer import page_strings

    view, about = first_view(name, data)
    say, chosen = lambda text: texts.get(text, text), view["target"][view["step"]]
    weight = max(chosen["weights"])
    best = chosen["weights"].index(weight)
    values = {"token": chosen["token"], "source": view["source"][best]}
    values |= {"layer": view["layer"] + 1, "head": view["head"] + 1}
    made = template("home.html").render(
        view=view,
        best=best,
        rows=max(len(view["source"]), len(view["target"])),
        caption=say(CAPTION),
        said=say(CAPTION).format(weight=f"{weight:.2f}", **values),
        examples=about["examples"][:2] + about["examples"][-1:],
        src_lang=about["src_lang"],
        tgt_lang=about["tgt_lang"],
        model=f"{'../' if place else ''}{data.name}",
        mb=f"{0.75 * data.stat().st_size / 1e6:.0f}",
        page=live_file(name),
        strings=page_strings("live", place or "en"),
        say=say,
    )
    return fragment_fromstring(made)


def add_map(box: HtmlElement, svg: HtmlElement, names: dict[str, str]) -> None:
    "The map of the model, each of its boxes a link to the live page."
    data = json.loads(box.find("script").text)
    of_cross = f"&layer={data['layer']}&head={data['head']}&step={data['step'] + 1}"
    svg.set("role", "group")
    for g in svg.xpath(".//g[@data-box]"):
        key = g.attrib.pop("data-box")
        more = of_cross if key == "decoder.cross" else ""
        href = f"{box.get('data-page')}#box={key}{more}"
        label = names[f"box.{key}"]
        door = E.a({"href": href, "data-box": key, "aria-label": label})
        g.addprevious(door)
        door.tail, g.tail = g.tail, None
        door.append(g)
    box.find_class("map")[0].append(svg)


def finish_home(page: HtmlElement, docs: Path, place: str, says: dict) -> None:
    "Pictures become the box, a paragraph of links buttons. A language may name a model of its own, as `home_model`."
    from annotated_transformer.show.explorer import page_strings

    name = says.get("home_model", "tatoeba")
    data = docs / live_file(name).replace(".html", ".js")
    box = live_box(name, data, place, says.get("texts", {}))
    [link] = page.xpath("//main//a[span[@class='drawing']]")
    [svg] = link.xpath(".//svg[.//g[@data-box]]")
    add_map(box, svg, page_strings("live", place or "en"))
    old = link.getparent()
    box.tail = old.tail
    old.getparent().replace(old, box)
    for a in page.xpath(f"//main//a[contains(@href, '{live_file('tatoeba')}')]"):
        a.set("href", a.get("href").replace(live_file("tatoeba"), live_file(name)))
    for p in page.xpath("//main//p[strong[2]/a and not(*[not(self::strong/a)])]"):
        p.set("class", "actions")
    page.head.append(E.script(src="home.js", defer="defer"))


# ---- the card

CARD = """<svg xmlns="http://www.w3.org/2000/svg" width="1200" height="630" viewBox="0 0 1200 630" font-family="Roboto, DejaVu Sans, sans-serif">
<rect width="1200" height="630" fill="#fffefc"/>{lines}
<text x="70" y="560" font-size="27" font-weight="600" fill="#0a558c">{name}</text>
<svg x="670" y="26" width="512" height="578" viewBox="0 0 630 712">{drawing}</svg></svg>"""


def card_svg() -> str:
    "The home page's title and Figure 1 beside each other; styles as old as the converter knows."
    drawing = (NBS / "images/transformer.svg").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", drawing.partition("@supports")[0]))
    drawing = re.sub(r"(?ms)^@supports.*?^\}\n", "", drawing)
    drawing = re.sub(r"(?m)^.*(?::root|:hover|:focus|\[data-theme).*\n", "", drawing)
    drawing = re.sub(r"var\(--([\w-]+)\)", lambda m: colours[m[1]], drawing)
    drawing = re.sub(r"(?s)^.*?<style>", '<g class="at-drawing"><style>', drawing)
    drawing = drawing.replace("</svg>", "</g>").replace(
        "system-ui, -apple-system", "Roboto"
    )
    drawing = drawing.replace("; each box is a link", "")
    title, about = heading(NBS / "index.ipynb")
    about = re.sub('"([^"]*)"', r"“\1”", about.partition(": ")[2] or about)
    lines, y = [], 130
    for text, width, size, style in (
        (title, 20, 46, 'font-weight="700" fill="#1f2328"'),
        (about, 32, 31, 'fill="#5a636d"'),
    ):
        for line in textwrap.wrap(text, width):
            lines.append(
                f'<text x="70" y="{y}" font-size="{size}" {style}>{escape(line)}</text>'
            )
            y += round(1.25 * size)
        y += 40
    return CARD.format(
        lines="\n".join(lines), name=settings()["title"], drawing=drawing
    )


def write_card(to: Path) -> None:
    to.write_bytes(svg_to_png(card_svg()))
