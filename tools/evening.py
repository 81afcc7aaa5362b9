"The lessons of the evening path one after the other, below the text of its page: to be read in one scroll, or printed."

import re
from copy import deepcopy
from html import escape

from lxml.html import HtmlElement, fragment_fromstring

# Attributes that name places.
PLACES = {"id", "for", "data-anchor-id", "aria-labelledby", "aria-describedby"}
LINK = r"#(?P<here>.+)|(?:\./)?(?P<page>\w+)\.html(?:#(?P<there>.+))?"
NOT_TAKEN = ".//header | .//script | .//a[@class='skip' or @role='button']"
SHOWN_CODE = ".//div[contains(@class, 'cell-code')][not(parent::details)]"
FOLDED = '<details class="code-fold code" open><summary>{}</summary></details>'
ENTRY = '<li><a href="#{0}" id="toc-{0}" class="nav-link" data-scroll-target="#{0}">{1}</a></li>'
CHOICE = """<div><p class="fold-code"><label><input type="checkbox" id="fold-code"> {}</label></p>
<script>
const fold = document.getElementById("fold-code");
const unfold = () => document.querySelectorAll("details.code").forEach(code => code.open = !fold.checked);
fold.addEventListener("change", unfold);
addEventListener("pageshow", unfold); // a browser that comes back keeps the choice
</script></div>"""


def move(part: HtmlElement, lesson: str, lessons: dict[str, HtmlElement]) -> None:
    "To the one page: names of places begin with the lesson's, and links between lessons stay on the page."
    prefix = lesson and f"{lesson}-"

    def lead(m: re.Match) -> str:
        if m["here"]:
            return f"#{prefix}{m['here']}"
        to = "-".join(filter(None, [m["page"], m["there"]]))
        return f"#{to}" if m["page"] in lessons else m[0]

    for el in part.iter("*"):
        for key, value in el.items():
            if key in PLACES:
                el.set(key, prefix + value)
            elif key in ("href", "data-scroll-target"):
                el.set(key, re.sub(rf"^(?:{LINK})$", lead, value))
            elif "url(#" in value:
                el.set(key, value.replace("url(#", f"url(#{prefix}"))


def contents(page: HtmlElement) -> HtmlElement:
    return page.get_element_by_id("TOC").find("ul")


def write_lessons(
    page: HtmlElement, lessons: dict[str, HtmlElement], code: str, choice: str
) -> None:
    "Below the text of a page these pages as sections, and in its margin their contents. Code that is not folded gets a fold, which is open."
    margin, end = contents(page), page.get_element_by_id("quarto-back-to-top")
    for part in page.get_element_by_id("title-block-header").itersiblings():
        move(part, "", lessons)
    margin.clear()
    end.addprevious(fragment_fromstring(CHOICE.format(choice)))
    for name, lesson in lessons.items():
        section, inner = deepcopy(lesson.find(".//main")), deepcopy(contents(lesson))
        title, about = section.find(".//h1"), section.find_class("description")
        for el in section.xpath(NOT_TAKEN):
            el.drop_tree()
        for shown in section.xpath(SHOWN_CODE):
            fold = fragment_fromstring(FOLDED.format(code))
            shown.addprevious(fold)
            fold.append(shown)
        for part in (section, inner):
            move(part, name, lessons)
        section.tag = "section"
        section.attrib.update({"id": name, "class": "level1 lesson"})
        title.attrib.update({"class": "anchored", "data-anchor-id": name})
        section[:0] = [title, *about]
        end.addprevious(section)
        for el in inner.find_class("active"):
            el.classes.discard("active")
        inner.set("class", "collapse")
        entry = fragment_fromstring(ENTRY.format(name, escape(title.text_content())))
        entry.append(inner)
        margin.append(entry)
