"The tools that ask whether all holds elsewhere: other kernels, the lowest versions."

import os
import subprocess
import sys

import lowest
import portable
import pytest
from conftest import ROOT


def test_what_is_run():
    found = portable.commands(["31_stack", "test_loss"], quick=False)
    assert found["notebooks"][-1] == r"^(31_stack)\.ipynb$"
    assert found["tests"][-1] == "tests/test_loss.py"
    assert list(portable.commands(["31_stack"], quick=False)) == ["notebooks"]
    quick = portable.commands([], quick=True)
    assert "36_transformer" in quick["notebooks"][-1]
    assert "tests/test_twins.py" in quick["tests"]
    assert "95_cli" not in quick["notebooks"][-1]
    assert "tests/test_site.py" not in quick["tests"]
    with pytest.raises(SystemExit, match="no such notebook or test file: test_nothing"):
        portable.commands(["test_nothing"], quick=False)


def test_a_variant_is_its_settings_and_no_other(monkeypatch):
    "What the caller's environment sets for kernels and threads does not reach another variant."
    mine = {"MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "7", "IN_TEST": "1"}
    monkeypatch.setattr(os, "environ", dict(os.environ) | mine)
    both = portable.environment("default+threads-4")
    assert not {"MKL_CBWR", "IN_TEST"} & both.keys()
    assert portable.environment("default")["OMP_NUM_THREADS"] == "1"
    asked = [sys.executable, "-c", portable.KERNELS]
    done = subprocess.run(asked, env=both, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["default", "4"]


def test_failures_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(portable, "ROOT", tmp_path)
    monkeypatch.setattr(portable, "FOLDER", tmp_path / ".portable")
    commands = {
        "notebooks": [sys.executable, "-c", "print('fine')"],
        "tests": [sys.executable, "-c", "raise SystemExit('broken')"],
    }
    monkeypatch.setattr(portable, "commands", lambda names, quick: commands)
    monkeypatch.setattr(sys, "argv", ["portable.py", "--variants", "default"])
    assert portable.main() == 1
    good, bad = capsys.readouterr().out.split("\n")[:-1]
    assert good.split() == ["default", "default", "1", "notebooks", "ok"]
    assert bad.endswith("FAILED, see .portable/default.tests.log")
    assert "broken" in (tmp_path / ".portable/default.tests.log").read_text()
    monkeypatch.setattr(sys, "argv", ["portable.py", "--variants", "sse9"])
    with pytest.raises(SystemExit, match="no such variant on this machine: sse9"):
        portable.main()


def test_lowest_versions(cfg):
    found = lowest.lowest(["torch>=2.11", "numpy>=1.26"])
    assert found == {"torch": "torch==2.11.*", "numpy": "numpy==1.26.*"}
    with pytest.raises(SystemExit, match="numpy has no lower bound"):
        lowest.lowest(["numpy"])
    program = [sys.executable, ROOT / "tools/lowest.py"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    lines = done.stdout.split("\n")[:-1]
    names = [line.split("==")[0] for line in lines]
    assert len(set(names)) == len(names) and "pytest" in names
    assert set(lowest.lowest(cfg["requirements"].split()).values()) <= set(lines)
