"""Staleness: the one thing that a pipelined schedule chooses, as a vector of one number per stage.

Whatever the method, a stage executes a *local program*:

    for m = 0, 1, 2, ...:   forward of m;   backward of m - d_j     (if m >= d_j; after the last forward all the rest)

d_j is the staleness of stage j in micro-batches: how many enter the stage between the forward and the backward of one.
Messages between stages arrive in order, so results depend on the vector (d_0, ..., d_{J-1}) alone; devices, latency and
the order of the stages decide when things happen, never what is computed. The head has d_{J-1} = 0, and d_j >= d_{j+1}:

    schedule                              d_j
    lockstep (arXiv 2406.02052)           2 (J-1-j)     a message takes a tick, forwards and backwards alike
    asynchronous 1F1B (PipeDream)         J-1-j         the smallest with one stage per device at full speed
    P devices, stage j on device p        P-1-p         equal numbers: one device executes them one after the other
    backpropagation                       0

By Little's law the number of micro-batches under way is at least the speed-up, so d_0 is at least the speed-up less 1.
This module imports no torch.
"""

from collections.abc import Sequence
from math import ceil

from petra_core.methods import Method

__all__ = ["chosen", "entering_meanwhile", "lockstep", "one_f_one_b", "per_device"]


def lockstep(stages: int) -> tuple[int, ...]:
    """Return 2 (J-1-j) for every stage j of J: the counting of the paper, arXiv 2406.02052, Algorithm 1."""
    return per_device([1] * stages, slack=1)


def one_f_one_b(stages: int) -> tuple[int, ...]:
    """Return J-1-j for every stage j of J: asynchronous 1F1B with one stage per device."""
    return per_device([1] * stages)


def per_device(sizes: Sequence[int], slack: float = 0) -> tuple[int, ...]:
    """Return the staleness of every stage where consecutive stages share a device.

    Args:
        sizes: the number of stages of each device.
        slack: s of (1 + s) (P-1-p), rounded up: how much later than at full speed without latency gradients may come
            back, so that messages may travel meanwhile. Lockstep has s = 1.

    Raises:
        ValueError: a device has no stage, or the slack is negative.

    """
    if min(sizes, default=0) < 1:
        raise ValueError(f"each device has at least one stage, got the sizes {tuple(sizes)}")
    if not slack >= 0:
        raise ValueError(f"slack is at least 0, got {slack}")
    last = len(sizes) - 1
    return tuple(ceil((1 + slack) * (last - device)) for device, size in enumerate(sizes) for _ in range(size))


def chosen(method: Method, stages: int, accumulation: int, staleness: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the staleness vector of a pipeline, checked.

    Args:
        method: a pipelined one, or one that lets one micro-batch pass at a time, whose vector is zero.
        stages: J.
        accumulation: k.
        staleness: the vector; None for lockstep, or zero where the method is not pipelined.

    Raises:
        ValueError: the vector is not one of this method: the message names the stage and the numbers.

    """
    vector = tuple(staleness) if staleness is not None else lockstep(stages) if method.pipelined else (0,) * stages
    if len(vector) != stages:
        raise ValueError(f"staleness has one number per stage: expected {stages}, got {len(vector)} in {vector}")
    for stage, number in enumerate(vector):
        if isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"the staleness of stage {stage} must be an int, got {number!r} in {vector}")
        above = vector[stage + 1] if stage + 1 < stages else 0
        if number < above:
            raise ValueError(
                f"the staleness of stage {stage} must be at least that of stage {stage + 1}, {above}, whose gradients "
                f"it waits for; got {number} in {vector}"
            )
    if vector[-1]:
        raise ValueError(f"the staleness of the head, stage {stages - 1}, must be 0, got {vector[-1]} in {vector}")
    if vector[0] and not method.pipelined:
        raise ValueError(
            f"{method} lets one micro-batch pass at a time: its staleness is 0 at every stage, got {vector[0]} at "
            f"stage 0; leave staleness out, or choose a pipelined method"
        )
    method.check_staleness(vector[0], accumulation)
    return vector


def entering_meanwhile(staleness: Sequence[int]) -> tuple[int, ...]:
    """Return how many micro-batches enter while one travels from stage 0 up to each stage.

    Of the d_0 - d_j micro-batches between stage 0 and stage j, half are for the way up and half for the way down: in
    lockstep j, which is the tick of the forward of micro-batch 0.
    """
    return tuple((staleness[0] - number) // 2 for number in staleness)
