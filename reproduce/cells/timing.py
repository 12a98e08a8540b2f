"""Define the timing of a pipelined method: the staleness vector from two settings of the user.

    --timing lockstep      the paper's counting: gradients come back after twice the way to the head
    --timing 1f1b          asynchronous 1F1B, the order of PipeDream: the smallest staleness at full speed
    --timing 1f1b+0.5      with slack for latency: 1.5 times the staleness of 1F1B, rounded up; lockstep is 1f1b+1
    --stages 3,2,2,3       numbers of blocks per stage of the pipeline, one device each; if empty, each block is a stage

The vector has one number per block (`petra_core.staleness`); blocks of one stage have equal numbers. Methods that pass
one micro-batch at a time have no timing. The name of a published system (`petra_core.methods.SYSTEMS`) selects a method
and asynchronous 1F1B.
"""

import re
from collections.abc import Sequence
from math import floor
from typing import TYPE_CHECKING

from petra_core import methods, staleness
from reproduce.cells import own, transformers
from reproduce.cells.base import CellError
from reproduce.models.sizes import HierarchicalSize

if TYPE_CHECKING:  # that module imports this one
    from reproduce.cells.kinds import NetworkCell, TrainedCell

LOCKSTEP, ONE_F_ONE_B = "lockstep", "1f1b"


RESIDUAL_BLOCKS = {18: 10, 34: 18, 50: 18}  # by number of layers, for every residual family


def slack(timing: str) -> float:
    """Return s in the staleness (1 + s) (P - 1 - p) on P devices: 1 in lockstep, 0 in asynchronous 1F1B.

    Raises:
        CellError: There is no such timing.

    """
    if timing == LOCKSTEP:
        return 1.0
    if match := re.fullmatch(r"1f1b(?:\+(\d+(?:\.\d+)?))?", timing):
        return float(match[1] or 0)
    raise CellError(
        f"timing must be {LOCKSTEP}, {ONE_F_ONE_B}, or {ONE_F_ONE_B}+S with a slack S such as {ONE_F_ONE_B}+0.5, "
        f"got {timing!r}"
    )


def canonical(timing: str) -> str:
    """Return the one name of a timing that people may write in several ways: `1f1b+1.0` is `lockstep`.

    Raises:
        CellError: there is no such timing.

    """
    if (known := {1.0: LOCKSTEP, 0.0: ONE_F_ONE_B}.get(slack(timing))) is not None:
        return known
    whole, _, part = timing.removeprefix(f"{ONE_F_ONE_B}+").partition(".")
    return f"{ONE_F_ONE_B}+{'.'.join(filter(None, (str(int(whole)), part.rstrip('0'))))}"


def of_system(method: str, timing: str | None) -> str:
    """Return the timing of a method or a published system, given the user's settings.

    Args:
        method: Name of the method or system.
        timing: Requested timing, or None for that of the system, or lockstep for other methods.

    Returns:
        The timing.

    Raises:
        CellError: The name is that of a system, and the timing is not the system's.

    """
    name = methods.normalize(method)
    if name not in methods.SYSTEMS:
        return LOCKSTEP if timing is None else timing
    method_of_system = methods.SYSTEMS[name]
    if timing not in (None, ONE_F_ONE_B) and name != method_of_system.name:
        raise CellError(
            f"{name} runs at asynchronous 1F1B, got timing {timing!r}: leave it out, or choose the method "
            f"{method_of_system}, which supports any timing"
        )
    return ONE_F_ONE_B if timing is None else timing


def blocks(cell: "NetworkCell") -> int:
    """Return J, the number of blocks of the cell's network including stem and head.

    Only a user's network is built for that.
    """
    model = cell.model
    if own.is_own(model):
        return len(own.build(model))
    if match := re.fullmatch(r"chain(\d+)", model):
        return int(match[1]) + 2
    if match := re.fullmatch(r"resnet18_(\d+)b", model):
        return int(match[1])
    if model not in transformers.MODELS:
        return RESIDUAL_BLOCKS[int(model[-2:])]
    size, family = transformers.MODELS[model], model.partition("_")[0]
    if isinstance(size, HierarchicalSize):
        between = len(size.depths) - 1 if family == "revswin" else 0  # blocks that halve the resolution
        return sum(size.depths) + between + 2
    return size.depth + (1 if family == "vit" else 2)


def check(cell: "TrainedCell") -> None:
    """Check timing and stages of a cell. Stages of one block each are replaced by an empty tuple.

    Raises:
        CellError: They are wrong, or the method has no timing.

    """
    if (cell.timing, cell.stages) == (LOCKSTEP, ()):
        return
    if not methods.by_name(cell.method).pipelined:
        raise CellError(
            f"{cell.method} passes one micro-batch at a time, so it has neither timing nor stages; got timing "
            f"{cell.timing}, stages {_written(cell.stages)}: leave both out"
        )
    slack(cell.timing)
    if own.is_own(cell.model):
        return  # to read a record must not import a user's module; `vector` counts the blocks
    _check_stages(cell, blocks(cell))
    if set(cell.stages) == {1}:
        object.__setattr__(cell, "stages", ())
    vector(cell)


def _check_stages(cell: "TrainedCell", count: int) -> None:
    if cell.stages and (sum(cell.stages) != count or min(cell.stages) < 1):
        raise CellError(
            f"stages must be numbers of blocks of at least 1, and {cell.model} has {count} blocks (stem and head "
            f"included); got {_written(cell.stages)}, which has {sum(cell.stages)}"
        )


def vector(cell: "TrainedCell") -> tuple[int, ...] | None:
    """Return the staleness of each block of a cell, or None for a method without pipeline.

    Raises:
        CellError: k is too small for the staleness.

    """
    method = methods.by_name(cell.method)
    if not method.pipelined:
        return None
    count = blocks(cell)
    _check_stages(cell, count)
    chosen = staleness.per_device(cell.stages or [1] * count, slack(cell.timing))
    try:
        return staleness.resolve(method, len(chosen), cell.accumulation, chosen)
    except ValueError as error:
        raise CellError(str(error)) from None


def covering(vector: Sequence[int]) -> str:
    """Return the timing with the smallest slack whose staleness is at least `vector` at every stage."""
    last = len(vector) - 1
    least = max(((number - 1) / (last - stage) for stage, number in enumerate(vector[:-1])), default=0.0) - 1
    if least < 0:
        return ONE_F_ONE_B
    hundredths = floor(100 * least + 1e-9) + 1  # above the minimum, where a product is not yet rounded up
    return LOCKSTEP if hundredths == 100 else f"{ONE_F_ONE_B}+{hundredths / 100:g}"


def title(timing: str, stages: tuple[int, ...] = ()) -> str:
    """Return the name of a timing in sentences and tables, such as "asynchronous 1F1B, 4 stages"."""
    more = slack(timing)
    name = "lockstep" if more == 1 else "asynchronous 1F1B" if more == 0 else f"asynchronous 1F1B + {more:g}"
    return f"{name}, {len(stages)} stages" if stages else name


def title_of_row(timing: str, stages: str) -> str:
    """Return the title of the timing in a row of `reproduce.records.frames`, whose stages are joined by commas."""
    return title(timing, tuple(map(int, stages.split(","))) if stages else ())


def _written(stages: tuple[int, ...]) -> str:
    return ",".join(map(str, stages)) or "none"


def even_partition(stages: int, ranks: int) -> tuple[int, ...]:
    """Return the number of stages of each rank, as equal as possible. Lower ranks get the remaining stages.

    Raises:
        ValueError: If there are fewer stages than ranks.

    """
    if not 1 <= ranks <= stages:
        raise ValueError(
            f"{ranks} ranks need at least {ranks} stages, got {stages}; use at most {stages} processes, or a network "
            f"with more stages"
        )
    share, rest = divmod(stages, ranks)
    return tuple(share + (rank < rest) for rank in range(ranks))
