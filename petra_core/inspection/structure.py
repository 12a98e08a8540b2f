"""Check that a block still has the parameters and hooks with which the pipeline was created."""

from typing import Any

import torch
from torch import Tensor

from petra_core.errors import Finding, StageError
from petra_core.ledger import storage_of
from petra_core.stages import Stage

FIXED = "which parameters are trained is fixed then: change them first, or make a new pipeline of the stages"
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Structure:
    """The parameters of a block when the pipeline was created, for a comparison at every update.

    Args:
        stage: The block.
        index: Number of the stage that the block belongs to.

    Raises:
        StageError: If the block or one of its parameters has hooks that the engine never calls.

    """

    def __init__(self, stage: Stage, index: int) -> None:
        self._stage, self._index = stage, index
        self._parameters = [(name, p, p.requires_grad) for name, p in stage.named_parameters()]
        registries = [registry for module in stage.modules() for registry in (module._parameters, module._modules)]
        self._members = [(registry, key, m) for registry in registries for key, m in registry.items() if m is not None]
        self._modules = [*stage.modules()]
        self._modes: list[bool] = []  # of the modules in the last forward
        self._marks: list[tuple[int, int, str]] = []  # of the parameters, when `mark` was last called
        self._reads_values = False  # whether the marks include values
        self.check()

    def check(self) -> None:
        """Raise StageError if a parameter was frozen, unfrozen, replaced or added, or the stage has a hook."""
        for registry, key, member in self._members:
            if (registry[key] if key in registry else None) is member:  # noqa: SIM401  # torch.jit's have no get()
                continue
            if isinstance(member, Tensor):
                name = next(name for name, parameter, _ in self._parameters if parameter is member)
                raise self._error(name, "was replaced after the pipeline was made, so the new one is not trained")
            what = f"module {key!r} ({type(member).__name__}) was replaced after the pipeline was made, so the "
            raise self._error(None, f"{what}parameters of the new one are not trained")
        known = {parameter for _, parameter, _ in self._parameters}
        if added := [name for name, parameter in self._stage.named_parameters() if parameter not in known]:
            raise self._error(added[0], "was added after the pipeline was made, so it is not trained")
        for name, parameter, trained in self._parameters:
            if parameter.requires_grad is not trained:
                thawed = "requires gradients, but was frozen when the pipeline was made, so it is not trained"
                raise self._error(name, "was frozen after the pipeline was made" if trained else thawed)
            if parameter._post_accumulate_grad_hooks:
                what = "has a hook from register_post_accumulate_grad_hook, which the engine never calls because it "
                what += "accumulates gradients itself"
                raise self._error(name, what, "use Pipeline(before_update=...), which reads mean gradients from .grad")
        if any(getattr(self._stage, hooks) for hooks in HOOKS):
            remedy = "register them on its function, as in stage.function.register_forward_hook(...)"
            raise self._error(None, "has hooks, which are never called", remedy)

    def check_modes(self, *, in_flight: bool) -> None:
        """Note the modes of the modules in a forward.

        Args:
            in_flight: Whether micro-batches are in flight. Their forwards must have had the same modes.

        Raises:
            StageError: If a module has another mode than in the forwards in flight.

        """
        modes = [module.training for module in self._modules]
        if in_flight and self._modes not in ([], modes):
            changed = next(m for m, one, other in zip(self._modules, self._modes, modes, strict=True) if one != other)
            what = f"{type(changed).__name__} was put into {'training' if changed.training else 'evaluation'} mode"
            what += ", but micro-batches in flight need its earlier mode for their backwards"
            raise self._error(None, what, "call drain() before train() or eval()")
        self._modes = modes

    def check_replaceable(self) -> None:
        """Raise StageError if the weights of a module cannot be replaced."""
        for name, module in self._stage.function.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                what = "is a module of torch.jit, whose weights cannot be replaced by those that this method stashes or"
                remedy = "give the plain module (petra_core.devices.compiled compiles it), or choose a method with "
                remedy += "current weights, such as PETRA"
                raise self._error(None, f"{name or 'its module'} {what} predicts", remedy)

    def mark(self, *, values: bool) -> None:
        """Note that the current weights are those of the engine, so that `written` finds writes of other code.

        Args:
            values: Whether to read the values too, so that writes through `.data` are found, until the next call.

        """
        self._reads_values, self._marks = values, [_mark(p, values=values) for _, p, _ in self._parameters]

    def written(self) -> str:
        """Return the name of a parameter that has been written since the last `mark`, or an empty string."""
        marks = zip(self._parameters, self._marks, strict=False)  # there are no marks before the first
        values = self._reads_values
        return next((name for (name, p, trained), mark in marks if trained and _mark(p, values=values) != mark), "")

    def check_unwritten(self) -> None:
        """Raise StageError if a parameter has been written since the last `mark`."""
        if not (name := self.written()):
            return
        what = "was written between two steps, but micro-batches in flight need its earlier value for their backwards"
        remedy = "write weights in a hook of the optimizer (register_step_post_hook), or call drain() before the write"
        raise self._error(name, what, remedy)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy, whose parameters have other storages."""
        return self.__dict__ | {"_marks": []}

    def _error(self, name: str | None, what: str, remedy: str = FIXED) -> StageError:
        return StageError(Finding(self._index, name, what, remedy))


def _mark(parameter: Tensor, *, values: bool) -> tuple[int, int, str]:
    """Return what a write changes: in place the first, an assignment to `.data` the second, in place there the third.

    The third is text, so that nan equals nan.
    """
    values = values and (parameter.is_floating_point() or parameter.is_complex())
    norm = str(float(torch.linalg.vector_norm(parameter.detach()))) if values else ""
    return parameter._version, storage_of(parameter), norm
