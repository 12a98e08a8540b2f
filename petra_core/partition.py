"""Which stages go on which device: the cut of a row of stages that keeps the slowest device fastest.

An equal number of stages a device is the obvious cut, and a bad one: the first stages of a residual network work on the
largest images, and a pipeline is as fast as its slowest device. The best cut into consecutive runs is found exactly, by
dynamic programming over (stages, devices): quadratic in the number of stages, which is small.

This module exports Plan, plan.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

__all__ = ["Plan", "plan"]


@dataclass(frozen=True)
class Plan:
    """A cut, and what is to be expected of it.

    Attributes:
        partition: the number of stages of each device.
        seconds: of each device, for one micro-batch.
        bytes: held by each device.

    """

    partition: tuple[int, ...]
    seconds: tuple[float, ...]
    bytes: tuple[int, ...]

    @property
    def slowest(self) -> float:
        """Seconds of a tick: those of the slowest device."""
        return max(self.seconds)

    @property
    def speedup(self) -> float:
        """Against one device, without communication."""
        return sum(self.seconds) / self.slowest if self.slowest else float(len(self.partition))

    @property
    def efficiency(self) -> float:
        """Share of the devices' time in which they work, 0..1, without communication."""
        return self.speedup / len(self.partition)

    def __str__(self) -> str:
        lines = ["device  stages      time, ms   share   memory, MB"]
        first = 0
        for device, (size, seconds, held) in enumerate(zip(self.partition, self.seconds, self.bytes, strict=True)):
            run = f"{first}" if size == 1 else f"{first}..{first + size - 1}"
            share = seconds / self.slowest if self.slowest else 1.0
            lines.append(f"{device:>6}  {run:<10} {1e3 * seconds:>9.3f} {share:>6.0%} {held / 1e6:>12.1f}")
            first += size
        return "\n".join([*lines, f"expected: {self.speedup:.2f} times one device, efficiency {self.efficiency:.0%}"])


def plan(
    seconds: Sequence[float], devices: int, *, held: Sequence[int] | None = None, limit: int | None = None
) -> Plan:
    """The cut whose slowest device is fastest; among equals that whose largest device is smallest.

    Args:
        seconds: of each stage, for one micro-batch: forward, backward, and its share of an update.
        devices: how many; each gets at least one stage.
        held: bytes of each stage.
        limit: bytes that a device may hold.

    Raises:
        ValueError: there are fewer stages than devices, or no cut stays below the limit.

    """
    count = len(seconds)
    held = [0] * count if held is None else held
    if len(held) != count:
        raise ValueError(f"seconds and bytes must be of the same stages, got {count} and {len(held)}")
    if not 1 <= devices <= count:
        raise ValueError(f"each of {devices} devices needs a stage, and there are {count}")
    time, size = [0.0, *accumulate(seconds)], [0, *accumulate(held)]

    @cache
    def best(end: int, parts: int) -> tuple[float, int, tuple[int, ...]] | None:
        """Of all cuts of the first `end` stages: slowest part, largest part, stages of each; None: there is no cut."""
        cuts = []
        for first in [0] if parts == 1 else range(parts - 1, end):
            own = size[end] - size[first]
            below = (0.0, 0, ()) if parts == 1 else best(first, parts - 1)
            if below is not None and (limit is None or own <= limit):
                cuts.append((max(below[0], time[end] - time[first]), max(below[1], own), (*below[2], end - first)))
        return min(cuts, default=None)

    found = best(count, devices)
    if found is None:
        raise ValueError(
            f"no cut of {count} stages over {devices} devices stays below {limit:,} bytes a device: the largest stage "
            f"holds {max(held):,}, all of them {sum(held):,}; use more devices, smaller micro-batches or another method"
        )
    ends = list(accumulate(found[2]))
    runs = [(end - part, end) for end, part in zip(ends, found[2], strict=True)]
    return Plan(
        found[2],
        tuple(time[end] - time[first] for first, end in runs),
        tuple(size[end] - size[first] for first, end in runs),
    )
