"""A block with its state, one evaluation of it, and a guess for one of its tensors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from petra_core.forward_gradients.layers import Layer, observing
from petra_core.forward_gradients.settings import EPS, Guess, Scaling, Target
from petra_core.ledger import Ledger
from petra_core.randomness import RandomStream
from petra_core.stages import Stage

__all__ = ["BlockEvaluation", "Guessed", "LocalBlock", "dot", "factors", "trainable"]


def factors(product: Tensor, squared: Tensor, scaling: Scaling) -> Tensor:
    """What stands before each guess by a rule, from <T_n, G_n> and ||G_n||^2, all [n]."""
    if scaling is Scaling.PROJECTED:
        return product / (squared + EPS)
    return product if scaling is Scaling.PLAIN else product.sign()


@dataclass
class Guessed:
    """A guess for one tensor of n samples (n = 1: of the batch as a whole), with what is known of its target.

    Attributes:
        guess: G, [n, ...].
        product: <T, G>, [n].
        target_squared: ||T||^2, [n]; NaN in forward mode, where T is unknown.
        layer: whose parameter it is of; None: it is of the block's output.
        name: of the parameter.

    """

    guess: Tensor
    product: Tensor
    target_squared: Tensor
    layer: Layer | None = None
    name: str = ""

    @property
    def squared(self) -> Tensor:
        """||G||^2, [n]."""
        return dot(self.guess, self.guess)

    def along(self, factor: Tensor) -> Tensor:
        """The guess times a number for each sample, [n, ...]."""
        return self.guess * factor.view(-1, *(1 for _ in self.guess.shape[1:]))


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module that are not frozen."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The product of each sample's numbers, [n], of tensors [n, ...]."""
    return (a * b).flatten(1).sum(1)


@dataclass
class LocalBlock:
    """A block that trains by forward gradients, or the last one, and all its state."""

    index: int
    stage: Stage
    layers: list[Layer]
    auxiliary: nn.Module | None  # trained, on its own loss
    drawn: nn.Module | None  # never trained: where guesses come from
    optimizer: torch.optim.Optimizer | None
    stream: RandomStream  # of its noise, dropout and redrawn networks, whatever the order of the blocks
    ledger: Ledger = field(default_factory=Ledger)
    graph_bytes: int | None = None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What it holds, by the name in a state."""
        modules = {"stage": self.stage, "auxiliary": self.auxiliary, "drawn": self.drawn}
        return {name: module for name, module in modules.items() if module is not None}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that are trained: of the stage and of its own auxiliary network."""
        return [p for m in (self.stage, self.auxiliary) if m is not None for p in trainable(m)]


class BlockEvaluation:
    """One evaluation of a block with a graph of its own, and the gradients that are sent through it."""

    def __init__(self, block: LocalBlock, x: Tensor, sources: "Callable[[BlockEvaluation, Any], Tensor]") -> None:
        if not x.is_floating_point():
            raise TypeError(f"block {block.index} gets {x.dtype}; forward gradients need inputs of floating point")
        self.block, self._sources = block, sources
        self.input = x.detach().requires_grad_()
        self._at_output: dict[str, Tensor] = {}
        self._pulled: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
        with observing(block.layers) as self.seen:
            output = block.stage(self.input)
        if not isinstance(output, Tensor):
            raise TypeError(
                f"block {block.index} gives {len(output)} tensors; forward gradients need blocks that give one, "
                f"such as those of a ResNet"
            )
        self.output = output

    def at_output(self, source: Target | Guess) -> Tensor:
        """The gradient of that name at the block's output."""
        if source.value not in self._at_output:
            self._at_output[source.value] = self._sources(self, source)
        return self._at_output[source.value]

    def pulled(self, source: Target | Guess) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of that name at the block's input, and at the outputs of its layers."""
        if source.value not in self._pulled:
            gradient = self.at_output(source)
            below = torch.autograd.grad(self.output, self.input, gradient, retain_graph=True)[0]
            self._pulled[source.value] = below, self.seen.taken()
        return self._pulled[source.value]

    def note(self, source: Target, below: Tensor) -> None:
        """Take in a gradient at the block's input that has been found elsewhere: the last block's."""
        self._pulled[source.value] = below, {}

    def train(self, gradient: Tensor) -> None:
        """Give the block's parameters the gradients that this one at its output makes."""
        if parameters := trainable(self.block.stage):
            # Another gradient may still be sent through the graph.
            torch.autograd.backward(self.output, gradient, inputs=parameters, retain_graph=True)
