"""How the stages of a network are shared among ranks: consecutive runs, and no rank without a stage."""

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["even_partition", "owned", "run_name", "runs"]


def runs(sizes: Sequence[int]) -> list[range]:
    """Consecutive runs of these sizes, from 0 on: (4, 3) gives 0..3 and 4..6."""
    return [range(end - size, end) for end, size in zip(accumulate(sizes), sizes, strict=True)]


def run_name(run: range) -> str:
    """Consecutive numbers as they are written: 3, or 3..5."""
    return f"{run.start}" if len(run) == 1 else f"{run.start}..{run.stop - 1}"


def even_partition(stages: int, ranks: int) -> tuple[int, ...]:
    """The number of stages of each rank, as equal as can be; where they do not divide, lower ranks have one more.

    Raises:
        ValueError: there are fewer stages than ranks.

    """
    if not 1 <= ranks <= stages:
        raise ValueError(
            f"{ranks} ranks need at least as many stages, got {stages}; use at most {stages} processes, or a network "
            f"of more stages"
        )
    share, rest = divmod(stages, ranks)
    return tuple(share + (rank < rest) for rank in range(ranks))


def owned(partition: Sequence[int], stages: int) -> list[range]:
    """The stages of each rank, from the number of stages of each, such as (4, 3, 3).

    Args:
        partition: the number of stages of each rank.
        stages: J, the sum that the numbers must have.

    Raises:
        ValueError: there are no numbers, one is below 1, or the sum is another.

    """
    if min(partition, default=0) < 1:
        raise ValueError(
            f"a partition gives each of the {len(partition)} ranks at least one stage, got {tuple(partition)}"
        )
    if sum(partition) != stages:
        raise ValueError(
            f"a partition of {stages} stages has that sum, got {tuple(partition)} with the sum {sum(partition)}"
        )
    return runs(partition)
