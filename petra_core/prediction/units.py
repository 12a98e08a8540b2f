"""The cost of a schedule: the share of idle turns, and the time of a micro-batch in the units of Table 1."""

from petra_core.methods import Method
from petra_core.schedule import Kind, Schedule, Turn

__all__ = ["UNITS", "idle_fraction", "units_per_micro_batch"]


def idle_fraction(schedule: Schedule) -> float:
    """Share of the turns in which a stage has nothing to do: the "bubble", 0 for a filled pipeline.

    Raises:
        ValueError: the schedule has no ticks.

    """
    turns = [turn for tick in schedule.ticks for turn in tick]
    if not turns:
        raise ValueError("a schedule without ticks has no idle fraction; give it at least one micro-batch")
    return sum(not turn for turn in turns) / len(turns)


#: Cost of an action in the units of Table 1, in which a forward of any stage costs 1; updates are not counted there.
UNITS = {Kind.FORWARD: 1, Kind.RECONSTRUCT: 1, Kind.BACKWARD: 2, Kind.UPDATE: 0}


def units_per_micro_batch(schedule: Schedule, *, overlap: bool) -> int:
    """Mean time per micro-batch in steady state, in units of one stage's forward (arXiv 2406.02052, Table 1).

    One at a time, a micro-batch costs the sum of all its actions. Pipelined, the stages work side by side and the
    busiest one sets the pace. Against the last column of Table 1 (J at least 2):

        method                        Table 1   overlap=True   overlap=False
        BACKPROPAGATION               3J        3J             3J
        REVERSIBLE_BACKPROPAGATION    4J        4J - 1         4J - 1       the head reconstructs nothing
        DELAYED_GRADIENTS             2         2              3
        DSP                           3         3              4
        PETRA                         3         3              4
        APPROXIMATE_INPUTS            -         4              5            two evaluations, for two sets of weights
        PAREPROP                      -         3J             4J - 1       reconstructions beside backwards

    Args:
        schedule: one with a steady state: more than 2(J-1) micro-batches if pipelined, else one that finishes.
        overlap: the convention of Table 1: a stage has one worker for its forwards and another for its backwards
            (with their reconstructions), and the slower of the two sets the pace. This is a bound on throughput: it
            lets the head, too, do a forward beside the backward of the micro-batch before. Else a stage does all
            actions of a turn one after the other, as one device does. Without a pipeline there is nothing to overlap,
            except for a method that does so by itself.

    Raises:
        ValueError: the schedule never reaches its steady state.

    """
    if not schedule.method.pipelined:
        return _units_one_at_a_time(schedule, side_by_side=overlap and schedule.method.overlapped)
    full = [
        tick
        for tick in schedule.ticks
        if all({Kind.FORWARD, Kind.BACKWARD} <= {action.kind for action in turn} for turn in tick)
    ]
    if not full:
        raise ValueError(
            f"there is no tick at which all {schedule.stages} stages are at work; "
            f"generate the schedule with at least {2 * schedule.stages - 1} micro-batches"
        )
    return max(_units_of_turn(turn, schedule.method, overlap) for tick in full for turn in tick)


def _units_of_turn(turn: Turn, method: Method, overlap: bool) -> int:
    forward = sum(UNITS[action.kind] for action in turn if action.kind is Kind.FORWARD)
    backward = sum(UNITS[action.kind] for action in turn if action.kind is not Kind.FORWARD)
    if method.reconstructs and method.stashes_weights:
        backward += sum(UNITS[action.kind] for action in turn if action.kind is Kind.RECONSTRUCT)
    return max(forward, backward) if overlap else forward + backward


def _units_one_at_a_time(schedule: Schedule, *, side_by_side: bool) -> int:
    finished = {action.number for action in schedule.stage(0) if action.kind is Kind.BACKWARD}
    entered = {action.number for action in schedule.stage(0) if action.kind is Kind.FORWARD}
    whole = finished & entered
    if not whole:
        raise ValueError("no micro-batch passes from its entry to its last backward; record or generate at least one")
    one = min(whole)  # all cost the same
    units = 0
    for tick in schedule.ticks:
        turns = [sum(UNITS[a.kind] for a in turn if a.kind is not Kind.UPDATE and a.number == one) for turn in tick]
        units += max(turns) if side_by_side else sum(turns)
    return units
