"""Compute time and memory of training a network on P devices, from the costs of its stages on one device.

A strategy is a method of this engine, or a synchronous pipeline that trains as backpropagation does. The number of
stages is that of the network for every P, and methods are in lockstep, since both determine the delays and so the
accuracy. Neighbouring stages share a device by the partition that makes the slowest device fastest. Runs are simulated
event by event over links that take no time (`petra_core.prediction.simulation`), and bytes are followed through them
(`petra_core.prediction.holding`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from petra_core import methods
from petra_core.methods import Method
from petra_core.prediction.footprint import joined
from petra_core.prediction.holding import peaks
from petra_core.prediction.orders import Devices, merged, of_method
from petra_core.prediction.simulation import INSTANT, Cost, simulate
from petra_core.shares import runs
from reproduce.modelling.balance import Balance
from reproduce.modelling.modelled import keeping_graphs
from reproduce.modelling.synchronous_orders import gpipe, one_f_one_b

__all__ = ["PIPELINES", "WAYS", "Order", "Taken", "Way", "costs_of", "front", "taken"]

Order = Callable[[Sequence[Cost], Sequence[int], int], Devices]


@dataclass(frozen=True)
class Way:
    """A strategy for training on several devices."""

    title: str
    method: Method  # engine method with the same memory and evaluations
    order: Order | None = None  # order of a synchronous pipeline, which drains at updates; None: the method's order
    chunks: int = 1  # non-neighbouring stages per device
    merged: bool = False  # whether the stages of a device are merged, with less staleness; pipelines always merge
    fall: int = 2  # decrease of the staleness per device in the method's order: 2 in lockstep, 1 in asynchronous 1F1B

    @property
    def trains_as(self) -> Method:
        """Method with the same accuracy."""
        return self.method if self.order is None else methods.BACKPROPAGATION


PIPELINES = (
    Way("GPipe", methods.DELAYED_GRADIENTS, gpipe),
    Way("GPipe, checkpointing", methods.DSP, gpipe),
    Way("1F1B", methods.DELAYED_GRADIENTS, one_f_one_b),
    Way("1F1B, checkpointing", methods.DSP, one_f_one_b),
)
WAYS = (*(Way(method.title, method) for method in methods.PAPER), *PIPELINES)


@dataclass(frozen=True)
class Taken:
    """Time and bytes of a strategy."""

    seconds: float  # per micro-batch, in steady state
    peak: int  # bytes on the device that holds most


@cache
def taken(stages: Balance, invertible: tuple[bool, ...], way: Way, devices: int, accumulation: int) -> Taken:
    """Return time and bytes of a strategy on `devices` devices, simulated once for all exhibits.

    Args:
        stages: The network under PETRA, with the costs of its stages.
        invertible: Whether each stage can be inverted.
        way: The strategy.
        devices: Number of devices P, at most the number of stages.
        accumulation: Number of micro-batches per update, k.

    Returns:
        Seconds and bytes.

    """
    cell = replace(stages.cell, method=way.method.name, accumulation=accumulation)
    balance = Balance(cell, costs_of(way.method, stages.costs, invertible))
    cut = balance.best(devices)
    if way.order is None and not way.merged:
        steady = _steady(len(stages.costs), accumulation)
        timeline = balance.simulated(cut, INSTANT, 2 * steady)
        seconds = timeline.seconds_per_micro_batch(skip=steady, drop=steady // 2 - 1)  # whole updates in between
        return Taken(seconds, max(balance.peaks(timeline)))
    costs = tuple(merged(balance.costs, cut.partition))
    footprints = [joined(balance.footprints[part.start : part.stop]) for part in runs(cut.partition)]
    if way.order is not None:
        timeline = simulate(way.order(costs, (1,) * devices, accumulation), INSTANT)
        return Taken(timeline.seconds / accumulation, max(peaks(timeline, footprints)))
    steady = _steady(devices, accumulation)
    timeline = simulate(of_method(way.method, costs, (1,) * devices, 2 * steady, accumulation), INSTANT)
    held = peaks(timeline, footprints, stashes_weights=way.method.stashes_weights)
    return Taken(timeline.seconds_per_micro_batch(skip=steady, drop=steady // 2 - 1), max(held))


def _steady(stages: int, accumulation: int) -> int:
    """Return a number of micro-batches in which a pipeline fills, a multiple of two updates."""
    return 2 * accumulation * -(-2 * stages // accumulation)


def costs_of(method: Method, costs: tuple[Cost, ...], invertible: Sequence[bool]) -> tuple[Cost, ...]:
    """Return the costs of stages under a method, from their costs under PETRA.

    A method that keeps its graphs makes one evaluation less in its backward. A method that differentiates with other
    weights than it reconstructs with makes one more if it reconstructs. Only a method that reconstructs sends inputs
    down.
    """
    keeping = keeping_graphs(costs)
    if method.keeps_graph:
        return tuple(keeping)
    if not method.reconstructs:
        return tuple(replace(cost, down=kept.down) for cost, kept in zip(costs, keeping, strict=True))
    if method.stashes_weights:
        return tuple(
            replace(cost, backward=cost.backward + cost.forward * inverts)
            for cost, inverts in zip(costs, invertible, strict=True)
        )
    return costs


def front(points: Sequence[tuple[float, ...]], stands: Callable[[int, int], bool]) -> list[bool]:
    """Return which points are on the Pareto front: no other point is at least as good everywhere and better somewhere.

    Smaller is better. The first coordinate is a mean of a few runs. Being better only in it counts only if `stands`,
    called with the indices of the better and the other point, confirms that the difference is significant.
    """

    def beats(place: int, other: int) -> bool:
        ours, theirs = points[place], points[other]
        at_least = all(our <= their for our, their in zip(ours, theirs, strict=True))
        return at_least and (ours[1:] != theirs[1:] or stands(place, other))

    return [not any(beats(other, place) for other in range(len(points))) for place in range(len(points))]
