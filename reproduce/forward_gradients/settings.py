"""Settings of forward gradients: target, guess, space, scaling and derivative (arXiv 2306.06968).

Forward mode computes the product <T, G> of a gradient T with a direction G without computing T. A forward gradient is
the direction G, scaled by this product. The target selects T, the guess selects G, and the space selects the tensors in
which they are multiplied:

    for each sample n    g_n = a_n G_n,    a_n = <T_n, G_n> / (||G_n||^2 + eps)    (scaling PROJECTED)

The update is the sum over the samples of a batch. T and G are gradients of the mean loss, so both include the factor
1/B. If G is T, then g is T; if G is orthogonal to T, then g is 0. In general ||g|| = ||T|| |cos(T, G)|.

Earlier algorithms are settings, too. For a Gaussian v with d entries, E[<T, v> v] = T with variance (d + 1) ||T||^2:

    ForwardGradient(guess=GAUSSIAN, space=ALL_WEIGHTS, scaling=PLAIN)   Baydin et al. 2022 (arXiv 2202.08587)
    ForwardGradient(guess=GAUSSIAN, space=ACTIVATIONS, scaling=PLAIN)   Ren et al. 2023, FG-A, if a block is a layer

In contrast, E[<T, v> v / ||v||^2] = T/d: with a projection on noise, a step is too short by the number of dimensions.

Details follow the released code (streethagore/ForwardLocalGradient, e262989). Not reproduced are its "span" of a
batch's guesses, which calls the plain estimator, its similarity losses, and three of its bugs: the projection of a
norm's bias overwrites that of its weight, the estimator named sign computes the projection, and auxiliary networks are
trained only if the guess is their gradient.
"""

import enum
from dataclasses import dataclass

EPS = 1e-16  # value of the released code; it matters only if a sample's ||G_n|| is below about 1e-8


class Target(enum.Enum):
    """The gradient to approximate."""

    GLOBAL = "global"  # gradient of the network's loss
    LOCAL = "local"  # gradient of the block's own auxiliary loss
    NEXT = "next"  # gradient of the next block's auxiliary loss, through that block ("above" in the released code)


class Guess(enum.Enum):
    """The direction of the update: a gradient or noise."""

    LOCAL = "local"  # gradient of the block's own auxiliary loss, whose network is trained
    GAUSSIAN = "gaussian"  # standard normal noise
    RADEMACHER = "rademacher"  # +1 or -1 with equal probability
    FIXED = "fixed"  # gradient of an auxiliary loss whose network is drawn once and never trained ("fixed-ntk")
    REDRAWN = "redrawn"  # like FIXED, but the network is redrawn for every batch ("ntk")
    NEXT = "next"  # the same gradient as Target.NEXT
    GLOBAL = "global"  # the same gradient as Target.GLOBAL; with this target the algorithm is backpropagation

    @property
    def is_noise(self) -> bool:
        """Return whether the guess is independent of network and batch."""
        return self in (Guess.GAUSSIAN, Guess.RADEMACHER)


class Space(enum.Enum):
    """The tensors in which target and guess are multiplied. Each has one factor a_n."""

    ACTIVATIONS = "activations"  # the block output of each sample; the scaled guess is backpropagated through the block
    WEIGHTS = "weights"  # each parameter tensor, for each sample
    BATCH_WEIGHTS = "batch_weights"  # each parameter tensor, with T and G summed over the batch first ("avg-weight")
    ALL_WEIGHTS = "all_weights"  # all parameters together, summed over the batch: one factor for the whole step


class Scaling(enum.Enum):
    """The factor of the guess."""

    PROJECTED = "projected"  # <T, G> / (||G||^2 + eps)
    PLAIN = "plain"  # <T, G>
    SIGN = "sign"  # sign of <T, G>


class Derivative(enum.Enum):
    """Way of computing <T, G>.

    PROJECTION computes T by reverse mode, as the released code does, and holds the graphs of all blocks at the same
    time.

    JVP is forward mode. It holds one block's graph at a time and never computes T. One `torch.func.jvp` pushes the
    tangents of one block's output, or of one parameter tensor, through all blocks above, for all samples together. For
    sample n it computes the derivative of that sample's loss. This equals <T_n, G_n> if samples are independent.
    BatchNorm's batch statistics couple them, and then only the sums over the batch are equal. ACTIVATIONS needs one jvp
    per block, WEIGHTS and BATCH_WEIGHTS one per parameter tensor, ALL_WEIGHTS one per step.
    """

    PROJECTION = "projection"
    JVP = "jvp"


@dataclass(frozen=True)
class ForwardGradient:
    """The settings of one forward-gradient algorithm.

    Attributes:
        target: Gradient to approximate.
        guess: Direction of the update.
        space: Tensors in which target and guess are multiplied.
        scaling: Factor of the guess.
        derivative: How the product of target and guess is computed.

    Raises:
        ValueError: If settings contradict each other.

    """

    target: Target = Target.GLOBAL
    guess: Guess = Guess.LOCAL
    space: Space = Space.WEIGHTS
    scaling: Scaling = Scaling.PROJECTED
    derivative: Derivative = Derivative.PROJECTION

    def __post_init__(self) -> None:
        if self.derivative is Derivative.JVP and self.guess in (Guess.NEXT, Guess.GLOBAL):
            raise ValueError(
                f"the guess {self.guess.value!r} needs a backward through other blocks, which forward mode does not "
                f"make; use the derivative 'projection', or another guess"
            )
        if self.derivative is Derivative.JVP and self.space is Space.ALL_WEIGHTS and self.target is not Target.GLOBAL:
            raise ValueError(
                f"the space 'all_weights' needs one jvp of one loss, and the target {self.target.value!r} has a loss "
                f"for each block; use the target 'global', or another space"
            )

    @property
    def has_auxiliary(self) -> bool:
        """Return whether target or guess is a gradient of trained auxiliary networks."""
        return self.target is not Target.GLOBAL or self.guess in (Guess.LOCAL, Guess.NEXT)

    @property
    def draws_networks(self) -> bool:
        """Return whether the guess is a gradient of randomly drawn auxiliary networks that are never trained."""
        return self.guess in (Guess.FIXED, Guess.REDRAWN)

    def __str__(self) -> str:
        words = [f"{self.guess.value} guess of the {self.target.value} target", self.space.value.replace("_", " ")]
        words += [self.scaling.value] * (self.scaling is not Scaling.PROJECTED)
        words += [self.derivative.value] * (self.derivative is not Derivative.PROJECTION)
        return ", ".join(words)


#: The settings by their names in `ForwardGradient`.
AXES: dict[str, type[enum.Enum]] = {
    "target": Target,
    "guess": Guess,
    "space": Space,
    "scaling": Scaling,
    "derivative": Derivative,
}
