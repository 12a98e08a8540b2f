"""Calculate peak memory from a timeline and the footprints of the stages.

Memory depends on the schedule as much as speed does: GPipe and 1F1B keep the same graphs, but GPipe for all
micro-batches of a batch, and 1F1B for those in flight. Instead of a formula for each method, this module therefore
follows the bytes through the events of any schedule, forwards F, backwards B and updates U:

    kept inputs and graphs   from the begin of F to the end of B
    a reconstructed graph    while B runs
    messages                 from the end of their sender's action to the begin of the F, or the end of the B, that
                             uses them
    stashed weights          from the update that replaces them to the last B of a forward that used them; one copy
                             at all times if weights are double-buffered
    weights, their gradients, optimizer state, buffers: always

The engine's ledger counts in the same way (`petra_core.ledger`). Targets of the loss are left out.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from petra_core.methods import Method
from petra_core.prediction.footprint import Footprint
from reproduce.drawing.timeline import Event, Name, Timeline

Changes = defaultdict[float, int]  # difference in bytes by time in seconds


def find_peaks(timeline: Timeline, footprints: Sequence[Footprint], method: Method) -> tuple[int, ...]:
    """Return the peak bytes of every device over a timeline, simulated or recorded.

    Args:
        timeline: Timeline of a whole run, from the first forward on.
        footprints: Footprint of each stage under the method.
        method: Training method.

    """
    ends = {event.name: event.end for event in timeline.events}
    stages: dict[int, list[Event]] = {}
    for event in timeline.events:
        stages.setdefault(event.name[1], []).append(event)
    always = [0] * timeline.devices
    changes: list[Changes] = [defaultdict(int) for _ in always]
    for stage, events in stages.items():
        device, footprint = events[0].device, footprints[stage]
        always[device] += footprint.always + method.double_buffered * footprint.trainable
        _add_micro_batches(changes[device], events, stage, footprint, ends)
        if method.stashes_weights and not method.double_buffered:
            _add_weights(changes[device], events, footprint.trainable)
    return tuple(map(_peak, always, changes))


def _peak(always: int, changes: Changes) -> int:
    """Return the largest sum of `always` and all changes up to a time."""
    # Memory that is released at a time is available for allocations at the same time.
    return max(accumulate((changes[time] for time in sorted(changes)), initial=always))


def _add_micro_batches(
    changes: Changes, events: Sequence[Event], stage: int, footprint: Footprint, ends: Mapping[Name, float]
) -> None:
    kept = footprint.kept + footprint.side + footprint.lasting
    for _, (kind, _, number), begin, end in events:
        if kind == "F":
            _hold(changes, begin, ends.get(("B", stage, number)), kept)
            if stage:
                _hold(changes, ends.get(("F", stage - 1, number), begin), begin, footprint.below)
        elif kind == "B":
            _hold(changes, begin, end, footprint.passing)
            _hold(changes, ends.get(("B", stage + 1, number), begin), end, footprint.above)


def _add_weights(changes: Changes, events: Sequence[Event], size: int) -> None:
    """Add the changes by stashed weights: an update keeps the old weights if a later backward uses them."""
    current: set[int] = set()  # micro-batches whose forward used the current weights
    replaced: list[tuple[float, set[int]]] = []
    last: dict[int, float] = {}
    for _, (kind, _, number), begin, end in events:
        if kind == "F":
            current.add(number)
        elif kind == "B":
            current.discard(number)
            last[number] = end
        elif kind == "U" and current:
            replaced.append((begin, current))
            current = set()
    for begin, users in replaced:
        _hold(changes, begin, max((last[user] for user in users if user in last), default=None), size)


def _hold(changes: Changes, begin: float, end: float | None, size: int) -> None:
    """Hold `size` bytes from `begin` to `end`, or to the end of the run if None."""
    changes[begin] += size
    if end is not None:
        changes[end] -= size
