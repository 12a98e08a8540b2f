"""Test the first screen of the report in made-up situations."""

from collections.abc import Callable
from pathlib import Path

import pytest

from petra_core import methods
from reproduce.grids.plans import length, staleness
from reproduce.presentation.compare import SeedSample
from reproduce.presentation.content import NARROW_SPACE
from reproduce.records.frames import Frames
from reproduce.records.results import read
from reproduce.report.headline import _title, first_screen
from tests import fake_records
from tests.golden import dump
from tests.messages import compare

FILE = Path(__file__).with_name("headlines.txt")


def train(root: Path, method: methods.Method, epochs: int, accuracy: float, seeds: int = 3) -> None:
    for seed in range(seeds):
        fake_records.train(length.plan_cell("small", method, 1, epochs, seed), root, accuracy + 0.1 * seed)


def no_records(root: Path) -> None:
    """Without records there are no answers."""


def single_runs(root: Path) -> None:
    """With one run each, the title states that the answer is not known."""
    for method in (methods.BACKPROPAGATION, methods.PETRA):
        train(root, method, 27, 80.0, seeds=1)


def as_bad_as_delayed_gradients(root: Path) -> None:
    """Compare with delayed gradients, which keep inputs and weights: no cost is left."""
    for method, reached in ((methods.BACKPROPAGATION, 80.0), (methods.PETRA, 75.0), (methods.DELAYED_GRADIENTS, 75.0)):
        train(root, method, 27, reached)


def worse_than_delayed_gradients(root: Path) -> None:
    """Compare with better delayed gradients: reconstruction and current weights cost accuracy."""
    for method, reached in ((methods.BACKPROPAGATION, 80.0), (methods.PETRA, 75.0), (methods.DELAYED_GRADIENTS, 79.0)):
        train(root, method, 27, reached)


def no_backpropagation(root: Path) -> None:
    """Another difference does not take the place of that to backpropagation in lockstep, so there is no answer."""
    for method in (methods.PETRA, methods.DELAYED_GRADIENTS):
        train(root, method, 27, 70.0)


def single_run_in_lockstep_and_several_under_1f1b(root: Path) -> None:
    """List both, since an interval at less staleness does not hide lockstep. The caption names the GPU."""
    train(root, methods.BACKPROPAGATION, 3, 75.0)
    train(root, methods.PETRA, 3, 70.0, seeds=1)
    for seed in range(3):
        cell = staleness.plan_cell(methods.PETRA, staleness.FREE, 1, seed)
        environment = {**fake_records.ENVIRONMENT, "device": "NVIDIA H200"}
        fake_records.train(cell, root, 72.0 + 0.1 * seed, environment=environment)


def half_of_the_delay_and_the_chain(root: Path) -> None:
    """State the primary difference under asynchronous 1F1B, and list the chain at both timings."""
    for method, accuracy in ((methods.BACKPROPAGATION, 88.0), (methods.PETRA, 87.3)):
        train(root, method, 27, accuracy)
    accuracies = {("BACKPROPAGATION", "lockstep"): 76.0, ("PETRA", "lockstep"): 68.0, ("DSP", "lockstep"): 72.0}
    accuracies |= {("PETRA", "1f1b"): 74.0, ("DSP", "1f1b"): 74.5}
    for cell in staleness.longer():
        accuracy = accuracies.get((cell.method, cell.timing))
        if cell.model == staleness.CHAIN and accuracy is not None and cell.seed == 0:
            fake_records.train(cell, root, accuracy)
        elif (cell.model, cell.timing, cell.method, cell.seed < 3) == ("revnet18", "1f1b", "PETRA", True):
            fake_records.train(cell, root, 78.0 + 0.1 * cell.seed)


SITUATIONS = (
    *(no_records, single_runs, as_bad_as_delayed_gradients, worse_than_delayed_gradients, no_backpropagation),
    *(single_run_in_lockstep_and_several_under_1f1b, half_of_the_delay_and_the_chain),
)


@pytest.mark.parametrize("write", SITUATIONS)
def test_first_screen_in_situation(write: Callable[[Path], None], tmp_path: Path) -> None:
    """Compare answers, captions and tables, and the number of places of each picture that are marked "not run"."""
    write(tmp_path)
    answers = first_screen(Frames(read(tmp_path)))
    marks = "".join(f"{one.figure.key}: {one.figure.svg.count('not run')} marks\n" for one in answers)
    compare(FILE, write.__name__.replace("_", " "), f"{dump.headlines(answers)}{marks}")


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [
        (-0.6, "0.6 ± 0.0 points below backpropagation (12.0 ± 0.0 after 3 epochs)"),
        (0.0, "as good as backpropagation, within half a point"),
        (2.0, "better than backpropagation"),
    ],
)
def test_title_follows_the_longest_training(gap: float, verdict: str) -> None:
    """The title states the difference after the longest training, which is in lockstep."""
    exact = SeedSample({0: 80.0, 1: 80.02, 2: 80.04})
    lengths = {3: -12.0, 27: gap}
    gaps = {
        n: SeedSample({seed: comparison + at for seed, comparison in exact.values.items()}) - exact
        for n, at in lengths.items()
    }
    title = _title(gaps, "RevNet-18", None).replace(NARROW_SPACE, " ")
    assert title == f"After 27 epochs on RevNet-18 PETRA with the paper's timing is {verdict}."


def test_open_difference_is_stated_as_open() -> None:
    gap = SeedSample({0: 80.0, 1: 82.0}) - SeedSample({0: 80.0, 1: 82.0})
    assert "still open" in _title({27: gap}, "RevNet-18", None)
