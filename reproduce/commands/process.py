"""Run `train` in one process: by itself, or as one of several processes that train a cell together.

It is separate from the command line, which explains and refuses settings without importing torch.
"""

import sys
import time
from datetime import timedelta

import click
import torch

from reproduce.cells.kinds import TrainedCell
from reproduce.commands.common import check_files
from reproduce.commands.train_options import TrainOptions
from reproduce.distributed import launch_env, partitioning
from reproduce.distributed.group import SINGLE_PROCESS, Group, UnsupportedError
from reproduce.distributed.interrupts import Interrupt
from reproduce.distributed.launch import LOST, Failure, first_to_report, launcher_gone
from reproduce.distributed.trace_file import TraceFile
from reproduce.measures.context import Context, Observer, Stopped
from reproduce.records.broken import near_chance
from reproduce.records.locks import LockedError, LockLostError, holder
from reproduce.records.record import Record
from reproduce.records.run import State, Status
from reproduce.running import devices
from reproduce.running.execution import FIXABLE, execute
from reproduce.running.progress import EventFiles, Observers, TrainingBar
from reproduce.running.worker import POLL_SECONDS
from reproduce.text import conjunction, count


def train_here(cell: TrainedCell, options: TrainOptions) -> None:
    """Train the cell, or this process's stages of it, from its last state.

    Raises:
        CellError: A setting does not fit the number of processes.
        DeviceError: This machine has no such device.
        click.UsageError: The output files cannot be written.
        Failure: The cell failed, or cannot be trained under the present conditions.

    """
    where = devices.take(launch_env.local_device(options.device))
    torch.set_num_threads(options.threads)
    partition = _partition(cell, options)
    group = _join(cell, partition, where, timedelta(minutes=options.timeout_minutes))
    output, trace, tensorboard = options.files_of(cell)
    record = Record(output, cell)
    observers: list[Observer] = []
    bar = TrainingBar(cell)
    if group.is_leader:
        try:
            check_files(record.path, trace, tensorboard)
        except click.UsageError as error:
            if group.size == 1:
                raise
            raise Failure(error.message) from None
        click.echo(f"{cell.slug} -> {record.path} ({_describe_processes(group, options.threads)})", err=True)
        observers.append(bar)
        if tensorboard is not None:
            observers.append(EventFiles(tensorboard))
    with Interrupt() as interrupt:
        context = Context(
            device=where,
            options=options,
            should_stop=lambda: bool(interrupt.received) or launcher_gone(),
            observer=Observers(*observers),
            model_file=record.path / "model.pt",
            group=group,
            trace=None if trace is None else TraceFile(trace, options.trace_micro_batches, group),
        )
        state = _run(record, context, interrupt)
    if group.is_leader and not bar.begun:
        unused = [name for name, file in (("--trace", trace), ("--tensorboard", tensorboard)) if file is not None]
        nothing = f", so {conjunction(unused)} had no effect" if unused else ""
        click.echo(f"finished already: nothing was run{nothing}", err=True)
        model = record.path / "model.pt"
        if state.status is Status.DONE and not model.exists():
            click.echo(f"{model} no longer exists; to get it, train again with another --output", err=True)
    if state.status is Status.FAILED:
        raise Failure(f"{group.name}{state}: {state.detail}")
    group.close()
    if group.is_leader:
        accuracy = state.result["test_accuracy"]
        tested = f"accuracy of {cell.held_out:,} held-out samples" if cell.held_out else "test accuracy"
        click.echo(f"{tested} {accuracy:.2f} % -> {record.path}")
        if near_chance(cell, accuracy):
            click.echo("WARNING: this is at most twice the accuracy of a guess: the run counts as broken", err=True)


def _describe_processes(group: Group, threads: int) -> str:
    """State the numbers of processes and threads, with the group's notice."""
    each = count(threads, "thread")
    many = f"{group.size} processes with {each} each" if group.size > 1 else each
    return "; ".join(filter(None, [many, group.notice]))


def _partition(cell: TrainedCell, options: TrainOptions) -> tuple[int, ...]:
    """Return the number of stages of each process.

    Raises:
        CellError: The network cannot be partitioned in this way or among this number of processes.

    """
    if launch_env.is_distributed():
        processes = launch_env.processes_of_replica(options.processes, cell.replicas)
        return partitioning.parse_partition(cell, options.partition, processes)
    # One process has all stages, whether their times are balanced or not.
    return partitioning.parse_partition(cell, "even" if options.partition == "balanced" else options.partition, 1)


def _join(cell: TrainedCell, partition: tuple[int, ...], device: torch.device, timeout: timedelta) -> Group:
    if not launch_env.is_distributed():
        return SINGLE_PROCESS
    from reproduce.distributed import processes

    try:
        return processes.join(cell, partition, device, timeout)
    except UnsupportedError as error:
        raise Failure(str(error)) from error
    except Exception as error:
        if lost := processes.DistributedGroup.describe_loss(error):
            if first_to_report():
                click.echo(lost, err=True)
            sys.exit(LOST)
        raise


def _run(record: Record, context: Context, interrupt: Interrupt) -> State:
    """Run or resume the cell. An error that a user can fix ends the command with a message."""
    group, bar = context.group, context.observer
    try:
        return _when_free(record, context)
    except Stopped as stop:
        if group.is_leader:
            bar.close()
            click.echo(f"{stop}; saved, and the same command resumes from there", err=True)
        group.close()
        sys.exit(interrupt.exit_code)
    except FIXABLE as error:
        raise Failure(f"{group.name}{error}") from error
    except (LockedError, LockLostError) as error:
        raise Failure(str(error)) from error
    except Exception as error:
        if lost := group.describe_loss(error):
            if first_to_report():
                click.echo(f"{group.name}{lost}", err=True)
            sys.exit(LOST)
        first_to_report()  # the traceback is the message; the other processes only lose this one and add nothing
        if group.name:
            error.add_note(f"on {group.name.removesuffix(': ')}")
        raise
    finally:
        bar.close()


def _when_free(record: Record, context: Context) -> State:
    """Call `execute`, after waiting for another machine that holds the record and may have died.

    Only time distinguishes the cases: either the machine sends a heartbeat, or it sends none until the record is
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
                context.observer.notice(f"waiting for a heartbeat: {error}")
            touched = now.touched
        context.group.announce(go=None)
        time.sleep(POLL_SECONDS)
