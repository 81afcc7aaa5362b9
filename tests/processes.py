"""Processes that have imported torch when they begin: forks of one that did.

A new Python takes seconds for that, so one is started only where it is what is tested.
"""

import multiprocessing
import os
import socket
from collections.abc import Callable, Mapping
from multiprocessing.connection import wait
from pathlib import Path

import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_PRELOADED = "torch._dynamo torch.distributed.fsdp torch.distributed.nn.functional "
_PRELOADED += "annotated_transformer.runs.train_run annotated_transformer.cli.main "
_PRELOADED += "torch.distributed.launcher.api hypothesis pytest matplotlib.pyplot "
_PRELOADED += (
    "annotated_transformer.show.visualize annotated_transformer.translating.evaluate"
)


def _begin(function: Callable, args: tuple, env: Mapping[str, str], said: Path) -> None:
    os.environ.update(env)
    torch.set_num_threads(1)
    with said.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    function(*args)


def start(function: Callable, *args, said: Path, env: Mapping[str, str] | None = None):
    "A process that calls a function of a module; what it prints goes into the file `said`."
    kinds = multiprocessing.get_all_start_methods()
    kind = "forkserver" if "forkserver" in kinds else "spawn"
    context = multiprocessing.get_context(kind)
    context.set_forkserver_preload(_PRELOADED.split())
    process = context.Process(target=_begin, args=(function, args, env or {}, said))
    process.start()
    return process


def run_ranks(
    n: int,
    function: Callable,
    *args,
    folder: Path,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """As torchrun, without restarts: n processes that call a function.

    The first status that is not 0, which ends the others, and what all of them printed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(n)}
    files = [folder / f"rank {i} said" for i in range(n)]
    open_ = {}
    for file in files:
        file.touch()  # a process may be killed before it begins
    for i, file in enumerate(files):
        own = {"RANK": str(i), "LOCAL_RANK": str(i)}
        process = start(function, *args, said=file, env=group | own | (env or {}))
        open_[process.sentinel] = process
    status = 0
    while open_:
        ended = wait([*open_], timeout=100)
        if not ended:  # they wait for each other
            status = status or -1
            for process in open_.values():
                process.kill()
        for sentinel in ended:
            process = open_.pop(sentinel)
            process.join()
            status = status or process.exitcode
            for other in open_.values() if process.exitcode else ():
                other.join(5)  # it may be about to say why
                other.kill()
    return status, "".join(file.read_text() for file in files)


def _elastic(n: int, restarts: int, function: Callable, *args) -> None:
    config = LaunchConfig(1, 1, n, max_restarts=restarts, start_method="fork")
    config.run_id, config.rdzv_backend = "tests", "c10d"
    config.rdzv_endpoint = "localhost:0"
    elastic_launch(config, function)(*args)


def torchrun(
    n: int,
    function: Callable,
    *args,
    said: Path,
    restarts: int = 0,
    env: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """torchrun's own agent with n processes that call a function, as forks of the agent.

    Its status, and what all of them printed.
    """
    process = start(_elastic, n, restarts, function, *args, said=said, env=env)
    process.join(120)
    process.terminate()  # it hangs, and would end its ranks
    process.join()
    return process.exitcode, said.read_text()
