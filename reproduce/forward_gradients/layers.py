"""Per-sample weight gradients of a layer, and the change of its output under per-sample changes of its weights.

A layer's output is linear in its weights: z_n = r(a_n; w), where a_n is the input of sample n (for BatchNorm, the
normalised input). Let d_n be the gradient at z_n. Sample n's share of the weight gradient is the transpose of r applied
to d_n, and the shares sum to autograd's gradient of the batch. With batch statistics the shares are still well defined,
while "the gradient of one sample's loss" would be a different quantity. A change G_n of the weights that only sample n
sees changes z_n by r(a_n; G_n). Pushing this change forward gives <T_n, G_n>.

Both functions are written for one sample and vectorised by `torch.func.vmap`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True)
class Layer:
    """A module with direct parameters.

    Attributes:
        name: Name of the module in the block.
        module: The module.

    """

    name: str
    module: nn.Module

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The parameters by name: `weight` and, if there is one, `bias`."""
        return dict(self.module.named_parameters(recurse=False))


def layers_of(block: nn.Module) -> list[Layer]:
    """Return the layers of a block that have parameters.

    Raises:
        ValueError: If per-sample gradients of a layer's type are not implemented.

    """
    layers = [Layer(name, module) for name, module in block.named_modules() if module._parameters]
    layers = [layer for layer in layers if layer.parameters]
    for layer in layers:
        if not isinstance(layer.module, (nn.Conv2d, nn.Linear, *NORMS)):
            raise ValueError(
                f"{layer.name or 'the block'} is a {type(layer.module).__name__} with parameters, and weight spaces "
                f"support Conv2d, Linear, BatchNorm1d and BatchNorm2d; use the space 'activations', which supports any "
                f"module"
            )
    return layers


@dataclass
class Observed:
    """Tensors that hooks recorded at a block's layers, by name of the layer.

    Attributes:
        features: Arguments a_n of r in the forward, [B, ...].
        gradients: Gradients at the outputs in the last backward through the block, [B, ...].

    """

    features: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)

    def taken(self) -> dict[str, Tensor]:
        """Return the gradients at the outputs and remove them from this object."""
        gradients, self.gradients = self.gradients, {}
        return gradients


@contextmanager
def observing(layers: Sequence[Layer]) -> Iterator[Observed]:
    """Record the features of one forward in a context, and the gradients of its backwards, also after the context."""
    seen = Observed()

    def hook(layer: Layer) -> Callable[[nn.Module, tuple[Any, ...], Tensor], None]:
        def gone_back(gradient: Tensor) -> None:
            seen.gradients[layer.name] = gradient.detach()

        def note(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if layer.name in seen.features:
                raise ValueError(f"{layer.name} is used twice in its block; use a separate layer for each use")
            seen.features[layer.name] = _features(layer, inputs[0].detach())
            # The hook belongs to this version of the tensor: an in-place ReLU may overwrite the tensor afterwards.
            output.register_hook(gone_back)  # type: ignore[no-untyped-call]  # torch has no types here

        return note

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.module.register_forward_hook(hook(layer)).remove)
        yield seen


def _features(layer: Layer, inputs: Tensor) -> Tensor:
    """Return the argument a of r: the input of the layer, normalised if it is a BatchNorm."""
    if not isinstance(layer.module, NORMS):
        return inputs
    norm = layer.module
    batch = norm.training or norm.running_mean is None
    means = (None, None) if batch else (norm.running_mean, norm.running_var)
    return nn.functional.batch_norm(inputs, *means, training=batch, eps=norm.eps)


def _response(layer: Layer) -> Callable[[Mapping[str, Tensor], Tensor], Tensor]:
    """Return r(w, a) for one sample, without the batch dimension."""

    def response(weights: Mapping[str, Tensor], features: Tensor) -> Tensor:
        if isinstance(layer.module, NORMS):
            shape = (-1, *(1 for _ in features.shape[1:]))
            return features * weights["weight"].view(shape) + weights["bias"].view(shape)
        output: Tensor = functional_call(layer.module, dict(weights), (features[None],))
        return output[0]

    return response


def shares(layer: Layer, features: Tensor, gradients: Tensor) -> dict[str, Tensor]:
    """Return each sample's share of the layer's weight gradient, by parameter: [B, *shape of the parameter].

    Args:
        layer: The layer.
        features: Features recorded in the forward, [B, ...].
        gradients: Gradients at the layer's output, [B, ...].

    """
    response, parameters = _response(layer), {name: p.detach() for name, p in layer.parameters.items()}

    def share(a: Tensor, d: Tensor) -> dict[str, Tensor]:
        """Return the share of one sample, a vector-Jacobian product with the sample's gradient."""
        of_sample: dict[str, Tensor] = vjp(lambda weights: response(weights, a), parameters)[1](d)[0]
        return of_sample

    return dict(vmap(share)(features, gradients))


def shift(layer: Layer, features: Tensor, changes: Mapping[str, Tensor]) -> Tensor:
    """Return the change of the layer's output, [B, ...], under per-sample changes of its parameters.

    Args:
        layer: The layer.
        features: Features recorded in the forward, [B, ...].
        changes: Changes by parameter name, [B, *shape of the parameter]. Missing parameters do not change.

    """
    count = len(features)
    whole = {
        name: changes.get(name, torch.zeros_like(parameter).expand(count, *parameter.shape))
        for name, parameter in layer.parameters.items()
    }
    output: Tensor = vmap(_response(layer))(whole, features)
    return output
