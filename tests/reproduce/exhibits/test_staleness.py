"""Test the cost of staleness: the planned cells, the comparisons, and the texts for missing runs."""

import dataclasses
from pathlib import Path

import pytest

from petra_core import methods
from petra_core.prediction.simulation import INSTANT, Cost, Link
from petra_core.staleness import per_device
from reproduce.cells import timing
from reproduce.cells.kinds import TrainedCell, TrainingCell
from reproduce.exhibits import staleness
from reproduce.grids.plans import PLANS
from reproduce.grids.plans import staleness as plan
from reproduce.modelling.strategies import run_full
from reproduce.presentation.content import MINUS, Section
from tests import fake_records, sections


@pytest.fixture(autouse=True)
def _no_theory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the computation of the engine's border, which has a separate test."""
    monkeypatch.setattr(staleness, "theory", lambda: "Theory.")


def write(root: Path, *, seeds: int = 3) -> None:
    """Write backpropagation at 70; PETRA loses 0.5 points per micro-batch of staleness, delayed gradients 0.4."""
    for seed in range(seeds):
        for method, loss in ((plan.EXACT, 0.0), (plan.PETRA, 0.5), (plan.DELAYED, 0.4)):
            for point in (plan.FOUR, plan.FREE, plan.PAPER):
                cell = plan.plan_cell(method, point, 1, seed)
                assert isinstance(cell, TrainingCell)
                vector = timing.vector(cell) or (0,)
                fake_records.train(cell, root, 70.0 - loss * vector[0] + 0.1 * seed)


def section(root: Path) -> Section:
    return sections.made(staleness.EXHIBIT, root)


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


def test_staleness_sentences_follow_data_and_name_missing_runs(tmp_path: Path) -> None:
    """The sentences contain the differences from the records and list the points that have not run."""
    write(tmp_path)
    rendered = section(tmp_path)
    text = rendered.sentence.replace("\N{NARROW NO-BREAK SPACE}", " ")
    assert "by 9.0 ± 0.2 at staleness 18, 4.5 ± 0.2 at staleness 9 and 1.5 ± 0.2 at staleness 3, in points (" in text
    assert text.endswith(" A staleness of 14, 12, 6 and 1 has not been run yet.")
    texts = [finding.text for finding in rendered.findings]
    (alone,) = (text for text in texts if "current weights change" in text)
    assert f"{MINUS}1.8\N{NARROW NO-BREAK SPACE}±\N{NARROW NO-BREAK SPACE}" in alone
    assert f"{MINUS}0.3\N{NARROW NO-BREAK SPACE}±\N{NARROW NO-BREAK SPACE}" in alone
    (devices,) = (text for text in texts if "one stage per device" in text)
    of_four, of_ten = devices.split("; ")[1:]
    assert "not trained yet at k = 1" in of_four, "the curve's cut is not the devices'"
    assert "with a loss of 4.5\N{NARROW NO-BREAK SPACE}±\N{NARROW NO-BREAK SPACE}" in of_ten
    points = sections.table(rendered, "staleness-small-points")
    row = next(row for row in points.rows if row[1].text == "9" and "k = 1, 3 epochs" in row[0].text)
    assert row[2].text == "asynchronous 1F1B"
    assert [entry.text for entry in row[5:6]] == ["not run"], "DSP"
    assert sections.table(rendered, "staleness-small-devices").rows[0][4].text == "not run"


def test_backpropagation_is_the_point_at_staleness_0(tmp_path: Path) -> None:
    """Every line of the figure begins at the accuracy of backpropagation."""
    write(tmp_path)
    (figure,) = (block for block in section(tmp_path).blocks if getattr(block, "svg", ""))
    described = figure.description  # type: ignore[union-attr]  # a figure
    assert "PETRA, 3 epochs from 70.1 to 61.1" in described
    assert "Delayed gradients, 3 epochs from 70.1 to 62.9" in described


def test_period_of_one_stage_per_device_includes_latency() -> None:
    """Link latency increases the period as the formula predicts, unless slack hides it."""
    costs = (Cost(1.0, 2.0),) * 4

    def seconds(slack: float, link: Link) -> float:
        return run_full(methods.PETRA, costs, (2, 2), 1, per_device((2, 2), slack), link)[1]

    assert seconds(0.0, INSTANT) == pytest.approx(6.0)
    # A round trip of two stages takes the turns of both and two messages, for d + 1 = 2 micro-batches.
    assert seconds(0.0, Link(latency=0.6)) == pytest.approx((2 * 6.0 + 2 * 0.6) / 2)
    assert seconds(1.0, Link(latency=0.6)) == pytest.approx(6.0)


def test_smoke_cells_differ_in_timing_only() -> None:
    """The two cells of scale smoke differ only in timing and stages."""
    free, four = plan.cells("smoke")
    assert isinstance(free, TrainedCell)
    assert dataclasses.replace(free, timing=plan.FOUR.timing, stages=plan.FOUR.stages) == four
