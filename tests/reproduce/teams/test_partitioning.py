"""Sharing a network's stages among processes."""

import pytest

from petra_core import methods
from reproduce.cells.kinds import CellError
from reproduce.grids import recipes
from reproduce.teams import partitioning
from reproduce.teams.partitioning import Shares


def test_shares() -> None:
    revnet = recipes.cell("smoke")
    assert partitioning.shares(revnet, "even", 3) == Shares((4, 3, 3), (1, 1, 1))
    for text in ("1,2,7", "4x2,6", "10x3"):
        assert str(partitioning.shares(revnet, text, 3)) == text
    assert partitioning.shares(revnet, "4x2,6", 3).of_stages == (2, 2, 2, 2, 1, 1, 1, 1, 1, 1)
    assert partitioning.shares(revnet, "1,2,7", 3).of_stages == ()


def test_stages_replicated_make_another_cell_and_the_same_however_they_are_cut() -> None:
    cell = recipes.cell("smoke", accumulation=4)
    first, other = (
        partitioning.replicated(cell, partitioning.shares(cell, *how)) for how in (("4x2,6", 3), ("1x2,3x2,6", 5))
    )
    assert first == other != cell
    assert "replicated" in first.name
    assert partitioning.replicated(cell, partitioning.shares(cell, "4,6", 2)) == cell
    with pytest.raises(CellError, match=r"3 replicas share the k=4 .* \(remainder 1\)"):
        partitioning.replicated(cell, partitioning.shares(cell, "4x3,6", 4))
    plain = recipes.cell("smoke", method=methods.BACKPROPAGATION, accumulation=4)
    with pytest.raises(CellError, match="BACKPROPAGATION lets one micro-batch pass at a time"):
        partitioning.replicated(plain, partitioning.shares(plain, "4x2,6", 3))


@pytest.mark.parametrize(
    ("partition", "processes", "message"),
    [
        ("even", 11, "revnet18 has 10 stages: 11 ranks need at least as many stages"),
        ("2,2", 2, "10 stages has that sum, got \\(2, 2\\) with the sum 4; even would be 5,5"),
        (
            "4x2,6",
            2,
            "the parts \\(4, 6\\) with \\(2, 1\\) replicas are for 3 ranks, and there are 2; even would be 5,5",
        ),
        ("4x0,6", 1, "each of the 2 parts has at least one replica, got \\(0, 1\\)"),
        ("balanced", 2, "with torchrun, give the numbers that `python -m reproduce partition` prints"),
        ("a", 2, "a partition is even, balanced, or numbers separated by commas such as 2,3,5, or 4x2,6 .* got 'a'"),
    ],
)
def test_what_does_not_fit_is_refused(partition: str, processes: int, message: str) -> None:
    with pytest.raises(CellError, match=message):
        partitioning.shares(recipes.cell("smoke"), partition, processes)


def test_pareprop_is_trained_by_one_process() -> None:
    cell = recipes.cell("smoke", method=methods.PAREPROP)
    assert partitioning.shares(cell, "even", 1).partition == (10,)
    for partition in ("even", "4,6"):
        with pytest.raises(CellError, match=r"--processes 2: PAREPROP overlaps .* choose REVERSIBLE_BACKPROPAGATION"):
            partitioning.shares(cell, partition, 2)
