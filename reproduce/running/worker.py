"""Run a worker process, which takes one cell after the other that no other process has locked.

`reproduce.running.runner` starts the workers of a grid and processes their reports.
"""

import contextlib
import ctypes
import os
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from reproduce.cells.kinds import Cell
from reproduce.measures.context import Context, Observer, Stopped
from reproduce.records.locks import STALE_SECONDS, LockedError, LockLostError, holder
from reproduce.records.record import Record
from reproduce.records.storage import StorageFullError
from reproduce.running import devices, messages
from reproduce.running.execution import FIXABLE, execute
from reproduce.running.grid_options import GridOptions

POLL_SECONDS = 0.5  # interval at which a worker checks cells that other processes hold
REPORT_SECONDS = 0.2  # interval at which a worker reports its progress
WAITING_SECONDS = 10.0  # time that a worker waits for other processes before it reports that it waits

Report = Callable[[messages.Message], None]
Flags = ctypes.Array[ctypes.c_bool] | list[bool]


class _Reporter(Observer):
    """Send the progress of a cell to the parent, at most once per `REPORT_SECONDS`."""

    def __init__(self, report: Report, index: int, retry: Flags) -> None:
        self._report, self._index, self._retry = report, index, retry
        self._last = 0.0

    def begin(self) -> None:
        self._retry[self._index] = False
        self._report(messages.Progress(self._index, 0.0))

    def tick(self, done: int, total: int, loss: Tensor | None) -> None:
        now = time.monotonic()
        if now - self._last >= REPORT_SECONDS:
            self._last = now
            self._report(messages.Progress(self._index, done / total))

    def notice(self, text: str) -> None:
        self._report(messages.Notice(self._index, text))


def main(
    cells: list[Cell],
    options: GridOptions,
    number: int,
    pipe: Connection,
    stop: ctypes.c_bool,
    parent: int,
    retry: Flags,
    without: Collection[int] = (),
) -> None:
    """Run worker process number `number`."""
    torch.set_num_threads(options.threads)
    sharing = devices.sharing(options.devices, options.jobs, number)
    device = devices.take(options.device_of(number), sharing)
    options = replace(options, sharing=sharing)

    def should_stop() -> bool:
        return stop.value or os.getppid() != parent  # the second: the parent process died

    def report(message: messages.Message) -> None:
        with contextlib.suppress(OSError):  # the parent died, which `should_stop` detects
            pipe.send(message)

    work(cells, options, report, should_stop, device, retry, without)


def work(
    cells: Sequence[Cell],
    options: GridOptions,
    report: Report,
    should_stop: Callable[[], bool],
    device: torch.device,
    retry: Flags,
    without: Collection[int] = (),
) -> None:
    """Run cells that no other process has locked, in order, until every cell has a result or a problem.

    Args:
        cells: Cells of the grid.
        options: Options of the run.
        report: Function that is called with every message. `DiskFull` and `DeviceLost` end this worker.
        should_stop: Function that is called between cells, and within them as in `Context`. If it returns true, the
            work is stopped.
        device: Device to train on.
        retry: Whether to delete a failure of each cell when it starts. Shared by all workers, so that one retries it.
        without: Indices of cells to skip.

    """
    left = [index for index in range(len(cells)) if index not in without]
    waiting = 0.0  # time since which this worker has only waited
    while left:
        held = []
        for index in left:
            if should_stop():
                return
            context = Context(
                device=device,
                options=replace(options, retry_failed=retry[index]),
                should_stop=should_stop,
                observer=_Reporter(report, index, retry),
            )
            try:
                if not _attempt(cells[index], options, context, report, index):
                    held.append(index)
            except Stopped:
                return
            except StorageFullError as error:
                report(messages.DiskFull(index, str(error)))
                return
            except torch.AcceleratorError:
                # After most of these errors, every later CUDA call of this process fails with the same error.
                report(messages.DeviceLost(index, traceback.format_exc()))
                return
        if len(held) == len(left):
            waiting = waiting or time.monotonic()
            if time.monotonic() - waiting >= WAITING_SECONDS:
                _report_holders(cells, held, options.root, report)
            time.sleep(POLL_SECONDS)
        else:
            waiting = 0.0
        left = held


def _report_holders(cells: Sequence[Cell], held: Sequence[int], root: Path, report: Report) -> None:
    for index in held:
        folder = Record.for_cell(cells[index], root).path
        if (owner := holder(folder)) is not None:
            state = "is alive"  # without a time, because each text is shown only once
            if owner.silent >= STALE_SECONDS / 2:
                since = time.strftime("%Y-%m-%d %H:%M", time.localtime(owner.touched))
                state = f"has sent no heartbeat since {since}; after {STALE_SECONDS:.0f} s the cell is taken over"
            report(messages.Waiting(index, f"{cells[index].slug} is held by {owner.words}, which {state}"))


def _attempt(cell: Cell, options: GridOptions, context: Context, report: Report, index: int) -> bool:
    """Run a cell and report its outcome. Return False if another process holds it."""
    record = Record.for_cell(cell, options.root)
    try:
        report(messages.Finished(index, execute(record, context)))
    except LockedError:
        return False
    except LockLostError as error:
        report(messages.Notice(index, str(error)))
        return False
    except (Stopped, StorageFullError, torch.AcceleratorError):
        raise
    except FIXABLE as error:
        report(messages.Problem(index, str(error)))
    except Exception:  # an unknown problem of one cell must not end the others
        report(messages.Problem(index, traceback.format_exc()))
    return True
