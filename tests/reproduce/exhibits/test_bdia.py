"""Make the situations of BDIA's study: published values are next to ours, and comparisons are fair."""

import dataclasses
from pathlib import Path

from reproduce.cells.kinds import TrainedCell
from reproduce.exhibits import bdia
from reproduce.grids.plans import bdia as plan
from reproduce.records import benchmarks
from tests import fake_records
from tests.fake_records import benchmark
from tests.sections import situation

REACHED = {"ViT": 60.0, "RevViT": 58.0, "BDIA-ViT": 61.0, "BDIA-ViT without quantiser": 61.5}
REACHED |= {"RevViT, PETRA": 50.0, "BDIA-ViT, PETRA": 52.0}


def contestant_of(cell: TrainedCell) -> plan.TransformerContestant:
    return plan.BY_SETTINGS[cell.model.partition("_")[0], cell.coupling, cell.method]


@situation(bdia.EXHIBIT)
def small_scale_and_one_run_of_the_published_size(root: Path) -> None:
    """Our accuracies stand beside the published ones, each is compared with its baseline, and memory is measured."""
    for cell in plan.cells("small"):
        assert isinstance(cell, TrainedCell)
        title = contestant_of(cell).title
        fake_records.train(cell, root, REACHED[title] + 0.1 * cell.seed + 0.1 * cell.seed * (title != "ViT"))
    fake_records.train(plan.as_published(plan.BDIA, "cifar100"), root, 65.09)
    series = tuple(
        benchmarks.Series("size", name, quantity, "B", (value,))
        for name, peak, bits in (("RevViT", 400e6, 0.0), ("BDIA-ViT", 420e6, 2.1e6))
        for quantity, value in ((benchmarks.ALLOCATED, peak), (benchmarks.SIDE_BITS, bits))
    )
    benchmarks.write(dataclasses.replace(benchmark(name="bdia"), series=series), root)


@situation(bdia.EXHIBIT)
def two_precisions(root: Path) -> None:
    """Runs in float32 and bf16 are in separate tables."""
    fake_records.train(plan.as_published(plan.VIT), root, 88.0)
    fake_records.train(dataclasses.replace(plan.as_published(plan.BDIA), precision="bf16"), root, 89.0)
