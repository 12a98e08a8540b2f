"""Which stages go on which device: the cut of a row of stages that keeps the slowest device fastest.

An equal number of stages a device is the obvious cut, and a bad one: the first stages of a residual network work on the
largest images, and a pipeline is as fast as its slowest device. The best cut into consecutive runs is found exactly, by
dynamic programming over (stages, devices): quadratic in the number of stages, which is small.

Where one stage is heavier than a device's fair share, no cut helps. Then it may be replicated over several devices that
take its micro-batches in turn (`petra_core.prediction.orders`): r replicas are r times as fast, less what it takes to
add up their gradients at every update. The same dynamic programming finds cut and replicas together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf

from petra_core.arguments import check_int
from petra_core.prediction.simulation import INSTANT, Cost, Link
from petra_core.shares import owned, run_name, runs

__all__ = ["Cut", "assess", "plan", "replicated_plan"]


@dataclass(frozen=True)
class Cut:
    """A cut of a row of stages, and the speed and memory to be expected of it.

    Attributes:
        partition: the number of stages of each part.
        seconds: of each part, for one micro-batch: the time between two that leave it.
        bytes: held by each device of a part.
        work: seconds for one micro-batch on one device that does everything.
        replicas: the number of devices of each part.

    """

    partition: tuple[int, ...]
    seconds: tuple[float, ...]
    bytes: tuple[int, ...]
    work: float
    replicas: tuple[int, ...]

    @property
    def devices(self) -> int:
        """Number of devices, replicas counted."""
        return sum(self.replicas)

    @property
    def slowest(self) -> float:
        """Seconds of a tick: those of the slowest part."""
        return max(self.seconds)

    @property
    def speedup(self) -> float:
        """Speed in multiples of that of one device, without messages between parts."""
        return self.work / self.slowest if self.slowest else float(self.devices)

    @property
    def efficiency(self) -> float:
        """Share of the devices' time in which they work, 0..1, without messages between parts."""
        return self.speedup / self.devices

    def __str__(self) -> str:
        lines = ["device  stages      time, ms   share   memory, MB"]
        parts = zip(runs(self.replicas), runs(self.partition), self.seconds, self.bytes, strict=True)
        for devices, stages, seconds, held in parts:
            share = seconds / self.slowest if self.slowest else 1.0
            lines.append(
                f"{run_name(devices):>6}  {run_name(stages):<10} {1e3 * seconds:>9.3f} {share:>6.0%} "
                f"{held / 1e6:>12.1f}"
            )
        return "\n".join([*lines, f"expected: {self.speedup:.2f} times one device, efficiency {self.efficiency:.0%}"])


def assess(seconds: Sequence[float], partition: Sequence[int], *, held: Sequence[int] | None = None) -> Cut:
    """The speed and memory to be expected of a given cut; arguments as of `plan`.

    Raises:
        ValueError: the cut does not fit the stages.

    """
    held = _same_stages(seconds, held)
    parts = owned(partition, len(seconds))
    times = tuple(sum(seconds[stage] for stage in part) for part in parts)
    sizes = tuple(sum(held[stage] for stage in part) for part in parts)
    return Cut(tuple(partition), times, sizes, sum(seconds), (1,) * len(parts))


def plan(seconds: Sequence[float], devices: int, *, held: Sequence[int] | None = None, limit: int | None = None) -> Cut:
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
    held = _same_stages(seconds, held)
    if not 1 <= devices <= count:
        raise ValueError(f"each of {devices} devices needs a stage, and there are {count}")
    time, size = [0.0, *accumulate(seconds)], [0, *accumulate(held)]

    def least(sums: Sequence[float], slowest: float) -> tuple[float, tuple[int, ...]] | None:
        """The cut whose largest part by `sums` is smallest: that part and the stages of each; None: there is none."""

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
        raise _too_large(held, devices, limit)
    return assess(seconds, smallest[1], held=held)


def replicated_plan(
    costs: Sequence[Cost],
    devices: int,
    *,
    accumulation: int = 1,
    exchange: Link = INSTANT,
    held: Sequence[int] | None = None,
    limit: int | None = None,
    most: int | None = None,
) -> Cut:
    """The cut and the replicas of its parts whose slowest part is fastest; among equals that of fewest devices.

    With k a multiple of the number of devices and a link that takes no time, that is every device with all stages:
    data parallelism. What speaks against it are the limit of memory and the gradients of all weights, exchanged at
    every update.

    Args:
        costs: of each stage.
        devices: how many there are; not all need be used.
        accumulation: k; the replicas of a part divide it.
        exchange: over which replicas add up their gradients.
        held: bytes of each stage, without replicas. Replicas change staleness and so the bytes; the caller has to
            compute them again for the cut (`petra_core.prediction.memory`).
        limit: bytes that a device may hold.
        most: replicas that a part may have; None: all devices.

    Raises:
        ValueError: there is no device, k is below 1, or no cut stays below the limit.

    """
    check_int("accumulation", accumulation, 1)
    if devices < 1:
        raise ValueError(f"there must be at least one device, got {devices}")
    turn = [cost.forward + cost.backward for cost in costs]
    held = _same_stages(turn, held)
    time, update, size = [0.0, *accumulate(turn)], [0.0, *accumulate(c.update for c in costs)], [0, *accumulate(held)]
    counts = [count for count in range(1, min(devices, most or devices) + 1) if accumulation % count == 0]

    def pace(first: int, end: int, count: int) -> float:
        """Seconds for a micro-batch of the stages first..end-1 over `count` devices."""
        exchanged = sum(exchange.all_reduce(cost.weights, count) for cost in costs[first:end])
        return (time[end] - time[first]) / count + (update[end] - update[first] + exchanged) / accumulation

    @cache
    def best(end: int, left: int) -> tuple[float, int, tuple[tuple[int, int], ...]] | None:
        """The best cut of the first `end` stages on at most `left` devices: slowest, largest, (stages, replicas)s."""
        if end == 0:
            return 0.0, 0, ()
        cuts = []
        for first in range(end):
            last = size[end] - size[first]
            for count in counts:
                below = best(first, left - count) if left >= count and (limit is None or last <= limit) else None
                if below is not None:
                    cuts.append(
                        (
                            max(below[0], pace(first, end, count)),
                            max(below[1], last),
                            (*below[2], (end - first, count)),
                        )
                    )
        return min(cuts, default=None)

    by_number = [cut for number in range(1, devices + 1) if (cut := best(len(costs), number)) is not None]
    if not by_number:
        raise _too_large(held, devices, limit)
    cut = next(cut for cut in by_number if cut[0] <= by_number[-1][0])
    partition, replicas = zip(*cut[2], strict=True)
    parts = [(run.start, run.stop, count) for run, count in zip(runs(partition), replicas, strict=True)]
    return Cut(
        partition,
        tuple(pace(*part) for part in parts),
        tuple(size[end] - size[first] for first, end, _ in parts),
        sum(turn) + update[-1] / accumulation,
        replicas,
    )


def _same_stages(seconds: Sequence[float], held: Sequence[int] | None) -> Sequence[int]:
    """The bytes of each stage, 0 unless given."""
    held = [0] * len(seconds) if held is None else held
    if len(held) != len(seconds):
        raise ValueError(f"seconds and bytes must be of the same stages, got {len(seconds)} and {len(held)}")
    return held


def _too_large(held: Sequence[int], devices: int, limit: int | None) -> ValueError:
    return ValueError(
        f"no cut of {len(held)} stages over {devices} devices stays below {limit or 0:,} bytes a device: the largest "
        f"stage holds {max(held):,}, all of them {sum(held):,}; use more devices, smaller micro-batches or another "
        f"method"
    )
