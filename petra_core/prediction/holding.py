"""The most bytes held at any time: a timeline, and what every stage keeps for a micro-batch.

Methods are compared by their speed and by their memory, and the second depends on the schedule as much as the first:
GPipe and 1F1B keep the same graphs, one for all micro-batches of a batch, the other for those under way. So bytes are
not added up by a formula for each method; they are followed through the events, whichever schedule made them:

    kept inputs and graphs   from the begin of F to the end of B, or of W where there is one
    a reconstructed graph    while B runs
    messages                 from the end of what made them to the begin of F, or the end of B, that takes them
    stashed weights          from the update that replaces them to the last B of a forward that used them
    weights, their gradients, optimizer state, buffers: always

which is how the engine's ledger counts (`petra_core.ledger`). Targets of the loss are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby

from petra_core.prediction.footprint import Footprint
from petra_core.prediction.timeline import Event, Name, Timeline

__all__ = ["peaks"]

Change = tuple[float, int]  # seconds, bytes more (or less)


def peaks(timeline: Timeline, footprints: Sequence[Footprint], *, stashes_weights: bool = False) -> tuple[int, ...]:
    """The most bytes that every device holds at any time of a timeline, simulated or recorded.

    Args:
        timeline: that of a whole run, from the first forward on.
        footprints: of each stage.
        stashes_weights: whether a backward differentiates with the weights of its forward.

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
    # What is let go in a moment makes room for what comes in the same moment.
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
    """At an update, the weights that it replaces are kept if a backward to come will use them."""
    current: set[int] = set()  # the micro-batches that went forward with the current weights
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
    """The changes by `size` bytes that are held from `begin` to `end`; None: to the end of the run."""
    if size:
        yield begin, size
        if end is not None:
            yield end, -size
