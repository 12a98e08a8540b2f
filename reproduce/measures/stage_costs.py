"""Time a turn of each stage on this device. The speed of a pipeline can be modelled from these seconds.

The stages are timed one after the other in isolation (`petra_core.prediction.measuring`). A machine that is always busy
makes them slower, so the load of the machine is part of the result.
"""

import os
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from petra_core import methods
from petra_core.prediction import measuring
from petra_core.prediction.measuring import StageAlone, TurnSeconds
from petra_core.stages import Stage
from reproduce.cells import catalogue
from reproduce.cells.kinds import Cell, StageCostCell
from reproduce.measures.context import Context, Stopped
from reproduce.measures.synthetic import SGD, synthetic
from reproduce.records.record import Record


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
    rows = time_stages(cell, context.device, begin)
    return {"stages": rows, "load": [before, os.getloadavg()[0]], "cores": os.cpu_count()}


def time_stages(
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
        times = measuring.time_stages(
            *(stages, method, images, labels),
            accumulation=cell.accumulation,
            optimizer=SGD,
            repetitions=cell.repetitions,
        )
        rows = []
        for index, stage in enumerate(stages):
            begin(index, len(stages))
            rows.append(_row(index, stage, *next(times)))
    return rows


def _row(index: int, stage: Stage, alone: StageAlone, turns: Sequence[TurnSeconds]) -> dict[str, Any]:
    medians, lowest, highest = (alone.cost(turns, average) for average in (statistics.median, min, max))
    return {
        "stage": index,
        "invertible": stage.invertible,
        "parameters": medians.weights,
        "bytes_up": medians.up,
        "bytes_down": medians.down,
        **{
            name: {"median": getattr(medians, name), "lowest": getattr(lowest, name), "highest": getattr(highest, name)}
            for name in ("forward", "backward", "update")
        },
    }
