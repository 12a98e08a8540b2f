"""Partition stages over devices so that the slowest device is as fast as possible.

The obvious partition gives each device an equal number of stages. It is bad, since the first stages of a residual
network work on the largest images, and a pipeline is as fast as its slowest device. Dynamic programming over
(stages, devices) finds the best partition into contiguous ranges exactly. Its time is quadratic in the number of
stages, which is small.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf

from petra_core.shares import run_name, runs, stage_ranges


@dataclass(frozen=True)
class Cost:
    """Seconds and bytes that one stage takes for one micro-batch.

    Attributes:
        forward: Seconds of a forward that keeps no graph.
        backward: Seconds of a backward, including the evaluation that reconstructs the graph if the method needs one.
        update: Seconds of an optimizer step.
        up: Bytes of the output, which is sent to the stage above.
        down: Bytes of the message to the stage below: a gradient, and the input if the stage below reconstructs.
        weights: Bytes of the gradients of the weights, which replicas of the stage exchange at an update.

    """

    forward: float
    backward: float
    update: float = 0.0
    up: int = 0
    down: int = 0
    weights: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"{name} must not be negative, got {value}")


@dataclass(frozen=True)
class Partition:
    """Partition of stages over devices, with its expected speed and memory.

    Attributes:
        sizes: Number of stages of each device.
        seconds: Seconds that each device needs for one micro-batch.
        bytes: Bytes that each device holds.
        work: Seconds for one micro-batch on a single device.

    """

    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    bytes: tuple[int, ...]
    work: float

    @property
    def slowest(self) -> float:
        """Seconds of the slowest device, which is the time of a tick."""
        return max(self.seconds)

    @property
    def speedup(self) -> float:
        """Speedup over one device, without the time for messages between devices."""
        return self.work / self.slowest if self.slowest else float(len(self.sizes))

    def __str__(self) -> str:
        lines = ["device  stages      time, ms   share   memory, MB"]
        devices = zip(runs(self.sizes), self.seconds, self.bytes, strict=True)
        for device, (stages, seconds, held) in enumerate(devices):
            share = seconds / self.slowest if self.slowest else 1.0
            lines.append(f"{device:>6}  {run_name(stages):<10} {1e3 * seconds:>9.3f} {share:>6.0%} {held / 1e6:>12.1f}")
        efficiency = self.speedup / len(self.sizes)
        return "\n".join([*lines, f"expected: {self.speedup:.2f} times one device, efficiency {efficiency:.0%}"])


def assess(seconds: Sequence[float], sizes: Sequence[int], *, held: Sequence[int] | None = None) -> Partition:
    """Return the expected speed and memory of a given partition. The other arguments are those of `find_partition`.

    Raises:
        ValueError: If the partition does not match the stages.

    """
    held = _same_stages(seconds, held)
    parts = stage_ranges(sizes, len(seconds))
    return Partition(
        tuple(sizes),
        tuple(sum(seconds[stage] for stage in part) for part in parts),
        tuple(sum(held[stage] for stage in part) for part in parts),
        sum(seconds),
    )


def find_partition(
    seconds: Sequence[float], devices: int, *, held: Sequence[int] | None = None, limit: int | None = None
) -> Partition:
    """Return the partition whose slowest device is fastest. Of equally fast ones, the largest device holds least.

    Args:
        seconds: Seconds of each stage for one micro-batch: forward, backward, and its share of an update.
        devices: Number of devices, each of which gets at least one stage.
        held: Bytes of each stage.
        limit: Maximum bytes of a device, or None.

    Raises:
        ValueError: If there are fewer stages than devices, or no partition stays below the limit.

    """
    count = len(seconds)
    held = _same_stages(seconds, held)
    if not 1 <= devices <= count:
        raise ValueError(f"each of {devices} devices needs a stage, and there are {count}")
    time, size = [0.0, *accumulate(seconds)], [0, *accumulate(held)]

    def least(sums: Sequence[float], slowest: float) -> tuple[float, tuple[int, ...]] | None:
        """Return the smallest possible largest part by `sums`, with its partition, or None if none is possible.

        `sums` are cumulative over the stages, and no part may take longer than `slowest`.
        """

        @cache
        def best(end: int, parts: int) -> tuple[float, tuple[int, ...]] | None:
            cuts = []
            for first in [0] if parts == 1 else range(parts - 1, end):
                fits = time[end] - time[first] <= slowest and (limit is None or size[end] - size[first] <= limit)
                below: tuple[float, tuple[int, ...]] | None = (0.0, ()) if parts == 1 else best(first, parts - 1)
                if below is not None and fits:
                    cuts.append((max(below[0], sums[end] - sums[first]), (*below[1], end - first)))
            return min(cuts, default=None)

        return best(count, devices)

    fastest = least(time, inf)
    smallest = least(size, fastest[0]) if fastest else None
    if smallest is None:
        raise ValueError(
            f"no cut of {count} stages over {devices} devices stays below {limit or 0:,} bytes a device: the largest "
            f"stage holds {max(held):,}, all of them {sum(held):,}; use more devices, smaller micro-batches or another "
            f"method"
        )
    return assess(seconds, smallest[1], held=held)


def _same_stages(seconds: Sequence[float], held: Sequence[int] | None) -> Sequence[int]:
    """Return the bytes of each stage, 0 if not given."""
    held = [0] * len(seconds) if held is None else held
    if len(held) != len(seconds):
        raise ValueError(f"seconds and bytes must be of the same stages, got {len(seconds)} and {len(held)}")
    return held
