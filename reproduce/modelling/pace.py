"""The speed of a long pipeline: one stage per device and up to thousands of stages, computed turn by turn.

`petra_core.prediction.simulation.simulate` handles one event after the other. A pipeline of a thousand stages has two
million events before it is full. This module therefore does the same arithmetic on arrays with one entry per stage. If
the staleness decreases by f from stage to stage (2 in lockstep, 1 in asynchronous 1F1B), stage j has the forward of its
step m in turn 2m + f j and the backward of that step in the next turn. What a stage needs was made in an earlier turn,
and only the last message of a link matters. A test compares the results with those of `simulate`.
"""

from collections.abc import Sequence

import numpy as np

from petra_core.errors import check_int
from petra_core.prediction.simulation import INSTANT, Cost, Link


def pace(costs: Sequence[Cost], link: Link = INSTANT, *, accumulation: int = 1, fall: int = 2) -> float:
    """Return the seconds per micro-batch of a pipelined method in the full pipeline, with one stage per device.

    Args:
        costs: Costs of the stages.
        link: Link between neighbours.
        accumulation: Micro-batches per update, k.
        fall: Difference of the staleness of neighbours, d_j - d_{j+1}: 2 in lockstep, 1 in asynchronous 1F1B.

    Returns:
        The mean over n micro-batches, where n is 32 rounded up to a multiple of k. The n micro-batches before them and
        two more per stage fill the pipeline.

    Raises:
        ValueError: If k is below 1, or `fall` is neither 1 nor 2.

    """
    check_int("accumulation", accumulation, 1)
    if fall not in (1, 2):
        raise ValueError(f"staleness falls by 2 (lockstep) or 1 (asynchronous 1F1B) from stage to stage, got {fall}")
    count = len(costs)
    forward, backward, update = (
        np.array([getattr(c, name) for c in costs]) for name in ("forward", "backward", "update")
    )
    up, down = (
        np.array([link.seconds(size) for size in sizes]) for sizes in zip(*((c.up, c.down) for c in costs), strict=True)
    )
    stages_of = np.arange(count)
    last = fall * (count - 1)  # the staleness of stage 0
    measured = -(-32 // accumulation) * accumulation
    steps = 2 * measured + 2 * count  # whose backwards at stage 0 are counted
    free = np.zeros(count)  # until when every device is busy
    link_up, link_down = np.zeros(count), np.zeros(count)  # until when the links to the stages above and below are
    from_below, from_above = np.zeros(count), np.zeros(count)  # arrival of what a stage needs in this turn
    ends = np.zeros(steps)  # of the backwards at stage 0
    for turn in range(2 * (last + steps)):
        forwards = _active_stages(turn, 0, count, fall)
        busy, leaving = free[forwards], link_up[forwards]
        np.maximum(busy, from_below[forwards], out=busy)
        busy += forward[forwards]
        np.maximum(busy, leaving, out=leaving)
        leaving += up[forwards]
        # Stage j does the backward of m - d_j in its step m, in turn 2m + f j + 1: j is at least d_0 less half of that.
        backwards = _active_stages(turn - 1, max(0, -(-(2 * last - turn + 1) // fall)), count, fall)
        busy, leaving = free[backwards], link_down[backwards]
        np.maximum(busy, from_above[backwards], out=busy)
        busy += backward[backwards]
        np.maximum(busy, leaving, out=leaving)
        leaving += down[backwards]
        step = (turn - 1) // 2
        if backwards.start == 0 and turn % 2 and step >= last:
            ends[step - last] = free[0]
        numbers = (turn - 1 - fall * stages_of[backwards]) // 2 - (last - fall * stages_of[backwards])
        busy += np.where((numbers + 1) % accumulation == 0, update[backwards], 0.0)
        np.add(link_up[:-1], link.latency, out=from_below[1:])
        np.add(link_down[1:], link.latency, out=from_above[:-1])
    return float(ends[-1] - ends[-1 - measured]) / measured


def _active_stages(turn: int, first: int, count: int, fall: int) -> slice:
    """Return the stages from `first` on that are in an even turn of theirs, which begin at turn `fall` times j."""
    if fall % 2 == 0:
        return slice(first, min(count, turn // fall + 1)) if turn % 2 == 0 and turn >= 0 else slice(0, 0)
    return slice(first + (turn - first) % 2, max(0, min(count, turn // fall + 1)), 2)
