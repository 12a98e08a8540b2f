"""Draw the schedules of all methods as executed.

A schedule drawn from a formula shows what should happen. Here a small pipeline of J = 4 stages runs with each method
while the report is made. Its actions are recorded as they are executed, and the recording is laid out in time.
"""

from collections.abc import Iterator
from functools import cache

from petra_core import methods
from petra_core.methods import Method
from reproduce.drawing.gantt import to_svg
from reproduce.exhibits._exhibit import Folded, Sentence, Shown, declare, text_of
from reproduce.presentation.content import Figure
from reproduce.records.frames import Frames

STAGES = 4
ACCUMULATIONS = (1, 2)
#: By whether the method is pipelined: enough to fill the pipeline and to show that it repeats.
MICRO_BATCHES = {True: 9, False: 2}
DRAWN = (
    methods.PETRA,
    *(m for m in methods.PAPER if m is not methods.PETRA),
    methods.PAREPROP,
)  # PipeDream-2BW has the same schedule as delayed gradients


def whole(_: Frames) -> Iterator[Shown]:
    """Yield a drawing for each method for k = 1, and the others folded."""
    yield Sentence(f"The drawings show what {len(DRAWN)} methods do, recorded from runs of a small pipeline.")
    first, *others = ACCUMULATIONS
    yield from (drawn(method, first) for method in DRAWN)
    yield from (Folded(drawn(method, k)) for k in others for method in DRAWN)


@cache
def drawn(method: Method, accumulation: int) -> Figure:
    """Draw the schedule of a method. It does not depend on records, so each process draws it only once."""
    from reproduce.drawing.execution import (  # imports torch, which only some exhibits need
        execute,
        format_actions,
        lay_out,
    )

    entered = MICRO_BATCHES[method.pipelined]
    actions = execute(method, STAGES, entered, accumulation)
    timeline = lay_out(actions, (1,) * STAGES)
    title = f"{method.title}, J = {STAGES}, k = {accumulation}"
    idle = sum(timeline.idle(device) for device in range(STAGES)) / STAGES / timeline.seconds
    caption = text_of("schedules", "caption", title=title, entered=entered, timeline=timeline, idle=idle)
    key = f"schedule-{method.name.lower().replace('_', '-')}-k{accumulation}"
    labels = {stage: f"stage {stage}" for stage in range(STAGES)}
    return Figure(
        key, title, format_actions(actions), to_svg(timeline, title=title, labels=labels, unit="forwards"), caption
    )


EXHIBIT = declare("schedules", whole=whole, stages=STAGES)
