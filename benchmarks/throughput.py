"""Micro-batches per second of consecutive steps, and the kernels that a step launches.

A separately timed tick (`benchmarks.tick`) includes the time that the host needs to launch it. In training the host
runs ahead of the device, and the time of many consecutive steps counts: here 50 between two synchronizations. The
contestants are the methods, each with every number of CUDA streams, measured in turn within one process.

With `--kernels` the profiler records three steps of each contestant and prints the kernels by name, the most expensive
first. This shows why a step is slower than expected. On a CPU it lists PyTorch's operations.

Usage:

    python -m benchmarks.throughput --precision bf16 --compile --captured 4 10 19 --record throughput-streams
    python -m benchmarks.throughput --precision bf16 --methods BACKPROPAGATION --batch 128 --captured 1
    python -m benchmarks.throughput --precision bf16 --captured 19 --kernels
"""

import argparse
import itertools
from collections.abc import Callable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.arguments import (
    NETWORKS,
    add_device,
    add_precision,
    as_trained,
    count,
    network,
    network_name,
    paper_method,
    whole_number,
)
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.tick import add_compile, full_pipeline, ticking, time_call
from petra_core import methods
from reproduce.measures.run_options import MODULES, STEPS
from reproduce.records.benchmarks import Benchmark, Comparison
from reproduce.running import devices

PROFILED = 3  # steps
ROWS = 80  # in the table of kernels


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", type=network_name, default="revnet18", help=NETWORKS)
    parser.add_argument("--width", type=count, default=64, help="channels of the first stage (default 64, the paper's)")
    parser.add_argument("--batch", type=count, default=64, help="images per micro-batch (default 64)")
    parser.add_argument("--size", type=count, default=32, help="side of an image in pixels (default 32, CIFAR)")
    parser.add_argument(
        "--methods", type=paper_method, nargs="+", default=[methods.PETRA], help="methods to measure (default PETRA)"
    )
    parser.add_argument("--steps", type=count, default=50, help="steps between two synchronizations (default 50)")
    parser.add_argument("--rounds", type=count, default=9, help="timings of every contestant (default 9)")
    add_compile(parser)
    parser.add_argument(
        "--captured",
        type=whole_number,
        nargs="+",
        default=[0],
        metavar="STREAMS",
        help="number of streams of CUDA graphs; 0 runs plain steps",
    )
    parser.add_argument("--kernels", action="store_true", help="print the kernels of a step")
    add_device(parser)
    add_precision(parser, "bf16")
    add_options(parser, "throughput")
    options = parser.parse_args(arguments)
    for method in options.methods:
        if any(options.captured) and method.pipelined and (method.keeps_graph or method.stashes_weights):
            parser.error(f"--captured: ticks of {method} cannot be recorded; leave it out")
    if any(options.captured) and not options.device.startswith("cuda"):
        parser.error(f"--captured makes CUDA graphs, and --device is {options.device}: add --device cuda")
    device = devices.take(options.device)
    with as_trained(parser, options, device):
        return measure(options, device, command("benchmarks.throughput", arguments))


def measure(options: argparse.Namespace, device: torch.device, given: str) -> Benchmark:
    """Measure what the options request. `given` is the command line for the record."""
    recorder = Recorder("Steps that follow one another", about(__doc__), given, options, device)
    torch.manual_seed(0)
    autocast = torch.bfloat16 if options.precision == "bf16" else None
    x = torch.randn(options.batch, 3, options.size, options.size, device=device)
    x = x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (options.batch,), device=device)
    calls: dict[str, Callable[[], object]] = {}
    for method, streams in itertools.product(options.methods, options.captured):
        stages = network(options.network, options.width)
        stages = [stage.to(device).to(memory_format=torch.channels_last) for stage in stages]
        pipeline = full_pipeline(stages, method, x, y, compiled=options.compile == MODULES, autocast=autocast)
        calls[f"{method.title}, {streams} streams"] = ticking(pipeline, x, y, streams, steps=options.compile == STEPS)
    group = f"{options.network} width {options.width}, batch {options.batch}, {options.size} pixels"
    group += f", {options.precision}{options.compile and f', compiled {options.compile}'}"
    for turn in range(options.rounds):
        for name, call in reversed(calls.items()) if turn % 2 else calls.items():
            seconds = time_call(lambda call=call: [call() for _ in range(options.steps)], device) / options.steps
            recorder.add(group, name, "time of a step", "s", seconds)
            recorder.add(group, name, "images a second", "", options.batch / seconds)
    first, *others = calls
    recorder.comparisons += [Comparison(group, "time of a step", other, first) for other in others]
    for name, call in calls.items() if options.kernels else ():
        print(f"{group}, {name}: {PROFILED} steps\n{kernels(call, device)}")
    return recorder.finish()


def kernels(call: Callable[[], object], device: torch.device) -> str:
    """Return the kernels of three steps as a table, the most expensive first."""
    kinds = [ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU]
    call()
    with profile(activities=kinds) as seen:
        time_call(lambda: [call() for _ in range(PROFILED)], device)
    by = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    return str(seen.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=120))


if __name__ == "__main__":
    main()
