"""Simulate PETRA and competing pipelines on a chain of equal work."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

from petra_core import methods
from petra_core.prediction.footprint import Footprint, joined, of_footprints
from petra_core.prediction.holding import peaks
from petra_core.prediction.orders import merged
from petra_core.prediction.simulation import INSTANT, Cost, Link, simulate
from petra_core.prediction.timeline import Timeline
from petra_core.settings import Settings
from petra_core.staleness import per_device
from reproduce.grids import recipes
from reproduce.modelling.modelled import Modelled, keeping_graphs, seconds_when_full
from reproduce.modelling.synchronous_orders import CHUNKS, interleaved, zero_bubble
from reproduce.modelling.tradeoff import PIPELINES, Way, costs_of

__all__ = ["BATCH", "DATA_PARALLEL", "GIGABIT", "RIVALS", "SIMULATED", "RivalChain", "RivalOutcome"]

BATCH = max(recipes.ACCUMULATIONS)  # micro-batches per update
GIGABIT = 1e9 / 8  # bytes
SIMULATED = {
    "1 Gbit/s": Link(latency=50e-6, bandwidth=1 * GIGABIT),
    "10 Gbit/s": Link(latency=50e-6, bandwidth=10 * GIGABIT),
}

DATA_PARALLEL = "Data parallelism"

T = TypeVar("T")
Efficiency = Callable[[int, Link], float]  # (micro-batches per update, link) -> efficiency

RIVALS = (
    Way("PETRA, lockstep", methods.PETRA),
    Way("PETRA, asynchronous 1F1B", methods.PETRA, fall=1),
    Way("PipeDream (asynchronous 1F1B)", methods.DELAYED_GRADIENTS, fall=1),
    *PIPELINES,
    Way("Interleaved 1F1B", methods.DELAYED_GRADIENTS, interleaved, chunks=CHUNKS),
    Way("Zero-bubble (ZB-H1)", methods.DELAYED_GRADIENTS, zero_bubble),
)


@dataclass(frozen=True)
class RivalOutcome:
    """Speed, memory and staleness of a rival on a chain."""

    title: str
    #: Speed relative to one device that keeps its graphs, divided by the number of devices; over links that take no
    #: time,
    #: at `BATCH` micro-batches per update.
    efficiency: float
    with_4p: float  # with four micro-batches per update and device
    over_links: Mapping[str, float]  # the efficiency at `BATCH` over each of `SIMULATED`
    peak: int  # bytes on the device that holds most
    staleness: int  # micro-batches between forward and backward at device 0 that see another version of the weights


class RivalChain:
    """A chain of two blocks per device: a network's stem, its stage 1 repeated, its head.

    Args:
        network: Network whose stages were timed. Its stage 1 is reversible.
        devices: Number of devices P.

    Attributes:
        blocks: Cost of each block if graphs are reconstructed and inputs sent back.
        blocks_keeping: Cost of each block if graphs are kept.

    """

    def __init__(self, network: Modelled, devices: int) -> None:
        self.network, self.devices = network, devices
        costs = self._row(network.costs)
        # A block sends a gradient of the size of its input, and also its input if the block below inverts.
        self.blocks = tuple(
            replace(cost, down=0 if not index else costs[index - 1].up * (2 if index > 1 else 1))
            for index, cost in enumerate(costs)
        )
        self.blocks_keeping = tuple(keeping_graphs(self.blocks))

    @property
    def reconstructing(self) -> tuple[Cost, ...]:
        """Costs of each device if graphs are reconstructed and inputs sent back."""
        return self._on_devices(self.blocks)

    def outcomes(self) -> list[RivalOutcome]:
        """Return the outcomes of all rivals, PETRA first."""
        return [
            *(self._pipelined(r) if r.order is None else self._synchronous(r) for r in RIVALS),
            self._data_parallel(),
        ]

    def _outcome(self, title: str, efficiency: Efficiency, peak: int, staleness: int = 0) -> RivalOutcome:
        return RivalOutcome(
            title,
            efficiency(BATCH, INSTANT),
            efficiency(4 * self.devices, INSTANT),
            {name: efficiency(BATCH, link) for name, link in SIMULATED.items()},
            peak,
            staleness,
        )

    def _synchronous(self, rival: Way) -> RivalOutcome:
        order, costs = rival.order, self._costs(rival)
        assert order is not None
        ordered = cache(lambda batch: order(costs, (1,) * len(costs), batch))

        @cache
        def run(batch: int, link: Link) -> tuple[int, Timeline]:
            """Return size and run of one batch. For interleaved stages the size is a multiple of the devices."""
            batch = self._multiple(batch) if rival.chunks > 1 else batch
            return batch, simulate(ordered(batch), link)

        def efficiency(batch: int, link: Link) -> float:
            """Measure from an empty pipeline to an empty one, including the update."""
            batch, timeline = run(batch, link)
            return self._efficiency(batch, timeline.seconds / batch)

        peak = max(peaks(run(BATCH, INSTANT)[1], self._footprints(rival)))
        return self._outcome(rival.title, efficiency, peak)

    def _pipelined(self, rival: Way) -> RivalOutcome:
        costs, vector = self._costs(rival), per_device([1] * self.devices, slack=rival.fall - 1)
        stages = of_footprints(
            self._footprints(rival), Settings(method=rival.method, accumulation=BATCH, staleness=vector)
        )

        def efficiency(batch: int, link: Link) -> float:
            return self._efficiency(batch, seconds_when_full(costs, link, batch, rival.fall))

        return self._outcome(rival.title, efficiency, max(stage.total for stage in stages), vector[0])

    def _data_parallel(self) -> RivalOutcome:
        """Return the outcome of data parallelism: every device has all blocks and sums gradients once per batch."""
        whole = joined(self._row(self.network.footprints(methods.DELAYED_GRADIENTS)))
        weights = sum(cost.weights for cost in self.blocks)
        work = sum(cost.forward + cost.backward for cost in self.blocks_keeping)

        def efficiency(batch: int, link: Link) -> float:
            batch = self._multiple(batch)
            update = sum(cost.update for cost in self.blocks) + link.all_reduce(weights, self.devices)
            return self._efficiency(batch, work / self.devices + update / batch)

        peak = whole.always + whole.kept + whole.lasting
        return self._outcome(DATA_PARALLEL, efficiency, peak)

    def _efficiency(self, batch: int, seconds: float) -> float:
        """Return the efficiency of `seconds` per micro-batch, relative to one device that keeps its graphs."""
        alone = sum(cost.forward + cost.backward + cost.update / batch for cost in self.blocks_keeping)
        return alone / self.devices / seconds

    def _costs(self, rival: Way) -> tuple[Cost, ...]:
        costs = costs_of(rival.method, self.blocks, [True] * len(self.blocks))
        return costs if rival.chunks > 1 else self._on_devices(costs)

    def _footprints(self, rival: Way) -> tuple[Footprint, ...]:
        blocks = self._row(self.network.footprints(rival.method))
        if rival.chunks > 1:
            return blocks
        return tuple(joined(blocks[2 * device : 2 * device + 2]) for device in range(self.devices))

    def _multiple(self, batch: int) -> int:
        """Return the next multiple of the number of devices."""
        return -(-batch // self.devices) * self.devices

    def _on_devices(self, blocks: Sequence[Cost]) -> tuple[Cost, ...]:
        return tuple(merged(blocks, (2,) * self.devices))

    def _row(self, stages: Sequence[T]) -> tuple[T, ...]:
        return (stages[0], *[stages[1]] * (2 * self.devices - 2), stages[-1])
