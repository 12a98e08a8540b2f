"""What can be done about delay, as values beside the method: the weights of the forward, and a correction.

A stage of a pipelined method takes a gradient that is some updates late. The delay of a micro-batch is what the stage's
own version counter says: updates between its forward and its backward. Two settings act on it, for every method that
lets micro-batches follow each other:

    the weights of the forward   current, or predicted: those that the stage would have at the backward
    a correction                 of the gradient, of the update, or of the weights of the backward

    value               what it does, with delay tau, learning rate eta, momentum mu and its buffer m, gradient g
    PREDICTED           SGD: w - eta (mu + mu^2 + ... + mu^s) m   (FTPipe, Eliad et al. 2021); AdamW: s steps likewise
    PREDICTED_LINEAR    SGD: w - s eta m (SpecTrain, arXiv 1809.02839); AdamW: w - s eta m^/(sqrt(v^) + eps) (XPipe)
    RATE                eta / tau^(1 - t/T), released over T updates (PipeMare's first rule, arXiv 1910.05124)
    AVERAGE             backward with w - tau delta, delta an average of past updates (PipeMare's second; unverified)
    GAP_AWARE           g / (1 + |w - w_forward| / C), C the usual size of a step (arXiv 1909.10802)
    SPIKE               step eta (a m + b g), a = mu^tau, b = (1 - mu^tau)/(1 - mu) (arXiv 2003.11666; unverified)
    COMPENSATION        g + lambda g g (w - w_forward), elementwise (DC-ASGD, arXiv 1609.08326; unverified)

While a gradient is late SPIKE makes the steps itself: the optimizer's `step` is not called, so hooks of the optimizer
do not run and schedulers of torch warn.

"Unverified" rules were not read in their papers but in texts and programs that quote them. NAdam with a large momentum
(asynchronous Nesterov, arXiv 2505.01099) is an optimizer: `petra_core.recipe.nadam`.

The arithmetic is in `petra_core.lookahead` and `petra_core.corrections`; here nothing needs torch.
"""

import enum
import math
from dataclasses import dataclass, replace

from petra_core.arguments import check_number
from petra_core.methods import Method

__all__ = [
    "AVERAGE",
    "COMPENSATION",
    "CORRECTIONS",
    "GAP_AWARE",
    "RATE",
    "SPIKE",
    "Correction",
    "ForwardWeights",
    "check_delay_settings",
    "described",
]


class ForwardWeights(enum.Enum):
    """Which weights a forward uses; predicted ones are those that the stage would have at the backward."""

    CURRENT = "current"
    PREDICTED = "predicted"  # gradients to come taken as zero: the steps shrink as the momentum does
    PREDICTED_LINEAR = "predicted_linear"  # every step to come taken as large as the momentum buffer says now


@dataclass(frozen=True)
class Correction:
    """One way to correct an update for its delay.

    Attributes:
        name: its identifier, as in a cell and on the command line.
        title: how tables and figures call it.
        value: its constant, 0 where the rule has none; `meaning` says of what.
        meaning: of the constant, with its unit; empty where there is none.
        keeps_weights: whether a backward needs to know the weights of its forward, which then have to be kept.
        keeps_buffer: whether it keeps a number for each parameter.
        momentum: whether the rule is one of SGD with momentum.

    """

    name: str
    title: str
    value: float = 0.0
    meaning: str = ""
    keeps_weights: bool = False
    keeps_buffer: bool = False
    momentum: bool = False

    def at(self, value: float) -> "Correction":
        """A correction by the same rule with another constant.

        Raises:
            ValueError: the rule has none, or the value is not above 0, or of AVERAGE not below 1.
            TypeError: the value is no number.

        """
        if not self.meaning:
            raise ValueError(f"the correction {self.name!r} has no constant to set, got {value!r}")
        check_number(self.meaning, value, below=1.0 if self.name == "average" else math.inf)
        if value == 0:
            raise ValueError(f"{self.meaning} must be above 0, got {value!r}")
        return replace(self, value=value)

    def __str__(self) -> str:
        return self.name


RATE = Correction("rate", "Rate by delay", 1000.0, "updates until the rate is released")
AVERAGE = Correction("average", "Averaged weights", 0.135, "decay of the average over a delay", keeps_buffer=True)
GAP_AWARE = Correction("gap_aware", "Gap-Aware", keeps_weights=True, keeps_buffer=True, momentum=True)
SPIKE = Correction("spike", "Spike compensation", momentum=True)
COMPENSATION = Correction("compensation", "Delay compensation", 0.04, "lambda", keeps_weights=True)

#: All corrections by name.
CORRECTIONS: dict[str, Correction] = {c.name: c for c in (RATE, AVERAGE, GAP_AWARE, SPIKE, COMPENSATION)}


def described(forward: ForwardWeights, correction: Correction | None) -> str:
    """The settings in words, "predicted forward weights, rate 1000"; empty where nothing is done about delay."""
    constant = f" {correction.value:g}" if correction is not None and correction.meaning else ""
    return ", ".join(
        [f"{forward.value} forward weights"] * (forward is not ForwardWeights.CURRENT)
        + ([] if correction is None else [f"{correction.name}{constant}"])
    )


def check_delay_settings(method: Method, forward: ForwardWeights, correction: Correction | None) -> None:
    """See that a method has a delay to which these settings can apply.

    Raises:
        ValueError: it has none, or the correction gives the backward other weights than the method does.

    """
    if not method.pipelined and (forward is not ForwardWeights.CURRENT or correction is not None):
        setting = f"forward weights {forward.value!r}" if correction is None else f"the correction {correction.name!r}"
        raise ValueError(
            f"{method} lets one micro-batch pass at a time, so no gradient is late and {setting} would do nothing; "
            f"choose a pipelined method, or leave it out"
        )
    if method.double_buffered and forward is not ForwardWeights.CURRENT:
        raise ValueError(f"{method} has the weights before the last update in every forward, not {forward.value} ones")
    if correction is not None and correction.name == AVERAGE.name and method.stashes_weights:
        raise ValueError(
            f"the correction 'average' rebuilds the weights of the forward for the backward, and {method} keeps them; "
            f"choose PETRA or DSP, whose backward has the current weights"
        )
