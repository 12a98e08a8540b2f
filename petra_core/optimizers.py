"""Make the optimizer of each stage, and set its learning rate.

`sgd` is the paper's optimizer (arXiv 2406.02052, section 4.1): SGD with Nesterov momentum 0.9, and weight decay on
weight tensors only. `adamw` is the usual optimizer of transformers. `nadam` is that of asynchronous Nesterov
(arXiv 2505.01099), which compensates for delay with a large momentum.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from petra_core.errors import check_number

if TYPE_CHECKING:  # keep this module importable without torch
    import torch
    from torch import Tensor
    from torch.nn import Parameter

#: Makes the optimizer of a stage from its parameters, or from its named parameters and its index.
OptimizerFactory: TypeAlias = (
    Callable[["list[Parameter]"], "torch.optim.Optimizer"]
    | Callable[["list[tuple[str, Parameter]]", int], "torch.optim.Optimizer"]
)


def optimizer_of(
    factory: OptimizerFactory, stage: int, named: "Sequence[tuple[str, Parameter]]"
) -> "torch.optim.Optimizer":
    """Return the optimizer that a factory makes for a stage.

    A factory with two required arguments is called with the named parameters and the index of the stage. Any other
    factory is called with the parameters.
    """
    make: Any = factory
    if len(required_arguments(factory)) == 2:
        return make(list(named), stage)  # type: ignore[no-any-return]  # `check_optimizer` checks it
    return make([parameter for _, parameter in named])  # type: ignore[no-any-return]  # as above


def required_arguments(function: Callable[..., object]) -> list[str]:
    """Return the names of the arguments without a default; one name for a function without a signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return ["parameters"]
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def sgd(
    learning_rate: float, *, momentum: float = 0.9, nesterov: bool = True, weight_decay: float = 0.0
) -> OptimizerFactory:
    """Return a factory of SGD for the parameters of a stage: `Pipeline(..., optimizer=sgd(0.1))`.

    Parameters of at most one dimension (BatchNorm's and biases) are a separate group without weight decay. The paper
    uses a weight decay of 5e-4 on CIFAR and 1e-4 on ImageNet.

    Raises:
        ValueError: If a number is out of range, or Nesterov is used without momentum.
        TypeError: If an argument has the wrong type.

    """
    check_number("momentum", momentum, below=1.0)
    if nesterov and momentum == 0:
        raise ValueError("Nesterov's method needs a momentum above 0, got 0; set nesterov=False for plain SGD")
    return _factory("SGD", learning_rate, weight_decay, momentum=momentum, nesterov=nesterov)


def adamw(
    learning_rate: float, *, beta1: float = 0.9, beta2: float = 0.999, weight_decay: float = 0.0
) -> OptimizerFactory:
    """Return a factory of AdamW (Loshchilov & Hutter 2019) for the parameters of a stage, like `sgd`.

    Parameters of at most one dimension (biases and those of norms) have no weight decay. A two-dimensional bias, such
    as Swin's relative position bias, has weight decay.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If an argument has the wrong type.

    """
    betas = check_number("beta1", beta1, below=1.0), check_number("beta2", beta2, below=1.0)
    return _factory("AdamW", learning_rate, weight_decay, betas=betas)


def nadam(
    learning_rate: float,
    *,
    beta1: float = 0.99,
    beta2: float = 0.999,
    momentum_decay: float = 0.004,
    weight_decay: float = 0.0,
) -> OptimizerFactory:
    """Return a factory of NAdam (Dozat 2016) with decoupled weight decay, like `adamw`.

    The defaults are those of asynchronous Nesterov (Ajanthan et al. 2025, arXiv 2505.01099). Its momentum of 0.99
    discounts stale gradients by the factor 1 - 0.99 and looks ahead along the past steps.

    Raises:
        ValueError: If a number is out of range.
        TypeError: If an argument has the wrong type.

    """
    betas = check_number("beta1", beta1, below=1.0), check_number("beta2", beta2, below=1.0)
    psi = check_number("momentum_decay", momentum_decay)
    return _factory("NAdam", learning_rate, weight_decay, betas=betas, momentum_decay=psi, decoupled_weight_decay=True)


def rate_ratios(optimizer: "torch.optim.Optimizer") -> list[float]:
    """Return the ratio of each parameter group's learning rate to that of the first.

    If all rates are 0 or missing, the ratios are 1. If only the first is 0, the other ratios are infinite.
    """
    rates = [float(group.get("lr") or 0.0) for group in optimizer.param_groups]
    if not rates[0]:
        return [math.inf if rate else 1.0 for rate in rates]
    return [rate / rates[0] for rate in rates]


def set_rate(optimizer: "torch.optim.Optimizer", learning_rate: float, ratios: Sequence[float] | None = None) -> None:
    """Use `learning_rate` from the next update on.

    If the optimizer's rate is a tensor, it is updated in place, so that a recorded CUDA graph sees the change. It is
    written only when the rate changes, to avoid one kernel per group in every step. The value is stored as an attribute
    of the tensor, because reading it would synchronise with the device. The tensor's version is stored with it, to
    detect changes by others, such as a scheduler.

    Args:
        optimizer: The optimizer.
        learning_rate: Rate of a parameter group whose ratio is 1.
        ratios: Factor of the rate for each parameter group; None for 1.

    Raises:
        ValueError: If a ratio is infinite, or the optimizer has another number of groups.

    """
    from torch import Tensor

    ratios = ratios or [1.0] * len(optimizer.param_groups)
    if len(ratios) != len(optimizer.param_groups):
        raise ValueError(
            f"the optimizer has {len(optimizer.param_groups)} parameter groups, but was made with {len(ratios)}, so "
            f"the ratios of the new rates to the first are unknown; make all groups in the factory"
        )
    if not all(map(math.isfinite, ratios)):
        raise ValueError(
            "the optimizer was made with a learning rate of 0 for its first parameter group, so the ratios of the "
            "other rates to it are unknown; make it with the rates of a full step, and lower them afterwards"
        )
    for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
        rate: Any = group["lr"]
        new = learning_rate * ratio
        if not isinstance(rate, Tensor):
            group["lr"] = new
        elif getattr(rate, "written", None) != (new, rate._version):
            rate.fill_(new)
            setattr(rate, "written", (new, rate._version))  # noqa: B010  # Tensor does not declare it


def _factory(kind: str, learning_rate: float, weight_decay: float, **settings: Any) -> OptimizerFactory:
    """Return a factory of a class of torch.optim. It is not a closure, because spawned processes receive it pickled."""
    rate, decay = check_number("learning_rate", learning_rate), check_number("weight_decay", weight_decay)
    return functools.partial(_make, kind=kind, lr=rate, weight_decay=decay, **settings)


def _make(
    parameters: "Iterable[Tensor]", *, kind: str, weight_decay: float, **settings: Any
) -> "torch.optim.Optimizer":
    """Return an optimizer with two groups: weights, and parameters of at most one dimension without weight decay."""
    import torch

    given = list(parameters)
    weights, others = [p for p in given if p.dim() > 1], [p for p in given if p.dim() <= 1]
    groups = [{"params": weights, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)([g for g in groups if g["params"]], **settings)
    return optimizer
