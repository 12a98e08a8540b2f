"""The pace of a long pipeline: one stage a device, a thousand of them, tick by tick.

`petra_core.prediction.simulation.simulate` takes one event after the other. A pipeline of a thousand stages does two
million of them before it has filled, so its pace is found here instead, by the same arithmetic on arrays with a place
for every stage: what a stage does in a tick depends on what its neighbours did in the tick before, and on nothing
later. A test holds the two to the same numbers.
"""

from collections.abc import Sequence

import numpy as np

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

    """
    count = len(costs)
    forward, backward, update = (
        np.array([getattr(c, name) for c in costs]) for name in ("forward", "backward", "update")
    )
    up, down = (
        np.array([link.seconds(size) for size in sizes]) for sizes in zip(*((c.up, c.down) for c in costs), strict=True)
    )
    stages = np.arange(count)
    updates = (2 * (count - 1) - stages - 1) % accumulation  # of a stage, the ticks modulo k that end with one
    measured = -(-32 // accumulation) * accumulation
    free = np.zeros(count)  # until when every device is busy
    link_up, link_down = np.zeros(count), np.zeros(count)  # until when the links to the stages above and below are
    from_below, from_above = np.zeros(count), np.zeros(count)  # arrival of what a stage needs in this tick
    ends = np.zeros(2 * measured + 2 * count)  # of the backwards at stage 0
    for tick in range(len(ends) + 2 * (count - 1)):
        number = tick - 2 * (count - 1) + stages  # of the micro-batch that comes back
        enters, returns = stages <= tick, number >= 0
        np.maximum(free, from_below, out=free, where=enters)
        np.add(free, forward, out=free, where=enters)
        np.maximum(free, link_up, out=link_up, where=enters)
        np.add(link_up, up, out=link_up, where=enters)
        np.maximum(free, from_above, out=free, where=returns)
        np.add(free, backward, out=free, where=returns)
        np.maximum(free, link_down, out=link_down, where=returns)
        np.add(link_down, down, out=link_down, where=returns)
        if returns[0]:
            ends[number[0]] = free[0]
        np.add(free, update, out=free, where=returns & (updates == tick % accumulation))
        np.add(link_up[:-1], link.latency, out=from_below[1:])
        np.add(link_down[1:], link.latency, out=from_above[:-1])
    return float(ends[-1] - ends[-1 - measured]) / measured
