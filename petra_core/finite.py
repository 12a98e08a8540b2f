"""Losses and weights that are not finite: when they are looked at, and which stage they come from."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from petra_core.errors import NonFiniteError
from petra_core.worker import Worker

__all__ = ["LOOKED_AT_TOGETHER", "PendingLosses", "check_states", "check_weights", "group_size"]

#: On a GPU, looking at a loss makes the host wait for it, and the device is idle until the host has launched the next
#: step. So losses are looked at in groups of this many: about once an epoch of CIFAR.
LOOKED_AT_TOGETHER = 1024

DATA = "values that are not finite, an empty batch, or targets that the loss ignores one and all)"
REMEDY = "lower the learning rate, lengthen its warm-up or raise k, and go on from a checkpoint of before"


def check_weights(micro_batch: int, workers: Sequence[Worker]) -> None:
    """Check that all weights and buffers are finite, after the losses.

    What broke in the last steps of a run shows in no loss any more. Running statistics show in no loss of training at
    all: BatchNorm uses them in an evaluation only.

    Raises:
        NonFiniteError: one is not. A buffer other than a running statistic may be infinite, as a mask is.

    """
    for worker in reversed(workers):  # from the origin on gradients carry it down
        if name := worker.non_finite_weight() or _broken_buffer(worker):
            raise NonFiniteError(
                f"{name} of stage {worker.index} is not finite after {worker.version} updates and micro-batch "
                f"{micro_batch}; {REMEDY}",
                micro_batch=micro_batch,
                stage=worker.index,
            )


def _broken_buffer(worker: Worker) -> str:
    """The first floating-point buffer of a worker's stage that is not finite; empty if there is none."""
    buffers = {name: buffer for name, buffer in worker.stage.named_buffers() if buffer.is_floating_point()}
    broken = [
        torch.isfinite(buffer).logical_not().any() if "running_" in name else torch.isnan(buffer).any()
        for name, buffer in buffers.items()
    ]
    if not broken or not torch.stack(broken).any():  # one question for all: on a GPU each waits
        return ""
    return next(f"buffer {name}" for name, is_broken in zip(buffers, broken, strict=True) if is_broken)


def group_size(device: torch.device) -> int:
    """Return how many losses are looked at together on a device."""
    return LOOKED_AT_TOGETHER if device.type == "cuda" else 1


def check_states(micro_batch: int, states: Sequence[Mapping[str, Any] | None]) -> None:
    """See that all weights of a state are finite; None stands for stages of other processes.

    Raises:
        NonFiniteError: one is not.

    """
    for index, state in reversed([*enumerate(states)]):
        for name, tensor in {} if state is None else state["module"].items():
            if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                raise NonFiniteError(
                    f"{name} of stage {index} is not finite after {state['version']} updates and micro-batch "
                    f"{micro_batch}; {REMEDY}",
                    micro_batch=micro_batch,
                    stage=index,
                )


class PendingLosses:
    """Losses that nobody has looked at yet.

    Args:
        workers: of this process; one of them may be where a loss that is not finite comes from.

    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._waiting: list[tuple[int, Tensor]] = []

    def add(self, micro_batch: int, loss: Tensor, *, in_forward: bool = True) -> None:
        """Note the loss of a micro-batch, and look at all that are pending once these are enough.

        `in_forward`: this is called within that micro-batch's forward, so that its stage can still be named.

        Raises:
            NonFiniteError: one is not finite.

        """
        self._waiting.append((micro_batch, loss))
        if len(self._waiting) >= group_size(loss.device):
            self.look(current=micro_batch if in_forward else None)

    def look(self, *, current: int | None = None) -> None:
        """See that all pending losses are finite; `current` is the micro-batch in whose forward it is done.

        Raises:
            NonFiniteError: one is not.

        """
        losses, self._waiting = self._waiting, []
        if losses and not torch.isfinite(torch.stack([loss for _, loss in losses])).all():
            micro_batch, loss = next((m, loss) for m, loss in losses if not torch.isfinite(loss))
            raise self.error(micro_batch, float(loss), late=micro_batch != current)

    def error(self, micro_batch: int, loss: float, *, late: bool) -> NonFiniteError:
        """The error that says where a loss that is not finite comes from, as far as the workers show.

        Gradients carry what is not finite down to the weights of the stages below within a few steps, and forwards
        carry it up to running statistics and messages, so the origin is the highest stage with such weights, if any
        has, and else the lowest in which anything is. That holds before the head's own backward; `late`, after it, all
        weights from the head down may be broken, whatever the origin.
        """
        if late:
            return NonFiniteError(
                f"the loss of micro-batch {micro_batch} is {loss}; that was noticed some steps later, since the losses "
                f"of a GPU are looked at in groups, so it cannot be told any more which stage it comes from; {REMEDY}",
                micro_batch=micro_batch,
                stage=None,
            )
        weights = {worker.index: name for worker in self._workers if (name := worker.non_finite_weight())}
        others = {worker.index: name for worker in self._workers if (name := worker.non_finite_value())}
        stage = max(weights, default=min(others, default=self._workers[-1].index))
        what = weights.get(stage) or others.get(stage) or "the loss itself"
        updates = next(worker.version for worker in self._workers if worker.index == stage)
        remedy = REMEDY
        if not weights:
            remedy = "all weights are finite, so look at the input and the targets of this micro-batch first (" + DATA
            remedy += "" if updates == 0 else f"; if they are as they should be, {REMEDY}"
        return NonFiniteError(
            f"the loss of micro-batch {micro_batch} is {loss}; it comes from stage {stage} ({what} is not "
            f"finite, after {updates} updates); {remedy}",
            micro_batch=micro_batch,
            stage=stage,
        )

    def clear(self) -> None:
        """Forget the pending losses."""
        self._waiting.clear()
