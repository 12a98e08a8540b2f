"""BDIA's study: every cell is of one way, published values stand beside ours, each is compared with its own kind."""

from pathlib import Path

import pytest

from reproduce.cells.kinds import TrainedCell
from reproduce.exhibits import bdia
from reproduce.grids import scales
from reproduce.grids.plans import bdia as plan
from tests import fake_records
from tests.sections import entries, made, table

REACHED = {"ViT": 60.0, "RevViT": 58.0, "BDIA-ViT": 61.0, "BDIA-ViT without quantiser": 61.5}
REACHED |= {"RevViT, PETRA": 50.0, "BDIA-ViT, PETRA": 52.0}


def test_every_cell_is_of_one_way_and_as_large_as_published() -> None:
    for scale in scales.SCALES:
        cells = plan.cells(scale)
        assert len(set(cells)) == len(cells)
        for cell in cells:
            assert isinstance(cell, TrainedCell)
            way = plan.way_of(cell)
            assert (cell.coupling, cell.method) == (way.coupling, way.method.name)
            if scale == "paper":
                assert (cell.width, cell.batch_size, cell.epochs) == (512, 128, 400)


def test_published_values_and_comparisons(tmp_path: Path) -> None:
    for cell in plan.cells("small"):
        assert isinstance(cell, TrainedCell)
        title = plan.way_of(cell).title
        fake_records.train(cell, tmp_path, REACHED[title] + cell.seed + 0.1 * cell.seed * (title != "ViT"))
    fake_records.train(plan.as_published(plan.BDIA, "cifar100"), tmp_path, 65.09)
    found = made(bdia.EXHIBIT, tmp_path)
    published = table(found, "bdia")
    ours = entries(published, "CIFAR-100", "BDIA-ViT")
    assert ours["", "published"].raw == 66.09
    assert ours["", "difference"].value == pytest.approx(-1.0)
    assert entries(published, "CIFAR-10", "ViT")["", "ours"].text == "not run"
    small = table(found, "bdia-small-cifar10")
    for title, of, points in (("BDIA-ViT", "ViT", 1.1), ("BDIA-ViT, PETRA", "BDIA-ViT", -9.0)):
        row = entries(small, title)
        assert row["", "compared with"].text == of
        assert row["", "points"].raw == pytest.approx(points)
    assert found.sentence == "Points of accuracy above a plain ViT (scale “paper”): RevViT not run, BDIA-ViT not run."
    assert entries(table(found, "bdia-memory"), "BDIA-ViT")["", "published"].raw == 693.4
