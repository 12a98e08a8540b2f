"""Measure memory as the system reports it: the free memory, and the growth of this process.

The engine's ledger counts tensors. The system's count is independent of it: the resident set on a CPU, the allocator's
count on a CUDA device.

`ru_maxrss` cannot be used. It is the peak since the process started, and one process runs many cells. Linux can reset
the peak in /proc (`VmHWM`). Memory that the C library or CUDA's allocator caches is released before each measurement,
so that one cell does not affect the next.

On CUDA the allocator also counts the workspaces of cuBLAS. They take tens of megabytes for each new pair of thread and
stream, whatever the size of the product. They are subtracted and reported separately.
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
#: Messages of out-of-memory errors without a specific type: CPU allocator, CUDA driver, cuBLAS and cuDNN.
NO_MEMORY = (
    *("can't allocate memory", "not enough memory", "out of memory"),
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
)


def out_of_memory(error: BaseException) -> BaseException | None:
    """Return the out-of-memory error that `error` is or that it was raised in the context of, or None.

    An out-of-memory error during the capture of a CUDA graph is followed by an error that the capture cannot be ended.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, MemoryError | torch.OutOfMemoryError):
        if isinstance(cause, RuntimeError) and any(words in str(cause) for words in NO_MEMORY):
            break
        cause = cause.__context__
    return cause


def give_back(device: torch.device) -> None:
    """Release cached memory of the device that this process does not use."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        with contextlib.suppress(OSError, AttributeError):  # the C library has no `malloc_trim`
            ctypes.CDLL(None).malloc_trim(0)


def workspaces(device: torch.device) -> int:
    """Free the workspaces of cuBLAS and return their bytes. Return 0 for devices other than CUDA.

    Do not call this while CUDA graphs exist, because they would still use the freed workspaces.
    """
    if device.type != "cuda":
        return 0
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch._C._cuda_clearCublasWorkspaces()
    return before - torch.cuda.memory_allocated(device)


def available(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on the device, or None if the system does not report them."""
    give_back(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [left for left in (_kilobytes("meminfo", "MemAvailable"), _left_in_group()) if left is not None]
    return min(limits, default=None)


class Witness:
    """Measure the growth of this process's memory on one device since the object was created."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        give_back(device)
        workspaces(device)
        try:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(device)
            else:
                (PROC / "self" / "clear_refs").write_text(RESET_PEAK, "ascii")
            self._before = self._read()[0]
        except OSError:  # the peak could not be reset
            self._before = None

    def report(self) -> dict[str, Any] | None:
        """Return the growth in bytes, or None if the system does not report it.

        Returns:
            `source`: origin of the numbers;
            `held`: current growth;
            `peak`: maximum growth so far;
            `workspaces` (CUDA only): bytes of cuBLAS's workspaces, which are subtracted from the other values.

        """
        now, peak = self._read()
        if self._before is None or now is None or peak is None:
            return None
        if self._device.type != "cuda":
            return {"source": "resident set", "held": now - self._before, "peak": peak - self._before}
        taken = workspaces(self._device)
        held, highest = now - self._before - taken, peak - self._before - taken
        return {"source": "CUDA allocator", "held": held, "peak": highest, "workspaces": taken}

    def _read(self) -> tuple[int | None, int | None]:
        """Return the current bytes and the maximum so far."""
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)
        return _kilobytes("self/status", "VmRSS"), _kilobytes("self/status", "VmHWM")


def _kilobytes(file: str, name: str) -> int | None:
    """Return the bytes that a file below `PROC` lists under a name, or None."""
    try:
        match = re.search(rf"^{name}:\s*(\d+) kB$", (PROC / file).read_text("ascii"), re.MULTILINE)
    except OSError:
        return None
    return 1024 * int(match[1]) if match else None


def _left_in_group() -> int | None:
    """Return the bytes that the control groups of this process may still allocate, or None if there is no limit.

    Page cache counts as used, so this is a lower bound. In a container, its limits are in the top-level group. A job of
    Slurm or systemd may have a limit in every group from the top to that of the process.
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
