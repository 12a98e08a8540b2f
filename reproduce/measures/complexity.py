"""Measure one method's complexity on a chain of equal stages: a row of Table 1, executed instead of derived.

Table 1 of the paper gives formulas per stage. To see a formula in a measurement, all stages must be alike, so the
network is the constant-width chain, and only its inner stages are looked at (stem and head are of other sizes). What
is read:

    activations   bytes of inputs and graphs that a stage holds between two steps; where one micro-batch passes at a
                  time, and nothing is held then, while the head works on it: nothing transient is seen at either
    parameters    stashed copies, the most at any such moment
    messages      upwards: all that a stage has received when the head works for the first time;
                  downwards: what waits between two steps, over the number of messages that the staleness says; one at
                  a time the most that a stage has received
    FLOPs         torch's counter over the k turns of an update of the first inner stage, alone in its steady state
                  (`reproduce.measures.stage_alone`)
    time          ticks in lockstep, units (`petra_core.prediction.units`), and seconds of the
                  first inner stage's forward, backward and update, medians
"""

import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from petra_core import Pipeline, methods
from petra_core.ledger import MemoryReport
from petra_core.methods import Method
from petra_core.prediction.memory import predict
from petra_core.prediction.units import units_per_micro_batch
from petra_core.stages import Stage
from petra_core.tape import as_value
from reproduce.cells.kinds import Cell, ComplexityCell
from reproduce.cells.networks import HELD
from reproduce.grids.plans.table1 import FIRST_INNER
from reproduce.measures.context import Context
from reproduce.measures.stage_alone import Feed, StageAlone, feeds
from reproduce.measures.synthetic import SGD, synthetic
from reproduce.records.record import Record

CLASSES = 10
COUNTED = ("parameters", "inputs", "graph", "stashed_weights")  # kinds of bytes of a row
TIMED_TURNS = 20  # at least


def measure(cell: Cell, _record: Record, context: Context) -> dict[str, Any]:
    """Measure a cell of the kind "complexity", as the runner calls it: small enough to be done in one go."""
    assert isinstance(cell, ComplexityCell)
    return measure_complexity(cell, context.device)


def measure_complexity(cell: ComplexityCell, device: torch.device = torch.device("cpu")) -> dict[str, Any]:  # noqa: B008  # a constant
    """Run the cell's network until everything has reached its steady state, and count.

    Returns:
        A result that is plain data: `stages` (J), per stage under `rows` the bytes described above (messages only of
        inner stages); of the first inner stage FLOPs of a micro-batch (`stage_flops`), of a forward
        (`stage_forward_flops`) and `seconds` by action; ticks and units a micro-batch; `memory`: by stage and kind the
        peak that the engine counted and the one that `petra_core.prediction.memory` predicts, bytes.

    """
    method = methods.by_name(cell.method)
    with synthetic(cell, CLASSES, device) as (stages, images, labels):
        feed = feeds(stages, method, images, labels)[FIRST_INNER]
        predictions = predict(stages, method, images, labels, accumulation=cell.accumulation, optimizer=SGD)
        pipeline = Pipeline(stages, method, accumulation=cell.accumulation, optimizer=SGD, seed=cell.seed)
        at_head: list[MemoryReport] = []  # each time that the head works
        between: list[MemoryReport] = []  # after each step
        stages[-1].function.register_forward_pre_hook(lambda *_: at_head.append(pipeline.memory()))
        # Then the pipeline is full, every stash holds all its versions, and an update has passed.
        count = 2 * (method.staleness(0, len(stages)) + cell.accumulation) + 1
        for _ in range(count):
            pipeline.step(images, labels)
            between.append(pipeline.memory())
        alone = _stage_alone(cell, method, stages[FIRST_INNER], feed, len(stages))
        with _flop_counter() as of_turns:
            for _ in range(cell.accumulation):
                alone.turn()
        turns = [alone.turn() for _ in range(max(TIMED_TURNS, cell.accumulation))]
        with torch.no_grad(), _flop_counter() as of_forward:
            stages[FIRST_INNER](as_value(feed.inputs))
    return {
        "stages": len(stages),
        "rows": [_row(at_head, between, pipeline, stage) for stage in range(len(stages))],
        # The mean over the k of an update: with stashed weights those before it can cost less.
        "stage_flops": int(of_turns.get_total_flops()) / cell.accumulation,
        "stage_forward_flops": int(of_forward.get_total_flops()),
        "seconds": {
            "forward": statistics.median(turn.forward for turn in turns),
            "backward": statistics.median(turn.backward for turn in turns),
            "update": statistics.median(turn.update for turn in turns if turn.update is not None),
        },
        "ticks_per_micro_batch": 1.0 if method.pipelined else 2.0 * len(stages) - 1,
        "units_overlapped": units_per_micro_batch(method, len(stages), overlap=True),
        "units_in_turn": units_per_micro_batch(method, len(stages), overlap=False),
        "memory": [
            {"stage": stage.stage, "kind": kind, "measured": stage.peak[kind], "predicted": prediction.peak[kind]}
            for stage, prediction in zip(pipeline.memory().stages, predictions, strict=True)
            for kind in HELD
        ],
    }


def _stage_alone(cell: ComplexityCell, method: Method, stage: Stage, feed: Feed, count: int) -> StageAlone:
    """The first inner stage of so many with all that waits there, every version that it keeps another one."""
    waiting = method.staleness(FIRST_INNER, count)
    k = cell.accumulation
    alone = StageAlone(stage, FIRST_INNER, method, feed, waiting=waiting, accumulation=k, optimizer=SGD)
    for _ in range(-(-(waiting + 1) // k) * k):  # whole updates
        alone.turn()
    return alone


class _NoModules(ModuleTracker):
    """Attributes nothing to modules: the tracker's hooks refuse torch.autograd.grad, by which stages differentiate."""

    def __enter__(self) -> "_NoModules":
        return self

    def __exit__(self, *error: object) -> None:
        return


def _flop_counter() -> FlopCounterMode:
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()
    return counter


def _row(
    at_head: Sequence[MemoryReport], between: Sequence[MemoryReport], pipeline: Pipeline, stage: int
) -> dict[str, int | bool | None]:
    pipelined = pipeline.method.pipelined
    reports = [report.stages[stage] for report in (between if pipelined else at_head)]
    inner = 0 < stage < len(pipeline.stages) - 1
    down = None
    if inner and pipelined:
        waiting = pipeline.staleness[stage] - pipeline.staleness[stage + 1]
        down = max(report.now["messages"] for report in reports) // waiting
    elif inner:
        down = pipeline.memory().stages[stage].peak["messages"]
    return {
        "stage": stage,
        "invertible": pipeline.stages[stage].invertible,
        **{kind: max(report.now[kind] for report in reports) for kind in COUNTED},
        "message_up": at_head[0].stages[stage].peak["messages"] if inner else None,
        "message_down": down,
    }
