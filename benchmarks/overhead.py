"""The time that the engine adds to an action: to a forward, a reconstruction, a backward or an update of one stage.

The stages have a few numbers each, so that hardly anything is left but the engine, and PyTorch's own cost of a call.
The same evaluations, gradients and updates without an engine are timed right after each tick and taken off
(`benchmarks.suite.engine`). A round is the median of several such differences. The aim is 50 microseconds: a stage of
RevNet-18 at the paper's width takes milliseconds.

Usage, with the defaults:

    python -m benchmarks.overhead --record
"""

import argparse
import statistics
from collections.abc import Sequence

import torch

from benchmarks.arguments import count
from benchmarks.recording import Recorder, about, add_options, command
from benchmarks.suite.engine import beside
from reproduce.records.benchmarks import Benchmark, Goal

AIM = 50.0  # microseconds
ENGINE, BARE = "the engine", "the same work without an engine"
QUANTITY = "time of an action"


def main(arguments: Sequence[str] | None = None) -> Benchmark:
    """Run from the command line; returns the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=count, nargs="+", default=[10, 32], help="J, at least 2 (default 10 and 32)")
    parser.add_argument("--rounds", type=count, default=15, help="rounds (default 15)")
    parser.add_argument("--ticks", type=count, default=15, help="ticks in a round (default 15)")
    parser.add_argument("--threads", type=count, default=1, help="CPU threads (default 1: nothing is worth sharing)")
    add_options(parser, "overhead")
    options = parser.parse_args(arguments)
    if min(options.stages) < 2:
        parser.error(f"--stages {min(options.stages)}: a network has at least 2, the last of them its head")

    recorder = Recorder("The engine's own time", about(__doc__), command("benchmarks.overhead", arguments), options)
    contestants = {f"{stages} stages": beside(stages) for stages in options.stages}
    torch.set_num_threads(options.threads)  # after `beside`, which has those of asv's suite
    for _ in range(options.rounds):
        for group, both in contestants.items():
            pairs = [both.seconds() for _ in range(options.ticks)]
            added = statistics.median(engine - bare for engine, bare in pairs)
            recorder.add(group, ENGINE, QUANTITY, "µs", max(0.0, 1e6 * added))
            recorder.add(group, BARE, QUANTITY, "µs", 1e6 * statistics.median(bare for _, bare in pairs))
    recorder.goals = [Goal(group, QUANTITY, ENGINE, high=AIM) for group in contestants]
    return recorder.finish()


if __name__ == "__main__":
    main()
