"""How the stages of one cell are shared among processes, as the command line says it.

This module exports launched, local_device, local_team_size, processes_of_replica, sizes, team_size.
"""

import os

import torch

from petra_core.shares import even_partition, owned
from reproduce import networks
from reproduce.cells import CellError, TrainedCell
from reproduce.data import catalogue

__all__ = ["launched", "local_device", "local_team_size", "processes_of_replica", "sizes", "team_size"]


def launched() -> bool:
    """Whether this process is one of several, by the environment that torchrun or `reproduce.launch` gave it."""
    return team_size() > 1


def team_size() -> int:
    """The number of processes of the run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def processes_of_replica(processes: int, replicas: int) -> int:
    """P, the processes that share the stages of one replica, in a process that is one of P·R.

    Args:
        processes: P as asked for; 1 leaves it to those who started the processes, such as torchrun.
        replicas: R.

    Raises:
        CellError: as many processes as there are cannot be P·R.

    """
    size = team_size()
    if size % replicas or (processes > 1 and processes * replicas != size):
        raise CellError(
            f"{size} processes were started, which is not --processes {processes} times --replicas {replicas}; start "
            f"{processes * replicas}, or another multiple of {replicas} without --processes"
        )
    return size // replicas


def local_team_size() -> int:
    """The number of them on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def local_device(name: str) -> str:
    """`cuda` alone means the GPU of this process: the one of its number on this machine, or one it shares."""
    if name != "cuda" or not launched() or not torch.cuda.is_available():
        return name
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"


def sizes(cell: TrainedCell, partition: str, processes: int) -> tuple[int, ...]:
    """The number of stages of each process.

    Args:
        cell: whose network it is.
        partition: `even`, or the numbers, separated by commas. `balanced` has become numbers before processes start.
        processes: how many.

    Raises:
        CellError: the network cannot be shared like that.

    """
    with torch.device("meta"):
        count = len(networks.build(cell, catalogue.by_name(cell.dataset).num_classes))
    if partition == "even":
        try:
            return even_partition(count, processes)
        except ValueError as error:
            raise CellError(f"{cell.model} has {count} stages: {error}") from None
    if partition == "balanced":
        raise CellError(
            "--partition balanced is found by timing the stages before processes start, which --processes does; with "
            "torchrun, give the numbers that `python -m reproduce partition` prints"
        )
    try:
        found = tuple(int(size) for size in partition.split(","))
    except ValueError:
        raise CellError(
            f"a partition is even, balanced, or numbers separated by commas such as 2,3,5; got {partition!r}"
        ) from None
    try:
        owned(found, processes, count)
    except ValueError as error:
        even = ",".join(map(str, even_partition(count, min(processes, count))))
        raise CellError(
            f"the partition {partition} does not share the {count} stages of {cell.model} among {processes} processes: "
            f"{error}; even would be {even}"
        ) from None
    return found
