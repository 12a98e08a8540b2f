"""The cost of a turn of each stage on this device: the seconds from which a pipeline's speed can be modelled.

Every stage is timed alone (`reproduce.measures.stage_alone`), one after the other: medians over turns, the first of
which are left out (caches, kernels chosen at first use, the optimizer's state). A median shrugs off a turn that another
process disturbed, not a machine that is busy throughout; so the load of the machine is part of the result.
"""

import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from petra_core import methods
from petra_core.ledger import payload
from petra_core.methods import Method
from petra_core.stages import Stage
from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, StageCostCell
from reproduce.measures.context import Context, Stopped
from reproduce.measures.stage_alone import Feed, StageAlone, TurnSeconds, feeds
from reproduce.measures.synthetic import SGD, synthetic
from reproduce.records.record import Record

WARM_UP = 2  # turns that are not timed


def measure(cell: Cell, _record: Record, context: Context) -> dict[str, Any]:
    """Time every stage of the cell's network: the measure of a cell of the kind "stage_costs".

    Returns:
        `stages`: for each stage its number, parameters and bytes of messages `bytes_up` and `bytes_down`, whether it is
        invertible, and under `forward`, `backward` and `update` the median seconds, `lowest` and `highest`;
        `load`: mean number of processes that wanted to run in the last minute, before and after; `cores`.

    Raises:
        Stopped: by request; there is nothing to go on from.

    """
    assert isinstance(cell, StageCostCell)

    def begin(index: int, count: int) -> None:
        if context.should_stop():
            raise Stopped(f"stopped before stage {index} of {count}")
        context.observer.tick(index, count, None)

    before = os.getloadavg()[0]
    rows = timed(cell, context.device, begin)
    return {"stages": rows, "load": [before, os.getloadavg()[0]], "cores": os.cpu_count()}


def timed(
    cell: StageCostCell, device: torch.device, begin: Callable[[int, int], None] = lambda index, count: None
) -> list[dict[str, Any]]:
    """Time every stage of the cell's network on `device`; `stages` of what `measure` returns.

    `begin` is called with the number of a stage and that of all stages before it is timed.
    """
    method = methods.by_name(cell.method)
    classes = catalogue.by_name(cell.dataset).num_classes
    with synthetic(cell, classes, device) as (stages, images, labels):
        arriving = feeds(stages, method, images, labels)
        rows = []
        for index, (stage, feed) in enumerate(zip(stages, arriving, strict=True)):
            begin(index, len(stages))
            rows.append(_stage(cell, method, stage, index, len(stages), feed))
    return rows


def _stage(cell: StageCostCell, method: Method, stage: Stage, index: int, count: int, feed: Feed) -> dict[str, Any]:
    # So many make forward and backward differ in weights.
    waiting = min(method.staleness(index, count), cell.accumulation)
    stage_alone = StageAlone(stage, index, method, feed, waiting=waiting, accumulation=cell.accumulation, optimizer=SGD)
    for _ in range(max(WARM_UP, cell.accumulation)):
        stage_alone.turn()
    # Only every k-th turn has an update.
    turns = [stage_alone.turn() for _ in range(max(cell.repetitions, cell.accumulation))]
    return {
        "stage": index,
        "invertible": stage.invertible,
        "parameters": payload(stage.parameters()),
        "bytes_up": stage_alone.bytes_up,
        "bytes_down": stage_alone.bytes_down,
        **{name: _seconds(turns, name) for name in ("forward", "backward", "update")},
    }


def _seconds(turns: Sequence[TurnSeconds], action: str) -> dict[str, float]:
    times = [seconds for turn in turns if (seconds := getattr(turn, action)) is not None]
    return {"median": statistics.median(times), "lowest": min(times), "highest": max(times)}
