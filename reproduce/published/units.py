"""Calculate the time of a micro-batch in the units of Table 1."""

from petra_core.methods import Method
from petra_core.staleness import Kind, backward_actions

__all__ = ["UNITS", "units_per_micro_batch"]

#: Cost of an action in the units of Table 1: a forward of any stage costs 1, updates are not counted.
UNITS = {Kind.FORWARD: 1, Kind.RECONSTRUCT: 1, Kind.BACKWARD: 2, Kind.UPDATE: 0}


def units_per_micro_batch(method: Method, stages: int, *, overlap: bool) -> int:
    """Return the time per micro-batch in steady state, in units of one stage's forward (arXiv 2406.02052, Table 1).

    Without pipelining, a micro-batch costs the sum of all its actions. With pipelining, the stages work concurrently
    and the slowest one determines the time, independently of the staleness. Compared with the last column of Table 1
    (J at least 2):

        method                        Table 1   overlap=True   overlap=False
        BACKPROPAGATION               3J        3J             3J
        REVERSIBLE_BACKPROPAGATION    4J        4J - 1         4J - 1       the head reconstructs nothing
        DELAYED_GRADIENTS             2         2              3
        DSP                           3         3              4
        PETRA                         3         3              4
        APPROXIMATE_INPUTS            -         4              5            two evaluations, for two sets of weights
        PAREPROP                      -         3J             4J - 1       reconstructions overlap with backwards
        PIPEDREAM_2BW                 -         2              3

    Args:
        method: Training method.
        stages: Number of stages J, at least 1.
        overlap: Whether to use the convention of Table 1: a stage has one worker for its forwards and another for its
            backwards (with their reconstructions), and the slower of the two determines the time. This is a bound on
            throughput, since even the head then runs a forward concurrently with the backward of the previous
            micro-batch. If False, a stage runs all its actions one after the other, as one device does. For methods
            that are not pipelined, this matters only if the method itself overlaps (PAREPROP).

    """
    evaluations = 2 if method.reconstructs and method.stashes_weights else 1
    forwards, backwards, reconstructions = [], [], []
    for stage in range(stages):
        kinds = [action.kind for action in backward_actions(method, 0, 1, head=stage == stages - 1)]
        forwards.append(UNITS[Kind.FORWARD])
        backwards.append(UNITS[Kind.BACKWARD])
        reconstructions.append(evaluations * UNITS[Kind.RECONSTRUCT] * kinds.count(Kind.RECONSTRUCT))
    if not method.pipelined:
        beside = overlap and method.overlapped  # each reconstruction runs during a backward, which takes longer
        return sum(forwards) + sum(backwards) + (0 if beside else sum(reconstructions))
    returning = [b + r for b, r in zip(backwards, reconstructions, strict=True)]
    return max(max(f, b) if overlap else f + b for f, b in zip(forwards, returning, strict=True))
