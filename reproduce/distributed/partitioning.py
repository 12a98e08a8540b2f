"""Parse the option `--partition`, which distributes the stages of a cell's network over processes."""

import re

from petra_core import methods
from petra_core.shares import stage_ranges
from reproduce.cells import timing
from reproduce.cells.kinds import CellError, TrainedCell
from reproduce.cells.timing import even_partition


def parse_partition(cell: TrainedCell, partition: str, processes: int) -> tuple[int, ...]:
    """Return the number of stages of each process.

    Args:
        cell: Cell whose network is distributed.
        partition: Value of `--partition`: `even`, or numbers of stages separated by commas. `balanced` must be replaced
            by numbers before processes are started.
        processes: Number of processes.

    Raises:
        CellError: If the partition is not valid for the network.

    """
    count = timing.blocks(cell)
    if processes > 1 and cell.method == methods.PAREPROP.name:
        raise CellError(
            f"--processes {processes}: {cell.method} overlaps the work of stages of one process; choose "
            f"{methods.REVERSIBLE_BACKPROPAGATION}, which has the same gradients, or one process"
        )
    if partition == "even":
        try:
            return even_partition(count, processes)
        except ValueError as error:
            raise CellError(f"{cell.model} has {count} stages: {error}") from None
    if partition == "balanced":
        raise CellError(
            "--partition balanced times the stages before processes are started, which only --processes can do; with "
            "torchrun, give the numbers that `python -m reproduce partition` prints"
        )
    sizes = [re.fullmatch(r"\d+", size.strip()) for size in partition.split(",")]
    if None in sizes:
        raise CellError(
            f"a partition is even, balanced, or numbers of stages separated by commas, such as 2,3,5; got {partition!r}"
        )
    given = tuple(int(size[0]) for size in sizes if size is not None)
    try:
        if len(given) != processes:
            raise ValueError(f"it has {len(given)} parts")
        stage_ranges(given, count)
    except ValueError as error:
        even = even_partition(count, min(processes, count))
        raise CellError(
            f"the partition {partition} does not distribute the {count} stages of {cell.model} among {processes} "
            f"processes: {error}; even would be {format_partition(even)}"
        ) from None
    return given


def format_partition(partition: tuple[int, ...]) -> str:
    """Format a partition as a value of `--partition`."""
    return ",".join(map(str, partition))
