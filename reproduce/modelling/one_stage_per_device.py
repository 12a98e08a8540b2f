"""Simulate a pipelined method with one stage of several blocks on each device, from the costs of the blocks.

Blocks of a stage have the same staleness (`petra_core.staleness.per_device`), so the partition determines it: results,
bytes and time follow from the partition and the slack together.
"""

from collections.abc import Sequence
from dataclasses import replace

from petra_core.methods import Method
from petra_core.prediction.orders import of_method
from petra_core.prediction.simulation import INSTANT, Cost, Link, simulate
from petra_core.prediction.timeline import Timeline
from petra_core.staleness import per_device
from reproduce.modelling.balance import Balance
from reproduce.modelling.modelled import Modelled
from reproduce.modelling.tradeoff import Taken, costs_of

__all__ = ["period", "taken"]

MEASURED = 16  # micro-batches in steady state, or one update if that is longer


def taken(network: Modelled, method: Method, sizes: Sequence[int], accumulation: int) -> Taken:
    """Return time and bytes of a method at asynchronous 1F1B, over links that take no time.

    Args:
        network: Network whose blocks were timed.
        method: A pipelined method.
        sizes: Number of blocks of each device.
        accumulation: Accumulation k.

    Returns:
        Seconds and bytes.

    """
    cell = replace(network.run.cell, method=method.name, accumulation=accumulation)
    balance = Balance(cell, costs_of(method, network.costs, network.invertible))
    timeline, seconds = _simulated(balance.costs, method, sizes, accumulation, 0.0, INSTANT)
    return Taken(seconds, max(balance.peaks(timeline)))


def period(costs: Sequence[Cost], method: Method, sizes: Sequence[int], slack: float, link: Link) -> float:
    """Return the seconds between two micro-batches in steady state at k = 1.

    Args:
        costs: Cost of each block under the method.
        method: A pipelined method.
        sizes: Number of blocks of each device.
        slack: Slack of the staleness (`petra_core.staleness.per_device`).
        link: Link between any two devices.

    Returns:
        The seconds.

    """
    return _simulated(costs, method, sizes, 1, slack, link)[1]


def _simulated(
    costs: Sequence[Cost], method: Method, sizes: Sequence[int], accumulation: int, slack: float, link: Link
) -> tuple[Timeline, float]:
    staleness = per_device(sizes, slack)
    fill = -(-(staleness[0] + 8) // accumulation) * accumulation
    measured = -(-MEASURED // accumulation) * accumulation
    order = of_method(method, costs, sizes, 2 * fill + measured, accumulation, staleness)
    timeline = simulate(order, link)
    return timeline, timeline.seconds_per_micro_batch(skip=fill, drop=fill - 1)
