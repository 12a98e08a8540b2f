"""A worker: one process that takes cells nobody holds, one after the other.

What concerns the grid as a whole, starting workers and listening to them, is in `reproduce.running.runner`.
"""

import contextlib
import ctypes
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from petra_core import CheckpointError
from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.data.errors import DataError
from reproduce.measures.context import Context, Observer, Stopped
from reproduce.measures.how import How
from reproduce.records.locks import STALE_SECONDS, Holder, LockedError, LockLostError, holder
from reproduce.records.record import Record, RecordError
from reproduce.records.storage import StorageError, StorageFullError
from reproduce.running import devices
from reproduce.running.execution import execute
from reproduce.teams.team import UnsupportedError

POLL_SECONDS = 0.5  # how often a worker looks again at a cell that another process holds
REPORT_SECONDS = 0.2  # how often a worker tells how far it is
ALIVE_SECONDS = 5.0  # how often a worker gives a sign of life, also where a cell has no ticks
WAITING_SECONDS = 10.0  # for cells that others hold, until that is said

Report = Callable[..., None]


@dataclass(frozen=True)
class Settings:
    """Where a grid is run, and on what; nothing here changes a result beyond rounding."""

    root: Path  # folder of the records
    jobs: int  # worker processes
    threads: int = 1  # of each
    #: Worker number n trains on the n-th of them, from the first again where there are more workers, which then
    #: share the memory of a GPU evenly.
    devices: tuple[str, ...] = ("cpu",)
    how: How = field(default_factory=How)  # each of its cells


class _Reporter(Observer):
    """Tells the parent how far a cell is, now and then."""

    def __init__(self, report: Report, index: int) -> None:
        self._report, self._index = report, index
        self._last = 0.0

    def begin(self) -> None:
        self._report("share", self._index, 0.0)

    def tick(self, done: int, total: int, loss: Tensor | None) -> None:
        now = time.monotonic()
        if now - self._last >= REPORT_SECONDS:
            self._last = now
            self._report("share", self._index, done / total)

    def notice(self, text: str) -> None:
        self._report("notice", self._index, text)


def main(
    cells: list[Cell],
    settings: Settings,
    number: int,
    pipe: Connection,
    stop: ctypes.c_bool,
    parent: int,
    without: Collection[int] = (),
) -> None:
    """Worker process number `number`, from its start to its end."""
    torch.set_num_threads(settings.threads)
    sharing = devices.sharing(settings.devices, settings.jobs, number)
    device = devices.take(device_of(number, settings), sharing)
    settings = replace(settings, how=replace(settings.how, sharing=sharing))

    def should_stop() -> bool:
        return stop.value or os.getppid() != parent  # killed: nobody would stop us any more

    lock = threading.Lock()

    def report(*message: Any) -> None:
        with lock, contextlib.suppress(OSError):  # the parent is gone; `should_stop` sees it
            pipe.send(message)

    ended = threading.Event()

    def give_signs_of_life() -> None:
        while not ended.wait(ALIVE_SECONDS):
            report("alive", 0)

    alive = threading.Thread(target=give_signs_of_life, daemon=True)
    alive.start()
    try:
        work(cells, settings, report, should_stop, device, without)
    finally:
        ended.set()
        alive.join()


def device_of(number: int, settings: Settings) -> str:
    """The name of the device of worker `number`."""
    return settings.devices[number % len(settings.devices)]


def work(
    cells: Sequence[Cell],
    settings: Settings,
    report: Report,
    should_stop: Callable[[], bool],
    device: torch.device,
    without: Collection[int] = (),
) -> None:
    """Take cells that nobody holds, in order, until every one has a result or a problem, or until it is time to stop.

    Args:
        cells: the grid.
        settings: how to run it.
        report: called as ("share", index, share done), ("end", index, state), ("problem", index, text),
            ("notice", index, text), ("waiting", index, text) where nothing but that cell and others are left, which
            other processes hold, or, when this process can do nothing more, ("full", index, text) for a full disk and
            ("broken", index, text) where a CUDA device does nothing more for it.
        should_stop: asked between cells, and within them as `Context` says.
        device: to train on.
        without: numbers of cells that are left alone.

    """
    left = [index for index in range(len(cells)) if index not in without]
    waiting = 0.0  # since when there is nothing to do but to wait
    while left:
        held = []
        for index in left:
            if should_stop():
                return
            context = Context(
                device=device, how=settings.how, should_stop=should_stop, observer=_Reporter(report, index)
            )
            try:
                if not _attempt(cells[index], settings, context, report, index):
                    held.append(index)
            except Stopped:
                return
            except StorageFullError as error:
                report("full", index, str(error))
                return
            except torch.AcceleratorError:
                # Most of them are the last word of the device to this process: every later call repeats it.
                report("broken", index, traceback.format_exc())
                return
        if len(held) == len(left):
            waiting = waiting or time.monotonic()
            if time.monotonic() - waiting >= WAITING_SECONDS:
                _say_for_whom(cells, held, settings.root, report)
            time.sleep(POLL_SECONDS)
        else:
            waiting = 0.0
        left = held


def _say_for_whom(cells: Sequence[Cell], held: Sequence[int], root: Path, report: Report) -> None:
    for index in held:
        folder = Record.of(cells[index], root).path
        if (who := holder(folder)) is not None:
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(who.touched))
            report("waiting", index, f"{cells[index].slug} is held by {who.words}, which {_touch(who, since)}")


def _touch(who: Holder, since: str) -> str:
    """What is known of the last sign of life, in words that stay the same while the holder lives."""
    if who.silent < STALE_SECONDS / 2:
        return "gives signs of life"
    return f"has given no sign of life since {since}; after {STALE_SECONDS:.0f} s the cell is taken over"


def _attempt(cell: Cell, settings: Settings, context: Context, report: Report, index: int) -> bool:
    """Run a cell, and report what came of it; False if another process holds it."""
    record = Record.of(cell, settings.root)
    try:
        if isinstance(cell, TrainedCell) and not record.has_result:  # else a record is begun that could only say so
            from reproduce.data.sources import check  # not needed where there is nothing to train

            check(cell, settings.how.data_root)
        report("end", index, execute(record, context))
    except LockedError:
        return False
    except LockLostError as error:
        report("notice", index, str(error))
        return False
    except (Stopped, StorageFullError, torch.AcceleratorError):
        raise
    except (RecordError, CheckpointError, DataError, StorageError, UnsupportedError) as error:
        report("problem", index, error.strerror if isinstance(error, StorageError) else str(error))
    except Exception:  # whatever it is, the other cells go on
        report("problem", index, traceback.format_exc())
    return True
