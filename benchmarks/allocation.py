"""Count every byte that a run allocates, and measure the growth of fresh processes.

The resident set of a process is what the system reports. It includes torch's libraries, memory that the C library keeps
for later, and noise of other processes. The ledger of the engine is exact, but contains only what is reported to it,
and a competing package has no ledger. So a third count treats all of them alike: torch's profiler reports every
allocation and release on the CPU, including the temporaries of operations. The peak of their running sum is what the
allocator of a GPU would report, and it is equal in every run. On CUDA the allocator's statistics are used.

Allocations before the context is entered are not counted, so everything of interest must be made inside it. A run that
is out of memory does not fit; earlier measurements are kept. The resident set is measured in a fresh process, which has
not kept memory from earlier measurements.
"""

import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

# The profiler logs missing GPUs (up to level 2) and its start and end (level 5) on stderr.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch
from torch.autograd.profiler import profile, record_function

from reproduce.measures.machine_memory import Witness, give_back, out_of_memory, workspaces

P = ParamSpec("P")
T = TypeVar("T")

MARK = "benchmarks.allocation.mark"
CPU = 0  # "Device Type" in the profiler's events
#: Fresh processes import these first. torch's optimizers import the second one at their first step.
IMPORTED = ["torch", "torch._dynamo", "petra_core", "reproduce.measures.machine_memory", "reproduce.records.benchmarks"]


class Allocations:
    """Track the memory of tensors on one device within a context.

    Attributes:
        peak: Peak of the held bytes, available after the context.
        workspaces: Bytes that cuBLAS keeps as workspaces on a CUDA device, excluded from the peak; available after the
            context.
        marks: Held bytes at each `mark`, in order, available after the context.

    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak = self.workspaces = 0
        self.marks: list[int] = []
        # `torch.profiler.profile` warns of further cycles unless it keeps their events, which takes most of the time.
        self._profile = profile(use_kineto=True, profile_memory=True)

    def __enter__(self) -> "Allocations":
        give_back(self._device)
        if self._device.type == "cuda":
            workspaces(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            self._profile.__enter__()
        return self

    def mark(self) -> None:
        """Record the bytes that are held now."""
        if self._device.type == "cuda":
            self.marks.append(torch.cuda.memory_allocated(self._device) - self._before)
        else:
            with record_function(MARK):
                pass

    def __exit__(self, *error: Any) -> None:
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
            self.workspaces = workspaces(self._device)
            self.peak = peak - self._before - self.workspaces
            return
        self._profile.__exit__(*error)
        held = 0
        for event in sorted(self._events(), key=lambda event: float(event["ts"])):
            if event["name"] == MARK:
                self.marks.append(held)
            else:
                held += event["args"]["Bytes"]
                self.peak = max(self.peak, held)

    def _events(self) -> list[dict[str, Any]]:
        """Return the marks and the changes of CPU memory from the profiler's Chrome trace."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            self._profile.export_chrome_trace(str(file))
            events = json.loads(file.read_bytes())["traceEvents"]
        return [
            event
            for event in events
            if event.get("name") == MARK or (event.get("name") == "[memory]" and event["args"]["Device Type"] == CPU)
        ]


def unless_out_of_memory(call: Callable[[], T], device: torch.device) -> T | None:
    """Return the result of `call`, or None if it runs out of memory, after releasing the memory that it used."""
    try:
        return call()
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error) is None:
            raise
    give_back(device)  # after the except block, which kept the frames of the call alive
    return None


def in_fresh_process(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call `function` in a process that has only imported torch, and return its result.

    Args:
        function: Picklable function.
        *arguments: Picklable positional arguments.
        **named: Picklable keyword arguments.

    Returns:
        The result of the function, which must be picklable.

    Raises:
        BrokenProcessPool: The process was killed, as the system does when memory is short. Exceptions of the function
            are raised unchanged.

    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments, **named).result()


def growth_of_fresh_process(train: Callable[[T], object], small: T, run: T) -> int | None:
    """Return the peak growth in bytes of a fresh process that trains on the CPU, or None if the system has no count.

    Args:
        train: Trains in the fresh process. It and its argument must be picklable.
        small: Trained first, for what the first step of any training loads and allocates.
        run: Training to measure.

    """
    return in_fresh_process(_growth, train, small, run)


def _growth(train: Callable[[T], object], small: T, run: T) -> int | None:
    train(small)
    witness = Witness(torch.device("cpu"))
    train(run)
    growth = witness.report()
    return None if growth is None else max(0, int(growth["peak"]))
