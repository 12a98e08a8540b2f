"""The schedules of all methods, drawn from runs.

A schedule drawn from a formula shows what should happen. Here a small pipeline of J = 4 stages is really run with
each method while the report is made, its ticks are recorded as they are executed, checked by the independent
validator, and that recording is drawn.
"""

from functools import cache

from petra_core import methods
from petra_core.drawing.execution import executed
from petra_core.drawing.schedules import to_svg
from petra_core.methods import Method
from petra_core.prediction.units import idle_fraction
from reproduce.show.content import Block, Figure, Section

STAGES = 4
ACCUMULATIONS = (1, 2)
MICRO_BATCHES = {
    True: 7,
    False: 2,
}  # by whether the method is pipelined: enough to fill the pipeline, and to see it repeat
TRACED = 1  # micro-batch whose way is drawn


@cache
def section() -> Section:
    """One drawing a method for k = 1; the others folded. No record changes them, so they are made once a process."""
    blocks: list[Block] = [
        f"Each drawing is a recording of a pipeline of J = {STAGES} stages that was run while this page was made, "
        "checked by a validator that does not know the generator. One row a stage, one column a tick; boxes carry "
        "the number of their micro-batch and are as wide as they are long in the units of Table 1. The way of "
        f"micro-batch {TRACED} is traced."
    ]
    first, *others = ACCUMULATIONS
    blocks += [_figure(method, first) for method in methods.KNOWN]
    folded = [_figure(method, k) for k in others for method in methods.KNOWN]
    return Section("schedules", "Schedules as executed", blocks, folded=folded, folded_title="The same with k = 2")


def _figure(method: Method, accumulation: int) -> Figure:
    schedule = executed(method, STAGES, MICRO_BATCHES[method.pipelined], accumulation)
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
