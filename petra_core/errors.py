"""The errors that users of the engine meet.

Every message names the value that was met, what was expected, and what to do about it. Wrong arguments raise
`ValueError` or `TypeError` as in the rest of Python; the classes here are for what happens while a run is under way.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A reason why a network would not train as plain autograd trains it.

    Attributes:
        stage: number of the stage; None: of the whole network.
        parameter: name of the parameter, as in `stage.named_parameters()`; None: of no single one.
        what: what was found.
        remedy: what to do about it.

    """

    stage: int | None
    parameter: str | None
    what: str
    remedy: str

    def __str__(self) -> str:
        where = "" if self.stage is None else f"stage {self.stage}: "
        return f"{where}{'' if self.parameter is None else f'parameter {self.parameter} '}{self.what}; {self.remedy}"


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


class StageError(PetraError, ValueError):
    """A stage would not train as plain autograd trains it.

    Attributes:
        finding: which stage and parameter, what was found, and the remedy.

    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding
