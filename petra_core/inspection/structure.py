"""Check that a block still has the parameters and hooks with which the pipeline was created."""

from typing import Any

import torch
from torch import Tensor

from petra_core.errors import Finding, StageError
from petra_core.inspection.modules import HOOKED, HOOKED_REMEDY, HOOKS
from petra_core.ledger import storage_of
from petra_core.stages import Stage

__all__ = ["Structure"]


class Structure:
    """The parameters of a block when the pipeline was created, for a comparison at every update.

    Args:
        stage: The block.
        index: Number of the stage that the block belongs to.

    """

    def __init__(self, stage: Stage, index: int) -> None:
        self._stage, self._index = stage, index
        names = {id(parameter): name for name, parameter in stage.named_parameters()}
        modules = list(stage.modules())
        self._parameters = [
            (module._parameters, key, parameter, parameter.requires_grad, names[id(parameter)])
            for module in modules
            for key, parameter in module._parameters.items()
            if parameter is not None
        ]
        self._children = [(module._modules, key, child) for module in modules for key, child in module._modules.items()]
        self._counts = [(module._parameters, len(module._parameters)) for module in modules]
        self._marks: list[tuple[int, int]] = []  # of the parameters, when `mark` was last called

    def check(self) -> None:
        """Raise StageError if a parameter was frozen, unfrozen, replaced or added, or the stage has a hook."""
        for parameters, key, parameter, trained, name in self._parameters:
            now = parameters[key] if key in parameters else None  # noqa: SIM401  # torch.jit's have no get()
            if now is not parameter or now.requires_grad is not trained:
                raise self._change_error(name, replaced=now is not parameter, trained=trained)
        for children, key, child in self._children:
            if (children[key] if key in children else None) is not child:  # noqa: SIM401  # as above
                raise self._error(
                    None,
                    f"module {key!r} ({type(child).__name__}) was replaced after the pipeline was made, so the "
                    f"parameters of the new one are not trained",
                )
        for parameters, count in self._counts:
            if len(parameters) != count:
                raise self._error(None, f"its parameters {[*parameters]} were {count} when the pipeline was made")
        if any(getattr(self._stage, hooks) for hooks in HOOKS):
            raise StageError(Finding(self._index, None, HOOKED, HOOKED_REMEDY))

    def check_replaceable(self) -> None:
        """Raise StageError if the weights of a module cannot be replaced."""
        for name, module in self._stage.function.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                raise StageError(
                    Finding(
                        self._index,
                        None,
                        f"{name or 'its module'} is a module of torch.jit, whose weights cannot be replaced by those "
                        f"that this method stashes or predicts",
                        "give the plain module (petra_core.devices.compiled compiles it), or choose a method with "
                        "current weights, such as PETRA",
                    )
                )

    def mark(self) -> None:
        """Note that the current weights are those of the engine, so that `written` finds writes of other code."""
        self._marks = [_mark(parameter) for _, _, parameter, *_ in self._parameters]

    def written(self) -> str:
        """Return the name of a parameter that has been written since the last `mark`, or an empty string."""
        marks = zip(self._parameters, self._marks, strict=False)  # there are no marks before the first
        return next((name for (_, _, p, trained, name), mark in marks if trained and _mark(p) != mark), "")

    def check_unwritten(self) -> None:
        """Raise StageError if a parameter has been written since the last `mark`."""
        if not (name := self.written()):
            return
        what = "was written between two steps, but micro-batches in flight need its earlier value for their backwards"
        remedy = "write weights in a hook of the optimizer (register_step_post_hook), or call drain() before the write"
        raise StageError(Finding(self._index, name, what, remedy))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, whose parameters have other storages."""
        return self.__dict__ | {"_marks": []}

    def _change_error(self, name: str, *, replaced: bool, trained: bool) -> StageError:
        if replaced:
            what = "was replaced after the pipeline was made, so the new one is not trained"
        elif trained:
            what = "was frozen after the pipeline was made"
        else:
            what = "requires gradients, but was frozen when the pipeline was made, so it is not trained"
        return self._error(name, what)

    def _error(self, name: str | None, what: str) -> StageError:
        remedy = "which parameters are trained is fixed then: change them first, or make a new pipeline of the stages"
        return StageError(Finding(self._index, name, what, remedy))


def _mark(parameter: Tensor) -> tuple[int, int]:
    """Return values of which a write in place changes the first, and an assignment to `.data` the second."""
    return parameter._version, storage_of(parameter)
