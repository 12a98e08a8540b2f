"""Test the partition of a network's stages among processes."""

import pytest

from petra_core import methods
from reproduce.cells.kinds import CellError
from reproduce.distributed import partitioning
from reproduce.grids import recipes


def test_shares_even_and_explicit() -> None:
    """`even` divides the stages evenly, and explicit numbers are used as given."""
    revnet = recipes.cell("smoke")
    assert partitioning.parse_partition(revnet, "even", 3) == (4, 3, 3)
    assert partitioning.parse_partition(revnet, "1,2,7", 3) == (1, 2, 7)
    assert partitioning.format_partition((1, 2, 7)) == "1,2,7"


def test_pareprop_requires_one_process() -> None:
    cell = recipes.cell("smoke", method=methods.PAREPROP)
    assert partitioning.parse_partition(cell, "even", 1) == (10,)
    for partition in ("even", "4,6"):
        with pytest.raises(CellError, match="--processes 2: PAREPROP overlaps"):
            partitioning.parse_partition(cell, partition, 2)


def test_balanced_is_resolved_before_processes_start() -> None:
    with pytest.raises(CellError, match="with torchrun, give the numbers that `python -m reproduce partition` prints"):
        partitioning.parse_partition(recipes.cell("smoke"), "balanced", 2)
