"""Test docs/cluster.md: its two scripts, on a Slurm of one node, give the records of an undisturbed run."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reproduce.records.locks import holder
from reproduce.records.record import scan
from tests.cluster.slurm import Slurm, missing
from tests.example_cells import CELL_OPTIONS
from tests.processes import ROOT, wait_for
from tests.trainings import assert_same_training, records, weights_and_metrics

pytestmark = pytest.mark.skipif(
    bool(missing()),
    reason=f"Slurm's {', '.join(missing())} not found: apt-get install slurmctld slurmd slurm-client munge",
)

GRID = ("smoke", "--exhibits", "accuracy", "--models", "chain8", "--k", "4", "--methods", "petra,dsp")
#: The last of two numbers of epochs counts. It leaves enough time for disturbances.
NETWORK = (*CELL_OPTIONS, "--epochs", "20", "--learning-rate", "0.02")
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
SAVED = "stopping: every worker finishes its tick and saves its training"


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Start a cluster whose jobs begin in a folder with the page's scripts and this Python as its `.venv`."""
    folder = tmp_path_factory.mktemp("slurm")
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    scripts = re.findall(r"^`(\w+\.sh)`.+?^```bash\n(#!.+?)^```", page, re.M | re.S)
    assert [name for name, _ in scripts] == ["grid.sh", "network.sh"]
    for name, text in scripts:
        (folder / name).write_text(text)
    (folder / ".venv").symlink_to(sys.prefix)
    cluster = Slurm(folder, ENVIRONMENT)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def python(*arguments: str) -> str:
    """Return the output of `python -m reproduce` outside of the cluster."""
    command = [sys.executable, "-m", "reproduce", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | ENVIRONMENT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def epochs(root: Path) -> int:
    """Return the number of finished epochs of all records below a folder."""
    return sum(len(run.metrics) for run in scan(root).records)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the records of the grid after a run without Slurm and without a disturbance."""
    root = tmp_path_factory.mktemp("whole")
    python("run", *GRID, "--records", str(root), "--jobs", "1")
    finished = records(root)
    assert len(finished) == 2
    return finished


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Return weights and metrics of the network after a training by one undisturbed process without Slurm."""
    output = tmp_path_factory.mktemp("one_process")
    python("train", *NETWORK, "--output", str(output))
    return weights_and_metrics(output)


def submit_grid(slurm: Slurm, root: Path, turns: str) -> str:
    """Submit turns of one worker each, numbered as in `--array`."""
    return slurm.submit(f"--array={turns}", "--cpus-per-task=1", "grid.sh", *GRID, "--records", str(root))


def workers(root: Path) -> list[int]:
    """Return the processes that hold a record now."""
    holders = [holder(file.parent) for file in root.glob("live/[!.]*/record.lease")]
    return [holder.process for holder in holders if holder is not None]


def test_two_turns_share_a_grid(slurm: Slurm, whole: dict[str, Any], tmp_path: Path) -> None:
    """Two turns of a job array share a grid and leave the records of an undisturbed run."""
    job = submit_grid(slurm, tmp_path, "1-2")
    holding = wait_for(lambda: len(alive := workers(tmp_path)) == 2 and alive)
    plan = python("run", *GRID, "--records", str(tmp_path), "--dry-run", "-v")
    assert any(f"process {worker} on " in plan for worker in holding)
    assert slurm.ended(job) == {"1": "COMPLETED", "2": "COMPLETED"}
    assert records(tmp_path) == whole
    assert all("[2/2]" in slurm.log(job, turn) for turn in (1, 2))
    assert "Nothing is left to run." in python("run", *GRID, "--records", str(tmp_path), "--dry-run")


def test_requeued_turn_saves_and_resumes(slurm: Slurm, whole: dict[str, Any], tmp_path: Path) -> None:
    """A requeued turn saves once, resumes, and leaves the records of an undisturbed run."""
    job = submit_grid(slurm, tmp_path, "1")
    wait_for(lambda: epochs(tmp_path))
    slurm.call("scontrol", "requeue", f"{job}_1")
    assert slurm.ended(job) == {"1": "COMPLETED"}
    assert records(tmp_path) == whole
    log = slurm.log(job, 1)
    assert log.count("2 cells of the scale smoke") == 2
    assert log.count(SAVED) == 1
    assert "a worker died" not in log
    assert "took over" not in log


def kill(process: int) -> None:
    """Send SIGKILL to the process and to its parent, which Slurm watches."""
    stat = Path(f"/proc/{process}/stat").read_text()
    for pid in (int(stat.rpartition(")")[2].split()[1]), process):
        os.kill(pid, signal.SIGKILL)


def test_other_turn_finishes_cells_of_killed_turn(slurm: Slurm, whole: dict[str, Any], tmp_path: Path) -> None:
    """If a turn is killed, another one finishes its cells with the records of an undisturbed run."""
    job = submit_grid(slurm, tmp_path, "1-2")
    [first, _] = wait_for(lambda: len(alive := workers(tmp_path)) == 2 and epochs(tmp_path) and alive)
    kill(first)
    assert sorted(slurm.ended(job).values()) == ["COMPLETED", "FAILED"]
    assert records(tmp_path) == whole
    assert "its process is gone" in slurm.log(job, 1) + slurm.log(job, 2)


def test_turn_saves_before_time_limit_and_next_resumes(slurm: Slurm, whole: dict[str, Any], tmp_path: Path) -> None:
    """A turn saves before its time limit, and the next leaves the records of an undisturbed run."""
    job = submit_grid(slurm, tmp_path, "1-2%1")
    wait_for(lambda: epochs(tmp_path))
    [worker] = workers(tmp_path)
    os.kill(worker, signal.SIGSTOP)  # Slurm checks the time every 30 seconds
    try:
        slurm.call("scontrol", "update", f"JobId={job}_1", "EndTime=now+110")
        wait_for(lambda: SAVED in slurm.log(job, 1))
    finally:
        os.kill(worker, signal.SIGCONT)
    assert slurm.ended(job) == {"1": "FAILED", "2": "COMPLETED"}
    assert records(tmp_path) == whole
    first, second = slurm.log(job, 1), slurm.log(job, 2)
    assert "Exited with exit code 143" in first
    assert "a worker died" not in first
    assert "took over" not in second


def submit_network(slurm: Slurm, output: Path, turns: str) -> str:
    """Submit turns of two processes each, since a node has two GPUs. Without `--device` they do not use them."""
    options = (f"--array={turns}", "--cpus-per-task=2", "--gpus-per-node=2")
    return slurm.submit(*options, "network.sh", *NETWORK, "--output", str(output))


def test_requeued_network_of_two_processes_resumes(slurm: Slurm, alone: tuple[Any, Any], tmp_path: Path) -> None:
    """SIGTERM comes twice to each process: from Slurm, and from torchrun."""
    job = submit_network(slurm, tmp_path, "1")
    wait_for(lambda: epochs(tmp_path))
    slurm.call("scontrol", "requeue", f"{job}_1")
    assert slurm.ended(job) == {"1": "COMPLETED"}
    assert_same_training(tmp_path, alone)
    log = slurm.log(job, 1)
    assert log.count("saved, and the same command resumes from there") == 1
    assert log.count("(2 processes with 1 thread each)") == 2


def test_next_turn_resumes_killed_network(slurm: Slurm, alone: tuple[Any, Any], tmp_path: Path) -> None:
    """After rank 0 is killed, the next turn resumes to the weights of an undisturbed run."""
    job = submit_network(slurm, tmp_path, "1-2%1")
    wait_for(lambda: epochs(tmp_path))
    rank_0 = holder(tmp_path)
    assert rank_0 is not None
    kill(rank_0.process)
    assert slurm.ended(job) == {"1": "FAILED", "2": "COMPLETED"}
    assert_same_training(tmp_path, alone)
    assert "its process is gone" in slurm.log(job, 2)
