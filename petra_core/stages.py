"""Stages: plain modules that also know how their backward gets a graph.

The obvious way to cut a network into stages, `nn.Sequential` over chunks of it, lets autograd keep one graph from
loss to input, so no stage can work before the next has finished. Here every stage has a graph of its own, a `Tape`,
that begins at a detached input and ends at a detached output; gradients pass between stages as messages. A tape is
made in one of three ways:

    record(inputs)         during the forward itself, by methods that keep graphs
    retrace(kept)          later, from what was kept of the input
    reconstruct(outputs)   later, from the output alone: reversible stages only

Only the streams that a backward needs are kept (`keep`): both inputs of a module, but of a reversible stage the one
that F reads, since the other only passes through an addition.

`ReversibleStage` is the coupling of the paper (section 3.1): one residual function F and a swap of the two streams,

    forward   (x, x~) -> (y, y~) = (x~ + F(x), x)
    inverse   (y, y~) -> (x, x~) = (y~, y - F(y~))
    backward  (dy, dy~) -> (dF(x)^T dy + dy~, dy)

Further streams may pass it as they are, context that F reads too: (x, x~, *c) -> (x~ + F(x, *c), x, *c).

The inverse evaluates F at the very point at which the backward differentiates it, so one evaluation with a graph
serves both: a reversible backward costs one forward and one backward of F, not two forwards and one backward.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.tape import (
    Combine,
    CouplingTape,
    ModuleTape,
    Streams,
    Tape,
    Value,
    as_streams,
    as_value,
    at_least_float32,
    combined,
    detached,
    leaf,
)
from petra_core.targets import Target

__all__ = ["BufferedStage", "HeadStage", "ReversibleStage", "Stage", "in_evaluation_mode", "merge"]


class Stage(nn.Module, abc.ABC):
    """A stage of the pipeline.

    Called as a module it is the plain computation, so `nn.Sequential(*stages)` is the network.
    """

    #: whether `reconstruct` reconstructs the input from the output
    invertible: bool = False

    @property
    @abc.abstractmethod
    def function(self) -> nn.Module:
        """The module that holds the stage's parameters and buffers."""

    @abc.abstractmethod
    def forward(self, value: Value) -> Value:
        """Plain computation, as in `nn.Sequential`."""

    @abc.abstractmethod
    def record(self, inputs: Streams) -> Tape:
        """Evaluate with a graph, from the whole input. Only the values of `inputs` are used."""

    def keep(self, inputs: Streams) -> Streams:
        """The streams of the input that `retrace` needs."""
        return inputs

    def side(self, inputs: Streams) -> Streams:
        """What has to be kept of the input although the stage can be inverted: nothing of most."""
        return ()

    def retrace(self, kept: Streams) -> Tape:
        """Evaluate with a graph, from what `keep` returned."""
        return self.record(kept)

    def reconstruct(self, outputs: Streams, side: Streams = ()) -> Tape:
        """Reconstruct the input from the output by one evaluation, which is the tape too.

        Args:
            outputs: the stage's output streams.
            side: what `side` returned of the input.

        Raises:
            TypeError: the stage is not invertible.

        """
        raise TypeError(f"{type(self).__name__} cannot be inverted; its input has to be kept")

    def parts(self) -> tuple["Stage", ...]:
        """The blocks that a backward goes through one by one; more than one only after `merge`."""
        return (self,)

    def _evaluate(self, x: Tensor, *context: Tensor) -> Tensor:
        residual = self.function(x, *context)
        if not isinstance(residual, Tensor) or residual.shape != x.shape:
            got = tuple(residual.shape) if isinstance(residual, Tensor) else type(residual).__name__
            raise ValueError(
                f"the residual function of a reversible stage must keep the shape of its input {tuple(x.shape)}, "
                f"got {got}; a stage that changes shapes is a BufferedStage"
            )
        return residual


def _kind(value: object) -> str:
    inside = f" of {', '.join(type(item).__name__ for item in value)}" if isinstance(value, tuple | list) else ""
    return f"a {type(value).__name__}{inside}"


def _check_module(module: object, owner: str) -> nn.Module:
    if isinstance(module, Stage):
        raise TypeError(
            f"{owner} takes a plain module, got the stage {type(module).__name__}; use merge() to join stages"
        )
    if not isinstance(module, nn.Module):
        raise TypeError(f"{owner} takes a torch.nn.Module, got {type(module).__name__}")
    return module


def two_streams(streams: Streams) -> tuple[Tensor, Tensor]:
    """The streams, seen to be two of one shape. Raises: ValueError: they are not."""
    if len(streams) != 2 or streams[0].shape != streams[1].shape:
        shapes = ", ".join(str(tuple(stream.shape)) for stream in streams)
        raise ValueError(
            f"a reversible stage takes two streams of one shape, got {len(streams)}: {shapes}; "
            f"let the stage before it return a tuple of two equal tensors (petra_core.models.SplitStreams)"
        )
    return streams[0], streams[1]


class ReversibleStage(Stage):
    """One residual function and a swap of two streams, inverted by its own evaluation.

    Args:
        residual: F, any module from a tensor to a tensor of the same shape (BatchNorm, dropout and autocast included).
            It must be a pure function of its input, its weights and torch's global generator: one that reads buffers
            or attributes that it writes in training mode is refused (`petra_core.inspection`).
        context: whether all streams after the two are context: they pass the stage as they are, and F is called as
            F(x, *context). A mask, a position, a conditioning or a long skip travels so, up with the two streams and
            down with their gradients; context of floating point gets its gradient too.

    Attributes:
        combine: does the additions of the coupling; another one may write their results where they will be read.

    """

    invertible = True

    def __init__(self, residual: nn.Module, *, context: bool = False) -> None:
        super().__init__()
        self.residual = _check_module(residual, "ReversibleStage")
        self.context = context
        self.combine: Combine = combined

    @property
    def function(self) -> nn.Module:
        return self.residual

    def forward(self, value: Value) -> Value:
        x, x_tilde, *context = self._split(as_streams(value))
        return self.combine("output", torch.add, x_tilde, self._evaluate(x, *context)), x, *context

    def record(self, inputs: Streams) -> Tape:
        x, x_tilde, *context = self._split(inputs)
        x_leaf, leaves = leaf(x), tuple(map(leaf, context))
        residual = self._evaluate(x_leaf, *leaves)
        output = self.combine("output", torch.add, x_tilde.detach(), residual.detach())
        outputs = (output, x.detach(), *detached(tuple(context)))
        return CouplingTape(detached(inputs), outputs, x_leaf, residual, self.combine, leaves)

    def keep(self, inputs: Streams) -> Streams:
        return inputs[:1] + inputs[2:]

    def retrace(self, kept: Streams) -> Tape:
        x_leaf, *context = map(leaf, kept)
        return CouplingTape(None, None, x_leaf, self._evaluate(x_leaf, *context), self.combine, tuple(context))

    def reconstruct(self, outputs: Streams, side: Streams = ()) -> Tape:
        y, y_tilde, *context = self._split(outputs)
        x_leaf, leaves = leaf(y_tilde), tuple(map(leaf, context))
        residual = self._evaluate(x_leaf, *leaves)
        x_tilde = self.combine("input", torch.sub, y.detach(), residual.detach())
        inputs = (y_tilde.detach(), x_tilde, *detached(tuple(context)))
        return CouplingTape(inputs, None, x_leaf, residual, self.combine, leaves)

    def _split(self, streams: Streams) -> Streams:
        """The streams, seen to be two of one shape and, where the stage takes any, context."""
        if self.context:
            return (*two_streams(streams[:2]), *streams[2:])
        if len(streams) > 2:
            raise ValueError(
                f"a reversible stage takes two streams, got {len(streams)}; let the others pass as context of its "
                f"function, ReversibleStage(function, context=True), which is called as function(x, *context)"
            )
        return two_streams(streams)


class BufferedStage(Stage):
    """A stage that cannot be inverted: it keeps its input, first in first out, until the backward.

    Args:
        module: takes a tensor, or a tuple of tensors where the stage before returns one; returns a tensor or a tuple of
            tensors.

    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = _check_module(module, type(self).__name__)

    @property
    def function(self) -> nn.Module:
        return self.module

    def forward(self, value: Value) -> Value:
        return as_value(at_least_float32(self.module(value)))

    def record(self, inputs: Streams) -> Tape:
        leaves = tuple(leaf(stream) for stream in inputs)
        return ModuleTape(leaves, at_least_float32(self.module(as_value(leaves))))


Loss = Callable[[Any, Any], Any]  # (output, target) -> scalar, or (scalar, metrics by name)


class HeadStage(BufferedStage):
    """The last stage: a module that returns the network's output, and the loss.

    As a module it computes the network's output (logits) without the loss.

    Args:
        module: from the streams before it to the output, shape [batch, classes] for cross-entropy.
        loss: (output, target) -> scalar, the mean over the micro-batch; cross-entropy unless given. Output and target
            may be tuples of tensors, the target a dict or None too. The loss may return (scalar, metrics) instead, with
            tensors or numbers by name. The parameters of a loss that is a module are trained as those of the head.

    Attributes:
        metrics: what the loss returned last beside its value, detached.

    """

    def __init__(self, module: nn.Module, loss: Loss = F.cross_entropy) -> None:
        super().__init__(module)
        if not callable(loss):
            raise TypeError(f"loss must be callable as loss(output, target), got {type(loss).__name__}")
        self.loss = loss
        self.metrics: dict[str, Tensor] = {}

    @property
    def function(self) -> nn.Module:
        """The module; the whole head if the loss has parameters or buffers too."""
        loss = self.loss
        has_tensors = isinstance(loss, nn.Module) and (*loss.parameters(), *loss.buffers())
        return self if has_tensors else self.module

    def record_loss(self, inputs: Streams, target: Target) -> Tape:
        """Evaluate module and loss with a graph; `tape.outputs` holds the scalar loss.

        Raises:
            TypeError: the loss returns something else than a tensor, with or without metrics.
            ValueError: the loss is not a scalar, or has no graph.

        """
        leaves = tuple(leaf(stream) for stream in inputs)
        output = as_value(at_least_float32(self.module(as_value(leaves))))
        loss = self.loss(output, target)
        self.metrics = {}
        if isinstance(loss, tuple) and len(loss) == 2 and isinstance(loss[1], Mapping):
            loss, metrics = loss
            self.metrics = {name: torch.as_tensor(value).detach() for name, value in metrics.items()}
        if not isinstance(loss, Tensor):
            raise TypeError(
                f"the loss function must return a scalar tensor (a mean over the micro-batch), got {_kind(loss)}; "
                f"return the tensor without .item(), or (tensor, metrics) with a dict of metrics by name"
            )
        if loss.dim() != 0:
            raise ValueError(f"the loss must be a scalar (a mean over the micro-batch), got shape {tuple(loss.shape)}")
        if not loss.requires_grad and torch.is_grad_enabled() and any(t.requires_grad for t in self._sources(leaves)):
            raise ValueError(
                f"the loss has no graph, so nothing would be trained: got a tensor of {loss.dtype} that depends on the "
                f"head's input and weights through no differentiable operation; leave out detach(), no_grad(), "
                f"argmax() and integer casts between the network's output and the loss"
            )
        return ModuleTape(leaves, (loss,))

    def _sources(self, leaves: Streams) -> Iterator[Tensor]:
        yield from leaves
        yield from self.parameters()


class _MergedStage(Stage):
    """Several stages that work as one: one turn a step for all of them, and the staleness of one stage.

    A backward still goes through the parts one at a time, each with its own graph and its own rule for the input, so
    merging lessens staleness and lengthens the step but costs no memory for graphs.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    @property
    def function(self) -> nn.Module:
        return self

    @property
    def invertible(self) -> bool:  # type: ignore[override]  # fixed by the parts, read-only
        """Whether every part can be inverted."""
        return all(part.invertible for part in self.parts())

    def parts(self) -> tuple[Stage, ...]:
        return tuple(part for stage in self.stages for part in stage.parts())  # type: ignore[operator]  # ModuleList forgets types

    def forward(self, value: Value) -> Value:
        for stage in self.stages:
            value = stage(value)
        return value

    def record(self, inputs: Streams) -> Tape:
        raise TypeError("a merged stage is differentiated part by part: use parts()")


def merge(stages: Sequence[Stage]) -> Stage:
    """Join consecutive stages into one, so that the number of stages J can be chosen apart from the number of blocks.

    Raises:
        ValueError: there is nothing to merge, or a head is not the last.

    """
    parts = [part for stage in stages for part in stage.parts()]
    if not parts:
        raise ValueError("merge() needs at least one stage, got none")
    if any(isinstance(part, HeadStage) for part in parts[:-1]):
        raise ValueError("a HeadStage can only be the last of the stages that are merged")
    return stages[0] if len(stages) == 1 else _MergedStage(stages)


def sequential(stages: Sequence[Stage]) -> nn.Sequential:
    """The network as one plain model, from the input to the head's output (logits).

    It shares the stages' modules: training one trains the other, and `eval()` on it switches the stages too.
    """
    return nn.Sequential(*(part for stage in stages for part in stage.parts()))


@contextlib.contextmanager
def in_evaluation_mode(stages: Sequence[Stage]) -> Iterator[None]:
    """Context in which the stages' modules are in evaluation mode; afterwards each is as it was."""
    training = [module for stage in stages for module in stage.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
