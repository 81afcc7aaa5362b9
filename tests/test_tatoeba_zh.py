"The pretrained model of English and Chinese: what it translates, how large it is, and the page about it."

from pathlib import Path

import pytest

from annotated_transformer.data.corpus import DATA_SETS
from annotated_transformer.runs.folder import load_run, pretrained_run
from annotated_transformer.translating.load import load

NAME = Path("tatoeba-zh")
EVERYDAY = {
    "Hello, world!": "你好，世界！",
    "Hello World": "你好，世界",
    "What is your name?": "你叫什么名字？",
    "What time is it now?": "现在几点了？",
    "She wants to learn Chinese.": "她想学中文。",
    "This book is mine.": "这本书是我的。",
    "If it rains tomorrow, I won't go.": "如果明天下雨，我就不去。",
    "how much is this book": "这本书多少钱？",
    "Tom is older than Mary.": "汤姆比玛丽大。",
    "Where is the nearest station?": "最近的车站在哪里？",
}


@pytest.fixture(scope="module")
def translator():
    return load(NAME)


def test_everyday_sentences(translator):
    assert translator.translate([*EVERYDAY]) == [*EVERYDAY.values()]


def test_it_is_the_model_of_the_package():
    "Small enough for a page, in the weights that validated best, and of text that may be published."
    folder = pretrained_run(NAME)
    assert folder and sum(file.stat().st_size for file in folder.iterdir()) <= 4_500_000
    run = load_run(NAME)
    assert (run.about["src_lang"], run.about["tgt_lang"]) == ("en", "zh")
    assert DATA_SETS[run.about["data"]].licence == "CC BY 2.0 FR"
    assert run.recipe.model == load_run(Path("tatoeba")).recipe.model
    assert "from" not in run.about and not run.about["source"]  # no path of a machine


def test_the_vocabulary_keeps_chinese_marks(translator):
    text = "你好，世界！他说：“真的吗？”"
    assert translator.vocab.decode(translator.vocab.encode(text)) == text


def test_several_sentences_are_joined_as_the_source_was(translator):
    parts = translator.translate(["How are you?", "I don't know."])
    text = translator.translate("How are you? I don't know.", split=True)
    assert text == " ".join(parts)
