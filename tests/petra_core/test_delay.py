"""Test weight prediction, delay corrections and PipeDream-2BW against their equations, written out by hand."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, checkpoint, delay, merge, methods, models
from petra_core.delay import CORRECTIONS, Correction, PredictedWeights
from petra_core.distributed import ProcessChannel
from petra_core.methods import Method
from petra_core.optimizers import sgd
from petra_core.update_rule import StageRules, UpdateRule, describe
from tests import toys
from tests.compare import assert_bitwise_equal, assert_close
from tests.petra_core.distributed.test_distributed import in_processes
from tests.petra_core.test_petra_semantics import batches, network, pipeline_of, statistics_of, weights_of
from tests.properties import assert_bytes_are_as_predicted, assert_resumes_bitwise
from tests.reference import RULES, Delay, MethodRule, Named, Sgd, after_step, entries, simulate

TOLERANCE = 1e-12
RATE, MOMENTUM, DECAY = 0.03, 0.8, 0.01
PREDICTED, LINEAR = PredictedWeights(), PredictedWeights(linear=True)
Rules = list[UpdateRule]
#: Every rule with a method that supports it.
SETTINGS: list[tuple[Method, Rules]] = [
    *((methods.PETRA, [correction()]) for correction in CORRECTIONS.values()),
    *((method, [PREDICTED]) for method in methods.PAPER if method.pipelined),
    (methods.PETRA, [LINEAR]),
    (methods.DSP, [PREDICTED, delay.GapAware()]),
    (methods.DSP, [delay.Average()]),
    (methods.DELAYED_GRADIENTS, [LINEAR, delay.Rate()]),
    (methods.DELAYED_GRADIENTS, [delay.Compensation()]),
    (methods.APPROXIMATE_INPUTS, [delay.Spike()]),
    (methods.PETRA, [PREDICTED, delay.Compensation()]),
    (methods.PETRA, [delay.Rate(), delay.Compensation()]),
]


def name_of(value: Any) -> str:
    """Return the name of a test case."""
    if isinstance(value, list):
        return describe(value)
    return "" if callable(value) else str(value)


# ------------------------------------------------------------------------------------- against the reference by hand


class ByHand(Delay):
    """An independent implementation of all rules, from their equations and on whole dictionaries."""

    def __init__(self, *, nesterov: bool, delay: Sequence[UpdateRule] = ()) -> None:
        self.nesterov = nesterov
        self.linear = next((rule.linear for rule in delay if isinstance(rule, PredictedWeights)), None)
        self.constants = {rule.name: rule.value for rule in delay if isinstance(rule, Correction)}

    def ahead(self, theta: Named, velocities: Named, state: dict[str, Any], updates: int) -> Named:
        if self.linear is None or not velocities:
            return theta
        moving, velocity = dict(theta), dict(velocities)
        for _ in range(updates):
            if not self.linear:  # a step of the optimizer with a gradient of zero
                velocity = {name: MOMENTUM * v for name, v in velocity.items()}
            step = MOMENTUM if not self.linear and self.nesterov else 1.0
            moving = {name: w - state.get("factor", 1.0) * RATE * step * velocity[name] for name, w in moving.items()}
        return moving

    def behind(self, theta: Named, state: dict[str, Any], delay: int) -> Named:
        if "average" not in self.constants or not delay or "delta" not in state:
            return theta
        return {name: theta[name] - delay * state["delta"][name] for name in theta}

    def correct(self, gradient: Named, theta: Named, used: Named, state: dict[str, Any]) -> Named:
        gap = {name: theta[name] - used[name] for name in theta}
        if "compensation" in self.constants:
            strength = self.constants["compensation"]
            return {name: g + strength * g**2 * gap[name] for name, g in gradient.items()}
        if "gap_aware" in self.constants and "r" in state:
            corrected = {}
            for name, g in gradient.items():
                usual = RATE * ((state["r"][name] / (1 - 0.999 ** state["updates"])).sqrt() + 1e-8)
                decayed = decay_of(theta[name]) * theta[name]
                corrected[name] = (g + decayed) / (1 + gap[name].abs() / usual) - decayed
            return corrected
        return gradient

    def update(
        self, sgd: Sgd, tick: int, theta: Named, mean: Named, velocities: Named, state: dict[str, Any], delay: float
    ) -> tuple[Named, Named]:
        before = state.get("updates", 0)
        state["updates"] = before + 1
        if "rate" in self.constants:
            factor = state["factor"] = max(delay, 1) ** -(1 - min(before / self.constants["rate"], 1))
            sgd = dataclasses.replace(sgd, learning_rate=lambda tick: factor * RATE)
        new, velocity = sgd.update(tick, theta, mean, velocities)
        if "spike" in self.constants and delay:
            length = delay + self.nesterov
            a, b = MOMENTUM**length, (1 - MOMENTUM**length) / (1 - MOMENTUM)
            for name, w in theta.items():
                new[name] = w - RATE * (a * velocity[name] + b * (mean[name] + decay_of(w) * w))
        if "gap_aware" in self.constants:
            state["r"] = {n: 0.999 * state["r"][n] if before else 0 * v for n, v in velocity.items()}
            state["r"] = {n: r + 0.001 * velocity[n] ** 2 for n, r in state["r"].items()}
        if "average" in self.constants:
            keep = self.constants["average"] ** (1 / delay) if delay else 0.0
            state["delta"] = {
                n: (keep * state["delta"][n] if before else 0.0) + (1 - keep) * (new[n] - theta[n]) for n in theta
            }
        return new, velocity


def decay_of(weight: Tensor) -> float:
    return DECAY if weight.dim() > 1 else 0.0


def assert_follows(
    pattern: str, method: Method, k: int, rule: MethodRule, about: Delay, *, nesterov: bool = True, **settings: Any
) -> None:
    """Check that the engine's weights, statistics and losses equal the reference's after each of thirty steps."""
    stages, data = network(pattern), batches(30)
    reference = Sgd(lambda tick: RATE, MOMENTUM, nesterov, decay_of)
    history = simulate(stages, rule, k, reference, data, entries(rule, len(stages), len(data)), about=about)
    optimizer = sgd(RATE, momentum=MOMENTUM, nesterov=nesterov, weight_decay=DECAY)
    pipeline = pipeline_of(stages, method, k, optimizer=optimizer, **settings)
    losses: list[Tensor] = []
    for m, (x, y) in enumerate(data):
        losses.append(pipeline.step(x, y))
        assert_close(weights_of(pipeline), after_step(history.weights, m), TOLERANCE)
        assert_close(statistics_of(pipeline), after_step(history.statistics, m), TOLERANCE)
    pipeline.drain()
    assert_close(weights_of(pipeline), history.weights[-1], TOLERANCE)
    assert_close(losses, [history.losses[m] for m in range(len(data))], TOLERANCE)


@pytest.mark.parametrize(("pattern", "k", "nesterov"), [("b r r b r h", 1, True), ("br rr brr rh", 3, False)])
@pytest.mark.parametrize(("method", "rules"), SETTINGS, ids=name_of)
def test_rules_match_reference_equations(pattern: str, k: int, nesterov: bool, method: Method, rules: Rules) -> None:
    """Under every rule, weights, statistics and losses equal those of its equation after every step."""
    rules = [delay.Rate(12) if isinstance(rule, delay.Rate) else rule for rule in rules]  # ends within the run
    about = ByHand(nesterov=nesterov, delay=rules)
    assert_follows(pattern, method, k, RULES[method.name], about, nesterov=nesterov, delay=rules)


@pytest.mark.parametrize("k", [6, 8])
@pytest.mark.parametrize(
    "rules", [[], *([rule()] for rule in CORRECTIONS.values() if rule is not delay.Average)], ids=describe
)
def test_pipedream_2bw_delays_every_stage_by_one_update(rules: Rules, k: int) -> None:
    """PipeDream-2BW equals a reference with a delay of one update at every stage, including the head."""
    about = ByHand(nesterov=True, delay=rules)
    about.lag = 1
    assert_follows("b r r h", methods.PIPEDREAM_2BW, k, RULES["DELAYED_GRADIENTS"], about, delay=rules)


def test_paci_is_dsp_with_bounded_weight_mismatch() -> None:
    """PACI stashes inputs and uses current weights: those of forward and backward differ by ceil(delay / k) updates."""
    assert methods.by_name("paci") is methods.DSP
    stages, k = 6, 4
    p = toys.pipeline(toys.network(stages), methods.by_name("paci"), accumulation=k)
    largest = [0] * stages
    backward = [worker.parts[-1].delay for worker in p.workers]
    for x, y in toys.batches(40):
        for index, worker in enumerate(p.workers):
            if worker.parts[-1]._memory:
                largest[index] = max(largest[index], backward[index](worker.version))
        p.step(x, y)
    assert largest[-1] == 0
    assert largest[:-1] == [-(-methods.DSP.staleness(j, stages) // k) for j in range(stages - 1)]


# ---------------------------------------------------------------------------------------------------- without delay


@pytest.mark.parametrize("correction", CORRECTIONS.values())
@pytest.mark.parametrize("nesterov", [True, False])
def test_corrections_without_delay_equal_optimizer(correction: type[Correction], nesterov: bool) -> None:
    """Without delay, every correction makes bitwise the steps of the optimizer."""
    torch.manual_seed(0)
    ours = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(5))]
    theirs = copy.deepcopy(ours)
    make = sgd(0.1, nesterov=nesterov, weight_decay=0.01)
    rule, optimizer = StageRules([correction()], make(ours)), make(theirs)
    for _ in range(5):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = torch.randn(mine.shape)
            other.grad = mine.grad.clone()
        with torch.no_grad():
            rule.step(0.0)
        optimizer.step()
        assert_bitwise_equal(ours, theirs)
        assert rule.backward_weights({"a": ours[0]}, 0) is None


def test_single_stage_ignores_delay_rules() -> None:
    """With one stage, every method and rule has bitwise the same losses."""
    data = toys.batches(6)
    expected = toys.train(toys.pipeline(toys.network(1), methods.PETRA), data)
    for method, rules in SETTINGS:
        p = Pipeline(toys.network(1), method, optimizer=toys.sgd, delay=rules)
        assert toys.train(p, data) == expected, rules


@torch.no_grad()
def predicted(
    optimizer: torch.optim.Optimizer, weights: dict[str, Tensor], updates: int, rule: PredictedWeights
) -> dict[str, Tensor] | None:
    return rule.bind(optimizer).forward_weights(weights, updates, 1.0)


def test_prediction_requires_steps_and_history() -> None:
    """Weight prediction returns None before the first update and for zero updates ahead."""
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    assert predicted(optimizer, {"w": weight}, 2, PREDICTED) is None  # no update yet
    weight.grad = torch.ones(3)
    optimizer.step()
    assert predicted(optimizer, {"w": weight}, 0, PREDICTED) is None
    assert predicted(optimizer, {"w": weight}, 2, LINEAR) is not None


# --------------------------------------------------------------------------------------- against results of theory


def test_one_step_prediction_equals_nesterov() -> None:
    """Heavy ball uses the gradient at the predicted weights: v <- mu v + g(w - eta mu v), w <- w - eta v."""
    torch.manual_seed(0)
    matrix = torch.randn(4, 4, dtype=torch.float64)
    matrix = matrix @ matrix.T / 8
    weight = nn.Parameter(torch.randn(4, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    w, v = weight.detach().clone(), torch.zeros(4, dtype=torch.float64)
    nesterov = nn.Parameter(weight.detach().clone())  # in torch's form the weights are the predicted ones
    theirs = torch.optim.SGD([nesterov], lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(20):
        at = predicted(optimizer, {"w": weight}, 1, PREDICTED)
        point = weight if at is None else at["w"]
        assert_close(point.detach(), w - 0.1 * 0.9 * v, TOLERANCE)
        assert_close(point.detach(), nesterov.detach(), TOLERANCE)
        weight.grad, nesterov.grad = matrix @ point.detach(), matrix @ nesterov.detach()
        v = 0.9 * v + matrix @ (w - 0.1 * 0.9 * v)
        w = w - 0.1 * v
        optimizer.step()
        theirs.step()
        assert_close(weight.detach(), w, TOLERANCE)


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


class Weight(nn.Module):
    """The function x -> w x with a scalar weight."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1e-3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


def grows(method: Method, stages: int, momentum: float, rate: float, **settings: Any) -> bool:
    """Return whether training 0.5 w^2 with gradients 2(stages - 1) updates late diverges from the minimum."""
    head = HeadStage(nn.Identity(), loss=lambda output, _: 0.5 * (output**2).sum())
    through = [BufferedStage(nn.Identity()) for _ in range(stages - 2)]
    weight = Weight()
    p = Pipeline(
        [BufferedStage(weight), *through, head],
        method,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=momentum),
        **settings,
    )
    x, target = torch.ones(1, dtype=torch.float64), torch.zeros(1)
    sizes = []
    for _ in range(600):
        p.step(x, target)
        sizes.append(abs(weight.w.item()))
    return max(sizes[-100:]) > max(sizes[200:300])


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


@pytest.mark.parametrize(("stages", "method"), [(2, methods.DELAYED_GRADIENTS), (4, methods.PETRA)], ids=name_of)
@pytest.mark.parametrize(
    ("momentum", "rules", "step"),
    [
        (0.0, [], lambda late: (1, 0, 0)),
        (0.9, [], lambda late: (1, 0, 0)),
        (0.9, [PREDICTED], lambda late: (1, 0, sum(0.9**power for power in range(1, late + 1)))),
        (0.9, [LINEAR], lambda late: (1, 0, late)),
        (0.9, [delay.Spike()], lambda late: (0.9**late, (1 - 0.9**late) / 0.1, 0)),
        (0.9, [delay.Compensation()], lambda late: (1, 0, 0)),  # of second order in w
    ],
    ids=name_of,
)
def test_stability_limit_matches_theory(
    stages: int, method: Method, momentum: float, rules: Rules, step: Callable[[int], tuple[float, float, float]]
) -> None:
    """Plain delayed SGD on 0.5 h w^2 is stable below 2 sin(pi / (2 (2 tau + 1))) / h; the rest is from eigenvalues."""
    late = 2 * (stages - 1)
    at = border(late, momentum, *step(late))
    if not momentum:
        assert at == pytest.approx(2 * np.sin(np.pi / (2 * (2 * late + 1))), rel=1e-6)
    assert not grows(method, stages, momentum, 0.96 * at, delay=rules)
    assert grows(method, stages, momentum, 1.04 * at, delay=rules)


def test_rate_rule_scales_stability_limit_by_delay() -> None:
    """Dividing the learning rate by the delay multiplies the largest stable rate by the delay."""
    late = 4
    at = late * 2 * np.sin(np.pi / (2 * (2 * late + 1)))
    held = [delay.Rate(1e9)]
    assert not grows(methods.PETRA, 3, 0.0, 0.96 * at, delay=held)
    assert grows(methods.PETRA, 3, 0.0, 1.04 * at, delay=held)


# --------------------------------------------------------------------------- resuming, processes, bytes, bad values


@pytest.mark.parametrize(("method", "rules"), [*SETTINGS, (methods.PIPEDREAM_2BW, [])], ids=name_of)
def test_resume_is_bitwise(method: Method, rules: Rules, tmp_path: Path) -> None:
    """A full pipeline resumes bitwise under every rule."""
    net = toys.network(6, dropout=0.2)
    k = 8 if method.double_buffered else 2

    def fresh() -> Pipeline:
        stages = copy.deepcopy([net[0], merge(net[1:3]), *net[3:]])
        return Pipeline(stages, method, accumulation=k, optimizer=toys.sgd, seed=7, delay=rules)

    assert_resumes_bitwise(fresh, toys.batches(20), 13, tmp_path)


class WithUnused(nn.Module):
    """A residual function with a parameter that no gradient reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Conv2d(2, 2, 3, padding=1), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


@pytest.mark.parametrize("correction", CORRECTIONS.values())
def test_corrections_keep_parameters_without_gradient(correction: type[Correction]) -> None:
    stages = [toys.stem(2), ReversibleStage(WithUnused()), ReversibleStage(WithUnused()), toys.head(2)]
    p = Pipeline([s.double() for s in stages], methods.PETRA, optimizer=toys.sgd, delay=[correction()])
    toys.train(p, toys.batches(12))
    unused = [parameter for name, parameter in p.model.named_parameters() if "unused" in name]
    assert len(unused) == 2
    assert all(bool((parameter == 1).all()) for parameter in unused)


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
def test_corrections_keep_parameters_outside_optimizer(correction: type[Correction]) -> None:
    def matrices(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return toys.sgd([parameter for parameter in parameters if parameter.dim() > 1])

    p = Pipeline(toys.network(4), methods.PETRA, optimizer=matrices, delay=[correction()])
    before = {name: parameter.detach().clone() for name, parameter in p.model.named_parameters()}
    toys.train(p, toys.batches(12))
    for name, parameter in p.model.named_parameters():
        assert torch.equal(parameter, before[name]) == (parameter.dim() < 2)


def compare(rank: int, cases: Sequence[tuple[Method, Rules]], folder: Path) -> None:
    data = toys.batches(17)
    for method, rules in cases:
        k = 8 if method.double_buffered else 2
        channel = ProcessChannel((2, 3))
        make = functools.partial(Pipeline, method=method, accumulation=k, optimizer=toys.sgd, seed=7, delay=rules)
        alone, shared = make(toys.network(5)), make(toys.network(5), channel=channel)
        toys.train(alone, data, drain=False)
        toys.train(shared, data, drain=False)
        for index in channel.stages:
            assert_bitwise_equal(shared.state_dict()["workers"][index], alone.state_dict()["workers"][index])
        toys.train(alone, data[:3])
        toys.train(shared, data[:3])
        channel.close()
    if rank == 0:
        checkpoint.save(folder / "done.pt", {"cases": len(cases)})


@pytest.mark.slow
def test_two_processes_match_one_bitwise(tmp_path: Path) -> None:
    in_processes(2, compare, [*SETTINGS, (methods.PIPEDREAM_2BW, [])], tmp_path)
    assert checkpoint.load(tmp_path / "done.pt") == {"cases": len(SETTINGS) + 1}


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("method", "rules"), SETTINGS, ids=name_of)
def test_bytes_are_as_predicted(method: Method, rules: Rules, k: int) -> None:
    """Peak and held bytes of every stage and kind equal the prediction under every rule."""
    stages = models.chain(5, num_classes=10, channels=4)
    stages = [stages[0], merge(stages[1:3]), *stages[3:]]  # its blocks get predicted weights one at a time
    batch = torch.randn(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    assert_bytes_are_as_predicted(stages, method, batch, k, sgd(0.01), delay=rules)


@pytest.mark.parametrize(
    "rules", [[], [delay.Rate()], [delay.GapAware()], [delay.Compensation(), delay.Rate()]], ids=describe
)
def test_bytes_of_pipedream_2bw_are_as_predicted(rules: Rules) -> None:
    """Peak and held bytes of every stage and kind equal the prediction."""
    stages = models.chain(3, num_classes=10, channels=4)
    batch = torch.randn(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    assert_bytes_are_as_predicted(stages, methods.PIPEDREAM_2BW, batch, 8, sgd(0.01), delay=rules)
