"""A grid of cells on the cores of one machine.

A pool that hands out cells from one process knows nothing of a second one on the same grid, and after a kill nothing
of the first. Here nobody hands out anything: every worker process goes through the same list and takes the first cell
whose folder it can lock and that has no result. So two commands may work on one grid, and a command given again after a
kill goes on where the first stopped.

Workers report over a pipe each, so that one that is killed cannot hold up the others. A worker also gives signs of
life; one that does not, such as a process that was stopped, is named, and killed once the run is to end: its cell goes
on from its checkpoint.
"""

import contextlib
import ctypes
import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from reproduce.cells.kinds import Cell
from reproduce.records.locks import LockedError, LockLostError
from reproduce.records.record import Record, RecordError, State, Status
from reproduce.records.storage import StorageError
from reproduce.running import worker
from reproduce.running.interrupts import Interrupt, ignored
from reproduce.running.progress import GridBar
from reproduce.running.worker import REPORT_SECONDS, Settings

SILENT_SECONDS = 120.0  # without a sign of life, after which a worker is named
GRACE_SECONDS = 30.0  # without a sign of life, after which a worker is killed if the run is to end


@dataclass
class GridOutcome:
    """What came of a grid."""

    states: dict[Cell, State] = field(default_factory=dict)  # of each that could be read, in the order of the grid
    problems: dict[Cell, str] = field(default_factory=dict)  # of those that could not be run or read, the reason
    signal: int = 0  # number of the signal that stopped the run, 0 if none did

    @property
    def complete(self) -> bool:
        """Whether every cell is finished, and none is damaged."""
        return all(state.finished for state in self.states.values()) and not self.problems

    @property
    def exit_code(self) -> int:
        """0 if every cell has a result, 128 + signal if stopped, otherwise 1."""
        if self.complete:
            return 0
        return 128 + self.signal if self.signal else 1


def run_grid(cells: Sequence[Cell], settings: Settings, *, retry_failed: bool = False) -> GridOutcome:
    """Run all cells that have no result yet, `settings.jobs` at a time, and say on stderr how it goes.

    With `retry_failed`, cells that diverged or ran out of memory are run again.
    """
    outcome = GridOutcome()
    todo = _todo(cells, settings.root, outcome, retry_failed=retry_failed)
    bar = GridBar(len(cells))
    for cell, state in outcome.states.items():
        if state.final:
            bar.finish(cell.slug, state.reached, worker=None)
    with Interrupt() as interrupt:
        if todo:
            # A worker without a cell is not started, and so has no share of a GPU.
            _supervise(todo, replace(settings, jobs=min(settings.jobs, len(todo))), outcome, bar, interrupt)
    bar.close()
    outcome.signal = interrupt.received
    for cell in todo:
        told = outcome.states[cell]
        now = told if told.final else _read_state(cell, settings.root, outcome)
        if now is not None and now.final:  # a worker died over it, and another one finished it
            outcome.problems.pop(cell, None)
    return outcome


def _todo(cells: Sequence[Cell], root: Path, outcome: GridOutcome, *, retry_failed: bool) -> list[Cell]:
    todo = []
    for cell in cells:
        state = _read_state(cell, root, outcome)
        if state is None:
            continue
        if state.status is Status.FAILED and retry_failed:
            outcome.states[cell] = state = _retry(Record.of(cell, root))
        if not state.final:
            todo.append(cell)
        elif state.finished:
            _tidy(Record.of(cell, root))
    return todo


def _tidy(record: Record) -> None:
    """Publish a finished record that a kill left in its folder, unless another command is about to."""
    if record.path.exists():
        # Its result counts from the folder too, which is therefore no reason to stop.
        with contextlib.suppress(LockedError, LockLostError, StorageError), record.lock():
            record.publish()


def _retry(record: Record) -> State:
    """Forget a failure, unless another command has done so already, and works on it perhaps."""
    with contextlib.suppress(LockedError, LockLostError), record.lock():
        if record.state().status is Status.FAILED:
            record.retry()
    return record.state()


def _read_state(cell: Cell, root: Path, outcome: GridOutcome) -> State | None:
    try:
        state = outcome.states[cell] = Record.of(cell, root).state()
    except RecordError as error:
        outcome.states.pop(cell, None)
        outcome.problems[cell] = str(error)
        return None
    return state


# --- the parent


def _supervise(cells: list[Cell], settings: Settings, outcome: GridOutcome, bar: GridBar, interrupt: Interrupt) -> None:
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    # No `Event`, which has a lock: a worker that is killed while it holds that, to ask, would hold up all others.
    stop = context.RawValue(ctypes.c_bool, False)
    workers: dict[Connection, tuple[int, BaseProcess]] = {}

    def start(number: int, without: Collection[int] = ()) -> None:
        ours, theirs = context.Pipe(duplex=False)
        process: BaseProcess = context.Process(
            target=worker.main, args=(cells, settings, number, theirs, stop, os.getpid(), without)
        )
        with ignored():  # the parent passes them on
            process.start()
        theirs.close()  # so that the worker's end is the only one, and its death closes the pipe
        workers[ours] = number, process

    for number in range(settings.jobs):
        start(number)
    try:
        _Listener(cells, outcome, bar, stop, start).listen(workers, interrupt)
    finally:
        for _, process in workers.values():  # only after an exception, a second Ctrl-C for one
            process.kill()


class _Listener:
    """Shows what the workers report, and notes what concerns the outcome.

    A worker whose device does nothing more for it is followed by another one, which leaves alone the cells that went
    so: `start`, called with the worker's number and those of the cells, starts it.
    """

    def __init__(
        self,
        cells: list[Cell],
        outcome: GridOutcome,
        bar: GridBar,
        stop: ctypes.c_bool,
        start: Callable[[int, Collection[int]], None],
    ) -> None:
        self._cells, self._outcome, self._bar, self._stop, self._start = cells, outcome, bar, stop, start
        self._running: dict[int, Cell] = {}
        self._ended: set[int] = set()  # workers that are to be followed by another one
        self._harmful: set[int] = set()  # cells over which one ended so
        self._told: set[str] = set()
        self._heard: dict[int, float] = {}  # worker -> when it gave its last sign of life, by the monotonic clock

    def listen(self, workers: dict[Connection, tuple[int, BaseProcess]], interrupt: Interrupt) -> None:
        """Until the last worker has ended; `workers` is empty then."""
        while workers:
            if interrupt.received and not self._stop.value:
                self._stop.value = True
                self._bar.notice(
                    "stopping: every worker finishes its tick, and training is saved (Ctrl-C again: at once)"
                )
            self._look_for_silent(workers)
            for ready in connection.wait(list(workers), timeout=REPORT_SECONDS):
                assert isinstance(ready, Connection)
                number, process = workers[ready]
                try:
                    message, index, *rest = ready.recv()
                except (EOFError, OSError):  # the second if it died in the middle of a message
                    process.join()
                    del workers[ready]
                    self._heard.pop(number, None)
                    if number in self._ended:
                        self._ended.remove(number)
                        self._start(number, self._harmful)
                        continue
                    _note_death(process, self._running.pop(number, None), self._outcome, self._bar)
                    continue
                self._heard[number] = time.monotonic()
                if message not in ("share", "notice", "waiting", "alive"):
                    self._running.pop(number, None)
                getattr(self, f"_{message}")(number, index, *rest)

    def _look_for_silent(self, workers: dict[Connection, tuple[int, BaseProcess]]) -> None:
        """Name workers that give no sign of life, and end them if the run is to end."""
        now = time.monotonic()
        for number, process in workers.values():
            if number not in self._heard:  # it still imports
                continue
            silent = now - self._heard[number]
            cell = self._running.get(number)
            doing = f", which runs {cell.slug}," if cell is not None else ""
            if silent >= SILENT_SECONDS:
                self._notice(
                    number,
                    0,
                    f"worker {number} (process {process.pid}){doing} has given no sign of life for "
                    f"{SILENT_SECONDS:.0f} s: it may be stopped, or its machine out of memory",
                )
            if self._stop.value and silent >= GRACE_SECONDS:
                self._bar.notice(f"worker {number} (process {process.pid}){doing} does not answer, and is killed")
                self._heard.pop(number)
                process.kill()

    def _alive(self, number: int, index: int) -> None:
        """Nothing to be done: that it was heard is noted."""

    def _waiting(self, number: int, index: int, text: str) -> None:
        """Say whom a worker waits for, unless that is another worker of this grid."""
        if self._cells[index] not in self._running.values():
            self._notice(number, index, text)

    def _share(self, number: int, index: int, share: float) -> None:
        self._running[number] = self._cells[index]
        self._bar.show(number, self._cells[index].slug, share)

    def _end(self, number: int, index: int, state: State) -> None:
        cell = self._cells[index]
        if not self._outcome.states[cell].final:  # else another worker has told it
            self._outcome.states[cell] = state
            self._bar.finish(cell.slug, state.reached, worker=number)

    def _notice(self, number: int, index: int, text: str) -> None:
        """Told once: a method that cannot be recorded cannot be in any cell."""
        if text not in self._told:
            self._told.add(text)
            self._bar.notice(f"NOTE {text}")

    def _problem(self, number: int, index: int, text: str) -> None:
        """Told once: a data set that is missing is missing for all cells."""
        cell, problems = self._cells[index], self._outcome.problems
        if text not in problems.values():
            self._bar.notice(f"PROBLEM {cell.slug}: {text}")
        problems.setdefault(cell, text)

    def _broken(self, number: int, index: int, text: str) -> None:
        self._problem(number, index, text)
        self._ended.add(number)
        self._harmful.add(index)

    def _full(self, number: int, index: int, text: str) -> None:
        self._problem(number, index, text)
        self._stop.value = True


def _note_death(process: BaseProcess, cell: Cell | None, outcome: GridOutcome, bar: GridBar) -> None:
    if process.exitcode == 0:
        return
    doing = f"while it ran {cell.slug}" if cell is not None else "before it ran a cell"
    text = (
        f"a worker died {doing} (exit code {process.exitcode}; -9 may be the system's doing, out of memory: "
        f"try fewer --jobs); the same command goes on from the cell's checkpoint"
    )
    bar.notice(f"PROBLEM {text}")
    if cell is not None:
        outcome.problems[cell] = text
