"""Check that a checkpoint fits its cell.

The bytes of a checkpoint are verified when it is read, and the pipeline refuses a state with other settings or shapes.
This module checks the position in the training, and the settings of the optimizer, which another version of the code
may choose differently. It converts every error into a `CheckpointError`, which is never recorded as a result such as
"diverged".
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from petra_core import CheckpointError
from reproduce.measures.machine_memory import out_of_memory

ENTRIES = ("epoch", "batch", "loss_sum", "losses", "seconds", "peaks", "pipeline")
#: Entries of an optimizer's groups that do not follow from the cell: the schedule's state and the choice of kernels.
NO_SETTINGS = {"lr", "initial_lr", "lr_written", "params", "fused", "foreach"}


@contextlib.contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Convert errors from reading a state into CheckpointError, except out-of-memory errors."""
    try:
        yield
    except CheckpointError as error:
        if str(path) in str(error):
            raise
        raise misfit(path, f"does not fit its cell: {error}") from error
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError, RuntimeError, OverflowError) as error:
        if out_of_memory(error) is not None:
            raise
        raise misfit(path, f"does not fit its cell: {type(error).__name__}: {error}") from error


def misfit(path: Path, problem: str, otherwise: str = "") -> CheckpointError:
    """Return the error about the checkpoint in a folder, whose fix is to remove it, or `otherwise`."""
    fix = f"{otherwise}, or move the checkpoint away" if otherwise else "move it away"
    return CheckpointError(f"the checkpoint in {path} {problem}; {fix} to start from the beginning")


def check_position(state: Mapping[str, Any], *, epochs: int, batches: int) -> None:
    """Check that a saved state has all entries, and that its counts of epochs and micro-batches agree.

    Args:
        state: Saved state, with the pipeline's state.
        epochs: Number of epochs of the whole training.
        batches: Number of micro-batches of an epoch.

    Raises:
        CheckpointError: If an entry is missing, or the position contradicts itself or the cell.

    """
    if lacking := [name for name in ENTRIES if name not in state]:
        raise CheckpointError(f"it lacks {', '.join(lacking)}")
    epoch, batch, entered = state["epoch"], state["batch"], state["pipeline"]["micro_batches"]
    if not (0 <= epoch < epochs and 0 <= batch <= batches and epoch * batches + batch == entered):
        raise CheckpointError(
            f"it has epoch {epoch} of {epochs}, batch {batch} of {batches} and {entered} micro-batches in all, "
            f"expected {epoch * batches + batch}"
        )


def check_optimizers(own: Sequence[Any], saved: Sequence[Any]) -> None:
    """Check that the saved optimizers of all stages have the settings of the cell's.

    Args:
        own: Initial states of the stages, or None for those of other processes.
        saved: Saved states of the same stages.

    Raises:
        CheckpointError: If a setting differs.

    """
    for stage, (fresh, state) in enumerate(zip(own, saved, strict=False)):
        groups = fresh["optimizer"]["param_groups"] if fresh and fresh["optimizer"] else ()
        for group, theirs in zip(groups, state["optimizer"]["param_groups"] if groups else (), strict=False):
            for name in group.keys() - NO_SETTINGS:
                if theirs[name] != group[name]:
                    words = f"stage {stage}: the optimizer has {name} {theirs[name]!r}, the cell {group[name]!r}"
                    raise CheckpointError(words)
