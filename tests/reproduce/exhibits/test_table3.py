"""Table 3: the published values and the rules; what the engine holds against the rules, at the same batch, exactly."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce import published
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits import table3
from reproduce.exhibits._exhibit import section
from reproduce.grids.plans import PLANS
from reproduce.grids.plans.table3 import METHODS
from reproduce.measures.context import Context
from reproduce.measures.held_memory import measure, predicted
from reproduce.modelling.buffer_rules import CONFIGURATIONS, CONSISTENT_RULE, PUBLISHED_RULE, memory, revnet_sizes
from reproduce.records import results
from reproduce.records.frames import Frames
from reproduce.records.record import Record
from reproduce.show.content import Figure, Section, Table, Tone
from tests import fake_records
from tests.reproduce.measures.test_held_memory import cell

BATCH_COUNTER = 8  # bytes of num_batches_tracked, an integer, which is no statistic


def measured(wanted: MemoryCell) -> dict[str, Any]:
    """What is held does not depend on the scale that the cell is said to be of."""
    return measured_once(replace(wanted, scale="smoke"))


@cache
def measured_once(wanted: MemoryCell) -> dict[str, Any]:
    return measure(wanted, Record(Path(), wanted), Context())


def write(root: Path, *wanted: MemoryCell) -> None:
    for each in wanted:
        fake_records.begin(each, root).finish(measured(each))


def planned(monkeypatch: pytest.MonkeyPatch, *wanted: MemoryCell) -> None:
    """Let the table's plan have these cells, which take less time than its own, of which the paper's setting stays."""
    papers = PLANS["table3"]("paper")
    monkeypatch.setitem(PLANS, "table3", lambda scale: [each for each in (*papers, *wanted) if each.scale == scale])


def read(root: Path) -> Section:
    return section(table3.EXHIBIT, Frames(results.read(root)))


def tables(found: Section) -> dict[str, Table]:
    return {block.key: block for block in (*found.blocks, *found.folded) if isinstance(block, Table)}


def small(method: Method, batch_size: int = 2, scale: str = "small") -> MemoryCell:
    return cell(method, scale=scale, batch_size=batch_size)


def all_of(batch_size: int, scale: str = "small") -> list[MemoryCell]:
    return [small(method, batch_size, scale) for method in METHODS]


# --- beside the published values


def test_published_values_stand_with_their_mark_and_a_difference_of_nought(tmp_path: Path) -> None:
    found = read(tmp_path)
    for row, line in zip(published.read("table3_memory"), tables(found)["table3"].rows, strict=True):
        assert (line[2].text, line[2].mark, line[2].tone) == (row["memory_gb"], row.mark, Tone.PUBLISHED)
        assert [entry.text for entry in line[5:6] + line[9:]] == ["0.0", "not run", ""]
    assert found.findings[0].tone is Tone.GOOD
    assert "4 of 4 rows" in found.findings[0].text


def test_it_is_an_alert_when_the_digits_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table3, "PUBLISHED_RULE", CONSISTENT_RULE)
    finding = read(tmp_path).findings[0]
    assert finding.tone is Tone.ALERT
    assert "0 of 4 rows" in finding.text


# --- really held


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *((method, "revnet18") for method in METHODS),
        *(pytest.param(METHODS[n], "revnet50", marks=pytest.mark.slow) for n in (0, 3)),  # every term is in one of them
    ],
    ids=str,
)
def test_held_and_published_rule_differ_by_four_known_terms(method: Method, model: str) -> None:
    wanted = cell(method, model=model)
    sizes = revnet_sizes(int(model.removeprefix("revnet")), "cifar10", wanted.batch_size, wanted.width)
    configuration = CONFIGURATIONS[METHODS.index(method)]
    norms = {size.stage: 0 for size in sizes}
    for row in measured(wanted)["rows"]:
        if row["kind"] == "buffers":
            norms[row["stage"]] = row["peak"] - sizes[row["stage"]].statistics
    assert all(extra % BATCH_COUNTER == 0 for extra in norms.values())
    stem, head = sizes[0], sizes[-1]
    reversible = [size for size in sizes[1:-1] if not size.buffered]
    images = 0 if configuration.input_buffer else stem.staleness * sum(stem.streams)  # which the rule leaves out
    rebuilt = 0 if configuration.input_buffer else sum(size.streams[0] for size in reversible)  # a message, not kept
    expected = memory(sizes, configuration, PUBLISHED_RULE) + images - rebuilt + head.streams[1] + sum(norms.values())
    assert sum(row["peak"] for row in measured(wanted)["rows"] if row["kind"] in table3.COUNTED) == expected


def test_what_was_held_stands_beside_the_rules_at_the_same_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, *all_of(2))
    write(tmp_path, *all_of(2))
    found = read(tmp_path)
    rows = tables(found)["table3-held-small"].rows
    assert [row[0].text for row in rows] == ["RevNet-18, width 4, CIFAR-10, batch 2, J = 10"] * 4
    assert [row[1].text for row in rows] == ["Delayed gradients", "DSP", "Approximate inputs", "PETRA"]
    sizes = revnet_sizes(18, "cifar10", 2, 4)
    assert rows[3][2].value == memory(sizes, CONFIGURATIONS[3], PUBLISHED_RULE) / 1e6
    whole, petra = (held_by(all_of(2)[place]) for place in (0, 3))
    assert rows[3][8].value == pytest.approx(petra / 1e6)
    assert [rows[place][9].value for place in (0, 3)] == pytest.approx([0, 100 * (1 - petra / whole)])
    assert {(row[10].text, row[10].tone) for row in rows} == {("0.0", Tone.OURS)}
    assert {row[11].hint for row in rows} == {measured(small(METHODS[0]))["process"]["source"]}
    (figure,) = (block for block in found.blocks if isinstance(block, Figure))
    assert figure.svg.count(">18 DSP<") == 1
    stages = tables(found)["table3-stages-small"].rows
    assert len(stages) == 4 * 10
    assert sum(row[-1].value for row in stages[-10:]) == pytest.approx(petra / 1e6)
    assert found.findings[1].tone is Tone.GOOD
    assert "4 measurements of really held buffers, in which 320 of 320 numbers" in found.findings[1].text


def held_by(wanted: MemoryCell) -> int:
    return sum(row["peak"] for row in measured(wanted)["rows"])


def test_each_scale_speaks_of_the_largest_network_of_which_all_four_were_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [*all_of(2), *all_of(3), small(methods.PETRA, 4), *all_of(2, "paper")]
    planned(monkeypatch, *wanted)
    write(tmp_path, *wanted)
    found = [finding.text for finding in read(tmp_path).findings if "PETRA held" in finding.text]
    assert len(found) == 2
    for said, scale, batch in zip(found, ("paper", "small"), (2, 3), strict=True):
        whole, petra = (held_by(small(method, batch)) for method in (METHODS[0], METHODS[3]))
        assert said.startswith(f"RevNet-18, width 4, CIFAR-10, batch {batch} (scale “{scale}”)")
        assert f"{100 * (1 - petra / whole):.1f} % less;" in said


def test_a_saving_is_of_the_same_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [small(methods.DELAYED_GRADIENTS), small(methods.PETRA, 3)]
    planned(monkeypatch, *wanted)
    write(tmp_path, *wanted)
    rows = tables(read(tmp_path))["table3-held-small"].rows
    assert [row[9].text for row in rows] == ["0.0", ""]


def test_a_count_that_departs_from_the_prediction_is_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = small(methods.PETRA)
    planned(monkeypatch, wanted)
    result = measured(wanted)
    rows = [{**row, "peak": row["peak"] + 10**5} if row["stage"] == 3 else row for row in result["rows"]]
    fake_records.begin(wanted, tmp_path).finish({**result, "rows": rows, "process": None})
    found = read(tmp_path)
    (row,) = tables(found)["table3-held-small"].rows
    assert (row[10].text, row[10].tone, row[11].text) == ("+0.8", Tone.ALERT, "not known")
    assert found.findings[1].tone is Tone.ALERT
    assert "72 of 80 numbers" in found.findings[1].text


def test_what_did_not_fit_and_what_was_not_run_is_said(tmp_path: Path) -> None:
    (wanted,) = (
        each
        for each in memory_cells("paper")
        if (each.dataset, each.model, each.method) == ("imagenet", "revnet50", METHODS[0].name)
    )
    fake_records.begin(wanted, tmp_path).fail("out of memory", "memory-x would hold 215 bytes")
    found = read(tmp_path)
    rows = tables(found)["table3-held-paper"].rows
    assert [row[4].text for row in rows] == ["out of memory", "not run", "not run", "not run"]
    assert rows[0][4].hint == "memory-x would hold 215 bytes"
    assert [row[9].text for row in tables(found)["table3"].rows] == ["out of memory", "not run", "not run", "not run"]
    assert not [block for block in found.blocks if isinstance(block, Figure)]


def memory_cells(scale: str) -> Sequence[MemoryCell]:
    return [each for each in PLANS["table3"](scale) if isinstance(each, MemoryCell)]


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_cells_are_the_four_configurations_at_one_batch(scale: str) -> None:
    by_subject: dict[tuple[str, str, int], set[str]] = {}
    for c in memory_cells(scale):
        by_subject.setdefault((c.dataset, c.model, c.batch_size), set()).add(c.method)
    names = {method.name for method in METHODS}
    assert all(found == names for subject, found in by_subject.items() if (scale, subject[2]) != ("small", 64))
    if scale == "paper":
        assert by_subject.keys() == {
            (dataset, f"revnet{depth}", 64)
            for dataset in ("cifar10", "imagenet32", "imagenet")
            for depth in (18, 34, 50)
        }


@pytest.mark.slow
def test_no_cell_of_the_small_grid_needs_more_than_five_gigabytes() -> None:
    for c in memory_cells("small"):
        if methods.by_name(c.method).reconstructs:
            continue  # it holds less than the same cell of a method that does not
        assert sum(stage.total for stage in predicted(c)) < 5e9, c.slug
