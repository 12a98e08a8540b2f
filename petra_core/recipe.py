"""The training recipe of the paper (arXiv 2406.02052, section 4.1).

SGD with Nesterov momentum 0.9, weight decay on weight tensors only, a learning rate in proportion to the samples of an
update, a warm-up that is linear from 0, then drops to a tenth.

The learning rate is a function of the number of the *micro-batch* and not of the update. In a pipeline there is no such
thing as "the" update: at one moment each stage is at another one, while all of them see the same entering micro-batch,
whose number therefore sets the learning rate of all stages.

Transformers are usually trained by AdamW, which is here beside it: no part of the paper's recipe, but the engine takes
any optimizer. NAdam is what asynchronous Nesterov (arXiv 2505.01099) uses against delay, with a large momentum.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from petra_core.arguments import check_int, check_number
from petra_core.methods import check_accumulation

if TYPE_CHECKING:  # a learning rate is a number, for which nobody waits for torch
    import torch
    from torch import Tensor
    from torch.nn import Parameter

__all__ = [
    "LearningRateSchedule",
    "OptimizerFactory",
    "adamw",
    "learning_rate",
    "nadam",
    "optimizer_of",
    "rate_ratios",
    "set_rate",
    "sgd",
]

REFERENCE_BATCH = 256  # samples per update at which the reference learning rate holds (Goyal et al. 2017)


def learning_rate(batch_size: int, accumulation: int = 1, *, reference: float = 0.1) -> float:
    """The paper's learning rate after warm-up: reference * batch_size * k / 256.

    Args:
        batch_size: samples of a micro-batch.
        accumulation: k, micro-batches of an update.
        reference: learning rate for 256 samples an update.

    Raises:
        ValueError: a number out of its range.
        TypeError: an argument of another type.

    """
    samples = check_int("batch_size", batch_size, 1) * check_accumulation(accumulation)
    return check_number("reference", reference) * samples / REFERENCE_BATCH


@dataclass(frozen=True)
class LearningRateSchedule:
    """The learning rate of each micro-batch: linear from 0 to `base`, then constant but for the drops.

    Attributes:
        base: learning rate after warm-up.
        warmup_iterations: micro-batches until `base` is reached; 0 for none.
        drops: numbers of the micro-batches from which on the rate is multiplied by `factor` once more, increasing.
        factor: of each drop.

    """

    base: float
    warmup_iterations: int = 0
    drops: tuple[int, ...] = ()
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_number("base", self.base)
        check_number("factor", self.factor)
        check_int("warmup_iterations", self.warmup_iterations, 0)
        object.__setattr__(self, "drops", tuple(self.drops))
        for before, drop in zip((None, *self.drops), self.drops, strict=False):
            check_int("a drop", drop, self.warmup_iterations)
            if before is not None and drop <= before:
                raise ValueError(f"drops must increase, got {drop} after {before} in {self.drops}")

    def __call__(self, iteration: int) -> float:
        """The learning rate of micro-batch `iteration`, counted from 0 over the whole run."""
        if iteration < self.warmup_iterations:
            return self.base * iteration / self.warmup_iterations
        return self.base * self.factor ** sum(iteration >= drop for drop in self.drops)


#: Makes the optimizer of a stage, of its parameters, or of its named parameters and its number.
OptimizerFactory: TypeAlias = (
    Callable[["list[Parameter]"], "torch.optim.Optimizer"]
    | Callable[["list[tuple[str, Parameter]]", int], "torch.optim.Optimizer"]
)


def optimizer_of(
    factory: OptimizerFactory, stage: int, named: "Sequence[tuple[str, Parameter]]"
) -> "torch.optim.Optimizer":
    """Return the optimizer that a factory makes for a stage.

    A factory with two required arguments is called with the named parameters and the number of the stage, another one
    with the parameters.
    """
    make: Any = factory
    if _required(factory) == 2:
        return make(list(named), stage)  # type: ignore[no-any-return]  # `check_optimizer` looks at it
    return make([parameter for _, parameter in named])  # type: ignore[no-any-return]  # as above


def _required(function: Callable[..., object]) -> int:
    """The number of positional arguments that a function cannot do without; 1 of one that has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)


def sgd(
    learning_rate: float, *, momentum: float = 0.9, nesterov: bool = True, weight_decay: float = 0.0
) -> OptimizerFactory:
    """A factory of SGD for the parameters of a stage: `Pipeline(..., optimizer=sgd(0.1))`.

    Weights decay; parameters of at most one dimension (BatchNorm's and biases) do not, and are a group of their own.
    The paper decays by 5e-4 on CIFAR and 1e-4 on ImageNet.

    Raises:
        ValueError: a number out of its range, or Nesterov without momentum.
        TypeError: an argument of another type.

    """
    check_number("learning_rate", learning_rate)
    check_number("momentum", momentum, below=1.0)
    check_number("weight_decay", weight_decay)
    if nesterov and momentum == 0:
        raise ValueError("Nesterov's method needs a momentum above 0, got 0; set nesterov=False for plain SGD")
    # A partial and not a closure: processes that are spawned receive it pickled.
    return functools.partial(
        _made, kind="SGD", lr=learning_rate, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
    )


def adamw(
    learning_rate: float, *, beta1: float = 0.9, beta2: float = 0.999, weight_decay: float = 0.0
) -> OptimizerFactory:
    """A factory of AdamW (Loshchilov & Hutter 2019) for the parameters of a stage, as `sgd` is of SGD.

    Parameters of at most one dimension do not decay: biases and those of norms; a table of biases, such as Swin's of
    relative positions, decays as weights do.

    Raises:
        ValueError: a number out of its range.
        TypeError: an argument of another type.

    """
    check_number("learning_rate", learning_rate)
    betas = check_number("beta1", beta1, below=1.0), check_number("beta2", beta2, below=1.0)
    check_number("weight_decay", weight_decay)
    return functools.partial(_made, kind="AdamW", lr=learning_rate, betas=betas, weight_decay=weight_decay)


def nadam(
    learning_rate: float,
    *,
    beta1: float = 0.99,
    beta2: float = 0.999,
    momentum_decay: float = 0.004,
    weight_decay: float = 0.0,
) -> OptimizerFactory:
    """A factory of NAdam (Dozat 2016) with decoupled weight decay, as `adamw` is of AdamW.

    The defaults are those of asynchronous Nesterov (Ajanthan et al. 2025, arXiv 2505.01099): a momentum of 0.99, which
    discounts late gradients by the factor 1 - 0.99 and looks ahead along the steps so far.

    Raises:
        ValueError: a number out of its range.
        TypeError: an argument of another type.

    """
    check_number("learning_rate", learning_rate)
    betas = check_number("beta1", beta1, below=1.0), check_number("beta2", beta2, below=1.0)
    check_number("momentum_decay", momentum_decay)
    check_number("weight_decay", weight_decay)
    return functools.partial(
        _made,
        kind="NAdam",
        lr=learning_rate,
        betas=betas,
        momentum_decay=momentum_decay,
        decoupled_weight_decay=True,
        weight_decay=weight_decay,
    )


def rate_ratios(optimizer: "torch.optim.Optimizer") -> list[float]:
    """Return the learning rate of each parameter group by that of the first; 1 where that is 0 or there is none."""
    rates = [float(group.get("lr", 0.0)) for group in optimizer.param_groups]
    return [rate / rates[0] if rates[0] else 1.0 for rate in rates]


def set_rate(optimizer: "torch.optim.Optimizer", learning_rate: float, ratios: Sequence[float] | None = None) -> None:
    """Use `learning_rate` from the next update on: in place where it is a tensor, as a recorded step needs it.

    Each parameter group gets the rate times its ratio, or the rate itself without ratios.

    A tensor is written to when the rate changes, not at every step: that would be a kernel for each group. The number
    is noted on the tensor, because reading it would wait for its device, with the tensor's version, which shows whether
    anything else (a scheduler) has changed it since.
    """
    from torch import Tensor

    for group, ratio in zip(optimizer.param_groups, ratios or [1.0] * len(optimizer.param_groups), strict=True):
        rate: Any = group["lr"]
        new = learning_rate * ratio
        if not isinstance(rate, Tensor):
            group["lr"] = new
        elif getattr(rate, "written", None) != (new, rate._version):
            rate.fill_(new)
            setattr(rate, "written", (new, rate._version))  # noqa: B010  # no attribute that Tensor declares


def _made(
    parameters: "Iterable[Tensor]", *, kind: str, weight_decay: float, **settings: Any
) -> "torch.optim.Optimizer":
    import torch

    optimizer: torch.optim.Optimizer = getattr(torch.optim, kind)(_groups(parameters, weight_decay), **settings)
    return optimizer


def _groups(parameters: "Iterable[Tensor]", weight_decay: float) -> list[dict[str, Any]]:
    """Weights, which decay, and parameters of at most one dimension, which do not."""
    decayed: list[Tensor] = []
    exempt: list[Tensor] = []
    for parameter in parameters:
        (decayed if parameter.dim() > 1 else exempt).append(parameter)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": exempt, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
