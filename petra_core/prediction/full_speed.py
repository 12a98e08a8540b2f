"""Which staleness keeps a pipeline at full speed: from the costs of its devices and the link between them.

A device does the forwards and backwards of its stages in turn (`petra_core.staleness`). With F, B and U the seconds of
device p and d_p its staleness, two kinds of cycles bound the time between two micro-batches:

    one device             F_p + B_p + U_p / k                                    for each micro-batch
    a round trip from p    F_p .. F_q upwards, B_q .. B_p downwards, U_p / k,     for each d_p - d_q + 1 micro-batches:
    to q and back          and the messages between p and q in both directions    so many enter p meanwhile

and a link is occupied by one message at a time. No other cycle is simple, so the largest bound is the period that the
simulation reaches in steady state (`petra_core.prediction.simulation`; tests compare the two). The smallest staleness
for a given period T follows from below: d_p is at least d_q - 1 + (seconds of the round trip) / T for every q above p.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil, inf

from petra_core.prediction.simulation import INSTANT, Cost, Link

__all__ = ["TOLERANCE", "hidden_latency", "period", "smallest"]

TOLERANCE = 0.005  # relative, of a period that counts as the best


def period(costs: Sequence[Cost], staleness: Sequence[int], link: Link = INSTANT, accumulation: int = 1) -> float:
    """Return the seconds between two micro-batches in steady state.

    Args:
        costs: of each device (`petra_core.prediction.orders.merged`).
        staleness: of each device.
        link: between neighbours.
        accumulation: k.

    """
    trips = (
        _round_trip(costs, first, last, link, accumulation) / (staleness[first] - staleness[last] + 1)
        for last in range(len(costs))
        for first in range(last)
    )
    return max([_best(costs, link, accumulation), *trips])


def smallest(costs: Sequence[Cost], link: Link = INSTANT, accumulation: int = 1) -> tuple[int, ...]:
    """Return the smallest staleness of each device with which the period is the best one, up to `TOLERANCE`.

    Arguments as of `period`.
    """
    longest = _best(costs, link, accumulation) * (1 + TOLERANCE)
    vector = [0] * len(costs)
    for first in reversed(range(len(costs) - 1)):
        above = range(first + 1, len(costs))
        needs = (
            vector[last] - 1 + ceil(_round_trip(costs, first, last, link, accumulation) / longest) if longest else 0
            for last in above
        )
        vector[first] = max(vector[first + 1], *needs)
    return tuple(vector)


def hidden_latency(costs: Sequence[Cost], staleness: Sequence[int], accumulation: int = 1) -> float:
    """Return the latency of a message, in seconds, up to which the period is the best one, up to `TOLERANCE`.

    Messages take no time besides. Arguments as of `period`; infinite with one device, 0 where the staleness is too
    small at any latency.
    """
    longest = _best(costs, INSTANT, accumulation) * (1 + TOLERANCE)
    return min(
        (
            max(
                0.0,
                longest * (staleness[first] - staleness[last] + 1)
                - _round_trip(costs, first, last, INSTANT, accumulation),
            )
            / (2 * (last - first))
            for last in range(len(costs))
            for first in range(last)
        ),
        default=inf,
    )


def _best(costs: Sequence[Cost], link: Link, accumulation: int) -> float:
    """Return the period with any staleness: the slowest device's turn, or the largest message's."""
    turns = (cost.forward + cost.backward + cost.update / accumulation for cost in costs)
    messages = (link.seconds(size) for low, high in pairwise(costs) for size in (low.up, high.down))
    return max(*turns, *messages, 0.0)


def _round_trip(costs: Sequence[Cost], first: int, last: int, link: Link, accumulation: int) -> float:
    """Return the seconds of work and messages from the forward at a device to that of a device above and back."""
    turns = sum(cost.forward + cost.backward for cost in costs[first : last + 1]) + costs[first].update / accumulation
    sizes = (cost.up for cost in costs[first:last]), (cost.down for cost in costs[first + 1 : last + 1])
    return turns + 2 * (last - first) * link.latency + sum(link.seconds(size) for of in sizes for size in of)
