"""What it takes to train a network on P devices, way by way, from what its stages cost on one.

A way is a method of this engine, or a synchronous pipeline that trains as backpropagation does. Stages stay as many as
the network has, whatever P is, and methods are in lockstep, since both decide the delays and so the accuracy;
neighbours share a device by the cut that makes the slowest one fastest. Runs are simulated event by event over links
that take no time (`petra_core.prediction.simulation`), bytes followed through them (`petra_core.prediction.holding`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    """A way to train on several devices."""

    title: str
    method: Method  # of this engine, whose memory and evaluations it has
    order: Order | None = None  # of a synchronous pipeline, which empties at every update; None: the method's own
    chunks: int = 1  # stages of a device that are not neighbours
    merged: bool = False  # whether the stages of a device are one stage, with fewer delays; pipelines always merge
    fall: int = 2  # of the staleness from device to device, of a method's own order: 2 in lockstep, 1 in async. 1F1B

    @property
    def trains_as(self) -> Method:
        """The method whose accuracy it has."""
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
    """Time and bytes that a way of training takes."""

    seconds: float  # for a micro-batch, in the steady state
    peak: int  # bytes on the device that holds most


def taken(stages: Balance, invertible: Sequence[bool], way: Way, devices: int, accumulation: int) -> Taken:
    """What a way takes on so many devices.

    Args:
        stages: the network under PETRA, with what its stages cost.
        invertible: of each stage, whether it can be inverted.
        way: how it is trained.
        devices: P, at most as many as stages.
        accumulation: k, micro-batches of an update.

    """
    cell = replace(stages.cell, method=way.method.name, accumulation=accumulation)
    balance = Balance(cell, costs_of(way.method, stages.costs, invertible))
    cut = balance.best(devices)
    if way.order is None and not way.merged:
        steady = _steady(len(stages.costs), accumulation)
        timeline = balance.simulated(cut, INSTANT, 2 * steady)
        seconds = timeline.seconds_per_micro_batch(skip=steady, drop=steady // 2 - 1)  # between these, whole updates
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
    """What stages cost under a method, from what they cost under PETRA.

    A method that keeps its graphs evaluates once less in its backward; one that differentiates with other weights than
    it reconstructs with evaluates once more where it reconstructs. Only a method that reconstructs sends inputs down.
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
    """Which points are not beaten: none is at least as good in everything and better in something; less is better.

    The first of each point is a mean of a few runs: to be better in it alone counts only if `stands` says, of the
    places of the better and of the other, that it is no chance.
    """

    def beats(place: int, other: int) -> bool:
        ours, theirs = points[place], points[other]
        at_least = all(our <= their for our, their in zip(ours, theirs, strict=True))
        return at_least and (ours[1:] != theirs[1:] or stands(place, other))

    return [not any(beats(other, place) for other in range(len(points))) for place in range(len(points))]
