"""Test errors of users in one table: each message names the object, the expected value and a remedy."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from petra_core import CheckpointError, NonFiniteError, methods
from petra_core.methods import Method
from tests.compare import assert_bitwise_equal
from tests.petra_core.test_user_modules import batches, made, network, step, trained

X, Y = batches(1)[0]


class Differentiating(nn.Module):
    def __init__(self, f: nn.Module) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        (force,) = torch.autograd.grad(self.f(x).sum(), x, create_graph=True)
        return force


@pytest.mark.parametrize("method", [method for method in methods.ALL if not method.keeps_graph], ids=str)
def test_gradient_in_forward_without_grad_mode_has_a_note(method: Method) -> None:
    """A module that differentiates in its forward fails with torch's error and a note about torch.enable_grad()."""
    with pytest.raises(RuntimeError, match="does not require grad") as caught:
        made(network(Differentiating), method).step(X, Y)
    assert any("torch.enable_grad()" in note for note in caught.value.__notes__)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def test_older_state_of_another_optimizer_is_detected_by_its_options() -> None:
    """States once had no entry with the class of the optimizer."""
    state = made(network(), methods.PETRA, optimizer=adamw).state_dict()
    for worker in state["workers"]:
        del worker["optimizer_class"]
    with pytest.raises(CheckpointError, match=r"its optimizer is not SGD: it has amsgrad, betas.* but not dampening"):
        made(network(), methods.PETRA).load_state_dict(state)


def test_non_finite_weights_suggest_lower_learning_rate() -> None:
    """If weights are not finite, NonFiniteError suggests a lower learning rate."""
    p = made(network(), methods.PETRA, optimizer=lambda q: torch.optim.SGD(q, lr=float("inf")))
    with pytest.raises(NonFiniteError, match="lower the learning rate") as caught:
        step(p, 12)
    assert "all weights are finite" not in str(caught.value)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_evaluate_supports_inference_mode(method: Method) -> None:
    """`evaluate` gives the same output in inference mode and for tensors that were made in it."""
    p = made(network(), method)
    expected = p.evaluate(X)
    with torch.inference_mode():
        assert_bitwise_equal(p.evaluate(X).clone(), expected)
        batch = X.clone()
    assert_bitwise_equal(p.evaluate(batch), expected)
    trained(network(), method)


def test_interrupted_step_requires_load() -> None:
    """The next step once kept the old inputs with new targets."""

    class Interrupting(Tensor):
        def clone(self, *args: Any, **kwargs: Any) -> Tensor:
            raise KeyboardInterrupt

    p = made(network(), methods.PETRA)
    p.step(X, Y)
    state = p.state_dict()
    with pytest.raises(KeyboardInterrupt):
        p.step(X, Y.as_subclass(Interrupting))
    with pytest.raises(RuntimeError, match="an exception broke off a step"):
        p.step(X, Y)
    p.load_state_dict(state)
    p.step(X, Y)


def test_load_recovers_from_failed_load() -> None:
    """After a failed load, a valid state loads and training resumes bitwise."""
    data = batches(12)
    p, other = made(network(), methods.PETRA), made(network(), methods.PETRA)
    for x, y in data[:6]:
        p.step(x, y)
        other.step(x, y)
    state = other.state_dict()
    with pytest.raises(CheckpointError):
        p.load_state_dict(made(network(), methods.PETRA, optimizer=adamw).state_dict())
    p.load_state_dict(state)
    for x, y in data[6:]:
        p.step(x, y)
        other.step(x, y)
    assert_bitwise_equal(p.state_dict(), other.state_dict())


@pytest.mark.parametrize("method", [methods.PETRA, methods.BACKPROPAGATION], ids=str)
def test_set_learning_rate_overrides_other_changes(method: Method) -> None:
    """`set_learning_rate` overrides changes of a scheduler and writes a tensor only if its value differs."""
    p = made(network(), method, optimizer=lambda q: torch.optim.SGD(q, lr=torch.tensor(0.1)))
    p.set_learning_rate(0.1)
    optimizer = p.optimizers[0]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step()
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.01)
    version = optimizer.param_groups[0]["lr"]._version
    p.set_learning_rate(0.1)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
    p.set_learning_rate(0.1)
    assert optimizer.param_groups[0]["lr"]._version == version + 1, "a kernel at every step"
    optimizer.param_groups[0]["lr"] = torch.tensor(0.3)
    p.set_learning_rate(0.1)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)


def test_stages_may_share_frozen_modules() -> None:
    """Stages may share a module without trained parameters under every method."""
    shared = nn.Linear(4, 4).double().requires_grad_(False)
    net = network(lambda f: nn.Sequential(f, shared))
    for method in methods.ALL:
        trained(net, method)


def test_deepcopy_of_pipeline_trains_identically() -> None:
    """A deep copy of a pipeline has bitwise the losses and states of the original in later steps."""
    for method in (methods.PETRA, methods.DSP, methods.BACKPROPAGATION):
        p = made(network(lambda f: nn.Sequential(f, nn.BatchNorm1d(4))), method)
        for x, y in batches(6):
            p.step(x, y)
        other = copy.deepcopy(p)
        for x, y in batches(6):
            assert p.step(x, y) == other.step(x, y)
        assert_bitwise_equal(other.state_dict(), p.state_dict())
