"""Run one cell of any kind, from the lock on its folder to its result.

The kind of a cell selects the function that runs it. The function is looked up by name, so that only its code is
imported. This module does the work that all kinds share: it locks the folder, records the environment and makes torch
deterministic. It records how the cell ended (done, diverged, out of memory), or leaves a stopped cell ready to be
resumed.
"""

import contextlib
import pkgutil
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from petra_core import CheckpointError, NonFiniteError
from reproduce.cells import own
from reproduce.cells.kinds import Cell, TrainedCell
from reproduce.data.errors import DataError
from reproduce.distributed.group import UnsupportedError
from reproduce.measures.context import MEMORY_FORMAT, Context
from reproduce.measures.machine_memory import give_back, out_of_memory
from reproduce.records import provenance
from reproduce.records.record import Record
from reproduce.records.run import DIVERGED, OUT_OF_MEMORY, RecordError, State, Status
from reproduce.records.storage import StorageError
from reproduce.text import conjunction

#: Kind of a cell -> the function that runs it: (cell, record, context) -> values of the result.
RUNNERS = {
    "training": "reproduce.measures.training:train",
    "complexity": "reproduce.measures.complexity:measure",
    "memory": "reproduce.measures.held_memory:measure",
    "stage_costs": "reproduce.measures.stage_costs:measure",
    "gradients": "reproduce.measures.gradient_quality:measure",
    "reconstruction": "reproduce.measures.reconstruction:measure",
    "forward_gradient": "reproduce.measures.forward_gradients:measure",
}

#: Errors that a user can fix. Their messages contain the fix.
FIXABLE = (RecordError, CheckpointError, DataError, StorageError, UnsupportedError)


def execute(record: Record, context: Context) -> State:
    """Run or resume the record's cell until it has a result. Return immediately if it has one.

    With the option `retry_failed`, a recorded failure is deleted first.

    Returns:
        The state of the record: done or failed.

    Raises:
        LockedError: If another process is running the cell.
        LockLostError: If another machine took the cell over, because this process sent no heartbeat for too long.
        RecordError: If the record cannot be read, or was made by another version of a user's network.
        CheckpointError: If the checkpoint is damaged or of another version.
        DataError: If the data set is damaged or not prepared. A recorded failure is kept.
        StorageFullError: If the disk is full. Files that were completed are intact.
        Stopped: If a stop was requested. The same call resumes the cell.
        UnsupportedError: If the cell cannot run on this device, with these options or with these processes.

    """
    tf32 = _wants_tf32(record.cell, context.device)
    if not context.group.is_leader:
        with deterministic(context.device, tf32=tf32):
            return _follow(record, context)
    if not record.has_result:  # before a record is created
        _check_data(record.cell, context.options.data_root)
    with record.lock() as hold, deterministic(context.device, tf32=tf32):
        if hold.taken_from is not None:
            context.observer.notice(f"took over {record.path} from {hold.taken_from}: its process is gone")
        state = record.state()
        if state.status is Status.FAILED and context.options.retry_failed:
            _check_data(record.cell, context.options.data_root)
            record.retry()
            state = record.state()
        if state.final:
            _check_network(record, state)
            record.publish()  # a kill after the result leaves the folder
            context.group.announce(go=False)
            return state
        context.observer.begin()
        environment = {**_environment(record.cell, context), **context.group.environment}
        code, patch = provenance.code()
        for words in _changes(record, environment, code, patch):
            context.observer.notice(words)
        record.begin(environment, code, patch)
        context.group.announce(go=True)
        values: dict[str, Any] | None = None
        with _failures_recorded(record, context.device):
            values = _values(record, context)
        if values is not None:  # no error below replaces the result by a failure
            record.finish(values)
            context.group.announce(go=False)
        return record.state()


def _check_data(cell: Cell, root: Path) -> None:
    """Raise DataError if the cell trains on data that are damaged, or not prepared below `root` for its loader."""
    if isinstance(cell, TrainedCell):
        from reproduce.data.sources import check  # not needed if there is nothing to train

        check(cell, root)


def _check_network(record: Record, state: State) -> None:
    """Raise RecordError if a user's network, of which the cell has only the name, has changed since its result."""
    cell, had = record.cell, state.result.get("network")
    if isinstance(cell, TrainedCell) and own.is_own(cell.model) and had not in (None, own.source(cell.model)):
        problem = f"is of another version of the file of {cell.model}"
        raise RecordError(record.path / "result.json", problem, "Restore that file, or choose another --output")


def _changes(record: Record, environment: Mapping[str, Any], code: Mapping[str, Any], patch: bytes) -> Iterator[str]:
    """Yield warnings if a cell is resumed with other threads, another machine, software, settings or code.

    On a GPU the number of CPU threads does not affect results.
    """
    begun = record.read()
    if not record.resumable or not begun.environments or not begun.codes:
        return
    on_cpu = (entry for entry in begun.environments if entry.get("device") == "cpu")
    had = list(dict.fromkeys(entry["threads"] for entry in on_cpu if "threads" in entry))
    if environment["device"] == "cpu" and set(had) - {environment["threads"]}:
        yield (
            f"WARNING: {record.path} resumes with --threads {environment['threads']}, after "
            f"{conjunction([str(n) for n in had])}: its result will differ in the last bits from a run with one number "
            f"of threads; it began with --threads {had[0]}"
        )
    before = begun.environments[-1]
    other = [
        f"{name} {before.get(name)!r}, now {environment.get(name)!r}"
        for name in {**before, **environment}
        if name != "threads" and before.get(name) != environment.get(name)
    ]
    if other:
        yield f"WARNING: {record.path} continues in another environment ({'; '.join(other)}): its bits may differ"
    last = begun.codes[-1]
    if (last.get("commit"), begun.patches.get(last.get("diff", ""), b"")) != (code.get("commit"), patch):
        yield f"NOTE: {record.path} was begun by {_code_name(last)} and continues with {_code_name(code)}"


def _code_name(code: Mapping[str, Any]) -> str:
    return f"{code.get('commit') or 'unknown code'}{'' if code.get('clean', True) else ' and changes'}"


def _follow(record: Record, context: Context) -> State:
    """Run the cell as a process that is not the leader. Record failures that only this process detects."""
    if context.group.wait_for_leader():
        with _failures_recorded(record, context.device):
            _run(record, context)
            context.group.wait_for_leader()  # then the leader has written the result
    return record.state()


@contextlib.contextmanager
def _failures_recorded(record: Record, device: torch.device) -> Iterator[None]:
    try:
        yield
    except NonFiniteError as error:
        record.fail(DIVERGED, str(error), {"micro_batch": error.micro_batch, "stage": error.stage})
    except (MemoryError, RuntimeError) as error:
        cause = out_of_memory(error)
        if cause is None:
            raise
        record.fail(OUT_OF_MEMORY, str(cause).splitlines()[0] if str(cause) else "MemoryError")
        traceback.clear_frames(error.__traceback__)  # their variables reference the pipeline
        give_back(device)  # so that the next cell can allocate this memory


def _values(record: Record, context: Context) -> dict[str, Any]:
    """Run the cell and return its values. For kinds without epochs, add the wall time (epochs record theirs)."""
    started = time.monotonic()
    values = dict(_run(record, context))
    if not record.cell.epochs_expected:
        values["wall_seconds"] = round(time.monotonic() - started, 4)
    return values


@contextlib.contextmanager
def deterministic(device: torch.device, *, tf32: bool = False) -> Iterator[None]:
    """Use only deterministic kernels, and no TF32 unless `tf32`. Restore torch's flags afterwards."""
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    tf32_before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    # In this mode torch also fills newly allocated memory before an operation overwrites it. That costs one more pass
    # over memory (on a GPU one more kernel) and does not change results, so it is switched off.
    allocation: Any = torch.utils.deterministic
    filled = allocation.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    allocation.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        allocation.fill_uninitialized_memory = filled
        torch.backends.cudnn.benchmark = before[1]
        if device.type == "cuda":
            torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = tf32_before


def _environment(cell: Cell, context: Context) -> dict[str, Any]:
    # Only training uses CUDA graphs and torch.compile. These are the requested options; whether a cell supports CUDA
    # graphs is known only later.
    trained = isinstance(cell, TrainedCell)
    options = context.options
    chosen: dict[str, Any] = (
        {"cuda_graphs": options.cuda_graphs, "compiled": options.compiled_as_recorded} if trained else {}
    )
    if context.options.sharing > 1:
        chosen["sharing"] = context.options.sharing
    memory_format = str(MEMORY_FORMAT).removeprefix("torch.")
    return {
        **provenance.environment(context.device),
        "memory_format": memory_format,
        **{name: value for name, value in chosen.items() if value},
    }


def _wants_tf32(cell: Cell, device: torch.device) -> bool:
    """Return whether the cell uses TF32.

    Raises:
        UnsupportedError: If it does and the device has no TF32.

    """
    if not isinstance(cell, TrainedCell) or cell.precision != "tf32":
        return False
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        raise UnsupportedError(
            f"the precision tf32 needs a CUDA device of compute capability 8.0 or more, got {device}; "
            f"choose such a device, or the precision float32 or bf16"
        )
    return True


def _run(record: Record, context: Context) -> Mapping[str, Any]:
    values: Mapping[str, Any] = pkgutil.resolve_name(RUNNERS[record.cell.kind])(record.cell, record, context)
    return values
