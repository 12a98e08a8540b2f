"""The partition of one cell's stages among processes, as the command line says it.

Stages too heavy for one process can be replicated: `4x2,6` are four stages over two processes, which take their
micro-batches in turn (`petra_core.ages`), and six on a third. An even or a balanced partition has no such parts.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from petra_core import methods
from petra_core.ages import of_stages
from petra_core.shares import even_partition, owned, places
from reproduce.cells import networks
from reproduce.cells.kinds import CellError, TrainedCell

AnyCell = TypeVar("AnyCell", bound=TrainedCell)


@dataclass(frozen=True)
class Shares:
    """The stages of each process of one network; `str` gives what `--partition` takes."""

    partition: tuple[int, ...]  # the number of stages of each part
    replicas: tuple[int, ...]  # of each part, the processes that take its micro-batches in turn

    @classmethod
    def of(cls, partition: Sequence[int], replicas: Sequence[int] | None = None) -> "Shares":
        """The shares of a partition; without replicas each part has one process."""
        return cls(tuple(partition), (1,) * len(partition) if replicas is None else tuple(replicas))

    @property
    def processes(self) -> int:
        return sum(self.replicas)

    @property
    def of_stages(self) -> tuple[int, ...]:
        """The replicas of each stage; empty where no stage has several."""
        return of_stages(self.partition, self.replicas) if max(self.replicas) > 1 else ()

    def __str__(self) -> str:
        parts = zip(self.partition, self.replicas, strict=True)
        return ",".join(f"{size}x{count}" if count > 1 else f"{size}" for size, count in parts)


def shares(cell: TrainedCell, partition: str, processes: int) -> Shares:
    """The stages of each process, from what `--partition` says.

    Args:
        cell: whose network it is.
        partition: `even`, or the numbers of stages, separated by commas, each perhaps with a number of processes that
            take turns, such as 4x2. `balanced` has become numbers before processes start.
        processes: how many.

    Raises:
        CellError: the network cannot be shared like that.

    """
    count = len(networks.outlined(cell))
    if processes > 1 and cell.method == methods.PAREPROP.name:
        raise CellError(
            f"--processes {processes}: {cell.method} overlaps the work of stages of one process; choose "
            f"{methods.REVERSIBLE_BACKPROPAGATION}, which has the same gradients, or one process"
        )
    if partition == "even":
        try:
            return Shares.of(even_partition(count, processes))
        except ValueError as error:
            raise CellError(f"{cell.model} has {count} stages: {error}") from None
    if partition == "balanced":
        raise CellError(
            "--partition balanced is found by timing the stages before processes start, which --processes does; with "
            "torchrun, give the numbers that `python -m reproduce partition` prints"
        )
    parts = [re.fullmatch(r"(\d+)(?:x(\d+))?", part.strip()) for part in partition.split(",")]
    if None in parts:
        raise CellError(
            f"a partition is even, balanced, or numbers separated by commas such as 2,3,5, or 4x2,6 for four stages "
            f"over two processes that take turns; got {partition!r}"
        )
    given = Shares.of(
        [int(part[1]) for part in parts if part is not None],
        [int(part[2] or 1) for part in parts if part is not None],
    )
    try:
        places(given.partition, given.replicas, processes)
        owned(given.partition, count)
    except ValueError as error:
        even = Shares.of(even_partition(count, min(processes, count)))
        raise CellError(
            f"the partition {partition} does not share the {count} stages of {cell.model} among {processes} processes: "
            f"{error}; even would be {even}"
        ) from None
    return given


def replicated(cell: AnyCell, shared: Shares) -> AnyCell:
    """The cell that is trained so: with stages replicated it is another one, since gradients come back later.

    Raises: CellError: the cell's method or k allow no such replicas.
    """
    return replace(cell, stage_replicas=shared.of_stages)
