"""Run a grid of cells with several worker processes on one machine.

A process pool with a central queue would not know of a second command on the same grid, and would lose its state when
it is killed. Here there is no queue. Every worker goes through the same list and takes the first cell that has no
result and whose folder it can lock. So several commands may run the same grid, and after a kill the same command
resumes it.

Each worker reports through a separate pipe, so that a killed worker cannot block the others. A run that is to end waits
for a suspended worker; a second Ctrl-C kills it, and its cell can be resumed from its checkpoint.
"""

import ctypes
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from reproduce.cells.kinds import Cell
from reproduce.distributed.interrupts import Interrupt, ignore_signals
from reproduce.records.record import Record
from reproduce.records.run import RecordError, State
from reproduce.running import messages, worker
from reproduce.running.grid_options import GridOptions
from reproduce.running.progress import GridBar
from reproduce.running.worker import REPORT_SECONDS


@dataclass
class GridOutcome:
    """Outcome of a grid.

    Attributes:
        states: State of every cell whose record could be read, in the order of the grid.
        problems: Reason for every cell that could not be read or run.
        signal: Number of the signal that stopped the run, or 0.

    """

    states: dict[Cell, State] = field(default_factory=dict)
    problems: dict[Cell, str] = field(default_factory=dict)
    signal: int = 0

    @property
    def complete(self) -> bool:
        """Return whether every cell is finished and no cell has a problem."""
        return all(state.finished for state in self.states.values()) and not self.problems

    @property
    def exit_code(self) -> int:
        """Exit code: 0 if the grid is complete, 128 + signal if the run was stopped, otherwise 1."""
        if self.complete:
            return 0
        return 128 + self.signal if self.signal else 1


def run_grid(cells: Sequence[Cell], options: GridOptions) -> GridOutcome:
    """Run all cells that have no result yet and report the progress on stderr.

    Args:
        cells: Cells of the grid.
        options: Options of the run. `options.jobs` cells run concurrently.

    """
    outcome = GridOutcome()
    todo = _todo(cells, options, outcome)
    bar = GridBar(len(cells))
    for cell, state in outcome.states.items():
        if state.final:
            bar.finish(cell.slug, state.reached, worker=None)
    with Interrupt() as interrupt:
        if todo:
            # Start at most one worker per cell. An idle worker would reserve a share of a GPU.
            given = replace(options, jobs=min(options.jobs, len(todo)))
            _Supervisor(todo, given, outcome, bar).supervise(interrupt)
    bar.close()
    outcome.signal = interrupt.received
    for cell in todo:
        known = outcome.states[cell]
        now = known if known.final else _read_state(cell, options, outcome)
        if now is not None and now.final:  # one worker died while it ran the cell, and another one finished the cell
            outcome.problems.pop(cell, None)
    return outcome


def _todo(cells: Sequence[Cell], options: GridOptions, outcome: GridOutcome) -> list[Cell]:
    todo = []
    for cell in cells:
        state = _read_state(cell, options, outcome)
        if state is None:
            continue
        if not state.final:
            todo.append(cell)
        elif state.finished:
            Record.for_cell(cell, options.root).tidy()
    return todo


def _read_state(cell: Cell, options: GridOptions, outcome: GridOutcome) -> State | None:
    """Return the state of a record, or None if it cannot be read. A failure to retry counts as unfinished."""
    try:
        state = Record.for_cell(cell, options.root).state()
    except RecordError as error:
        outcome.states.pop(cell, None)
        outcome.problems[cell] = str(error)
        return None
    outcome.states[cell] = state.to_retry() if options.retry_failed else state
    return outcome.states[cell]


# --- The parent process


class _Supervisor:
    """Start the workers, display their reports and collect the outcome.

    A worker whose CUDA device fails is replaced by a new one, which skips the cells that caused such failures.

    Args:
        cells: Cells of the grid.
        options: Options of the run.
        outcome: Outcome to update.
        bar: Progress bar.

    """

    def __init__(self, cells: list[Cell], options: GridOptions, outcome: GridOutcome, bar: GridBar) -> None:
        self._cells, self._options, self._outcome, self._bar = cells, options, outcome, bar
        self._context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
        # An `Event` would have a lock. A worker that was killed while it reads the event would keep the lock and block
        # all others.
        self._stop = self._context.RawValue(ctypes.c_bool, False)
        self._retry = self._context.RawArray(ctypes.c_bool, [options.retry_failed] * len(cells))
        self._workers: dict[Connection, tuple[int, BaseProcess]] = {}
        self._running: dict[int, Cell] = {}
        self._ended: set[int] = set()  # workers to replace when they end
        self._harmful: set[int] = set()  # indices of cells that caused a failure of the CUDA device
        self._notices: set[str] = set()

    def supervise(self, interrupt: Interrupt) -> None:
        """Start the workers and process their messages until the last one has ended."""
        for number in range(self._options.jobs):
            self._start(number)
        try:
            self.listen(interrupt)
        finally:
            for _, process in self._workers.values():  # not empty only after an exception, such as a second Ctrl-C
                process.kill()

    def _start(self, number: int) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        arguments = self._cells, self._options, number, theirs, self._stop, os.getpid(), self._retry, self._harmful
        process: BaseProcess = self._context.Process(target=worker.main, args=arguments)
        with ignore_signals():  # workers obey the parent's `stop`, not signals
            process.start()
        theirs.close()  # the worker must have the only copy of its end, so that its death closes the pipe
        self._workers[ours] = number, process

    def listen(self, interrupt: Interrupt) -> None:
        """Process messages until the last worker has ended."""
        while self._workers:
            if interrupt.received and not self._stop.value:
                self._stop.value = True
                self._bar.notice(
                    "stopping: every worker finishes its tick and saves its training (Ctrl-C again: stop immediately)"
                )
            for ready in connection.wait(list(self._workers), timeout=REPORT_SECONDS):
                assert isinstance(ready, Connection)
                number, process = self._workers[ready]
                try:
                    message: messages.Message = ready.recv()
                except (EOFError, OSError):  # OSError if the worker died in the middle of a message
                    process.join()
                    del self._workers[ready]
                    if number in self._ended:
                        self._ended.remove(number)
                        self._start(number)
                        continue
                    self._note_death(process, self._running.pop(number, None))
                    continue
                self.handle(number, message)

    def handle(self, number: int, message: messages.Message) -> None:
        """Process what worker `number` sends about a cell."""
        cell = self._cells[message.index]
        if isinstance(message, messages.Finished | messages.Problem):
            self._running.pop(number, None)
        match message:
            case messages.Progress(share=share):
                self._running[number] = cell
                self._bar.show(number, cell.slug, share)
            case messages.Finished(state=state):
                if not self._outcome.states[cell].final:  # otherwise another worker has reported it already
                    self._outcome.states[cell] = state
                    self._bar.finish(cell.slug, state.reached, worker=number)
            case messages.Notice(text=text):
                self._notice(text)
            case messages.Waiting(text=text):
                if cell not in self._running.values():  # otherwise it waits for another worker of this grid
                    self._notice(text)
            case messages.Problem(text=text):
                self._note_problem(cell, text)
                if isinstance(message, messages.DeviceLost):
                    self._ended.add(number)
                    self._harmful.add(message.index)
                elif isinstance(message, messages.DiskFull):
                    self._stop.value = True

    def _notice(self, text: str) -> None:
        """Report each notice only once. The same notice may hold for many cells."""
        if text not in self._notices:
            self._notices.add(text)
            self._bar.notice(text)

    def _note_problem(self, cell: Cell, text: str) -> None:
        """Report each problem only once. A missing data set, for example, is a problem of many cells."""
        problems = self._outcome.problems
        if text not in problems.values():
            self._bar.notice(f"PROBLEM {cell.slug}: {text}")
        problems.setdefault(cell, text)

    def _note_death(self, process: BaseProcess, cell: Cell | None) -> None:
        if process.exitcode == 0:
            return
        doing = f"while it ran {cell.slug}" if cell is not None else "before it ran a cell"
        text = (
            f"a worker died {doing} (exit code {process.exitcode}; -9 may mean that the system ran out of memory: try "
            f"fewer --jobs); the same command resumes the cell from its checkpoint"
        )
        self._bar.notice(f"PROBLEM {text}")
        if cell is not None:
            self._outcome.problems[cell] = text
