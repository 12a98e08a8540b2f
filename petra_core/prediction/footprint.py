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
the timeline of any schedule it determines the peak memory (`petra_core.prediction.holding`).
`petra_core.prediction.memory` computes the footprints of a network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from petra_core.ledger import KINDS
from petra_core.methods import Method
from petra_core.settings import Settings
from petra_core.update_rule import UpdateRule

__all__ = ["Footprint", "StagePrediction", "graphs_at_once", "joined", "of_footprints"]


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


def of_footprints(footprints: Sequence[Footprint], settings: Settings) -> tuple[StagePrediction, ...]:
    """Predict what each stage of a pipeline will hold, from the footprints of its stages.

    Raises:
        ValueError: If the staleness is not a vector of the method.

    """
    last = len(footprints) - 1
    vector = (*settings.vector(len(footprints)), 0)
    return tuple(
        _Stage(
            footprint,
            settings,
            staleness=vector[index],
            above=vector[index] - vector[index + 1],
            rules=tuple(settings.delay) if index < last or settings.method.double_buffered else (),
        ).prediction()
        for index, footprint in enumerate(footprints)
    )


def graphs_at_once(footprints: Sequence[Footprint], method: Method) -> int:
    """Return the peak bytes of the graphs of all stages, for a method that processes one micro-batch at a time.

    If graphs are kept, all of them exist when the head's has been recorded. If they are reconstructed, one exists at a
    time. If the method overlaps, two exist: the graph of a backward, and that of the concurrent reconstruction in the
    stage below.

    Raises:
        ValueError: If the method is pipelined. The peak then depends on a timeline (`petra_core.prediction.holding`).

    """
    if method.pipelined:
        raise ValueError(
            f"under {method} several micro-batches are in flight: follow a timeline (petra_core.prediction.holding)"
        )
    if method.keeps_graph:
        return sum(footprint.lasting for footprint in footprints)
    graphs = [max(footprint.lasting, footprint.passing) for footprint in footprints]
    beside = [*graphs[1:], 0] if method.overlapped else [0] * len(graphs)
    return max(map(sum, zip(graphs, beside, strict=True)))


def joined(footprints: Sequence[Footprint]) -> Footprint:
    """Return the footprint of stages merged by `petra_core.merge`, which reconstructs one graph at a time."""
    sums = {
        name: sum(getattr(footprint, name) for footprint in footprints)
        for name in ("parameters", "buffers", "optimizer", "trainable", "kept", "lasting", "target", "side")
    }
    return Footprint(
        **sums,
        passing=max(footprint.passing for footprint in footprints),
        block=max(footprint.block for footprint in footprints),
        below=footprints[0].below,
        above=footprints[-1].above,
    )


@dataclass(frozen=True)
class _Stage:
    """Stage with the settings that determine its bytes.

    Attributes:
        footprint: Bytes of one micro-batch.
        settings: Settings of the pipeline.
        staleness: Number of steps from a forward to its backward.
        above: Number of steps that a message from above waits.
        rules: Rules for delay of this stage.

    """

    footprint: Footprint
    settings: Settings
    staleness: int
    above: int
    rules: tuple[UpdateRule, ...]

    def _has(self, hook: str) -> bool:
        """Return whether a rule overrides a hook."""
        return any(rule.overrides(hook) for rule in self.rules)

    @property
    def _stashes(self) -> bool:
        """True if the weights of a forward are kept until its backward."""
        return self.settings.method.stashes_weights or self._has("gradient")

    @property
    def _evaluates_others(self) -> bool:
        """True if a block is evaluated with weights that are neither the current ones nor kept."""
        return self._has("backward_weights") or (self._has("forward_weights") and not self._stashes)

    def _copies(self, micro_batches: int) -> int:
        """Return the number of stashed copies of the weights for this many micro-batches in flight."""
        if self.settings.method.double_buffered:
            return 1
        if not self._stashes:
            return 0
        if self._has("forward_weights"):
            return self._predictions(micro_batches)
        return -(-self.staleness // self.settings.accumulation)

    def _predictions(self, count: int) -> int:
        """Return the maximum number of predictions (pairs of versions) among `count` consecutive micro-batches."""
        k = self.settings.accumulation
        pairs = [((m - self.staleness) // k, m // k) for m in range(count + k)]
        return max(len({(now, due) for now, due in pairs[start : start + count] if now != due}) for start in range(k))

    def prediction(self) -> StagePrediction:
        """Return the bytes of the stage in steady state."""
        footprint, stale, in_turn = self.footprint, self.staleness, self.staleness + 1  # in a step F runs before B
        buffers = sum(rule.parameter_buffers for rule in self.rules)
        always = {
            "parameters": footprint.parameters,
            "buffers": footprint.buffers,
            "optimizer": footprint.optimizer + buffers * footprint.trainable,
        }
        held = {
            **always,
            "inputs": stale * footprint.kept,
            "graph": stale * footprint.lasting,
            "side_bits": stale * footprint.side,
            "stashed_weights": self._copies(stale) * footprint.trainable,
            "messages": self.above * footprint.above,
        }
        peak = {
            **always,
            "gradients": footprint.trainable,
            "inputs": in_turn * footprint.kept,
            "graph": max(in_turn * footprint.lasting, footprint.passing),
            "side_bits": in_turn * footprint.side,
            "stashed_weights": self._copies(in_turn) * footprint.trainable + self._evaluates_others * footprint.block,
            "messages": self.above * footprint.above + max(footprint.below + footprint.target, footprint.above),
        }
        return StagePrediction(
            {kind: held[kind] for kind in KINDS if kind in held}, {kind: peak[kind] for kind in KINDS}
        )
