"""Measure one method's complexity on a chain of equal stages: a row of Table 1, executed instead of derived.

Table 1 of the paper gives formulas per stage. To see a formula in a measurement, all stages must be alike, so the
network is the constant-width chain, and only its inner stages are looked at (stem and head are of other sizes). What
is read:

    activations   bytes of inputs and graphs that a stage holds while the head works on its micro-batch: the one
                  moment, under every method, at which all stages below have finished their turn, so that nothing
                  transient is seen
    parameters    stashed copies, the most at any such moment
    messages      upwards: all that a stage has received when the head works for the first time;
                  downwards: the rest of the most that waits at a stage once gradients flow
    FLOPs         torch's counter over the k micro-batches of an update in the steady state, on this chain and on one
                  longer by a stage: the difference is what one inner stage costs, without stem and head
    time          ticks of the executed schedule, and units of one stage's forward (`petra_core.schedule`)
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.module_tracker import ModuleTracker

from petra_core import Pipeline, methods
from petra_core.ledger import KINDS, MemoryReport
from petra_core.memory import predict
from petra_core.methods import Method
from petra_core.stages import Stage
from petra_core.units import units_per_micro_batch
from reproduce import networks
from reproduce.cells import ComplexityCell

CLASSES = 10
LEARNING_RATE = 1e-4  # small: only sizes and counts are measured, and they must not end in a non-finite loss


class _HeadWatch:
    """Looks at the pipeline's memory every time the head works, through a hook on the head's module."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.reports: list[MemoryReport] = []
        pipeline.stages[-1].function.register_forward_pre_hook(lambda *_: self.reports.append(pipeline.memory()))

    def most(self, stage: int, kind: str) -> int:
        """The largest number of bytes that a stage held at any look."""
        return max(report.stages[stage].now[kind] for report in self.reports)


def measure_complexity(cell: ComplexityCell) -> dict[str, Any]:
    """Run the cell's network until everything has reached its steady state, and count.

    Returns:
        A result that is plain data: `stages` (J), per stage under `rows` the bytes described above (messages only of
        inner stages), mean FLOPs of a micro-batch, of one inner stage and of that stage's forward, ticks and units a
        micro-batch; `memory`: by stage and kind the peak that the engine counted and the one that `petra_core.memory`
        foretells, bytes.

    Raises:
        ValueError: the model is no chain.

    """
    method = methods.by_name(cell.method)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(cell.seed)
        images = torch.randn(cell.batch_size, 3, cell.image_size, cell.image_size)
        labels = torch.randint(CLASSES, (cell.batch_size,))
        stages = networks.build(cell, CLASSES)
        pipeline = _pipeline(cell, method, stages)
        longer = _pipeline(cell, method, networks.build(_with_one_more_stage(cell), CLASSES))
        watch = _HeadWatch(pipeline)
        count = _steady_after(method, len(stages), cell.accumulation)
        with pipeline.recording() as recording:
            for _ in range(count):
                pipeline.step(images, labels)
        foretold = predict(stages, method, images, labels, accumulation=cell.accumulation, optimizer=_optimizer)
        flops = _flops_of_micro_batch(pipeline, images, labels)
        for _ in range(_steady_after(method, len(stages) + 1, cell.accumulation)):
            longer.step(images, labels)
        stage_flops = _flops_of_micro_batch(longer, images, labels) - flops
        forward_flops = _flops_of_forward(stages, images)
    schedule = recording.schedule
    return {
        "stages": len(stages),
        "rows": [_row(watch, pipeline, stage) for stage in range(len(stages))],
        "micro_batch_flops": flops,
        "stage_flops": stage_flops,
        "stage_forward_flops": forward_flops,
        "ticks_per_micro_batch": len(schedule.ticks) / count,
        "units_overlapped": units_per_micro_batch(schedule, overlap=True),
        "units_in_turn": units_per_micro_batch(schedule, overlap=False),
        "memory": [
            {"stage": stage.stage, "kind": kind, "measured": stage.peak[kind], "predicted": prediction.peak[kind]}
            for stage, prediction in zip(pipeline.memory().stages, foretold, strict=True)
            for kind in KINDS
        ],
    }


def _with_one_more_stage(cell: ComplexityCell) -> ComplexityCell:
    chain = re.fullmatch(r"chain([1-9]\d*)", cell.model)
    if chain is None:
        raise ValueError(f"complexity is measured on a chain of equal stages, such as 'chain4'; got {cell.model!r}")
    return dataclasses.replace(cell, model=f"chain{int(chain[1]) + 1}")


def _pipeline(cell: ComplexityCell, method: Method, stages: Sequence[Stage]) -> Pipeline:
    return Pipeline(
        stages,
        method,
        accumulation=cell.accumulation,
        optimizer=_optimizer,
        seed=cell.seed,
    )


def _optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9, nesterov=True)


def _steady_after(method: Method, stages: int, accumulation: int) -> int:
    """Micro-batches after which a pipeline is full, every stash holds all its versions, and an update has passed."""
    return 2 * (method.delay(0, stages) + accumulation) + 1


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


def _flops_of_micro_batch(pipeline: Pipeline, images: Tensor, labels: Tensor) -> float:
    """Mean over the k micro-batches of an update: with stashed weights, those just before it can cost less."""
    with _flop_counter() as counter:
        for _ in range(pipeline.accumulation):
            pipeline.step(images, labels)
    return int(counter.get_total_flops()) / pipeline.accumulation


@torch.no_grad()
def _flops_of_forward(stages: Sequence[Stage], images: Tensor) -> int:
    """FLOPs of one inner stage's forward."""
    streams = stages[0](images)
    with _flop_counter() as counter:
        stages[1](streams)
    return int(counter.get_total_flops())


def _row(watch: _HeadWatch, pipeline: Pipeline, stage: int) -> dict[str, int | bool | None]:
    upwards = watch.reports[0].stages[stage].peak["messages"]
    most = pipeline.memory().stages[stage].peak["messages"]
    inner = 0 < stage < len(pipeline.stages) - 1
    return {
        "stage": stage,
        "invertible": pipeline.stages[stage].invertible,
        "parameters": watch.most(stage, "parameters"),
        "inputs": watch.most(stage, "inputs"),
        "graph": watch.most(stage, "graph"),
        "stashed_weights": watch.most(stage, "stashed_weights"),
        "message_up": upwards if inner else None,
        # One at a time, a message from above never waits beside one from below.
        "message_down": (most - upwards if pipeline.method.pipelined else most) if inner else None,
    }
