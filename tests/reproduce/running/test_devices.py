"""Devices: every GPU that is asked for gets a worker, on machines with any number of them."""

import pytest

from reproduce.running.devices import DeviceError, choose, take, workers
from reproduce.running.worker import Settings, device_of


@pytest.mark.parametrize(
    ("names", "there", "chosen"),
    [
        (["cpu"], 0, ("cpu",)),
        (["cuda"], 1, ("cuda:0",)),
        (["cuda"], 4, ("cuda:0", "cuda:1", "cuda:2", "cuda:3")),
        (["cuda:1"], 4, ("cuda:1",)),
        (["cuda:2", "cuda:0"], 4, ("cuda:2", "cuda:0")),
    ],
)
def test_choose(names, there, chosen):
    assert choose(names, lambda: there) == chosen


@pytest.mark.parametrize(
    ("names", "there", "message"),
    [
        (["cuda"], 0, "there is no device 'cuda': this machine has 0 CUDA devices"),
        (["cuda:0", "cuda:2"], 2, "there is no device 'cuda:2': this machine has 2 CUDA devices"),
        (["gpu"], 2, "there is no device 'gpu': cpu, or cuda:0 and the like"),
        (["cuda:0", "cuda:0"], 2, "cuda:0 is named twice; --jobs gives a device several workers"),
        (["cuda", "cuda:1"], 2, "cuda:1 is named twice"),
    ],
)
def test_devices_that_are_not_there(names, there, message):
    with pytest.raises(DeviceError, match=message):
        choose(names, lambda: there)


def test_a_device_that_is_taken_is_the_current_one(monkeypatch):
    """What names no device, the capture of a graph for one, would be on the first."""
    current = []
    monkeypatch.setattr("torch.cuda.set_device", lambda device: current.append(str(device)))
    assert [str(take(name, lambda: 2)) for name in ("cuda", "cuda:1", "cpu")] == ["cuda:0", "cuda:1", "cpu"]
    assert current == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("devices", "jobs", "threads", "count"),
    [
        (("cpu",), None, 1, 8),
        (("cpu",), None, 3, 2),
        (("cpu",), None, 16, 1),
        (("cpu",), 3, 1, 3),
        (("cuda:0",), None, 1, 1),
        (("cuda:0", "cuda:1"), None, 1, 2),
        (("cuda:0", "cuda:1"), 4, 1, 4),
    ],
)
def test_one_worker_a_gpu_or_as_many_as_fit_the_processor(devices, jobs, threads, count):
    assert workers(devices, jobs, threads, cores=8) == count


def test_workers_take_the_devices_in_turn(tmp_path):
    settings = Settings(tmp_path, jobs=3, devices=("cuda:0", "cuda:1"))
    assert [device_of(number, settings) for number in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
