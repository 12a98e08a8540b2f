"""The operations of every device, in their order: the schedules that `petra_core.prediction.simulation` simulates.

The schedules are those that the engine executes (`petra_core.staleness`). Stages and micro-batches are numbered from 0.
"""

from collections.abc import Iterator, Sequence

from petra_core.methods import Method
from petra_core.prediction.simulation import Cost, Operation
from petra_core.shares import owned
from petra_core.staleness import Action, Kind, backward_actions, chosen

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
    """Return the operations of one of this engine's methods, as the engine executes it over several processes.

    Args:
        method: the method.
        costs: of each stage.
        partition: the number of stages of each device, their sum J.
        micro_batches: how many enter.
        accumulation: k.
        staleness: of each stage; None: lockstep, or zero where the method is not pipelined.

    Returns:
        The operations of each device.

    Raises:
        ValueError: the partition does not fit the costs, or the staleness the method; or the method overlaps, which is
            not how a device works here.

    """
    if method.overlapped:
        raise ValueError(
            f"{method} overlaps the work of stages on one device, and here a device does one thing at a time; "
            f"REVERSIBLE_BACKPROPAGATION is the same work in order"
        )
    vector = chosen(method, len(costs), accumulation, staleness)
    return [
        [
            operation(action.kind.value, stage, action.number, costs)
            for step in range(micro_batches + vector[0])
            for stage, action in _step(method, vector, own, step, micro_batches, accumulation)
            if action.kind is not Kind.RECONSTRUCT  # is part of the backward
        ]
        for own in owned(partition, len(costs))
    ]


def _step(
    method: Method, staleness: Sequence[int], own: range, step: int, micro_batches: int, accumulation: int
) -> Iterator[tuple[int, Action]]:
    """Yield what the stages of one device do in a step: forwards upwards, then backwards downwards."""
    if step < micro_batches:
        yield from ((stage, Action(Kind.FORWARD, step)) for stage in own)
    for stage in reversed(own):
        number = step - staleness[stage]
        if 0 <= number < micro_batches:
            for action in backward_actions(method, number, accumulation, head=stage == len(staleness) - 1):
                yield stage, action


def merged(costs: Sequence[Cost], partition: Sequence[int]) -> list[Cost]:
    """The costs of the merged stages (`petra_core.merge`), one for each device, so that J is the number of parts.

    In lockstep gradients come back sooner, after 2(P - 1 - p) micro-batches instead of 2(J - 1 - j); the same stages
    with the staleness of `petra_core.staleness.per_device` compute the same.

    Raises:
        ValueError: the partition does not fit the costs.

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
        for part in owned(partition, len(costs))
    ]


def operation(kind: str, stage: int, number: int, costs: Sequence[Cost]) -> Operation:
    """Return the operation of a stage with what it waits for.

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
