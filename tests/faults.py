"""Simulate faults: a kill or a full disk at any file operation, and machines that lose the lease of a lock."""

import errno
import os
import resource
import shutil
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import filelock

from reproduce.records import locks
from reproduce.records.storage import StorageFullError

#: Events that Python reports before an operation that changes files. `open` is one if it opens a file for writing.
ALLOCATING = {"open", "os.mkdir"}
CHANGING = ALLOCATING | {"os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime"}
Fault = Literal["kill", "full disk"]
STALE = 1.0  # seconds until a lease is stale, instead of minutes


def states(fault: Fault, start: Path, work: Callable[[Path], object], folder: Path) -> list[Path]:
    """Run `work` on copies of the folder `start` in another process, in which a file operation fails.

    Args:
        fault: "kill" ends the process before the operation. "full disk" refuses this and all later operations that
            need room.
        start: The folder before the work; it may not exist.
        work: The work, a function of the copy.
        folder: New folder for the copies.

    Returns:
        The n-th copy has the files after a fault at the n-th operation, and the last one those without a fault. Calls
        of `os.fsync` count as operations, so that a fault may follow a write.

    """
    with warnings.catch_warnings():  # Python 3.12 warns of threads; those of this process hold no lock that we need
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            Faults(fault, folder).run(start, work)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return [folder / str(number) for number in range(int((folder / "count").read_text()))]


class Faults:
    """The other process: one run for all kills, each of which leaves the files of this moment, or one per full disk."""

    def __init__(self, fault: Fault, folder: Path) -> None:
        self.counted = CHANGING if fault == "kill" else ALLOCATING
        self.kill, self.folder = fault == "kill", folder
        self.root: Path | None = None  # the copy in which `work` runs
        self.left = self.made = 0
        self.sync = os.fsync

    def run(self, start: Path, work: Callable[[Path], object]) -> None:
        self.folder.mkdir()
        locks._lease.cache_clear()  # the cache belongs to the parent process
        os.fsync = self.fsync
        sys.addaudithook(self.before)
        early = True
        while early:
            self.left, root = self.made, self.folder / ("killed" if self.kill else str(self.made))
            copy(start, root)
            self.root = root
            with suppress(StorageFullError):
                work(root)
            self.root, early = None, self.left < 0 and not self.kill  # work may continue without what has failed
            self.made += not self.kill
        if self.kill:
            copy(root, self.folder / str(self.made))
            self.made += 1
        (self.folder / "count").write_text(str(self.made))

    def before(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.root or event not in self.counted:
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            return
        if self.kill:
            root, self.root = self.root, None  # operations of the copy do not count
            copy(root, self.folder / str(self.made))
            self.made, self.root = self.made + 1, root
            return
        self.left -= 1
        if self.left < 0:
            no_room()

    def fsync(self, file: int) -> None:
        self.before("open", ("", "", os.O_WRONLY))
        self.sync(file)


def copy(source: Path, target: Path) -> None:
    """Copy a folder if it exists."""
    if source.exists():
        shutil.copytree(source, target, symlinks=True)


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


def be_machine(name, stale=STALE):
    """Make this process one of machine `name`, with short timeouts."""
    locks.STALE_SECONDS, locks.HEARTBEAT_SECONDS = stale, stale / 5
    locks._kernel_lock = lambda folder: filelock.FileLock(folder / f"record.lock.{name}")
    locks._lease.cache_clear()
    socket.gethostname = lambda: name


def hold_as(machine, stale, folder, ready, release):
    """Lock a folder in a process of a machine from the event `ready` until `release`."""
    be_machine(machine, stale)
    with locks.hold(folder):
        ready.set()
        release.wait()
