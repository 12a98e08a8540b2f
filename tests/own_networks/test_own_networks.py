"""Test that eleven users' networks train as plain autograd and the paper's equations do, or are refused with a remedy.

The model of each is plain PyTorch, so the tests also show that its stages compute the same function.
"""

import copy
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import petra_core
from petra_core import Clip, HeadStage, Pipeline, Stage, methods, models
from petra_core.methods import Method
from petra_core.stages import in_evaluation_mode
from petra_core.targets import convert_tensors
from tests.compare import assert_bitwise_equal, assert_close
from tests.own_networks import gpt
from tests.reference import RULES, ReferencePart, Sgd, simulate

FILES = [file for file in sorted(Path(__file__).parent.glob("*.py")) if not file.stem.startswith(("__", "test_"))]
NETWORKS: dict[str, ModuleType] = {f.stem: importlib.import_module(f"tests.own_networks.{f.stem}") for f in FILES}
#: Without reversible stages, these methods do the same.
SYNCHRONOUS = [
    (name, method)
    for name, network in NETWORKS.items()
    for method in methods.ALL
    if not method.pipelined and (method.keeps_graph or hasattr(network, "ReversibleStage"))
]
RATE, MOMENTUM = 0.03, 0.9


def module_function(name: str, **settings: Any) -> Any:
    """Return a model in float64 with the same weights in every call."""
    torch.manual_seed(0)
    return NETWORKS[name].Model(**settings).double()


def batches(name: str, count: int) -> list[tuple[Any, Any]]:
    torch.manual_seed(1)
    data = [NETWORKS[name].batch() for _ in range(count)]
    return [(convert_tensors(x, doubled), convert_tensors(y, doubled)) for x, y in data]


def doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def loss_of(name: str, model: nn.Module, x: Any, y: Any) -> Tensor:
    """Return the loss of the plain model."""
    loss = (model.loss if name == "regression" else NETWORKS[name].loss)(model(x), y)
    return loss if isinstance(loss, Tensor) else loss[0]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)


def test_eleven_networks_have_at_most_sixty_lines() -> None:
    lines = {file.stem: len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
    assert len(lines) == 11
    assert {name: count for name, count in lines.items() if count > 60} == {}


@pytest.mark.parametrize(("name", "method"), SYNCHRONOUS, ids=str)
def test_synchronous_methods_train_as_plain_pytorch(name: str, method: Method) -> None:
    """An update accumulates two micro-batches and clips by the global norm, as `clip_grad_norm_` does."""
    plain = module_function(name)
    model = copy.deepcopy(plain)
    data = batches(name, 4)
    optimizer = sgd(list(plain.parameters()))
    inspect = method is methods.BACKPROPAGATION  # `check` below inspects PETRA
    p = Pipeline(NETWORKS[name].stages(model), method, accumulation=2, optimizer=sgd, clip=Clip(0.1), inspect=inspect)
    for number, (x, y) in enumerate(data, 1):
        loss = loss_of(name, plain, x, y)
        (loss / 2).backward()
        if number % 2 == 0:
            assert torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1) > 0.1
            optimizer.step()
            optimizer.zero_grad()
        assert_close(p.step(x, y), loss.detach(), 1e-10)
    assert_close(dict(model.state_dict()), dict(plain.state_dict()), 1e-10)
    other = module_function(name)
    models.sequential(NETWORKS[name].stages(other)).load_state_dict(p.gather())
    assert_bitwise_equal(dict(other.state_dict()), dict(model.state_dict()))
    with torch.no_grad(), in_evaluation_mode(p.stages):
        assert_bitwise_equal(p.evaluate(data[0][0]), model(data[0][0]))


class Scored(nn.Module):
    """A head combined with its loss, for the reference."""

    def __init__(self, head: HeadStage) -> None:
        super().__init__()
        self.module, self.loss = head.module, head.loss

    def forward(self, value: Any, target: Any) -> Tensor:
        output = self.module(value)
        output = output[0] if isinstance(output, tuple) and len(output) == 1 else output
        loss = self.loss(output, target)
        return loss if isinstance(loss, Tensor) else loss[0]


def reference_part(part: Stage) -> ReferencePart:
    if isinstance(part, HeadStage):
        return ReferencePart("loss", Scored(part))
    return ReferencePart("reversible" if part.invertible else "buffered", part.function)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        (name, method)
        for number, name in enumerate(NETWORKS)
        for method in (methods.PETRA, (methods.DELAYED_GRADIENTS, methods.APPROXIMATE_INPUTS, methods.DSP)[number % 3])
    ],
    ids=str,
)
def test_full_pipeline_matches_reference_equations(name: str, method: Method) -> None:
    """Losses and weights of a full pipeline equal those of the paper's equations, also with random masks."""
    settings = {"dropout": 0.1} if name in ("vit", "reversible_vit") else {}
    stages: list[Stage] = NETWORKS[name].stages(module_function(name, **settings))
    data = batches(name, 2 * len(stages) + 2)  # four more than fill the pipeline
    parts = [[reference_part(part) for part in stage.parts()] for stage in copy.deepcopy(stages)]
    p = Pipeline(stages, method, accumulation=2, optimizer=sgd, inspect=False)  # other tests inspect them
    torch.manual_seed(2)
    steps, optimizer = range(len(data)), Sgd(lambda _: RATE, MOMENTUM)
    history = simulate(parts, RULES[method.name], 2, optimizer, data, steps, staleness=p.staleness)
    torch.manual_seed(2)
    losses = [p.step(x, y) for x, y in data]
    p.drain()
    assert_close(losses, [history.losses[m] for m in range(len(data))], 1e-10)
    actual = [[list(part.function.parameters()) for part in stage.parts()] for stage in stages]
    expected = [[list(weights.values()) for weights in stage] for stage in history.weights[-1]]
    assert_close(actual, expected, 1e-10)


@pytest.mark.parametrize("name", NETWORKS)
def test_check_finds_nothing(name: str) -> None:
    stages, (x, y) = NETWORKS[name].stages(module_function(name)), batches(name, 1)[0]
    report = petra_core.check(stages, x, y, optimizer=sgd)
    assert report.ok, report


# --- limits that users meet ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_tied_embedding_raises_and_remedies_train(method: Method) -> None:
    """A weight tied across stages raises ValueError; one stage for both uses, or a copied weight, trains."""
    model = module_function("gpt")
    model.top.weight = model.embedding.token.weight
    with pytest.raises(ValueError, match=r"weights cannot be tied across stages.*into the module of one stage, or unt"):
        Pipeline(gpt.stages(model), method, accumulation=8)
    (x, y), start = batches("gpt", 1)[0], copy.deepcopy(model)
    if method is not methods.PIPEDREAM_2BW:  # it uses the weights before the last update
        loss = gpt.loss(start(x), y)
        loss.backward()
        sgd(list(start.parameters())).step()
        one = Pipeline([HeadStage(model, gpt.loss)], method, optimizer=sgd)  # both uses of the weight are in one stage
        assert_close(one.step(x, y), loss.detach(), 1e-10)
        assert_close(dict(model.state_dict()), dict(start.state_dict()), 1e-10)
    model.top.weight = copy.deepcopy(model.top.weight)
    Pipeline(gpt.stages(model), method, accumulation=8, optimizer=sgd).step(x, y)
