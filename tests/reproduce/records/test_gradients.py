"""Test the structure of the networks as the engine runs them, the parts of the training, and gains."""

from pathlib import Path

import pytest
import torch
from pandas import DataFrame

from petra_core import methods
from reproduce.cells import networks
from reproduce.cells.kinds import GradientsCell
from reproduce.exhibits._exhibit import run_sets
from reproduce.grids.plans import gradients as plan
from reproduce.measures.reconstruction import ReconstructionProbe
from reproduce.records import gradients, results
from reproduce.records.frames import Frames
from reproduce.records.gradients import METHOD
from tests import fake_probes, toys

CELLS = {c.model: c for c in plan.cells("small") if isinstance(c, GradientsCell) and (c.accumulation, c.seed) == (1, 0)}


@pytest.mark.convolutions
@pytest.mark.parametrize(("model", "kinds"), [("revnet18", "KREKEKEKEK"), ("chain8", "KRRRRRRREK")])
def test_stage_kinds_match_engine_reconstruction(model: str, kinds: str) -> None:
    """The predicted kinds of stages are those that the engine keeps, reconstructs exactly or with an error."""
    assert gradients.kinds(CELLS[model]) == kinds
    torch.manual_seed(0)
    data = [(torch.randn(2, 3, 16, 16), torch.randint(10, (2,))) for _ in range(22)]
    stages = networks.build(CELLS[model], num_classes=10)
    errors = toys.measured(ReconstructionProbe, stages, methods.PETRA, data, rate=0.01)["training/x"]
    assert "".join("K" if e is None else "R" if e else "E" for e in errors) == kinds


def parts(root: Path, most: int) -> DataFrame:
    run_set = next(run_set for run_set in run_sets(Frames(results.read(root)), "figure6") if run_set.begun)
    return gradients.in_parts(gradients.comparisons(run_set, single=True), run_set.example.epochs, most)


def falling(pair: str, measure: str, stage: int, epoch: int) -> float:
    return 1.0 - 0.1 * epoch


def test_record_with_means_only_has_one_part_per_epoch(tmp_path: Path) -> None:
    """A record with only means per epoch gives one part per epoch, also for the other seeds."""
    zero, one, *_ = (cell for cell in plan.cells("small") if isinstance(cell, GradientsCell))
    fake_probes.measure(zero, tmp_path, falling, singly=True, probes=31)
    fake_probes.measure(one, tmp_path, falling, epochs=2)
    made = parts(tmp_path, 24)
    known = {tuple(ends): sorted(part["seed"].unique()) for ends, part in made.groupby(["begin", "end"])}
    assert known == {(0, 1): [0, 1], (1, 2): [0, 1], (2, 3): [0]}
    of_one = made[(made["seed"] == 0) & (made["stage"] == 0) & (made["pair"] == METHOD)]
    assert list(of_one[of_one["measure"] == "cosine"]["value"]) == pytest.approx([0.9, 0.8, 0.7])


@pytest.mark.parametrize(("probes", "count"), [(31, 24), (8, 8), (2, 2), (1, 1)])
def test_single_micro_batches_give_finer_parts(probes: int, count: int, tmp_path: Path) -> None:
    """Measures of single micro-batches are divided into at most the requested number of parts."""
    fake_probes.measure(CELLS["revnet18"], tmp_path, falling, singly=True, probes=probes)
    made = parts(tmp_path, 24)
    assert made["begin"].nunique() == count
    assert (made["begin"].min(), made["end"].max()) == (0, CELLS["revnet18"].epochs)
