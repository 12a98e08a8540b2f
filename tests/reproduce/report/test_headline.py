"""Test the first screen: answers and pictures are computed from records, and without records there are none."""

from pathlib import Path

import pytest

from petra_core import methods
from reproduce.exhibits.primary import Primary, compare_variant
from reproduce.grids.plans import length, staleness
from reproduce.presentation.compare import SeedSample
from reproduce.records import benchmarks
from reproduce.records.frames import Frames
from reproduce.records.results import Results, read
from reproduce.report.headline import OF_CHAIN, Answer, _state_measured_speeds, _title, first_screen
from tests import fake_records
from tests.golden import dump


def train(root: Path, method: methods.Method, epochs: int, accuracy: float, seeds: int = 3) -> None:
    for seed in range(seeds):
        fake_records.train(length.plan_cell("small", method, 1, epochs, seed), root, accuracy + 0.1 * seed)


def answer(root: Path) -> Answer:
    (single,) = first_screen(Frames(read(root)))
    return single


def no_chain(root: Path) -> Primary:
    """Return the comparison on the chain of 16 without any runs."""
    return compare_variant(Frames(read(root)), OF_CHAIN, {}, {"method": methods.BACKPROPAGATION.name})


def test_first_screen_is_empty_without_records(tmp_path: Path) -> None:
    assert first_screen(Frames(read(tmp_path))) == []


@pytest.mark.parametrize(
    ("gap", "title"),
    [
        (-0.6, "After 27 epochs PETRA is 0.6 points below backpropagation on RevNet-18 (12.0 after 3 epochs)."),
        (0.0, "After 27 epochs PETRA is as good as backpropagation, within half a point."),
        (2.0, "After 27 epochs PETRA is better than backpropagation."),
    ],
)
def test_title_follows_the_longest_training(gap: float, title: str, tmp_path: Path) -> None:
    """The title states the difference after the longest training."""
    exact = SeedSample({0: 80.0, 1: 80.02, 2: 80.04})
    lengths = {3: -12.0, 27: gap}
    gaps = {
        n: SeedSample({seed: comparison + at for seed, comparison in exact.values.items()}) - exact
        for n, at in lengths.items()
    }
    assert _title(gaps, "RevNet-18", no_chain(tmp_path)) == title


def test_open_difference_is_stated_as_open(tmp_path: Path) -> None:
    gap = SeedSample({0: 80.0, 1: 82.0}) - SeedSample({0: 80.0, 1: 82.0})
    assert "still open" in _title({27: gap}, "RevNet-18", no_chain(tmp_path))


def test_single_runs_give_no_verdict(tmp_path: Path) -> None:
    """With one run each, the title states that the answer is not known."""
    for method in (methods.BACKPROPAGATION, methods.PETRA):
        train(tmp_path, method, 27, 80.0, seeds=1)
    assert answer(tmp_path).title.startswith("It is not yet known")
    assert "(one run each)" in answer(tmp_path).text


def test_answer_contains_missing_runs_and_reconstruction(tmp_path: Path) -> None:
    """The answer contains missing runs, and the effect of reconstruction once it is known."""
    train(tmp_path, methods.BACKPROPAGATION, 27, 80.0)
    train(tmp_path, methods.PETRA, 27, 79.0)
    text = answer(tmp_path).text
    assert "None of the 300 runs that Table 2 needs at the paper's size has been made yet." in text
    assert "delayed gradients is" not in text
    train(tmp_path, methods.DELAYED_GRADIENTS, 27, 79.0)
    assert "no cost of reconstruction and current weights above half a point is left" in answer(tmp_path).text


def test_cost_of_reconstruction_is_stated(tmp_path: Path) -> None:
    """If PETRA is worse than delayed gradients, the answer states a cost of reconstruction."""
    for method, reached in ((methods.BACKPROPAGATION, 80.0), (methods.PETRA, 75.0), (methods.DELAYED_GRADIENTS, 79.0)):
        train(tmp_path, method, 27, reached)
    assert ": reconstruction and current weights cost accuracy on this network" in answer(tmp_path).text


def test_staleness_runs_fill_the_first_picture(tmp_path: Path) -> None:
    """Mark each staleness as "not run" until a run is finished, and then show it in picture and sentence."""
    for method in (methods.BACKPROPAGATION, methods.PETRA):
        train(tmp_path, method, 3, 70.0 if method is methods.BACKPROPAGATION else 60.0)
    before = answer(tmp_path)
    assert before.figure.svg.count("not run") == len({1, 3, 6, 9, 12, 14})
    assert "Less staleness" not in before.text
    for seed in range(3):
        cell = staleness.plan_cell(methods.PETRA, staleness.FREE, 1, seed)
        environment = {**fake_records.ENVIRONMENT, "device": "NVIDIA H200"}
        fake_records.train(cell, tmp_path, 66.0 + 0.1 * seed, environment=environment)
    after = answer(tmp_path)
    assert "9 runs: 3 on NVIDIA H200, 6 on CPUs" in after.figure.caption, "all runs that are drawn"
    assert after.figure.svg.count("not run") == len({1, 3, 6, 12, 14})
    assert "Less staleness than 18 micro-batches costs less: PETRA − backpropagation is −4.0" in after.text
    assert "at a staleness of 9 after 3 epochs." in after.text


def test_measured_speeds_are_ratios_for_every_network(tmp_path: Path) -> None:
    """The sentence contains the median ratio of every network, and is empty without records."""
    record = benchmarks.read(dump.COMMITTED / "benchmarks" / "pipelining.json")
    text = _state_measured_speeds(Frames(Results((), (), (record,))))
    for network, title in (("chain10", "Reversible chain of 10"), ("revnet18", "RevNet-18")):
        (comparison,) = (
            comparison
            for comparison in record.comparisons
            if (comparison.first, comparison.second, comparison.quantity)
            == ("PETRA", "autograd, one process", "throughput")
            and comparison.group.startswith(network)
        )
        assert f"PETRA {record.spread(comparison).median:.2f} with " in text
        assert f"({title}, width 32)" in text
    assert _state_measured_speeds(Frames(read(tmp_path))) == ""


def test_chain_is_stated_at_both_timings(tmp_path: Path) -> None:
    """The first answer has the differences on the chain in lockstep, and under asynchronous 1F1B if they are known."""
    for method, accuracy in ((methods.BACKPROPAGATION, 88.0), (methods.PETRA, 87.3)):
        train(tmp_path, method, 27, accuracy)
    accuracies = {("BACKPROPAGATION", "lockstep"): 76.0, ("PETRA", "lockstep"): 68.0, ("DSP", "lockstep"): 72.0}
    accuracies |= {("PETRA", "1f1b"): 74.0, ("DSP", "1f1b"): 74.5}
    chain = [cell for cell in staleness.longer() if cell.model == staleness.CHAIN]
    for timing, sentence in (("lockstep", "keeps its inputs, by 3."), ("1f1b", "trails the two by 1.")):
        assert sentence not in answer(tmp_path).text
        for cell in chain:
            accuracy = accuracies.get((cell.method, cell.timing))
            if accuracy is not None and cell.timing == timing and cell.seed == 0:
                fake_records.train(cell, tmp_path, accuracy)
        assert sentence in answer(tmp_path).text
