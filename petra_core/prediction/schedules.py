"""Schedules for the simulation (`petra_core.prediction.simulation`): the ordered operations of every device.

The engine executes the same schedules (`petra_core.staleness`). Stages and micro-batches are numbered from 0.
"""

from collections.abc import Sequence

from petra_core.methods import Method
from petra_core.prediction.timeline import Name
from petra_core.shares import stage_ranges
from petra_core.staleness import Kind, resolve, step_actions

__all__ = ["Schedule", "make_schedule"]

Schedule = list[list[Name]]  # by device, in the order of execution


def make_schedule(
    method: Method,
    partition: Sequence[int],
    micro_batches: int,
    accumulation: int = 1,
    staleness: Sequence[int] | None = None,
) -> Schedule:
    """Return the operations of each device when the engine runs a method over several processes.

    Args:
        method: Training method.
        partition: Number of stages of each device. The sum is J.
        micro_batches: Number of micro-batches.
        accumulation: Number of micro-batches per update, k.
        staleness: Staleness of each stage. None for lockstep, or for zero if the method is not pipelined.

    Raises:
        ValueError: If the staleness does not match the method or the partition, or the method overlaps: a simulated
            device runs one operation at a time.

    """
    if method.overlapped:
        raise ValueError(
            f"{method} overlaps the work of stages on one device, and here a device does one thing at a time; "
            f"REVERSIBLE_BACKPROPAGATION is the same work in order"
        )
    stages = sum(partition)
    vector = resolve(method, stages, accumulation, staleness)
    return [
        [
            (action.kind.value, stage, action.number)
            for step in range(micro_batches + vector[0])
            for stage, action in step_actions(method, vector, own, step, micro_batches, accumulation)
            if action.kind is not Kind.RECONSTRUCT  # its cost is part of the backward
        ]
        for own in stage_ranges(partition, stages)
    ]
