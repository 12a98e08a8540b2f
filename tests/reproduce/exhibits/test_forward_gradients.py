"""Test forward gradients: the planned cells, the comparisons, and the verdict on the published order."""

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from reproduce.cells.kinds import ForwardGradientCell, TrainedCell, TrainingCell
from reproduce.exhibits import forward_gradients
from reproduce.grids import recipes, scales
from reproduce.grids.plans import forward_gradients as plan
from reproduce.presentation.statements import ClaimVerdict
from reproduce.published import Mark
from reproduce.records import benchmarks
from tests import fake_records, sections
from tests.reproduce.records.test_benchmark_records import benchmark

AXES = ("target", "guess", "space", "scaling", "derivative", "auxiliary")


def write(root: Path, local: float, noise: float = 40.0) -> None:
    """Write all seeds of backpropagation, of the local guess and of noise, in the space of activations."""
    for cell in plan.cells("small"):
        if isinstance(cell, TrainingCell):
            fake_records.train(cell, root, 80.0 + cell.seed)
            continue
        assert isinstance(cell, ForwardGradientCell)
        if (cell.target, cell.space, cell.scaling) == ("global", "activations", "projected"):
            usual = (cell.auxiliary, cell.derivative) == ("mlp", "projection")
            if usual and cell.guess in ("local", "gaussian"):
                reached = local + cell.seed if cell.guess == "local" else noise + 0.5 * cell.seed**2
                record = fake_records.train(cell, root, reached, epochs=2)
                last = record.read().metrics[-1] | {"epoch": 3, "test_accuracy": reached, "probes": 9}
                record.append(last | {"measured": {"guess_cosine": [0.01 * block for block in range(7)] + [None]}})
                fake_records.finish(record, reached)


def test_variants_have_all_seeds_and_match_baseline_recipe() -> None:
    """Every variant has all seeds, and differs from its baseline only in kind and method."""
    cells = plan.cells("small")
    ways = {tuple(getattr(c, name) for name in AXES) for c in cells if isinstance(c, ForwardGradientCell)}
    assert len(ways) == 15
    seeds = Counter(cell.seed for cell in cells if isinstance(cell, TrainedCell))
    assert seeds == dict.fromkeys(recipes.seeds("small"), 15 + 2)
    for scale in scales.SCALES:
        planned = plan.cells(scale)
        assert len(set(planned)) == len(planned)
        plain = {(c.model, c.seed): c.to_dict() for c in planned if isinstance(c, TrainingCell)}
        for cell in planned:
            if isinstance(cell, ForwardGradientCell):
                baseline = plain[cell.model, cell.seed]
                assert {name for name in baseline if baseline[name] != cell.to_dict()[name]} == {"kind", "method"}


def test_paper_scale_uses_the_published_recipe() -> None:
    for cell in plan.cells("paper"):
        assert isinstance(cell, TrainingCell | ForwardGradientCell)
        assert (cell.epochs, cell.drops, cell.drop_factor, cell.learning_rate) == (100, (30, 60, 90), 0.2, 0.05)
        assert (cell.batch_size, cell.weight_decay, cell.width, cell.warmup_epochs) == (128, 5e-4, 64, 0)


@pytest.mark.parametrize(
    ("local", "verdict"), [(60.0, ClaimVerdict.SAME), (20.0, ClaimVerdict.NOT_SO), (40.2, ClaimVerdict.OPEN)]
)
def test_guess_order_claim_is_judged(tmp_path: Path, local: float, verdict: ClaimVerdict) -> None:
    """The claim on the order of guesses is judged from the difference and its interval."""
    write(tmp_path, local)
    activations, _ = sections.judged("forward_gradients", tmp_path)
    assert activations.verdict is verdict
    assert "far better guesses than random noise" in activations.claim.sentence
    text = sections.made(forward_gradients.EXHIBIT, tmp_path).sentence
    assert text.startswith("After 3 epochs the gradient of a local loss beats the best random guess by")


def test_table_contains_measured_and_published_values(tmp_path: Path) -> None:
    """The table contains accuracies, cosines and published values with their marks."""
    write(tmp_path, 60.0)
    section = sections.made(forward_gradients.EXHIBIT, tmp_path)
    table = sections.table(section, "forward-gradients-small")
    network = "ResNet-18 in 8 blocks, width 8"
    local = sections.entries(table, network, "local, mlp", "global", "activations")
    assert local["less backpropagation", "points"].raw == pytest.approx(-20.0)
    assert (local["cosine, block", "lowest"].text[:5], local["cosine, block", "highest"].text[:5]) == ("0.000", "0.060")
    assert local[forward_gradients.STEP, "time"].text == "not run"
    assert (local["published", "%"].text, local["published", "%"].mark) == ("89.4", Mark.SECOND_HAND)
    assert sections.entries(table, network, "gaussian", "global", "activations")["published", "%"].text == "unknown"
    ancestor = sections.entries(table, network, "gaussian, plain", "global", "all weights")
    assert (ancestor["", "accuracy, %"].text, ancestor["published", "of"].text) == ("not run", "Ren 2023 FG-W")
    petra = sections.entries(table, "RevNet-18, width 8", "PETRA")
    assert petra["", "accuracy, %"].raw == pytest.approx(81.0)
    assert petra["less backpropagation", "points"].text == petra["published", "%"].text == "", "it is no reference here"


def test_step_memory_and_time_are_benchmark_ratios(tmp_path: Path) -> None:
    """Memory and time of a step are the ratios of the benchmark to backpropagation."""
    write(tmp_path, 60.0)
    contestants = (("Backpropagation", 2.0), ("local guess of the global target, activations", 3.0), ("PETRA", 2.5))
    pairs = [(quantity, *network) for quantity in (benchmarks.ALLOCATED, benchmarks.SECONDS) for network in contestants]
    series = tuple(benchmarks.Series("size", name, quantity, "", (value,) * 3) for quantity, name, value in pairs)
    comparisons = tuple(
        benchmarks.Comparison("size", quantity, name, "Backpropagation")
        for quantity, name, _ in pairs
        if name != "Backpropagation"
    )
    record = dataclasses.replace(benchmark(name=forward_gradients.BENCHMARK), series=series, comparisons=comparisons)
    benchmarks.write(record, tmp_path)
    table = sections.table(sections.made(forward_gradients.EXHIBIT, tmp_path), "forward-gradients-small")
    blocks = "ResNet-18 in 8 blocks, width 8"
    for place, ratio in {
        (blocks, "Backpropagation"): 1.0,
        (blocks, "local, mlp", "global", "activations"): 1.5,
        (blocks, "local, cnn", "global", "activations"): 1.5,
        ("RevNet-18, width 8", "PETRA"): 1.25,
    }.items():
        entries = sections.entries(table, *place)
        assert entries[forward_gradients.STEP, "memory"].raw == entries[forward_gradients.STEP, "time"].raw == ratio
    assert (
        sections.entries(table, blocks, "local, mlp", "next", "activations")[forward_gradients.STEP, "time"].text
        == "not run"
    )
