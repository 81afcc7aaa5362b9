"Ending a process together with all that it started (Linux)."

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    "The processes that one started, and those that these started."
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def kill_all(process: subprocess.Popen) -> None:
    "SIGKILL for it and its descendants: torchrun's processes would live on."
    others = descendants(process.pid)
    process.kill()
    for pid in others:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
