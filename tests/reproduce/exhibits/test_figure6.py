"""Test Figure 6: the course over training, judged part by part."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits import figure6
from reproduce.grids.plans import gradients as plan
from reproduce.presentation.content import Section
from reproduce.records.gradients import BETWEEN, METHOD
from tests import fake_probes
from tests.sections import made, table

SMALL = [cell for cell in plan.cells("small") if isinstance(cell, GradientsCell)]


def later_worse(seed: int) -> fake_probes.Value:
    """Return values with PETRA's gradient closer in the first epoch by both measures, and further in the last."""

    def value(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        if stage == 9:
            return 1.0
        gain = (0.1 + 0.01 * seed) * (2 - epoch) * (-1 if measure == "relative_error" else 1)
        return 0.5 + 0.01 * stage + (gain if pair == METHOD else 0.3 if pair == BETWEEN else 0.0)

    return value


def measure(root: Path, *, singly: bool = False, epochs: int | None = None) -> Section:
    for cell in SMALL[:3]:
        fake_probes.measure(cell, root, later_worse(cell.seed), singly=singly, epochs=epochs, probes=31)
    return made(figure6.EXHIBIT, root)


def test_figure6_gains_of_each_part_of_training(tmp_path: Path) -> None:
    """The gains are computed for each part of the training."""
    section = measure(tmp_path)
    shown_table = table(section, "figure6-small")
    head = [(column.group, column.name) for column in shown_table.columns]
    assert [row[1].text for row in shown_table.rows] == ["0 to 1", "1 to 2", "2 to 3"]
    for name in ("cosine similarity", "relative error"):
        gains = [row[head.index((name, "PETRA closer by"))].value for row in shown_table.rows]
        assert gains == pytest.approx([0.11, 0.0, -0.11])
    assert shown_table.rows[0][head.index(("cosine similarity", "delayed/e2e"))].text.startswith(
        "0.540"
    )  # stages 0 to 8


def test_figure6_table_has_fewer_rows_than_curve_points(tmp_path: Path) -> None:
    assert len(table(measure(tmp_path, singly=True), "figure6-small").rows) == figure6.ROWS < figure6.POINTS


def test_figure6_unfinished_run_shows_its_epochs(tmp_path: Path) -> None:
    """An unfinished run has rows for its epochs, and its progress is stated."""
    section = measure(tmp_path, epochs=2)
    rows = table(section, "figure6-small").rows
    assert [row[1].text for row in rows] == ["0 to 1", "1 to 2"]
    assert "seed 0: 2 of 3 epochs" in rows[0][0].text
    assert "is 0.61 to 0.61 before the last part of the training and 0.50 in it" in section.sentence


def test_figure6_undefined_value_leaves_a_gap(tmp_path: Path) -> None:
    """An undefined value at one stage leaves a gap, and the other values are reported."""

    def nothing_at_the_stem(pair: str, measure: str, stage: int, epoch: int) -> float | None:
        return None if stage == 0 else later_worse(0)(pair, measure, stage, epoch)

    fake_probes.measure(SMALL[0], tmp_path, nothing_at_the_stem, singly=True)
    section = made(figure6.EXHIBIT, tmp_path)
    assert section.sentence == ""
    assert all(row[3].value for row in table(section, "figure6-small").rows)
