"""Test that `Pipeline(after_backward=...)` receives every backward's gradients and input and changes no results."""

import copy

import pytest
import torch

from petra_core import Pipeline, merge, methods
from petra_core.methods import Method
from petra_core.worker import Backward
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.petra_core.test_petra_semantics import batches, network, pipeline_of
from tests.reference import RULES, Sgd, entries, simulate

pytestmark = pytest.mark.convolutions

TOLERANCE = 1e-12
RATE = 0.1


@pytest.mark.parametrize(("method", "k"), toys.METHODS_AND_K, ids=str)
def test_hook_changes_no_results(method: Method, k: int) -> None:
    """The hook receives every backward and leaves states and held bytes unchanged."""
    data, states = toys.batches(14), []
    backwards: list[Backward] = []
    net = toys.network(6, dropout=0.2)
    net = [net[0], merge(net[1:3]), *net[3:]]
    frozen = next(net[2].parameters()).requires_grad_(False)
    for after_backward in (None, backwards.append):
        p = Pipeline(
            copy.deepcopy(net), method, accumulation=k, optimizer=toys.sgd, seed=3, after_backward=after_backward
        )
        toys.train(p, data, drain=False)
        memory = [(dict(stage.now), dict(stage.peak)) for stage in p.memory().stages]
        states.append([p.state_dict(), toys.train(p, []), memory])
    assert_bitwise_equal(states[1], states[0])
    assert len(backwards) == 14 * len(net)  # including those in the drain
    names = [name for name, parameter in net[2].named_parameters() if parameter is not frozen]
    assert all(list(backward.gradients) == names for backward in backwards if backward.stage == 2)


@pytest.mark.parametrize("pattern", ["b r r b r h", "br rr brr rh"])
@pytest.mark.parametrize("method", methods.PAPER, ids=str)
def test_hook_receives_gradients_and_inputs_of_reference(method: Method, pattern: str) -> None:
    """The hook receives the gradients and inputs that the paper's equations give."""
    stages, data, rule = network(pattern, norm=False), batches(16), RULES[method.name]
    history = simulate(stages, rule, 1, Sgd(lambda tick: RATE), data, entries(rule, len(stages), len(data)))
    whole, seen = 0, []

    def look(b: Backward) -> None:
        nonlocal whole
        seen.append((b.stage, b.micro_batch))
        expected = [gradient for part in history.gradients[b.stage, b.micro_batch] for gradient in part.values()]
        assert_close(list(b.gradients.values()), expected, TOLERANCE)
        if b.inputs is not None:
            assert_close(b.inputs, history.reconstructed[b.micro_batch, b.stage, 0], TOLERANCE)
            whole += 1

    p = pipeline_of(stages, method, 1, optimizer=lambda q: torch.optim.SGD(q, lr=RATE), after_backward=look)
    toys.train(p, data)
    assert sorted(seen) == [(j, m) for j in range(len(stages)) for m in range(len(data))]
    assert whole == len(data) * sum(has_whole_input(method, word) for word in pattern.split())


def has_whole_input(method: Method, stage: str) -> bool:
    """Return whether the hook gets a stage's input: reconstructed, stashed by a buffered part, or at the head."""
    return method.reconstructs or stage == "h" or (stage[0] == "b" and not method.keeps_graph)
