"""The time budget: stops early enough to save, and begins nothing that leads nowhere."""

import dataclasses
import pickle

import pytest

from petra_core import methods
from reproduce.grids.smoke import digits_cell
from reproduce.running.budget import RESERVE_SECONDS, START_SECONDS, Budget
from tests.fake_records import complexity_cell

CELL = digits_cell()
MEASURED = complexity_cell(methods.PETRA)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_it_ends_before_the_time_is_up(clock):
    budget = Budget(100, clock=clock)
    clock.now += 100 - RESERVE_SECONDS - 0.1
    assert not budget.ended
    clock.now += 0.2
    assert budget.ended
    assert budget.left > 0


def test_the_longest_checkpoint_and_tick_are_kept_free(clock):
    budget = Budget(100, clock=clock)
    budget.begin()
    budget.ticked()
    clock.now += 3
    assert not budget.ended  # which has seen a tick of 3 seconds
    budget.saved(4)
    budget.saved(1)
    clock.now += 100 - 3 - RESERVE_SECONDS - 2 * 4 - 3 - 0.1
    budget.begin()
    assert not budget.ended
    clock.now += 0.2
    assert budget.ended


def test_a_cell_is_begun_only_if_its_data_can_be_loaded(clock):
    budget = Budget(100, clock=clock)
    clock.now += 100 - RESERVE_SECONDS - START_SECONDS - 0.1
    assert budget.allows(CELL)
    clock.now += 0.2
    assert not budget.allows(CELL)

    slow = Budget(100, clock=clock)
    slow.begin()
    clock.now += 40  # loading
    slow.ticked()
    assert slow.allows(CELL)
    clock.now += 20
    assert not slow.allows(CELL)


def test_what_cannot_be_interrupted_must_fit_as_a_whole(clock):
    budget = Budget(100, {MEASURED.name: 80.0}, clock=clock)
    assert budget.allows(MEASURED)
    clock.now += 30
    assert not budget.allows(MEASURED)
    assert budget.allows(dataclasses.replace(MEASURED, seed=1)), "of unknown length: it is tried"
    assert budget.allows(CELL)


def test_a_worker_gets_the_same_deadline():
    budget = Budget(100)
    assert pickle.loads(pickle.dumps(budget)).left == pytest.approx(budget.left, abs=1)
