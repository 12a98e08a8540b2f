"""Test counts on a chain of equal stages (`tests/reproduce/modelling/test_complexity.py` tests them in units)."""

from dataclasses import replace
from pathlib import Path

import pytest

from petra_core import methods
from reproduce.cells.kinds import CellError
from reproduce.grids.plans.table1 import chains
from reproduce.measures.context import Context
from reproduce.records.record import Record
from reproduce.running.execution import execute
from tests import fake_records


def test_complexity_cell_runs_and_requires_a_chain(tmp_path: Path) -> None:
    """The runner measures a complexity cell, and a network other than a chain is refused."""
    assert len({cell.identity for cell in chains(depth=2, accumulations=(1, 3))}) == 12, "all methods at every k"
    cell = fake_records.complexity_cell(methods.PETRA)
    assert str(execute(Record.for_cell(cell, tmp_path), Context())) == "done"
    result = Record.for_cell(cell, tmp_path).read().result
    assert result is not None
    assert result["stages"] == 5
    with pytest.raises(CellError, match="chain of equal stages, such as chain4; got 'revnet18'"):
        replace(cell, model="revnet18", stem="cifar")
