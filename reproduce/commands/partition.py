"""Define `partition`: find the best partition of a network among processes from its stage costs on this machine."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import click

from petra_core import methods
from petra_core.prediction.partition import Partition
from petra_core.staleness import lockstep
from reproduce.cells import catalogue, networks, own, timing
from reproduce.cells.kinds import ForwardGradientCell, StageCostCell, TrainingCell
from reproduce.cells.setting import HOW, PROCESSES, setting, settings_of
from reproduce.commands.options import Command, options_of, quantity
from reproduce.commands.train import CONSTANT, cell_by_hand
from reproduce.commands.train_options import TrainOptions
from reproduce.distributed.partitioning import format_partition
from reproduce.modelling import full_speed
from reproduce.modelling.network import REPETITIONS, TimedNetwork, time_network, timing_cell
from reproduce.modelling.peak_memory import find_peaks
from reproduce.modelling.simulation import Link
from reproduce.running import devices

MEMORY = quantity("memory", "8GB", {"GB": 1e9, "MB": 1e6, "GiB": 2**30, "MiB": 2**20})
BANDWIDTH = quantity("bandwidth", "10Gbit/s", {"Gbit/s": 1e9 / 8, "Mbit/s": 1e6 / 8, "GB/s": 1e9, "MB/s": 1e6})
TIME = quantity("time", "50us", {"us": 1e-6, "ms": 1e-3, "s": 1.0})
#: Settings of a cell on which the costs of its stages and its staleness depend.
SETTINGS = [
    name
    for name in settings_of(TrainingCell)
    if name in ("timing", "stages") or (name != "seed" and name in StageCostCell.__dataclass_fields__)
]


@dataclass(frozen=True, kw_only=True)
class PartitionOptions(TrainOptions):
    """Options of `partition`, of which `NAMES` are on its command line.

    Attributes:
        processes: Number of processes that share the stages.
        memory_limit: Predicted memory limit of each process, such as 8GB.
        bandwidth: Bandwidth between two processes, such as 10Gbit/s.
        latency: Latency of a message, such as 50us.
        device: Device to time the stages on, such as cuda:0.
        repetitions: Timed repetitions of each stage, after some warm-up.

    """

    processes: int = setting(PROCESSES, default=2, least=1)
    memory_limit: float | None = setting(PROCESSES, default=None, parse=MEMORY)
    bandwidth: float = setting(PROCESSES, default=math.inf, rule="unlimited", parse=BANDWIDTH)
    latency: float = setting(PROCESSES, default=0.0, rule="none", parse=TIME)
    repetitions: int = setting(HOW, default=REPETITIONS, least=1)


NAMES = ("processes", "memory_limit", "bandwidth", "latency", "threads", "device", "repetitions")


@click.command(cls=Command)
@options_of(TrainingCell, "settings", defaults=CONSTANT, names=SETTINGS)
@options_of(PartitionOptions, "options", names=NAMES)
@click.help_option("-h", "--help")
def partition(settings: dict[str, Any], options: PartitionOptions) -> None:
    """Find the partition that balances the load of processes, by timing the stages on this machine.

    Print it next to the partition into equal numbers of stages, with the predicted speed, idle time and peak memory,
    and the option of `train` that uses it. `train --partition balanced` finds the same partition.

    Also print the smallest staleness that keeps this partition at full speed over such links, if each process is one
    stage of the pipeline, next to that of lockstep, with the options of `train` that use it. These options change the
    result.
    """
    training = cell_by_hand(settings)
    if isinstance(training, ForwardGradientCell):
        raise click.UsageError(
            f"--method {training.method} trains in one process and has no partition; choose another method"
        )
    if own.is_own(training.model) and own.micro_batch(training.model) is None:
        own.check_samples(training.model, catalogue.by_name(training.dataset), training.image_size)
    processes, cell = options.processes, timing_cell(training, options.repetitions)
    vector = timing.vector(training)
    method = methods.by_name(cell.method)
    if method.overlapped:
        same = methods.REVERSIBLE_BACKPROPAGATION.name
        raise click.UsageError(f"--method {cell.method} is not simulated; {same} does the same work sequentially")
    if processes > (count := timing.blocks(training)):
        raise click.UsageError(f"--processes {processes}: the network has only {count} stages")
    where = devices.take(options.device)
    import torch

    torch.set_num_threads(options.threads)
    link = Link(options.latency, options.bandwidth)
    limit = None if options.memory_limit is None else int(options.memory_limit)
    with click.progressbar(length=count, label="timing the stages", file=sys.stderr) as bar:
        measured = replace(time_network(cell, where, lambda index, _: bar.update(index - bar.pos)), staleness=vector)
        bar.update(count - bar.pos)
    plans = {"even": measured.even(processes), "balanced": measured.best(processes, limit)}
    click.echo("\n".join(stage_lines(measured)))
    if vector is not None:
        click.echo(f"{timing.title(training.timing, training.stages)}: staleness {', '.join(map(str, vector))}")
    for name, plan in plans.items():
        click.echo("\n".join(["", *plan_lines(name, measured, plan, link)]))
    best = plans["balanced"]
    click.echo(f"\nto use this partition: {_options_of(best, options.threads)}")
    if vector is not None and processes > 1:
        click.echo("\n".join(["", *staleness_lines(measured, best, link)]))


def _options_of(plan: Partition, threads: int) -> str:
    chosen = f" --threads {threads}" if threads != TrainOptions.threads else ""
    return f"--processes {len(plan.sizes)} --partition {format_partition(plan.sizes)}{chosen}"


def staleness_lines(measured: TimedNetwork, plan: Partition, link: Link) -> Iterator[str]:
    """Yield the smallest staleness with full speed if each process is one stage, and the options that select it."""
    costs, accumulation = measured.merge(plan.sizes), measured.accumulation
    vector = full_speed.smallest_staleness(costs, link, accumulation)
    seconds = full_speed.period(costs, vector, link, accumulation)
    stages, devices = len(measured.costs), len(plan.sizes)
    sizes = format_partition(plan.sizes)
    yield (
        f"full speed over such links, {1e3 * seconds:.3f} ms per micro-batch, with {devices} stages of {sizes} blocks "
        f"requires the staleness {', '.join(map(str, vector))}"
    )
    of_these = ", ".join(map(str, lockstep(devices)))
    yield f"lockstep has {of_these} with these stages, {lockstep(stages)[0]} at stage 0 with one stage per block"
    options = "" if devices == stages else f" --stages {sizes}"
    yield f"to train with it (changes the result): --timing {timing.covering(vector)}{options}"


def stage_lines(measured: TimedNetwork) -> Iterator[str]:
    """Yield the costs of every stage as a table."""
    cell = measured.cell
    samples = f"{catalogue.by_name(cell.dataset).describe_size(cell.image_size)}, batch {cell.batch_size}"
    if own.is_own(cell.model):
        given = own.micro_batch(cell.model) is not None
        network = f"{networks.title_of(cell)}, {'the micro-batch of the function' if given else samples}"
    else:
        network = f"{cell.coupled}, width {cell.width}, {samples}"
    yield (
        f"{network}, {cell.method}, k = {cell.accumulation}; medians of {cell.repetitions} repetitions; "
        f"memory predicted for SGD with momentum on {measured.device}"
    )
    yield "stage  forward, ms  backward, ms  update, ms  memory, MB   up, MB  down, MB"
    for stage, (cost, held) in enumerate(zip(measured.costs, measured.held, strict=True)):
        times = f"{1e3 * cost.forward:>11.3f} {1e3 * cost.backward:>13.3f} {1e3 * cost.update:>11.3f}"
        yield f"{stage:>5}  {times} {held / 1e6:>11.1f} {cost.up / 1e6:>8.2f} {cost.down / 1e6:>9.2f}"


def plan_lines(name: str, measured: TimedNetwork, plan: Partition, link: Link) -> Iterator[str]:
    """Yield a partition, its arithmetic prediction, and what simulation adds: waiting, messages, memory over time."""
    yield f"{name}: {format_partition(plan.sizes)}"
    yield str(plan)
    filling, count = _micro_batches(measured)
    timeline = measured.simulate(plan.sizes, link, count)
    pace = timeline.seconds_per_micro_batch(skip=filling, drop=filling)
    yield (
        f"simulated: {1e3 * pace:.3f} ms per micro-batch, {plan.work / pace:.2f} times one device, "
        f"efficiency {plan.work / pace / len(plan.sizes):.0%}"
    )
    for device, peak in enumerate(find_peaks(timeline, measured.footprints, measured.method)):
        share = timeline.idle(device) / timeline.seconds
        yield f"  device {device}: idle {share:.0%} of {count} micro-batches, at most {peak / 1e6:.1f} MB"


def _micro_batches(measured: TimedNetwork) -> tuple[int, int]:
    """Return the number of micro-batches that fill the pipeline, and the number that is simulated.

    The pipeline is full when the first backward of the first stage is done. The simulation runs 8 updates between
    filling and draining.
    """
    k = measured.accumulation
    filling = -(-(max(lockstep(len(measured.costs))[0], *(measured.staleness or [0])) + 1) // k) * k
    return filling, 2 * filling + 8 * k + 1
