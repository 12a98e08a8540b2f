"""Test which runs fall short of the accuracy of their scale."""

from reproduce.grids import recipes, scales
from reproduce.records.record import State, Status


def test_falls_short_depends_on_k_status_and_accuracy() -> None:
    """Finished runs below the target and failed runs at k = 1 and 4 fall short; others do not."""
    for accumulation, status, reached, short in (
        (1, Status.DONE, 90.1, False),
        (1, Status.DONE, 90.0, True),
        (4, Status.DONE, 20.0, True),
        (32, Status.DONE, 20.0, False),
        (1, Status.FAILED, None, True),
        (1, Status.PARTIAL, None, False),
    ):
        cell = recipes.cell("smoke", accumulation=accumulation)
        assert scales.by_name("smoke").falls_short(cell, State(status), reached) is short
