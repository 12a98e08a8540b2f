"""Table 1 over J and k: what is drawn and listed is what was measured, each scale on its own."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce import published
from reproduce.cells.kinds import ComplexityCell
from reproduce.exhibits import growth, table1
from reproduce.exhibits.measured import sweeps
from reproduce.grids.plans import PLANS
from reproduce.measures.complexity import measure_complexity
from reproduce.records import results
from reproduce.show.content import Figure, Table
from tests import fake_records

ROWS = {row["method"]: row for row in published.read("table1_complexity")}
POINTS = [(2, 1), (3, 1), (3, 2), (3, 4)]  # inner stages, k


def cell(method: Method, depth: int, k: int, scale: str = "smoke") -> ComplexityCell:
    return replace(fake_records.complexity_cell(method, k), model=f"chain{depth}", scale=scale)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("records")
    for depth, k in POINTS:
        for method in (methods.BACKPROPAGATION, methods.DELAYED_GRADIENTS, methods.PETRA):
            one = cell(method, depth, k)
            fake_records.begin(one, root).finish(measure_complexity(one))
    return root


def test_k_is_varied_where_most_k_are_and_j_at_the_smallest_k(measured: Path) -> None:
    (sweep,) = sweeps(results.read(measured))
    assert sweep.reference_stages == 5
    assert sorted({m.cell.accumulation for m in sweep.by_accumulation}) == [1, 2, 4]
    assert sorted({m.stages for m in sweep.by_stages}) == [4, 5]
    assert sorted({m.cell.accumulation for m in sweep.reference}) == [1, 4]


def test_figures_are_one_for_j_and_one_for_k_and_well_formed(measured: Path) -> None:
    (sweep,) = sweeps(results.read(measured))
    found = list(growth.figures(ROWS, sweep))
    assert [figure.key for figure in found] == ["growth-J-smoke", "growth-k-smoke"]
    for figure in found:
        ElementTree.fromstring(figure.svg)
    assert "Activations from J = 4 to 5" in found[0].description


def test_every_measurement_is_listed_with_the_values_of_the_formulas(measured: Path) -> None:
    (sweep,) = sweeps(results.read(measured))
    table = growth.table(sweep)
    assert len(table.rows) == len(POINTS) * 3
    lines = {(int(row[0].text), int(row[1].text), row[2].text): row for row in table.rows}
    # Delayed gradients, J = 5, first inner stage: delay 6, so ceil(6 / k) copies.
    assert [lines[5, k, "Delayed gradients"][4].text for k in (1, 2, 4)] == ["6.00", "3.00", "2.00"]
    assert [lines[j, 1, "PETRA"][6].text for j in (4, 5)] == ["16.00", "20.00"]
    assert [lines[j, 1, "Backpropagation"][7].text for j in (4, 5)] == ["12.00", "15.00"]
    assert lines[5, 1, "PETRA"][8].value != lines[5, 1, "Backpropagation"][8].value


def test_measured_time_is_one_stage_s_pace_or_all_stages_in_a_row(measured: Path) -> None:
    (sweep,) = sweeps(results.read(measured))
    for m in sweep.all:
        assert m.backward_time is not None
        expected = max(1.0, m.backward_time) if m.method.pipelined else m.stages * (1.0 + m.backward_time)
        assert m.time == pytest.approx(expected)


def test_scales_never_share_a_table(measured: Path, tmp_path: Path) -> None:
    for method in (methods.BACKPROPAGATION, methods.PETRA):
        for scale in ("smoke", "small"):
            one = cell(method, 2, 1, scale)
            fake_records.begin(one, tmp_path).finish(measure_complexity(one))
    section = table1.section(results.read(tmp_path))
    keys = [block.key for block in section.blocks if isinstance(block, Table | Figure)]
    assert keys == ["table1-smoke", "bytes-smoke", "table1-small", "bytes-small"]  # one J and k: nothing to draw over


def test_the_smoke_grid_goes_over_j_and_over_k() -> None:
    cells = [c for c in PLANS["table1"]("smoke") if isinstance(c, ComplexityCell)]
    assert len(set(cells)) == len(cells)
    of_petra = {(c.model, c.accumulation) for c in cells if c.method == "PETRA"}
    assert of_petra == {("chain4", k) for k in (1, 2, 4, 8, 16, 32)} | {(f"chain{n}", 1) for n in (2, 8)}
