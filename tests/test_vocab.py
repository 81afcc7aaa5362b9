"The vocabulary: nothing is lost, nothing is unknown, the same text gives the same model (51b)."

import io

import pytest
import sentencepiece as spm
from hypothesis import example, given, settings
from hypothesis import strategies as st

from annotated_transformer import UserError
from annotated_transformer.data.vocab import SPACE, Vocab, _sample_lines, learn_bpe

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


def foreign(**options) -> bytes:
    "A SentencePiece model with settings of its own."
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=out,
        model_type="bpe",
        minloglevel=2,
        vocab_size=400,
        hard_vocab_limit=False,
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        **options,
    )
    return out.getvalue()


# letters it knows, letters it does not, and what other tokenizers change: spaces, the sign for a space, marks, forms of NFKC
odd = f" {SPACE}\t\n\r\0\ufeff\u0085\u2028\u00a0\u3000\u0301\u2585\ufb01½²ae"
letters = st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(odd))


@settings(max_examples=400)
@given(st.text(letters))
@example(f" {SPACE} {SPACE}{SPACE}")
@example("<s> </s> <pad> <unk> <0x41>")
@example(TEXT[0])
@example("\U0010ffff\0\ufffd ⁇ ")
def test_round_trip(text):
    ids = VOCAB.encode(text)
    assert VOCAB.decode(ids) == text
    assert ids and not SPECIAL & set(ids)
    assert text != TEXT[0] or "".join(VOCAB.words(ids)) == f" {text}".replace(
        " ", SPACE
    )


HARD = [
    "",
    " ",
    "\t\ta\t",
    "\ufeffmark",
    "\ufeff",
    SPACE,
    f" {SPACE}{SPACE} a",
    "a\r\nb\u2028\x85\x0b",
    "\0",
    "ﬁ ① ｆ Å ½",
    "e\u0301 é",
    "👩\u200d👧",
]


@settings(max_examples=100)
@given(st.lists(st.text(letters), max_size=8), st.sampled_from([-1, 1, 2, 3]))
@example(HARD, 2)
@example([f"sentence {i} " + SPACE * (i % 3 == 0) for i in range(3000)], -1)
@example([], 2)
def test_many_are_as_one_by_one(texts, n_threads):
    "And what `encode` gives decodes to the text, so these do."
    ids = VOCAB.encode_many(texts, n_threads)
    assert ids == [VOCAB.encode(text) for text in texts]
    assert [VOCAB.decode(row) for row in ids] == texts


@pytest.mark.parametrize(
    "texts", [["a", "b\ud800"], ["\udfff"], [SPACE, f"{SPACE}\udc80"]]
)
def test_many_with_half_a_character(texts):
    with pytest.raises(ValueError, match="text=.*holds half of a surrogate pair"):
        VOCAB.encode_many(texts)


@given(st.lists(st.integers(0, len(VOCAB) - 1)))
def test_any_ids_decode(ids):
    assert isinstance(VOCAB.decode(ids), str)


def test_special_symbols_in_the_text_to_learn_from():
    vocab = learn_bpe(["<s> </s> <pad> <unk> <0x41> once more"] * 200, 300)
    ids = vocab.encode("<s> </s> <pad> <unk> <0x41>")
    assert not SPECIAL & {*ids}
    assert vocab.decode(ids) == "<s> </s> <pad> <unk> <0x41>"


def test_apostrophes_without_a_token_are_plain_in_a_source():
    "What is learned stays, and `encode` changes nothing."
    learned = learn_bpe(["it isn’t, it isn't"] * 200, 300)
    for vocab, text, plain in (
        (VOCAB, "isn’t ‘it’ oʼclock", "isn't 'it' o'clock"),
        (VOCAB, "′ ` ´ “ ”", "′ ` ´ “ ”"),  # other signs
        (learned, "isn’t ‘it oʼclock", "isn’t 'it o'clock"),
    ):
        assert vocab.encode_source(text) == vocab.encode(plain)
        assert vocab.decode(vocab.encode(text)) == text


def test_same_text_same_model():
    assert learn_bpe(TEXT, 400).model == VOCAB.model
    assert (
        learn_bpe(TEXT * 9, 360, n_sample=101).model
        == learn_bpe(iter(TEXT * 9), 360, n_sample=101).model
    )
    assert learn_bpe(TEXT, 400, n_sample=len(TEXT)).model == VOCAB.model
    one, two = (
        learn_bpe(TEXT, 400, n_threads=n) for n in (1, 2)
    )  # the file notes the number of threads; the pieces are the same
    assert one.words(range(len(one))) == two.words(range(len(two)))


@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 5))
def test_sample(n_lines, n, seed):
    lines = [str(i) for i in range(n_lines)]
    sample = _sample_lines(iter(lines), n, seed)
    assert len(sample) == min(n, n_lines) == len(set(sample)) and set(sample) <= set(
        lines
    )
    assert sample == lines or n_lines > n
    assert sample == _sample_lines(lines, n, seed)


def test_every_line_has_the_same_chance():
    "5 of 20 lines, 4,000 times: 1,000 each, with a standard deviation of 27; five of them allowed."
    times = [0] * 20
    for seed in range(4000):
        for i in _sample_lines(range(20), 5, seed):
            times[i] += 1
    assert max(abs(n - 1000) for n in times) < 137


def test_a_mistake_in_the_text_is_told_as_it_is():
    "SentencePiece would wrap it; a line that is not UTF-8 should not read as a text that is empty."

    def lines():
        yield from TEXT
        raise ValueError("a.en, line 25: byte 1 is not UTF-8")

    with pytest.raises(ValueError, match="^a.en, line 25"):
        learn_bpe(lines(), 400)


def test_save_and_load(tmp_path):
    VOCAB.save(tmp_path / "vocab.model")
    again, plain = (
        Vocab.load(tmp_path / "vocab.model"),
        spm.SentencePieceProcessor(model_file=str(tmp_path / "vocab.model")),
    )
    assert again.model == VOCAB.model and len(again) == len(VOCAB)
    for sentence in TEXT:
        assert (
            VOCAB.encode(sentence)
            == again.encode(sentence)
            == plain.encode(" " + sentence)
        )


def test_errors(tmp_path):
    for n in (0, 10, len(VOCAB.model) // 2, len(VOCAB.model) - 100):
        with pytest.raises(UserError):
            Vocab(VOCAB.model[:n])
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(ValueError, match="junk: not a SentencePiece model"):
        Vocab.load(tmp_path / "junk")
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        Vocab.load(tmp_path)
    with pytest.raises(ValueError, match="n_pieces=299 is too few"):
        learn_bpe(TEXT, 299)
    with pytest.raises(ValueError, match="n_sample=0 is too few"):
        learn_bpe(TEXT, 400, n_sample=0)
    with pytest.raises(ValueError, match="the text is empty"):
        learn_bpe([], 300)
    with pytest.raises(ValueError, match="too many different characters"):
        learn_bpe(["".join(map(chr, range(0x4E00, 0x5200)))], 300)
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        VOCAB.encode("a\udc80")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True},
        {"byte_fallback": True, "normalization_rule_name": "identity"},
        {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    ],
)
def test_lossy_models_are_refused(options):
    with pytest.raises(ValueError, match="does not give text back"):
        Vocab(foreign(**options))
