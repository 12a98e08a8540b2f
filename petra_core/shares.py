"""How the stages of a network are shared among ranks: consecutive runs, and no rank without a stage.

This module exports even_partition, owned.
"""

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["even_partition", "owned"]


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


def owned(partition: Sequence[int], ranks: int, stages: int | None = None) -> list[range]:
    """The stages of each rank, from their numbers, such as (4, 3, 3).

    Args:
        partition: the number of stages of each rank.
        ranks: how many there are.
        stages: J, if it is known; the numbers must have that sum.

    Raises:
        ValueError: there are not so many numbers, one is below 1, or the sum is another.

    """
    if len(partition) != ranks or min(partition, default=0) < 1:
        raise ValueError(f"a partition gives each of the {ranks} ranks at least one stage, got {tuple(partition)}")
    if stages is not None and sum(partition) != stages:
        raise ValueError(
            f"a partition of {stages} stages has that sum, got {tuple(partition)} with the sum {sum(partition)}"
        )
    return [range(end - size, end) for end, size in zip(accumulate(partition), partition, strict=True)]
