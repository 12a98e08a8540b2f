"""Bytes that stages hold, from the bytes that a micro-batch takes at each: arithmetic alone.

With the staleness s of stage j and s' of the stage above it (`petra_core.staleness`), in steady state,

    side_bits         held as often as inputs
    inputs            held s times what a backward needs of the input, one more within a step; none if reconstructed
    graph             held as often under methods that keep graphs; else one graph of one block, within a step only;
                      under methods that overlap, of all blocks of the stage
    stashed_weights   ceil(s / k) copies; one where weights are double-buffered
    messages          s - s' gradients from above, with the output beside each if that will be inverted; within a step
                      one more, or the input from below (at the head with the target)

Rules for delay (`petra_core.delay`) may need more: stashed weights under any method, one copy for each outstanding
prediction instead of each version, buffers in addition to the optimizer's, or weights for one evaluation of one block.

What of this depends on the network and the method alone, not on staleness, is a stage's `Footprint`: with a timeline of
any schedule it gives the most bytes that are held (`petra_core.prediction.holding`).
`petra_core.prediction.memory` takes it from a network.
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
        held: between steps, at most (with k > 1 stashed weights come and go). Without "gradients", which between steps
            are there or not, depending on k.
        peak: within a step, each kind at its own largest moment.

    """

    held: Mapping[str, int]
    peak: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all kinds, each at its own largest moment."""
        return sum(self.peak.values())


@dataclass(frozen=True)
class Footprint:
    """Bytes of one stage for one micro-batch, under one method, whatever the schedule.

    Attributes:
        parameters: weights of the stage.
        buffers: running statistics and other module buffers.
        optimizer: state of the optimizer.
        trainable: of gradients, and of one stashed copy of the weights.
        kept: of inputs, from a forward to its backward.
        lasting: of graphs, from a forward to its backward.
        passing: of the graph that a backward reconstructs, while it runs; overlapped, from the reconstruction on.
        below: the message from the stage below, or the images.
        above: the message from the stage above.
        target: of the loss, at the head.
        side: of what an inversion needs besides the output, from a forward to its backward.
        block: of one copy of the weights of the largest block.

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
        """Bytes that are held throughout, gradients included."""
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
    """The most bytes that graphs of all stages together take at a moment, if one micro-batch passes at a time.

    Kept graphs are all there when the head's is made. Those that are reconstructed are there one at a time or, if
    the method overlaps, two neighbours': that of a backward and that of the reconstruction beside it.

    Raises:
        ValueError: the method is pipelined, so that the moment depends on a timeline (`petra_core.prediction.holding`).

    """
    if method.pipelined:
        raise ValueError(
            f"under {method} several micro-batches are under way: follow a timeline (petra_core.prediction.holding)"
        )
    if method.keeps_graph:
        return sum(footprint.lasting for footprint in footprints)
    graphs = [max(footprint.lasting, footprint.passing) for footprint in footprints]
    beside = [*graphs[1:], 0] if method.overlapped else [0] * len(graphs)
    return max(map(sum, zip(graphs, beside, strict=True)))


def joined(footprints: Sequence[Footprint]) -> Footprint:
    """The footprint of consecutive stages merged by `petra_core.merge`: one graph at a time is reconstructed."""
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
    """What decides the bytes of one stage.

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
        """Whether the weights of a forward are kept until its backward."""
        return self.settings.method.stashes_weights or self._has("gradient")

    @property
    def _evaluates_others(self) -> bool:
        """Whether a block is evaluated with weights that are neither the current ones nor kept."""
        return self._has("backward_weights") or (self._has("forward_weights") and not self._stashes)

    def _copies(self, micro_batches: int) -> int:
        """Return the stashed copies of the weights besides the current ones, for this many micro-batches in flight."""
        if self.settings.method.double_buffered:
            return 1
        if not self._stashes:
            return 0
        if self._has("forward_weights"):
            return self._predictions(micro_batches)
        return -(-self.staleness // self.settings.accumulation)

    def _predictions(self, count: int) -> int:
        """Return the most predictions among `count` micro-batches in a row: pairs of a version and a later one."""
        k = self.settings.accumulation
        pairs = [((m - self.staleness) // k, m // k) for m in range(count + k)]
        return max(len({(now, due) for now, due in pairs[start : start + count] if now != due}) for start in range(k))

    def prediction(self) -> StagePrediction:
        """Return the bytes of the stage in steady state."""
        footprint, stale, in_turn = self.footprint, self.staleness, self.staleness + 1  # in a turn F comes before B
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
