"""The pace of a long pipeline: one stage a device, a thousand of them, tick by tick.

`petra_core.prediction.simulation.simulate` takes one event after the other. A pipeline of a thousand stages does two
million of them before it has filled, so its pace is found here instead, by the same arithmetic on arrays with a place
for every stage: what a stage does in a tick depends on what its neighbours did in the tick before, and on nothing
later. A test holds the two to the same numbers.
"""

from collections.abc import Sequence

import numpy as np

from petra_core.arguments import check_int
from petra_core.prediction.simulation import INSTANT, Cost, Link

__all__ = ["pace"]


def pace(costs: Sequence[Cost], link: Link = INSTANT, *, accumulation: int = 1) -> float:
    """Seconds for a micro-batch in the full pipeline of a method that lets one enter at every tick.

    Args:
        costs: of each stage, which has a device of its own.
        link: between neighbours.
        accumulation: k.

    Returns:
        The mean over 32 micro-batches (rounded up to a multiple of k), after as many and twice the number of stages.

    Raises:
        ValueError: k is below 1.

    """
    check_int("accumulation", accumulation, 1)
    count = len(costs)
    forward, backward, update = (
        np.array([getattr(c, name) for c in costs]) for name in ("forward", "backward", "update")
    )
    up, down = (
        np.array([link.seconds(size) for size in sizes]) for sizes in zip(*((c.up, c.down) for c in costs), strict=True)
    )
    last = 2 * (count - 1)  # the tick in which the first micro-batch comes back to stage 0
    updated = (last - np.arange(count) - 1) % accumulation  # of a stage, the ticks modulo k that end with an update
    updates = [np.where(updated == place, update, 0.0) for place in range(accumulation)]
    measured = -(-32 // accumulation) * accumulation
    free = np.zeros(count)  # until when every device is busy
    link_up, link_down = np.zeros(count), np.zeros(count)  # until when the links to the stages above and below are
    from_below, from_above = np.zeros(count), np.zeros(count)  # arrival of what a stage needs in this tick
    ends = np.zeros(2 * measured + 2 * count)  # of the backwards at stage 0
    for tick in range(last + len(ends)):
        enters, returns = slice(tick + 1), slice(max(0, last - tick), count)  # the stages with a forward, a backward
        busy, leaving = free[enters], link_up[enters]
        np.maximum(busy, from_below[enters], out=busy)
        busy += forward[enters]
        np.maximum(busy, leaving, out=leaving)
        leaving += up[enters]
        busy, leaving = free[returns], link_down[returns]
        np.maximum(busy, from_above[returns], out=busy)
        busy += backward[returns]
        np.maximum(busy, leaving, out=leaving)
        leaving += down[returns]
        if tick >= last:
            ends[tick - last] = free[0]
        busy += updates[tick % accumulation][returns]
        np.add(link_up[:-1], link.latency, out=from_below[1:])
        np.add(link_down[1:], link.latency, out=from_above[:-1])
    return float(ends[-1] - ends[-1 - measured]) / measured
