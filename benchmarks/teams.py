"""Processes that are measured in turn: each contestant has its own, which sleep when it is not their turn.

To start processes anew for every round would measure their start and cold caches; to let all contestants share two
processes would mix their memory. So a contestant's processes live as long as the benchmark, wait for orders on a pipe,
which takes no processor time, and their largest size is the contestant's alone. They are forked from a server that has
imported everything, and meet through a file: no port is opened but Gloo's, on the loopback device.
"""

import multiprocessing
import os
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = timedelta(minutes=5)
#: Modules that take long to import. Not the script itself, which the processes run under another name.
PRELOADED = ["torch._dynamo", "torch.distributed.pipelining", "petra_core.distributed", "benchmarks.recording"]

Serve = Callable[..., Any]  # an order's arguments -> the answer


class TeamError(RuntimeError):
    """A process of a team failed; it has printed its traceback."""


class BenchmarkTeam:
    """Some processes of one torch.distributed group, with Gloo and one thread each.

    Args:
        size: how many.
        make: called in each as make(rank, *arguments); returns what answers orders.
        arguments: picklable.

    """

    def __init__(self, size: int, make: Callable[..., Serve], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, size, store, make, arguments), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def ask(self, *order: Any) -> list[Any]:
        """Give one order to all processes, which work on it side by side; their answers by rank. Raises: TeamError."""
        for pipe in self._pipes:
            pipe.send(order)
        return [self._answer(rank) for rank in range(len(self._pipes))]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()  # which they take for the end
        for process in self._processes:
            process.join(PATIENCE.total_seconds())
        self._folder.cleanup()

    def _answer(self, rank: int) -> Any:
        try:
            return self._pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            for process in self._processes:
                process.terminate()
            raise TeamError(f"process {rank} of {len(self._pipes)} has failed; see its traceback above") from None

    def __enter__(self) -> "BenchmarkTeam":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(
    pipe: Connection, rank: int, size: int, store: str, make: Callable[..., Serve], arguments: Sequence[Any]
) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{store}", PATIENCE, size, rank)
    try:
        serve = make(rank, *arguments)
        while True:
            try:
                order = pipe.recv()
            except EOFError:
                break
            pipe.send(serve(*order))
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # at once: the group's threads may wait for processes that are gone too
    os._exit(0)


def peak_memory() -> int:
    """The largest resident set of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
