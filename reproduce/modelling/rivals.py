"""PETRA and the pipelines that one would use instead, on a chain of equal work, simulated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from petra_core import methods
from petra_core.methods import Method
from petra_core.prediction import orders
from petra_core.prediction.footprint import Footprint, joined, of_footprints
from petra_core.prediction.holding import holding
from petra_core.prediction.simulation import INSTANT, Cost, Link, Operation, simulate
from petra_core.timeline import Timeline
from reproduce.modelling.modelled import Modelled, keeping_graphs, seconds_when_full

__all__ = ["BATCH", "DATA_PARALLEL", "MANY", "RIVALS", "SIMULATED", "Rival", "RivalChain", "RivalOutcome"]

BATCH = 32  # micro-batches of an update: the largest k of the paper
SIMULATED = {
    "1 Gbit/s": Link(latency=50e-6, bandwidth=1e9 / 8),
    "10 Gbit/s": Link(latency=50e-6, bandwidth=10e9 / 8),
}
MANY = 100  # devices from which fewer rivals are simulated, over ideal links and at one size of batch alone

DATA_PARALLEL = "Data parallelism"

T = TypeVar("T")
Order = Callable[[Sequence[Cost], Sequence[int], int], list[list[Operation]]]


@dataclass(frozen=True)
class Rival:
    """One way to train a chain, simulated beside PETRA.

    Attributes:
        title: as tables call it.
        method: the method of this engine that keeps the same for a backward.
        order: of the operations of a synchronous pipeline; None: micro-batches enter at every tick.
        chunks: stages of a device that are not neighbours.

    """

    title: str
    method: Method
    order: Order | None = None
    chunks: int = 1


RIVALS = (
    Rival("PETRA", methods.PETRA),
    Rival("Delayed gradients (PipeDream)", methods.DELAYED_GRADIENTS),
    Rival("GPipe", methods.DELAYED_GRADIENTS, orders.gpipe),
    Rival("GPipe, checkpointing", methods.DSP, orders.gpipe),
    Rival("1F1B", methods.DELAYED_GRADIENTS, orders.one_f_one_b),
    Rival("1F1B, checkpointing", methods.DSP, orders.one_f_one_b),
    Rival("Interleaved 1F1B", methods.DELAYED_GRADIENTS, orders.interleaved, chunks=orders.CHUNKS),
    Rival("Zero-bubble (ZB-H1)", methods.DELAYED_GRADIENTS, orders.zero_bubble),
)


FEW = (orders.one_f_one_b,)  # simulated on many devices too


@dataclass(frozen=True)
class RivalOutcome:
    """Speed, memory and staleness of a rival on a chain.

    Attributes:
        title: of the rival.
        efficiency: speed over that of one device that keeps its graphs, divided by the number of devices; over links
            that take no time, at `BATCH` micro-batches an update.
        with_4p: the efficiency at four times as many micro-batches an update as there are devices; None: not simulated.
        over_links: the efficiency at `BATCH` over each of `SIMULATED`.
        peak: bytes on the device that holds most.
        delay: micro-batches between forward and backward at device 0 that see another version of the weights.

    """

    title: str
    efficiency: float
    with_4p: float | None
    over_links: Mapping[str, float | None]
    peak: int
    delay: int


class RivalChain:
    """A chain of two blocks a device: a network's stem, its stage 1 again and again, its head.

    Args:
        network: whose stages were timed; its stage 1 is reversible.
        devices: P.

    Attributes:
        blocks: the cost of each block if graphs are reconstructed and inputs sent back.
        blocks_keeping: the cost of each block if graphs are kept.

    """

    def __init__(self, network: Modelled, devices: int) -> None:
        self.network, self.devices = network, devices
        costs = self._row(network.costs)
        # A block sends a gradient of the size of what came up, and its input with it if the block below inverts.
        self.blocks = tuple(
            replace(cost, down=0 if not index else costs[index - 1].up * (2 if index > 1 else 1))
            for index, cost in enumerate(costs)
        )
        self.blocks_keeping = tuple(keeping_graphs(self.blocks))

    @property
    def reconstructing(self) -> tuple[Cost, ...]:
        """The costs of each device if graphs are reconstructed and inputs sent back."""
        return tuple(orders.merged(self.blocks, self._pairs))

    @property
    def keeping(self) -> tuple[Cost, ...]:
        """The costs of each device if graphs are kept."""
        return tuple(orders.merged(self.blocks_keeping, self._pairs))

    def outcomes(self) -> list[RivalOutcome]:
        """The outcomes of all rivals, PETRA first; where there are many devices, of fewer rivals (`MANY`)."""
        compared = [rival for rival in RIVALS if self.devices < MANY or rival.order in (None, *FEW)]
        return [
            *(self._pipelined(r) if r.order is None else self._synchronous(r) for r in compared),
            self._data_parallel(),
        ]

    def _synchronous(self, rival: Rival) -> RivalOutcome:
        many = self.devices >= MANY
        [(efficiency, timeline), *slower] = self._batch(rival, BATCH, INSTANT, *(() if many else SIMULATED.values()))
        return RivalOutcome(
            rival.title,
            efficiency,
            None if many else self._batch(rival, 4 * self.devices, INSTANT)[0][0],
            dict.fromkeys(SIMULATED) | {name: found for name, (found, _) in zip(SIMULATED, slower, strict=False)},
            max(history.peak for history in holding(timeline, self._footprints(rival))),
            0,
        )

    def _pipelined(self, rival: Rival) -> RivalOutcome:
        costs = self._costs(rival)
        stages = of_footprints(self._footprints(rival), rival.method, BATCH)

        def efficiency(batch: int, link: Link) -> float:
            return self._work(batch) / self.devices / seconds_when_full(costs, link, batch)

        return RivalOutcome(
            rival.title,
            efficiency(BATCH, INSTANT),
            efficiency(4 * self.devices, INSTANT) if self.devices < MANY else None,
            {name: efficiency(BATCH, link) for name, link in SIMULATED.items()},
            max(stage.total for stage in stages),
            rival.method.delay(0, self.devices),
        )

    def _data_parallel(self) -> RivalOutcome:
        """The outcome of data parallelism: every device has all blocks, gradients are added up once a batch."""
        whole = joined(self._row(self.network.footprints(methods.DELAYED_GRADIENTS)))
        weights = sum(cost.weights for cost in self.blocks)

        def efficiency(batch: int, link: Link) -> float:
            batch = self._multiple(batch)
            update = sum(cost.update for cost in self.blocks) + link.all_reduce(weights, self.devices)
            work = sum(cost.forward + cost.backward for cost in self.blocks_keeping)
            return self._work(batch) / self.devices / (work / self.devices + update / batch)

        return RivalOutcome(
            DATA_PARALLEL,
            efficiency(BATCH, INSTANT),
            efficiency(4 * self.devices, INSTANT),
            {name: efficiency(BATCH, link) for name, link in SIMULATED.items()},
            whole.always + whole.kept + whole.lasting,
            0,
        )

    def _batch(self, rival: Rival, batch: int, *links: Link) -> list[tuple[float, Timeline]]:
        """One batch over each of the links, from an empty pipeline to an empty one: its efficiency, update included."""
        assert rival.order is not None
        costs = self._costs(rival)
        batch = self._multiple(batch) if rival.chunks > 1 else batch
        operations = rival.order(costs, (1,) * len(costs), batch)
        timelines = [simulate(operations, link) for link in links]
        return [(self._work(batch) / self.devices / (played.seconds / batch), played) for played in timelines]

    def _costs(self, rival: Rival) -> tuple[Cost, ...]:
        if rival.chunks > 1:
            return self.blocks_keeping
        if rival.method.keeps_graph:
            return self.keeping
        if rival.method.reconstructs:
            return self.reconstructing
        return tuple(replace(a, down=b.down) for a, b in zip(self.reconstructing, self.keeping, strict=True))

    def _footprints(self, rival: Rival) -> tuple[Footprint, ...]:
        blocks = self._row(self.network.footprints(rival.method))
        if rival.chunks > 1:
            return blocks
        return tuple(joined(blocks[2 * device : 2 * device + 2]) for device in range(self.devices))

    def _work(self, batch: int) -> float:
        """Seconds of one device for a micro-batch, graphs kept."""
        return sum(cost.forward + cost.backward + cost.update / batch for cost in self.blocks_keeping)

    def _multiple(self, batch: int) -> int:
        """The next multiple of the number of devices."""
        return -(-batch // self.devices) * self.devices

    @property
    def _pairs(self) -> tuple[int, ...]:
        return (2,) * self.devices

    def _row(self, stages: Sequence[T]) -> tuple[T, ...]:
        return (stages[0], *[stages[1]] * (2 * self.devices - 2), stages[-1])
