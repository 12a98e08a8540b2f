"""Table 6: the partition is the network's, fragments keep their mark, what was held is beside what was predicted."""

from pathlib import Path

from petra_core import methods, models
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits import table6
from reproduce.exhibits._exhibit import section
from reproduce.grids.plans import PLANS
from reproduce.published import Mark
from reproduce.records import results
from reproduce.records.frames import Frames
from reproduce.show.content import TIMES, Section, Tone
from tests import fake_records
from tests.reproduce.exhibits.test_table3 import measured, tables
from tests.reproduce.measures.test_held_memory import cell


def read(root: Path) -> Section:
    return section(table6.EXHIBIT, Frames(results.read(root)))


def test_fragments_are_shown_with_their_mark_and_no_stage(tmp_path: Path) -> None:
    rows = tables(read(tmp_path))["table6"].rows
    assert [row[1].text for row in rows] == ["1.15", "0.31", "0.11", "2.67"]
    assert {row[1].mark for row in rows} == {Mark.SECOND_HAND}


def test_partition_is_that_of_the_paper_s_network(tmp_path: Path) -> None:
    rows = tables(read(tmp_path))["table6-imagenet"].rows
    assert sum(int(row[3].text.replace(",", "")) for row in rows) == 12_215_912
    assert [row[2].text for row in rows] == [
        "buffered",
        "reversible",
        "reversible",
        "buffered",
        "reversible",
        "buffered",
        "reversible",
        "buffered",
        "reversible",
        "head",
    ]
    assert [row[4].text for row in rows] == ["18", "16", "14", "12", "10", "8", "6", "4", "2", "0"]


def test_layers_are_named_with_their_strides() -> None:
    stages = models.revnet(50, num_classes=10, width=2)
    assert table6.blocks_of(stages[2]) == f"conv 1{TIMES}1 8→2, conv 3{TIMES}3 2→2, conv 1{TIMES}1 2→8"
    assert table6.blocks_of(stages[4]).startswith(
        f"conv 1{TIMES}1 8→4, conv 3{TIMES}3 4→4/2, conv 1{TIMES}1 4→16, conv 1{TIMES}1 8→16/2"
    )
    assert table6.blocks_of(stages[-1]) == "linear 128→10"


def test_inputs_of_the_first_down_sampling_stage_by_hand(tmp_path: Path) -> None:
    row = tables(read(tmp_path))["table6-imagenet"].rows[3]
    columns = [column.name for column in tables(read(tmp_path))["table6-imagenet"].columns]
    kept = (
        13 * 2 * 64 * 64 * 56 * 56 * 4
    )  # 12 that wait and the one at work, two streams, batch, channels, pixels, bytes
    assert row[columns.index("inputs")].value == kept / 1e6


def test_what_was_held_stands_beside_what_was_predicted_and_a_difference_is_an_alert(tmp_path: Path) -> None:
    wanted = cell(methods.PETRA)
    fake_records.begin(wanted, tmp_path).finish(measured(wanted))
    fake_records.begin(cell(methods.DSP), tmp_path).finish(measured(cell(methods.DSP)))
    found = read(tmp_path)
    table = tables(found)["table6-held-smoke-cifar10-b2"]
    assert len(table.rows) == 10
    assert {row[-1].text for row in table.rows} == {"0.00"}
    assert found.findings[1].tone is Tone.GOOD
    assert "1 measurements of really held buffers, in which 80 of 80 numbers" in found.findings[1].text

    fake_records.begin(wanted, tmp_path).finish(
        {**measured(wanted), "rows": [{**row, "peak": row["peak"] + 10**6} for row in measured(wanted)["rows"]]}
    )
    found = read(tmp_path)
    assert {row[-1].tone for row in tables(found)["table6-held-smoke-cifar10-b2"].rows} == {Tone.ALERT}
    assert found.findings[1].tone is Tone.ALERT
    assert "in which 0 of 80 numbers" in found.findings[1].text


def test_cells_are_those_of_table_3_that_show_this_network() -> None:
    for scale in ("smoke", "small", "paper"):
        own = [c for c in PLANS["table6"](scale) if isinstance(c, MemoryCell)]
        assert own
        assert set(own) <= set(PLANS["table3"](scale))
        assert {(c.model, c.method) for c in own} == {("revnet18", "PETRA")}
