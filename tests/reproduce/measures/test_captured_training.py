"""Test training from recorded steps: equal to plain steps up to rounding, and bitwise equal after a resume."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from petra_core import Pipeline, Stage
from petra_core.devices import captured
from petra_core.devices.captured import CapturedSteps
from reproduce.cells import networks
from reproduce.measures.run_options import BRANCHES
from reproduce.records.record import Status
from tests.compare import assert_bitwise_equal
from tests.example_cells import CHAIN
from tests.fake_cuda import SharedMemoryRecorder
from tests.trainings import Notices, assert_stops_change_no_bit, run

pytestmark = pytest.mark.convolutions

STREAMS = 3
LONG = dataclasses.replace(CHAIN, batch_size=128, epochs=9, learning_rate=0.01)  # most of its steps are repetitions


@pytest.fixture
def recorded_steps(monkeypatch: pytest.MonkeyPatch) -> list[CapturedSteps]:
    """Record steps on the CPU, and collect the objects that repeat them."""
    made: list[CapturedSteps] = []

    def cuda(pipeline: Pipeline, *, streams: int | None) -> CapturedSteps:
        assert streams in (STREAMS, None)
        made.append(CapturedSteps(pipeline, SharedMemoryRecorder()))
        return made[-1]

    monkeypatch.setattr(captured, "cuda", cuda)
    return made


def weights(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(folder / "model.pt", weights_only=True)
    return loaded


def test_captured_training_equals_plain_and_resumes_bitwise(
    tmp_path: Path, recorded_steps: list[CapturedSteps]
) -> None:
    """Training from recorded steps equals plain training up to rounding, and a stop between them changes no bit."""
    plainly, _ = run(LONG, tmp_path / "plain")
    assert not recorded_steps
    otherwise, _ = run(LONG, tmp_path / "other", cuda_graphs=STREAMS)
    plain, other = weights(tmp_path / "plain"), weights(tmp_path / "other")
    for name, tensor in plain.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=2e-4, msg=name)  # after 99 steps
    assert [entry.get("cuda_graphs") for entry in otherwise.read().environments] == [STREAMS]
    assert [entry.get("cuda_graphs") for entry in plainly.read().environments] == [None]
    assert_stops_change_no_bit([55], LONG, tmp_path, otherwise.path, cuda_graphs=STREAMS)
    assert [ticks.recorded for ticks in recorded_steps] == [True] * 3


def test_uncapturable_method_trains_plainly_with_notice(tmp_path: Path, recorded_steps: list[CapturedSteps]) -> None:
    """In a grid, `run --cuda-graphs` once made a problem of every such cell."""
    cell = dataclasses.replace(CHAIN, method="DELAYED_GRADIENTS", epochs=1, drops=())
    observer = Notices()
    run(cell, tmp_path / "other", cuda_graphs=STREAMS, observer=observer)
    [notice] = observer.notices
    assert "has no effect here: steps of DELAYED_GRADIENTS cannot be recorded" in notice
    run(cell, tmp_path / "plain")
    assert_bitwise_equal(weights(tmp_path / "other"), weights(tmp_path / "plain"))


def test_network_with_dropout_continues_with_plain_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded_steps: list[CapturedSteps]
) -> None:
    """Random draws are detected only after the pipeline is full."""
    build, observer = networks.build, Notices()

    def with_dropout(*settings: Any) -> list[Stage]:
        stages = build(*settings)
        stages[1].function.append(torch.nn.Dropout(0.1))
        return stages

    monkeypatch.setattr(networks, "build", with_dropout)
    cell = dataclasses.replace(LONG, epochs=5, drops=())
    _, state = run(cell, tmp_path, cuda_graphs=BRANCHES, observer=observer)
    assert state.status is Status.DONE
    [notice] = observer.notices
    assert "stages [1] draw random numbers (dropout)" in notice
