"""Test the first screen: answers and pictures are computed from records, and without records there are none."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.grids.plans import length, staleness
from reproduce.presentation.compare import SeedSample
from reproduce.presentation.content import NARROW_SPACE
from reproduce.records.frames import Frames
from reproduce.records.results import read
from reproduce.report.headline import Answer, _title, first_screen
from tests import fake_records


def train(root: Path, method: methods.Method, epochs: int, accuracy: float, seeds: int = 3) -> None:
    for seed in range(seeds):
        fake_records.train(length.plan_cell("small", method, 1, epochs, seed), root, accuracy + 0.1 * seed)


def answer(root: Path) -> Answer:
    (single,) = first_screen(Frames(read(root)))
    return single


def differences(single: Answer) -> dict[tuple[str, str, str], list[str]]:
    """Return the entries of the first answer's table by network, difference and staleness."""
    (table,) = single.tables
    return {(row[0].text, row[1].text, row[2].text): [entry.text for entry in row[3:]] for row in table.rows}


def test_first_screen_is_empty_without_records(tmp_path: Path) -> None:
    assert first_screen(Frames(read(tmp_path))) == []


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


def test_single_runs_give_no_verdict(tmp_path: Path) -> None:
    """With one run each, the title states that the answer is not known."""
    for method in (methods.BACKPROPAGATION, methods.PETRA):
        train(tmp_path, method, 27, 80.0, seeds=1)
    single = answer(tmp_path)
    assert single.title.startswith("It is not yet known")
    ((place, (gap,)),) = differences(single).items()
    assert place == ("RevNet-18, width 8", "PETRA − backpropagation", "18")
    assert gap.endswith(" (one run each)")


@pytest.mark.parametrize(
    ("delayed", "words"),
    [
        (75.0, "no cost of reconstruction and current weights above half a point is left"),
        (79.0, "On RevNet-18 reconstruction and current weights cost accuracy after 27 epochs"),
    ],
)
def test_answer_compares_with_delayed_gradients(tmp_path: Path, delayed: float, words: str) -> None:
    """The answer states whether PETRA is worse than delayed gradients, which keep inputs and weights."""
    reached = {methods.BACKPROPAGATION: 80.0, methods.PETRA: 75.0, methods.DELAYED_GRADIENTS: delayed}
    for method, accuracy in reached.items():
        train(tmp_path, method, 27, accuracy)
    assert words in answer(tmp_path).text


def test_title_states_only_the_difference_to_backpropagation_in_lockstep(tmp_path: Path) -> None:
    """Other differences do not take its place: without backpropagation there is no answer, and none on the chain."""
    for method in (methods.PETRA, methods.DELAYED_GRADIENTS):
        train(tmp_path, method, 27, 70.0)
    assert first_screen(Frames(read(tmp_path))) == []
    for cell in staleness.longer():
        if cell.model == staleness.CHAIN and cell.timing == "lockstep" and cell.method in ("PETRA", "DSP"):
            fake_records.train(cell, tmp_path, 70.0 + 5 * (cell.method == "DSP"))
    train(tmp_path, methods.BACKPROPAGATION, 27, 75.0)
    assert "chain" not in answer(tmp_path).title


def test_interval_at_less_staleness_does_not_hide_lockstep(tmp_path: Path) -> None:
    """With a single run in lockstep and several under asynchronous 1F1B, both are listed."""
    train(tmp_path, methods.BACKPROPAGATION, 3, 75.0)
    train(tmp_path, methods.PETRA, 3, 70.0, seeds=1)
    for seed in range(3):
        cell = staleness.plan_cell(methods.PETRA, staleness.FREE, 1, seed)
        fake_records.train(cell, tmp_path, 72.0 + 0.1 * seed)
    assert [place[2] for place in differences(answer(tmp_path))] == ["18", "9"]


def test_staleness_runs_fill_the_first_picture(tmp_path: Path) -> None:
    """Mark each staleness as "not run" until a run is finished, and then show it in picture and table."""
    for method in (methods.BACKPROPAGATION, methods.PETRA):
        train(tmp_path, method, 3, 70.0 if method is methods.BACKPROPAGATION else 60.0)
    before = answer(tmp_path)
    assert before.figure.svg.count("not run") == len({1, 3, 6, 9, 12, 14})
    place = "RevNet-18, width 8", "PETRA − backpropagation", "9"
    assert place not in differences(before)
    for seed in range(3):
        cell = staleness.plan_cell(methods.PETRA, staleness.FREE, 1, seed)
        environment = {**fake_records.ENVIRONMENT, "device": "NVIDIA H200"}
        fake_records.train(cell, tmp_path, 66.0 + 0.1 * seed, environment=environment)
    after = answer(tmp_path)
    assert "9 runs: 3 on NVIDIA H200, 6 on CPUs" in after.figure.caption, "all runs that are drawn"
    assert after.figure.svg.count("not run") == len({1, 3, 6, 12, 14})
    (gap,) = differences(after)[place]
    assert gap.startswith("−4.0")
    assert gap.endswith("‡ (3 + 3)")


def test_answer_states_the_difference_at_half_of_the_delay(tmp_path: Path) -> None:
    """The text has the primary difference under asynchronous 1F1B with its verdict, once there are runs."""
    for method, accuracy in ((methods.BACKPROPAGATION, 80.0), (methods.PETRA, 75.0)):
        train(tmp_path, method, 27, accuracy)
    assert "Asynchronous 1F1B" not in answer(tmp_path).text
    for cell in staleness.longer():
        if (cell.model, cell.timing, cell.method, cell.seed < 3) == ("revnet18", "1f1b", "PETRA", True):
            fake_records.train(cell, tmp_path, 78.0 + 0.1 * cell.seed)
    single = answer(tmp_path)
    (gap,) = differences(single)["RevNet-18, width 8", "PETRA − backpropagation", "9"]
    assert gap.startswith("−1.9")
    assert (
        f"is then {gap.removesuffix(' (3 + 3)')} points on RevNet-18 after 27 epochs (verdict: lower). " in single.text
    )


def test_chain_is_listed_at_both_timings(tmp_path: Path) -> None:
    """The first answer has the differences on the chain in lockstep and under asynchronous 1F1B once they are known."""
    for method, accuracy in ((methods.BACKPROPAGATION, 88.0), (methods.PETRA, 87.3)):
        train(tmp_path, method, 27, accuracy)
    accuracies = {("BACKPROPAGATION", "lockstep"): 76.0, ("PETRA", "lockstep"): 68.0, ("DSP", "lockstep"): 72.0}
    accuracies |= {("PETRA", "1f1b"): 74.0, ("DSP", "1f1b"): 74.5}
    for cell in staleness.longer():
        accuracy = accuracies.get((cell.method, cell.timing))
        if cell.model == staleness.CHAIN and accuracy is not None and cell.seed == 0:
            fake_records.train(cell, tmp_path, accuracy)
    found = differences(answer(tmp_path))
    for other in ("backpropagation", "DSP"):
        for of_staleness in ("34", "17"):
            (gap,) = found["Reversible chain of 16, width 16", f"PETRA − {other}", of_staleness]
            assert gap.startswith("−")
            assert gap.endswith(" (one run each)")
