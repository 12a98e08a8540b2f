"""How the stages of a network are shared among ranks: consecutive runs, and no rank without a stage."""

from collections.abc import Sequence
from itertools import accumulate

__all__ = ["even_partition", "in_turn", "owned", "places", "replica_counts", "run_name", "runs"]


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


def replica_counts(partition: Sequence[int], replicas: Sequence[int] | None) -> list[int]:
    """The number of ranks that have each part, one unless given. Raises: ValueError: a part has none."""
    counts = [1] * len(partition) if replicas is None else list(replicas)
    if len(counts) != len(partition) or min(counts, default=0) < 1:
        raise ValueError(
            f"each of the {len(partition)} parts has at least one replica, got {tuple(counts)} for {tuple(partition)}"
        )
    return counts


def places(partition: Sequence[int], replicas: Sequence[int] | None, ranks: int) -> list[range]:
    """The ranks of each part of the pipeline, those of its replicas one after the other.

    Args:
        partition: the number of stages of each part.
        replicas: of each part the number of ranks that have it; None: one each.
        ranks: how many there are.

    Raises:
        ValueError: there are not so many ranks, or a part has none.

    """
    counts = replica_counts(partition, replicas)
    if sum(counts) != ranks:
        replicated = f" with {tuple(counts)} replicas" if max(counts) > 1 else ""
        raise ValueError(f"the parts {tuple(partition)}{replicated} are for {sum(counts)} ranks, and there are {ranks}")
    return runs(counts)


def in_turn(own_stages: range, stages: int) -> list[int]:
    """The stages `own_stages` of one process in the order in which it runs them within a tick.

    Any order would do: a message is used in a later tick than it is sent in. Stages with a neighbour in another process
    come last, so that what they wait for, and what they send, has the time of all others to travel in.
    """
    first, last = own_stages[0], own_stages[-1]
    border = {stage for stage, other in ((first, first - 1), (last, last + 1)) if 0 <= other < stages}
    return sorted(own_stages, key=lambda stage: stage in border)
