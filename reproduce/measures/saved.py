"""Check a checkpoint against its cell before it is loaded.

A checkpoint may be a valid file and still contradict its cell, because it was edited, mixed from two runs, or written
by a version with a defect. If it were loaded, the run would end with a wrong result. So everything that follows from
the cell is compared first. Every contradiction raises `CheckpointError` and is never recorded as a result such as
"diverged".
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from petra_core import CheckpointError
from reproduce.measures.machine_memory import out_of_memory

COMMON = ("epoch", "batch", "loss_sum", "losses", "seconds", "peaks", "data", "pipeline")
#: Entries of an optimizer's groups that do not follow from the cell: the schedule's state and the choice of kernels.
NO_SETTINGS = ("lr", "initial_lr", "lr_written", "params", "fused", "foreach")


@contextlib.contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Convert errors from reading a state into CheckpointError, except out-of-memory errors."""
    try:
        yield
    except CheckpointError as error:
        if str(path) in str(error):
            raise
        raise CheckpointError(_words(path, str(error))) from error
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError, OverflowError) as error:
        if out_of_memory(error) is not None:
            raise
        raise CheckpointError(_words(path, f"{type(error).__name__}: {error}")) from error


def _words(path: Path, problem: str) -> str:
    return f"the checkpoint in {path} does not fit its cell: {problem}; move it away to start from the beginning"


def check(
    state: Mapping[str, Any], workers: Sequence[Any], fresh: Mapping[str, Any], *, epochs: int, batches: int
) -> None:
    """Compare a saved state with the initial state of the same training.

    Args:
        state: Saved state, with the pipeline's state without its workers.
        workers: Saved states of the stages, or None for those of other processes.
        fresh: State of a new pipeline of the cell, with its workers.
        epochs: Number of epochs of the whole training.
        batches: Number of micro-batches of an epoch.

    Raises:
        CheckpointError: If an entry is missing or contradicts the cell.

    """
    _require(state, COMMON, "the state")
    pipeline = state["pipeline"]
    _require(pipeline, [name for name in fresh if name not in ("workers", "messages")], "the pipeline's state")
    epoch, batch, entered = state["epoch"], state["batch"], pipeline["micro_batches"]
    if not all(isinstance(value, int) and value >= 0 for value in (epoch, batch, entered)):
        raise CheckpointError(f"expected positions of at least 0, got epoch {epoch!r}, batch {batch!r}, {entered!r}")
    if epoch >= epochs or batch > batches or epoch * batches + batch != entered:
        raise CheckpointError(
            f"it has epoch {epoch} of {epochs}, batch {batch} of {batches} and {entered} micro-batches in all, "
            f"expected {epoch * batches + batch}"
        )
    if not torch.isfinite(torch.as_tensor(state["loss_sum"])).all():
        raise CheckpointError("the sum of its losses is not finite")
    for index, (own, saved) in enumerate(zip(fresh["workers"], workers, strict=True)):
        if own is not None:
            _require(saved, list(own), f"the state of stage {index}")
            _check_worker(own, saved, f"stage {index}")


def _require(state: Any, names: Sequence[str], what: str) -> None:
    if not isinstance(state, Mapping):
        raise CheckpointError(f"{what} is a {type(state).__name__}, expected entries by name")
    if lacking := [name for name in names if name not in state]:
        raise CheckpointError(f"{what} lacks {', '.join(lacking)}")


def _check_worker(own: Mapping[str, Any], saved: Mapping[str, Any], stage: str) -> None:
    for name, entry in own.items():
        # Compare module states. Gradients exist only between a backward and the update.
        if isinstance(entry, Mapping) and name not in ("optimizer", "gradients") and _tensors_only(entry):
            _check_tensors(entry, saved[name], f"{stage}: {name}")
    if own.get("optimizer") is not None:
        _check_optimizer(own["optimizer"], saved["optimizer"], stage, updates=saved.get("version", 0))


def _tensors_only(entry: Mapping[str, Any]) -> bool:
    return all(isinstance(value, Tensor) for value in entry.values())


def _check_tensors(own: Mapping[str, Tensor], saved: Any, where: str) -> None:
    _require(saved, list(own), where)
    for name, tensor in own.items():
        form = [(t.dtype, tuple(t.shape)) if isinstance(t, Tensor) else type(t) for t in (saved[name], tensor)]
        if form[0] != form[1]:
            raise CheckpointError(f"{where}: {name} is {form[0]}, expected {form[1]}")
        if not torch.isfinite(saved[name]).all() and torch.isfinite(tensor).all():  # a mask may be infinite
            raise CheckpointError(f"{where}: {name} is not finite")


def _check_optimizer(own: Mapping[str, Any], saved: Any, stage: str, *, updates: int) -> None:
    _require(saved, ("state", "param_groups"), f"{stage}: the optimizer")
    if len(saved["param_groups"]) != len(own["param_groups"]):
        raise CheckpointError(f"{stage}: the optimizer has {len(saved['param_groups'])} groups of parameters")
    for group, theirs in zip(own["param_groups"], saved["param_groups"], strict=True):
        _require(theirs, [name for name in group if name not in NO_SETTINGS], f"{stage}: the optimizer")
        for name, value in group.items():
            if name not in NO_SETTINGS and _plain(theirs[name]) != _plain(value):
                raise CheckpointError(f"{stage}: the optimizer has {name} {theirs[name]!r}, the cell {value!r}")
        if list(theirs.get("params", ())) != list(group["params"]):
            raise CheckpointError(f"{stage}: the optimizer has other parameters")
        momenta = [saved["state"].get(number, {}).get("momentum_buffer") for number in group["params"]]
        if updates and group.get("momentum") and not all(isinstance(momentum, Tensor) for momentum in momenta):
            raise CheckpointError(f"{stage}: the optimizer lacks the momentum of a parameter after {updates} updates")
    for entries in saved["state"].values():
        for name, value in entries.items():
            if isinstance(value, Tensor) and not torch.isfinite(value).all():
                raise CheckpointError(f"{stage}: the optimizer's {name} is not finite")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
