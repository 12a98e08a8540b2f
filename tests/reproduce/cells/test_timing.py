"""Test timing and stages of a cell: the resulting staleness vector, and refused values."""

import dataclasses

import pytest

from petra_core import methods, staleness
from reproduce.cells import timing
from reproduce.cells.kinds import TrainedCell
from reproduce.grids import recipes

REVNET = recipes.cell("smoke", "revnet18", methods.PETRA, 4)


def at(**settings: object) -> TrainedCell:
    return dataclasses.replace(REVNET, **settings)  # type: ignore[arg-type]  # wrong values are tested, too


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (18, 16, 14, 12, 10, 8, 6, 4, 2, 0)),
        ({"timing": "1f1b"}, (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)),
        ({"timing": "1f1b+0.5"}, (14, 12, 11, 9, 8, 6, 5, 3, 2, 0)),
        ({"timing": "1f1b", "stages": (3, 2, 2, 3)}, (3, 3, 3, 2, 2, 1, 1, 0, 0, 0)),
        ({"stages": (5, 5)}, (2, 2, 2, 2, 2, 0, 0, 0, 0, 0)),
        ({"stages": (10,)}, (0,) * 10),
    ],
)
def test_staleness_vector_of_timing_and_stages(settings: dict[str, object], expected: tuple[int, ...]) -> None:
    """Timing and stages of a cell determine the staleness of every block."""
    assert timing.vector(at(**settings)) == expected


def test_lockstep_equals_slack_1_and_one_block_stages() -> None:
    """Lockstep equals 1F1B with slack 1, and stages of one block each equal the default stages."""
    assert timing.vector(REVNET) == staleness.lockstep(10) == timing.vector(at(timing="1f1b+1"))
    one_each = at(stages=(1,) * 10)
    assert (one_each, one_each.identity) == (REVNET, REVNET.identity)
    assert timing.vector(at(method="BACKPROPAGATION")) is None


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *(("lockstep", "lockstep"), ("1f1b+1", "lockstep"), ("1f1b+1.00", "lockstep")),
        *(("1f1b", "1f1b"), ("1f1b+0", "1f1b"), ("1f1b+0.0", "1f1b")),
        *(("1f1b+0.5", "1f1b+0.5"), ("1f1b+00.50", "1f1b+0.5"), ("1f1b+10", "1f1b+10"), ("1f1b+2.0", "1f1b+2")),
    ],
)
def test_equivalent_timings_have_one_name(written: str, name: str) -> None:
    """Equivalent spellings of a timing have the same canonical name and slack."""
    assert timing.canonical(written) == name
    assert timing.slack(written) == timing.slack(name)


def test_timing_title() -> None:
    assert timing.title("lockstep") == "lockstep"
    assert timing.title("1f1b", (3, 2, 2, 3)) == "asynchronous 1F1B, 4 stages"
    assert timing.title("1f1b+0.5") == "asynchronous 1F1B + 0.5"


def test_slug_contains_timing_and_stages() -> None:
    assert at(timing="1f1b", stages=(5, 5)).slug == "digits-revnet18-w8-petra-k4-1f1b-d5.5-s0"
