"""The map of stability: what breaks, up to which rate nothing does, and what is not known."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from reproduce.cells import rates
from reproduce.cells.kinds import TrainingCell
from reproduce.exhibits import stability
from reproduce.exhibits._exhibit import section
from reproduce.grids.plans.stability import REFERENCE_RATES, cells
from reproduce.records import results
from reproduce.records.frames import Frames
from reproduce.show.compare import Sample
from reproduce.show.content import MINUS, Figure, Section, Table, Tone
from tests import fake_probes, fake_records

CELLS = [cell for cell in cells("small") if isinstance(cell, TrainingCell)]


def at(method: str, k: int) -> list[TrainingCell]:
    """The cells without warm-up, the rates rising."""
    own = [cell for cell in CELLS if (cell.method, cell.accumulation, cell.warmup_epochs) == (method, k, 0.0)]
    return sorted(own, key=rates.reference_of)


def run(root: Path, method: str, k: int, accuracies: Iterable[float]) -> None:
    for cell, accuracy in zip(at(method, k), accuracies, strict=False):
        fake_probes.train(cell, root, accuracy)


def shown(root: Path) -> Section:
    return section(stability.EXHIBIT, Frames(results.read(root)))


def figure(root: Path) -> Figure:
    (only,) = [block for block in shown(root).blocks if isinstance(block, Figure)]
    return only


TRAINS, BROKEN, ABSENT = Sample({0: 40.0}, {0: "done"}), Sample({0: 10.0}, {0: "done"}, (), {0: "why"}), Sample()


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([ABSENT] * 4, "not known"),
        ([BROKEN, TRAINS, TRAINS, TRAINS], "none"),
        ([TRAINS, ABSENT, TRAINS, TRAINS], "0.025 (next not run)"),
        ([TRAINS, TRAINS, BROKEN, TRAINS], "0.1"),  # what trains beyond the first break does not count
        ([TRAINS] * 4, "1.6 (largest tried)"),
    ],
)
def test_the_largest_rate_up_to_which_nothing_breaks(samples: list[Sample], words: str) -> None:
    assert stability.stable_rate(dict(zip(REFERENCE_RATES, samples, strict=True))).text == words


def test_what_breaks_is_counted_by_method_where_both_have_run(tmp_path: Path) -> None:
    run(tmp_path, "PETRA", 1, [40.0, 10.0, 12.0, 11.0])
    run(tmp_path, "BACKPROPAGATION", 1, [50.0, 60.0, 30.0, 10.0])
    run(tmp_path, "PETRA", 2, [40.0])  # without its pair
    counts, rates_without_warmup, _ = shown(tmp_path).findings
    assert "4 of 48 points run with both methods, one seed" in counts.text
    assert "PETRA breaks at 3 and backpropagation at 1 of them; at 2 PETRA alone" in counts.text
    assert "PETRA 0.025 at k = 1, 0.025 (next not run) at k = 2, not known at k = 4" in rates_without_warmup.text
    assert "Backpropagation 0.4 at k = 1, not known at k = 2" in rates_without_warmup.text


def test_a_loss_that_is_not_finite_is_marked_though_it_has_no_accuracy(tmp_path: Path) -> None:
    run(tmp_path, "BACKPROPAGATION", 1, [50.0])
    fake_records.train(at("PETRA", 1)[0], tmp_path, 10.0, epochs=0).fail("diverged", "the loss is nan")
    (points,) = [block for block in shown(tmp_path).folded if isinstance(block, Table)]
    assert len(points.rows) * 2 == len(CELLS)
    first, second = points.rows[:2]
    assert [entry.value for entry in first[:4]] == [0.0, 1, 0.025, pytest.approx(0.025 * 32 / 256)]
    assert [entry.text for entry in first[4:]] == ["", "broken: loss not finite", "50.0", "trains", ""]
    assert first[5].tone is Tone.ALERT
    assert [entry.text for entry in second[4:]] == ["", "not run", "", "not run", ""]
    assert "\N{MULTIPLICATION SIGN}" in figure(tmp_path).svg
    assert "pattern" in figure(tmp_path).svg  # hatched


def test_only_what_breaks_is_hatched_and_fields_have_their_numbers(tmp_path: Path) -> None:
    run(tmp_path, "PETRA", 1, [41.3, 42.7])
    run(tmp_path, "BACKPROPAGATION", 1, [50.0, 60.0])
    svg = figure(tmp_path).svg
    assert "pattern" not in svg
    for words in (">41.3<", ">60.0<", f">{MINUS}8.7<", f">{MINUS}17.3<", ">·<"):
        assert words in svg
    assert svg.count(">·<") == 3 * len(CELLS) // 2 - 6
