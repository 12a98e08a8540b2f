"""Convert weights between stages and the plain sequential model, and merge stages into fewer.

The grouping of blocks into stages is a scheduling decision, so saved weights must not depend on it: the weights of a
RevNet-18 in ten stages have to load into the same network in three stages, and into plain PyTorch. The stages' state
dicts depend on the grouping, since a merged stage prefixes the names of its parts. `sequential(stages)` is the plain
model over all unmerged parts, in order, which shares the stages' weights. Its `state_dict` and `load_state_dict` save
and load them in any grouping.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from petra_core.shares import stage_ranges
from petra_core.stages import BufferedStage, HeadStage, Loss, Stage, merge, sequential

LISTED = 3  # number of names that an error lists in full


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


def renamed_state_dict(state: Mapping[str, Tensor], stages: Sequence[Stage], model: nn.Module) -> dict[str, Tensor]:
    """Return a state of the stages under the names of the plain model that contains their modules.

    The stages share their tensors with the model, which determines the names. In one process the model is trained in
    place, and this function is not needed. Use it if the trained tensors are copies, from other processes or another
    program: `model.load_state_dict(renamed_state_dict(pipeline.gather(), stages, model))`.

    Args:
        state: State under the names of `sequential(stages)`, as `Pipeline.gather` returns it.
        stages: Stages made of modules of the model.
        model: Plain model.

    Raises:
        ValueError: If the stages have tensors that the model lacks, or the model has tensors that the stages lack.

    """
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    of_stages = sequential(stages).state_dict(keep_vars=True)
    renamed = {new: state[old] for old, tensor in of_stages.items() for new in names.get(id(tensor), ())}
    problems = [
        *_list_names("of the stages only", [old for old, tensor in of_stages.items() if id(tensor) not in names]),
        *_list_names(
            "of the model only", [name for of_one in names.values() for name in of_one if name not in renamed]
        ),
    ]
    if problems:
        raise ValueError(
            f"the stages do not have the tensors of the model: {'; '.join(problems)}; make the stages of the modules "
            f"of this very model, not of copies"
        )
    return renamed


def _list_names(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return [f"{len(names)} {what}: {', '.join(names[:LISTED])}{rest}"]


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
