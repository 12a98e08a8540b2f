"""Which devices a grid is run on: every worker has one of its own, or its share of one."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class DeviceError(ValueError):
    """There is no such device on this machine."""


def cuda_devices() -> int:
    """How many CUDA devices are visible."""
    import torch

    return torch.cuda.device_count()


def choose(names: Sequence[str]) -> tuple[str, ...]:
    """The devices of these names, such as `cpu` or `cuda:1`; `cuda` is every CUDA device that is visible.

    Raises: DeviceError: there is none of that name, or it is named twice.
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
        raise DeviceError(f"{', '.join(sorted(twice))} is named twice; --jobs gives a device several workers")
    return tuple(dict.fromkeys(chosen))


def check_there(name: str) -> None:
    """Raise DeviceError if there is no such device; to know that of the CPU nobody waits for torch."""
    match = re.fullmatch(r"cpu|cuda(?::(0|[1-9]\d*))?", name)
    if match is None:
        raise DeviceError(f"there is no device {name!r}: cpu, or cuda:0 and the like")
    if name != "cpu" and int(match[1] or 0) >= (available := cuda_devices()):
        raise DeviceError(f"there is no device {name!r}: this machine has {available} CUDA devices")


def take(name: str, sharing: int = 1) -> "torch.device":
    """The device of this name, from now on the current one of this process: what names no device lands there.

    Where several processes are `sharing` a CUDA device, this one can take so great a part of the memory and no more:
    what does not fit in it runs out of memory, and leaves the others theirs. Raises: DeviceError: there is no such
    device.
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
    """How many of so many workers have the GPU of worker `number`, itself included; on the CPU each is as if alone.

    Worker n has the n-th device, from the first again where there are more workers.
    """
    place = number % len(names)
    return 1 if names[place] == "cpu" else len(range(place, jobs, len(names)))


def check_graphs(streams: int | str, names: Sequence[str]) -> None:
    """See that CUDA graphs are asked for on CUDA devices alone. Raises: DeviceError: they are not."""
    others = sorted({name for name in names if not name.startswith("cuda")})
    if streams and others:
        raise DeviceError(f"--cuda-graphs {streams} is for CUDA devices, and this is {others[0]}: leave it out")


def workers(devices: Sequence[str], jobs: int | None, threads: int, cores: int) -> int:
    """How many worker processes: as told, else one a GPU, or on the CPU as many as its cores have room for."""
    if jobs is not None:
        return jobs
    return max(1, cores // threads) if tuple(devices) == ("cpu",) else len(devices)
