"""Compare three gradients of one micro-batch at one stage: gradient quality, Figures 5 and 6 of arXiv 2406.02052.

For micro-batch m and stage j with staleness d_j, let theta_i^t be the weights of stage i before step t. The gradients
are

    method        the gradient that the method computes in the stage's backward, in step t = m + d_j
    delayed       the exact gradient of the whole network with the weights of the forward, theta_i^m at every stage i.
                  Delayed gradients with stashed weights and graphs compute it.
    end_to_end    the exact gradient of the whole network with the weights of the backward, theta_i^t at every stage i.
                  A method without delay would compute it in that step.

For each pair (a, b) of gradients there are three measures,

    cosine           <a, b> / (|a| |b|)
    norm_ratio       |a| / |b|
    relative_error   |a - b| / |b|

each averaged over the stage's weight tensors of at least two dimensions. Biases and BatchNorm's parameters are
excluded, because the exact gradient of a bias before a BatchNorm is zero, and the computed one is only rounding. A
tensor for which a measure is undefined (a zero gradient) is excluded from that measure's average. Norms are computed in
float64.

At the head all three gradients are equal, because forward and backward are in the same step. In records that were
written before the engine used staleness, the end-to-end gradient used the weights of one tick, at which stage i is i
steps ahead.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from petra_core.stages import HeadStage, Stage
from petra_core.tape import Value
from petra_core.worker import Backward
from reproduce.cells.kinds import Cell, GradientsCell
from reproduce.measures.context import Context
from reproduce.measures.probe import FollowedMicroBatch, Probe
from reproduce.measures.training import autocast, train
from reproduce.records.record import Record

MEASURES = ("cosine", "norm_ratio", "relative_error")
PAIRS = (("method", "delayed"), ("method", "end_to_end"), ("delayed", "end_to_end"))  # gradients to compare

Named = Mapping[str, Tensor]


def exact_gradients(
    stages: Sequence[Stage], weights: Sequence[Named], images: Value, labels: Tensor, wanted: Collection[int]
) -> dict[int, dict[str, Tensor]]:
    """Compute gradients of the loss by autograd through the whole network, with explicit weights.

    The network is evaluated in its current mode, usually training mode with the statistics of the batch. No graph is
    recorded below the lowest wanted stage.

    Args:
        stages: All stages of the network.
        weights: Weights of every stage, by name.
        images: Inputs of the micro-batch.
        labels: Labels of the micro-batch.
        wanted: Stages whose gradients are needed.

    Returns:
        For each wanted stage the gradients by name, without frozen parameters.

    """
    leaves = {
        j: {n: weights[j][n].detach().requires_grad_() for n, p in stages[j].named_parameters() if p.requires_grad}
        for j in wanted
    }
    value = images
    with torch.enable_grad():
        for j, stage in enumerate(stages):
            constant = {name: weight.detach() for name, weight in weights[j].items()}
            value = functional_call(stage, constant | leaves.get(j, {}), (value,))
        head = stages[-1].parts()[-1]
        assert isinstance(head, HeadStage)
        assert isinstance(value, Tensor)
        loss = head.loss(value, labels)
    flat = [leaf for named in leaves.values() for leaf in named.values()]
    in_order = iter(torch.autograd.grad(loss, flat, allow_unused=True) if flat else ())
    gradients = {j: {name: next(in_order) for name in named} for j, named in leaves.items()}
    return {j: {name: g for name, g in named.items() if g is not None} for j, named in gradients.items()}


def compare(a: Named, b: Named) -> dict[str, float | None]:
    """Compute the three measures of gradient `a` against gradient `b` of one stage. None means undefined."""
    per_tensor = []
    for name in a:
        if name in b and b[name].dim() > 1:
            x, y = a[name].double(), b[name].double()
            norms = torch.linalg.vector_norm(torch.stack([x, y, x - y]).flatten(1), dim=1)
            per_tensor.append(
                torch.stack([(x * y).sum() / norms[0] / norms[1], norms[0] / norms[1], norms[2] / norms[1]])
            )
    if not per_tensor:
        return dict.fromkeys(MEASURES)
    table = torch.stack(per_tensor, dim=1)  # [measure, tensor]
    means = [line[line.isfinite()].mean() for line in table]  # NaN if no tensor has a finite value
    values = torch.stack(means).tolist()
    return {measure: None if value != value else value for measure, value in zip(MEASURES, values, strict=True)}


@dataclass
class _Gradients(FollowedMicroBatch):
    """A micro-batch with the exact gradients to compare with.

    Attributes:
        images: Inputs.
        labels: Labels.
        delayed: Delayed gradient of each stage whose backward has not been run.
        end_to_end: End-to-end gradient of the stages whose backward is run in the next step.

    """

    images: Tensor = field(kw_only=True)
    labels: Tensor = field(kw_only=True)
    delayed: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    end_to_end: dict[int, dict[str, Tensor]] = field(default_factory=dict)


class GradientQuality(Probe[_Gradients]):
    """Compare the three gradients of some micro-batches at every stage.

    Each of these micro-batches costs J additional forwards of the network, about half as many backwards, and the memory
    of one gradient of all weights.
    """

    subject = _Gradients

    def _follow(self, micro_batch: int, images: Tensor, labels: Tensor) -> _Gradients:
        return _Gradients(micro_batch, images=images.to(self._device), labels=labels.to(self._device))

    def _before_step(self, subject: _Gradients) -> None:
        stages = self.pipeline.stages
        due = [stage for stage, number in enumerate(self.pipeline.staleness) if number == subject.age]
        if not due:
            return
        current = [dict(stage.named_parameters()) for stage in stages]
        if subject.age == 0:
            subject.delayed = exact_gradients(stages, current, subject.images, subject.labels, range(len(stages)))
        subject.end_to_end = exact_gradients(stages, current, subject.images, subject.labels, due)

    def _compare(self, subject: _Gradients, backward: Backward) -> dict[str, float | None]:
        gradients: dict[str, Named] = {
            "method": backward.gradients,
            "delayed": subject.delayed.pop(backward.stage),
            "end_to_end": subject.end_to_end[backward.stage],
        }
        return {
            f"{a}/{b}/{measure}": value
            for a, b in PAIRS
            for measure, value in compare(gradients[a], gradients[b]).items()
        }


def measure(cell: Cell, record: Record, context: Context) -> dict[str, Any]:
    """Train a `gradients` cell. Return the result of the training; the metrics of the epochs contain the measures."""
    assert isinstance(cell, GradientsCell)
    return train(cell, record, context, GradientQuality(cell.probe_every, autocast=autocast(cell)))
