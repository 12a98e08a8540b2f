"""Define a block with its state, one evaluation of a block, and a guess for one of its tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from petra_core.ledger import Ledger
from petra_core.randomness import RandomStream
from petra_core.stages import Stage
from reproduce.forward_gradients.layers import Layer, observing
from reproduce.forward_gradients.settings import EPS, Guess, Scaling, Target


def factors(product: Tensor, squared: Tensor, scaling: Scaling) -> Tensor:
    """Return the factor of each guess, [n].

    Args:
        product: Products <T_n, G_n> of target and guess, [n].
        squared: Squared norms ||G_n||^2, [n].
        scaling: The rule for the factor.

    """
    if scaling is Scaling.PROJECTED:
        return product / (squared + EPS)
    return product if scaling is Scaling.PLAIN else product.sign()


@dataclass
class Guessed:
    """A guess for one tensor, for n samples (n = 1 if it is for the whole batch).

    Attributes:
        guess: The guess G, [n, ...].
        product: The product <T, G> with the target, [n].
        target_squared: Squared norm ||T||^2 of the target, [n]; NaN in forward mode, where T is unknown.
        layer: Layer whose parameter the tensor is; None if the tensor is the block's output.
        name: Name of the parameter.

    """

    guess: Tensor
    product: Tensor
    target_squared: Tensor
    layer: Layer | None = None
    name: str = ""

    @property
    def squared(self) -> Tensor:
        """Squared norm ||G||^2, [n]."""
        return dot(self.guess, self.guess)

    def along(self, factor: Tensor) -> Tensor:
        """Return the guess times one factor per sample, [n, ...]."""
        return self.guess * factor.view(-1, *(1 for _ in self.guess.shape[1:]))


def trainable(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a module that are not frozen."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the dot product of each sample's tensors: [n, ...] and [n, ...] -> [n]."""
    return (a * b).flatten(1).sum(1)


@dataclass
class LocalBlock:
    """A block and all its state.

    Attributes:
        index: Index of the block.
        stage: The stage that the block trains.
        layers: Layers with parameters; empty if the space is ACTIVATIONS, and for the last block.
        auxiliary: Auxiliary network that is trained on a separate loss.
        drawn: Randomly drawn auxiliary network that is never trained and only provides guesses.
        optimizer: Optimizer of stage and auxiliary network; None if there is nothing to train.
        stream: Source of noise, dropout masks and redrawn networks, independent of the order of the blocks.
        ledger: Bytes that the block holds.
        graph_bytes: Bytes that autograd saves in one evaluation; None before the first.

    """

    index: int
    stage: Stage
    layers: list[Layer]
    auxiliary: nn.Module | None
    drawn: nn.Module | None
    optimizer: torch.optim.Optimizer | None
    stream: RandomStream
    ledger: Ledger
    graph_bytes: int | None = None

    @property
    def modules(self) -> dict[str, nn.Module]:
        """The modules of the block by their names in a state dict."""
        modules = {"stage": self.stage, "auxiliary": self.auxiliary, "drawn": self.drawn}
        return {name: module for name, module in modules.items() if module is not None}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters of the stage and of the auxiliary network."""
        return [p for m in (self.stage, self.auxiliary) if m is not None for p in trainable(m)]


class BlockEvaluation:
    """One evaluation of a block with a separate graph, and the gradients that are propagated through it.

    Args:
        block: The block.
        x: Input of the block, [B, ...].
        sources: Function that computes the gradient of a given target or guess at the block's output.

    """

    def __init__(self, block: LocalBlock, x: Tensor, sources: "Callable[[BlockEvaluation, Any], Tensor]") -> None:
        if not x.is_floating_point():
            raise TypeError(
                f"the input of block {block.index} is {x.dtype}; forward gradients need floating-point inputs"
            )
        self.block, self._sources = block, sources
        self.input = x.detach().requires_grad_()
        self._at_output: dict[str, Tensor] = {}
        self._pulled: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
        with observing(block.layers) as self.seen:
            output = block.stage(self.input)
        if not isinstance(output, Tensor):
            raise TypeError(
                f"block {block.index} returns {len(output)} tensors; forward gradients need blocks that return one, "
                f"such as those of a ResNet"
            )
        self.output = output

    def at_output(self, source: Target | Guess) -> Tensor:
        """Return the gradient of a target or guess at the block's output, [B, ...]."""
        if source.value not in self._at_output:
            self._at_output[source.value] = self._sources(self, source)
        return self._at_output[source.value]

    def pull(self, source: Target | Guess) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradient of a target or guess at the block's input, and at the outputs of its layers by name."""
        if source.value not in self._pulled:
            gradient = self.at_output(source)
            below = torch.autograd.grad(self.output, self.input, gradient, retain_graph=True)[0]
            self._pulled[source.value] = below, self.seen.taken()
        return self._pulled[source.value]

    def note(self, source: Target, below: Tensor) -> None:
        """Store a gradient at the block's input that was computed elsewhere. This is used for the last block."""
        self._pulled[source.value] = below, {}

    def train(self, gradient: Tensor) -> None:
        """Backpropagate a gradient at the block's output to its parameters."""
        if parameters := trainable(self.block.stage):
            # The graph is retained because another gradient may still be propagated through it.
            torch.autograd.backward(self.output, gradient, inputs=parameters, retain_graph=True)
