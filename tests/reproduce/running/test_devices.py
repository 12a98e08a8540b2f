"""Test devices: every requested GPU gets a worker, on machines with any number of GPUs."""

import pytest

from reproduce.running import devices
from reproduce.running.devices import DeviceError, choose, sharing, take, workers


@pytest.mark.parametrize(
    ("names", "count", "chosen"),
    [
        (["cpu", "cpu"], 0, ("cpu",)),
        (["cuda"], 4, ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        (["cuda:2", "cuda:0"], 4, ("cuda:2", "cuda:0")),
        (["cuda"], 0, "there is no device 'cuda': this machine has 0 CUDA devices"),
        (["cuda:0", "cuda:2"], 2, "there is no device 'cuda:2': this machine has 2 CUDA devices"),
        (["cuda", "cuda:1"], 2, "cuda:1 is named twice; use --jobs for several workers per device"),
    ],
)
def test_choose_validates_devices_and_duplicates(monkeypatch, names, count, chosen):
    """Devices must exist and be named once; `cuda` means all of them."""
    monkeypatch.setattr(devices, "cuda_devices", lambda: count)
    if isinstance(chosen, tuple):
        assert choose(names) == chosen
    else:
        with pytest.raises(DeviceError, match=chosen):
            choose(names)


def test_workers_default_to_one_per_gpu_or_cores_by_threads():
    """By default there is one worker per GPU, or as many CPU workers as fit the cores with their threads."""
    assert [workers(("cpu",), 0, threads, cores=8) for threads in (1, 3, 16)] == [8, 2, 1]
    assert [workers(("cuda:0", "cuda:1"), jobs, 1, cores=8) for jobs in (0, 4)] == [2, 4]
    assert workers(("cpu", "cuda:0"), 0, 1, cores=8) == 2, "the CPU counts as one device next to a GPU"


def test_taken_device_is_the_current_one(monkeypatch):
    """Otherwise code that names no device, such as the capture of a graph, would use the first one."""
    current, parts = [], []
    monkeypatch.setattr(devices, "cuda_devices", lambda: 2)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: current.append(str(device)))
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", lambda *given: parts.append(given))
    assert [str(take(name)) for name in ("cuda", "cuda:1", "cpu")] == ["cuda:0", "cuda:1", "cpu"]
    assert current == ["cuda:0", "cuda:1"]
    assert not parts, "a single process may use all memory"
    taken = [take(name, 4) for name in ("cpu", "cuda:1")]
    assert parts == [(0.25, taken[1])]


def test_workers_on_one_gpu_share_it():
    for names, jobs, shares in (
        (["cuda:0"], 4, [4, 4, 4, 4]),
        (["cuda:0", "cuda:1"], 3, [2, 1, 2]),
        (["cuda:0", "cpu"], 4, [2, 1, 2, 1]),
        (["cpu"], 2, [1, 1]),
    ):
        assert [sharing(names, jobs, number) for number in range(jobs)] == shares
