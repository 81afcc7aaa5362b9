"What is shipped, and that each fact about the project stands in one place."

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import annotated_transformer


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    "The files that git tracks or would track."
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    found = subprocess.run(command, cwd=ROOT, stdout=-1, check=True, text=True)
    return [n for n in found.stdout.split("\0") if (ROOT / n).is_file()]


def python(*args: str | Path, cwd: Path, **env: str) -> str:
    "What a Python process of its own prints; it must succeed."
    done = subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(project: Path, kind: str) -> None:
    "Put a distribution of a project next to its folder."
    code = f"from setuptools import build_meta; build_meta.build_{kind}('..')"
    python("-c", code, cwd=project)


@pytest.fixture(scope="module")
def wheel(tracked, tmp_path_factory) -> zipfile.ZipFile:
    "The wheel, built from the source distribution as a release is."
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked:
        (folder / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "checkout" / name)
    build(folder / "checkout", "sdist")
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    build(folder / sdist.name.removesuffix(".tar.gz"), "wheel")
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_wheel_holds_the_package(wheel, tracked):
    "Every module, and the files that the modules read: what git tracks of the package."
    shipped = {n for n in wheel.namelist() if ".dist-info/" not in n}
    folder = "annotated_transformer/"
    records = r"(results|reference)/\w+\.json"
    assert shipped == {
        folder + name if re.fullmatch(records, name) else name
        for name in tracked
        if name.startswith(folder) or re.fullmatch(records, name)
    }


INSTALLED = """
import sys
from annotated_transformer import load
print(load("demo").translate(["The dog is tired."])[0])
slow = ("sympy", "torch._dynamo", "ctranslate2", "transformers", "pooch", "tqdm.auto")
print([name for name in slow if name in sys.modules])
from annotated_transformer.show import explorer
one = explorer.AttentionExample(["a"], ["b"], {"cross": [[[[1.0]]]]})
print(explorer.__file__, len(explorer.attention_page([one])), sep="\\n")
from annotated_transformer.io.files import read_record
print(read_record("results/demo")["seed"], len(read_record("reference/paper_tables")))
from annotated_transformer.data.grammar import ANIMAL_WIDE
print(ANIMAL_WIDE.en)
"""


def test_installed_wheel_works(wheel, tmp_path):
    "Its data is found where it is installed; to translate imports neither the compiler nor other programs."
    wheel.extractall(tmp_path)
    env = {"PYTHONPATH": str(tmp_path), "PYTHONUTF8": "1"}
    said = python("-c", INSTALLED, cwd=tmp_path, **env)
    german, slow, path, length, records, english = said.split("\n")[:-1]
    assert english.startswith("The animal didn't cross the street")
    assert re.fullmatch(r"0 \d+", records)
    assert path.startswith(str(tmp_path)) and int(length) > 10_000
    assert (german, slow) == ("Der Hund ist müde.", "[]")


def test_types_of_the_readme(tmp_path):
    "mypy accepts README's lines, and knows each name at the top of the package."
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    names = [f"annotated_transformer.{name}" for name in annotated_transformer.__all__]
    lines = ["import annotated_transformer", *(f"reveal_type({x})" for x in names)]
    (tmp_path / "readme.py").write_text("\n".join([*blocks, *lines]), "utf-8")
    command = ["-m", "mypy", "--strict", "--follow-imports=silent", "readme.py"]
    found = python(*command, cwd=tmp_path, MYPYPATH=str(ROOT))
    assert found.count("Revealed type is") == len(names)
    assert 'is "Any"' not in found


def test_version_has_one_source(cfg):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert annotated_transformer.__version__ == citation["version"] == cfg["version"]
    assert citation["license"] == cfg["license"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {cfg['version']}" in changes


def test_address_has_one_source(cfg, tracked):
    "Every link to the repository or its pages begins with the address that settings.ini gives."
    right = (
        cfg["git_url"],
        cfg["doc_host"],
        f"https://colab.research.google.com/github/{cfg['user']}/{cfg['repo']}/",
        "https://github.com/harvardnlp/",  # the other project of this name
        "https://nlp.seas.harvard.edu/",
    )
    wrong = []
    for name in tracked:
        if name.endswith((".ipynb", ".md", ".cff", ".yml", ".toml", ".py")):
            text = (ROOT / name).read_text(encoding="utf-8")
            urls = re.findall(r"https?://[^\s\"'<>)\\]+", text)
            ours = [url for url in urls if re.search(rf"\b{cfg['repo']}\b", url)]
            wrong += [f"{name}: {url}" for url in ours if not url.startswith(right)]
    assert wrong == []


# --- requirements


def test_constraints_are_exact_and_allowed(cfg):
    "One exact version for each distribution that settings.ini names, within its range."
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = re.findall(r"^[^#\n].*$", text, re.M)
    pins = dict(re.fullmatch(r"([\w.-]+)==([\w.]+)", line).groups() for line in lines)
    assert len(pins) == len(lines), "a distribution has two versions"
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    groups = [cfg[key] for key in cfg if key.endswith("requirements")]
    for requirement in map(Requirement, " ".join(groups).split()):
        pin = pins.get(canonicalize_name(requirement.name), "0")
        assert requirement.specifier.contains(pin), requirement


def test_a_mistake_does_not_wait_for_torch():
    "Nor does `--help`: heavy imports happen inside the commands."
    code = """import contextlib, io, sys
from annotated_transformer.cli.main import main
try:
    with contextlib.redirect_stderr(io.StringIO()):
        main("translate demo --temperature 2".split())
except SystemExit as e:
    print(e.code, "torch" in sys.modules)
"""
    assert python("-c", code, cwd=ROOT) == "2 False\n"
