"""Tapes: the autograd graph of one evaluation of one stage, with its input and output streams.

A tape begins at a detached input and ends at a detached output, so stages do not share graphs and can work
concurrently. A value between stages is a tensor or a tuple of tensors; "streams" always means the tuple. Floating-point
streams have at least float32 precision, even if a stage uses autocast: inversion in bf16 loses all digits within thirty
stages. A reversible first stage casts the streams of a narrower micro-batch.

Tapes are internal: `petra_core.stages` records them, and `petra_core.block` keeps and differentiates them.
"""

import abc
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Streams = tuple[Tensor, ...]
Value = Tensor | Streams
#: Gradients with respect to the streams of an input (none if they are not wanted), and with respect to parameters.
Gradients = tuple[Streams, tuple[Tensor | None, ...]]
Operator = Callable[..., Tensor]  # torch.add or torch.sub
#: Function that adds or subtracts two streams. The name identifies the result within a stage.
Combine = Callable[[str, Operator, Tensor, Tensor], Tensor]


def combine_streams(name: str, operation: Operator, left: Tensor, right: Tensor) -> Tensor:
    """Return the result of the operation in new memory."""
    del name
    return operation(left, right)


def as_streams(value: Value) -> Streams:
    """Return a value as a tuple of tensors.

    Raises:
        TypeError: If the value is neither a tensor nor a tuple of tensors, or a tensor is sparse or nested.

    """
    streams = (value,) if isinstance(value, Tensor) else value
    if isinstance(streams, tuple | list) and streams and all(isinstance(stream, Tensor) for stream in streams):
        if any(stream.layout is not torch.strided or stream.is_nested for stream in streams):
            raise TypeError(
                "streams between stages are dense tensors, got a sparse or nested one; pass its parts as several "
                "streams, such as indices and values"
            )
        return tuple(streams)
    kind = f"tuple of {[type(item).__name__ for item in value]}" if isinstance(value, tuple) else type(value).__name__
    raise TypeError(f"a stage takes and returns a tensor or a tuple of tensors, got {kind}")


def as_value(streams: Streams) -> Value:
    """Return streams in the form that modules use: a single tensor is unpacked from its tuple."""
    return streams[0] if len(streams) == 1 else streams


def detach(streams: Streams) -> Streams:
    """Return the streams detached from their graphs, without a copy."""
    return tuple(stream.detach() for stream in streams)


def at_least_float32(value: Value) -> Streams:
    """Return the streams, with bf16 and fp16 tensors cast to float32 inside the graph."""
    return tuple(s.float() if s.dtype in (torch.bfloat16, torch.float16) else s for s in as_streams(value))


def leaf(stream: Tensor) -> Tensor:
    """Return a graph leaf with the value of `stream`. It requires a gradient unless it is an integer tensor."""
    return stream.detach().requires_grad_(stream.is_floating_point() or stream.is_complex())


def compact(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Return a tensor that covers exactly its storage: a copy of a slice or an expanded view, else the tensor itself.

    A view keeps more memory alive than the ledger counts. Its copies in checkpoints and other ranks have other strides,
    which may select kernels that round differently.

    Args:
        tensor: The tensor.
        like: Tensor that gives the copy its strides. None for the order of the tensor's own strides.

    """
    # An expanded slice, such as `x[:, :1].expand_as(x)`, may have the size of its storage.
    if tensor.untyped_storage().nbytes() == tensor.nbytes and 0 not in tensor.stride():
        return tensor
    return tensor.clone() if like is None else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def autocast_dtype(device: torch.device, dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype of automatic mixed precision: `dtype`, else that of the caller's context, else None."""
    if dtype is None and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return dtype


def mixed_precision(device: torch.device, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context with automatic mixed precision, or with None a context without.

    The context does not use autocast's cache of cast weights. The backward's evaluation would reuse a cast of a forward
    without a graph, so the weight would get no gradient. A cast made before an update would outlive it.
    """
    if dtype is None and not torch.is_autocast_enabled(device.type):
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None, cache_enabled=False)


class Tape(abc.ABC):
    """The graph of one evaluation of one stage, from a detached input to a detached output.

    Attributes:
        inputs: The stage's complete input, given or reconstructed, detached. Empty if only part of it was kept.
        outputs: The stage's output, detached. Empty if it is not needed.
        leaves: The leaves that represent the input in the graph; empty without a graph.

    """

    inputs: Streams = ()
    outputs: Streams = ()
    leaves: Streams = ()

    def roots(self) -> list[Node]:
        """Return the final nodes of the graph, for inspection. Subclasses that return none are not inspected."""
        return []

    def forget(self) -> None:
        """Drop references to inputs and outputs. The autograd graph keeps whatever it still needs."""
        self.inputs = self.outputs = ()

    @abc.abstractmethod
    def gradients(self, grads: Streams, parameters: Sequence[Tensor], *, input_gradient: bool = True) -> Gradients:
        """Differentiate and free the graph.

        Args:
            grads: Gradient of the loss with respect to each output stream, with the shapes of the output.
            parameters: Leaves of the graph to differentiate with respect to.
            input_gradient: Whether to compute the gradient of the input. The first stage does not need it.

        Returns:
            The gradient with respect to each input stream (none without `input_gradient`), and with respect to each
            parameter (None if the graph does not depend on it).

        """


def _end(result: Tensor) -> GradientEdge | None:
    """Return the end of the graph of `result`, or None if it has no graph.

    Unlike the result tensor it does not keep the result's memory alive.
    """
    # A view created under no_grad() may require a gradient although it has no graph.
    recorded = result.requires_grad and torch.is_grad_enabled()
    return get_gradient_edge(result) if recorded else None


def _input_gradient(gradient: Tensor | None, leaf: Tensor) -> Tensor:
    """Return the gradient with respect to a leaf as a message: zeros for None, and a copy of a view."""
    return torch.zeros_like(leaf) if gradient is None else compact(gradient, like=leaf)


class ModuleTape(Tape):
    """The graph of a whole module, from all inputs to all outputs."""

    def __init__(self, leaves: Streams, results: Streams) -> None:
        self.inputs = detach(leaves)
        self.outputs = detach(results)
        self.leaves = leaves
        self._ends = [_end(result) for result in results]

    def roots(self) -> list[Node]:
        return [end.node for end in self._ends if end is not None]

    def gradients(self, grads: Streams, parameters: Sequence[Tensor], *, input_gradient: bool = True) -> Gradients:
        leaves = self.leaves if input_gradient else ()
        wanted = [*(leaf for leaf in leaves if leaf.requires_grad), *parameters]
        reached = [(end, grad) for end, grad in zip(self._ends, grads, strict=True) if end is not None]
        found: dict[Tensor, Tensor | None] = {}
        if wanted and reached:
            ends, seeds = [end for end, _ in reached], [grad for _, grad in reached]
            # Under autocast a result may be narrower than the incoming gradient. Autograd casts the gradient.
            found = dict(zip(wanted, torch.autograd.grad(ends, wanted, seeds, allow_unused=True), strict=True))
        grad_inputs = tuple(_input_gradient(found.get(leaf), leaf) for leaf in leaves)
        return grad_inputs, tuple(found.get(parameter) for parameter in parameters)


class CouplingTape(ModuleTape):
    """The graph of a residual function x -> F(x). The rest of the coupling is differentiated analytically.

    The function may also read context, which are streams that pass the stage unchanged: x -> F(x, *context). The
    stage that records the graph sets the inputs and outputs of the coupling.
    """

    def __init__(self, leaves: Streams, residual: Tensor, combine: Combine) -> None:
        self.leaves, self._ends, self._combine = leaves, [_end(residual)], combine

    def gradients(self, grads: Streams, parameters: Sequence[Tensor], *, input_gradient: bool = True) -> Gradients:
        grad_y, grad_y_tilde, *passed = grads
        hooks = []
        for leaf in self.leaves:  # autograd would call its hooks with the gradient of the function only
            of_leaf = leaf._backward_hooks or {}
            hooks.append([*of_leaf.values()])
            of_leaf.clear()
        gradients, grad_parameters = super().gradients((grad_y,), parameters, input_gradient=input_gradient)
        if not input_gradient:
            return (), grad_parameters
        sum_x = self._combine("gradient", torch.add, gradients[0], grad_y_tilde)
        grad_x, *grad_context = map(call_hooks, hooks, (sum_x, *map(torch.add, passed, gradients[1:])))
        return (grad_x, grad_y, *grad_context), grad_parameters


def call_hooks(hooks: Iterable[Callable[[Tensor], Tensor | None]], gradient: Tensor) -> Tensor:
    """Return a gradient after the hooks of a tensor, as autograd would call them."""
    for hook in hooks:
        changed = hook(gradient)
        gradient = gradient if changed is None else changed
    return gradient
