"""The methods of the paper as values of one engine.

Every method is the same machine with three settings; the last two methods have one more each. When the gradient of a
micro-batch comes back to a stage, the stage needs the *input* of its forward and the *weights* to differentiate with;
and micro-batches either pass one at a time or follow each other:

    method                        input of the backward   weights of the backward   micro-batches
    BACKPROPAGATION               in the kept graph       current (= forward's)     one at a time
    REVERSIBLE_BACKPROPAGATION    reconstructed           current (= forward's)     one at a time
    DELAYED_GRADIENTS             in the kept graph       forward's, stashed        in a row
    DSP                           stashed, recomputed     current                   in a row
    APPROXIMATE_INPUTS            reconstructed           forward's, stashed        in a row
    PETRA                         reconstructed           current                   in a row
    PAREPROP                      reconstructed           current (= forward's)     one at a time
    PIPEDREAM_2BW                 in the kept graph       forward's, stashed        in a row

(arXiv 2406.02052, Table 1 and section 3; DELAYED_GRADIENTS, DSP, APPROXIMATE_INPUTS and PETRA are the buffer ablation
of Table 4.) PaReprop (arXiv 2306.09342) is reversible backpropagation in another order: while a stage differentiates,
the stage below it reconstructs its input and graph already (`petra_core.concurrency`). The arithmetic is the same.
PipeDream-2BW (arXiv 2006.09503) delays every stage by one update, whatever its place: all micro-batches of an update
have the weights before the last, of which a stage keeps one copy beside the current ones. So all of them have to be on
their way before the next update, which takes k of at least the staleness of the first stage: J - 1 micro-batches in
asynchronous 1F1B, 2(J - 1) in lockstep.

A method says nothing about when gradients come back: that is its staleness (`petra_core.staleness`), which every
method with micro-batches in a row takes as a vector, by default that of lockstep, the counting of the paper. A
published system is a method at one timing, and those in `SYSTEMS` are all at asynchronous 1F1B, half of lockstep:

    PIPEDREAM (arXiv 1806.03377)       DELAYED_GRADIENTS
    PACI (arXiv 2606.07881)            DSP: current weights, recomputed inputs, an update after every k-th backward
    PIPEDREAM_2BW (arXiv 2006.09503)   the method of that name, k of at least J - 1

"Reconstructed" holds for stages that can be inverted; one that cannot keeps its input first-in first-out and
recomputes, under every method that does not keep graphs. To invert a stage is to evaluate its function, always with the
current weights, those of the moment at which it happens. Where the backward differentiates with these too (PETRA), that
one evaluation is also its graph. APPROXIMATE_INPUTS differentiates with older weights, so it evaluates the function
twice: with the current ones to invert, with the stashed ones for the graph.
"""

import difflib
import enum
from dataclasses import dataclass


class Inputs(enum.Enum):
    """Where the backward of a stage takes its input from."""

    GRAPH = "graph"  # the forward's autograd graph, input included, is kept
    STASH = "stash"  # the input is kept, the graph is recomputed from it
    RECONSTRUCTION = "reconstruction"  # the input is reconstructed from the output by inverting the stage


class Weights(enum.Enum):
    """Which weights the backward of a stage differentiates with."""

    CURRENT = "current"
    STASH = "stash"  # those of the forward of the same micro-batch, one copy for every version in flight


@dataclass(frozen=True)
class Method:
    """One training method: a value, not a class hierarchy.

    Attributes:
        name: its identifier, as in `methods.PETRA`.
        title: how tables and figures call it.
        inputs: where the backward takes its input from.
        weights: which weights the backward uses.
        pipelined: whether micro-batches may follow each other (else one enters once the one before it is finished).
        overlapped: whether a stage reconstructs beside the backward of the stage above.
        double_buffered: whether forward and backward use the weights before the last update, at every stage.

    """

    name: str
    title: str
    inputs: Inputs
    weights: Weights
    pipelined: bool
    overlapped: bool = False
    double_buffered: bool = False

    @property
    def keeps_graph(self) -> bool:
        """Whether the graph of a forward lives until its backward."""
        return self.inputs is Inputs.GRAPH

    @property
    def reconstructs(self) -> bool:
        """Whether stages that can be inverted reconstruct their inputs."""
        return self.inputs is Inputs.RECONSTRUCTION

    @property
    def stashes_weights(self) -> bool:
        """Whether the forward's weights are kept for the backward."""
        return self.weights is Weights.STASH

    def staleness(self, stage: int, stages: int) -> int:
        """Staleness in lockstep (`petra_core.staleness`): 2(J - 1 - j) when pipelined, else 0."""
        return 2 * (stages - 1 - stage) if self.pipelined else 0

    def ticks_to_steady(self, stages: int, accumulation: int) -> int:
        """Micro-batches, in lockstep, until every stage has updated and every stash of weights holds all its versions.

        While a pipeline fills all forwards see the first version; a stash is full only after as many steps again.
        """
        staleness = self.staleness(0, stages)
        return (2 * staleness if self.stashes_weights else staleness) + accumulation

    def check_staleness(self, staleness: int, accumulation: int) -> None:
        """Raise ValueError if the first stage's staleness is more than this method allows at this k."""
        if self.double_buffered and accumulation < staleness:
            k_can_be = staleness <= MAX_ACCUMULATION
            raise_k = f"raise k to {staleness} or more (up to {MAX_ACCUMULATION}), or " if k_can_be else ""
            raise ValueError(
                f"{self} keeps two versions of the weights, so the {staleness} micro-batches under way at the first "
                f"stage must belong to two updates at most; got k={accumulation}: {raise_k}merge stages"
            )

    def __str__(self) -> str:
        return self.name


BACKPROPAGATION = Method("BACKPROPAGATION", "Backpropagation", Inputs.GRAPH, Weights.CURRENT, pipelined=False)
REVERSIBLE_BACKPROPAGATION = Method(
    "REVERSIBLE_BACKPROPAGATION", "Reversible backpropagation", Inputs.RECONSTRUCTION, Weights.CURRENT, pipelined=False
)
DELAYED_GRADIENTS = Method("DELAYED_GRADIENTS", "Delayed gradients", Inputs.GRAPH, Weights.STASH, pipelined=True)
DSP = Method("DSP", "Delayed gradients + checkpointing (DSP)", Inputs.STASH, Weights.CURRENT, pipelined=True)
APPROXIMATE_INPUTS = Method(
    "APPROXIMATE_INPUTS", "Approximate inputs", Inputs.RECONSTRUCTION, Weights.STASH, pipelined=True
)
PETRA = Method("PETRA", "PETRA", Inputs.RECONSTRUCTION, Weights.CURRENT, pipelined=True)
PAREPROP = Method("PAREPROP", "PaReprop", Inputs.RECONSTRUCTION, Weights.CURRENT, pipelined=False, overlapped=True)
PIPEDREAM_2BW = Method(
    "PIPEDREAM_2BW", "PipeDream-2BW", Inputs.GRAPH, Weights.STASH, pipelined=True, double_buffered=True
)

#: The methods of PETRA's paper, which its tables compare with each other.
PAPER: tuple[Method, ...] = (
    BACKPROPAGATION,
    REVERSIBLE_BACKPROPAGATION,
    DELAYED_GRADIENTS,
    DSP,
    APPROXIMATE_INPUTS,
    PETRA,
)
#: All methods, in the order in which they are listed.
ALL: tuple[Method, ...] = (*PAPER, PAREPROP, PIPEDREAM_2BW)
#: Published systems by name: what each does at asynchronous 1F1B (`petra_core.staleness.one_f_one_b`).
SYSTEMS: dict[str, Method] = {"PIPEDREAM": DELAYED_GRADIENTS, "PACI": DSP, "PIPEDREAM_2BW": PIPEDREAM_2BW}


def by_name(name: str) -> Method:
    """The method called `name`, or that of the published system; case, spaces and hyphens do not matter.

    Raises:
        ValueError: there is none; the message lists the near matches.

    """
    wanted = normalized(name)
    methods = {method.name: method for method in ALL}
    if wanted in methods or wanted in SYSTEMS:
        return methods.get(wanted) or SYSTEMS[wanted]
    near = difflib.get_close_matches(wanted, methods, n=3, cutoff=0.4) or list(methods)
    raise ValueError(f"there is no method {name!r}; did you mean {', '.join(near)}?")


def normalized(name: str) -> str:
    """A name as methods and systems are written: upper case, with underscores."""
    return name.strip().upper().replace("-", "_").replace(" ", "_")


MAX_ACCUMULATION = 32


def check_accumulation(accumulation: int) -> int:
    """Return `accumulation` (k) if it is an int in 1..32, the range of the paper's sweep.

    Raises:
        TypeError: it is not an int.
        ValueError: it is out of range.

    """
    if isinstance(accumulation, bool) or not isinstance(accumulation, int):
        raise TypeError(f"accumulation k must be an int in 1..{MAX_ACCUMULATION}, got {accumulation!r}")
    if not 1 <= accumulation <= MAX_ACCUMULATION:
        raise ValueError(
            f"accumulation k={accumulation} is outside 1..{MAX_ACCUMULATION}, the range of the paper; "
            f"for a larger effective batch raise the micro-batch size instead"
        )
    return accumulation
