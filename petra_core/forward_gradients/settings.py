"""Forward gradients as settings of a few axes: what is wished for, what is guessed, and where (arXiv 2306.06968).

Forward mode tells the product <T, G> of a gradient T that nobody has computed with a direction G that somebody has. A
forward gradient steps along G by that much. Target, guess and space say of what, along what and of which tensors:

    for each sample n    g_n = a_n G_n,    a_n = <T_n, G_n> / (||G_n||^2 + eps)    (scaling PROJECTED)

The update is the sum over the samples of a batch; T and G are gradients of its mean loss, so 1/B is in both. Projected
on T itself T remains, whatever is at right angles gives 0, and ||g|| is ||T|| |cos(T, G)|.

Works of before are settings too. For a Gaussian v of d numbers E[<T, v> v] is T, and its variance (d + 1) ||T||^2:

    ForwardGradient(guess=GAUSSIAN, space=ALL_WEIGHTS, scaling=PLAIN)   Baydin et al. 2022 (arXiv 2202.08587)
    ForwardGradient(guess=GAUSSIAN, space=ACTIVATIONS, scaling=PLAIN)   Ren et al. 2023, FG-A, where a block is a layer

while E[<T, v> v / ||v||^2] is T/d: projected on noise, a step is too short by the number of dimensions.

Facts of the released code (streethagore/ForwardLocalGradient, e262989) were read there. Not here are its "span" of the
batch's guesses, which calls the plain estimator, its losses by similarity, and three of its faults: the projection of a
norm's bias is written over that of its weight, the estimator called sign is the projection, and auxiliary networks are
trained only where the guess is their gradient.
"""

import enum
from dataclasses import dataclass

__all__ = ["AXES", "EPS", "Derivative", "ForwardGradient", "Guess", "Scaling", "Space", "Target"]

EPS = 1e-16  # of the released code; in float32 it counts once a sample's ||G_n|| is below about 1e-8


class Target(enum.Enum):
    """The gradient that one would like to follow."""

    GLOBAL = "global"  # of the network's loss
    LOCAL = "local"  # of the block's own auxiliary loss
    NEXT = "next"  # of the next block's auxiliary loss, through that block ("above" in the released code)


class Guess(enum.Enum):
    """The direction that is at hand: a gradient or noise."""

    LOCAL = "local"  # of the block's own auxiliary loss, whose network is trained
    GAUSSIAN = "gaussian"
    RADEMACHER = "rademacher"  # +1 or -1, evenly
    FIXED = "fixed"  # of an auxiliary loss whose network is drawn once and never trained ("fixed-ntk")
    REDRAWN = "redrawn"  # the same, drawn anew for every batch ("ntk")
    NEXT = "next"  # as the target of that name
    GLOBAL = "global"  # with the global target: backpropagation

    @property
    def is_noise(self) -> bool:
        """Whether nothing of the network or the batch is in it."""
        return self in (Guess.GAUSSIAN, Guess.RADEMACHER)


class Space(enum.Enum):
    """The tensors in which target and guess are multiplied, and for which there is one number a_n."""

    ACTIVATIONS = "activations"  # a sample's block output; the scaled guess then goes back through the block alone
    WEIGHTS = "weights"  # each parameter tensor, sample by sample
    BATCH_WEIGHTS = "batch_weights"  # each parameter tensor, T and G summed over the batch first ("avg-weight")
    ALL_WEIGHTS = "all_weights"  # all of them together, summed over the batch: one number for the whole step


class Scaling(enum.Enum):
    """What stands before the guess."""

    PROJECTED = "projected"  # <T, G> / (||G||^2 + eps)
    PLAIN = "plain"  # <T, G>
    SIGN = "sign"  # of <T, G>


class Derivative(enum.Enum):
    """How <T, G> is found.

    PROJECTION computes T by reverse mode, as the released code does, and so holds the graphs of all blocks at once.

    JVP is forward mode: no block's graph outlives its own turn, and T remains unknown. One `torch.func.jvp` pushes the
    tangents of one block's output, or of one parameter tensor, through everything above; all samples go together. It
    gives for sample n the derivative of that sample's loss. That is <T_n, G_n> where samples are independent of each
    other; BatchNorm's batch statistics tie them, and then only the sums over the batch agree. ACTIVATIONS takes one
    jvp a block, WEIGHTS and BATCH_WEIGHTS one a parameter tensor, ALL_WEIGHTS one in all.
    """

    PROJECTION = "projection"
    JVP = "jvp"


@dataclass(frozen=True)
class ForwardGradient:
    """One algorithm of the family: a value.

    Raises:
        ValueError: settings that contradict each other.

    """

    target: Target = Target.GLOBAL
    guess: Guess = Guess.LOCAL
    space: Space = Space.WEIGHTS
    scaling: Scaling = Scaling.PROJECTED
    derivative: Derivative = Derivative.PROJECTION

    def __post_init__(self) -> None:
        if self.derivative is Derivative.JVP and self.guess in (Guess.NEXT, Guess.GLOBAL):
            raise ValueError(
                f"the guess {self.guess.value!r} comes down through other blocks, which forward mode does without; "
                f"use the derivative 'projection', or another guess"
            )
        if self.derivative is Derivative.JVP and self.space is Space.ALL_WEIGHTS and self.target is not Target.GLOBAL:
            raise ValueError(
                f"one jvp for all weights is of the network's loss, the target {self.target.value!r} of several; "
                f"use the target 'global', or another space"
            )

    @property
    def has_auxiliary(self) -> bool:
        """Whether losses of auxiliary networks, each trained on its own, are its target or its guess."""
        return self.target is not Target.GLOBAL or self.guess in (Guess.LOCAL, Guess.NEXT)

    @property
    def draws_networks(self) -> bool:
        """Whether the guess is of auxiliary networks that are never trained; a target has others."""
        return self.guess in (Guess.FIXED, Guess.REDRAWN)

    def __str__(self) -> str:
        words = [f"{self.guess.value} guess of the {self.target.value} target", self.space.value.replace("_", " ")]
        words += [self.scaling.value] * (self.scaling is not Scaling.PROJECTED)
        words += [self.derivative.value] * (self.derivative is not Derivative.PROJECTION)
        return ", ".join(words)


#: The axes that have one value each, by their names in `ForwardGradient`.
AXES: dict[str, type[enum.Enum]] = {
    "target": Target,
    "guess": Guess,
    "space": Space,
    "scaling": Scaling,
    "derivative": Derivative,
}
