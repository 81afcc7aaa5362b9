"The kit for GPUs (benchmarks/gpu.py), tiny and on a CPU; `make bench-gpu DEVICE=cpu TINY=1` runs all of its parts."

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = str(ROOT / "benchmarks")

FORM = {
    "command": str,
    "commit": str,
    "date": str,
    "seed": int,
    "hardware": str,
    "versions": dict,
    "tiny": bool,
    "ended": str,
    "seconds": float,
    "found": dict,
}


def kit(*args: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, f"{BENCHMARKS}/gpu.py", *map(str, args)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )


def values_of(name: str, found) -> list:
    "All values under that name, however deep."
    if isinstance(found, list):
        return [v for one in found for v in values_of(name, one)]
    if not isinstance(found, dict):
        return []
    inner = [v for one in found.values() for v in values_of(name, one)]
    return inner + ([found[name]] if name in found else [])


def test_records_of_two_parts(tmp_path):
    "Products, and training with the whole loop, eager and compiled."
    done = kit(
        "--device", "cpu", "--tiny", "--only", "matmul", "loop", "--out", tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {
        "gpu_matmul.json",
        "gpu_loop.json",
    }
    for part in ("matmul", "loop"):
        assert f"{part}: complete" in done.stdout
        record = json.loads((tmp_path / f"gpu_{part}.json").read_text("utf-8"))
        for name, kind in FORM.items():
            assert isinstance(record[name], kind), name
        assert record["ended"] == "complete" and record["tiny"]
        assert record["command"].endswith(f"--only {part} --device cpu --tiny")
        assert str(ROOT) not in json.dumps(record)
    rates = json.loads((tmp_path / "gpu_matmul.json").read_text("utf-8"))["found"]
    assert {"base", "big", "largest"} == rates["rates"].keys()
    assert all(rate > 0 for rate in values_of("gflops", rates))
    loop = json.loads((tmp_path / "gpu_loop.json").read_text("utf-8"))["found"]
    assert {"base", "base, compiled"} <= loop.keys()
    shares = values_of("of_matmul", loop)
    assert len(shares) == 2 and all(0 < share < 1 for share in shares)
    assert all(n > 0 for n in values_of("tokens_per_s", loop))


def test_a_cpu_is_for_tiny_models_only(tmp_path):
    done = kit("--device", "cpu", "--out", tmp_path)
    assert done.returncode == 1 and "on a CPU only --tiny" in done.stderr
    assert not list(tmp_path.iterdir())


STUB = """
import subprocess, sys, time
from gpu_kit import Skipped

def fails(kit):
    kit.note("first", 1)
    raise RuntimeError("no luck\\nand more")

def dies(kit):
    kit.note("first", 1)
    import os
    os._exit(3)

def hangs(kit):
    kit.note("first", 1)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    kit.note("child", child.pid)
    time.sleep(60)

def skips(kit):
    raise Skipped("it needs two devices")

def works(kit):
    kit.note("tiny", kit.tiny)
"""


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    "The module of the command, with parts that end in every way."
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.syspath_prepend(BENCHMARKS)
    paths = [str(ROOT), BENCHMARKS, str(tmp_path)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    import gpu

    parts = {
        name: gpu.Part(f"stub:{name}", 60)
        for name in ("fails", "dies", "skips", "works")
    }
    monkeypatch.setattr(gpu, "PARTS", parts | {"hangs": gpu.Part("stub:hangs", 20)})
    return gpu


def test_a_part_that_fails_loses_nothing(gpu, tmp_path, capsys):
    "Neither what it had found, nor the other parts; what it had started is ended."
    args = argparse.Namespace(
        device="cpu", tiny=True, seed=0, seconds=None, out=tmp_path / "out"
    )
    ends = {name: gpu.record(name, args) for name in gpu.PARTS}
    assert ends == {
        "fails": "failed: RuntimeError: no luck",
        "dies": "exit status 3",
        "skips": "skipped: it needs two devices",
        "works": "complete",
        "hangs": "stopped at its limit of 20 s",
    }
    records = {
        path.stem.removeprefix("gpu_"): json.loads(path.read_text("utf-8"))
        for path in args.out.iterdir()
    }
    assert records.keys() == ends.keys() - {"skips"}
    for name, record in records.items():
        assert record["ended"] == ends[name]
        assert name == "works" or record["found"]["first"] == 1
    assert records["works"]["found"] == {"tiny": True}
    child = Path(f"/proc/{records['hangs']['found']['child']}")
    end = time.monotonic() + 10
    while child.exists() and "Z" not in child.joinpath("stat").read_text().split()[2]:
        assert time.monotonic() < end
        time.sleep(0.05)
