"""The operations of every device under synchronous pipelines, for `petra_core.prediction.simulation`.

Synchronous pipelines empty at every update: n micro-batches make one batch and one update. The methods of the engine
are compared with these:

    gpipe            all n forwards, then all n backwards (Huang et al. 2019)
    one_f_one_b      forwards until the pipeline is full, then backward and forward alternate (PipeDream-Flush)
    interleaved      the same with several chunks of stages per device, so that the pipeline fills faster (Megatron-LM)
    zero_bubble      the same as one_f_one_b, but the gradients of the weights are computed separately, where a device
                     would be idle (ZB-H1, Qi et al. 2023)

Stages and micro-batches are numbered from 0.
"""

from collections.abc import Sequence

from petra_core.errors import check_int
from petra_core.prediction.orders import Devices, operation
from petra_core.prediction.simulation import Cost, Operation
from petra_core.shares import stage_ranges

__all__ = ["CHUNKS", "gpipe", "interleaved", "one_f_one_b", "zero_bubble"]

Step = tuple[str, int, int]  # kind, chunk, and number of the micro-batch in the batch
CHUNKS = 2  # chunks per device in `interleaved`


def gpipe(costs: Sequence[Cost], partition: Sequence[int], micro_batches: int) -> Devices:
    """Return the operations of GPipe: all forwards of a batch, then all its backwards.

    Args:
        costs: Costs of the stages.
        partition: Number of stages of each device.
        micro_batches: Micro-batches per batch.

    Raises:
        ValueError: If the partition does not fit the costs, or there are no micro-batches.

    """
    steps = [("F", 0, m) for m in range(micro_batches)] + [("B", 0, m) for m in range(micro_batches)]
    return _synchronous(costs, partition, [steps] * len(partition), micro_batches)


def one_f_one_b(costs: Sequence[Cost], partition: Sequence[int], micro_batches: int) -> Devices:
    """Return the operations of 1F1B, in which backward and forward alternate. Arguments and errors: see `gpipe`."""
    devices = len(partition)
    steps = [_one_f_one_b(device, devices, micro_batches) for device in range(devices)]
    return _synchronous(costs, partition, steps, micro_batches)


def zero_bubble(costs: Sequence[Cost], partition: Sequence[int], micro_batches: int) -> Devices:
    """Return the operations of ZB-H1. Arguments and errors: see `gpipe`.

    ZB-H1 is `one_f_one_b` with each backward in two halves: the gradient of the input (`B`), and later the gradients of
    the weights (`W`), when the device would be idle.
    """
    devices = len(partition)
    steps = []
    for device in range(devices):
        of_device: list[Step] = []
        for kind, chunk, m in _one_f_one_b(device, devices, micro_batches):
            of_device.append((kind, chunk, m))
            if kind == "B" and m >= device:  # device d defers d of them: that fills its idle time at the end
                of_device.append(("W", chunk, m - device))
        of_device += [("W", 0, m) for m in range(max(0, micro_batches - device), micro_batches)]
        steps.append(of_device)
    return _synchronous(costs, partition, steps, micro_batches)


def interleaved(costs: Sequence[Cost], partition: Sequence[int], micro_batches: int) -> Devices:
    """Return the operations of interleaved 1F1B: each device has two chunks of stages that are not neighbours.

    Chunk c is on device c modulo the number of devices.

    Args:
        costs: Costs of the stages.
        partition: Number of stages of each chunk, two chunks per device.
        micro_batches: Micro-batches per batch; a multiple of the number of devices.

    Raises:
        ValueError: If the partition does not fit the costs, the number of chunks is odd, or the number of micro-batches
            is not a multiple of the number of devices.

    """
    if len(partition) % CHUNKS:
        raise ValueError(f"{CHUNKS} chunks per device make an even number of chunks, got {len(partition)}")
    devices = len(partition) // CHUNKS
    if micro_batches % devices:
        raise ValueError(
            f"interleaving needs a multiple of the {devices} devices as micro-batches, got {micro_batches} "
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


def _one_f_one_b(device: int, devices: int, micro_batches: int) -> list[Step]:
    warmup = min(micro_batches, devices - 1 - device)
    steps: list[Step] = [("F", 0, m) for m in range(warmup)]
    for m in range(micro_batches):
        if warmup + m < micro_batches:
            steps.append(("F", 0, warmup + m))
        steps.append(("B", 0, m))
    return steps


def _interleaved(index: int, devices: int) -> tuple[int, int]:
    """Return chunk and micro-batch of a device's forward number `index`.

    The chunks alternate after every `devices` micro-batches.
    """
    group, within = divmod(index, devices * CHUNKS)
    chunk, m = divmod(within, devices)
    return chunk, group * devices + m


def _synchronous(
    costs: Sequence[Cost],
    partition: Sequence[int],
    steps: Sequence[Sequence[Step]],
    micro_batches: int,
) -> Devices:
    """Return the steps of every device as operations of its stages, followed by the updates."""
    check_int("micro_batches", micro_batches, 1)
    parts = stage_ranges(partition, len(costs))
    devices = len(steps)
    split = any(kind == "W" for of_device in steps for kind, _, _ in of_device)
    result: Devices = []
    for device, of_device in enumerate(steps):
        operations: list[Operation] = []
        mine = [stage for chunk in parts[device::devices] for stage in chunk]
        for kind, chunk, m in of_device:
            stages = parts[device + chunk * devices]
            operations += [
                _operation(kind, stage, m, costs, split) for stage in (stages if kind == "F" else reversed(stages))
            ]
        operations += [operation("U", stage, 0, costs) for stage in mine]
        result.append(operations)
    return result


def _operation(kind: str, stage: int, number: int, costs: Sequence[Cost], split: bool) -> Operation:
    """Return an operation. With `split`, `B` and `W` are the halves of a backward."""
    half = costs[stage].backward / 2
    if kind == "W":
        return Operation((kind, stage, number), half, ((("B", stage, number), 0),))
    whole = operation(kind, stage, number, costs)
    return whole._replace(seconds=half) if split and kind == "B" else whole
