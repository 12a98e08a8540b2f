"""The environment of an evaluation: which weights and buffers a block's function sees, and in which precision.

A graph is recorded in one environment and differentiated later. Most graphs hold all they need, but some evaluate again
while they are differentiated: `torch.utils.checkpoint`, an `autograd.Function` whose backward calls the module, a hook.
Whatever they look up then must be what the recording saw. So the same contexts are entered around a recording and
around its backward.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["BackwardWatch", "StageWeights", "Weights", "precision"]

StageWeights = Mapping[str, Tensor]  # parameters of a block's function by name, in place of its own


class Weights:
    """The trained parameters of a function, and contexts in which it sees others in their place.

    Args:
        function: the module of a block.

    Attributes:
        trained: the parameters that require gradients, by name.

    """

    def __init__(self, function: nn.Module) -> None:
        self.trained = {name: p for name, p in function.named_parameters() if p.requires_grad}
        names = {id(parameter): name for name, parameter in self.trained.items()}
        # Every place in which a trained parameter is registered; a tied one has several.
        self._places = [
            (module._parameters, key, names[id(parameter)])
            for module in function.modules()
            for key, parameter in module._parameters.items()
            if id(parameter) in names
        ]

    @contextlib.contextmanager
    def replaced(self, weights: StageWeights | None) -> Iterator[None]:
        """Context in which the function sees `weights`, or its own parameters if they are None."""
        if weights is None:
            yield
            return
        own = [parameters[key] for parameters, key, _ in self._places]
        for parameters, key, name in self._places:
            parameters[key] = weights[name]  # type: ignore[assignment]  # a tensor, as in torch.func.functional_call
        try:
            yield
        finally:
            for (parameters, key, _), parameter in zip(self._places, own, strict=True):
                parameters[key] = parameter


def precision(device: torch.device, autocast: torch.dtype | None) -> contextlib.AbstractContextManager[object]:
    """Return the autocast context of a block, without autocast's cache of cast weights.

    A cast made in a forward without a graph would be used again by the backward's evaluation, which would then give the
    weight no gradient; and a cast made before an update would outlive it.

    Args:
        device: where the block computes.
        autocast: dtype of the mixed precision; None for the caller's.

    """
    kind = device.type
    if autocast is None and not torch.is_autocast_enabled(kind):
        return contextlib.nullcontext()
    return torch.autocast(kind, dtype=autocast or torch.get_autocast_dtype(kind), cache_enabled=False)


class BackwardWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch gives it no types
    """Context around a backward that notes whether something in it evaluates with a graph.

    Attributes:
        evaluates: whether an operation ran with gradients switched on.

    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.evaluates = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.evaluates = self.evaluates or torch.is_grad_enabled()
        return func(*args, **(kwargs or {}))
