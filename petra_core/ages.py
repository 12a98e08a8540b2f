"""At which age a micro-batch is at which stage: the rule of the clock and of the timeline model.

A micro-batch m that enters at tick e meets

    forward at stage j      at tick e + f_j     f_0 = 0,            f_{j+1} = f_j + 1
    backward at stage j     at tick e + b_j     b_{J-1} = f_{J-1},  b_j = b_{j+1} + 1

so f_j = j and b_j = 2(J-1) - j (arXiv 2406.02052, Algorithm 1; a message takes one tick).

A stage too heavy for one device can be *replicated* over r of them (PipeDream, Narayanan et al. 2019): micro-batch m is
the (m mod r)-th replica's, which has r ticks for a turn. Since replicas wait for each other at every update, they work
side by side from then on: the first of r micro-batches waits for the last, r - 1 ticks. So messages arrive 2r - 1 ticks
after the earliest tick at which a turn could begin, and this is the order in which everything is done:

    forward at stage j      at tick e + f_j     f_0 = 0,            f_{j+1} = f_j + 2 r_j - 1
    backward at stage j     at tick e + b_j     b_{J-1} = f_{J-1},  b_j = b_{j+1} + 2 r_{j+1} - 1

which without replicas is the rule above. (With the ages from above kept, and devices that wait for what they need, a
stage on two devices is hardly faster than on one: nearly every micro-batch waits for the other replica's.) The price is
staleness: that of stage j, b_j - f_j micro-batches, grows with the replicas of the stages above.

An update takes the mean over k micro-batches of all replicas, so k is a multiple of r.
"""

from collections.abc import Sequence
from itertools import accumulate

from petra_core.methods import Method

__all__ = ["ages", "check_replicas", "of_stages"]


def ages(stages: int, replicas: Sequence[int] = ()) -> tuple[list[int], list[int]]:
    """The ages f_j and b_j of a micro-batch at its forward and backward, for every stage j, in ticks.

    Args:
        stages: J.
        replicas: of each stage; empty: one each.

    """
    ticks = [2 * count - 1 for count in replicas or [1] * stages]
    forward = [0, *accumulate(ticks[:-1])]
    backward = accumulate(reversed(ticks[1:]), initial=forward[-1])
    return forward, list(backward)[::-1]


def of_stages(partition: Sequence[int], replicas: Sequence[int]) -> tuple[int, ...]:
    """The number of replicas of each stage, from the number of stages and of replicas of each part."""
    return tuple(count for size, count in zip(partition, replicas, strict=True) for _ in range(size))


def check_replicas(method: Method, stages: int, accumulation: int, replicas: Sequence[int] | None) -> tuple[int, ...]:
    """Check the number of replicas of each stage, and return it; empty if no stage has more than one.

    Args:
        method: only a pipelined one may have replicas.
        stages: J.
        accumulation: k.
        replicas: of each stage; None or empty: one each.

    Raises:
        ValueError: there are not J numbers, one is below 1 or does not divide k, or the method is not pipelined.

    """
    replicas = tuple(replicas or ())
    if replicas and (len(replicas) != stages or min(replicas) < 1):
        raise ValueError(f"each of the {stages} stages has at least one replica, got {replicas}")
    if all(count == 1 for count in replicas):
        return ()
    if not method.pipelined:
        raise ValueError(f"{method} lets one micro-batch pass at a time: its replicas would wait for each other")
    for count in replicas:
        if accumulation % count:
            raise ValueError(
                f"{count} replicas share the k={accumulation} micro-batches of an update unequally (remainder "
                f"{accumulation % count}); k must be a multiple of the number of replicas"
            )
    return replicas
