"Text as people have it has the translation of its plain form: by our search, by exports for CTranslate2 and transformers, in the live page."

import json
import unicodedata
from pathlib import Path

import pytest
from browser import Browser
from exported import read_by_ct2, read_by_transformers

from annotated_transformer.engines.batched_search import search_with
from annotated_transformer.export.ct2 import export_ct2
from annotated_transformer.export.hugging_face import export_hf
from annotated_transformer.show import live
from annotated_transformer.translating.load import load

TATOEBA = Path("tatoeba")
CAFE = "The café at the river is too expensive for an old naïve man."
ORDINARY = [
    # spaces
    ("Hello.\n", "Hello."),
    ("Hello.\r\n", "Hello."),
    ("\tHello there.\t", "Hello there."),
    ("Hello\u00a0there.", "Hello there."),
    ("Where\u202fis\u3000the\u2009station?", "Where is the station?"),
    ("I  don't   know.", "I don't know."),
    ("She is\ta teacher.", "She is a teacher."),
    ("We live in\u0085Berlin.", "We live in Berlin."),
    ("This is\u2028my brother.", "This is my brother."),
    ("\u2003Come in.\u205f", "Come in."),
    # marks that are not seen
    ("Where is the sta\u200btion?", "Where is the station?"),
    ("He is a gar\u00addener.", "He is a gardener."),
    ("\ufeffGood morning.", "Good morning."),
    ("Good\ufeff morning.", "Good morning."),
    ("I am\u200e tired.\u200f", "I am tired."),
    ("\u202aShe is here.\u202c", "She is here."),
    ("I love\u2060 you.", "I love you."),
    ("Open\u0001 the door.", "Open the door."),
    ("The \u0007dog is old.\u007f", "The dog is old."),
    ("I love this song ❤\ufe0f", "I love this song ❤"),
    # quotation marks, apostrophes, dashes, dots
    ("I can’t swim.", "I can't swim."),
    ("I canʼt swim.", "I can't swim."),
    ("I can´t swim.", "I can't swim."),
    ("He said, “I’m tired.”", "He said, \"I'm tired.\""),
    ("He said, „I’m tired.“", "He said, \"I'm tired.\""),
    ("He said, «I’m tired.»", "He said, \"I'm tired.\""),
    ("It’s a well‐known song.", "It's a well-known song."),
    ("It's a well‑known song.", "It's a well-known song."),
    ("Wait…", "Wait..."),
    ("I have 10–20 books.", "I have 10-20 books."),
    ("We won — at last.", "We won - at last."),
    ("We won―at last.", "We won - at last."),
    # ligatures, width, composition
    ("Your oﬃce is on the ﬁrst ﬂoor.", "Your office is on the first floor."),
    ("The ﬁsh is dead.", "The fish is dead."),
    ("Ｗｈｅｒｅ　ｉｓ　Ｔｏｍ？", "Where is Tom?"),
    ("Ｈｅｌｐ！", "Help!"),
    ("Where is Tom？", "Where is Tom?"),
    (unicodedata.normalize("NFD", CAFE), CAFE),
    (unicodedata.normalize("NFD", "Müller lives in Österreich."), "Müller lives in Österreich."),
    ("The room has 20 m².", "The room has 20 m2."),
    ("I drink ½ a cup.", "I drink 1/2 a cup."),
    ("It is № 5.", "It is No 5."),
    # other scripts beside it
    ("И\u0306ван is here.", "Йван is here."),
    ("か\u3099 is a sign.", "が is a sign."),
    ("（你好） means hello.", "(你好) means hello."),
    ("ﾃｽﾄ is a word.", "テスト is a word."),
]  # fmt: skip
ODD, PLAIN = zip(*ORDINARY)
# ends a text in C, so the tables of the exports cannot have it
NUL = ["\0Where is\0 the\0 sta\0tion?\0", "\0Where is\0 the station?\0\n"]
AS_IT_IS = ["-", "...", "12", "3.50 €", "♪ ♫", "00:01:05,100 --> 00:01:07,900", "👍"]
NOTHING = [
    "",
    "\0",
    "\0 \0\n",
    " ",
    "\u200b",
    "\ufeff\u00ad\u200e",
    "\u00a0\t\u3000",
    "\n",
]


def by_ours(folder: Path, texts: list[str]) -> list[str]:
    return load(TATOEBA, search=search_with(4, alpha=0.0)).translate(texts)


def by_ct2(folder: Path, texts: list[str]) -> list[str]:
    export_ct2(TATOEBA, folder / "out")
    return read_by_ct2(folder / "out", texts)


def by_transformers(folder: Path, texts: list[str]) -> list[str]:
    export_hf(TATOEBA, folder / "out")
    return read_by_transformers(folder / "out", texts)


@pytest.mark.parametrize("by", [by_ours, by_ct2, by_transformers])
def test_as_the_plain_form(tmp_path, by):
    found = by(tmp_path, [*ODD, *PLAIN])
    assert found[: len(ODD)] == found[len(ODD) :]
    assert "" not in found and "\ufffd" not in "".join(found)


def test_nul():
    "From a string and from a file, in which nothing else looks like UTF-16."
    tatoeba = load(TATOEBA)
    assert tatoeba.translate(NUL) == [tatoeba.translate("Where is the station?")] * 2
    assert tatoeba.vocab.encode_many(NUL) == [*map(tatoeba.vocab.encode, NUL)]


def test_nothing_to_translate():
    tatoeba = load(TATOEBA)
    assert tatoeba.translate(NOTHING) == [""] * len(NOTHING)
    assert tatoeba.translate(AS_IT_IS) == AS_IT_IS
    text = "12\n00:01:05 --> 00:01:07\nHello.\n\n13"
    hello = tatoeba.translate("Hello.")
    assert tatoeba.translate(text, split=True) == text.replace("Hello.", hello)
    assert len(tatoeba.n_best([text])[0]) == 1


def test_in_the_live_page(browser: Browser, tmp_path):
    "Each as the package translates the plain form."
    live.write_live_page(TATOEBA, tmp_path / "live.html")
    browser.open((tmp_path / "live.html").as_uri())
    translate = "textOf(generatedIds(searchTranslation({}, SWITCHES)))"
    found = [browser.ask(translate.format(json.dumps(text))) for text in [*ODD, *NUL]]
    assert found == load(TATOEBA).translate([*PLAIN, *NUL])
    several = "Good morning.  How are you?\n42\n— Yes.“ “No.” ..."
    for text in [*AS_IT_IS, several]:
        browser.ask(f"submit({json.dumps(text)})")
        found = browser.ask("byId('result').textContent")
        assert found == load(TATOEBA).translate(text, split=True)
        kept = browser.ask("byId('message').textContent").startswith("No letter")
        assert kept == (text != several)
