"""Test devices: every requested GPU gets a worker, on machines with any number of GPUs."""

import pytest

from reproduce.running import devices
from reproduce.running.devices import DeviceError, choose, sharing, take, workers
from reproduce.running.grid_options import GridOptions


@pytest.mark.parametrize(
    ("names", "count", "chosen"),
    [
        (["cpu"], 0, ("cpu",)),
        (["cuda"], 4, ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        (["cuda:2", "cuda:0"], 4, ("cuda:2", "cuda:0")),
        (["cuda"], 0, "there is no device 'cuda': this machine has 0 CUDA devices"),
        (["cuda:0", "cuda:2"], 2, "there is no device 'cuda:2': this machine has 2 CUDA devices"),
        (["gpu"], 2, "there is no device 'gpu': expected cpu, cuda, or a name such as cuda:0"),
        (["cuda", "cuda:1"], 2, "cuda:1 is named twice; use --jobs for several workers per device"),
    ],
)
def test_devices_are_there_and_named_once(monkeypatch, names, count, chosen):
    monkeypatch.setattr(devices, "cuda_devices", lambda: count)
    if isinstance(chosen, tuple):
        assert choose(names) == chosen
    else:
        with pytest.raises(DeviceError, match=chosen):
            choose(names)


def test_one_worker_a_gpu_or_as_many_as_fit_the_processor():
    assert [workers(("cpu",), 0, threads, cores=8) for threads in (1, 3, 16)] == [8, 2, 1]
    assert [workers(("cuda:0", "cuda:1"), jobs, 1, cores=8) for jobs in (0, 4)] == [2, 4]


def test_a_device_that_is_taken_is_the_current_one(monkeypatch):
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


def test_workers_take_the_devices_in_turn_and_those_of_a_gpu_share_it(tmp_path):
    options = GridOptions(root=tmp_path, jobs=3, devices=("cuda:0", "cuda:1"))
    assert [options.device_of(number) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    for names, jobs, shares in (
        (["cuda:0"], 4, [4, 4, 4, 4]),
        (["cuda:0", "cuda:1"], 3, [2, 1, 2]),
        (["cuda:0", "cpu"], 4, [2, 1, 2, 1]),
        (["cpu"], 2, [1, 1]),
    ):
        assert [sharing(names, jobs, number) for number in range(jobs)] == shares


def test_the_processor_may_be_named_twice_and_is_a_device_like_others_beside_a_gpu():
    assert choose(["cpu", "cpu"]) == ("cpu",)
    assert workers(("cpu", "cuda:0"), 0, 1, cores=8) == 2
