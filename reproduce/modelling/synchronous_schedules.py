"""Schedules of synchronous pipelines, for `reproduce.modelling.simulation`.

Synchronous pipelines empty at every update: n micro-batches make one batch and one update. The methods of the engine
are compared with these:

    gpipe            all n forwards, then all n backwards (Huang et al. 2019)
    one_f_one_b      forwards until the pipeline is full, then backward and forward alternate (PipeDream-Flush)
    interleaved      the same with two stages per device, so that the pipeline fills faster (Megatron-LM)
    zero_bubble      the same as one_f_one_b, but the gradients of the weights are computed separately, where a device
                     would be idle (ZB-H1, Qi et al. 2023)

Every device has one stage, into which neighbouring stages are merged, or two in an interleaved schedule. Stages and
micro-batches are numbered from 0.
"""

from petra_core.errors import check_int
from reproduce.drawing.timeline import Name
from reproduce.modelling.simulation import Schedule

CHUNKS = 2  # stages per device in `interleaved`


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of GPipe: all forwards of a batch, then all its backwards.

    Args:
        stages: Number of stages, which is the number of devices.
        micro_batches: Micro-batches per batch, at least 1.

    Raises:
        ValueError: If there are no micro-batches.

    """
    check_int("micro_batches", micro_batches, 1)
    return [
        [*((kind, stage, m) for kind in "FB" for m in range(micro_batches)), ("U", stage, 0)] for stage in range(stages)
    ]


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of 1F1B, in which backward and forward alternate. Arguments and errors: see `gpipe`."""
    return [[*_one_f_one_b(stage, stages, micro_batches), ("U", stage, 0)] for stage in range(stages)]


def zero_bubble(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of ZB-H1. Arguments and errors: see `gpipe`.

    ZB-H1 is `one_f_one_b` with each backward in two halves: the gradient of the input (`B`), and later the gradients of
    the weights (`W`), when the device would be idle.
    """
    schedule: Schedule = []
    for stage in range(stages):
        names: list[Name] = []
        for kind, _, m in _one_f_one_b(stage, stages, micro_batches):
            names.append((kind, stage, m))
            if kind == "B" and m >= stage:  # device d defers d of them: that fills its idle time at the end
                names.append(("W", stage, m - stage))
        names += [("W", stage, m) for m in range(max(0, micro_batches - stage), micro_batches)]
        schedule.append([*names, ("U", stage, 0)])
    return schedule


def interleaved(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of interleaved 1F1B: each device has two stages that are not neighbours.

    Stage j is on device j modulo the number of devices.

    Args:
        stages: Number of stages, two per device.
        micro_batches: Micro-batches per batch; a multiple of the number of devices.

    Raises:
        ValueError: If the number of stages is odd, or the number of micro-batches is not a positive multiple of the
            number of devices.

    """
    check_int("micro_batches", micro_batches, 1)
    devices, odd = divmod(stages, CHUNKS)
    if odd:
        raise ValueError(f"{CHUNKS} stages per device make an even number of stages, got {stages}")
    if micro_batches % devices:
        raise ValueError(
            f"interleaving needs a multiple of the {devices} devices as micro-batches, got {micro_batches} "
            f"(remainder {micro_batches % devices})"
        )
    total = CHUNKS * micro_batches
    order = [_place_forward(place, devices) for place in range(total)]  # chunk and micro-batch of each forward
    schedule: Schedule = []
    for device in range(devices):
        forwards: list[Name] = [("F", device + chunk * devices, m) for chunk, m in order]
        backwards: list[Name] = [("B", device + (CHUNKS - 1 - chunk) * devices, m) for chunk, m in order]
        warmup = min(total, 2 * (devices - 1 - device) + (CHUNKS - 1) * devices)
        names = forwards[:warmup]
        for place in range(total - warmup):
            names += [forwards[warmup + place], backwards[place]]
        updates: list[Name] = [("U", device + chunk * devices, 0) for chunk in range(CHUNKS)]
        schedule.append([*names, *backwards[total - warmup :], *updates])
    return schedule


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[Name]:
    check_int("micro_batches", micro_batches, 1)
    warmup = min(micro_batches, stages - 1 - stage)
    names: list[Name] = [("F", stage, m) for m in range(warmup)]
    for m in range(micro_batches):
        if warmup + m < micro_batches:
            names.append(("F", stage, warmup + m))
        names.append(("B", stage, m))
    return names


def _place_forward(place: int, devices: int) -> tuple[int, int]:
    """Return chunk and micro-batch of a device's forward number `place`.

    The chunks alternate after every `devices` micro-batches.
    """
    group, within = divmod(place, devices * CHUNKS)
    chunk, m = divmod(within, devices)
    return chunk, group * devices + m
