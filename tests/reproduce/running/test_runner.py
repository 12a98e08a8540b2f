"""Test the grid: after a kill, a stop, sharing or damage, the same command gives the same records."""

import contextlib
import dataclasses
import errno
import multiprocessing
import os
import pickle
import shutil
import signal
import struct
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from reproduce.distributed.interrupts import Interrupt
from reproduce.grids import recipes
from reproduce.records import volumes
from reproduce.records.record import Record, State, Status, scan
from reproduce.records.storage import StorageError
from reproduce.running import runner, worker
from reproduce.running.grid_options import GridOptions
from reproduce.running.messages import DiskFull, Finished, Notice, Problem, Progress, Waiting
from reproduce.running.runner import GridOutcome, run_grid
from reproduce.running.worker import work
from tests.example_cells import CHAINS
from tests.fake_records import begin, in_folder, train
from tests.processes import children, wait_for
from tests.trainings import kinds, records, reports


def settings(root, **changes):
    return GridOptions(**{"root": root, "jobs": 1, **changes})


def lines(root):
    """Return the number of finished epochs of the whole grid."""
    return sum(len(run.metrics) for run in scan(root).records)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of the grid after an undisturbed run."""
    root = tmp_path_factory.mktemp("whole")
    assert kinds(reports(CHAINS, root)) == [(Finished, 0), (Finished, 1), (Finished, 2)]
    assert len(records(root)) == 3
    return root


def fork_workers():
    """Fork the workers of a grid from this process."""

    def as_a_started_program() -> None:  # without the handlers of its parent, but with its ignored signals
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)

    os.register_at_fork(after_in_child=as_a_started_program)
    runner.multiprocessing = SimpleNamespace(get_context=lambda _: multiprocessing.get_context("fork"))


def grid(cells, root, jobs=1):
    """Run the grid in this process, as a command does. Its workers are forked from it."""
    fork_workers()
    sys.exit(run_grid(cells, settings(root, jobs=jobs)).exit_code)


@pytest.mark.slow
def test_killed_grid_repeats_to_the_same_records(tmp_path, whole, start):
    """After SIGKILL to all processes, the same command ends with the same records."""
    killed = start(grid, CHAINS, tmp_path, 2)
    wait_for(lambda: lines(tmp_path) >= 2)
    os.killpg(killed.pid, signal.SIGKILL)  # including the workers, each in the middle of a cell
    assert len(records(tmp_path)) < 3, "the kill came too late to test anything"
    killed.stderr(-signal.SIGKILL)
    assert "[3/3]" in start(grid, CHAINS, tmp_path, 2).stderr()
    assert records(tmp_path) == records(whole)
    assert not list(tmp_path.glob("*/*/checkpoint.pt"))


@pytest.mark.slow
def test_workers_of_a_killed_command_save_and_end(tmp_path, whole, start):
    """Workers whose parent was killed release their cells, and a rerun gives the same records."""
    process = start(grid, CHAINS, tmp_path)
    wait_for(lambda: lines(tmp_path) >= 1)
    process.send_signal(signal.SIGKILL)  # only the parent
    process.stderr(-signal.SIGKILL)
    left = Record.for_cell(CHAINS[0], tmp_path)

    def is_free():
        try:
            with left.lock():
                return True
        except Exception:
            return False

    wait_for(is_free)
    assert len(records(tmp_path)) < 3
    reports(CHAINS, tmp_path)
    assert records(tmp_path) == records(whole)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_every_process_saves(tmp_path, whole, start, number, code):
    """A terminal sends such signals after Ctrl-C, and Slurm before the time is over."""
    process = start(grid, CHAINS, tmp_path)
    wait_for(lambda: lines(tmp_path) >= 1)
    os.killpg(process.pid, number)
    output = process.stderr(code)
    assert "a worker died" not in output
    assert "stopping: every worker finishes its tick" in output
    assert "Traceback" not in output
    assert len(records(tmp_path)) < 3
    reports(CHAINS, tmp_path)
    assert records(tmp_path) == records(whole)


@pytest.mark.slow
def test_killed_worker_is_reported_and_others_continue(tmp_path, start):
    """A killed worker is reported, and the other one completes all cells."""
    cells = [dataclasses.replace(CHAINS[0], epochs=8, drops=()), *CHAINS]
    first = Record.for_cell(cells[0], tmp_path).path

    def holds(pid):
        return any(os.path.realpath(f"/proc/{pid}/fd/{fd}") == str(first / "record.lock") for fd in opened(pid))

    def opened(pid):
        return os.listdir(f"/proc/{pid}/fd")

    process = start(grid, cells, tmp_path, 2)
    wait_for((first / "metrics.jsonl").exists)
    os.kill(next(pid for pid in children(process.pid) if holds(pid)), signal.SIGKILL)
    output = process.stderr()
    # The surviving worker also takes over the dead worker's cell, from its checkpoint.
    assert all(Record.for_cell(cell, tmp_path).state().status is Status.DONE for cell in cells)
    assert f"a worker died while it ran {cells[0].slug} (exit code -9" in output


def grid_with_a_broken_device(cells, root):
    """Run the grid with workers that fail at the second cell. Each records the cells that it has tried."""

    def execute(record, context):
        with (root / str(os.getpid())).open("a") as file:
            file.write(f"{cells.index(record.cell)}")
        if record.cell == cells[1]:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return State(Status.DONE, result={"test_accuracy": 90.0})

    worker.execute = execute
    grid(cells, root, jobs=1)


def test_worker_with_broken_device_is_replaced(tmp_path, start):
    """The worker once continued, and every later cell became a problem: the device repeats its error there."""
    output = start(grid_with_a_broken_device, CHAINS, tmp_path).stderr(1)
    assert f"PROBLEM {CHAINS[1].slug}: Traceback" in output
    assert "an illegal memory access was encountered" in output
    assert "a worker died" not in output
    assert sorted(file.read_text() for file in tmp_path.iterdir() if file.is_file()) == ["01", "02"]


@pytest.mark.slow
def test_missing_data_set_is_reported_once_in_mixed_grid(tmp_path, whole, capsys):
    """The worker is a process that starts Python, as outside of tests."""
    cells = [recipes.cell("small"), CHAINS[0], recipes.cell("small", seed=1)]
    result = run_grid(cells, settings(tmp_path, data_root=tmp_path / "data"))
    assert result.exit_code == 1
    assert list(result.problems) == [cells[0], cells[2]]
    assert capsys.readouterr().err.count("python -m reproduce data prepare cifar10") == 1
    assert Record.for_cell(cells[0], tmp_path).state().status is Status.NOT_RUN, "a run that never began has no record"
    assert records(tmp_path) == {CHAINS[0].name: records(whole)[CHAINS[0].name]}


def test_cell_held_by_another_process_is_waited_for(tmp_path, whole):
    """A cell that is locked by another process is run after the others, when it is released."""
    held = Record.for_cell(CHAINS[0], tmp_path)
    order = []
    release = threading.Event()

    def report(message):
        if isinstance(message, Finished):
            order.append(message.index)
            if len(order) == 2:
                release.set()

    def hold(ready):
        with held.lock():
            ready.set()
            release.wait()

    ready = threading.Event()
    holder = threading.Thread(target=hold, args=(ready,))
    holder.start()
    ready.wait()
    work(CHAINS, settings(tmp_path), report, lambda: False, torch.device("cpu"), [False] * len(CHAINS))
    holder.join()
    assert order == [1, 2, 0]
    assert records(tmp_path) == records(whole)


def pickle_outcome(cells, file, options):
    """Run the grid and write its outcome to a file."""
    fork_workers()
    file.write_bytes(pickle.dumps(run_grid(cells, options)))


def test_damaged_record_is_kept_and_others_are_run(tmp_path, whole, start):
    """A damaged record is a problem and does not change, and the other cells are run."""
    root = tmp_path / "records"
    shutil.copytree(whole, root)
    file = in_folder(Record.for_cell(CHAINS[1], root)).path / "result.json"
    file.write_text("{")
    volumes.remove(CHAINS[2], root)
    start(pickle_outcome, CHAINS, tmp_path / "outcome", settings(root)).stderr()
    outcome = pickle.loads((tmp_path / "outcome").read_bytes())
    assert outcome.exit_code == 1
    assert list(outcome.problems) == [CHAINS[1]]
    assert f"{file}: is damaged" in outcome.problems[CHAINS[1]]
    assert file.read_text() == "{"
    assert Record.for_cell(CHAINS[2], root).state().status is Status.DONE


def listener_of(outcome, notices, finished=None):
    """Return the part of a command that receives the messages of workers, with its notices in a list."""
    bar = SimpleNamespace(notice=notices.append, show=lambda *_: None, finish=lambda *_, **__: finished.append(1))
    return runner._Supervisor(CHAINS, GridOptions(), outcome, bar)


def test_exit_code_follows_from_states_and_signal():
    done, partial = State(Status.DONE), State(Status.PARTIAL, 1, 2)
    diverged, memory = (State(Status.FAILED, 0, 1, reason) for reason in ("diverged", "out of memory"))
    a, b = CHAINS[:2]
    assert GridOutcome({a: done, b: diverged}).exit_code == 0
    assert GridOutcome({a: done, b: memory}).exit_code == 1
    assert GridOutcome({a: done, b: partial}).exit_code == 1
    assert GridOutcome({a: done, b: partial}, signal=signal.SIGINT).exit_code == 130
    assert GridOutcome({a: done}, signal=signal.SIGINT).exit_code == 0
    assert GridOutcome({a: done}, {b: "damaged"}).exit_code == 1


def test_finished_cells_start_no_worker_failed_ones_on_retry(tmp_path, whole, monkeypatch):
    """Finished cells start no worker, and failed ones only with `retry_failed`."""
    started = []

    def supervise(supervisor, interrupt):
        started.append((supervisor._cells, supervisor._options.jobs))

    monkeypatch.setattr(runner._Supervisor, "supervise", supervise)
    assert run_grid(CHAINS, settings(whole)).exit_code == 0
    left = Record.for_cell(CHAINS[0], whole).checkpoint  # left by a kill between the result and the removal
    left.parent.mkdir(parents=True)
    left.write_bytes(b"checkpoint")
    assert run_grid(CHAINS, settings(whole)).exit_code == 0
    assert not left.exists()
    record = Record.for_cell(CHAINS[0], tmp_path)
    record.begin({}, {})
    record.fail("out of memory", "no more")
    assert run_grid(CHAINS[:1], settings(tmp_path)).exit_code == 1
    assert started == []
    outcome = run_grid(CHAINS[:1], settings(tmp_path, jobs=3, retry_failed=True))
    assert started == [(CHAINS[:1], 1)], "a worker for every cell, who share the device"
    assert str(record.state()).startswith("out of memory"), "the failure of a cell that has not started is kept"
    assert str(outcome.states[CHAINS[0]]) == "0 of 3 epochs", "the same command runs it"


def test_retry_without_data_keeps_the_failure(tmp_path, start):
    """`--retry-failed` with a wrong `--data-root` once removed the results of all diverged cells."""
    cell = recipes.cell("small")
    begin(cell, tmp_path).fail("diverged", "nan")
    options = settings(tmp_path, retry_failed=True, data_root=tmp_path)
    start(pickle_outcome, [cell], tmp_path / "outcome", options).stderr()
    outcome = pickle.loads((tmp_path / "outcome").read_bytes())
    assert "cifar10 is not prepared" in outcome.problems[cell]
    assert str(Record.for_cell(cell, tmp_path).state()).startswith("diverged")


def test_failure_is_retried_once(tmp_path, monkeypatch):
    """A cell that fails again is not retried by another worker of the same run, nor one that first failed in it."""
    begin(CHAINS[0], tmp_path).fail("out of memory", "first")
    ran = []

    def out_of_memory(record, context):
        ran.append(record.cell)
        raise MemoryError("again")

    monkeypatch.setattr("reproduce.running.execution._run", out_of_memory)
    retry = [True, True]
    for _ in range(2):
        messages = []
        work(CHAINS[:2], settings(tmp_path), messages.append, lambda: False, torch.device("cpu"), retry)
        assert [message.state.detail for message in messages if isinstance(message, Finished)] == ["again", "again"]
    assert ran == CHAINS[:2]


def test_repeated_messages_count_once_and_full_disk_stops_all_workers():
    """A notice or a finished cell of two workers counts once, and a full disk stops all workers."""
    notices, finished = [], []
    listener = listener_of(GridOutcome({CHAINS[0]: State(Status.NOT_RUN)}), notices, finished)
    for number in range(2):
        listener.handle(number, Finished(0, State(Status.DONE)))
        listener.handle(number, Notice(number, "ticks of DSP cannot be recorded"))
    assert len(finished) == 1
    assert notices == ["ticks of DSP cannot be recorded"]
    listener.handle(0, DiskFull(1, "no room"))
    assert listener._stop.value


def test_worker_killed_within_a_message_does_not_block():
    """A worker that was killed in the middle of a message is reported, and the listener ends."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    os.write(theirs.fileno(), struct.pack("!i", 9) + b"half")
    theirs.close()
    outcome, process = GridOutcome(), SimpleNamespace(join=lambda: None, exitcode=-9)
    listener = listener_of(outcome, [])
    listener._running[0], listener._workers[ours] = CHAINS[0], (0, process)
    listener.listen(Interrupt())
    assert "a worker died while it ran" in outcome.problems[CHAINS[0]]


def test_grid_reports_waiting_unless_for_its_workers(tmp_path, monkeypatch):
    """Waiting for a cell of another process is reported once, and not for a worker of the same grid."""
    monkeypatch.setattr(worker, "WAITING_SECONDS", 0.0)
    record, asked = Record.for_cell(CHAINS[0], tmp_path), iter(range(6))
    with record.lock():
        messages = reports(CHAINS[:1], tmp_path, should_stop=lambda: next(asked, None) is None)
    assert messages, "nothing was said"
    assert set(kinds(messages)) == {(Waiting, 0)}
    assert f"{CHAINS[0].slug} is held by process {os.getpid()} on " in messages[0].text
    notices = []
    listener = listener_of(GridOutcome(), notices)
    listener.handle(0, messages[0])
    listener.handle(0, messages[0])
    assert notices == [messages[0].text]
    listener.handle(1, Progress(1, 0.5))
    listener.handle(0, Waiting(1, "another worker has it"))
    assert len(notices) == 1


def test_unreadable_folder_is_a_problem_of_its_cell(tmp_path, monkeypatch):
    """With a umask of 077, for example."""
    closed, stat = begin(CHAINS[0], tmp_path).path, os.stat

    def look(path, **options):
        if isinstance(path, str | os.PathLike) and str(path).startswith(f"{closed}{os.sep}"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", look)
    monkeypatch.setattr("reproduce.records.run.read_bytes", lambda file, fix: look(file) and b"")
    outcome = run_grid(CHAINS[:1], settings(tmp_path))
    assert "config.json: cannot be read: Permission denied. Let this user read it" in outcome.problems[CHAINS[0]]


def test_folder_of_other_user_fails_retry_not_finished_cell(tmp_path, monkeypatch):
    """A folder of another user is a problem of a retry, but not of a finished cell."""
    begin(CHAINS[0], tmp_path).fail("out of memory", "in stage 1")
    assert in_folder(train(CHAINS[1], tmp_path, 95.0)).path.exists()  # a kill left it there

    @contextlib.contextmanager
    def forbidden(folder):
        raise StorageError(errno.EACCES, "record.lock belongs to another user")
        yield

    monkeypatch.setattr("reproduce.records.record.hold", forbidden)
    [message] = reports(CHAINS[:1], tmp_path, retry_failed=True)
    assert (type(message), message.text) == (Problem, "record.lock belongs to another user")
    assert run_grid(CHAINS[1:2], settings(tmp_path)).exit_code == 0
