"""Checkpoint files: written whole or not at all, and read only when they are whole.

`torch.save` into the final name leaves half a file behind when the disk is full or the process is killed, over the
good file of before. Here the bytes go to a temporary file beside it, are forced to the disk, and take the name in one
step. On reading, every entry's CRC-32 is checked first (a flipped bit in a weight is no error to `torch.load`), and
only tensors and plain data are accepted, so that a foreign file cannot run code.
"""

import errno
import io
import os
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from petra_core.errors import CheckpointError
from petra_core.files import replacing

ADVICE = "move it away to start again from the beginning, or put a good copy in its place"


def save(path: str | os.PathLike[str], state: Any) -> None:
    """Write `state` (nested dicts and lists of tensors and plain data) to `path`, atomically.

    Raises:
        OSError: the disk is full or the folder cannot be written; says which file. A checkpoint that was there remains.

    """
    path = Path(path)
    try:
        with replacing(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        # torch's writer may report a failed write as a RuntimeError in whose context the OSError stands.
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, f"could not write the checkpoint: {cause.strerror}", str(path)) from error


def load(path: str | os.PathLike[str]) -> Any:
    """Read a file that `save` wrote; tensors are on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is damaged or not one of ours; the file is left as it is.

    """
    return _read(Path(path), str(path))


def encode(state: Any) -> bytes:
    """The bytes that `save` would write."""
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def decode(data: bytes, name: str) -> Any:
    """The state that `encode` made `data` of, on the CPU; `name` says in errors where it is from.

    Raises:
        CheckpointError: the bytes are damaged.

    """
    return _read(io.BytesIO(data), name)


def _read(source: Path | io.BytesIO, name: str) -> Any:
    try:
        with zipfile.ZipFile(source) as archive:
            damaged = archive.testzip()
    # The last three are of damaged tables of contents: of names, of flags that say "encrypted" or name an unknown
    # compression, of places before the beginning, which a file calls an invalid argument. Other errors of the file
    # system are none of a checkpoint.
    except (zipfile.BadZipFile, EOFError, zlib.error, ValueError, RuntimeError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.EISDIR):
            raise
        raise CheckpointError(f"{name} is damaged or no checkpoint ({error}); {ADVICE}") from error
    if damaged is not None:
        raise CheckpointError(f"{name} is damaged: the checksum of its entry {damaged} is wrong; {ADVICE}")
    try:
        if isinstance(source, io.BytesIO):
            source.seek(0)
        return torch.load(source, map_location="cpu", weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        LookupError,
        EOFError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        # Not torch's own words, which advise to load the file in a way that runs the code in it.
        reason = type(error).__name__ if "weights_only" in str(error) else error
        raise CheckpointError(f"{name} is not a checkpoint of this suite ({reason}); {ADVICE}") from error


def copied(tree: Any, device: torch.device | str = "cpu") -> Any:
    """A copy of nested containers in which every tensor is a copy outside all graphs, on `device`."""
    if isinstance(tree, Tensor):
        return tree.detach().to(device, copy=True)
    if isinstance(tree, Mapping):
        return {key: copied(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copied(value, device) for value in tree)
    return tree
