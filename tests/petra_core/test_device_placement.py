"""Test steps on a fake GPU: operands are on the same device, and the host never waits for the device."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from petra_core import CheckpointError, Pipeline, Stage, methods, models
from petra_core.devices.captured import CapturedSteps
from petra_core.inspection.values import PendingLosses
from petra_core.methods import Method
from petra_core.randomness import RandomStream
from reproduce.data.beton import RawImages
from reproduce.data.loader import BatchFormat, Evaluation, InMemory, Loader
from reproduce.distributed.replicas import Replicas
from tests import toys

GPU = torch.device("cuda", 0)
STASHING = (methods.DELAYED_GRADIENTS, methods.APPROXIMATE_INPUTS)
INSPECT = False  # fake tensors have no values to compare


class WaitError(AssertionError):
    """An operation for which the host would wait for the device."""


class Watch(TorchDispatchMode):
    """A mode that refuses blocking copies between host and device, and during a capture all such copies."""

    def __init__(self, *, capture: bool = False) -> None:
        super().__init__()
        self._capture = capture

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        if func._schema.name == "aten::_fused_sgd_":  # fake tensors do not support it
            assert {tensor.device for tensor in given} == {GPU}
            return None
        result = func(*args, **(kwargs or {}))
        kinds = {tensor.device.type for tensor in (*given, result) if isinstance(tensor, Tensor)}
        copies = func._schema.name in ("aten::_to_copy", "aten::copy_") and len(kinds) > 1
        if copies and (self._capture or not _non_blocking(func, args, kwargs or {})):
            raise WaitError(f"{func} copies between {kinds}")
        return result


def _non_blocking(func: Any, args: Any, kwargs: Any) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    return bool({**dict(zip(names, args, strict=False)), **kwargs}.get("non_blocking"))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make all new tensors fake and replace the functions that need real values."""
    monkeypatch.setattr("petra_core.inspection.modules.check_residual", lambda residual: None)
    monkeypatch.setattr("petra_core.pipeline.check_weights", lambda micro_batch, workers: None)  # it copies to the CPU
    monkeypatch.setattr(PendingLosses, "add", lambda *given, **how: None)
    monkeypatch.setattr(RandomStream, "__init__", no_generators)
    monkeypatch.setattr(RandomStream, "__enter__", lambda stream: None)
    monkeypatch.setattr(RandomStream, "__exit__", lambda stream, *error: None)
    monkeypatch.setattr("petra_core.block.replay", lambda state, device: contextlib.nullcontext())
    monkeypatch.setattr(torch.autograd, "grad", gradients)
    with FakeTensorMode():
        yield


def no_generators(stream: RandomStream, device: torch.device, seed: int | None, stage: int, replica: int = 0) -> None:
    """Initialize a stream with states that look like those of the generators of host and device."""
    stream.state = None if seed is None else (torch.zeros(16, dtype=torch.uint8), torch.ones(16, dtype=torch.uint8))
    stream._first = stream.state


def gradients(ends: Sequence[Any], wanted: Sequence[Tensor], seeds: Sequence[Tensor], **_: Any) -> tuple[Tensor, ...]:
    """Return zeros in place of autograd's gradients."""
    assert {tensor.device for tensor in (*wanted, *seeds)} == {GPU}
    return tuple(torch.zeros_like(tensor) for tensor in wanted)


def network() -> list[Stage]:
    """Return a buffered stage, two reversible stages and a head."""
    with GPU:
        return models.chain(2, num_classes=10, channels=2, stem_stride=4)


def revnet() -> list[Stage]:
    """Return a network with buffered stages between the reversible ones."""
    with GPU:
        return models.revnet(18, num_classes=10, width=2)


def loader(augment: bool = False) -> Loader:
    return Loader(images(24, augment), 4, seed=0)


def images(number: int, augment: bool = False) -> InMemory:
    form = BatchFormat(num_classes=10, image_size=32, mean=(0.5,) * 3, deviation=(0.2,) * 3, device=GPU)
    raw = RawImages(np.zeros((number, 3, 32, 32), np.uint8), np.zeros(number, np.int64))
    return InMemory(raw, form, augment=augment)


@pytest.mark.parametrize(
    ("method", "network"),
    [
        *((method, network) for method in (methods.BACKPROPAGATION, *STASHING)),
        (methods.PETRA, revnet),  # its buffered stages recompute, as all do under DSP
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_step_stays_on_device_without_sync(gpu: None, method: Method, network: Callable[[], list[Stage]]) -> None:
    """Steps and evaluations compute on the GPU and never make the host wait for it."""
    stages = network()
    vector = range(len(stages))[::-1] if method.pipelined else None
    pipeline = Pipeline(stages, method, accumulation=2, optimizer=toys.sgd, inspect=INSPECT, staleness=vector)
    batches = (batch for epoch in range(9) for batch in loader().epoch(epoch))
    for _ in range(len(stages) + 4):
        x, y = next(batches)
        with Watch():  # without the beginning of the loader's epochs
            loss = pipeline.step(x, y)
    assert loss is not None
    assert loss.device == GPU
    with Watch():
        assert pipeline.evaluate(x).device == GPU


@pytest.mark.parametrize("method", [methods.PETRA, methods.BACKPROPAGATION], ids=str)
def test_captured_step_does_not_sync(gpu: None, method: Method) -> None:
    """A CUDA capture forbids waiting and copies from the host."""

    def record(work: Callable[[], None]) -> Callable[[], None]:
        with Watch(capture=True):
            work()
        return lambda: None

    pipeline = Pipeline(network(), method, accumulation=2, optimizer=toys.sgd, inspect=INSPECT)
    [(x, y), *_] = loader().epoch(0)
    ticks = CapturedSteps(pipeline, record)
    while not ticks.recorded:
        with Watch():
            ticks.step(x, y)
    pipeline.set_learning_rate(0.5)
    for _ in range(4):
        with Watch():
            assert ticks.step(x, y).device == GPU


@pytest.mark.parametrize(
    ("method", "read_to"),
    [*((method, "cpu") for method in (methods.PETRA, *STASHING)), (methods.DELAYED_GRADIENTS, GPU)],
    ids=str,
)
def test_state_resumes_from_any_device(gpu: None, method: Method, read_to: Any) -> None:
    """All tensors return to the GPU, except the states of generators, which torch needs on the CPU."""
    whole = Pipeline(network(), method, optimizer=toys.sgd, seed=0, inspect=INSPECT)
    batches = [batch for epoch in range(2) for batch in loader().epoch(epoch)]
    for x, y in batches if method.pipelined else batches[:2]:
        whole.step(x, y)
    for worker in whole.workers:
        for part in worker.parts:  # as after a stage with dropout
            for entry in part._memory:
                entry.random = worker.stream.state
    state = tree_map(lambda leaf: leaf.to(read_to) if isinstance(leaf, Tensor) else leaf, whole.state_dict())
    again = Pipeline(network(), method, optimizer=toys.sgd, seed=0, inspect=INSPECT)
    again.load_state_dict(state)
    assert again.in_flight == whole.in_flight
    for worker in again.workers:
        random = [*worker.stream.state, *(t for p in worker.parts for e in p._memory for t in e.random)]
        assert {tensor.device.type for tensor in random} == {"cpu"}
    with Watch():
        again.step(*batches[0])
        assert again.evaluate(x).device == GPU


def test_replicas_average_without_sync(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean over data-parallel replicas, before every update, never makes the host wait for the GPU."""
    replicas = Replicas()
    replicas.count, replicas._group, replicas._comm_device = 2, dist.ProcessGroup(0, 2), GPU
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    stage = network()[0]
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with Watch():
        replicas.average_gradients(0, 1, stage)


def test_state_dict_allocates_no_device_memory(gpu: None) -> None:
    """A copy on the device doubled the memory, so that the checkpoint of every five minutes ran out of it."""
    pipeline = Pipeline(network(), methods.DELAYED_GRADIENTS, optimizer=toys.sgd, seed=0, inspect=INSPECT)
    for x, y in loader().epoch(0):
        pipeline.step(x, y)

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            view = func._schema.name == "aten::detach"
            assert view or not isinstance(result, Tensor) or result.device.type == "cpu", func
            return result

    with Made():
        state = pipeline.state_dict()
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    assert len(tensors) > 100
    assert {tensor.device.type for tensor in tensors} == {"cpu"}


@pytest.mark.parametrize("drawn", [False, True])
def test_cpu_state_resumes_on_gpu_without_drawn_numbers(gpu: None, drawn: bool) -> None:
    """The state once loaded and then the first step failed, because the device's generator had no state."""
    whole = Pipeline(network(), methods.PETRA, optimizer=toys.sgd, seed=0, inspect=INSPECT)
    batches = [batch for epoch in range(2) for batch in loader().epoch(epoch)]
    for x, y in batches:
        whole.step(x, y)
    state = tree_map(lambda leaf: leaf.cpu() if isinstance(leaf, Tensor) else leaf, whole.state_dict())
    for worker in state["workers"]:
        worker["random"] = worker["random"][:1]  # only the host's generator, as in streams of the CPU
        for entry in worker["parts"][0]["memory"]:
            entry["random"] = worker["random"] if drawn else None
    again = Pipeline(network(), methods.PETRA, optimizer=toys.sgd, seed=0, inspect=INSPECT)
    if drawn:
        with pytest.raises(
            CheckpointError, match=r"has drawn random numbers .* on another type of device, and cuda:0 cannot"
        ):
            again.load_state_dict(state)
        return
    again.load_state_dict(state)
    assert {len(worker.stream.state) for worker in again.workers} == {2}
    with Watch():
        again.step(*batches[0])


@pytest.mark.parametrize(
    "batches", [lambda: loader(False).epoch(0), lambda: loader(True).epoch(0), lambda: Evaluation(images(14), 4)]
)
def test_loaders_make_batches_on_device(gpu: None, batches: Callable[[], Iterable[Any]]) -> None:
    """Loaders make batches on the GPU without blocking copies."""
    made = iter(batches())
    next(made)  # the host sends the order and crops of an epoch, and once the channel means
    with Watch():
        assert {(x.device, y.device) for x, y in made} == {(GPU, GPU)}


def test_fake_gpu_detects_violations(gpu: None) -> None:
    """The fake GPU detects operands on several devices, blocking reads and blocking copies."""
    x = torch.zeros(2, device=GPU)
    with pytest.raises(RuntimeError, match="device"):
        x + torch.zeros(2)
    with pytest.raises(DataDependentOutputException):
        x.sum().item()
    with Watch(), pytest.raises(WaitError):
        x.cpu()
    with Watch(), pytest.raises(WaitError):
        torch.tensor([1.0, 2.0], device=GPU)
    with Watch():
        x.copy_(torch.zeros(2).to(GPU, non_blocking=True), non_blocking=True)
        x.copy_(torch.zeros(2), non_blocking=True)
    with Watch(capture=True), pytest.raises(WaitError):
        x.copy_(torch.zeros(2), non_blocking=True)
