"""Who does what at which tick, as data.

The obvious way to run a pipeline is to let every worker react to the messages that reach it. Then the order of actions
is decided by timing: it cannot be printed before the run, nor checked, and two runs need not agree. Here the order is
decided by one small counter, the `Clock`, that the engine asks before every tick; what it answers is the schedule that
is printed, validated (`petra_core.validation`) and drawn (`petra_core.drawing.schedules`).

The rule (arXiv 2406.02052, Algorithm 1; a message takes one tick). A micro-batch m that enters at tick e meets

    forward at stage j      at tick e + j
    backward at stage j     at tick e + 2(J-1) - j       so the head, j = J-1, does both in one tick

so its *age* alone, t - e, says where it is, and one list of 2J-1 micro-batches by age is all that a clock remembers.
Where stages are replicated over several devices messages take longer, and the list is longer (`petra_core.ages`).
Within a turn the order is forward F, then reconstruction R of the graph and backward B (of an older micro-batch, except
at the head), then the update U if this was the stage's k-th backward. PETRA with J = 3 stages and k = 1:

    PETRA J=3 k=1
    tick 0 | F0          | -           | -
    tick 1 | F1          | F0          | -
    tick 2 | F2          | F1          | F0 B0 U0
    tick 3 | F3          | F2 R0 B0 U0 | F1 B1 U1
    tick 4 | F4 R0 B0 U0 | F3 R1 B1 U1 | F2 B2 U2

PaReprop has every R a tick earlier, in that of the B above, to do both side by side (`petra_core.concurrency`).

The alphabet: J stages, j a stage (0 = stem, J-1 = head), t a tick, m a micro-batch, k the accumulation, from 0 on.
"""

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from petra_core.ages import ages, check_replicas
from petra_core.arguments import check_int
from petra_core.errors import CheckpointError
from petra_core.methods import Method, check_accumulation

__all__ = [
    "Action",
    "Clock",
    "Kind",
    "Recording",
    "Schedule",
    "Tick",
    "Turn",
    "generate",
]


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


Turn = tuple[Action, ...]  # what one stage does in one tick, in order; empty: idle
Tick = tuple[Turn, ...]  # one turn for every stage


class Clock:
    """The one place that knows when what happens: ask it, tick by tick.

    It knows nothing of tensors and never looks ahead: the caller decides at each tick whether a micro-batch enters.

    Args:
        method: decides whether graphs are reconstructed and whether micro-batches follow each other at every tick.
        stages: J, at least 1 (a lone head).
        accumulation: k, in 1..32.
        replicas: of each stage, the devices that take its micro-batches in turn; None: one each.

    Raises:
        ValueError: a number is out of range, or the method cannot be as late as this makes the first stage.

    Attributes:
        replicas: the devices of each stage; empty where no stage has more than one.
        tick_number: ticks done so far, which is the number of the tick to come.
        in_flight: micro-batches that have entered and whose backward at stage 0 is still to come.

    """

    def __init__(self, method: Method, stages: int, accumulation: int, replicas: Sequence[int] | None = None) -> None:
        self.method = method
        self.stages = check_int("the number of stages J", stages, 1)
        self.accumulation = check_accumulation(accumulation)
        self.replicas = check_replicas(method, stages, accumulation, replicas)
        self.tick_number = 0
        self.in_flight = 0
        self._entered = 0
        self._itinerary = _itinerary(method, stages, self.replicas)
        # Micro-batch by age; the last place is that of a micro-batch at its backward at stage 0.
        self._by_age: deque[int | None] = deque([None] * len(self._itinerary), maxlen=len(self._itinerary))
        method.check_staleness(self.depth, accumulation)

    @property
    def may_enter(self) -> bool:
        """Whether a micro-batch may enter at the next tick."""
        return self.method.pipelined or self.in_flight == 0

    @property
    def depth(self) -> int:
        """Ticks from the entry of a micro-batch to its last backward."""
        return len(self._by_age) - 1

    def devices(self, stage: int) -> int:
        """How many devices take the micro-batches of a stage in turn."""
        return self.replicas[stage] if self.replicas else 1

    def tick(self, *, enter: bool) -> Tick:
        """Advance by one tick.

        Args:
            enter: whether a new micro-batch enters stage 0; micro-batches are numbered 0, 1, 2, … as they enter.

        Returns:
            The turn of every stage, stage 0 first.

        Raises:
            ValueError: a micro-batch may not enter now (`may_enter`).

        """
        if enter and not self.may_enter:
            raise ValueError(
                f"micro-batch {self._entered} cannot enter at tick {self.tick_number}: {self.method} lets one pass at "
                f"a time and {self.in_flight} is in flight; call tick(enter=False) until may_enter is true"
            )
        self._by_age.appendleft(self._entered if enter else None)
        if enter:
            self._entered += 1
            self.in_flight += 1
        if self._by_age[-1] is not None:
            self.in_flight -= 1
        self.tick_number += 1
        turns: list[Turn] = [()] * self.stages
        for number, calls in zip(self._by_age, self._itinerary, strict=True):
            if number is None:
                continue
            for stage, kind in calls:
                turns[stage] += (Action(kind, number),)
                if kind is Kind.BACKWARD and (number + 1) % self.accumulation == 0:
                    # Backwards come in the order of entry, so B m is a stage's (m+1)-th and needs no counter.
                    turns[stage] += (Action(Kind.UPDATE, number // self.accumulation),)
        return tuple(turns)

    def state_dict(self) -> dict[str, Any]:
        """All that a clock remembers, as plain strings, ints and lists."""
        return {
            "method": self.method.name,
            "stages": self.stages,
            "accumulation": self.accumulation,
            **({"replicas": list(self.replicas)} if self.replicas else {}),
            "tick_number": self.tick_number,
            "entered": self._entered,
            "by_age": list(self._by_age),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where another clock of the same method, J, k and replicas was.

        Raises:
            CheckpointError: the state belongs to another pipeline, or is none.

        """
        ours = self.state_dict()
        if state.keys() - {"replicas"} != ours.keys() - {"replicas"}:
            raise CheckpointError(
                f"the state of a clock has the keys {', '.join(ours)}, got {', '.join(map(str, state))}; "
                f"it was written by another version or is no clock's"
            )
        for key in ("method", "stages", "accumulation", "replicas"):
            theirs, mine = (side.get(key, "one each") for side in (state, ours))
            if theirs != mine:
                raise CheckpointError(
                    f"the state has {key} {theirs!r}, this pipeline has {mine!r}; make the pipeline with the "
                    f"settings of the run that is resumed"
                )
        if len(state["by_age"]) != len(self._by_age):
            raise CheckpointError(
                f"a clock of {self.stages} stages has {len(self._by_age)} places, the state has {len(state['by_age'])}"
            )
        self.tick_number = state["tick_number"]
        self._entered = state["entered"]
        self._by_age.extend(state["by_age"])
        self.in_flight = sum(number is not None for number in list(self._by_age)[:-1])


def _itinerary(method: Method, stages: int, replicas: Sequence[int]) -> list[list[tuple[int, Kind]]]:
    """At which stages a micro-batch is at each age, and what is done with it there.

    A stage is younger at its forward than at R and B, so that its turn, put together age by age, is in order.
    """
    forward, backward = ages(stages, replicas)
    calls: list[list[tuple[int, Kind]]] = [[] for _ in range(backward[0] + 1)]
    for stage in range(stages):
        calls[forward[stage]].append((stage, Kind.FORWARD))
        if stage < stages - 1 and not method.keeps_graph:
            calls[backward[stage] - int(method.overlapped)].append((stage, Kind.RECONSTRUCT))
        calls[backward[stage]].append((stage, Kind.BACKWARD))
    return calls


@dataclass(frozen=True)
class Schedule:
    """The actions of every stage at every tick.

    `str()` gives the picture of the module docstring.

    Attributes:
        method: the method that runs.
        stages: J.
        accumulation: k.
        ticks: one `Tick` after the other.
        first_tick: number of the first of them; above 0 where a run was recorded from its middle.
        replicas: of each stage, the devices that take its micro-batches in turn; empty where no stage has several.

    """

    method: Method
    stages: int
    accumulation: int
    ticks: tuple[Tick, ...]
    first_tick: int = 0
    replicas: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.ticks:  # there is nothing to number, and all empty schedules print alike
            object.__setattr__(self, "first_tick", 0)

    def stage(self, stage: int) -> tuple[Action, ...]:
        """The actions of one stage in their order.

        Raises:
            IndexError: there is no such stage.

        """
        if not 0 <= stage < self.stages:
            raise IndexError(f"there is no stage {stage}: this schedule has the stages 0..{self.stages - 1}")
        return tuple(action for tick in self.ticks for action in tick[stage])

    def window(self, start: int, stop: int) -> "Schedule":
        """A schedule of the ticks numbered start to stop - 1, for instance a few of the steady state to look at.

        Raises:
            ValueError: not all of them are in the schedule.

        """
        end = self.first_tick + len(self.ticks)
        if not self.first_tick <= start <= stop <= end:
            raise ValueError(
                f"ticks {start} to {stop - 1} are not all in the schedule's {self.first_tick} to {end - 1}"
            )
        ticks = self.ticks[start - self.first_tick : stop - self.first_tick]
        return replace(self, ticks=ticks, first_tick=start)

    def __str__(self) -> str:
        rows = [[" ".join(map(str, turn)) or "-" for turn in tick] for tick in self.ticks]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        digits = len(str(self.first_tick + len(self.ticks) - 1))
        replicas = f" r={','.join(map(str, self.replicas))}" if self.replicas else ""
        lines = [f"{self.method} J={self.stages} k={self.accumulation}{replicas}"]
        for number, row in enumerate(rows, self.first_tick):
            cells = " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(f"tick {number:>{digits}} | {cells}".rstrip())
        return "\n".join(lines)


class Recording:
    """A schedule under way: the ticks of a pipeline, by its clock, since the recording began."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._first_tick = clock, clock.tick_number
        self.ticks: list[Tick] = []

    @property
    def schedule(self) -> Schedule:
        """The executed ticks as a schedule."""
        clock = self._clock
        return Schedule(
            clock.method, clock.stages, clock.accumulation, tuple(self.ticks), self._first_tick, clock.replicas
        )


def generate(
    method: Method, stages: int, micro_batches: int, accumulation: int, replicas: Sequence[int] | None = None
) -> Schedule:
    """The schedule of a whole run: micro-batches enter as soon as they may, then the pipeline drains.

    Args:
        method: the method.
        stages: J.
        micro_batches: how many enter; none gives a schedule without ticks.
        accumulation: k. It need not divide `micro_batches`; the rest stays accumulated without an update.
        replicas: of each stage, the devices that take its micro-batches in turn; None: one each.

    Raises:
        ValueError: an argument is out of range.

    """
    if micro_batches < 0:
        raise ValueError(f"the number of micro-batches cannot be negative, got {micro_batches}")
    clock = Clock(method, stages, accumulation, replicas)
    ticks = []
    to_enter = micro_batches
    while to_enter or clock.in_flight:
        enter = to_enter > 0 and clock.may_enter
        to_enter -= enter
        ticks.append(clock.tick(enter=enter))
    return Schedule(method, stages, accumulation, tuple(ticks), replicas=clock.replicas)
