"""A check that no residual function is dead from the start.

Initialising the last BatchNorm weight of every residual function to zero is a well-known trick (Goyal et al. 2017), and
in a ResNet it is sound: the block begins as the identity, and the weight's gradient is not zero. A RevNet's residual
function ends in a ReLU, *after* that BatchNorm. There the trick kills: ReLU(0) is 0 with derivative 0, so neither the
BatchNorm nor anything before it ever receives a gradient.
"""

import torch
from torch import Tensor, nn


def check_residual(residual: nn.Module) -> None:
    """Refuse a residual function that can only return zero and never learns to do otherwise.

    That is one whose last layer is a ReLU, right after an affine layer (BatchNorm, convolution, linear) with
    a weight of zeros and no positive bias.

    Args:
        residual: the function F of a reversible stage; its layers are looked at in the order of their registration.

    Raises:
        ValueError: F is such a function.

    """
    layers = [layer for layer in residual.modules() if _is_leaf(layer) and not isinstance(layer, nn.Identity)]
    if len(layers) < 2 or not isinstance(layers[-1], nn.ReLU | nn.ReLU6):
        return
    weight, bias = getattr(layers[-2], "weight", None), getattr(layers[-2], "bias", None)
    if not isinstance(weight, Tensor) or weight.is_meta or torch.count_nonzero(weight):
        return
    if isinstance(bias, Tensor) and bool((bias > 0).any()):
        return
    kind = type(layers[-2]).__name__
    raise ValueError(
        f"the residual function ends in {kind} and ReLU, and all {weight.numel()} weights of that {kind} are 0: "
        f"ReLU passes no gradient at 0, so the block would stay 0 for ever; initialise the weight to 1 "
        f"(zero initialisation is for residual functions without a ReLU at their end)"
    )


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None
