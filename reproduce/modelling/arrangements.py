"""Model different uses of devices: equal numbers of stages, balanced cuts, merged stages.

Stages of unequal cost limited the paper's speed-up to 3.0 on 10 devices. From the measured costs of the same stages,
this module simulates two remedies: the best cut, and merging the stages of a device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from petra_core import methods
from petra_core.prediction.footprint import Footprint, joined
from petra_core.prediction.holding import peaks
from petra_core.prediction.orders import merged, of_method
from petra_core.prediction.partition import Cut
from petra_core.prediction.simulation import INSTANT, Cost, simulate
from petra_core.prediction.timeline import Timeline
from petra_core.shares import runs
from petra_core.staleness import per_device
from reproduce.modelling.modelled import Modelled, seconds_without_overlap

__all__ = ["DEVICES", "Arrangement", "arrangements"]

DEVICES = 10


@dataclass(frozen=True)
class Arrangement:
    """One way to use devices for PETRA."""

    network: Modelled
    name: str
    plan: Cut  # stages of each device
    accumulation: int = 1
    merges: bool = False  # whether the stages of a part are merged into one
    slack: float = 1  # slack of `petra_core.staleness.per_device`: 1 in lockstep, 0 in asynchronous 1F1B

    @property
    def staleness(self) -> int:
        """Micro-batches between forward and backward at stage 0."""
        return self._vector[0]

    @property
    def _vector(self) -> tuple[int, ...]:
        """Staleness of each stage as it is run."""
        return per_device([1] * len(self._stages[0]), self.slack)

    @property
    def pace(self) -> float:
        """Seconds per micro-batch over links that take no time."""
        return self._run[1]

    @property
    def speedup(self) -> float:
        """Time of reversible backpropagation without overlap, one stage per device, divided by the time of this."""
        return seconds_without_overlap(self.network.costs, self.accumulation) / self.pace

    @property
    def idle(self) -> float:
        """Share of the time in which a device waits, averaged over the devices."""
        busy = sum(cost.forward + cost.backward + cost.update / self.accumulation for cost in self.network.costs)
        return 1 - busy / (self.plan.devices * self.pace)

    @property
    def peak(self) -> int:
        """Bytes of the device that holds most, during the simulated run."""
        return max(peaks(self._run[0], self._stages[1]))

    @cached_property
    def _stages(self) -> tuple[tuple[Cost, ...], tuple[Footprint, ...], tuple[int, ...]]:
        """Costs, footprints and numbers of the stages of each part, as they are run."""
        costs, footprints = self.network.costs, self.network.footprints(methods.PETRA)
        partition = self.plan.partition
        if not self.merges:
            return costs, footprints, partition
        footprints = tuple(joined(footprints[run.start : run.stop]) for run in runs(partition))
        return tuple(merged(costs, partition)), footprints, (1,) * len(partition)

    @cached_property
    def _run(self) -> tuple[Timeline, float]:
        """The run, and seconds per micro-batch in its steady state."""
        (costs, _, partition), k = self._stages, self.accumulation
        fill = -(-(self.staleness + 8) // k) * k
        measured = -(-16 // k) * k
        order = of_method(methods.PETRA, costs, partition, 2 * fill + measured, k, self._vector)
        timeline = simulate(order, INSTANT)
        return timeline, timeline.seconds_per_micro_batch(skip=fill, drop=fill - 1)


def arrangements(network: Modelled) -> Iterator[Arrangement]:
    """Yield one stage per device, then ways to use `DEVICES` devices; in lockstep unless the name says otherwise."""
    balance, stages = network.balance, len(network.costs)
    yield Arrangement(network, "one device a stage", balance.even(stages))
    yield Arrangement(network, "one device a stage, asynchronous 1F1B", balance.even(stages), slack=0)
    if stages > DEVICES:
        best = balance.best(DEVICES)
        yield Arrangement(network, "equal numbers", balance.even(DEVICES))
        yield Arrangement(network, "balanced", best)
        yield Arrangement(network, "balanced, merged", best, merges=True)
        yield Arrangement(network, "balanced, merged, asynchronous 1F1B", best, merges=True, slack=0)
