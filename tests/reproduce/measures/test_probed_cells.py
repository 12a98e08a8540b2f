"""Test cells with a probe: the training is the same, every epoch's line has measures, a stop changes nothing."""

import dataclasses
import json

import pytest
import torch

from reproduce.cells.kinds import GradientsCell, ReconstructionCell, TrainingCell
from reproduce.records.record import Record, Status
from tests.example_cells import CHAIN, PROBED, probed
from tests.trainings import assert_stops_change_no_bit, outcome, run, without_times

pytestmark = pytest.mark.convolutions

MEASURED = ("probes", "measured", "measured_at")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the records of uninterrupted runs, by the name of the cell."""
    finished = {}

    def record_of(name):
        if name not in finished:
            finished[name], state = run(PROBED[name], tmp_path_factory.mktemp("whole"))
            assert state.status is Status.DONE
        return finished[name]

    return record_of


@pytest.mark.parametrize("name", PROBED)
def test_probed_training_equals_training_cell_bitwise(name, whole, tmp_path):
    """A cell with a probe has bitwise the weights, metrics and result of the training cell."""
    cell, record = PROBED[name], whole(name)
    settings = {key: value for key, value in dataclasses.asdict(cell).items() if key != "probe_every"}
    run(TrainingCell(**settings), tmp_path)
    metrics, result, weights = outcome(record.path)
    plain_metrics, plain_result, plain_weights = outcome(tmp_path)
    assert weights == plain_weights
    assert [{k: v for k, v in line.items() if k not in MEASURED} for line in metrics] == plain_metrics
    different = {key for key in result if result[key] != plain_result[key]}
    assert different == {"identity", "kind"}
    assert Record.load(record.path).cell == cell


def test_gradient_measures_are_in_every_epoch(whole):
    """Every epoch's metrics contain the gradient measures of the micro-batches that returned in it."""
    record = whole("gradients")
    metrics = record.read().metrics
    # Of 33 micro-batches (11 per epoch), 0 to 14 return to stage 0 while new ones enter, 18 ticks after their entry.
    assert [line["probes"] for line in metrics] == [0, 1, 3]  # 0 in tick 18; then 4, 8 and 12
    assert [[probe["micro_batch"] for probe in line["measured_at"]] for line in metrics] == [[], [0], [4, 8, 12]]
    assert metrics[0]["measured"] == {}
    measured = [item for line in metrics[1:] for item in line["measured"].items()]
    cosines = [value for key, of_stages in measured if "cosine" in key for value in of_stages]
    assert len(cosines) == 2 * 3 * 10
    assert all(-1.0 - 1e-9 <= value <= 1.0 + 1e-9 for value in cosines)
    assert len({round(value, 6) for value in cosines}) > 20
    for measure, value in (("cosine", 1.0), ("norm_ratio", 1.0), ("relative_error", 0.0)):
        assert metrics[-1]["measured"][f"method/delayed/{measure}"][9] == pytest.approx(value, abs=1e-6)


def test_reconstruction_errors_are_in_every_epoch(whole):
    """The metrics of an epoch contain the reconstruction errors of the inverted stages."""
    record = whole("reconstruction")
    last = record.read().metrics[-1]
    assert last["probes"] > 0
    value = last["measured"]
    assert value["training/input"][0] is value["rounding/input"][4] is None
    assert value["training/x"][3] == 0.0
    for stage in range(1, 4):
        assert value["rounding/input"][stage] < 1e-5 < value["rounding_bfloat16/input"][stage]
        assert value["training/input"][stage] > 1e-3
    assert value["training/input"][1] > value["training/input"][3]


@pytest.mark.parametrize(("name", "stops"), [("gradients", (15, 30)), ("reconstruction", (30,))])
def test_stop_of_probed_cell_changes_no_bit(name, stops, whole, tmp_path):
    """A cell with a probe that is stopped and resumed ends with the same bits."""
    assert_stops_change_no_bit(stops, PROBED[name], tmp_path, whole(name).path)


@pytest.mark.parametrize("kind", [GradientsCell, ReconstructionCell])
def test_diverging_probed_run_records_earlier_measures(kind, tmp_path):
    """A probed run that diverges is recorded as failed, with the metrics of its earlier epochs."""
    cell = probed(
        kind, CHAIN, 2, learning_rate=1e30, warmup_epochs=2.0, epochs=8, drops=(), momentum=0.0, accumulation=1
    )
    record, state = run(cell, tmp_path)
    assert (state.status, state.reason) == (Status.FAILED, "diverged")
    lines = [json.dumps(without_times(line), allow_nan=False) for line in record.read().metrics]
    assert len(lines) == state.epochs_done < cell.epochs


def test_probe_uses_the_autocast_dtype_of_training(whole):
    """In bfloat16 the method's gradient at the head equals the delayed one: the copy rounds in the same way."""
    record = whole("bf16")
    error = record.read().metrics[-1]["measured"]["method/delayed/relative_error"][4]
    assert error < 1e-3 < torch.finfo(torch.bfloat16).eps
