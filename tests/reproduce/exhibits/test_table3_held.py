"""What the engine holds against what the rules count, at the same batch and to the byte."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits import held, table3
from reproduce.exhibits.held import COUNTED, Held
from reproduce.grids.plans import PLANS
from reproduce.grids.plans.table3 import METHODS
from reproduce.measures.context import Context
from reproduce.measures.held_memory import measure, predicted
from reproduce.modelling.buffer_rules import CONFIGURATIONS, PUBLISHED_RULE, memory, revnet_sizes
from reproduce.records import results
from reproduce.records.record import Record
from reproduce.show.content import Figure, Table, Tone
from tests import fake_records
from tests.reproduce.measures.test_held_memory import cell

BATCH_COUNTER = 8  # bytes of num_batches_tracked, an integer, which is no statistic


def measured(wanted: MemoryCell) -> dict[str, Any]:
    """What is held does not depend on the scale that the cell is said to be of."""
    return measured_once(replace(wanted, scale="smoke"))


@cache
def measured_once(wanted: MemoryCell) -> dict[str, Any]:
    return measure(wanted, Record(Path(), wanted), Context())


def write(root: Path, *wanted: MemoryCell) -> results.Results:
    for each in wanted:
        fake_records.begin(each, root).finish(measured(each))
    return results.read(root)


def small(method: Method) -> MemoryCell:
    return cell(method, scale="small")


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *((method, "revnet18") for method in METHODS),
        *(pytest.param(METHODS[n], "revnet50", marks=pytest.mark.slow) for n in (0, 3)),  # every term is in one of them
    ],
    ids=str,
)
def test_held_and_published_rule_differ_by_four_known_terms(method: Method, model: str, tmp_path: Path) -> None:
    wanted = cell(method, model=model)
    (group,) = held.groups(write(tmp_path, wanted))
    sizes = revnet_sizes(group.subject.depth, "cifar10", wanted.batch_size, wanted.width)
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
    assert group.held[method].peak(*COUNTED) == expected


def test_section_shows_what_was_held_beside_the_rules_at_the_same_batch(tmp_path: Path) -> None:
    section = table3.section(write(tmp_path, *map(small, METHODS)))
    (table,) = [block for block in section.blocks if isinstance(block, Table) and block.key == "table3-held-small"]
    assert [row[0].text for row in table.rows] == ["RevNet-18, width 4, CIFAR-10, batch 2, J = 10"] * 4
    by_method = {row[1].text: row for row in table.rows}
    sizes = revnet_sizes(18, "cifar10", 2, 4)
    assert by_method["PETRA"][2].value == memory(sizes, CONFIGURATIONS[3], PUBLISHED_RULE) / 1e6
    counted = Held(results.read(tmp_path).of_kind(MemoryCell)[0]).predicted()
    assert counted > 0
    assert {row[10].text for row in table.rows} == {"0.0"}
    assert by_method["Delayed gradients"][9].text == "0.0"
    whole, petra = (sum(row["peak"] for row in measured(small(m))["rows"]) for m in (METHODS[0], METHODS[3]))
    assert by_method["PETRA"][9].value == pytest.approx(100 * (1 - petra / whole))
    assert [block.key for block in section.blocks if isinstance(block, Figure)] == ["held-small"]
    assert section.findings[1].tone is Tone.GOOD
    assert "4 measurements of really held buffers, in which 320 of 320 numbers" in section.findings[1].text
    assert "really held: 4 of 4 cells (small)" in section.coverage


def test_finding_of_each_scale_is_of_the_largest_network_of_which_all_four_were_held(tmp_path: Path) -> None:
    larger = [replace(small(method), batch_size=3) for method in METHODS]
    incomplete = replace(small(methods.PETRA), batch_size=4)
    of_paper = [replace(small(method), scale="paper") for method in METHODS]
    section = table3.section(write(tmp_path, *map(small, METHODS), *larger, incomplete, *of_paper))
    found = [finding.text for finding in section.findings if "PETRA held" in finding.text]
    assert len(found) == 2
    for scale, batch, cells in (("paper", 2, of_paper), ("small", 3, larger)):
        whole, petra = (sum(row["peak"] for row in measured(cells[i])["rows"]) for i in (0, 3))
        (text,) = [text for text in found if f"(scale “{scale}”)" in text]
        assert text.startswith(f"RevNet-18, width 4, CIFAR-10, batch {batch} ")
        assert f"{100 * (1 - petra / whole):.1f} % less;" in text


def test_a_count_that_departs_from_the_prediction_is_an_alert(tmp_path: Path) -> None:
    wanted = small(methods.PETRA)
    result = measured(wanted)
    rows = [{**row, "peak": row["peak"] + 1} if row["stage"] == 3 else row for row in result["rows"]]
    fake_records.begin(wanted, tmp_path).finish({**result, "rows": rows})
    section = table3.section(results.read(tmp_path))
    assert section.findings[1].tone is Tone.ALERT
    assert "72 of 80 numbers" in section.findings[1].text


def test_what_did_not_fit_and_what_was_not_run_is_said(tmp_path: Path) -> None:
    wanted = [replace(small(method), batch_size=64, scale="paper") for method in METHODS]
    fake_records.begin(wanted[0], tmp_path).fail("out of memory", "memory-x would hold 215 bytes")
    section = table3.section(results.read(tmp_path, wanted))
    (table,) = [block for block in section.blocks if isinstance(block, Table) and block.key == "table3-held-paper"]
    shown = {row[1].text: row[4] for row in table.rows}
    assert shown["Delayed gradients"].text == "out of memory"
    assert shown["Delayed gradients"].hint == "memory-x would hold 215 bytes"
    assert shown["PETRA"].text == "not run"
    assert not [block for block in section.blocks if isinstance(block, Figure)]


@pytest.mark.parametrize("scale", ["smoke", "small", "paper"])
def test_cells_are_the_four_configurations_at_one_batch(scale: str) -> None:
    cells = [c for c in PLANS["table3"](scale) if isinstance(c, MemoryCell)]
    by_subject: dict[tuple[str, str, int], set[str]] = {}
    for c in cells:
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
    for c in PLANS["table3"]("small"):
        assert isinstance(c, MemoryCell)
        if methods.by_name(c.method).reconstructs:
            continue  # it holds less than the same cell of a method that does not
        assert sum(stage.total for stage in predicted(c)) < 5e9, c.slug
