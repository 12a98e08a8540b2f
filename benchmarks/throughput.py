"""Micro-batches per second of consecutive steps, and the kernels that a step launches.

A separately timed tick (`benchmarks.tick`) includes the time that the host needs to launch it. In training the host
runs ahead of the device, and the time of many consecutive steps counts: here 50 between two synchronizations. The
methods, each with every number of CUDA streams, are measured in turn within one process.

With `--kernels` the profiler records three steps of each and prints the kernels by name, the most expensive
first. This shows why a step is slower than expected. On a CPU it lists PyTorch's operations.

Usage:

    python -m benchmarks.throughput --precision bf16 --compile --captured 4 10 19 --record throughput-streams
    python -m benchmarks.throughput --precision bf16 --methods BACKPROPAGATION --batch 128 --captured 1
    python -m benchmarks.throughput --precision bf16 --captured 19 --kernels
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.arguments import as_trained, count, whole_number
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.tick import add_tick, build, check_captured, full_pipeline, micro_batch, rounds, ticking, time_call
from reproduce.measures.run_options import MODULES, STEPS
from reproduce.records.benchmarks import Benchmark, Comparison
from reproduce.running import devices

PROFILED = 3  # steps
ROWS = 80  # in the table of kernels


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_tick(parser)
    parser.add_argument("--steps", type=count, default=50, help="steps between two synchronizations (default 50)")
    parser.add_argument("--rounds", type=count, default=9, help="timings of every method (default 9)")
    parser.add_argument(
        "--captured",
        type=whole_number,
        nargs="+",
        default=[0],
        metavar="STREAMS",
        help="number of streams of CUDA graphs; 0 runs plain steps",
    )
    parser.add_argument("--kernels", action="store_true", help="print the kernels of a step")
    add_options(parser, "throughput")
    options = parser.parse_args(arguments)
    check_captured(parser, options, options.methods, max(options.captured))
    device = devices.take(options.device)
    with as_trained(parser, options, device):
        return measure(options, device, command("benchmarks.throughput", arguments))


def repeat(call: Callable[[], object], times: int) -> None:
    """Call a function several times."""
    for _ in range(times):
        call()


def measure(options: argparse.Namespace, device: torch.device, given: str) -> Benchmark:
    """Measure what the options request. `given` is the command line for the record."""
    recorder = Recorder("Steps that follow one another", about(__doc__), given, options, device)
    autocast = torch.bfloat16 if options.precision == "bf16" else None
    x, y = micro_batch(options, device, torch.channels_last)
    calls: dict[str, Callable[[], object]] = {}
    for method, streams in itertools.product(options.methods, options.captured):
        stages = build(options, device, torch.channels_last)
        pipeline = full_pipeline(stages, method, x, y, compiled=options.compile == MODULES, autocast=autocast)
        calls[f"{method.title}, {streams} streams"] = ticking(pipeline, x, y, streams, steps=options.compile == STEPS)
    group = f"{options.network} width {options.width}, batch {options.batch}, {options.size} pixels"
    group += f", {options.precision}{options.compile and f', compiled {options.compile}'}"
    repeated = [partial(repeat, call, options.steps) for call in calls.values()]
    for seconds in rounds(repeated, options.rounds, device):
        for name, value in zip(calls, seconds, strict=True):
            recorder.add(group, name, "time of a step", "s", value / options.steps)
            recorder.add(group, name, "images a second", "", options.batch * options.steps / value)
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
        time_call(partial(repeat, call, PROFILED), device)
    by = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    return str(seen.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=120))


if __name__ == "__main__":
    main()
