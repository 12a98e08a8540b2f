"""The clock against pictures written by hand and against the delays of the paper."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from petra_core import methods
from petra_core.errors import CheckpointError
from petra_core.methods import Method
from petra_core.schedule import Action, Clock, Kind, Schedule, generate
from tests.schedules import parse

every_method = pytest.mark.parametrize("method", methods.PAPER, ids=str)


def ticks_of(schedule: Schedule, kind: Kind, stage: int) -> dict[int, int]:
    """The tick of every action of a kind at a stage, by number."""
    return {
        action.number: t
        for t, tick in enumerate(schedule.ticks, schedule.first_tick)
        for action in tick[stage]
        if action.kind is kind
    }


ONE_AT_A_TIME = """
    tick 0 | F0       | -        | -
    tick 1 | -        | F0       | -
    tick 2 | -        | -        | F0 B0 U0
    tick 3 | -        | R0 B0 U0 | -
    tick 4 | R0 B0 U0 | -        | -
    tick 5 | F1       | -        | -
    tick 6 | -        | F1       | -
    tick 7 | -        | -        | F1 B1 U1
    tick 8 | -        | R1 B1 U1 | -
    tick 9 | R1 B1 U1 | -        | -
"""
ALL_AT_ONCE = """
    tick 0 | F0          | -           | -
    tick 1 | F1          | F0          | -
    tick 2 | F2          | F1          | F0 B0 U0
    tick 3 | F3          | F2 R0 B0 U0 | F1 B1 U1
    tick 4 | F4 R0 B0 U0 | F3 R1 B1 U1 | F2 B2 U2
    tick 5 | R1 B1 U1    | F4 R2 B2 U2 | F3 B3 U3
    tick 6 | R2 B2 U2    | R3 B3 U3    | F4 B4 U4
    tick 7 | R3 B3 U3    | R4 B4 U4    | -
    tick 8 | R4 B4 U4    | -           | -
"""


@every_method
def test_three_stages_as_drawn_by_hand(method: Method) -> None:
    picture, micro_batches = (ALL_AT_ONCE, 5) if method.pipelined else (ONE_AT_A_TIME, 2)
    if method.keeps_graph:
        picture = re.sub(r"R\d ", "", picture)
    assert generate(method, 3, micro_batches, 1) == parse(f"{method} J=3 k=1\n{picture}")


@every_method
@pytest.mark.parametrize("stages", [1, 2, 3, 6])
def test_ticks_and_delays_are_those_of_the_papers_rule(method: Method, stages: int) -> None:
    """2(J-1-j) ticks pass at stage j; pipelined, as many newer micro-batches have gone forward there by then."""
    count = 3 * stages
    schedule = generate(method, stages, count, 2)
    interval = 1 if method.pipelined else 2 * stages - 1
    for j in range(stages):
        forward, backward = ticks_of(schedule, Kind.FORWARD, j), ticks_of(schedule, Kind.BACKWARD, j)
        assert forward == {m: m * interval + j for m in range(count)}
        assert backward == {m: m * interval + 2 * (stages - 1) - j for m in range(count)}
        newer = sum(forward[0] < t <= backward[0] for t in forward.values())
        assert newer == method.staleness(j, stages) == (2 * (stages - 1 - j) if method.pipelined else 0)
    assert len(schedule.ticks) == (count - 1) * interval + 2 * stages - 1


@every_method
@pytest.mark.parametrize("stages", [1, 4])
def test_in_flight_counts_from_entry_to_the_backward_of_stage_0(method: Method, stages: int) -> None:
    clock = Clock(method, stages, 1)
    entered = finished = 0
    for t in range(6 * stages):
        assert clock.tick_number == t
        assert clock.may_enter == (method.pipelined or entered == finished)
        enter = clock.may_enter and t < 4 * stages
        tick = clock.tick(enter=enter)
        entered += enter
        finished += any(action.kind is Kind.BACKWARD for action in tick[0])
        assert clock.in_flight == entered - finished
    assert clock.in_flight == 0
    assert entered > 0


def test_a_tick_without_entry_leaves_a_gap_that_travels() -> None:
    """Epochs end, data run out: the caller may let a tick pass, and numbers go on without a hole."""
    clock = Clock(methods.PETRA, 2, 1)
    ticks = tuple(clock.tick(enter=enter) for enter in (True, False, True, False, False))
    picture = """
        PETRA J=2 k=1
        tick 0 | F0       | -
        tick 1 | -        | F0 B0 U0
        tick 2 | F1 R0 B0 U0 | -
        tick 3 | -        | F1 B1 U1
        tick 4 | R1 B1 U1 | -
    """
    assert Schedule(methods.PETRA, 2, 1, ticks) == parse(picture)
    clock = Clock(methods.BACKPROPAGATION, 2, 1)
    clock.tick(enter=True)
    with pytest.raises(ValueError, match=r"micro-batch 1 cannot enter at tick 1: .* 1 is in flight.*enter=False"):
        clock.tick(enter=True)
    assert [str(turn[0]) for turn in clock.tick(enter=False) if turn] == ["F0"], "a refused entry must change nothing"


@every_method
@pytest.mark.parametrize("stages", [1, 4])
def test_a_restored_clock_goes_on_as_if_never_stopped(method: Method, stages: int, tmp_path: Path) -> None:
    """Stop after every tick of a run with gaps, through a file that torch reads without running code."""
    path = tmp_path / "state.pt"
    choice = random.Random(0)
    wishes = [choice.random() < 0.7 for _ in range(5 * stages)]
    clock = Clock(method, stages, 3)
    for wish in wishes:
        torch.save(clock.state_dict(), path)
        restored = Clock(method, stages, 3)
        restored.load_state_dict(torch.load(path, weights_only=True))
        assert (restored.tick_number, restored.in_flight) == (clock.tick_number, clock.in_flight)
        assert restored.may_enter == clock.may_enter
        enter = wish and clock.may_enter
        assert restored.tick(enter=enter) == clock.tick(enter=enter)
        assert restored.state_dict() == clock.state_dict()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (Clock(methods.DSP, 3, 2).state_dict(), "has method 'DSP', this pipeline has 'PETRA'"),
        (Clock(methods.PETRA, 4, 2).state_dict(), "has stages 4, this pipeline has 3"),
        (Clock(methods.PETRA, 3, 1).state_dict(), "has accumulation 1, this pipeline has 2"),
        ({"weight": 1, "bias": 2}, "got weight, bias; it was written by another version or is no clock's"),
        (
            Clock(methods.PETRA, 3, 2).state_dict() | {"by_age": [0, None]},
            "a clock of 3 stages has 5 places, the state has 2",
        ),
    ],
)
def test_the_state_of_another_clock_is_refused(state: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Clock(methods.PETRA, 3, 2).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((methods.PETRA, 0, 1), ValueError, "number of stages J must be at least 1, got 0"),
        ((methods.PETRA, 2.0, 1), TypeError, "J must be an int of at least 1, got 2.0"),
        ((methods.PETRA, 2, "4"), TypeError, "1..32"),
        ((methods.PETRA, 2, 33), ValueError, "k=33 is outside 1..32"),
        ((methods.PIPEDREAM_2BW, 4, 5), ValueError, "raise k to 6 or more"),
    ],
)
def test_wrong_settings_are_named(arguments: tuple[Method, int, int], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Clock(*arguments)


@given(
    method=st.sampled_from(methods.PAPER),
    stages=st.integers(1, 6),
    micro_batches=st.integers(0, 20),
    accumulation=st.integers(1, 32),
    data=st.data(),
)
def test_text_parses_back(
    method: Method, stages: int, micro_batches: int, accumulation: int, data: st.DataObject
) -> None:
    schedule = generate(method, stages, micro_batches, accumulation)
    assert parse(str(schedule)) == schedule
    assert len({tuple(at.start() for at in re.finditer("\\|", line)) for line in str(schedule).splitlines()[1:]}) <= 1
    start = data.draw(st.integers(0, len(schedule.ticks)))
    part = schedule.window(start, data.draw(st.integers(start, len(schedule.ticks))))
    assert parse(str(part)) == part


def test_a_stage_has_its_actions_in_order_and_a_window_the_numbers_of_its_ticks() -> None:
    schedule = generate(methods.PETRA, 2, 2, 1)
    assert " ".join(map(str, schedule.stage(0))) == "F0 F1 R0 B0 U0 R1 B1 U1"
    assert schedule.stage(1)[:2] == (Action(Kind.FORWARD, 0), Action(Kind.BACKWARD, 0))
    for stage in (-1, 2):
        with pytest.raises(IndexError, match=rf"no stage {stage}: this schedule has the stages 0\.\.1"):
            schedule.stage(stage)
    schedule = generate(methods.PETRA, 3, 9, 1)
    part = schedule.window(5, 9).window(6, 8)
    assert (part.first_tick, part.ticks) == (6, schedule.ticks[6:8])
    for start, stop in [(4, 8), (6, 14), (8, 6)]:
        with pytest.raises(ValueError, match=f"ticks {start} to {stop - 1} are not all in the schedule's 5 to 12"):
            schedule.window(5, 13).window(start, stop)
