"""Define the contestants: how each implementation expresses a run of reversible blocks.

The packages couple blocks in pairs, y1 = x1 + F(x2), y2 = x2 + G(y1). A stage of this project is one residual function
and a swap, (x, x~) -> (x~ + F(x), x). Two of these stages equal one such pair with x1 = x~ and x2 = x:

    ours      (x, x~) -> (x~ + F(x), x) -> (x + G(x~ + F(x)), x~ + F(x))
    theirs    (x1, x2) -> (x1 + F(x2), x2 + G(x1 + F(x2)))

So all of them compute the same function of the same weights and must agree in every gradient. A block without a
partner, as most blocks of RevNet-18, is a pair with G = 0, before the swap. Stages that are not reversible (stem, head,
and the RevNet blocks that change the shape) are plain modules for all contestants. Every package is used with its
defaults.
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

Loss = Callable[[Tensor, Tensor], Tensor]


class PeerTrainer:
    """Train a model with autograd.

    Args:
        model: Maps images to logits.
        stages: Stages that own the weights.
        loss: Maps logits and labels to a loss.
        optimizer: Factory of the optimizer, or None to keep weights and gradients.

    Attributes:
        ready: Number of steps after which all steps are alike.

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
        """Return the gradients of the last step, in the order of the stages' parameters."""
        gradients = [parameter.grad for stage in self._stages for parameter in stage.parameters()]
        assert all(gradient is not None for gradient in gradients), "a parameter has no gradient"
        return [gradient for gradient in gradients if gradient is not None]


class PipelineTrainer(PeerTrainer):
    """Train with this project's engine.

    Under PETRA a step is a tick, and its gradients belong to earlier micro-batches.
    """

    def __init__(self, method: Method, stages: Sequence[Stage], loss: Loss, optimizer: OptimizerFactory | None) -> None:
        stages[-1].loss = loss  # type: ignore[assignment]  # the head's
        self._gradients: dict[int, list[Tensor]] = {}
        keep = self._keep if optimizer is None else None
        self._pipeline = Pipeline(stages, method, optimizer=optimizer, seed=0, before_update=keep)
        self.ready = self._pipeline.staleness[0] + 1

    def step(self, images: Tensor, labels: Tensor) -> None:
        self._pipeline.step(images, labels)

    def _keep(self, index: int, version: int, stage: Stage) -> None:
        self._gradients[index] = [p.grad.clone() for p in stage.parameters() if p.grad is not None]

    def gradients(self) -> list[Tensor]:
        return [gradient for index in sorted(self._gradients) for gradient in self._gradients[index]]


Couple = Callable[[Sequence[nn.Module]], nn.Module]  # F, G, F, G, ... (an even number) -> a package's sequence


class Zero(nn.Module):
    """Stand in for the G of a block without a partner. The result has a graph, which packages require."""

    def forward(self, x: Tensor) -> Tensor:
        """Return zeros of the shape of x."""
        return x * 0.0


class TwoStreams(nn.Module):
    """Wrap a run of reversible stages as a package's sequence, which takes both streams concatenated."""

    def __init__(self, run: Sequence[Stage], couple: Couple) -> None:
        super().__init__()
        functions = [stage.function for stage in run]
        self.odd = len(functions) % 2 == 1
        self.sequence = couple([*functions, Zero()] if self.odd else functions)

    def forward(self, streams: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Map two streams [B, C, H, W] to two streams of the same shape."""
        x, x_tilde = streams
        first, second = self.sequence(torch.cat([x_tilde, x], dim=1)).chunk(2, dim=1)
        return (first, second) if self.odd else (second, first)


class Checkpointed(nn.Module):
    """Apply torch's checkpointing to each stage between stem and head."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits [B, classes] of images [B, 3, H, W]."""
        value = self.stages[0](images)
        for stage in self.stages[1:-1]:
            value = checkpoint(stage, value, use_reentrant=False)
        logits: Tensor = self.stages[-1](value)
        return logits


def _with_runs(stages: Sequence[Stage], couple: Couple) -> nn.Module:
    """Build the network and replace every run of reversible stages by a package's sequence."""
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
        warnings.simplefilter("ignore")  # it uses a decorator that torch has renamed
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
    """One implementation of training.

    Attributes:
        name: Name in tables.
        made_of: Function that makes a model of the stages, or a method of this project's engine.
        package: Package that must be installed, or None if torch is enough.

    """

    name: str
    made_of: Callable[[Sequence[Stage]], nn.Module] | Method
    package: str | None = None

    @property
    def ours(self) -> bool:
        """Return whether this is a method of this project's engine."""
        return isinstance(self.made_of, Method)

    def trainer(self, stages: Sequence[Stage], loss: Loss, optimizer: OptimizerFactory | None) -> PeerTrainer:
        """Make a trainer that is ready for its first step. It shares the weights of `stages`."""
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
