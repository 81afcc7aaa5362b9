"Without what only POSIX has, in a locale that knows no umlauts: tests/windows.py says what is taken away."

import os
import subprocess
import sys
from pathlib import Path

import pytest

from annotated_transformer.data.grammar import builtin

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SIZES = "n_layers=1 d_model=16 d_ff=32 n_heads=2 n_pieces=320 save_every=1 max_steps=3"
CODE = f"""
from pathlib import Path
from annotated_transformer import load
from annotated_transformer.cli.main import main
from annotated_transformer.runs.settings import get_recipe, override
from annotated_transformer.show.demo import run_demo

def run(*words):
    try:
        main(" ".join(words).split())
    except SystemExit as e:
        assert not e.code, words

assert load("demo").translate(["The dog is tired."]) == ["Der Hund ist m\\xfcde."]
run("translate demo one")
run("score demo --src one --ref eins")
run("live demo --out live.html")
for again in range(2):
    run("attention demo the-dog --out attention.html")
run("train --src en --tgt de --config tiny --device cpu --out run {SIZES} batch_tokens=400")
run("train --resume run --quiet")
run("average run --last 2")
run("translate run one")
for again in range(2):
    run_demo(Path("runs/demo"), override(get_recipe("tiny"), "{SIZES}".split()), 9, 99)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux knows which files are open")
def test_commands_without_posix(tmp_path):
    lines = {"en": [], "de": [], "one": ["The dog is tired."], "eins": ["Der Hund."]}
    for sentence in builtin(200):
        lines["en"].append(sentence.en)
        lines["de"].append(sentence.de)
    for name, text in lines.items():
        (tmp_path / name).write_text("\n".join(text) + "\n", encoding="utf-8")
    script = Path(__file__).with_name("windows.py")
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", script, CODE],
        cwd=tmp_path,
        env=os.environ | ASCII,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    assert "Der Hund ist müde.".encode() in done.stdout
