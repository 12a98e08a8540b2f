"""Memory predicted: what a stage will hold, from shapes and the method alone.

The ledger (`petra_core.ledger`) measures what a run holds; here the same quantities come from closed formulas, without
running anything: shapes and graph sizes from one pass on the meta device (`footprints`), the rest from Table 1 of the
paper (`petra_core.prediction.footprint`), so the two can be compared, and the comparison can fail. Float32 or float64
without autocast; temporaries inside an operation are in neither.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from petra_core.delay import Correction, ForwardWeights
from petra_core.ledger import SavedTensors, payload
from petra_core.methods import Method, check_accumulation
from petra_core.prediction.footprint import Footprint, StagePrediction, joined, of_footprints
from petra_core.recipe import OptimizerFactory
from petra_core.stages import HeadStage, Stage
from petra_core.tape import Streams, Value, as_streams

__all__ = ["footprints", "predict"]


def footprints(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Tensor,
    *,
    optimizer: OptimizerFactory | None = None,
) -> tuple[Footprint, ...]:
    """The bytes that each stage takes for a micro-batch like `inputs`, `target`; arguments as of `predict`."""
    streams: Streams = tuple(stream.to("meta") for stream in as_streams(inputs))
    target = target.to("meta")
    per_stage = []
    for stage in stages:
        blocks = []
        for part in stage.parts():
            block, streams = _of_block(part, method, streams, target, optimizer)
            blocks.append(block)
        whole = joined(blocks)
        if method.overlapped and not isinstance(stage.parts()[-1], HeadStage):  # whose R gives all blocks their graphs
            whole = replace(whole, passing=sum(block.passing for block in blocks))
        per_stage.append(whole)
    return tuple(per_stage)


def predict(
    stages: Sequence[Stage],
    method: Method,
    inputs: Value,
    target: Tensor,
    *,
    accumulation: int = 1,
    staleness: Sequence[int] | None = None,
    optimizer: OptimizerFactory | None = None,
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
        staleness: as for `Pipeline`.
        optimizer: as for `Pipeline`.
        forward_weights: as for `Pipeline`.
        correction: as for `Pipeline`.

    Raises:
        ValueError: k is not in 1..32.

    """
    check_accumulation(accumulation)
    per_stage = footprints(stages, method, inputs, target, optimizer=optimizer)
    return of_footprints(
        per_stage,
        method,
        accumulation,
        staleness=staleness,
        forward_weights=forward_weights,
        correction=correction,
    )


def _of_block(
    block: Stage,
    method: Method,
    streams: Streams,
    target: Tensor,
    optimizer: OptimizerFactory | None,
) -> tuple[Footprint, Streams]:
    """The footprint of a block by a pass on the meta device, and its output."""
    block = copy.deepcopy(block).to("meta").train()
    with torch.enable_grad(), SavedTensors([*streams, *block.parameters(), *block.buffers()]) as saved:
        tape = block.record_loss(streams, target) if isinstance(block, HeadStage) else block.record(streams)
    assert tape.outputs is not None
    is_head = isinstance(block, HeadStage)
    lasts, reconstructs = is_head or method.keeps_graph, method.reconstructs and block.invertible
    sent = 0 if is_head else payload(tape.outputs)
    trainable = payload(parameter for parameter in block.parameters() if parameter.requires_grad)
    footprint = Footprint(
        parameters=payload(block.parameters()),
        buffers=payload(block.buffers()),
        optimizer=_optimizer_bytes(block, optimizer),
        trainable=trainable,
        block=trainable,
        kept=0 if reconstructs else payload(block.keep(streams)),
        side=payload(block.side(streams)) if reconstructs else 0,
        lasting=saved.bytes if lasts else 0,
        passing=0 if lasts else saved.bytes,
        below=payload(streams),
        above=2 * sent if reconstructs else sent,
        target=payload([target]) if is_head else 0,
    )
    return footprint, tape.outputs


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
