"What is shipped, and that each fact about the project stands in one place."
import re
import subprocess
import sys
import zipfile

import pytest
import yaml
from conftest import ROOT
from gate import files_of


@pytest.fixture(scope="module")
def wheel(project, tmp_path_factory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, project],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(out.glob("*.whl")))


def test_wheel_holds_every_module(wheel):
    shipped = {n for n in wheel.namelist() if ".dist-info/" not in n}
    assert shipped == {f"annotated_transformer/{p.name}" for p in (ROOT / "annotated_transformer").glob("*.py")} | {"annotated_transformer/py.typed"}


def test_wheel_says_what_settings_say(wheel, cfg):
    info = {n.rpartition("/")[2]: wheel.read(n).decode() for n in wheel.namelist() if ".dist-info/" in n}
    assert f"\nVersion: {cfg['version']}\n" in info["METADATA"] and f"\nRequires-Python: >={cfg['min_python']}\n" in info["METADATA"]
    required = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", info["METADATA"], re.M)
    assert sorted(required) == sorted(re.match(r"[\w-]+", r)[0] for r in cfg["requirements"].split())
    assert "annotated-transformer = annotated_transformer.cli:main" in info["entry_points.txt"]


def test_version_has_one_source(cfg):
    import annotated_transformer
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert annotated_transformer.__version__ == citation["version"] == cfg["version"]
    assert f"\n## {cfg['version']}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_address_has_one_source(cfg):
    "Every link to the repository or its pages begins with the address that settings.ini gives."
    right = (cfg["git_url"], cfg["doc_host"], f"https://colab.research.google.com/github/{cfg['user']}/{cfg['repo']}/",
             "https://github.com/harvardnlp/")  # the other project of this name
    wrong = []
    for name in files_of(ROOT):
        if not name.endswith((".ipynb", ".md", ".cff", ".yml", ".toml", ".py")): continue
        for url in re.findall(r"https?://[^\s\"'<>)\\]+", (ROOT / name).read_text(encoding="utf-8")):
            if re.search(rf"\b{re.escape(cfg['repo'])}\b", url) and not url.startswith(right): wrong.append(f"{name}: {url}")
    assert wrong == []


def test_every_requirement_has_a_pin(cfg):
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M))
    asked = {re.match(r"[\w.-]+", r)[0] for k, v in cfg.items() if k.endswith("requirements") for r in v.split()}
    assert asked <= pins.keys()


def test_command_line_starts_without_torch():
    "`--help` must not wait for torch: heavy imports happen inside the verbs."
    code = "import sys, annotated_transformer.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
