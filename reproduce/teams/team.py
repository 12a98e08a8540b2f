"""The processes that train one cell together, as the trainer sees them.

A trainer that asks at every turn whether it is alone becomes two trainers in one. Here it talks to a team, and alone is
a team of one: what it hands over comes back unchanged. In a larger team every process runs the same trainer over the
micro-batches of its replica, with the stages that are its own; the first process leads: it alone writes the record, and
it decides when to stop and when to save, for all, at the same micro-batch.
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from petra_core import CheckpointError, checkpoint
from petra_core.channel import Channel
from petra_core.distributed.replicas import Replicas
from petra_core.stages import Stage
from reproduce.records.record import Record
from reproduce.records.storage import explain_full_disk

__all__ = ["ALONE", "Alone", "Team", "UnsupportedError", "load", "stage_name"]

State = dict[str, Any]


class UnsupportedError(Exception):
    """The cell cannot be run on this machine."""


class Team(abc.ABC):
    """The processes of one run.

    Attributes:
        leads: whether this process writes the record and decides.
        size: number of processes.
        replicas: the processes with the same stages, if there are several networks side by side.
        head: number of the row in `from_heads` that is this process's, if it has a head.
        notice: what a person should know of it; may be empty.

    """

    leads: bool
    size: int
    replicas: Replicas
    head: int = 0
    notice: str = ""

    @property
    def environment(self) -> dict[str, Any]:
        """What a record says of it."""
        return {}

    @property
    def name(self) -> str:
        """Of this process, before a message of its own: `rank 1: `, or nothing."""
        return ""

    def lost(self, error: Exception) -> str:
        """What to say of an error that means that another process is gone; nothing of any other."""
        del error
        return ""

    def leave(self) -> None:  # noqa: B027  # a process alone has nothing to leave
        """The work is done: part from the others."""

    @abc.abstractmethod
    def tell(self, *, go: bool) -> None:
        """The leader says whether there is anything to do."""

    @abc.abstractmethod
    def hear(self) -> bool:
        """The others wait for that."""

    @abc.abstractmethod
    def place(self, stages: Sequence[Stage], device: torch.device) -> tuple[list[Stage], Channel | None]:
        """The stages, this process's own on `device` and the others without memory, and the channel between."""

    @abc.abstractmethod
    def from_heads(self, values: Tensor) -> Tensor:
        """The values [n] of every process that has a head, on every process: [heads, n]."""

    @abc.abstractmethod
    def rows(self, own: Sequence[Any]) -> list[Any]:
        """One entry a stage, from the entries of everybody's own stages; those of the first replica."""

    @abc.abstractmethod
    def decide(self, micro_batch: int, *, stop: bool, save: bool) -> tuple[bool, bool]:
        """What the leader wants to do after this micro-batch: stop, save."""

    @abc.abstractmethod
    def save(self, record: Record, number: int, common: Mapping[str, Any], workers: Sequence[Any]) -> None:
        """Write a checkpoint: what is common, and the state of each worker (None for those of other processes)."""

    @abc.abstractmethod
    def compare(self, position: str) -> None:
        """See that all go on from the same position. Raises: UnsupportedError: they do not."""

    @abc.abstractmethod
    def gather(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everybody's entries of a state dict, on the leader; those of the first replica."""


class Alone(Team):
    """A single process."""

    leads = True
    size = 1
    replicas = Replicas()

    def tell(self, *, go: bool) -> None:
        """There is nobody."""

    def hear(self) -> bool:
        """A leader does not ask."""
        raise AssertionError("a process alone leads")

    def place(self, stages: Sequence[Stage], device: torch.device) -> tuple[list[Stage], Channel | None]:
        """All stages on the device."""
        return [stage.to(device) for stage in stages], None

    def from_heads(self, values: Tensor) -> Tensor:
        """The values."""
        return values[None]

    def rows(self, own: Sequence[Any]) -> list[Any]:
        """The entries."""
        return list(own)

    def decide(self, micro_batch: int, *, stop: bool, save: bool) -> tuple[bool, bool]:
        """What is wanted."""
        del micro_batch
        return stop, save

    def save(self, record: Record, number: int, common: Mapping[str, Any], workers: Sequence[Any]) -> None:
        """One file."""
        del number
        with explain_full_disk(f"to write {record.checkpoint}"):
            checkpoint.save(record.checkpoint, {**common, "workers": list(workers)})
        if record.shards.exists():  # of several processes that began it
            from petra_core.distributed.sharded import Folder

            Folder(record.shards).remove()

    def compare(self, position: str) -> None:
        """There is nobody else."""

    def gather(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All entries."""
        return dict(state)


ALONE = Alone()


def load(record: Record, own: range, replica: int = 0, turn: int = 0) -> tuple[State, list[Any]] | None:
    """What was saved last, by one process or by several, for any number of them to go on from.

    Args:
        record: of the run.
        own: the stages that are wanted.
        replica: of the network.
        turn: of those who have the same stages of it, and take turns, the one whose state is wanted.

    Returns:
        What is common, and the workers' states, at least those of the stages `own`; None: nothing was saved. All
        tensors are on the CPU: some of them, as states of generators and steps of AdamW, belong there on a GPU too.

    Raises:
        CheckpointError: it is damaged.

    """
    from petra_core.distributed.sharded import Folder  # torch.distributed.checkpoint takes a second to import

    shards = Folder(record.shards)
    if shards.exists:
        [common] = shards.load(["common"]).values()
        states = shards.load([stage_name(index, replica, turn) for index in own])
        return common, [states.get(stage_name(index, replica, turn)) for index in range(common["stages"])]
    if not record.checkpoint.exists():
        return None
    state = checkpoint.load(record.checkpoint)
    workers = state.pop("workers", None) if isinstance(state, dict) else None
    if workers is None:
        raise CheckpointError(
            f"{record.checkpoint} is not a checkpoint of this version; move it away to start from the beginning"
        )
    return state, workers


def stage_name(index: int, replica: int, turn: int = 0) -> str:
    """Of a stage's part in the files of several processes."""
    stage = f"stage_{index}_turn_{turn}" if turn else f"stage_{index}"
    return f"replica_{replica}_{stage}" if replica else stage
