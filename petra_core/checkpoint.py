"""Write checkpoint files atomically, and verify them before reading.

If the disk is full or the process is killed, `torch.save` to the final path leaves an incomplete file in place of the
previous checkpoint. Here the bytes are written to a temporary file in the same folder, flushed to the disk, and renamed
atomically. Reading first verifies the CRC-32 of every entry, since `torch.load` does not detect a flipped bit in a
weight. Only tensors and plain data are accepted, so that a foreign file cannot run code.
"""

import errno
import os
import zipfile
import zlib
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint
from torch.utils._pytree import tree_map_only

from petra_core.errors import CheckpointError
from petra_core.files import replacing

ADVICE = "move it away to restart from the beginning, or replace it by an intact copy"


def save(path: str | os.PathLike[str], state: Any) -> None:
    """Write `state` (nested dicts and lists of tensors and plain data) to `path` atomically.

    Raises:
        OSError: If the disk is full or the folder is not writable. The message names the file. A previous checkpoint
            at `path` is preserved.
        CheckpointError: If the state contains other objects, such as arrays of NumPy.

    """
    path = Path(path)
    try:
        with replacing(path) as file:
            torch.save(state, file)
            if unreadable := get_unsafe_globals_in_checkpoint(file.name):
                raise CheckpointError(
                    f"{path} was not written: the state contains {', '.join(sorted(unreadable))}, which `load` would "
                    f"reject; keep tensors, numbers and text in states, or call torch.serialization.add_safe_globals"
                )
    except (OSError, RuntimeError) as error:
        # torch's writer may raise a RuntimeError for a failed write, with the OSError as its context.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, f"could not write the checkpoint: {cause.strerror}", str(path)) from error


def load(source: str | os.PathLike[str] | IO[bytes], name: str = "") -> Any:
    """Read a file that `save` wrote, with all tensors on the CPU.

    Args:
        source: The file, or a stream with its bytes.
        name: Description of the source, for error messages. The default is the path.

    Raises:
        FileNotFoundError: If the file does not exist.
        CheckpointError: If the file is damaged or not a checkpoint of this suite. The file is not changed.

    """
    name = name or str(source)
    try:
        with zipfile.ZipFile(source) as archive:
            damaged = archive.testzip()
    # The last four come from a damaged table of contents: ValueError from names, RuntimeError from flags ("encrypted",
    # unknown compression), OSError from negative offsets (EINVAL), OverflowError from large ones. Other errors of the
    # file system are not about the checkpoint.
    except (zipfile.BadZipFile, EOFError, zlib.error, ValueError, RuntimeError, OSError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EISDIR):
            raise
        raise CheckpointError(f"{name} is damaged or not a checkpoint ({error}); {ADVICE}") from error
    if damaged is not None:
        raise CheckpointError(f"{name} is damaged: the checksum of its entry {damaged} is wrong; {ADVICE}")
    try:
        if not isinstance(source, str | os.PathLike):
            source.seek(0)
        return torch.load(source, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, LookupError, EOFError, TypeError, ValueError, AttributeError) as error:
        # Torch's own message is not shown, because it advises to load the file in a way that runs code from it.
        reason = type(error).__name__ if "weights_only" in str(error) else error
        raise CheckpointError(f"{name} is not a checkpoint of this suite ({reason}); {ADVICE}") from error


def copy_tree(tree: Any, device: torch.device | str = "cpu") -> Any:
    """Copy nested containers.

    Every tensor is copied to `device`, detached and without its subclass. Numbers of NumPy become those of Python.
    """

    def copied(leaf: Any) -> Any:
        return leaf.detach().to(device, copy=True).as_subclass(Tensor) if isinstance(leaf, Tensor) else leaf.item()

    return tree_map_only((Tensor, np.generic), copied, tree)
