"""The study of depth: what separates the methods, what breaks, and how errors grow, from records with known answers."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import ReconstructionCell, TrainedCell
from reproduce.exhibits import depth
from reproduce.exhibits.depth_runs import Depths, Place, read_depths
from reproduce.records import results
from reproduce.show.content import Figure, Section, Table, Tone
from reproduce.show.statistics import Verdict
from tests import fake_probes, fake_records

CELLS = [cell for cell in depth.cells("small") if isinstance(cell, TrainedCell)]
BEST = {methods.PETRA: 60.0, methods.DSP: 60.0, methods.BACKPROPAGATION: 70.0}


def error(cause: str, of: str, stage: int, epoch: int) -> float:
    return {"rounding": 1e-7, "rounding_bfloat16": 1e-3, "training": 0.1 * epoch}[cause] / stage if stage else 0.0


def write(root: Path, blocks: tuple[int, ...], accuracy: Callable[[Method, int, int], float], k: int = 1) -> None:
    """All seeds of some depths."""
    for cell in CELLS:
        n = int(cell.model.removeprefix("chain"))
        if n in blocks and cell.accumulation == k:
            reached = accuracy(methods.by_name(cell.method), n, cell.seed)
            if isinstance(cell, ReconstructionCell):
                fake_probes.measure(cell, root, error, accuracy=reached)
            else:
                fake_probes.train(cell, root, reached)


def depths(root: Path) -> Depths:
    found = read_depths(results.read(root, expected=CELLS), "small", CELLS)
    assert found is not None
    return found


def section(root: Path) -> Section:
    return depth.section(results.read(root, expected=CELLS))


def table(found: Section, key: str) -> Table:
    return next(block for block in found.blocks if isinstance(block, Table) and block.key == key)


def spread(accuracies: Mapping[Method, float]) -> Callable[[Method, int, int], float]:
    """With seeds 0.1 apart, the same for all methods but for 0.02 that differences vary."""
    return lambda method, n, seed: accuracies[method] + 0.1 * seed + 0.02 * (seed == 1) * (method is methods.PETRA)


def test_reconstruction_and_delay_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, (2,), lambda m, n, seed: spread(BEST)(m, n, seed) + 0.03 * seed * (m is methods.DSP))
    judged = depths(tmp_path).judgements()
    place = Place(1, 4)
    reconstruction, delay = judged[place, "reconstruction"], judged[place, "delay"]
    assert reconstruction.verdict is Verdict.AGREE
    assert delay.verdict is Verdict.DIFFER
    assert delay.difference is not None
    assert delay.difference.mean == pytest.approx(-9.97)
    text = section(tmp_path).findings[1].text
    assert "Reconstruction (PETRA less DSP): 1 comparison: agree 1." in text
    assert "Delay (DSP less Backpropagation): 1 comparison: differ 1; worse at J = 4 with k = 1." in text


@pytest.mark.parametrize(
    ("petra", "breaks", "undecided"),
    [
        ((60.0, 60.1, 60.2), "9.9 points below backpropagation", False),
        ((64.9, 65.0, 67.0), "", False),  # on average 4.4 below: less than the margin
        ((30.0, 70.0, 75.0), "", True),  # 11.7 below, but the interval contains 0
        ((60.0, 12.0, 60.0), "seed 1: accuracy of a guess", False),
    ],
)
def test_what_breaks(petra: tuple[float, ...], breaks: str, undecided: bool, tmp_path: Path) -> None:
    write(tmp_path, (2,), lambda m, n, seed: petra[seed] if m is methods.PETRA else 70.0)
    found = depths(tmp_path)
    assert found.breaks(Place(1, 4), methods.PETRA) == breaks
    assert found.undecided(Place(1, 4), methods.PETRA) == undecided
    assert found.breaks(Place(1, 4), methods.BACKPROPAGATION) == ""


def test_findings_say_at_which_depth_which_method_breaks(tmp_path: Path) -> None:
    write(tmp_path, (2, 8, 48), lambda m, n, seed: 10.0 if n == 48 and m is methods.PETRA else 70.0 + seed)
    found = section(tmp_path)
    text = found.findings[0].text
    assert "k = 1, of J = 4, 10, 50: PETRA breaks at J = 50; DSP is not seen to break; Backpropagation is not" in text
    assert text.endswith("k = 8: not run.")
    rows = {row[1].value: row for row in table(found, "depth-small").rows if row[0].value == 1}
    assert rows[50][3].tone is Tone.ALERT
    assert rows[50][-1].text == "PETRA"
    assert rows[50][-1].hint.startswith("PETRA (seed 0: accuracy of a guess")
    assert rows[10][-1].text == "none"
    assert rows[18][-1].text == "not all finished"
    assert rows[18][3].text == "not run"
    drawing = next(block for block in found.blocks if isinstance(block, Figure))
    assert (drawing.svg.count(">k = 1<"), drawing.svg.count(">k = 8<")) == (1, 0)  # no panel without a run


def test_a_run_that_diverged_is_no_unfinished_one(tmp_path: Path) -> None:
    cell = next(cell for cell in CELLS if cell.model == "chain48" and cell.method == "DSP" and cell.accumulation == 1)
    fake_records.begin(cell, tmp_path).fail("diverged", "the loss is nan")
    row = next(row for row in table(section(tmp_path), "depth-small").rows if row[1].value == 50)
    assert (row[4].text, row[4].tone, row[-1].text) == ("diverged", Tone.ALERT, "DSP")


def test_that_two_methods_are_both_broken_is_no_agreement(tmp_path: Path) -> None:
    write(tmp_path, (48,), lambda m, n, seed: 70.0 + seed if m is methods.BACKPROPAGATION else 10.0 + 0.01 * seed)
    judged = depths(tmp_path).judgements()
    assert judged[Place(1, 50), "reconstruction"].difference is None
    assert judged[Place(1, 50), "delay"].verdict is Verdict.DIFFER
    row = next(row for row in table(section(tmp_path), "depth-small").rows if row[1].value == 50)
    assert [row[6].value, row[7].text] == [0.0, "both broken"]


def test_one_seed_decides_nothing_about_a_large_difference(tmp_path: Path) -> None:
    for cell in CELLS:
        if (cell.model, cell.accumulation, cell.seed) == ("chain2", 1, 0):
            reached = 40.0 if cell.method == "PETRA" else 70.0
            fake_probes.train(cell, tmp_path, reached) if not isinstance(
                cell, ReconstructionCell
            ) else fake_probes.measure(cell, tmp_path, error, accuracy=reached)
    found = depths(tmp_path)
    assert found.undecided(Place(1, 4), methods.PETRA)
    assert "seed 1: not run" in found.extent(Place(1, 4), methods.PETRA)
    shown = section(tmp_path)
    row = table(shown, "depth-small").rows[0]
    assert (row[3].text, row[-1].text) == ("40.0 (1)", "cannot tell of PETRA")
    assert (
        "k = 1, of J = 4 with 1 of 3 seeds: PETRA is not seen to break, cannot tell at J = 4" in shown.findings[0].text
    )


def test_errors_are_those_of_the_bottom_weighed_over_epochs(tmp_path: Path) -> None:
    write(tmp_path, (2, 8), spread(BEST))
    found = section(tmp_path)
    assert "k = 1: 15 % at J = 4, 15 % at J = 10." in found.findings[2].text
    errors = table(found, "depth-small-errors")
    row = errors.rows[0]
    assert [entry.text.split(" ")[0] for entry in row[3:]] == ["1.0e-07", "0.0010", "0.15", "0.15"]
    lines = list(csv.DictReader(io.StringIO(errors.csv())))
    assert len(lines) == 3 * 2 * (2 + 8)  # seeds, epochs, reversible stages
    assert {line["training/input"] for line in lines if (line["stage"], line["epoch"]) == ("2", "2")} == {"0.1"}
    assert [block.key for block in found.blocks if isinstance(block, Figure)] == [
        "depth-small-accuracy",
        "depth-small-errors",
    ]


def test_an_unfinished_run_shows_its_errors_and_no_accuracy(tmp_path: Path) -> None:
    cell = next(cell for cell in CELLS if isinstance(cell, ReconstructionCell))
    fake_probes.measure(cell, tmp_path, error, epochs=1)
    found = section(tmp_path)
    row = table(found, "depth-small").rows[0]
    assert row[3].text == "not finished"
    assert "seed 0: 1 of 2 epochs" in row[3].hint
    assert [block.key for block in found.blocks if isinstance(block, Figure)] == ["depth-small-errors"]
    assert table(found, "depth-small-errors").rows[0][5].text == "0.10"


def test_without_records_it_says_so(tmp_path: Path) -> None:
    found = section(tmp_path)
    assert [finding.tone for finding in found.findings] == [Tone.MISSING]
    assert all(isinstance(block, str) for block in found.blocks)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (0.0621, "6.2 %"),
        (4.82, "482 %"),
        (9.99, "999 %"),
        (10.4, "10 times the input"),
        (1005.3, "1,005 times the input"),
    ],
)
def test_large_errors_are_told_as_multiples(error: float, shown: str) -> None:
    assert depth._relative(error) == shown
