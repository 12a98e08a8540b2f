"""Guard the evaluations of a block: reject writes to its input, and notice evaluations in a backward."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from petra_core.tape import Streams

__all__ = ["BackwardWatch", "refuse_input_writes"]


@contextlib.contextmanager
def refuse_input_writes(function: nn.Module, inputs: Streams) -> Iterator[None]:
    """Raise ValueError if code inside the context writes to the input of a function in place."""
    writes = [None if tensor.is_inference() else tensor._version for tensor in inputs]
    reason: RuntimeError | None = None
    try:
        yield
    except RuntimeError as error:
        if "a leaf Variable that requires grad" not in str(error):  # autograd rejects the write in a graph
            if "does not require grad" in str(error) and not torch.is_grad_enabled():
                error.add_note(
                    "the forwards of this method run without gradients: a module that differentiates in its "
                    "forward (torch.autograd.grad) has to do so inside `with torch.enable_grad():`"
                )
            raise
        reason = error
    now = [None if tensor.is_inference() else tensor._version for tensor in inputs]
    if reason is not None or now != writes:
        raise ValueError(
            f"{type(function).__name__} wrote to its input in place, but other stages still need it; "
            f"use the out-of-place form of its first operation, for example nn.ReLU(inplace=False)"
        ) from reason


class BackwardWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """A context for a backward that detects evaluations with a graph.

    Attributes:
        evaluates: Whether an operation ran with gradients enabled.

    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.evaluates = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.evaluates = self.evaluates or torch.is_grad_enabled()
        return func(*args, **(kwargs or {}))
