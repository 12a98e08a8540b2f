"""How long a grid still takes, by how long cells like those that are left took: in this very run, or as recorded.

The obvious forecast, the mean time of a cell times the cells left, is wrong where cells differ: measurements of a
second come before trainings of minutes, and in a study of depth the last cell takes ten times as long as the first.
Here only a cell that does the same work tells how long one takes (`reproduce.records.speed.alike`). One of this run is
believed before one that was recorded on such a device at another time; as long as there is neither for some of the
cells, the sum of the others is given as what it is, the least.

This module exports Forecast.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence

from reproduce.running.progress import clock

__all__ = ["Forecast"]

ENOUGH = 0.05  # of a cell, after which its pace tells how long the whole of it takes


class Forecast:
    """Follows the cells of a run.

    Args:
        kinds: of every cell that is to be run; those of one kind take equally long.
        shares: of every cell what is done already, 0..1.
        workers: that run cells at the same time.
        recorded: seconds of a whole cell by kind, from before this run.
        now: seconds from any moment on.

    """

    def __init__(
        self,
        kinds: Sequence[Hashable],
        shares: Sequence[float],
        workers: int,
        recorded: Mapping[Hashable, float] | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kinds, self._workers, self._recorded, self._now = kinds, workers, recorded or {}, now
        self._left = dict(enumerate(shares))  # number of a cell -> share done
        self._begun: dict[int, tuple[float, float]] = {}  # when, and what was done then
        self._took: dict[Hashable, tuple[float, float]] = {}  # seconds for so many cells of a kind, that have ended

    def at(self, number: int, share: float) -> None:
        """A worker has done a share of a cell; said for the first time when it begins."""
        if number in self._left:
            self._begun.setdefault(number, (self._now(), self._left[number]))
            self._left[number] = max(share, self._left[number])

    def end(self, number: int, *, whole: bool) -> None:
        """A cell is no longer to be run; `whole` if it was run to its end."""
        begun = self._begun.pop(number, None)
        if self._left.pop(number, None) is not None and begun is not None and whole:
            moment, share = begun
            seconds, cells = self._took.get(self._kinds[number], (0.0, 0.0))
            self._took[self._kinds[number]] = seconds + self._now() - moment, cells + 1 - share

    def words(self) -> str:
        """Such as "12:30 left" or "at least 12:30 left"; empty if nothing is known, or nothing left."""
        paces = self._paces()
        known = [paces[kind] * (1 - share) for n, share in self._left.items() if (kind := self._kinds[n]) in paces]
        if not known:
            return ""
        least = "at least " if len(known) < len(self._left) else ""
        return f"{least}{clock(sum(known) / min(self._workers, len(self._left)))} left"

    def _paces(self) -> dict[Hashable, float]:
        """Seconds of a whole cell by kind: by cells that have ended, else by those under way, else as recorded."""
        found = {kind: seconds / cells for kind, (seconds, cells) in self._took.items()}
        for number, (moment, share) in self._begun.items():
            done = self._left[number] - share
            if done >= ENOUGH:
                found.setdefault(self._kinds[number], (self._now() - moment) / done)
        return {**self._recorded, **found}
