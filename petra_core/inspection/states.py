"""Reject states that a pipeline or an optimizer cannot load."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten_with_path

from petra_core.errors import CheckpointError
from petra_core.settings import UNCORRECTED, Settings

STATE_FORMAT = 2  # format of `Pipeline.state_dict`, incremented when older states can no longer be read


def check_state(state: Any, settings: Settings, *, stages: int, own_stages: range, other_method: bool = False) -> bool:
    """Check that a state comes from a pipeline like this one.

    Args:
        state: The state.
        settings: Settings of this pipeline. Older states lack autocast, and name rules for delay only if they had any.
        stages: Number of stages J.
        own_stages: Stages of this process.
        other_method: Whether method, staleness and rules for delay may differ. If they do, no micro-batch may be in
            flight in the state.

    Returns:
        Whether they differ.

    Raises:
        CheckpointError: If the state does not match this pipeline.

    """
    if not isinstance(state, Mapping) or "format" not in state:
        raise CheckpointError("this is not the state of a pipeline: it has no 'format' entry")
    if state["format"] != STATE_FORMAT:
        raise CheckpointError(
            f"the state has format {state['format']!r}, this version reads {STATE_FORMAT!r}; finish the run with the "
            f"version that began it, or restart it from the beginning"
        )
    if absent := {"workers", "random", "micro_batches", "drained", "behind", "shapes"} - state.keys():
        raise CheckpointError(f"this is not the state of a pipeline: it has no {min(absent)!r} entry")
    if len(state["workers"]) != stages:
        raise CheckpointError(f"the state has {len(state['workers'])} stages, this pipeline {stages}")
    changed = False
    for key, value in settings.as_state(stages).items():
        saved = state.get(key, UNCORRECTED if key == "delay" else value)
        if saved == value:
            continue
        differs = f"the state has {key} {saved!r}, this pipeline has {value!r}"
        if key not in ("method", "staleness", "delay"):
            raise CheckpointError(f"{differs}; create the pipeline with the setting of the state")
        if not other_method:
            raise CheckpointError(
                f"{differs}; to continue under another method, drain the pipeline before its state is taken, and load "
                f"it with load_state_dict(state, other_method=True)"
            )
        changed = True
        if state["micro_batches"] != state["drained"]:
            raise CheckpointError(
                f"{differs}, and {state['micro_batches'] - state['drained']} or fewer micro-batches are in flight in "
                f"it, which only the method of the state can finish: drain the pipeline before its state is taken"
            )
    if missing := [index for index in own_stages if state["workers"][index] is None]:
        raise CheckpointError(f"the state comes from another process: it lacks the stages {missing}")
    if (state["random"] is None) != (settings.seed is not None):
        raise CheckpointError(
            "only one of the state and this pipeline has a seed; create the pipeline with the seed of the saved one"
        )
    if changed and settings.method.double_buffered:
        raise CheckpointError(
            f"{settings.method} has the weights before the last update too, which a state of another method lacks; "
            f"create a new pipeline of the trained stages"
        )
    return changed


def load_optimizer(optimizer: Optimizer, state: dict[str, Any], kind: str | None) -> None:
    """Load the state of an optimizer like this one, with its dtypes.

    `Optimizer.load_state_dict` converts every tensor except the number of steps to the dtype of its parameter, also
    integers. The states of wrappers, such as Lookahead, may have another form, which only they know.

    Args:
        optimizer: The optimizer.
        state: The state. Its tensors are used and not copied.
        kind: Class of the optimizer that the state comes from; None if that is unknown.

    Raises:
        ValueError: If it does not.

    """
    own = optimizer.param_groups
    saved, states = state.get("param_groups", own), state.get("state", {})
    if kind not in (None, type(optimizer).__name__):
        raise ValueError(
            f"its optimizer is {kind}, this one is {type(optimizer).__name__}; create the pipeline with the optimizer "
            f"of the checkpoint"
        )
    if [len(group["params"]) for group in saved] != [len(group["params"]) for group in own]:
        raise ValueError(
            f"its optimizer has groups of {[len(group['params']) for group in saved]} parameters, this one of "
            f"{[len(group['params']) for group in own]}"
        )
    numbers = (number for group in saved for number in group["params"])
    parameters = [parameter for group in own for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        others = {other.shape for other in parameters} - {parameter.shape}  # a mean or a projection has none of these
        for name, value in states.get(number, {}).items():
            if name in _LIKE_PARAMETER and isinstance(value, Tensor) and value.shape in others:
                raise ValueError(
                    f"its {name} of parameter {number} has shape {tuple(value.shape)}, but the parameter has "
                    f"{tuple(parameter.shape)}; give the optimizer its parameters in the order of the checkpoint"
                )
    optimizer.load_state_dict(state)
    loaded = dict(tree_flatten_with_path(optimizer.state_dict().get("state"))[0])
    for path, value in tree_flatten_with_path(states)[0]:
        converted = loaded.get(path)
        if isinstance(value, Tensor) and isinstance(converted, Tensor):
            converted.data = value.to(converted.device)


#: Entries of an optimizer's state that have the shape of the parameter.
_LIKE_PARAMETER = frozenset({"momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"})
