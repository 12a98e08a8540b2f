"""Evaluate the paper's equations by brute force: the weights of every stage after every tick.

An engine is fast because it forgets: it keeps a weight, an input or a graph only as long as it is needed, and there it
can be wrong. This evaluation forgets nothing. It stores the weights of all stages at all ticks and every message, and
looks up the one that the equations of arXiv 2406.02052 (section 3) require:

    forward of m at stage j, tick t = e(m) + j                   x_j = F_j(x_{j-1}, theta_j^t)
    backward of m at stage j, tick t = e(m) + 2(J-1) - j         x~_{j-1} = F_j^{-1}(x~_j, theta_j^t)
                                                                 delta_j = d_x F_j(x~_{j-1}, theta)^T delta_{j+1}
                                                                 Delta_j = d_theta F_j(x~_{j-1}, theta)^T delta_{j+1}
    update of stage j, after its every k-th backward             theta_j^{t+1} = SGD(theta_j^t, mean of k Delta_j)

e(m) is the tick at which micro-batch m enters: e(m) = m if one enters at every tick, otherwise when the previous one is
finished. The head (j = J-1) does forward, loss and backward in one tick. theta is theta_j^t or, with stashed weights,
that of the forward, theta_j^{e(m)+j}. At reversible stages of methods that reconstruct, x~_{j-1} is the inverse, always
with theta_j^t ("approximate inputs": inverting with the stashed weights would be exact). Everywhere else it is the
x_{j-1} of the forward. A stage may have several parts; its backward goes through them one by one, each by these rules.
Forwards draw random numbers (dropout) from torch's global generator, and their backwards draw the same numbers again.

With a staleness vector d instead of the paper's ticks, forward m is at stage j at tick m T + j, and its backward at (m
+ d_j) T + 2J - j, with T = 2J + 1: every action has a separate tick, and step m ends before tick (m + 1) T.

No code is shared with petra_core: there are only functions of explicit weights, `torch.autograd.grad` through whole
blocks, and SGD written out. It is slow and obvious, for toy networks.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

Value = tuple[Tensor, ...]
Named = dict[str, Tensor]


class ReferencePart(NamedTuple):
    """A block: its kind and its function."""

    kind: str  # "reversible", "buffered", "head" (ends in logits) or "loss" (a head called as module(value, target))
    module: nn.Module


Stages = Sequence[Sequence[ReferencePart]]  # [stage][part]


class MethodRule(NamedTuple):
    """Properties that distinguish the methods."""

    pipelined: bool  # a micro-batch enters at every tick
    reconstructs: bool  # reversible parts reconstruct their input from the message
    stashes: bool  # the backward differentiates with the weights of the forward


RULES = {
    "BACKPROPAGATION": MethodRule(pipelined=False, reconstructs=False, stashes=True),
    "REVERSIBLE_BACKPROPAGATION": MethodRule(pipelined=False, reconstructs=True, stashes=False),
    "DELAYED_GRADIENTS": MethodRule(pipelined=True, reconstructs=False, stashes=True),
    "DSP": MethodRule(pipelined=True, reconstructs=False, stashes=False),
    "APPROXIMATE_INPUTS": MethodRule(pipelined=True, reconstructs=True, stashes=True),
    "PETRA": MethodRule(pipelined=True, reconstructs=True, stashes=False),
    "PAREPROP": MethodRule(pipelined=False, reconstructs=True, stashes=False),
    "PIPEDREAM_2BW": MethodRule(pipelined=True, reconstructs=False, stashes=True),  # with a lag of one update
}


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with a learning rate per tick."""

    learning_rate: Callable[[int], float]
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: Callable[[Tensor], float] = lambda _: 0.0

    def update(self, tick: int, weights: Named, gradients: Named, velocities: Named) -> tuple[Named, Named]:
        """Return new weights and velocities after an update. Before the first update there are no velocities."""
        new_weights, new_velocities = {}, {}
        for name, theta in weights.items():
            gradient = gradients[name] + self.weight_decay(theta) * theta
            velocity = self.momentum * velocities[name] + gradient if velocities else gradient
            direction = gradient + self.momentum * velocity if self.nesterov else velocity
            new_weights[name] = theta - self.learning_rate(tick) * direction
            new_velocities[name] = velocity
        return new_weights, new_velocities


class Delay:
    """Compensate delay: this base class does nothing. `state` is the memory of a part; names are of parameters."""

    lag = 0  # delay in updates of all micro-batches of an update

    def ahead(self, theta: Named, velocities: Named, state: dict[str, Any], updates: int) -> Named:
        """Return the weights of a forward whose backward comes `updates` updates later."""
        return theta

    def behind(self, theta: Named, state: dict[str, Any], delay: int) -> Named:
        """Return the weights of a backward with current weights, `delay` updates after its forward."""
        return theta

    def correct(self, gradient: Named, theta: Named, used: Named, state: dict[str, Any]) -> Named:
        """Return the gradient of a micro-batch at weights `theta` whose forward used the weights `used`."""
        return gradient

    def update(
        self, sgd: Sgd, tick: int, theta: Named, mean: Named, velocities: Named, state: dict[str, Any], delay: float
    ) -> tuple[Named, Named]:
        """Return the weights and velocities after an update with a mean delay of `delay`."""
        return sgd.update(tick, theta, mean, velocities)


@dataclass
class ReferenceRun:
    """All computed values; t counts ticks, j stages, p parts, m micro-batches."""

    weights: list[list[list[Named]]]  # [t][j][p]: theta_j^t; one entry more than ticks
    statistics: list[list[list[Named]]]  # [t][j][p]: buffers (BatchNorm's running statistics) before tick t
    losses: dict[int, Tensor] = field(default_factory=dict)  # by m
    gradients: dict[tuple[int, int], list[Named]] = field(default_factory=dict)  # by (j, m): [p]
    inputs: dict[tuple[int, int, int], Value] = field(default_factory=dict)  # by (m, j, p): of the forward
    reconstructed: dict[tuple[int, int, int], Value] = field(default_factory=dict)  # by (m, j, p): of the backward


def as_value(result: Tensor | Value) -> Value:
    """Return the streams of a result, which are in float32 if it was computed in mixed precision."""
    streams = (result,) if isinstance(result, Tensor) else tuple(result)
    return tuple(stream.float() if stream.dtype in (torch.bfloat16, torch.float16) else stream for stream in streams)


def apply(part: ReferencePart, weights: Named, statistics: Named, value: Value, target: Any) -> Value:
    """Compute the forward of a part with explicit weights. Statistics are updated in place."""

    def function(*arguments: Any) -> Tensor | Value:
        return functional_call(part.module, {**weights, **statistics}, arguments)

    if part.kind == "reversible":
        x, x_tilde, *context = value
        return x_tilde + function(x, *context), x, *context
    argument = value[0] if len(value) == 1 else value
    return as_value(function(argument, target) if part.kind == "loss" else function(argument))


def invert(part: ReferencePart, weights: Named, statistics: Named, value: Value) -> Value:
    """Return the input of a reversible part from its output."""
    y, y_tilde, *context = value
    residual = functional_call(part.module, {**weights, **copies(statistics)}, (y_tilde, *context))
    return y_tilde, y - residual, *context


def differentiate(
    part: ReferencePart, weights: Named, statistics: Named, value: Value, delta: Value | None, target: Any
) -> tuple[Value, Named, Tensor | None]:
    """Return delta_j, Delta_j and for the head the loss, by autograd through the whole part.

    Streams of integers and masks have a gradient of zero, which is not used.
    """
    leaves = [stream.detach().requires_grad_(stream.is_floating_point()) for stream in value]
    parameters = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    results = apply(part, parameters, copies(statistics), tuple(leaves), target)
    loss = None
    if part.kind in ("head", "loss"):
        loss = F.cross_entropy(results[0], target) if part.kind == "head" else results[0]
        results, delta = (loss,), (torch.ones_like(loss),)
    assert delta is not None
    ends = [(result, gradient) for result, gradient in zip(results, delta, strict=True) if result.requires_grad]
    sources = [source for source in (*leaves, *parameters.values()) if source.requires_grad]
    derivatives = iter(
        torch.autograd.grad(
            [result for result, _ in ends],
            sources,
            [gradient for _, gradient in ends],
            allow_unused=True,
            materialize_grads=True,
        )
    )
    of_streams = tuple(next(derivatives) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in leaves)
    gradients = dict(zip(parameters, derivatives, strict=True))
    return of_streams, gradients, None if loss is None else loss.detach()


@contextlib.contextmanager
def replayed(generator: Tensor) -> Iterator[None]:
    """Draw the random numbers that follow a state of torch's generator, and restore the present state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator)
        yield


def copies(tensors: Named) -> Named:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def step_length(stages: Stages) -> int:
    """Return T, the number of ticks per step."""
    return 2 * len(stages) + 1


def after_step(history: list[Any], enter: int) -> list[Any]:
    """Return the state of each stage, from a history by ticks, after the step of the micro-batch entering at `enter`.

    At stage j, the engine's step of a micro-batch is the paper's tick j ticks later.
    """
    return [history[min(enter + j + 1, len(history) - 1)][j] for j in range(len(history[0]))]


def entries(rule: MethodRule, stages: int, micro_batches: int) -> list[int]:
    """Return e(m) for micro-batches that follow one another as closely as the method allows."""
    return [m if rule.pipelined else m * (2 * stages - 1) for m in range(micro_batches)]


def simulate(
    stages: Stages,
    rule: MethodRule,
    accumulation: int,
    sgd: Sgd,
    batches: Sequence[tuple[Any, Any]],
    enters: Sequence[int],
    about: Delay | None = None,
    staleness: Sequence[int] | None = None,
) -> ReferenceRun:
    """Evaluate the equations until everything is finished.

    Args:
        stages: The network. Its modules give the weights at tick 0 and are not changed.
        rule: Rule of the method.
        accumulation: Accumulation k.
        sgd: Optimizer of all stages.
        batches: (input, target) of each micro-batch m.
        enters: Tick e(m) at which each micro-batch enters; with `staleness`, the step.
        about: Delay compensation.
        staleness: Staleness of each stage; None for the ticks of the paper.

    Returns:
        All computed values.

    """
    about = about or Delay()
    version = [0] * len(stages)
    forward_version: dict[tuple[int, int], int] = {}  # (m, j)
    used: dict[tuple[int, int, int], Named] = {}  # (m, j, p): the weights of the forward
    drawn: dict[tuple[int, int, int], Tensor] = {}  # (m, j, p): the state of the generator before the forward
    states: list[list[dict[str, Any]]] = [[{} for _ in stage] for stage in stages]
    last = len(stages) - 1
    history = ReferenceRun(
        weights=[[[copies(dict(part.module.named_parameters())) for part in stage] for stage in stages]],
        statistics=[[[copies(dict(part.module.named_buffers())) for part in stage] for stage in stages]],
    )
    at_version = [[of_stage] for of_stage in history.weights[0]]  # [j][version][p]
    upward: dict[tuple[int, int], Value] = {}  # (m, j): x_j
    downward: dict[tuple[int, int], tuple[Value, Value]] = {}  # (m, j): (x~_{j-1}, delta_j)
    velocities: list[list[Named]] = [[{} for _ in stage] for stage in stages]
    corrected: dict[tuple[int, int], list[Named]] = {}  # by (j, m): [p]
    pending: list[list[int]] = [[] for _ in stages]  # micro-batches whose gradients wait for the update
    lateness = [0] * len(stages)  # their delays, summed

    def forward_at(enter: int, j: int) -> int:
        return enter + j if staleness is None else enter * step_length(stages) + j

    def backward_at(enter: int, j: int) -> int:
        if staleness is None:
            return enter + 2 * last - j
        return (enter + staleness[j]) * step_length(stages) + 2 * len(stages) - j

    forwards: dict[tuple[int, int], list[int]] = defaultdict(list)  # by (tick, j): m
    backwards: dict[tuple[int, int], list[int]] = defaultdict(list)
    for m, enter in enumerate(enters):
        for j in range(len(stages)):
            forwards[forward_at(enter, j), j].append(m)
            backwards[backward_at(enter, j), j].append(m)

    for tick in range(backward_at(enters[-1], 0) + 1):
        now = history.weights[tick]
        history.weights.append(list(now))
        history.statistics.append([list(of_stage) for of_stage in history.statistics[tick]])
        for j, stage in enumerate(stages):
            may_be_late = j < last or about.lag > 0
            for m in forwards[tick, j]:
                value = upward[m, j - 1] if j else as_value(batches[m][0])
                due = m // accumulation
                forward_version[m, j] = max(due - about.lag, 0) if about.lag else version[j]
                for p, part in enumerate(stage):
                    history.inputs[m, j, p] = value
                    statistics = copies(history.statistics[tick][j][p])
                    if about.lag:
                        used[m, j, p] = at_version[j][forward_version[m, j]][p]
                    elif j < last and due > version[j]:
                        used[m, j, p] = about.ahead(now[j][p], velocities[j][p], states[j][p], due - version[j])
                    else:
                        used[m, j, p] = now[j][p]
                    drawn[m, j, p] = torch.get_rng_state()
                    with torch.no_grad():
                        value = apply(part, used[m, j, p], statistics, value, batches[m][1])
                    history.statistics[tick + 1][j][p] = statistics
                upward[m, j] = value

            for m in backwards[tick, j]:
                message, delta = downward[m, j + 1] if j < last else (None, None)
                history.gradients[j, m] = [{} for _ in stage]
                corrected[j, m] = [{} for _ in stage]
                delay = version[j] - forward_version[m, j]
                for p, part in reversed(list(enumerate(stage))):
                    current = now[j][p] if rule.stashes or j == last else about.behind(now[j][p], states[j][p], delay)
                    if rule.reconstructs and part.kind == "reversible":
                        with torch.no_grad(), replayed(drawn[m, j, p]):
                            value = invert(part, current, history.statistics[tick][j][p], message)
                    else:
                        value = history.inputs[m, j, p]
                    history.reconstructed[m, j, p] = value
                    theta = used[m, j, p] if rule.stashes else current
                    with replayed(drawn[m, j, p]):
                        delta, gradient, loss = differentiate(
                            part, theta, history.statistics[tick][j][p], value, delta, batches[m][1]
                        )
                    history.gradients[j, m][p] = gradient
                    late = may_be_late and used[m, j, p] is not now[j][p]
                    corrected[j, m][p] = (
                        about.correct(gradient, now[j][p], used[m, j, p], states[j][p]) if late else gradient
                    )
                    if loss is not None:
                        history.losses[m] = loss
                    message = value
                downward[m, j] = message, delta
                pending[j].append(m)
                lateness[j] += delay

            if len(pending[j]) == accumulation:
                after = []
                for p in range(len(stage)):
                    of_parts = [corrected[j, m][p] for m in pending[j]]
                    mean = {name: sum(g[name] for g in of_parts) / accumulation for name in now[j][p]}
                    rule_of_stage = about if may_be_late else Delay()
                    theta, velocities[j][p] = rule_of_stage.update(
                        sgd, tick, now[j][p], mean, velocities[j][p], states[j][p], lateness[j] / accumulation
                    )
                    after.append(theta)
                history.weights[tick + 1][j] = after
                at_version[j].append(after)
                version[j] += 1
                pending[j], lateness[j] = [], 0
    return history
