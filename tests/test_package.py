"What is shipped, and that each fact about the project stands in one place."

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from gate import files_of
from notebooks import code_of, joined
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


@pytest.fixture(scope="module")
def sdist(project, tmp_path_factory) -> Path:
    "The source distribution, of a checkout in which tools have left files behind."
    work = tmp_path_factory.mktemp("sdist")
    checkout = shutil.copytree(project, work / "checkout", symlinks=True)
    for name in LEFT_BY_TOOLS:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("{}")
    code = "from setuptools import build_meta; build_meta.build_sdist('..')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return next(work.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def unpacked(sdist, tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(to, filter="data")
    return to / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory) -> zipfile.ZipFile:
    "The wheel, built from the source distribution as a release is."
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "-w",
            out,
            sdist,
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


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


def test_sdist_runs_its_tests(unpacked):
    "Without the checkout, and where no program but Python is found, git included."
    env = os.environ | {"PYTHONPATH": str(unpacked), "PATH": ""}
    tests = ["tests/test_architecture.py", "tests/test_notebooks.py"]
    for command in (["tools/gate.py"], ["-m", "pytest", "-q", *tests]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=unpacked,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_holds_the_package(wheel):
    "Every module, and the files that the modules read: what git tracks of the package."
    shipped = {n for n in wheel.namelist() if ".dist-info/" not in n}
    folder = "annotated_transformer/"
    assert shipped == {name for name in files_of(ROOT) if name.startswith(folder)}
    pretrained = {f"{folder}pretrained/demo/model.safetensors"}
    assert {
        f"{folder}py.typed",
        f"{folder}show/pages/attention.js",
    } | pretrained < shipped


def test_installed_wheel_makes_the_page(wheel, tmp_path):
    "The files of `pages` are found where the package is installed, not in a checkout."
    wheel.extractall(tmp_path)
    code = (
        "from annotated_transformer.show import explorer\n"
        "one = explorer.AttentionExample(['a'], ['b'], {'cross': [[[[1.0]]]]})\n"
        "print(explorer.__file__, len(explorer.attention_page([one])))"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    path, length = done.stdout.split()
    assert path.startswith(str(tmp_path)) and int(length) > 10_000


def test_installed_wheel_translates(wheel, tmp_path):
    "The pretrained model is found where the package is installed."
    wheel.extractall(tmp_path)
    code = (
        "from annotated_transformer import load\n"
        "print(load('demo').translate(['The dog is tired.'])[0])"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONUTF8": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Der Hund ist müde.\n"
    assert done.stderr == ""


def test_wheel_says_what_settings_say(wheel, cfg):
    info = {
        n.rpartition("/")[2]: wheel.read(n).decode()
        for n in wheel.namelist()
        if ".dist-info/" in n
    }
    assert (
        f"\nVersion: {cfg['version']}\n" in info["METADATA"]
        and f"\nRequires-Python: >={cfg['min_python']}\n" in info["METADATA"]
    )
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", info["METADATA"], re.M)
    assert sorted(required) == sorted(
        re.match(r"[\w-]+", r)[0] for r in cfg["requirements"].split()
    )
    assert (
        "annotated-transformer = annotated_transformer.__main__:main"
        in info["entry_points.txt"]
    )


def test_licence_is_an_spdx_expression(wheel, unpacked, cfg):
    "In the metadata of PEP 639, without the older field and classifier."
    info = "annotated_transformer-{version}.dist-info".format(**cfg)
    metadata = (
        wheel.read(f"{info}/METADATA").decode(),
        (unpacked / "PKG-INFO").read_text(),
    )
    for text in metadata:
        assert f"\nLicense-Expression: {cfg['license']}\n" in text
        assert "\nLicense-File: LICENSE\n" in text
        assert not re.search(r"^(License:|Classifier: License ::)", text, re.M)
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert wheel.read(f"{info}/licenses/LICENSE").decode() == licence
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == cfg["license"] == licence.split()[0]


def test_version_has_one_source(cfg):
    import annotated_transformer

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert annotated_transformer.__version__ == citation["version"] == cfg["version"]
    assert f"\n## {cfg['version']}" in (ROOT / "CHANGELOG.md").read_text(
        encoding="utf-8"
    )


def test_address_has_one_source(cfg):
    "Every link to the repository or its pages begins with the address that settings.ini gives."
    right = (
        cfg["git_url"],
        cfg["doc_host"],
        f"https://colab.research.google.com/github/{cfg['user']}/{cfg['repo']}/",
        "https://github.com/harvardnlp/",
        "https://nlp.seas.harvard.edu/",
    )  # the last two: the other project of this name
    wrong = []
    for name in files_of(ROOT):
        if not name.endswith((".ipynb", ".md", ".cff", ".yml", ".toml", ".py")):
            continue
        for url in re.findall(
            r"https?://[^\s\"'<>)\\]+", (ROOT / name).read_text(encoding="utf-8")
        ):
            if re.search(rf"\b{re.escape(cfg['repo'])}\b", url) and not url.startswith(
                right
            ):
                wrong.append(f"{name}: {url}")
    assert wrong == []


# --- requirements

# What is imported where, and the groups of settings.ini that declare it. What a function
# imports is optional, so an extra may bring it.
PREVIEW = ["tools/pages.py", "tools/preview.py"]
EXTRAS = ["plot", "ct2", "moses"]
IMPORTS = {
    "package, at its top": (["annotated_transformer/*.py"], False, []),
    "package": (["annotated_transformer/*.py"], True, EXTRAS),
    "notebooks": (["nbs/*.ipynb"], True, ["dev"]),
    "tools": (["tools/*.py"], True, ["dev"]),
    "tests": (["tests/*.py"], True, ["dev"]),
    "benchmarks": (["benchmarks/*.py"], True, ["bench"]),
    "preview": (PREVIEW, True, ["preview"]),
    # Making a page runs the cells that import something.
    "pages": (["nbs/*.ipynb"], False, ["preview"]),
}


def code_in(path: Path) -> str:
    "The Python of a module or a notebook, without a notebook's % and ! lines."
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return source
    found = [
        code_of(joined(cell["source"]))
        for cell in json.loads(source)["cells"]
        if cell["cell_type"] == "code"
    ]
    return re.sub(r"^\s*[%!].*", "", "\n".join(found), flags=re.M)


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


def test_imported():
    source = "import a.b as c\nfrom d.e import f\nfrom . import g\nfrom .h import i\n"
    inner = "class J:\n    import k\n    def l(self):\n        try: import m.n\n        finally: pass\n"
    assert imported(source + inner, in_functions=False) == {"a", "d", "k"}
    assert imported(source + inner, in_functions=True) == {"a", "d", "k", "m"}


@pytest.mark.parametrize("where", IMPORTS)
def test_every_import_is_declared(where, cfg):
    patterns, in_functions, groups = IMPORTS[where]
    paths = [path for pattern in patterns for path in ROOT.glob(pattern)]
    ours = {
        path.stem
        for folder in ("tools", "tests", "benchmarks")
        for path in (ROOT / folder).glob("*.py")
    } | {cfg["lib_path"]}
    names = {name for path in paths for name in imported(code_in(path), in_functions)}
    distributions = packages_distributions()
    missing = {
        name
        for name in names - ours - sys.stdlib_module_names
        if not declared(cfg, groups).keys()
        & {canonicalize_name(found) for found in distributions.get(name, [])}
    }
    assert names and missing == set(), (
        f"declare them, or install what brings them: {missing}"
    )


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
        key.removesuffix("_requirements")
        for key in cfg
        if key.endswith("_requirements")
    ]
    build = re.search(
        r'^requires = \["(.+)"\]$', (ROOT / "pyproject.toml").read_text(), re.M
    )
    asked = [
        *(declared(cfg, [group]) for group in groups),
        {"setuptools": Requirement(build[1])},
    ]
    wrong = {
        str(requirement): pins.get(name)
        for group in asked
        for name, requirement in group.items()
        if name not in pins or not requirement.specifier.contains(pins[name])
    }
    assert wrong == {}


def test_torch_has_one_version():
    "Where a command names a build of torch, it is the version of constraints.txt."
    pin = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    named = {
        (path.name, version)
        for path in (
            ROOT / "README.md",
            ROOT / "CONTRIBUTING.md",
            *(ROOT / ".github/workflows").glob("*.yml"),
        )
        for version in re.findall(r"torch==([\d.]+)", path.read_text(encoding="utf-8"))
    }
    assert named >= {("README.md", pin), ("CONTRIBUTING.md", pin)}
    assert {version for _, version in named} == {pin}


def test_oldest_python_has_one_source(cfg):
    "CI begins with the oldest Python that settings.ini allows, and the pages name it."
    workflow = yaml.safe_load(
        (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    )
    assert (
        workflow["jobs"]["test"]["strategy"]["matrix"]["python"][0] == cfg["min_python"]
    )
    for name in ("README.md", "CONTRIBUTING.md"):
        said = re.findall(
            r"Python (3\.\d+) or newer", (ROOT / name).read_text(encoding="utf-8")
        )
        assert set(said) == {cfg["min_python"]}, name


def test_pyproject_says_what_settings_say(cfg):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["name"] == cfg["lib_name"]
    assert project["requires-python"] == f">={cfg['min_python']}"


@pytest.mark.skipif(
    not (Path(sys.prefix) / ".stamp-dev").exists(), reason="needs make's environment"
)
def test_nbdevs_commands_find_our_processors():
    "nbdev_readme and nbdev_docs, called without make."
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    code = "from nbdev.processors import FilterDefaults; FilterDefaults().procs()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_command_line_starts_without_torch():
    "`--help` must not wait for torch: heavy imports happen inside the commands."
    code = (
        "import sys, annotated_transformer.cli.main; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
