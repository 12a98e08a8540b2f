"""Memory as the machine reports it: how much is free, and how much this process has taken.

The ledger of the engine counts tensors as they come and go. That the process really takes about as much is for the
system to say, which knows nothing of tensors: the resident set on a CPU, the allocator's count on a CUDA device.

The obvious source, `ru_maxrss`, is the peak since the process began, and one process runs many cells. Linux can reset
the peak it keeps in /proc (`VmHWM`), and memory that is kept for later, by the C library or by CUDA's allocator, is
given back before we look: what a cell has left there is free for the next one. On CUDA the allocator also counts what
cuBLAS keeps to work in, tens of megabytes for each thread and stream that it has met, whatever is multiplied, and only
where it has not met them yet: that is taken off, and named beside.
"""

import contextlib
import ctypes
import gc
import re
from pathlib import Path
from typing import Any

import torch

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
RESET_PEAK = "5"  # see proc_pid_clear_refs(5)
#: What errors say that have no type of their own: of the CPU's allocator, the CUDA driver, cuBLAS and cuDNN.
NO_MEMORY = (
    *("can't allocate memory", "not enough memory", "out of memory"),
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
)


def out_of_memory(error: BaseException) -> BaseException | None:
    """The error that says that memory could not be had, if `error` is one or arose while one was handled; else None.

    The second is how it comes out of the recording of a CUDA graph: that this cannot be ended is what is said last.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MemoryError | torch.OutOfMemoryError):
        if isinstance(cause, RuntimeError) and any(words in str(cause) for words in NO_MEMORY):
            break
        cause = cause.__context__
    return cause


def give_back(device: torch.device) -> None:
    """Let go of all memory of the device that this process holds and has no use for."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        with contextlib.suppress(OSError, AttributeError):  # another C library, another system
            ctypes.CDLL(None).malloc_trim(0)


def workspaces(device: torch.device) -> int:
    """Bytes that cuBLAS has kept to work in; it keeps none any more, until it is used again. Of CUDA devices alone.

    Not while there are recorded CUDA graphs: they would go on to use them.
    """
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch._C._cuda_clearCublasWorkspaces()
    return before - torch.cuda.memory_allocated(device)


def available(device: torch.device) -> int | None:
    """Bytes that can still be had on the device; None where the system does not say."""
    give_back(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [left for left in (_kilobytes("meminfo", "MemAvailable"), _left_in_group()) if left is not None]
    return min(limits, default=None)


class Witness:
    """Counts the memory that this process takes on one device, from now on."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        give_back(device)
        workspaces(device)
        try:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            else:
                (PROC / "self" / "clear_refs").write_text(RESET_PEAK, "ascii")
            self._before = self._now()
        except OSError:  # the peak would be that of before
            self._before = None

    def report(self) -> dict[str, Any] | None:
        """Bytes more than at the beginning: `held` now, `peak` at most so far; None where the system does not say.

        On CUDA without those of cuBLAS, which are the `workspaces`.
        """
        now, peak = self._now(), self._peak()
        if self._before is None or now is None or peak is None:
            return None
        if self._device.type != "cuda":
            return {"source": "resident set", "held": now - self._before, "peak": peak - self._before}
        taken = workspaces(self._device)
        held, highest = now - self._before - taken, peak - self._before - taken
        return {"source": "CUDA allocator", "held": held, "peak": highest, "workspaces": taken}

    def _now(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return _kilobytes("self/status", "VmRSS")

    def _peak(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return _kilobytes("self/status", "VmHWM")


def _kilobytes(file: str, name: str) -> int | None:
    """The bytes that a file of `PROC` has under a name."""
    try:
        match = re.search(rf"^{name}:\s*(\d+) kB$", (PROC / file).read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(match[1]) if match else None


def _left_in_group() -> int | None:
    """Bytes that a container or a job may still take; page cache counts as taken, so this is on the safe side.

    Within a container its own limits are at the top; those of a job of Slurm or systemd are below, at every level.
    """
    group = CGROUP
    try:
        own = re.search(r"^0::/(.*)$", (PROC / "self" / "cgroup").read_text("ascii"), re.MULTILINE)
        group /= own[1] if own else ""
    except OSError:
        pass
    lefts: list[int] = []
    while group.is_relative_to(CGROUP):
        with contextlib.suppress(OSError):
            limit, taken = ((group / name).read_text("ascii").strip() for name in ("memory.max", "memory.current"))
            lefts += [int(limit) - int(taken)] if limit.isdigit() else []
        group = group.parent
    return min(lefts, default=None)
