"""Test the map of stability: broken runs, the largest stable rate, the best rate, and missing runs."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

import pytest

from reproduce.cells import rates
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import stability
from reproduce.grids.plans.stability import cells
from reproduce.presentation.compare import SeedSample
from reproduce.presentation.content import MINUS, Figure
from tests import fake_probes, fake_records
from tests.sections import made, situation

CELLS = [cell for cell in cells("small") if isinstance(cell, TrainingCell)]


def at(method: str, k: int) -> list[TrainingCell]:
    """Return the cells without warm-up, ordered by increasing rate."""
    cells = [cell for cell in CELLS if (cell.method, cell.accumulation, cell.warmup_epochs) == (method, k, 0.0)]
    return sorted(cells, key=rates.reference_of)


def run(root: Path, method: str, k: int, accuracies: Iterable[float]) -> None:
    for cell, accuracy in zip(at(method, k), accuracies, strict=False):
        fake_probes.train(cell, root, accuracy)


TRAINS, BROKEN, ABSENT = (
    SeedSample({0: 40.0}, {0: "done"}),
    SeedSample({0: 10.0}, {0: "done"}, {}, {0: "why"}),
    SeedSample(),
)


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([ABSENT] * 4, "not known"),
        ([BROKEN, TRAINS, TRAINS, TRAINS], "none"),
        ([ABSENT, BROKEN, TRAINS, TRAINS], "none"),
        ([ABSENT, ABSENT, TRAINS, BROKEN], "0.4"),  # rates below that were not run do not matter
        ([TRAINS, ABSENT, TRAINS, TRAINS], "0.025 (next not run)"),
        ([TRAINS, TRAINS, BROKEN, TRAINS], "0.1"),  # runs beyond the first broken one do not count
        ([TRAINS] * 4, "1.6 (largest tried)"),
    ],
)
def test_largest_stable_rate_is_below_first_broken_run(samples: list[SeedSample], words: str) -> None:
    """The largest stable rate is the last one below the first broken or missing run."""
    assert stability.stable_rate(dict(zip((0.025, 0.1, 0.4, 1.6), samples, strict=True))).text == words


@situation(stability.EXHIBIT)
def broken_pairs_and_best_rates(root: Path) -> None:
    """Broken runs count where both methods have run. The best rate may be the lowest; other seeds do not matter."""
    run(root, "PETRA", 1, [40.0, 10.0, 12.0, 11.0])
    run(root, "BACKPROPAGATION", 1, [50.0, 60.0, 30.0, 10.0])
    fake_probes.train(dataclasses.replace(at("PETRA", 1)[0], seed=1), root, 10.0)
    run(root, "PETRA", 2, [40.0])  # without its counterpart
    fake_records.train(at("PETRA", 8)[0], root, 10.0, epochs=0).fail("diverged", "the loss is nan")  # no other run


def test_stability_map_shows_broken_and_missing_runs(tmp_path: Path) -> None:
    """The map contains accuracies and differences, marks for missing runs and patterns for broken ones."""
    run(tmp_path, "PETRA", 1, [41.3, 42.7])
    run(tmp_path, "BACKPROPAGATION", 1, [50.0, 60.0])

    def svg() -> str:
        return next(block.svg for block in made(stability.EXHIBIT, tmp_path).blocks if isinstance(block, Figure))

    whole = svg()
    assert "pattern" not in whole  # no field is hatched
    for words in (">41.3<", ">60.0<", f">{MINUS}8.7<", f">{MINUS}17.3<"):
        assert words in whole
    assert whole.count(">·<") == 3 * len(CELLS) // 2 - 6
    fake_records.train(at("PETRA", 1)[2], tmp_path, 10.0, epochs=0).fail("diverged", "the loss is nan")
    assert "pattern" in svg()
    assert "\N{MULTIPLICATION SIGN}" in svg()
