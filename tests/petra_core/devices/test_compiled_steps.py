"""Test that ticks with compiled operations give the numbers of a plain pipeline, up to rounding."""

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor import config as inductor_config
from torch.torch_version import TorchVersion

from petra_core import Pipeline, methods
from petra_core.devices import compiled_steps
from petra_core.devices.captured import UnrecordableError
from petra_core.devices.compiled_steps import CompiledSteps
from petra_core.devices.operations import OperationLog, branch_functions, key_of
from petra_core.devices.static_buffers import period
from petra_core.methods import Method
from tests import toys
from tests.compare import assert_bitwise_equal
from tests.fake_cuda import RECORDED, SharedMemoryRecorder, made, staggered


def uncompiled(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    return module


def repeat(work: Callable[[], None]) -> Callable[[], None]:
    """Run the work and return it unchanged, in place of a recording."""
    work()
    return work


VECTORS = ((4, 4, 2, 2, 0), (1, 1, 0, 0, 0))


@pytest.mark.parametrize(
    ("stages", "method", "k", "staleness"),
    [
        *((n, methods.PETRA, k, None) for n, k in ((1, 3), (5, 1), (3, 4))),
        *((3, method, 3, None) for method in RECORDED if method is not methods.PETRA),
        *((5, methods.PETRA, 2, vector) for vector in VECTORS),
    ],
    ids=str,
)
def test_compiled_steps_match_plain_pipeline(
    stages: int, method: Method, k: int, staleness: tuple[int, ...] | None
) -> None:
    """Losses, evaluations and weights of compiled steps equal those of a plain pipeline up to rounding.

    All ticks without an update have the same operations: two functions for each stage, and two around them.
    """
    plain, other = pair(method, stages, k, staleness)
    ticks = CompiledSteps(other, repeat, uncompiled)
    data = toys.batches(3 * plain.staleness[0] + 4 * period(k) + 3 * k)
    for number, (x, y) in enumerate(data):
        rate = 2.0 ** -(5 + number % 3)
        plain.set_learning_rate(rate)
        other.set_learning_rate(rate)
        expected, loss = plain.step(x, y), ticks.step(x, y)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
        if number % 7 == 0:
            torch.testing.assert_close(other.evaluate(x), plain.evaluate(x), rtol=1e-9, atol=1e-12)
    assert ticks.recorded
    assert method is not methods.PETRA or staleness or len(ticks._compiled) <= min(k, 3) * stages + 2
    other.drain()
    plain.drain()
    for name, parameter in plain.model.named_parameters():
        torch.testing.assert_close(dict(other.model.named_parameters())[name], parameter, rtol=1e-8, atol=1e-11)


def pair(method: Method, stages: int, k: int, staleness: Sequence[int] | None = None) -> tuple[Pipeline, Pipeline]:
    plain, other = (made(stages, method, k, staleness, inspect=inspect) for inspect in (False, True))
    return staggered(plain), other


def test_repeated_ticks_run_compiled_functions() -> None:
    """Repeated ticks run the compiled functions, so a compiler that drops the updates trains nothing."""

    def without_updates(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        nodes = [node for node in module.graph.nodes if node.target is torch.ops.aten.copy_.default]
        parameters = {tuple(p.shape) for p in other.model.parameters()}
        for node in nodes:
            if node.args[0].op == "placeholder" and tuple(inputs[int(node.args[0].name[6:])].shape) in parameters:
                module.graph.erase_node(node)
        module.recompile()
        return module

    plain, other = pair(methods.PETRA, 3, 1)
    ticks = CompiledSteps(other, repeat, without_updates)
    for x, y in toys.batches(3 * plain.staleness[0] + 4 * period(1)):
        plain.step(x, y)
        ticks.step(x, y)
    ours, theirs = (torch.cat([p.flatten() for p in pipeline.model.parameters()]) for pipeline in (other, plain))
    assert not torch.allclose(ours, theirs)


def test_failed_compilation_falls_back_to_recording() -> None:
    """If compilation fails, steps are recorded uncompiled with bitwise the plain results."""

    def failing(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
        raise RuntimeError("no kernel\nfor this")

    plain, other = pair(methods.PETRA, 3, 2)
    ticks = CompiledSteps(other, SharedMemoryRecorder(), failing)
    for x, y in toys.batches(3 * plain.staleness[0] + 4 * period(2)):
        assert_bitwise_equal(ticks.step(x, y), plain.step(x, y))
    assert ticks.recorded
    assert ticks.uncompiled == "RuntimeError: no kernel"


def test_random_numbers_raise_before_logging() -> None:
    """A logged step does not read the state of generators: its backward pass once drew other masks than its forward."""
    ticks = CompiledSteps(toys.pipeline(toys.network(4, dropout=0.5), methods.PETRA, seed=3), repeat, uncompiled)
    with pytest.raises(UnrecordableError, match=r"stages \[1, 2\] draw random numbers"):  # noqa: PT012  # after some steps
        for x, y in toys.batches(6 * period(1)):
            ticks.step(x, y)
    assert not ticks._calls


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.15",
    reason="PyTorch 2.11 and 2.13 drop writes of compiled functions to float64 scalars on the CPU",
)
@pytest.mark.slow
def test_inductor_matches_plain_pipeline() -> None:
    """Steps that inductor compiled have the losses of a plain pipeline up to rounding."""
    plain, other = pair(methods.PETRA, 3, 1)
    with inductor_config.patch({"cpp.simdlen": 1, "compile_threads": 1}):
        ticks = CompiledSteps(other, repeat, partial(compiled_steps.inductor))
        for x, y in toys.batches(3 * plain.staleness[0] + 3 * period(1)):
            torch.testing.assert_close(ticks.step(x, y), plain.step(x, y), rtol=1e-9, atol=1e-12)
    assert ticks.recorded


def test_branch_reads_outputs_of_other_branches() -> None:
    """A tensor that one branch makes and another reads is an output of the first, which runs before."""
    x, home = torch.randn(3), torch.zeros(3)
    log = OperationLog("one")
    with log:
        doubled = x * 2
        log.branch = "two"
        home.copy_(doubled + 1)
    one, two = branch_functions(log)
    assert (one.branch, two.branch) == ("one", "two")
    assert two.after == {"one"}
    [made] = one.outputs
    assert made is doubled
    x.fill_(5.0)
    doubled.copy_(one.module(*one.inputs)[0])
    two.module(*two.inputs)
    assert torch.equal(home, torch.full((3,), 11.0))


def test_function_key_covers_operations_shapes_and_aliases() -> None:
    """Functions have equal keys only if their operations, constants, shapes and aliases are equal."""

    def function(x: Tensor, y: Tensor, factor: float) -> object:
        log = OperationLog()
        with log:
            x.add_(y, alpha=factor)
        [made] = branch_functions(log)
        return key_of(made)

    a, b = torch.zeros(4), torch.zeros(4)
    both = torch.zeros(8)
    assert function(a, b, 2.0) == function(b, a, 2.0)
    assert function(a, b, 2.0) != function(a, b, 3.0)
    assert function(a, b, 2.0) != function(torch.zeros(5), torch.zeros(5), 2.0)
    assert function(a, b, 2.0) != function(both[:4], both[4:], 2.0), "they share memory"


def test_unlogged_alias_raises() -> None:
    """An alias that was made outside the log raises ValueError."""
    log = OperationLog("one")
    with log:
        made = torch.ones(3) * 2
    alias = made.detach()
    with log:
        alias.add(1)
    with pytest.raises(ValueError, match="reads an alias"):
        branch_functions(log)


def test_fused_sgd_is_decomposed_unless_dampened() -> None:
    """Fused SGD is decomposed into elementary operations, except with dampening."""

    def operations(**settings: float) -> set[str]:
        parameter = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], lr=torch.tensor(0.1), fused=True, **settings)
        parameter.grad = torch.ones(3)
        optimizer.step()
        log = OperationLog()
        with log:
            optimizer.step()
        [function] = branch_functions(log)
        return {str(node.target) for node in function.module.graph.nodes if node.op == "call_function"}

    assert "aten._fused_sgd_.tensor_lr" not in operations(momentum=0.9, nesterov=True)
    assert "aten._fused_sgd_.tensor_lr" not in operations(weight_decay=0.1)
    assert "aten._fused_sgd_.tensor_lr" in operations(momentum=0.9, dampening=0.5)
