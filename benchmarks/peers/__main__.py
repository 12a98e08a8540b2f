"""Time, memory, gradients and BatchNorm updates of every contestant on the same networks, measured in turn.

This package and other implementations train the same network (a chain of reversible blocks or a RevNet) with the same
weights and micro-batch, in both memory formats; which format is faster depends on width, processor and package.
"Allocated" is the bytes of all tensors, including parameters and optimizer state. "Held at the loss" is the same count
when the loss is called. Some quantities do not depend on the size and are measured only on the first network, as is the
growth of a fresh process: the gradient error, relative to autograd's gradient in float64 over all parameters with fixed
weights; and the BatchNorm updates, which is the number of updates of running statistics per step, for the layer with
most. A step of PETRA is a tick on one device. Times are taken in turn, and every other round runs backwards. A
contestant is ahead if the upper quartile of its ratios to ours is below 1.

Usage, in the environment of `nox -s peers`; without options one network, in one or two minutes:

    python -m benchmarks.peers --threads 1 --networks chain8 chain32 revnet18 --widths 8 32 --rounds 5 --record
    python -m benchmarks.peers --threads 1 --networks chain8 chain32 revnet18 --widths 64 --batch 8 --rounds 5
        --record peers-wide
"""

import argparse
import importlib.metadata
import importlib.util
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.arguments import add_quick, add_threads, count, network, network_name, parse_quick
from benchmarks.peers import measures
from benchmarks.peers.contestants import CONTESTANTS, Contestant, PeerTrainer
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.tick import record_rounds
from reproduce.measures.synthetic import SGD
from reproduce.records.benchmarks import ALLOCATED, Benchmark, Comparison, spread
from reproduce.text import count as counted

NOT_INSTALLED = "not installed"
TIME, UPDATES = "time of a step", "BatchNorm updates"
COSTS = (TIME, ALLOCATED, "held at the loss", "process peak")
OURS, PLAIN = "ours, ", "autograd"
NOTES = (
    "The same network, weights and micro-batch for all; in every quantity less is better.",
    "Under PETRA a step is a tick on one device, where its stages cannot work concurrently. The device "
    "holds messages and inputs of all micro-batches in flight: PETRA is made for several devices.",
)


def state(contestant: Contestant) -> str:
    """Return the version of a contestant's package, or that it is not installed."""
    if contestant.package is None:
        return "this project" if contestant.ours else f"torch {torch.__version__}"
    if importlib.util.find_spec(contestant.package) is None:
        return NOT_INSTALLED
    return importlib.metadata.version(contestant.package)


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--networks", type=reversible_network, nargs="+", default=["chain8"], help="chainN or revnet18/34/50"
    )
    parser.add_argument("--widths", type=count, nargs="+", default=[32], help="channels per stream (default 32)")
    parser.add_argument(
        "--memory-formats", choices=measures.MEMORY_FORMATS, nargs="+", default=list(measures.MEMORY_FORMATS)
    )
    parser.add_argument("--size", type=count, default=16, help="side of an image in pixels (default 16)")
    parser.add_argument("--batch", type=count, default=32, help="images in a micro-batch (default 32)")
    add_threads(parser)
    parser.add_argument("--rounds", type=count, default=9, help="rounds of timing (default 9)")
    add_quick(parser)
    add_options(parser, "peers")
    options = parse_quick(parser, arguments, widths=[2], rounds=1)

    recorder = Recorder("Peers", about(__doc__), command("benchmarks.peers", arguments), options)
    recorder.setting["contestants"] = "; ".join(contestant.name for contestant in CONTESTANTS)
    for contestant in CONTESTANTS:
        recorder.setting[contestant.name] = state(contestant)
    settings = itertools.product(options.networks, options.widths, options.memory_formats)
    for number, (name, width, memory_format) in enumerate(settings):
        setting = measures.PeerSetting(name, width, options.size, options.batch, options.threads, memory_format)
        measure(setting, recorder, options.rounds, first=number == 0)
    return recorder.finish(complete)


def complete(benchmark: Benchmark) -> Benchmark:
    """Add findings: packages ahead of ours, the number of packages, and those that update running statistics twice."""
    compared = [name for name in str(benchmark.setting["contestants"]).split("; ") if _quantities(benchmark, name)]
    packages = [name for name in compared if not name.startswith(OURS) and name != PLAIN]
    updates = {s.name: spread(s.values).median for s in benchmark.series if s.quantity == UPDATES}
    more = [f"{name} ({updates[name]:.0f})" for name in packages if updates.get(name, 1) > 1]
    words = f"Peers: {counted(len(packages), 'other implementation')} of the same networks measured beside ours."
    words += f" More than one BatchNorm update a step: {', '.join(more)}." if more else ""
    findings = []
    for ours in (name for name in compared if name.startswith(OURS)):
        parts = "; ".join(_ahead(benchmark, ours, packages))
        who = f", of whose value they need: {parts}" if parts else ": nobody, on any network measured"
        findings.append(f"Ahead of {ours}, upper quartile included{who}.")
    return replace(
        benchmark,
        findings=(*benchmark.findings, *findings, words),
        notes=(*benchmark.notes, *NOTES),
    )


def _ahead(benchmark: Benchmark, ours: str, packages: Sequence[str]) -> Iterator[str]:
    """Yield the quantities in which packages need less, and by how much. Plain autograd is not a package."""
    quantities = _quantities(benchmark, ours)
    for group in dict.fromkeys(series.group for series in benchmark.series):
        for quantity in (cost for cost in COSTS if (group, cost) in quantities):
            ratios = {
                peer: benchmark.spread(Comparison(group, quantity, peer, ours))
                for peer in packages
                if (group, quantity) in _quantities(benchmark, peer)
            }
            better = [f"{peer} ({ratio.median:.2f})" for peer, ratio in ratios.items() if ratio.upper < 1]
            if better:
                yield f"{group}, {quantity.removesuffix(' of a step')}: {', '.join(better)}"


def _quantities(benchmark: Benchmark, name: str) -> set[tuple[str, str]]:
    return {(series.group, series.quantity) for series in benchmark.series if series.name == name}


def measure(setting: measures.PeerSetting, recorder: Recorder, rounds: int, *, first: bool) -> None:
    """Measure every installed contestant on one network, and on the first one also what does not depend on its size."""
    group = str(setting)
    print(f"{group}:")
    task = measures.Task(setting)
    reference = measures.gradients(CONTESTANTS[0], task, torch.float64) if first else None
    trainers: dict[str, PeerTrainer] = {}
    for contestant in CONTESTANTS:
        if recorder.setting[contestant.name] == NOT_INSTALLED:
            continue
        try:
            values = once(contestant, task, setting, reference)
            trainer = contestant.trainer(task.stages(), nn.functional.cross_entropy, SGD)
            for _ in range(trainer.ready):
                trainer.step(task.images, task.labels)
        except Exception as error:  # any exception of a package is recorded as its result
            if contestant.package is None:
                raise
            recorder.setting[contestant.name] = (
                f"{recorder.setting[contestant.name]}: failed with {type(error).__name__}: {error}"
            )
            continue
        trainers[contestant.name] = trainer
        for (quantity, unit), value in values.items():
            recorder.add(group, contestant.name, quantity, unit, value)
        print("  " + contestant.name + ": " + ", ".join(f"{q} {value:.4g}" for (q, _), value in values.items()))
    steps = {name: partial(trainer.step, task.images, task.labels) for name, trainer in trainers.items()}
    record_rounds(recorder, group, TIME, steps, rounds, torch.device("cpu"))
    for name in list(trainers)[1:]:
        for quantity in (TIME, ALLOCATED):
            recorder.comparisons.append(Comparison(group, quantity, name, CONTESTANTS[0].name))


def once(
    contestant: Contestant, task: measures.Task, setting: measures.PeerSetting, reference: Tensor | None
) -> dict[tuple[str, str], float]:
    """Measure everything except the time: (quantity, unit) -> value.

    Args:
        contestant: Implementation to measure.
        task: Network with its micro-batch.
        setting: Configuration of the task.
        reference: Gradient of autograd, or None to leave out the measurements that need it.

    """
    peak, at_loss = measures.measure_allocations(contestant, setting)
    values: dict[tuple[str, str], float] = {(ALLOCATED, "B"): peak, ("held at the loss", "B"): at_loss}
    if reference is not None:
        values |= measures.correctness(contestant, task, reference)
        grown = measures.process_growth(contestant, setting)
        if grown is not None:
            values["process peak", "B"] = grown
    return values


def reversible_network(given: str) -> str:
    """Parse the name of a network with reversible stages."""
    if not any(stage.invertible for stage in network(network_name(given), 1)):
        raise argparse.ArgumentTypeError(
            f"{given} has no reversible stage to compare: expected chainN or revnet18/34/50"
        )
    return given


if __name__ == "__main__":
    main()
