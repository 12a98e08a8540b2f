"""`partition`: how a network is best shared among processes, from what its stages cost on this machine."""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import click

from petra_core import methods
from petra_core.prediction.partition import Cut
from petra_core.prediction.simulation import Link
from petra_core.staleness import lockstep
from reproduce.cells import catalogue, networks, own, timing
from reproduce.commands.common import THREADS
from reproduce.commands.options import GroupedCommand, grouped
from reproduce.commands.train import DEFAULTS, cell_by_hand
from reproduce.modelling import balance
from reproduce.modelling.balance import Balance
from reproduce.running import devices
from reproduce.teams.partitioning import written

NETWORK, METHOD, SHARES, RUN = (
    grouped(name) for name in ("Network", "Method", "Processes and what connects them", "Where and how")
)


class Quantity(click.ParamType):  # type: ignore[type-arg]  # which older versions of click do not have
    """A number above 0 and its unit, in whatever case, such as 8GB."""

    def __init__(self, name: str, example: str, units: Mapping[str, float]) -> None:
        self.name, self.example, self.units = name, example, units

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The quantity in the unit whose factor is 1. Raises: click.BadParameter: this is none."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z/]+)", value.strip(), re.IGNORECASE)
        factor = {unit.lower(): factor for unit, factor in self.units.items()}.get(match[2].lower()) if match else None
        if match is None or factor is None or not float(match[1]) > 0:
            units = ", ".join(self.units)
            raise click.BadParameter(f"{value!r} is no {self.name}: a number and {units}, such as {self.example}")
        return float(match[1]) * factor


MEMORY = Quantity("memory", "8GB", {"GB": 1e9, "MB": 1e6, "GiB": 2**30, "MiB": 2**20})
BANDWIDTH = Quantity("bandwidth", "10Gbit/s", {"Gbit/s": 1e9 / 8, "Mbit/s": 1e6 / 8, "GB/s": 1e9, "MB/s": 1e6})
TIME = Quantity("time", "50us", {"us": 1e-6, "ms": 1e-3, "s": 1.0})


@click.command(cls=GroupedCommand)
@NETWORK(
    "--model",
    default=DEFAULTS.model,
    help="As of `train`; module:function may return (stages, inputs, target), whose micro-batch is timed then.",
)
@NETWORK("--stem", show_default="as of `train`", help="As of `train`.")
@NETWORK("--width", type=int, show_default="as of `train`", help="Channels of the first blocks, per stream.")
@NETWORK("--coupling", default=DEFAULTS.coupling, help="As of `train`.")
@NETWORK("--dataset", default=DEFAULTS.dataset, help="Whose image size and classes; its data are not needed.")
@NETWORK("--image-size", type=int, show_default="as of `train`", help="Height and width in pixels.")
@NETWORK("--batch-size", default=DEFAULTS.batch_size, help="Samples of a micro-batch.")
@METHOD("--method", default=DEFAULTS.method, help=f"{', '.join(m.name for m in methods.ALL if not m.overlapped)}.")
@METHOD(
    *("accumulation", "-k", "--k", "--accumulation"),
    default=DEFAULTS.accumulation,
    help="Micro-batches of an update, 1 to 32.",
)
@METHOD("--timing", show_default="as of `train`", help="As of `train`.")
@METHOD("--stages", metavar="SIZES", show_default="every block", help="As of `train`.")
@SHARES("--processes", type=click.IntRange(1), default=2, help="How many share the stages.")
@SHARES("--memory-limit", type=MEMORY, help="What each may hold, such as 8GB: as predicted from shapes.")
@SHARES(
    "--bandwidth",
    type=BANDWIDTH,
    show_default="without limit",
    help="Between two processes, such as 10Gbit/s.",
)
@SHARES("--latency", type=TIME, show_default="none", help="Of a message, such as 50us.")
@RUN("--device", default="cpu", help="Device on which the stages are timed, such as cuda:0.")
@RUN("--threads", type=click.IntRange(1), default=THREADS, help="Of each process, as of `train`.")
@RUN("--repetitions", type=click.IntRange(1), default=balance.REPETITIONS, help="Timed turns of each stage.")
@click.help_option("-h", "--help")
def partition(
    processes: int,
    memory_limit: float | None,
    bandwidth: float | None,
    latency: float | None,
    device: str,
    threads: int,
    repetitions: int,
    **settings: Any,
) -> None:
    """Find the cut of a network that keeps processes equally busy, by timing its stages here and now.

    Prints it beside the cut into equal numbers of stages, with the speed, the idle time and the peak memory that are to
    be expected, and the option that makes `train` use it. `train --partition balanced` does the same by itself.

    And it prints the smallest staleness that keeps this cut at full speed over such links, if each process is one stage
    of the pipeline, next to that of lockstep, with the options that make `train` use it. These change the result.
    """
    training = cell_by_hand(settings)
    cell = balance.of_training(training, repetitions)
    vector = timing.vector(training)
    method = methods.by_name(cell.method)
    if method.overlapped:
        same = methods.REVERSIBLE_BACKPROPAGATION.name
        raise click.UsageError(f"--method {cell.method} is not simulated; {same} is the same work in order")
    where = devices.take(device)
    import torch

    torch.set_num_threads(threads)
    link = Link(latency or 0.0, bandwidth or float("inf"))
    limit = None if memory_limit is None else int(memory_limit)
    with click.progressbar(length=1, label="timing the stages", file=sys.stderr) as bar:

        def begin(index: int, count: int) -> None:
            if processes > count:
                raise click.UsageError(f"--processes {processes}: the network has {count} stages; use at most as many")
            bar.length = count
            bar.update(index - bar.pos)

        measured = replace(balance.measured(cell, where, begin), staleness=vector)
        bar.update((bar.length or 0) - bar.pos)
    plans = {
        "even": measured.even(processes),
        "balanced": measured.best(processes, limit),
    }
    click.echo("\n".join(stage_lines(measured)))
    if vector is not None:
        click.echo(f"{timing.title(training.timing, training.stages)}: staleness {', '.join(map(str, vector))}")
    for name, plan in plans.items():
        click.echo("\n".join(["", *plan_lines(name, measured, plan, link)]))
    best = plans["balanced"]
    click.echo(f"\nto train so: {_options(best, threads)}")
    if vector is not None and processes > 1:
        click.echo("\n".join(["", *staleness_lines(measured, best, link)]))


def _options(plan: Cut, threads: int) -> str:
    chosen = f" --threads {threads}" if threads != THREADS else ""
    return f"--processes {plan.devices} --partition {written(plan.partition)}{chosen}"


def staleness_lines(measured: Balance, plan: Cut, link: Link) -> Iterator[str]:
    """The smallest staleness that keeps full speed where each process is a stage, and how to train with it."""
    vector, seconds = measured.full_speed(plan, link)
    stages, devices = len(measured.costs), plan.devices
    sizes = written(plan.partition)
    yield (
        f"full speed over such links, {1e3 * seconds:.3f} ms a micro-batch, with {devices} stages of {sizes} blocks "
        f"needs the staleness {', '.join(map(str, vector))}"
    )
    of_these = ", ".join(map(str, lockstep(devices)))
    yield f"lockstep has {of_these} with these stages, {lockstep(stages)[0]} at stage 0 with every block its own stage"
    options = "" if devices == stages else f" --stages {sizes}"
    yield f"to train with it (another result): --timing {timing.covering(vector)}{options}"


def stage_lines(measured: Balance) -> Iterator[str]:
    """Yield a table of what every stage costs."""
    cell = measured.cell
    samples = f"{catalogue.by_name(cell.dataset).sized(cell.image_size)}, batch {cell.batch_size}"
    if own.is_own(cell.model):
        given = own.micro_batch(cell.model) is not None
        network = f"{networks.title_of(cell)}, {'the micro-batch of the function' if given else samples}"
    else:
        network = f"{cell.coupled}, width {cell.width}, {samples}"
    yield (
        f"{network}, {cell.method}, k = {cell.accumulation}; medians of {cell.repetitions} turns; "
        f"memory as predicted for {measured.device}"
    )
    yield "stage  forward, ms  backward, ms  update, ms  memory, MB   up, MB  down, MB"
    for stage, (cost, held) in enumerate(zip(measured.costs, measured.held, strict=True)):
        times = f"{1e3 * cost.forward:>11.3f} {1e3 * cost.backward:>13.3f} {1e3 * cost.update:>11.3f}"
        yield f"{stage:>5}  {times} {held / 1e6:>11.1f} {cost.up / 1e6:>8.2f} {cost.down / 1e6:>9.2f}"


def plan_lines(name: str, measured: Balance, plan: Cut, link: Link) -> Iterator[str]:
    """A cut, what is expected of it by arithmetic, and what simulation adds: waiting, messages, memory over time."""
    yield f"{name}: {written(plan.partition)}"
    yield str(plan)
    filling, count = _micro_batches(measured)
    timeline = measured.simulated(plan, link, count)
    pace = timeline.seconds_per_micro_batch(skip=filling, drop=filling)
    yield (
        f"simulated: {1e3 * pace:.3f} ms a micro-batch, {plan.work / pace:.2f} times one device, "
        f"efficiency {plan.work / pace / plan.devices:.0%}"
    )
    for device, peak in enumerate(measured.peaks(timeline)):
        share = timeline.idle(device) / timeline.seconds
        yield f"  device {device}: idle {share:.0%} of {count} micro-batches, at most {peak / 1e6:.1f} MB"


def _micro_batches(measured: Balance) -> tuple[int, int]:
    """How many fill the pipeline, and how many are simulated: as many again and 8 updates between.

    It is full when the first stage's first backward is done.
    """
    k = measured.cell.accumulation
    filling = -(-(max(lockstep(len(measured.costs))[0], *(measured.staleness or [0])) + 1) // k) * k
    return filling, 2 * filling + 8 * k + 1
