"""Test that settings are always checked in one place, and that a checkpoint contains them."""

import dataclasses
from typing import Any

import pytest
import torch

from petra_core import Pipeline, methods
from petra_core.delay import Average, Compensation, PredictedWeights
from petra_core.prediction.memory import predict
from petra_core.settings import Settings
from tests import toys

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"accumulation": 0}, ValueError, "accumulation must be at least 1, got 0"),
    ({"autocast": torch.float32}, ValueError, r"autocast must be .* got torch\.float32"),
    ({"delay": [Average(), Average()]}, ValueError, "'average' and 'average' contradict each other"),
    ({"staleness": (1, 2, 0)}, ValueError, "staleness of stage 0 must be at least that of stage 1, 2"),
    ({"delay": Compensation()}, TypeError, "a Compensation; give a list of rules"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD)
def test_pipeline_and_predict_reject_same_settings(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Pipeline and predict raise the same error for an invalid setting."""
    stages, batch = toys.network(3), toys.batches(1)[0]
    with pytest.raises(error, match=message):
        Pipeline(stages, methods.PETRA, **settings)
    with pytest.raises(error, match=message):
        predict(stages, methods.PETRA, *batch, **settings)


def test_predict_rejects_unknown_setting() -> None:
    with pytest.raises(TypeError, match="forward_weights"):
        predict(toys.network(3), methods.PETRA, *toys.batches(1)[0], forward_weights="predicted")


def test_checkpoint_contains_settings() -> None:
    """A state contains the settings of its pipeline, which cannot be changed."""
    settings = Settings(
        method=methods.PETRA, accumulation=2, delay=[Compensation(), PredictedWeights()], autocast=torch.bfloat16
    )
    expected = {
        "method": "PETRA",
        "accumulation": 2,
        "staleness": [4, 2, 0],
        "delay": "predicted forward weights, compensation 0.04",
        "autocast": "torch.bfloat16",
    }
    assert settings.as_state(3) == expected
    p = Pipeline(
        toys.network(3),
        methods.PETRA,
        accumulation=2,
        optimizer=toys.sgd,
        delay=settings.delay,
        autocast=torch.bfloat16,
    )
    assert p.state_dict().items() >= expected.items()
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.settings.seed = 3  # type: ignore[misc]  # the test needs this error
