"""Stages: plain modules that define how the graph for their backward is recorded.

The obvious way to cut a network into stages is `nn.Sequential` over chunks of it. Autograd then keeps one graph from
loss to input, so no stage can start its backward before the next has finished. Here every stage has a separate graph, a
`Tape`, which begins at a detached input and ends at a detached output. Gradients pass between stages as messages. A
tape is recorded in one of three ways:

    record(inputs)         during the forward, by methods that keep graphs
    recompute(kept)        later, from the streams that were kept of the input (recomputation)
    reconstruct(outputs)   later, from the output (reversible stages only)

`keep` selects the input streams that a backward needs. A module needs all of them. A reversible stage needs only the
stream that F reads, since the other only passes through an addition.

`ReversibleStage` is the coupling of the paper (section 3.1): one residual function F and a swap of the two streams,

    forward   (x, x~) -> (y, y~) = (x~ + F(x), x)
    inverse   (y, y~) -> (x, x~) = (y~, y - F(y~))
    backward  (dy, dy~) -> (dF(x)^T dy + dy~, dy)

Any further streams are context. F reads it, and it passes the stage unchanged: (x, x~, *c) -> (x~ + F(x, *c), x, *c).

The inverse evaluates F at the same point at which the backward differentiates it, so one evaluation with a graph serves
both. A reversible backward costs one forward and one backward of F, not two forwards and one backward.
"""

import abc
import contextlib
import copy
import itertools
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
    combine_streams,
    detach,
    leaf,
)
from petra_core.targets import Target


class Stage(nn.Module, abc.ABC):
    """A stage of the pipeline.

    Calling the stage as a module performs its plain computation, so `nn.Sequential(*stages)` is the network.
    """

    #: Whether `reconstruct` is implemented.
    invertible: bool = False

    @property
    @abc.abstractmethod
    def function(self) -> nn.Module:
        """The module that contains the stage's parameters and buffers."""

    @abc.abstractmethod
    def forward(self, value: Value) -> Value:
        """Compute the output as in `nn.Sequential`."""

    @abc.abstractmethod
    def record(self, inputs: Streams) -> Tape:
        """Evaluate with a graph, from the complete input. The graph begins at detached leaves."""

    def keep(self, inputs: Streams) -> Streams:
        """Return the input streams that `recompute` needs."""
        return inputs

    def inversion_state(self, inputs: Streams) -> Streams:
        """Return extra tensors that are needed to invert the stage. Empty for most stages."""
        return ()

    def recompute(self, kept: Streams) -> Tape:
        """Evaluate with a graph, from the streams that `keep` returned."""
        return self.record(kept)

    def reconstruct(self, outputs: Streams, state: Streams = ()) -> Tape:
        """Reconstruct the input from the output. The evaluation that inverts the stage also records the tape.

        Args:
            outputs: The stage's output streams.
            state: The tensors that `inversion_state` returned for the input.

        Raises:
            TypeError: If the stage is not invertible.

        """
        raise TypeError(f"{type(self).__name__} cannot be inverted; keep its input and use recompute()")

    def parts(self) -> tuple["Stage", ...]:
        """Return the blocks that a backward processes one at a time. There is more than one only after `merge`."""
        return (self,)

    def _evaluate(self, x: Tensor, *context: Tensor) -> Tensor:
        residual = self.function(x, *context)
        if not isinstance(residual, Tensor) or residual.shape != x.shape:
            got = tuple(residual.shape) if isinstance(residual, Tensor) else type(residual).__name__
            raise ValueError(
                f"the residual function of a reversible stage must keep the shape of its input {tuple(x.shape)}, "
                f"got {got}; use a BufferedStage for a module that changes the shape"
            )
        return residual


def _check_module(module: object, owner: str) -> nn.Module:
    if isinstance(module, Stage):
        raise TypeError(
            f"{owner} takes a plain module, got the stage {type(module).__name__}; use merge() to join stages"
        )
    if not isinstance(module, nn.Module):
        raise TypeError(f"{owner} takes a torch.nn.Module, got {type(module).__name__}")
    return module


def two_streams(streams: Streams) -> tuple[Tensor, Tensor]:
    """Unpack two streams and check that their shapes match.

    Raises:
        ValueError: If there are not two streams, or their shapes differ.

    """
    if len(streams) != 2 or streams[0].shape != streams[1].shape:
        shapes = ", ".join(str(tuple(stream.shape)) for stream in streams)
        raise ValueError(
            f"a reversible stage takes two streams of the same shape, got {len(streams)}: {shapes}; let the preceding "
            f"stage return a tuple of two tensors of the same shape (petra_core.models.SplitStreams)"
        )
    return streams[0], streams[1]


class ReversibleStage(Stage):
    """An additive coupling of two streams: one residual function F and a swap (see above).

    Args:
        residual: The function F, any module from a tensor to a tensor of the same shape. BatchNorm, dropout and
            autocast are supported. F must be a pure function of its input, its weights and torch's global generator: a
            module that reads buffers or attributes that it writes in training mode is rejected
            (`petra_core.inspection`).
        context: Whether all streams after the first two are context, such as a mask, a position, a conditioning or a
            long skip connection. F is called as F(x, *context), and context passes the stage unchanged. Floating-point
            context receives a gradient.

    Attributes:
        combine: Function for the additions of the coupling. It can be replaced to control the memory of their results.

    """

    invertible = True

    def __init__(self, residual: nn.Module, *, context: bool = False) -> None:
        super().__init__()
        self.residual = _check_module(residual, "ReversibleStage")
        self.context = context
        self.combine: Combine = combine_streams

    @property
    def function(self) -> nn.Module:
        return self.residual

    def forward(self, value: Value) -> Value:
        x, x_tilde, *context = self._split(as_streams(value))
        return self.combine("output", torch.add, x_tilde, self._evaluate(x, *context)), x, *context

    def record(self, inputs: Streams) -> Tape:
        x, x_tilde, *context = detach(self._split(inputs))
        tape, residual = self._record_residual(x, *context)
        tape.inputs = x, x_tilde, *context
        tape.outputs = self.combine("output", torch.add, x_tilde, residual), x, *context
        return tape

    def keep(self, inputs: Streams) -> Streams:
        return inputs[:1] + inputs[2:]

    def recompute(self, kept: Streams) -> Tape:
        return self._record_residual(*at_least_float32(kept))[0]

    def reconstruct(self, outputs: Streams, state: Streams = ()) -> Tape:
        y, y_tilde, *context = detach(self._split(outputs))
        tape, residual = self._record_residual(y_tilde, *context)
        tape.inputs = y_tilde, self.combine("input", torch.sub, y, residual), *context
        return tape

    def _record_residual(self, *streams: Tensor) -> tuple[CouplingTape, Tensor]:
        """Evaluate the residual function with a graph, and return the tape and the detached result."""
        leaves = tuple(map(leaf, streams))
        residual = self._evaluate(*leaves)
        return CouplingTape(leaves, residual, self.combine), residual.detach()

    def _split(self, streams: Streams) -> Streams:
        """Check that there are two streams of the same shape, and context only if the stage reads it.

        Returns:
            The streams in at least float32. Those of a micro-batch may be narrower; those of other stages are not.

        """
        if len(streams) > 2 and not self.context:
            raise ValueError(
                f"a reversible stage takes two streams, got {len(streams)}; let the others pass as context of its "
                f"function, ReversibleStage(function, context=True), which is called as function(x, *context)"
            )
        return at_least_float32((*two_streams(streams[:2]), *streams[2:]))


class BufferedStage(Stage):
    """A stage that is not invertible. Its inputs are kept in a first-in, first-out buffer until the backward.

    Args:
        module: A module that takes the value of the preceding stage (a tensor or a tuple of tensors) and returns a
            tensor or a tuple of tensors. The next stage gets the tensor itself if the tuple has one.

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
    """The last stage: a module that computes the network's output, and a loss function.

    Calling the stage as a module returns the output (logits), without the loss.

    Args:
        module: A module from the streams of the preceding stage to the output, [batch, classes] for cross-entropy.
        loss: Function (output, target) -> scalar, a mean over the micro-batch; by default cross-entropy. Output and
            target may be tuples of tensors. The target may also be a dict of tensors or None. The loss may return
            (scalar, metrics), where metrics is a dict of tensors or numbers. If the loss is a module, its parameters
            are trained with those of the head.

    Attributes:
        metrics: Metrics that the last evaluation of the loss returned, detached.

    """

    def __init__(self, module: nn.Module, loss: Loss = F.cross_entropy) -> None:
        super().__init__(module)
        if not callable(loss):
            raise TypeError(f"loss must be callable as loss(output, target), got {type(loss).__name__}")
        self.loss = loss
        self.metrics: dict[str, Tensor] = {}

    @property
    def function(self) -> nn.Module:
        """The module, or the whole head if the loss has parameters or buffers."""
        loss = self.loss
        has_tensors = isinstance(loss, nn.Module) and (*loss.parameters(), *loss.buffers())
        return self if has_tensors else self.module

    def record_loss(self, inputs: Streams, target: Target) -> Tape:
        """Evaluate module and loss with a graph. `tape.outputs` contains the scalar loss.

        Args:
            inputs: Streams of the preceding stage.
            target: Target of the loss.

        Raises:
            TypeError: If the loss function returns neither a tensor nor a tensor with metrics.
            ValueError: If the loss is not a scalar, or has no graph.

        """
        leaves = tuple(leaf(stream) for stream in inputs)
        output = as_value(at_least_float32(self.module(as_value(leaves))))
        loss = self.loss(output, target)
        self.metrics = {}
        if isinstance(loss, tuple) and len(loss) == 2 and isinstance(loss[1], Mapping):
            loss, metrics = loss
            self.metrics = {name: torch.as_tensor(value).detach() for name, value in metrics.items()}
        if not isinstance(loss, Tensor):
            inside = f" of {', '.join(type(item).__name__ for item in loss)}" if isinstance(loss, tuple | list) else ""
            raise TypeError(
                f"the loss function must return a scalar tensor (a mean over the micro-batch), got a "
                f"{type(loss).__name__}{inside}; return the tensor without .item(), or (tensor, metrics) with a dict "
                f"of metrics by name"
            )
        if loss.dim() != 0:
            raise ValueError(f"the loss must be a scalar (a mean over the micro-batch), got shape {tuple(loss.shape)}")
        sources = itertools.chain(leaves, self.parameters())
        if not loss.requires_grad and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in sources):
            raise ValueError(
                f"the loss has no graph, so nothing would be trained: got a tensor of {loss.dtype} that depends on the "
                f"head's input and weights through no differentiable operation; leave out detach(), no_grad(), "
                f"argmax() and integer casts between the network's output and the loss"
            )
        return ModuleTape(leaves, (loss,))


class _MergedStage(Stage):
    """Several stages that act as one stage of the pipeline, with the staleness of one stage.

    A backward still processes the parts one at a time. Each part has a separate graph, and keeps or reconstructs its
    input. Merging therefore reduces staleness and lengthens the step, but needs no memory for larger graphs.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    @property
    def function(self) -> nn.Module:
        return self

    @property
    def invertible(self) -> bool:  # type: ignore[override]  # fixed by the parts, read-only
        """Return whether all parts are invertible."""
        return all(part.invertible for part in self.parts())

    def parts(self) -> tuple[Stage, ...]:
        return tuple(part for stage in self.stages for part in stage.parts())  # type: ignore[operator]  # ModuleList forgets types

    def forward(self, value: Value) -> Value:
        for stage in self.stages:
            value = stage(value)
        return value

    def record(self, inputs: Streams) -> Tape:
        raise TypeError("a merged stage is differentiated part by part; call record() on each of parts()")


def merge(stages: Sequence[Stage]) -> Stage:
    """Merge consecutive stages into one, so that J can be chosen independently of the number of blocks.

    Raises:
        ValueError: If `stages` is empty, or a head is not the last stage.

    """
    parts = [part for stage in stages for part in stage.parts()]
    if not parts:
        raise ValueError("merge() needs at least one stage, got none")
    if any(isinstance(part, HeadStage) for part in parts[:-1]):
        raise ValueError("a HeadStage can only be the last of the stages that are merged")
    return stages[0] if len(stages) == 1 else _MergedStage(stages)


def sequential(stages: Sequence[Stage]) -> nn.Sequential:
    """Return the network as one plain model, from the input to the head's output (logits).

    The model shares the stages' modules, so training or `eval()` on one affects the other.
    """
    return nn.Sequential(*(part for stage in stages for part in stage.parts()))


@contextlib.contextmanager
def in_evaluation_mode(stages: Sequence[Stage]) -> Iterator[None]:
    """Put the stages' modules into evaluation mode in a context, and restore the mode of each module on exit."""
    modes = [(module, module.training) for stage in stages for module in stage.modules()]
    for stage in stages:
        stage.eval()  # a module may override `train`, for example to fold its weights
    try:
        yield
    finally:
        for module, training in modes:
            if training and type(module).train is not nn.Module.train:
                module.train()
        for module, training in modes:
            module.training = training


def copy_stages(stages: Sequence[Stage]) -> list[Stage]:
    """Return copies of stages, also if modules keep results of parameters (torch.nn.utils.weight_norm, prune).

    copy.deepcopy refuses tensors with a graph. The copies of such tensors have none.
    """
    values = (value for stage in stages for module in stage.modules() for value in vars(module).values())
    results = (value for value in values if isinstance(value, Tensor) and value.grad_fn is not None)
    return copy.deepcopy(list(stages), {id(result): result.detach().clone() for result in results})
