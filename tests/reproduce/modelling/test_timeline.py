"""Test timelines and the schedules that they simulate against results by hand."""

import json

import pytest

from petra_core import methods
from petra_core.prediction.partition import Cost
from petra_core.staleness import lockstep, one_f_one_b
from reproduce.drawing.timeline import Event, Timeline
from reproduce.modelling.simulation import Link, make_schedule, merge_costs, simulate
from tests.timelines import picture

UNIT = Cost(forward=1, backward=2)


def test_petra_timeline_matches_manual_drawing() -> None:
    timeline = simulate(make_schedule(methods.PETRA, (1, 1, 1), 6), [UNIT] * 3)
    assert picture(timeline) == ["01234..aa5bb.cc.dd.ee.ff", ".012.aa3bb4cc5dd.ee.ff..", "..0aa1bb2cc3dd4ee5ff...."]
    assert timeline.seconds_per_micro_batch() == 3  # devices are only idle during filling and draining


def test_speed_depends_on_staleness_and_latency() -> None:
    """Each stage is on one device, with F = 1 and B = 2. Two stages of equal staleness work one after the other."""
    for staleness, instant, slow in ((lockstep(4), 3.0, 3.0), (one_f_one_b(4), 3.0, 3.37), ((2, 1, 0, 0), 6.0, 6.5)):
        schedule = make_schedule(methods.PETRA, (1,) * 4, 200, staleness=staleness)
        for link, expected in ((Link(), instant), (Link(latency=0.25), slow)):
            pace = simulate(schedule, [UNIT] * 4, link).seconds_per_micro_batch(skip=80, drop=40)
            assert pace == pytest.approx(expected, rel=0.01), (staleness, link)


def test_link_has_latency_and_carries_one_message_at_a_time() -> None:
    """Devices wait for messages of a slow link, which carries one at a time."""
    costs = [Cost(1, 1, up=2), Cost(1, 1, down=2)]
    schedule = make_schedule(methods.DSP, (1, 1), micro_batches=2)
    assert picture(simulate(schedule, costs)) == ["01.a.b", ".0a1b."]
    assert picture(simulate(schedule, costs, Link(latency=1, bandwidth=1))) == ["01.......a.b", "....0a1b...."]


def test_merged_stages_wait_less() -> None:
    """Work and speed are equal, but the first gradient returns after two micro-batches instead of six."""
    costs = [Cost(1, 2, 3, up=10 + stage, down=20 + stage, weights=5) for stage in range(4)]
    assert merge_costs(costs, (1, 3)) == [costs[0], Cost(3, 6, 9, 13, 21, 15)]
    grouped, merged = (make_schedule(methods.PETRA, sizes, 30) for sizes in ((2, 2), (1, 1)))
    for schedule, each, before in ((grouped, [UNIT] * 4, 7), (merged, merge_costs([UNIT] * 4, (2, 2)), 3)):
        kinds = [kind for kind, stage, _ in schedule[0] if stage == 0]
        assert kinds.index("B") == before
        assert simulate(schedule, each).seconds_per_micro_batch(skip=10, drop=10) == pytest.approx(6)


def test_chrome_trace_is_in_microseconds() -> None:
    trace = json.loads(json.dumps(simulate(make_schedule(methods.BACKPROPAGATION, (1,), 1), [UNIT]).chrome_trace()))
    event = trace["traceEvents"][1]
    assert (event["name"], event["ts"], event["dur"], event["tid"]) == ("B0", 1e6, 2e6, 0)
    assert event["args"] == {"stage": 0, "micro_batch": 0}


def test_timeline_measures_do_not_depend_on_start() -> None:
    """One device does four micro-batches of three actions of a second; another is busy half of the time."""
    kinds = "FBW"
    begun = [(0, kinds[place % 3], place // 3, 5.0 + place) for place in range(12)]
    begun += [(1, "F", number, 5.0 + 2 * number) for number in range(6)]
    whole = Timeline(tuple(Event(d, (kind, d, number), at, at + 1) for d, kind, number, at in begun), 2)
    assert (whole.seconds, whole.busy(0), whole.idle(0), whole.busy(1), whole.idle(1)) == (12, 12, 0, 6, 6)
    assert whole.seconds_per_micro_batch() == 3
    beside = Timeline((*whole.events, Event(1, ("R", 1, 0), 5.5, 6.5), Event(1, ("R", 1, 1), 7.25, 7.75)), 2)
    assert beside.busy(1) == 6.5  # overlapping time counts once
    for skip, drop in ((3, 0), (0, 3), (0, 5), (2, 12)):
        with pytest.raises(ValueError, match=f"4 minus {skip} at the beginning and {drop} at the end"):
            whole.seconds_per_micro_batch(skip, drop)
