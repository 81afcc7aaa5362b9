"The lessons of the evening path one after the other, below the text of its page: to be read in one scroll, or printed."

import re
from pathlib import Path

MAIN = r'(?P<head>.*<main\b.*?</header>)(?P<text>.*)(?P<end><a [^>]*id="quarto-back-to-top".*)'
CONTENTS = r'(<nav id="TOC"[^>]*>.*?)(<ul>.*</ul>)(?=\s*</nav>)'
LEFT_OUT = (  # of a lesson: its links, the program of live charts, what Quarto says to authors
    r'<nav class="page-links".*?</nav>|<script\b.*?</script>|<!--.*?-->'
)
START, END = "<!-- the lessons -->", "<!-- end of the lessons -->"
TAG = r"<[a-zA-Z][^<>]*>"
# In a tag: a name of a place, a mention of one, or an address of a page of the site.
NAMED = (
    r'\b(?:(?:id|for|aria-(?:labelled|described)by)="|(?:href|data-scroll-target)="#|[\w-]+="url\(#)(?=[^"])'
    r'|\bhref="(?:\./)?(?P<page>\w+)\.html(?P<hash>#?)(?=["\w])'
)
SHOWN_CODE = r'(?<!</summary>\n)<div class="sourceCode cell-code".*?</pre></div>'
FOLD = """<p class="fold-code"><label><input type="checkbox" id="fold-code"> {}</label></p>
<script>
const fold = document.getElementById("fold-code");
const unfold = () => document.querySelectorAll("details.code").forEach(code => code.open = !fold.checked);
fold.addEventListener("change", unfold);
addEventListener("pageshow", unfold); // a browser that comes back keeps the choice
</script>"""


def divided(page: str) -> re.Match:
    "A page of Quarto's: what is before the text of its main element, the text, and the rest."
    return re.fullmatch(MAIN, page, re.S)


def moved(html: str, lesson: str, lessons: set[str]) -> str:
    "HTML of a lesson in the one page: names of places begin with the lesson's, and links between lessons stay on the page."

    def change(m: re.Match) -> str:
        if m["page"]:
            to = m["page"] in lessons
            return f'href="#{m["page"]}{m["hash"] and "-"}' if to else m[0]
        return f"{m[0]}{lesson}-" if lesson else m[0]

    return re.sub(TAG, lambda tag: re.sub(NAMED, change, tag[0]), html)


def lesson(page: str, name: str, lessons: set[str], code: str) -> tuple[str, str]:
    "A page as a section of the one page, and its entry in the contents. Code that is not folded gets a fold, which is open."
    parts = divided(page)
    title = re.search(r'<h1 class="title">(.*?)</h1>', parts["head"], re.S)[1]
    about = re.search(r'<div class="description">.*?</div>', parts["head"], re.S)
    fold = rf'<details class="code-fold code" open><summary>{code}</summary>\n\g<0>\n</details>'
    text = re.sub(LEFT_OUT, "", parts["text"], flags=re.S)
    text = moved(re.sub(SHOWN_CODE, fold, text, flags=re.S), name, lessons)
    inner = re.search(CONTENTS, parts["head"], re.S)
    inner = moved(inner[2], name, lessons).replace(" active", "", 1)
    inner = inner.replace("<ul>", '<ul class="collapse">', 1)
    link = f'<a href="#{name}" id="toc-{name}" class="nav-link" data-scroll-target="#{name}">{title}</a>'
    head = f'<h1 class="anchored" data-anchor-id="{name}">{title}</h1>'
    section = f'<section id="{name}" class="level1 lesson">{head}\n{about[0] if about else ""}{text}</section>'
    return section, f"<li>{link}\n{inner}</li>"


def write_lessons(file: Path, names: list[str], texts: dict[str, str]) -> None:
    "Below the text of a page the lessons of these names, which are pages of its folder; in its margin, their contents."
    pages = {
        name: (file.parent / f"{name}.html").read_text(encoding="utf-8")
        for name in names
    }
    code, choice = (texts.get(text, text) for text in ("Code", "Fold the code"))
    made = [lesson(page, name, {*names}, code) for name, page in pages.items()]
    parts = divided(file.read_text(encoding="utf-8"))
    own = re.sub(f"{START}.*{END}", "", parts["text"], flags=re.S)
    above, nav, report = moved(own, "", {*names}).rpartition('<nav class="page-links"')
    sections = "\n".join([START, FOLD.format(choice), *(s for s, _ in made), END])
    items = "\n".join(item for _, item in made)
    contents = lambda m: f"{m[1]}<ul>\n{items}\n</ul>"
    head = re.sub(CONTENTS, contents, parts["head"], count=1, flags=re.S)
    page = head + above + sections + nav + report + parts["end"]
    file.write_text(page, encoding="utf-8")
