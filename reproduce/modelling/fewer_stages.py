"""Describe a training with one stage per process: its lower staleness, and the latency that it can still hide."""

from petra_core import methods
from petra_core.staleness import one_f_one_b
from reproduce.cells import timing
from reproduce.cells.kinds import TrainedCell
from reproduce.distributed.partitioning import format_partition
from reproduce.modelling import work
from reproduce.modelling.full_speed import hidden_latency
from reproduce.modelling.simulation import merge_costs


def describe(cell: TrainedCell, processes: int) -> str:
    """Describe the effect of one stage per process on a training at the default timing; empty for other timings.

    Args:
        cell: Cell of the training.
        processes: Number of processes that share its blocks.

    Returns:
        The sentence, or an empty string.

    """
    by_default = methods.by_name(cell.method).pipelined and (cell.timing, cell.stages) == (timing.LOCKSTEP, ())
    if not by_default or processes < 2:
        return ""
    vector = timing.vector(cell)
    assert vector is not None
    if vector[0] <= processes - 1:
        return ""
    sizes = work.choose_sizes(cell, processes)
    costs = merge_costs(work.predict_costs(cell), sizes)
    latency = hidden_latency(costs, one_f_one_b(processes))
    turn = max(cost.forward + cost.backward for cost in costs)
    options = f"--timing {timing.ONE_F_ONE_B}" + (f" --stages {format_partition(sizes)}" if set(sizes) != {1} else "")
    return (
        f"one stage per process ({options}) would change the staleness of stage 0 from "
        f"{vector[0]} to {processes - 1} micro-batches, and so the result; by predicted costs, latency of a message "
        f"would still be hidden up to {latency / turn:.0%} of the slowest stage's time for a micro-batch"
    )
