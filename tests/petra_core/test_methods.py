"""Test methods that users define: the valid ones, and the errors for the others."""

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
