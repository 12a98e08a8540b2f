"""Test that modules with side effects train and evaluate as with plain autograd at zero staleness."""

import contextvars
import copy
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from petra_core import BufferedStage, Clip, HeadStage, Pipeline, methods
from petra_core.delay import GapAware
from petra_core.ledger import payload
from petra_core.methods import Method
from petra_core.stages import Stage
from tests.compare import assert_bitwise_equal
from tests.constructs import aliased, checkpointed, narrow, narrow_batch, normed, sharing_frozen, spectral
from tests.petra_core import errors
from tests.properties import assert_bytes_are_as_predicted, assert_resumes_bitwise
from tests.toys import computing
from tests.user_networks import batches, made, network, sgd, step


def assert_close(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-9, atol=1e-9)


def in_float32(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        inner = m.inner(x.float())
    return m.f(inner)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_autocast_of_the_caller_equals_the_setting(method: Method) -> None:
    """Backwards and updates run outside the caller's autocast, also if a module computes in float32."""
    weights = []
    for inside in (False, True):
        setting = None if inside else torch.bfloat16
        trained = made(
            [stage.float() for stage in network(computing(in_float32, inner=lambda: nn.Linear(4, 4)))],
            method,
            autocast=setting,
            inspect=inside,
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            for x, y in batches(14):
                trained.step(x.float(), y)
            trained.drain()
        weights.append(dict(trained.model.state_dict()))
    assert_bitwise_equal(*weights)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_reversible_first_stage_widens_its_streams(method: Method) -> None:
    """Streams once stayed in bf16. They now train as in float32, and memory is as predicted."""
    (x, other), y = narrow_batch()
    outcomes = []
    for streams in ((x, other), (x.float(), other.float())):
        k = 6 if method.double_buffered else 2
        p, _ = assert_bytes_are_as_predicted(narrow(), method, (streams, y), k, sgd, autocast=torch.bfloat16)
        outcomes.append((p.evaluate(streams), p.gather()))
    assert_bitwise_equal(*outcomes)


@pytest.mark.parametrize("method", methods.ALL, ids=str)
def test_backward_hooks_of_the_first_stage_are_called(method: Method) -> None:
    """Autograd calls a full backward hook only with a gradient of the input, so the engine asks for it."""
    calls: list[int] = []
    stages = network()
    stages[0].function.register_full_backward_hook(lambda *_: calls.append(1))
    step(made(stages, method, staleness=(0,) * 4 if method.pipelined else None), 12)
    assert len(calls) == 12


class Versioned(nn.Module):
    """A module whose state of version 1 contained the transposed weight."""

    _version = 2

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(4, 4))

    def _load_from_state_dict(
        self, state: dict[str, Tensor], prefix: str, metadata: dict[str, int], *rest: object
    ) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"].t()
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[arg-type]  # passed on

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x @ self.weight)  # type: ignore[no-any-return]  # a module


def test_clip_ignores_old_gradients_of_frozen_parameters() -> None:
    """A gradient that a parameter had before it was frozen does not count in the norm."""
    weights = []
    for old in (False, True):
        torch.manual_seed(0)
        head = HeadStage(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))).double()
        frozen = head.get_parameter("module.0.weight")
        frozen.requires_grad_(False)
        frozen.grad = torch.full_like(frozen, 100.0) if old else None
        trained = Pipeline([head], methods.BACKPROPAGATION, optimizer=sgd, clip=Clip(0.1, per_stage=True))
        step(trained, 4)
        weights.append(head.state_dict())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


SCALE = contextvars.ContextVar("SCALE", default=1.0)


def test_pareprop_sees_context_variables_of_the_caller() -> None:
    """The second thread of PaReprop has the context of the caller."""
    models = []
    for method in (methods.PAREPROP, methods.REVERSIBLE_BACKPROPAGATION):
        trained = made(network(computing(lambda m, x: m.f(x) * SCALE.get())), method)
        for number, (x, y) in enumerate(batches(12)):
            context = contextvars.copy_context()
            context.run(SCALE.set, 2.0 if number >= 6 else 1.0)
            context.run(trained.step, x, y)
        models.append(trained.model)
    assert_close(*models)


@pytest.mark.parametrize("write", [lambda parameter: parameter.mul_(0.9), errors.double])
@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP], ids=str)
def test_current_weights_may_be_written_between_steps(method: Method, write: Callable[[Tensor], object]) -> None:
    """A method without stashed weights trains on with the weights that it finds, as after an update."""
    errors.written(method, write)


def test_weights_that_no_version_shares_keep_their_storage() -> None:
    """A write after `drain()` copied the weights of a stage although nothing else used their storage."""
    p = made(network(), methods.DELAYED_GRADIENTS, accumulation=3)
    step(p, 4)
    p.drain()
    weight = next(p.stages[1].parameters())
    with torch.no_grad():
        weight.mul_(0.9)
    storage = weight.data_ptr()
    step(p, 1)
    assert weight.data_ptr() == storage


@pytest.mark.parametrize("method", [methods.DELAYED_GRADIENTS, methods.PIPEDREAM_2BW])
def test_weights_may_be_written_in_optimizer_hooks_and_after_drain(method: Method) -> None:
    """The two places that the error names are safe: weights clamped there are those of a clamping optimizer."""

    class Clamping(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]  # without closures
            super().step()
            clamp(self)

    def clamp(optimizer: torch.optim.Optimizer, *_: object) -> None:
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.clamp_(-0.3, 0.3)

    def hooked(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = sgd(parameters)
        optimizer.register_step_post_hook(clamp)
        return optimizer

    one = made(network(), method, optimizer=hooked)
    other = made(network(), method, optimizer=functools.partial(Clamping, lr=0.1, momentum=0.9))
    for p in (one, other):
        step(p, 12)
        p.drain()
    assert_close(one.model, other.model)
    with torch.no_grad():
        next(one.stages[1].parameters()).mul_(0.9)
    one.step(*batches(1)[0])


@pytest.mark.parametrize("count", [9, 12])
@pytest.mark.parametrize("method", [methods.DELAYED_GRADIENTS, methods.APPROXIMATE_INPUTS, methods.PIPEDREAM_2BW])
def test_weights_written_after_drain_are_used_by_the_next_forward(method: Method, count: int) -> None:
    """Neither the version before the last update nor a reference to the storage of the weights outlives the write."""
    p = made(network(), method, accumulation=6)
    step(p, count)
    p.drain()
    for parameter in p.model.parameters():
        parameter.data = 2 * parameter.detach()
    expected = copy.deepcopy(p.model)
    for x, y in batches(6 - count % 6):
        loss = p.step(x, y)
        assert loss is not None
        torch.testing.assert_close(loss, nn.functional.cross_entropy(expected(x), y).detach())


class Shifted(nn.Module):
    """A function whose input and shifts have gradients in the same memory, or in separate memory.

    The gradient of the first shift is that of the output. The other two have the same gradient in later calls.
    """

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.shifts = nn.ParameterList(torch.zeros(5, 4) for _ in range(3))
        self.shared, self.calls = shared, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        a, b, c = self.shifts if self.shared else (1.0 * shift for shift in self.shifts)
        return x + a + (torch.tanh(b + c) if self.calls > 12 else torch.tanh(b) + torch.tanh(c))


@pytest.mark.parametrize("method", [methods.PETRA, methods.DELAYED_GRADIENTS])
def test_gradients_that_share_memory_are_accumulated_separately(method: Method) -> None:
    """A sum of gradients changes neither a message nor another sum."""
    models = []
    for shared in (True, False):
        torch.manual_seed(0)
        functions = [nn.Linear(3, 4), Shifted(shared=shared)]
        stages: list[Stage] = [*map(BufferedStage, functions), HeadStage(nn.Linear(4, 2))]
        trained = Pipeline([stage.double() for stage in stages], method, optimizer=sgd, accumulation=3)
        step(trained, 24)
        trained.drain()
        models.append(trained.model)
    assert_close(*models)


class _InputAsGradient(torch.autograd.Function):
    """Multiplication by a weight, to which it gives the input or a copy of it as the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, copied: bool) -> Tensor:
        ctx.copied = copied
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return gradients[0] * weight, x.clone() if ctx.copied else x, None


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, methods.REVERSIBLE_BACKPROPAGATION, methods.PETRA])
@pytest.mark.parametrize("k", [1, 3])
def test_gradient_may_be_the_input(method: Method, k: int) -> None:
    """Neither the sum nor the clipping of such gradients changes the input, which the stage below inverts."""
    models = []
    for copied in (False, True):
        scaled = computing(
            lambda m, x, copied=copied: m.f(_InputAsGradient.apply(x, m.weight, copied)),
            weight=lambda: nn.Parameter(torch.ones(5, 4)),
        )
        stages = [*network(scaled)[:2], *network(scaled)[1:]]  # the lowest of three inverts what the highest has sent
        trained = Pipeline(stages, method, optimizer=sgd, accumulation=k, clip=Clip(0.1, per_stage=True))
        step(trained, 14)
        trained.drain()
        models.append(trained.model)
    assert_close(*models)


def test_optimizer_may_name_its_instance_as_it_likes() -> None:
    """The first argument of `step` is the optimizer, whatever its name is."""

    class Other(torch.optim.SGD):
        def step(this, closure: None = None) -> None:  # type: ignore[override]  # noqa: N805  # the point of the test
            super().step()

    trained = Pipeline(network(), methods.PETRA, optimizer=functools.partial(Other, lr=0.1))
    trained.step(*batches(1)[0])


def test_rules_start_again_with_the_state_of_another_method() -> None:
    """A pipeline that loads a state without its rules continues as a new pipeline does that loads it."""
    source = Pipeline(network(), methods.BACKPROPAGATION, optimizer=sgd)
    step(source, 3)
    source.drain()
    state = source.state_dict()
    used, new = (Pipeline(network(), methods.PETRA, optimizer=sgd, delay=[GapAware()]) for _ in range(2))
    step(used, 12)
    models = []
    for trained in (used, new):
        trained.load_state_dict(state, other_method=True)
        step(trained, 12)
        trained.drain()
        models.append(trained.model)
    assert_close(*models)


@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS])
@pytest.mark.parametrize("resumed", [False, True])
def test_micro_batches_keep_the_autocast_of_their_forward(method: Method, *, resumed: bool) -> None:
    """The caller may leave its autocast context before the last backwards, or before it loads a state."""
    weights = []
    for outside in (False, True):
        stages = [stage.float() for stage in network()]
        trained = Pipeline(stages, method, optimizer=sgd)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for x, y in batches(8):
                trained.step(x.float(), y)
            state = trained.state_dict()
            if not outside:
                trained.load_state_dict(state) if resumed else None
                trained.drain()
        if outside:
            trained.load_state_dict(state) if resumed else None
            trained.drain()
        weights.append(trained.model.state_dict())
    assert_bitwise_equal(*weights)


def test_memory_counts_states_that_the_optimizer_makes_later() -> None:
    """The ledger follows an optimizer that gets the first gradient of a parameter after the first update."""

    def late(m: Any, x: Tensor) -> Tensor:
        m.calls += m.training
        return m.f(x) + (m.late(x) if m.calls > 3 else 0)

    net = network(computing(late, late=lambda: nn.Linear(4, 4), calls=lambda: 0))
    net[-1].function[-1].bias = None  # a stage with a single parameter
    trained = Pipeline(net, methods.BACKPROPAGATION, optimizer=functools.partial(torch.optim.AdamW, lr=0.1))
    step(trained, 8)
    for stage, optimizer in zip(trained.memory().stages, trained.optimizers, strict=True):
        held = sum(t.nbytes for state in optimizer.state.values() for t in state.values())
        assert stage.now["optimizer"] == held


def entries_in_flight(trained: Pipeline) -> list[list[dict[str, Any]]]:
    """Return what the state of the pipeline holds of the micro-batches in flight, by stage."""
    workers = trained.state_dict()["workers"]
    return [[entry for part in worker["parts"] for entry in part["memory"]] for worker in workers]


def test_memory_counts_buffers_that_are_kept_for_kept_graphs() -> None:
    trained = made(network(spectral), methods.DELAYED_GRADIENTS)
    step(trained, 5)
    for stage, entries in zip(trained.memory().stages, entries_in_flight(trained), strict=True):
        held = [tensor for entry in entries for tensor in (*entry["kept"], *entry.get("buffers", ()))]
        assert stage.now["inputs"] == payload(held)


class Langevin(torch.optim.SGD):
    """An optimizer that adds noise."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without closures
        super().step()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=0.01)


class Unusual(torch.optim.Optimizer):
    """An optimizer without a learning rate, whose state has other dtypes and shapes than the parameters."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": None})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # without closures
        self.state["updates"] = self.state.get("updates", 0) + 1  # type: ignore[index, call-overload]  # not of a tensor
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            phase = state.setdefault("phase", torch.zeros((), dtype=torch.uint8)).add_(100)  # modulo 256
            size = state.setdefault("exp_avg_sq", torch.zeros(())).add_(parameter.grad.norm())
            parameter.sub_(parameter.grad / (1 + size + phase))


class Wrapping(torch.optim.SGD):
    """An optimizer whose state has another form, like those of wrappers."""

    def state_dict(self) -> dict[str, Any]:
        return {"inner": super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["inner"])


def add_noise(index: int, version: int, stage: Stage) -> None:
    for parameter in stage.parameters():
        assert parameter.grad is not None
        parameter.grad.add_(torch.randn_like(parameter), alpha=0.1)


def scheduled() -> list[Stage]:
    """Return a network whose head has a factor that is not a part of the module's state."""
    stages = network()
    head = computing(lambda m, value: m.f(value) * m.factor, factor=lambda: nn.Buffer(torch.ones(()), persistent=False))
    return [*stages[:-1], HeadStage(head(stages[-1].function)).double()]


def anneal(index: int, version: int, stage: Stage) -> None:
    if isinstance(stage, HeadStage):
        stage.function.factor.mul_(0.9)


PIPELINED = [method for method in methods.ALL if method.pipelined]
KEEPING = [methods.DELAYED_GRADIENTS, methods.PIPEDREAM_2BW]
ALIASING = [methods.PETRA, methods.DSP, methods.DELAYED_GRADIENTS]
#: Networks and settings whose states are easily lost, with the methods under which they are tried.
RESUMED: dict[str, tuple[Sequence[Method], Callable[[], list[Stage]], dict[str, Any]]] = {
    "noise of a hook and an optimizer": (
        methods.ALL,
        network,
        {"before_update": add_noise, "optimizer": functools.partial(Langevin, lr=0.1)},
    ),
    "state of an unusual optimizer": (ALIASING, network, {"optimizer": Unusual}),
    "state of a wrapper": (ALIASING, network, {"optimizer": functools.partial(Wrapping, lr=0.1, momentum=0.9)}),
    "written buffer outside the state": (
        (methods.PETRA, methods.BACKPROPAGATION),
        scheduled,
        {"before_update": anneal},
    ),
    "state with a version": (PIPELINED, lambda: network(Versioned), {}),
    "frozen module of two stages": (KEEPING, sharing_frozen, {}),
    "buffer that is read and written": (KEEPING, lambda: network(spectral), {}),
    "checkpoint of BatchNorm and dropout": (PIPELINED, lambda: network(normed(checkpointed, nn.Dropout(0.2))), {}),
    **{
        f"aliased outputs: {kind}": (ALIASING, functools.partial(aliased, kind, copied=False), {})
        for kind in ("parameter", "memory of an attribute", "halves")
    },
}


@pytest.mark.parametrize(
    ("name", "method"), [(name, method) for name, (which, _, _) in RESUMED.items() for method in which], ids=str
)
def test_resume_is_bitwise(name: str, method: Method, tmp_path: Path) -> None:
    """A resumed pipeline draws the same noise, and has the buffers and the graphs of micro-batches in flight."""
    _, stages, settings = RESUMED[name]
    settings = {"inspect": method is methods.PETRA, **settings}
    assert_resumes_bitwise(lambda: made(stages(), method, **settings), batches(12), 7, tmp_path)


def test_resume_has_buffers_that_forwards_write_only_after_a_drain(tmp_path: Path) -> None:
    """The first forward decided whether later ones write buffers, also if it ran in evaluation mode."""

    def make() -> Pipeline:
        p = made(network(spectral), methods.DELAYED_GRADIENTS)
        for training in (False, True):
            p.drain()
            for stage in p.stages:
                stage.train(training)
            step(p, 1)
        return p

    assert_resumes_bitwise(make, batches(12), 7, tmp_path)


def test_early_state_restores_buffers_outside_the_state_of_a_module() -> None:
    """A state from before the first write of such a buffer left it as later micro-batches had written it."""
    p = made(scheduled(), methods.PETRA, before_update=anneal)
    state = p.state_dict()
    step(p, 12)
    p.load_state_dict(state)
    assert p.stages[-1].function.factor == 1


@pytest.mark.parametrize("method", PIPELINED, ids=str)
def test_only_kept_graphs_save_buffers_of_their_forwards(method: Method) -> None:
    """Loading a state records kept graphs again, with the buffers that forwards write. Others are the same then."""
    counting = computing(lambda m, x: m.f(x) + 0 * m.count.add_(1), count=lambda: nn.Buffer(torch.zeros(())))
    stages = [*network(counting)[:2], *network()[2:]]
    stages[2].function.register_buffer("mask", torch.ones(4))
    p = made(stages, method, accumulation=8 if method.double_buffered else 1)
    step(p, 7)
    writing, constant = entries_in_flight(p)[1:3]
    assert {"buffers" in entry for entry in writing} == {method.keeps_graph}
    assert {"buffers" in entry for entry in constant} == {False}
