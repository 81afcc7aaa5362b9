"The tools that ask whether all holds elsewhere: other kernels, the lowest versions."

import json
import os
import subprocess
import sys

import lowest
import portable
import pytest
from conftest import ROOT

NBDEV = """
nbdev Tests Failed On The Following Notebooks:
==================================================
\t31_stack.ipynb
\t33_feed_forward.ipynb
"""
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_loss" name="test_a"/>
<testcase classname="tests.test_loss" name="test_b[1]"><failure message="x"/></testcase>
<testcase classname="tests.test_loss" name="test_c"><skipped/></testcase>
<testcase classname="tests.test_loss" name="test_d"><error message="x"/></testcase>
</testsuite></testsuites>"""


def test_the_quick_ones_exist_and_every_variant_can_be_chosen():
    notebooks, tests = portable.chosen([], quick=False)
    assert set(portable.QUICK_NOTEBOOKS) < set(notebooks) and set(
        portable.QUICK_TESTS
    ) < set(tests)
    assert portable.chosen(["tests/test_loss.py", "nbs/31_stack.ipynb"], False) == (
        ["31_stack"],
        ["test_loss"],
    )
    assert (
        {"threads-1", "threads-2", "default", "lang-c"}
        <= portable.here().keys()
        <= portable.VARIANTS.keys()
    )


def test_a_variant_is_its_settings_and_no_other(monkeypatch):
    "What the caller's environment sets for kernels and threads does not reach another variant."
    monkeypatch.setattr(
        os,
        "environ",
        dict(os.environ)
        | {
            "MKL_CBWR": "AVX2",
            "OMP_NUM_THREADS": "7",
            "IN_TEST": "1",
            "PYTHONUTF8": "1",
        },
    )
    both = portable.environment("default+threads-2")
    assert (both["ATEN_CPU_CAPABILITY"], both["OMP_NUM_THREADS"]) == ("default", "2")
    assert not {"MKL_CBWR", "IN_TEST", "PYTHONUTF8"} & both.keys()
    assert portable.environment("default")["OMP_NUM_THREADS"] == "1"
    assert (
        portable.environment("lang-c")["LANG"] == "C"
        and portable.environment("mkl-compatible")["MKL_CBWR"] == "COMPATIBLE"
    )


def test_a_variant_reaches_torch():
    for variant, kernels, n_threads in (
        ("default", "default", "1"),
        ("default+threads-4", "default", "4"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", portable.KERNELS],
            env=portable.environment(variant),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == [kernels, n_threads]


@pytest.fixture
def calls(tmp_path, monkeypatch) -> list:
    "The commands that would be run; `.said` is what nbdev_test prints, `.junit` what pytest writes."

    class Calls(list):
        said, junit = (
            "Success.\n",
            JUNIT.replace('<failure message="x"/>', "").replace(
                '<error message="x"/>', ""
            ),
        )

    calls = Calls()

    def logged(command, env, log):
        calls.append((command, env))
        if command[0] == "nbdev_test":
            return int("Failed" in calls.said), calls.said
        log.with_suffix(".xml").write_text(calls.junit)
        return int("failure" in calls.junit), ""

    monkeypatch.setattr(portable, "logged", logged)
    monkeypatch.setattr(portable, "FOLDER", tmp_path / "portable")
    monkeypatch.setattr(portable, "ROOT", ROOT)
    return calls


def run(monkeypatch, capsys, *args: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["portable.py", *args])
    status = portable.main()
    return status, capsys.readouterr().out


def test_what_passed_is_not_run_again(calls, monkeypatch, capsys):
    monkeypatch.setattr(portable, "files_of", lambda root: [])
    args = ("--names", "31_stack test_loss", "--variants", "default threads-2")
    status, out = run(monkeypatch, capsys, *args)
    assert (
        status == 0
        and len(calls) == 4
        and [env["OMP_NUM_THREADS"] for _, env in calls] == ["1", "1", "2", "2"]
    )
    assert [line.split()[0] for line in out.strip().split("\n")] == [
        "variant",
        "default",
        "threads-2",
    ]
    assert run(monkeypatch, capsys, *args) == (0, out) and len(calls) == 4
    run(monkeypatch, capsys, *args, "--again")
    assert len(calls) == 8
    run(monkeypatch, capsys, "--names", "test_loss", "--variants", "default")
    assert len(calls) == 9  # other names are another question


def test_failures_are_named_and_tried_again(calls, monkeypatch, capsys):
    monkeypatch.setattr(portable, "files_of", lambda root: [])
    calls.said, calls.junit = NBDEV, JUNIT
    args = (
        "--names",
        "31_stack 33_feed_forward 34_embedding test_loss",
        "--variants",
        "default",
    )
    status, out = run(monkeypatch, capsys, *args)
    assert status == 1 and "1 ok, 2 failed" in out
    for name in (
        "31_stack",
        "33_feed_forward",
        "test_loss::test_b[1]",
        "test_loss::test_d",
    ):
        assert f"failed under default: {name}\n" in out
    assert run(monkeypatch, capsys, *args)[0] == 1 and len(calls) == 4


@pytest.mark.parametrize(
    "args, named",
    [
        (["--variants", "sse9"], "no such variant on this machine: sse9"),
        (["--names", "test_nothing"], "no such notebook or test file: test_nothing"),
    ],
)
def test_unknown_names(args, named, monkeypatch, capsys):
    with pytest.raises(SystemExit) as left:
        run(monkeypatch, capsys, *args)
    assert named in str(left.value)


def test_lowest_versions(cfg):
    found = lowest.lowest(["torch>=2.11", "numpy>=1.26"])
    assert found == {"torch": "torch==2.11.*", "numpy": "numpy==1.26.*"}
    with pytest.raises(SystemExit, match="numpy has no lower bound"):
        lowest.lowest(["numpy"])
    done = subprocess.run(
        [sys.executable, ROOT / "tools/lowest.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.split("\n")[:-1]
    names = [line.split("==")[0] for line in lines]
    assert len(set(names)) == len(names) and "pytest" in names
    assert set(lowest.lowest(cfg["requirements"].split()).values()) <= set(lines)


def test_the_table_can_be_kept(calls, monkeypatch, capsys):
    monkeypatch.setattr(portable, "files_of", lambda root: [])
    run(monkeypatch, capsys, "--names", "test_loss", "--variants", "default")
    (row,) = json.loads((portable.FOLDER / "results.json").read_text()).values()
    assert row["variant"] == "default" and row["tests"] == {
        "passed": 3,
        "skipped": 1,
        "failed": [],
    }
