"""Test the cost of staleness: the planned cells, the comparisons, and the texts for missing runs."""

import dataclasses
from pathlib import Path

from petra_core import methods
from reproduce.cells import timing
from reproduce.cells.kinds import TrainedCell, TrainingCell
from reproduce.exhibits import staleness
from reproduce.grids.plans import PLANS
from reproduce.grids.plans import staleness as plan
from reproduce.presentation.content import Figure, Section, Table
from tests import fake_records, sections


@sections.situation(staleness.EXHIBIT, "staleness-small")
def three_points_of_the_curve(root: Path) -> None:
    """PETRA loses 0.5 points per micro-batch of staleness, delayed gradients 0.4; missing points are named."""
    for seed in range(3):
        for method, loss in ((plan.EXACT, 0.0), (plan.PETRA, 0.5), (plan.DELAYED, 0.4)):
            for point in (plan.FOUR, plan.FREE, plan.PAPER):
                cell = plan.plan_cell(method, point, 1, seed)
                assert isinstance(cell, TrainingCell)
                vector = timing.vector(cell) or (0,)
                fake_records.train(cell, root, 70.0 - loss * vector[0] + 0.1 * seed)


def test_curve_points_have_the_requested_staleness() -> None:
    """The planned points of the curve and the planned devices have the staleness that they are named for."""
    cells = [plan.plan_cell(plan.PETRA, point) for point in plan.POINTS[plan.NETWORK]]
    vectors = [timing.vector(cell) for cell in cells if isinstance(cell, TrainedCell)]
    assert sorted(vector[0] for vector in vectors if vector) == [1, 3, 6, 9, 12, 14, 18]
    for devices, (sizes, k) in plan.DEVICES.items():
        cell = plan.plan_cell(methods.PIPEDREAM_2BW, plan.on_devices(devices), k)
        assert isinstance(cell, TrainedCell)
        vector = timing.vector(cell)
        assert vector
        assert vector[0] == devices - 1
        assert len(sizes) in (0, devices)


def test_lockstep_and_backpropagation_reuse_other_cells() -> None:
    """Require that no training has a second identity, including one in a cell with a probe."""

    def training(cell: TrainedCell) -> str:
        return str({name: value for name, value in cell.to_dict().items() if name not in ("kind", "probe_every")})

    planned = [cell for cell in plan.cells("small") if isinstance(cell, TrainedCell)]
    assert len({training(cell) for cell in planned}) == len(planned)
    others = {cell for name, cells in PLANS.items() if name != "staleness" for cell in cells("small")}
    kinds = {training(cell): cell for cell in others if isinstance(cell, TrainedCell) and cell.kind != "gradients"}
    for cell in planned:
        other = kinds.get(training(cell), cell)
        assert other == cell, f"{cell.name} repeats {other.name}"
    assert sum(cell in others for cell in planned) > 100


def test_compared_cells_have_same_samples_and_rate() -> None:
    """Cells of one k have the same batch size, rate and length, and the sweep covers all rate factors."""
    cells = [cell for cell in plan.curve() if isinstance(cell, TrainedCell)]
    for k in plan.KS:
        of_k = [cell for cell in cells if cell.accumulation == k]
        assert len({(cell.batch_size, cell.learning_rate, cell.epochs) for cell in of_k}) == 1
    swept = [cell for cell in plan.swept() if isinstance(cell, TrainedCell)]
    factors = {round(cell.learning_rate / cells[0].learning_rate, 6) for cell in swept}
    assert factors == set(plan.SWEPT)


def test_declared_comparisons_are_planned_first() -> None:
    """The first planned cells are the confirming ones, with seeds 3 to 5 and three epochs."""
    first = plan.cells("small")[: len(list(plan.confirming()))]
    assert {cell.seed for cell in first if isinstance(cell, TrainedCell)} == {3, 4, 5}
    assert all(isinstance(cell, TrainedCell) and cell.epochs == 3 for cell in first)


def test_smoke_cells_differ_in_timing_only() -> None:
    """The two cells of scale smoke differ only in timing and stages."""
    free, four = plan.cells("smoke")
    assert isinstance(free, TrainedCell)
    assert dataclasses.replace(free, timing=plan.FOUR.timing, stages=plan.FOUR.stages) == four


def lockstep_only(root: Path) -> Section:
    """Return the section from one run of backpropagation on a CPU, and one of PETRA in lockstep on a GPU."""
    for method, device in ((plan.EXACT, "cpu"), (plan.PETRA, "NVIDIA H200")):
        cell = plan.plan_cell(method, plan.PAPER)
        assert isinstance(cell, TrainingCell)
        fake_records.train(cell, root, 70.0, environment={**fake_records.ENVIRONMENT, "device": device})
    return sections.made(staleness.EXHIBIT, root)


def test_captions_count_the_runs_of_their_tables(tmp_path: Path) -> None:
    """A run on a GPU is named only above the table that has it."""
    section = lockstep_only(tmp_path)
    captions = {block.key: block.caption for block in (*section.blocks, *section.folded) if isinstance(block, Table)}
    assert "NVIDIA H200" not in captions["staleness-small-devices"]
    assert "2 runs: 1 on NVIDIA H200, 1 on CPUs" in captions["staleness-small-rates"]


def test_single_staleness_is_no_curve(tmp_path: Path) -> None:
    """Runs at a single staleness are only in the table."""
    assert not any(isinstance(block, Figure) for block in lockstep_only(tmp_path).blocks)
