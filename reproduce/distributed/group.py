"""Define the interface between the trainer and the processes that train one cell together.

A trainer that checks everywhere whether it runs in one process becomes two trainers in one. Here the trainer only uses
a `Group`. A single process is a group of one, whose methods return their arguments unchanged. In a larger group, every
process runs the same trainer over the micro-batches of its replica, with its local stages. The first process is the
leader. Only the leader writes the record, and it decides for all processes when to stop and when to save, at the same
micro-batch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from petra_core import CheckpointError, checkpoint
from petra_core.messages import Channel
from petra_core.stages import Stage
from reproduce.distributed.replicas import Replicas
from reproduce.distributed.sharded import ShardedCheckpoint
from reproduce.records.record import Record
from reproduce.records.storage import explain_full_disk

SCHEMA = 1  # format of a checkpoint, stored in its `common`; the first checkpoints do not contain it


class UnsupportedError(Exception):
    """The cell cannot be run on this machine or with these options."""


class Group:
    """The processes of one run. This class is a single process.

    Attributes:
        rank: Number of this process.
        size: Number of processes.
        replicas: Processes with the same stages in the data-parallel replicas.
        heads: Processes that have a head, in the order of the replicas, among those of `gather`.
        first_replica: Processes of the first replica among those of `gather`.
        notice: Notice for the user, or "".
        name: Prefix of this process's messages, such as `rank 1: `, or "".

    """

    rank = 0
    size = 1
    replicas = Replicas()
    heads = first_replica = slice(None)
    notice = ""
    name = ""

    @property
    def is_leader(self) -> bool:
        """Return whether this process is the leader, which writes the record and decides."""
        return self.rank == 0

    @property
    def environment(self) -> dict[str, Any]:
        """Entries for a record's environment: the number of processes, their stages and the backend of messages."""
        return {}

    @staticmethod
    def describe_loss(error: Exception) -> str:
        """Return the message of an error that means that another process was lost, or "" for any other error."""
        del error
        return ""

    def close(self) -> None:
        """Close the connections to the other processes at the end of the work."""

    def announce(self, *, go: bool | None) -> None:
        """Announce as the leader whether there is anything to do. With None, the others continue to wait."""

    def wait_for_leader(self) -> bool:
        """Wait for the leader's announcement. Return whether there is anything to do. Not for the leader."""
        raise AssertionError("a single process is the leader")

    def place(self, stages: Sequence[Stage], device: torch.device) -> tuple[list[Stage], Channel | None]:
        """Move the local stages to `device` and all others to `meta`. Return the stages and the channel, if any."""
        return [stage.to(device) for stage in stages], None

    @staticmethod
    def gather(value: Any) -> list[Any]:
        """Gather one JSON value from every process, ordered by rank, on every process."""
        return [value]

    def gather_rows(self, own_rows: Sequence[Any]) -> list[Any]:
        """Gather one row per stage of the first replica, from every process's rows for its local stages."""
        return [row for rows in self.gather(list(own_rows))[self.first_replica] for row in rows]

    def decide(self, micro_batch: int, *, stop: bool, save: bool) -> tuple[bool, bool]:
        """Return the leader's decision whether to stop and whether to save after this micro-batch, on every process."""
        del micro_batch
        return stop, save

    def save(self, record: Record, number: int, common: Mapping[str, Any], workers: Sequence[Any]) -> None:
        """Write a checkpoint.

        Args:
            record: Record of the run.
            number: Number of the checkpoint.
            common: State that does not belong to a stage, used on the leader.
            workers: State of each stage, or None for the stages of other processes.

        Raises:
            StorageFullError: If the disk is full.

        """
        del number
        with explain_full_disk(f"to write {record.checkpoint}"):
            checkpoint.save(record.checkpoint, {**common, "workers": list(workers)})
        if record.shards.exists():  # if several processes began the run
            ShardedCheckpoint(record.shards).remove()

    def check_same_files(self, files: Mapping[str, str]) -> None:
        """Check that all processes train on the same files.

        Args:
            files: SHA-256 of each file, by name.

        Raises:
            UnsupportedError: If they do not.

        """
        self._check_same(
            files,
            "rank {rank} would train on other files than rank 0 (SHA-256 {other}, not {first}): prepare the same data "
            "set on every machine; for text, use the same version of Python",
        )

    def check_same_position(self, position: str) -> None:
        """Check that all processes resume from the same position.

        Raises:
            UnsupportedError: If they do not.

        """
        self._check_same(
            position,
            "rank {rank} would resume from {other}, rank 0 from {first}: the folder of the run must be on a file "
            "system that all processes share",
        )

    def _check_same(self, value: Any, message: str) -> None:
        first, *others = self.gather(value)
        for rank, other in enumerate(others, start=1):
            if other != first:
                raise UnsupportedError(message.format(rank=rank, other=other, first=first))

    def gather_state(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Merge the state dicts of the first replica's processes on the leader. Return {} on the others."""
        return dict(state)


SINGLE_PROCESS = Group()


def load(record: Record, own_stages: range, replica: int = 0) -> tuple[dict[str, Any], list[Any]] | None:
    """Load the last checkpoint. It may have been written by another number of processes.

    Args:
        record: Record of the run.
        own_stages: Stages whose states are needed.
        replica: Number of the replica.

    Returns:
        The common state and the workers' states, at least those of `own_stages`, or None if there is no checkpoint. All
        tensors are on the CPU. Some of them, such as generator states and the steps of AdamW, must stay there even on a
        GPU.

    Raises:
        CheckpointError: If the checkpoint is damaged or of another version, or if there is not enough memory to read
            it (which must not be recorded as the result of the cell).

    """
    try:
        return _load(record, own_stages, replica)
    except (CheckpointError, OSError):
        raise
    except Exception as error:
        where = record.shards if record.shards.exists() else record.checkpoint
        raise CheckpointError(
            f"{where} is damaged ({type(error).__name__}: {error}); move it away to start from the beginning"
        ) from error


def _load(record: Record, own_stages: range, replica: int) -> tuple[dict[str, Any], list[Any]] | None:
    shards = ShardedCheckpoint(record.shards)
    if shards.exists:
        [common] = shards.load(["common"]).values()
        _check(common, record.shards)
        states = shards.load([stage_name(index, replica) for index in own_stages])
        return common, [states.get(stage_name(index, replica)) for index in range(common["stages"])]
    if not record.checkpoint.exists():
        return None
    state = checkpoint.load(record.checkpoint)
    workers = state.pop("workers", None) if isinstance(state, dict) else None
    if workers is None:
        raise CheckpointError(
            f"{record.checkpoint} is not a checkpoint of this version; move it away to start from the beginning"
        )
    _check(state, record.checkpoint)
    return state, workers


def _check(common: Mapping[str, Any], path: Path) -> None:
    """Raise CheckpointError if another version wrote the checkpoint."""
    if (schema := common.get("schema", SCHEMA)) != SCHEMA:
        newer = isinstance(schema, int) and schema > SCHEMA
        fix = "update this clone of the suite to continue" if newer else "move it away to start from the beginning"
        raise CheckpointError(f"{path} is a checkpoint of format {schema!r}, this version reads format {SCHEMA}; {fix}")


def stage_name(index: int, replica: int) -> str:
    """Return the name of a stage's state in the checkpoint of several processes."""
    return f"replica_{replica}_stage_{index}" if replica else f"stage_{index}"
