"""Schedules for the simulation (`petra_core.prediction.simulation`): the ordered operations of every device.

The engine executes the same schedules (`petra_core.staleness`). Stages and micro-batches are numbered from 0.
"""

from collections.abc import Iterator, Sequence

from petra_core.methods import Method
from petra_core.prediction.simulation import Cost, Operation
from petra_core.shares import stage_ranges
from petra_core.staleness import Action, Kind, backward_actions, resolve

__all__ = ["Devices", "merged", "of_method", "operation"]

Devices = list[list[Operation]]  # by device, in the order of execution


def of_method(
    method: Method,
    costs: Sequence[Cost],
    partition: Sequence[int],
    micro_batches: int,
    accumulation: int = 1,
    staleness: Sequence[int] | None = None,
) -> Devices:
    """Return the operations of each device when the engine runs a method over several processes.

    Args:
        method: Training method.
        costs: Costs of each stage.
        partition: Number of stages of each device. The sum is J.
        micro_batches: Number of micro-batches.
        accumulation: Number of micro-batches per update, k.
        staleness: Staleness of each stage. None for lockstep, or for zero if the method is not pipelined.

    Returns:
        The operations of each device.

    Raises:
        ValueError: If the partition does not match the costs, the staleness does not match the method, or the method
            overlaps: a simulated device runs one operation at a time.

    """
    if method.overlapped:
        raise ValueError(
            f"{method} overlaps the work of stages on one device, and here a device does one thing at a time; "
            f"REVERSIBLE_BACKPROPAGATION is the same work in order"
        )
    vector = resolve(method, len(costs), accumulation, staleness)
    return [
        [
            operation(action.kind.value, stage, action.number, costs)
            for step in range(micro_batches + vector[0])
            for stage, action in _step(method, vector, own, step, micro_batches, accumulation)
            if action.kind is not Kind.RECONSTRUCT  # its cost is part of the backward
        ]
        for own in stage_ranges(partition, len(costs))
    ]


def _step(
    method: Method, staleness: Sequence[int], own: range, step: int, micro_batches: int, accumulation: int
) -> Iterator[tuple[int, Action]]:
    """Yield the actions of a device's stages in a step: forwards upwards, then backwards downwards."""
    if step < micro_batches:
        yield from ((stage, Action(Kind.FORWARD, step)) for stage in own)
    for stage in reversed(own):
        number = step - staleness[stage]
        if 0 <= number < micro_batches:
            for action in backward_actions(method, number, accumulation, head=stage == len(staleness) - 1):
                yield stage, action


def merged(costs: Sequence[Cost], partition: Sequence[int]) -> list[Cost]:
    """Return the costs of stages merged by `petra_core.merge` into one per device, so that J is the number of devices.

    In lockstep, gradients return sooner: after 2(P - 1 - p) micro-batches instead of 2(J - 1 - j). The unmerged stages
    with the staleness of `petra_core.staleness.per_device` compute the same.

    Raises:
        ValueError: If the partition does not match the costs.

    """
    return [
        Cost(
            sum(costs[stage].forward for stage in part),
            sum(costs[stage].backward for stage in part),
            sum(costs[stage].update for stage in part),
            costs[part[-1]].up,
            costs[part[0]].down,
            sum(costs[stage].weights for stage in part),
        )
        for part in stage_ranges(partition, len(costs))
    ]


def operation(kind: str, stage: int, number: int, costs: Sequence[Cost]) -> Operation:
    """Return an operation of a stage, with the operations that it waits for.

    Args:
        kind: `F` (forward), `B` (backward) or `U` (update).
        stage: Index of the stage.
        number: Number of the micro-batch or update.
        costs: Costs of all stages.

    """
    cost = costs[stage]
    if kind == "F":
        needs = ((("F", stage - 1, number), costs[stage - 1].up),) if stage else ()
        return Operation((kind, stage, number), cost.forward, needs)
    if kind == "U":
        return Operation((kind, stage, number), cost.update)
    above = ((("B", stage + 1, number), costs[stage + 1].down),) if stage < len(costs) - 1 else ()
    return Operation((kind, stage, number), cost.backward, ((("F", stage, number), 0), *above))
