"""Define the messages that a worker process sends to the parent that shows the progress of a grid.

Progress                    while a cell runs
Notice, Waiting             texts for the user; the cell continues or is tried again
Finished, Problem           the end of a cell
DiskFull, DeviceLost        the end of a cell and of its worker
"""

from dataclasses import dataclass

from reproduce.records.run import State


@dataclass(frozen=True)
class Message:
    """Base of the messages, each of which is about one cell.

    Attributes:
        index: Index of the cell in the grid.

    """

    index: int


@dataclass(frozen=True)
class Progress(Message):
    """The cell runs.

    Attributes:
        share: Completed fraction.

    """

    share: float


@dataclass(frozen=True)
class Finished(Message):
    """The cell has a result.

    Attributes:
        state: State of its record.

    """

    state: State


@dataclass(frozen=True)
class WithText(Message):
    """Base of the messages with a text for the user.

    Attributes:
        text: The text.

    """

    text: str


class Notice(WithText):
    """An event that does not end the cell."""


class Waiting(WithText):
    """Other processes hold all cells that are left; the text names the holder of this one."""


class Problem(WithText):
    """The cell cannot be read or run."""


class DiskFull(Problem):
    """The disk is full, which ends the run."""


class DeviceLost(Problem):
    """The CUDA device failed, which ends the worker."""
