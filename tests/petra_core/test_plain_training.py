"""Test that modules with side effects train and evaluate as with plain autograd at zero staleness."""

import contextvars
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from petra_core import BufferedStage, CheckpointError, Clip, HeadStage, Pipeline, ReversibleStage, methods
from petra_core.delay import GapAware
from petra_core.ledger import payload
from petra_core.methods import Method
from petra_core.models import sequential
from petra_core.stages import Stage
from tests.compare import assert_bitwise_equal
from tests.petra_core.test_user_modules import batches, network, sgd
from tests.properties import assert_resumes_bitwise

Wrap = Callable[[nn.Module], nn.Module]
EXACT = [m for m in methods.ALL if not m.double_buffered]  # at zero staleness
RECOMPUTING = [methods.REVERSIBLE_BACKPROPAGATION, methods.DSP, methods.PETRA]


def accumulation(method: Method, k: int = 1) -> int:
    return max(k, 6) if method.double_buffered else k


def pipeline(stages: list[Stage], method: Method, *, k: int = 1) -> Pipeline:
    staleness = (0,) * len(stages) if method.pipelined else None
    return Pipeline(stages, method, optimizer=sgd, accumulation=k, staleness=staleness)


def train(stages: list[Stage], method: Method, *, k: int = 1) -> Pipeline:
    trained = pipeline(stages, method, k=k)
    for x, y in batches(12):
        trained.step(x, y)
    trained.drain()
    return trained


def plain(stages: list[Stage], *, k: int = 1) -> nn.Module:
    model = sequential(stages)
    optimizer = sgd(list(model.parameters()))
    for number, (x, y) in enumerate(batches(12), start=1):
        functional.cross_entropy(model(x), y).backward()
        if number % k == 0:
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad /= k  # not the loss, since hooks see the gradient of a micro-batch
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_close(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-9, atol=1e-9)


class OwnNorm(nn.BatchNorm1d):
    """A BatchNorm that tracks its statistics in another forward, like a synchronised one."""

    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        mean = x.mean(0) if self.training else self.running_mean
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(mean, 0.1)
        return x - mean


class LateBuffer(nn.Module):
    """A running mean whose buffer has no value, or does not exist, before the first forward."""

    def __init__(self, function: nn.Module, *, registered: bool) -> None:
        super().__init__()
        self.function = function
        if registered:
            self.register_buffer("mean", None)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.function(x - self.get_buffer("mean"))  # type: ignore[no-any-return]  # a module
        with torch.no_grad():
            before = self._buffers.get("mean")
            mean = x.mean(0) if before is None else 0.9 * before + 0.1 * x.mean(0)
            if "mean" in self._buffers:
                self._buffers["mean"] = mean
            else:
                self.register_buffer("mean", mean)
        return self.function(x - x.mean(0))  # type: ignore[no-any-return]  # a module


@pytest.mark.parametrize("method", RECOMPUTING, ids=str)
@pytest.mark.parametrize(
    "wrap",
    [
        lambda function: nn.Sequential(function, OwnNorm(4, affine=False)),
        functools.partial(LateBuffer, registered=True),
        functools.partial(LateBuffer, registered=False),
    ],
    ids=["norm with another forward", "buffer without a value", "buffer registered later"],
)
def test_statistics_are_tracked_once_per_micro_batch(method: Method, wrap: Wrap) -> None:
    """A second evaluation changes no running statistics, in whatever module and at whatever time the buffer appears."""
    x, _ = batches(1)[0]
    expected = plain(network(wrap)).eval()
    torch.testing.assert_close(train(network(wrap), method).evaluate(x), expected(x), rtol=1e-9, atol=1e-9)


class Float32Island(nn.Module):
    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function, self.inner = function, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            inner = self.inner(x.float())
        return self.function(inner)  # type: ignore[no-any-return]  # a module


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, methods.DSP, methods.PETRA], ids=str)
def test_backward_and_update_run_outside_the_callers_autocast(method: Method) -> None:
    """The caller's autocast gives the bits of the setting, also if a module computes in float32."""
    weights = []
    for inside in (False, True):
        stages = [stage.float() for stage in network(Float32Island)]
        staleness = (0,) * 4 if method.pipelined else None
        setting = None if inside else torch.bfloat16
        trained = Pipeline(stages, method, optimizer=sgd, staleness=staleness, autocast=setting)
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            for x, y in batches(12):
                trained.step(x.float(), y)
        weights.append(trained.model.state_dict())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


@pytest.mark.parametrize("method", EXACT, ids=str)
def test_gradient_that_a_hook_keeps_is_not_written(method: Method) -> None:
    """The engine does not accumulate into a tensor that a parameter's hook returns or keeps."""

    def hooked() -> tuple[list[Stage], Tensor]:
        stages, constant = network(), torch.full((4, 4), 0.01, dtype=torch.float64)
        weight = stages[1].get_parameter("residual.0.weight")
        weight.register_hook(lambda _: constant)
        return stages, constant

    stages, constant = hooked()
    trained = train(stages, method, k=3)
    assert constant.unique().tolist() == [0.01]
    assert_close(trained.model, plain(hooked()[0], k=3))


@pytest.mark.parametrize("method", EXACT, ids=str)
def test_backward_hooks_of_the_first_stage_are_called(method: Method) -> None:
    """Autograd calls a full backward hook only with a gradient of the input, so the engine asks for it."""
    calls: list[int] = []
    stages = network()
    stages[0].function.register_full_backward_hook(lambda *_: calls.append(1))
    train(stages, method)
    assert len(calls) == 12


class FoldedWeight(nn.Module):
    """A module that keeps a folded weight in evaluation mode, and forgets it in `train`."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(4, 4)
        self.folded: Tensor | None = None

    def train(self, mode: bool = True) -> "FoldedWeight":
        self.folded = None if mode else self.folded
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        weight = torch.tanh(self.linear.weight)
        if not self.training:
            self.folded = weight.detach() if self.folded is None else self.folded
            weight = self.folded
        return self.function(functional.linear(x, weight, self.linear.bias))  # type: ignore[no-any-return]  # a module


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, methods.PETRA], ids=str)
def test_evaluate_calls_overridden_train(method: Method) -> None:
    """An evaluation between steps forgets nothing and keeps nothing that `train` would change."""
    x, _ = batches(1)[0]
    trained = pipeline(network(FoldedWeight), method)
    trained.evaluate(x)
    for inputs, target in batches(12):
        trained.step(inputs, target)
    output = trained.evaluate(x)
    assert all(module.training for module in trained.model.modules())
    torch.testing.assert_close(output, trained.model.train().eval()(x), rtol=0, atol=0)


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


def test_resume_does_not_migrate_states_of_the_present_version() -> None:
    """A loaded state has the versions of the modules, as a state dict of torch has."""
    first, second = train(network(Versioned), methods.PETRA), pipeline(network(Versioned), methods.PETRA)
    second.load_state_dict(first.state_dict())
    assert_close(first.model, second.model)


class Scaled(nn.Module):
    """A module that reads an attribute of its parameter."""

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.ones(4))
        self.weight.scale = 2.0  # type: ignore[attr-defined]  # set by the user

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight * getattr(self.weight, "scale", 1.0))  # type: ignore[no-any-return]  # a module


@pytest.mark.parametrize("method", EXACT, ids=str)
def test_substitute_weights_have_the_attributes_of_parameters(method: Method) -> None:
    """Stashed weights have the attributes that the user has set on parameters."""
    assert_close(train(network(Scaled), method).model, plain(network(Scaled)))


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
        for x, y in batches(4):
            trained.step(x, y)
        weights.append(head.state_dict())
    torch.testing.assert_close(weights[0], weights[1], rtol=0, atol=0)


def test_targets_may_change_the_order_of_their_keys() -> None:
    """A staggered pipeline passes each entry of a target under its key, whatever the order of the keys."""

    def loss(output: Tensor, target: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(output, target["a"]) + 0.1 * functional.cross_entropy(output, target["b"])

    models = []
    for alternate in (False, True):
        stages = network()
        stages[-1] = HeadStage(stages[-1].function, loss)
        trained = Pipeline(stages, methods.PETRA, optimizer=sgd)
        trained.stagger()
        for number, (x, y) in enumerate(batches(24)):
            trained.step(x, {"b": 1 - y, "a": y} if alternate and number % 2 else {"a": y, "b": 1 - y})
        trained.drain()
        models.append(trained.model)
    assert_close(*models)


SCALE = contextvars.ContextVar("SCALE", default=1.0)


class Contextual(nn.Module):
    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) * SCALE.get()  # type: ignore[no-any-return]  # a module


def test_pareprop_sees_context_variables_of_the_caller() -> None:
    """The second thread of PaReprop has the context of the caller."""
    models = []
    for method in (methods.PAREPROP, methods.REVERSIBLE_BACKPROPAGATION):
        trained = pipeline(network(Contextual), method)
        for number, (x, y) in enumerate(batches(12)):
            context = contextvars.copy_context()
            context.run(SCALE.set, 2.0 if number >= 6 else 1.0)
            context.run(trained.step, x, y)
        models.append(trained.model)
    assert_close(*models)


class SharedMask(nn.Module):
    """A constant that all blocks share, made from the first input."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.make = make
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.mask = self.make(x) if self.mask is None else self.mask
        return x * self.mask


@pytest.mark.parametrize("method", [methods.BACKPROPAGATION, methods.PETRA], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: torch.full((4,), 0.5).to(x),
        lambda x: torch.full((4,), 0.5).type_as(x),
        lambda x: x.new_full((4,), 0.5),
        lambda x: torch.ones_like(x) * 0.5,
    ],
    ids=["to", "type_as", "new_full", "ones_like"],
)
def test_constant_with_the_dtype_of_an_input_is_accepted(method: Method, make: Callable[[Tensor], Tensor]) -> None:
    """An operation that reads only dtype and shape of an input does not make a tensor of the block."""
    mask = SharedMask(make)
    train(network(lambda function: nn.Sequential(mask, function)), method)


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:FutureWarning")  # users have such modules
def test_traced_module_trains_with_petra() -> None:
    """Modules of torch.jit train with the methods that the error of the others recommends."""
    example = torch.randn(5, 4, dtype=torch.float64)
    traced = network(lambda function: torch.jit.trace(function.double(), example))  # type: ignore[no-any-return, no-untyped-call]  # torch gives it no types
    expected = list(plain(network()).state_dict().values())
    torch.testing.assert_close(list(train(traced, methods.PETRA).model.state_dict().values()), expected)


def test_frozen_mask_may_be_infinite() -> None:
    """A frozen parameter with infinite values does not make the state impossible to save."""

    class Masked(nn.Module):
        def __init__(self, function: nn.Module) -> None:
            super().__init__()
            self.function = function
            self.mask = nn.Parameter(torch.tensor([0.0, 0.0, 0.0, -torch.inf]), requires_grad=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.function(torch.softmax(x + self.mask, 1))  # type: ignore[no-any-return]  # a module

    assert train(network(Masked), methods.PETRA).state_dict()["micro_batches"] == 12


def write_in_place(parameter: nn.Parameter) -> None:
    parameter.mul_(0.9)


def write_to_data(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data * 0.9


def train_with_writes(method: Method, write: Callable[[nn.Parameter], None]) -> Pipeline:
    trained = Pipeline(network(), method, optimizer=sgd, accumulation=accumulation(method))
    for x, y in batches(12):
        trained.step(x, y)
        with torch.no_grad():
            write(next(trained.stages[1].parameters()))
    return trained


@pytest.mark.parametrize("write", [write_in_place, write_to_data])
@pytest.mark.parametrize("method", [methods.PETRA, methods.DSP])
def test_current_weights_may_be_written_between_steps(method: Method, write: Callable[[nn.Parameter], None]) -> None:
    """A method without stashed weights trains on with the weights that it finds, as after an update."""
    assert train_with_writes(method, write).micro_batches == 12


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

    one = Pipeline(network(), method, optimizer=hooked, accumulation=accumulation(method))
    clamping = functools.partial(Clamping, lr=0.1, momentum=0.9)
    other = Pipeline(network(), method, optimizer=clamping, accumulation=accumulation(method))
    for x, y in batches(12):
        one.step(x, y)
        other.step(x, y)
    one.drain()
    other.drain()
    assert_close(one.model, other.model)
    with torch.no_grad():
        next(one.stages[1].parameters()).mul_(0.9)
    one.step(*batches(1)[0])


def test_backward_with_written_weights_is_not_compared_with_its_forward() -> None:
    """A user may write weights between two steps. The outputs of the function then differ for this reason."""
    trained = Pipeline(network(), methods.PETRA, optimizer=sgd, accumulation=8)
    trained.step(*batches(1)[0])
    with torch.no_grad():
        next(trained.stages[1].parameters()).mul_(0.9)
    for x, y in batches(6):
        trained.step(x, y)


class Workspace(torch.autograd.Function):
    """Multiplication by a weight, with gradients in memory that every backward uses again."""

    spaces: tuple[Tensor, Tensor]

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, spaces: tuple[Tensor, Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.spaces = spaces
        return x * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        of_input, of_weight = ctx.spaces
        torch.mul(gradients[0], weight, out=of_input)
        torch.sum(gradients[0] * x, 0, out=of_weight)
        return of_input, of_weight, None


class Reusing(nn.Module):
    """A function behind a scale whose gradients are in a workspace, or in new memory."""

    def __init__(self, function: nn.Module, *, shared: bool) -> None:
        super().__init__()
        self.function, self.shared = function, shared
        self.weight = nn.Parameter(torch.ones(4))
        self.spaces: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.spaces is None or not self.shared:
            self.spaces = (torch.empty_like(x), torch.empty_like(self.weight))
        return self.function(Workspace.apply(x, self.weight, self.spaces))  # type: ignore[no-any-return]  # a module


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("method", methods.ALL)
def test_gradients_in_a_workspace_are_copied(method: Method, k: int) -> None:
    """A Function that returns the same memory in every backward trains as one that returns new memory."""
    models = []
    for shared in (True, False):
        torch.manual_seed(0)
        functions = [Reusing(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), shared=shared) for _ in range(2)]
        stages: list[Stage] = [
            BufferedStage(nn.Linear(3, 4)),
            *map(BufferedStage, functions),
            HeadStage(nn.Linear(4, 2)),
        ]
        stages = [stage.double() for stage in stages]
        trained = Pipeline(stages, method, optimizer=sgd, accumulation=accumulation(method, k))
        for x, y in batches(24):
            trained.step(x, y)
        trained.drain()
        models.append(trained.model)
    assert_close(*models)


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
        for x, y in batches(24):
            trained.step(x, y)
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
    for x, y in batches(3):
        source.step(x, y)
    source.drain()
    state = source.state_dict()
    used, new = (Pipeline(network(), methods.PETRA, optimizer=sgd, delay=[GapAware()]) for _ in range(2))
    for x, y in batches(12):
        used.step(x, y)
    models = []
    for trained in (used, new):
        trained.load_state_dict(state, other_method=True)
        for x, y in batches(12):
            trained.step(x, y)
        trained.drain()
        models.append(trained.model)
    assert_close(*models)


@pytest.mark.parametrize("method", [methods.PETRA, methods.DELAYED_GRADIENTS, methods.BACKPROPAGATION])
@pytest.mark.parametrize("place", ["before_update", "step"])
def test_noise_in_updates_belongs_to_the_stream_of_the_stage(method: Method, place: str, tmp_path: Path) -> None:
    """Noise that a hook or an optimizer adds is the same after a resume, as dropout is."""

    class Langevin(torch.optim.SGD):
        def step(self, closure: None = None) -> None:  # type: ignore[override]  # without closures
            super().step()
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter.add_(torch.randn_like(parameter), alpha=0.01)

    def add_noise(index: int, version: int, stage: Stage) -> None:
        for parameter in stage.parameters():
            assert parameter.grad is not None
            parameter.grad.add_(torch.randn_like(parameter), alpha=0.1)

    def make() -> Pipeline:
        if place == "step":
            return Pipeline(network(), method, optimizer=functools.partial(Langevin, lr=0.1), seed=0)
        return Pipeline(network(), method, optimizer=sgd, seed=0, before_update=add_noise)

    assert_resumes_bitwise(make, batches(20), 7, tmp_path)


class Scheduled(nn.Module):
    """A head with a factor that is not a part of the module's state."""

    factor: Tensor

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("factor", torch.ones(()), persistent=False)

    def forward(self, value: Any) -> Tensor:
        return self.function(value) * self.factor  # type: ignore[no-any-return]  # a module


@pytest.mark.parametrize("method", [methods.PETRA, methods.BACKPROPAGATION])
def test_written_buffers_outside_the_state_are_resumed(method: Method, tmp_path: Path) -> None:
    """A buffer with persistent=False that training writes is saved with the pipeline."""

    def anneal(index: int, version: int, stage: Stage) -> None:
        if isinstance(stage, HeadStage):
            stage.function.factor.mul_(0.9)

    def make() -> Pipeline:
        stages = network()
        stages[-1] = HeadStage(Scheduled(stages[-1].function)).double()
        return Pipeline(stages, method, optimizer=sgd, before_update=anneal)

    assert_resumes_bitwise(make, batches(20), 7, tmp_path)


def normalize_spectrum(function: nn.Module) -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), function)


@pytest.mark.parametrize("method", [methods.DELAYED_GRADIENTS, methods.PIPEDREAM_2BW])
def test_kept_graphs_are_recorded_again_with_the_buffers_of_their_forwards(method: Method, tmp_path: Path) -> None:
    """Spectral normalisation, which writes the buffer that it reads, resumes with the same bits."""

    def make() -> Pipeline:
        return Pipeline(network(normalize_spectrum), method, optimizer=sgd, accumulation=accumulation(method))

    assert_resumes_bitwise(make, batches(20), 7, tmp_path)
    stopped = make()
    for x, y in batches(5):
        stopped.step(x, y)
    for stage, state in zip(stopped.memory().stages, stopped.state_dict()["workers"], strict=True):
        entries = [entry for part in state["parts"] for entry in part["memory"]]
        held = [tensor for entry in entries for tensor in (*entry["kept"], *entry.get("buffers", ()))]
        assert stage.now["inputs"] == payload(held)


def test_constant_buffers_are_not_kept_for_kept_graphs() -> None:
    """A buffer that no forward writes, such as a mask, is the same when a graph is recorded again."""
    stages = network()
    stages[1].function.register_buffer("mask", torch.ones(4))
    trained = Pipeline(stages, methods.DELAYED_GRADIENTS, optimizer=sgd)
    for x, y in batches(5):
        trained.step(x, y)
    parts = [part for worker in trained.state_dict()["workers"] for part in worker["parts"]]
    entries = [entry for part in parts for entry in part["memory"]]
    assert entries
    assert not any("buffers" in entry for entry in entries)


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


def test_statistics_of_one_norm_may_not_belong_to_two_stages() -> None:
    """Two stages in two processes would have two copies of the statistics."""
    stages, norm = network(), nn.BatchNorm1d(4, affine=False).double()
    for number in (1, 2):
        stages[number] = ReversibleStage(nn.Sequential(norm, stages[number].function))
    with pytest.raises(ValueError, match=r"BatchNorm1d of stage 2 tracks statistics in stage 1 too"):
        Pipeline(stages, methods.PETRA, optimizer=sgd)


def test_memory_counts_states_that_the_optimizer_makes_later() -> None:
    """The ledger follows an optimizer that gets the first gradient of a parameter after the first update."""

    class Late(nn.Module):
        def __init__(self, function: nn.Module) -> None:
            super().__init__()
            self.function, self.late, self.calls = function, nn.Linear(4, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += self.training
            return self.function(x) + (self.late(x) if self.calls > 3 else 0)  # type: ignore[no-any-return]  # a module

    stages = network(Late)
    stages[-1].function[-1].bias = None  # a stage with a single parameter
    trained = Pipeline(stages, methods.BACKPROPAGATION, optimizer=functools.partial(torch.optim.AdamW, lr=0.1))
    for x, y in batches(8):
        trained.step(x, y)
    for stage, optimizer in zip(trained.memory().stages, trained.optimizers, strict=True):
        held = sum(t.nbytes for state in optimizer.state.values() for t in state.values())
        assert stage.now["optimizer"] == held


def test_rates_without_a_ratio_are_refused() -> None:
    """A first group with a rate of 0 gives no ratio for the other groups."""

    def grouped(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.0}, {"params": others, "lr": 1e-3}])

    trained = Pipeline(network(), methods.PETRA, optimizer=grouped)
    with pytest.raises(ValueError, match="a learning rate of 0 for its first parameter group"):
        trained.set_learning_rate(0.1)


def test_state_of_another_optimizer_is_refused() -> None:
    """RAdam and AdamW have states of the same form, but other updates."""
    one = Pipeline(network(), methods.PETRA, optimizer=functools.partial(torch.optim.RAdam, lr=0.1))
    other = Pipeline(network(), methods.PETRA, optimizer=functools.partial(torch.optim.AdamW, lr=0.1))
    with pytest.raises(CheckpointError, match="its optimizer is RAdam, this one is AdamW"):
        other.load_state_dict(one.state_dict())
