"""Test `petra_core.check`, which reports the findings about users' modules before training."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import petra_core
from petra_core import HeadStage, Stage, merge, methods, models, prediction
from petra_core.inspection import preflight
from petra_core.methods import Method
from petra_core.optimizers import sgd
from tests.compare import assert_bitwise_equal
from tests.constructs import closing
from tests.refused import IMPURE, UNREGISTERED
from tests.toys import computing
from tests.user_networks import batches, network

X, Y = batches(1)[0]


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_check_accepts_valid_network_and_changes_nothing(method: Method) -> None:
    """`check` finds nothing in a valid network and keeps weights, gradients and generators unchanged."""
    k = 6 if method.double_buffered else 2
    net = network(lambda f: nn.Sequential(f, nn.BatchNorm1d(4), nn.Dropout(0.2)))
    state = [dict(stage.state_dict()) for stage in net]
    before = [{name: tensor.clone() for name, tensor in stage.items()} for stage in state]
    generator = torch.get_rng_state()
    report = petra_core.check(net, X, Y, method=method, accumulation=k, optimizer=sgd(0.1))
    assert report.ok, str(report)
    assert str(report).startswith("nothing found")
    assert_bitwise_equal(state, before)
    assert_bitwise_equal(torch.get_rng_state(), generator)
    assert all(parameter.grad is None for stage in net for parameter in stage.parameters())


def test_check_accepts_models_of_engine() -> None:
    """`check` finds nothing in a chain and, under autocast, in a RevNet."""
    torch.manual_seed(0)
    for net, autocast in (
        (models.chain(3, num_classes=10, channels=4), None),
        (models.revnet(18, num_classes=10, width=2), torch.bfloat16),
    ):
        report = petra_core.check(net, torch.randn(4, 3, 32, 32), torch.randint(10, (4,)), autocast=autocast)
        assert report.ok, str(report)


def with_loss(loss: Callable[..., torch.Tensor]) -> list[Stage]:
    net = network()
    return [*net[:-1], HeadStage(net[-1].function, loss)]


def unused() -> list[Stage]:
    net = network()
    net[1].eval()
    return net


@pytest.mark.parametrize(
    ("make", "stage", "parameter", "what", "remedy"),
    [
        (lambda: network(IMPURE["python"]), 1, None, "draws random", "global generator"),
        (lambda: network(IMPURE["frozen"]), 1, "residual.teacher", "is written", "buffer"),
        (lambda: network(closing), 1, "residual.f.2.bias", "is read past the module", "in a method"),
        (lambda: network(UNREGISTERED["list"]), 1, None, "depends on a tensor", "register it"),
        (lambda: with_loss(lambda o, y: F.cross_entropy(o.detach(), y)), None, None, "has no graph", "correct"),
        (lambda: network()[:-1], None, None, "the last stage must be a HeadStage", "correct that first"),
        (lambda: [nn.Linear(3, 2)], None, None, "is a Linear, which is neither", "correct"),
        (unused, 1, None, "is in evaluation mode", "train()"),
    ],
)
def test_findings_have_stage_parameter_problem_and_remedy(
    make: Callable[[], list[Stage]], stage: int | None, parameter: str | None, what: str, remedy: str
) -> None:
    report = petra_core.check(make(), X, Y, optimizer=sgd(0.01))
    assert not report.ok
    finding = next(finding for finding in report.findings if what in finding.what)
    assert (finding.stage, finding.parameter) == (stage, parameter)
    assert remedy in finding.remedy
    assert str(finding) in str(report)


def test_check_reports_findings_of_all_stages() -> None:
    net = network(IMPURE["python"])
    net[2] = network(UNREGISTERED["dict"])[2]
    report = petra_core.check(net, X, Y)
    assert {finding.stage for finding in report.findings} >= {1, 2}


def test_check_compares_with_the_same_numbers_of_numpy() -> None:
    """With a method that keeps graphs, a function may draw from NumPy's generator."""
    drawing = computing(lambda m, x: m.f(x) * np.random.rand())
    report = petra_core.check(network(drawing), X, Y, method=methods.BACKPROPAGATION)
    assert report.ok, str(report)


def test_check_compares_with_the_same_numbers_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain network draws from the states of the generators of all devices that the pipeline began with."""
    generator = torch.Generator()  # of a GPU that this machine may lack
    monkeypatch.setattr(preflight, "capture_all", lambda devices: generator.get_state())
    monkeypatch.setattr(preflight, "restore_all", lambda state, devices: generator.set_state(state))
    drawing = computing(lambda m, x: m.f(x) * torch.rand(1, generator=generator))
    report = petra_core.check(network(drawing), X, Y, method=methods.BACKPROPAGATION)
    assert report.ok, str(report)


def test_parameters_missing_from_optimizer_are_found() -> None:
    net = network()
    report = petra_core.check(net, X, Y, optimizer=lambda parameters: torch.optim.SGD(parameters[:1], lr=0.1))
    assert {(f.stage, f.parameter) for f in report.findings} >= {(0, "module.0.bias"), (3, "module.1.bias")}
    assert all("was not given to the optimizer" in finding.what for finding in report.findings)


class Clipping(torch.optim.SGD):
    """An optimizer that clips by the norm of all gradients, as LAMB does."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without closures
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        super().step()


def test_optimizer_whose_steps_depend_on_other_gradients_is_found() -> None:
    """Separate optimizers of the stages would take other steps than one of the whole network."""
    factory = functools.partial(Clipping, lr=0.1)
    [finding] = petra_core.check(network(), X, Y, optimizer=factory).findings
    assert finding.what.startswith("a step of Clipping depends on gradients of other parameters")
    whole = petra_core.check([merge(network())], X, Y, optimizer=factory)
    assert whole.ok, whole


def test_gradient_that_differs_from_autograd_is_found() -> None:
    """The function computes other values in the engine, whose inputs are leaves."""
    cheats = computing(lambda m, x: m.f(x) if x.is_leaf else 3 * m.f(x))  # leaf inputs occur only in the engine
    report = petra_core.check(network(cheats), X, Y, method=methods.BACKPROPAGATION)
    assert any("has another gradient than by plain autograd" in finding.what for finding in report.findings)


def test_check_reports_errors_without_raising() -> None:
    """Errors of the network, the data or the settings become findings, and `check` raises nothing."""
    assert not petra_core.check([], X, Y).ok
    assert not petra_core.check(network(), X[:, :2], Y).ok
    assert not petra_core.check(network(), X, Y, accumulation=0).ok
    assert not petra_core.check(network(), X, Y, optimizer=lambda q: torch.optim.LBFGS(q)).ok


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_modules_that_keep_results_of_parameters_can_be_copied() -> None:
    """copy.deepcopy refuses the weight that the older weight_norm computes and keeps in an attribute."""
    net = network(lambda f: nn.Sequential(f, nn.utils.weight_norm(nn.Linear(4, 4))))
    report = petra_core.check(net, X, Y)
    assert report.ok, str(report)
    assert len(prediction.measure(net, methods.PETRA, X, Y)) == len(net)


def test_check_uses_given_staleness() -> None:
    """`check` accepts a valid staleness vector and reports an invalid one."""
    x, y = batches(1)[0]
    stages = network()
    assert petra_core.check(stages, x, y, staleness=(0,) * len(stages)).ok
    (finding,) = petra_core.check(stages, x, y, staleness=(1, 2, *[0] * (len(stages) - 2))).findings
    assert "the staleness of stage 0 must be at least that of stage 1, 2" in finding.what
