"""The model of Table 5 against sums done by hand."""

import pytest

from reproduce.tables.speed_model import Cost, Link, devices_enough, one_at_a_time, pipelined, slowest

#                forward, backward, update, up, down
COSTS = [
    Cost(1.0, 3.0, 0.5, 100, 0),
    Cost(2.0, 5.0, 0.25, 200, 400),
    Cost(0.5, 1.5, 0.25, 50, 300),
    Cost(0.25, 0.75, 0.5, 0, 100),
]


def test_one_at_a_time_is_all_work_in_a_row_and_the_last_update() -> None:
    assert one_at_a_time(COSTS) == pytest.approx(4 + 7 + 2 + 1 + 0.5)


def test_the_slowest_stage_sets_the_pace_of_the_pipeline() -> None:
    assert slowest(COSTS) == 1
    assert pipelined(COSTS) == pytest.approx(7.25)


def test_messages_are_waited_for_by_who_receives_them() -> None:
    link = Link(bandwidth=100.0, latency=0.1)
    messages = (1.0 + 2.0 + 0.5) + (4.0 + 3.0 + 1.0) + 6 * 0.1  # nothing goes up from the head or down from the stem
    assert one_at_a_time(COSTS, link) == pytest.approx(14.5 + messages)
    assert pipelined(COSTS, link) == pytest.approx(7.25 + 1.0 + 3.0 + 2 * 0.1)


def test_a_slow_link_can_make_another_stage_the_slowest() -> None:
    link = Link(bandwidth=10.0)
    assert pipelined(COSTS, link) == pytest.approx(max(4.5 + 40, 7.25 + 10 + 30, 2.25 + 20 + 10, 1.5 + 5))
    assert pipelined([*COSTS[:2], Cost(0.5, 1.5, 0.25, 500, 300), COSTS[3]], link) == pytest.approx(1.5 + 50)


def test_equal_stages_without_updates_are_faster_by_their_number() -> None:
    costs = [Cost(1.0, 3.0, 0.0, 10, 20)] * 7
    assert one_at_a_time(costs) / pipelined(costs) == pytest.approx(7)
    assert devices_enough(costs) == 7


@pytest.mark.parametrize(
    ("turns", "devices"),
    [([4, 8, 2, 1], 3), ([4, 4, 8, 2, 6], 3), ([1, 1, 1, 9], 2), ([5], 1), ([0.1, 0.2, 0.3], 2)],
)
def test_neighbours_that_are_quick_share_a_device(turns: list[float], devices: int) -> None:
    assert devices_enough([Cost(turn, 0.0, 0.0, 0, 0) for turn in turns]) == devices
