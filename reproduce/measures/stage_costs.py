"""Time a turn of each stage on this device. The speed of a pipeline can be modelled from these seconds.

The stages are timed one after the other in isolation (`reproduce.measures.stage_alone`). The results are medians over
turns after a warm-up (caches, kernel selection, the optimizer's state). A median is robust against single turns that
another process disturbed, but not against a machine that is always busy. So the load of the machine is part of the
result.
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
    """Time every stage of the network of a cell of the kind "stage_costs".

    Returns:
        `stages`: for each stage its number (`stage`), whether it is `invertible`, bytes of its `parameters`, bytes of
        its messages (`bytes_up`, `bytes_down`), and the `median`, `lowest` and `highest` seconds of `forward`,
        `backward` and `update`;
        `load`: load average of the last minute, before and after;
        `cores`: number of CPU cores.

    Raises:
        Stopped: If a stop was requested. The measurement cannot be resumed.

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
    """Time every stage of the cell's network.

    Args:
        cell: Cell to measure.
        device: Device to measure on.
        begin: Function that is called before each stage with its number and the number of stages.

    Returns:
        The entry `stages` of the result of `measure`.

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
    # At most k waiting micro-batches are needed for forward and backward to use different weights.
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
