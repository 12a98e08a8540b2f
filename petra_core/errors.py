"""The errors that users of the engine meet.

Every message names the value that was met, what was expected, and what to do about it. Wrong arguments raise
`ValueError` or `TypeError` as in the rest of Python; the classes here are for what happens while a run is under way.
"""


class PetraError(Exception):
    """Base class of the errors of the engine."""


class NonFiniteError(PetraError):
    """A loss or a weight became infinite or not a number.

    Attributes:
        micro_batch: number of the micro-batch whose loss it was, counted from 0; of weights, the last that had entered.
        stage: where it comes from (0 = stem); None: it was noticed too late to say.

    """

    def __init__(self, message: str, *, micro_batch: int, stage: int | None) -> None:
        super().__init__(message)
        self.micro_batch = micro_batch
        self.stage = stage


class ScheduleError(PetraError):
    """A schedule breaks a dependency; the message names stage and action."""


class CheckpointError(PetraError):
    """A checkpoint is damaged, of another format, or belongs to another pipeline."""
