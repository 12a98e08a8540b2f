"""Test the units of time of a micro-batch against Table 1."""

import pytest

from petra_core import methods
from reproduce.published.units import units_per_micro_batch


@pytest.mark.parametrize("stages", [2, 3, 7])
def test_units_match_table_1(stages: int) -> None:
    """Table 1 has 3J, 4J, 2, 3, 3. Its 4J ignores that the head reconstructs nothing with one micro-batch at a time."""
    for method, with_overlap, in_turn in (
        (methods.BACKPROPAGATION, 3 * stages, 3 * stages),
        (methods.REVERSIBLE_BACKPROPAGATION, 4 * stages - 1, 4 * stages - 1),
        (methods.DELAYED_GRADIENTS, 2, 3),
        (methods.DSP, 3, 4),
        (methods.APPROXIMATE_INPUTS, 4, 5),  # inverts with the current weights, differentiates with the stashed ones
        (methods.PETRA, 3, 4),
        (methods.PAREPROP, 3 * stages, 4 * stages - 1),
        (methods.PIPEDREAM_2BW, 2, 3),
    ):
        units = [units_per_micro_batch(method, stages, overlap=overlap) for overlap in (True, False)]
        assert units == [with_overlap, in_turn], method
