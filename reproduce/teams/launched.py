"""What the launcher of several processes told this one by its environment: torchrun, or `reproduce.teams.launch`."""

import os

from reproduce.cells.kinds import CellError


def in_a_team() -> bool:
    """Whether this process is one of several."""
    return team_size() > 1


def _number(name: str) -> int:
    """The number in an environment variable, 1 without it. Raises: CellError: it is none, or there is no RANK."""
    text = os.environ.get(name, "1")
    fix = "unset it, unless torchrun or another launcher of several processes has set it"
    if not (text.isascii() and text.isdigit() and int(text)):
        raise CellError(f"the environment variable {name} is {text!r}, expected a number of at least 1: {fix}")
    if int(text) > 1 and "RANK" not in os.environ:
        raise CellError(f"the environment variable {name} is {text}, and there is no RANK: {fix}")
    return int(text)


def team_size() -> int:
    """The number of processes of the run."""
    return _number("WORLD_SIZE")


def processes_of_replica(processes: int, replicas: int) -> int:
    """P, the processes that share the stages of one of R replicas, in a process that is one of P·R.

    As asked for; 1 leaves it to those who started the processes, such as torchrun.

    Raises: CellError: as many processes as there are cannot be P·R.
    """
    size = team_size()
    if size % replicas or (processes > 1 and processes * replicas != size):
        raise CellError(
            f"{size} processes were started, which is not --processes {processes} times --replicas {replicas}; start "
            f"{processes * replicas}, or another multiple of {replicas} without --processes"
        )
    return size // replicas


def local_team_size() -> int:
    """The number of processes of the run on this machine."""
    return _number("LOCAL_WORLD_SIZE")


def local_device(name: str) -> str:
    """The device of that name for this process: of `cuda` the GPU of its number on this machine, or one it shares."""
    if name != "cuda" or not in_a_team():
        return name
    import torch

    if not torch.cuda.is_available():
        return name
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
