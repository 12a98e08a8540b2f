"""Several processes that train one cell: how they find each other, agree, and fail together.

Each is started with the environment that torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR and so on), by torchrun itself or
by `reproduce.teams.launch`. The first thing they do is to compare what they are about to do: a rank with another
version of the code or another configuration would train something that nobody asked for.

They form a mesh of R replicas (data parallelism) by P stage groups: rank r·P + p has the p-th share of the stages of
replica r. Rank 0 leads.

What processes tell each other is bytes of JSON, or tensors read without running code: a pickle from whoever reached a
port first would run as this user. Processes of `reproduce.teams.launch` prove to each other that they know the secret
in its private folder before anything else is read. Under torchrun there is no such folder (docs/processes.md).

Decisions and small objects (stop, save, who has which stages, how messages lie in memory) always go over Gloo and the
CPU: with NCCL each would wait for the GPU. Messages between stages, and gradients between replicas, go from GPU to GPU
over NCCL. That refuses two processes on one GPU, and a process without one; then they go through the CPU's memory, over
Gloo, and a line says so. A peer that dies is noticed by Gloo at once, by NCCL through torch's watchdog, which ends this
process when its patience is over. So a CUDA process joins with both (`cpu:gloo,cuda:nccl`; torch makes NCCL's
communicators only when they are used), all tell each other where they are, and each decides from the same list. (No
machine with several GPUs has run this: what is written here of NCCL is from torch's documentation.)
"""

import hashlib
import hmac
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
from petra_core.distributed.groups import CPU, ChannelError, backend
from petra_core.distributed.replicas import Replicas
from petra_core.distributed.sharded import Folder
from petra_core.stages import Stage
from reproduce.cells.kinds import TrainedCell
from reproduce.records import provenance
from reproduce.records.record import Record
from reproduce.records.storage import explain_full_disk
from reproduce.teams.launch import launch_secret, meeting_place
from reproduce.teams.partitioning import written
from reproduce.teams.team import Team, UnsupportedError, stage_name

LARGEST_MESSAGE = 64 << 20  # bytes of what a process tells the others, tensors apart
WAIT = 2  # beside 0 and 1, what the leader announces while there is nothing to announce
DECIDE_EVERY = 16  # micro-batches between two moments at which a run can be stopped or saved


def join(cell: TrainedCell, shares: tuple[int, ...], device: torch.device, patience: timedelta) -> "Processes":
    """Meet the other processes, each silent for so long at most.

    Raises:
        UnsupportedError: the processes differ in what they are about to do.
        ChannelError: they did not meet.

    """
    store = meeting_place()
    here = store is not None or os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost")
    if here and "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # nothing is to be reached from outside
    nccl_available = dist.is_nccl_available()
    rank, size = (-1 if store is None else int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))  # -1: torch looks
    try:
        dist.init_process_group(
            backend(device if nccl_available else CPU), timeout=patience, store=store, rank=rank, world_size=size
        )
    except RuntimeError as error:
        raise ChannelError(
            f"the processes of the run did not all meet: one of them has died, or has been silent for "
            f"{patience.total_seconds():g} s ({error})"
        ) from error
    check_secret()
    code, patch = provenance.code()
    mine = {
        "cell": cell.canonical,
        "partition": written(shares),
        "torch": torch.__version__,
        "commit": code.get("commit"),
        "difference to the commit": hashlib.sha256(provenance.patch_bytes(patch)).hexdigest()[:12],
    }
    if device.type == "cpu":  # where another number of threads gives other bits
        mine["threads"] = torch.get_num_threads()
    everybody = _everybodys([mine, [socket.gethostname(), _name(device)], nccl_available])
    first = everybody[0][0]
    for rank, (theirs, _, _) in enumerate(everybody):
        differing = [name for name in theirs if name in first and theirs[name] != first[name]]
        if differing:
            differences = "; ".join(f"{name} {theirs[name]!r}, rank 0 has {first[name]!r}" for name in differing)
            raise UnsupportedError(f"rank {rank} differs from rank 0 and so nothing was trained: {differences}")
    nccl, notice = wiring(
        [(host, name) for _, (host, name), _ in everybody], all(available for *_, available in everybody)
    )
    return Processes(shares, device, nccl, notice, patience)


def wiring(places: Sequence[tuple[str, str]], nccl_available: bool) -> tuple[bool, str]:
    """Whether messages go over NCCL, if every torch was built with it, and what a person should know of it.

    `places` are of each process the machine's name and the device there, such as cpu or cuda:0.
    """
    on_gpu = [place for place in places if place[1].startswith("cuda")]
    if not on_gpu:
        return False, ""
    through = "messages between them go through the CPU's memory, over Gloo"
    if len(on_gpu) < len(places):
        return False, f"{len(places) - len(on_gpu)} of {len(places)} processes have no GPU: {through}"
    (_, device), most = Counter(places).most_common(1)[0]
    if most > 1:
        return False, f"{most} processes share {device}, which NCCL refuses: {through}"
    return nccl_available, "" if nccl_available else f"this build of torch has no NCCL: {through}"


def check_secret() -> None:
    """See that all processes know the secret of the launch, if there is one.

    Raises: ChannelError: one does not: somebody else has taken its place.
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
                f"rank {rank} does not know the secret of this launch: another program of this machine has connected "
                f"in its place, and was refused"
            )


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.numpy().tobytes()


def _everybodys(value: Any) -> list[Any]:
    """The JSON value of every process, by rank. Raises: ChannelError: what came is no such value."""
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
        raise ChannelError(f"a process sent what is not JSON ({error})") from error


def _name(device: torch.device) -> str:
    """Name of a device: `cpu`, or that of the GPU itself, since to processes that see one each all are cuda:0."""
    if device.type != "cuda":
        return str(device)
    return f"cuda {getattr(torch.cuda.get_device_properties(device), 'uuid', device)}"


def loss(error: Exception) -> str:
    """The message of an error that means that another process is gone; empty for any other error."""
    if isinstance(error, ChannelError):
        return str(error)
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error).lower()):
        return f"lost another process as all met, at the start or between micro-batches ({error})"
    return ""


class Processes(Team):
    """The processes of torch.distributed's default group; there are P·R of them.

    `nccl` is whether messages go over NCCL, otherwise over Gloo; `notice` what a person should know of that; `patience`
    how long another process may be silent.
    """

    def __init__(
        self, shares: tuple[int, ...], device: torch.device, nccl: bool, notice: str, patience: timedelta
    ) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.name, self.notice = f"rank {self.rank}: ", notice
        self._shares, self._nccl, self._patience = shares, nccl, patience
        self._wire = device if nccl else CPU
        share = self.rank % len(shares)
        self._row = range(self.rank - share, self.rank - share + len(shares))  # of this replica
        column = range(share, self.size, len(shares))
        self.replicas = Replicas(column, wire=self._wire, patience=patience)
        self._channel: ProcessChannel | None = None
        self.head = self.replicas.index

    @property
    def environment(self) -> dict[str, Any]:
        return {
            "processes": self.size,
            "partition": list(self._shares),
            "backend": "nccl" if self._nccl else "gloo",
        }

    def tell(self, *, go: bool | None) -> None:
        dist.broadcast(torch.tensor([WAIT if go is None else int(go)]), src=0)

    def hear(self) -> bool:
        go = torch.tensor([WAIT])
        while int(go) == WAIT:
            dist.broadcast(go, src=0)
        return bool(go)

    def place(self, stages: Sequence[Stage], device: torch.device) -> tuple[list[Stage], ProcessChannel | None]:
        if len(self._shares) == 1:
            return [stage.to(device) for stage in stages], None
        self._channel = ProcessChannel(self._shares, ranks=self._row, wire=self._wire, patience=self._patience)
        own_stages = self._channel.stages
        return [s.to(device) if j in own_stages else s.to("meta") for j, s in enumerate(stages)], self._channel

    def from_heads(self, values: Tensor) -> Tensor:
        everybody = [torch.empty_like(values, device="cpu") for _ in range(self.size)]
        dist.all_gather(everybody, values.cpu())
        return torch.stack(everybody[len(self._shares) - 1 :: len(self._shares)]).to(values.device)

    def rows(self, own_rows: Sequence[Any]) -> list[Any]:
        everybody = _everybodys(list(own_rows))
        return [row for rows in everybody[: len(self._shares)] for row in rows]

    def decide(self, micro_batch: int, *, stop: bool, save: bool) -> tuple[bool, bool]:
        if micro_batch % DECIDE_EVERY:  # in between nobody asks; at these all are at the same micro-batch
            return False, False
        decision = torch.tensor([stop, save], dtype=torch.uint8)
        try:
            dist.broadcast(decision, src=0)
        except RuntimeError as error:
            stages = "all stages" if self._channel is None else f"stages {list(self._channel.stages)}"
            raise ChannelError(
                f"{stages} on rank {self.rank} lost another process after micro-batch {micro_batch}, as all asked rank "
                f"0 whether to stop: it has died, or has been silent for {self._patience.total_seconds():g} s ({error})"
            ) from error
        return bool(decision[0]), bool(decision[1])

    def save(self, record: Record, number: int, common: Mapping[str, Any], workers: Sequence[Any]) -> None:
        parts = {
            stage_name(index, self.replicas.index): state for index, state in enumerate(workers) if state is not None
        }
        if self.leads:
            parts["common"] = {**common, "stages": len(workers)}
        with explain_full_disk(f"to write {record.shards}"):
            Folder(record.shards).save(number, parts)
        if self.leads:
            record.checkpoint.unlink(missing_ok=True)  # of one process that began it

    def compare(self, position: str) -> None:
        everybody = _everybodys(position)
        for rank, other in enumerate(everybody):
            if other != everybody[0]:
                raise UnsupportedError(
                    f"rank {rank} would go on from {other}, rank 0 from {everybody[0]}: the folder of the run must be "
                    f"on a file system that all processes see"
                )

    def gather(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        first = self.replicas.index == 0
        mine = _tensor(checkpoint.encode(dict(state) if first else {}))
        sizes = _everybodys(len(mine))
        if not self.leads:
            dist.send(mine, dst=0)
            return {}
        gathered = dict(state) if first else {}
        for rank in range(1, self.size):  # one after the other: rank 0 holds one of them twice
            received = torch.empty(sizes[rank], dtype=torch.uint8)
            dist.recv(received, src=rank)
            gathered |= checkpoint.decode(_bytes(received), f"the state of rank {rank}")
        return gathered

    def lost(self, error: Exception) -> str:
        return loss(error)

    def leave(self) -> None:
        if self._channel is not None:
            self._channel.close()
        dist.destroy_process_group()
