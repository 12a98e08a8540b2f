"""Sharded checkpoints: each process writes its parts, and any number of processes can read them.

Gathering the state on one rank would need the memory of the whole network there. So every part, such as the state of a
stage, is a separate file, written by the rank that has it. Each checkpoint is a separate folder. A pointer file,
replaced atomically once all ranks have finished, names the current one:

    <folder>/
        latest.json       {"checkpoint": "step-000000120", "sha256": {"common": "…", "stage_0": "…"}}
        step-000000120/   common.pt, stage_0.pt and so on, written by all ranks
        step-000000180/   incomplete: being written, or left by a killed run; ignored, and removed by the next save

The pointer file also contains the SHA-256 of every part. Each part is verified before it is read, so a damaged or
exchanged file is rejected by name.

The folder that the pointer names is never written to. If a checkpoint has the number of the current one (as at the end
of an epoch and again after its evaluation), it is written to a second folder.

A part is any nested structure of tensors and plain data, stored by `petra_core.checkpoint`: with a checksum, and read
without running code.
"""

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from petra_core import checkpoint
from petra_core.checkpoint import ADVICE
from petra_core.errors import CheckpointError
from petra_core.files import replacing

OWN_NAME = re.compile(r"step-\d{9,}(-again)?")  # of the folder of a checkpoint; others are not removed

Gather = Callable[[Any], list[Any]]


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

    def save(self, number: int, parts: Mapping[str, Any], gather: Gather = lambda value: [value]) -> None:
        """Save a checkpoint that consists of all ranks' parts, and remove the previous one.

        Collective: every rank must call it. An error on one rank is raised on all ranks.

        Args:
            number: Number that names the checkpoint, such as the step.
            parts: Parts of this rank by name. Names must be unique among all ranks.
            gather: Function that returns the JSON values of all ranks for that of this rank (`Group.gather`).

        Raises:
            OSError: If a file cannot be written, for lack of space or permission.
            CheckpointError: If the ranks do not see the same folder, or a part cannot be encoded.

        """
        rank = dist.get_rank() if dist.is_initialized() else 0
        name = ""
        with _together(gather):
            if rank == 0:
                name = self._free_name(number)
                (self.path / name).mkdir(parents=True)
        target = self.path / gather(name)[0]
        hashes: dict[str, str] = {}
        with _together(gather):
            if rank > 0:
                self._see(target)
            for part, state in parts.items():
                file = _file(target, part)
                checkpoint.save(file, state)
                hashes[part] = _sha256(file)
        everybodys = gather(hashes)
        with _together(gather):
            if rank == 0:
                merged = {part: digest for rank_hashes in everybodys for part, digest in rank_hashes.items()}
                with replacing(self._pointer) as pointer:
                    pointer.write(json.dumps({"checkpoint": target.name, "sha256": merged}).encode())
                for other in self.path.iterdir():
                    if OWN_NAME.fullmatch(other.name) and other != target:
                        shutil.rmtree(other)

    def _free_name(self, number: int) -> str:
        """Return a folder name that the pointer does not contain, and remove remains of a killed run in that folder."""
        names = (f"step-{number:09d}{suffix}" for suffix in ("", "-again"))
        current = None
        with contextlib.suppress(OSError, CheckpointError):  # the pointer is missing or damaged
            current = self._read_pointer()[0].name
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
        parts = {}
        for name in names:
            if name not in hashes:
                raise CheckpointError(f"{target} has no part {name}; it has {', '.join(hashes)}; {ADVICE}")
            file = _file(target, name)
            try:
                actual = _sha256(file)
            except OSError as error:
                raise CheckpointError(f"{target} is damaged or incomplete ({error}); {ADVICE}") from error
            if actual != hashes[name]:
                raise CheckpointError(f"{file} is damaged: its SHA-256 is {actual}, expected {hashes[name]}; {ADVICE}")
            parts[name] = checkpoint.load(file)
        return parts

    def _read_pointer(self) -> tuple[Path, dict[str, str]]:
        """Return the folder of the last complete checkpoint, and the SHA-256 of its parts by name."""
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


def _file(folder: Path, part: str) -> Path:
    return folder / f"{part}.pt"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _together(gather: Gather) -> Iterator[None]:
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
    problem: Sequence[Any] | None = None if error is None else (str(error),)
    if isinstance(error, OSError):
        problem = error.errno, error.strerror, error.filename and str(error.filename)
    for rank, arguments in enumerate(gather(problem)):
        if arguments is not None:
            error = error or (OSError if len(arguments) > 1 else CheckpointError)(*arguments)
            error.add_note(f"on rank {rank}")
            raise error
