"""Test `train --processes`: the weights of one process, after any kill, and an end with one clear message."""

import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from petra_core.worker import Worker
from reproduce.distributed import launch
from reproduce.distributed.group import UnsupportedError
from reproduce.distributed.interrupts import Interrupt
from reproduce.distributed.launch import LOST, MARKS, exit_without_shutdown, first_to_report
from reproduce.distributed.processes import DistributedGroup
from reproduce.records.locks import LockedError
from reproduce.records.record import Record
from tests.example_cells import CELL_OPTIONS
from tests.processes import Command, Start, children, free_port, in_processes, reproduce, run_module, wait_for
from tests.trainings import assert_same_training, weights_and_metrics

#: Without --threads: the promise for results of several processes includes the default.
OPTIONS = (*CELL_OPTIONS, "--learning-rate", "0.02", "--checkpoint-minutes", "0")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    output = tmp_path_factory.mktemp("one_process") / "run"
    with contextlib.closing(Command(reproduce, "train", *OPTIONS, "--output", str(output))) as process:
        text = process.stderr()
        assert f" -> {output} (1 thread)\n" in text
    return weights_and_metrics(output)


def test_killed_process_restarts_all_to_the_same_weights(tmp_path: Path, start: Start, alone: tuple[Any, Any]) -> None:
    """After a process is killed, all restart from the checkpoint and end with the weights of one process."""
    process = start(reproduce, "train", *OPTIONS, "--output", str(tmp_path), "--processes", "2", "--partition", "2,4")
    wait_for((tmp_path / "checkpoint" / "latest.json").exists)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    text = process.stderr()
    assert f" -> {tmp_path} (2 processes with 1 thread each)\n" in text
    assert "all restart from the last checkpoint (1 of 3)" in text
    [message] = [line for line in text.splitlines() if "lost" in line and "all restart" not in line]
    assert message.startswith("rank 1: ")
    assert_same_training(tmp_path, alone)
    [environment] = Record.load(tmp_path).read().environments
    assert (environment["processes"], environment["partition"], environment["threads"]) == (2, [2, 4], 1)


def test_run_resumes_with_other_numbers_of_processes(tmp_path: Path, start: Start, alone: tuple[Any, Any]) -> None:
    """A run that is stopped with two and three processes is completed by one, with the same weights."""
    for processes, partition in (("2", "3,3"), ("3", "2,2,2")):
        sharing = ("--processes", processes, "--partition", partition)
        running = start(reproduce, "train", *OPTIONS, "--output", str(tmp_path), *sharing)
        before = (tmp_path / "checkpoint" / "latest.json").read_text() if processes == "3" else ""
        latest = tmp_path / "checkpoint" / "latest.json"
        wait_for(lambda: latest.exists() and latest.read_text() != before)  # noqa: B023  # is called immediately
        running.send_signal(signal.SIGINT)
        text = running.stderr(130)
        assert "saved, and the same command resumes from there" in text
    start(reproduce, "train", *OPTIONS, "--output", str(tmp_path)).stderr()
    assert_same_training(tmp_path, alone)


def test_torchrun_gives_the_weights_of_one_process(tmp_path: Path, start: Start, alone: tuple[Any, Any]) -> None:
    """The processes of torchrun are those of Python, as a user starts them."""
    torchrun = ("--standalone", "--nproc-per-node=2", "-m", "reproduce", "train", *OPTIONS, "--output", str(tmp_path))
    start(run_module, "torch.distributed.run", *torchrun).stderr()
    assert_same_training(tmp_path, alone)


def test_replicas_of_two_processes_survive_a_kill(tmp_path: Path, start: Start) -> None:
    """Replicas of two processes each restart after a kill, and equal replicas of one process each."""
    text = start(reproduce, "train", *OPTIONS, "--output", str(tmp_path / "a"), "--replicas", "2").stderr()
    assert text.count("epoch 3/3") == 1, "one of the processes reports"
    other = tmp_path / "b"
    sharing = ("--replicas", "2", "--processes", "2", "--partition", "3,3")
    process = start(reproduce, "train", *OPTIONS, "--output", str(other), *sharing)
    wait_for((other / "checkpoint" / "latest.json").exists)
    os.kill(children(process.pid)[2], signal.SIGKILL)
    text = process.stderr()
    assert "all restart from the last checkpoint (1 of 3)" in text
    assert_same_training(other, weights_and_metrics(tmp_path / "a"))
    assert json.loads((other / "config.json").read_text())["cell"]["replicas"] == 2
    assert json.loads((other / "result.json").read_text())["micro_batches"] == 3 * (1437 // 48 // 2)


def reproduce_with_a_fault(*arguments: str) -> None:
    whole = Worker.backward

    def backward(self: Worker, micro_batch: int) -> Any:
        if micro_batch == 20 and self.index == 4:
            raise KeyError("a fault")
        return whole(self, micro_batch)

    Worker.backward = backward  # type: ignore[method-assign]  # not in the test's process
    reproduce(*arguments)


def test_exception_in_one_process_ends_all_with_one_message(tmp_path: Path, start: Start) -> None:
    """An exception in one process ends all of them with one traceback, which names the place and the rank."""
    arguments = ("train", *OPTIONS, "--output", str(tmp_path), "--processes", "2")
    process = start(reproduce_with_a_fault, *arguments)
    started = wait_for(lambda: len(processes := children(process.pid)) == 2 and processes)
    text = process.stderr(1)
    assert text.count("Traceback") == 1
    last = [line.removeprefix("[rank1]: ") for line in text.splitlines()[-3:]]  # torch puts the rank before each line
    assert last == ["KeyError: 'a fault'", "in backward 20 of stage 4", "on rank 1"]
    assert "lost" not in text
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_non_finite_loss_ends_all_with_one_message(tmp_path: Path, start: Start) -> None:
    """A loss that is not finite ends all processes with one error message."""
    wild = (*CELL_OPTIONS, "--learning-rate", "1e30", "--warmup-epochs", "0", "--threads", "1")
    sharing = ("--processes", "2", "--replicas", "2", "--partition", "3,3")
    process = start(reproduce, "train", *wild, "--output", str(tmp_path), *sharing)
    first = wait_for(lambda: children(process.pid))
    text = process.stderr(1)
    assert re.search(r"Error: rank [13]: diverged \(epoch 1 of 3\): the loss of micro-batch \d+ is ", text), text
    assert "it comes from stage " in text
    assert "Traceback" not in text
    assert text.count("Error") == 1
    assert not any(Path(f"/proc/{pid}").exists() for pid in first)


def test_ranks_with_different_settings_are_refused(tmp_path: Path, start: Start) -> None:
    """Ranks with different settings or threads are refused on all ranks."""
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    started = [
        start(reproduce, "train", *OPTIONS, *differing, "--output", str(tmp_path), RANK=str(rank), **where)
        for rank, differing in enumerate([(), ("--seed", "1", "--threads", "2")])
    ]
    for text in [process.stderr(1) for process in started]:
        assert "rank 1 differs from rank 0, so nothing was trained: cell" in text
        assert "; threads 2, rank 0 has 1\n" in text


def end(last: str, group: bool) -> None:
    atexit.register(os.abort)  # threads of the group may do this while Python ends
    if group:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with exit_without_shutdown():
        exec(last, {"sys": sys})


def test_process_in_a_group_exits_without_interpreter_cleanup(start: Start) -> None:
    """A process of a group exits without the interpreter's cleanup, with the right code and message."""
    for last, code, text in (
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(75)", 75, ""),
        ("sys.exit('a message')", 1, "a message\n"),
        ("raise KeyError('a fault')", 1, "[rank0]: KeyError: 'a fault'\n"),
    ):
        assert start(end, last, True, GLOO_SOCKET_IFNAME="lo").stderr(code).endswith(text)
    assert "KeyError: 'a fault'" in start(end, last, False).stderr(-signal.SIGABRT), "without a group, Python cleans up"


def test_failed_connection_exits_with_a_retryable_code(tmp_path: Path, start: Start) -> None:
    """One process is killed while all connect. The others lose it, and all start again."""
    where = {"RANK": "0", "WORLD_SIZE": "2", MARKS: str(tmp_path)}
    arguments = ("train", *OPTIONS, "--timeout-minutes", "0.01", "--output", str(tmp_path / "run"))
    text = start(reproduce, *arguments, **where).stderr(LOST)
    assert text.startswith("the processes of the run did not all connect: one of them has died, or has not responded")
    assert "Traceback" not in text


def meet(rank: int) -> None:
    group = object.__new__(DistributedGroup)
    group.check_same_position("3 epochs and 5 micro-batches")
    with pytest.raises(UnsupportedError, match=r"rank 1 would resume from 1 epochs, rank 0 from 0 epochs: .* all "):
        group.check_same_position(f"{rank} epochs")


def test_all_ranks_resume_from_one_place() -> None:
    """Ranks that would resume from different places are refused."""
    in_processes(2, meet)


def stopped(number: int) -> Interrupt:
    """Return the record of this signal; 0 for none."""
    interrupt = Interrupt()
    interrupt._received = number
    return interrupt


def test_exit_codes_are_combined_into_one() -> None:
    """The exit codes of all processes and the received signal give one exit code."""
    for codes, received, verdict in (
        ([0, 0], 0, 0),
        ([0, 0], signal.SIGTERM, 0),  # the signal came when all had finished
        ([130, 143], signal.SIGINT, 130),
        ([-9, LOST], 0, LOST),
        ([LOST, 1], 0, 1),
        ([None, 2], 0, 2),
    ):
        assert launch._verdict(codes, stopped(received)) == verdict


class Polled:
    """Stand in for a process that returns these exit codes one after the other, and then the last one."""

    def __init__(self, *codes: int | None) -> None:
        self._codes, self.signals = list(codes), list[int]()

    def poll(self) -> int | None:
        return self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


def test_launcher_passes_a_signal_on_and_waits_for_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop, processes have time to save. A closed terminal (SIGHUP) ends them with SIGTERM."""
    monkeypatch.setattr(launch, "POLL_SECONDS", 0)
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0)

    def watched(received: int, *started: Polled) -> int:
        return launch._watch(started, stopped(received))  # type: ignore[arg-type]  # stand-ins

    for received, sent in ((signal.SIGINT, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)):
        saves = Polled(*[None] * 9, 143)
        assert watched(received, saves, Polled(143)) == 128 + received
        assert saves.poll() == 143, "a process that receives a stop has time to save, although another one has ended"
        assert saves.signals == [sent], "once"
    assert watched(0, Polled(None), Polled(1)) == 1


def test_processes_of_a_killed_launcher_save_and_end(tmp_path: Path, start: Start) -> None:
    """Otherwise it would hold the cell against a repeated command."""
    process = start(reproduce, "train", *OPTIONS, "--epochs", "1000", "--output", str(tmp_path), "--processes", "2")
    wait_for((tmp_path / "checkpoint" / "latest.json").exists)
    process.send_signal(signal.SIGKILL)

    def free() -> bool:
        with contextlib.suppress(LockedError), Record.load(tmp_path).lock():
            return True
        return False

    wait_for(free)
    assert "saved, and the same command resumes from there" in process.stderr(-signal.SIGKILL)


def test_failed_start_kills_already_started_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a process cannot be started, those that were started are killed."""
    started: list[subprocess.Popen[bytes]] = []

    def popen(_: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if started:
            raise OSError("no more processes")
        started.append(subprocess.Popen(["sleep", "600"], **options))
        return started[0]

    monkeypatch.setattr(launch, "subprocess", SimpleNamespace(Popen=popen))
    with pytest.raises(OSError, match="no more processes"):
        launch.launch(2, ["train"], restarts=0)
    assert started[0].poll() == -signal.SIGKILL


def test_signal_between_restarts_ends_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal between two attempts ends the launch."""

    def attempt(*_: Any) -> int:
        signal.raise_signal(signal.SIGTERM)
        return LOST

    monkeypatch.setattr(launch, "_attempt", attempt)
    assert launch.launch(2, ["train"], restarts=3) == 128 + signal.SIGTERM


def test_invalid_options_are_reported_once_before_launch(tmp_path: Path, start: Start) -> None:
    """Invalid options exit with 2 and one message before any process starts."""
    (tmp_path / "file").write_text("")
    for wrong, message in (
        (("--cuda-graphs", "4"), "needs a CUDA device"),
        (("--output", str(tmp_path / "file" / "run")), "--output: cannot write to"),
    ):
        process = start(reproduce, "train", *OPTIONS, "--output", str(tmp_path / "run"), "--processes", "2", *wrong)
        text = process.stderr(2)
        assert " ".join(text.split()).count(message) == 1


def test_one_process_reports_per_torchrun_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torchrun, one process reports in every attempt."""
    kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # by the agent
    monkeypatch.delenv(MARKS, raising=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(kept.port))
    assert first_to_report()
    assert first_to_report()  # nothing indicates that torchrun keeps a store there
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    assert [first_to_report() for _ in range(3)] == [True, False, False]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert [first_to_report() for _ in range(2)] == [True, False]
    monkeypatch.setenv("MASTER_PORT", "no port")
    assert first_to_report()


def test_failure_is_reported_without_a_place_for_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems remove files that have been in their folder for temporary files for days."""
    monkeypatch.setenv(MARKS, str(tmp_path / "gone"))
    assert first_to_report()
    monkeypatch.setenv(MARKS, str(tmp_path))
    assert [first_to_report() for _ in range(2)] == [True, False]
