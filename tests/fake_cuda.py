"""Stand in for CUDA graphs and for the memory of a GPU on machines without one."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from petra_core import Pipeline, methods
from petra_core.methods import Method
from tests import toys

#: Operations that make a host wait for its device.
WAITS = {"_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select"}
RECORDED = [methods.PETRA, methods.DSP, methods.BACKPROPAGATION, methods.REVERSIBLE_BACKPROPAGATION]


class Interpreter(TorchDispatchMode):
    """A recorder of operations that can run them again on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        assert name not in WAITS, f"a capture would fail at {name}"
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, result))
        return result

    @functools.cached_property
    def _allocated(self) -> list[list[tuple[int, Tensor]]]:
        """The results of each operation that are in new memory, with their numbers. Others are views or in place."""
        return [
            [
                (number, tensor)
                for number, tensor in enumerate(tree_leaves(outputs))
                if isinstance(tensor, Tensor) and memory_of(tensor) not in given
            ]
            for _, args, kwargs, outputs in self.operations
            for given in [{memory_of(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}]
        ]

    @torch.no_grad()
    def again(self) -> None:
        for (func, args, kwargs, _), allocated in zip(self.operations, self._allocated, strict=True):
            results = tree_leaves(func(*args, **kwargs))
            for number, tensor in allocated:
                tensor.detach().copy_(results[number])

    @torch.no_grad()
    def lose(self) -> None:
        """Overwrite all memory that was allocated during the recording."""
        taken: dict[int, Tensor] = {}
        for allocated in self._allocated:
            for _, tensor in allocated:
                taken.setdefault(memory_of(tensor), tensor)
        for tensor in taken.values():
            tensor.detach().fill_(float("nan") if tensor.is_floating_point() else 99)


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class SharedMemoryRecorder:
    """A recorder whose recordings share memory: replaying the first overwrites the results of later ones."""

    def __init__(self) -> None:
        self.recorded: list[Interpreter] = []

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        interpreter = Interpreter()
        self.recorded.append(interpreter)
        with interpreter:
            work()

        def again() -> None:
            for later in self.recorded[self.recorded.index(interpreter) + 1 :]:
                later.lose()
            interpreter.again()

        return again


def fused(parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """Return the optimizer that recorded steps use."""
    return torch.optim.SGD(parameters, lr=0.0625, momentum=0.9, nesterov=True, weight_decay=1e-3, fused=True)


def made(
    stages: int, method: Method, k: int, staleness: Sequence[int] | None = None, *, inspect: bool = False
) -> Pipeline:
    net = toys.network(stages)
    return toys.pipeline(net, method, accumulation=k, staleness=staleness, optimizer=fused, seed=3, inspect=inspect)


def staggered(pipeline: Pipeline) -> Pipeline:
    """Switch the pipeline to the order of actions in which it is recorded, and return it."""
    if pipeline.method.pipelined:
        pipeline.stagger()
    return pipeline


class FakeAllocator:
    """Fake a CUDA device: allocated bytes, the most so far, and the workspaces of cuBLAS."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, held: int, cublas: int) -> None:
        self.held, self.peak, self.cublas = held + cublas, 0, cublas
        for name, function in {
            "synchronize": lambda _: None,
            "empty_cache": lambda: None,
            "memory_allocated": lambda _: self.held,
            "max_memory_allocated": lambda _: self.peak,
            "reset_peak_memory_stats": lambda _: self.take(self.held, reset=True),
        }.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", self._clear, raising=False)

    def take(self, held: int, *, reset: bool = False) -> None:
        self.held, self.peak = held, held if reset else max(self.peak, held)

    def multiply(self, cublas: int) -> None:
        if not self.cublas:
            self.cublas = cublas
            self.take(self.held + cublas)

    def _clear(self) -> None:
        self.held -= self.cublas
        self.cublas = 0
