"""Run `train` in one process: by itself, or as one of several processes that train a cell together.

It is separate from the command line, which explains and refuses settings without importing torch.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import click
import torch

from petra_core import CheckpointError
from reproduce.cells.kinds import TrainedCell
from reproduce.commands.common import check_files
from reproduce.data.errors import DataError
from reproduce.measures.context import Context, Observer, Stopped
from reproduce.measures.how import How
from reproduce.records.broken import near_chance
from reproduce.records.locks import LockedError, LockLostError, holder
from reproduce.records.record import Record, RecordError, State, Status
from reproduce.records.storage import StorageError
from reproduce.running import devices
from reproduce.running.execution import execute
from reproduce.running.interrupts import Interrupt
from reproduce.running.progress import EventFiles, Observers, TrainingBar
from reproduce.running.worker import POLL_SECONDS
from reproduce.teams import launched, partitioning
from reproduce.teams.launch import LOST, Failure, first_to_report, launcher_gone
from reproduce.teams.team import ALONE, Team, UnsupportedError
from reproduce.teams.trace_file import TraceFile
from reproduce.text import conjunction, count


def train_here(
    cell: TrainedCell,
    how: How,
    *,
    output: Path | None,
    device: str,
    threads: int,
    retry_failed: bool,
    processes: int,
    partition: str,
    patience: float,
    tensorboard: Path | None,
    trace: Path | None,
    trace_micro_batches: int,
) -> None:
    """Train the cell, or this process's stages of it, from its last state. Keywords are the options of `train`.

    Raises:
        CellError: A setting does not fit the number of processes.
        DeviceError: This machine has no such device.
        click.UsageError: The output files cannot be written.
        Failure: The cell failed, or cannot be trained under the present conditions.

    """
    where = devices.take(launched.local_device(device))
    torch.set_num_threads(threads)
    shares = _shares(cell, processes, partition)
    team = _join(cell, shares, where, timedelta(minutes=patience))
    record = Record(output or Path("runs") / cell.name, cell)
    observers: list[Observer] = []
    bar = TrainingBar(cell)
    if team.leads:
        try:
            check_files(record.path, trace, tensorboard)
        except click.UsageError as error:
            if team.size == 1:
                raise
            raise Failure(error.message) from None
        click.echo(f"{cell.slug} -> {record.path} ({_how(team, threads)})", err=True)
        observers.append(bar)
        if tensorboard is not None:
            observers.append(EventFiles(tensorboard))
    with Interrupt() as interrupt:
        context = Context(
            device=where,
            how=how,
            should_stop=lambda: bool(interrupt.received) or launcher_gone(),
            observer=Observers(*observers),
            model_file=record.path / "model.pt",
            team=team,
            trace=None if trace is None else TraceFile(trace, trace_micro_batches, team),
        )
        state = _run(record, context, interrupt, retry_failed=retry_failed)
    if team.leads and not bar.begun:
        options = [name for name, given in (("--trace", trace), ("--tensorboard", tensorboard)) if given is not None]
        nothing = f", so {conjunction(options)} had no effect" if options else ""
        click.echo(f"finished already: nothing was run{nothing}", err=True)
        model = record.path / "model.pt"
        if state.status is Status.DONE and not model.exists():
            click.echo(f"{model} no longer exists; to get it, train again with another --output", err=True)
    if state.status is Status.FAILED:
        raise Failure(f"{team.name}{state}: {state.detail}")
    team.leave()
    if team.leads:
        accuracy = state.result["test_accuracy"]
        click.echo(f"test accuracy {accuracy:.2f} % -> {record.path}")
        if near_chance(cell, accuracy):
            click.echo("WARNING: this is at most twice the accuracy of a guess: the run counts as broken", err=True)


def _how(team: Team, threads: int) -> str:
    """Describe the numbers of processes and threads, and add the team's notice."""
    each = count(threads, "thread")
    many = f"{team.size} processes with {each} each" if team.size > 1 else each
    return "; ".join(filter(None, [many, team.notice]))


def _shares(cell: TrainedCell, asked: int, partition: str) -> tuple[int, ...]:
    """Return the number of stages of each process.

    Raises:
        CellError: The network cannot be partitioned in this way or among this number of processes.

    """
    alone = not launched.in_a_team()
    if alone and partition == "balanced":
        partition = "even"  # one process has all stages either way
    return partitioning.shares(cell, partition, 1 if alone else launched.processes_of_replica(asked, cell.replicas))


def _join(cell: TrainedCell, shares: tuple[int, ...], device: torch.device, patience: timedelta) -> Team:
    if not launched.in_a_team():
        return ALONE
    from reproduce.teams import processes

    try:
        return processes.join(cell, shares, device, patience)
    except UnsupportedError as error:
        raise Failure(str(error)) from error
    except Exception as error:
        if lost := processes.loss(error):
            if first_to_report():
                click.echo(lost, err=True)
            sys.exit(LOST)
        raise


def _run(record: Record, context: Context, interrupt: Interrupt, *, retry_failed: bool) -> State:
    """Run or resume the cell. An error that a user can fix ends the command with a message."""
    team, bar = context.team, context.observer
    try:
        if team.leads and retry_failed and record.state().status is Status.FAILED:
            with record.lock():
                record.retry()
        return _when_free(record, context)
    except Stopped as stop:
        if team.leads:
            bar.close()
            click.echo(f"{stop}; saved, and the same command resumes from there", err=True)
        team.leave()
        sys.exit(interrupt.exit_code)
    except (RecordError, CheckpointError, DataError, StorageError, UnsupportedError) as error:
        raise Failure(f"{team.name}{error}") from error
    except (LockedError, LockLostError) as error:
        raise Failure(str(error)) from error
    except Exception as error:
        if lost := team.lost(error):
            if first_to_report():
                click.echo(f"{team.name}{lost}", err=True)
            sys.exit(LOST)
        first_to_report()  # the traceback is the message; the other processes only lose this one and add nothing
        if team.name:
            error.add_note(f"on {team.name.removesuffix(': ')}")
        raise
    finally:
        bar.close()


def _when_free(record: Record, context: Context) -> State:
    """Call `execute`, after waiting for another machine that holds the record and may have died.

    Only time distinguishes the cases: either the machine gives a sign of life, or it gives none until the record is
    taken over.

    Raises:
        LockedError: A process of this machine, or a live process of another machine, holds the record.

    """
    touched: float | None = None
    while True:
        try:
            return execute(record, context)
        except LockedError as error:
            now = holder(record.path)
            if now is None or now.here or touched not in (None, now.touched) or context.should_stop():
                raise
            if touched is None:
                context.observer.notice(f"waiting for a sign of life: {error}")
            touched = now.touched
        context.team.tell(go=None)
        time.sleep(POLL_SECONDS)
