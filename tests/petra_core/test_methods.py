"""Test methods that users define: the valid ones, and the errors for the others."""

from dataclasses import replace
from typing import Any

import pytest

from petra_core import Pipeline, methods
from petra_core.methods import Inputs, Method, Weights
from tests import toys
from tests.compare import assert_close

RECOMPUTED = Method("RECOMPUTED", "Recomputed", Inputs.STASH, Weights.STASH, pipelined=True)


def test_recompute_with_stashed_weights_equals_kept_graph() -> None:
    """Recomputing with stashed inputs and weights trains as keeping the graph."""
    trained = []
    for method in (RECOMPUTED, methods.DELAYED_GRADIENTS):
        pipeline = toys.pipeline(toys.network(4), method)
        toys.train(pipeline, toys.batches(8))
        trained.append(toys.weights(pipeline))
    assert_close(*trained, 1e-12)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"pipelined": False},
            ValueError,
            r"method RECOMPUTED: weights=Weights.STASH has no effect with pipelined=False",
        ),
        (
            {"inputs": Inputs.GRAPH, "weights": Weights.CURRENT},
            ValueError,
            r"inputs=Inputs.GRAPH needs weights=Weights.STASH .* set inputs=Inputs.STASH or Inputs.RECONSTRUCTION$",
        ),
        (
            {"overlapped": True, "inputs": Inputs.RECONSTRUCTION},
            ValueError,
            r"overlapped=True needs .* pipelined=False, .* got inputs=Inputs.RECONSTRUCTION and pipelined=True",
        ),
        (
            {"overlapped": True, "pipelined": False, "weights": Weights.CURRENT},
            ValueError,
            r"overlapped=True needs inputs=Inputs.RECONSTRUCTION .* got inputs=Inputs.STASH and pipelined=False",
        ),
        (
            {"double_buffered": True, "weights": Weights.CURRENT},
            ValueError,
            r"double_buffered=True needs .* got pipelined=True and weights=Weights.CURRENT",
        ),
        (
            {"double_buffered": True, "pipelined": False, "weights": Weights.CURRENT},
            ValueError,
            r"double_buffered=True needs pipelined=True .* got pipelined=False",
        ),
        ({"inputs": "stash"}, TypeError, r"inputs of a method must be one of Inputs.GRAPH, .* got 'stash'"),
        ({"weights": Inputs.STASH}, TypeError, r"weights of a method must be one of Weights.CURRENT, .* got <Inputs"),
        ({"pipelined": 1}, TypeError, "pipelined of a method must be True or False, got 1"),
        ({"name": None}, TypeError, "name of a method must be a str, got None"),
        ({"name": " "}, ValueError, "name of a method must not be empty, got ' '"),
    ],
)
def test_method_rejects_contradictions_and_wrong_types(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Errors about contradictory settings and wrong types of a method name the setting and its value."""
    with pytest.raises(error, match=message):
        replace(RECOMPUTED, **changes)


@pytest.mark.parametrize("inputs", Inputs)
@pytest.mark.parametrize("weights", Weights)
@pytest.mark.parametrize("pipelined", [True, False])
@pytest.mark.parametrize("double_buffered", [True, False])
def test_accepted_methods_train(inputs: Inputs, weights: Weights, pipelined: bool, double_buffered: bool) -> None:
    """Every combination of settings that Method accepts can train."""
    try:
        method = Method("MINE", "Mine", inputs, weights, pipelined, double_buffered=double_buffered)
    except ValueError:
        return
    pipeline: Pipeline = toys.pipeline(toys.network(3), method, accumulation=4)
    losses = toys.train(pipeline, toys.batches(12))
    assert len(losses) == 12
    assert all(worker.version == 3 for worker in pipeline.workers)
