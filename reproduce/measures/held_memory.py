"""Fill the pipeline of a real network and count the bytes that its stages hold: Table 3, measured instead of derived.

Table 3 of the paper is a sum of formulas. Here the buffers are allocated. The network runs until every buffer has
reached its full size, and the engine's ledger reports the bytes per stage and kind, between ticks and at the peak. Two
values are recorded that do not depend on the ledger: the prediction from shapes (`petra_core.prediction.memory`) and
the growth of the process as reported by the system (`reproduce.measures.machine_memory`).

A configuration that does not fit is rejected before it allocates memory. Otherwise the system could kill this process
and others on the machine.
"""

from collections.abc import Sequence
from typing import Any

import torch

from petra_core import Pipeline, methods
from petra_core.ledger import KINDS, MemoryReport
from petra_core.prediction.footprint import StagePrediction
from petra_core.prediction.memory import predict
from reproduce.cells import catalogue, networks
from reproduce.cells.kinds import Cell, MemoryCell
from reproduce.measures.context import Context, Stopped
from reproduce.measures.machine_memory import Witness, available
from reproduce.measures.synthetic import SGD, micro_batch, synthetic
from reproduce.records.record import Record


def measure(cell: Cell, _record: Record, context: Context) -> dict[str, Any]:
    """Measure the memory of a cell of the kind "memory".

    Returns:
        `stages`: number of stages, J;
        `ticks`: number of micro-batches that entered;
        `rows`: for each stage and kind the bytes `held` after the last tick, the `peak` and its prediction `predicted`;
        `at_once`: sum over the stages of each stage's peak total;
        `process`: growth of this process in bytes (`Witness.report`).

    Raises:
        MemoryError: If the prediction does not fit into the free memory.
        Stopped: If a stop was requested. The measurement cannot be resumed.

    """
    assert isinstance(cell, MemoryCell)
    method = methods.by_name(cell.method)
    prediction = predict_memory(cell, context.device)
    _check_fits(cell, sum(stage.total for stage in prediction), context.device)
    witness = Witness(context.device)
    with synthetic(cell, catalogue.by_name(cell.dataset).num_classes, context.device) as (stages, images, labels):
        # Without inspection, whose graphs would add to the growth of the process.
        pipeline = Pipeline(
            stages, method, accumulation=cell.accumulation, optimizer=SGD, seed=cell.seed, inspect=False
        )
        ticks = method.ticks_to_steady(len(stages), cell.accumulation)
        for tick in range(ticks):
            if context.should_stop():
                raise Stopped(f"stopped after {tick} of {ticks} ticks")
            context.observer.tick(tick, ticks, pipeline.step(images, labels))
        report, process = pipeline.memory(), witness.report()
    return {
        "stages": len(report.stages),
        "ticks": ticks,
        "rows": _rows(report, prediction, KINDS if cell.coupling == "bdia" else networks.HELD),
        "at_once": report.peak(),
        "process": process,
    }


def predict_memory(cell: MemoryCell, device: torch.device | None = None) -> tuple[StagePrediction, ...]:
    """Predict the bytes that each stage will hold on `device` (None: the CPU) from shapes, without allocating them."""
    dataset = catalogue.by_name(cell.dataset)
    with torch.device("meta"):
        stages, batch = networks.build(cell, dataset.num_classes), micro_batch(cell, dataset.num_classes)
    return predict(
        stages, methods.by_name(cell.method), *batch, accumulation=cell.accumulation, optimizer=SGD, device=device
    )


def _check_fits(cell: MemoryCell, needed: int, device: torch.device) -> None:
    free = available(device)
    if free is not None and needed > free:
        raise MemoryError(
            f"{cell.slug} would hold {needed:,} bytes by prediction, and {free:,} are free on this machine ({device}); "
            f"nothing was allocated. Run it on a larger one, or measure at a batch below {cell.batch_size}"
        )


def _rows(report: MemoryReport, prediction: Sequence[StagePrediction], kinds: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "stage": stage.stage,
            "kind": kind,
            "held": stage.now[kind],
            "peak": stage.peak[kind],
            "predicted": expected.peak[kind],
        }
        for stage, expected in zip(report.stages, prediction, strict=True)
        for kind in kinds
    ]
