"""Time that the engine adds to an action: a forward, reconstruction, backward or update of one stage.

The stages have a few parameters each, so the time is dominated by the engine and by PyTorch's call overhead. Right
after each tick, the same evaluations, gradients and updates are timed without an engine and subtracted
(`benchmarks.suite.engine`). A round is the median of several such differences. The goal is 50 microseconds. A stage of
RevNet-18 at the paper's width takes milliseconds.

Usage with the defaults:

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
    """Run the benchmark from the command line and return it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--stages", type=count, nargs="+", default=[10, 32], help="numbers of stages J, at least 2 (default 10 and 32)"
    )
    parser.add_argument("--rounds", type=count, default=15, help="number of rounds (default 15)")
    parser.add_argument("--ticks", type=count, default=15, help="ticks per round (default 15)")
    parser.add_argument(
        "--threads", type=count, default=1, help="CPU threads (default 1: the operations are too small to split)"
    )
    add_options(parser, "overhead")
    options = parser.parse_args(arguments)
    if min(options.stages) < 2:
        parser.error(f"--stages {min(options.stages)}: expected at least 2 stages, the last of which is the head")

    recorder = Recorder("The engine's own time", about(__doc__), command("benchmarks.overhead", arguments), options)
    contestants = {f"{stages} stages": beside(stages) for stages in options.stages}
    torch.set_num_threads(options.threads)  # after `beside`, which sets the threads of asv's suite
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
