"""Connect the processes that train one cell with torch.distributed, and check that they agree.

Each process is started with the environment variables of torchrun (RANK, WORLD_SIZE, MASTER_ADDR and so on), by
torchrun itself or by `reproduce.distributed.launch`. First, the processes compare their code and configuration. A rank
with another version of the code or another configuration would train a different model.

The processes form a mesh of R data-parallel replicas by P stage groups. Rank r·P + p has the p-th group of stages of
replica r. Rank 0 is the leader.

Messages between processes are JSON, or tensors that are read without running code. A pickle from a foreign program that
reached a port first would run code as this user. The processes of `reproduce.distributed.launch` prove to each other
that they know the secret in its private folder before they read anything else. Under torchrun there is no such folder
(docs/processes.md).

Decisions and small objects (stop, save, assignment of stages, memory layout of messages) always use Gloo and the CPU.
With NCCL, each of them would wait for the GPU. Messages between stages and gradients between replicas use NCCL from GPU
to GPU. NCCL does not support two processes on one GPU or a process without a GPU. In these cases the messages go
through the CPU's memory over Gloo, and a notice is printed.

Gloo detects a dead peer immediately. With NCCL, torch's watchdog ends the process after the timeout. The default group
has only Gloo, because torch 2.15 connects a group with NCCL when it is made, which fails if two processes share a GPU.
All processes exchange their hosts and devices over it, and each makes the same decision from the same list. Only then
are groups with NCCL made, if it is used. NCCL has not been tested on a machine with several GPUs; the statements about
it are from torch's documentation and source.
"""

import hashlib
import hmac
import io
import json
import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from petra_core import checkpoint
from petra_core.distributed import ProcessChannel
from petra_core.distributed.groups import CPU, ChannelError
from petra_core.stages import Stage
from reproduce.cells import own
from reproduce.cells.kinds import TrainedCell
from reproduce.distributed.group import Group, UnsupportedError, stage_name
from reproduce.distributed.launch import launch_secret, rendezvous_store
from reproduce.distributed.partitioning import format_partition
from reproduce.distributed.replicas import Replicas
from reproduce.distributed.sharded import ShardedCheckpoint
from reproduce.records import provenance
from reproduce.records.record import Record
from reproduce.records.storage import explain_full_disk

LARGEST_MESSAGE = 64 << 20  # maximum bytes of a JSON message
WAIT = 2  # the leader's announcement that there is no decision yet; 0 and 1 are decisions
DECIDE_EVERY = 16  # micro-batches between two points at which a run can be stopped or saved


def join(cell: TrainedCell, shares: tuple[int, ...], device: torch.device, timeout: timedelta) -> "DistributedGroup":
    """Initialise the process group and compare the processes.

    Args:
        cell: Cell to train.
        shares: Number of stages of each process of a replica.
        device: Device of this process.
        timeout: Timeout for messages from another process.

    Raises:
        UnsupportedError: If the processes differ in code or configuration.
        ChannelError: If a process is missing or does not respond.

    """
    store = rendezvous_store()
    here = store is not None or os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost")
    for interface in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if here else ():
        os.environ.setdefault(interface, "lo")  # accept no connections from other machines
    # With -1, torch reads the environment variables itself.
    rank, size = (-1 if store is None else int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    try:
        dist.init_process_group("gloo", timeout=timeout, store=store, rank=rank, world_size=size)
    except RuntimeError as error:
        raise ChannelError(
            f"the processes of the run did not all connect: one of them has died, or has not responded for "
            f"{timeout.total_seconds():g} s ({error})"
        ) from error
    check_secret()
    code, patch = provenance.code()
    mine = {
        "cell": cell.canonical,
        "partition": format_partition(shares),
        "torch": torch.__version__,
        "commit": code.get("commit"),
        "difference to the commit": hashlib.sha256(patch).hexdigest()[:12],
    }
    if own.is_own(cell.model):
        mine["file of the network"] = own.source(cell.model)["sha256"][:12]
    if device.type == "cpu":  # where the number of threads changes results in the last bits
        mine["threads"] = torch.get_num_threads()
    everybody = gather_json([mine, [socket.gethostname(), _name(device)], dist.is_nccl_available()])
    first = everybody[0][0]
    for rank, (theirs, _, _) in enumerate(everybody):
        differing = [name for name in theirs if name in first and theirs[name] != first[name]]
        if differing:
            differences = "; ".join(f"{name} {theirs[name]!r}, rank 0 has {first[name]!r}" for name in differing)
            raise UnsupportedError(f"rank {rank} differs from rank 0, so nothing was trained: {differences}")
    nccl, notice = wiring(
        [(host, name) for _, (host, name), _ in everybody], all(available for *_, available in everybody)
    )
    return DistributedGroup(shares, device, nccl, notice, timeout)


def wiring(places: Sequence[tuple[str, str]], nccl_available: bool) -> tuple[bool, str]:
    """Choose between NCCL and Gloo for the messages between stages.

    Args:
        places: Host name and device (such as cpu or cuda:0) of each process.
        nccl_available: Whether torch was built with NCCL in every process.

    Returns:
        Whether to use NCCL, and a notice for the user that explains why it is not used on GPUs.

    """
    on_gpu = [place for place in places if place[1].startswith("cuda")]
    if not on_gpu:
        return False, ""
    through = "messages between them go through the CPU's memory, over Gloo"
    if len(on_gpu) < len(places):
        return False, f"{len(places) - len(on_gpu)} of {len(places)} processes have no GPU: {through}"
    (_, device), most = Counter(places).most_common(1)[0]
    if most > 1:
        return False, f"{most} processes share {device}, which NCCL does not support: {through}"
    return nccl_available, "" if nccl_available else f"this build of torch has no NCCL: {through}"


def check_secret() -> None:
    """Check that all processes know the secret of the launch, if there is one.

    Raises:
        ChannelError: If a process does not know it, because a foreign program has connected in its place.

    """
    if (secret := launch_secret()) is None:
        return

    def proof(rank: int) -> bytes:
        return hmac.digest(secret, f"rank {rank}".encode(), "sha256")

    mine = _tensor(proof(dist.get_rank()))
    proofs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(proofs, mine)
    for rank, theirs in enumerate(proofs):
        if not hmac.compare_digest(_bytes(theirs), proof(rank)):
            raise ChannelError(
                f"rank {rank} does not know the secret of this launch: another program on this machine has connected "
                f"in its place and was rejected"
            )


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def gather_json(value: Any) -> list[Any]:
    """Gather one JSON value from every process, ordered by rank.

    Raises:
        ChannelError: If a process sends something that is not JSON, or too many bytes.

    """
    data = _tensor(json.dumps(value).encode())
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(data)]))
    longest = max(map(int, sizes))
    if not all(0 < int(size) <= LARGEST_MESSAGE for size in sizes):
        raise ChannelError(f"a process announced {longest:,} bytes, expected at most {LARGEST_MESSAGE:,}")
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(data)] = data
    received = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(received, padded)
    try:
        return [json.loads(_bytes(part[: int(size)])) for part, size in zip(received, sizes, strict=True)]
    except ValueError as error:
        raise ChannelError(f"a process sent a message that is not JSON ({error})") from error


def _name(device: torch.device) -> str:
    """Return a unique name of a device. For a GPU it contains the UUID, because every process may see only `cuda:0`."""
    if device.type != "cuda":
        return str(device)
    return f"cuda {getattr(torch.cuda.get_device_properties(device), 'uuid', device)}"


class DistributedGroup(Group):
    """The P·R processes of torch.distributed's default group.

    Args:
        shares: Number of stages of each of the P processes of a replica.
        device: Device of this process.
        nccl: Whether messages use NCCL. Otherwise they use Gloo.
        notice: Notice for the user about the backend, or "".
        timeout: Timeout for messages from another process.

    """

    def __init__(
        self, shares: tuple[int, ...], device: torch.device, nccl: bool, notice: str, timeout: timedelta
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.name, self.notice = f"rank {self.rank}: ", notice
        self._shares, self._nccl, self._timeout = shares, nccl, timeout
        self._wire = device if nccl else CPU
        share = self.rank % len(shares)
        self._row = range(self.rank - share, self.rank - share + len(shares))  # ranks of this replica
        column = range(share, self.size, len(shares))
        self.replicas = Replicas(column, comm_device=self._wire, timeout=timeout)
        self._channel: ProcessChannel | None = None
        self.heads, self.first_replica = slice(len(shares) - 1, None, len(shares)), slice(len(shares))

    @property
    def environment(self) -> dict[str, Any]:
        return {"processes": self.size, "partition": list(self._shares), "backend": "nccl" if self._nccl else "gloo"}

    def announce(self, *, go: bool | None) -> None:
        dist.broadcast(torch.tensor([WAIT if go is None else int(go)]), src=0)

    def wait_for_leader(self) -> bool:
        go = torch.tensor([WAIT])
        while int(go) == WAIT:
            dist.broadcast(go, src=0)
        return bool(go)

    def place(self, stages: Sequence[Stage], device: torch.device) -> tuple[list[Stage], ProcessChannel | None]:
        if len(self._shares) == 1:
            return [stage.to(device) for stage in stages], None
        self._channel = ProcessChannel(self._shares, ranks=self._row, comm_device=self._wire, timeout=self._timeout)
        own_stages = self._channel.stages
        return [s.to(device) if j in own_stages else s.to("meta") for j, s in enumerate(stages)], self._channel

    gather = staticmethod(gather_json)

    def decide(self, micro_batch: int, *, stop: bool, save: bool) -> tuple[bool, bool]:
        if micro_batch % DECIDE_EVERY:  # processes synchronise only at multiples
            return False, False
        decision = torch.tensor([stop, save], dtype=torch.uint8)
        try:
            dist.broadcast(decision, src=0)
        except RuntimeError as error:
            stages = "all stages" if self._channel is None else f"stages {list(self._channel.stages)}"
            raise ChannelError(
                f"{stages} on rank {self.rank} lost another process after micro-batch {micro_batch}, waiting for rank "
                f"0 to decide: it has died, or has not responded for {self._timeout.total_seconds():g} s ({error})"
            ) from error
        return bool(decision[0]), bool(decision[1])

    def save(self, record: Record, number: int, common: Mapping[str, Any], workers: Sequence[Any]) -> None:
        parts = {
            stage_name(index, self.replicas.index): state for index, state in enumerate(workers) if state is not None
        }
        if self.is_leader:
            parts["common"] = {**common, "stages": len(workers)}
        with explain_full_disk(f"to write {record.shards}"):
            ShardedCheckpoint(record.shards).save(number, parts, self.gather)
        if self.is_leader:
            record.checkpoint.unlink(missing_ok=True)  # exists if a single process began the run

    def gather_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        first = self.replicas.index == 0
        stream = io.BytesIO()
        torch.save(dict(state) if first else {}, stream)
        mine = _tensor(stream.getvalue())
        sizes = gather_json(len(mine))
        if not self.is_leader:
            dist.send(mine, dst=0)
            return {}
        gathered = dict(state) if first else {}
        for rank in range(1, self.size):  # one rank at a time, so that rank 0 holds only one of them twice
            received = torch.empty(sizes[rank], dtype=torch.uint8)
            dist.recv(received, src=rank)
            gathered |= checkpoint.load(io.BytesIO(_bytes(received)), f"the state of rank {rank}")
        return gathered

    @staticmethod
    def describe_loss(error: Exception) -> str:
        if isinstance(error, ChannelError):
            return str(error)
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower()):
            return f"lost another process during a collective, at the start or between micro-batches ({error})"
        return ""

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        dist.destroy_process_group()
