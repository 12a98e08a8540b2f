"""Running one cell of any kind, from the lock on its folder to its result.

What a cell does is a function of its kind, found by name so that a kind's code is loaded only where it runs. What
holds for all of them is here: nobody else works on the folder, the environment is recorded, torch is made
deterministic, and every way to end (done, diverged, out of memory, stopped) is written down or leaves the cell to be
continued.

This module exports Context, Observer, Stopped, execute.
"""

import contextlib
import gc
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from petra_core import NonFiniteError
from reproduce import provenance
from reproduce.cells import Cell
from reproduce.data.catalogue import DEFAULT_ROOT
from reproduce.records import Record, State, Status

__all__ = ["Context", "Observer", "Stopped", "execute"]

#: Kind of a cell -> the function that runs it: (cell, record, context) -> values of the result.
RUNNERS = {
    "training": "reproduce.training:train",
    "complexity": "reproduce.tables.table1:measure",
    "gradients": "reproduce.measures.gradient_quality:measure",
    "reconstruction": "reproduce.measures.reconstruction:measure",
}

Runner = Callable[[Cell, Record, "Context"], Mapping[str, Any]]


class Stopped(Exception):  # noqa: N818  # an order that was carried out, not an error
    """The work was stopped by request; its state is saved."""


class Observer:
    """Is told how a cell gets on; the base class ignores it."""

    def begin(self) -> None:
        """The cell is ours, and the work begins."""

    def tick(self, done: int, total: int, loss: Tensor | None) -> None:
        """`done` of `total` micro-batches have entered; `loss` came out at the last tick, if any did."""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """An epoch has ended, with these metrics."""


@dataclass(frozen=True)
class Context:
    """How a cell is run, as against what it is: nothing here changes a result beyond rounding.

    Attributes:
        device: to train on.
        should_stop: asked after every tick; if True, the state is saved and `Stopped` raised.
        observer: is told of progress.
        checkpoint_seconds: a checkpoint is saved this long after the last, besides the one at the end of every epoch.
        model_file: where the trained model's state dict is to be left, if anywhere.
        data_root: folder of prepared data sets.
        data_workers: threads or processes that decode images; the batches do not depend on it.

    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    should_stop: Callable[[], bool] = lambda: False
    observer: Observer = field(default_factory=Observer)
    checkpoint_seconds: float = 300.0
    model_file: Path | None = None
    data_root: Path = DEFAULT_ROOT
    data_workers: int = 1


def execute(record: Record, context: Context) -> State:
    """Run or continue the record's cell to its result; nothing happens if it has one.

    Returns:
        The state of the record: done, or failed.

    Raises:
        LockedError: another process works on it.
        RecordError: the folder holds something that cannot be understood.
        CheckpointError: its checkpoint is damaged or of another version.
        DataError: its data set is not prepared, or damaged.
        StorageFullError: no room; what was finished is safe.
        Stopped: by request; the same call goes on.

    """
    with record.lock(), deterministic(context.device):
        state = record.state()
        if state.final:
            if state.status is Status.DONE:  # a kill between the result and the removal leaves it
                record.checkpoint.unlink(missing_ok=True)
            return state
        context.observer.begin()
        record.begin(provenance.environment(context.device), *provenance.code())
        try:
            record.finish(_runner(record.cell.kind)(record.cell, record, context))
        except NonFiniteError as error:
            record.fail("diverged", str(error), {"micro_batch": error.micro_batch, "stage": error.stage})
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            record.fail("out of memory", str(error).splitlines()[0] if str(error) else "MemoryError")
            gc.collect()  # the next cell shall find the memory that this one could not get
            if context.device.type == "cuda":
                torch.cuda.empty_cache()
        return record.state()


@contextlib.contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Only deterministic kernels, and float32 as float32; the flags are as before afterwards."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first CUDA matmul is done
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    tf32 = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
        if device.type == "cuda":
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32


def _runner(kind: str) -> Runner:
    module, _, name = RUNNERS[kind].partition(":")
    runner: Runner = getattr(importlib.import_module(module), name)
    return runner


def _out_of_memory(error: Exception) -> bool:
    """CUDA has an exception of its own; the CPU's allocator raises a RuntimeError that only its words tell apart."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error) or "not enough memory" in str(error)
