"""Test bytes over time against the engine's formulas and against results by hand."""

import pytest
import torch

from petra_core import methods, models
from petra_core.methods import Method
from petra_core.prediction.footprint import Footprint
from petra_core.prediction.memory import footprints, predict
from petra_core.prediction.partition import Cost
from reproduce.modelling.peak_memory import find_peaks
from reproduce.modelling.simulation import make_schedule, simulate

UNIT = Cost(forward=1, backward=2, update=0.25)


@pytest.mark.parametrize(
    ("method", "k"),
    [(methods.BACKPROPAGATION, 3), (methods.DELAYED_GRADIENTS, 1), (methods.APPROXIMATE_INPUTS, 3), (methods.PETRA, 3)],
    ids=str,
)
def test_peaks_of_one_stage_per_device_match_prediction(method: Method, k: int) -> None:
    """Kinds are compared separately, since peaks are at different times. Messages depend on which device is early."""
    stages = models.chain(3, num_classes=10, channels=2)
    images, labels = torch.empty(2, 3, 8, 8, device="meta"), torch.empty(2, dtype=torch.int64, device="meta")
    per_stage = footprints(stages, method, images, labels)
    timeline = simulate(make_schedule(method, [1] * 5, 20, k), [UNIT] * 5)
    predicted = predict(stages, method, images, labels, accumulation=k)
    for kind, single_kind in (
        ("inputs", [Footprint(0, 0, 0, 0, f.kept, 0, 0, 0, 0) for f in per_stage]),
        ("graph", [Footprint(0, 0, 0, 0, 0, f.lasting, f.passing, 0, 0) for f in per_stage]),
        ("stashed_weights", [Footprint(-f.trainable, 0, 0, f.trainable, 0, 0, 0, 0, 0) for f in per_stage]),
    ):
        held = find_peaks(timeline, single_kind, method)
        assert held == tuple(stage.peak[kind] for stage in predicted), kind
    assert [f.always for f in per_stage] == [
        sum(stage.peak[kind] for kind in ("parameters", "buffers", "gradients", "optimizer")) for stage in predicted
    ]


def test_receiving_device_holds_waiting_messages() -> None:
    """Stage 1 works on micro-batch 0 until 5, when 1 and 2 have arrived from stage 0. A single one never waits."""
    footprints = [Footprint(0, 0, 0, 0, 0, 0, 0, 0, above=10), Footprint(0, 0, 0, 0, 0, 0, 0, below=3, above=0)]
    for micro_batches, held in ((3, (10, 2 * 3)), (1, (10, 0))):
        timeline = simulate(make_schedule(methods.PETRA, (1, 1), micro_batches), [Cost(1, 1), Cost(2, 2)])
        assert find_peaks(timeline, footprints, methods.PETRA) == held
