"What several tests share. See CONTRIBUTING.md for what belongs here and what in a notebook."
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))  # notebooks.py, gate.py, pages.py, preview.py, links.py

# The same examples on every run, and no time limit on one: machines differ.
hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)
hypothesis.settings.load_profile("steady")


@pytest.fixture(scope="session")
def cfg() -> dict[str, str]:
    "What settings.ini says."
    from notebooks import settings
    return settings()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    "The folder of real text that ANNOTATED_TRANSFORMER_DATA names; without it the test is skipped."
    folder = os.environ.get("ANNOTATED_TRANSFORMER_DATA")
    if not folder: pytest.skip("needs real text: set ANNOTATED_TRANSFORMER_DATA to a folder that holds multi30k/")
    return Path(folder)


@pytest.fixture(scope="session")
def project(tmp_path_factory) -> Path:
    "A copy of the checkout, to be built in."
    from gate import copy, files_of
    to = tmp_path_factory.mktemp("project")
    copy(ROOT, to, files_of(ROOT))
    return to


@pytest.fixture(scope="session")
def site(tmp_path_factory) -> Path:
    "The preview of all pages, and of one more that uses all the page dialect: built once, in a copy of the checkout."
    from gate import copy, files_of
    from trial import write_trial
    root = tmp_path_factory.mktemp("site")
    copy(ROOT, root, files_of(ROOT))
    write_trial(root)
    done = subprocess.run([sys.executable, root / "tools/preview.py"], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr
    return root / "_preview"


@pytest.fixture(scope="session")
def chromium() -> str:
    "A browser. In CI, as root, it is installed; elsewhere the test is skipped without one."
    names = ("chromium", "chromium-browser", "google-chrome")
    if not any(map(shutil.which, names)) and os.environ.get("CI") and hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        for args in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-q", *args], capture_output=True, timeout=300, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        line = "NO BROWSER: chromium is not installed, so no page was opened in one. Install it and run pytest again."
        warnings.warn(line, stacklevel=1)
        if os.environ.get("CI"): print(f"\n::warning::{line}", file=sys.__stderr__)
        pytest.skip(line)
    return found
