"""Test Table 3: deviations from published and predicted values, and the exact difference of the engine to the rule."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from petra_core import methods
from petra_core.methods import Method
from petra_core.staleness import lockstep
from reproduce.cells.kinds import MemoryCell
from reproduce.exhibits import table3
from reproduce.grids.plans import PLANS
from reproduce.grids.plans.table4 import METHODS
from reproduce.measures.context import Context
from reproduce.measures.held_memory import measure, predict_memory
from reproduce.modelling.buffer_rules import CONSISTENT_RULE, PUBLISHED_RULE, memory, revnet_sizes
from reproduce.modelling.held import COUNTED
from reproduce.presentation.content import Entry, ExhibitStatus, Figure, Role, Section
from reproduce.records import volumes
from reproduce.records.record import Record
from tests import fake_records, sections
from tests.reproduce.measures.test_held_memory import cell

BATCH_COUNTER = 8  # bytes of num_batches_tracked, an integer that the rule does not count


def measured(wanted: MemoryCell) -> dict[str, Any]:
    """Measure a cell once for all scales, since the memory held does not depend on the scale."""
    return measured_once(replace(wanted, scale="smoke"))


@cache
def measured_once(wanted: MemoryCell) -> dict[str, Any]:
    return measure(wanted, Record(Path(), wanted), Context())


def held(root: Path, monkeypatch: pytest.MonkeyPatch, *wanted: MemoryCell) -> Section:
    """Return the section with these cells added to its plan and measured; they take less time than the planned ones."""
    papers = PLANS["table3"]("paper")
    monkeypatch.setitem(PLANS, "table3", lambda scale: [each for each in (*papers, *wanted) if each.scale == scale])
    for each in wanted:
        fake_records.begin(each, root).finish(measured(each))
    return sections.made(table3.EXHIBIT, root)


def rows(section: Section, scale: str = "small") -> list[dict[str, Entry]]:
    table = sections.table(section, f"table3-held-{scale}")
    names = [f"{column.group}: {column.name}" for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def small(method: Method, batch_size: int = 2) -> MemoryCell:
    return cell(method, scale="small", batch_size=batch_size)


def test_deviating_published_rows_are_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Published rows that the rule does not reproduce make the finding an alert."""
    monkeypatch.setattr("reproduce.modelling.held.PUBLISHED_RULE", CONSISTENT_RULE)
    finding = sections.made(table3.EXHIBIT, tmp_path).findings[0]
    assert finding.role is Role.ALERT
    assert "0 of 4 published rows" in finding.text


@pytest.mark.parametrize(
    ("method", "model"),
    [
        *((method, "revnet18") for method in METHODS),
        *(pytest.param(METHODS[n], "revnet50", marks=pytest.mark.slow) for n in (0, 3)),  # these two cover every term
    ],
    ids=str,
)
def test_held_memory_differs_from_rule_by_four_known_terms(method: Method, model: str) -> None:
    """Measured memory equals the published rule plus stem inputs, streams and norm counters."""
    wanted = cell(method, model=model)
    sizes = revnet_sizes(int(model.removeprefix("revnet")), "cifar10", wanted.batch_size, wanted.width)
    norms = {size.stage: 0 for size in sizes}
    for row in measured(wanted)["rows"]:
        if row["kind"] == "buffers":
            norms[row["stage"]] = row["peak"] - sizes[row["stage"]].statistics
    assert all(extra % BATCH_COUNTER == 0 for extra in norms.values())
    stem, head = sizes[0], sizes[-1]
    reversible = [size for size in sizes[1:-1] if not size.buffered]
    images = lockstep(len(sizes))[0] * sum(stem.streams) if method.reconstructs else 0  # the rule leaves these out
    rebuilt = sum(size.streams[0] for size in reversible) if method.reconstructs else 0  # a message, not kept
    expected = memory(sizes, method, PUBLISHED_RULE) + images - rebuilt + head.streams[1] + sum(norms.values())
    assert sum(row["peak"] for row in measured(wanted)["rows"] if row["kind"] in COUNTED) == expected


def test_savings_compare_same_network_and_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Savings are relative to delayed gradients of the same network and batch size."""
    larger = small(METHODS[0], 4), small(methods.PETRA, 4)
    section = held(tmp_path, monkeypatch, *map(small, METHODS), small(methods.PETRA, 3), *larger)
    rendered = rows(section)
    assert [row[": method"].text for row in rendered[:4]] == ["Delayed gradients", "DSP", "Approximate inputs", "PETRA"]
    delayed, petra = (sum(row["peak"] for row in measured(small(METHODS[n]))["rows"]) for n in (0, 3))
    saved = 100 * (1 - petra / delayed)
    assert [row["really held, MB: saving, %"].raw for row in rendered[:4:3]] == pytest.approx([0, saved])
    assert rendered[4]["really held, MB: saving, %"].text == ""
    saved_at_4 = rendered[6]["really held, MB: saving, %"].text
    assert section.findings[2].text.startswith("RevNet-18, width 4, CIFAR-10, batch 4 (scale “small”): PETRA held")
    assert f"GB, {saved_at_4} % less than delayed gradients" in section.findings[2].text
    (figure,) = (block for block in section.blocks if isinstance(block, Figure))
    assert "batch 2: " in figure.description
    assert "batch 4" not in figure.description


def test_table3_deviation_from_prediction_is_an_alert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A count that deviates from the prediction makes the finding an alert."""
    wanted = small(methods.PETRA)
    held(tmp_path, monkeypatch, wanted)
    result = measured(wanted)
    more = [{**row, "peak": row["peak"] + 10**5} if row["stage"] == 3 else row for row in result["rows"]]
    volumes.remove(wanted, tmp_path)
    fake_records.begin(wanted, tmp_path).finish({**result, "rows": more})
    section = sections.made(table3.EXHIBIT, tmp_path)
    (row,) = rows(section)
    departed = row["really held, MB: less predicted"]
    assert (departed.text, departed.role) == ("+0.8", Role.ALERT)
    assert section.findings[1].role is Role.ALERT
    assert "72 of 80 numbers" in section.findings[1].text


def test_table3_reports_out_of_memory_and_missing_cells(tmp_path: Path) -> None:
    """Cells that ran out of memory or were not run are marked, and nothing is drawn."""
    wanted = next(c for c in PLANS["table3"]("paper") if isinstance(c, MemoryCell) and c.method == METHODS[0].name)
    assert (wanted.dataset, wanted.model) == ("imagenet", "revnet50")
    fake_records.begin(wanted, tmp_path).fail("out of memory", "memory-x would hold 215 bytes")
    section = sections.made(table3.EXHIBIT, tmp_path)
    counted = [row["really held, MB: of the rules"] for row in rows(section, "paper")]
    assert [entry.text for entry in counted] == ["out of memory", "not run", "not run", "not run"]
    assert counted[0].hint == "memory-x would hold 215 bytes"
    assert [row[10].text for row in sections.table(section, "table3").rows] == [entry.text for entry in counted]
    assert not [block for block in section.blocks if isinstance(block, Figure)]


@pytest.mark.parametrize(
    ("finished", "more", "status"),
    [(3, 0.0, ExhibitStatus.IN_PART), (4, 0.0, ExhibitStatus.REPRODUCED), (4, 0.1, ExhibitStatus.DIFFERS)],
)
def test_table3_standing_follows_published_memory(
    tmp_path: Path, finished: int, more: float, status: ExhibitStatus
) -> None:
    """The standing follows from the number of measured rows and their agreement with the published ones."""
    papers = [c for c in PLANS["table3"]("paper") if isinstance(c, MemoryCell)]
    papers = [c for c in papers if (c.dataset, c.model) == ("imagenet", "revnet50")]
    by_rule = dict(zip([m.name for m in METHODS], (44.45, 43.58, 21.20, 20.33), strict=True))  # before rounding
    assert len(papers) == len(by_rule)
    for wanted in papers[:finished]:
        size = round(1e9 * (by_rule[wanted.method] + more))
        row = {"stage": 0, "kind": "parameters", "held": size, "peak": size, "predicted": size}
        result = {"stages": 1, "ticks": 1, "rows": [row], "at_once": size, "process": None}
        fake_records.begin(wanted, tmp_path).finish(result)
    assert sections.status_of("table3", tmp_path) is status


def test_missing_process_growth_leaves_an_empty_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record without process growth leaves this entry empty and keeps the others."""
    wanted = small(methods.PETRA)
    held(tmp_path, monkeypatch, wanted)
    volumes.remove(wanted, tmp_path)
    fake_records.begin(wanted, tmp_path).finish({**measured(wanted), "process": None})
    (row,) = rows(sections.made(table3.EXHIBIT, tmp_path))
    assert row["really held, MB: process"].text == ""
    assert row["really held, MB: at one moment"].text


@pytest.mark.slow
def test_small_grid_cells_need_less_than_5_gb() -> None:
    """Every memory cell of scale small is predicted to hold less than 5 GB."""
    for c in PLANS["table3"]("small"):
        # Delayed gradients keep inputs and weights. In the same cell, every other method holds less.
        if isinstance(c, MemoryCell) and methods.by_name(c.method) is methods.DELAYED_GRADIENTS:
            assert sum(stage.total for stage in predict_memory(c)) < 5e9, c.slug
