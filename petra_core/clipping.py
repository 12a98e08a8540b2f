"""Clip gradients by the norm of the whole network, as plain training does, or by the norm of each stage.

    Pipeline(..., clip=Clip(1.0))                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    Pipeline(..., clip=Clip(1.0, per_stage=True))    the same for the parameters of each stage separately

The norm of the whole network needs the gradients of all stages at the same time. A method that processes one
micro-batch at a time has them after the backward of stage 0 and before any update. With this clipping all stages
therefore update at the end of the step. This changes no other result, since the backward of a stage reads only the
weights of that stage.

A pipelined method never has these gradients at the same time: in step m, stage j has the gradient of micro-batch
m - d_j, so the gradients of different stages belong to different micro-batches. Each stage must be clipped by the norm
of that stage. If the gradients of all J stages have equal norms, `Clip(c)` and `Clip(c / sqrt(J), per_stage=True)` clip
in the same way.
"""

from dataclasses import dataclass

from petra_core.errors import check_number
from petra_core.methods import Method


@dataclass(frozen=True)
class Clip:
    """Clipping of the mean gradients of an update, after `before_update` and before the optimizer's step.

    Attributes:
        max_norm: Maximum Euclidean norm. Longer gradients are scaled down to it, as `clip_grad_norm_` does.
        per_stage: Whether each stage is clipped by the norm of its gradients. Otherwise all stages are clipped by the
            norm of the whole network.

    Raises:
        ValueError: If the norm is not above 0, or not finite.
        TypeError: If the norm is not a number.

    """

    max_norm: float
    per_stage: bool = False

    def __post_init__(self) -> None:
        if check_number("max_norm", self.max_norm) == 0:
            raise ValueError("max_norm must be above 0, got 0, which would stop all training")


def check_clip(clip: object, method: Method) -> None:
    """Check that a method supports the clipping.

    Raises:
        TypeError: If `clip` is neither a `Clip` nor None.
        ValueError: If the norm is that of the whole network, and the method is pipelined.

    """
    if clip is None:
        return
    if not isinstance(clip, Clip):
        raise TypeError(f"clip is {clip!r}, a {type(clip).__name__}; give petra_core.Clip(max_norm)")
    if method.pipelined and not clip.per_stage:
        raise ValueError(
            f"{method} cannot clip by the norm of the whole network: its stages update at different times, with "
            f"gradients of different micro-batches; clip each stage by the norm of its gradients, "
            f"Clip({clip.max_norm:g}, per_stage=True)"
        )
