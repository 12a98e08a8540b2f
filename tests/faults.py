"""Fail or end the work of a test at any file operation: a kill, a full disk, or a file system without permission."""

import errno
import os
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from reproduce.records import locks
from reproduce.records.storage import StorageFullError

KILLED, FULL = 57, 58  # exit codes
#: Events that Python reports before an operation that changes files. `open` is one if it opens a file for writing.
ALLOCATING = {"open", "os.mkdir"}
CHANGING = ALLOCATING | {"os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime"}
Fault = Literal["kill", "full disk"]


def ends_early(number: int, fault: Fault, work: Callable[[], object]) -> bool:
    """Run `work` in another process, in which the n-th file operation fails.

    Args:
        number: Number of the operation, from 0. Calls of `os.fsync` count, so that a fault may follow a write.
        fault: "kill" ends the process there. "full disk" refuses this and all later operations that need room.
        work: The work.

    Returns:
        Whether the fault occurred. If not, the work has fewer operations, and was completed undisturbed.

    """
    with warnings.catch_warnings():  # Python 3.12 warns of threads; those of this process hold no lock that we need
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(_run(number, fault, work))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED if fault == "kill" else FULL)
    return code != 0


def _run(number: int, fault: Fault, work: Callable[[], object]) -> int:
    """Return the exit code of the work with the fault."""
    left, sync, counted = number, os.fsync, CHANGING if fault == "kill" else ALLOCATING

    def before(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in counted or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        left -= 1
        if left < 0 and fault == "kill":
            os._exit(KILLED)
        if left < 0:
            no_room()

    def fsync(file: int) -> None:
        before("open", ("", "", os.O_WRONLY))
        sync(file)

    locks._lease.cache_clear()  # the cache belongs to the parent process
    os.fsync = fsync
    sys.addaudithook(before)
    try:
        work()
    except StorageFullError:
        return FULL
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return FULL if left < 0 else 0  # the work may continue without what has failed


def no_room(*_: object, **__: object) -> None:
    """Fail as an operation does on a full disk."""
    raise OSError(errno.ENOSPC, "no space left")


@contextmanager
def full_disk(room: int = 100) -> Iterator[None]:
    """Limit files to `room` bytes, so that the operating system refuses the rest in the middle of a write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
