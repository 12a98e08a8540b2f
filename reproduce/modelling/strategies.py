"""Compute time and memory of training a network on several devices, from the costs of its stages on one device.

A strategy is a method of this engine, or a synchronous pipeline that trains as backpropagation does. Runs are simulated
event by event (`reproduce.modelling.simulation`), and bytes are followed through them
(`reproduce.modelling.peak_memory`).
"""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from petra_core import methods
from petra_core.methods import Method
from petra_core.prediction.footprint import Footprint, merge_footprints
from petra_core.prediction.partition import Cost
from petra_core.shares import runs
from petra_core.staleness import per_device
from reproduce.drawing.timeline import Timeline
from reproduce.modelling.network import TimedNetwork
from reproduce.modelling.peak_memory import find_peaks
from reproduce.modelling.simulation import INSTANT, Link, Schedule, make_schedule, merge_costs, simulate
from reproduce.modelling.synchronous_schedules import gpipe, one_f_one_b

DEVICES = 10  # as in the paper's speed-up of RevNet-18


class Sharing(enum.Enum):
    """Properties that the neighbouring stages on one device share.

    Attributes:
        NOTHING: Every stage has its staleness, as in a pipeline of as many stages on more devices.
        STALENESS: They have the same staleness (`petra_core.staleness.per_device`).
        EVERYTHING: They are merged into one stage (`petra_core.merge`).

    """

    NOTHING = enum.auto()
    STALENESS = enum.auto()
    EVERYTHING = enum.auto()


@dataclass(frozen=True)
class Strategy:
    """A strategy for training on several devices.

    Attributes:
        title: Name in tables.
        method: Engine method with the same memory and evaluations.
        schedule: Schedule of a synchronous pipeline by its numbers of stages and of micro-batches per update; None for
            the engine's schedule of the method.
        sharing: What the stages on a device share.
        slack: Slack of the staleness (`petra_core.staleness.per_device`): 1 in lockstep, 0 in asynchronous 1F1B.

    """

    title: str
    method: Method
    schedule: Callable[[int, int], Schedule] | None = None
    sharing: Sharing = Sharing.NOTHING
    slack: float = 1

    @property
    def trains_as(self) -> Method:
        """Method with the same accuracy."""
        return self.method if self.schedule is None else methods.BACKPROPAGATION


PIPELINES = (
    Strategy("GPipe", methods.DELAYED_GRADIENTS, gpipe, Sharing.EVERYTHING),
    Strategy("GPipe, checkpointing", methods.DSP, gpipe, Sharing.EVERYTHING),
    Strategy("1F1B", methods.DELAYED_GRADIENTS, one_f_one_b, Sharing.EVERYTHING),
    Strategy("1F1B, checkpointing", methods.DSP, one_f_one_b, Sharing.EVERYTHING),
)
STRATEGIES = (*(Strategy(method.title, method) for method in methods.PAPER), *PIPELINES)


class Outcome(NamedTuple):
    """Time and bytes of a strategy.

    Attributes:
        seconds: Seconds per micro-batch in steady state, or in a batch of a synchronous pipeline.
        peak: Bytes of the device that holds most.
        total: Sum over the devices of the bytes that each holds at its peak.
        staleness: Staleness of stage 0, in micro-batches; 0 for a synchronous pipeline.

    """

    seconds: float
    peak: int
    total: int
    staleness: int


@cache
def evaluate(network: TimedNetwork, strategy: Strategy, sizes: tuple[int, ...], accumulation: int) -> Outcome:
    """Return time and bytes of a strategy, simulated once for all exhibits.

    Args:
        network: The network, with the costs of its stages under PETRA.
        strategy: The strategy.
        sizes: Number of stages of each device.
        accumulation: Number of micro-batches per update, k.

    """
    network = network.under(strategy.method, accumulation)
    costs, footprints = network.costs, network.footprints
    if strategy.sharing is Sharing.EVERYTHING:
        (costs, footprints), sizes = merge_stages(network, sizes), (1,) * len(sizes)
    staleness = (0,) * len(costs)
    if strategy.schedule is not None:
        timeline = simulate(strategy.schedule(len(costs), accumulation), costs)
        seconds = timeline.seconds / accumulation
    else:
        if strategy.method.pipelined:
            staleness = per_device(sizes if strategy.sharing is Sharing.STALENESS else [1] * len(costs), strategy.slack)
        timeline, seconds = run_full(strategy.method, costs, sizes, accumulation, staleness)
    peaks = find_peaks(timeline, footprints, strategy.method)
    return Outcome(seconds, max(peaks), sum(peaks), staleness[0])


def merge_stages(network: TimedNetwork, sizes: Sequence[int]) -> tuple[tuple[Cost, ...], tuple[Footprint, ...]]:
    """Return costs and footprints of a network whose stages are merged into one per device."""
    footprints = network.footprints
    merged = (merge_footprints(footprints[part.start : part.stop]) for part in runs(sizes))
    return tuple(merge_costs(network.costs, sizes)), tuple(merged)


def run_full(
    method: Method,
    costs: Sequence[Cost],
    sizes: Sequence[int],
    accumulation: int,
    staleness: Sequence[int],
    link: Link = INSTANT,
) -> tuple[Timeline, float]:
    """Simulate a method of the engine until its pipeline is full and some micro-batches longer.

    Args:
        method: Method of the engine.
        costs: Cost of each stage under the method.
        sizes: Number of stages of each device.
        accumulation: Number of micro-batches per update, k.
        staleness: Staleness of each stage.
        link: Link between any two devices.

    Returns:
        The run, and the seconds between two micro-batches in steady state.

    """
    fill = -(-(staleness[0] + 8) // accumulation) * accumulation
    steady = -(-16 // accumulation) * accumulation
    timeline = simulate(make_schedule(method, sizes, 2 * fill + steady, accumulation, staleness), costs, link)
    return timeline, timeline.seconds_per_micro_batch(skip=fill, drop=fill - 1)


@cache
def evaluate_best(network: TimedNetwork, strategy: Strategy, devices: int, accumulation: int) -> Outcome:
    """Return time and bytes of a strategy on `devices` devices with the partition whose slowest device is fastest.

    Links take no time. The other arguments are those of `evaluate`.
    """
    return evaluate(network, strategy, network.under(strategy.method, accumulation).best(devices).sizes, accumulation)


class Arrangement(NamedTuple):
    """One way to use devices for PETRA, with k = 1.

    Attributes:
        network: The network.
        name: Name in tables.
        sizes: Number of stages of each device.
        outcome: Time and bytes.

    """

    network: TimedNetwork
    name: str
    sizes: tuple[int, ...]
    outcome: Outcome


def arrange(network: TimedNetwork) -> list[Arrangement]:
    """Return one stage per device, then ways to use `DEVICES` devices; in lockstep unless the name says otherwise.

    The paper reports a speed-up of 3.0 on 10 devices; unequal costs of the stages limit the modelled one. Two remedies
    are the best partition, and merging the stages of a device.
    """
    network = network.under(methods.PETRA, 1)
    single = (1,) * len(network.costs)
    lockstep, late = (Strategy("PETRA", methods.PETRA, slack=slack) for slack in (1, 0))
    merged, merged_late = (replace(strategy, sharing=Sharing.EVERYTHING) for strategy in (lockstep, late))
    ways = [("one device a stage", single, lockstep), ("one device a stage, asynchronous 1F1B", single, late)]
    if len(single) > DEVICES:
        balanced = network.best(DEVICES).sizes
        ways += [
            ("equal numbers", network.even(DEVICES).sizes, lockstep),
            ("balanced", balanced, lockstep),
            ("balanced, merged", balanced, merged),
            ("balanced, merged, asynchronous 1F1B", balanced, merged_late),
        ]
    return [Arrangement(network, name, sizes, evaluate(network, way, sizes, 1)) for name, sizes, way in ways]


def find_front(points: Sequence[tuple[float, ...]], stands: Callable[[int, int], bool]) -> list[bool]:
    """Return which points are on the Pareto front: no other point is at least as good everywhere and better somewhere.

    Smaller is better. The first coordinate is a mean of a few runs. Being better only in it counts only if `stands`,
    called with the indices of the better and the other point, confirms that the difference is significant.
    """

    def beats(place: int, other: int) -> bool:
        ours, theirs = points[place], points[other]
        at_least = all(our <= their for our, their in zip(ours, theirs, strict=True))
        return at_least and (ours[1:] != theirs[1:] or stands(place, other))

    return [not any(beats(other, place) for other in range(len(points))) for place in range(len(points))]
