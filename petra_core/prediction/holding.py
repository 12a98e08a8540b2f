"""Calculate peak memory from a timeline and the footprints of the stages.

Memory depends on the schedule as much as speed does: GPipe and 1F1B keep the same graphs, but GPipe for all
micro-batches of a batch, and 1F1B for those in flight. Instead of a formula for each method, this module therefore
follows the bytes through the events of any schedule:

    kept inputs and graphs   from the begin of F to the end of B, or to the end of W if there is one
    a reconstructed graph    while B runs
    messages                 from the end of their sender's action to the begin of the F, or the end of the B, that
                             uses them
    stashed weights          from the update that replaces them to the last B of a forward that used them
    weights, their gradients, optimizer state, buffers: always

The engine's ledger counts in the same way (`petra_core.ledger`). Targets of the loss are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from petra_core.prediction.footprint import Footprint
from petra_core.prediction.timeline import Event, Name, Timeline

__all__ = ["peaks"]

Change = tuple[float, int]  # seconds, difference in bytes


def peaks(timeline: Timeline, footprints: Sequence[Footprint], *, stashes_weights: bool = False) -> tuple[int, ...]:
    """Return the peak bytes of every device over a timeline, simulated or recorded.

    Args:
        timeline: Timeline of a whole run, from the first forward on.
        footprints: Footprint of each stage.
        stashes_weights: Whether a backward uses the stashed weights of its forward.

    """
    devices: list[dict[int, list[Event]]] = [{} for _ in range(timeline.devices)]  # by stage
    for event in timeline.events:
        devices[event.device].setdefault(event.name[1], []).append(event)
    ends = {event.name: event.end for event in timeline.events}
    return tuple(_peak(stages, footprints, ends, stashes_weights=stashes_weights) for stages in devices)


def _peak(
    stages: Mapping[int, Sequence[Event]],
    footprints: Sequence[Footprint],
    ends: Mapping[Name, float],
    *,
    stashes_weights: bool,
) -> int:
    changes: list[Change] = []
    for stage, events in stages.items():
        changes += _of_micro_batches(events, stage, footprints[stage], ends)
        if stashes_weights:
            changes += _of_weights(events, footprints[stage].trainable)
    # Memory that is released at a time is available for allocations at the same time.
    together = (sum(size for _, size in of) for _, of in groupby(sorted(changes), key=lambda change: change[0]))
    return max(accumulate(together, initial=sum(footprints[stage].always for stage in stages)))


def _of_micro_batches(
    events: Sequence[Event], stage: int, footprint: Footprint, ends: Mapping[Name, float]
) -> Iterator[Change]:
    for event in events:
        kind, _, number = event.name
        if kind == "F":
            until = ends.get(("W", stage, number), ends.get(("B", stage, number)))
            yield from _between(event.begin, until, footprint.kept + footprint.side + footprint.lasting)
            if stage:
                yield from _between(ends.get(("F", stage - 1, number), event.begin), event.begin, footprint.below)
        elif kind == "B":
            yield from _between(event.begin, event.end, footprint.passing)
            yield from _between(ends.get(("B", stage + 1, number), event.begin), event.end, footprint.above)


def _of_weights(events: Sequence[Event], size: int) -> Iterator[Change]:
    """Yield the changes by stashed weights: an update keeps the old weights if a later backward uses them."""
    current: set[int] = set()  # micro-batches whose forward used the current weights
    replaced: list[tuple[float, set[int]]] = []
    last: dict[int, float] = {}
    for event in events:
        kind, _, number = event.name
        if kind == "F":
            current.add(number)
        elif kind == "B":
            current.discard(number)
            last[number] = event.end
        elif kind == "U" and current:
            replaced.append((event.begin, current))
            current = set()
    for begin, users in replaced:
        yield from _between(begin, max((last[user] for user in users if user in last), default=None), size)


def _between(begin: float, end: float | None, size: int) -> Iterator[Change]:
    """Yield the changes by `size` bytes that are held from `begin` to `end`, or to the end of the run if None."""
    if size:
        yield begin, size
        if end is not None:
            yield end, -size
