"""Property 1: one micro-batch at a time, the engine's gradients are autograd's, for every kind of stage and every k."""

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from petra_core import Pipeline, ReversibleStage, Stage, merge, methods
from petra_core.methods import Method
from petra_core.models import sequential
from tests import toys
from tests.compare import assert_close

pytestmark = pytest.mark.convolutions

EXACT = (methods.BACKPROPAGATION, methods.REVERSIBLE_BACKPROPAGATION)


def plain_gradients(stages: Sequence[Stage], data: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Mean gradients of the plain model over micro-batches, by torch.autograd alone."""
    model = sequential(copy.deepcopy(list(stages)))
    for x, y in data:
        (nn.functional.cross_entropy(model(x), y) / len(data)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


def engine_gradients(
    stages: Sequence[Stage], method: Method, data: Sequence[tuple[Tensor, Tensor]], accumulation: int
) -> dict[str, Tensor]:
    """Mean gradients as an update of the engine would use them."""
    found: dict[str, Tensor] = {}
    offsets = [sum(len(stage.parts()) for stage in stages[:index]) for index in range(len(stages))]

    def look(index: int, version: int, stage: Stage) -> None:
        assert version == 0
        for offset, part in enumerate(stage.parts()):
            for name, parameter in part.named_parameters():
                assert parameter.grad is not None
                found[f"{offsets[index] + offset}.{name}"] = parameter.grad.clone()

    p = toys.pipeline(stages, method, accumulation=accumulation, optimizer=None, before_update=look)
    toys.train(p, data)
    return found


@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 6])
def test_gradients_equal_autograd(stages: int, k: int, method: Method) -> None:
    net, data = toys.network(stages), toys.batches(k)
    assert_close(engine_gradients(net, method, data, k), plain_gradients(net, data), 1e-10)


@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize("sizes", [(2, 4), (3, 2, 1), (6,)], ids=str)
def test_merged_stages_have_the_same_gradients(method: Method, sizes: tuple[int, ...]) -> None:
    net, data = toys.network(6), toys.batches(2)
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    merged = [merge(net[start : start + size]) for start, size in zip(starts, sizes, strict=True)]
    assert_close(engine_gradients(merged, method, data, 2), plain_gradients(net, data), 1e-10)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
@pytest.mark.parametrize("stages", [3, 6])
def test_without_updates_every_method_gives_the_gradients_of_backpropagation(method: Method, stages: int) -> None:
    # The methods differ in which weights they use; where weights do not change they are all the same.
    k = 4
    net, data = toys.network(stages), toys.batches(k)
    assert_close(engine_gradients(net, method, data, k), plain_gradients(net, data), 1e-9)


@pytest.mark.parametrize("method", EXACT, ids=str)
@pytest.mark.parametrize("k", [1, 3])
def test_training_equals_plain_training(method: Method, k: int) -> None:
    net, data = toys.network(5), toys.batches(9)
    model = sequential(copy.deepcopy(net))
    optimizer = toys.sgd(list(model.parameters()))
    expected = []
    for number, (x, y) in enumerate(data, 1):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / k).backward()
        expected.append(loss.item())
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    p = toys.pipeline(net, method, accumulation=k)
    losses = toys.train(p, data)
    assert_close(torch.tensor(losses, dtype=torch.float64), torch.tensor(expected, dtype=torch.float64), 1e-10)
    assert_close(toys.weights(p), dict(model.state_dict()), 1e-9)
    x = data[0][0]
    assert_close(p.evaluate(x), model.eval()(x), 1e-9)


class Counting(nn.Module):
    """Counts its evaluations."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.function(x)
        return result


@pytest.mark.parametrize(
    ("method", "evaluations"),
    [
        (methods.BACKPROPAGATION, 1),
        (methods.REVERSIBLE_BACKPROPAGATION, 2),
        (methods.DELAYED_GRADIENTS, 1),
        (methods.DSP, 2),
        (methods.APPROXIMATE_INPUTS, 3),  # inverts with the current weights, differentiates with the stashed ones
        (methods.PETRA, 2),
    ],
    ids=str,
)
def test_a_reversible_backward_evaluates_its_function_once(method: Method, evaluations: int) -> None:
    counting = Counting(toys.residual(2))
    net = [toys.stem(2), ReversibleStage(counting), ReversibleStage(toys.residual(2)), toys.head(2)]
    p = Pipeline([stage.double() for stage in net], method, optimizer=toys.sgd)
    toys.train(p, toys.batches(8), drain=False)
    before = counting.calls
    toys.train(p, toys.batches(5, seed=2), drain=False)  # in steady state: one forward and one backward a step
    assert counting.calls - before == 5 * evaluations


def test_one_stage_alone_is_plain_training_under_every_method() -> None:
    net, data = toys.network(1), toys.batches(6)
    reference = toys.pipeline(net, methods.BACKPROPAGATION)
    expected = toys.train(reference, data)
    for method in methods.ALL:
        p = toys.pipeline(net, method)
        assert toys.train(p, data) == expected
