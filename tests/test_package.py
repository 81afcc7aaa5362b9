"What is shipped, and that each fact about the project stands in one place."

import ast
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from cells import code_of, joined
from conftest import ROOT
from gate import copy, files_of
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ONLY_GIT_READS = {".gitattributes", ".gitignore", ".pre-commit-config.yaml"}
WRITTEN_BY_SETUPTOOLS = re.compile(r"PKG-INFO|setup\.cfg|\w+\.egg-info/.+")
LEFT_BY_TOOLS = (
    "nbs/nbdev.yml",
    "nbs/sidebar.yml",
    "nbs/runs/small/config.json",
    "nbs/.ipynb_checkpoints/31_stack.ipynb",
    "tests/__pycache__/conftest.cpython-311.pyc",
    "runs/demo/config.json",
    "data/train.en",
    "_docs/index.html",
    "dist/old.whl",
)


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
    assert done.stderr == "" or args[0] == "-m", done.stderr
    return done.stdout


def build(project: Path, kind: str) -> None:
    "Put a distribution of a project next to its folder."
    code = f"from setuptools import build_meta; build_meta.build_{kind}('..')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    "The source distribution, of a checkout in which tools have left files behind."
    checkout = tmp_path_factory.mktemp("sdist") / "checkout"
    copy(ROOT, checkout, files_of(ROOT))
    for name in LEFT_BY_TOOLS:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("{}")
    build(checkout, "sdist")
    return next(checkout.parent.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(to, filter="data")
    return to / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(unpacked) -> zipfile.ZipFile:
    "The wheel, built from the source distribution as a release is."
    build(unpacked, "wheel")
    return zipfile.ZipFile(next(unpacked.parent.glob("*.whl")))


def test_sdist_holds_the_repository(sdist):
    "All that git tracks except what only git reads, and nothing that tools left behind."
    top = sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        held = {m.name.removeprefix(f"{top}/") for m in archive if not m.isdir()}
    written = {name for name in held if WRITTEN_BY_SETUPTOOLS.fullmatch(name)}
    assert held - written == {
        name
        for name in files_of(ROOT)
        if name not in ONLY_GIT_READS and not WRITTEN_BY_SETUPTOOLS.fullmatch(name)
    }


def test_wheel_holds_the_package(wheel):
    "Every module, and the files that the modules read: what git tracks of the package."
    shipped = {n for n in wheel.namelist() if ".dist-info/" not in n}
    folder = "annotated_transformer/"
    records = r"(results|reference)/\w+\.json"
    assert shipped == {
        folder + name if re.fullmatch(records, name) else name
        for name in files_of(ROOT)
        if name.startswith(folder) or re.fullmatch(records, name)
    }
    pretrained = {f"{folder}pretrained/demo/model.safetensors"}
    assert {
        f"{folder}py.typed",
        f"{folder}data/lexicon.txt",
        f"{folder}show/pages/attention.js",
    } | pretrained < shipped


INSTALLED = """
import sys
from annotated_transformer import load
print(load("demo").translate(["The dog is tired."])[0])
slow = ("sympy", "torch._dynamo", "ctranslate2", "transformers")
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
    """The files of pages/, the lexicon and the pretrained model are found where the package is installed, not in a checkout.

    To translate imports neither the compiler, which takes a second, nor other kinds of runs.
    """
    wheel.extractall(tmp_path)
    env = {"PYTHONPATH": str(tmp_path), "PYTHONUTF8": "1"}
    said = python("-c", INSTALLED, cwd=tmp_path, **env)
    german, slow, path, length, records, english = said.split("\n")[:-1]
    assert english.startswith("The animal didn't cross the street")
    assert re.fullmatch(r"0 \d+", records)
    assert path.startswith(str(tmp_path)) and int(length) > 10_000
    assert (german, slow) == ("Der Hund ist müde.", "[]")


def test_wheel_says_what_settings_say(wheel, unpacked, cfg):
    "The licence by PEP 639, without the older field and classifier."
    info = "annotated_transformer-{version}.dist-info".format(**cfg)
    read = lambda name: wheel.read(f"{info}/{name}").decode()
    metadata, licence = read("METADATA"), (ROOT / "LICENSE").read_text("utf-8")
    assert read("licenses/LICENSE") == licence and licence.split()[0] == cfg["license"]
    assert "annotated-transformer = annotated_transformer.__main__:main" in read(
        "entry_points.txt"
    )
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", metadata, re.M)
    names = [re.match(r"[\w-]+", r)[0] for r in cfg["requirements"].split()]
    assert sorted(required) == sorted(names)
    for text in (metadata, (unpacked / "PKG-INFO").read_text(encoding="utf-8")):
        for line in (
            f"Version: {cfg['version']}",
            f"Requires-Python: >={cfg['min_python']}",
            f"License-Expression: {cfg['license']}",
            "License-File: LICENSE",
        ):
            assert f"\n{line}\n" in text
        assert not re.search(r"^(License:|Classifier: License ::)", text, re.M)


def test_version_has_one_source(cfg):
    import annotated_transformer

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert annotated_transformer.__version__ == citation["version"] == cfg["version"]
    assert citation["license"] == cfg["license"]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {cfg['version']}" in changes


def test_address_has_one_source(cfg):
    "Every link to the repository or its pages begins with the address that settings.ini gives."
    right = (
        cfg["git_url"],
        cfg["doc_host"],
        f"https://colab.research.google.com/github/{cfg['user']}/{cfg['repo']}/",
        "https://github.com/harvardnlp/",  # the other project of this name
        "https://nlp.seas.harvard.edu/",
    )
    wrong = []
    for name in files_of(ROOT):
        if name.endswith((".ipynb", ".md", ".cff", ".yml", ".toml", ".py")):
            text = (ROOT / name).read_text(encoding="utf-8")
            urls = re.findall(r"https?://[^\s\"'<>)\\]+", text)
            ours = [url for url in urls if re.search(rf"\b{cfg['repo']}\b", url)]
            wrong += [f"{name}: {url}" for url in ours if not url.startswith(right)]
    assert wrong == []


# --- requirements

# What is imported where, and the groups of settings.ini that declare it. What a function
# imports is optional, so an extra may bring it.
EXTRAS = ["plot", "ct2", "moses"]
IMPORTS = {
    "package, at its top": (["annotated_transformer/**/*.py"], False, []),
    "package": (["annotated_transformer/**/*.py"], True, EXTRAS),
    "notebooks": (["nbs/[0-9]*.ipynb"], True, ["notebooks"]),
    "guides": (["nbs/[a-z]*.ipynb"], True, ["dev"]),
    "tools": (["tools/*.py"], True, ["dev"]),
    "tests": (["tests/*.py"], True, ["dev"]),
    "benchmarks": (["benchmarks/*.py"], True, ["bench"]),
    "results": (["results/*.py"], True, []),
}


def code_in(path: Path) -> str:
    "The Python of a module or a notebook, without a notebook's % and ! lines."
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return source
    cells = [c for c in json.loads(source)["cells"] if c["cell_type"] == "code"]
    code = "\n".join(code_of(joined(cell["source"])) for cell in cells)
    return re.sub(r"^\s*[%!].*", "", code, flags=re.M)


def imported(source: str, in_functions: bool) -> set[str]:
    "The top-level names of what is imported, relative imports left out."
    found, todo = set(), [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.partition(".")[0])
        if in_functions or not isinstance(node, ast.FunctionDef):
            todo += ast.iter_child_nodes(node)
    return found


def declared(cfg: dict[str, str], groups: list[str]) -> dict[str, Requirement]:
    "The requirements of the package and of some groups, by normalised name."
    keys = ["requirements", *(f"{group}_requirements" for group in groups)]
    found = map(Requirement, " ".join(cfg[key] for key in keys).split())
    return {canonicalize_name(requirement.name): requirement for requirement in found}


@pytest.mark.parametrize("where", IMPORTS)
def test_every_import_is_declared(where, cfg):
    patterns, in_functions, groups = IMPORTS[where]
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    scripts = [
        p
        for x in ("tools", "tests", "benchmarks", "results")
        for p in ROOT.glob(f"{x}/*.py")
    ]
    ours = {path.stem for path in scripts} | {cfg["lib_path"]}
    names = {name for path in paths for name in imported(code_in(path), in_functions)}
    distributions, known = packages_distributions(), declared(cfg, groups).keys()
    missing = [
        name
        for name in names - ours - sys.stdlib_module_names
        if not known & set(map(canonicalize_name, distributions.get(name, [])))
    ]
    assert names and missing == [], "declare them, or install what brings them"


def test_constraints_are_exact_and_allowed(cfg):
    "One exact version for each distribution that settings.ini names, within its range."
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split("\n")
    found = [
        re.fullmatch(r"([\w.-]+)==([\w.]+)", line)
        for line in lines
        if line and not line.startswith("#")
    ]
    assert all(found), "not of the form name==version"
    pins = {canonicalize_name(match[1]): match[2] for match in found}
    assert len(pins) == len(found), "a distribution has two versions"
    groups = [
        k.removesuffix("_requirements") for k in cfg if k.endswith("_requirements")
    ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    build = Requirement(*project["build-system"]["requires"])
    asked = [*(declared(cfg, [group]) for group in groups), {build.name: build}]
    wrong = {
        str(requirement): pins.get(name)
        for group in asked
        for name, requirement in group.items()
        if name not in pins or not requirement.specifier.contains(pins[name])
    }
    assert wrong == {}


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
