"""Several processes that train one cell: how they find each other, agree, and fail together.

Each is started with the environment that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR and so on), by torchrun itself or
by `reproduce.launch`. The first thing they do is to compare what they are about to do: a rank with another version of
the code or another configuration would train something that nobody asked for.

This module exports Processes, join.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core.distributed import ChannelError, ProcessChannel
from petra_core.sharded import Folder
from petra_core.stages import Stage
from reproduce import provenance
from reproduce.cells import Cell
from reproduce.execution import UnsupportedError
from reproduce.records import Record
from reproduce.storage import explain_full_disk
from reproduce.team import Team, stage_name

__all__ = ["Processes", "join"]

PATIENCE = timedelta(minutes=5)  # without a message from a neighbour: it hangs
DECIDE_EVERY = 16  # micro-batches between two moments at which a run can be stopped or saved


def join(cell: Cell, partition: Sequence[int], device: torch.device) -> "Processes":
    """Meet the other processes.

    Args:
        cell: what is to be trained.
        partition: stages of each process.
        device: of this process.

    Raises:
        UnsupportedError: the processes differ in what they are about to do.

    """
    if "GLOO_SOCKET_IFNAME" not in os.environ and os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # nothing is to be reached from outside
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    mine = {"cell": cell.canonical, "partition": tuple(partition), **_versions()}
    everybody: list[dict[str, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    for rank, theirs in enumerate(everybody):
        differing = [name for name in mine if theirs[name] != everybody[0][name]]
        if differing:
            words = "; ".join(f"{name} {theirs[name]!r}, rank 0 has {everybody[0][name]!r}" for name in differing)
            raise UnsupportedError(f"rank {rank} differs from rank 0 and so nothing was trained: {words}")
    return Processes(partition)


def _versions() -> dict[str, Any]:
    code, patch = provenance.code()
    return {"torch": torch.__version__, "commit": code.get("commit"), "difference to the commit": _hash(patch)}


def _hash(text: str) -> str:
    """Short, for comparing."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Processes(Team):
    """The processes of torch.distributed's default group.

    Args:
        partition: stages of each.

    """

    def __init__(self, partition: Sequence[int]) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.leads = self.rank == 0
        self._partition = tuple(partition)
        self._channel: ProcessChannel | None = None

    @property
    def environment(self) -> dict[str, Any]:
        """The number of processes, and who has which stages."""
        return {"processes": self.size, "partition": list(self._partition), "backend": dist.get_backend()}

    def tell(self, *, go: bool) -> None:
        """By a broadcast."""
        dist.broadcast_object_list([go], src=0)

    def hear(self) -> bool:
        """By the same."""
        go: list[Any] = [None]
        dist.broadcast_object_list(go, src=0)
        return bool(go[0])

    def place(self, stages: Sequence[Stage], device: torch.device) -> tuple[list[Stage], ProcessChannel]:
        """The own stages on the device, the others on meta."""
        self._channel = ProcessChannel(self._partition, device)
        own = self._channel.stages
        return [s.to(device) if j in own else s.to("meta") for j, s in enumerate(stages)], self._channel

    def from_head(self, value: Tensor) -> Tensor:
        """By a broadcast of the last process."""
        dist.broadcast(value, src=self.size - 1)
        return value

    def rows(self, own: Sequence[Any]) -> list[Any]:
        """Everybody's, put together."""
        everybody: list[Any] = [None] * self.size
        dist.all_gather_object(everybody, list(own))
        return [row for theirs in everybody for row in theirs]

    def decide(self, micro_batch: int, *, stop: bool, save: bool) -> tuple[bool, bool]:
        """What the leader says, now and then: all are at the same micro-batch then, whatever the clocks say."""
        if micro_batch % DECIDE_EVERY:
            return False, False
        decision = torch.tensor([stop, save], dtype=torch.uint8)
        dist.broadcast(decision, src=0)
        return bool(decision[0]), bool(decision[1])

    def save(self, record: Record, number: int, common: Mapping[str, Any], workers: Sequence[Any]) -> None:
        """Each its own stages, the leader what is common."""
        parts = {stage_name(index): state for index, state in enumerate(workers) if state is not None}
        if self.leads:
            parts["common"] = {**common, "stages": len(workers)}
        with explain_full_disk(f"to write {record.shards}"):
            Folder(record.shards).save(number, parts)
        if self.leads:
            record.checkpoint.unlink(missing_ok=True)  # of one process that began it

    def gather(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """On the leader all, elsewhere nothing."""
        everybody: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(dict(state), everybody)
        return {name: tensor for theirs in everybody or [] for name, tensor in theirs.items()}

    @property
    def name(self) -> str:
        """The rank."""
        return f"rank {self.rank}: "

    def lost(self, error: RuntimeError) -> bool:
        """A message did not come, or torch.distributed says so of a collective call."""
        return isinstance(error, ChannelError | dist.DistError) or "gloo" in str(error).lower()

    def leave(self) -> None:
        """Wait for what is on its way, then part."""
        if self._channel is not None:
            self._channel.close()
        dist.destroy_process_group()
