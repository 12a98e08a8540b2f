"""Tapes: the autograd graph of one evaluation of one stage, and the streams that go in and out of it.

A tape begins at a detached input and ends at a detached output, so that stages do not share graphs and can work side by
side. Values between stages are a tensor or a tuple of tensors; "streams" is always the tuple. Floating-point streams
are never narrower than float32, whatever autocast does inside a stage: inversion in bf16 loses all digits within
thirty stages.

Internal: `petra_core.stages` makes tapes, `petra_core.part` keeps and differentiates them.
"""

import abc
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Streams = tuple[Tensor, ...]
Value = Tensor | Streams
#: Does an addition or subtraction of two streams; the name tells the results of a stage apart.
Combine = Callable[[str, Callable[..., Tensor], Tensor, Tensor], Tensor]


def combined(name: str, operation: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
    """The result of the operation in new memory."""
    del name
    return operation(left, right)


def as_streams(value: Value) -> Streams:
    """A value as a tuple of tensors.

    Raises:
        TypeError: it is neither a tensor nor a tuple of tensors.

    """
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, tuple | list) and value and all(isinstance(stream, Tensor) for stream in value):
        return tuple(value)
    kind = f"tuple of {[type(item).__name__ for item in value]}" if isinstance(value, tuple) else type(value).__name__
    raise TypeError(f"a stage takes and returns a tensor or a tuple of tensors, got {kind}")


def as_value(streams: Streams) -> Value:
    """Streams as modules take and return them: a lone tensor without its tuple."""
    return streams[0] if len(streams) == 1 else streams


def detached(streams: Streams) -> Streams:
    """The values of the streams outside every graph (no copy)."""
    return tuple(stream.detach() for stream in streams)


def at_least_float32(value: Value) -> Streams:
    """Streams with bf16 and fp16 tensors as float32, inside the graph."""
    return tuple(s.float() if s.dtype in (torch.bfloat16, torch.float16) else s for s in as_streams(value))


def leaf(stream: Tensor) -> Tensor:
    """A graph leaf with the value of `stream`; integer tensors (token numbers) have no gradient."""
    return stream.detach().requires_grad_(stream.is_floating_point() or stream.is_complex())


def fills_its_storage(tensor: Tensor) -> bool:
    """Whether a tensor covers exactly its storage: it is neither a slice nor an expanded view."""
    return tensor.untyped_storage().nbytes() == tensor.nbytes


class Tape(abc.ABC):
    """The graph of one evaluation of one stage, from a detached input to a detached output.

    Attributes:
        inputs: the stage's whole input, outside the graph, given or reconstructed; None where only part of it was kept.
        outputs: the stage's output, outside the graph; None where nobody needs it.

    """

    inputs: Streams | None
    outputs: Streams | None

    def roots(self) -> list[Node]:
        """Return the nodes at which the graph ends, for inspection. Subclasses without any are not inspected."""
        return []

    def leaves(self) -> Streams:
        """Return the leaves that stand for the input in the graph, for inspection."""
        return ()

    def forget(self) -> None:
        """Let go of inputs and outputs, once they are sent on; what the graph needs of them, the graph holds."""
        self.inputs = self.outputs = None

    @abc.abstractmethod
    def gradients(
        self, grad_outputs: Streams, parameters: Sequence[Tensor], *, input_gradient: bool = True
    ) -> tuple[Streams | None, tuple[Tensor | None, ...]]:
        """Differentiate, and free the graph.

        Args:
            grad_outputs: gradient of the loss with respect to each output stream, of the output's shapes.
            parameters: leaves of the graph to differentiate with respect to.
            input_gradient: whether the gradient of the input is wanted (the first stage's is not).

        Returns:
            The gradient with respect to each input stream (None if not wanted), and with respect to each
            parameter (None where the graph does not reach it).

        """


class _End(NamedTuple):
    """Where a graph ends: its result without the result's memory, which the graph itself may have no use for."""

    edge: GradientEdge
    dtype: torch.dtype


def _end(result: Tensor) -> _End | None:
    """The end of the graph of `result`; None if it has no graph."""
    # A view that is made where gradients are switched off requires one all the same, and has no graph.
    recorded = result.requires_grad and torch.is_grad_enabled()
    return _End(get_gradient_edge(result), result.dtype) if recorded else None


def _differentiate(
    ends: Sequence[_End | None],
    leaves: Sequence[Tensor],
    parameters: Sequence[Tensor],
    grad_results: Sequence[Tensor],
) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Gradients for leaves (zeros where the graph does not reach one) and parameters (None there)."""
    wanted = [*leaves, *parameters]
    reached = [(end, grad) for end, grad in zip(ends, grad_results, strict=True) if end is not None]
    if not wanted or not reached:
        gradients: tuple[Tensor | None, ...] = (None,) * len(wanted)
    else:
        # Under autocast a result may be narrower than the message that comes back; plain autograd would cast there too.
        seeds = [grad if grad.dtype is end.dtype else grad.to(end.dtype) for end, grad in reached]
        gradients = torch.autograd.grad([end.edge for end, _ in reached], wanted, seeds, allow_unused=True)
    of_leaves = tuple(
        torch.zeros_like(leaf) if grad is None else _owned(grad, leaf)
        for leaf, grad in zip(leaves, gradients[: len(leaves)], strict=True)
    )
    return of_leaves, gradients[len(leaves) :]


def _owned(gradient: Tensor, leaf: Tensor) -> Tensor:
    """The gradient in memory of its own.

    Autograd may return a view: of a concatenation, say, or a scalar expanded. As a message it would keep more memory
    alive than it is accounted for, and after a resume it would have other strides, and with them other kernels that
    round differently.
    """
    if fills_its_storage(gradient):
        return gradient
    return torch.empty_like(leaf, dtype=gradient.dtype).copy_(gradient)


class ModuleTape(Tape):
    """The graph of a whole module: (inputs) -> (outputs)."""

    def __init__(self, leaves: Streams, results: Streams) -> None:
        self.inputs = detached(leaves)
        self.outputs = detached(results)
        self._leaves = leaves
        self._ends = [_end(result) for result in results]

    def roots(self) -> list[Node]:
        return [end.edge.node for end in self._ends if end is not None]

    def leaves(self) -> Streams:
        return self._leaves

    def gradients(
        self, grad_outputs: Streams, parameters: Sequence[Tensor], *, input_gradient: bool = True
    ) -> tuple[Streams | None, tuple[Tensor | None, ...]]:
        leaves = [leaf for leaf in self._leaves if leaf.requires_grad] if input_gradient else []
        of_leaves, of_parameters = _differentiate(self._ends, leaves, parameters, grad_outputs)
        if not input_gradient:
            return None, of_parameters
        gradients = iter(of_leaves)
        return tuple(
            next(gradients) if leaf.requires_grad else torch.zeros_like(leaf) for leaf in self._leaves
        ), of_parameters


class CouplingTape(Tape):
    """The graph of a residual function alone, x -> F(x); the rest of the coupling is differentiated by hand.

    A function may read context too, streams that pass the stage as they are: x -> F(x, *context).
    """

    def __init__(
        self,
        inputs: Streams | None,
        outputs: Streams | None,
        leaf: Tensor,
        residual: Tensor,
        combine: Combine,
        context: Streams = (),
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.leaf = leaf
        self.context = context  # leaves
        self._end = _end(residual)
        self._combine = combine

    def roots(self) -> list[Node]:
        return [] if self._end is None else [self._end.edge.node]

    def leaves(self) -> Streams:
        return (self.leaf, *self.context)

    def gradients(
        self, grad_outputs: Streams, parameters: Sequence[Tensor], *, input_gradient: bool = True
    ) -> tuple[Streams | None, tuple[Tensor | None, ...]]:
        grad_y, grad_y_tilde, *grad_context = grad_outputs
        leaves = [leaf for leaf in self.leaves() if leaf.requires_grad] if input_gradient else []
        of_leaves, of_parameters = _differentiate([self._end], leaves, parameters, [grad_y])
        if not input_gradient:
            return None, of_parameters
        gradients = iter(of_leaves)
        of_x = self._combine("gradient", torch.add, next(gradients), grad_y_tilde)
        of_context = (
            passed + next(gradients) if leaf.requires_grad else passed
            for leaf, passed in zip(self.context, grad_context, strict=True)
        )
        return (of_x, grad_y, *of_context), of_parameters
