"""Test timing and balancing of the stages of any network, with context and several targets, without side effects."""

import copy
from typing import Any

import pytest
import torch

from petra_core import Pipeline, methods, prediction
from petra_core.ledger import payload
from petra_core.methods import Method
from petra_core.stages import Stage
from petra_core.tape import as_streams
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.own_networks import cnn, experts, regression, reversible_gpt

NETWORKS: dict[str, Any] = {"cnn": cnn, "experts": experts, "regression": regression, "gpt": reversible_gpt}


def made(name: str) -> tuple[list[Stage], Any, Any]:
    torch.manual_seed(0)
    return NETWORKS[name].stages(NETWORKS[name].Model()), *NETWORKS[name].batch()


@pytest.mark.parametrize("method", [methods.PETRA, methods.BACKPROPAGATION, methods.PIPEDREAM_2BW], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_measured_costs_have_bytes_and_change_nothing(name: str, method: Method) -> None:
    """Costs have the bytes of messages and weights, and states and generators are unchanged."""
    stages, x, y = made(name)
    before = copy.deepcopy([stage.state_dict() for stage in stages]), torch.get_rng_state()
    costs = prediction.measure(stages, method, x, y, accumulation=2, optimizer=toys.sgd, repetitions=1)
    assert_bitwise_equal(([stage.state_dict() for stage in stages], torch.get_rng_state()), before)
    value = x
    with torch.no_grad():
        ups = [payload(as_streams(value := stage(value))) for stage in stages[:-1]]
    downs = [
        up * (2 if method.reconstructs and stage.invertible else 1)  # the output next to its gradient
        for stage, up in zip(stages, ups, strict=False)
    ]
    assert [cost.up for cost in costs] == [*ups, 0]
    assert [cost.down for cost in costs] == [0, *downs]
    assert [cost.weights for cost in costs] == [payload(stage.parameters()) for stage in stages]
    assert all(min(cost.forward, cost.backward, cost.update) > 0 for cost in costs)


def test_balanced_cut_has_predicted_bytes_and_keeps_limit() -> None:
    """A balanced cut has the predicted bytes per device, and an impossible limit raises ValueError."""
    stages, x, y = made("cnn")
    settings: dict[str, Any] = {"optimizer": toys.sgd, "staleness": (6, 5, 4, 3, 2, 1, 0)}
    held = [stage.total for stage in prediction.predict(stages, methods.PETRA, x, y, **settings)]
    cut = prediction.balance(stages, methods.PETRA, x, y, 2, repetitions=1, **settings)
    first = cut.sizes[0]
    assert sum(cut.sizes) == 7
    assert cut.bytes == (sum(held[:first]), sum(held[first:]))
    with pytest.raises(ValueError, match="no cut of 7 stages over 2 devices stays below 10 bytes"):
        prediction.balance(stages, methods.PETRA, x, y, 2, repetitions=1, limit=10, **settings)
    Pipeline(stages, methods.PETRA).step(x, y)


def test_package_rejects_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'measured'"):
        prediction.measured  # type: ignore[attr-defined]  # noqa: B018  # raises
