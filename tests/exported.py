"How the users of an exported folder read it."

import re
from pathlib import Path

import pytest


def read_by_ct2(folder: Path, texts: list[str]) -> list[str]:
    "By the program that the folder gives its reader."
    pytest.importorskip("ctranslate2")
    page = (folder / "README.md").read_text("utf-8")
    shown = {"lines": texts}
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        exec(re.search("```python\n(.*?)```", page, re.DOTALL)[1], shown)
    return shown["translations"]


def read_by_transformers(folder: Path, texts: list[str]) -> list[str]:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    return tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
