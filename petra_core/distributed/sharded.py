"""Checkpoints of a run over several processes: each writes its own part, and any number of processes reads them again.

Gathering all on one rank would need the memory of the whole network there. torch.distributed.checkpoint lets every rank
write its own file; which of several checkpoints is whole is what it leaves open. Here each one is a folder of its own,
and a small file beside them, replaced atomically once all ranks are done, names the one that counts:

    <folder>/
        latest.json       {"checkpoint": "step-000120", "sha256": {".metadata": "…", "__0_0.distcp": "…"}}
        step-000120/      written by all ranks; .metadata says what is where
        step-000180/      being written, or left over from a kill: ignored, and cleared by the next save

The small file also has the SHA-256 of every file of the checkpoint. Each file is compared with it before it is read, so
a damaged or exchanged one is refused by name, and no damaged table of contents is unpickled.

What the small file names is never written to: a checkpoint of the same number as the one before, as at the end of an
epoch and again after its evaluation, is another folder.

A part is any nest of tensors and plain data, kept as the bytes of `petra_core.checkpoint`: with a checksum, and read
back without running code.
"""

import contextlib
import errno
import hashlib
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

__all__ = ["Folder"]

TABLE = ".metadata"  # of contents, as torch calls it
ZIP_WRITER = "inline_container.cc"  # of torch.save, in the RuntimeError that it makes of an error while writing


class Folder:
    """The checkpoints of one run.

    Args:
        path: the folder; need not exist.

    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._pointer = path / "latest.json"

    @property
    def exists(self) -> bool:
        """Whether there is a whole checkpoint."""
        return self._pointer.is_file()

    def save(self, number: int, parts: Mapping[str, Any]) -> None:
        """Save a checkpoint that consists of all ranks' parts; every rank calls this. The one before is removed.

        Args:
            number: names the checkpoint.
            parts: this rank's, by name; no name twice among all ranks.

        Raises:
            OSError: there was no room, or no permission; on any rank, for all.
            CheckpointError: the ranks do not see the same folder, or a part cannot be encoded; on any rank, for all.

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
                name: torch.frombuffer(bytearray(checkpoint.encode(part)), dtype=torch.uint8)
                for name, part in parts.items()
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
                every = {name: value for of_rank in hashes for name, value in of_rank.items()}
                with replacing(self._pointer) as file:
                    file.write(json.dumps({"checkpoint": target.name, "sha256": every}).encode())
                for other in self.path.glob("step-*"):
                    if other != target:
                        shutil.rmtree(other)

    def _free_name(self, number: int) -> str:
        """A folder that the pointer does not name; what is left in it from a kill is removed."""
        names = (f"step-{number:09d}{suffix}" for suffix in ("", "-again"))
        current = None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or no use in it
            current = json.loads(self._pointer.read_text())["checkpoint"]
        name = next(name for name in names if name != current)
        shutil.rmtree(self.path / name, ignore_errors=True)
        return name

    def _see(self, target: Path) -> None:
        """Raise CheckpointError if what rank 0 has made is not here. Making it asks the file system, not its cache."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            target.mkdir()
        except FileExistsError:
            return
        target.rmdir()
        raise CheckpointError(
            f"rank 0 made {target}, and rank {dist.get_rank()} does not see it: the folder of the run must be on a "
            f"file system that all processes see"
        )

    def load(self, names: Iterable[str]) -> dict[str, Any]:
        """Read some parts of the last whole checkpoint, whoever wrote them, to the CPU; each rank reads what it needs.

        Raises:
            CheckpointError: there is none, it is damaged, or it has no such part.

        """
        target, hashes = self._pointed()
        try:
            _check_file(target / TABLE, hashes)
            with (target / TABLE).open("rb") as table:
                _Restricted(table).load()  # torch reads it without such care
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
            raise CheckpointError(f"{target} is damaged or not whole ({error}); {ADVICE}") from error
        return {name: checkpoint.decode(bytes(part.numpy()), f"{name} of {target}") for name, part in encoded.items()}

    def _pointed(self) -> tuple[Path, dict[str, str]]:
        """Return the folder of the last whole checkpoint, and the SHA-256 of its files by name."""
        try:
            pointer = json.loads(self._pointer.read_text())
            name, hashes = pointer["checkpoint"], pointer["sha256"]
            if not re.fullmatch(r"step-\d+(-again)?", name):
                raise ValueError(f"it names {name!r}, expected a folder beside it such as step-000000120")
            return self.path / name, dict(hashes)
        except FileNotFoundError as error:
            raise CheckpointError(f"{self.path} holds no whole checkpoint") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise CheckpointError(f"{self._pointer} is damaged: {what}; {ADVICE}") from error

    def remove(self) -> None:
        """Remove the folder; of several ranks only one calls this. Killed in the middle, it leaves no checkpoint."""
        self._pointer.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(path: Path, hashes: Mapping[str, str]) -> None:
    """Raise CheckpointError if a file has not the SHA-256 that was noted when it was written."""
    actual, expected = _sha256(path), hashes.get(path.name)
    if actual != expected:
        raise CheckpointError(
            f"{path} is damaged: its SHA-256 is {actual}, expected {expected or 'one that is noted'}; {ADVICE}"
        )


PATHS = {"Path", "PosixPath", "PurePosixPath"}
#: The classes of which the table of contents of a checkpoint consists.
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
    "pathlib._local": PATHS,  # their module in Python 3.13
}


class _Restricted(pickle.Unpickler):
    """Reads a table of contents so that nothing in it can run."""

    def find_class(self, module: str, name: str) -> Any:
        if name not in CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no checkpoint needs")
        return super().find_class(module, name)


@contextlib.contextmanager
def _without_warning() -> Iterator[None]:
    """Silence torch's warning that a process saves or reads by itself, which is meant here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@contextlib.contextmanager
def _plain_errors(target: Path) -> Iterator[None]:
    """Raise what failed on some rank as an error of its kind: torch's own is a BaseException."""
    try:
        yield
    except CheckpointException as error:
        for rank, (failure, _) in sorted(error.failures.items()):
            if isinstance(failure, OSError):
                raise OSError(failure.errno, f"rank {rank}: {failure.strerror or failure}", str(target)) from error
            if ZIP_WRITER in str(failure):  # a write that was cut short; it does not say why, and this is why
                raise OSError(errno.ENOSPC, f"rank {rank}: {failure}", str(target)) from error
        reasons = "; ".join(f"rank {rank}: {failure!r}" for rank, (failure, _) in sorted(error.failures.items()))
        raise CheckpointError(f"{target} could not be written ({reasons})") from error


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Let no rank go on before all are done inside: what fails on one is raised on all, and none waits for it in vain.

    Inside there may be nothing in which ranks wait for each other.
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
    for rank, of_rank in enumerate(errors):
        if of_rank is not None:
            of_rank.add_note(f"on rank {rank}")
            raise error or of_rank
