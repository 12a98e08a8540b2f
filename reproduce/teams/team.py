"""The processes that train one cell together, as the trainer sees them.

A trainer that asks at every turn whether it is alone becomes two trainers in one. Here it talks to a team, and alone is
a team of one: what it hands over comes back unchanged. In a larger team every process runs the same trainer over the
micro-batches of its replica, with the stages that are its own; the first process leads: it alone writes the record, and
it decides when to stop and when to save, for all, at the same micro-batch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from petra_core import CheckpointError, checkpoint
from petra_core.channel import Channel
from petra_core.distributed.replicas import Replicas
from petra_core.stages import Stage
from reproduce.records.record import Record
from reproduce.records.storage import explain_full_disk

SCHEMA = 1  # format of a checkpoint, as `common` in it says; the first ones did not say it


class UnsupportedError(Exception):
    """The cell cannot be run on this machine."""


class Team:
    """The processes of one run; this class is a process alone."""

    rank = 0  # number of this process
    size = 1  # number of processes
    replicas = Replicas()  # the processes with the same stages, if there are several networks side by side
    head = 0  # number of the row in `from_heads` that is this process's, if it has a head
    notice = ""  # what a person should know of the team
    name = ""  # prefix of this process's messages: `rank 1: `, or nothing

    @property
    def leads(self) -> bool:
        """Whether this process writes the record and decides."""
        return self.rank == 0

    @property
    def environment(self) -> dict[str, Any]:
        """Entries of a record's environment: the number of processes, their stages, and the backend of messages."""
        return {}

    def lost(self, error: Exception) -> str:
        """The message of an error that means that another process is gone; empty for any other error."""
        del error
        return ""

    def leave(self) -> None:
        """Part from the other processes, when the work is done."""

    def tell(self, *, go: bool | None) -> None:
        """Announce to the others, as the leader, whether there is anything to do; None: they shall wait on."""

    def hear(self) -> bool:
        """Wait, as one of the others, for what the leader announces: whether there is anything to do."""
        raise AssertionError("a process alone leads")

    def place(self, stages: Sequence[Stage], device: torch.device) -> tuple[list[Stage], Channel | None]:
        """The stages, this process's on `device` and the others on meta, and the channel between, if any."""
        return [stage.to(device) for stage in stages], None

    def from_heads(self, values: Tensor) -> Tensor:
        """The values [n] of every process that has a head, on every process: [heads, n]."""
        return values[None]

    def rows(self, own_rows: Sequence[Any]) -> list[Any]:
        """One row a stage, from everybody's rows for their own stages; those of the first replica."""
        return list(own_rows)

    def decide(self, micro_batch: int, *, stop: bool, save: bool) -> tuple[bool, bool]:
        """Whether to stop, and whether to save, after this micro-batch: as the leader wants it, on every process."""
        del micro_batch
        return stop, save

    def save(self, record: Record, number: int, common: Mapping[str, Any], workers: Sequence[Any]) -> None:
        """Write a checkpoint: `common`, which the leader has, and the state of each worker (None: another process's).

        Raises: StorageFullError: the disk is full.
        """
        del number
        with explain_full_disk(f"to write {record.checkpoint}"):
            checkpoint.save(record.checkpoint, {**common, "workers": list(workers)})
        if record.shards.exists():  # of several processes that began it
            from petra_core.distributed.sharded import Folder

            Folder(record.shards).remove()

    def compare(self, position: str) -> None:
        """See that all go on from the same position. Raises: UnsupportedError: they do not."""

    def gather(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everybody's entries of a state dict, of the first replica, on the leader; elsewhere nothing."""
        return dict(state)


ALONE = Team()


def load(record: Record, own_stages: range, replica: int = 0) -> tuple[dict[str, Any], list[Any]] | None:
    """Load what was saved last, by one process or by several, for any number of them to go on from.

    Args:
        record: of the run.
        own_stages: those whose states are wanted.
        replica: of the network.

    Returns:
        What is common, and the workers' states, at least those of `own_stages`; None: nothing was saved. All
        tensors are on the CPU: some of them, as states of generators and steps of AdamW, belong there on a GPU too.

    Raises:
        CheckpointError: it is damaged, or of another version; also where reading it takes all memory, which is no
            result of the cell.

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
    from petra_core.distributed.sharded import Folder  # torch.distributed.checkpoint takes a second to import

    shards = Folder(record.shards)
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
        raise CheckpointError(
            f"{path} is a checkpoint of format {schema!r}, this version reads format {SCHEMA}; move it away to start "
            f"from the beginning"
        )


def stage_name(index: int, replica: int) -> str:
    """The name of a stage's state in the checkpoint of several processes."""
    return f"replica_{replica}_stage_{index}" if replica else f"stage_{index}"
