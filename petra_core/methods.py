"""The training methods, defined as settings of one engine.

Every method is the same algorithm with three settings; the last two methods have one more setting each. For the
backward of a micro-batch a stage needs the *input* of its forward and the *weights* to differentiate with.
Micro-batches either pass the network one at a time or are pipelined:

    method                        input of the backward   weights of the backward   micro-batches
    BACKPROPAGATION               in the kept graph       current (= forward's)     one at a time
    REVERSIBLE_BACKPROPAGATION    reconstructed           current (= forward's)     one at a time
    DELAYED_GRADIENTS             in the kept graph       forward's, stashed        pipelined
    DSP                           stashed, recomputed     current                   pipelined
    APPROXIMATE_INPUTS            reconstructed           forward's, stashed        pipelined
    PETRA                         reconstructed           current                   pipelined
    PAREPROP                      reconstructed           current (= forward's)     one at a time
    PIPEDREAM_2BW                 in the kept graph       forward's, stashed        pipelined

(arXiv 2406.02052, Table 1 and section 3; DELAYED_GRADIENTS, DSP, APPROXIMATE_INPUTS and PETRA are the buffer ablation
of Table 4.)

PaReprop (arXiv 2306.09342) is reversible backpropagation in another order: while a stage differentiates, the stage
below already reconstructs its input and graph (`petra_core.devices.overlapped`). The arithmetic is the same.

PipeDream-2BW (arXiv 2006.09503) delays the gradients of every stage by exactly one update. All micro-batches of an
update use the weights before the last update, and a stage keeps one copy of these in addition to the current weights.
The micro-batches in flight must therefore belong to at most two updates. This requires k to be at least the staleness
of the first stage: J - 1 in asynchronous 1F1B, 2(J - 1) in lockstep.

A method does not define when gradients return. This is the staleness (`petra_core.staleness`), a vector that every
pipelined method takes as a setting. The default is lockstep, as in the paper. A published system is a method with one
schedule. Those in `SYSTEMS` all use asynchronous 1F1B, which has half the staleness of lockstep:

    PIPEDREAM (arXiv 1806.03377)       DELAYED_GRADIENTS
    PACI (arXiv 2606.07881)            DSP: current weights, recomputed inputs, an update after every k-th backward
    PIPEDREAM_2BW (arXiv 2006.09503)   PIPEDREAM_2BW with k of at least J - 1

"Reconstructed" applies to invertible stages. In every method that does not keep graphs, a stage that is not invertible
buffers its inputs in first-in, first-out order and recomputes. Inverting a stage means evaluating its function, always
with the weights that are current at that time. If the backward uses the same weights (PETRA), this evaluation also
records the graph. APPROXIMATE_INPUTS differentiates with older weights, so it evaluates the function twice: with the
current weights to invert, and with the stashed weights for the graph.
"""

import difflib
import enum
from dataclasses import dataclass
from typing import get_type_hints


class Inputs(enum.Enum):
    """The source of the input in the backward of a stage."""

    GRAPH = "graph"  # the forward's autograd graph, including the input, is kept
    STASH = "stash"  # the input is stashed, and the graph is recomputed from it
    RECONSTRUCTION = "reconstruction"  # the input is reconstructed from the output by inverting the stage


class Weights(enum.Enum):
    """The weights that the backward of a stage differentiates with."""

    CURRENT = "current"
    STASH = "stash"  # the weights of the same micro-batch's forward, with one copy per version in flight


@dataclass(frozen=True)
class Method:
    """A training method. Methods are values, not subclasses.

    A user can define others, such as PipeDream with recomputed graphs:

        Method("RECOMPUTED", "Recomputed", Inputs.STASH, Weights.STASH, pipelined=True)

    Attributes:
        name: Identifier, as in `methods.PETRA`.
        title: Name in tables and figures.
        inputs: Source of the input in the backward.
        weights: Weights in the backward.
        pipelined: Whether micro-batches may follow each other. Otherwise one enters after the previous one has
            finished.
        overlapped: Whether a stage reconstructs concurrently with the backward of the stage above.
        double_buffered: Whether forward and backward use the weights before the last update, at every stage.

    Raises:
        TypeError: If a field has the wrong type.
        ValueError: If the fields contradict each other.

    """

    name: str
    title: str
    inputs: Inputs
    weights: Weights
    pipelined: bool
    overlapped: bool = False
    double_buffered: bool = False

    def __post_init__(self) -> None:
        expected = {str: "a str", bool: "True or False"}
        for name, kind in get_type_hints(Method).items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                wanted = expected.get(kind) or "one of " + ", ".join(map(str, kind))
                raise TypeError(f"{name} of a method must be {wanted}, got {value!r}")
        if not self.name.strip():
            raise ValueError(
                f"name of a method must not be empty, got {self.name!r}; give an identifier such as 'MINE'"
            )
        self._check_combination()

    def _check_combination(self) -> None:
        """Raise ValueError if a setting contradicts another or would have no effect."""
        inputs, weights, pipelined = f"inputs={self.inputs}", f"weights={self.weights}", f"pipelined={self.pipelined}"
        reason = ""
        if not self.pipelined and self.stashes_weights:
            reason = (
                f"{weights} has no effect with {pipelined}, because the weights do not change between the forward and "
                f"the backward of a micro-batch; set weights={Weights.CURRENT} or pipelined=True"
            )
        elif self.pipelined and self.keeps_graph and not self.stashes_weights:
            reason = (
                f"{inputs} needs weights={Weights.STASH} with {pipelined}, because a kept graph differentiates with "
                f"the weights of its forward, and updates come in between; for current weights, set "
                f"inputs={Inputs.STASH} or {Inputs.RECONSTRUCTION}"
            )
        elif self.overlapped and (self.pipelined or not self.reconstructs):
            reason = (
                f"overlapped=True needs inputs={Inputs.RECONSTRUCTION} and pipelined=False, because a stage then "
                f"reconstructs during the backward of the same micro-batch in the stage above; got {inputs} and "
                f"{pipelined}; set overlapped=False"
            )
        elif self.double_buffered and not (self.pipelined and self.stashes_weights):
            reason = (
                f"double_buffered=True needs pipelined=True and weights={Weights.STASH}, because the second copy of "
                f"the weights is for micro-batches in flight at an update; got {pipelined} and {weights}; set "
                f"double_buffered=False"
            )
        if reason:
            raise ValueError(f"method {self}: {reason}")

    @property
    def keeps_graph(self) -> bool:
        """Return whether the graph of a forward is kept until its backward."""
        return self.inputs is Inputs.GRAPH

    @property
    def reconstructs(self) -> bool:
        """Return whether invertible stages reconstruct their inputs."""
        return self.inputs is Inputs.RECONSTRUCTION

    @property
    def stashes_weights(self) -> bool:
        """Return whether the weights of the forward are stashed for the backward."""
        return self.weights is Weights.STASH

    def ticks_to_steady(self, stages: int, accumulation: int) -> int:
        """Return the number of micro-batches in lockstep until the pipeline is in steady state.

        In steady state every stage has updated, and every weight stash contains its maximal number of versions. While
        the pipeline fills, all forwards use the first version, so stashes need twice that time to fill.
        """
        staleness = 2 * (stages - 1) if self.pipelined else 0
        return (2 * staleness if self.stashes_weights else staleness) + accumulation

    def check_staleness(self, staleness: int, accumulation: int) -> None:
        """Raise ValueError if the first stage's staleness exceeds the maximum of this method at this k."""
        if self.double_buffered and accumulation < staleness:
            raise ValueError(
                f"{self} keeps two versions of the weights, so the {staleness} micro-batches in flight at the first "
                f"stage must belong to at most two updates; got k={accumulation}: raise k to {staleness} or more, or "
                f"merge stages"
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

#: The methods that the tables of the PETRA paper compare.
PAPER = (BACKPROPAGATION, REVERSIBLE_BACKPROPAGATION, DELAYED_GRADIENTS, DSP, APPROXIMATE_INPUTS, PETRA)
#: All methods, in the order in which they are listed.
ALL = (*PAPER, PAREPROP, PIPEDREAM_2BW)
#: Published systems by name, with their methods. All use asynchronous 1F1B (`petra_core.staleness.one_f_one_b`).
SYSTEMS: dict[str, Method] = {"PIPEDREAM": DELAYED_GRADIENTS, "PACI": DSP, "PIPEDREAM_2BW": PIPEDREAM_2BW}


def by_name(name: str) -> Method:
    """Return the method called `name`, or the method of the published system with this name.

    Case is ignored, and spaces and hyphens are equivalent to underscores.

    Raises:
        ValueError: If there is no such method. The message lists similar names.

    """
    wanted = normalize(name)
    methods = {method.name: method for method in ALL}
    if wanted in methods or wanted in SYSTEMS:
        return methods.get(wanted) or SYSTEMS[wanted]
    near = difflib.get_close_matches(wanted, methods, n=3, cutoff=0.4) or list(methods)
    raise ValueError(f"there is no method {name!r}; did you mean {', '.join(near)}?")


def normalize(name: str) -> str:
    """Return a name in the form of the names of methods and systems: upper case, with underscores."""
    return name.strip().upper().replace("-", "_").replace(" ", "_")
