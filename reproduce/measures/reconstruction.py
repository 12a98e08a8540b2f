"""Measure the error of reconstructed inputs over the depth of a network and over training.

A reversible stage of PETRA does not store its input. It inverts the output that the stage above returns. There are two
causes of error, and each stage of an unbroken sequence of reversible stages adds to the error of the stage above:

    rounding    the forward and its inversion are rounded, even with the same weights. This error is measured by
                separate evaluations without an update between forward and inversion. `rounding_bfloat16` is measured
                with streams in bfloat16; the engine does not support them because these errors are large.
    training    the engine's own inversion uses weights that may have been updated d_j/k times since the forward, where
                d_j is the staleness of the stage

The error of a stage is |reconstructed - true| / |true| with norms over the whole micro-batch. It is given for the whole
`input` and for each of its two streams: `x`, at which F is evaluated and differentiated (the copy that the stage above
returned), and `x_tilde`, from which F was subtracted. It is None for stages that store their inputs.

With a learning rate of 0 there are no updates, and the "training" error consists of rounding only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from petra_core import Pipeline
from petra_core.randomness import RandomStream, replay
from petra_core.stages import Stage
from petra_core.tape import Streams, Value, as_streams, as_value
from petra_core.worker import Backward
from reproduce.cells.kinds import Cell, ReconstructionCell
from reproduce.measures.context import Context
from reproduce.measures.probe import FollowedMicroBatch, Probe
from reproduce.measures.training import autocast, train
from reproduce.records.record import Record

CAUSES = ("rounding", "rounding_bfloat16", "training")  # causes of the error
TENSORS = ("input", "x", "x_tilde")  # tensors whose error is measured


def relative_errors(reconstructed: Streams, true: Streams) -> dict[str, float]:
    """Return the relative errors by `TENSORS`: of all streams together, and of each stream if there are two.

    An error is NaN if the true tensor is zero.
    """
    squares = torch.stack(
        [
            torch.stack([(r.double() - t.double()).square().sum(), t.double().square().sum()])
            for r, t in zip(reconstructed, true, strict=True)
        ]
    )  # [stream, (error, true)]
    table = torch.cat([squares.sum(0, keepdim=True), squares[: 2 if len(squares) == 2 else 0]])
    return dict(zip(TENSORS, (table[:, 0] / table[:, 1]).sqrt().tolist(), strict=False))


def rounding_errors(
    stages: Sequence[Stage], images: Value, streams: torch.dtype | None = None
) -> dict[int, dict[str, float]]:
    """Measure the errors of inverting a forward with the same weights, stage by stage from the top as in the engine.

    The network is evaluated in its current mode, usually training mode with the statistics of the batch.

    Args:
        stages: All stages of the network.
        images: Inputs of the micro-batch. Blocks compute in their dtype.
        streams: Dtype of the streams between blocks, or None for the dtype of the images.

    Returns:
        For each stage whose input is reconstructed, its errors by `TENSORS`.

    """
    blocks = [(j, part) for j, stage in enumerate(stages) for part in stage.parts()][:-1]  # without the head
    wide, device = as_streams(images)[0].dtype, as_streams(images)[0].device
    drawing = [RandomStream(device, 0, j) for j in range(len(blocks))]  # an inversion draws the forward's numbers
    forward = [as_streams(images)]
    errors: dict[int, dict[str, float]] = {}
    with torch.no_grad():
        for (_, block), stream in zip(blocks, drawing, strict=True):
            with stream:
                outputs = as_streams(block(as_value(_as(wide, forward[-1]))))
            forward.append(_as(streams, outputs))
        value = forward[-1]  # stored by the head
        for (j, block), true, stream in reversed(list(zip(blocks, forward[:-1], drawing, strict=True))):
            if block.invertible:
                with replay(stream.drawn, device):
                    inputs = block.reconstruct(_as(wide, value), state=block.inversion_state(_as(wide, true))).inputs
                value = _as(streams, inputs)
            else:
                value = true  # stored by this block
            if block is stages[j].parts()[0] and block.invertible:
                errors[j] = relative_errors(value, true)
    return errors


def _as(dtype: torch.dtype | None, streams: Streams) -> Streams:
    return tuple(s.to(dtype) if dtype is not None and s.is_floating_point() else s for s in streams)


@dataclass
class _Inputs(FollowedMicroBatch):
    true: dict[int, list[Tensor]] = field(default_factory=dict)  # inputs of the stages whose backward was not run yet


class ReconstructionProbe(Probe[_Inputs]):
    """Compare reconstructed inputs of some micro-batches with the true ones, at every stage that reconstructs.

    Each of these micro-batches costs three additional forwards and two inversions of the network, and the memory of the
    inputs of all its stages.
    """

    subject = _Inputs

    def watch(self, pipeline: Pipeline, micro_batches: int) -> None:
        super().watch(pipeline, micro_batches)
        self._reconstructing = [j for j, stage in enumerate(pipeline.stages) if stage.parts()[0].invertible]

    def _follow(self, micro_batch: int, images: Tensor, labels: Tensor) -> _Inputs:
        images = images.to(self._device)
        subject = _Inputs(micro_batch)
        for cause, streams in (("rounding", None), ("rounding_bfloat16", torch.bfloat16)):
            for stage, errors in rounding_errors(self.pipeline.stages, images, streams).items():
                self._note(subject, stage, {f"{cause}/{tensor}": error for tensor, error in errors.items()})
        value: Value = images
        for stage in range(len(self.pipeline.stages)):
            if stage in self._reconstructing:
                subject.true[stage] = list(as_streams(value))
            if stage < len(self.pipeline.stages) - 1:
                value = as_value(self.pipeline.workers[stage].evaluate(as_streams(value), micro_batch))
        return subject

    def _before_step(self, subject: _Inputs) -> None:
        """Do nothing. The true inputs were stored at the forward."""

    def _compare(self, subject: _Inputs, backward: Backward) -> dict[str, float | None]:
        if backward.stage not in self._reconstructing:
            return {}
        assert backward.inputs is not None
        errors = relative_errors(backward.inputs, tuple(subject.true.pop(backward.stage)))
        return {f"training/{tensor}": error for tensor, error in errors.items()}


def measure(cell: Cell, record: Record, context: Context) -> dict[str, Any]:
    """Train a `reconstruction` cell. Return the training's result; the metrics of the epochs contain the errors."""
    assert isinstance(cell, ReconstructionCell)
    return train(cell, record, context, ReconstructionProbe(cell.probe_every, autocast=autocast(cell)))
