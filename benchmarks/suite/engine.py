"""Time that the engine adds to the work of the stages: scheduling decisions and the code around an action.

The overhead of an action is measured with stages of a few parameters each. The same evaluations and gradients without
an engine are measured in turn with it and subtracted. The number of engine functions that an action calls is counted as
well; it is equal on every machine.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor, nn

import petra_core
from petra_core import BufferedStage, HeadStage, Pipeline, ReversibleStage, Stage, methods
from petra_core.models import ConcatStreams, SplitStreams
from petra_core.tape import Streams, as_streams, as_value, detach

from .setting import METHODS, SGD, open_device, ticks_to_steady

STAGES = [10, 32]
PAIRS = 15  # of a tick and the same work without the engine


def tiny_stages(count: int) -> list[Stage]:
    """Make `count` stages for a micro-batch [1, 1], all reversible except stem and head."""
    stem = BufferedStage(nn.Sequential(nn.Linear(1, 2), SplitStreams()))
    head = HeadStage(nn.Sequential(ConcatStreams(), nn.Linear(2, 2)))
    return [stem, *(ReversibleStage(nn.Linear(1, 1)) for _ in range(count - 2)), head]


def work_without_engine(stages: list[Stage], x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a function that does the work of one micro-batch under PETRA, stage after stage, without an engine."""
    optimizers = [SGD(stage.parameters()) for stage in stages]
    parameters = [list(stage.parameters()) for stage in stages]
    *body, head = stages
    assert isinstance(head, HeadStage)

    def work() -> None:
        streams: Streams = (x,)
        kept: Streams = ()
        with torch.no_grad():
            for stage in body:
                kept = kept or stage.keep(streams)  # of the stem
                streams = detach(as_streams(stage(as_value(streams))))
        with torch.enable_grad():
            tape = head.record_loss(streams, y)
        gradients: Streams | None = (torch.ones(()),)
        outputs: Streams | None = streams
        for index in reversed(range(len(stages))):
            if index < len(stages) - 1:
                assert outputs is not None
                with torch.enable_grad():
                    tape = stages[index].reconstruct(outputs) if index else stages[0].recompute(kept)
                outputs = tape.inputs
            assert gradients is not None
            gradients, of_parameters = tape.gradients(gradients, parameters[index], input_gradient=index > 0)
            for parameter, gradient in zip(parameters[index], of_parameters, strict=True):
                parameter.grad = gradient
            optimizers[index].step()

    return work


def overhead(count: int) -> float:
    """Return the median seconds that the engine adds to an action of PETRA with `count` tiny stages."""
    open_device("cpu")
    x, y = torch.randn(1, 1), torch.zeros(1, dtype=torch.int64)
    pipeline = Pipeline(tiny_stages(count), methods.PETRA, optimizer=SGD, seed=0)
    for _ in range(2 * count):
        pipeline.step(x, y)
    with pipeline.recording() as recording:
        pipeline.step(x, y)
    bare = work_without_engine(tiny_stages(count), x, y)
    bare()
    added = [_seconds(lambda: pipeline.step(x, y)) - _seconds(bare) for _ in range(PAIRS)]
    return statistics.median(added) / len(recording)


def _seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


class Overhead:
    """Measure the seconds that the engine adds to each forward, reconstruction, backward and update of PETRA."""

    params = (STAGES,)
    param_names = ("stages",)
    version = "1"

    def track_per_action(self, stages: int) -> float:
        return overhead(stages)

    track_per_action.unit = "seconds"  # type: ignore[attr-defined]  # asv reads it


def calls_of_the_engine(function: Callable[[], object]) -> int:
    """Count the calls of functions of petra_core. Calls inside torch may depend on the machine and are not counted."""
    engine = str(Path(petra_core.__file__).parent)
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.startswith(engine)

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls


class Calls:
    """Count calls of engine functions per action, in a step of ten tiny stages."""

    params = (METHODS,)
    param_names = ("method",)
    version = "1"

    def track_per_action(self, method: str) -> float:
        open_device("cpu")
        x, y = torch.randn(1, 1), torch.zeros(1, dtype=torch.int64)
        pipeline = Pipeline(tiny_stages(10), methods.by_name(method), optimizer=SGD, seed=0)
        for _ in range(ticks_to_steady(pipeline)):
            pipeline.step(x, y)
        with pipeline.recording() as recording:
            pipeline.step(x, y)
        return calls_of_the_engine(lambda: pipeline.step(x, y)) / len(recording)

    track_per_action.unit = "calls"  # type: ignore[attr-defined]  # asv reads it
