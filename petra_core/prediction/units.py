"""The time of a micro-batch in the units of Table 1."""

from petra_core.methods import Method
from petra_core.staleness import Kind, chosen, program

__all__ = ["UNITS", "units_per_micro_batch"]

#: Cost of an action in the units of Table 1, in which a forward of any stage costs 1; updates are not counted there.
UNITS = {Kind.FORWARD: 1, Kind.RECONSTRUCT: 1, Kind.BACKWARD: 2, Kind.UPDATE: 0}


def units_per_micro_batch(method: Method, stages: int, *, overlap: bool) -> int:
    """Return the time per micro-batch in steady state, in units of one stage's forward (arXiv 2406.02052, Table 1).

    One at a time, a micro-batch costs the sum of all its actions. Pipelined, the stages work side by side and the
    busiest one sets the pace, whatever the staleness. Against the last column of Table 1 (J at least 2):

        method                        Table 1   overlap=True   overlap=False
        BACKPROPAGATION               3J        3J             3J
        REVERSIBLE_BACKPROPAGATION    4J        4J - 1         4J - 1       the head reconstructs nothing
        DELAYED_GRADIENTS             2         2              3
        DSP                           3         3              4
        PETRA                         3         3              4
        APPROXIMATE_INPUTS            -         4              5            two evaluations, for two sets of weights
        PAREPROP                      -         3J             4J - 1       reconstructions beside backwards

    Args:
        method: the method.
        stages: J, at least 1.
        overlap: the convention of Table 1: a stage has one worker for its forwards and another for its backwards
            (with their reconstructions), and the slower of the two sets the pace. This is a bound on throughput: it
            lets the head, too, do a forward beside the backward of the micro-batch before. Else a stage does all its
            actions one after the other, as one device does. Without a pipeline there is nothing to overlap, except for
            a method that does so by itself.

    """
    evaluations = 2 if method.reconstructs and method.stashes_weights else 1
    staleness = chosen(method, stages, 1, (0,) * stages)
    forwards, backwards, reconstructions = [], [], []
    for stage in range(stages):
        kinds = [action.kind for action in program(method, staleness, stage, micro_batches=1)]
        forwards.append(UNITS[Kind.FORWARD])
        backwards.append(UNITS[Kind.BACKWARD])
        reconstructions.append(evaluations * UNITS[Kind.RECONSTRUCT] * kinds.count(Kind.RECONSTRUCT))
    if not method.pipelined:
        beside = overlap and method.overlapped  # each reconstruction beside a backward, which takes longer
        return sum(forwards) + sum(backwards) + (0 if beside else sum(reconstructions))
    returning = [b + r for b, r in zip(backwards, reconstructions, strict=True)]
    return max(max(f, b) if overlap else f + b for f, b in zip(forwards, returning, strict=True))
