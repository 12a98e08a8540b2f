"""Settings for delay compensation: the weights of the forward, and a correction.

A stage of a pipelined method receives stale gradients. The delay of a micro-batch is the number of updates that the
stage made between the micro-batch's forward and backward, counted by the stage. Two settings compensate for it in
pipelined methods:

    weights of the forward   current, or a prediction of the weights that the stage will have at the backward
    correction               of the gradient, of the update, or of the weights of the backward

    value               rule, with delay tau, s updates ahead, learning rate eta, momentum mu, its buffer m, gradient g
    PREDICTED           SGD: w - eta (mu + mu^2 + ... + mu^s) m (FTPipe, Eliad et al. 2021); AdamW: w minus its next s
                        steps with zero gradients
    PREDICTED_LINEAR    SGD: w - s eta m (SpecTrain, arXiv 1809.02839); AdamW: w - s eta m^/(sqrt(v^) + eps) (XPipe)
    RATE                eta / tau^(1 - t/T), phased out over T updates (PipeMare's first rule, arXiv 1910.05124)
    AVERAGE             backward with w - tau delta, delta an average of past updates (PipeMare's second; unverified)
    GAP_AWARE           g / (1 + |w - w_forward| / C), C the typical size of a step (arXiv 1909.10802)
    SPIKE               step eta (a m + b g), a = mu^tau, b = (1 - mu^tau)/(1 - mu) (arXiv 2003.11666; unverified)
    COMPENSATION        g + lambda g g (w - w_forward), elementwise (DC-ASGD, arXiv 1609.08326; unverified)

If the delay is not 0, SPIKE updates the weights itself. The optimizer's `step` is not called, so the optimizer's hooks
do not run and torch's schedulers warn.

"Unverified" means that the rule comes from texts and programs that quote the paper, and was not compared with the paper
itself. NAdam with a large momentum (asynchronous Nesterov, arXiv 2505.01099) is an optimizer:
`petra_core.optimizers.nadam`.

`petra_core.lookahead` and `petra_core.corrections` implement the rules. This module does not need torch.
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
    """The weights of a forward. Predicted weights are an estimate of the stage's weights at the backward."""

    CURRENT = "current"
    PREDICTED = "predicted"  # assumes zero gradients until then, so that the steps shrink with the momentum
    PREDICTED_LINEAR = "predicted_linear"  # assumes that all steps until then equal the current momentum buffer


@dataclass(frozen=True)
class Correction:
    """A rule that corrects an update for its delay.

    Attributes:
        name: Identifier in cells and on the command line.
        title: Name in tables and figures.
        value: Constant of the rule; 0 if it has none.
        meaning: Meaning of the constant, with its unit; empty if there is none.
        keeps_weights: Whether a backward needs the weights of its forward, which then have to be stashed.
        keeps_buffer: Whether the rule keeps a buffer of each parameter's shape.
        momentum: Whether the rule requires SGD with momentum.

    """

    name: str
    title: str
    value: float = 0.0
    meaning: str = ""
    keeps_weights: bool = False
    keeps_buffer: bool = False
    momentum: bool = False

    def at(self, value: float) -> "Correction":
        """Return the same correction with another constant.

        Raises:
            ValueError: If the rule has no constant, the value is not above 0, or for AVERAGE not below 1.
            TypeError: If the value is not a number.

        """
        if not self.meaning:
            raise ValueError(f"the correction {self.name!r} has no constant to set, got {value!r}; leave it out")
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
    """Describe the settings, such as "predicted forward weights, rate 1000"; empty without delay compensation."""
    constant = f" {correction.value:g}" if correction is not None and correction.meaning else ""
    return ", ".join(
        [f"{forward.value} forward weights"] * (forward is not ForwardWeights.CURRENT)
        + ([] if correction is None else [f"{correction.name}{constant}"])
    )


def check_delay_settings(method: Method, forward: ForwardWeights, correction: Correction | None) -> None:
    """Check that delay compensation is compatible with a method.

    Raises:
        ValueError: If the method has no delay, or the correction or prediction contradicts the method's weights.

    """
    if not method.pipelined and (forward is not ForwardWeights.CURRENT or correction is not None):
        setting = f"forward weights {forward.value!r}" if correction is None else f"the correction {correction.name!r}"
        raise ValueError(
            f"{method} processes one micro-batch at a time, so no gradient is stale and {setting} would have no "
            f"effect; choose a pipelined method, or leave it out"
        )
    if method.double_buffered and forward is not ForwardWeights.CURRENT:
        raise ValueError(
            f"{method} uses the weights before the last update in every forward, got forward weights "
            f"{forward.value!r}; leave forward_weights out, or choose another pipelined method"
        )
    if correction is not None and correction.name == AVERAGE.name and method.stashes_weights:
        raise ValueError(
            f"the correction 'average' estimates the weights of the forward for the backward, but {method} stashes "
            f"them; choose PETRA or DSP, whose backward uses the current weights"
        )
