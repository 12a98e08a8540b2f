"""Make the situations of forward gradients: the comparisons, and the verdict on the published order."""

import dataclasses
from pathlib import Path

from reproduce.cells.kinds import ForwardGradientCell, TrainingCell
from reproduce.exhibits import forward_gradients
from reproduce.grids.plans import forward_gradients as plan
from reproduce.records import benchmarks
from tests import fake_records, sections
from tests.fake_records import benchmark


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


@sections.situation(forward_gradients.EXHIBIT)
def local_guesses_lie_closer_than_noise(root: Path) -> None:
    """The order is as published; memory and time of a step are ratios of the benchmark to backpropagation."""
    write(root, 60.0)
    contestants = (("Backpropagation", 2.0), ("local guess of the global target, activations", 3.0), ("PETRA", 2.5))
    pairs = [(quantity, *network) for quantity in (benchmarks.ALLOCATED, benchmarks.SECONDS) for network in contestants]
    series = tuple(benchmarks.Series("size", name, quantity, "", (value,) * 3) for quantity, name, value in pairs)
    comparisons = tuple(
        benchmarks.Comparison("size", quantity, name, "Backpropagation")
        for quantity, name, _ in pairs
        if name != "Backpropagation"
    )
    record = dataclasses.replace(benchmark(name=forward_gradients.BENCHMARK), series=series, comparisons=comparisons)
    benchmarks.write(record, root)


@sections.situation(forward_gradients.EXHIBIT, "none")
def noise_lies_closer_than_local_guesses(root: Path) -> None:
    """The claim on the order of guesses does not hold."""
    write(root, 20.0)


@sections.situation(forward_gradients.EXHIBIT, "none")
def local_guesses_are_as_close_as_noise(root: Path) -> None:
    """The claim stays open if the interval of the difference contains 0."""
    write(root, 40.2)
