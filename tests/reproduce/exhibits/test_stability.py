"""The map of stability: what breaks, up to which rate nothing does, and what is not known."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import stability
from reproduce.exhibits.stability_map import BREAKS, LARGEST, NOT_RUN, Map, Point, read_map, stable_rates
from reproduce.grids.plans.stability import REFERENCE_RATES
from reproduce.records import results
from reproduce.show.content import Figure, Section, Table, Tone
from tests import fake_probes, fake_records

CELLS = [cell for cell in stability.cells("small") if isinstance(cell, TrainingCell)]
RATES = REFERENCE_RATES


def points(found: Map, method: Method, warmup: float, k: int) -> Iterable[TrainingCell]:
    return (found.cells[Point(warmup, k, rate)][method] for rate in RATES)


def small(root: Path) -> Map:
    found = read_map(results.read(root), "small", CELLS)
    assert found is not None
    return found


def run(root: Path, method: Method, k: int, accuracies: Iterable[float], warmup: float = 0.0) -> None:
    for cell, accuracy in zip(points(small(root), method, warmup, k), accuracies, strict=False):
        fake_probes.train(cell, root, accuracy)


def section(root: Path) -> Section:
    return stability.section(results.read(root))


def test_every_cell_has_its_place(tmp_path: Path) -> None:
    found = small(tmp_path)
    assert len(found.cells) * 2 == len(CELLS)
    assert (found.rates, found.warmups, found.accumulations) == (list(RATES), [0.0, 0.5], [1, 2, 4, 8, 16, 32])
    cell = found.cells[Point(0.5, 4, 0.1)][methods.PETRA]
    assert (cell.learning_rate, cell.warmup_epochs) == (pytest.approx(0.1 * 32 * 4 / 256), 0.5)


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [
        ([], (None, NOT_RUN)),
        ([10.0], (None, BREAKS)),
        ([40.0], (RATES[0], NOT_RUN)),
        ([40.0, 40.0, 10.0, 40.0], (RATES[1], BREAKS)),  # what trains beyond the first break does not count
        ([40.0] * 4, (RATES[3], LARGEST)),
    ],
)
def test_the_largest_rate_up_to_which_nothing_breaks(
    accuracies: list[float], expected: tuple[float | None, str], tmp_path: Path
) -> None:
    run(tmp_path, methods.PETRA, 1, accuracies)
    assert stable_rates(small(tmp_path), methods.PETRA, 0.0, 1) == expected
    assert stable_rates(small(tmp_path), methods.BACKPROPAGATION, 0.0, 1) == (None, NOT_RUN)


def test_findings_count_what_breaks_under_which_method(tmp_path: Path) -> None:
    run(tmp_path, methods.PETRA, 1, [40.0, 10.0, 12.0, 11.0])
    run(tmp_path, methods.BACKPROPAGATION, 1, [50.0, 60.0, 30.0, 10.0])
    run(tmp_path, methods.PETRA, 2, [40.0])  # without its pair
    found = section(tmp_path).findings
    assert "4 of 48 points run with both methods, one seed" in found[0].text
    assert "PETRA breaks at 3 and backpropagation at 1 of them; at 2 PETRA alone" in found[0].text
    assert "PETRA 0.025 at k = 1, 0.025 (next not run) at k = 2, not known at k = 4" in found[1].text
    assert "Backpropagation 0.4 at k = 1, not known at k = 2" in found[1].text


def test_a_loss_that_is_not_finite_is_marked_though_it_has_no_accuracy(tmp_path: Path) -> None:
    run(tmp_path, methods.BACKPROPAGATION, 1, [50.0])
    fake_records.train(next(iter(points(small(tmp_path), methods.PETRA, 0.0, 1))), tmp_path, 10.0, epochs=0).fail(
        "diverged", "the loss is nan"
    )
    found = section(tmp_path)
    rows = [row for block in found.folded if isinstance(block, Table) for row in block.rows]
    first = next(row for row in rows if (row[0].value, row[1].value, row[2].value) == (0.0, 1, RATES[0]))
    assert [entry.text for entry in first[4:]] == ["", "broken: loss not finite", "50.0", "trains", ""]
    (figure,) = [block for block in found.blocks if isinstance(block, Figure)]
    assert "\N{MULTIPLICATION SIGN}" in figure.svg
    assert "pattern" in figure.svg  # hatched


def test_only_what_breaks_is_hatched_and_fields_have_their_numbers(tmp_path: Path) -> None:
    run(tmp_path, methods.PETRA, 1, [41.3, 42.7])
    run(tmp_path, methods.BACKPROPAGATION, 1, [50.0, 60.0])
    (figure,) = [block for block in section(tmp_path).blocks if isinstance(block, Figure)]
    assert "pattern" not in figure.svg
    for words in (">41.3<", ">60.0<", ">\N{MINUS SIGN}8.7<", ">\N{MINUS SIGN}17.3<", ">·<"):
        assert words in figure.svg


def test_the_download_has_a_line_for_every_cell(tmp_path: Path) -> None:
    run(tmp_path, methods.PETRA, 1, [41.3])
    (table,) = [block for block in section(tmp_path).folded if isinstance(block, Table)]
    lines = list(csv.DictReader(io.StringIO(table.csv())))
    assert len(lines) == len(CELLS)
    assert sorted(line["test_accuracy"] for line in lines)[-1] == "41.3"
    assert sum(line["state"] == "not run" for line in lines) == len(CELLS) - 1


def test_without_records_it_says_so(tmp_path: Path) -> None:
    found = section(tmp_path)
    assert [finding.tone for finding in found.findings] == [Tone.MISSING]
    assert found.blocks[-1] == "Not run at scale “small” and “paper”."
