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

A stage executes actions: forwards F and backwards B, the reconstruction R of the graph that a backward differentiates
if the method keeps no graph, and the update U after every k-th backward. PETRA with J = 3 stages in lockstep,
d = (4, 2, 0), and k = 1:

    stage 0 | F0 F1 F2 F3 F4 R0 B0 U0 F5 R1 B1 U1 ...
    stage 1 | F0 F1 F2 R0 B0 U0 F3 R1 B1 U1 ...
    stage 2 | F0 B0 U0 F1 B1 U1 ...

J is the number of stages, j a stage (0 = stem, J-1 = head), m a micro-batch, k the accumulation. All count from 0. This
module does not need torch.
"""

import enum
from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from petra_core.methods import Method

__all__ = [
    "Action",
    "Kind",
    "backward_actions",
    "chosen",
    "entering_meanwhile",
    "lockstep",
    "one_f_one_b",
    "per_device",
    "program",
    "written",
]


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


class Kind(enum.Enum):
    """What an action does; the value is its letter in the text form."""

    FORWARD = "F"
    RECONSTRUCT = "R"  # make the graph of the backward: by inversion or, from a kept input, by recomputation
    BACKWARD = "B"
    UPDATE = "U"


class Action(NamedTuple):
    """One action of a stage: a forward, reconstruction, backward or update.

    Attributes:
        kind: what.
        number: the micro-batch m of a forward, reconstruction or backward; for an update its own number at this stage
            (U0 ends version 0 of the weights).

    """

    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.kind.value}{self.number}"


def backward_actions(method: Method, number: int, accumulation: int, *, head: bool) -> Iterator[Action]:
    """Yield the actions of a stage for the backward of a micro-batch: R, B and U, where the method has them.

    The head's graph is that of its forward, in the same step. Backwards come in the order of entry, so that of
    micro-batch m is the stage's (m+1)-th.
    """
    if not head and not method.keeps_graph:
        yield Action(Kind.RECONSTRUCT, number)
    yield Action(Kind.BACKWARD, number)
    if (number + 1) % accumulation == 0:
        yield Action(Kind.UPDATE, number // accumulation)


def program(
    method: Method, staleness: Sequence[int], stage: int, micro_batches: int, accumulation: int = 1
) -> Iterator[Action]:
    """Yield all actions of one stage: so many micro-batches enter, then what is in flight comes back.

    Args:
        method: the method.
        staleness: of every stage.
        stage: its number.
        micro_batches: how many enter.
        accumulation: k.

    """
    for step in range(micro_batches + staleness[stage]):
        if step < micro_batches:
            yield Action(Kind.FORWARD, step)
        number = step - staleness[stage]
        if number >= 0:
            yield from backward_actions(method, number, accumulation, head=stage == len(staleness) - 1)


def written(actions: Sequence[tuple[int, Action]]) -> str:
    """Return executed actions, each with its stage, as text: one line per stage, as in the module's docstring."""
    stages = range(1 + max((stage for stage, _ in actions), default=-1))
    lines = [" ".join(str(action) for of, action in actions if of == stage) for stage in stages]
    return "\n".join(f"stage {stage} | {line}" for stage, line in enumerate(lines))
