"""Test the partition of a network's stages among processes."""

import dataclasses

from petra_core import methods
from reproduce.distributed import partitioning
from reproduce.grids import recipes


def test_shares_even_and_explicit() -> None:
    """`even` divides the stages evenly, and explicit numbers are used as given."""
    revnet = recipes.cell("smoke")
    assert partitioning.parse_partition(revnet, "even", 3) == (4, 3, 3)
    assert partitioning.parse_partition(revnet, "1,2,7", 3) == (1, 2, 7)
    assert partitioning.format_partition((1, 2, 7)) == "1,2,7"
    merged = dataclasses.replace(revnet, timing="1f1b", stages=(4, 3, 3))  # one staleness for several blocks
    assert partitioning.parse_partition(merged, "even", 3) == (4, 3, 3)
    assert partitioning.parse_partition(merged, "even", 2) == (5, 5), "processes share blocks"


def test_pareprop_has_one_process() -> None:
    assert partitioning.parse_partition(recipes.cell("smoke", method=methods.PAREPROP), "even", 1) == (10,)
