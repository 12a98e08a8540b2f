"""Test `train` against the lock of another machine: it waits for a dead one, and does not disturb a live one."""

import time
from types import SimpleNamespace

import pytest
import torch

from reproduce.commands import process
from reproduce.commands.train_options import TrainOptions
from reproduce.distributed.group import SINGLE_PROCESS
from reproduce.distributed.launch import Failure
from reproduce.grids import recipes
from reproduce.records import locks
from reproduce.records.locks import LockedError, holder
from reproduce.records.record import Record
from tests.example_cells import CHAIN
from tests.faults import be_machine

pytestmark = pytest.mark.usefixtures("short_times")


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Train up to the lock, on a machine other than `beta`; return the former holder and the notices."""
    be_machine("alpha")
    monkeypatch.setattr(process, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(process, "execute", lambda record, _: lock(record))

    def lock(record):
        with record.lock() as hold:
            return hold.taken_from

    def call():
        notices, announcements = [], []
        context = SimpleNamespace(
            observer=SimpleNamespace(notice=notices.append),
            group=SimpleNamespace(announce=lambda go: announcements.append(go)),
            should_stop=lambda: False,
        )
        try:
            return process._when_free(Record(tmp_path, CHAIN), context), notices
        finally:
            assert set(announcements) <= {None}

    return call


def test_lease_of_dead_machine_is_taken_over(train, machine):
    """Every new process once saw the lease for the first time, and always refused."""
    left, _ = machine("beta")
    left.kill()
    left.join()
    taken_from, notices = train()
    assert (taken_from.host, taken_from.process) == ("beta", left.pid)
    assert len(notices) == 1
    assert notices[0].startswith("waiting for a heartbeat: ")
    assert f"process {left.pid} on beta" in notices[0]


@pytest.mark.parametrize(
    ("name", "message"), [("beta", "on beta"), ("alpha", "another process is working on this cell")]
)
def test_lease_of_live_process_is_not_taken_over(train, machine, tmp_path, monkeypatch, name, message):
    """No process waits for a process of this machine. The clock of the file server may be ahead."""
    monkeypatch.setattr(locks, "time", SimpleNamespace(time=lambda: 0.0, monotonic=time.monotonic))
    left, _ = machine(name)
    with pytest.raises(LockedError, match=message):
        train()
    assert left.is_alive()
    assert holder(tmp_path).host == name


def test_one_process_has_all_stages_under_any_partition():
    """In one process, a balanced and an even partition are the same."""
    even, balanced = (process._partition(CHAIN, TrainOptions(partition=name)) for name in ("even", "balanced"))
    assert even == balanced


def test_retry_without_data_keeps_the_failure(tmp_path):
    """`--retry-failed` with a wrong `--data-root` once removed the failure."""
    record = Record(tmp_path / "run", recipes.cell("small"))
    record.begin({}, {})
    record.fail("diverged", "nan")
    context = SimpleNamespace(
        options=SimpleNamespace(retry_failed=True, data_root=tmp_path),
        group=SINGLE_PROCESS,
        observer=SimpleNamespace(close=lambda: None),
        device=torch.device("cpu"),
    )
    with pytest.raises(Failure, match="cifar10 is not prepared"):
        process._run(record, context, None)
    assert str(record.state()).startswith("diverged")
