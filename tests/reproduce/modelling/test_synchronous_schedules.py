"""Test synchronous pipelines: their timelines and bytes against results by hand."""

import pytest

from petra_core import methods
from petra_core.prediction.footprint import Footprint
from petra_core.prediction.partition import Cost
from reproduce.modelling.peak_memory import find_peaks
from reproduce.modelling.simulation import Schedule, simulate
from reproduce.modelling.synchronous_schedules import gpipe, one_f_one_b
from tests.timelines import picture

UNIT = Cost(forward=1, backward=2)
PICTURES = {
    "gpipe": (gpipe(3, 4), ["0123......aabbccdd", ".0123...aabbccdd..", "..0123aabbccdd...."]),
    # As long as GPipe, with fewer micro-batches in flight.
    "1f1b": (one_f_one_b(3, 4), ["012....aa3bb.cc.dd", ".01..aa2bb3cc.dd..", "..0aa1bb2cc3dd...."]),
}


@pytest.mark.parametrize("name", PICTURES)
def test_schedules_match_hand_drawings(name: str) -> None:
    schedule, lines = PICTURES[name]
    costs = [UNIT] * len({stage for names in schedule for _, stage, _ in names})
    assert picture(simulate(schedule, costs)) == lines


def peaks(schedule: Schedule, footprint: Footprint) -> tuple[int, ...]:
    """Return the peak bytes of each device if all stages have the same footprint."""
    stages = len({stage for names in schedule for _, stage, _ in names})
    return find_peaks(simulate(schedule, [UNIT] * stages), [footprint] * stages, methods.DSP)


def test_bytes_of_micro_batches_in_flight() -> None:
    """The peak bytes of every device equal those calculated by hand."""
    one = Footprint(100, 0, 0, 0, 1, 0, 0, 0, 0)  # 100 bytes always, and 1 per input
    assert peaks(gpipe(3, 8), one) == (108, 108, 108)
    assert peaks(one_f_one_b(3, 8), one) == (103, 102, 101)
    # Both inputs wait when the first B begins; its graph is gone when the second does.
    assert peaks(gpipe(1, 2), Footprint(1, 0, 0, 0, 5, 0, passing=7, below=0, above=0)) == (1 + 2 * 5 + 7,)
