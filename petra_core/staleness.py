"""Staleness, the only choice of a pipelined schedule that affects results: a vector with one number per stage.

With every method, a stage executes a *local program*:

    for m = 0, 1, 2, ...:   forward of m;   backward of m - d_j     (if m >= d_j; after the last forward all the rest)

d_j is the staleness of stage j in micro-batches: the number that enter the stage between the forward and the backward
of one micro-batch. Messages between stages arrive in order, so results depend only on the vector (d_0, ..., d_{J-1}).
Devices, latency and the order of the stages affect when an action happens, but not its result. The head has
d_{J-1} = 0, and d_j >= d_{j+1}:

    schedule                              d_j
    lockstep (arXiv 2406.02052)           2 (J-1-j)     a message takes one tick, upwards and downwards
    asynchronous 1F1B (PipeDream)         J-1-j         the smallest with one stage per device at full speed
    P devices, stage j on device p        P-1-p         equal numbers: one device executes its stages in sequence
    backpropagation                       0

By Little's law the number of micro-batches in flight is at least the speed-up, so d_0 is at least the speed-up minus 1.

A stage executes four kinds of actions: forwards F, backwards B, the reconstruction R of the graph of a backward (if the
method does not keep the graph of the forward), and the update U after every k-th backward. PETRA with J = 3 stages in
lockstep, d = (4, 2, 0), and k = 1:

    stage 0 | F0 F1 F2 F3 F4 R0 B0 U0 F5 R1 B1 U1 ...
    stage 1 | F0 F1 F2 R0 B0 U0 F3 R1 B1 U1 ...
    stage 2 | F0 B0 U0 F1 B1 U1 ...

J is the number of stages, j a stage (0 = stem, J-1 = head), m a micro-batch, k the accumulation. All count from 0. This
module does not need torch.
"""

import enum
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from typing import NamedTuple

from petra_core.methods import Method


def lockstep(stages: int) -> tuple[int, ...]:
    """Return 2 (J-1-j) for every stage j of J: the schedule of the paper (arXiv 2406.02052, Algorithm 1)."""
    return per_device([1] * stages, slack=1)


def one_f_one_b(stages: int) -> tuple[int, ...]:
    """Return J-1-j for every stage j of J: asynchronous 1F1B with one stage per device."""
    return per_device([1] * stages)


def per_device(sizes: Sequence[int], slack: float = 0) -> tuple[int, ...]:
    """Return the staleness of every stage if consecutive stages share a device.

    Args:
        sizes: Number of stages of each device.
        slack: The s in (1 + s) (P-1-p), which is rounded up. It is the relative delay of gradients compared with full
            speed without latency, and leaves time for messages. Lockstep has s = 1.

    Raises:
        ValueError: If a device has no stage, or the slack is negative.

    """
    if min(sizes, default=0) < 1:
        raise ValueError(f"each device has at least one stage, got the sizes {tuple(sizes)}")
    if not slack >= 0:
        raise ValueError(f"slack is at least 0, got {slack}")
    last = len(sizes) - 1
    return tuple(
        ceil(round((1 + slack) * (last - device), 9)) for device, size in enumerate(sizes) for _ in range(size)
    )


def resolve(method: Method, stages: int, accumulation: int, staleness: Sequence[int] | None = None) -> tuple[int, ...]:
    """Check the staleness vector of a pipeline and return it.

    Args:
        method: Method of the pipeline. If it is not pipelined, the vector is zero.
        stages: Number of stages J.
        accumulation: Number of backwards per update, k.
        staleness: The vector; None for lockstep, or for zero if the method is not pipelined.

    Raises:
        TypeError: If `staleness` is not a vector.
        ValueError: If the method does not allow the vector. The message names the stage and the numbers.

    """
    if isinstance(staleness, str) or not isinstance(staleness, Iterable | None):
        raise TypeError(
            f"staleness has one number per stage, got {staleness!r}; give a vector, such as "
            f"petra_core.staleness.one_f_one_b({stages})"
        )
    if staleness is None:
        staleness = lockstep(stages) if method.pipelined else (0,) * stages
    vector = tuple(staleness)
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


def forward_lags(staleness: Sequence[int]) -> tuple[int, ...]:
    """Return the number of micro-batches that enter while one travels from stage 0 up to each stage.

    Half of the difference d_0 - d_j belongs to the way up and half to the way down. In lockstep the number is j, the
    tick in which stage j does the forward of micro-batch 0.
    """
    return tuple((staleness[0] - number) // 2 for number in staleness)


class Kind(enum.Enum):
    """The kind of an action. The value is its letter in the text form."""

    FORWARD = "F"
    RECONSTRUCT = "R"  # record the graph of the backward, by inversion or by recomputation from a kept input
    BACKWARD = "B"
    UPDATE = "U"


class Action(NamedTuple):
    """One action of a stage: a forward, reconstruction, backward or update.

    Attributes:
        kind: Kind of the action.
        number: Micro-batch m of a forward, reconstruction or backward; for an update, the number of earlier updates of
            the stage (U0 ends version 0 of the weights).

    """

    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.number}"


def backward_actions(method: Method, number: int, accumulation: int, *, head: bool) -> Iterator[Action]:
    """Yield the actions of a stage for the backward of a micro-batch: R if the method needs it, B, and U if it is due.

    The head differentiates the graph of its forward, which is in the same step. Backwards run in the order of entry, so
    the backward of micro-batch m is the (m+1)-th of the stage.

    Args:
        method: The method.
        number: Number of the micro-batch, m.
        accumulation: Number of backwards per update, k.
        head: Whether the stage is the head.

    """
    if not head and not method.keeps_graph:
        yield Action(Kind.RECONSTRUCT, number)
    yield Action(Kind.BACKWARD, number)
    if (number + 1) % accumulation == 0:
        yield Action(Kind.UPDATE, number // accumulation)
