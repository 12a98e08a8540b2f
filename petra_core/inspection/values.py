"""Check the shapes of micro-batches, and detect losses and weights that are not finite."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from petra_core.errors import NonFiniteError
from petra_core.worker import Worker

#: Shape and dtype of each tensor of a micro-batch. All micro-batches between two drains have the same; None before the
#: first.
Shapes = list[tuple[list[int], str]] | None


def check_shapes(first: Shapes, micro_batch: int, tensors: Sequence[Tensor]) -> Shapes:
    """Compare the shapes and dtypes of a micro-batch with those of the first, and return them.

    Raises:
        ValueError: If they differ.

    """
    shapes = [(list(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    if first is not None and shapes != first:
        raise ValueError(
            f"micro-batch {micro_batch} has shapes and dtypes {shapes}, earlier micro-batches had {first}; all that "
            f"are in flight together must have the same shapes and dtypes: call drain() before a micro-batch of "
            f"another shape, or leave out an epoch's last, smaller one (drop_last=True)"
        )
    return shapes


# Losses and weights that are not finite

#: Number of losses that are checked together, by type of device; 1 for other types. On a GPU it is about one epoch of
#: CIFAR: reading a loss synchronises host and device, and leaves the device idle until the host has launched the next
#: step.
LOOKED_AT_TOGETHER = {"cuda": 1024}

DATA = "values that are not finite, an empty batch, or only targets that the loss ignores)"
REMEDY = "lower the learning rate, lengthen its warm-up or raise k, and resume from an earlier checkpoint"


def check_weights(micro_batch: int, workers: Sequence[Worker]) -> None:
    """Check that all weights and buffers are finite.

    This complements the check of losses: values that broke in the last steps of a run affect no later loss, and running
    statistics affect no training loss at all, since BatchNorm uses them only in evaluation.

    Args:
        micro_batch: Number of the last micro-batch.
        workers: Workers of this process.

    Raises:
        NonFiniteError: If a weight, buffer or running statistic is not finite. Other buffers may be infinite, like a
            mask, but not NaN.

    """
    for worker in reversed(workers):  # from the top, because gradients propagate non-finite values downwards
        if name := _broken_weight(worker) or _broken_buffer(worker):
            raise NonFiniteError(
                f"{name} of stage {worker.index} is not finite after {worker.version} updates and micro-batch "
                f"{micro_batch}; {REMEDY}",
                micro_batch=micro_batch,
                stage=worker.index,
            )


def _broken_weight(worker: Worker) -> str:
    """Return the name of the first parameter of a worker's stage that is not finite, or an empty string."""
    trained = ((name, p) for name, p in worker.stage.named_parameters() if p.requires_grad)
    return _first_set({f"parameter {name}": _not_finite([p]) for name, p in trained})  # a frozen mask may be infinite


def _broken_buffer(worker: Worker) -> str:
    """Return the name of the first floating-point buffer of a worker's stage that is not finite, or an empty string."""
    buffers = ((name, b) for name, b in worker.stage.named_buffers() if b.is_floating_point())
    flags = {f"buffer {n}": _not_finite([b]) if "running_" in n else torch.isnan(b).any() for n, b in buffers}
    return _first_set(flags)


def _broken_message(worker: Worker) -> str:
    """Return the name of the first waiting message that is not finite, or an empty string."""
    waiting = [("below", m) for m in worker.from_below] + [("above", m) for m in worker.from_above]
    flags = {f"the message from {side} of micro-batch {m.micro_batch}": _not_finite(m.tensors) for side, m in waiting}
    return _first_set(flags)


def _not_finite(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.isfinite(tensor).logical_not().any() for tensor in tensors]).any()


def _first_set(flags: Mapping[str, Tensor]) -> str:
    """Return the name of the first flag that is set, or an empty string. The flags are on one device."""
    if not flags or not torch.stack([*flags.values()]).any():  # one read for all: on a GPU each read synchronises
        return ""
    return next(name for name, flag in flags.items() if flag)


class PendingLosses:
    """Losses that have not been checked yet.

    Args:
        workers: Workers of this process, among which the origin of a non-finite loss is searched.

    """

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._waiting: list[tuple[int, Tensor]] = []

    def add(self, micro_batch: int, loss: Tensor, *, current: int | None = None) -> None:
        """Add the loss of a micro-batch, and check all pending losses if the group is complete.

        Args:
            micro_batch: Number of the micro-batch.
            loss: The loss, a scalar.
            current: As in `look`.

        Raises:
            NonFiniteError: If a loss is not finite.

        """
        self._waiting.append((micro_batch, loss))
        if len(self._waiting) >= LOOKED_AT_TOGETHER.get(loss.device.type, 1):
            self.look(current=current)

    def look(self, *, current: int | None = None) -> None:
        """Check that all pending losses are finite.

        Args:
            current: The micro-batch in whose forward this is called, when the origin of its loss can still be found.
                None outside a forward.

        Raises:
            NonFiniteError: If a loss is not finite.

        """
        losses, self._waiting = self._waiting, []
        if losses and not torch.isfinite(torch.stack([loss for _, loss in losses])).all():
            micro_batch, loss = next((m, loss) for m, loss in losses if not torch.isfinite(loss))
            raise self.error(micro_batch, float(loss), current)

    def error(self, micro_batch: int, loss: float, current: int | None) -> NonFiniteError:
        """Return the error of a non-finite loss, which names the stage in which it originated.

        Within a few steps, gradients propagate non-finite values down to the weights of lower stages, and forwards
        propagate them up to running statistics and messages. The origin is therefore the highest stage with non-finite
        weights, else the lowest stage with any non-finite value. This holds until the head's backward.
        Afterwards all weights may be broken.

        Args:
            micro_batch: Number of the micro-batch.
            loss: The loss.
            current: As in `look`. The head's backward of every other micro-batch has already run.

        """
        if micro_batch != current:
            return NonFiniteError(
                f"the loss of micro-batch {micro_batch} is {loss}; this was detected some steps later, because losses "
                f"on a GPU are checked in groups, so the stage in which it originated is unknown; {REMEDY}",
                micro_batch=micro_batch,
                stage=None,
            )
        weights = {w.index: name for w in self._workers if (name := _broken_weight(w))}
        others = {w.index: name for w in self._workers if (name := _broken_buffer(w) or _broken_message(w))}
        stage = max(weights, default=min(others, default=self._workers[-1].index))
        what = weights.get(stage) or others.get(stage) or "the loss itself"
        updates = next(worker.version for worker in self._workers if worker.index == stage)
        remedy = REMEDY
        if not weights and not (updates and what.endswith("running_var")):  # the means are finite: large weights
            remedy = "all weights are finite, so check the input and the targets of this micro-batch first (" + DATA
            remedy += "" if updates == 0 else f"; if they are correct, {REMEDY}"
        return NonFiniteError(
            f"the loss of micro-batch {micro_batch} is {loss}; it comes from stage {stage} ({what} is not "
            f"finite, after {updates} updates); {remedy}",
            micro_batch=micro_batch,
            stage=stage,
        )
