"""Python code on something like Windows: python tests/windows.py CODE

POSIX-only names are gone, no folder can be opened, an open file cannot be renamed, replaced or
removed, and a text file that is opened without an encoding is an error.
"""

import fcntl
import glob
import os
import shutil
import signal
import sys
import warnings

# What other libraries do with these names is theirs: they are loaded before.
import click.testing  # noqa: F401
import filelock
import matplotlib.pyplot  # noqa: F401
import numpy.lib.format  # noqa: F401
import pooch  # noqa: F401
import requests  # noqa: F401
import sacrebleu  # noqa: F401
import safetensors.torch  # noqa: F401
import sentencepiece  # noqa: F401
import torch._dynamo  # noqa: F401
import torch.distributed.fsdp  # noqa: F401
import torch.nn.parallel  # noqa: F401

GONE = {
    os: """O_NONBLOCK O_NOFOLLOW O_CLOEXEC O_DIRECTORY O_SYNC pread pwrite fork mkfifo chown
    geteuid getuid getpgid setsid killpg uname sysconf statvfs nice WIFSIGNALED wait3
    sched_getaffinity symlink link readlink fchmod""",
    signal: "SIGHUP SIGKILL SIGUSR1 SIGUSR2 SIGALRM SIGPIPE SIGQUIT SIGTSTP alarm",
}
POSIX_MODULES = "fcntl pwd grp resource termios tty pty".split()


def held(path: os.PathLike | str) -> list[str]:
    "Files at or below a path that this process has open or mapped."
    names = [
        line[5]
        for line in map(str.split, open("/proc/self/maps", encoding="utf-8"))
        if line[5:]
    ]
    for link in glob.glob("/proc/self/fd/*"):
        try:
            names.append(readlink(link))
        except OSError:  # that of the listing itself
            pass
    path = os.path.realpath(path)
    return [n for n in names if n == path or n.startswith(f"{path}/")]


def refusing(change, all_exist: bool = False):
    "A function of `os` that fails as on Windows where a file is in use."

    def changed(*paths, **options):
        named = [p for p in paths if isinstance(p, str | os.PathLike)]
        if "dir_fd" not in options:
            for path in named:
                if found := held(path):
                    print(f"in use: {found[0]}", file=sys.__stderr__)
                    raise PermissionError(13, "in use by another process", str(path))
        if all_exist and os.path.lexists(named[1]):
            raise FileExistsError(17, "is there already", str(named[1]))
        return change(*paths, **options)

    return changed


def opened(path, flags, *mode, **options):
    if os.path.isdir(path) and "dir_fd" not in options:
        raise PermissionError(13, "Permission denied", str(path))
    return os_open(path, flags, *mode, **options)


class Lock:
    "A file lock whose file stays, as that of filelock does on Windows."

    def __init__(self, path, timeout):
        self.path = path

    def acquire(self):
        self.file = open(self.path, "ab")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.file.close()
            raise filelock.Timeout(self.path) from None

    def release(self):
        self.file.close()


readlink, os_open = os.readlink, os.open
warnings.filterwarnings("error", category=EncodingWarning, module="annotated_tr")
shutil._use_fd_functions = False
filelock.FileLock = Lock
for module, names in GONE.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in POSIX_MODULES:
    sys.modules[name] = None
os.replace, os.rename = refusing(os.replace), refusing(os.rename, all_exist=True)
os.unlink = os.remove = refusing(os.unlink)
os.rmdir, os.open = refusing(os.rmdir), opened

exec(sys.argv[1])
