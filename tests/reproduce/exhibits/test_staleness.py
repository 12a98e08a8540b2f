"""Make the situation of the cost of staleness: the comparisons, and the texts for missing runs."""

from pathlib import Path

from reproduce.cells import timing
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import staleness
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
