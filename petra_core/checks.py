"""What a pipeline checks: its stages, micro-batches and states, and where a loss that is not finite comes from."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from petra_core.channel import Channel
from petra_core.errors import CheckpointError, NonFiniteError
from petra_core.residual import check_residual
from petra_core.stages import HeadStage, ReversibleStage, Stage
from petra_core.worker import Worker

__all__ = [
    "STATE_FORMAT",
    "Losses",
    "Shapes",
    "check_channel",
    "check_stages",
    "check_state",
    "check_weights",
    "non_finite",
]

#: On a GPU, looking at a loss makes the host wait for it, so losses are looked at in groups of this many.
LOOKED_AT_TOGETHER = 32

STATE_FORMAT = 1  # of `Pipeline.state_dict`; raised when an older state can no longer be read

REMEDY = "lower the learning rate, lengthen its warm-up or raise k, and go on from a checkpoint of before"


def check_stages(stages: Sequence[Stage]) -> None:
    """Check that the stages make a pipeline.

    Raises:
        TypeError: something among them is no stage.
        ValueError: there is no head at the end, a parameter belongs to two stages or to two of those that one was
            merged from, a residual function can never learn.

    """
    owners: dict[int, tuple[int, Stage]] = {}
    for index, stage in enumerate(stages):
        if not isinstance(stage, Stage):
            raise TypeError(
                f"stage {index} is a {type(stage).__name__}, which is neither invertible nor buffered; wrap it: "
                f"ReversibleStage(module), BufferedStage(module), or HeadStage(module) at the end"
            )
        for part in stage.parts():
            is_last = index == len(stages) - 1 and part is stage.parts()[-1]
            if isinstance(part, HeadStage) != is_last:
                raise ValueError(
                    f"stage {index} ({type(part).__name__}) of {len(stages)}: the last stage must be a HeadStage, "
                    f"and only the last"
                )
            if isinstance(part, ReversibleStage):
                check_residual(part.residual)
            for name, parameter in part.named_parameters():
                other, owner = owners.setdefault(id(parameter), (index, part))
                if owner is not part:
                    raise ValueError(
                        f"parameter {name} of stage {index} belongs to "
                        f"{f'stage {other}' if other != index else 'another of the stages that it was merged from'} "
                        f"too; each has backwards of its own, so each needs its own parameters (copy.deepcopy the "
                        f"module)"
                    )
    if not stages:
        raise ValueError("a pipeline needs at least one stage, the head; got none")


def check_channel(channel: Channel | None, stages: int, seed: int | None, replicas: Sequence[int] | None) -> None:
    """Check that a pipeline's channel fits its other arguments. Raises: ValueError: it does not."""
    if channel is None:
        return
    if seed is None:
        raise ValueError(
            "over several processes random numbers must not depend on where a stage runs: give the pipeline a seed"
        )
    if channel.count != stages:
        raise ValueError(f"the channel is for {channel.count} stages, the network has {stages}")
    if replicas is not None:
        raise ValueError("over several processes the channel knows the replicas of each stage: give it those alone")


def check_state(state: Any, method: str, accumulation: int, *, stages: int, own: range, seeded: bool) -> None:
    """Check that a state is that of a pipeline like this one.

    Args:
        state: of a pipeline, or what is taken for it.
        method: of this pipeline.
        accumulation: of this pipeline.
        stages: J.
        own: the stages of this process.
        seeded: whether this pipeline has random streams of its own.

    Raises:
        CheckpointError: it is not.

    """
    if not isinstance(state, Mapping) or "format" not in state:
        raise CheckpointError("this is not the state of a pipeline: it has no 'format' entry")
    for key, value in {"format": STATE_FORMAT, "method": method, "accumulation": accumulation}.items():
        if state[key] != value:
            raise CheckpointError(f"the state has {key} {state[key]!r}, this pipeline has {value!r}")
    if len(state["workers"]) != stages:
        raise CheckpointError(f"the state has {len(state['workers'])} stages, this pipeline {stages}")
    missing = [index for index in own if state["workers"][index] is None]
    if missing:
        raise CheckpointError(f"the state is another process's: stages {missing} are not in it")
    if (state["random"] is None) != seeded:
        raise CheckpointError("one of the state and this pipeline has a seed of its own, the other has none")


def check_weights(micro_batch: int, workers: Sequence[Worker]) -> None:
    """See that all weights are finite, after the losses. Raises: NonFiniteError: one is not.

    What broke in the last ticks of a run shows in no loss any more.
    """
    for worker in reversed(workers):  # from the origin on gradients carry it down
        if name := worker.non_finite_weight():
            raise NonFiniteError(
                f"{name} of stage {worker.index} is not finite after {worker.version} updates and micro-batch "
                f"{micro_batch}; {REMEDY}",
                micro_batch=micro_batch,
                stage=worker.index,
            )


def non_finite(micro_batch: int, loss: float, workers: Sequence[Worker], *, late: bool) -> NonFiniteError:
    """The error that says where a loss that is not finite comes from, as far as these workers show.

    Gradients carry what is not finite down to the weights of the stages below within a few ticks, and forwards carry it
    up to running statistics and messages, so the origin is the highest stage with such weights, if any has, and else
    the lowest in which anything is. That holds before the head's own backward; `late`, after it, all weights from the
    head down may be broken, whatever the origin.
    """
    if late:
        return NonFiniteError(
            f"the loss of micro-batch {micro_batch} is {loss}; that was noticed some ticks later, since the losses of "
            f"a GPU are looked at in groups, so it cannot be told any more which stage it comes from; {REMEDY}",
            micro_batch=micro_batch,
            stage=None,
        )
    weights = {worker.index: name for worker in workers if (name := worker.non_finite_weight())}
    others = {worker.index: name for worker in workers if (name := worker.non_finite_value())}
    stage = max(weights, default=min(others, default=workers[-1].index))
    what = weights.get(stage) or others.get(stage) or "the loss itself"
    updates = next(worker.version for worker in workers if worker.index == stage)
    return NonFiniteError(
        f"the loss of micro-batch {micro_batch} is {loss}; it comes from stage {stage} ({what} is not "
        f"finite, after {updates} updates); {REMEDY}",
        micro_batch=micro_batch,
        stage=stage,
    )


class Losses:
    """The losses that nobody has looked at yet.

    Args:
        workers: of this process; one of them may be where a loss that is not finite comes from.

    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._waiting: list[tuple[int, Tensor]] = []

    def add(self, micro_batch: int, loss: Tensor, *, at_once: bool = True) -> None:
        """Take in the loss of a micro-batch, in its forward or later, and look at all if it is time.

        Raises:
            NonFiniteError: one is not finite.

        """
        self._waiting.append((micro_batch, loss))
        if len(self._waiting) >= (LOOKED_AT_TOGETHER if loss.is_cuda else 1):
            self.look(at_once=micro_batch if at_once else None)

    def look(self, *, at_once: int | None = None) -> None:
        """See that they are finite; `at_once` is the micro-batch in whose forward it is done.

        Raises:
            NonFiniteError: one is not.

        """
        losses, self._waiting = self._waiting, []
        if losses and not torch.isfinite(torch.stack([loss for _, loss in losses])).all():
            micro_batch, loss = next((m, loss) for m, loss in losses if not torch.isfinite(loss))
            raise non_finite(micro_batch, float(loss), self._workers, late=micro_batch != at_once)

    def clear(self) -> None:
        """Forget them."""
        self._waiting.clear()


class Shapes:
    """What all micro-batches of a run have in common.

    Attributes:
        first: shape and dtype of each tensor of the first micro-batch; None before there is one.

    """

    def __init__(self) -> None:
        self.first: list[tuple[list[int], str]] | None = None

    def check(self, micro_batch: int, tensors: Sequence[Tensor]) -> None:
        """Compare a micro-batch with the first. Raises: ValueError: it has other shapes or dtypes."""
        found = [(list(tensor.shape), str(tensor.dtype)) for tensor in tensors]
        if self.first is None:
            self.first = found
        elif found != self.first:
            raise ValueError(
                f"micro-batch {micro_batch} has shapes and dtypes {found}, those before it had {self.first}; "
                f"all micro-batches of a run must be alike: leave out an epoch's last, smaller one (drop_last=True)"
            )
