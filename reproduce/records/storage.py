"""Write files so that a reader never sees a partial one.

A crash or a full disk while writing leaves a partial file, and the next run takes it for a result. Here a file appears
by renaming a complete one, and a line is appended completely or not at all.
"""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from petra_core.files import replacing

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # no space, quota used up, file size limit
#: Other file system errors that a user can fix: the problem in words, and the fix.
PROBLEMS = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        ("no permission", "give this user write permission (docs/running.md, several users), or choose another folder"),
    ),
    errno.EROFS: ("impossible", "the file system is mounted read-only: choose a folder that can be written"),
    **dict.fromkeys(
        (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENXIO),
        ("impossible", "check the disk or the connection to the file server, then give the same command again"),
    ),
}


class StorageError(OSError):
    """A file could not be written; no partial file was left. The message contains the problem and the fix."""

    def __str__(self) -> str:
        return self.strerror or ""


class StorageFullError(StorageError):
    """There was no room for a file; no partial file was left."""


GO_ON = (
    "finished cells are untouched. Free some space and give the same command again: it resumes from the last checkpoint"
)


@contextmanager
def explain_full_disk(what: str, consequence: str = GO_ON) -> Iterator[None]:
    """Turn an error of the file system into one that names the operation, the reason and the fix.

    Args:
        what: The operation, as the words after "no room", such as "to write FILE".
        consequence: Consequence of a full disk, and the fix.

    Raises:
        StorageFullError: The disk is full, or a quota is used up.
        StorageError: There is no permission, the file system is read-only, or the device reports an error.
        OSError: Any other error, unchanged.

    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        number = error.errno
        if number in FULL:
            raise StorageFullError(number, f"no room {what} ({os.strerror(number)}); {consequence}") from error
        if number in PROBLEMS:
            problem, fix = PROBLEMS[number]
            place = f": {error.filename}" if error.filename is not None and str(error.filename) not in what else ""
            raise StorageError(number, f"{problem} {what} ({os.strerror(number)}{place}); {fix}") from error
        raise


def check_own(path: Path, start: bytes) -> None:
    """Check that a file whose name no user chose can be written: it does not exist, or begins as the suite's files do.

    Raises:
        StorageError: There is another file, which would be lost.

    """
    try:
        with path.open("rb") as file:
            own = file.read(len(start)) == start
    except FileNotFoundError:
        return
    except OSError:
        own = False
    if not own:
        raise StorageError(
            errno.EEXIST,
            f"{path} is there already, and this command did not write it. It was not changed; move it away, or "
            f"choose another folder",
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` completely, on disk, or not at all.

    Raises:
        StorageFullError: There was no room. The previous content of `path` is unchanged.

    """
    with explain_full_disk(f"to write {path}"), replacing(path) as file:
        file.write(data)


def write_json(path: Path, values: Any) -> None:
    """Write `values` atomically as indented JSON.

    Raises:
        StorageFullError: As for `write_atomically`.

    """
    write_atomically(path, (json.dumps(values, indent=2, allow_nan=False) + "\n").encode())


def append_line(path: Path, line: str) -> None:
    """Append `line` and its newline to `path` completely, on disk, or not at all.

    Raises:
        StorageFullError: There was no room. The file is unchanged.

    """
    data = line.encode() + b"\n"
    # Unbuffered: nothing is left for close() to write after a failure.
    with explain_full_disk(f"to write {path}"), path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[file.write(data) :]  # a nearly full disk accepts a part and refuses the rest
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise
