"""Test Table 6: its stages are those of the paper's network, and a deviation from the prediction is an alert."""

from pathlib import Path

from petra_core import methods
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits import table6
from reproduce.grids.plans import PLANS
from reproduce.presentation.content import Role
from reproduce.records import volumes
from tests import fake_records, sections
from tests.reproduce.exhibits.test_table3 import measured
from tests.reproduce.measures.test_held_memory import cell


def test_first_downsampling_stage_matches_hand_calculation(tmp_path: Path) -> None:
    """The parameters and the inputs of the first down-sampling stage equal a calculation by hand."""
    table = sections.table(sections.made(table6.EXHIBIT, tmp_path), "table6-imagenet")
    columns = [column.name for column in table.columns]
    assert sum(int(row[3].text.replace(",", "")) for row in table.rows) == 12_215_912
    # 12 waiting micro-batches and the current one, two streams, batch, channels, pixels, bytes
    assert table.rows[3][columns.index("inputs")].value == 13 * 2 * 64 * 64 * 56 * 56 * 4 / 1e6


def test_table6_deviation_from_prediction_is_an_alert(tmp_path: Path) -> None:
    """The total deviation from the prediction is listed, and a non-zero value has tone ALERT."""
    wanted = cell(methods.PETRA)
    assert wanted in PLANS["table6"]("smoke")
    result = measured(wanted)
    # Each shift is added to 8 kinds of 10 stages and subtracted from every other stage; the value is the total
    # deviation. All amounts are raised by the largest shift, since a record with a negative amount is not shown.
    shifts = {0: 0, 10**6: 80 * 10**6}
    for shift, departed in shifts.items():
        rows = [
            {**row, "peak": row["peak"] + 10**6 + shift * (-1) ** row["stage"], "predicted": row["predicted"] + 10**6}
            for row in result["rows"]
        ]
        volumes.remove(wanted, tmp_path)
        fake_records.begin(wanted, tmp_path).finish({**result, "rows": rows})
        (row,) = sections.table(sections.made(table6.EXHIBIT, tmp_path), "table6-held-smoke").rows
        assert (row[-1].value, row[-1].role) == (departed / 1e6, Role.ALERT if shift else Role.OURS)


def test_table6_cells_are_a_subset_of_table3() -> None:
    """The cells are those of Table 3 with PETRA on RevNet-18."""
    for scale in ("smoke", "small", "paper"):
        cells = [c for c in PLANS["table6"](scale) if isinstance(c, MemoryCell)]
        assert cells
        assert set(cells) <= set(PLANS["table3"](scale))
        assert {(c.model, c.method) for c in cells} == {("revnet18", "PETRA")}
