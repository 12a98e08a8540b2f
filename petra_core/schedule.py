"""What a stage does, in order: its local program.

The program follows from the staleness of the stage (`petra_core.staleness`) and from nothing else. Beside forwards F
and backwards B there are the reconstruction R of the graph that a backward differentiates, where the method keeps no
graph, and the update U after every k-th backward. PETRA with J = 3 stages in lockstep, d = (4, 2, 0), and k = 1:

    stage 0 | F0 F1 F2 F3 F4 R0 B0 U0 F5 R1 B1 U1 ...
    stage 1 | F0 F1 F2 R0 B0 U0 F3 R1 B1 U1 ...
    stage 2 | F0 B0 U0 F1 B1 U1 ...

The alphabet: J stages, j a stage (0 = stem, J-1 = head), m a micro-batch, k the accumulation, all from 0 on.
"""

import enum
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from petra_core.methods import Method

__all__ = ["Action", "Kind", "backward_actions", "program", "written"]


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
