"""Schedules for the simulation (`petra_core.prediction.simulation`): the ordered operations of every device.

The engine executes the same schedules (`petra_core.staleness`). Stages and micro-batches are numbered from 0.
"""

from collections.abc import Iterator, Sequence

from petra_core.methods import Method
from petra_core.prediction.timeline import Name
from petra_core.shares import stage_ranges
from petra_core.staleness import Action, Kind, backward_actions, resolve

__all__ = ["Schedule", "make_schedule", "program"]

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
            for stage, action in _step(method, vector, own, step, micro_batches, accumulation)
            if action.kind is not Kind.RECONSTRUCT  # its cost is part of the backward
        ]
        for own in stage_ranges(partition, stages)
    ]


def program(
    method: Method, staleness: Sequence[int], stage: int, micro_batches: int, accumulation: int = 1
) -> Iterator[Action]:
    """Yield all actions of one stage, including those that drain the pipeline after the last micro-batch.

    Args:
        method: The method.
        staleness: Staleness of every stage.
        stage: Number of the stage, j.
        micro_batches: Number of micro-batches that enter.
        accumulation: Number of backwards per update, k.

    """
    own = range(stage, stage + 1)
    for step in range(micro_batches + staleness[stage]):
        for _, action in _step(method, staleness, own, step, micro_batches, accumulation):
            yield action


def _step(
    method: Method, staleness: Sequence[int], own: range, step: int, micro_batches: int, accumulation: int
) -> Iterator[tuple[int, Action]]:
    """Yield the actions of consecutive stages in a step with their stages: forwards upwards, then backwards downwards.

    Args:
        method: The method.
        staleness: Staleness of every stage.
        own: Numbers of the stages.
        step: Number of the step.
        micro_batches: Number of micro-batches that enter.
        accumulation: Number of backwards per update, k.

    """
    if step < micro_batches:
        yield from ((stage, Action(Kind.FORWARD, step)) for stage in own)
    for stage in reversed(own):
        number = step - staleness[stage]
        if 0 <= number < micro_batches:
            for action in backward_actions(method, number, accumulation, head=stage == len(staleness) - 1):
                yield stage, action
