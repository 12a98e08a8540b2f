"""Whether a schedule is a possible one, found out without the clock that made it.

The obvious check, to generate the schedule again and compare, would agree with every mistake of the generator, and
could say nothing of a schedule that was recorded or written by hand. Here a schedule is walked tick by tick along the
path that every micro-batch has to take through 2J *stations*, of which station 0 is the forward at stage 0:

    F at stage 0 -> F at 1 -> ... -> F at J-1 -> B at J-1 -> ... -> B at 1 -> B at 0

Each station serves micro-batches in the order of their numbers, so one count a station, "how many have passed", says
all: a station can serve micro-batch m at a tick only if m have passed it so far (none lost, doubled or overtaken), and
more than m had passed the station before it when the tick began (its message takes a tick; only the step from F to B
of the head takes none). Longer waits are allowed: a slow schedule is a valid one. Where a stage is replicated over r
devices that take turns, each has r ticks for a turn, and so long does its message take.
"""

import itertools
from collections import deque

from petra_core.ages import check_replicas
from petra_core.arguments import check_int
from petra_core.errors import ScheduleError
from petra_core.methods import check_accumulation
from petra_core.schedule import Action, Kind, Schedule, Tick, Turn

__all__ = ["validate"]

_ORDER = tuple(Kind)  # F, R, B, U: the order within a turn


def validate(schedule: Schedule, *, complete: bool = True) -> None:
    """Check every rule that a schedule has to keep.

    - A micro-batch takes the path above, first in first out at each station, a tick at least from one to the next, and
      r ticks from a stage that has r replicas.
    - The head does forward and backward of a micro-batch in the same tick.
    - A turn has at most one each of F, R, B, U, in this order.
    - R is there, for the micro-batch of the B that follows it, exactly if the method keeps no graphs and the stage is
      not the head; under a method that overlaps, in the tick of the B of the stage above.
    - U follows every k-th B of a stage, numbered 0, 1, 2, …
    - Without a pipeline, one micro-batch is finished before the next one enters.

    A schedule whose `first_tick` is above 0 was recorded from its middle: what comes first at a station is taken for
    its next one, and what lies before the record is taken to have been right.

    Args:
        schedule: generated, recorded or written by hand.
        complete: whether every micro-batch must have finished at the end.

    Raises:
        ScheduleError: a rule is broken; the message names tick, stage and action.

    """
    walk = _Walk(schedule)
    for number, tick in enumerate(schedule.ticks, schedule.first_tick):
        walk.tick(number, tick)
    if complete:
        walk.finish()


class _Walk:
    """Counts at the 2J stations while the ticks go by; `passed[s]` is also the number of the next micro-batch at s."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        try:
            check_int("the number of stages J", schedule.stages, 1)
            check_accumulation(schedule.accumulation)
            check_replicas(schedule.method, schedule.stages, schedule.accumulation, schedule.replicas)
        except (TypeError, ValueError) as error:
            raise ScheduleError(str(error)) from error
        self.head = schedule.stages - 1
        for number, tick in enumerate(schedule.ticks, schedule.first_tick):
            if len(tick) != schedule.stages:
                raise ScheduleError(f"tick {number} has the turns of {len(tick)} stages, expected J={schedule.stages}")
        # At the beginning of this tick and of those before, as far back as a message may have been sent.
        self.before: deque[tuple[int, ...]] = deque(maxlen=max(schedule.replicas, default=1))
        self.passed = self._counts_before() if schedule.first_tick else [0] * (2 * schedule.stages)

    def tick(self, number: int, tick: tuple[Turn, ...]) -> None:
        self.before.append(tuple(self.passed))
        for stage, turn in enumerate(tick):
            self._check_turn(number, stage, tick)
            for action in turn:
                if action.kind in (Kind.FORWARD, Kind.BACKWARD):
                    self._check_step(number, stage, action)

    def finish(self) -> None:
        entered, left = self.passed[0], self.passed[-1]
        if left < entered:
            missing = next(s for s, count in enumerate(self.passed) if count <= left)
            last = self.schedule.first_tick + len(self.schedule.ticks) - 1
            raise ScheduleError(
                f"tick {last} is the last and micro-batch {left} is still in flight: {self._name(missing, left)} is "
                f"missing; drain the pipeline, or validate with complete=False"
            )

    def _check_turn(self, number: int, stage: int, tick: Tick) -> None:
        """What can be said of one turn without those of other ticks."""
        where, turn = f"tick {number}, stage {stage}", tick[stage]
        text = " ".join(map(str, turn))
        places = [_ORDER.index(action.kind) for action in turn]
        if any(a >= b for a, b in itertools.pairwise(places)):
            raise ScheduleError(f"{where}: the turn {text!r} must have at most one each of F, R, B, U, in this order")
        numbers = {action.kind: action.number for action in turn}
        backward = numbers.get(Kind.BACKWARD)
        if stage == self.head and numbers.get(Kind.FORWARD) != backward:
            raise ScheduleError(f"{where}: the turn {text!r} of the head must have F and B of the same micro-batch")
        ready = backward
        if self.schedule.method.overlapped and stage < self.head:
            ready = next((action.number for action in tick[stage + 1] if action.kind is Kind.BACKWARD), None)
        self._check_reconstruction(where, stage, text, numbers.get(Kind.RECONSTRUCT), ready)
        self._check_update(where, text, numbers.get(Kind.UPDATE), backward)

    def _check_reconstruction(
        self, where: str, stage: int, text: str, reconstructed: int | None, ready: int | None
    ) -> None:
        """`ready`: the micro-batch of the B here or, under a method that overlaps, of the one above."""
        method = self.schedule.method
        if reconstructed is not None and stage == self.head:
            raise ScheduleError(
                f"{where}: R{reconstructed} in {text!r}, but the head has the graph of its forward still"
            )
        if reconstructed is not None and method.keeps_graph:
            raise ScheduleError(f"{where}: R{reconstructed} in {text!r}, but {method} keeps the graphs of its forwards")
        expected = None if stage == self.head or method.keeps_graph else ready
        if reconstructed != expected:
            place = " at the stage above" if method.overlapped else ""
            beside = "beside" if method.overlapped else "before"
            wanted = f"no R without a B{place}" if expected is None else f"R{expected} {beside} B{expected}{place}"
            raise ScheduleError(f"{where}: the turn {text!r} breaks a rule of {method}: expected {wanted}")

    def _check_update(self, where: str, text: str, update: int | None, backward: int | None) -> None:
        k = self.schedule.accumulation
        # Backwards are numbered from 0 and none is left out, so B m is the stage's (m+1)-th.
        expected = backward // k if backward is not None and (backward + 1) % k == 0 else None
        if update != expected:
            wanted = "no update" if expected is None else f"U{expected} after B{backward}"
            raise ScheduleError(
                f"{where}: the turn {text!r} at k={k}: expected {wanted} (every k-th backward of a stage)"
            )

    def _check_step(self, tick: int, stage: int, action: Action) -> None:
        """One micro-batch at one station."""
        m = action.number
        what = f"tick {tick}, stage {stage}, {action}"
        station = self._station(action.kind, stage)
        if m < self.passed[station]:
            raise ScheduleError(
                f"{what}: comes a second time or too late; next here is micro-batch {self.passed[station]}"
            )
        if m > self.passed[station]:
            raise ScheduleError(f"{what}: expected micro-batch {self.passed[station]} first (first in, first out)")
        if station == 0:
            left = self.before[-1][-1]
            if not self.schedule.method.pipelined and m > left:
                raise ScheduleError(
                    f"{what}: {self.schedule.method} lets one micro-batch pass at a time, "
                    f"but {self._name(len(self.passed) - 1, left)} is not in an earlier tick"
                )
        elif station != self.schedule.stages:
            self._check_arrived(what, station - 1, m)
        self.passed[station] = m + 1

    def _check_arrived(self, what: str, station: int, m: int) -> None:
        """A message from the station must have been sent long enough ago."""
        source = station if station < self.schedule.stages else 2 * self.schedule.stages - 1 - station
        ticks = self.schedule.replicas[source] if self.schedule.replicas else 1
        if m >= self.before[max(0, len(self.before) - ticks)][station]:
            when = "in an earlier tick (a message takes one)"
            if ticks > 1:
                when = f"at least {ticks} ticks before (each of {ticks} replicas takes so long for a turn)"
            raise ScheduleError(f"{what}: needs {self._name(station, m)} {when}")

    def _station(self, kind: Kind, stage: int) -> int:
        return stage if kind is Kind.FORWARD else 2 * self.schedule.stages - 1 - stage

    def _name(self, station: int, m: int) -> str:
        stages = self.schedule.stages
        return f"F{m} at stage {station}" if station < stages else f"B{m} at stage {2 * stages - 1 - station}"

    def _counts_before(self) -> list[int]:
        """Counts at the start of a record that begins in the middle of a run.

        The first number at a station is its count. A station at which nothing happens may have passed as many as the
        station before it; station 0 as many as were ever seen.
        """
        first: dict[int, tuple[int, int, Action]] = {}
        seen = 0
        for number, tick in enumerate(self.schedule.ticks, self.schedule.first_tick):
            for stage, turn in enumerate(tick):
                for action in turn:
                    if action.kind in (Kind.FORWARD, Kind.BACKWARD):
                        first.setdefault(self._station(action.kind, stage), (number, stage, action))
                        seen = max(seen, action.number + 1)
        counts: list[int] = []
        for station in range(2 * self.schedule.stages):
            upstream = counts[-1] if counts else seen
            if station not in first:
                counts.append(upstream)
                continue
            number, stage, action = first[station]
            if action.number > upstream:
                raise ScheduleError(
                    f"tick {number}, stage {stage}, {action}: is the first here although micro-batch {upstream} "
                    f"is on its way to this stage (first in, first out)"
                )
            counts.append(action.number)
        return counts
