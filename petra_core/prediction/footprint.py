"""Calculate the bytes that stages hold from the bytes of one micro-batch at each stage.

With the staleness s of stage j and s' of the stage above it (`petra_core.staleness`), a stage holds in steady state:

    inputs            s parts of inputs that backwards need, s + 1 within a step; none if the input is reconstructed
    side_bits         s, and s + 1 within a step
    graph             s, and s + 1 within a step, under methods that keep graphs; else one graph of one block (of all
                      blocks under methods that overlap), within a step only
    stashed_weights   ceil(s / k) copies; one if weights are double-buffered
    messages          s - s' gradients from above, each with the output if the stage inverts it; within a step one
                      more, or the input from below (at the head with the target)

Rules for delay (`petra_core.delay`) may need more: stashed weights under any method, one copy for each outstanding
prediction instead of each version, buffers in addition to the optimizer's, or weights for one evaluation of one block.

A stage's `Footprint` has the numbers that depend only on the network and the method, not on staleness. Together with
the timeline of any schedule it determines the peak memory.
`petra_core.prediction.memory` computes the footprints of a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from petra_core.ledger import KINDS
from petra_core.settings import Settings
from petra_core.update_rule import HOOKS, UpdateRule


@dataclass(frozen=True)
class StagePrediction:
    """Bytes of one stage in steady state, by kind.

    Attributes:
        held: Maximum between steps; with k > 1 the number of stashed weights varies. "gradients" are left out, since
            with k > 1 they exist between some steps only.
        peak: Maximum within a step, for each kind separately.

    """

    held: Mapping[str, int]
    peak: Mapping[str, int]

    @property
    def total(self) -> int:
        """Sum of the peaks of all kinds, in bytes. The kinds may peak at different times."""
        return sum(self.peak.values())


@dataclass(frozen=True)
class Footprint:
    """Bytes of one stage for one micro-batch under one method, independent of the schedule.

    Attributes:
        parameters: Bytes of the weights.
        buffers: Bytes of running statistics and other module buffers.
        optimizer: Bytes of the optimizer's state.
        trainable: Bytes of the gradients, and of one stashed copy of the weights.
        kept: Bytes of inputs that are kept from a forward to its backward.
        lasting: Bytes of the graph that is kept from a forward to its backward.
        passing: Bytes of the reconstructed graph, which exists during its backward, and already from the reconstruction
            on if the method overlaps.
        below: Bytes of the message from the stage below, or of the images.
        above: Bytes of the message from the stage above.
        target: Bytes of the loss's target, at the head.
        side: Bytes that an inversion needs in addition to the output, kept from a forward to its backward.
        block: Bytes of one copy of the weights of the largest block.

    """

    parameters: int
    buffers: int
    optimizer: int
    trainable: int
    kept: int
    lasting: int
    passing: int
    below: int
    above: int
    target: int = 0
    side: int = 0
    block: int = 0

    @property
    def always(self) -> int:
        """Bytes that are held all the time, including gradients."""
        return self.parameters + self.buffers + self.optimizer + self.trainable


def predict_stages(footprints: Sequence[Footprint], settings: Settings) -> tuple[StagePrediction, ...]:
    """Predict what each stage of a pipeline will hold, from the footprints of its stages.

    Raises:
        ValueError: If the staleness is not a vector of the method.

    """
    last = len(footprints) - 1
    vector = (*settings.vector(len(footprints)), 0)
    return tuple(
        _predict(
            footprint,
            settings,
            stale=vector[index],
            above=vector[index] - vector[index + 1],
            rules=tuple(settings.delay) if index < last or settings.method.double_buffered else (),
        )
        for index, footprint in enumerate(footprints)
    )


def merge_footprints(footprints: Sequence[Footprint]) -> Footprint:
    """Return the footprint of stages merged by `petra_core.merge`, which reconstructs one graph at a time."""
    sums = {
        name: sum(getattr(footprint, name) for footprint in footprints)
        for name in ("parameters", "buffers", "optimizer", "trainable", "kept", "lasting", "target", "side")
    }
    return replace(
        footprints[0],
        **sums,
        passing=max(footprint.passing for footprint in footprints),
        block=max(footprint.block for footprint in footprints),
        above=footprints[-1].above,
    )


def _predict(
    footprint: Footprint, settings: Settings, *, stale: int, above: int, rules: Sequence[UpdateRule]
) -> StagePrediction:
    """Return the bytes of a stage in steady state.

    Args:
        footprint: Bytes of one micro-batch.
        settings: Settings of the pipeline.
        stale: Number of steps from a forward to its backward.
        above: Number of steps that a message from above waits.
        rules: Rules for delay of this stage.

    """
    method, accumulation = settings.method, settings.accumulation
    overridden = {hook for hook in HOOKS if any(rule.overrides(hook) for rule in rules)}
    stashes = method.stashes_weights or "gradient" in overridden
    # Whether a block is evaluated with weights that are neither the current ones nor kept.
    evaluates_others = "backward_weights" in overridden or ("forward_weights" in overridden and not stashes)

    def copies(in_flight: int) -> int:
        """Return the number of stashed copies of the weights for this many micro-batches in flight."""
        if method.double_buffered:
            return 1
        if not stashes:
            return 0
        if "forward_weights" not in overridden:
            return -(-stale // accumulation)
        # A prediction belongs to the versions now and at the backward, and is kept for all micro-batches with both.
        versions = [((m - stale) // accumulation, m // accumulation) for m in range(in_flight + accumulation)]
        windows = (versions[start : start + in_flight] for start in range(accumulation))
        return max(len({(now, due) for now, due in window if now != due}) for window in windows)

    def kept(in_flight: int) -> dict[str, int]:
        """Return the bytes that are kept for this many micro-batches in flight."""
        return {
            "parameters": footprint.parameters,
            "buffers": footprint.buffers,
            "optimizer": footprint.optimizer + sum(rule.parameter_buffers for rule in rules) * footprint.trainable,
            "inputs": in_flight * footprint.kept,
            "graph": in_flight * footprint.lasting,
            "side_bits": in_flight * footprint.side,
            "stashed_weights": copies(in_flight) * footprint.trainable,
            "messages": above * footprint.above,
        }

    held, peak = kept(stale), kept(stale + 1)  # in a step, F runs before B
    peak["gradients"] = footprint.trainable
    peak["graph"] = max(peak["graph"], footprint.passing)
    peak["stashed_weights"] += evaluates_others * footprint.block
    peak["messages"] += max(footprint.below + footprint.target, footprint.above)
    return StagePrediction({kind: held[kind] for kind in KINDS if kind in held}, {kind: peak[kind] for kind in KINDS})
