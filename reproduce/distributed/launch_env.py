"""Read the environment variables that a launcher sets (torchrun or `reproduce.distributed.launch`)."""

import os

from reproduce.cells.kinds import CellError


def is_distributed() -> bool:
    """Return whether this process is one of several."""
    return world_size() > 1


def _number(name: str, least: int) -> int:
    """Return the number in an environment variable, or `least` if it is not set.

    Raises:
        CellError: If it is not a number of at least `least`, or if it is above 1 and RANK is not set.

    """
    text = os.environ.get(name, str(least))
    fix = "unset it, unless torchrun or another launcher of several processes has set it"
    if not (text.isascii() and text.isdigit() and int(text) >= least):
        raise CellError(f"the environment variable {name} is {text!r}, expected a number of at least {least}: {fix}")
    if int(text) > 1 and "RANK" not in os.environ:
        raise CellError(f"the environment variable {name} is {text}, but RANK is not set: {fix}")
    return int(text)


def world_size() -> int:
    """Return the number of processes of the run."""
    return _number("WORLD_SIZE", 1)


def processes_of_replica(processes: int, replicas: int) -> int:
    """Return P, the number of processes that share the stages of one replica. The run has P·R processes.

    Args:
        processes: Requested P. With 1, P follows from the number of processes that were started, by torchrun for
            example.
        replicas: Number of replicas, R.

    Raises:
        CellError: If the number of processes is not P·R.

    """
    size = world_size()
    if size % replicas or (processes > 1 and processes * replicas != size):
        raise CellError(
            f"{size} processes were started, which is not --processes {processes} times --replicas {replicas}; start "
            f"{processes * replicas}, or another multiple of {replicas} without --processes"
        )
    return size // replicas


def local_world_size() -> int:
    """Return the number of processes of the run on this machine."""
    return _number("LOCAL_WORLD_SIZE", 1)


def local_device(name: str) -> str:
    """Return the device of this process. Several processes with the name `cuda` get the GPUs in turn by local rank."""
    if name != "cuda" or not is_distributed():
        return name
    import torch

    if not torch.cuda.is_available():
        return name
    return f"cuda:{_number('LOCAL_RANK', 0) % torch.cuda.device_count()}"
