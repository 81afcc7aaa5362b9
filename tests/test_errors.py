"The page of error messages: each heading is what its cell prints, with the versions that run here."

import contextlib
import io
import json
import re
import sys

import pytest
import torch
from cells import code_of, joined
from conftest import ROOT


def messages() -> tuple[str, list[list[str]]]:
    "The code above the first message, and of each: part of the page, heading, code."
    before, found, part = "", [], ""
    text = (ROOT / "nbs/errors.ipynb").read_text(encoding="utf-8")
    for cell in json.loads(text)["cells"]:
        source = joined(cell["source"])
        if cell["cell_type"] == "markdown":
            for level, heading in re.findall(r"^(##+) (.*)$", source, re.M):
                if level == "##":
                    part = heading
                else:
                    found.append([part, heading.strip("`"), ""])
        elif "#| hide" not in source and found:
            found[-1][2] += code_of(source) + "\n"
        elif "#| hide" not in source:
            before += code_of(source) + "\n"
    return before, found


def test_messages_are_real():
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    if f"torch=={torch.__version__.partition('+')[0]}\n" not in pinned:
        pytest.skip("other versions of PyTorch have other words")
    before, found = messages()
    space: dict = {}
    exec(before, space)
    on_gpu = [heading for part, heading, _ in found if part == "On a GPU"]
    assert len(found) - len(on_gpu) >= 20 and on_gpu
    for part, heading, code in found:
        if part == "On a GPU":
            assert not code, f"{heading} is run, so it belongs to another part"
            continue
        if "ZeroDivisionError" in heading and sys.version_info >= (3, 14):
            heading = "ZeroDivisionError: zero to a negative power"
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(code, space)
        printed = " ".join(out.getvalue().split())
        for piece in heading.split("[…]"):  # what follows it comes later in the text
            assert piece.strip() in printed, (heading, printed)
            printed = printed.partition(piece.strip())[2]
