"""A limit on the time of a run, within which everything is saved.

To look at the clock between cells is of no use where a cell takes hours, and to stop when the time is up is too late:
the checkpoint is still to be written. Here a worker stops as it does on Ctrl-C, early enough for its longest checkpoint
so far and one more tick. A cell is begun only if there is time to load its data and get somewhere; one that cannot be
interrupted (a measurement without epochs) only if the whole of it is expected to fit.

This module exports Budget.
"""

import time
from collections.abc import Callable, Mapping

from reproduce.cells.kinds import Cell

__all__ = ["Budget"]

RESERVE_SECONDS = 4.0  # beyond the measured: to notice, to end the processes, to print the summary
START_SECONDS = 5.0  # from taking a cell to its first tick, as long as nothing was measured


class Budget:
    """Time that is left, and what of it is needed to stop. Each process has its own copy; they share the deadline.

    Args:
        seconds: that the run may take.
        expected: seconds that cells take, by name, as far as known; those without epochs are asked for.
        started: when it began, by `clock`; now unless given.
        clock: seconds that count from the same moment in all processes of the machine, as `time.monotonic` does.

    """

    def __init__(
        self,
        seconds: float,
        expected: Mapping[str, float] | None = None,
        started: float | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._expected = dict(expected or {})
        self._clock = clock
        self._deadline = (clock() if started is None else started) + seconds
        self._start = START_SECONDS
        self._save = self._tick = 0.0
        self._begun = clock()
        self._asked: float | None = None  # when the cell under way last asked

    @property
    def left(self) -> float:
        """Seconds until everything must be saved; negative afterwards."""
        return self._deadline - self._clock()

    @property
    def ended(self) -> bool:
        """Whether it is time to save and stop. To be asked after every tick: the time between is part of the answer."""
        now = self._clock()
        if self._asked is not None:
            self._tick = max(self._tick, now - self._asked)
            self._asked = now
        return self._deadline - now <= self._reserve

    def allows(self, cell: Cell) -> bool:
        """Whether the cell is expected to get somewhere in what is left."""
        needed = self._start if cell.epochs_expected else self._expected.get(cell.name, self._start)
        return self.left - self._reserve > needed

    def begin(self) -> None:
        """A cell is begun: until its first tick, data are loaded."""
        self._asked = None
        self._begun = self._clock()

    def ticked(self) -> None:
        """A micro-batch has entered; the first tells how long it takes to begin."""
        if self._asked is None:
            self._asked = self._clock()
            self._start = max(self._start, self._asked - self._begun)

    def saved(self, seconds: float) -> None:
        """A checkpoint took so long."""
        self._save = max(self._save, seconds)

    @property
    def _reserve(self) -> float:
        return RESERVE_SECONDS + 2 * self._save + self._tick
