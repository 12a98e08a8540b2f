"""Draw schedules as executed: PETRA in lockstep and in asynchronous 1F1B, and methods with other schedules.

A schedule drawn from a formula shows what should happen. Here a small pipeline of J = 4 stages runs with each method
while the report is made. Its actions are recorded as they are executed, and the recording is laid out in time.
"""

from collections.abc import Iterator
from functools import cache

from petra_core import methods
from petra_core.methods import Method
from petra_core.staleness import lockstep, one_f_one_b
from reproduce.drawing.gantt import Panel, to_svg
from reproduce.drawing.timeline import Timeline
from reproduce.exhibits._exhibit import Sentence, Shown, declare, text_of
from reproduce.presentation.content import Figure
from reproduce.records.frames import Frames

STAGES = 4
#: By whether the method is pipelined: enough to fill the pipeline and to show that it repeats.
MICRO_BATCHES = {True: 9, False: 2}
TIMINGS = {"lockstep": lockstep(STAGES), "asynchronous 1F1B": one_f_one_b(STAGES)}
#: DSP and approximate inputs have the schedule of PETRA, PipeDream-2BW that of delayed gradients.
OTHERS = (
    methods.BACKPROPAGATION,
    methods.REVERSIBLE_BACKPROPAGATION,
    methods.DELAYED_GRADIENTS,
    methods.PAREPROP,
)


def whole(_: Frames) -> Iterator[Shown]:
    """Yield PETRA with both timings in one drawing, and a drawing of each other method."""
    late, sooner = (vector[0] for vector in TIMINGS.values())
    lengths = [f"{_executed(methods.PETRA, name).seconds:g}" for name in TIMINGS]
    values = {"stages": STAGES, "late": late, "sooner": sooner, "entered": MICRO_BATCHES[True], "lengths": lengths}
    yield Sentence(text_of("schedules", "sentence", **values))
    yield drawn(methods.PETRA, tuple(TIMINGS))
    yield from (drawn(method, ("lockstep",)) for method in OTHERS)


@cache
def _executed(method: Method, timing: str) -> Timeline:
    """Run a method, and return its executed actions as a timeline. They do not depend on records."""
    from reproduce.drawing.execution import execute, lay_out  # imports torch

    staleness = TIMINGS[timing] if method.pipelined else None
    actions = execute(method, STAGES, MICRO_BATCHES[method.pipelined], staleness=staleness)
    return lay_out(actions, (1,) * STAGES)


def drawn(method: Method, timings: tuple[str, ...]) -> Figure:
    """Draw the schedules of a method, one below the other."""
    lanes = [f"stage {stage}" for stage in range(STAGES)]
    panels, captions = [], []
    for timing in timings:
        timeline = _executed(method, timing)
        title = method.title + f", {timing}" * method.pipelined
        panels.append(Panel(title, timeline, (0, timeline.seconds), lanes))
        idle = 100 * sum(timeline.idle(device) for device in range(STAGES)) / STAGES / timeline.seconds
        entered = MICRO_BATCHES[method.pipelined]
        captions.append(text_of("schedules", "caption", title=title, entered=entered, timeline=timeline, idle=idle))
    key = f"schedule-{method.name.lower().replace('_', '-')}"
    name = f"Schedule of {method.title}"
    svg = to_svg(panels, key=f"figure-{key}", title=name, unit="forwards")
    return Figure(key, name, svg, " ".join(captions))


EXHIBIT = declare("schedules", whole=whole, stages=STAGES)
