"""Measure processes in turn: each contestant has a team of processes, which sleep while another one is measured.

Starting processes for every round would include their start and cold caches in the measurement. Sharing two processes
among all contestants would mix their memory. So the processes of a contestant live as long as the benchmark and wait
for requests on a pipe, which uses no processor time. Their peak memory is then that of one contestant. They are forked
from a server that has imported all modules, and they initialize torch.distributed through a file. The only open port is
Gloo's, on the loopback device.
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
#: Modules that take long to import. The script itself is not listed: the processes import it under another name.
PRELOADED = ["torch._dynamo", "torch.distributed.pipelining", "petra_core.distributed", "benchmarks.recording"]

Serve = Callable[..., Any]  # arguments of a request -> reply


class TeamError(RuntimeError):
    """Report that a process of a team has failed. The process has printed its traceback."""


class BenchmarkTeam:
    """Start processes in one torch.distributed group, with Gloo and one thread each.

    Args:
        size: Number of processes.
        make: Called in each process as make(rank, *arguments). Returns the function that serves requests.
        arguments: Picklable arguments of `make`.

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
        """Send one request to all processes, which serve it concurrently, and return their replies by rank.

        Raises:
            TeamError: A process has failed.

        """
        for pipe in self._pipes:
            pipe.send(order)
        return [self._answer(rank) for rank in range(len(self._pipes))]

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()  # the processes exit when their pipe closes
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
        os._exit(1)  # without cleanup: the group's threads may wait for processes that have exited
    os._exit(0)


def peak_memory() -> int:
    """Return the largest resident set of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
