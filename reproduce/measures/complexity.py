"""Measure one method's complexity on a chain of equal stages: a row of Table 1, measured instead of derived.

Table 1 of the paper gives formulas per stage. Measurements can only be compared with a formula if all stages are equal.
So the network is the constant-width chain, and only its inner stages are measured (stem and head have other sizes). The
measured quantities are:

    activations   bytes of inputs and graphs that a stage holds between two steps. Methods that process one micro-batch
                  at a time hold nothing then and are measured while the head works. Neither moment has transient
                  buffers.
    parameters    bytes of the current weights and of stashed copies, the maximum over these moments
    messages      upwards: bytes that a stage has received when the head works for the first time.
                  downwards: bytes of messages waiting between two steps, divided by their number, which follows from
                  the staleness; with one micro-batch at a time, the maximum that a stage has received.
    FLOPs         torch's counter over the k turns of one update of the first inner stage, run in isolation in its
                  steady state (`petra_core.prediction.measuring`)
    time          ticks in lockstep, units (`reproduce.published.units`), and median seconds of the first inner
                  stage's forward, backward and update
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from petra_core import Pipeline, methods
from petra_core.ledger import MemoryReport
from petra_core.methods import Method
from petra_core.prediction.measuring import Feed, StageAlone, feeds
from petra_core.prediction.memory import predict
from petra_core.settings import Settings
from petra_core.stages import Stage
from petra_core.tape import as_value
from reproduce.cells.kinds import Cell, ComplexityCell
from reproduce.cells.networks import HELD
from reproduce.grids.plans.table1 import FIRST_INNER
from reproduce.measures.context import Context
from reproduce.measures.synthetic import SGD, synthetic
from reproduce.published.units import units_per_micro_batch
from reproduce.records.record import Record

CLASSES = 10
COUNTED = ("parameters", "inputs", "graph", "stashed_weights")  # kinds of bytes of a row
TIMED_TURNS = 20  # minimum number of turns that are timed


def measure(cell: Cell, _record: Record, context: Context) -> dict[str, Any]:
    """Measure a cell of the kind "complexity". It is short and cannot be interrupted."""
    assert isinstance(cell, ComplexityCell)
    return measure_complexity(cell, context.device)


def measure_complexity(cell: ComplexityCell, device: torch.device = torch.device("cpu")) -> dict[str, Any]:  # noqa: B008  # a constant
    """Run the cell's network until it is in its steady state, and measure it.

    Returns:
        Plain data:
        `stages`: number of stages, J;
        `rows`: for each stage the bytes described above (messages only for inner stages);
        `stage_flops`, `stage_forward_flops`: FLOPs of the first inner stage per micro-batch, and of its forward;
        `seconds`: seconds of the first inner stage by action;
        `ticks_per_micro_batch`, `units_overlapped`, `units_in_turn`: time per micro-batch;
        `memory`: for each stage and kind the peak bytes that the engine counted and that
        `petra_core.prediction.memory` predicts.

    """
    method = methods.by_name(cell.method)
    with synthetic(cell, CLASSES, device) as (stages, images, labels):
        feed = feeds(stages, method, images, labels)[FIRST_INNER]
        predictions = predict(stages, method, images, labels, accumulation=cell.accumulation, optimizer=SGD)
        pipeline = Pipeline(stages, method, accumulation=cell.accumulation, optimizer=SGD, seed=cell.seed)
        at_head: list[MemoryReport] = []  # reports while the head works
        between: list[MemoryReport] = []  # reports after each step
        stages[-1].function.register_forward_pre_hook(lambda *_: at_head.append(pipeline.memory()))
        # After this number of steps the pipeline is full, every stash has all its versions, and an update was done.
        count = 2 * (pipeline.staleness[0] + cell.accumulation) + 1
        for _ in range(count):
            pipeline.step(images, labels)
            between.append(pipeline.memory())
        alone = _stage_alone(cell, method, stages[FIRST_INNER], feed, len(stages))
        with _flop_counter() as turns_counter:
            for _ in range(cell.accumulation):
                alone.turn()
        turns = [alone.turn() for _ in range(max(TIMED_TURNS, cell.accumulation))]
        with torch.no_grad(), _flop_counter() as forward_counter:
            stages[FIRST_INNER](as_value(feed.inputs))
    return {
        "stages": len(stages),
        "rows": [_row(at_head, between, pipeline, stage) for stage in range(len(stages))],
        # The mean over the k turns of an update. With stashed weights, turns before an update can cost less.
        "stage_flops": int(turns_counter.get_total_flops()) / cell.accumulation,
        "stage_forward_flops": int(forward_counter.get_total_flops()),
        "seconds": {name: getattr(alone.cost(turns), name) for name in ("forward", "backward", "update")},
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
    """Return the first inner stage of `count` stages, filled until all its stashed weight versions differ."""
    k = cell.accumulation
    settings = Settings(method=method, accumulation=k, seed=0)
    waiting = settings.vector(count)[FIRST_INNER]
    alone = StageAlone(stage, FIRST_INNER, settings, feed, waiting=waiting, optimizer=SGD)
    for _ in range(-(-(waiting + 1) // k) * k):  # a multiple of k, so that it ends with an update
        alone.turn()
    return alone


class _NoModules(ModuleTracker):
    """Attribute no FLOPs to modules, because the tracker's hooks do not support torch.autograd.grad."""

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
