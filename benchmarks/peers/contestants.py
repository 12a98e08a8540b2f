"""The contestants: for each other implementation, how a run of our reversible blocks is written with it.

The packages couple blocks in pairs, y1 = x1 + F(x2), y2 = x2 + G(y1); our stage is one residual function and a swap,
(x, x~) -> (x~ + F(x), x). Two of our stages are one of their pairs with x1 = x~ and x2 = x:

    ours      (x, x~) -> (x~ + F(x), x) -> (x + G(x~ + F(x)), x~ + F(x))
    theirs    (x1, x2) -> (x1 + F(x2), x2 + G(x1 + F(x2)))

so all compute the same function of the same weights, and must agree in every gradient. A block without a partner, as
most of a RevNet-18, is a pair whose G is zero, before the swap. What is not reversible (stem, head, the blocks of a
RevNet that change shape) is a plain module for all. Every package is used with its defaults.
"""

import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from petra_core import Pipeline, Stage, methods, models
from petra_core.methods import Method
from petra_core.optimizers import OptimizerFactory

__all__ = ["CONTESTANTS", "Contestant", "PeerTrainer"]

Loss = Callable[[Tensor, Tensor], Tensor]


class PeerTrainer:
    """Trains a model by autograd, whatever happens inside it.

    Args:
        model: from images to logits.
        stages: whose weights these are.
        loss: of logits and labels.
        optimizer: None: weights stay, gradients are kept.

    Attributes:
        ready: steps until one step is like the next.

    """

    ready = 1

    def __init__(
        self, model: nn.Module, stages: Sequence[Stage], loss: Loss, optimizer: OptimizerFactory | None
    ) -> None:
        self._model, self._stages, self._loss = model, stages, loss
        self._optimizer = None if optimizer is None else optimizer(list(model.parameters()))

    def step(self, images: Tensor, labels: Tensor) -> None:
        """Train on a micro-batch."""
        for parameter in self._model.parameters():
            parameter.grad = None
        self._loss(self._model(images), labels).backward()
        if self._optimizer is not None:
            self._optimizer.step()

    def gradients(self) -> list[Tensor]:
        """The gradients of the last step, parameter by parameter of the stages."""
        gradients = [parameter.grad for stage in self._stages for parameter in stage.parameters()]
        assert all(gradient is not None for gradient in gradients), "a parameter has got no gradient"
        return [gradient for gradient in gradients if gradient is not None]


class PipelineTrainer(PeerTrainer):
    """Our own engine; under PETRA a step is a tick, and its gradients are those of earlier micro-batches."""

    def __init__(self, method: Method, stages: Sequence[Stage], loss: Loss, optimizer: OptimizerFactory | None) -> None:
        stages[-1].loss = loss  # type: ignore[assignment]  # of the head
        self._gradients: dict[int, list[Tensor]] = {}
        keep = self._keep if optimizer is None else None
        self._pipeline = Pipeline(stages, method, optimizer=optimizer, seed=0, before_update=keep)
        self.ready = method.staleness(0, len(stages)) + 1

    def step(self, images: Tensor, labels: Tensor) -> None:
        self._pipeline.step(images, labels)

    def _keep(self, index: int, version: int, stage: Stage) -> None:
        self._gradients[index] = [p.grad.clone() for p in stage.parameters() if p.grad is not None]

    def gradients(self) -> list[Tensor]:
        return [gradient for index in sorted(self._gradients) for gradient in self._gradients[index]]


Couple = Callable[[Sequence[nn.Module]], nn.Module]  # F, G, F, G, ... to a package's sequence; even in number


class Zero(nn.Module):
    """The G of a block without a partner; with a graph, which packages take for granted."""

    def forward(self, x: Tensor) -> Tensor:
        """Zeros of the shape of x."""
        return x * 0.0


class TwoStreams(nn.Module):
    """A run of our reversible stages as a package's sequence, which is given both streams side by side."""

    def __init__(self, run: Sequence[Stage], couple: Couple) -> None:
        super().__init__()
        functions = [stage.function for stage in run]
        self.odd = len(functions) % 2 == 1
        self.sequence = couple([*functions, Zero()] if self.odd else functions)

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Two streams [B, C, H, W] -> two of the same shape."""
        x, x_tilde = streams
        first, second = self.sequence(torch.cat([x_tilde, x], dim=1)).chunk(2, dim=1)
        return (first, second) if self.odd else (second, first)


class Checkpointed(nn.Module):
    """Each stage between stem and head under torch's own checkpointing."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, images: Tensor) -> Tensor:
        """Logits [B, classes] of images [B, 3, H, W]."""
        value = self.stages[0](images)
        for stage in self.stages[1:-1]:
            value = checkpoint(stage, value, use_reentrant=False)
        logits: Tensor = self.stages[-1](value)
        return logits


def _with_runs(stages: Sequence[Stage], couple: Couple) -> nn.Module:
    """The network with every run of reversible stages as a package has it."""
    modules: list[nn.Module] = []
    for reversible, group in itertools.groupby(stages, key=lambda stage: stage.invertible):
        run = list(group)
        modules += [TwoStreams(run, couple)] if reversible else run
    return nn.Sequential(*modules)


def revtorch(stages: Sequence[Stage]) -> nn.Module:
    import revtorch as package

    def couple(functions: Sequence[nn.Module]) -> nn.Module:
        pairs = zip(functions[::2], functions[1::2], strict=True)
        return package.ReversibleSequence(nn.ModuleList(package.ReversibleBlock(f, g) for f, g in pairs))

    return _with_runs(stages, couple)


def memcnn(stages: Sequence[Stage]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it decorates with what torch renamed
        import memcnn as package

    def couple(functions: Sequence[nn.Module]) -> nn.Module:
        pairs = zip(functions[::2], functions[1::2], strict=True)
        return nn.Sequential(*(package.InvertibleModuleWrapper(package.AdditiveCoupling(f, g)) for f, g in pairs))

    return _with_runs(stages, couple)


def revlib(stages: Sequence[Stage]) -> nn.Module:
    import revlib as package

    return _with_runs(stages, lambda functions: package.ReversibleSequential(*functions))


@dataclass(frozen=True)
class Contestant:
    """One way of training a network.

    Attributes:
        name: as tables show it.
        made_of: a model of the stages, or the method of our engine.
        package: that has to be installed; None: none but torch.

    """

    name: str
    made_of: Callable[[Sequence[Stage]], nn.Module] | Method
    package: str | None = None

    @property
    def ours(self) -> bool:
        """Whether it is a method of our engine."""
        return isinstance(self.made_of, Method)

    def trainer(self, stages: Sequence[Stage], loss: Loss, optimizer: OptimizerFactory | None) -> PeerTrainer:
        """A trainer that is ready for its first step; it shares the weights of `stages`."""
        if isinstance(self.made_of, Method):
            return PipelineTrainer(self.made_of, stages, loss, optimizer)
        return PeerTrainer(self.made_of(stages), stages, loss, optimizer)


CONTESTANTS = (
    Contestant("autograd", models.sequential),
    Contestant("torch.utils.checkpoint", Checkpointed),
    Contestant("RevTorch", revtorch, "revtorch"),
    Contestant("memcnn", memcnn, "memcnn"),
    Contestant("revlib", revlib, "revlib"),
    Contestant("ours, reversible backpropagation", methods.REVERSIBLE_BACKPROPAGATION),
    Contestant("ours, PETRA", methods.PETRA),
)
