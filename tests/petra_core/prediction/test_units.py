"""Costs of schedules against Table 1 and against sums by hand."""

import pytest

from petra_core import methods
from petra_core.prediction.units import idle_fraction, units_per_micro_batch
from petra_core.schedule import generate


@pytest.mark.parametrize("stages", [2, 3, 7])
def test_units_are_those_of_table_1(stages: int) -> None:
    """3J, 4J, 2, 3, 3; one at a time the head reconstructs nothing, which the table's 4J passes over."""
    for method, with_overlap, in_turn in (
        (methods.BACKPROPAGATION, 3 * stages, 3 * stages),
        (methods.REVERSIBLE_BACKPROPAGATION, 4 * stages - 1, 4 * stages - 1),
        (methods.DELAYED_GRADIENTS, 2, 3),
        (methods.DSP, 3, 4),
        (methods.APPROXIMATE_INPUTS, 4, 5),  # inverts with the current weights, differentiates with the stashed ones
        (methods.PETRA, 3, 4),
    ):
        schedule = generate(method, stages, 2 * stages, 4)
        units = [units_per_micro_batch(schedule, overlap=overlap) for overlap in (True, False)]
        assert units == [with_overlap, in_turn], method


def test_units_need_a_steady_state() -> None:
    for method, stages, too_few, words in (
        (methods.PETRA, 4, 6, "at least 7 micro-batches"),
        (methods.DELAYED_GRADIENTS, 2, 2, "at least 3 micro-batches"),
        (methods.BACKPROPAGATION, 3, 0, "generate at least one"),
    ):
        with pytest.raises(ValueError, match=words):
            units_per_micro_batch(generate(method, stages, too_few, 1), overlap=True)
        assert units_per_micro_batch(generate(method, stages, too_few + 1, 1), overlap=True) > 0


def test_idle_fraction_is_the_bubble() -> None:
    # One at a time: in 2J - 1 ticks each stage has two turns, the head one.
    assert idle_fraction(generate(methods.BACKPROPAGATION, 4, 5, 1)) == pytest.approx(1 - 7 / 28)
    # Pipelined: empty triangles at the head only, before the first micro-batch and after the last.
    pipelined = generate(methods.PETRA, 4, 9, 1)
    assert idle_fraction(pipelined) == pytest.approx((2 * 3 + 2 * 2 + 2 * 1) / (15 * 4))
    assert idle_fraction(pipelined.window(6, 9)) == 0
    with pytest.raises(ValueError, match="without ticks"):
        idle_fraction(generate(methods.PETRA, 4, 0, 1))
