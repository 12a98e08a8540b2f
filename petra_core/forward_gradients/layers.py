"""What each sample's share of a layer's weight gradient is, and where a change of its weights shows.

A layer's output is linear in its weights: z_n = r(a_n; w), with a_n the sample's input (of BatchNorm the normalised
one). With d_n the gradient at z_n, sample n's share of the weights' gradient is the transpose of r applied to d_n, and
these shares sum up to autograd's gradient of the batch. They are well defined under batch statistics too, where "the
gradient of one sample's loss" would be another thing. And a change G_n of the weights, seen by sample n alone, changes
z_n by r(a_n; G_n): pushed forward from there it gives <T_n, G_n>.

Both are written for one sample, and `torch.func.vmap` does all of them together.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.grad import conv2d_weight

__all__ = ["NORMS", "Layer", "Observed", "layers_of", "observing", "shares", "shifted"]

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class Layer:
    """A module whose parameters are its own, under its name in the block."""

    name: str
    module: nn.Module

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the layer by name: `weight` and, where there is one, `bias`."""
        return dict(self.module.named_parameters(recurse=False))


def layers_of(block: nn.Module) -> list[Layer]:
    """The layers of a block that have parameters.

    Raises:
        ValueError: one is of a kind whose weights cannot be told apart by sample here.

    """
    layers = [Layer(name, module) for name, module in block.named_modules() if module._parameters]
    layers = [layer for layer in layers if layer.parameters]
    for layer in layers:
        if not isinstance(layer.module, (nn.Conv2d, nn.Linear, *NORMS)):
            raise ValueError(
                f"{layer.name or 'the block'} is a {type(layer.module).__name__} with parameters, and weight spaces "
                f"take Conv2d, Linear, BatchNorm1d and BatchNorm2d; the space 'activations' takes any module"
            )
    return layers


@dataclass
class Observed:
    """What was seen of a block's layers, by name.

    Attributes:
        features: of the forward, what r is given: [B, ...].
        gradients: at the outputs, of the last backward through the block: [B, ...].

    """

    features: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)

    def taken(self) -> dict[str, Tensor]:
        """The gradients at the outputs, which are then forgotten."""
        gradients, self.gradients = self.gradients, {}
        return gradients


@contextmanager
def observing(layers: Sequence[Layer]) -> Iterator[Observed]:
    """Context in which a forward is observed; its backwards are, also after it."""
    seen = Observed()

    def hook(layer: Layer) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def gone_back(gradient: Tensor) -> None:
            seen.gradients[layer.name] = gradient.detach()

        def note(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if layer.name in seen.features:
                raise ValueError(f"{layer.name} is used twice in its block; give each use a layer of its own")
            seen.features[layer.name] = _features(layer, inputs[0].detach())
            # Of the tensor as it is now: a ReLU in place may write to it next, and gradients are of before that.
            output.register_hook(gone_back)  # type: ignore[no-untyped-call]  # torch has no types here

        return note

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.module.register_forward_hook(hook(layer)).remove)
        yield seen


def _features(layer: Layer, inputs: Tensor) -> Tensor:
    """What the output is linear in: the input, of BatchNorm as its statistics normalise it."""
    if not isinstance(layer.module, NORMS):
        return inputs
    norm = layer.module
    batch = norm.training or norm.running_mean is None
    means = (None, None) if batch else (norm.running_mean, norm.running_var)
    return nn.functional.batch_norm(inputs, *means, training=batch, eps=norm.eps)


def _response(layer: Layer) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """r(w, a) of one sample, without its batch dimension."""

    def response(weights: Mapping[str, Tensor], features: Tensor) -> Tensor:
        if isinstance(layer.module, NORMS):
            shape = (-1, *(1 for _ in features.shape[1:]))
            return features * weights["weight"].view(shape) + weights["bias"].view(shape)
        output: Tensor = functional_call(layer.module, dict(weights), (features[None],))
        return output[0]

    return response


def shares(layer: Layer, features: Tensor, gradients: Tensor) -> dict[str, Tensor]:
    """Each sample's share of the layer's weight gradient, by parameter: [B, *shape of the parameter].

    Args:
        layer: of a block.
        features: as observed in the forward, [B, ...].
        gradients: at its output, [B, ...].

    """
    module = layer.module

    def share(a: Tensor, d: Tensor) -> dict[str, Tensor]:
        """The share of one sample: a outer d, summed over all places at which the weights are used."""
        places = tuple(range(d.dim() - 1)) if isinstance(module, nn.Linear) else tuple(range(1, d.dim()))
        if isinstance(module, nn.Conv2d):
            stride = module.stride
            if module.kernel_size == (1, 1):  # whose strided form is not safe (`petra_core.models.pointwise`)
                a, stride = a[:, :: stride[0], :: stride[1]], (1, 1)
            rest = stride, module.padding, module.dilation, module.groups
            # torch has no types here
            weight = conv2d_weight(a[None], module.weight.shape, d[None], *rest)  # type: ignore[no-untyped-call]
        elif isinstance(module, nn.Linear):
            weight = torch.tensordot(d, a, (places, places)) if places else torch.outer(d, a)
        else:
            weight = (a * d).sum(places) if places else a * d
        by_name = {"weight": weight, "bias": d.sum(places) if places else d}
        return {name: by_name[name] for name in layer.parameters}

    return dict(vmap(share)(features, gradients))


def shifted(layer: Layer, features: Tensor, changes: Mapping[str, Tensor]) -> Tensor:
    """The change of the layer's output, [B, ...], that changes [B, *shape] of its parameters make, each by its sample.

    A parameter that is not among them does not change.
    """
    count = len(features)
    whole = {
        name: changes.get(name, torch.zeros_like(parameter).expand(count, *parameter.shape))
        for name, parameter in layer.parameters.items()
    }
    output: Tensor = vmap(_response(layer))(whole, features)
    return output
