"""Test the study of depth on records with known answers: differences of methods, broken runs, and large gaps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import ReconstructionCell, TrainedCell
from reproduce.exhibits import depth
from reproduce.grids.plans.depth import cells
from reproduce.presentation.content import TIMES, Figure, Role
from tests import fake_probes, fake_records
from tests.sections import entries, made, table

CELLS = [cell for cell in cells("small") if isinstance(cell, TrainedCell)]


def error(cause: str, stream: str, stage: int, epoch: int) -> float:
    return {"rounding": 1e-7, "rounding_bfloat16": 1e-3, "training": 0.1 * epoch}[cause] / stage if stage else 0.0


def write(root: Path, blocks: tuple[int, ...], accuracy: Callable[[Method, int, int], float], k: int = 1) -> None:
    """Write all seeds of some depths."""
    for cell in CELLS:
        n = int(cell.model.removeprefix("chain"))
        if n in blocks and cell.accumulation == k:
            reached = accuracy(methods.by_name(cell.method), n, cell.seed)
            if isinstance(cell, ReconstructionCell):
                fake_probes.measure(cell, root, error, accuracy=reached)
            else:
                fake_probes.train(cell, root, reached)


def test_depth_separates_reconstruction_and_delay_effects(tmp_path: Path) -> None:
    """The differences for reconstruction and delay are separate, and errors are those of the lowest stage."""
    petra, dsp, exact = (60.0, 60.12, 60.2), (60.0, 60.13, 60.26), (70.0, 70.1, 70.2)
    reached = {methods.PETRA: petra, methods.DSP: dsp, methods.BACKPROPAGATION: exact}
    write(tmp_path, (2, 48), lambda m, n, seed: reached[m][seed])
    section = made(depth.EXHIBIT, tmp_path)
    row = entries(table(section, "depth-small"), "k = 1", "4")
    assert row["reconstruction: PETRA − DSP", "verdict"].text == "equal"
    assert row["delay: DSP − Backpropagation", "difference"].value == pytest.approx(-9.97)
    assert "reconstruction (PETRA − DSP), 2 differences of 0.0 points: 2 equal" in section.findings[1].text
    errors = [entry.text for (group, _), entry in row.items() if group.startswith("error")]
    assert errors[::-1] == [f"{e}, {e} to {e} (3)" for e in ("0.15", "0.0010", "1.0e-07")]  # `entries` goes backwards


@pytest.mark.parametrize(
    ("petra", "behind"),
    [
        ((60.0, 60.1, 60.2), True),
        ((64.9, 65.0, 67.0), False),  # 4.4 below on average, less than the margin
        ((30.0, 70.0, 75.0), False),  # 11.7 below, but the interval contains 0
    ],
)
def test_large_gap_is_reported_as_behind_not_as_broken(petra: tuple[float, ...], behind: bool, tmp_path: Path) -> None:
    """A method far below backpropagation is listed as behind if the interval excludes 0, and not as broken."""
    write(tmp_path, (8,), lambda m, n, seed: petra[seed] if m is methods.PETRA else 70.0)
    text = made(depth.EXHIBIT, tmp_path).findings[0].text
    assert "More than 5 points behind backpropagation" in text
    assert f"excludes 0: {'PETRA at J = 10 with k = 1' if behind else 'none'}. Broken runs: none." in text


def test_two_broken_methods_are_not_reported_as_equal(tmp_path: Path) -> None:
    """If both methods are broken, they are not compared."""
    write(tmp_path, (48,), lambda m, n, seed: 70.0 + seed if m is methods.BACKPROPAGATION else 10.0 + 0.01 * seed)
    section = made(depth.EXHIBIT, tmp_path)
    row = entries(table(section, "depth-small"), "k = 1", "50")
    assert row["reconstruction: PETRA − DSP", "difference"].text == "both broken"
    assert row["delay: DSP − Backpropagation", "verdict"].text == "lower"
    assert row["", "broken runs"].text == "PETRA: 3 below twice chance; DSP: 3 below twice chance"
    assert "reconstruction (PETRA − DSP), nothing to compare yet" in section.findings[1].text


def test_seed_broken_for_both_is_excluded_from_difference(tmp_path: Path) -> None:
    """A seed that is broken for both methods is excluded, and the other seeds are compared."""

    def accuracy(method: Method, blocks: int, seed: int) -> float:
        if method is methods.BACKPROPAGATION:
            return 70.0
        return 10.0 if seed == 0 else 60.0 + seed + 2 * (method is methods.DSP)

    write(tmp_path, (48,), accuracy)
    row = entries(table(made(depth.EXHIBIT, tmp_path), "depth-small"), "k = 1", "50")
    assert row["reconstruction: PETRA − DSP", "difference"].value == pytest.approx(-2.0)
    assert row["reconstruction: PETRA − DSP", "difference"].text.endswith("(2 + 2)")


def test_depth_reports_failed_and_unfinished_runs(tmp_path: Path) -> None:
    """Failed runs are counted as broken, and unfinished ones have their progress."""
    for cell in CELLS:
        if (cell.model, cell.method, cell.accumulation) == ("chain48", "DSP", 1):
            fake_records.begin(cell, tmp_path).fail("diverged", "the loss is nan")
    first = next(cell for cell in CELLS if isinstance(cell, ReconstructionCell))
    fake_probes.measure(first, tmp_path, error, epochs=1)
    section = made(depth.EXHIBIT, tmp_path)
    deep, shallow = (entries(table(section, "depth-small"), "k = 1", stages) for stages in ("50", "4"))
    assert section.sentence == (
        "No run on a chain of 50 stages has an accuracy yet at k = 1 (DSP: diverged (epoch 1 of 2))."
    )
    assert (deep["accuracy, %", "DSP"].text, deep["", "broken runs"].text) == (
        "diverged (epoch 1 of 2)",
        "DSP: 3 loss not finite",
    )
    unfinished = shallow["accuracy, %", "PETRA"]
    assert (unfinished.text, unfinished.role) == (f"1 of 2 epochs; 2 {TIMES} not run", Role.MISSING)
    assert [block.key for block in section.blocks if isinstance(block, Figure)] == ["depth-small-errors"]


def test_one_seed_gives_no_interval_and_no_gap(tmp_path: Path) -> None:
    """With one seed, no method is listed as behind."""
    for cell in CELLS:
        if (cell.model, cell.accumulation, cell.seed) == ("chain8", 1, 0):
            reached = 70.0 if cell.method == methods.BACKPROPAGATION.name else 40.0
            if isinstance(cell, ReconstructionCell):
                fake_probes.measure(cell, tmp_path, error, accuracy=reached)
            else:
                fake_probes.train(cell, tmp_path, reached)
    assert "excludes 0: none. Broken runs: none." in made(depth.EXHIBIT, tmp_path).findings[0].text
