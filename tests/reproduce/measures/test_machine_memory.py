"""Test reading the system's memory reports from its files. A system without reports is not an error."""

import os
from pathlib import Path

import pytest
import torch

from benchmarks.allocation import in_fresh_process
from reproduce.measures import machine_memory
from reproduce.measures.machine_memory import Witness, available
from tests.fake_cuda import FakeAllocator

CPU = torch.device("cpu")
MIB = 2**20


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a system that reports nothing yet."""
    monkeypatch.setattr(machine_memory, "PROC", tmp_path)
    monkeypatch.setattr(machine_memory, "CGROUP", tmp_path)
    return tmp_path


def test_memory_reports_follow_system_and_container_files(system: Path) -> None:
    """Free memory and growth are read from the files of the system, the container and the job."""
    assert available(CPU) is None
    assert Witness(CPU).report() is None
    (system / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    5000 kB\n")
    assert available(CPU) == 5000 * 1024
    (system / "memory.max").write_text("4096000\n")
    (system / "memory.current").write_text("1096000\n")
    assert available(CPU) == 3_000_000
    (system / "memory.max").write_text("max\n")
    assert available(CPU) == 5000 * 1024
    job = system / "slurm" / "job_7"
    (job / "step").mkdir(parents=True)
    (system / "self").mkdir()
    (system / "self" / "cgroup").write_text("0::/slurm/job_7/step\n")
    (job / "step" / "memory.max").write_text("max\n")
    (job / "memory.max").write_text("3000000\n")
    for group in (job, job / "step"):
        (group / "memory.current").write_text("1000000\n")
    assert available(CPU) == 2_000_000
    status = system / "self" / "status"
    status.write_text("VmHWM:  700 kB\nVmRSS:  500 kB\n")
    witness = Witness(CPU)
    assert (system / "self" / "clear_refs").read_text() == "5"
    status.write_text("VmHWM:  900 kB\nVmRSS:  600 kB\n")
    assert witness.report() == {"source": "resident set", "held": 100 * 1024, "peak": 400 * 1024}
    (system / "self" / "clear_refs").unlink()
    (system / "self" / "clear_refs").mkdir()
    assert Witness(CPU).report() is None  # the peak cannot be reset, so it would be an older one


@pytest.mark.parametrize("cublas", [0, 64 * MIB])
def test_cublas_workspaces_are_reported_separately(monkeypatch: pytest.MonkeyPatch, cublas: int) -> None:
    """The first cell of a process included cuBLAS's workspaces, and later cells did not."""
    device = FakeAllocator(monkeypatch, held=5 * MIB, cublas=cublas)
    witness = Witness(torch.device("cuda", 0))
    device.multiply(64 * MIB)
    device.take(device.held + 30 * MIB)
    device.take(device.held - 20 * MIB)
    expected = {"source": "CUDA allocator", "held": 10 * MIB, "peak": 30 * MIB, "workspaces": 64 * MIB}
    assert witness.report() == expected


def grow_and_shrink() -> int:
    """Return the number of this process."""
    witness = Witness(CPU)
    taken = bytearray(200 * MIB)
    taken[::4096] = bytes(len(taken[::4096]))  # touch every page
    del taken
    report = witness.report()
    assert report is not None
    assert report["peak"] > 190 * MIB
    assert report["held"] < 100 * MIB
    fresh = Witness(CPU).report()  # the previous peak is reset
    assert fresh is not None
    assert fresh["peak"] < 100 * MIB
    return os.getpid()


def test_real_process_is_seen_to_grow_and_shrink() -> None:
    """Use a separate process: the system may take or return memory that other tests have left in this one."""
    if Witness(CPU).report() is None:
        pytest.skip("this system does not tell a process how large it is")
    assert in_fresh_process(grow_and_shrink) != os.getpid()
