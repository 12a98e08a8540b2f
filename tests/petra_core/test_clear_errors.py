"""Test errors of users in one table: each message names the object, the expected value and a remedy."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from petra_core import BufferedStage, methods
from petra_core.methods import Method
from tests.compare import assert_bitwise_equal
from tests.toys import computing
from tests.user_networks import assert_same, batches, made, network, step, trained

X, Y = batches(1)[0]


def hooking(m: Any, x: Tensor) -> Tensor:
    h: Tensor = m.f(x)
    h.register_hook(torch.neg)
    return h


def setting_a_flag(m: Any, x: Tensor) -> Any:
    h = x[:, :]
    h.requires_grad = True
    return m.f(h)


#: Functions that need a gradient in their forward, and the advice of the note.
NEEDS_GRADIENT: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "gradient": (lambda m, x: torch.autograd.grad(m.f(x).sum(), x, create_graph=True)[0], "torch.enable_grad()"),
    "hook of a tensor": (hooking, "tensor.requires_grad"),
    "torch.func": (lambda m, x: torch.func.grad(lambda z: m.f(z).sum())(x), "torch.autograd.grad"),
}


@pytest.mark.parametrize("method", [method for method in methods.ALL if not method.keeps_graph], ids=str)
@pytest.mark.parametrize("kind", NEEDS_GRADIENT)
def test_gradient_in_forward_without_grad_mode_has_a_note(kind: str, method: Method) -> None:
    """A module that needs gradients in its forward fails with torch's error and a note."""
    function, advice = NEEDS_GRADIENT[kind]
    with pytest.raises(RuntimeError) as caught:
        step(made(network(computing(function)), method), 12)
    assert any(advice in note for note in caught.value.__notes__)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_requires_grad_of_a_view_of_the_input_has_a_note(method: Method) -> None:
    """A module that sets it, as the speech models of transformers do, trains with the remedy of the note."""
    setting, net = computing(setting_a_flag), network()
    with pytest.raises(RuntimeError, match="flags of leaf variables") as caught:
        step(made([BufferedStage(setting(net[0].function)), *net[1:]], method), 12)
    assert any("in stage 0" in note and "x.detach()" in note for note in caught.value.__notes__)
    remedy = computing(lambda m, x: m.f(x.detach()))(setting(net[0].function))
    assert_same(trained([BufferedStage(remedy), *network()[1:]], method), trained(network(), method), 0.0)


def test_write_to_a_weight_has_a_note() -> None:
    """In a graph autograd refuses writes to inputs and to weights with one message; the note names the weights."""
    clamping = computing(lambda m, x: next(m.f.parameters()).clamp_(-1, 1).sum() + m.f(x))
    with pytest.raises(ValueError, match="wrote to its input in place") as caught:
        step(made(network(clamping), methods.BACKPROPAGATION), 1)
    assert any("write to a parameter" in note for note in caught.value.__cause__.__notes__)  # type: ignore[union-attr]  # it has a cause


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
