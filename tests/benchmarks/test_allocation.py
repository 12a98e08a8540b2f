"""Test that all memory of tensors is counted, and that processes are fresh."""

import os
import weakref

import pytest
import torch

from benchmarks.allocation import Allocations, in_fresh_process, unless_out_of_memory
from tests.fake_cuda import FakeAllocator


def test_peak_and_marks_count_allocations_inside() -> None:
    """Peak and marks count only memory that was allocated inside the context, including resized storages."""
    before = torch.zeros(10_000)
    with Allocations(torch.device("cpu")) as allocations:
        kept = torch.zeros(1_000)
        allocations.mark()
        passing = kept + 1
        del before, passing
        allocations.mark()
        kept.resize_(3_000)  # as memcnn resizes storages
        allocations.mark()
    assert allocations.marks == [4_000, 4_000, 12_000]
    assert allocations.peak == 16_000, "the old storage is there until it is copied"


def test_backward_temporaries_count_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """The peak includes temporaries of a backward, and the profiler prints nothing."""
    with Allocations(torch.device("cpu")) as allocations:
        x = torch.ones(1_000, requires_grad=True)
        loss = x.exp().exp().sum()
        loss.backward()
        allocations.mark()
        del loss
    assert allocations.peak >= 3 * 4_000, "x and both results, at the least"
    assert allocations.marks[0] < allocations.peak
    assert capfd.readouterr() == ("", "")


def test_cublas_workspaces_are_counted_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workspaces of cuBLAS exceeded a budget of 64 MB, so no batch was found, and the goal of 5 % was missed."""
    device = FakeAllocator(monkeypatch, held=5_000, cublas=64_000)
    with Allocations(torch.device("cuda", 0)) as allocations:
        device.take(device.held + 700)
        device.multiply(64_000)
        device.take(device.held + 30)
    assert (allocations.peak, allocations.workspaces) == (730, 64_000)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()], ids=["cuda", "python"])
def test_out_of_memory_returns_none_and_frees_tensors(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """After an out-of-memory error, tensors are freed and None is returned; another error is raised."""
    held: list[weakref.ref[torch.Tensor]] = []
    given_back: list[bool] = []

    def call() -> None:
        tensor = torch.zeros(3)
        held.append(weakref.ref(tensor))
        raise type(error)(*error.args)

    monkeypatch.setattr("benchmarks.allocation.give_back", lambda device: given_back.append(held[0]() is None))
    assert unless_out_of_memory(call, torch.device("cpu")) is None
    assert given_back == [True]
    assert unless_out_of_memory(lambda: 3, torch.device("cpu")) == 3
    error = RuntimeError("a mistake")
    with pytest.raises(RuntimeError, match="a mistake"):
        unless_out_of_memory(call, torch.device("cpu"))


def fail() -> None:
    raise ChildProcessError(os.getpid())


def test_exception_of_fresh_process_is_raised() -> None:
    """The call runs in another process, whose exception is raised in the caller. `test_machine_memory` has a result."""
    with pytest.raises(ChildProcessError) as raised:
        in_fresh_process(fail)
    assert raised.value.args != (os.getpid(),)
