"""Test BDIA's study: each cell has one contestant, published values are next to ours, and comparisons are fair."""

import dataclasses
from pathlib import Path

import pytest

from reproduce.cells.kinds import TrainedCell
from reproduce.exhibits import bdia
from reproduce.grids import scales
from reproduce.grids.plans import bdia as plan
from reproduce.records import benchmarks
from tests import fake_records
from tests.reproduce.records.test_benchmark_records import benchmark
from tests.sections import entries, made, table

REACHED = {"ViT": 60.0, "RevViT": 58.0, "BDIA-ViT": 61.0, "BDIA-ViT without quantiser": 61.5}
REACHED |= {"RevViT, PETRA": 50.0, "BDIA-ViT, PETRA": 52.0}


def contestant_of(cell: TrainedCell) -> plan.TransformerContestant:
    return plan.BY_SETTINGS[cell.model.partition("_")[0], cell.coupling, cell.method]


def test_cells_belong_to_one_contestant_at_published_size() -> None:
    """Every cell has the coupling and method of one contestant, and the published size at scale paper."""
    for scale in scales.SCALES:
        cells = plan.cells(scale)
        assert len(set(cells)) == len(cells)
        for cell in cells:
            assert isinstance(cell, TrainedCell)
            contestant = contestant_of(cell)
            assert (cell.coupling, cell.method) == (contestant.coupling, contestant.method.name)
            if scale == "paper":
                assert (cell.width, cell.batch_size, cell.epochs) == (512, 128, 400)


def test_bdia_published_values_and_comparisons(tmp_path: Path) -> None:
    """The tables contain our accuracies, the published ones, and the differences to the right baseline."""
    for cell in plan.cells("small"):
        assert isinstance(cell, TrainedCell)
        title = contestant_of(cell).title
        fake_records.train(cell, tmp_path, REACHED[title] + 0.1 * cell.seed + 0.1 * cell.seed * (title != "ViT"))
    fake_records.train(plan.as_published(plan.BDIA, "cifar100"), tmp_path, 65.09)
    section = made(bdia.EXHIBIT, tmp_path)
    published = table(section, "bdia")
    ours = entries(published, "CIFAR-100", "BDIA-ViT")
    assert ours["", "published"].raw == 66.09
    assert ours["", "difference"].value == pytest.approx(-1.0)
    assert entries(published, "CIFAR-10", "ViT")["", "ours"].text == "not run"
    small = table(section, "bdia-small-cifar10")
    for title, reference, points in (("BDIA-ViT", "ViT", 1.1), ("BDIA-ViT, PETRA", "BDIA-ViT", -9.0)):
        row = entries(small, title)
        assert row["", "compared with"].text == reference
        assert row["", "points"].raw == pytest.approx(points)
    alone = entries(small, "BDIA-ViT without quantiser")
    assert alone["", "points"].raw == pytest.approx(1.6)
    assert alone["", "published points"].value == pytest.approx(0.97)
    assert alone["", "published points"].text.startswith("+0.97")
    assert entries(small, "BDIA-ViT, PETRA")["", "published points"].text == ""
    assert section.sentence.replace("\N{NARROW NO-BREAK SPACE}", " ") == (
        "After 6 epochs RevViT − ViT is \N{MINUS SIGN}1.9 ± 0.3 and BDIA-ViT − ViT is +1.1 ± 0.3 points of accuracy "
        "(scale “small”)."
    )


def test_bdia_memory_is_read_from_benchmark(tmp_path: Path) -> None:
    """The memory table contains the peak of the benchmark and the share of the side bits."""
    series = tuple(
        benchmarks.Series("size", name, quantity, "B", (value,))
        for name, peak, bits in (("RevViT", 400e6, 0.0), ("BDIA-ViT", 420e6, 2.1e6))
        for quantity, value in ((benchmarks.ALLOCATED, peak), (benchmarks.SIDE_BITS, bits))
    )
    benchmarks.write(dataclasses.replace(benchmark(name="bdia"), series=series), tmp_path)
    memory = table(made(bdia.EXHIBIT, tmp_path), "bdia-memory")
    row = entries(memory, "BDIA-ViT")
    assert (row["", "published"].raw, row["", "ours"].raw) == (693.4, 420.0)
    assert row["", "their share, %"].raw == pytest.approx(0.5)
    assert entries(memory, "ViT")["", "ours"].text == "not run"


def test_bdia_precisions_have_separate_tables(tmp_path: Path) -> None:
    """Runs in float32 and bf16 are in separate tables."""
    fake_records.train(plan.as_published(plan.VIT), tmp_path, 88.0)
    fake_records.train(dataclasses.replace(plan.as_published(plan.BDIA), precision="bf16"), tmp_path, 89.0)
    section = made(bdia.EXHIBIT, tmp_path)
    rendered = {
        key: [entries(table(section, key), "CIFAR-10", name)["", "ours"].text for name in ("ViT", "BDIA-ViT")]
        for key in ("bdia", "bdia-paper-bf16")
    }
    assert rendered == {"bdia": ["88.00 (1 of 3)", "not run"], "bdia-paper-bf16": ["not run", "89.00 (1 of 3)"]}
