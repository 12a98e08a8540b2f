"""Define the exceptions of the engine, and check numbers that users pass in.

Every message gives the actual value, the expected value and the fix. Invalid arguments raise `ValueError` or
`TypeError`; the classes in this module are for errors during a run.
"""

import math
from dataclasses import dataclass
from numbers import Real


@dataclass(frozen=True)
class Finding:
    """A reason why a network would train differently than with plain autograd.

    Attributes:
        stage: Index of the stage; None if the finding concerns the whole network.
        parameter: Name of the parameter, as in `stage.named_parameters()`; None if it concerns no single parameter.
        what: Description of the problem.
        remedy: How to fix it.

    """

    stage: int | None
    parameter: str | None
    what: str
    remedy: str

    def __str__(self) -> str:
        where = "" if self.stage is None else f"stage {self.stage}: "
        return f"{where}{'' if self.parameter is None else f'parameter {self.parameter} '}{self.what}; {self.remedy}"


class PetraError(Exception):
    """The base class of all exceptions of the engine."""


class NonFiniteError(PetraError):
    """The error of a loss or weight that became infinite or NaN.

    Attributes:
        micro_batch: Number of the micro-batch with this loss, counted from 0. For a weight, the last micro-batch that
            has entered the pipeline.
        stage: Index of the stage in which the value originated; None if it was detected too late to tell.

    """

    def __init__(self, message: str, *, micro_batch: int, stage: int | None) -> None:
        super().__init__(message)
        self.micro_batch, self.stage = micro_batch, stage


class CheckpointError(PetraError):
    """The error of a checkpoint that is damaged, has another format, or belongs to another pipeline."""


class StageError(PetraError, ValueError):
    """The error of a stage that would train differently than with plain autograd.

    Attributes:
        finding: The stage and parameter, the problem, and the remedy.

    """

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


def check_int(name: str, value: object, minimum: int) -> int:
    """Return `value` if it is an int of at least `minimum`.

    Raises:
        TypeError: If it is not an int.
        ValueError: If it is too small.

    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int of at least {minimum}, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return value


def check_number(name: str, value: object, below: float = math.inf) -> float:
    """Return `value` as a float if it is a number with 0 <= value < below.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is out of range, infinite or NaN.

    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    if not 0 <= number < below:
        allowed = "at least 0" + (" and finite" if below == math.inf else f" and below {below:g}")
        raise ValueError(f"{name} must be {allowed}, got {value}")
    return number
