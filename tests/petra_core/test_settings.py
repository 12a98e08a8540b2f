"""Test that settings are always checked in one place, and that a checkpoint contains them."""

import dataclasses

import pytest
import torch

from petra_core import Pipeline, methods
from petra_core.delay import Compensation, PredictedWeights
from tests import toys


def test_checkpoint_contains_settings() -> None:
    """A state contains the settings of its pipeline, which cannot be changed."""
    settings = {"accumulation": 2, "delay": [Compensation(), PredictedWeights()], "autocast": torch.bfloat16}
    p = Pipeline(toys.network(3), methods.PETRA, optimizer=toys.sgd, **settings)
    expected = {
        "method": "PETRA",
        "accumulation": 2,
        "staleness": [4, 2, 0],
        "delay": "predicted forward weights, compensation 0.04",
        "autocast": "torch.bfloat16",
    }
    assert p.state_dict().items() >= expected.items()
    with pytest.raises(dataclasses.FrozenInstanceError):
        p.settings.seed = 3  # type: ignore[misc]  # the test needs this error


def test_staleness_is_copied() -> None:
    """An iterator was read twice, and a list could be changed later."""
    given = [3, 1, 0]
    for staleness in (given, iter(given)):
        p = Pipeline(toys.network(3), methods.PETRA, staleness=staleness)  # type: ignore[arg-type]  # an iterator
        given[0] = 2
        assert p.state_dict()["staleness"] == [*p.staleness]


def test_accumulation_is_fixed() -> None:
    """Workers divide gradients by the k of the settings, so another k of the pipeline would scale every update."""
    p = Pipeline(toys.network(3), methods.PETRA, optimizer=toys.sgd)
    with pytest.raises(AttributeError, match="accumulation"):
        p.accumulation = 4  # type: ignore[misc]  # mypy knows that it is read-only; the test is for users without mypy
