"""Lock records: never let two processes work on one, on one machine or on several that share the folder.

The kernel's file lock ends with the process that holds it, however that ends; but other machines may not see it over a
network file system. A file that says "taken" is visible to all, but it stays when its machine dies. So a holder has
both. `record.lock`, the kernel's lock, decides immediately between processes of one machine. `record.lease` names the
holder for other machines, and is touched every HEARTBEAT_SECONDS. A lease is stale when its process is dead on this
machine, or when nothing has touched it for STALE_SECONDS by the clock of the process that waits for it (so the clocks
of two machines need not agree). A stale lease is taken over by an atomic exchange of files (`filelock.SoftFileLease` of
filelock 4.2.1 and newer, which installers require; versions since 3.30 rename it): of two machines that find it, one
gets it. NFS and other file systems refuse the exchange, and filelock then leaves the lease in place; so it is renamed
here, which only one machine can do, too.

A process that is killed between the creation of a lease and its first byte leaves an empty lease without a name, which
filelock never breaks. Such a lease, and any other unreadable one, is stale once it has not changed for STALE_SECONDS,
by this process's clock or by that of the file server: a live holder writes it within a millisecond.

A holder that slept for longer than that, as a suspended computer does, has lost the record. `Hold.check`, called before
every write, detects it.
"""

import os
import secrets
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import filelock

from reproduce.records.storage import explain_full_disk

HEARTBEAT_SECONDS = 30.0
STALE_SECONDS = 300.0  # longer than network file systems cache the time of a file (60 s)
AGAIN_SECONDS = 1.0  # before an unreadable lease is read again
LOCK, LEASE = FILES = ("record.lock", "record.lease")

if not hasattr(filelock, "SoftFileLease"):  # no installer checks the version in a plain checkout
    raise ImportError(
        f"filelock {filelock.__version__} is too old to share records between machines: expected 3.30 or newer; "
        f"install it with `pip install 'filelock>=4.2.1'`"
    )

#: Last seen lease of another process, by folder, and since when it has been unchanged by this process's clock.
_SEEN: dict[Path, tuple[tuple[filelock.OwnerRecord | None, float], float]] = {}


class LockedError(Exception):
    """Another process works on the cell."""


class LockLostError(Exception):
    """Another process took the cell over, because this one sent no heartbeat for too long."""


@dataclass(frozen=True)
class Holder:
    """A process that holds a record, or left its lease behind."""

    host: str  # empty if the lease cannot be read
    process: int
    touched: float  # last heartbeat, by the clock of the file server
    gone: bool = False  # whether it is certainly dead

    @property
    def silent(self) -> float:
        """Seconds since its last heartbeat, as far as the clocks of machine and file server agree."""
        return max(0.0, time.time() - self.touched)

    @property
    def here(self) -> bool:
        """Return whether it is, or was, a process of this machine."""
        return self.host == socket.gethostname()

    @property
    def words(self) -> str:
        """Description without the time."""
        return f"process {self.process} on {self.host}" if self.host else "a process that left an unreadable lease"

    def __str__(self) -> str:
        return f"{self.words} (last heartbeat {self.silent:.0f} s ago)"


@dataclass(frozen=True)
class Hold:
    """A record that this process holds."""

    _folder: Path
    _token: str | None
    #: Process that left a stale lease behind, or None. Also None if the clocks of machine and file server differ so
    #: much that the lease of another machine does not look stale, and if this process came between the removal of a
    #: stale lease and the new lease of the process that removed it (only without atomic exchange, as on NFS).
    taken_from: Holder | None

    def check(self) -> None:
        """Raise LockLostError if another process has taken the record over."""
        owner = _lease(self._folder).owner
        if owner is None:  # a network file system may have failed to read it just now
            time.sleep(AGAIN_SECONDS)
            owner = _lease(self._folder).owner
        if owner is None or owner.token != self._token:
            if not self._folder.is_dir():
                raise LockLostError(
                    f"{self._folder}: the folder of this cell was removed while it ran; its record is lost"
                )
            now = holder(self._folder) or "another process, which has ended since,"
            raise LockLostError(
                f"{self._folder}: {now} has taken this cell over, because this process sent no heartbeat for more "
                f"than {STALE_SECONDS:.0f} s. No work of the other process was overwritten"
            )


@contextmanager
def hold(folder: Path, patience: float = 0.0) -> Iterator[Hold]:
    """Hold a folder against other processes until the context or this process ends.

    Args:
        folder: The folder.
        patience: Seconds to wait for another process that holds it.

    Raises:
        LockedError: Another process holds it.
        StorageError: There was no room for the lock, or no permission to write it.

    """
    room = f"to lock {folder}"
    kernel, lease = _kernel_lock(folder), _lease(folder)
    try:
        with explain_full_disk(room):
            folder.mkdir(parents=True, exist_ok=True)
            kernel.acquire(timeout=patience)
    except filelock.Timeout:
        raise LockedError(f"{folder}: another process is working on this cell") from None
    try:
        before = _read_holder(folder, lease.owner)
        try:
            with explain_full_disk(room):
                _take(folder, lease, patience)
        except (filelock.Timeout, filelock.LeaseSettingsMismatch):
            raise LockedError(
                f"{folder}: {_read_holder(folder, lease.owner) or 'another process'} is working on this "
                f"cell. If it is dead, a running grid takes over after {STALE_SECONDS:.0f} s without a heartbeat"
            ) from None
        try:
            # On this machine the kernel's lock has decided that the holder before is gone.
            left = before is not None and (before.here or before.silent >= STALE_SECONDS)
            yield Hold(folder, lease.token, before if left else None)
        finally:
            lease.release()
    finally:
        kernel.release()


def _take(folder: Path, lease: filelock.SoftFileLease, patience: float) -> None:
    """Take the lease while this process holds the kernel lock, also a stale one, or wait for it.

    Raises:
        filelock.Timeout: Another process holds the lease.

    """
    try:
        lease.acquire(blocking=False)
    except filelock.Timeout:
        _remove_if_stale(folder, lease)
        lease.acquire(timeout=patience)
    with suppress(OSError):  # not every file system supports it; the rest is correct without it
        file = os.open(folder / LEASE, os.O_RDONLY)
        try:
            os.fsync(file)  # otherwise a crash of the machine may leave the lease empty
        finally:
            os.close(file)


def _remove_if_stale(folder: Path, lease: filelock.SoftFileLease) -> None:
    """Remove the lease if it is stale, as far as this process has seen.

    If the lease was renewed or taken over between the check and the renaming, it is put back. If a third process took a
    lease in between, the process before it learns from `Hold.check` that it has lost the record.
    """
    owner = lease.owner
    left = _read_holder(folder, owner)
    if left is None:
        return
    untouched = _seconds_unchanged(folder, owner, left)
    if owner is None:  # the lease names no owner
        untouched = max(untouched, _age(folder, left))
    if not left.here and untouched < STALE_SECONDS:
        return
    aside = folder / f"{LEASE}.{secrets.token_hex(8)}.tmp"  # a leftover, if this process is killed in between
    try:
        (folder / LEASE).rename(aside)
    except FileNotFoundError:  # another process was faster
        return
    renamed = filelock.SoftFileLease(aside).owner
    if renamed != owner or aside.stat().st_mtime != left.touched:
        with suppress(FileExistsError):
            os.link(aside, folder / LEASE)
    aside.unlink()


def _age(folder: Path, left: Holder) -> float:
    """Return the seconds since a lease was written, with both times from the file server's clock."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{LEASE}.", suffix=".tmp") as now:
        return os.stat(now.name).st_mtime - left.touched


def _seconds_unchanged(folder: Path, owner: filelock.OwnerRecord | None, left: Holder) -> float:
    """Return the seconds for which this process has seen the lease unchanged."""
    sign, now = (owner, left.touched), time.monotonic()
    if folder not in _SEEN or _SEEN[folder][0] != sign:
        _SEEN[folder] = sign, now
    return now - _SEEN[folder][1]


def holder(folder: Path) -> Holder | None:
    """Return the process that holds a folder or has left a lease in it, or None. Nothing is changed."""
    owner = _read_holder(folder, _lease(folder).owner)
    if owner is not None and not owner.host:
        return replace(owner, gone=owner.silent >= STALE_SECONDS)
    if owner is None or not owner.here:
        return owner
    try:
        with _kernel_lock(folder).acquire(blocking=False):
            return replace(owner, gone=True)  # a live process of this machine would hold the kernel's lock
    except (filelock.Timeout, OSError):
        return owner


def _read_holder(folder: Path, owner: filelock.OwnerRecord | None) -> Holder | None:
    """Return the holder that a lease names, an unnamed one for an unreadable lease, or None if there is no lease."""
    try:
        touched = (folder / LEASE).lstat().st_mtime
    except OSError:  # the lease does not exist, or was just released
        return None
    if owner is None:
        return Holder("", 0, touched)
    host = owner.hostname.partition("?")[0] or "?"  # without the number of a container's namespace
    return Holder(host, owner.pid, touched)


def _kernel_lock(folder: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(folder / LOCK)


@cache  # one object per folder: it tracks since when a lease is untouched
def _lease(folder: Path) -> filelock.SoftFileLease:
    return filelock.SoftFileLease(folder / LEASE, lease_duration=STALE_SECONDS, heartbeat_interval=HEARTBEAT_SECONDS)
