"""Every byte that a run has allocated, followed from the first to the last; and processes that have done nothing yet.

The resident set of a process is what the system sees: it has torch's libraries in it, what the C library keeps for
later, and other people's noise. The ledger of the engine is exact and knows only what is reported to it, and a rival
has no ledger. So a third count is taken here, the same for all: torch's profiler reports every allocation and release
on the CPU, temporaries of operations included, and their running sum has a peak, which is what an allocator of a GPU
would show and is the same in every run. On CUDA the allocator's own statistics are read.

What is allocated before the context is entered is not counted, so everything of interest is made inside it. What runs
out of memory does not fit, and is no reason to lose what was measured before. And the system's word is asked of a fresh
process, which has not yet kept anything of what was measured before.
"""

import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

# The profiler talks on stderr about GPUs that it does not find (to level 2) and its own beginning and end (level 5).
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from reproduce.measures.machine_memory import Witness, give_back, out_of_memory, workspaces

__all__ = ["Allocations", "growth_of_fresh_process", "in_fresh_process", "unless_out_of_memory"]

P = ParamSpec("P")
T = TypeVar("T")

MARK = "benchmarks.allocation.mark"
CPU = 0  # as "Device Type" of the profiler's events
#: Imported by the fresh processes before they begin; torch's optimizers import the second at their first step.
IMPORTED = ["torch", "torch._dynamo", "petra_core", "reproduce.measures.machine_memory", "reproduce.records.benchmarks"]


class Allocations:
    """Context that follows the tensors' memory on one device.

    Attributes:
        peak: most bytes held at a moment, known when the context is left.
        workspaces: bytes that cuBLAS kept to work in on a CUDA device, which are not in the peak, known likewise.
        marks: bytes held at each `mark`, in order, known when the context is left.

    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.peak = self.workspaces = 0
        self.marks: list[int] = []
        # The last keeps torch 2.11 from warning of other cycles; there is one.
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)

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
        """Note the bytes that are held now."""
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
        """The marks and the changes of the CPU's memory in the trace that the profiler writes for Chrome."""
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
    """What `call` returns; None if it runs out of memory, of which it then holds none any more."""
    try:
        return call()
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error) is None:
            raise
    give_back(device)  # here, where the error is gone, and with it the frames of the call
    return None


def in_fresh_process(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call `function` in a process that has done nothing yet but import torch, and return its result.

    Function, arguments and result travel pickled. An exception of the function is raised here; BrokenProcessPool if the
    process was killed, as a system short of memory does.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments, **named).result()


def growth_of_fresh_process(train: Callable[[T], object], small: T, run: T) -> int | None:
    """Most bytes by which a fresh process grows in training a run on the CPU; None where the system does not say.

    Args:
        train: trains, in that process; it and its argument travel pickled.
        small: trained before, for what the first step of a process loads and allocates, whatever it trains.
        run: what is measured.

    """
    return in_fresh_process(_growth, train, small, run)


def _growth(train: Callable[[T], object], small: T, run: T) -> int | None:
    train(small)
    witness = Witness(torch.device("cpu"))
    train(run)
    growth = witness.report()
    return None if growth is None else max(0, int(growth["peak"]))
