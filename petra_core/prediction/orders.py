"""The operations of every device in their order: the schedules that `petra_core.prediction.simulation` plays.

The methods of this engine are the local programs that it executes (`petra_core.schedule`). Beside them stand the
synchronous pipelines that one would use instead, which wait at every update until the pipeline is empty: n
micro-batches make one batch and one update.

    gpipe            all n forwards, then all n backwards (Huang et al. 2019)
    one_f_one_b      forwards until the pipeline is full, then backward and forward in turn (PipeDream-Flush)
    interleaved      the same with several chunks of stages a device, which shortens the filling (Megatron-LM)
    zero_bubble      the same as one_f_one_b with the gradients of the weights apart, done where a device would wait
                     (ZB-H1, Qi et al. 2023)

Stages and micro-batches are numbered from 0.
"""

from collections.abc import Iterator, Sequence

from petra_core.arguments import check_int
from petra_core.methods import Method
from petra_core.prediction.simulation import Cost, Operation
from petra_core.schedule import Action, Kind, backward_actions
from petra_core.shares import owned
from petra_core.staleness import chosen

__all__ = ["gpipe", "interleaved", "merged", "of_method", "one_f_one_b", "zero_bubble"]

Devices = list[list[Operation]]
Step = tuple[str, int, int]  # kind, chunk, micro-batch of the batch


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
            _operation(action.kind.value, stage, action.number, costs)
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


def gpipe(costs: Sequence[Cost], partition: Sequence[int], micro_batches: int) -> Devices:
    """GPipe's order: all forwards of a batch, then all its backwards.

    Raises:
        ValueError: the partition does not fit the costs.

    """
    steps = [("F", 0, m) for m in range(micro_batches)] + [("B", 0, m) for m in range(micro_batches)]
    return _synchronous(costs, partition, [steps] * len(partition), micro_batches)


def one_f_one_b(costs: Sequence[Cost], partition: Sequence[int], micro_batches: int) -> Devices:
    """The order 1F1B: backward and forward in turn. Raises: ValueError: the partition does not fit the costs."""
    devices = len(partition)
    steps = [_one_f_one_b(device, devices, micro_batches) for device in range(devices)]
    return _synchronous(costs, partition, steps, micro_batches)


def zero_bubble(costs: Sequence[Cost], partition: Sequence[int], micro_batches: int) -> Devices:
    """The order ZB-H1: `one_f_one_b`, but half of a backward, that of the weights (`W`), is moved to where it fits.

    Raises:
        ValueError: the partition does not fit the costs.

    """
    devices = len(partition)
    steps = []
    for device in range(devices):
        of_device: list[Step] = []
        for kind, chunk, m in _one_f_one_b(device, devices, micro_batches):
            of_device.append((kind, chunk, m))
            if kind == "B" and m >= device:  # device d may be d of them behind: so much would it wait at the end
                of_device.append(("W", chunk, m - device))
        of_device += [("W", 0, m) for m in range(max(0, micro_batches - device), micro_batches)]
        steps.append(of_device)
    return _synchronous(costs, partition, steps, micro_batches)


def interleaved(costs: Sequence[Cost], partition: Sequence[int], micro_batches: int) -> Devices:
    """The interleaved 1F1B: several chunks of stages a device, chunk c on device c modulo the number of devices.

    Args:
        costs: of each stage.
        partition: the number of stages of each chunk; two chunks a device.
        micro_batches: of a batch; a multiple of the number of devices.

    Raises:
        ValueError: the partition does not fit the costs, has an odd number of chunks, or the number of micro-batches is
            not a multiple of the number of devices.

    """
    if len(partition) % CHUNKS:
        raise ValueError(f"{CHUNKS} chunks a device make an even number of chunks, got {len(partition)}")
    devices = len(partition) // CHUNKS
    if micro_batches % devices:
        raise ValueError(
            f"interleaving takes a multiple of the {devices} devices as micro-batches, got {micro_batches} "
            f"(remainder {micro_batches % devices})"
        )
    total = CHUNKS * micro_batches
    forwards = [_interleaved(i, devices) for i in range(total)]
    backwards = [(CHUNKS - 1 - chunk, m) for chunk, m in forwards]
    steps = []
    for device in range(devices):
        warmup = min(total, 2 * (devices - 1 - device) + (CHUNKS - 1) * devices)
        of_device: list[Step] = [("F", *forwards[i]) for i in range(warmup)]
        for i in range(total - warmup):
            of_device += [("F", *forwards[warmup + i]), ("B", *backwards[i])]
        of_device += [("B", *backwards[i]) for i in range(total - warmup, total)]
        steps.append(of_device)
    return _synchronous(costs, partition, steps, micro_batches)


CHUNKS = 2  # of a device, under `interleaved`


def _one_f_one_b(device: int, devices: int, micro_batches: int) -> list[Step]:
    warmup = min(micro_batches, devices - 1 - device)
    steps: list[Step] = [("F", 0, m) for m in range(warmup)]
    for m in range(micro_batches):
        if warmup + m < micro_batches:
            steps.append(("F", 0, warmup + m))
        steps.append(("B", 0, m))
    return steps


def _interleaved(index: int, devices: int) -> tuple[int, int]:
    """Chunk of the device and micro-batch of its index-th forward: devices micro-batches a chunk, in turn."""
    group, within = divmod(index, devices * CHUNKS)
    chunk, m = divmod(within, devices)
    return chunk, group * devices + m


def _synchronous(
    costs: Sequence[Cost],
    partition: Sequence[int],
    steps: Sequence[Sequence[Step]],
    micro_batches: int,
) -> Devices:
    """The steps of every device, then the updates; a chunk's stages one after the other."""
    check_int("micro_batches", micro_batches, 1)
    parts = owned(partition, len(costs))
    devices = len(steps)
    split = any(kind == "W" for of_device in steps for kind, _, _ in of_device)
    result: Devices = []
    for device, of_device in enumerate(steps):
        operations: list[Operation] = []
        mine = [stage for chunk in parts[device::devices] for stage in chunk]
        for kind, chunk, m in of_device:
            stages = parts[device + chunk * devices]
            operations += [
                _operation(kind, stage, m, costs, split=split)
                for stage in (stages if kind == "F" else reversed(stages))
            ]
        operations += [_operation("U", stage, 0, costs) for stage in mine]
        result.append(operations)
    return result


def _operation(kind: str, stage: int, number: int, costs: Sequence[Cost], *, split: bool = False) -> Operation:
    cost = costs[stage]
    if kind == "F":
        needs = ((("F", stage - 1, number), costs[stage - 1].up),) if stage else ()
        return Operation((kind, stage, number), cost.forward, needs)
    if kind == "U":
        return Operation((kind, stage, number), cost.update)
    if kind == "W":
        return Operation((kind, stage, number), cost.backward / 2, ((("B", stage, number), 0),))
    above = ((("B", stage + 1, number), costs[stage + 1].down),) if stage < len(costs) - 1 else ()
    return Operation(
        (kind, stage, number), cost.backward / 2 if split else cost.backward, ((("F", stage, number), 0), *above)
    )
