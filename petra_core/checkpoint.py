"""Checkpoint files: written whole or not at all, and read only when they are whole.

`torch.save` into the final name leaves half a file behind when the disk is full or the process is killed, over the
good file of before. Here the bytes go to a temporary file beside it, are forced to the disk, and take the name in one
step. On reading, every entry's CRC-32 is checked first (a flipped bit in a weight is no error to `torch.load`), and
only tensors and plain data are accepted, so that a foreign file cannot run code.
"""

import io
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
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


def load(path: str | os.PathLike[str], map_location: torch.device | str | Callable[..., Any] | None = "cpu") -> Any:
    """Read a file that `save` wrote.

    Args:
        path: the file.
        map_location: as in `torch.load`; the CPU unless given.

    Raises:
        FileNotFoundError: there is no such file.
        CheckpointError: it is damaged or not one of ours; the file is left as it is.

    """
    return _read(Path(path), str(path), map_location)


def encode(state: Any) -> bytes:
    """The bytes that `save` would write."""
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def decode(data: bytes, name: str, map_location: torch.device | str | Callable[..., Any] | None = "cpu") -> Any:
    """The state that `encode` made `data` of; `name` says in errors where it is from.

    Raises:
        CheckpointError: the bytes are damaged.

    """
    return _read(io.BytesIO(data), name, map_location)


def _read(source: Path | io.BytesIO, name: str, map_location: Any) -> Any:
    try:
        with zipfile.ZipFile(source) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, zipfile.zlib.error) as error:  # type: ignore[attr-defined]  # zlib is re-exported at run time only
        raise CheckpointError(f"{name} is damaged or no checkpoint ({error}); {ADVICE}") from error
    if damaged is not None:
        raise CheckpointError(f"{name} is damaged: the checksum of its entry {damaged} is wrong; {ADVICE}")
    try:
        if isinstance(source, io.BytesIO):
            source.seek(0)
        return torch.load(source, map_location=map_location, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, KeyError, EOFError) as error:
        raise CheckpointError(f"{name} is not a checkpoint of this suite ({error}); {ADVICE}") from error


def copied(tree: Any, device: torch.device | str = "cpu") -> Any:
    """A copy of nested containers in which every tensor is a copy outside all graphs, on `device`."""
    if isinstance(tree, Tensor):
        return tree.detach().to(device, copy=True)
    if isinstance(tree, Mapping):
        return {key: copied(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(copied(value, device) for value in tree)
    return tree
