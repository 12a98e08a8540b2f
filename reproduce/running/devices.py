"""Choose the devices of a grid. Each worker has a separate device, or an equal share of one."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class DeviceError(ValueError):
    """A device does not exist on this machine, or cannot be used as requested."""


def cuda_devices() -> int:
    """Return the number of visible CUDA devices."""
    import torch

    return torch.cuda.device_count()


def choose(names: Sequence[str]) -> tuple[str, ...]:
    """Resolve names such as `cpu` or `cuda:1`. The name `cuda` stands for all visible CUDA devices.

    Raises:
        DeviceError: If a device does not exist or a CUDA device is named twice.

    """
    for name in names:
        check_there(name)
    chosen = [
        device
        for name in names
        for device in (map("cuda:{}".format, range(cuda_devices())) if name == "cuda" else [name])
    ]
    twice = {name for name in chosen if chosen.count(name) > 1 and name != "cpu"}
    if twice:
        raise DeviceError(f"{', '.join(sorted(twice))} is named twice; use --jobs for several workers per device")
    return tuple(dict.fromkeys(chosen))


def check_there(name: str) -> None:
    """Raise DeviceError if there is no such device. Torch is imported only to check CUDA devices."""
    match = re.fullmatch(r"cpu|cuda(?::(0|[1-9]\d*))?", name)
    if match is None:
        raise DeviceError(f"there is no device {name!r}: expected cpu, cuda, or a name such as cuda:0")
    if name != "cpu" and int(match[1] or 0) >= (available := cuda_devices()):
        raise DeviceError(f"there is no device {name!r}: this machine has {available} CUDA devices")


def take(name: str, sharing: int = 1) -> "torch.device":
    """Make a device the current one of this process and return it.

    Args:
        name: Name of the device.
        sharing: Number of processes that share a CUDA device. The memory of this process is limited to its share, so
            that a process that needs more runs out of memory without affecting the others.

    Raises:
        DeviceError: If there is no such device.

    """
    check_there(name)
    import torch

    device = torch.device("cuda", 0) if name == "cuda" else torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if sharing > 1:
            torch.cuda.set_per_process_memory_fraction(1 / sharing, device)
    return device


def sharing(names: Sequence[str], jobs: int, number: int = 0) -> int:
    """Return how many workers use the GPU of worker `number`, including itself. On the CPU, return 1.

    Args:
        names: Devices, which are assigned to the workers round-robin.
        jobs: Number of workers.
        number: Number of the worker.

    """
    place = number % len(names)
    return 1 if names[place] == "cpu" else len(range(place, jobs, len(names)))


def check_cuda(streams: int | str, precision: str, names: Sequence[str]) -> None:
    """Check that CUDA graphs and the precision tf32 are only requested on CUDA devices.

    Raises:
        DeviceError: If they are requested on another device.

    """
    others = sorted({name for name in names if not name.startswith("cuda")})
    for option, value in (("--cuda-graphs", streams), ("--precision", precision == "tf32" and precision)):
        if value and others:
            raise DeviceError(f"{option} {value} needs a CUDA device, got {others[0]}: leave it out")


def workers(devices: Sequence[str], jobs: int, threads: int, cores: int) -> int:
    """Return the number of worker processes: `jobs` if given, else one per GPU, or `cores // threads` on the CPU."""
    if jobs:
        return jobs
    return max(1, cores // threads) if tuple(devices) == ("cpu",) else len(devices)
