"""Partition stages into contiguous ranges, one per rank."""

from collections.abc import Iterable, Sequence
from itertools import accumulate


def runs(sizes: Sequence[int]) -> list[range]:
    """Return consecutive ranges of these sizes, starting at 0: (4, 3) gives 0..3 and 4..6."""
    return [range(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def run_name(run: range) -> str:
    """Format a range: "3" or "3..5"."""
    return f"{run.start}" if len(run) == 1 else f"{run.start}..{run.stop - 1}"


def stage_ranges(partition: Sequence[int], stages: int) -> list[range]:
    """Return the stages of each rank.

    Args:
        partition: Number of stages of each rank, such as (4, 3, 3).
        stages: Number of stages J, which the sum of `partition` must equal.

    Raises:
        TypeError: If `partition` is not a sequence of numbers.
        ValueError: If `partition` is empty, contains a number below 1, or has another sum.

    """
    if isinstance(partition, str) or not isinstance(partition, Iterable):
        raise TypeError(f"a partition has one number of stages for each rank, such as (4, 3, 3); got {partition!r}")
    if min(partition, default=0) < 1:
        raise ValueError(
            f"a partition must give each of the {len(partition)} ranks at least one stage, got {tuple(partition)}"
        )
    if sum(partition) != stages:
        raise ValueError(
            f"a partition of {stages} stages must have the sum {stages}, got {tuple(partition)} with the sum "
            f"{sum(partition)}"
        )
    return runs(partition)
