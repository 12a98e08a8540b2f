"""Test targets and outputs of several tensors, and losses with metrics, against plain autograd."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import petra_core
from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, methods
from petra_core.methods import Method
from petra_core.models import ConcatStreams, DuplicateStreams, sequential
from petra_core.prediction.memory import predict
from petra_core.staleness import lockstep
from petra_core.targets import convert_tensors
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.properties import assert_trains_as_plain_training


class TwoOutputs(nn.Module):
    """A head that returns logits and a position."""

    def __init__(self) -> None:
        super().__init__()
        self.join, self.classes, self.position = ConcatStreams(), nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h = self.join(streams)
        return self.classes(h), self.position(h)


def with_dict(output: tuple[Tensor, Tensor], target: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    classes, position = F.cross_entropy(output[0], target["class"]), F.mse_loss(output[1], target["position"])
    return classes + position, {"classes": classes, "count": len(output[0])}


def with_tuple(output: tuple[Tensor, Tensor], target: tuple[Tensor, Tensor]) -> Tensor:
    classes, position = target
    return F.cross_entropy(output[0], classes) + F.mse_loss(output[1], position)


def without_target(output: tuple[Tensor, Tensor], target: None) -> Tensor:
    assert target is None
    return output[0].square().mean() + output[1].square().mean()


def network(loss: Callable[..., Any]) -> list[Stage]:
    torch.manual_seed(0)
    stem = BufferedStage(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), DuplicateStreams()))
    blocks = [ReversibleStage(nn.Sequential(nn.Linear(4, 4), nn.Tanh())) for _ in range(2)]
    return [stage.double() for stage in (stem, *blocks, HeadStage(TwoOutputs(), loss))]


def batches(count: int, kind: str) -> list[tuple[Tensor, Any]]:
    generator = torch.Generator().manual_seed(1)
    data: list[tuple[Tensor, Any]] = []
    for _ in range(count):
        x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
        classes = torch.randint(3, (5,), generator=generator)
        position = torch.randn(5, 2, generator=generator, dtype=torch.float64)
        targets = {
            "dict": {"class": classes, "position": position},
            "tuple": (classes, position),
            "list": [classes, position],  # a DataLoader turns tuples into lists
            "none": None,
        }
        data.append((x, targets[kind]))
    return data


LOSSES: dict[str, Callable[..., Any]] = {
    "dict": with_dict,
    "tuple": with_tuple,
    "list": with_tuple,
    "none": without_target,
}


def made(stages: list[Stage], method: Method, **settings: Any) -> Pipeline:
    k = 6 if method.double_buffered else 1
    return Pipeline(copy.deepcopy(stages), method, accumulation=k, optimizer=toys.sgd, **settings)


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        *((method, "dict") for method in methods.ALL),
        *((method, kind) for kind in list(LOSSES)[1:] for method in (methods.PETRA, methods.DELAYED_GRADIENTS)),
        *((methods.PIPEDREAM_2BW, kind) for kind in list(LOSSES)[1:]),
    ],
    ids=str,
)
def test_structured_targets_train_as_plain_pytorch(method: Method, kind: str) -> None:
    assert_trains_as_plain_training(network(LOSSES[kind]), method, 1, batches(6, kind), inspect=False)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_metrics_are_those_of_the_last_loss(method: Method) -> None:
    stages, data = network(with_dict), batches(3, "dict")
    p = made(stages, method)
    model = sequential(copy.deepcopy(stages))
    for x, target in data[: p.accumulation]:
        p.step(x, target)
        assert_close(p.metrics, with_dict(model(x), target)[1] | {"count": torch.tensor(5)})


@pytest.mark.parametrize("kind", LOSSES)
def test_resume_with_targets_in_flight_is_bitwise(kind: str) -> None:
    stages, data = network(LOSSES[kind]), batches(14, kind)
    undisturbed, resumed = made(stages, methods.PETRA, seed=1), made(stages, methods.PETRA, seed=1)
    undisturbed.stagger()
    resumed.stagger()
    toys.train(undisturbed, data[:9], drain=False)
    resumed.load_state_dict(undisturbed.state_dict())
    for p in (undisturbed, resumed):
        p.drain()  # the head uses targets from the state
        toys.train(p, data[9:])
    assert_bitwise_equal(resumed.state_dict(), undisturbed.state_dict())


@pytest.mark.parametrize("kind", LOSSES)
def test_check_and_predict_accept_structured_targets(kind: str) -> None:
    """`check` finds nothing, and predicted peak bytes equal the measured ones."""
    stages, (x, target) = network(LOSSES[kind]), batches(1, kind)[0]
    report = petra_core.check(stages, x, target, optimizer=toys.sgd)
    assert report.ok, report
    predicted = predict(stages, methods.PETRA, x, target, optimizer=toys.sgd)
    p = made(stages, methods.PETRA)
    for _ in range(2 * lockstep(4)[0] + 2):
        p.step(x, target)
    assert [dict(stage.peak) for stage in p.memory().stages] == [dict(stage.peak) for stage in predicted]


def test_target_is_copied_and_missing_entry_raises() -> None:
    """The caller may overwrite targets after `step`, and a target without an entry raises ValueError."""
    stages, data = network(with_dict), batches(2, "dict")
    losses = []
    for overwrite in (False, True):
        p = made(stages, methods.PETRA)
        p.stagger()
        for x, target in batches(8, "dict"):
            loss = p.step(x, target)
            if overwrite:
                convert_tensors(target, lambda tensor: tensor.zero_())
        losses.append(loss)
    assert_bitwise_equal(losses[1], losses[0])
    with pytest.raises(ValueError, match="has shapes and dtypes"):
        p.step(data[0][0], {"class": data[0][1]["class"]})


def test_targets_may_change_the_order_of_their_keys() -> None:
    """A staggered pipeline passes each entry of a target under its key, whatever the order of the keys."""
    states = []
    for alternate in (False, True):
        p = made(network(with_dict), methods.PETRA)
        p.stagger()
        for number, (x, target) in enumerate(batches(24, "dict")):
            p.step(x, dict(reversed(target.items())) if alternate and number % 2 else target)
        p.drain()
        states.append(dict(p.model.state_dict()))
    assert_bitwise_equal(*states)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_loss_sees_keys_in_the_order_of_the_caller(method: Method) -> None:
    """A loss may unpack the values of a dict, as in plain PyTorch."""

    def loss(output: tuple[Tensor, Tensor], target: dict[str, Tensor]) -> Tensor:
        position, classes = target.values()
        return with_tuple(output, (classes, position))

    p = made(network(loss), method)
    x, target = batches(1, "dict")[0]
    expected = with_tuple(p.evaluate(x), (target["class"], target["position"]))
    value = p.step(x, {"position": target["position"], "class": target["class"]})
    assert value is not None
    torch.testing.assert_close(value, expected)
