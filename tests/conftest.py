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
sys.path.insert(0, str(ROOT / "tools"))  # notebooks.py, gate.py, preview.py

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
def chromium() -> str:
    "A browser. In CI, as root, it is installed; elsewhere the test is skipped without one."
    names = ("chromium", "chromium-browser", "google-chrome")
    if not any(map(shutil.which, names)) and os.environ.get("CI") and hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        for args in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-q", *args], capture_output=True, timeout=300, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        if os.environ.get("CI"): warnings.warn("no chromium in CI: the browser tests did NOT run", stacklevel=1)
        pytest.skip("needs a browser: install chromium")
    return found
