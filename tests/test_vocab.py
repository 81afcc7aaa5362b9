"The vocabulary: each spelling of a text has the same tokens, nothing is unknown, the same text gives the same model (51b)."

import io
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
import sentencepiece as spm
from conftest import text_of
from engine import Engine
from hypothesis import example, given, settings
from hypothesis import strategies as st

from annotated_transformer import UserError
from annotated_transformer.data.vocab import (
    Vocab,
    _kept_signs,
    _sample_lines,
    learn_bpe,
)
from annotated_transformer.show.live import _pack_vocab
from annotated_transformer.translating.evaluate import bleu, chrf

TEXT = [
    "The animal did not cross the street because it was too tired.",
    "Das Tier überquerte die Straße nicht, weil es zu müde war.",
    "A young woman sings in the garden.",
    "Eine junge Frau singt im Garten.",
    "Two dogs play, three cats sleep.",
    "Zwei Hunde spielen, drei Katzen schlafen.",
] * 4
VOCAB = learn_bpe(TEXT, 400)
SPECIAL = {VOCAB.pad_id, VOCAB.bos_id, VOCAB.eos_id, VOCAB.pieces.unk_id()}
SPACES = "\t\n\v\f\r\x85\xa0\u1680\u2002\u2003\u2007\u2009\u200a\u2028\u2029\u202f\u205f\u3000▁"
HIDDEN = "\u200b\u200c\u200d\u2060\ufeff\xad\u200e\u200f\u202a\u202c\u202e\u2066\u2069\u061c\u034f\u180e\ufe0f\x07\x1b\x7f\x9f\U000e0067"
# an input, and the plain form that has the same tokens
PLAIN = [
    *((f"Two{space}dogs", "Two dogs") for space in SPACES),
    *((f"an{sign}imal", "animal") for sign in HIDDEN),
    (HIDDEN + SPACES, ""),
    ("Hello.\n", "Hello."),
    ("Hello.\r\n", "Hello."),
    ("  Hello \t there. ", "Hello there."),
    ("\ufeff\ufeffHello.\ufeff", "Hello."),
    ("I can’t swim.", "I can't swim."),
    ("‘I’ canʼt ‚swim‛ `now´", "'I' can't 'swim' 'now'"),
    ("Tom′s 5″ ‹dog›", "Tom's 5\" 'dog'"),
    ("“Hello”, she said.", '"Hello", she said.'),
    ("„Hallo“, sagte sie.", '"Hallo", sagte sie.'),
    ("»Hallo«, sagte sie.", '"Hallo", sagte sie.'),
    ("« Bonjour », dit-elle.", '" Bonjour ", dit-elle.'),
    ("10–20 − 3, Well‐known non‑stop", "10-20 - 3, Well-known non-stop"),
    ("wait—what? wait — what?", "wait - what? wait - what?"),
    ("Wait…", "Wait..."),
    ("ﬁne ﬂight oﬀ oﬃce ﬄ ﬆ ĳ", "fine flight off office ffl st ij"),
    ("Ｔｗｏ　ｄｏｇｓ，５００￥！？（ａ）～", "Two dogs,500¥!?(a)~"),
    ("u\u0308ber mu\u0308de Stra\u00dfe E\u0301", "über müde Straße É"),
    ("A\u030angstro\u0308m \u212bngstr\u00f6m", "Ångström Ångström"),
    ("Vie\u0323\u0302t Vi\u00ea\u0323t Vi\u1eb9\u0302t Vie\u0302\u0323t", "Việt " * 4),
    ("\u0438\u0306 \u0435\u0308 \u03b1\u0301 \u1f71", "й ё ά ά"),
    ("か\u3099 ハ\u309a ﾃ", "が パ テ"),
    ("½ cup, ¼, 3⁄4", "1/2 cup, 1/4, 3/4"),
    ("x² H₂O 5º № ™ ㎏ ㎡ Ⅳ ①", "x2 H2O 5o No TM kg m2 IV 1"),
    ("ǆ ŀ ŉ ſ", "dž l· 'n s"),
    ("（你好，ｗｏｒｌｄ！）", "(你好,world!)"),
    ("👍\ufe0f ❤\ufe0f", "👍 ❤"),
]


@pytest.mark.parametrize("text, plain", PLAIN, ids=ascii)
def test_same_tokens_as_the_plain_form(text, plain):
    "By our vocabulary, and by SentencePiece with the file alone."
    file = spm.SentencePieceProcessor(model_proto=VOCAB.model)
    assert VOCAB.encode(text) == VOCAB.encode(plain) == file.encode(text)
    assert VOCAB.encode(f"\0{text}\0") == VOCAB.encode(text)
    assert VOCAB.decode(VOCAB.encode(text)) == plain.strip()


# ordinary text, whose marks a vocabulary that learned from it keeps
ORDINARY = {
    "English": "“It’s 5 – no, 5½ miles—really…” she said: ‘Yes!’ (10² %) ™",
    "German": "„Ja“, sagte sie – ‚morgen‘ …; »nein«, ›doch‹, 20 m², −5 °C.",
    "Spanish": "—¿Qué?, ¡no! «La 3.ª planta, n.º 5»",
    "Polish": "„Tak” – 5 ‰",
    "Greek": "«Τι;» – ναι· …",
    "Ukrainian": "«П’ять», пʼять — № 5",
    "Armenian": "Դու և ես՝ «ո՞վ»։",
    "Hebrew": "ג׳ירפה, צה״ל, בית־ספר",
    "Persian": "«می\u200cخواهم»؛ چرا؟ ۵٪",
    "Hindi": "“क्\u200dया?” – हाँ। …",
    "Thai": "น้ำ ทำไม ๆ “ดี”…",
    "Chinese": "“你好，我们明天去北京（南站），你去吗？”他说：“不；今天《日报》涨了5％！……”——",
    "Japanese": "「東京〜大阪」、『本』。100％！？（笑）・～",
    "Korean": "‘안녕’, “네” 《책》 · …",
    "emoji": "❤\ufe0f 👨\u200d👩\u200d👧",
}
WORLD = learn_bpe([*ORDINARY.values()] * 4, 700)
# another writing of a letter, a digit or a space has one form, though the text has it
OTHER = "ﬁne ２０２４Ａｂ e\u0301 100\xa0km 日\u3000本 sta\xadtion\u200b \ufeff\u200fא"
ONE_FORM = "fine 2024Ab é 100 km 日 本 station א"


@pytest.mark.parametrize("language", ORDINARY)
def test_marks_of_the_text_are_kept(language):
    text = ORDINARY[language]
    assert WORLD.decode(WORLD.encode(text)) == text
    alone = learn_bpe([text] * 4, 400)
    assert alone.decode(alone.encode(text)) == text


def test_other_writings_are_not_kept():
    vocab = learn_bpe([OTHER, *ORDINARY.values()] * 4, 700)
    assert vocab.decode(vocab.encode(OTHER)) == ONE_FORM
    assert vocab.encode(OTHER) == vocab.encode(ONE_FORM)


def test_a_mark_that_is_rare_is_not_kept():
    "Less than a millionth of the text: a model could not learn it."
    assert _kept_signs(["a" * 1_000_000, "’––"]) == {"a", "–"}
    assert _kept_signs(["a" * 1_999_999, "’––"]) == {"a"}


def test_a_perfect_translation_scores_100():
    "With the marks of a keyboard it scores what 61f says."
    chinese = [
        "你好，我们明天去北京，你去吗？",
        "他说：“今天不下雨！”",
        "请注意，会议改到星期三，地点不变。",
        "什么时候开始？我不知道。",
    ]
    vocab = learn_bpe(chinese * 4, 400)
    found = [vocab.decode(vocab.encode(line)) for line in chinese]
    assert [f(found, chinese).value for f in (bleu, chrf)] == pytest.approx([100, 100])
    english = learn_bpe([*TEXT, *(re.sub(r"\W", "", line) for line in chinese)], 400)
    found = [english.decode(english.encode(line)) for line in chinese]
    value = bleu(found, chinese).value
    assert f"correct Chinese sentences in this form scored {value:.1f}." in text_of(
        "61f_metrics"
    )


# What the page replaces and the file does not, because NFC does: first words of the
# characters' names. The rest is the file's.
LEFT_OUT = {"CJK", "COMBINING", "GREEK", "MUSICAL"}


@pytest.mark.parametrize("vocab", [VOCAB, WORLD], ids=["some marks", "many marks"])
def test_page_normalises_as_the_file(offline, tmp_path, vocab):
    "Every character, alone and between two letters."
    every = (chr(i) for i in range(1, 0x110000))
    signs = [x for x in every if unicodedata.category(x) not in ("Cn", "Cs", "Co")]
    texts = [*signs, *(f"a{sign}b" for sign in signs), *ORDINARY.values()]
    function = """(vocab, texts) => {
        const page = new Vocab(vocab);
        return texts.map(text => page.normalize(text));
    }"""
    found = Engine(offline, tmp_path).ask(function, _pack_vocab(vocab), texts)
    plain = [vocab.pieces.normalize(x).replace("▁", " ").strip(" ") for x in texts]
    differ = {text for text, a, b in zip(texts, found, plain) if a != b}
    assert {unicodedata.name(x[len(x) // 2]).split()[0] for x in differ} <= LEFT_OUT
    assert 1000 < len(differ & {*signs}) < 1050  # as 81 says
    if vocab is VOCAB:
        texts = [f"\0{text}\0" for text, _ in PLAIN]  # which `Vocab` removes
        found = Engine(offline, tmp_path).ask(function, _pack_vocab(vocab), texts)
        assert found == [plain.strip() for _, plain in PLAIN]


letters = st.one_of(
    st.characters(exclude_categories=["Cs"]),
    st.sampled_from(f"{SPACES}{HIDDEN}\0\u0301\u0308\ufb01½²aeu"),
)


@settings(max_examples=200)
@given(st.text(letters))
@example("<s> </s> <pad> <unk> <0x41>")
@example("\U0010ffff\0\ufffd ⁇ ")
def test_decoded_text_has_the_same_tokens(text):
    ids = VOCAB.encode(text)
    assert not SPECIAL & set(ids)
    assert VOCAB.encode(VOCAB.decode(ids)) == ids


def test_no_half_characters():
    ids, emoji = VOCAB.encode("Two dogs"), VOCAB.encode("🐕")[1:]
    assert VOCAB.decode([*ids, *emoji]) == "Two dogs🐕"
    assert VOCAB.decode([*ids, *emoji[:3], VOCAB.eos_id]) == "Two dogs"
    assert VOCAB.decode([*emoji[1:], *ids, VOCAB.pieces.unk_id()]).strip() == "Two dogs"


@pytest.mark.parametrize("n_threads", [-1, 1, 2])
def test_many_are_as_one_by_one(n_threads):
    texts = [text for pair in PLAIN for text in pair] * 20
    assert VOCAB.encode_many(texts, n_threads) == [VOCAB.encode(x) for x in texts]
    assert VOCAB.encode_many([], n_threads) == []


def test_special_symbols_in_the_text_to_learn_from():
    vocab = learn_bpe(["<s> </s> <pad> <unk> <0x41> once more"] * 200, 300)
    ids = vocab.encode("<s> </s> <pad> <unk> <0x41>")
    assert not SPECIAL & {*ids}
    assert vocab.decode(ids) == "<s> </s> <pad> <unk> <0x41>"


def test_any_number_of_threads_gives_the_same_tokens():
    "The file notes the number."
    one, two = (learn_bpe(TEXT, 400, n_threads=n) for n in (1, 2))
    assert one.tokens(range(len(one))) == two.tokens(range(len(two)))


def test_same_text_same_model_in_another_process():
    "Python orders sets and hashes of text in another way in each process."
    script = """if True:
        import hashlib
        from annotated_transformer.data.vocab import learn_bpe
        lines = (str(i * i) for i in range(5000))
        print(hashlib.sha256(learn_bpe(lines, 400, n_sample=500).model).hexdigest())
    """
    seeds = [os.environ | {"PYTHONHASHSEED": seed} for seed in "12"]
    command = [sys.executable, "-c", script]
    one, other = (subprocess.check_output(command, env=env) for env in seeds)
    assert one == other and len(one.strip()) == 64


def test_every_line_has_the_same_chance():
    "20,000 of 80,000 lines: 1,000 of each 4,000, with a standard deviation of 27; five of them allowed."
    times = [0] * 20
    for i in _sample_lines(range(80_000), 20_000):
        times[i // 4000] += 1
    assert max(abs(n - 1000) for n in times) < 137


def test_a_mistake_in_the_text_is_told_as_it_is():
    "SentencePiece would wrap it; a line that is not UTF-8 should not read as a text that is empty."

    def lines():
        yield from TEXT
        raise ValueError("a.en, line 25: byte 1 is not UTF-8")

    with pytest.raises(ValueError, match="^a.en, line 25"):
        learn_bpe(lines(), 400)


MANY = "".join(map(chr, range(0x4E00, 0x4F00)))  # characters


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: learn_bpe(TEXT, 200), "vocab_size=200 is too few"),
        (lambda: learn_bpe([], 300), "the text is empty"),
        (lambda: learn_bpe([MANY], 300), "too many different characters"),
        (lambda: Vocab(b"pieces"), "not a SentencePiece model"),
        (lambda: Vocab(without_padding()), "lacks <pad>"),
        (lambda: Vocab.load(Path("nowhere/vocab")), "no such file"),
    ],
)
def test_errors(make, says):
    with pytest.raises(UserError, match=says):
        make()


def without_padding() -> bytes:
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=out, vocab_size=50, minloglevel=2
    )
    return out.getvalue()
