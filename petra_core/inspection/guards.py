"""Guard a block in every step: reject writes to its input or gradients, and notice evaluations in a backward."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from petra_core.tape import Streams

#: Parts of torch's messages about a tensor without a gradient: of a backward, of `register_hook` and `retain_grad`.
_WITHOUT_GRADIENT = ("does not require grad", "doesn't require grad", "has requires_grad=False")


def check_call(tensors: Sequence[Tensor] = ()) -> None:
    """Check the context of a step, a drain or the loading of a state.

    Args:
        tensors: Inputs and targets of a step.

    Raises:
        RuntimeError: In torch.inference_mode(), or in torch.nn.utils.parametrize.cached().
        ValueError: If a tensor has a graph or is a trained parameter, to which no gradient would flow.

    """
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            "a pipeline cannot train inside torch.inference_mode(), which records no graphs; call step(), "
            "drain() and load_state_dict() outside of it (evaluate() works inside)"
        )
    if parametrize._cache_enabled:
        raise RuntimeError(
            "a pipeline cannot train inside torch.nn.utils.parametrize.cached(): weights that are cached without a "
            "graph would never be trained; call step(), drain() and load_state_dict() outside of it"
        )
    if any(t.grad_fn is not None or (isinstance(t, nn.Parameter) and t.requires_grad) for t in tensors):
        raise ValueError(
            "an input or a target has a graph or is a parameter, but no gradient flows out of a pipeline, so the "
            "parameter or what computed the tensor would not be trained: make that a part of the first stage, or "
            "detach() the tensor"
        )


@contextlib.contextmanager
def refuse_input_writes(function: nn.Module, inputs: Streams) -> Iterator[None]:
    """Raise ValueError if code inside the context writes to the input of a function in place."""
    writes = [None if tensor.is_inference() else tensor._version for tensor in inputs]
    reason: RuntimeError | None = None
    try:
        yield
    except RuntimeError as error:
        if "a leaf Variable that requires grad" not in str(error):  # autograd rejects the write in a graph
            if "change requires_grad flags of leaf variables" in str(error):
                error.add_note("inputs of stages require a gradient; in stage 0, which needs none, give it x.detach()")
            if any(text in str(error) for text in _WITHOUT_GRADIENT) and not torch.is_grad_enabled():
                error.add_note(
                    "the forwards of this method run without gradients: a module that differentiates in its "
                    "forward (torch.autograd.grad) has to do so inside `with torch.enable_grad():`, and one that "
                    "registers a hook of a tensor has to ask for `tensor.requires_grad` first"
                )
            raise
        error.add_note("a write to a parameter raises this too: compute a new tensor, such as weight.clamp(0, 1)")
        reason = error
    now = [None if tensor.is_inference() else tensor._version for tensor in inputs]
    if reason is not None or now != writes:
        raise ValueError(
            f"{type(function).__name__} wrote to its input in place, but other stages still need it; "
            f"use the out-of-place form of its first operation, for example nn.ReLU(inplace=False)"
        ) from reason


def refuse_foreign_gradients(index: int, parameters: Mapping[str, Tensor]) -> None:
    """Raise RuntimeError if other code has written a gradient of a stage, which would enter an update or be lost.

    Args:
        index: Number of the stage.
        parameters: Trained parameters of the stage, or weights that replace them, by name.

    """
    if name := next((name for name, parameter in parameters.items() if parameter.grad is not None), ""):
        raise RuntimeError(
            f"stage {index}: the gradient of parameter {name} was changed from outside between two backwards of the "
            f"pipeline, and would enter an update or be lost; for gradients of other losses use torch.autograd.grad or "
            f"a copy of the model, or set .grad to None after their use"
        )


class BackwardWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """A context for a backward that detects evaluations with a graph.

    Attributes:
        evaluates: Whether an operation ran with gradients enabled.

    """

    supports_higher_order_operators = True  # torch.cond and others
    evaluates = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.evaluates = self.evaluates or torch.is_grad_enabled()
        return func(*args, **(kwargs or {}))
