"""Table 1 in the report: formulas beside measurements at every J and k, and what departs from them is said aloud."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import ComplexityCell
from reproduce.exhibits import table1
from reproduce.exhibits._exhibit import section
from reproduce.grids.plans import PLANS
from reproduce.grids.plans.table1 import chains
from reproduce.measures.complexity import measure_complexity
from reproduce.published import Mark
from reproduce.records import results
from reproduce.records.frames import Frames
from reproduce.show.content import MINUS, Entry, Figure, Section, Table, Tone
from tests import fake_records, sections

SHOWN = (methods.BACKPROPAGATION, methods.DELAYED_GRADIENTS, methods.PETRA)


@cache
def result(cell: ComplexityCell) -> dict[str, Any]:
    """As on the smallest images, whatever the scale."""
    return measure_complexity(replace(cell, scale="smoke", width=4, image_size=4, batch_size=2))


def write(
    root: Path,
    scale: str = "smoke",
    depth: int = 4,
    accumulations: Sequence[int] = (1,),
    only: Sequence[Method] = methods.ALL,
) -> None:
    for cell in chains(scale, depth=depth, accumulations=accumulations):
        if cell.method in [method.name for method in only]:
            fake_records.begin(cell, root).finish(result(cell))


def made(root: Path) -> Section:
    return section(table1.EXHIBIT, Frames(results.read(root)))


def rows(table: Table) -> list[dict[str, Entry]]:
    names = [f"{column.group} {column.name}".strip() for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def test_formulas_stand_beside_what_was_measured(tmp_path: Path) -> None:
    write(tmp_path)
    found = made(tmp_path)
    assert [finding.tone for finding in found.findings] == [Tone.GOOD, Tone.GOOD]
    assert "5 of 5 measurements (J = 6; k = 1)" in found.findings[0].text
    assert "in 288 of 288 numbers" in found.findings[1].text  # 6 methods, 6 stages, 8 kinds
    table = found.blocks[1]
    assert isinstance(table, Table)
    assert "J = 6, 8 channels a stream" in table.caption
    by_method = {row["method"].text: row for row in rows(table)}
    delayed = by_method["Delayed gradients"]
    assert [delayed[f"{name} formula"].text for name in ("weights", "FLOPs")] == [f"2(J{MINUS}j)/k", "3J"]
    assert [delayed[name].text for name in ("activations measured", "weights stashed", "FLOPs measured")] == [
        "8 FG",
        "8",
        "3J",
    ]
    assert by_method["DSP"]["activations measured"].text == "8 inputs"
    assert by_method["PETRA"]["activations measured"].text == "0"
    assert "bytes" in by_method["PETRA"]["activations measured"].hint
    assert by_method["PETRA"]["activations formula"].mark is Mark.PAPER
    assert by_method["Approximate inputs"]["activations formula"].mark is None


@pytest.mark.parametrize("of", ["stage_flops", "memory"])
def test_a_measurement_that_departs_is_said_aloud(tmp_path: Path, of: str) -> None:
    write(tmp_path, only=(methods.BACKPROPAGATION,))
    (cell,) = (c for c in chains() if c.method == methods.PETRA.name)
    right = result(cell)
    wrong = {
        "stage_flops": 5 * right["stage_forward_flops"],
        "memory": [{**right["memory"][0], "measured": 1}, *right["memory"][1:]],
    }
    fake_records.begin(cell, tmp_path).finish({**right, of: wrong[of]})
    follow, predicted = made(tmp_path).findings
    assert follow.tone is (Tone.ALERT if of == "stage_flops" else Tone.GOOD)
    assert f"{1 if of == 'stage_flops' else 2} of 2 measurements" in follow.text
    assert predicted.tone is (Tone.ALERT if of == "memory" else Tone.GOOD)
    assert f"{95 if of == 'memory' else 96} of 96 numbers" in predicted.text


def test_without_backpropagation_there_are_no_units_and_nothing_is_claimed(tmp_path: Path) -> None:
    write(tmp_path, only=(methods.PETRA, methods.DSP))
    found = made(tmp_path)
    assert list(found.findings) == []
    shown = [block for block in (*found.blocks, *found.folded) if isinstance(block, Table | Figure)]
    assert [block.key for block in shown] == ["table1"], "the formulas alone"
    assert "smoke: 2 of 48 runs finished" in found.coverage


def test_growth_is_drawn_and_every_measurement_listed(tmp_path: Path) -> None:
    write(tmp_path, accumulations=(1, 2, 4), only=SHOWN)
    write(tmp_path, depth=2, only=SHOWN)
    write(tmp_path, "small", only=SHOWN)
    found = made(tmp_path)
    figures = [block for block in found.blocks if isinstance(block, Figure)]
    # Of the scale `small` is one J and one k: nothing to draw over.
    assert [figure.key for figure in figures] == ["bytes-small", "growth-J-smoke", "growth-k-smoke", "bytes-smoke"]
    for figure in figures:
        ElementTree.fromstring(figure.svg)
    tables = {block.key: block for block in found.folded if isinstance(block, Table)}
    listed, stages = tables["table1-growth-smoke"], tables["table1-stages-smoke"]
    assert len(listed.rows) == 4 * len(SHOWN)
    lines = {(int(row["J"].raw), int(row["k"].raw), row["method"].text): row for row in rows(listed)}
    copies = [lines[6, k, "Delayed gradients"]["stashed copies of the weights"].text for k in (1, 2, 4)]
    assert copies == ["8.00", "4.00", "2.00"]
    flops = [lines[j, 1, "PETRA"]["FLOPs of all stages, forwards"].text for j in (4, 6)]
    assert flops == ["16.00", "24.00"]
    assert len(stages.rows) == 2 * len(SHOWN) * 4  # of k, and of inner stages


def test_the_smoke_grid_goes_over_j_and_over_k() -> None:
    cells = [c for c in PLANS["table1"]("smoke") if isinstance(c, ComplexityCell)]
    assert len(set(cells)) == len(cells)
    of_petra = {(c.model, c.accumulation) for c in cells if c.method == "PETRA"}
    assert of_petra == {("chain4", k) for k in (1, 2, 4, 8, 16, 32)} | {(f"chain{n}", 1) for n in (2, 8)}


def test_without_measurements_the_published_formulas_stand_alone(tmp_path: Path) -> None:
    found = sections.table(sections.made(table1.EXHIBIT, tmp_path), "table1")
    assert sections.entries(found, "PETRA")["time per batch", "formula"].text == "3"
    assert len(found.rows) == 5
