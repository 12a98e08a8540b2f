"""Calculate the staleness that keeps a pipeline at full speed, from the costs of its devices and the link.

A device alternates between the forwards and backwards of its stages (`petra_core.staleness`). F_p, B_p and U_p are the
seconds of device p, and d_p is its staleness. Two kinds of cycles bound the time between two micro-batches:

    one device             F_p + B_p + U_p / k                                    for each micro-batch
    a round trip from p    F_p .. F_q upwards, B_q .. B_p downwards, U_p / k,     for each d_p - d_q + 1 micro-batches,
    to q and back          and the messages between p and q in both directions    which enter p during the round trip

A link also transfers one message at a time. There are no other simple cycles, so the largest bound is the period that
the simulation reaches in steady state (`reproduce.modelling.simulation`; tests compare the two). The smallest
staleness for a given period T follows: d_p is at least d_q - 1 + (seconds of the round trip) / T for every q above p.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from petra_core.prediction.partition import Cost
from reproduce.modelling.simulation import INSTANT, Link

TOLERANCE = 0.005  # relative tolerance within which a period counts as the best


def period(costs: Sequence[Cost], staleness: Sequence[int], link: Link = INSTANT, accumulation: int = 1) -> float:
    """Return the seconds between two micro-batches in steady state.

    Args:
        costs: Costs of each device (`reproduce.modelling.simulation.merge_costs`).
        staleness: Staleness of each device.
        link: Link between neighbours.
        accumulation: Number of micro-batches per update, k.

    """
    trips = (
        _round_trip(costs, first, last, link, accumulation) / (staleness[first] - staleness[last] + 1)
        for last in range(len(costs))
        for first in range(last)
    )
    return max([_best(costs, link, accumulation), *trips])


def smallest_staleness(costs: Sequence[Cost], link: Link = INSTANT, accumulation: int = 1) -> tuple[int, ...]:
    """Return the smallest staleness of each device that reaches the best period up to `TOLERANCE`.

    The arguments are those of `period`.
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


def _best(costs: Sequence[Cost], link: Link, accumulation: int) -> float:
    """Return the best period of any staleness: the time of the slowest device, or of the largest message."""
    turns = (cost.forward + cost.backward + cost.update / accumulation for cost in costs)
    messages = (link.seconds(size) for low, high in pairwise(costs) for size in (low.up, high.down))
    return max(*turns, *messages, 0.0)


def _round_trip(costs: Sequence[Cost], first: int, last: int, link: Link, accumulation: int) -> float:
    """Return the seconds of work and messages of a round trip from device `first` up to device `last` and back."""
    turns = sum(cost.forward + cost.backward for cost in costs[first : last + 1]) + costs[first].update / accumulation
    sizes = [cost.up for cost in costs[first:last]] + [cost.down for cost in costs[first + 1 : last + 1]]
    return turns + 2 * (last - first) * link.latency + sum(map(link.seconds, sizes))
