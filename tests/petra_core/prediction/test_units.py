"""Costs of schedules against Table 1 and against sums by hand."""

import pytest

from petra_core import methods
from petra_core.methods import Method
from petra_core.prediction.units import idle_fraction, units_per_micro_batch
from petra_core.schedule import generate

every_method = pytest.mark.parametrize("method", methods.ALL, ids=str)


@every_method
@pytest.mark.parametrize("stages", [2, 3, 7])
def test_units_are_those_of_table_1(method: Method, stages: int) -> None:
    """3J, 4J, 2, 3, 3; one at a time the head reconstructs nothing, which the table's 4J passes over."""
    schedule = generate(method, stages, 2 * stages, 4)
    with_overlap = {
        methods.BACKPROPAGATION: 3 * stages,
        methods.REVERSIBLE_BACKPROPAGATION: 4 * stages - 1,
        methods.DELAYED_GRADIENTS: 2,
        methods.DSP: 3,
        methods.APPROXIMATE_INPUTS: 4,  # inverts with the current weights, differentiates with the stashed ones
        methods.PETRA: 3,
    }
    in_turn = {
        methods.DELAYED_GRADIENTS: 3,
        methods.DSP: 4,
        methods.APPROXIMATE_INPUTS: 5,
        methods.PETRA: 4,
    }
    assert units_per_micro_batch(schedule, overlap=True) == with_overlap[method]
    assert units_per_micro_batch(schedule, overlap=False) == in_turn.get(method, with_overlap[method])


@pytest.mark.parametrize(
    ("method", "stages", "too_few"),
    [(methods.PETRA, 4, 6), (methods.DELAYED_GRADIENTS, 2, 2), (methods.BACKPROPAGATION, 3, 0)],
    ids=str,
)
def test_units_need_a_steady_state(method: Method, stages: int, too_few: int) -> None:
    message = f"at least {2 * stages - 1} micro-batches" if method.pipelined else "generate at least one"
    with pytest.raises(ValueError, match=message):
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
