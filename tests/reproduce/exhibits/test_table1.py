"""Make the situations of Table 1: formulas next to measurements at every J and k, and alerts for deviations."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import ComplexityCell
from reproduce.exhibits import table1
from reproduce.grids.plans.table1 import chains
from reproduce.measures.complexity import measure_complexity
from reproduce.modelling.complexity import formulas
from tests import fake_records, sections

SHOWN = (methods.BACKPROPAGATION, methods.DELAYED_GRADIENTS, methods.PETRA)


counted = cache(measure_complexity)


def result(cell: ComplexityCell) -> dict[str, Any]:
    """Count on the smallest images at any scale. Times are made up."""
    small = replace(cell, scale="smoke", width=4, image_size=4, batch_size=2)
    return {**counted(small), "seconds": {"forward": 1.0, "backward": 2.5, "update": 0.1}}


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


@sections.situation(table1.EXHIBIT)
def all_methods_on_one_chain(root: Path) -> None:
    """Measurements are in the units of the formulas, and only formulas of the paper have its mark."""
    write(root)


@sections.situation(table1.EXHIBIT)
def two_methods_depart(root: Path) -> None:
    """A departure from a formula, and one from the prediction, make their findings alerts."""
    for cell in chains():
        measured = result(cell)
        if cell.method == methods.PETRA.name:
            measured = {**measured, "stage_flops": 5 * measured["stage_forward_flops"]}
        elif cell.method == methods.DSP.name:
            measured = {**measured, "memory": [{**measured["memory"][0], "measured": 1}, *measured["memory"][1:]]}
        elif cell.method != methods.BACKPROPAGATION.name:
            continue
        fake_records.begin(cell, root).finish(measured)


@sections.situation(table1.EXHIBIT)
def no_backpropagation(root: Path) -> None:
    """Without backpropagation there are no units, so there are no findings and no measured values."""
    write(root, chosen=(methods.PETRA, methods.DSP))


@sections.situation(table1.EXHIBIT, "none")
def backpropagation_at_the_papers_scale(root: Path) -> None:
    """One method that follows its formulas does not reproduce the table."""
    write(root, "paper", chosen=(methods.BACKPROPAGATION,))


@sections.situation(table1.EXHIBIT, "none")
def all_methods_at_the_papers_scale(root: Path) -> None:
    """The table is reproduced if all methods follow their formulas."""
    write(root, "paper", chosen=tuple(formulas()))


@sections.situation(table1.EXHIBIT)
def growth_over_j_and_k(root: Path) -> None:
    """The figure is of the scale with several J or k, and the table of the largest scale."""
    write(root, accumulations=(1, 2), chosen=SHOWN)
    write(root, depth=2, chosen=SHOWN)
    write(root, "small", chosen=SHOWN)
