"""The schedules of all methods, drawn from runs.

A schedule drawn from a formula shows what should happen. Here a small pipeline of J = 4 stages is really run with
each method while the report is made, its ticks are recorded as they are executed, checked by the independent
validator, and that recording is drawn.
"""

from collections.abc import Iterator
from functools import cache

import torch

from petra_core import Pipeline, methods, models
from petra_core.drawing.schedules import to_svg
from petra_core.methods import Method
from petra_core.prediction.units import idle_fraction
from petra_core.schedule import Schedule
from petra_core.validation import validate
from reproduce.exhibits._exhibit import Coverage, Exhibit, Folded, Shown
from reproduce.records.frames import Frames
from reproduce.show.content import Figure

STAGES = 4
ACCUMULATIONS = (1, 2)
#: By whether the method is pipelined: enough to fill the pipeline, and to see it repeat.
MICRO_BATCHES = {True: 7, False: 2}
TRACED = 1  # micro-batch whose way is drawn
INTRODUCTION = (
    f"Each drawing is a recording of a pipeline of J = {STAGES} stages that was run while this page was made, checked "
    "by a validator that does not know the generator. One row a stage, one column a tick; boxes carry the number of "
    "their micro-batch and are as wide as they are long in the units of Table 1. The way of micro-batch "
    f"{TRACED} is traced."
)


@cache
def executed(method: Method, accumulation: int) -> Schedule:
    """The schedule that a pipeline of four stages carried out: micro-batches in, then drained.

    Raises:
        ScheduleError: it breaks a dependency.

    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        stages = models.chain(STAGES - 2, num_classes=2, channels=2, in_channels=1)
        images, labels = torch.randn(2, 1, 4, 4), torch.tensor([0, 1])
    pipeline = Pipeline(
        stages,
        method,
        accumulation=accumulation,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
        seed=0,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(
        1
    )  # several, on tensors of a hundred numbers, wait for one another, for seconds if it is busy
    try:
        with pipeline.recording() as recording:
            for _ in range(MICRO_BATCHES[method.pipelined]):
                pipeline.step(images, labels)
            pipeline.drain()
    finally:
        torch.set_num_threads(threads)
    validate(recording.schedule)
    return recording.schedule


@cache
def drawn(method: Method, accumulation: int) -> Figure:
    """That schedule; no record changes it, so it is drawn once a process."""
    schedule = executed(method, accumulation)
    title = f"{method.title}, J = {STAGES}, k = {accumulation}"
    drawing = to_svg(schedule, highlight=TRACED, title=title)
    entered = MICRO_BATCHES[method.pipelined]
    caption = (
        f"{title}: {entered} micro-batches in {len(schedule.ticks)} ticks, filling and draining included; "
        f"{idle_fraction(schedule):.0%} of the turns are idle."
    )
    return Figure(
        f"schedule-{method.name.lower().replace('_', '-')}-k{accumulation}", title, str(schedule), drawing, caption
    )


def whole(_: Frames) -> Iterator[Shown]:
    """A drawing a method for k = 1; the others folded."""
    yield Coverage("run while this page was made")
    first, *others = ACCUMULATIONS
    yield from (drawn(method, first) for method in methods.KNOWN)
    yield from (Folded(drawn(method, k)) for k in others for method in methods.KNOWN)


EXHIBIT = Exhibit("schedules", "Schedules as executed", INTRODUCTION, whole=whole, folded="The same with k = 2")
