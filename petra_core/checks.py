"""What a pipeline refuses: stages, residual functions, channels, states and micro-batches that do not fit."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from petra_core.channel import Channel
from petra_core.delay import Correction, ForwardWeights
from petra_core.errors import CheckpointError
from petra_core.methods import Method
from petra_core.stages import HeadStage, ReversibleStage, Stage

__all__ = [
    "STATE_FORMAT",
    "UNCORRECTED",
    "Shapes",
    "check_channel",
    "check_residual",
    "check_settings",
    "check_stages",
    "check_state",
]

UNCORRECTED = "uncorrected"  # what a state says of delay about which nothing is done
STATE_FORMAT = 2  # of `Pipeline.state_dict`; raised when an older state can no longer be read


def check_stages(stages: Sequence[Stage]) -> None:
    """Check that the stages make a pipeline.

    Raises:
        TypeError: something among them is no stage.
        ValueError: there is no head at the end, a parameter belongs to two stages or to two of those that one was
            merged from, a residual function can never learn.

    """
    owners: dict[int, tuple[int, int]] = {}  # of each parameter: the stage, and the part of it
    for index, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise TypeError(
                f"stage {index} is a {type(stage).__name__}, which is neither invertible nor buffered; wrap it: "
                f"ReversibleStage(module), BufferedStage(module), or HeadStage(module) at the end"
            )
        for position, part in enumerate(stage.parts()):
            is_last = index == len(stages) - 1 and part is stage.parts()[-1]
            if isinstance(part, HeadStage) != is_last:
                raise ValueError(
                    f"stage {index} ({type(part).__name__}) of {len(stages)}: the last stage must be a HeadStage, "
                    f"and only the last"
                )
            if isinstance(part, ReversibleStage):
                check_residual(part.residual)
            for name, parameter in part.named_parameters():
                owner = owners.setdefault(id(parameter), (index, position))
                if owner != (index, position):
                    other = owner[0]
                    raise ValueError(
                        f"parameter {name} of stage {index} belongs to "
                        f"{f'stage {other}' if other != index else 'another of the stages that it was merged from'} "
                        f"too; each has backwards of its own, so each needs its own parameters (copy.deepcopy the "
                        f"module)"
                    )
    if not stages:
        raise ValueError("a pipeline needs at least one stage, the head; got none")


def check_residual(residual: nn.Module) -> None:
    """Refuse a residual function that can only return zero and never learns to do otherwise.

    That is one whose last layer is a ReLU, right after an affine layer (BatchNorm, convolution, linear) with
    a weight of zeros and no positive bias.

    Initialising the last BatchNorm weight of every residual function to zero is a well-known trick (Goyal et al. 2017),
    and in a ResNet it is sound: the block begins as the identity, and the weight's gradient is not zero. A RevNet's
    residual function ends in a ReLU, *after* that BatchNorm. There the trick kills: ReLU(0) is 0 with derivative 0, so
    neither the BatchNorm nor anything before it ever receives a gradient.

    Args:
        residual: the function F of a reversible stage; its layers are looked at in the order of their registration.

    Raises:
        ValueError: F is such a function.

    """
    layers = [m for m in residual.modules() if next(m.children(), None) is None and not isinstance(m, nn.Identity)]
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


def check_settings(method: Any, optimizer: Any, forward_weights: Any, correction: Any, autocast: Any) -> None:
    """Check the types of a pipeline's settings; a name in place of a value is refused.

    Raises:
        TypeError: something is of another kind.
        ValueError: there is no mixed precision of this dtype.

    """
    for name, value, kind, such in (
        ("method", method, Method, "methods.PETRA, or methods.by_name('petra')"),
        (
            "forward_weights",
            forward_weights,
            ForwardWeights,
            "ForwardWeights.PREDICTED, or ForwardWeights('predicted')",
        ),
        ("correction", correction, Correction | None, "delay.RATE, or delay.CORRECTIONS['rate']"),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is {value!r}, a {type(value).__name__}; give a value such as {such}")
    if optimizer is not None and not callable(optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; every stage needs one of its own, so give a function that "
            f"makes it: lambda parameters: torch.optim.SGD(parameters, lr=0.1)"
        )
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"autocast is to torch.bfloat16 or torch.float16, or None for none, got {autocast!r}")


def check_channel(channel: Channel | None, stages: int, seed: int | None) -> None:
    """Check that a pipeline's channel fits its other arguments. Raises: ValueError: it does not."""
    if channel is None:
        return
    if seed is None:
        raise ValueError(
            "over several processes random numbers must not depend on where a stage runs: give the pipeline a seed"
        )
    if channel.count != stages:
        raise ValueError(f"the channel is for {channel.count} stages, the network has {stages}")


def check_state(state: Any, settings: Mapping[str, Any], *, stages: int, own_stages: range, seeded: bool) -> None:
    """Check that a state is that of a pipeline like this one.

    Args:
        state: of a pipeline, or what is taken for it.
        settings: of this pipeline, as its states have them. Older ones say nothing of autocast, and of delay
            only where something is done about it.
        stages: J.
        own_stages: those of this process.
        seeded: whether this pipeline has random streams of its own.

    Raises:
        CheckpointError: it is not.

    """
    if not isinstance(state, Mapping) or "format" not in state:
        raise CheckpointError("this is not the state of a pipeline: it has no 'format' entry")
    if state["format"] == 1:
        raise CheckpointError(
            "the state is of the time when a clock of ticks moved the pipeline: its stages stand between two ticks, "
            "where none stands now; finish the run with the version that began it, or start it from the beginning"
        )
    if state["format"] != STATE_FORMAT:
        raise CheckpointError(f"the state has format {state['format']!r}, this version reads {STATE_FORMAT!r}")
    for key, value in settings.items():
        said = state.get(key, UNCORRECTED if key == "delay" else value)
        if said != value:
            raise CheckpointError(f"the state has {key} {said!r}, this pipeline has {value!r}")
    if absent := {"workers", "random"} - state.keys():
        raise CheckpointError(f"this is not the state of a pipeline: it has no {min(absent)!r} entry")
    if len(state["workers"]) != stages:
        raise CheckpointError(f"the state has {len(state['workers'])} stages, this pipeline {stages}")
    missing = [index for index in own_stages if state["workers"][index] is None]
    if missing:
        raise CheckpointError(f"the state is another process's: stages {missing} are not in it")
    if (state["random"] is None) != seeded:
        raise CheckpointError("one of the state and this pipeline has a seed of its own, the other has none")


class Shapes:
    """Shapes and dtypes that all micro-batches of a run have in common.

    Attributes:
        first: shape and dtype of each tensor of the first micro-batch; None before there is one.

    """

    def __init__(self) -> None:
        self.first: list[tuple[list[int], str]] | None = None

    def check(self, micro_batch: int, tensors: Sequence[Tensor]) -> None:
        """Compare a micro-batch with the first. Raises: ValueError: it has other shapes or dtypes."""
        shapes = [(list(tensor.shape), str(tensor.dtype)) for tensor in tensors]
        if self.first is None:
            self.first = shapes
        elif shapes != self.first:
            raise ValueError(
                f"micro-batch {micro_batch} has shapes and dtypes {shapes}, those before it had {self.first}; "
                f"all micro-batches of a run must be alike: leave out an epoch's last, smaller one (drop_last=True)"
            )
