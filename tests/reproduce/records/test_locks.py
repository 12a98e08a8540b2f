"""Test locks: there is one holder, on one machine or several, however a holder ends."""

import contextlib
import errno
import os
import runpy
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import filelock
import pytest

from reproduce.records import locks
from reproduce.records.locks import LockedError, LockLostError, hold, holder
from reproduce.records.storage import StorageError, StorageFullError
from tests.faults import STALE, be_machine, full_disk
from tests.processes import FORKED, PATIENCE, wait_for

pytestmark = pytest.mark.usefixtures("short_times")


@pytest.fixture(params=[True, False], ids=["files can be exchanged", "not, as on NFS"])
def shared(request, tmp_path, monkeypatch):
    """Return a folder of a file system with or without the atomic exchange of files."""
    if not request.param:
        monkeypatch.setattr("filelock._soft.exchange_names", lambda *_: False)
    yield tmp_path
    assert_only_lock_files(tmp_path)


def assert_only_lock_files(folder):
    assert {file.name for file in folder.iterdir() if not file.name.startswith("record.lock")} <= {"record.lease"}


def test_lock_is_exclusive_and_leaves_no_lease(tmp_path):
    """A held lock refuses another holder, and releasing it removes the lease."""
    assert holder(tmp_path) is holder(tmp_path / "missing") is None
    assert list(tmp_path.iterdir()) == [], "to ask changes nothing"
    with hold(tmp_path) as held:
        assert held.taken_from is None
        with pytest.raises(LockedError, match="another process is working"), hold(tmp_path):
            pass
        who = holder(tmp_path)
        assert (who.host, who.process, who.gone) == (socket.gethostname(), os.getpid(), False)
    assert holder(tmp_path) is None
    assert {file.name for file in tmp_path.iterdir()} <= {"record.lock"}


def test_full_disk_is_reported_while_locking(tmp_path):
    """A full disk concerns all cells and is not a problem of this cell."""
    with pytest.raises(StorageFullError, match=r"no room to lock .*same command again"), full_disk(0), hold(tmp_path):
        pass
    assert holder(tmp_path) is None


def test_live_machine_keeps_its_lock_and_is_named(shared, machine):
    """A machine that renews its lease keeps the lock, and the error names it."""
    machine("beta")
    be_machine("alpha")
    end = time.monotonic() + 2 * STALE  # long enough to take over, if nothing refreshed the lease
    while time.monotonic() < end:
        with pytest.raises(LockedError, match=r"process \d+ on beta .* after 1 s without a heartbeat$"), hold(shared):
            pass
        time.sleep(0.1)
    assert holder(shared).host == "beta"
    assert not holder(shared).gone


def test_dead_machine_lock_is_taken_over_after_timeout(shared, machine):
    """A released lock is available immediately, and that of a dead machine after the timeout."""
    process, release = machine("beta")
    release.set()
    process.join()
    be_machine("alpha")
    with hold(shared) as held:
        assert held.taken_from is None
    process, _ = machine("beta")
    process.kill()
    process.join()

    def as_a_worker_asks():
        with contextlib.suppress(LockedError), hold(shared) as lock:
            return [lock.taken_from]

    started = time.monotonic()
    [taken_from] = wait_for(as_a_worker_asks)
    assert time.monotonic() - started >= STALE, "a machine that was only slow had no chance"
    assert (taken_from.host, taken_from.process) == ("beta", process.pid)


def test_dead_local_process_lock_is_taken_over_immediately(shared, machine):
    """The lock of a dead process on this machine is taken over immediately."""
    here = socket.gethostname()
    process, _ = machine(here, stale=1000)  # only the death of the process shows it
    be_machine(here, stale=1000)
    assert not holder(shared).gone
    process.kill()
    process.join()
    assert holder(shared).gone
    with hold(shared) as held:
        assert held.taken_from.process == process.pid


def test_lock_released_during_inspection_is_not_taken_over(tmp_path, machine, monkeypatch):
    """A lock that was released between inspection and acquisition does not count as taken over."""
    process, release = machine("beta", stale=1000)
    be_machine("alpha", stale=1000)
    described = locks._read_holder

    def give_back_after_the_look(*arguments, **options):
        seen = described(*arguments, **options)
        release.set()
        process.join()
        return seen

    monkeypatch.setattr(locks, "_read_holder", give_back_after_the_look)
    with hold(tmp_path) as held:
        assert held.taken_from is None


def _take_over(name, folder, start, results):
    be_machine(name)
    start.wait()
    try:
        taken_from, end = None, time.monotonic() + PATIENCE
        while taken_from is None and time.monotonic() < end:
            try:
                with hold(folder) as held:
                    taken_from = held.taken_from
                    log = folder / "inside"
                    log.open("x").close()  # fails if another machine is inside too
                    time.sleep(0.05)
                    log.unlink()
                    break
            except LockedError:
                time.sleep(0.001)
        results.put((name, None if taken_from is None else taken_from.host))
    except Exception as error:
        results.put((name, repr(error)))


def _can_exchange(folder):
    files = [folder / f"record.lock.{name}" for name in ("exchanged", "with_this")]
    for file in files:
        file.touch()
    return filelock._soft.exchange_names(*map(str, files))


@pytest.mark.slow
def test_one_of_many_machines_takes_over_a_stale_lock(shared, machine):
    """Of several machines that find a stale lock, only one takes it over at a time."""
    names = [f"m{number}" for number in range(6)]
    start, results = FORKED.Barrier(len(names)), FORKED.Queue()
    process, _ = machine("beta")
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    others = [FORKED.Process(target=_take_over, args=(name, shared, start, results)) for name in names]
    for other in others:
        other.start()
    taken_from = dict(results.get(timeout=PATIENCE) for _ in names)
    for other in others:
        other.join()
    named = [host for host in taken_from.values() if host is not None]
    # On NFS a machine that comes between the removal and the new lease is first, and finds no lease.
    assert named == ["beta"] or (named == [] and not _can_exchange(shared)), taken_from
    assert not (shared / "inside").exists()


def _sleep_and_write(folder, ready, go_on, answers):
    be_machine("beta")
    with hold(folder) as held:
        held.check()
        ready.set()
        go_on.wait()
        try:
            held.check()
            answers.put("still mine")
        except LockLostError as error:
            answers.put(str(error))


def test_suspended_holder_detects_the_lost_lock(shared):
    """A holder that was suspended for too long detects that another machine has its lock."""
    ready, go_on, answers = FORKED.Event(), FORKED.Event(), FORKED.Queue()
    process = FORKED.Process(target=_sleep_and_write, args=(shared, ready, go_on, answers))
    process.start()
    try:
        assert ready.wait(PATIENCE)
        os.kill(process.pid, signal.SIGSTOP)  # as on a suspended computer
        be_machine("alpha")
        end = time.monotonic() + PATIENCE
        while True:
            try:
                with hold(shared) as held:
                    os.kill(process.pid, signal.SIGCONT)
                    go_on.set()  # ends a process that is waiting
                    assert "has taken this cell over" in answers.get(timeout=PATIENCE)
                    process.join()
                    held.check()  # the loser has not removed the lease when it ended
                break
            except LockedError:
                assert time.monotonic() < end, "waited in vain"
                time.sleep(0.05)
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("then", ["another has it", "no other has", "it was renewed"])
def test_lease_changed_before_renaming_is_restored(tmp_path, machine, monkeypatch, then):
    """Files cannot be exchanged here. If a third process has a lease by then, the former holder learns that."""
    monkeypatch.setattr("filelock._soft.exchange_names", lambda *_: False)
    process, _ = machine("beta", stale=1000)
    process.kill()
    process.join()
    be_machine("alpha", stale=1000)
    monkeypatch.setattr(locks, "_seconds_unchanged", lambda *_: 1000)
    lease, rename = tmp_path / "record.lease", Path.rename
    stale = lease.read_text()
    newer, third = (stale.replace(locks._lease(tmp_path).owner.token, digit * 32) for digit in "12")
    assert len({stale, newer, third}) == 3

    def changed(file, aside):
        if then == "it was renewed":
            os.utime(lease)
        else:
            lease.write_text(newer)
        rename(file, aside)
        if then == "another has it":
            lease.write_text(third)

    monkeypatch.setattr(Path, "rename", changed)
    with pytest.raises(LockedError, match="on beta"), hold(tmp_path):
        pass
    assert lease.read_text() == {"another has it": third, "no other has": newer, "it was renewed": stale}[then]
    assert [file.name for file in tmp_path.iterdir() if "lock" not in file.name] == ["record.lease"]


def test_briefly_unreadable_lease_is_not_lost(tmp_path, monkeypatch):
    """A lease that is missing for a moment is not lost; one that stays missing is."""
    lease, away = tmp_path / "record.lease", tmp_path / "away"
    with hold(tmp_path) as held:
        lease.rename(away)
        monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=lambda _: away.rename(lease)))
        held.check()
        lease.rename(away)
        monkeypatch.setattr(locks, "time", SimpleNamespace(sleep=lambda _: None))
        with pytest.raises(LockLostError, match="has taken this cell over"):
            held.check()
        away.rename(lease)


def test_unreadable_lease_is_taken_over_when_stale(shared):
    """A process that is killed between the creation of the file and its first byte leaves such a lease."""
    contents = ["", "x", "a damaged\nlease\n", "\0" * 158]
    folders = [shared / f"record.lock{number}" for number in range(len(contents))]
    for folder, content in zip(folders, contents, strict=True):
        folder.mkdir()
        (folder / "record.lease").write_text(content)
    started = time.monotonic()
    for folder in folders:
        assert str(holder(folder)).startswith("a process that left an unreadable lease")
        assert not holder(folder).gone, "somebody may be writing it"
        with pytest.raises(LockedError, match="left an unreadable lease"), hold(folder):
            pass

    def take(folder):
        with contextlib.suppress(LockedError), hold(folder) as held:
            held.check()
            return [held.taken_from]

    for folder in folders:
        [taken_from] = wait_for(lambda folder=folder: take(folder))
        assert time.monotonic() - started >= 0.9 * STALE, "a slow holder had no chance"
        assert taken_from.host == ""
        assert_only_lock_files(folder)


def test_old_unreadable_lease_is_taken_over_immediately(shared):
    """A command that runs only once cannot watch the file for minutes, so the clock of the file server decides."""
    lease = shared / "record.lease"
    lease.touch()
    before = time.time() - 2 * STALE
    os.utime(lease, (before, before))
    assert holder(shared).gone
    with hold(shared) as held:
        held.check()


def test_lock_of_another_user_is_named_with_remedy(tmp_path, monkeypatch):
    """The lock is a problem of this cell. It causes no traceback and no waiting."""

    def forbidden(**_):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "record.lock"))

    monkeypatch.setattr(locks, "_kernel_lock", lambda _: SimpleNamespace(acquire=forbidden))
    words = r"no permission to lock .*\(Permission denied: .*record\.lock\); give this user write permission"
    with pytest.raises(StorageError, match=words), hold(tmp_path):
        pass


def test_removed_folder_is_not_reported_as_taken_over(tmp_path):
    """If the folder was removed, the error states that and not a takeover."""
    folder = tmp_path / "cell"
    with hold(folder) as held:
        shutil.rmtree(folder)
        with pytest.raises(LockLostError, match="was removed while it ran"):
            held.check()


def test_old_filelock_version_is_refused_on_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this check, a machine without installer would report it only after reading the data set."""
    monkeypatch.setitem(sys.modules, "filelock", SimpleNamespace(__version__="3.20.0"))
    with pytest.raises(ImportError, match=r"filelock 3.20.0 is too old .* expected 3.30 or newer"):
        runpy.run_path(locks.__file__)
