"""Test the partition of a network's stages among processes."""

import pytest

from petra_core import methods
from reproduce.cells.kinds import CellError
from reproduce.distributed import partitioning
from reproduce.grids import recipes


def test_shares() -> None:
    revnet = recipes.cell("smoke")
    assert partitioning.parse_partition(revnet, "even", 3) == (4, 3, 3)
    assert partitioning.parse_partition(revnet, "1,2,7", 3) == (1, 2, 7)
    assert partitioning.format_partition((1, 2, 7)) == "1,2,7"


@pytest.mark.parametrize(
    ("partition", "processes", "message"),
    [
        ("even", 11, "revnet18 has 10 stages: 11 ranks need at least 11 stages"),
        ("2,2", 2, "10 stages must have the sum 10, got \\(2, 2\\) with the sum 4; even would be 5,5"),
        ("4,3,3", 2, "among 2 processes: it has 3 parts; even would be 5,5"),
        ("0,10", 2, r"must give each of the 2 ranks at least one stage, got \(0, 10\)"),
        ("4x2,6", 3, "a partition is even, balanced, or numbers of stages .* got '4x2,6'"),
        ("balanced", 2, "with torchrun, give the numbers that `python -m reproduce partition` prints"),
        ("a", 2, "a partition is even, balanced, or numbers of stages separated by commas, such as 2,3,5; got 'a'"),
    ],
)
def test_what_does_not_fit_is_refused(partition: str, processes: int, message: str) -> None:
    with pytest.raises(CellError, match=message):
        partitioning.parse_partition(recipes.cell("smoke"), partition, processes)


def test_pareprop_is_trained_by_one_process() -> None:
    cell = recipes.cell("smoke", method=methods.PAREPROP)
    assert partitioning.parse_partition(cell, "even", 1) == (10,)
    for partition in ("even", "4,6"):
        with pytest.raises(CellError, match=r"--processes 2: PAREPROP overlaps .* choose REVERSIBLE_BACKPROPAGATION"):
            partitioning.parse_partition(cell, partition, 2)
