"""Memory predicted: what a stage will hold, from shapes and the method alone.

The ledger (`petra_core.ledger`) measures what a run holds; here the same quantities come from closed formulas, without
running anything: shapes and graph sizes from one pass on the meta device (`footprints`), the rest from Table 1 of the
paper (`petra_core.prediction.footprint`), so the two can be compared, and the comparison can fail. Float32 or float64
without autocast; temporaries inside an operation are in neither.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from petra_core.delay import Correction, ForwardWeights
from petra_core.ledger import SavedTensors, payload
from petra_core.methods import Method, check_accumulation
from petra_core.narrowing import narrowed
from petra_core.prediction.footprint import Footprint, StagePrediction, of_footprints
from petra_core.recipe import OptimizerFactory
from petra_core.stages import HeadStage, Stage
from petra_core.tape import Streams, Value, as_streams

__all__ = ["footprints", "predict"]


@dataclass(frozen=True)
class _Sizes:
    """Bytes of one block, for one micro-batch."""

    inputs: int  # as a message
    kept: int
    side: int
    outputs: int  # as a message
    graph: int
    invertible: bool
    is_head: bool


def footprints(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Tensor,
    *,
    optimizer: OptimizerFactory | None = None,
    messages: torch.dtype | None = None,
) -> tuple[Footprint, ...]:
    """The bytes that each stage takes for a micro-batch like `inputs`, `target`; arguments as of `predict`."""
    streams: Streams = tuple(stream.to("meta") for stream in as_streams(inputs))
    target = target.to("meta")
    per_stage = []
    for index, stage in enumerate(stages):
        blocks, streams = _measure(stage, streams, target, messages if index else None, messages)
        per_stage.append(_footprint(stage, blocks, method, payload([target]), optimizer))
    return tuple(per_stage)


def predict(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Tensor,
    *,
    accumulation: int = 1,
    optimizer: OptimizerFactory | None = None,
    messages: torch.dtype | None = None,
    replicas: Sequence[int] | None = None,
    forward_weights: ForwardWeights = ForwardWeights.CURRENT,
    correction: Correction | None = None,
) -> tuple[StagePrediction, ...]:
    """Predict what each stage will hold when `method` trains `stages` on micro-batches like `inputs`, `target`.

    Args:
        stages: as for `Pipeline`; they are not changed and may be on any device, the meta device too.
        method: the method.
        inputs: a micro-batch; only shapes and dtypes are used.
        target: its target, of which only shape and dtype are used.
        accumulation: k in 1..32.
        optimizer: as for `Pipeline`.
        messages: as for `Pipeline`.
        replicas: the devices of each stage, one each by default; the prediction is what each of them holds.
        forward_weights: as for `Pipeline`.
        correction: as for `Pipeline`.

    Raises:
        ValueError: k is not in 1..32, or the replicas do not fit.

    """
    check_accumulation(accumulation)
    per_stage = footprints(stages, method, inputs, target, optimizer=optimizer, messages=messages)
    return of_footprints(
        per_stage, method, accumulation, replicas, forward_weights=forward_weights, correction=correction
    )


def _footprint(
    stage: Stage, blocks: Sequence[_Sizes], method: Method, target_bytes: int, optimizer: OptimizerFactory | None
) -> Footprint:
    is_head = blocks[-1].is_head
    lasts = [block.is_head or method.keeps_graph for block in blocks]
    reconstructed = [block.graph for block, last in zip(blocks, lasts, strict=True) if not last]
    return Footprint(
        parameters=payload(stage.parameters()),
        buffers=payload(stage.buffers()),
        optimizer=_optimizer_bytes(stage, optimizer),
        trainable=payload(parameter for parameter in stage.parameters() if parameter.requires_grad),
        kept=sum(block.kept for block in blocks if not (method.reconstructs and block.invertible)),
        side=sum(block.side for block in blocks if method.reconstructs and block.invertible),
        lasting=sum(block.graph for block, last in zip(blocks, lasts, strict=True) if last),
        passing=sum(reconstructed) if method.overlapped and not is_head else max(reconstructed, default=0),
        below=blocks[0].inputs,
        above=0 if is_head else blocks[-1].outputs * (2 if method.reconstructs and blocks[-1].invertible else 1),
        target=target_bytes if is_head else 0,
    )


def _measure(
    stage: Stage, streams: Streams, target: Tensor, below: torch.dtype | None, above: torch.dtype | None
) -> tuple[list[_Sizes], Streams]:
    """Sizes of the stage's blocks by a pass on the meta device, and its output; messages are narrowed to dtypes."""
    blocks = []
    for part in stage.parts():
        part = copy.deepcopy(part).to("meta").train()
        with torch.enable_grad(), SavedTensors([*streams, *part.parameters(), *part.buffers()]) as saved:
            tape = part.record_loss(streams, target) if isinstance(part, HeadStage) else part.record(streams)
        assert tape.outputs is not None
        blocks.append(
            _Sizes(
                inputs=payload(narrowed(streams, below) or ()),
                kept=payload(part.keep(streams)),
                side=payload(part.side(streams)),
                outputs=payload(narrowed(tape.outputs, above) or ()),
                graph=saved.bytes,
                invertible=part.invertible,
                is_head=isinstance(part, HeadStage),
            )
        )
        streams = tape.outputs
    return blocks, streams


def _optimizer_bytes(stage: Stage, factory: OptimizerFactory | None) -> int:
    """Bytes of the optimizer's state after its first step, by a step on the meta device."""
    parameters = [nn.Parameter(p.detach().to("meta")) for p in stage.parameters() if p.requires_grad]
    if factory is None or not parameters:
        return 0
    optimizer = factory(parameters)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    return payload(value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor))
