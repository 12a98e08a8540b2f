"""The schedules of all methods, drawn from runs.

A schedule drawn from a formula shows what should happen. Here a small pipeline of J = 4 stages is really run with
each method while the report is made, its ticks are recorded as they are executed, checked by the independent
validator, and that recording is drawn.
"""

from collections.abc import Iterator
from functools import cache

from petra_core import methods
from petra_core.drawing.execution import executed
from petra_core.drawing.schedules import to_svg
from petra_core.methods import Method
from petra_core.prediction.units import idle_fraction
from reproduce.exhibits._exhibit import Exhibit, Folded, Sentence, Shown
from reproduce.records.frames import Frames
from reproduce.show.content import Figure

STAGES = 4
ACCUMULATIONS = (1, 2)
#: By whether the method is pipelined: enough to fill the pipeline, and to see it repeat.
MICRO_BATCHES = {True: 7, False: 2}
TRACED = 1  # micro-batch whose way is drawn
DRAWN = (
    methods.PETRA,
    *(m for m in methods.PAPER if m is not methods.PETRA),
    methods.PAREPROP,
)  # PipeDream-2BW does in every tick what delayed gradients do
INTRODUCTION = (
    f"Each drawing is a recording of a pipeline of J = {STAGES} stages that was run while this page was made, checked "
    "by a validator that does not know the generator. One row a stage, one column a tick; boxes carry the number of "
    "their micro-batch and are as wide as they are long in the units of Table 1. The way of micro-batch "
    f"{TRACED} is traced."
)


def whole(_: Frames) -> Iterator[Shown]:
    """A drawing a method for k = 1; the others folded."""
    yield Sentence(
        f"The drawings show what {len(DRAWN)} methods do in every tick, recorded from runs of a small pipeline."
    )
    first, *others = ACCUMULATIONS
    yield from (drawn(method, first) for method in DRAWN)
    yield from (Folded(drawn(method, k)) for k in others for method in DRAWN)


@cache
def drawn(method: Method, accumulation: int) -> Figure:
    """The schedule of a method. No record changes it, so it is drawn once a process."""
    entered = MICRO_BATCHES[method.pipelined]
    schedule = executed(method, STAGES, entered, accumulation)
    title = f"{method.title}, J = {STAGES}, k = {accumulation}"
    caption = (
        f"{title}: {entered} micro-batches in {len(schedule.ticks)} ticks, filling and draining included; "
        f"{idle_fraction(schedule):.0%} of the turns are idle."
    )
    key = f"schedule-{method.name.lower().replace('_', '-')}-k{accumulation}"
    return Figure(key, title, str(schedule), to_svg(schedule, highlight=TRACED, title=title), caption)


EXHIBIT = Exhibit("schedules", "Schedules as executed", INTRODUCTION, whole=whole, folded="The same with k = 2")
