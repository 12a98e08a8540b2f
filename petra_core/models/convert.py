"""Convert weights between stages and the plain sequential model, and merge stages into fewer.

The grouping of blocks into stages is a scheduling decision, so saved weights must not depend on it: the weights of a
RevNet-18 in ten stages have to load into the same network in three stages, and into plain PyTorch. The stages' state
dicts depend on the grouping, since a merged stage prefixes the names of its parts. `sequential(stages)` is the plain
model over all unmerged parts, in order, which shares the stages' weights. Its `state_dict` and `load_state_dict` save
and load them in any grouping. Stages made of modules of another model share the weights of that model too.
"""

from collections.abc import Sequence

from torch import nn
from torch.nn import functional as F

from petra_core.shares import stage_ranges
from petra_core.stages import BufferedStage, HeadStage, Loss, Stage, merge


def from_sequential(model: nn.Sequential, loss: Loss = F.cross_entropy) -> list[Stage]:
    """Return the children of a plain model as stages: the last one as the head, the others buffered.

    The modules are used as they are, so training the stages trains the model. Children that are stages already, such as
    `ReversibleStage`, stay as they are.

    Args:
        model: Model whose children are evaluated one after the other.
        loss: Loss of the head, as for `HeadStage`.

    Raises:
        TypeError: If the model is not an `nn.Sequential`. A custom forward does not define an order of children.
        ValueError: If the model has no children.

    """
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        raise TypeError(
            f"from_sequential takes an nn.Sequential, got {type(model).__name__}; make stages of the parts of its "
            f"forward: BufferedStage(part), ReversibleStage(function) and at the end HeadStage(part)"
        )
    if len(model) == 0:
        raise ValueError("from_sequential needs a model with at least one child, the head; got none")
    *children, last = model
    blocks = [child if isinstance(child, Stage) else BufferedStage(child) for child in children]
    return [*blocks, last if isinstance(last, Stage) else HeadStage(last, loss)]


def group(stages: Sequence[Stage], sizes: Sequence[int]) -> list[Stage]:
    """Merge consecutive stages, so that J can be chosen independently of the number of blocks.

    Args:
        stages: The stages in order.
        sizes: Number of stages to merge into each new stage. The sum must be len(stages).

    Returns:
        One merged stage for each entry of `sizes`.

    Raises:
        ValueError: If a size is below 1, or the sum differs from the number of stages.

    """
    return [merge(stages[run.start : run.stop]) for run in stage_ranges(sizes, len(stages))]
