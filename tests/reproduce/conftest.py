"""Act as several machines that lock the same folder."""

import socket

import pytest

from reproduce.records import locks
from tests.faults import STALE, hold_as
from tests.processes import FORKED, PATIENCE


@pytest.fixture
def short_times(monkeypatch):
    """Undo the settings of `be_machine`, and use short timeouts in this process."""
    monkeypatch.setattr(locks, "STALE_SECONDS", STALE)
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", STALE / 5)
    monkeypatch.setattr(locks, "_kernel_lock", locks._kernel_lock)
    monkeypatch.setattr(socket, "gethostname", socket.gethostname)
    locks._lease.cache_clear()
    yield
    locks._lease.cache_clear()


@pytest.fixture
def machine(tmp_path):
    """Start a process of another machine that holds a folder; return the process and the event that ends it."""
    started = []

    def start(name="beta", stale=STALE, folder=tmp_path):
        ready, release = FORKED.Event(), FORKED.Event()
        process = FORKED.Process(target=hold_as, args=(name, stale, folder, ready, release))
        process.start()
        started.append(process)
        assert ready.wait(PATIENCE)
        return process, release

    yield start
    for process in started:
        process.kill()
        process.join()
