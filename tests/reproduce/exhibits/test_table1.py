"""Test Table 1: formulas next to measurements at every J and k, and alerts for deviations."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import ComplexityCell
from reproduce.exhibits import table1
from reproduce.grids.plans import PLANS
from reproduce.grids.plans.table1 import chains
from reproduce.measures.complexity import measure_complexity
from reproduce.modelling.complexity import formulas
from reproduce.presentation.content import Entry, ExhibitStatus, Figure, Role, Section, Table
from reproduce.published import Mark
from tests import fake_records, sections

SHOWN = (methods.BACKPROPAGATION, methods.DELAYED_GRADIENTS, methods.PETRA)


@cache
def result(cell: ComplexityCell) -> dict[str, Any]:
    """Measure on the smallest images at any scale."""
    return measure_complexity(replace(cell, scale="smoke", width=4, image_size=4, batch_size=2))


def write(
    root: Path,
    scale: str = "smoke",
    depth: int = 4,
    accumulations: Sequence[int] = (1,),
    chosen: Sequence[Method] = methods.PAPER,
) -> None:
    for cell in chains(scale, depth=depth, accumulations=accumulations):
        if cell.method in [method.name for method in chosen]:
            fake_records.begin(cell, root).finish(result(cell))


def made(root: Path) -> Section:
    return sections.made(table1.EXHIBIT, root)


def rows(section: Section) -> dict[str, dict[tuple[str, str], Entry]]:
    """Return the rows by method; of several k the last."""
    table = sections.table(section, "table1")
    return {row[0].text: sections.entries(table, *(entry.text for entry in row[:2])) for row in table.rows}


def test_table1_measurements_use_units_of_the_formulas(tmp_path: Path) -> None:
    """Measurements are in the units of the formulas, and only formulas of the paper have its mark."""
    write(tmp_path)
    by_method = rows(made(tmp_path))
    names = (("activations", "measured"), ("weights", "stashed"), ("FLOPs", "measured"))
    assert [by_method["Delayed gradients"][name].text for name in names] == ["8 FG", "8", "3J"]
    assert [by_method["DSP"][name].text for name in names] == ["8 inputs", "0", "4J"]
    assert [by_method["PETRA"][name].text for name in names] == ["0", "0", "4J"]
    assert by_method["PETRA"]["activations", "formula"].mark is Mark.PAPER
    assert by_method["Approximate inputs"]["activations", "formula"].mark is None


@pytest.mark.parametrize("quantity", ["stage_flops", "memory"])
def test_table1_deviation_from_formula_is_an_alert(tmp_path: Path, quantity: str) -> None:
    """A measurement that deviates from its formula or prediction makes the finding an alert."""
    write(tmp_path, chosen=(methods.BACKPROPAGATION,))
    (cell,) = (c for c in chains() if c.method == methods.PETRA.name)
    right = result(cell)
    wrong = {
        "stage_flops": 5 * right["stage_forward_flops"],
        "memory": [{**right["memory"][0], "measured": 1}, *right["memory"][1:]],
    }
    fake_records.begin(cell, tmp_path).finish({**right, quantity: wrong[quantity]})
    follow, predicted = made(tmp_path).findings
    assert follow.role is (Role.ALERT if quantity == "stage_flops" else Role.GOOD)
    assert f"{1 if quantity == 'stage_flops' else 2} of 2 measurements" in follow.text
    assert predicted.role is (Role.ALERT if quantity == "memory" else Role.GOOD)
    assert f"{95 if quantity == 'memory' else 96} of 96 numbers" in predicted.text


def test_table1_without_backpropagation_has_no_measurements(tmp_path: Path) -> None:
    """Without backpropagation there are no units, so there are no findings and no measured values."""
    write(tmp_path, chosen=(methods.PETRA, methods.DSP))
    section = made(tmp_path)
    assert list(section.findings) == []
    assert [block.key for block in section.blocks if isinstance(block, Table | Figure)] == ["table1"]
    assert len(rows(section)) == 5, "only the formulas"
    assert rows(section)["PETRA"]["time per batch", "measured"].text == "not run"


def test_table1_is_reproduced_only_by_all_methods(tmp_path: Path) -> None:
    """The standing is REPRODUCED only if all methods follow their formulas."""
    write(tmp_path, "paper", chosen=(methods.BACKPROPAGATION,))
    assert made(tmp_path).findings[0].role is Role.GOOD
    assert sections.status_of("table1", tmp_path) is ExhibitStatus.NOT_RUN
    write(tmp_path, "paper", chosen=tuple(formulas()))
    assert sections.status_of("table1", tmp_path) is ExhibitStatus.REPRODUCED


def test_growth_is_drawn_over_several_j_or_k(tmp_path: Path) -> None:
    """The figure covers the scale that was measured at several J or k."""
    write(tmp_path, accumulations=(1, 2, 4), chosen=SHOWN)
    write(tmp_path, depth=2, chosen=SHOWN)
    write(tmp_path, "small", chosen=SHOWN)
    section = made(tmp_path)
    (figure,) = (block for block in section.blocks if isinstance(block, Figure))
    assert figure.key == "growth-smoke", "of the scale `small` is one J and one k: nothing to draw over"
    copies, flops = (figure.description.split(f"{title}: ")[1] for title in ("copies, over k", "forwards, over J"))
    assert "Delayed gradients from 8 to 2;" in copies.split(".")[0]
    assert "PETRA from 16 to 24" in flops.split(". ")[0]
    table = sections.table(section, "table1")
    assert table.caption.endswith("batch 32, scale “small”).")
    assert len(table.rows) == len(SHOWN), "only one scale"


def test_smoke_grid_covers_several_j_and_k() -> None:
    """The cells of scale smoke cover six k on one chain and two further chains."""
    cells = [c for c in PLANS["table1"]("smoke") if isinstance(c, ComplexityCell)]
    assert len(set(cells)) == len(cells)
    of_petra = {(c.model, c.accumulation) for c in cells if c.method == "PETRA"}
    assert of_petra == {("chain4", k) for k in (1, 2, 4, 8, 16, 32)} | {(f"chain{n}", 1) for n in (2, 8)}
