"""The validator accepts what the clock makes and refuses it once anything in it is touched."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from petra_core import methods
from petra_core.errors import ScheduleError
from petra_core.methods import Method
from petra_core.schedule import Action, Clock, Kind, Schedule, Turn, generate
from petra_core.validation import validate
from tests.schedules import parse

# The valid schedules that the tests below break.
PETRA = """
    PETRA J=3 k=2
    tick 0 | F0          | -           | -
    tick 1 | F1          | F0          | -
    tick 2 | F2          | F1          | F0 B0
    tick 3 | F3          | F2 R0 B0    | F1 B1 U0
    tick 4 | F4 R0 B0    | F3 R1 B1 U0 | F2 B2
    tick 5 | R1 B1 U0    | F4 R2 B2    | F3 B3 U1
    tick 6 | R2 B2       | R3 B3 U1    | F4 B4
    tick 7 | R3 B3 U1    | R4 B4       | -
    tick 8 | R4 B4       | -           | -
"""
BACKPROPAGATION = """
    BACKPROPAGATION J=2 k=1
    tick 0 | F0    | -
    tick 1 | -     | F0 B0 U0
    tick 2 | B0 U0 | -
    tick 3 | F1    | -
    tick 4 | -     | F1 B1 U1
    tick 5 | B1 U1 | -
"""


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_all_generated_schedules_are_valid(method: Method) -> None:
    for stages, micro_batches, accumulation in itertools.product((1, 2, 3, 4, 7), (0, 1, 6, 12), (1, 2, 5)):
        if method.double_buffered and accumulation < method.staleness(0, stages):
            continue  # the clock refuses it
        validate(generate(method, stages, micro_batches, accumulation))


@given(
    method=st.sampled_from(methods.PAPER),
    stages=st.integers(1, 6),
    accumulation=st.integers(1, 32),
    wishes=st.lists(st.booleans(), max_size=60),
    data=st.data(),
)
def test_any_entries_and_any_window_of_them_are_valid(
    method: Method, stages: int, accumulation: int, wishes: list[bool], data: st.DataObject
) -> None:
    """Whenever micro-batches happen to enter, and wherever a recording begins and ends."""
    clock = Clock(method, stages, accumulation)
    ticks = [clock.tick(enter=wish and clock.may_enter) for wish in wishes]
    validate(Schedule(method, stages, accumulation, tuple(ticks)), complete=False)
    while clock.in_flight:
        ticks.append(clock.tick(enter=False))
    whole = Schedule(method, stages, accumulation, tuple(ticks))
    validate(whole)
    start = data.draw(st.integers(0, len(ticks)))
    validate(whole.window(start, len(ticks)))
    validate(whole.window(start, data.draw(st.integers(start, len(ticks)))), complete=False)


def test_slow_schedules_are_valid() -> None:
    """A message may wait; only coming early is wrong."""
    validate(
        parse("""
            DELAYED_GRADIENTS J=2 k=1
            tick 0 | F0       | -
            tick 1 | -        | -
            tick 2 | F1       | F0 B0 U0
            tick 3 | F2       | -
            tick 4 | -        | F1 B1 U1
            tick 5 | B0 U0    | F2 B2 U2
            tick 6 | B1 U1    | -
            tick 7 | -        | -
            tick 8 | B2 U2    | -
        """)
    )


def broken(text: str, tick: int, stage: int, turn: str) -> Schedule:
    """The schedule of a picture with one turn replaced."""
    lines = text.strip().splitlines()
    cells = lines[tick + 1].split("|")
    cells[stage + 1] = f" {turn} "
    lines[tick + 1] = "|".join(cells)
    return parse("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "tick", "stage", "turn", "message"),
    [
        # the path: first in first out, nothing lost, doubled or early
        (PETRA, 0, 0, "F1", "tick 0, stage 0, F1: expected micro-batch 0 first (first in, first out)"),
        (PETRA, 1, 0, "F0", "tick 1, stage 0, F0: comes a second time or too late; next here is micro-batch 1"),
        (PETRA, 0, 1, "F0", "tick 0, stage 1, F0: needs F0 at stage 0 in an earlier tick (a message takes one)"),
        (PETRA, 3, 0, "F3 R0 B0", "tick 3, stage 0, B0: needs B0 at stage 1 in an earlier tick"),
        (PETRA, 8, 0, "-", "tick 8 is the last and micro-batch 4 is still in flight: B4 at stage 0 is missing"),
        (BACKPROPAGATION, 1, 0, "F1", "stage 0, F1: BACKPROPAGATION lets one micro-batch pass at a time, but B0 at"),
        # the turn
        (PETRA, 2, 2, "F0", "stage 2: the turn 'F0' of the head must have F and B of the same micro-batch"),
        (PETRA, 3, 2, "F1 U0 B1", "the turn 'F1 U0 B1' must have at most one each of F, R, B, U, in this order"),
        # reconstruction
        (PETRA, 3, 1, "F2 B0", "stage 1: the turn 'F2 B0' breaks a rule of PETRA: expected R0 before B0"),
        (PETRA, 2, 1, "F1 R0", "stage 1: the turn 'F1 R0' breaks a rule of PETRA: expected no R without a B"),
        (PETRA, 2, 2, "F0 R0 B0", "stage 2: R0 in 'F0 R0 B0', but the head has the graph of its forward still"),
        (BACKPROPAGATION, 2, 0, "R0 B0 U0", "R0 in 'R0 B0 U0', but BACKPROPAGATION keeps the graphs of its forwards"),
        # update
        (PETRA, 3, 2, "F1 B1", "stage 2: the turn 'F1 B1' at k=2: expected U0 after B1 (every k-th backward"),
        (PETRA, 2, 2, "F0 B0 U0", "stage 2: the turn 'F0 B0 U0' at k=2: expected no update"),
    ],
)
def test_a_broken_rule_is_named_with_its_place(text: str, tick: int, stage: int, turn: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        validate(broken(text, tick, stage, turn))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": 0}, "number of stages J must be at least 1, got 0"),
        ({"accumulation": 0}, "k=0 is outside 1..32"),
        ({"replicas": (2,)}, "each of the 3 stages has at least one replica"),
        ({"replicas": (1, 3, 1)}, "3 replicas share the k=2 micro-batches"),
    ],
)
def test_numbers_that_no_schedule_can_have_break_a_rule_too(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(replace(parse(PETRA), **changes))


def test_a_run_is_whole_unless_asked_otherwise_and_has_a_turn_for_each_stage() -> None:
    schedule = generate(methods.PETRA, 3, 9, 1)
    unfinished = schedule.window(0, 6)
    validate(unfinished, complete=False)
    with pytest.raises(ScheduleError, match=r"tick 5 is the last and micro-batch 2 .* B2 at stage 0 is missing; drain"):
        validate(unfinished)
    with pytest.raises(ScheduleError, match="micro-batch 0 is still in flight: F0 at stage 2 is missing"):
        validate(unfinished.window(0, 2))
    with pytest.raises(ScheduleError, match="tick 0, stage 0, F6: expected micro-batch 0 first"):
        validate(replace(schedule.window(6, 13), first_tick=0))
    ticks = (*schedule.ticks[:2], schedule.ticks[2][:2], *schedule.ticks[3:])
    with pytest.raises(ScheduleError, match="tick 2 has the turns of 2 stages, expected J=3"):
        validate(replace(schedule, ticks=ticks))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (  # 4 and 5 would be overtaken on their way to stage 1
            "DELAYED_GRADIENTS J=2 k=1 \n tick 9 | F4 | - \n tick 10 | F5 | F6 B6 U6 \n tick 11 | F6 | -",
            "tick 10, stage 1, F6: is the first here although micro-batch 4 is on its way to this stage",
        ),
        (  # a gradient before its message
            "DELAYED_GRADIENTS J=2 k=32 \n tick 9 | F4 B2 | F3 B3 \n tick 10 | B3 | - \n tick 11 | B4 | F4 B4",
            "tick 11, stage 0, B4: needs B4 at stage 1 in an earlier tick",
        ),
        (  # updates keep their absolute numbers
            "DELAYED_GRADIENTS J=2 k=2 \n tick 9 | - | F5 B5 U0 \n tick 10 | B5 U2 | -",
            "tick 9, stage 1: the turn 'F5 B5 U0' at k=2: expected U2 after B5",
        ),
    ],
)
def test_a_record_from_the_middle_is_still_checked(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        validate(parse(text), complete=False)


def mutations(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """Every schedule that differs by an action, by two neighbouring turns or ticks swapped, or by a missing tick."""

    def with_turns(*changes: tuple[int, int, Turn]) -> Schedule:
        ticks = [list(tick) for tick in schedule.ticks]
        for t, j, turn in changes:
            ticks[t][j] = turn
        return replace(schedule, ticks=tuple(map(tuple, ticks)))

    last, ticks = len(schedule.ticks) - 1, schedule.ticks
    for t, tick in enumerate(ticks):
        for j, turn in enumerate(tick):
            for i, action in enumerate(turn):
                rest = turn[:i] + turn[i + 1 :]
                yield f"without {action} at {t}, {j}", with_turns((t, j, rest))
                yield f"{action} twice at {t}, {j}", with_turns((t, j, (*turn[:i], action, *turn[i:])))
                others = [Action(action.kind, action.number + 1), Action(action.kind, action.number - 1)]
                others += [Action(kind, action.number) for kind in Kind if kind is not action.kind]
                for other in others:
                    changed = (*turn[:i], other, *turn[i + 1 :])
                    yield f"{other} for {action} at {t}, {j}", with_turns((t, j, changed))
                for to in {max(t - 1, 0), min(t + 1, last)} - {t}:
                    joined = sorted((*ticks[to][j], action), key=lambda action: list(Kind).index(action.kind))
                    yield f"{action} from {t} to {to}, {j}", with_turns((t, j, rest), (to, j, tuple(joined)))
            if j + 1 < len(tick) and turn != tick[j + 1]:
                yield f"turns of {j} and {j + 1} swapped at {t}", with_turns((t, j, tick[j + 1]), (t, j + 1, turn))
        if t < last or schedule.stages > 1:  # a lone head without its last tick has a valid run of one micro-batch less
            yield f"without tick {t}", replace(schedule, ticks=ticks[:t] + ticks[t + 1 :])
        if t < last:
            yield (
                f"ticks {t}, {t + 1} swapped",
                replace(schedule, ticks=(*ticks[:t], ticks[t + 1], tick, *ticks[t + 2 :])),
            )


def complaint(schedule: Schedule) -> str | None:
    try:
        validate(schedule)
    except ScheduleError as error:
        return str(error)
    return None


@pytest.mark.parametrize("method", methods.PAPER, ids=str)
@pytest.mark.parametrize(("stages", "accumulation"), [(1, 2), (2, 1), (3, 3), (4, 2)])
def test_every_mutation_is_found(method: Method, stages: int, accumulation: int) -> None:
    complaints = {name: complaint(mutant) for name, mutant in mutations(generate(method, stages, 6, accumulation))}
    assert len(complaints) > 100
    assert [name for name, text in complaints.items() if text is None] == []
    assert all(re.match(r"tick \d+( is the last|, stage \d+)", text) for text in complaints.values() if text)
