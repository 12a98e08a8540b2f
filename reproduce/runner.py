"""A grid of cells on the cores of one machine.

A pool that hands out cells from one process knows nothing of a second one on the same grid, and after a kill nothing
of the first. Here nobody hands out anything: every worker process goes through the same list and takes the first cell
whose folder it can lock and that has no result. So two commands may work on one grid, and a command given again after a
kill goes on where the first stopped.

Workers report over a pipe each, so that one that is killed cannot hold up the others.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from petra_core import CheckpointError
from reproduce.cells import Cell
from reproduce.data.catalogue import DEFAULT_ROOT
from reproduce.data.errors import DataError
from reproduce.execution import Context, Observer, Stopped, execute
from reproduce.interrupts import Interrupt
from reproduce.progress import GridBar
from reproduce.records import LockedError, Record, RecordError, State, Status
from reproduce.storage import StorageFullError

POLL_SECONDS = 0.5  # how often a worker looks again at a cell that another process holds
REPORT_SECONDS = 0.2  # how often a worker tells how far it is


@dataclass(frozen=True)
class Settings:
    """How a grid is run; nothing here changes a result beyond rounding.

    Attributes:
        root: folder of the records.
        jobs: worker processes.
        threads: of each.
        device: to train on.
        checkpoint_seconds, data_root, data_workers: see `reproduce.execution.Context`.

    """

    root: Path
    jobs: int
    threads: int = 1
    device: str = "cpu"
    checkpoint_seconds: float = 300.0
    data_root: Path = DEFAULT_ROOT
    data_workers: int = 1


@dataclass
class Outcome:
    """What came of a grid.

    Attributes:
        states: state of each cell that could be read, in the order of the grid.
        problems: cells that could not be run or read, with the reason.
        signal: number of the signal that stopped the run, 0 if none did.

    """

    states: dict[Cell, State] = field(default_factory=dict)
    problems: dict[Cell, str] = field(default_factory=dict)
    signal: int = 0

    @property
    def complete(self) -> bool:
        """Whether every cell has a result. To diverge is one; to run out of memory or to be damaged is none."""
        finished = [state.status is Status.DONE or state.reason == "diverged" for state in self.states.values()]
        return all(finished) and not self.problems

    @property
    def exit_code(self) -> int:
        """0 if every cell has a result, 128 + signal if stopped, otherwise 1."""
        if self.complete:
            return 0
        return 128 + self.signal if self.signal else 1


def run_grid(cells: Sequence[Cell], settings: Settings, *, retry_failed: bool = False) -> Outcome:
    """Run all cells that have no result yet, `settings.jobs` at a time, and say on stderr how it goes.

    Args:
        cells: the grid.
        settings: how to run it.
        retry_failed: run cells again that diverged or ran out of memory.

    """
    outcome = Outcome()
    todo = _todo(cells, settings.root, outcome, retry_failed=retry_failed)
    bar = GridBar(len(cells))
    for cell, state in outcome.states.items():
        if state.final:
            bar.finish(cell.slug, _words(Record.of(cell, settings.root), state), worker=None)
    with Interrupt() as interrupt:
        if todo:
            _supervise(todo, settings, outcome, bar, interrupt)
    bar.close()
    outcome.signal = interrupt.received
    for cell in cells:
        now = _read_state(cell, settings.root, outcome)
        if now is not None and now.final:  # a worker died over it, and another one finished it
            outcome.problems.pop(cell, None)
    return outcome


def _todo(cells: Sequence[Cell], root: Path, outcome: Outcome, *, retry_failed: bool) -> list[Cell]:
    todo = []
    for cell in cells:
        state = _read_state(cell, root, outcome)
        if state is None:
            continue
        if state.status is Status.FAILED and retry_failed:
            record = Record.of(cell, root)
            with record.lock():
                record.retry()
            outcome.states[cell] = state = record.state()
        if not state.final:
            todo.append(cell)
    return todo


def _read_state(cell: Cell, root: Path, outcome: Outcome) -> State | None:
    try:
        state = outcome.states[cell] = Record.of(cell, root).state()
    except RecordError as error:
        outcome.states.pop(cell, None)
        outcome.problems[cell] = str(error)
        return None
    return state


# --- the parent


def _supervise(cells: list[Cell], settings: Settings, outcome: Outcome, bar: GridBar, interrupt: Interrupt) -> None:
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    stop = context.Event()
    workers: dict[Connection, tuple[int, BaseProcess]] = {}
    for number in range(min(settings.jobs, len(cells))):
        ours, theirs = context.Pipe(duplex=False)
        process: BaseProcess = context.Process(target=_main, args=(cells, settings, theirs, stop, os.getpid()))
        process.start()
        theirs.close()  # so that the worker's end is the only one, and its death closes the pipe
        workers[ours] = number, process
    try:
        _listen(cells, settings, workers, stop, outcome, bar, interrupt)
    finally:
        for _, process in workers.values():  # only after an exception, a second Ctrl-C for one
            process.kill()


def _listen(
    cells: list[Cell],
    settings: Settings,
    workers: dict[Connection, tuple[int, BaseProcess]],
    stop: Event,
    outcome: Outcome,
    bar: GridBar,
    interrupt: Interrupt,
) -> None:
    """Show what the workers report, until the last has ended; `workers` is empty then."""
    running: dict[int, Cell] = {}
    finished: set[int] = set()
    while workers:
        if interrupt.requested() and not stop.is_set():
            stop.set()
            bar.say("stopping: every worker finishes its tick and saves (once more to stop at once)")
        for ready in connection.wait(list(workers), timeout=REPORT_SECONDS):
            assert isinstance(ready, Connection)
            number, process = workers[ready]
            try:
                message, index, *rest = ready.recv()
            except EOFError:
                process.join()
                del workers[ready]
                _note_death(process, running.pop(number, None), outcome, bar)
                continue
            cell = cells[index]
            if message == "share":
                running[number] = cell
                bar.show(number, cell.slug, rest[0])
            elif message == "end":
                running.pop(number, None)
                if index not in finished:
                    finished.add(index)
                    bar.finish(cell.slug, _words(Record.of(cell, settings.root), rest[0]), worker=number)
            else:
                running.pop(number, None)
                if cell not in outcome.problems:
                    outcome.problems[cell] = rest[0]
                    bar.say(f"PROBLEM {cell.slug}: {rest[0]}")
                if message == "full":
                    stop.set()


def _note_death(process: BaseProcess, cell: Cell | None, outcome: Outcome, bar: GridBar) -> None:
    if process.exitcode == 0:
        return
    doing = f"while it ran {cell.slug}" if cell is not None else "before it ran a cell"
    text = (
        f"a worker died {doing} (exit code {process.exitcode}; -9 may be the system's doing, out of memory: "
        f"try fewer --jobs); the same command goes on from the cell's checkpoint"
    )
    bar.say(f"PROBLEM {text}")
    if cell is not None:
        outcome.problems[cell] = text


def _words(record: Record, state: State) -> str:
    if state.status is not Status.DONE:
        return str(state)
    result = record.result() or {}
    return f"{result['test_accuracy']:.2f} %" if "test_accuracy" in result else str(state)


# --- a worker

Report = Callable[..., None]


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


def _main(cells: list[Cell], settings: Settings, pipe: Connection, stop: Event, parent: int) -> None:
    """A worker process, from its start to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent passes it on
    torch.set_num_threads(settings.threads)

    def should_stop() -> bool:
        return stop.is_set() or os.getppid() != parent  # killed: nobody would stop us any more

    def report(*message: Any) -> None:
        with contextlib.suppress(OSError):  # the parent is gone; `should_stop` sees it
            pipe.send(message)

    work(cells, settings, report, should_stop)


def work(cells: Sequence[Cell], settings: Settings, report: Report, should_stop: Callable[[], bool]) -> None:
    """Take cells that nobody holds, in order, until every one has a result or a problem, or until told to stop.

    Args:
        cells: the grid.
        settings: how to run it.
        report: called as ("share", index, share done), ("end", index, state), ("problem", index, text) or, when the
            disk is full and nothing more can be done, ("full", index, text).
        should_stop: asked after every tick.

    """
    left = list(range(len(cells)))
    while left:
        held = []
        for index in left:
            if should_stop():
                return
            record = Record.of(cells[index], settings.root)
            context = Context(
                device=torch.device(settings.device),
                should_stop=should_stop,
                observer=_Reporter(report, index),
                checkpoint_seconds=settings.checkpoint_seconds,
                data_root=settings.data_root,
                data_workers=settings.data_workers,
            )
            try:
                report("end", index, execute(record, context))
            except LockedError:
                held.append(index)
            except Stopped:
                return
            except StorageFullError as error:
                report("full", index, str(error))
                return
            except (RecordError, CheckpointError, DataError) as error:
                report("problem", index, str(error))
            except Exception:  # whatever it is, the other cells go on
                report("problem", index, traceback.format_exc())
        if len(held) == len(left):
            time.sleep(POLL_SECONDS)
        left = held
