"""Sharded checkpoints: each process writes one part, and any number of processes can read them.

Gathering the state on one rank would need the memory of the whole network there. torch.distributed.checkpoint lets
every rank write one file, but does not record which of several checkpoints is complete. Here each checkpoint is a
separate folder. A pointer file, replaced atomically once all ranks have finished, names the current one:

    <folder>/
        latest.json       {"checkpoint": "step-000120", "sha256": {".metadata": "…", "__0_0.distcp": "…"}}
        step-000120/      written by all ranks; .metadata is the table of contents
        step-000180/      incomplete: being written, or left by a killed run; ignored, and removed by the next save

The pointer file also contains the SHA-256 of every file of the checkpoint. Each file is verified before it is read, so
a damaged or exchanged file is rejected by name, and a damaged table of contents is never unpickled.

The folder that the pointer names is never written to. If a checkpoint has the number of the current one (as at the end
of an epoch and again after its evaluation), it is written to a second folder.

A part is any nested structure of tensors and plain data, encoded by `petra_core.checkpoint`: with a checksum, and read
without running code.
"""

import contextlib
import errno
import hashlib
import io
import json
import pickle
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as save_state_dict

from petra_core import checkpoint
from petra_core.checkpoint import ADVICE
from petra_core.errors import CheckpointError
from petra_core.files import replacing

__all__ = ["ShardedCheckpoint", "encode"]

OWN_NAME = re.compile(r"step-\d{9,}(-again)?")  # of the folder of a checkpoint; others are not removed
TABLE = ".metadata"  # torch's name for the table of contents
ZIP_WRITER = "inline_container.cc"  # source file of torch.save's writer, which its RuntimeError names


class ShardedCheckpoint:
    """The checkpoints of one run.

    Args:
        path: The folder, which need not exist yet.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pointer = path / "latest.json"

    @property
    def exists(self) -> bool:
        """Return whether there is a complete checkpoint."""
        return self._pointer.is_file()

    def save(self, number: int, parts: Mapping[str, Any]) -> None:
        """Save a checkpoint that consists of all ranks' parts, and remove the previous one.

        Collective: every rank must call it. An error on one rank is raised on all ranks.

        Args:
            number: Number that names the checkpoint, such as the step.
            parts: Parts of this rank by name. Names must be unique among all ranks.

        Raises:
            OSError: If a file cannot be written, for lack of space or permission.
            CheckpointError: If the ranks do not see the same folder, or a part cannot be encoded.

        """
        leads = not dist.is_initialized() or dist.get_rank() == 0
        name = [""]
        with _together():
            if leads:
                name = [self._free_name(number)]
                (self.path / name[0]).mkdir(parents=True)
        if dist.is_initialized():
            dist.broadcast_object_list(name, src=0)
        target = self.path / name[0]
        with _together():
            if not leads:
                self._see(target)
            encoded = {
                name: torch.frombuffer(bytearray(encode(part)), dtype=torch.uint8) for name, part in parts.items()
            }
        writer = FileSystemWriter(target)
        with _without_warning(), _plain_errors(target):
            save_state_dict(encoded, storage_writer=writer, no_dist=not dist.is_initialized())
        with _together():
            patterns = [f"__{dist.get_rank() if dist.is_initialized() else 0}_*", *([TABLE] if leads else [])]
            hashes = [{path.name: _sha256(path) for pattern in patterns for path in sorted(target.glob(pattern))}]
        if dist.is_initialized():
            own, hashes = hashes[0], [{}] * dist.get_world_size()
            dist.all_gather_object(hashes, own)
        with _together():
            if leads:
                merged = {name: value for rank_hashes in hashes for name, value in rank_hashes.items()}
                with replacing(self._pointer) as file:
                    file.write(json.dumps({"checkpoint": target.name, "sha256": merged}).encode())
                for other in self.path.iterdir():
                    if OWN_NAME.fullmatch(other.name) and other != target:
                        shutil.rmtree(other)

    def _free_name(self, number: int) -> str:
        """Return a folder name that the pointer does not contain, and remove remains of a killed run in that folder."""
        names = (f"step-{number:09d}{suffix}" for suffix in ("", "-again"))
        current = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # the pointer is missing or damaged
            current = json.loads(self._pointer.read_text(encoding="utf-8"))["checkpoint"]
        name = next(name for name in names if name != current)
        shutil.rmtree(self.path / name, ignore_errors=True)
        return name

    def _see(self, target: Path) -> None:
        """Raise CheckpointError if this rank does not see the folder that rank 0 made.

        Trying to create the folder queries the file system itself, and not a cache.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            target.mkdir()
        except FileExistsError:
            return
        target.rmdir()
        raise CheckpointError(
            f"rank 0 created {target}, but rank {dist.get_rank()} does not see it; put the folder of the run on a file "
            f"system that all processes share"
        )

    def load(self, names: Iterable[str]) -> dict[str, Any]:
        """Read parts of the last complete checkpoint to the CPU. Each rank can read the parts of any rank.

        Args:
            names: Names of the parts to read.

        Raises:
            CheckpointError: If there is no checkpoint, it is damaged, or it lacks a part.

        """
        target, hashes = self._read_pointer()
        try:
            _check_file(target / TABLE, hashes)
            with (target / TABLE).open("rb") as table:
                _Restricted(table).load()  # before torch, which unpickles it without restrictions
            reader = FileSystemReader(target)
            metadata = reader.read_metadata()
            contents = metadata.state_dict_metadata
            sizes = {name: part.size for name, part in contents.items() if isinstance(part, TensorStorageMetadata)}
            names = list(names)
            missing = [name for name in names if name not in sizes]
            if missing:
                raise CheckpointError(f"{target} has no part {', '.join(missing)}; it has {', '.join(sizes)}")
            places = metadata.storage_data or {}
            for file in sorted({place.relative_path for index, place in places.items() if index.fqn in names}):
                _check_file(target / file, hashes)
            encoded = {name: torch.empty(sizes[name], dtype=torch.uint8) for name in names}
            with _without_warning():
                load_state_dict(encoded, storage_reader=reader, no_dist=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError, CheckpointException) as error:
            raise CheckpointError(f"{target} is damaged or incomplete ({error}); {ADVICE}") from error
        streams = {name: io.BytesIO(bytes(part.numpy())) for name, part in encoded.items()}
        return {name: checkpoint.load(stream, f"{name} of {target}") for name, stream in streams.items()}

    def _read_pointer(self) -> tuple[Path, dict[str, str]]:
        """Return the folder of the last complete checkpoint, and the SHA-256 of its files by name."""
        try:
            pointer = json.loads(self._pointer.read_text(encoding="utf-8"))
            name, hashes = pointer["checkpoint"], pointer["sha256"]
            if not OWN_NAME.fullmatch(name):
                raise ValueError(f"it names {name!r}, expected a folder next to it such as step-000000120")
            return self.path / name, dict(hashes)
        except FileNotFoundError as error:
            raise CheckpointError(f"{self.path} contains no complete checkpoint") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise CheckpointError(f"{self._pointer} is damaged: {what}; {ADVICE}") from error

    def remove(self) -> None:
        """Remove the folder. Only one rank may call this. If it is interrupted, no checkpoint remains."""
        self._pointer.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(path: Path, hashes: Mapping[str, str]) -> None:
    """Raise CheckpointError if a file does not have the SHA-256 that was recorded when it was written."""
    actual, expected = _sha256(path), hashes.get(path.name)
    if actual != expected:
        raise CheckpointError(
            f"{path} is damaged: its SHA-256 is {actual}, expected {expected or 'a recorded one'}; {ADVICE}"
        )


PATHS = {"Path", "PosixPath", "PurePosixPath"}
#: Classes that occur in the table of contents of a checkpoint.
CLASSES = {
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", "uint8"},
    "pathlib": PATHS,
    "pathlib._local": PATHS,  # module of these classes in Python 3.13
}


class _Restricted(pickle.Unpickler):
    """Unpickles a table of contents without running code from it."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Silence torch's warning that a process saves or reads without torch.distributed, which is intended here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@contextlib.contextmanager
def _plain_errors(target: Path) -> Iterator[None]:
    """Convert torch's CheckpointException, a BaseException, into an OSError or a CheckpointError."""
    try:
        yield
    except CheckpointException as error:
        for rank, (failure, _) in sorted(error.failures.items()):
            if isinstance(failure, OSError):
                raise OSError(failure.errno, f"rank {rank}: {failure.strerror or failure}", str(target)) from error
            if ZIP_WRITER in str(failure):  # an incomplete write; torch gives no cause, which is a full disk
                raise OSError(errno.ENOSPC, f"rank {rank}: {failure}", str(target)) from error
        reasons = "; ".join(f"rank {rank}: {failure!r}" for rank, (failure, _) in sorted(error.failures.items()))
        raise CheckpointError(f"{target} could not be written ({reasons})") from error


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Synchronise all ranks at the end of the context, and raise an error of one rank on all ranks.

    Without it the other ranks would wait forever for the failed one. The context must not contain collective calls.
    """
    error: Exception | None = None
    try:
        yield
    except (OSError, CheckpointError) as failure:
        error = failure
    except Exception as failure:  # such as a part that cannot be pickled
        error = CheckpointError(f"a part of the checkpoint could not be encoded: {failure!r}")
        error.__cause__ = failure
    errors = [error]
    if dist.is_initialized():
        errors = [None] * dist.get_world_size()
        dist.all_gather_object(errors, error)
    for rank, rank_error in enumerate(errors):
        if rank_error is not None:
            rank_error.add_note(f"on rank {rank}")
            raise error or rank_error


def encode(state: Any) -> bytes:
    """Return a state as the bytes of a file that `petra_core.checkpoint.load` reads."""
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()
