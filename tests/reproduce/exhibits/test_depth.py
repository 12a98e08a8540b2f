"""The study of depth: what separates the methods, what breaks, and how errors grow, from records with known answers."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from petra_core import methods
from petra_core.methods import Method
from reproduce.cells.kinds import ReconstructionCell, TrainedCell
from reproduce.exhibits import depth
from reproduce.exhibits._exhibit import section
from reproduce.exhibits.depth import breaking
from reproduce.grids.plans.depth import cells
from reproduce.records import results
from reproduce.records.frames import Frames
from reproduce.show.compare import Sample
from reproduce.show.content import TIMES, Entry, Figure, Section, Table, Tone
from tests import fake_probes, fake_records

CELLS = [cell for cell in cells("small") if isinstance(cell, TrainedCell)]
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


def shown(root: Path) -> Section:
    return section(depth.EXHIBIT, Frames(results.read(root)))


def row(found: Section, key: str, stages: int) -> list[Entry]:
    """The row of k = 1 and J; its first three entries are those."""
    table = next(block for block in found.blocks if isinstance(block, Table) and block.key == key)
    return next(list(row) for row in table.rows if (row[0].text, row[1].value) == ("k = 1", stages))


def figures(found: Section) -> list[Figure]:
    return [block for block in found.blocks if isinstance(block, Figure)]


def spread(accuracies: Mapping[Method, float]) -> Callable[[Method, int, int], float]:
    """With seeds 0.1 apart, the same for all methods but for 0.02 that differences vary."""
    return lambda method, n, seed: accuracies[method] + 0.1 * seed + 0.02 * (seed == 1) * (method is methods.PETRA)


def test_reconstruction_and_delay_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, (2,), lambda m, n, seed: spread(BEST)(m, n, seed) + 0.03 * seed * (m is methods.DSP))
    found = shown(tmp_path)
    reconstruction, delay = row(found, "depth-small", 4)[6:8], row(found, "depth-small", 4)[8:10]
    assert (reconstruction[1].text, delay[1].text) == ("agree", "differ")
    assert delay[0].value == pytest.approx(-9.97)
    assert "Reconstruction (PETRA less DSP): 1 comparison: agree 1." in found.findings[1].text
    assert "1 comparison: differ 1; worse at J = 4 with k = 1." in found.findings[1].text


@pytest.mark.parametrize(
    ("petra", "broken", "reason", "unclear"),
    [
        ((60.0, 60.1, 60.2), {}, "9.9 points below backpropagation", ""),
        ((64.9, 65.0, 67.0), {}, "", ""),  # on average 4.4 below: less than the margin
        ((30.0, 70.0, 75.0), {}, "", "far below"),  # 11.7 below, but the interval contains 0
        ((40.0,), {}, "", "far below"),  # one seed
        ((69.0,), {}, "", "not all runs have ended"),
        ((60.0, 12.0, 60.0), {1: "accuracy of a guess"}, "seed 1: accuracy of a guess", ""),
    ],
)
def test_what_breaks(petra: tuple[float, ...], broken: dict[int, str], reason: str, unclear: str) -> None:
    states = {seed: "done" if seed < len(petra) else "not run" for seed in range(3)}
    exact = Sample(dict.fromkeys(range(3), 70.0), dict.fromkeys(range(3), "done"))
    found = breaking(Sample(dict(enumerate(petra)), states, (), broken), exact)
    assert found.reason == reason
    assert found.unclear.startswith(unclear)
    assert bool(found.unclear) == bool(unclear)
    assert breaking(exact, exact) == ("", "")


def test_it_is_said_at_which_depth_which_method_breaks(tmp_path: Path) -> None:
    write(tmp_path, (2, 8, 48), lambda m, n, seed: 10.0 if n == 48 and m is methods.PETRA else 70.0 + seed)
    found = shown(tmp_path)
    said = found.findings[0].text
    assert "k = 1, of J = 4, 10, 18, 34, 50: PETRA breaks at J = 50, cannot tell at J = 18, 34; DSP is not seen" in said
    broken, whole, absent = (row(found, "depth-small", stages) for stages in (50, 10, 18))
    assert (broken[3].tone, broken[-1].text) == (Tone.ALERT, "PETRA")
    assert broken[-1].hint.startswith("PETRA (seed 0: accuracy of a guess")
    assert whole[-1].text == "none"
    assert (absent[3].text, absent[-1].text) == ("not run", "cannot tell of PETRA, DSP and Backpropagation")
    drawing = figures(found)[0]
    assert (drawing.svg.count(">k = 1<"), drawing.svg.count(">k = 8<")) == (1, 0)  # no panel without a run


def test_a_run_that_diverged_is_no_unfinished_one(tmp_path: Path) -> None:
    for cell in CELLS:
        if (cell.model, cell.method, cell.accumulation) == ("chain48", "DSP", 1):
            fake_records.begin(cell, tmp_path).fail("diverged", "the loss is nan")
    found = row(shown(tmp_path), "depth-small", 50)
    assert (found[4].text, found[4].tone) == ("diverged (epoch 1 of 2)", Tone.ALERT)
    assert found[-1].text == "DSP"


def test_that_two_methods_are_both_broken_is_no_agreement(tmp_path: Path) -> None:
    write(tmp_path, (48,), lambda m, n, seed: 70.0 + seed if m is methods.BACKPROPAGATION else 10.0 + 0.01 * seed)
    found = shown(tmp_path)
    entries = row(found, "depth-small", 50)
    assert [entries[6].value, entries[7].text, entries[9].text] == [0.0, "both broken", "differ"]
    assert "Reconstruction (PETRA less DSP): nothing to compare yet" in found.findings[1].text


def test_errors_are_those_of_the_bottom_weighed_over_epochs(tmp_path: Path) -> None:
    write(tmp_path, (2, 8), spread(BEST))
    found = shown(tmp_path)
    assert "k = 1: 15 % at J = 4, 15 % at J = 10." in found.findings[2].text
    entries = row(found, "depth-small-errors", 4)
    assert entries[2].text == "3"
    assert [entry.text.split(" ")[0] for entry in entries[3:]] == ["1.0e-07", "0.0010", "0.15", "0.15"]
    assert [figure.key.removeprefix("depth-small-") for figure in figures(found)] == ["accuracy", "errors", "chains"]


def test_an_unfinished_run_shows_its_errors_and_no_accuracy(tmp_path: Path) -> None:
    cell = next(cell for cell in CELLS if isinstance(cell, ReconstructionCell))
    fake_probes.measure(cell, tmp_path, error, epochs=1)
    found = shown(tmp_path)
    accuracy = row(found, "depth-small", 4)[3]
    assert (accuracy.text, accuracy.tone) == (f"1 of 2 epochs; 2 {TIMES} not run", Tone.MISSING)
    assert [figure.key for figure in figures(found)] == ["depth-small-errors", "depth-small-chains"]
    assert row(found, "depth-small-errors", 4)[5].text == "0.10"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (0.0621, "6.2 %"),
        (4.82, "482 %"),
        (9.99, "999 %"),
        (10.4, "10 times the input"),
        (1005.3, "1,005 times the input"),
    ],
)
def test_large_errors_are_told_as_multiples(error: float, words: str) -> None:
    assert depth.relative(error) == words
