"A text is divided at the same places by the package and by the live page, in every script and around abbreviations."

import pytest
import regex
from engine import Engine

from annotated_transformer.translating.divide import (
    SENTENCE_PATTERNS,
    divide,
    sentences,
)
from annotated_transformer.translating.load import load
from annotated_transformer.translating.translate import Translator

# texts, divided where | is: two or three short sentences of each script
SCRIPTS = """
The dog sleeps. |Where is the cat? |Come here!
Der Hund schläft. |„Wo ist die Katze?“ |Komm!
Собака спит. |Где кошка? |Иди сюда!
Πού είσαι; |Είμαι στο σπίτι. |Έλα!
Πού είσαι\u037e |Εδώ.
Շունը քնում է։ |Որտե՞ղ է կատուն։ |Արի՛։
ძაღლს სძინავს. |სად არის კატა? |Tom აქ არის. |ის მოვიდა.
הכלב ישן. |איפה החתול?
الكلب نائم. |أين القطة؟ |تعال!
کتا سو رہا ہے۔ |بلی کہاں ہے؟
ܟܠܒܐ ܕܡܟ܁ |ܐܝܟܐ ܗܝ܀
ކުއްތާ ނިދަނީ. |ބުޅާ ކޮބާ؟
कुत्ता सो रहा है। |बिल्ली कहाँ है? |यहाँ आओ!
कुत्ता सो रहा है।|बिल्ली कहाँ है॥
কুকুর ঘুমাচ্ছে। |বিড়াল কোথায়?
ਕੁੱਤਾ ਸੌਂ ਰਿਹਾ ਹੈ। |ਬਿੱਲੀ ਕਿੱਥੇ ਹੈ?
நாய் தூங்குகிறது. |பூனை எங்கே?
ခွေးအိပ်နေတယ်။ |ကြောင်ဘယ်မှာလဲ။
ឆ្កែកំពុងដេក។ |ឆ្មានៅឯណា?
ውሻው ተኝቷል። |ድመቷ የት ናት፧ |ና!
ᠨᠣᠬᠠᠢ ᠤᠨᠲᠠᠵᠤ ᠪᠠᠢᠨ᠎ᠠ᠃ |ᠮᠤᠤᠷ ᠬᠠᠮᠢᠭ᠎ᠠ᠃
ߥߟߎ ߓߊ߯ ߛߌߣߐ߹ |ߖߊߞߎߡߊ ߦߋ ߡߌ߲߫؟
ᱥᱮᱛᱟ ᱡᱟᱹᱯᱤᱫ ᱟᱠᱟᱱᱟ᱾ |ᱯᱩᱥᱤ ᱚᱠᱟᱨᱮ᱾
狗在睡觉。|猫在哪儿？|过来！
“狗在睡觉。”|“猫呢？” |他问。
狗在睡觉.|猫在哪儿?|过来!
犬は寝ている。|猫はどこ？」|来て｡
犬は寝ている．|猫はどこ．
개가 자요. |네. |고양이는 어디에 있어요?
""".strip("\n").split("\n")

ABBREVIATED = r"""
Do you like it? |No. |I hate it.
It is No. 7 here. |Nr. 5 lebt, no. 6 auch.
He lives in the U.S. |She lives in the U.K. |They met.
The U.S. Army and J. R. R. Tolkien, and J.R.R. Tolkien.
They met at 5 p.m. |Tom left at 6 a.m. on Monday.
Pears, plums, etc. |Peter ate pears, etc. in May.
Birnen usw. |Peter aß Birnen usw. im Mai.
Mr. Bach met Mrs. No, Dr. He and Prof. She. |Then he left.
He has a Ph.D. |I have none. |A Ph.D student.
Vitamin C. |It is good. |It was I. |He knew.
I am 12. |He is 13. |Am 3. Mai kam er, am 12. Juni sie.
Er kam z. B. Montag, d. h. Mio. Leute. |Gut.
"Go!" he said. |"Why?" |"So." |He went.
hello. |how are you? |i am fine, e.g. today.
I paid 3.50 for v2.0.1. |It works.
I am tired.|I want to sleep.|He isn't.
Really?|Yes! |We won. |Я устал.|Я сплю.
See www.Site.com, Node.js, README.md, U.S.A. or Tom.Smith@mail.org.
Go to https://a.org/b?c=D&e=F!G now. |Good.
One. |  |Two… |Three!? |Four
1.\n|Mr.\n|no. 5
That is OK.|Let's go. |See ASP or README.MD now.
Is it 5?|Yes! |It was…|Then it ended.
""".strip("\n").split("\n")

# what nobody sees behind a mark, and accents that are characters of their own
UNSEEN = [
    "I am hungry.\u200e |I am tired.\u200f |Where is Tom?",
    "שלום.\u200f |מה שלומך?\u200f |טוב.",
    "Go.\u200b|He is tired.\x00 |Come!\ufe0f |Now।\u200d|Yes.",
    "Il est ferme\u0301.|Ou\u0300 est Tom? |E\u0301mile?|E\u0301mile.",
]


def division(text: str) -> tuple[str, list[str]]:
    "The text without its marks, and its sentences with the space behind them."
    text = text.replace("\\n", "\n").replace("|  |", "  |")
    return text.replace("|", ""), text.split("|")


@pytest.mark.parametrize("text", [*SCRIPTS, *ABBREVIATED, *UNSEEN])
def test_sentences(text):
    text, wanted = division(text)
    assert ["".join(pair) for pair in sentences(text)] == wanted
    assert all(one == one.rstrip() for one, _ in sentences(text))


def test_every_sentence_terminal_of_unicode_ends_one():
    every = "".join(map(chr, range(0x110000)))
    for kind, at_least in (("STerm", 120), ("ATerm", 4)):
        marks = regex.findall(rf"\p{{Sentence_Break={kind}}}", every)
        divided = [mark for mark in marks if len(sentences(f"Go{mark} On{mark}")) == 2]
        assert divided == marks and len(marks) >= at_least
    assert len(sentences("Dogs sleep; Cats too, they: Yes.")) == 1


def test_the_time_grows_with_the_length_not_its_square():
    "Squared, any of these lines would take hours."
    for text in (
        "!" * 250_000,
        "a. B" * 60_000,
        '."' * 120_000,
        "Α;" * 120_000,
        ". " * 120_000,
    ):
        assert "".join(map("".join, sentences(text))) == text.rstrip()


TAGGED = {
    "<2de> The dog sleeps. Yes.\n42\nOK?": ["<2de> The dog sleeps.", "<2de> Yes.", "42", "<2de> OK?"],
    " >>zh_Hans<< It was I. He left.": [">>zh_Hans<< It was I.", ">>zh_Hans<< He left."],
    ">>Hello<< said Tom. Mary left.": [">>Hello<< said Tom.", "Mary left."],
    "__de__ Go. Stay.": ["__de__ Go.", "__de__ Stay."],
    "<b> Go. Stay.": ["<b> Go.", "Stay."],
    "__init__ is slow. Why?": ["__init__ is slow.", "Why?"],
    "Use <2de> here. Why?": ["Use <2de> here.", "Why?"],
}  # fmt: skip


class Words:
    "A vocabulary in which each word is a token."

    def __init__(self):
        self.known = {}
        self.pad_id = self.bos_id = self.eos_id = -1

    def encode(self, text):
        return [self.known.setdefault(word, len(self.known)) for word in text.split()]

    def tokens(self, ids):
        words = list(self.known)
        return [f"▁{words[i]}" for i in ids]

    def decode(self, ids):
        return " ".join(list(self.known)[i] for i in ids)


@pytest.fixture(scope="module")
def words() -> Translator:
    from torch import nn

    return Translator(nn.Linear(1, 1), Words(), max_tokens=5)


def translated(translator: Translator, text: str, **options) -> list[str]:
    "What the model is given of a text."
    parts = divide(text, translator.vocab, translator.max_tokens, **options)
    return [translator.vocab.decode(ids) for ids in parts if isinstance(ids, list)]


@pytest.mark.parametrize("text", TAGGED)
def test_a_tag_precedes_each_part(words, text):
    assert translated(words, text, split=True) == [
        one for one in TAGGED[text] if any(map(str.isalpha, one))
    ]


@pytest.mark.parametrize("text", ["<2de>\u200b Go. Stay.", "\u200b<2de> Go. Stay."])
def test_a_tag_beside_what_nobody_sees(text):
    found = translated(load("tatoeba"), text, split=True)
    assert found == ["<2de> Go.", "<2de> Stay."]


def test_a_tag_precedes_each_piece(words):
    "And a piece is no longer than the tokens that the translator takes."
    text = "<2de> a b c d e f g h i j"
    assert translated(words, text) == ["<2de> a b c d", "<2de> e f g h", "<2de> i j"]
    assert [x for x in divide(text, words.vocab, 5) if isinstance(x, str)] == [" ", " "]
    cut = divide(
        "<2de> " + "x" * 600, load("tatoeba").vocab, 256
    )  # inside a word: without a space
    assert len(cut) > 2 and not any(isinstance(part, str) for part in cut)


def test_the_live_page_divides_as_the_package_does(offline, tmp_path):
    texts = [division(text)[0] for text in [*SCRIPTS, *ABBREVIATED, *UNSEEN]]
    engine = Engine(offline, tmp_path)
    function = "(texts, patterns) => texts.map(text => sentences(text, patterns))"
    found = engine.ask(function, texts, SENTENCE_PATTERNS)
    assert found == [list(map(list, sentences(text))) for text in texts]
    function = """(texts, patterns) => texts.map(text => partsOf(text, patterns,
        {encode: text => [...text]}).map(part => part.text))"""
    assert engine.ask(function, [*TAGGED], SENTENCE_PATTERNS) == [*TAGGED.values()]
