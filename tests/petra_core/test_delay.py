"""Test weight prediction and delay corrections against theory. `test_petra_semantics` has their equations."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, check, delay, merge, methods, models
from petra_core.delay import CORRECTIONS, PredictedWeights
from petra_core.delay.corrections import Correction
from petra_core.methods import Method
from petra_core.optimizers import sgd
from petra_core.update_rule import UpdateRule, check_rules
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.delay_by_hand import LINEAR, PREDICTED, SETTINGS, TOLERANCE, Drift, Rules
from tests.properties import assert_bytes_are_as_predicted


def name_of(value: Any) -> str:
    """Return the name of a test case."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if callable(value) else str(value)


@torch.no_grad()
def predicted(
    optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], updates: int, rule: PredictedWeights
) -> dict[str, Tensor] | None:
    return rule.bind(optimizer).forward_weights(weights, updates, 1.0)


# --------------------------------------------------------------------------------------- against results of theory


@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("form", [PREDICTED, LINEAR], ids=str)
def test_adamw_prediction_matches_formula(form: PredictedWeights, amsgrad: bool) -> None:
    """FTPipe makes AdamW steps without gradient and with a fixed second moment, XPipe s times the last step."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.8, 0.95), amsgrad=amsgrad)
    for size in (3, 1, 0.1, 0.1):  # the largest mean square is not the last
        weight.grad = size * torch.randn(5, dtype=torch.float64)
        optimizer.step()
    state = optimizer.state[weight]
    second = state["max_exp_avg_sq" if amsgrad else "exp_avg_sq"]
    m, w = state["exp_avg"].clone(), weight.detach().clone()
    for ahead in range(1, 4):
        number = 4 + ahead if form is PREDICTED else 4
        m = 0.8 * m if form is PREDICTED else m
        w = w - 0.01 * (m / (1 - 0.8**number)) / ((second / (1 - 0.95**number)).sqrt() + 1e-8)
        at = predicted(optimizer, {"w": weight}, ahead, form)
        assert at is not None
        assert_close(at["w"].detach(), w, TOLERANCE)


def test_micro_batches_share_prediction_at_equal_rate() -> None:
    """Stage 0 is 6 micro-batches late with k = 4: 16 and 17 have the same version and future, and so have 18 and 19."""
    settings: dict[str, Any] = {"accumulation": 4, "optimizer": toys.sgd, "delay": [PREDICTED]}
    p = Pipeline(toys.network(4), methods.DELAYED_GRADIENTS, **settings)
    data = toys.batches(20)
    memory = p.workers[0].parts[0]._memory
    for number, shared in ((17, True), (19, False)):
        toys.train(p, data[p.micro_batches : number], drain=False)
        if not shared:
            p.set_learning_rate(0.04)
        p.step(*data[number])
        last, new = memory[-2], memory[-1]
        numbers = last.version.number, new.version.number
        assert (last.micro_batch, new.micro_batch, numbers[0]) == (number - 1, number, numbers[1])
        assert last.version.ahead
        assert (new.version == last.version) == shared


def grows(method: Method, late: int, momentum: float, rate: float, **settings: Any) -> bool:
    """Return whether training 0.5 w^2 with gradients `late` updates late diverges from the minimum."""
    head = HeadStage(nn.Identity(), loss=lambda output, _: 0.5 * (output**2).sum())
    weight = toys.computing(lambda m, x: m.w * x, w=lambda: nn.Parameter(torch.tensor(1e-3, dtype=torch.float64)))()
    p = Pipeline(
        [BufferedStage(weight), head],
        method,
        staleness=(late, 0),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum),
        inspect=False,
        **settings,
    )
    x, target = torch.ones(1, dtype=torch.float64), torch.zeros(1)
    sizes = []
    for _ in range(350):
        p.step(x, target)
        sizes.append(abs(weight.w.item()))
    return max(sizes[-100:]) > max(sizes[100:200])


def border(late: int, momentum: float, a: float, b: float, c: float) -> float:
    """Return the learning rate where the linear recursion of delayed SGD on 0.5 w^2 has an eigenvalue of modulus 1.

    v <- mu v + g, w <- w - eta (a v + b g), g = w - eta c v, both `late` updates ago.
    """

    def radius(rate: float) -> float:
        size = late + 1
        one = np.zeros((2 * size, 2 * size))  # on (w now, w one update ago, ..., v now, v one update ago, ...)
        gradient = np.zeros(2 * size)
        gradient[size - 1], gradient[-1] = 1, -rate * c
        one[size, size] = momentum
        one[size] += gradient
        one[0, 0] = 1
        one[0] -= rate * (a * one[size] + b * gradient)
        for row in range(1, size):
            one[row, row - 1] = one[size + row, size + row - 1] = 1
        return float(np.abs(np.linalg.eigvals(one)).max())

    low, high = 1e-6, 4.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if radius(middle) < 1 else (low, middle)
    return low


@pytest.mark.parametrize(
    ("method", "late", "momentum", "rules", "step"),
    [
        (methods.DELAYED_GRADIENTS, 2, 0.0, [], (1, 0, 0)),
        (methods.PETRA, 6, 0.9, [], (1, 0, 0)),
        (methods.DELAYED_GRADIENTS, 2, 0.9, [PREDICTED], (1, 0, 0.9 + 0.9**2)),
        (methods.PETRA, 6, 0.9, [LINEAR], (1, 0, 6)),
        (methods.DELAYED_GRADIENTS, 2, 0.9, [delay.Spike()], (0.9**2, (1 - 0.9**2) / 0.1, 0)),
        (methods.PETRA, 6, 0.9, [delay.Compensation()], (1, 0, 0)),  # of second order in w
    ],
    ids=name_of,
)
def test_stability_limit_matches_theory(
    method: Method, late: int, momentum: float, rules: Rules, step: tuple[float, float, float]
) -> None:
    """Plain delayed SGD on 0.5 h w^2 is stable below 2 sin(pi / (2 (2 tau + 1))) / h; the rest is from eigenvalues."""
    at = border(late, momentum, *step)
    if not momentum:
        assert at == pytest.approx(2 * np.sin(np.pi / (2 * (2 * late + 1))), rel=1e-6)
    assert not grows(method, late, momentum, 0.96 * at, delay=rules)
    assert grows(method, late, momentum, 1.04 * at, delay=rules)


# --------------------------------------------------------------------------- resuming, processes, bytes, bad values


def gap_aware(rate: float, *, in_group: bool) -> Pipeline:
    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups: list[dict[str, Any]] = [{"params": parameters, "lr": rate}] if in_group else [{"params": parameters}]
        return torch.optim.SGD(groups, lr=7.0 if in_group else rate, momentum=0.9, weight_decay=0.01)

    return Pipeline(toys.network(4), methods.PETRA, optimizer=optimizer, delay=[delay.GapAware()], seed=0)


def test_gap_aware_reads_current_parameter_groups() -> None:
    """Gap-aware correction reads the rate and weight decay from the current parameter groups."""
    whole, other = gap_aware(0.05, in_group=True), gap_aware(0.05, in_group=False)
    data = toys.batches(24)
    assert toys.train(whole, data[:8], drain=False) == toys.train(other, data[:8], drain=False)
    resumed = gap_aware(0.05, in_group=True)
    resumed.load_state_dict(whole.state_dict())  # torch replaces the parameter groups
    for p in (whole, resumed):
        for optimizer in p.optimizers:
            optimizer.param_groups[0]["weight_decay"] = 0.1
        toys.train(p, data[8:])
    assert_bitwise_equal(toys.weights(resumed), toys.weights(whole))
    with pytest.raises(ValueError, match=r"must be above 0, got 0\.0"):
        gap_aware(0.0, in_group=True)


@pytest.mark.parametrize("correction", CORRECTIONS.values())
def test_corrections_keep_parameters_that_are_not_updated(correction: type[Correction]) -> None:
    """Parameters that no gradient reaches, and vectors, which the optimizer has not got, keep their values."""

    def matrices(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return toys.sgd([parameter for parameter in parameters if parameter.dim() > 1])

    unused = toys.computing(lambda m, x: m.f(x), unused=lambda: nn.Parameter(torch.ones(3, 3)))
    blocks = [ReversibleStage(unused(nn.Conv2d(2, 2, 3, padding=1))) for _ in range(2)]
    stages = [toys.stem(2), *blocks, toys.head(2)]
    p = Pipeline([s.double() for s in stages], methods.PETRA, optimizer=matrices, delay=[correction()])
    before = {name: parameter.detach().clone() for name, parameter in p.model.named_parameters()}
    toys.train(p, toys.batches(12))
    for name, parameter in p.model.named_parameters():
        assert torch.equal(parameter, before[name]) == (parameter.dim() < 2 or "unused" in name)


#: The bytes of linear prediction are those of prediction, and the rule `Rate` has no tensors.
WITH_BYTES = [setting for setting in SETTINGS if not {"predicted_linear", "rate"} & {rule.name for rule in setting[1]}]


@pytest.mark.parametrize(
    ("method", "rules", "k"),
    [
        *((method, rules, (1, 3)[number % 2]) for number, (method, rules) in enumerate(WITH_BYTES)),
        *((methods.PIPEDREAM_2BW, rules, 8) for rules in ([], [delay.GapAware()], [delay.Compensation()])),
    ],
    ids=name_of,
)
def test_bytes_are_as_predicted(method: Method, rules: Rules, k: int) -> None:
    """Peak and held bytes of every stage and kind equal the prediction under every rule."""
    stages = models.chain(3, num_classes=10, channels=4)
    stages = [stages[0], merge(stages[1:3]), *stages[3:]]  # its blocks get predicted weights one at a time
    batch = torch.randn(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    assert_bytes_are_as_predicted(stages, method, batch, k, sgd(0.01), inspect=True, delay=rules)


@pytest.mark.parametrize("correction", CORRECTIONS.values(), ids=CORRECTIONS)
def test_hooks_of_the_optimizer_are_called_at_every_update(correction: type[Correction]) -> None:
    """A hook may clamp the weights, so a rule that makes the step itself must call it too."""
    calls: list[str] = []

    def hooked(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = toys.sgd(parameters)
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        return optimizer

    p = Pipeline(toys.network(4), methods.PETRA, optimizer=hooked, delay=[correction()])
    toys.train(p, toys.batches(8))
    assert calls == ["before", "after"] * 8 * 4


def test_rule_may_have_another_base_class() -> None:
    """The other base class gets the arguments of the class statement."""

    class Registered:
        topic: str

        def __init_subclass__(cls, topic: str) -> None:
            cls.topic = topic

    class Mine(UpdateRule, Registered, topic="delay"):
        pass

    assert (Mine.name, Mine.topic) == ("Mine", "delay")


def test_check_rules_sorts_by_hook() -> None:
    class Ahead(UpdateRule):
        def forward_weights(self, weights: Any, updates: int, rate: float) -> None:
            return None

    rules = check_rules([delay.Compensation(), Ahead()], methods.PETRA)
    assert list(map(str, rules)) == ["Ahead", "compensation 0.04"]


def test_check_accepts_rules() -> None:
    """`check` accepts delay rules and reports a rule that has no effect."""
    stages, (x, y) = toys.network(4), toys.batches(1)[0]
    assert check(stages, x, y, optimizer=toys.sgd, delay=[Drift()]).ok
    report = check(stages, x, y, method=methods.BACKPROPAGATION, optimizer=toys.sgd, delay=[Drift()])
    assert "the delay rule 'Drift' would have no effect" in str(report)


def make_with_rule(rule: UpdateRule) -> Pipeline:
    return Pipeline(toys.network(4), methods.PETRA, optimizer=sgd(0.05), delay=[rule])


@pytest.mark.parametrize("returned", [None, 1.0, torch.ones(3)], ids=str)
def test_rule_without_gradient_is_refused(returned: Any) -> None:
    """A rule whose hook forgets to return a gradient would leave its parameters without updates."""

    class Forgetful(UpdateRule):
        def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
            return returned  # type: ignore[no-any-return]  # no gradient, on purpose

    with pytest.raises(ValueError, match=r"gradient of the delay rule 'Forgetful' returned .*, expected a tensor of"):
        toys.train(make_with_rule(Forgetful()), toys.batches(8))


@pytest.mark.parametrize("method", [methods.PETRA, methods.DELAYED_GRADIENTS], ids=str)
def test_rule_may_return_weights_without_graph_leaves(method: Method) -> None:
    """The engine makes leaves of the tensors of a rule, so a rule may compute them under no_grad, and in any order."""

    class Leaves(UpdateRule):
        def forward_weights(self, weights: Any, updates: int, rate: float) -> Any:
            return {name: (0.9**updates * weight).detach().requires_grad_() for name, weight in weights.items()}

    class Plain(UpdateRule):
        def forward_weights(self, weights: Any, updates: int, rate: float) -> Any:
            return {name: 0.9**updates * weights[name] for name in reversed([*weights])}

    losses = [
        toys.train(Pipeline(toys.network(4), method, optimizer=sgd(0.05), delay=[rule()]), toys.batches(12))
        for rule in (Leaves, Plain)
    ]
    assert_bitwise_equal(*losses)


def test_rule_may_return_one_of_its_buffers() -> None:
    """The sum of gradients was the buffer itself, so the gradients of later micro-batches were added to the buffer."""

    class Smooth(UpdateRule):
        def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
            buffer = self.buffers.setdefault(parameter, torch.zeros_like(gradient))
            return buffer.mul_(0.5).add_(gradient)

    class Copying(Smooth):
        def gradient(self, parameter: Tensor, gradient: Tensor, forward_weight: Tensor) -> Tensor:
            return super().gradient(parameter, gradient, forward_weight).clone()

    losses = [
        toys.train(
            Pipeline(toys.network(4), methods.PETRA, accumulation=4, optimizer=sgd(0.05), delay=[rule()]),
            toys.batches(24),
        )
        for rule in (Smooth, Copying)
    ]
    assert_bitwise_equal(*losses)


@pytest.mark.parametrize("hook", ["forward_weights", "backward_weights"])
@pytest.mark.parametrize("missing", [True, False])
def test_rule_with_wrong_weights_is_refused(hook: str, missing: bool) -> None:
    """A rule must return a tensor of the shape of every parameter."""

    def wrong(self: UpdateRule, weights: Any, *_: Any) -> Any:
        return {} if missing else {name: weight[:1] for name, weight in weights.items()}

    rule = type("Wrong", (UpdateRule,), {hook: wrong})()
    with pytest.raises(ValueError, match=f"the hook {hook} of the delay rule 'Wrong' returned .*, expected a tensor"):
        toys.train(make_with_rule(rule), toys.batches(8))
